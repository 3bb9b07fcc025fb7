# timeout: 900
# Tests of others, written for kernel file systems: Python's own, of the modules that work with
# files. Each test must end as it does on kernel ext4, on this machine, as this user.

# Outcomes, one line for each test, in order: NAME ok | skipped | FAIL | ERROR.
python_outcomes() { # FOLDER, COMMAND…, where the modules are in MODULES
    local folder=$1 log status=0
    shift
    mkdir -p "$folder"
    log=$WORK/python.log
    # shellcheck disable=SC2086  # words
    env TMPDIR="$folder" PYTHONDONTWRITEBYTECODE=1 "$@" python3 -m test -v --tempdir "$folder" $MODULES \
        >"$log" 2>&1 </dev/null || status=$?
    grep -qE '^(== )?Tests result: (SUCCESS|FAILURE)|^Result: (SUCCESS|FAILURE)' "$log" ||
        fail "Python's tests ended with $status: $(tail -n 20 "$log")"
    # "test_x (test.test_os.A.test_x) ... ok", the outcome at times on a later line.
    sed -nE 's/^([a-zA-Z_0-9]+ \([a-zA-Z_0-9.]+\))( \[.*\])?( \.\.\.)? .*\b(ok|skipped|FAIL|ERROR)\b.*/\1 \4/p' "$log" |
        sort -u
    sed -nE 's/^(FAIL|ERROR): (.*)$/\1 \2/p' "$log" | sort -u
}

python_agrees() { # MODULES
    needs python3 mke2fs
    python3 -c 'import test.test_os' 2>/dev/null || fail "Python's own tests are missing: run 'make deps'"
    MODULES=$*
    truncate -s 2G kernel.img
    mke2fs -q -t ext4 kernel.img
    kernel_mounted kernel.img kernel
    python_outcomes "$WORK/kernel/a" env >expected
    kernel_unmounted kernel
    volume disk.img --size 2G --journal-size 400M
    mounted disk.img mnt -o allow_other
    python_outcomes "$WORK/mnt/a" env >seen
    diff expected seen || fail "Python's tests end otherwise on the mount than on kernel ext4"
    # The folder is also made in the transaction.
    python_outcomes "$WORK/mnt/b" "$XACT" run --at mnt -- >inside
    diff expected inside || fail "Python's tests end otherwise in a transaction than on kernel ext4"
    report "$(grep -c ' ok$' expected) tests of $MODULES pass on kernel ext4, the mount, and in a transaction"
    unmounted mnt
    sound disk.img
}

# All of test_os, test_shutil, test_tempfile, test_sqlite3, test_mailbox, test_mmap: make qualify.
test_python() { python_agrees test_tempfile test_mmap; }
