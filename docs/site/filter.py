# SPDX-License-Identifier: MIT
"""What Doxygen reads in place of FILE: filter.py FILE.

Headers: namespaces as users write them, and each folder's names in its topic (topics.dox). Pages: links between them,
and to sources, as references that Doxygen checks. Lines keep their numbers.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The topic of a header is that of the longest of these that its path begins with.
TOPICS = {
    "encoding": "encoding", "parameters": "encoding", "required": "encoding", "encodings/": "encodings", "rope/": "rope",
    "rope/scaling": "scaling", "attention/": "attention", "masks": "masks", "positions": "masks", "views": "views",
    "errors": "views", "version": "views", "fused/": "fused", "cache/": "cache", "models/": "models",
    "models/families/": "families", "analysis/": "analysis", "testing/": "testing",
}

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
IMAGE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^(#{1,4}) +(.*?)\s*$")
CODE = re.compile(r"(`[^`\n]*`)")


def slug(heading):
    """The anchor that forges give a heading."""
    words = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return words.replace(" ", "-")


def page_id(path):
    """docs/models.md → models, examples/llama/README.md → examples_llama, README.md → mainpage."""
    parts = pathlib.PurePosixPath(path).with_suffix("").parts
    if parts[0] == "docs":
        return "pages" if parts[1:] == ("index",) else "_".join(parts[1:])
    return "_".join(part.lower() for part in parts if part != "README") or "mainpage"


def target_of(link, page):
    """The path in the project that a link of a page names, and the fragment."""
    path, _, fragment = link.partition("#")
    base = ROOT / page
    found = (base.parent / path).resolve() if path else base
    if found.is_dir() and (found / "README.md").exists():
        found = found / "README.md"
    return found.relative_to(ROOT).as_posix(), fragment


def is_outside(link):
    return re.match(r"[a-z]+:", link) is not None


def copied_as(path):
    """The name under which a file that is no page and no header lies beside the site's pages."""
    return path.replace("/", "_")


def reference(match, page):
    text, link = match["text"], match["target"]
    if is_outside(link):
        return match[0]
    path, fragment = target_of(link, page)
    if path.endswith(".md"):
        name = page_id(path) + (f"_{fragment}" if fragment else "")
        name = "index" if name == "mainpage" else name  # as Doxygen calls it in references
        return f'<a href="#{name}">{text}</a>' if (path, fragment) == (page, "") else f"[{text}](@ref {name})"
    if path.startswith("include/") and not path.endswith("-inl.hpp"):
        return f"[{text}](@ref {path.removeprefix('include/')})"
    if (ROOT / path).is_dir():
        return text  # a folder without a page of its own
    return f'<a href="{copied_as(path)}">{text}</a>'


def page(path, text):
    name = page_id(path)
    text = re.sub(r"<!--.*?-->", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    lines, fence, first = [], False, True
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            fence = not fence
            language = re.fullmatch(r"(\s*)```(\w+)", line)
            known = {"cpp": ".cpp", "c++": ".cpp", "python": ".py"}
            line = f"{language[1]}```{{{known.get(language[2], '.unparsed')}}}" if language else line.replace("```", "```{.unparsed}" if fence else "```")
        elif not fence:
            if heading := HEADING.match(line):
                anchor = name if first else f"{name}_{slug(heading[2])}"
                line = f"{heading[1]} {heading[2]} {{#{anchor}}}"
                first = False
            line = IMAGE.sub(lambda m: f"![{m['text']}]({pathlib.PurePosixPath(m['target']).name})", line)
            # A name in code that Doxygen would take for a link stays as it is: only links are links.
            parts = LINK.split(line) if "](" not in line else None
            line = LINK.sub(lambda m: reference(m, path), line) if parts is None else line
        lines.append(line)
    return "\n".join(lines)


def header(path, text):
    inside = path.removeprefix("include/posenc/")
    topics = [prefix for prefix in TOPICS if inside.startswith(prefix)]
    topic = TOPICS[max(topics, key=len)] if topics else None
    # HWY_NAMESPACE keeps the instruction sets of one program apart; users never write it.
    text = re.sub(r"^inline namespace HWY_NAMESPACE \{", 'extern "C++" {', text, flags=re.MULTILINE)
    # Doxygen 1.9.4 lists friends that are defined in a class, and leaves them out of its page.
    text = re.sub(r"^(  \[\[nodiscard\]\]) friend (?=.*operator)", r"\1 static ", text, flags=re.MULTILINE)
    text = re.sub(r"^HWY_(BEFORE|AFTER)_NAMESPACE\(\);$", "", text, flags=re.MULTILINE)
    if topic:
        text = re.sub(r"^(namespace posenc)::inline v0_2(::fused)? \{\n(\n?)",
                      lambda m: f"{m[1]}{m[2] or ''} {{ /** \\addtogroup {topic}\n@{{ */{m[3]}", text, flags=re.MULTILINE)
        text = re.sub(r"^\}  // namespace posenc::inline v0_2(::fused)?$", "/** @} */ }", text, flags=re.MULTILINE)
    return text.replace("namespace posenc::inline v0_2", "namespace posenc")


if __name__ == "__main__":
    file = pathlib.Path(sys.argv[1]).resolve()
    relative = file.relative_to(ROOT).as_posix()
    content = file.read_text(encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(page(relative, content) if relative.endswith(".md")
                     else header(relative, content) if relative.endswith(".hpp") else content)
