"""Hostile calls of xact-run-helper by an ordinary user: wrong arguments and descriptors, hostile
environments, limits, signals, ptrace, and names that change during the call. Of every call, one of
two outcomes is accepted:

- the helper refuses, and the command does not run;
- the command runs with the ids, groups and capabilities of the caller, and its mounts are those of
  outside, with the view of the caller's own transaction over the volume in addition.

Afterwards the mounts outside are what they were, and no process of the user is left.
usage: run_helper.py XACT HELPER MNT CALLS [SEED]
"""

import ctypes
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time

USER, OTHER = 1234, 1235
GROUPS = [1234, 4321]
LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_TRACEME, PTRACE_CONT, PTRACE_ATTACH = 0, 7, 16
# Whether the command of each call ran.
RESULTS = []

# The command: what it is and what it sees.
PROBE = (
    "set -e; echo RAN; grep -E '^(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs):' /proc/self/status;"
    " echo MOUNTS; cat /proc/self/mountinfo"
)


def become(user):
    os.setgroups(GROUPS)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def mounts(text):
    """Mounts without ids and propagation, which differ between namespaces."""
    found = []
    for line in text.splitlines():
        words = line.split(" ")
        end = words.index("-")
        # The two names of one mount point change places.
        words[4] = words[4].replace(SWAP + "/b/", SWAP + "/a/")
        found.append(" ".join(words[2:6] + words[end + 1 :]))
    return sorted(found)


def own_mounts():
    with open("/proc/self/mountinfo") as table:
        return table.read()


class Call:
    """One call of the helper, in a process of the user."""

    def __init__(self, arguments, before=lambda: None, user=USER, env=None, during=lambda pid: None):
        reader, writer = os.pipe()
        status_reader, status_writer = os.pipe()
        self.status = status_writer
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                # Before it becomes the user: as root it may raise no limit by mistake.
                os.dup2(writer, 1)
                os.dup2(os.open("/dev/null", os.O_RDWR), 2)
                os.dup2(status_writer, 9)
                for number in (1, 2, 9):
                    os.set_inheritable(number, True)
                become(user)
                before()
                os.execve(HELPER, ["xact-run-helper", *arguments], ENV if env is None else env)
            except BaseException:
                os._exit(99)
        os.close(writer)
        os.close(status_writer)
        during(self.pid)
        with os.fdopen(reader, errors="replace") as output:
            self.output = output.read()
        with os.fdopen(status_reader, errors="replace") as output:
            self.said = output.read()
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def ran(self):
        return "RAN" in self.output


def identity(user):
    """The lines of the probe's first part outside of the helper."""
    pid_reader, pid_writer = os.pipe()
    if os.fork() == 0:
        os.dup2(pid_writer, 1)
        become(user)
        os.execve("/bin/sh", ["sh", "-c", PROBE], ENV)
    os.close(pid_writer)
    with os.fdopen(pid_reader) as output:
        text = output.read()
    os.wait()
    return text.partition("MOUNTS\n")[0]


def check(call, what, expected=None):
    """Fails unless the outcome is one of the two. `expected`: which of them."""
    where = f"{what}: exit {call.code}, {call.said!r}, {call.output[:300]!r}"
    RESULTS.append(call.ran)
    if not call.ran:
        assert expected is not True, f"refused: {where}"
        assert call.code != 0, f"no command, but success: {where}"
        return
    assert expected is not False, f"not refused: {where}"
    first, _, table = call.output.partition("MOUNTS\n")
    # An output that a limit or signal has cut is judged as far as it goes.
    whole = call.code == 0
    assert first == IDENTITY or not whole, f"another identity: {where}"
    for line in first.splitlines():
        if line.startswith(("CapPrm", "CapEff", "CapAmb", "CapInh")):
            assert int(line.split()[1] or "0", 16) == 0, f"a capability: {where}"
        if line.startswith(("Uid", "Gid")):
            assert set(line.split()[1:]) <= {str(USER)}, f"an id: {where}"
    if whole:
        inside = mounts(table)
        for line in mounts(own_mounts()):
            assert line in inside, f"a mount is missing: {line}: {where}"
            inside.remove(line)
        for line in inside:
            root, point = line.split(" ")[1:3]
            view = f"/.xact/tx/{TX}/root"
            assert root == view and point in POINTS, f"a mount that should not be: {line}: {where}"
        assert inside, f"no view: {where}"


def right(point=None, tx=None):
    return ["9", MNT if point is None else point, str(TX if tx is None else tx), "/bin/sh", "-c", PROBE]


# --- the kinds of calls --------------------------------------------------------------------------


def wrong_arguments(draw):
    """Random arguments, each wrong in one place or in several."""
    words = right()
    statuses = ["", "-1", "0", "1", "2", "3", "9", "10", "x", "9 ", "2147483648", "99999999999999999999", "09"]
    points = ["", ".", "/", "mnt", MNT + "/", MNT + "/d", MNT + "/.xact", MNT + "/../mnt", LINK, PART, BESIDE, "/etc"]
    points += ["/proc", "/dev", "/" * 5000, "/x" * 2100, "a" * 70000, "/proc/self/fd/9", "/proc/self/cwd", "/dev/fd/0"]
    points += [f"{MNT}/.xact/tx/{TX}/root", "/tmp", "/dev/shm", "\x01", MNT + "\n", "/proc/1/root" + MNT]
    ids = ["", "0", "-1", str(TX) + "x", "+1", "0x1", "18446744073709551615", "18446744073709551616", str(OTHERS), str(ROOTS)]
    ids += [str(TX + 1000), f"{TX}/root", f"{TX}/../{OTHERS}", "..", "../../..", " " + str(TX), str(ENDED)]
    for _ in range(draw.randint(1, 3)):
        at = draw.randint(0, 4)
        if at == 0:
            words[0] = draw.choice(statuses)
        elif at == 1:
            words[1] = draw.choice(points)
        elif at == 2:
            words[2] = draw.choice(ids)
        elif at == 3:
            words = words[: draw.randint(0, 3)]
            break
        else:
            words[3] = draw.choice(["", ".", "/", "/none", "sh", "/etc/passwd", MNT + "/none"])
    expected = None
    # A spelling of the mount point, of a descriptor or of the number may be right.
    if len(words) < 4 or words[1] in (LINK, PART, BESIDE, "/etc", "/", "/proc", "", ".") or words[2] in (str(OTHERS), str(ROOTS)):
        expected = False
    check(Call(words), f"arguments {[word[:60] for word in words]}", expected)


def hostile_environment(draw):
    names = ["LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "LD_DEBUG", "LD_DEBUG_OUTPUT", "LD_BIND_NOW", "GCONV_PATH"]
    names += ["LD_PROFILE", "LD_ORIGIN_PATH", "GLIBC_TUNABLES", "MALLOC_PERTURB_", "LOCPATH", "TMPDIR", "PATH", "IFS"]
    names += ["RUST_BACKTRACE", "RUST_MIN_STACK", "XACT_LOG", "NLSPATH", "HOME", "BASH_ENV", "ENV", "TZ", "x" * 1000]
    values = [EVIL, os.path.dirname(EVIL), "all", "", "/" * 4000, "%n%n%n%s", "../" * 50, "1", "glibc.malloc.check=3:" * 50]
    # The shell of the probe reads a few of them too, as it does outside.
    env = {draw.choice(names): draw.choice(values) for _ in range(draw.randint(1, 12))}
    env.pop("PATH", None)
    if draw.random() < 0.05:
        env.update({f"V{i}": "v" * 100000 for i in range(10)})
    # The dynamic linker has refusals of its own.
    check(Call(right(), env=env), f"environment {[name[:20] for name in env]}")
    assert not os.path.exists(MARKER), "a library of the user ran with rights"


def closed_descriptors(draw):
    closed = [number for number in range(3) if draw.random() < 0.5]
    extra = draw.randint(0, 40)

    def before():
        for number in closed:
            if number != 1:
                os.close(number)
        for number in range(extra):
            os.set_inheritable(os.dup(draw.choice([0, 1, 9]) if not closed else 9), True)
        if draw.random() < 0.3:
            os.close(9)

    check(Call(right(), before), f"descriptors without {closed}, {extra} more")


def limits(draw):
    kinds = [resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_STACK]
    kinds += [resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_CPU]
    chosen = {draw.choice(kinds): draw.choice([0, 1, 3, 4, 10, 12, 14, 1 << 16, 1 << 20, 1 << 22]) for _ in range(2)}

    def before():
        for kind, value in chosen.items():
            resource.setrlimit(kind, (value, value))

    check(Call(right(), before), f"limits {chosen}")


def signals(draw):
    """Signals at any moment, from a process of the user. The helper may end or stop, no more."""
    kinds = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP, signal.SIGALRM, signal.SIGSEGV, signal.SIGUSR1]
    chosen = [(draw.choice(kinds), draw.random() * 0.004) for _ in range(draw.randint(1, 3))]
    blocked = draw.random() < 0.3

    def before():
        if blocked:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    def during(pid):
        child = os.fork()
        if child == 0:
            become(USER)
            for kind, delay in chosen:
                time.sleep(delay)
                try:
                    os.kill(pid, kind)
                    if kind == signal.SIGSTOP:
                        time.sleep(0.002)
                        os.kill(pid, signal.SIGCONT)
                except (ProcessLookupError, PermissionError):
                    # It has ended, or is not the user's yet.
                    pass
            os._exit(0)
        os.waitpid(child, 0)

    check(Call(right(), before, during=during), f"signals {chosen}")


def traced(draw):
    """A traced process gets no rights from a setuid program; a running helper cannot be traced."""
    if draw.random() < 0.5:
        # The tracer must be the user's own process.
        child = os.fork()
        if child == 0:
            try:
                become(USER)
                tracee = os.fork()
                if tracee == 0:
                    LIBC.ptrace(PTRACE_TRACEME, 0, None, None)
                    os.execve(HELPER, ["x", "2", *right()[1:3], "/bin/sh", "-c", f"touch {RAN}"], {})
                os.waitpid(tracee, 0)
                with open(f"/proc/{tracee}/status") as status:
                    text = status.read()
                rights = [line for line in text.splitlines() if line.startswith(("CapPrm", "Uid"))]
                LIBC.ptrace(PTRACE_CONT, tracee, None, None)
                code = os.waitstatus_to_exitcode(os.waitpid(tracee, 0)[1])
                good = code == 125 and rights == [f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}", "CapPrm:\t" + "0" * 16]
                os._exit(0 if good else 1)
            except BaseException:
                os._exit(2)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 0, f"a traced helper: {code}"
        assert not os.path.exists(RAN), "a traced helper ran the command"
        return
    attached = []

    def during(pid):
        child = os.fork()
        if child == 0:
            become(USER)
            time.sleep(draw.random() * 0.003)
            if LIBC.ptrace(PTRACE_ATTACH, pid, None, None) == -1:
                os._exit(0)
            # The shell before and after the helper may be traced: it is the user's own.
            with open(f"/proc/{pid}/status") as status:
                text = status.read()
            os._exit(0 if "CapPrm:\t" + "0" * 16 in text else 1)
        attached.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    check(Call(right(), during=during), "attached")
    assert attached == [0], "a helper with rights could be traced"


def changing_names(draw):
    """Folders and links on the path change places all the time."""
    point = draw.choice([f"{SWAP}/a/mnt", f"{SWAP}/b/mnt", f"{SWAP}/link/mnt", f"{SWAP}/link"])
    check(Call(right(point)), f"changing names {point}")


def other_users(draw):
    user, tx = draw.choice([(USER, OTHERS), (USER, ROOTS), (USER, ENDED), (OTHER, TX), (OTHER, ROOTS)])
    check(Call(right(tx=tx), user=user), f"transaction {tx} of another user", False)


def no_privileges(draw):
    """Setuid programs have no effect with no_new_privs, nor in a user namespace."""
    CLONE_NEWUSER, CLONE_NEWNS, PR_SET_NO_NEW_PRIVS = 0x10000000, 0x20000, 38
    in_namespace = draw.random() < 0.5

    def before():
        if in_namespace:
            LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS)
        else:
            LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)

    check(Call(right(), before), f"no_new_privs or a user namespace ({in_namespace})", False)


KINDS = [
    (wrong_arguments, 8),
    (hostile_environment, 3),
    (closed_descriptors, 3),
    (limits, 3),
    (signals, 4),
    (traced, 1),
    (changing_names, 4),
    (other_users, 2),
    (no_privileges, 1),
]


# --- the stage -----------------------------------------------------------------------------------


def begin(user):
    begun = subprocess.run([XACT, "tx", "begin", "--at", MNT], preexec_fn=lambda: become(user), capture_output=True, text=True)
    return int(begun.stdout.split()[0])


def swap():
    """Until it is killed."""
    while True:
        exchange()
        target = random.choice(["/etc", SWAP + "/a", SWAP + "/b/mnt", MNT])
        new = f"{SWAP}/{random.random()}"
        os.symlink(target, new)
        os.rename(new, f"{SWAP}/link")


def exchange():
    RENAME_EXCHANGE = 2
    LIBC.renameat2(-100, f"{SWAP}/a".encode(), -100, f"{SWAP}/b".encode(), RENAME_EXCHANGE)


def evil_library(folder):
    source = f"""#include <stdio.h>
#include <unistd.h>
#include <sys/auxv.h>
__attribute__((constructor)) static void run(void) {{
    if (geteuid() == 0 || getauxval(AT_SECURE)) fclose(fopen("{MARKER}", "w"));
}}
"""
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-o", folder + "/evil.so", "-"], input=source, text=True, check=True)
    return folder + "/evil.so"


def main():
    global XACT, HELPER, MNT, ENV, TX, OTHERS, ROOTS, ENDED, LINK, PART, BESIDE, SWAP, EVIL, MARKER, RAN, POINTS, IDENTITY
    XACT, HELPER, MNT, calls = sys.argv[1:5]
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else random.randrange(1 << 32)
    draw = random.Random(seed)
    ENV = {"PATH": "/usr/bin:/bin"}
    TX, OTHERS, ROOTS, ENDED = begin(USER), begin(OTHER), begin(0), begin(USER)
    subprocess.run([XACT, "tx", "abort", "--at", MNT, str(ENDED)], check=True)
    folder = tempfile.mkdtemp(dir=os.path.dirname(MNT))
    os.chmod(folder, 0o777)
    LINK, PART, BESIDE, SWAP = (f"{folder}/{name}" for name in ("link", "part", "beside", "swap"))
    MARKER, RAN = folder + "/marker", folder + "/ran"
    EVIL = evil_library(folder)
    os.symlink(MNT, LINK)
    for path in (PART, BESIDE, SWAP, SWAP + "/a", SWAP + "/b", SWAP + "/a/mnt", SWAP + "/b/mnt"):
        os.mkdir(path)
        os.chmod(path, 0o777)
    subprocess.run(["mount", "-t", "tmpfs", "none", BESIDE], check=True)
    subprocess.run(["mount", "--bind", MNT, SWAP + "/a/mnt"], check=True)
    POINTS = {MNT, SWAP + "/a/mnt", SWAP + "/b/mnt"}
    IDENTITY = identity(USER)
    assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in IDENTITY, IDENTITY
    # The right call works, or all of this would prove nothing.
    check(Call(right()), "the right call", True)
    for point in (LINK, PART, BESIDE, MNT + "/d", MNT + "/.xact", f"{MNT}/.xact/tx/{TX}/root", "/", "/etc", "", "mnt"):
        check(Call(right(point)), f"another mount point: {point}", False)
    for magic in ("/proc/self/cwd", "/proc/1/root" + MNT, "/proc/self/root" + MNT):
        check(Call(right(magic), before=lambda: os.chdir(MNT)), f"a magic link: {magic}", False)
    for count in range(4):
        check(Call(right()[:count]), f"{count} arguments", False)
    before = mounts(own_mounts())
    counts = {}
    names = [kind for kind, weight in KINDS for _ in range(weight)]
    try:
        for number in range(int(calls)):
            kind = names[number % len(names)]
            if kind is changing_names:
                while_names_change(lambda: kind(draw))
            else:
                kind(draw)
            counts[kind.__name__] = counts.get(kind.__name__, 0) + 1
    except BaseException:
        print(f"seed {seed}, call {number}")
        raise
    after = mounts(own_mounts())
    assert before == after, f"mounts outside: {set(before) ^ set(after)}"
    left = subprocess.run(["pgrep", "-u", str(USER), "-f", "xact-run-helper"], capture_output=True, text=True).stdout
    assert not left, f"processes left: {left}"
    subprocess.run(["umount", SWAP + "/a/mnt", BESIDE], check=True)
    for tx in (TX, OTHERS, ROOTS):
        subprocess.run([XACT, "tx", "abort", "--at", MNT, str(tx)], check=True)
    assert 0.2 < sum(RESULTS) / len(RESULTS) < 0.8, f"{sum(RESULTS)} of {len(RESULTS)} commands ran"
    kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{kinds}; {sum(RESULTS)} commands ran; seed {seed}")


def while_names_change(action):
    swapper = os.fork()
    if swapper == 0:
        try:
            swap()
        finally:
            os._exit(1)
    try:
        action()
    finally:
        os.kill(swapper, signal.SIGKILL)
        os.waitpid(swapper, 0)
        restore_names()


def restore_names():
    if not os.path.ismount(SWAP + "/a/mnt"):
        exchange()


main()
