#!/usr/bin/env python3
"""Chains of nested folders with a file in each, longer than any path.

    deep_tree.py make DIR DEPTH            makes one in DIR
    deep_tree.py append DIR TEXT           appends to the file in each folder
    deep_tree.py read DIR                  prints the contents of each file, from the top
    deep_tree.py at DIR DEPTH COMMAND…     runs the command in the folder at this depth

With AS_USER=UID it does so as this user.
"""

import os
import subprocess
import sys

NAME = "n" * 100


def folders(top):
    """Enters each folder of a chain; its path would be too long."""
    os.chdir(top)
    while os.path.isdir(NAME):
        os.chdir(NAME)
        yield


def main(what, top, *rest):
    if what == "make":
        os.chdir(top)
        for _ in range(int(rest[0])):
            os.mkdir(NAME)
            os.chdir(NAME)
            with open("f", "w") as file:
                file.write("made\n")
    elif what == "append":
        for _ in folders(top):
            with open("f", "a") as file:
                file.write(f"{rest[0]}\n")
    elif what == "read":
        for _ in folders(top):
            with open("f") as file:
                print(file.read().replace("\n", " "))
    elif what == "at":
        for depth, _ in enumerate(folders(top), 1):
            if depth == int(rest[0]):
                sys.exit(subprocess.call(rest[1:]))
        sys.exit(f"no folder at depth {rest[0]}")


if "AS_USER" in os.environ:
    user = int(os.environ["AS_USER"])
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
main(*sys.argv[1:])
