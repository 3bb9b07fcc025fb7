# timeout: 200
# SQLite without a journal file, by the atomic-write ioctls (docs/TRANSACTIONS.md).

fresh() { # [ARGUMENTS OF xact mount…]
    needs python3 strace
    volume disk.img
    mounted disk.img mnt "$@"
}
afterwards() {
    unmounted mnt
    sound disk.img
}
# Python with a libsqlite3 that was built with SQLITE_ENABLE_BATCH_ATOMIC_WRITE: Debian's is not.
batch() {
    [[ -e $TOOLS/lib/libsqlite3.so.0 ]] || fail "$TOOLS/lib/libsqlite3.so.0 is missing: run scripts/tools"
    LD_LIBRARY_PATH=$TOOLS/lib python3 "$@"
}

test_atomic_write_ioctls() {
    fresh
    python3 "$TESTS/atomic_writes.py" mnt
    # Sections that are open when the daemon is asked to end are dropped.
    python3 - mnt/file <<'PY'
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.ioctl(fd, 0xf501)
os.pwrite(fd, b"z" * 4096, 0)
PY
    unmounted mnt
    mounted disk.img mnt
    equal "first byte" w "$(head -c 1 mnt/file)"
    exits 1 'Inappropriate ioctl' -- "$XACT" run --at mnt -- python3 -c \
        'import fcntl; fcntl.ioctl(open("mnt/file"), 0x8004f50c, b"    ")'
    afterwards
}

# The same rows, on one database and by two programs in turns; which files were opened and synced.
test_no_journal_file() {
    fresh
    cat >load.py <<'PY'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
assert "ENABLE_BATCH_ATOMIC_WRITE" in str(db.execute("pragma compile_options").fetchall())
for i in range(20):
    db.execute("begin immediate")
    db.executemany("insert into t (text) values (?)", [(str(i) * 200,)] * 5)
    db.execute("commit")
PY
    # The first commit of an empty database uses a journal, by a rule of SQLite's own.
    batch -c 'import sqlite3; sqlite3.connect("mnt/a.db").execute("create table t (id integer primary key, text)")'
    strace -f -o calls -e trace=openat,unlink,fsync,fdatasync,ioctl \
        env LD_LIBRARY_PATH="$TOOLS/lib" python3 load.py mnt/a.db
    lacks calls 'a.db-journal.*O_CREAT'
    lacks calls 'unlink.*a.db-journal'
    equal commits 20 "$(grep -cE 'ioctl\([0-9]+, (_IOC\(_IOC_NONE, 0xf5, 0x2, 0\)|F2FS_IOC_COMMIT_ATOMIC_WRITE)' calls)"
    for i in 1 2 3; do batch load.py mnt/a.db & done
    wait
    equal integrity ok "$(sqlite3 mnt/a.db 'pragma integrity_check')"
    equal rows 400 "$(sqlite3 mnt/a.db 'select count(*) from t')"
    # Two databases in one of SQLite's transactions: with journals, as on every file system.
    batch - <<'PY'
import sqlite3
db = sqlite3.connect("mnt/a.db", isolation_level=None)
db.execute("attach 'mnt/b.db' as b")
db.execute("begin")
db.execute("create table b.t as select * from t")
db.execute("delete from main.t where id > 10")
db.execute("commit")
PY
    # In an enclosing transaction several databases and files are atomic, and need none.
    cat >both.py <<'PY'
import sqlite3, sys
for name in "a", "b":
    db = sqlite3.connect(f"mnt/{name}.db")
    db.execute("delete from t where id % 2")
    db.commit()
open("mnt/done", "w").write("yes")
sys.exit(int(sys.argv[1]))
PY
    for status in 1 0; do
        equal "rows of a" 10 "$(sqlite3 mnt/a.db 'select count(*) from t')"
        equal "rows of b" 400 "$(sqlite3 mnt/b.db 'select count(*) from t')"
        [[ ! -e mnt/done ]]
        exits $status -- env LD_LIBRARY_PATH="$TOOLS/lib" "$XACT" run --at mnt -- python3 both.py $status
    done
    equal "rows of a" 5 "$(sqlite3 mnt/a.db 'select count(*) from t')"
    equal "rows of b" 200 "$(sqlite3 mnt/b.db 'select count(*) from t')"
    afterwards
}

# A writer that is killed during a commit; concurrent readers; the daemon killed at the end.
test_atomic_and_isolated() { atomic_and_isolated 4096; }
# Several pages of the database in one of the kernel's cache.
test_atomic_and_isolated_in_small_pages() { atomic_and_isolated 1024; }
atomic_and_isolated() { # PAGE_BYTES
    export PAGE_BYTES=$1
    volume disk.img
    in_foreground disk.img mnt
    cat >writer.py <<'PY'
import os, sqlite3, sys
db = sqlite3.connect("mnt/a.db", timeout=60, isolation_level=None)
value = db.execute("select max(v) from t").fetchone()[0]
while True:
    value += 1
    db.execute("update t set v = ?", (value,))
    os.write(1, b"%d\n" % value)
PY
    cat >test.py <<'PY'
import os, random, signal, sqlite3, subprocess, sys, threading
db = sqlite3.connect("mnt/a.db", timeout=60, isolation_level=None)
db.execute("pragma page_size = " + os.environ["PAGE_BYTES"])
db.execute("create table t (id integer primary key, v int, text)")
db.executemany("insert into t (v, text) values (0, ?)", [("x" * 3000,)] * 20)
reads = 0

def check(db, least):
    global reads
    (low, high), = db.execute("select min(v), max(v) from t").fetchall()
    assert low == high and low >= least, (low, high, least)
    reads += 1

done = False
def reader():
    db = sqlite3.connect("mnt/a.db", timeout=60, isolation_level=None)
    while not done:
        check(db, 0)
thread = threading.Thread(target=reader)
thread.start()
random.seed(1)
for _ in range(12):
    child = subprocess.Popen([sys.executable, "writer.py"], stdout=subprocess.PIPE)
    for _ in range(random.randrange(1, 12)):
        acknowledged = int(child.stdout.readline())
    child.kill()
    # The locks are free at once, long before the daemon can notice.
    check(db, acknowledged)
    child.stdout.read()
    child.wait()
done = True
thread.join()
assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
print(reads, "reads")
PY
    batch test.py >said
    report "$(cat said)"
    mkfifo acknowledged
    batch writer.py >acknowledged &
    local writer=$! value
    exec 7<acknowledged
    for _ in 1 2 3 4 5 6 7; do read -r value <&7; done
    kill -KILL "$DAEMON"
    wait "$DAEMON" || true
    while read -r value <&7; do LAST=$value; done
    wait "$writer" || true
    umount -l mnt
    mounted disk.img mnt
    read -r low high < <(sqlite3 mnt/a.db 'select min(v), max(v) from t' | tr '|' ' ')
    equal "one value" "$low" "$high"
    [[ $low -ge ${LAST:-0} ]]
    [[ ! -e mnt/a.db-journal ]]
    equal integrity ok "$(sqlite3 mnt/a.db 'pragma integrity_check')"
    afterwards
}
