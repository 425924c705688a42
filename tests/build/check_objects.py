# SPDX-License-Identifier: MIT
"""Looks at objects compiled from our headers alone: every function must be inline (else two translation units
clash at link time), nothing may be global and mutable, and <iostream> must not have come along.

usage: check_objects.py OBJDUMP OBJECT...
"""
import re
import subprocess
import sys

# address, seven flag characters, section, size, optional visibility, name
SYMBOL = re.compile(r"^[0-9a-f]+ (.{7}) (\S+)\s+[0-9a-f]+ +(?:\.hidden )?(.*)$")


def faults(section, flags, name):
    code_or_data = section.startswith((".text", ".data", ".bss", ".rodata", ".tbss", ".tdata"))
    if not code_or_data or name == section:
        return
    if flags[0] == "g":
        yield "is not inline"
    mutable = section.startswith((".data", ".bss", ".tbss", ".tdata")) and not section.startswith(".data.rel.ro")
    if mutable and "posenc::" in name:
        yield "is global and mutable"
    if "__ioinit" in name:
        yield "shows that <iostream> was included"


def main(objdump, *objects):
    bad = []
    for path in objects:
        listing = subprocess.run([objdump, "-tC", path], check=True, capture_output=True, text=True).stdout
        for line in listing.splitlines():
            match = SYMBOL.match(line)
            if match:
                flags, section, name = match.groups()
                bad += [f"{path.split('self_contained/')[-1]}: {name} {fault}" for fault in faults(section, flags, name)]
    print("\n".join(sorted(set(bad))))
    print(f"{len(objects)} objects, {len(set(bad))} faults")
    return 1 if bad or not objects else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
