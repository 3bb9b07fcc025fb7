#!/usr/bin/env python3
"""Damages the pool of a volume with generations, and checks what was saved of it.

    damage_pool.py damage IMAGE VOLUME_BYTES SEED   flips bytes in a few used blocks of the pool
    damage_pool.py roots IMAGE VOLUME_BYTES         overwrites both root slots
    damage_pool.py compare SOURCE SAVED REPORT      all that the report does not list is equal

SOURCE has the files as they were, SAVED the saved ones. REPORT is the JSON of --best-effort.
"""

import json
import os
import random
import stat
import sys

BLOCK = 1024
ROOTS = 2 * 4096


def damage(image, volume, seed):
    chance = random.Random(seed)
    with open(image, "r+b") as file:
        file.seek(volume + ROOTS)
        pool = file.read()
        used = [at for at in range(0, len(pool), BLOCK) if any(pool[at : at + BLOCK])]
        for at in chance.sample(used, chance.randint(1, 6)):
            for _ in range(3):
                offset = at + chance.randrange(BLOCK)
                file.seek(volume + ROOTS + offset)
                file.write(bytes([pool[offset] ^ 0xFF]))


def roots(image, volume):
    with open(image, "r+b") as file:
        file.seek(volume)
        file.write(b"\xff" * ROOTS)


def contents(path):
    about = os.lstat(path)
    kind = stat.S_IFMT(about.st_mode)
    if stat.S_ISLNK(kind):
        return kind, os.readlink(path)
    if stat.S_ISREG(kind):
        with open(path, "rb") as file:
            return kind, file.read()
    return kind, about.st_rdev


def with_folders(path):
    while path:
        yield path
        path = os.path.dirname(path)
    yield b""


def compare(source, saved, report):
    with open(report) as file:
        listed = {part["path"] for part in json.load(file)["missing"] if part["path"]}
    source, saved = os.fsencode(source), os.fsencode(saved)
    links = {}
    for folder, folders, files in os.walk(source):
        for name in folders + files:
            path = os.path.relpath(os.path.join(folder, name), source)
            links.setdefault(os.lstat(os.path.join(source, path)).st_ino, []).append(path)
    wrong, compared = [], 0
    for paths in links.values():
        # The report names one of an inode's links.
        ways = {"/" + way.decode(errors="replace") for path in paths for way in with_folders(path)}
        if ways & listed:
            continue
        for path in paths:
            compared += 1
            there = os.path.join(saved, path)
            if not os.path.lexists(there):
                wrong.append((path, "is missing"))
            elif contents(there) != contents(os.path.join(source, path)):
                wrong.append((path, "has other contents"))
    if wrong:
        sys.exit(f"not listed, and not as before: {wrong[:10]} ({len(wrong)} in all); listed: {sorted(listed)[:10]}")
    print(compared)


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "damage":
        damage(rest[0], int(rest[1]), int(rest[2]))
    elif command == "roots":
        roots(rest[0], int(rest[1]))
    else:
        compare(*rest)
