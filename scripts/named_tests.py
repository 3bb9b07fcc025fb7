#!/usr/bin/env python3
"""Checks that the tests which the docs name are there: docs/TRANSACTIONS.md has a table, id -> tests."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
TABLE = ROOT / "docs/TRANSACTIONS.md"


def mount_tests():
    """Tests on mounts, as tests/run --list has them."""
    for suite in (ROOT / "tests/suites").glob("*.sh"):
        for name in re.findall(r"^test_(\w+)\(\)", suite.read_text(), re.MULTILINE):
            yield f"{suite.stem}/{name}"


def workloads():
    """Names of the crash explorer's workloads."""
    for file in (ROOT / "crates/testkit/src/workloads").glob("*.rs"):
        yield from re.findall(r'"([a-z-]+)"', file.read_text())


def functions():
    """Names of functions in the sources of tests."""
    for pattern in "crates/**/*.rs", "tests/*.c", "tests/*.py":
        for file in ROOT.glob(pattern):
            yield from re.findall(r"^\s*(?:fn|def|static void) (\w+)", file.read_text(), re.MULTILINE)


def is_there(name, mount, known):
    if name.startswith(("make ", "XACT_")) or name in workloads():
        return True
    crate = ROOT / "crates"
    if any(path.exists() for path in (ROOT / name, crate / name, crate / name.replace("/tests/", "/src/tests/", 1))):
        return True
    if "*" in name:
        return any(pathlib.PurePath(test).match(name) for test in mount)
    return name in mount or name in known


def main():
    mount, known = set(mount_tests()), set(functions())
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| TX-")]
    wrong = []
    for row in rows:
        _, ids, tests, *_ = row.split("|")
        names = re.findall(r"`([^`]+)`", tests)
        wrong += [f"{ids.strip()}: there is no test {name}" for name in names if not is_there(name, mount, known)]
        if not names and "not there yet" not in tests:
            wrong.append(f"{ids.strip()}: names no test")
    ids = {id for row in rows for id in re.findall(r"TX-\d+", row.split("|")[1])}
    wrong += [f"TX-{n} has no row" for n in range(1, 23) if f"TX-{n}" not in ids]
    if wrong:
        sys.exit("\n".join([f"{TABLE.relative_to(ROOT)}:"] + wrong))


main()
