# timeout: 600
# Real programs, each on the mount and inside a transaction: Git, SQLite, tar, a C build with make.

on_the_mount() { (cd mnt && "$@"); }
in_a_transaction() { (cd mnt && "$XACT" run -- "$@"); }

# Runs a script of this suite on a fresh volume, in a shell of its own.
on_a_volume() { # on_the_mount | in_a_transaction, FUNCTION
    # A transaction may take a quarter of the journal.
    volume disk.img --size 2G --journal-size 400M
    mounted disk.img mnt -o allow_other
    export -f "$2"
    "$1" bash -euo pipefail -c "$2"
}

afterwards() {
    unmounted mnt
    sound disk.img
}

git_work() {
    git clone -q --no-hardlinks "$REPOSITORY" clone
    cd clone
    git checkout -q -b work
    local i
    for i in $(seq 20); do
        echo "$i" >"file$i"
        git add .
        git commit -q -m "commit $i"
    done
    git gc -q
    git checkout -q HEAD~10
    git checkout -q work
    git rebase -q --onto HEAD~5 HEAD~3
    git fsck --strict --no-dangling
    git diff --quiet
}
git_result() {
    git -C mnt/clone fsck --strict --no-dangling
    [[ -z $(git -C mnt/clone status --porcelain) ]]
    [[ -f mnt/clone/file15 && ! -e mnt/clone/file17 && -f mnt/clone/file20 ]]
}
test_git_on_the_mount() {
    git_settings
    REPOSITORY=$(source_repository "$WORK/source")
    export REPOSITORY
    on_a_volume on_the_mount git_work
    git_result
    afterwards
}
test_git_in_a_transaction() {
    git_settings
    REPOSITORY=$(source_repository "$WORK/source")
    export REPOSITORY
    on_a_volume in_a_transaction git_work
    git_result
    afterwards
}

# Git commands that are killed while they run, or fail, in a transaction leave no trace.
test_git_is_all_or_nothing() {
    needs strace
    git_settings
    volume disk.img --size 1G
    mounted disk.img mnt
    local i command call kills=0
    git init -q mnt/work
    (
        cd mnt/work
        for i in 1 2 3 4 5 6; do
            seq "$i" 1000 >numbers
            git add . && git commit -q -m "$i"
        done
        git checkout -q -b side HEAD~2
        echo side >side && git add . && git commit -q -m side
        # Two commits on either side of one line, for a rebase that stops.
        git checkout -q -b stops HEAD~1
        echo other >numbers && git commit -q -a -m other
        git checkout -q side
        echo more >>side
    )
    describe_tree mnt/work >before
    for command in "commit -a -m more" "gc -q" "rebase --autostash main"; do
        for call in rename link,linkat unlink,unlinkat; do
            # Each process that makes its first call of that kind dies. Git may continue without
            # some of them, so the script ends in failure in any case.
            exits 1 -- "$XACT" run --at mnt --status-file status -- sh -c "strace -f -o /dev/null -e trace=$call \
                -e inject=$call:signal=KILL:when=1 git -C mnt/work $command >said 2>&1; echo \$? >killed; exit 1"
            equal outcome aborted "$(jq -r .outcome status)"
            [[ $(cat killed) -eq 0 ]] || kills=$((kills + 1))
            describe_tree mnt/work | diff before - || fail "git $command, killed at $call, has left something"
        done
    done
    [[ $kills -ge 3 ]]
    exits 1 'CONFLICT|could not apply|failed with exit status 1' -- \
        "$XACT" run --at mnt -- git -C mnt/work rebase --autostash main stops
    describe_tree mnt/work | diff before -
    # And all three of them at once.
    (cd mnt/work && "$XACT" run -- sh -ec 'git commit -q -a -m more; git rebase -q main; git gc -q')
    git -C mnt/work fsck --strict --no-dangling
    equal commits 8 "$(git -C mnt/work rev-list --count side --)"
    report "killed $kills times"
    afterwards
}

sqlite_work() {
    local mode
    for mode in wal delete truncate persist; do
        sqlite3 $mode.db "pragma journal_mode=$mode; create table t (id integer primary key, text);" >/dev/null
        {
            for i in $(seq 200); do echo "insert into t (text) values (hex(randomblob(100)));"; done
            echo "begin; update t set text = hex(randomblob(2000)); commit;"
            echo "begin; delete from t; rollback;"
            echo "begin; delete from t where id % 2; commit;"
        } | sqlite3 -bail $mode.db
        [[ $(sqlite3 $mode.db 'pragma integrity_check') == ok ]]
        sqlite3 $mode.db vacuum
        [[ $(sqlite3 $mode.db 'select count(*) from t') == 100 ]]
    done
}
sqlite_result() {
    local mode
    for mode in wal delete truncate persist; do
        equal "integrity of $mode" ok "$(sqlite3 mnt/$mode.db 'pragma integrity_check')"
        equal "rows of $mode" 100 "$(sqlite3 mnt/$mode.db 'select count(*) from t')"
    done
}
test_sqlite_on_the_mount() {
    on_a_volume on_the_mount sqlite_work
    sqlite_result
    afterwards
}
test_sqlite_in_a_transaction() {
    on_a_volume in_a_transaction sqlite_work
    sqlite_result
    afterwards
}

# The system's headers: thousands of files, links, and dates of their own.
tar_work() {
    (cd /usr && tar --format=posix -cf - include $(ls -d share/perl share/doc 2>/dev/null)) | tar -xpf -
    tar --format=posix -cf again.tar include
    mkdir again
    tar -C again -xpf again.tar
    diff -r include again/include
    rm -r again again.tar
}
tar_result() {
    local part
    for part in include share/perl share/doc; do
        [[ -d /usr/$part ]] || continue
        diff <(describe_tree "/usr/$part" | sed 's/ links=[0-9]*//') <(describe_tree "mnt/$part" | sed 's/ links=[0-9]*//')
    done
    report "$(find mnt | wc -l) files"
}
test_tar_on_the_mount() {
    on_a_volume on_the_mount tar_work
    tar_result
    afterwards
}
test_tar_in_a_transaction() {
    on_a_volume in_a_transaction tar_work
    tar_result
    afterwards
}

make_work() {
    mkdir -p project/src
    cd project
    local i
    for i in $(seq 40); do
        printf '#include <stdio.h>\n#include <string.h>\nint f%d(int x) { printf("%%d\\n", x + %d); return (int)strlen("%d"); }\n' \
            "$i" "$i" "$i" >src/f"$i".c
    done
    {
        for i in $(seq 40); do printf 'int f%d(int);\n' "$i"; done
        printf 'int main(void) { int n = 0;\n'
        for i in $(seq 40); do printf 'n += f%d(n);\n' "$i"; done
        printf 'return n != 71; }\n'
    } >src/main.c
    cat >Makefile <<'END'
CFLAGS = -O1 -Wall -MMD
program: $(patsubst src/%.c,build/%.o,$(wildcard src/*.c))
	$(CC) -o $@ $^
build/%.o: src/%.c | build
	$(CC) $(CFLAGS) -c -o $@ $<
build:
	mkdir $@
-include $(wildcard build/*.d)
END
    make -s -j4
    ./program >/dev/null
    # Times must be good enough for make: nothing to do now, one file and the program after a touch.
    make -q
    touch src/f7.c
    [[ $(make -n | wc -l) == 2 ]]
    make -s
}
make_result() {
    make -C mnt/project -q
    mnt/project/program | tail -n 1 | grep -qx 109
}
test_make_on_the_mount() {
    on_a_volume on_the_mount make_work
    make_result
    afterwards
}
test_make_in_a_transaction() {
    on_a_volume in_a_transaction make_work
    make_result
    afterwards
}
