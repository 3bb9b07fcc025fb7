#!/usr/bin/env python3
"""Checks that what the pages refer to exists.

That is: the targets of relative links (file and heading), the files that they name in backticks,
and the functions that docs/ARCHITECTURE.md names. Pages of decisions follow their template.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
# A page that names functions of the source, as `function` or `Type::function`.
WITH_FUNCTIONS = "docs/ARCHITECTURE.md"
# Files with one of these endings, named with a folder, are files of this repository.
ENDINGS = r"(?:rs|py|sh|c|h|md|toml)"
ADR_INDEX = "docs/adr/README.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(rf"`((?:[\w.*-]+/)+[\w.*-]+\.{ENDINGS}|[\w-]+\.rs)`")
FUNCTION = re.compile(r"`(?:(?:\w+(?:<[^>]*>)?::)+([a-z]\w*)|([a-z]\w*_\w*))(?:\([^`]*\))?`")


def without_code_blocks(text):
    """The text with the lines of its fenced and indented blocks left empty."""
    lines, fenced, before = [], False, ""
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        indented = line.startswith("    ") and (not before.strip() or before == "code")
        code = fenced or fence or indented
        fenced ^= fence
        before = "code" if indented else line
        lines.append("" if code else line)
    return lines


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    heads = [line.lstrip("#").strip() for line in without_code_blocks(text) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def broken_links(page, pages, files):
    """The links of a page that lead nowhere. `pages` has the text of each path."""
    folder = pathlib.PurePosixPath(page).parent
    for number, line in enumerate(without_code_blocks(pages[page]), 1):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            found = normal(folder / path) if path else page
            if found not in files and not any(file.startswith(f"{found.rstrip('/')}/") for file in files):
                yield f"{page}:{number}: no such file: {target}"
            elif anchor and anchor not in anchors(pages.get(found, "")):
                yield f"{page}:{number}: no such heading: {target}"


def normal(path):
    """A path without '..', as text."""
    parts = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def missing_files(page, text, files):
    """Files that a page names and that are none of `files`, whole or by the end of their path."""
    short = [file.replace("/src/", "/") for file in files]
    for number, line in enumerate(without_code_blocks(text), 1):
        for name in FILE.findall(line):
            pattern = re.compile("(?:.*/)?" + re.escape(name).replace(r"\*", "[^/]*"))
            if not any(pattern.fullmatch(file) for file in [*files, *short]):
                yield f"{page}:{number}: no such file: {name}"


def missing_functions(page, text, known):
    """Functions that a page names and that the source does not have."""
    for number, line in enumerate(without_code_blocks(text), 1):
        for name in map("".join, FUNCTION.findall(line)):
            if name not in known:
                yield f"{page}:{number}: no such function: {name}"


def untemplated(page, text, index):
    """Messages about a decision record that does not follow the template of docs/adr/README.md."""
    heads = [line for line in without_code_blocks(text) if line.startswith(("## ", "- Date: ", "- Status: "))]
    wanted = ["- Date: ", "- Status: ", *(f"## {head}" for head in ("Context", "Decision", "Rejected", "Consequences"))]
    if len(heads) != len(wanted) or not all(head.startswith(start) for head, start in zip(heads, wanted)):
        yield f"{page}: not by the template of docs/adr/README.md"
    row = f"]({pathlib.PurePosixPath(page).name}) |"
    date = heads[0].removeprefix("- Date: ") if heads else ""
    if not any(row in line and line.endswith(f"| {date} |") for line in index.splitlines()):
        yield f"{page}: not in docs/adr/README.md with its date"


def tree(folder):
    """The files below a folder, without build output and what belongs to Git."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            if path.name not in ("target", ".git"):
                yield from tree(path)
        else:
            yield path


def self_test():
    """The check finds what it is for."""
    pages = {"a.md": "[x](docs/b.md#two-words) [y](c.md)", "docs/b.md": "# Two words\n[z](../a.md) [v](#none)"}
    files = set(pages)
    assert list(broken_links("a.md", pages, files)) == ["a.md:1: no such file: c.md"]
    assert list(broken_links("docs/b.md", pages, files)) == ["docs/b.md:2: no such heading: #none"]
    assert list(broken_links("a.md", {"a.md": "```\n[x](y)\n```\n"}, {"a.md"})) == []
    decision = "- Date: 1\n- Status: x\n## Context\n## Decision\n## Rejected\n## Consequences\n"
    assert list(untemplated("docs/adr/a.md", decision, "| [A](a.md) | b | 1 |")) == []
    assert len(list(untemplated("docs/adr/a.md", "## Why\n", ""))) == 2
    source = {"crates/fs/src/live/mod.rs", "tests/run"}
    text = "`live/mod.rs` `fs/live/mod.rs` `fs/src/*/mod.rs` `live/none.rs`"
    assert list(missing_files("a.md", text, source)) == ["a.md:1: no such file: live/none.rs"]
    text = "`Engine::commit` `Engine::none` `not_there` `mount`"
    missing = [f"a.md:1: no such function: {name}" for name in ("none", "not_there")]
    assert list(missing_functions("a.md", text, {"commit"})) == missing


def main():
    self_test()
    files = {path.relative_to(ROOT).as_posix() for path in tree(ROOT)}
    pages = {file: (ROOT / file).read_text() for file in files if file.endswith(".md")}
    sources = [(ROOT / file).read_text() for file in files if re.match(r"crates/.*\.rs$", file)]
    known = {name for source in sources for name in re.findall(r"\bfn (\w+)", source)}
    # Modules are written as functions are.
    known |= {part.removesuffix(".rs") for file in files for part in file.split("/")}
    found = []
    for page in sorted(pages):
        found += broken_links(page, pages, files)
        found += missing_files(page, pages[page], files)
        if page.startswith("docs/adr/") and page != ADR_INDEX:
            found += untemplated(page, pages[page], pages[ADR_INDEX])
    found += missing_functions(WITH_FUNCTIONS, pages[WITH_FUNCTIONS], known)
    for sentence in found:
        print(f"docs: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
