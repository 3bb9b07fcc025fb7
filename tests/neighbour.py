"""A program that works in a folder of the volume while others use transactions there.

    neighbour.py KIND FOLDER COUNT PROGRESS

KIND is append (200 bytes and an fsync, as a log), overwrite (4 KiB of one of 64 blocks), wal (a
commit of SQLite in WAL mode) or git (a commit). COUNT is the number of steps; 0 means until it is
killed. The file PROGRESS has the number of steps so far, and PROGRESS.done exists after the last.
"""

import os
import sqlite3
import subprocess
import sys


def append(folder):
    log = os.open(folder + "/log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    while True:
        os.write(log, b"x" * 200)
        os.fsync(log)
        yield


def overwrite(folder):
    file = os.open(folder + "/file", os.O_CREAT | os.O_RDWR)
    step = 0
    while True:
        os.pwrite(file, b"x" * 4096, step % 64 * 4096)
        step += 1
        yield


def wal(folder):
    database = sqlite3.connect(folder + "/a.db", isolation_level=None)
    database.execute("pragma journal_mode = wal")
    database.execute("create table if not exists t (id integer primary key, text)")
    while True:
        database.execute("insert or replace into t values (abs(random()) % 5000, ?)", ("x" * 300,))
        yield


def git(folder):
    def run(*arguments):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    run("init", "-q")
    step = 0
    while True:
        for name in ("one", "two", f"new-{step % 50}"):
            with open(f"{folder}/{name}", "a") as file:
                file.write(f"line {step}\n")
        run("add", "-A")
        run("commit", "-q", "-m", f"commit {step}")
        step += 1
        yield


def main():
    kind, folder, count, progress = sys.argv[1:]
    steps = {"append": append, "overwrite": overwrite, "wal": wal, "git": git}[kind](folder)
    done = 0
    for _ in steps:
        done += 1
        if done % 10 == 1 or done == int(count):
            with open(progress + ".new", "w") as file:
                print(done, file=file)
            os.rename(progress + ".new", progress)
        if done == int(count):
            break
    open(progress + ".done", "w").close()


main()
