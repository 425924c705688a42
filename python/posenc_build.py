# SPDX-License-Identifier: MIT
"""The build backend: scikit-build-core's, with the C++ library put beside the module first.

A source distribution holds only what lies in its own folder, and the headers lie in the folder above."""
import contextlib
import pathlib
import shutil

from scikit_build_core import build as _backend
from scikit_build_core.build import *  # noqa: F403: the hooks that stay as they are

_here = pathlib.Path(__file__).resolve().parent
_parts = ["CMakeLists.txt", "LICENSE", "cmake", "include", "packaging"]


@contextlib.contextmanager
def _library():
    """The library in library/ and its licence here, while the block runs; a source distribution has both already."""
    library, licence = _here / "library", _here / "LICENSE"
    if not (_here.parent / "include" / "posenc").is_dir():
        yield
        return
    shutil.rmtree(library, ignore_errors=True)
    library.mkdir()
    try:
        for part in _parts:
            source = _here.parent / part
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, library / part)
        shutil.copy2(_here.parent / "LICENSE", licence)
        yield
    finally:
        shutil.rmtree(library)
        licence.unlink(missing_ok=True)


def _in_library(hook):
    def wrapped(*arguments, **options):
        with _library():
            return hook(*arguments, **options)

    return wrapped


build_sdist = _in_library(_backend.build_sdist)
build_wheel = _in_library(_backend.build_wheel)
prepare_metadata_for_build_wheel = _in_library(_backend.prepare_metadata_for_build_wheel)
