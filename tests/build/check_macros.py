# SPDX-License-Identifier: MIT
"""Includes all our headers and lists the macros that stay defined: only the version number may, and
the include guards of what Highway reads once per instruction set.

usage: check_macros.py GENERATED_DIR COMPILER FLAG...
"""
import subprocess
import sys

OURS = {"POSENC_VERSION_MAJOR", "POSENC_VERSION_MINOR", "POSENC_VERSION_PATCH"}


def macros_after(compiler, header):
    out = subprocess.run([*compiler, "-dM", "-E", "-x", "c++", header], check=True, stdout=subprocess.PIPE, text=True)
    return {line.split()[1].split("(")[0] for line in out.stdout.splitlines()}


def main(generated, *compiler):
    before = macros_after(compiler, f"{generated}/foreign_headers.hpp")
    after = macros_after(compiler, f"{generated}/all_headers.hpp")
    # Highway redefines its own macros once per instruction set.
    leaked = {name for name in after - before - OURS
              if not name.startswith("HWY_") and not (name.startswith("POSENC_") and name.endswith("_INL_HPP"))}
    for name in sorted(leaked):
        print(f"{name} leaks from our headers")
    print(f"{len(after)} macros, {len(leaked)} leaked")
    return 1 if leaked or not OURS <= after else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
