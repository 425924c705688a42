# SPDX-License-Identifier: MIT
"""Builds the documentation as a site under build/docs/html, and checks it: `./run docs`.

A public name without a comment, a reference to nothing, a link or an anchor that does not exist are errors. With
--twice the site is built again elsewhere in time, and every byte compared.
"""
import hashlib
import html.parser
import pathlib
import shutil
import subprocess
import sys
import urllib.parse

import filter as pages_filter  # beside this file

ROOT = pages_filter.ROOT
OUT = ROOT / "build/docs"


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
                            cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return sorted(path for path in listed.split("\0") if path and (ROOT / path).exists())


def build():
    shutil.rmtree(OUT, ignore_errors=True)  # whole, so that no file of an earlier build stays
    (OUT / "images").mkdir(parents=True)
    pages = tracked("*.md")
    drawings = tracked("docs/*.dot")
    for image in tracked("docs/*.svg"):
        if image.replace(".svg", ".dot") not in drawings:
            shutil.copyfile(ROOT / image, OUT / "images" / pathlib.Path(image).name)
    for drawing in drawings:
        subprocess.run(["dot", "-Tsvg", drawing, "-o", OUT / "images" / (pathlib.Path(drawing).stem + ".svg")],
                       cwd=ROOT, check=True)
    subprocess.run(["doxygen", "-l", OUT / "layout.xml"], cwd=ROOT, check=True)
    layout = (OUT / "layout.xml").read_text(encoding="utf-8")
    for kind, title in (("pages", "Pages"), ("modules", "API by topic"), ("mainpage", "posenc")):
        layout = layout.replace(f'<tab type="{kind}" visible="yes" title=""', f'<tab type="{kind}" visible="yes" title="{title}"')
    (OUT / "layout.xml").write_text(layout, encoding="utf-8")
    settings = (ROOT / "docs/site/Doxyfile").read_text(encoding="utf-8")
    settings += "INPUT = include/posenc docs/site/topics.dox " + " ".join(pages) + "\n"
    doxygen = subprocess.run(["doxygen", "-"], cwd=ROOT, input=settings, text=True).returncode
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        for pattern in (pages_filter.LINK, pages_filter.IMAGE):
            for match in pattern.finditer(text):
                if not pages_filter.is_outside(match["target"]):
                    path, _ = pages_filter.target_of(match["target"], page)
                    if not (ROOT / path).exists():
                        sys.exit(f"{page}: no file {match['target']}")
                    if (ROOT / path).is_file() and not path.endswith((".md", ".svg")):
                        shutil.copyfile(ROOT / path, OUT / "html" / pages_filter.copied_as(path))
    return doxygen


class links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.targets, self.anchors = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)
            elif value and name in ("href", "src", "data"):
                self.targets.add(value)


def check_links():
    """Every link inside the site, anchors included; those that leave it are only counted."""
    pages = {path.name: links(path.read_text(encoding="utf-8")) for path in (OUT / "html").glob("*.html")}
    broken, inside, outside = [], 0, 0
    for name, page in pages.items():
        for target in page.targets:
            if pages_filter.is_outside(target):
                outside += not target.startswith("javascript:")
                continue
            inside += 1
            file, _, anchor = urllib.parse.unquote(target).partition("#")
            file = file or name
            if anchor == "nested-classes":
                continue  # Doxygen's own: the members are private, so that the section that it announces is empty
            if not (OUT / "html" / file).exists():
                broken.append(f"{name}: no {target}")
            elif anchor and file in pages and anchor not in pages[file].anchors:
                broken.append(f"{name}: no anchor {target}")
    print("\n".join(sorted(broken)))
    print(f"{len(pages)} pages, {inside} links inside, {len(broken)} broken; {outside} lead outside")
    return len(broken)


def fingerprint():
    return {path.relative_to(OUT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (OUT / "html").rglob("*") if path.is_file()}


if __name__ == "__main__":
    failed = build()
    failed = check_links() or failed
    if not failed and "--twice" in sys.argv[1:]:
        first = fingerprint()
        build()
        second = fingerprint()
        differing = sorted(path for path in first.keys() | second.keys() if first.get(path) != second.get(path))
        print("built twice:", f"these differ: {differing}" if differing else f"the same bytes in {len(first)} files")
        failed = bool(differing)
    sys.exit(1 if failed else 0)
