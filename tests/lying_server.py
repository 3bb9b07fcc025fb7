"""A FUSE server of an ordinary user that claims to be xact, and calls of xact-run-helper on its
mount. What it says is wrong in each way that the helper could believe: the folder of a transaction
of anybody's, of the wrong kind, or an answer that comes too late. Prints a line for each.
usage: lying_server.py HELPER FOLDER, as the user, in a folder that the user can write
"""

import array
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback

LOOKUP, FORGET, GETATTR, STATFS, INIT, BATCH_FORGET = 1, 2, 3, 17, 26, 42
DIRECTORY, FILE = 0o040000, 0o100000


class Server:
    """Every name exists. `answers` has the user and mode for names; others are folders."""

    def __init__(self, folder):
        self.answers = {}
        self.names = {1: "/"}
        self.folder = folder
        self.device = self.mount()
        threading.Thread(target=self.serve_or_end, daemon=True).start()

    def mount(self):
        """fusermount3 sends the descriptor of the device over a socket."""
        own, other = socket.socketpair()
        env = {**os.environ, "_FUSE_COMMFD": str(other.fileno())}
        options = "default_permissions,subtype=xact,fsname=volume"
        subprocess.run(["fusermount3", "-o", options, "--", self.folder], env=env, pass_fds=[other.fileno()], check=True)
        _, messages, _, _ = own.recvmsg(1, socket.CMSG_SPACE(4))
        return array.array("i", messages[0][2])[0]

    def attributes(self, node):
        answer = self.answers.get(self.names[node])
        user, mode = answer if isinstance(answer, tuple) else (os.getuid(), DIRECTORY | 0o700)
        return struct.pack("<QQQQQQIIIIIIIIII", node, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 2, user, os.getgid(), 0, 4096, 0)

    def serve_or_end(self):
        try:
            self.serve()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def serve(self):
        while True:
            try:
                request = os.read(self.device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):
                    continue
                return
            _, code, number, node = struct.unpack_from("<IIQQ", request)
            if code in (FORGET, BATCH_FORGET):
                continue
            error, body = self.reply(code, node, request[40:])
            os.write(self.device, struct.pack("<IiQ", 16 + len(body), error, number) + body)

    def reply(self, code, node, rest):
        if code == INIT:
            return 0, struct.pack("<IIIIHHIIHH", 7, 31, 65536, 0, 12, 9, 65536, 1, 16, 0) + bytes(32)
        if code == GETATTR:
            return 0, struct.pack("<QII", 0, 0, 0) + self.attributes(node)
        if code == STATFS:
            return 0, struct.pack("<QQQQQIIII", 9, 9, 9, 9, 9, 4096, 255, 4096, 0) + bytes(24)
        if code == LOOKUP:
            name = rest.split(b"\0")[0].decode()
            if self.answers.get(name) == "late":
                time.sleep(1)
                return -errno.EIO, b""
            child = len(self.names) + 1
            self.names[child] = name
            return 0, struct.pack("<QQQQII", child, 0, 0, 0, 0, 0) + self.attributes(child)
        return -errno.ENOSYS, b""


def call(helper, folder, kill_after=None):
    reader, writer = os.pipe()
    script = "echo RAN; grep -E '^(Uid|CapPrm|CapEff):' /proc/self/status; cat /proc/self/mountinfo"
    words = [helper, str(writer), folder, "7", "/bin/sh", "-c", script]
    process = subprocess.Popen(words, pass_fds=[writer], stdout=subprocess.PIPE, text=True)
    os.close(writer)
    if kill_after:
        time.sleep(kill_after)
        process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    with os.fdopen(reader) as said:
        return process.returncode, output, said.read().strip()


def main():
    helper, folder = sys.argv[1:3]
    user = os.getuid()
    with open("/proc/self/mountinfo") as table:
        before = {line.split(" ")[4] for line in table}
    server = Server(folder)
    for what, answers in {
        "of root": {"7": (0, DIRECTORY | 0o700)},
        "of another user": {"7": (user + 1, DIRECTORY | 0o700)},
        "open to all": {"7": (user, DIRECTORY | 0o777)},
        "a file": {"7": (user, FILE | 0o700)},
        "with a file as its root": {"root": (user, FILE | 0o700)},
        "with a link as its root": {"root": (user, 0o120777)},
    }.items():
        server.answers = answers
        code, output, said = call(helper, folder)
        print(f"a transaction {what}: {code} {output!r} {said}")
    # Killed while it waits; the kernel lets it end with the answer.
    server.answers = {"7": "late"}
    code, output, said = call(helper, folder, kill_after=0.3)
    print(f"a late answer: {code} {output!r} {said}")
    server.answers = {}
    code, output, said = call(helper, folder)
    lines = output.splitlines()
    rights = {word for line in lines if line.startswith(("Uid", "Cap")) for word in line.split()[1:]}
    mounts = [line.split(" ") for line in lines if " - " in line]
    new = {words[4] for words in mounts} - before
    views = [words[3:6] for words in mounts if words[3] != "/" and words[4] == folder]
    print(f"its own word: {code} {lines[:1]} {rights == {str(user), '0' * 16}} {new == {folder}} {views} {said}".replace(folder, "MNT"))
    with open("/proc/self/mountinfo") as table:
        print(f"mounts outside: {[line.split(' ')[3] for line in table if line.split(' ')[4] == folder]}")
    subprocess.run(["fusermount3", "-u", "--", folder], check=True)


main()
