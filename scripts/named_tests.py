#!/usr/bin/env python3
"""Checks that what the docs' tables name is there: of each requirement, files of the source and tests."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
# A file, and the last number of each kind of requirement that it has a row for.
TABLES = {
    "docs/TRANSACTIONS.md": {"TX": 22},
    "docs/MECHANISMS.md": {"JOJ": 9, "DIU": 5, "RFJ": 6, "SNAP": 12},
}


def mount_tests():
    """Tests on mounts, as tests/run --list has them."""
    for suite in (ROOT / "tests/suites").glob("*.sh"):
        for name in re.findall(r"^test_(\w+)\(\)", suite.read_text(), re.MULTILINE):
            yield f"{suite.stem}/{name}"


def workloads():
    """Names of the crash explorer's workloads."""
    source = ROOT / "crates/testkit/src"
    for file in [*(source / "workloads").glob("*.rs"), source / "blocks.rs"]:
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
    """What is wrong with a table that has a row for each number up to the last of each kind."""
    known = {*mount_tests(), *functions(), *workloads(), *faults()}
    rows = [line for line in (ROOT / table).read_text().splitlines() if line.startswith(tuple(f"| {kind}-" for kind in last))]
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


def main():
    wrong = [f"{table}: {what}" for table, last in TABLES.items() for what in check(table, last)]
    if wrong:
        sys.exit("\n".join(wrong))


main()
