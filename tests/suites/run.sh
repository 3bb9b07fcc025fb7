# timeout: 200
# xact run: all or nothing, isolation, exit codes, and the edges that docs/CRASH.md and the man page
# of xact run state: descriptors, current folder, processes left behind, nesting, signals.

fresh() { # [ARGUMENTS OF xact mount…]
    volume disk.img
    mounted disk.img mnt "$@"
    echo old >mnt/file
}
afterwards() {
    unmounted mnt
    sound disk.img
}
run() { "$XACT" run --at mnt -- "$@"; }
outcome() { jq -r "${2:-.outcome}" "$1"; }

# --- all or nothing ------------------------------------------------------------------------------

test_success_commits() {
    fresh
    run sh -c 'echo new >mnt/file; mkdir mnt/folder; ln mnt/file mnt/folder/link; echo done' >said
    equal output 'done' "$(cat said)"
    equal content new "$(cat mnt/file)"
    equal links 2 "$(stat -c %h mnt/file)"
    afterwards
}

test_failure_leaves_no_trace() {
    fresh
    mkdir mnt/kept
    describe_tree mnt >before
    exits 7 'sh failed with exit status 7: nothing was changed' -- run sh -c '
        echo new >mnt/file; rm -r mnt/kept; mkdir -p mnt/a/b/c; echo x >mnt/a/b/c/d
        setfattr -n user.x -v y mnt/file; chmod 600 mnt/file; mv mnt/file mnt/other; exit 7'
    describe_tree mnt | diff before -
    afterwards
}

test_isolation_from_outside() {
    fresh
    mkfifo ask answer
    run sh -c 'echo mine >mnt/file; echo x >mnt/new; echo go >ask; read -r _ <answer; cat mnt/file' >said &
    local job=$!
    read -r _ <ask
    equal "seen from outside" old "$(cat mnt/file)"
    [[ ! -e mnt/new ]]
    equal "listed from outside" 'file lost+found' "$(ls mnt | xargs)"
    echo outside >mnt/outside
    echo go >answer
    wait $job
    equal "seen inside" mine "$(cat said)"
    equal "after the commit" mine "$(cat mnt/file)"
    [[ -f mnt/new && -f mnt/outside ]]
    afterwards
}

test_one_instant_inside() {
    fresh
    echo old >mnt/later
    mkfifo ask answer
    # Read-only: it always commits, whatever happens outside.
    run sh -c 'cat mnt/file; echo go >ask; read -r _ <answer; cat mnt/file mnt/later; ls mnt' >said &
    local job=$!
    read -r _ <ask
    echo new >mnt/file
    echo new >mnt/later
    echo new >mnt/name
    rm -d mnt/lost+found
    echo go >answer
    wait $job
    equal "seen inside" 'old old old file later lost+found' "$(xargs <said)"
    equal "seen outside" 'file later name' "$(ls mnt | xargs)"
    mkdir mnt/lost+found
    afterwards
}

test_durable_when_it_returns() {
    volume disk.img
    in_foreground disk.img mnt
    run sh -c 'echo new >mnt/file; dd if=/dev/zero of=mnt/large bs=1M count=8 status=none'
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    "$XACT" umount mnt
    mounted disk.img mnt
    equal content new "$(cat mnt/file)"
    equal size $((8 << 20)) "$(stat -c %s mnt/large)"
    afterwards
}

test_inode_numbers_times_and_owners_survive_the_commit() {
    fresh
    run sh -c 'echo x >mnt/new; chown 12:34 mnt/new; touch -d "2001-02-03 04:05:06.123456789 UTC" mnt/new
        stat -c "%i %u:%g %a %Y %y %s" mnt/new >inside'
    stat -c "%i %u:%g %a %Y %y %s" mnt/new | diff inside -
    afterwards
}

test_fsync_inside_costs_nothing() {
    needs python3
    fresh
    run python3 -c '
import os, time
start = time.monotonic()
fd = os.open("mnt/file", os.O_RDWR)
for i in range(2000):
    os.pwrite(fd, b"x", i)
    os.fsync(fd)
print(time.monotonic() - start)' >seconds
    report "2000 writes with fsync inside a transaction: $(cat seconds) s"
    afterwards
}

test_nested_processes_are_in_it() {
    fresh
    run bash -c 'for i in 1 2 3 4; do (sh -c "echo $i >mnt/part$i" &); done; sleep 0.2; cat mnt/part* | sort >mnt/all'
    equal content '1 2 3 4' "$(xargs <mnt/all)"
    exits 1 -- run bash -c 'sh -c "sh -c \"rm mnt/all\""; exit 1'
    [[ -f mnt/all ]]
    afterwards
}

# --- conflicts -----------------------------------------------------------------------------------

# Runs FIRST in a transaction, and while it is open SECOND outside (or in another transaction);
# leaves the exit code in CODE and the status in the file status.
concurrently() { # FIRST, SECOND
    rm -f ask answer
    mkfifo ask answer
    "$XACT" run --at mnt --status-file status -- sh -c "$1; echo go >ask; read -r _ <answer" 2>said &
    local job=$!
    read -r _ <ask
    sh -c "$2"
    echo go >answer
    CODE=0
    wait $job || CODE=$?
}

test_conflict_on_a_write() {
    fresh
    concurrently 'echo inside >mnt/file' 'echo outside >mnt/file'
    equal code 75 "$CODE"
    equal content outside "$(cat mnt/file)"
    equal outcome conflict "$(outcome status)"
    equal path /file "$(outcome status .path)"
    has said 'xact run: error: .*conflict on /file'
    has said 'Run the command again'
    afterwards
}

test_an_eager_run_learns_of_an_open_one() {
    fresh
    mkfifo ask answer
    "$XACT" run --at mnt -- sh -c 'echo first >mnt/file; mkdir mnt/folder; echo go >ask; read -r _ <answer' &
    local job=$! first
    read -r _ <ask
    first=$("$XACT" tx list --at mnt --json | jq '.[0].id')
    eager() { # PATH OF THE CONFLICT, COMMAND
        exits 75 "conflict on $1: it has an uncommitted change, by transaction $first" -- \
            "$XACT" run --at mnt --conflict eager --status-file status -- "${@:2}"
        equal path "$1" "$(outcome status .path)"
        equal conflicting_tx "$first" "$(outcome status .conflicting_tx)"
    }
    eager /file sh -c 'echo second | dd of=mnt/file conv=notrunc 2>errors && exit 1; exit 7'
    has errors 'Resource temporarily unavailable'
    eager /folder mkdir mnt/folder
    # A command that ignores the failure does not commit either.
    eager /file sh -c 'echo x >mnt/new; echo second >mnt/file; exit 0'
    [[ ! -e mnt/new ]]
    "$XACT" run --at mnt --conflict eager -- sh -c 'echo x >mnt/other'
    echo go >answer
    wait $job
    equal content first "$(cat mnt/file)"
    "$XACT" run --at mnt --conflict eager -- sh -c 'echo third >mnt/file'
    equal "content after the end of the other" third "$(cat mnt/file)"
    # The lazy one that writes second is not disturbed.
    "$XACT" run --at mnt --conflict eager -- sh -c 'echo mine >mnt/file; echo go >ask; read -r _ <answer' 2>said &
    job=$!
    read -r _ <ask
    run sh -c 'echo lazy >mnt/file'
    echo go >answer
    CODE=0
    wait $job || CODE=$?
    equal code 75 "$CODE"
    equal content lazy "$(cat mnt/file)"
    afterwards
}

test_a_conflict_on_contents_is_reported_at_the_write() {
    fresh
    echo start >mnt/file
    mkfifo ask answer
    "$XACT" run --at mnt --status-file status -- sh -c 'echo go >ask; read -r _ <answer
        echo inside | dd of=mnt/file conv=notrunc 2>errors && exit 1
        cat mnt/file >seen; mkdir mnt/folder 2>later; exit 7' 2>said &
    local job=$!
    read -r _ <ask
    echo outside >mnt/file
    echo go >answer
    CODE=0
    wait $job || CODE=$?
    has errors 'Resource temporarily unavailable'
    has later 'Resource temporarily unavailable'
    equal "still of its begin" start "$(cat seen)"
    # The command has failed because of the conflict, so this is its exit status, and --retry
    # applies.
    equal code 75 "$CODE"
    equal outcome conflict "$(outcome status)"
    equal path /file "$(outcome status .path)"
    equal content outside "$(cat mnt/file)"
    [[ ! -e mnt/folder ]]
    afterwards
}

test_conflict_on_a_read() {
    fresh
    concurrently 'cat mnt/file >mnt/copy' 'echo outside >mnt/file'
    equal code 75 "$CODE"
    [[ ! -e mnt/copy ]]
    afterwards
}

test_conflict_on_a_name() {
    fresh
    concurrently 'echo inside >mnt/new' 'echo outside >mnt/new'
    equal code 75 "$CODE"
    equal content outside "$(cat mnt/new)"
    equal path /new "$(outcome status .path)"
    afterwards
}

test_different_names_in_one_folder_both_commit() {
    fresh
    mkdir mnt/folder
    concurrently 'echo 1 >mnt/folder/one' "'$XACT' run --at mnt -- sh -c 'echo 2 >mnt/folder/two'; echo 3 >mnt/folder/three"
    equal code 0 "$CODE"
    equal names 'one three two' "$(ls mnt/folder | xargs)"
    afterwards
}

test_different_files_both_commit() {
    fresh
    echo old >mnt/other
    concurrently 'echo inside >>mnt/file' 'echo outside >>mnt/other; mkdir mnt/x; rmdir mnt/x'
    equal code 0 "$CODE"
    equal file 'old inside' "$(xargs <mnt/file)"
    equal other 'old outside' "$(xargs <mnt/other)"
    afterwards
}

test_many_transactions_at_once() {
    fresh
    local i jobs=()
    for i in $(seq 16); do
        run sh -c "mkdir mnt/d$i; for j in 1 2 3 4 5 6 7 8; do echo $i >mnt/d$i/\$j; done" &
        jobs+=($!)
    done
    for i in "${jobs[@]}"; do wait "$i"; done
    equal files 128 "$(find mnt/d* -type f | wc -l)"
    afterwards
}

# --- exit codes ----------------------------------------------------------------------------------

test_exit_codes_of_the_command() {
    fresh
    exits 0 -- run true
    exits 1 -- run false
    exits 126 'cannot execute' -- run ./mnt
    exits 127 'command not found' -- run no-such-command
    exits 137 'signal 9' -- run sh -c 'kill -KILL $$'
    afterwards
}

test_own_codes_differ_from_the_commands() {
    fresh
    exits 75 -- "$XACT" run --at mnt --status-file status -- sh -c 'exit 75'
    lacks exits.err 'error:'
    equal outcome aborted "$(outcome status)"
    equal command_status 75 "$(outcome status .command_status)"
    "$XACT" run --at mnt --status-file status -- true
    equal outcome committed "$(outcome status)"
    equal exit_code 0 "$(outcome status .exit_code)"
    exits 127 'xact run: error: ' -- "$XACT" run --at mnt --status-file status -- no-such-command
    equal outcome not-started "$(outcome status)"
    afterwards
}

test_the_mount_of_the_current_folder_is_the_default() {
    fresh
    mkdir -p mnt/a/b
    (cd mnt/a/b && "$XACT" run sh -c 'echo x >made')
    equal content x "$(cat mnt/a/b/made)"
    afterwards
}

test_a_full_volume_is_no_space() {
    volume disk.img --size 32M
    mounted disk.img mnt
    exits 73 'xact run: error: .*no space' -- "$XACT" run --at mnt --status-file status -- \
        sh -c 'dd if=/dev/zero of=mnt/large bs=1M count=100 status=none 2>/dev/null; true'
    equal outcome no-space "$(outcome status)"
    [[ ! -e mnt/large ]]
    afterwards
}

# --- edges ---------------------------------------------------------------------------------------

test_the_current_folder_moves_into_the_view() {
    fresh
    mkdir mnt/here
    (
        cd mnt/here
        exits 1 -- "$XACT" run sh -c 'echo escaped >made; exit 1'
        [[ ! -e made ]]
        "$XACT" run sh -c 'echo x >made'
        [[ -f made ]]
        mkdir gone
        cd gone
        rmdir "$WORK/mnt/here/gone"
        exits 66 'current folder' -- "$XACT" run --at "$WORK/mnt" true
    )
    afterwards
}

test_redirections_are_reopened_in_the_view() {
    fresh
    # The shell's work before xact runs (truncating the file) is outside. The command's output is
    # inside.
    run sh -c 'echo out; echo err >&2; echo out2' >mnt/log 2>&1
    equal "shared offset" 'out err out2' "$(xargs <mnt/log)"
    exits 1 -- run sh -c 'echo lost; exit 1' >>mnt/log
    equal "after an abort" 'out err out2' "$(xargs <mnt/log)"
    run sh -c 'echo appended' >>mnt/log
    equal "appended" 'out err out2 appended' "$(xargs <mnt/log)"
    run sh -c 'read -r first; read -r second; echo "$second" >mnt/second' <mnt/log
    equal "read in order" err "$(cat mnt/second)"
    (
        read -r _
        "$XACT" run --at mnt -- sh -c 'read -r line; echo "$line" >mnt/second'
    ) 8>mnt/eight <mnt/log
    "$XACT" run --at mnt -- sh -c 'echo eight >&8' 8>mnt/eight
    equal "other numbers" eight "$(cat mnt/eight)"
    afterwards
}

test_descriptors_that_cannot_be_reopened_are_refused() {
    fresh
    exec 7>mnt/deleted
    rm mnt/deleted
    exits 64 'descriptor 7 .*deleted' -- run touch mnt/made
    exec 7>&-
    mkfifo mnt/fifo
    exec 7<>mnt/fifo
    exits 64 'descriptor 7 .*neither a file nor a folder' -- run touch mnt/made
    exec 7>&-
    [[ ! -e mnt/made ]]
    afterwards
}

test_another_mount_of_the_volume_is_covered_too() {
    fresh
    mkdir elsewhere mnt/sub part
    mount --bind mnt elsewhere
    mount --bind mnt/sub part
    exits 1 -- run sh -c 'echo escaped >elsewhere/made; echo escaped >part/made; cat mnt/made mnt/sub/made >both; exit 1'
    equal "one view" 'escaped escaped' "$(xargs <both)"
    [[ ! -e elsewhere/made && ! -e part/made ]]
    umount elsewhere part
    afterwards
}

test_a_mount_of_a_part_of_the_volume() {
    fresh
    mkdir mnt/sub part
    mount --bind mnt/sub part
    "$XACT" sync part
    equal "the volume's mount" "$WORK/mnt" "$("$XACT" stat --json part | jq -r .mount)"
    exits 1 -- "$XACT" run --at part -- sh -c 'echo undone >part/undone; exit 1'
    (cd part && "$XACT" run -- sh -c 'echo kept >kept')
    equal "what is there" kept "$(ls mnt/sub)"
    umount mnt
    exits 69 "$PWD/part shows a part of a volume" -- "$XACT" sync part
    umount part
    for _ in {1..100}; do "$XACT" check disk.img >/dev/null 2>&1 && break || sleep 0.1; done
    sound disk.img
}

test_file_systems_inside_the_volume_stay() {
    fresh
    mkdir mnt/inner
    mount -t tmpfs none mnt/inner
    echo x >mnt/inner/file
    run sh -c 'cat mnt/inner/file >mnt/copied; echo y >mnt/inner/file'
    equal copied x "$(cat mnt/copied)"
    equal inner y "$(cat mnt/inner/file)"
    umount mnt/inner
    afterwards
}

# Everything except contents of the volume stops at the edge: docs/TRANSACTIONS.md has a row for
# each.
test_locks_fifos_and_sockets_end_at_the_edge() {
    needs python3
    fresh
    mkfifo mnt/fifo answer
    echo x >mnt/file
    cat >outside.py <<'PY'
import fcntl, os, socket, subprocess, sys
server = socket.socket(socket.AF_UNIX)
server.bind("mnt/socket")
server.listen()
reader = os.open("mnt/fifo", os.O_RDONLY | os.O_NONBLOCK)
file = os.open("mnt/file", os.O_RDWR)
fcntl.flock(file, fcntl.LOCK_EX)
other = os.open("mnt/file", os.O_RDWR)
fcntl.lockf(other, fcntl.LOCK_EX)
inside = """
import fcntl, os, socket
try:
    os.open("mnt/fifo", os.O_WRONLY | os.O_NONBLOCK)
    raise SystemExit("the FIFO has a reader")
except OSError as e:
    assert e.errno == 6, e  # ENXIO
try:
    socket.socket(socket.AF_UNIX).connect("mnt/socket")
    raise SystemExit("the socket has a server")
except ConnectionRefusedError:
    pass
file = open("mnt/file", "r+")
fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""
sys.exit(subprocess.run([sys.argv[1], "run", "--at", "mnt", "--", sys.executable, "-c", inside]).returncode)
PY
    python3 outside.py "$XACT"
    # The commit finds that both have changed the same: here a database in WAL mode, inside and
    # outside.
    sqlite3 mnt/a.db 'pragma journal_mode=wal; create table t (x); insert into t values (1)' >/dev/null
    exits 75 'conflict on /a.db' -- "$XACT" run --at mnt -- sh -c \
        'sqlite3 mnt/a.db "insert into t values (2)" && echo go >&7 && read -r _ <answer' 7> >(
        read -r _
        sqlite3 mnt/a.db "insert into t values (3)"
        echo done >answer
    )
    equal rows '1 3' "$(sqlite3 mnt/a.db 'select x from t' | xargs)"
    afterwards
}

test_a_nested_run_is_undone_by_itself() {
    fresh
    run sh -c "
        echo outer >mnt/file
        '$XACT' run --at mnt -- sh -c 'echo inner >mnt/file; echo x >mnt/made; mkdir mnt/folder; exit 3' && exit 1
        [ \$? -eq 3 ] || exit 1
        [ \"\$(cat mnt/file)\" = outer ] && [ ! -e mnt/made ] && [ ! -e mnt/folder ] || exit 1
        '$XACT' run --at mnt -- sh -c \"
            echo kept >mnt/kept; '$XACT' run --at mnt -- sh -c 'rm mnt/kept; false'; echo and on >>mnt/kept\"
        " 2>said
    has said 'sh failed with exit status 3: its changes to the transaction were rolled back'
    equal all 'file kept lost+found' "$(ls mnt | xargs)"
    equal content 'outer kept and on' "$(cat mnt/file mnt/kept | xargs)"
    exits 64 'cannot be used inside a transaction' -- run "$XACT" run --leave-open --at mnt -- true
    afterwards
}

test_a_killed_nested_run_is_undone() {
    fresh
    run sh -c "
        echo outer >mnt/file; echo outer >mnt/kept
        '$XACT' run --at mnt -- sh -c 'echo inner >mnt/file; echo x >mnt/made; rm mnt/kept
            \"\$0\" run --at mnt -- sh -c \"mkdir mnt/deeper\"; kill -KILL \$PPID; sleep 0.01' '$XACT'
        [ \$? -eq 137 ] || exit 1
        # Changes after the death of the inner one belong to the outer one, and stay.
        echo after >mnt/after
        echo and on >>mnt/kept
    "
    equal all 'after file kept lost+found' "$(ls mnt | xargs)"
    equal content 'after outer outer and on' "$(cat mnt/after mnt/file mnt/kept | xargs)"
    # No request reaches the daemon in between, nor at the very end.
    run sh -c "echo base >mnt/file; '$XACT' run --at mnt -- sh -c 'echo inner >mnt/file; kill -KILL \$PPID'; true"
    equal content base "$(cat mnt/file)"
    # A part that ended well, and one that its process rolled back, no longer belong to any process.
    run sh -c "'$XACT' run --at mnt -- sh -c 'echo good >mnt/file'; '$XACT' run --at mnt -- sh -c 'rm mnt/after; false'; true"
    equal content 'good after' "$(cat mnt/file mnt/after | xargs)"
    afterwards
}

test_processes_left_behind_lose_the_volume() {
    fresh
    # The shell that stays looks every 10 ms, until looking fails.
    run sh -c 'echo x >mnt/made; (while cat mnt/made >/dev/null 2>left; do sleep 0.01; done; echo "$?" >ended) >/dev/null 2>&1 &'
    wait_until "the process left behind to lose the volume" test -s ended
    has left 'Stale file handle'
    equal content x "$(cat mnt/made)"
    afterwards
}

test_death_of_xact_run_aborts() {
    fresh
    mkfifo ask
    "$XACT" run --at mnt -- sh -c 'echo x >mnt/made; echo go >ask; exec sleep 5' &
    local job=$!
    read -r _ <ask
    kill -KILL $job
    wait $job 2>/dev/null || true
    [[ ! -e mnt/made ]]
    run touch mnt/still-works
    # A process that the killed xact run left behind still has the view, so the daemon is needed.
    exits 69 'In use by: .*sleep' -- "$XACT" umount mnt
    wait_until "the process left behind to end" sh -c "'$XACT' umount mnt 2>/dev/null"
    sound disk.img
}

test_a_volume_with_an_open_transaction_is_not_unmounted() {
    fresh
    mkfifo ask answer
    run sh -c 'echo x >mnt/made; echo go >ask; read -r _ <answer' &
    local job=$!
    read -r _ <ask
    exits 69 'In use by: .*sh' -- "$XACT" umount mnt
    echo go >answer
    wait $job
    equal content x "$(cat mnt/made)"
    afterwards
}

test_signals_are_passed_on() {
    fresh
    local signal
    for signal in TERM INT HUP; do
        rm -f ask
        mkfifo ask
        # The shell makes background jobs ignore SIGINT.
        env --default-signal=INT "$XACT" run --at mnt -- bash -c "trap 'exit 9' $signal; echo x >mnt/made; echo go >ask; while :; do sleep 0.01; done" 2>said &
        local job=$! code=0
        read -r _ <ask
        kill -$signal $job
        wait $job || code=$?
        equal "code after SIG$signal" 9 "$code"
        [[ ! -e mnt/made ]]
    done
    afterwards
}

test_control_c_at_a_terminal_reaches_the_command_once() {
    needs script
    fresh
    # A second ^C, passed on by mistake, would have come within half a second of the first.
    cat >job.sh <<'END'
trap 'echo caught >>caught' INT
echo ready >ready
until [[ -s caught ]]; do sleep 0.02; done
sleep 0.5
END
    # script runs the terminal in a session of its own; ^C goes to xact and the command alike. Its
    # keys come from a pipe that stays open for as long as the command runs. The caller of the tests
    # may ignore SIGINT, which is inherited and cannot be trapped. Without exec a shell stays
    # between the two. It gets the signal as well, and dash then dies of it.
    mkfifo keys
    exec 7<>keys
    env --default-signal=INT script -qec "exec '$XACT' run --at mnt -- bash job.sh" typescript <&7 >/dev/null &
    local job=$!
    wait_until "the command" test -s ready
    printf '\003' >&7
    wait $job
    exec 7>&-
    equal "times caught" caught "$(cat caught)"
    afterwards
}

test_an_ordinary_user_runs_transactions() {
    needs setpriv
    fresh -o allow_other
    mkdir mnt/home
    chown nobody mnt/home
    as_nobody() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }
    as_nobody "$XACT" run --at mnt -- sh -c 'echo x >mnt/home/made'
    equal owner nobody "$(stat -c %U mnt/home/made)"
    exits 3 -- as_nobody "$XACT" run --at mnt -- sh -c 'rm mnt/home/made; exit 3'
    [[ -f mnt/home/made ]]
    exits 1 -- as_nobody "$XACT" run --at mnt -- sh -c 'rm mnt/file 2>/dev/null'
    [[ -f mnt/file ]]
    afterwards
}

test_the_view_is_open_to_its_owner_only() {
    needs setpriv
    fresh -o allow_other
    mkfifo ask answer
    "$XACT" run --at mnt --status-file status -- sh -c 'echo secret >mnt/secret; echo go >ask; read -r _ <answer' &
    local job=$!
    read -r _ <ask
    equal "listed" '' "$(ls -A mnt | grep xact || true)"
    exits 1 -- setpriv --reuid nobody --regid nogroup --clear-groups sh -c 'cat mnt/.xact/tx/*/root/secret || cat mnt/.xact/tx/1/root/secret'
    echo go >answer
    wait $job
    afterwards
}

# The root of a chroot is usually not a mount point.
test_in_a_chroot() {
    volume disk.img
    mkdir -p root/mnt
    local folder
    for folder in bin lib lib64 usr etc proc dev; do
        if [[ -L /$folder ]]; then
            cp -a "/$folder" root/
        elif [[ -d /$folder ]]; then
            mkdir "root/$folder"
            mount --rbind "/$folder" "root/$folder"
        fi
    done
    touch root/xact
    mount --bind "$XACT" root/xact
    mounted disk.img root/mnt
    chroot root /xact run --at /mnt -- sh -c 'echo new >/mnt/file'
    equal content new "$(cat root/mnt/file)"
    exits 3 -- chroot root /xact run --at /mnt -- sh -c 'rm /mnt/file; exit 3'
    equal content new "$(cat root/mnt/file)"
    unmounted root/mnt
    sound disk.img
}

# A transaction whose begin is no longer available: every failure of its command is a conflict.
too_old() { # SCRIPT [ARGUMENTS OF xact run…]: the script calls ./expire
    rm -f disk.img
    volume disk.img --size 64M
    mounted disk.img mnt --cache-size 16M
    mkdir mnt/a
    echo 0 >mnt/a/known
    head -c 24M /dev/urandom >mnt/large
    "$XACT" sync mnt
    # Deleted contents stay for the transaction, until the volume is full for others.
    cat >expire <<'END'
#!/bin/sh
[ -e expired ] && exit
touch expired ask
while [ -e ask ]; do sleep 0.05; done
END
    chmod +x expire
    rm -f expired ask
    (
        wait_until 'the command to ask' test -e ask
        rm mnt/large
        head -c 100M /dev/zero >mnt/filler 2>/dev/null || true
        rm mnt/filler
        rm ask
    ) &
}

test_too_old_is_a_conflict() {
    local script
    for script in './expire; echo 2 >mnt/a/two' './expire; cat mnt/a/known' './expire; ls mnt/a' \
        'exec 3<mnt/large; ./expire; cat <&3' './expire; mnt/prog' './expire; (sleep 0.1; sh -c "cat mnt/a/known")' \
        './expire; false'; do
        too_old
        cp /bin/true mnt/prog
        "$XACT" sync mnt
        exits 75 'not committed: .*too old' -- "$XACT" run --at mnt --status-file status -- \
            sh -c "echo 1 >mnt/a/one; $script"
        equal outcome "$script conflict 75" "$script $(jq -r '"\(.outcome) \(.exit_code)"' status)"
        wait
        equal "left of it" 'known' "$(ls mnt/a | xargs)"
        unmounted mnt
    done
}

test_too_old_is_tried_again() {
    too_old
    "$XACT" run --at mnt --retry 2 --status-file status -- sh -c 'echo 1 >mnt/a/one; ./expire; echo 2 >mnt/a/two'
    equal outcome 'committed 2' "$(jq -r '"\(.outcome) \(.tries)"' status)"
    equal files 'known one two' "$(ls mnt/a | xargs)"
    wait
    unmounted mnt
    sound disk.img
}

# A store into a mapping that needs an old page ends the program with SIGBUS.
test_too_old_under_a_mapping() {
    too_old
    exits 75 'too old' -- "$XACT" run --at mnt --status-file status -- python3 -c '
import mmap, os, subprocess
open("mnt/a/one", "w").write("1")
f = os.open("mnt/large", os.O_RDONLY)
m = mmap.mmap(f, 0, prot=mmap.PROT_READ)
subprocess.run("./expire")
print(sum(m[at] for at in range(0, len(m), 4096)))'
    equal outcome 'conflict 7' "$(jq -r '"\(.outcome) \(.command_signal)"' status)"
    wait
    unmounted mnt
}

# Left open, it says so and can be looked at. In one that was open before, nothing more happens.
test_too_old_and_left_open() {
    too_old
    exits 75 'not committed: .*too old' -- "$XACT" run --at mnt --leave-open --status-file status -- \
        sh -c 'echo 1 >mnt/a/one; ./expire; cat mnt/a/known || true'
    equal outcome 'kept 75' "$(jq -r '"\(.outcome) \(.exit_code)"' status)"
    wait
    local id
    id=$(jq .transaction status)
    exits 75 'too old' -- "$XACT" run --at mnt --tx "$id" -- cat mnt/a/known
    exits 75 'too old' -- "$XACT" tx commit --at mnt "$id"
    "$XACT" tx abort --at mnt "$id"
    unmounted mnt
}
