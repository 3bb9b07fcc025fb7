# timeout: 200
# Limits of ext4 that pjdfstest does not count to.

test_folders_in_a_folder() {
    volume disk.img --size 600M --inode-ratio 4K
    mounted disk.img mnt
    # Above 65,000 the link count of a folder is 1: unknown (dir_nlink).
    python3 -c '
import os
for i in range(65010):
    os.mkdir(f"mnt/{i}")
assert os.stat("mnt").st_nlink == 1, os.stat("mnt").st_nlink'
    unmounted mnt
    sound disk.img
}

# The limits of a file's size: the same calls on kernel ext4 and on xact have the same results.
test_sparse_files_to_the_limit() {
    local options
    for options in "-b 4096" "-b 1024" "-b 1024 -O ^extents,^64bit"; do
        rm -f disk.img
        truncate -s 200M disk.img
        # shellcheck disable=SC2086  # words
        mke2fs -q -F -t ext4 $options disk.img
        at_the_limit() { # BLOCK SIZE
            python3 - "$1" "$options" <<'END'
import errno, os, sys
block, options = int(sys.argv[1]), sys.argv[2]
if "^extents" in options:
    pointers = block // 4
    largest = (12 + pointers + pointers**2 + pointers**3) * block
else:
    largest = (2**32 - 1) * block
def outcome(what, call):
    try:
        print(what, call())
    except OSError as error:
        print(what, errno.errorcode[error.errno])
file = os.open("mnt/file", os.O_RDWR | os.O_CREAT)
outcome("behind the end", lambda: os.pwrite(file, b"x", largest))
outcome("at the end", lambda: os.pwrite(file, b"end", largest - 3))
print(os.fstat(file).st_size == largest, os.pread(file, 10, largest - 5))
outcome("in the middle", lambda: os.pwrite(file, b"middle", largest // 2))
# In block-mapped files the kernel does not find data this far out, though it exists.
if "^extents" not in options:
    outcome("hole", lambda: os.lseek(file, 0, os.SEEK_DATA) <= largest // 2)
outcome("too large", lambda: os.ftruncate(file, largest + 1))
outcome("shorter", lambda: os.ftruncate(file, largest // 2 + 6))
outcome("largest again", lambda: os.ftruncate(file, largest))
print(os.pread(file, 10, largest // 2), os.pread(file, 10, largest - 5), os.fstat(file).st_blocks < 300)
END
        }
        kernel_mounted disk.img mnt
        at_the_limit "$(stat -fc %S mnt)" >expected
        rm mnt/file
        kernel_unmounted mnt
        mounted disk.img mnt
        at_the_limit "$(stat -fc %S mnt)" >outcomes
        cmp expected outcomes || fail "$options: $(diff expected outcomes)"
        unmounted mnt
        sound disk.img
    done
}

journal_blocks() { # IMG
    dumpe2fs -h "$1" 2>/dev/null | sed -nE 's/^Total journal blocks: *//p'
}

# More metadata than fits the journal: the journal is extended. If the daemon was killed then, the
# kernel finds all of the transaction on the volume, and the next mount by xact shortens the
# journal.
test_a_transaction_larger_than_the_journal() {
    local made
    truncate -s 300M disk.img
    mke2fs -q -F -t ext4 -b 4096 -N 60000 -J size=4 disk.img
    made=$(journal_blocks disk.img)
    in_foreground disk.img mnt
    "$XACT" run --at mnt -- python3 -c '
import os
os.mkdir("mnt/files")
for i in range(20000):
    os.close(os.open(f"mnt/files/{i}", os.O_CREAT | os.O_WRONLY, 0o644))'
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    "$XACT" umount mnt
    cp --sparse=always disk.img kernels.img
    kernel_mounted kernels.img mnt
    equal "files for the kernel" 20000 "$(find mnt/files -type f | wc -l)"
    kernel_unmounted mnt
    sound kernels.img
    [[ $(journal_blocks kernels.img) -gt $made ]] || fail "the journal is not longer"

    mounted disk.img mnt
    equal "files" 20000 "$(find mnt/files -type f | wc -l)"
    "$XACT" run --at mnt -- rm -r mnt/files
    exits 1 -- test -e mnt/files
    unmounted mnt
    sound disk.img
    equal "blocks of the journal" "$made" "$(journal_blocks disk.img)"
    mounted kernels.img mnt
    unmounted mnt
    sound kernels.img
    equal "blocks of the journal" "$made" "$(journal_blocks kernels.img)"
}

# Much more than the daemon's cache, through an unmodified program. Afterwards the kernel reads all
# of it, and nothing of it if the program fails.
test_a_transaction_larger_than_memory() {
    local memory
    truncate -s 600M disk.img
    mke2fs -q -F -t ext4 -b 4096 disk.img
    in_foreground disk.img mnt --cache-size 32M
    exits 3 -- "$XACT" run --at mnt -- sh -c 'head -c 256M /dev/zero >mnt/gone; exit 3'
    equal "names after a failure" lost+found "$(ls mnt)"
    "$XACT" run --at mnt -- python3 -c '

for name in "a", "b":
    with open(f"mnt/{name}", "wb", buffering=0) as file:
        for i in range(128):
            file.write(bytes([i + 1]) * (1 << 20))'
    memory=$(sed -nE 's/^VmHWM:[[:space:]]*([0-9]+) kB/\1/p' "/proc/$DAEMON/status")
    report "the daemon had at most $((memory / 1024)) MiB"
    [[ $memory -lt $((160 << 10)) ]] || fail "the daemon had $memory KiB for 256 MiB of data"
    "$XACT" umount mnt
    wait "$DAEMON"
    sound disk.img
    kernel_mounted disk.img mnt
    cmp mnt/a mnt/b
    python3 -c '
with open("mnt/a", "rb") as file:
    for i in range(128):
        assert file.read(1 << 20) == bytes([i + 1]) * (1 << 20), i
    assert not file.read()'
    kernel_unmounted mnt
}

# The space of a deleted file is available to the next call, although the kernel forgets the file a
# moment later.
test_deleted_space_is_there_at_once() {
    local i status=0
    volume disk.img --size 32M
    mounted disk.img mnt
    for i in $(seq 10); do
        head -c 20M /dev/zero >mnt/one
        rm mnt/one
        head -c 20M /dev/zero >mnt/two
        rm mnt/two
        fallocate -l 20M mnt/three
        rm mnt/three
    done
    # Two programs in turn, each of which has place.
    turns() { # NAME
        local j
        for j in $(seq 15); do
            head -c 10M /dev/zero >"mnt/$1" || return 1
            rm "mnt/$1"
        done
    }
    turns left &
    turns right || status=1
    wait $! || status=1
    equal "two programs that write and delete in turn" 0 "$status"
    # A file that stays open keeps its space; the error comes after a moment.
    head -c 20M /dev/zero >mnt/open
    exec 8<mnt/open
    rm mnt/open
    exits 1 'No space left' -- dd if=/dev/zero of=mnt/more bs=1M count=20
    exec 8<&-
    head -c 20M /dev/zero >mnt/more
    unmounted mnt
    sound disk.img
}

# Stores into holes of a mapping on a full volume. FUSE does not ask the daemon when a page becomes
# writable, so there is no SIGBUS as on the kernel's ext4: the failure comes at the write-back.
# msync, fsync and close report it, the log names the file, and a transaction is not committed.
test_stores_into_holes_on_a_full_volume() {
    local engine how
    cat >stores.py <<'END'
import errno, mmap, os, sys
path, how = sys.argv[1:]
fd = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 20 << 20)
mapping = mmap.mmap(fd, 20 << 20)
for at in range(0, 20 << 20, 4096):
    mapping[at] = 1
try:
    if how == "msync":
        mapping.flush()
    elif how == "fsync":
        os.fsync(fd)
    elif how == "close":
        os.close(fd)
    print(how, "OK")
except OSError as error:
    print(how, errno.errorcode[error.errno])
os._exit(0)
END
    for engine in journal generations; do
        "$XACT" mkfs disk.img --size 60M --block-size 4K --engine $engine --force >/dev/null
        mounted disk.img mnt --log log
        mkdir mnt/folder
        { dd if=/dev/zero of=mnt/fill bs=1M 2>/dev/null || true; }
        for how in msync fsync close; do
            equal "$engine: a store and $how" "$how ENOSPC" "$(python3 stores.py mnt/folder/$how $how)"
            wait_until "the log of $how" grep -q "stores through a mapping of /folder/$how are lost.*no space left" log
        done
        equal "$engine: a store alone" "exit OK" "$(python3 stores.py mnt/folder/exit exit)"
        wait_until "the log of a store alone" grep -q 'stores through a mapping of /folder/exit are lost' log
        exits 73 'no space left' -- "$XACT" run --at mnt -- python3 stores.py "$PWD/mnt/folder/inside" exit
        [[ ! -e mnt/folder/inside ]] || fail "$engine: the transaction was committed"
        unmounted mnt
        sound disk.img
        rm log
    done
}

# Inotify reports the calls of programs. A commit changes files without calls, so watchers get no
# event of it, of whatever kind the change is, and events of all calls outside of transactions.
test_watchers_get_no_events_of_a_commit() {
    cat >watch.py <<'END'
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
OPENED_AND_READ = 0x1 | 0x10 | 0x20  # by `xact run`, and by the shell that calls
def events(command):
    """Whether the folder, or one of the files and folders in it, has events of the command."""
    watch = libc.inotify_init1(os.O_NONBLOCK)
    for path in ["mnt/folder"] + [f"mnt/folder/{name}" for name in os.listdir("mnt/folder")]:
        assert libc.inotify_add_watch(watch, path.encode(), 0xFFF & ~OPENED_AND_READ) >= 0
    subprocess.run(command, check=True)
    try:
        return len(os.read(watch, 65536)) > 0
    except BlockingIOError:
        return False
    finally:
        os.close(watch)
for change in sys.argv[2:]:
    assert not events([sys.argv[1], "run", "--at", "mnt", "--", "sh", "-c", change]), f"a commit: {change}"
    # The same once more, by calls.
    assert events(["sh", "-c", change.replace("1", "2")]), f"calls: {change}"
END
    volume disk.img
    mounted disk.img mnt
    mkdir -p mnt/folder/gone{1,2}
    touch mnt/folder/{written,moved,replaced,deleted,other}{1,2}
    python3 watch.py "$XACT" 'echo x >>mnt/folder/written1' 'echo x >mnt/folder/new1' 'mkdir mnt/folder/made1' \
        'mv mnt/folder/moved1 mnt/folder/name1' 'mv mnt/folder/other1 mnt/folder/replaced1' \
        'rm mnt/folder/deleted1' 'rmdir mnt/folder/gone1' 'chmod 600 mnt/folder/written1'
    unmounted mnt
}

# The path of a folder that is in use, after a commit that renames it or a folder above: the kernel
# learns of the new place when a program looks up the new name.
test_paths_of_folders_in_use_after_a_commit() {
    cat >path.py <<'END'
import os, subprocess, sys
here, xact = os.path.realpath("mnt"), sys.argv[1]
reader = subprocess.Popen([sys.executable, "-c", """
import os, sys
os.chdir("mnt/a/b")
file = open("f")
for line in sys.stdin:
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        cwd = None
    print((cwd, os.readlink("/proc/self/cwd"), os.readlink(f"/proc/self/fd/{file.fileno()}")), flush=True)
"""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def paths():
    reader.stdin.write("\n")
    reader.stdin.flush()
    return tuple(path and path.replace(here, "M") for path in eval(reader.stdout.readline()))
def expect(what, *wanted):
    found = paths()
    assert found == wanted, f"{what}: {found} instead of {wanted}"
def commit(command):
    subprocess.run([xact, "run", "--at", "mnt", "--", "sh", "-c", command], check=True)
expect("at first", "M/a/b", "M/a/b", "M/a/b/f")
commit("mv mnt/a mnt/c")
expect("after a commit that renames the folder above", "M/a/b", "M/a/b", "M/a/b/f")
os.stat("mnt/c")
expect("after a look at the new name", "M/c/b", "M/c/b", "M/c/b/f")
commit("mv mnt/c/b mnt/c/d")
expect("after a commit that renames the folder", None, "M/c/b (deleted)", "M/c/b/f")
os.stat("mnt/c/d")
expect("after a look at its new name", "M/c/d", "M/c/d", "M/c/d/f")
commit("mv mnt/c/d/f mnt/c/d/g")
os.stat("mnt/c/d/g")
expect("after a commit that renames an open file", "M/c/d", "M/c/d", "M/c/d/f (deleted)")
os.rename("mnt/c", "mnt/e")
expect("after a rename by a call", "M/e/d", "M/e/d", "M/e/d/f (deleted)")
reader.stdin.close()
reader.wait()
END
    volume disk.img
    mounted disk.img mnt
    mkdir -p mnt/a/b
    touch mnt/a/b/f
    python3 path.py "$XACT"
    unmounted mnt
}

# The kernel gives a FUSE file system no identifier, so fanotify cannot name its files. A mark on
# the mount, without file handles, works.
test_fanotify_by_file_system() {
    cat >mark.py <<'END'
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
MARK_ADD, MARK_MOUNT, MARK_FILESYSTEM, REPORT_FID = 0x1, 0x10, 0x100, 0x200
CREATE, OPEN, ON_CHILDREN = 0x100, 0x20, 0x40000000
def mark(init, flags, mask):
    group = libc.fanotify_init(init, os.O_RDONLY)
    done = libc.fanotify_mark(group, flags, ctypes.c_uint64(mask), -100, b"mnt")
    failed = errno.errorcode[ctypes.get_errno()] if done < 0 else None
    os.close(group)
    return failed
assert mark(REPORT_FID, MARK_ADD | MARK_FILESYSTEM, CREATE | ON_CHILDREN) == "ENODEV"
assert mark(0, MARK_ADD | MARK_MOUNT, OPEN) is None
END
    for ENGINE in journal generations; do
        volume disk.img
        mounted disk.img mnt
        python3 mark.py
        unmounted mnt
        rm disk.img
    done
}
