#!/usr/bin/env python3
"""Makes, changes and removes files of every kind below a folder, the same for the same seed.

    grow_tree.py DIR SEED COUNT

Large folders, deep folders, short and long symbolic links, hard links, devices, FIFOs, sockets,
sparse files, preallocated files, many-extent files, small and large extended attributes, ACLs,
odd modes and owners, times before 1970 and after 2038, names of 255 bytes and not of UTF-8.
"""

import errno
import os
import random
import socket
import stat
import struct
import sys


def acl(users):
    """A POSIX ACL as in system.posix_acl_access."""
    undefined = 0xFFFFFFFF
    entries = [(1, 6, undefined)] + [(2, 4, u) for u in sorted(users)]
    entries += [(4, 4, undefined), (16, 6, undefined), (32, 0, undefined)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)


class Gardener:
    def __init__(self, top, seed):
        self.top = os.fsencode(top)
        self.random = random.Random(seed)
        self.seed = seed
        self.serial = 0
        self.folders = [self.top]
        self.files = []
        for folder, folders, files in os.walk(self.top):
            folders[:] = sorted(f for f in folders if f != b"lost+found")
            self.folders += [os.path.join(folder, f) for f in folders]
            paths = sorted(os.path.join(folder, f) for f in files)
            self.files += [p for p in paths if stat.S_ISREG(os.lstat(p).st_mode)]

    def name(self):
        self.serial += 1
        core = b"%d-%d" % (self.seed, self.serial)
        style = self.random.randrange(20)
        if style == 0:
            return (core + b"-" + b"x" * 255)[:255]
        if style == 1:
            return core + b"\xff\xfe\n \\"
        if style == 2:
            return core + "-é-名前".encode()
        return b"file-" + core

    def new_path(self):
        return os.path.join(self.random.choice(self.folders), self.name())

    def data(self, size):
        return self.random.randbytes(size)

    def make_file(self):
        path = self.new_path()
        size = self.random.choice([0, 1, 59, 60, 61, 4095, 4096, 4097, 20000, 70000])
        with open(path, "wb") as file:
            file.write(self.data(size))
        self.files.append(path)
        return path

    def make_sparse(self):
        path = self.make_file()
        with open(path, "r+b") as file:
            for i in range(self.random.randrange(1, 30)):
                file.seek(i * self.random.choice([5000, 8192, 100000, 300000]))
                file.write(self.data(self.random.randrange(1, 3000)))

    def make_preallocated(self):
        path = self.make_file()
        descriptor = os.open(path, os.O_RDWR)
        os.posix_fallocate(descriptor, 10000, 300000)
        os.pwrite(descriptor, self.data(5000), 100000)
        os.close(descriptor)

    def make_folder(self):
        path = self.new_path()
        os.mkdir(path)
        self.folders.append(path)

    def make_large_folder(self):
        path = self.new_path()
        os.mkdir(path)
        for i in range(self.random.choice([100, 700])):
            with open(os.path.join(path, b"%d-%s" % (i, b"y" * self.random.randrange(80))), "wb"):
                pass

    def make_special(self):
        path = self.new_path()
        kind = self.random.randrange(6)
        if kind == 0:
            os.mknod(path, stat.S_IFCHR | 0o620, os.makedev(4, 64))
        elif kind == 1:
            os.mknod(path, stat.S_IFBLK | 0o660, os.makedev(259, 70000))
        elif kind == 2:
            os.mkfifo(path)
        elif kind == 3 and len(path) < 100:
            with socket.socket(socket.AF_UNIX) as end:
                end.bind(path)
        elif kind == 4:
            os.symlink(b"short", path)
        else:
            os.symlink(b"long/" * self.random.randrange(12, 200), path)

    def link(self):
        if self.files:
            path = self.new_path()
            os.link(self.random.choice(self.files), path)
            self.files.append(path)

    def set_attributes(self):
        path = self.random.choice(self.files or [self.make_file()])
        choice = self.random.randrange(6)
        if choice == 0:
            os.setxattr(path, b"user.small", self.data(20))
        elif choice == 1:
            for i in range(self.random.randrange(1, 8)):
                os.setxattr(path, b"user.n%d" % i, self.data(self.random.randrange(100)))
        elif choice == 2:
            os.setxattr(path, b"user.large", self.data(500))
            os.setxattr(path, b"trusted.t", b"value")
        elif choice == 3:
            os.setxattr(path, b"system.posix_acl_access", acl({1, 1000 + self.random.randrange(3)}))
        elif choice == 4:
            os.chown(path, self.random.choice([0, 1, 65534, 70000, 4000000000]), 100000)
            os.chmod(path, self.random.choice([0o4755, 0o2755, 0o1777, 0, 0o644]))
        else:
            second = self.random.choice([-2000000000, -1, 0, 1, 2**31 - 1, 2**31, 2**33 + 5, 2**32])
            os.utime(path, ns=(0, second * 10**9 + self.random.randrange(10**9)))

    def change(self):
        if not self.files:
            return
        path = self.random.choice(self.files)
        size = os.lstat(path).st_size
        os.chmod(path, 0o644)
        with open(path, "r+b") as file:
            choice = self.random.randrange(4)
            if choice == 0:
                file.seek(self.random.randrange(size + 1))
                file.write(self.data(5000))
            elif choice == 1:
                file.truncate(self.random.randrange(size + 1))
            elif choice == 2:
                file.truncate(size + self.random.randrange(100000))
            else:
                file.seek(0, os.SEEK_END)
                file.write(self.data(100))

    def remove(self):
        if self.files:
            path = self.files.pop(self.random.randrange(len(self.files)))
            if os.path.lexists(path):
                os.unlink(path)
            self.files = [p for p in self.files if p != path]

    def move(self):
        if self.files:
            i = self.random.randrange(len(self.files))
            path = self.new_path()
            os.rename(self.files[i], path)
            self.files[i] = path

    def grow(self, count):
        # All attributes of a file have to fit into its inode and one block.
        def attributes():
            try:
                self.set_attributes()
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

        actions = [
            (self.make_file, 30),
            (self.make_folder, 6),
            (self.make_special, 6),
            (self.link, 4),
            (attributes, 12),
            (self.change, 12),
            (self.remove, 8),
            (self.move, 6),
            (self.make_sparse, 2),
            (self.make_preallocated, 2),
            (self.make_large_folder, 0.3),
        ]
        functions, weights = zip(*actions)
        for action in self.random.choices(functions, weights, k=count):
            action()


Gardener(sys.argv[1], int(sys.argv[2])).grow(int(sys.argv[3]))
