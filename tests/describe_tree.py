#!/usr/bin/env python3
"""Prints one line for each file below a folder: all that a copy of the tree must keep.

Kind, mode, owner, link count, size, times in nanoseconds, link target, device number, extended
attributes (ACLs are among them) and a checksum of the contents. Two trees are equal if and only if
the outputs are. Access times are left out: looking changes them. Hard links show as a group: the
first path of the inode.

    describe_tree.py DIR [--no-times]
"""

import hashlib
import os
import stat
import sys


def checksum(path):
    digest = hashlib.blake2b(digest_size=12)
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def describe(path, shown, first_path, times):
    info = os.lstat(path)
    mode = info.st_mode
    words = [shown, f"{mode:o}", f"{info.st_uid}:{info.st_gid}"]
    if not stat.S_ISDIR(mode):
        words += [f"links={info.st_nlink}", f"first={first_path.setdefault(info.st_ino, shown)}"]
        words += [f"size={info.st_size}"]
    if times:
        words += [f"mtime={info.st_mtime_ns}"]
    if stat.S_ISLNK(mode):
        words += [f"target={os.readlink(path)!r}"]
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        words += [f"device={os.major(info.st_rdev)}:{os.minor(info.st_rdev)}"]
    if stat.S_ISREG(mode):
        words += [checksum(path)]
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        value = os.getxattr(path, name, follow_symlinks=False)
        words += [f"{name}={hashlib.blake2b(value, digest_size=8).hexdigest()}"]
    return " ".join(words)


def main():
    top = sys.argv[1]
    times = "--no-times" not in sys.argv[2:]
    first_path = {}
    for folder, folders, files in os.walk(top):
        if folder == top and "lost+found" in folders:
            folders.remove("lost+found")
        folders.sort()
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            shown = ascii(os.path.relpath(path, top))
            sys.stdout.write(describe(path, shown, first_path, times) + "\n")


main()
