"""Attempts of one user of a mount on what belongs to another, by the control ioctls
(include/xact_ioctl.h). Each function prints its results. usage: strangers.py FUNCTION MNT
"""

import errno
import fcntl
import mmap
import os
import struct
import sys

PAGE = 15360
START = 0xF501


def ioc(direction, number, size):
    return direction << 30 | size << 16 | 0xEA << 8 | number


def become(uid):
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def channel(mount):
    return os.open(mount + "/.xact", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def begin(on, snapshot=False):
    request = bytearray(struct.pack("IIQ", int(snapshot), 0, 0))
    fcntl.ioctl(on, ioc(3, 1, 16), request, True)
    return struct.unpack("IIQ", request)[2]


def commit(on):
    request = bytearray(4376)
    try:
        fcntl.ioctl(on, ioc(3, 2, 4376), request, True)
        return "committed"
    except OSError as error:
        return errno.errorcode[error.errno]


def diff(on, tx, by_file=False):
    """The bytes of the first page of a list of changes."""
    request = bytearray(struct.pack("QQII", tx, 0, 0, 0) + bytes(PAGE))
    fcntl.ioctl(on, ioc(3, 16 if by_file else 11, len(request)), request, True)
    return bytes(request[24:])


def read_side(on, tx, ino, new):
    request = bytearray(struct.pack("QQQII", tx, ino, 0, int(new), 0) + bytes(PAGE))
    try:
        fcntl.ioctl(on, ioc(3, 12, len(request)), request, True)
        return bytes(request[32 : 32 + struct.unpack_from("I", request, 28)[0]])
    except OSError as error:
        return errno.errorcode[error.errno]


def in_child(uid, action):
    """Runs the action as another user. Returns its string, or the name of its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become(uid)
            os.write(writer, action().encode())
        except OSError as error:
            os.write(writer, errno.errorcode[error.errno].encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as result:
        return result.read()


def reads(mount):
    """READ_SIDE does not read a file of mode 0600, nor one that its folder's owner has deleted."""
    secret = os.stat(mount + "/private/secret").st_ino
    deleted = os.stat(mount + "/theirs/deleted").st_ino
    kept = os.stat(mount + "/theirs/readable").st_ino

    def stranger():
        on = channel(mount)
        tx = begin(on)
        view = f"{mount}/.xact/tx/{tx}/root"
        os.unlink(view + "/theirs/deleted")
        with open(view + "/theirs/readable", "w") as file:
            file.write("new")
        before = read_side(on, tx, secret, False)
        diff(on, tx)
        results = [before, read_side(on, tx, secret, False), read_side(on, tx, deleted, False)]
        results += [read_side(on, tx, kept, False).decode(), read_side(on, tx, kept, True).decode()]
        return " ".join(results)

    print(in_child(1000, stranger))


def renamed(mount):
    """A list of changes by file has no name below a renamed folder that the caller may not list."""

    def stranger():
        on = channel(mount)
        tx = begin(on)
        view = f"{mount}/.xact/tx/{tx}/root/theirs"
        os.rename(view + "/shut", view + "/moved")
        found = diff(on, tx, by_file=True)
        return f"{b'hidden-name' in found} {b'/theirs/moved' in found}"

    print(in_child(1000, stranger))


def parts(mount):
    """A descriptor in the view of another user's transaction does not permit its savepoints."""
    on = channel(mount)
    view = f"{mount}/.xact/tx/{begin(on)}/root"
    folder = os.open(view, os.O_RDONLY)

    def call(number):
        request = bytearray(8)
        fcntl.ioctl(folder, ioc(2 if number == 13 else 1, number, 8), request, True)
        return "done"

    results = [in_child(1000, lambda number=number: call(number)) for number in (13, 14, 15)]
    with open(view + "/by-root", "w") as file:
        file.write("kept")
    results += [call(13), commit(on), str(os.path.exists(mount + "/by-root"))]
    print(" ".join(results))


def sections(mount):
    """Only a file's owner may begin an atomic write. Stores of others through mappings survive the
    end of the writing process."""
    path = mount + "/theirs/database"
    results = []
    for uid in (1001, 1000):
        def start():
            fcntl.ioctl(os.open(path, os.O_RDONLY), START)
            return "started"

        results.append(in_child(uid, start))
    with open(path, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 8192)

        def write_and_die():
            database = os.open(path, os.O_RDWR)
            fcntl.ioctl(database, START)
            os.pwrite(database, b"S" * 4096, 0)
            # The other process stores into the section's page and the next one.
            mapping[100:104] = b"mine"
            mapping[5000:5004] = b"mine"
            mapping.flush()
            return "written"

        results.append(in_child(1000, write_and_die))
    with open(path, "rb") as file:
        contents = file.read()
    results += [str(contents[:100].strip(b"o") == b""), contents[100:104].decode(), contents[5000:5004].decode()]
    print(" ".join(results))


def rights(mount):
    """A commit fails if the permission for it was revoked, also under snapshot isolation."""
    results = []
    for take, give in [
        (lambda: os.chmod(mount + "/shared/file", 0o600), lambda: os.chmod(mount + "/shared/file", 0o666)),
        (lambda: os.chmod(mount + "/shared", 0o700), lambda: os.chmod(mount + "/shared", 0o777)),
        (lambda: os.system(f"chattr +i {mount}/shared/file"), lambda: os.system(f"chattr -i {mount}/shared/file")),
        (lambda: os.system(f"chattr +a {mount}/shared/file"), lambda: os.system(f"chattr -a {mount}/shared/file")),
        (lambda: os.system(f"setfacl -m u:1000:- {mount}/shared/file"), lambda: os.system(f"setfacl -b {mount}/shared/file")),
        (lambda: None, lambda: None),
    ]:
        ready, writer = os.pipe()
        go, taken = os.pipe()

        def stranger():
            on = channel(mount)
            view = f"{mount}/.xact/tx/{begin(on, snapshot=True)}/root"
            with open(view + "/shared/file", "r+") as file:
                file.write("stranger")
            os.write(writer, b"x")
            os.read(go, 1)
            return commit(on)

        def act():
            os.read(ready, 1)
            take()
            os.write(taken, b"x")

        other = os.fork()
        if other == 0:
            act()
            os._exit(0)
        results.append(in_child(1000, stranger))
        os.waitpid(other, 0)
        give()
    print(" ".join(results))


def labels(mount):
    """Leaves a transaction open whose label has a line break and an escape sequence."""
    become(1000)
    on = channel(mount)
    begin(on)
    label = b"y\nxact: FORGED \x1b[31m"
    fcntl.ioctl(on, ioc(1, 8, 264), struct.pack("IHH256s", 0, len(label), 0, label))


globals()[sys.argv[1]](sys.argv[2])
