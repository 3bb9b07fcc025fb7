"""Transactions and synced lines until the power is cut, and what must be there afterwards.

usage: machine_load.py load MNT…
       machine_load.py verify MNT TRANSACTIONS LINES

`load` has two threads for each volume. One moves a state from i to i+1 in several files in each
transaction; the other appends numbered lines to a file with fsync. Each prints what is durable, as
`NAME t I` and `NAME l I`, after the call that promised it.

`verify` takes the last numbers that were printed, and prints those that are on the volume.
"""

import os
import sys
import threading

import xact


def transactions(mnt):
    name = os.path.basename(mnt)
    with open(f"{mnt}/state") as file:
        i = int(file.read())
    while True:
        i += 1
        with xact.folder(mnt) as tx:
            folder = f"{tx.path}/t{i}"
            os.mkdir(folder)
            write(f"{folder}/a", f"{i}\n".encode())
            write(f"{folder}/large", bytes(i % 7 * 5000))
            os.rename(f"{folder}/a", f"{folder}/b")
            os.link(f"{folder}/b", f"{folder}/c")
            old = f"{tx.path}/t{i - 1}"
            for file in os.listdir(old):
                os.unlink(f"{old}/{file}")
            os.rmdir(old)
            write(f"{tx.path}/state", f"{i}\n".encode())
        acknowledge(f"{name} t {i}\n")


def lines(mnt):
    name = os.path.basename(mnt)
    log = os.open(f"{mnt}/lines", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    i = os.fstat(log).st_size // 8
    while True:
        i += 1
        os.write(log, b"%07d\n" % i)
        os.fsync(log)
        acknowledge(f"{name} l {i}\n")


def write(path, contents):
    with open(path, "wb") as file:
        file.write(contents)


def acknowledge(line):
    # In one piece: all threads write to one descriptor.
    os.write(1, line.encode())


def load(mounts):
    for mnt in mounts:
        if not os.path.exists(f"{mnt}/state"):
            os.mkdir(f"{mnt}/t0")
            write(f"{mnt}/state", b"0\n")
    threads = [threading.Thread(target=work, args=(mnt,)) for mnt in mounts for work in (transactions, lines)]
    for thread in threads:
        thread.start()


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: {found!r:.200}, not {wanted!r:.200}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def verify(mnt, acknowledged, acknowledged_lines):
    state = int(read(f"{mnt}/state"))
    # The one that was cut off may be complete.
    if not acknowledged <= state <= acknowledged + 1:
        sys.exit(f"{mnt}: transaction {acknowledged} was acknowledged, and the state is {state}")
    expect("names", sorted(set(os.listdir(mnt)) - {"lines", "lost+found", "file"}), ["state", f"t{state}"])
    folder = f"{mnt}/t{state}"
    if state:
        expect(f"names of transaction {state}", sorted(os.listdir(folder)), ["b", "c", "large"])
        expect(f"its file, renamed from {folder}/a", read(f"{folder}/b"), b"%d\n" % state)
        expect("its other name", os.stat(f"{folder}/b").st_ino, os.stat(f"{folder}/c").st_ino)
        expect("its contents", read(f"{folder}/large"), bytes(state % 7 * 5000))
    found = read(f"{mnt}/lines") if os.path.exists(f"{mnt}/lines") else b""
    count = len(found) // 8
    if not acknowledged_lines <= count <= acknowledged_lines + 1:
        sys.exit(f"{mnt}: line {acknowledged_lines} was synced, and there are {count}")
    expect("lines", found, b"".join(b"%07d\n" % i for i in range(1, count + 1)))
    print(f"{os.path.basename(mnt)} {state} {count}")


if sys.argv[1] == "load":
    load(sys.argv[2:])
else:
    verify(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
