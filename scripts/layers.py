#!/usr/bin/env python3
"""Checks that the crates depend on lower layers only (docs/ARCHITECTURE.md).

Dependencies of the product are checked; tests may use any crate. Some crates have a list of all
crates that they may use.
"""

import json
import subprocess
import sys

# A crate may use those in rows below its own, never one of its own row.
LAYERS = [
    ["xact-cli", "xact-capi", "xact-sqlite", "xact-bench", "xact-run-helper"],
    ["xact-fuse", "xact-testkit"],
    ["xact"],
    ["xact-txn"],
    ["xact-fs", "xact-check"],
    ["xact-consistency"],
    ["xact-device", "xact-namespace"],
    ["xact-layout", "xact-control"],
    ["xact-types"],
]

# These crates use no other crates of the workspace: the library is the one way to a volume.
ONLY = {
    "xact-cli": ["xact", "xact-fuse", "xact-control", "xact-namespace"],
}


def violations(packages, layers, only):
    """Sentences about what is wrong with the dependencies of `packages` (cargo metadata's)."""
    height = {name: -i for i, row in enumerate(layers) for name in row}
    names = {package["name"] for package in packages}
    found = [f"{name} is in no layer: add it to scripts/layers.py" for name in names - height.keys()]
    for package in packages:
        for dependency in package["dependencies"]:
            above, below = package["name"], dependency["name"]
            if dependency["kind"] == "dev" or not {above, below} <= height.keys():
                continue
            if height[below] >= height[above]:
                found.append(f"{above} depends on {below}, which is not below it")
            if below == "xact-testkit":
                found.append(f"{above} depends on xact-testkit outside of its tests")
            if below not in only.get(above, [below]):
                found.append(f"{above} may use only {', '.join(only[above])}, not {below}")
    return sorted(found)


def self_test():
    """The check finds what it is for."""
    layers = [["top"], ["left", "right"], ["bottom"]]

    def package(name, *dependencies, kind=None):
        return {"name": name, "dependencies": [{"name": d, "kind": kind} for d in dependencies]}

    assert violations([package("top", "left", "bottom", "libc"), package("left", "bottom")], layers, {}) == []
    assert violations([package("left", "right")], layers, {}) != []
    assert violations([package("bottom", "top")], layers, {}) != []
    assert violations([package("new")], layers, {}) != []
    assert violations([package("bottom", "top", kind="dev")], layers, {}) == []
    # The command may use only the library.
    only = {"top": ["left"]}
    assert violations([package("top", "left", "libc")], layers, only) == []
    assert violations([package("top", "bottom")], layers, only) != []
    assert violations([package("top", "bottom", kind="dev")], layers, only) == []
    assert violations([package("right", "bottom")], layers, only) == []


def main():
    self_test()
    output = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1"], check=True, capture_output=True
    ).stdout
    found = violations(json.loads(output)["packages"], LAYERS, ONLY)
    for sentence in found:
        print(f"layers: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
