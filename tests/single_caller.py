"""Makes calls as a single thread and prints whether a thread of the daemon was under SCHED_IDLE.

usage: single_caller.py FILE PID, where PID is the daemon of the mount that FILE is on
"""

import os
import sys

CALLS = 2000
ROUNDS = 10


def is_idle(thread):
    try:
        return os.sched_getscheduler(int(thread)) == os.SCHED_IDLE
    except ProcessLookupError:
        return False


path, daemon = sys.argv[1:]
found = False
for _ in range(ROUNDS):
    for call in range(CALLS):
        # A new time each, so that the kernel asks the daemon.
        os.utime(path, (call, call))
    found = found or any(map(is_idle, os.listdir(f"/proc/{daemon}/task")))
print(found)
