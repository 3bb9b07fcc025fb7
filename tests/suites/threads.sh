# timeout: 400
# Transactions of one thread beside others: the guarantees of libxact to a process with several
# threads.

LIBRARY=$TARGET/release/libxact_c.so

fresh() { # [ARGUMENTS OF xact mount…]; SIZE: of the volume
    needs cc python3
    [[ -e $LIBRARY ]] || fail "$LIBRARY is missing: run 'make build'"
    mkdir lib
    ln -s "$LIBRARY" lib/libxact.so.0
    ln -s libxact.so.0 lib/libxact.so
    export LIBXACT=$PWD/lib/libxact.so.0 PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1
    volume disk.img ${SIZE:+--size "$SIZE"}
    mounted disk.img mnt "$@"
    mkdir mnt/folder
}
afterwards() {
    unmounted mnt
    sound disk.img
}
compiled() { # FILE [OPTIONS]: to ./program
    cc -Wall -Wextra -Werror -std=c11 -D_GNU_SOURCE -I "$ROOT/include" "$@" -o program -L lib -lxact -pthread \
        -Wl,-rpath,"$PWD/lib"
}

# Refusals, descriptors after the end, threads started inside, and an end that fails (see the
# program).
test_guarantees() {
    fresh -o allow_other
    compiled "$TESTS/threads.c"
    timeout 120 ./program "$PWD/mnt" "$PWD/mnt/folder"
    afterwards
}

# Standard output on the volume is refused, or stays outside. The thread that begins need not be the
# one that prints.
test_standard_output_on_the_volume() {
    fresh
    cat >prints.py <<'END'
import os, sys, threading, xact
def work():
    try:
        with xact.transaction(os.environ["MNT"]):
            pass
    except xact.Error as e:
        print(e, file=sys.stderr)
    try:
        with xact.transaction(os.environ["MNT"], leave_outside=True):
            open(os.environ["MNT"] + "/undone", "w").close()
            print("printed inside", flush=True)
            1 / 0
    except ZeroDivisionError:
        pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
END
    MNT=$PWD/mnt python3 prints.py >mnt/log 2>said
    has said "standard output \($PWD/mnt/log\) is open on the volume.*leave_outside=True"
    equal "what was printed" "printed inside" "$(cat mnt/log)"
    [[ ! -e mnt/undone ]]
    afterwards
}

# Each thread has a current folder of its own from its first transaction on; the other threads keep
# theirs.
test_current_folders() {
    fresh
    cat >folders.py <<'END'
import os, threading, xact
mnt = os.environ["MNT"]
os.chdir(mnt)
inside, moved = threading.Event(), threading.Event()
def work():
    with xact.transaction():
        inside.set()
        moved.wait()
        assert os.getcwd() == mnt, os.getcwd()
        os.mkdir("made")
        os.chdir("made")
        open("file", "w").close()
    assert os.getcwd() == mnt + "/made", os.getcwd()
thread = threading.Thread(target=work)
thread.start()
inside.wait()
os.chdir(mnt + "/folder")
open("plain", "w").close()
moved.set()
thread.join()
assert os.getcwd() == mnt + "/folder", os.getcwd()
assert os.path.exists("plain") and os.path.exists("../made/file")
END
    MNT=$PWD/mnt timeout 60 python3 folders.py
    afterwards
}

# In separate folders any number of threads may have transactions, also of one database.
test_databases_in_folders() {
    fresh
    cat >folders.py <<'END'
import contextlib, os, sqlite3, sys, threading, xact
from pathlib import Path
mnt, errors = os.environ["MNT"], []
for mode in "delete", "wal":
    here = f"{mnt}/{mode}"
    os.mkdir(here)
    db = sqlite3.connect(f"{here}/a.db")
    db.execute(f"pragma journal_mode={mode}")
    db.execute("create table m(name text primary key)")
    db.commit()
    db.close()
    def work(i):
        for k in range(20):
            def body(tx):
                with contextlib.closing(sqlite3.connect(f"{tx.path}/a.db")) as db:
                    db.execute("insert into m values(?)", (f"{i}-{k}",))
                    db.commit()
                Path(tx.path, f"{i}-{k}").touch()
            try:
                xact.run(body, xact.folder(here), tries=1000)
            except Exception as e:
                errors.append(repr(e))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with contextlib.closing(sqlite3.connect(f"{here}/a.db")) as db:
        assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
        rows = {name for name, in db.execute("select name from m")}
    files = {name for name in os.listdir(here) if name[0].isdigit()}
    assert rows == files and len(rows) == 160, (len(rows), len(files))
assert not errors, errors[:3]
END
    MNT=$PWD/mnt timeout 120 python3 folders.py
    afterwards
}

# Eight threads of transactions beside eight of plain files, databases, mappings, programs and
# children, on the volume and elsewhere. tests/long runs the same for ten minutes.
load_in_c() { # SECONDS
    mkdir -p outside/c outside/python
    compiled "$TESTS/threads_load.c" -l:libsqlite3.so.0
    ./program "$PWD/mnt" "$PWD/outside/c" "$1" >said-c
    report "in C: $(cat said-c)"
}
load_in_python() { # SECONDS
    mkdir -p outside/c outside/python
    python3 "$TESTS/threads_load.py" mnt outside/python "$1" >said-python
    report "in Python: $(cat said-python)"
}
checked_databases() {
    local db
    for db in $(find mnt outside -name '*.db'); do
        equal "integrity of $db" ok "$(sqlite3 "$db" 'pragma integrity_check')"
    done
    lacks log 'panic|cache invalidation|may look outdated'
}
test_load_in_c() {
    needs sqlite3
    fresh --log log
    load_in_c 20
    checked_databases
    afterwards
}
test_load_in_python() {
    needs sqlite3
    fresh --log log
    load_in_python 20
    checked_databases
    afterwards
}
