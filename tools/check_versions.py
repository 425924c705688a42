#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether every file that names the version of posenc names the one of include/posenc/version.hpp.

The argument is the root of a checkout. Prints a line for each file that differs; the exit status is 1 then."""
import pathlib
import re
import sys

# File, and a pattern whose group is the version, or its major.minor part.
PLACES = [
    ("python/pyproject.toml", r'^version = "(\S+)"$'),
    ("CITATION.cff", r"^version: (\S+)$"),
    ("CHANGELOG.md", r"^## \[?(\d+\.\d+\.\d+)"),
    ("README.md", r"find_package\(posenc (\d+\.\d+) "),
    ("include/posenc/positions.hpp", r"inline v(\d+_\d+) "),
]


def version_of(root):
    text = (root / "include/posenc/version.hpp").read_text(encoding="utf-8")
    return [re.search(rf"define POSENC_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH")]


def main(root):
    numbers, wrong = version_of(root), 0
    for name, pattern in PLACES:
        found = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        said = re.split(r"[._]", found[1]) if found else []
        if len(said) < 2 or said != numbers[: len(said)]:
            print(f"{name}: says {'.'.join(said) or 'no version'}, version.hpp says {'.'.join(numbers)}")
            wrong += 1
    print(f"{len(PLACES) - wrong} of {len(PLACES)} files name version {'.'.join(numbers)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
