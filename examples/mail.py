#!/usr/bin/env python3
"""A mail store: attachments as files, messages as rows in SQLite, each message in one transaction.

usage: mail.py FOLDER add SUBJECT FILE…    FOLDER lies on a mounted xact volume
       mail.py FOLDER delete NUMBER
       mail.py FOLDER list
"""

import os
import shutil
import sqlite3
import sys

import xact  # 'pip install ./python', or PYTHONPATH=python


def connect(path):
    db = sqlite3.connect(f"{path}/mail.db")
    db.execute("create table if not exists mail (id integer primary key, subject text, files int)")
    return db


def add(path, subject, files):
    with connect(path) as db:
        insert = db.execute("insert into mail (subject, files) values (?, ?)", (subject, len(files)))
    db.close()
    folder = f"{path}/attachments/{insert.lastrowid}"
    os.makedirs(folder)
    for file in files:
        shutil.copy(file, folder)
    return insert.lastrowid


def delete(path, number):
    with connect(path) as db:
        db.execute("delete from mail where id = ?", (number,))
    db.close()
    shutil.rmtree(f"{path}/attachments/{number}")


def listing(path):
    for number, subject, _ in connect(path).execute("select * from mail order by id"):
        yield " ".join([str(number), subject, *sorted(os.listdir(f"{path}/attachments/{number}"))])


def usage(status):
    print(__doc__, file=sys.stderr if status else sys.stdout)
    sys.exit(status)


if "--help" in sys.argv or "-h" in sys.argv:
    usage(0)
if len(sys.argv) < 3:
    usage(64)
folder, command, *rest = sys.argv[1:]
# An action, and the arguments that it needs at least.
actions = {
    "add": (lambda tx: add(tx.path, rest[0], rest[1:]), 2),
    "delete": (lambda tx: delete(tx.path, rest[0]), 1),
    # Rows and attachments are of one instant. A transaction that only reads always commits.
    "list": (lambda tx: "\n".join(listing(tx.path)), 0),
}
action, least = actions.get(command, (None, 0))
if action is None or len(rest) < least:
    usage(64)
print(xact.run(action, xact.folder(folder), tries=20) or "")
