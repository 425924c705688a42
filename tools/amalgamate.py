#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes posenc as one file: each of our headers once, where it is first included; what is not ours stays an
#include and moves to the top.

usage: amalgamate.py [posenc/posenc.hpp]... [--output FILE]

The parts that need Google Highway cannot be one file: Highway reads its kernels once per instruction set.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent / "include"
INCLUDE = re.compile(r"^\s*#\s*include\s*[<\"]([^>\"]+)[>\"]")
OPENS = re.compile(r"^\s*#\s*if")
CLOSES = re.compile(r"^\s*#\s*endif")


class Amalgamation:
    def __init__(self):
        self.seen = set()
        self.foreign = []
        self.body = []

    def add(self, name):
        if name in self.seen:
            return
        self.seen.add(name)
        depth = 0
        lines = []
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            depth += bool(OPENS.match(line)) - bool(CLOSES.match(line))
            include = INCLUDE.match(line)
            if line.startswith(("#pragma once", "// SPDX-License-Identifier")):
                continue
            if include and include.group(1).startswith("posenc/"):
                if depth:
                    sys.exit(f"{name}: {line.strip()} stands inside #if; a single file cannot keep that")
                self.add(include.group(1))
            elif include and not depth:
                self.foreign.append(f"#include <{include.group(1)}>")
            else:
                lines.append(line)
        self.body += ["", f"// ---- {name} ----", *lines]

    def text(self):
        version = re.findall(r"define POSENC_VERSION_\w+ (\d+)", (ROOT / "posenc/version.hpp").read_text())
        head = [
            "// SPDX-License-Identifier: MIT",
            f"// posenc {'.'.join(version)} in one file; made by tools/amalgamate.py, not to be edited.",
            "#pragma once",
            "",
            *sorted(set(self.foreign)),
        ]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(head + self.body) + "\n")


def main():
    parser = argparse.ArgumentParser(description="posenc as one header")
    parser.add_argument("headers", nargs="*", default=["posenc/posenc.hpp"])
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    amalgamation = Amalgamation()
    for header in arguments.headers:
        amalgamation.add(header)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(amalgamation.text(), encoding="utf-8")
    else:
        sys.stdout.write(amalgamation.text())


if __name__ == "__main__":
    main()
