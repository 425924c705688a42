# SPDX-License-Identifier: MIT
"""The programs shown in README.md and docs/, taken out to be compiled, and what they print compared with what
the page says.

A program is a fenced block after the line <!-- program: NAME -->; what it prints is the fenced block after
<!-- output: NAME -->, or else stands in its comments, // prints: LINE. Every other C++ block is the body of a
function: all of them are compiled together, each with what the comment <!-- given ... --> right before it declares.

usage: blocks.py extract DIRECTORY PAGE...   writes NAME.cpp and NAME.txt, and prints the names, one per line;
                                             fragments.cpp is what no program has
       blocks.py compare OUTPUT PROGRAM [ARGUMENT...]
"""
import difflib
import pathlib
import re
import subprocess
import sys

CPP = re.compile(r"^(?:<!-- (?P<marker>program: [a-z0-9_]+) -->\n+|<!-- given\n(?P<given>.*?)^-->\n+)?^```(?:cpp|c\+\+)\n(?P<body>.*?)^```$",
                 re.MULTILINE | re.DOTALL)
PRINTS = re.compile(r"// prints: (.*)$", re.MULTILINE)
PRELUDE = """#include <cstdio>
#include <string>
#include <vector>

#include <posenc/analysis.hpp>
#include <posenc/fused.hpp>
#include <posenc/models.hpp>
#include <posenc/posenc.hpp>
#include <posenc/testing.hpp>
#if __has_include(<mpi.h>)
#include <posenc/distributed/mpi.hpp>
#endif

#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wunused-local-typedefs"
"""
BLOCK = re.compile(r"^<!-- (program|output): ([a-z0-9_]+) -->\n+```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def extract(directory, *pages):
    found = {"program": {}, "output": {}}
    fragments = [PRELUDE]
    for page in pages:
        text = pathlib.Path(page).read_text(encoding="utf-8")
        for block in CPP.finditer(text):
            if not block["marker"]:
                line = text.count("\n", 0, block.start("body")) + 1
                fragments.append(f"void fragment_{len(fragments)}();\nvoid fragment_{len(fragments)}() {{\n{block['given'] or ''}"
                                 f"#line {line} \"{page}\"\n{block['body']}}}\n")
        for kind, name, body in BLOCK.findall(text):
            if name in found[kind]:
                sys.exit(f"{page}: a second {kind} called {name}")
            found[kind][name] = body
        markers = len(re.findall(r"<!-- (?:program|output): ", text))
        if markers != len(BLOCK.findall(text)):
            sys.exit(f"{page}: {markers} marked blocks, of which {len(BLOCK.findall(text))} can be read")
    for name, body in found["program"].items():
        if printed := PRINTS.findall(body):
            if name in found["output"]:
                sys.exit(f"{name}: its output is said twice")
            found["output"][name] = "\n".join(printed) + "\n"
    if found["program"].keys() != found["output"].keys():
        sys.exit(f"programs {sorted(found['program'])}, outputs {sorted(found['output'])}: each needs the other")
    out = pathlib.Path(directory)
    out.mkdir(parents=True, exist_ok=True)
    files = {f"{name}.cpp": body for name, body in found["program"].items()}
    files |= {f"{name}.txt": body for name, body in found["output"].items()} | {"fragments.cpp": "\n".join(fragments)}
    for name, body in files.items():
        path = out / name
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
