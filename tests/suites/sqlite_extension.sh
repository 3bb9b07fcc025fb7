# timeout: 200
# The SQLite extension: an unmodified SQLite commits without a journal file
# (docs/adr/sqlite-extension.md).

EXTENSION=$TARGET/release/libxact_sqlite.so
KILLS=${SQLITE_KILLS:-10}
# The distribution's: others may be built without the loading of extensions.
PYTHON=/usr/bin/python3

fresh() { # [ARGUMENTS OF xact mkfs…]
    needs python3 sqlite3
    [[ -e $EXTENSION ]] || fail "$EXTENSION is missing: run 'make build'"
    volume disk.img "$@"
    mounted disk.img mnt
}
afterwards() {
    unmounted mnt
    sound disk.img
}
program() { # WHAT [ARGUMENT…]
    "$PYTHON" "$TESTS/sqlite_extension.py" "$EXTENSION" "$@"
}

# The daemon's side of it.
test_write_batches() {
    fresh
    python3 "$TESTS/write_batches.py" mnt
    afterwards
}

test_commits_and_rollbacks() {
    fresh
    program basics mnt
    afterwards
}

# The programs that come with the system, as they are.
test_no_journal_file() {
    needs strace
    fresh
    cat >load.sql <<SQL
.load $EXTENSION
.open mnt/a.db
create table t (v);
insert into t values (1);
begin; insert into t values (2); savepoint s; insert into t values (3); rollback to s; commit;
pragma xact_status;
.vfsname
SQL
    strace -f -o calls -e trace=openat,unlink,fsync,fdatasync,pwrite64 sqlite3 <load.sql >said
    has said '^atomic, 3 atomic commits, 0 with a journal file$'
    has said '^xact/unix$'
    lacks calls 'a\.db-(journal|wal)'
    lacks calls '(fsync|fdatasync|pwrite64|unlink)\('
    # By the name of the VFS, and read-only.
    equal rows "2" "$(sqlite3 :memory: -cmd ".load $EXTENSION" \
        "attach 'file:mnt/a.db?vfs=xact&mode=ro' as a" 'select count(*) from a.t')"
    # A transaction in which an SQLite without the extension was killed is rolled back.
    "$PYTHON" - <<'PY'
import os, sqlite3
db = sqlite3.connect("mnt/a.db", isolation_level=None)
db.execute("pragma cache_size = 1")
db.execute("begin")
db.executemany("insert into t values (?)", [("x" * 3000,)] * 100)
os._exit(0)
PY
    [[ -s mnt/a.db-journal ]]
    equal rows "2" "$(sqlite3 :memory: -cmd ".load $EXTENSION" -cmd '.open mnt/a.db' 'select count(*) from t')"
    [[ ! -e mnt/a.db-journal ]]
    afterwards
}

test_modes() {
    fresh
    program modes mnt
    afterwards
}

test_several_databases() {
    fresh
    mkdir host
    program databases mnt host
    afterwards
}

test_large_transactions() {
    fresh --size 512M
    report "$(program big mnt)"
    afterwards
}

test_as_a_database_in_memory() {
    fresh
    local seed
    for seed in $(seq "${SQLITE_SEEDS:-12}"); do program compare "mnt/$seed.db" "$seed" 400; done
    afterwards
}

test_readers_and_killed_writers() {
    fresh
    report "$(program readers mnt | grep reads | xargs)"
    afterwards
}

test_a_full_volume() {
    fresh --size 64M
    program full mnt
    afterwards
}

# Elsewhere, and in a transaction, SQLite does what it does without the extension.
test_elsewhere() {
    fresh
    mkdir host
    program elsewhere host
    WITHOUT_EXTENSION=1 program compare host/b.db 1 200
    program compare host/c.db 1 200
    cmp host/b.db host/c.db
    cat >run.sh <<'SH'
set -e
"$PYTHON" "$TESTS/sqlite_extension.py" "$EXTENSION" elsewhere mnt
sqlite3 :memory: -cmd ".load $EXTENSION" -cmd '.open mnt/b.db' 'create table t (v)'
echo 1 >mnt/file
exit "$1"
SH
    export PYTHON TESTS EXTENSION
    exits 3 -- "$XACT" run --at mnt -- bash run.sh 3
    [[ ! -e mnt/a.db && ! -e mnt/b.db && ! -e mnt/file ]]
    "$XACT" run --at mnt -- bash run.sh 0
    equal rows 1 "$(sqlite3 mnt/a.db 'select count(*) from t')"
    [[ -e mnt/b.db && -e mnt/file ]]
    afterwards
}

# A file of another user is written as without the extension: the daemon takes atomic writes of a
# file from its owner only.
test_files_of_others() {
    needs setpriv
    fresh
    chmod 777 mnt
    sqlite3 mnt/a.db 'create table t (v)'
    chmod 666 mnt/a.db
    cp "$EXTENSION" ext.so
    setpriv --reuid 65534 --regid 65534 --clear-groups "$PYTHON" - <<'PY'
import os, sqlite3
def status(path):
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("create table if not exists t (v)")
    db.execute("insert into t values (1)")
    return db.execute("pragma xact_status").fetchall()
db = sqlite3.connect(":memory:")
db.enable_load_extension(True)
db.load_extension("./ext.so")
assert status("mnt/a.db") == []
assert status("mnt/own.db") == [("atomic, 2 atomic commits, 0 with a journal file",)]
PY
    equal rows 1 "$(sqlite3 mnt/a.db 'select count(*) from t')"
    afterwards
}

# The program is killed, or the daemon is, in mid-load, again and again. The ledger of what was
# acknowledged is kept outside of the volume.
test_killed_in_mid_load() {
    local round acknowledged=0 line
    needs python3
    volume disk.img
    in_foreground disk.img mnt
    program make-rows mnt
    for ((round = 1; round <= KILLS; round++)); do
        "$PYTHON" "$TESTS/sqlite_extension.py" "$EXTENSION" write-rows mnt >ledger 2>>writer.log &
        local writer=$!
        # Between 150 and 400 ms, at another point each time.
        sleep "0.$((150 + round * 7919 % 250))"
        if ((round % 3 == 0)); then
            kill -KILL "$writer"
            wait "$writer" 2>/dev/null || true
        else
            kill -KILL "$DAEMON"
            wait "$DAEMON" 2>/dev/null || true
            wait "$writer" || true
            "$XACT" umount mnt
            local modes=(adaptive ordered journal selective) mode=adaptive
            [[ $ENGINE == generations ]] || mode=${modes[round % 4]}
            in_foreground disk.img mnt -o "data=$mode"
        fi
        while read -r line; do acknowledged=$line; done <ledger
        acknowledged=$(program check-rows mnt "$acknowledged")
    done
    [[ $acknowledged -ge $((KILLS * 5)) ]] || fail "only $acknowledged transactions in $KILLS rounds"
    report "$acknowledged transactions, $KILLS kills"
    unmounted mnt
    wait "$DAEMON"
    sound disk.img
}
