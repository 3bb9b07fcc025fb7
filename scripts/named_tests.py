#!/usr/bin/env python3
"""Checks the tables of the docs that name tests.

Each requirement has a row, and everything that the rows name exists: files of the source and tests.
Every test file of the tree is in a table of docs/TESTS.md.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
# A file, and the last number of each kind of requirement that it has a row for.
TABLES = {
    "docs/TRANSACTIONS.md": {"TX": 22},
    "docs/MECHANISMS.md": {"JOJ": 9, "DIU": 5, "RFJ": 6, "SNAP": 12},
}
# The part of a table's page that names no tests.
CLAIMS = "\n## Beside the papers"
# A page with tables of properties, and the test files that it has to name.
PROPERTIES = "docs/TESTS.md"
TEST_FILES = "crates/*/tests/*.rs", "crates/*/tests/*/main.rs", "crates/txn/src/tests/*.rs", "tests/suites/*.sh", "tests/long/*.sh"


def mount_tests():
    """Tests on mounts, as tests/run --list has them."""
    for suite in (ROOT / "tests/suites").glob("*.sh"):
        for name in re.findall(r"^test_(\w+)\(\)", suite.read_text(), re.MULTILINE):
            yield f"{suite.stem}/{name}"


def workloads():
    """Names of the crash explorer's workloads."""
    source = ROOT / "crates/testkit/src"
    for file in [*(source / "workloads").glob("*.rs"), source / "blocks/mod.rs"]:
        yield from re.findall(r'"([a-z0-9-]+)"', file.read_text())


def functions():
    """Names of functions in the sources of tests."""
    for pattern in "crates/**/*.rs", "tests/*.c", "tests/*.py":
        for file in ROOT.glob(pattern):
            yield from re.findall(r"^\s*(?:fn|def|static void) (\w+)", file.read_text(), re.MULTILINE)


def faults():
    """Ordering rules that can be left out."""
    return {f"Fault::{name}" for name in re.findall(r"Fault::(\w+)", (ROOT / "crates/testkit/src/canaries.rs").read_text())}


def is_there(name, known):
    if name.startswith(("make ", "XACT_", "inode_update=")) or name in known:
        return True
    crate = ROOT / "crates"
    if any(path.exists() for path in (ROOT / name, crate / name, crate / name.replace("/tests/", "/src/tests/", 1))):
        return True
    return "*" in name and any(pathlib.PurePath(test).match(name) for test in known)


def check(table, last):
    """Sentences about a table that lacks a row for a number up to the last of its kind."""
    known = {*mount_tests(), *functions(), *workloads(), *faults()}
    rows = [line for line in (ROOT / table).read_text().split(CLAIMS)[0].splitlines() if line.startswith(tuple(f"| {kind}-" for kind in last))]
    named = set()
    for row in rows:
        _, ids, *columns, _ = row.split("|")
        named |= set(re.findall(r"[A-Z]+-\d+", ids))
        for column in columns:
            names = re.findall(r"`([^`]+)`", column)
            yield from (f"{ids.strip()}: there is no {name}" for name in names if not is_there(name, known))
        if "`" not in columns[-1]:
            yield f"{ids.strip()}: names no test"
    for kind, number in last.items():
        yield from (f"{kind}-{n} has no row" for n in range(1, number + 1) if f"{kind}-{n}" not in named)


def check_properties(text, test_files):
    """Sentences about rows without a test, names without a file, and files in no row."""
    named = set()
    for row in re.findall(r"^\| (?!property|-)(.*) \|$", text, re.MULTILINE):
        names = re.findall(r"`([^`]+)`", row.split(" | ")[-1])
        named.update(names)
        if not names:
            yield f"{row}: names no test"
    yield from (f"{name} does not exist" for name in sorted(named - test_files) if "/" in name)
    yield from (f"{name} is in no table" for name in sorted(test_files - named))


def test_files():
    """The test files of the tree, without modules that only help them."""
    found = {path.relative_to(ROOT).as_posix() for pattern in TEST_FILES for path in ROOT.glob(pattern)}
    return {name for name in found if not name.endswith("/mod.rs")}


def self_test():
    """The check of properties finds what it is for."""
    text = "| property | shown by |\n|---|---|\n| a | `x/a.rs` |\n| b | |\n"
    assert list(check_properties(text, {"x/a.rs"})) == ["b |: names no test"], list(check_properties(text, {"x/a.rs"}))
    assert list(check_properties("| a | `x/a.rs` |", {"x/b.rs"})) == ["x/a.rs does not exist", "x/b.rs is in no table"]


def main():
    self_test()
    wrong = [f"{table}: {what}" for table, last in TABLES.items() for what in check(table, last)]
    wrong += [f"{PROPERTIES}: {what}" for what in check_properties((ROOT / PROPERTIES).read_text(), test_files())]
    if wrong:
        sys.exit("\n".join(wrong))


main()
