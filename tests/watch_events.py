"""Runs a command while inotify watches files and folders, and prints the events, one a line.

usage: watch_events.py PATH... -- COMMAND...

Each line is PATH or PATH/NAME, and the event's names. Opens, reads and closes without a write are
left out. The pairs of a rename are checked to have the same cookie.
"""
import ctypes
import os
import select
import struct
import subprocess
import sys

NAMES = {
    0x2: "MODIFY", 0x4: "ATTRIB", 0x8: "CLOSE_WRITE", 0x40: "MOVED_FROM", 0x80: "MOVED_TO",
    0x100: "CREATE", 0x200: "DELETE", 0x400: "DELETE_SELF", 0x800: "MOVE_SELF", 0x4000: "OVERFLOW",
}
IS_FOLDER = 0x40000000
# After the command has ended, nothing more is reported for this time.
QUIET_MS = 300


def main() -> int:
    split = sys.argv.index("--")
    paths, command = sys.argv[1:split], sys.argv[split + 1:]
    libc = ctypes.CDLL(None, use_errno=True)
    inotify = libc.inotify_init1(os.O_CLOEXEC)
    watches = {}
    for path in paths:
        watch = libc.inotify_add_watch(inotify, os.fsencode(path), sum(NAMES) & 0xfff)
        if watch < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {path}")
        watches[watch] = path
    child = subprocess.Popen(command)
    poll = select.poll()
    poll.register(inotify, select.POLLIN)
    data = b""
    while poll.poll(QUIET_MS) or child.poll() is None:
        if poll.poll(0):
            data += os.read(inotify, 1 << 20)
    at, moved = 0, {}
    while at < len(data):
        watch, mask, cookie, length = struct.unpack_from("iIII", data, at)
        name = data[at + 16:at + 16 + length].rstrip(b"\0").decode()
        at += 16 + length
        events = [word for bit, word in NAMES.items() if mask & bit]
        if not events:
            continue
        if "MOVED_FROM" in events:
            moved[cookie] = name
        if "MOVED_TO" in events and cookie in moved:
            events.append("from " + moved[cookie])
        kind = " folder" if mask & IS_FOLDER else ""
        print(watches.get(watch, "?") + ("/" + name if name else ""), *events, end=kind + "\n")
    return child.returncode


if __name__ == "__main__":
    sys.exit(main())
