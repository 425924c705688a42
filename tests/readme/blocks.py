# SPDX-License-Identifier: MIT
"""The programs shown in README.md and docs/, taken out to be compiled, and what they print compared with what
the page says.

A program is a fenced block after the line <!-- program: NAME -->; what it prints is the fenced block after
<!-- output: NAME -->.

usage: blocks.py extract DIRECTORY PAGE...   writes NAME.cpp and NAME.txt, and prints the names, one per line
       blocks.py compare OUTPUT PROGRAM [ARGUMENT...]
"""
import difflib
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r"^<!-- (program|output): ([a-z0-9_]+) -->\n+```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def extract(directory, *pages):
    found = {"program": {}, "output": {}}
    for page in pages:
        text = pathlib.Path(page).read_text(encoding="utf-8")
        for kind, name, body in BLOCK.findall(text):
            if name in found[kind]:
                sys.exit(f"{page}: a second {kind} called {name}")
            found[kind][name] = body
        markers = len(re.findall(r"<!-- (?:program|output): ", text))
        if markers != len(BLOCK.findall(text)):
            sys.exit(f"{page}: {markers} marked blocks, of which {len(BLOCK.findall(text))} can be read")
    if found["program"].keys() != found["output"].keys():
        sys.exit(f"programs {sorted(found['program'])}, outputs {sorted(found['output'])}: each needs the other")
    out = pathlib.Path(directory)
    out.mkdir(parents=True, exist_ok=True)
    for kind, suffix in (("program", "cpp"), ("output", "txt")):
        for name, body in found[kind].items():
            path = out / f"{name}.{suffix}"
            if not path.exists() or path.read_text(encoding="utf-8") != body:
                path.write_text(body, encoding="utf-8")
    print("\n".join(sorted(found["program"])))


def compare(expected, *command):
    want = pathlib.Path(expected).read_text(encoding="utf-8").splitlines()
    got = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8").stdout.splitlines()
    difference = list(difflib.unified_diff(want, got, "the page", "the program", lineterm=""))
    print("\n".join(difference) if difference else f"{len(want)} lines, as the page says")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit({"extract": extract, "compare": compare}[sys.argv[1]](*sys.argv[2:]))
