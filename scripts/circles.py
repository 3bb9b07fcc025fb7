#!/usr/bin/env python3
"""Prints the import circles inside each crate: files that import each other in a loop.

A module and its own children may be a circle: the parent lists its parts, and they use its
definitions. A child's children belong to the circle only together with that child. Any other circle
of more than three files is an error. Tests inside crates (`tests.rs`, `tests/`, `mod tests`) are
ignored.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
FILES_MAX = 3

USE = re.compile(r"\buse\s+((?:crate|super|self)\b[^;]*);")
PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")
EXPORT = re.compile(r"\bpub(?:\([^)]*\))?\s+use\s+([^;]*);")


def code_of(text):
    """A file's text without comments, paths of visibilities, and tests."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"\bpub\(in [^)]*\)", "pub", text)
    return re.split(r"#\[cfg\(test\)\]\s*(?:pub\(crate\) )?mod \w+ \{", text)[0]


def modules(source):
    """The modules of a crate, by their path as a tuple of names, and their code."""
    found = {}
    for file in source.rglob("*.rs"):
        path = list(file.relative_to(source).with_suffix("").parts)
        if path[-1] in ("mod", "lib", "main"):
            path.pop()
        if "tests" in path or "bin" in path:
            continue
        found[tuple(path)] = code_of(file.read_text())
    return found


def flat(tree):
    """The paths in a `use` tree: a::{b, c::{d, e as f}} has a::b, a::c::d and a::c::e."""
    tree = tree.strip()
    if "{" not in tree:
        return [re.sub(r"\s+as\s+\w+", "", tree)]
    head, body = tree.split("{", 1)
    body, depth, piece, pieces = body.rsplit("}", 1)[0], 0, "", []
    for char in body:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            pieces.append(piece)
            piece = ""
        else:
            piece += char
    pieces.append(piece)
    return [head + path for piece in pieces if piece.strip() for path in flat(piece)]


def absolute(path, here):
    """A path that begins with crate, super or self, from the crate's root on; None for others."""
    names = [name.strip() for name in path.split("::")]
    if names[0] == "crate":
        return names[1:]
    at = list(here)
    while names and names[0] in ("super", "self"):
        if names.pop(0) == "super":
            if not at:
                return None
            at.pop()
    return at + names


def exports(found):
    """For each module, the names that it hands on from other modules of the crate."""
    handed = {}
    for here, text in found.items():
        for tree in EXPORT.findall(text):
            for path in flat(tree):
                names = path.split("::")
                names = absolute(path, here) if names[0] in ("crate", "super", "self") else [*here, *names]
                if names:
                    handed.setdefault(here, {})[names[-1]] = names
    return handed


def file_of(names, found, handed, hops=4):
    """The module whose file defines what a path names."""
    for length in range(len(names), -1, -1):
        at = tuple(names[:length])
        if at not in found:
            continue
        further = handed.get(at, {}).get(names[length]) if length < len(names) else None
        if further and hops and further != names:
            return file_of(further + names[length + 1 :], found, handed, hops - 1)
        return at
    return None


def parts_used(here, text, found):
    """Paths that begin with the name of a module's own part, from the crate's root on."""
    parts = [module[-1] for module in found if module and module[:-1] == here]
    handed_on = EXPORT.sub("", text)
    for part in parts:
        for path in re.findall(rf"(?<![:\w]){part}(?:::\w+)*(?:::\w+|::\{{[^;]*\}})", handed_on):
            yield from ("::".join(["crate", *here, *[path]]) for path in flat(path))


def imports(found):
    """For each module, those that it imports."""
    handed = exports(found)
    graph = {}
    for here, text in found.items():
        handed_on = [match.span() for match in EXPORT.finditer(text)]
        paths = [path for match in USE.finditer(text) for path in flat(match.group(1))
                 if not any(start <= match.start() < end for start, end in handed_on)]
        paths += PATH.findall(USE.sub("", text))
        paths += parts_used(here, text, found)
        targets = {file_of(names, found, handed) for path in paths if (names := absolute(path, here)) is not None}
        graph[here] = {target for target in targets if target is not None and target != here}
    return graph


def circles(graph):
    """The strongly connected components of more than one module (Tarjan's algorithm)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph.get(node, ()):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            members = []
            while not members or members[-1] != node:
                members.append(stack.pop())
            if len(members) > 1:
                found.append(sorted(members))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def is_family(circle):
    """Whether all members but the first are children of members. The root is not a parent."""
    first = circle[0]
    return first != () and all(member[:-1] in circle for member in circle[1:])


def self_test():
    """The check finds circles, and knows a family from other circles."""
    found = {
        (): "mod a; mod b; pub use a::Thing;",
        ("a",): "use crate::b::{c::Other, self}; use std::fmt;",
        ("b",): "mod c; mod e; struct Parent; fn f() { e::g() }",
        ("b", "c"): "pub fn f(t: crate::Thing) {}",
        ("d",): "use super::b;",
        ("b", "e"): "use super::Parent;",
    }
    graph = imports(found)
    assert graph[("a",)] == {("b",), ("b", "c")}, graph
    assert graph[("b", "c")] == {("a",)}, graph
    assert graph[("d",)] == {("b",)}, graph
    assert sorted(circles(graph)) == [[("a",), ("b", "c")], [("b",), ("b", "e")]], circles(graph)
    assert not is_family([("a",), ("b", "c")])
    assert is_family([("b",), ("b", "c"), ("b", "d")])
    assert is_family([("b",), ("b", "c"), ("b", "c", "d")])
    assert not is_family([("b",), ("b", "c", "d"), ("b", "e")])
    leaf = ("b", "c", "d")
    text = code_of("pub(in crate::b) struct Deep; // crate::b")
    deep = {("b",): "mod c; use c::d::Deep;", ("b", "c"): "mod d;", leaf: text}
    assert imports(deep) == {("b",): {leaf}, ("b", "c"): set(), leaf: set()}, imports(deep)


def main():
    self_test()
    sys.setrecursionlimit(10_000)
    failed = False
    for crate in sorted((ROOT / "crates").iterdir()):
        for circle in circles(imports(modules(crate / "src"))):
            names = ", ".join("::".join(member) or "lib" for member in circle)
            family = is_family(circle)
            bad = len(circle) > FILES_MAX and not family
            failed |= bad
            kind = "error: " if bad else "a module and its parts: " if family else ""
            print(f"circles: {crate.name}: {kind}{len(circle)} files: {names}", file=sys.stderr if bad else sys.stdout)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
