# xact run of an ordinary user, with the setuid helper: owners, groups and setuid programs are what
# they are outside of the transaction. Without the helper, a note says what does not work.

HELPER=$TARGET/release/xact-run-helper
# The user "daemon" of all systems: sudo and fusermount3 want a name.
USER_ID=1
PATH_OF_USER=/usr/sbin:/usr/bin:/sbin:/bin
as_user() { PATH=$PATH_OF_USER setpriv --reuid $USER_ID --regid $USER_ID --groups $USER_ID,4321 "$@"; }

# A volume of root for all users, and xact in bin/ with the helper beside it. The mounts spread, as
# those of most systems do.
fresh() { # [ARGUMENTS OF xact mount…]
    needs setpriv
    mount --make-rshared /
    programs
    volume disk.img
    mounted disk.img mnt -o allow_other "$@"
    mkdir -m 777 mnt/d
    touch mnt/d/of-root
    chown 4321:4321 mnt/d/of-root
    mkdir mnt/u
    chown $USER_ID:$USER_ID mnt/u
    mkdir -m 777 out
}
programs() {
    [[ -x $HELPER ]] || fail "$HELPER is missing: run 'make build'"
    mkdir -p bin
    ln "$XACT" bin/xact 2>/dev/null || cp "$XACT" bin/xact
    install -m 4755 "$HELPER" bin/xact-run-helper
    cp /usr/bin/id setuid-id
    chmod 4755 setuid-id
}
afterwards() {
    unmounted mnt
    sound disk.img
}
run() { as_user bin/xact run --at mnt "$@"; }
outcome() { jq -r "${2:-.outcome}" "$1"; }
without_helper() { chmod 755 bin/xact-run-helper; }

test_owners_groups_and_setuid_programs() {
    fresh
    cp setuid-id mnt/setuid-id
    chmod 4755 mnt/setuid-id
    local before
    before=$(cat /proc/self/mountinfo)
    for command in 'id' 'stat -c %u:%g /etc/passwd /proc/1 mnt/d/of-root' 'ls -ln /etc mnt/d' "$WORK/setuid-id -u" \
        'mnt/setuid-id -u' 'grep -E "^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp):" /proc/self/status' \
        'cat /proc/self/uid_map' 'env | sort' 'grep -E "^Sig(Blk|Ign)" /proc/self/status' 'ulimit -a'; do
        equal "$command" "$(TMPDIR=$WORK/out LD_LIBRARY_PATH=/y as_user sh -c "$command")" \
            "$(TMPDIR=$WORK/out LD_LIBRARY_PATH=/y run -- sh -c "$command" 2>&1)"
    done
    run -- tar -C mnt -cf mnt/u/t.tar d/of-root
    equal "owner in an archive" 4321/4321 "$(tar --numeric-owner -tvf mnt/u/t.tar | awk '{ print $2 }')"
    run -- sh -c 'touch mnt/u/c && chgrp 4321 mnt/u/c'
    equal "group" $USER_ID:4321 "$(stat -c %u:%g mnt/u/c)"
    exits 1 'Operation not permitted' -- run -- chown 0 mnt/u/c
    exits 1 'Permission denied' -- run -- touch mnt/d/of-root
    # Changes by a setuid program are part of the transaction.
    cp /bin/touch root-touch
    chmod 4755 root-touch
    exits 3 -- run -- sh -c './root-touch mnt/d/by-root; exit 3'
    [[ ! -e mnt/d/by-root ]]
    run -- ./root-touch mnt/d/by-root
    equal "made by a setuid program" 0 "$(stat -c %u mnt/d/by-root)"
    equal "mounts outside" "$before" "$(cat /proc/self/mountinfo)"
    afterwards
}

test_sudo() {
    command -v sudo >/dev/null || { report 'left out: sudo is not installed' && return 0; }
    fresh
    # A mount of this namespace only: sudo outside of the tests does not see the rule.
    mount -t tmpfs -o mode=755 none /etc/sudoers.d
    echo "#$USER_ID ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/xact
    chmod 440 /etc/sudoers.d/xact
    equal "sudo id" 0 "$(run -- sudo -n id -u)"
    run -- sh -c 'sudo -n chown 7:8 mnt/d/of-root && sudo -n -u bin touch mnt/d/by-another'
    equal owner 7:8 "$(stat -c %u:%g mnt/d/of-root)"
    equal owner bin "$(stat -c %U mnt/d/by-another)"
    exits 1 -- run -- sh -c 'sudo -n rm mnt/d/of-root; false'
    [[ -e mnt/d/of-root ]]
    # Mounts that are made inside end with the command.
    mkdir inner
    equal 'a mount inside' tmpfs "$(run -- sh -c 'sudo -n mount -t tmpfs none inner && sudo -n mount -t tmpfs none mnt/u && stat -f -c %T inner')"
    exits 32 -- mountpoint -q inner
    exits 32 -- mountpoint -q mnt/u
    umount /etc/sudoers.d
    afterwards
}

# The guarantees of xact run, as in run.sh, through the helper.
test_a_run_is_what_it_is_without_the_helper() {
    fresh
    run -- sh -c 'echo new >mnt/u/file; id -u >mnt/u/id'
    exits 7 'sh failed with exit status 7: nothing was changed' -- run -- sh -c 'rm mnt/u/file; exit 7'
    equal content new "$(cat mnt/u/file)"
    exits 126 'cannot execute' -- run -- ./mnt
    exits 127 'command not found' -- run --status-file out/status -- no-such-command
    equal outcome 'not-started null' "$(jq -r '"\(.outcome) \(.command_status)"' out/status)"
    exits 127 'xact run: error: .*No such file' -- run -- /no/such/command
    exits 137 'signal 9' -- run -- sh -c 'kill -KILL $$'
    exits 125 'exit status 125' -- run -- sh -c 'exit 125'
    # Descriptors and the current folder.
    as_user sh -c 'bin/xact run --at mnt -- sh -c "echo out; echo err >&2; echo eight >&8" >mnt/u/log 2>&1 8>mnt/u/eight'
    equal "in the view" 'out err eight' "$(cat mnt/u/log mnt/u/eight | xargs)"
    exits 1 -- as_user sh -c 'bin/xact run --at mnt -- sh -c "echo lost; exit 1" >>mnt/u/log'
    equal "after an abort" 'out err' "$(xargs <mnt/u/log)"
    exits 64 'descriptor 7 .*deleted' -- as_user sh -c 'exec 7>mnt/u/gone; rm mnt/u/gone; bin/xact run --at mnt true'
    (cd mnt/u && as_user "$WORK/bin/xact" run sh -c 'pwd >here; ls /proc/self/fd >fds' && as_user sh -c 'ls /proc/self/fd >fds-outside')
    equal "current folder" "$WORK/mnt/u" "$(cat mnt/u/here)"
    equal descriptors "$(xargs <mnt/u/fds-outside)" "$(xargs <mnt/u/fds)"
    exits 1 -- sh -c 'cd mnt/u && exec setpriv --reuid 1 --regid 1 --clear-groups ../../bin/xact run sh -c "rm here; false"'
    [[ -e mnt/u/here ]]
    # Nested: a savepoint. On another volume: a namespace again.
    run -- sh -c "echo outer >mnt/u/file; bin/xact run --at mnt -- sh -c 'echo inner >mnt/u/file; exit 1'; true" 2>said
    has said 'rolled back'
    equal content outer "$(cat mnt/u/file)"
    volume other.img --size 64M
    mounted other.img other -o allow_other
    chmod 777 other
    equal 'a run in a run' '0 outer' \
        "$(run -- bin/xact run --at other -- sh -c './setuid-id -u; cat mnt/u/file; echo x >other/made' | xargs)"
    [[ -e other/made ]]
    unmounted other
    # Conflicts.
    echo 0 >mnt/d/tries
    chmod 666 mnt/d/tries
    run --retry 3 -- sh -c 'cat mnt/d/tries >/dev/null; [ -e out/once ] || { touch out/once; ./wait-for-root; }; echo x >>mnt/u/tries' &
    local job=$!
    wait_until 'the first try' test -e out/once
    echo 1 >mnt/d/tries
    cp /bin/true wait-for-root
    wait $job
    equal tries x "$(cat mnt/u/tries)"
    afterwards
}

test_open_and_persisted_transactions() {
    fresh
    run --leave-open --persist --status-file out/status -- sh -c 'echo 1 >mnt/u/kept; chgrp 4321 mnt/u/kept'
    local id
    id=$(outcome out/status .transaction)
    unmounted mnt 2>/dev/null
    mounted disk.img mnt -o allow_other
    [[ ! -e mnt/u/kept ]]
    equal 'in it again' "1 0 $USER_ID:4321" \
        "$(run --tx "$id" -- sh -c 'cat mnt/u/kept; ./setuid-id -u; stat -c %u:%g mnt/u/kept' | xargs)"
    run --tx "$id" -- sh -c 'echo 2 >mnt/u/kept'
    exits 3 'rolled back' -- run --tx "$id" -- sh -c 'echo 3 >mnt/u/kept; exit 3'
    as_user bin/xact tx commit --at mnt "$id"
    equal committed 2 "$(cat mnt/u/kept)"
    # Another user's transaction is not entered.
    run --leave-open --status-file out/status -- touch mnt/u/x 2>/dev/null
    id=$(outcome out/status .transaction)
    exits 77 -- setpriv --reuid 999 --regid 999 --clear-groups bin/xact run --at mnt --tx "$id" -- true
    as_user bin/xact tx abort --at mnt "$id"
    afterwards
}

# A volume of the user's own is nosuid and nodev, also in the transaction.
test_a_users_own_volume() {
    needs fusermount3
    mount --make-rshared /
    programs
    mkdir home
    chown $USER_ID home
    as_user sh -c "cd home && mkdir mnt && ../bin/xact mkfs disk.img --size 64M >/dev/null && ../bin/xact mount disk.img mnt"
    cd home
    as_user sh -c 'cp /usr/bin/id mnt/own-id && chmod 4755 mnt/own-id'
    own() { as_user ../bin/xact run --at mnt "$@"; }
    equal options "$(as_user findmnt -n -o OPTIONS mnt)" "$(own -- findmnt -n -o OPTIONS mnt | tail -n 1)"
    has <(own -- findmnt -n -o OPTIONS mnt) 'nosuid,nodev'
    equal 'a setuid program elsewhere' 0 "$(own -- ../setuid-id -u)"
    equal 'owner of a file elsewhere' 0 "$(own -- stat -c %u /etc/passwd)"
    # As outside: root may not look into it.
    cp /usr/bin/touch ../setuid-touch
    chmod 4755 ../setuid-touch
    exits 1 'Permission denied' -- as_user ../setuid-touch mnt/x
    exits 1 'Permission denied' -- own -- ../setuid-touch mnt/x
    own -- touch mnt/made
    equal owner $USER_ID "$(as_user stat -c %u mnt/made)"
    as_user ../bin/xact umount mnt
    sound disk.img
}

test_signals_and_the_terminal() {
    needs script
    fresh
    local signal
    for signal in TERM INT HUP; do
        rm -f ask
        mkfifo -m 666 ask
        setpriv --reuid $USER_ID --regid $USER_ID --clear-groups env --default-signal=INT bin/xact run --at mnt -- \
            bash -c "trap 'exit 9' $signal; echo x >mnt/u/made; echo go >ask; while :; do sleep 0.01; done" 2>said &
        local job=$! code=0
        read -r _ <ask
        kill -$signal $job
        wait $job || code=$?
        equal "code after SIG$signal" 9 "$code"
        [[ ! -e mnt/u/made ]]
    done
    cat >job.sh <<'END'
trap 'echo caught >>out/caught' INT
kill -STOP $$
[ -t 0 ] && ps -o tpgid= -p $$ >out/group && ps -o pgid= -p $$ >>out/group
echo ready >out/ready
until [ -s out/caught ]; do sleep 0.02; done
sleep 0.5
END
    mkfifo keys
    exec 7<>keys
    env --default-signal=INT script -qec "exec setpriv --reuid $USER_ID --regid $USER_ID --clear-groups bin/xact run --at mnt -- bash job.sh" typescript <&7 >/dev/null &
    job=$!
    stopped() { pkill -CONT -f -x 'bash job.sh' && test -s out/ready; }
    wait_until "the command" stopped
    equal 'foreground group' 1 "$(tr -d ' ' <out/group | sort -u | wc -l)"
    printf '\003' >&7
    wait $job
    exec 7>&-
    equal "times caught" caught "$(cat out/caught)"
    # The death of xact run aborts the transaction.
    rm -f ask
    mkfifo -m 666 ask
    setpriv --reuid $USER_ID --regid $USER_ID --clear-groups bin/xact run --at mnt -- \
        sh -c 'echo x >mnt/u/made; echo go >ask; exec sleep 1' &
    job=$!
    read -r _ <ask
    kill -KILL $job
    wait $job 2>/dev/null || true
    [[ ! -e mnt/u/made ]]
    wait_until "the process left behind to end" sh -c "'$XACT' umount mnt 2>/dev/null"
    sound disk.img
}

# Without the helper, or where it refuses: a user namespace, and one line before the command.
test_without_it_a_note_says_what_does_not_work() {
    fresh
    local note="files of other users appear with a wrong owner, and sudo and setuid programs do not work in this run"
    run -- sh -c 'exit 0' 2>said
    equal "with the helper" '' "$(cat said)"
    mkdir mnt/inner
    mount -t tmpfs none mnt/inner
    run -- sh -c 'echo x >mnt/inner/x; ls mnt/inner' >seen 2>&1
    equal "said and seen" "xact run: $note (xact-run-helper refused: something is mounted inside the volume)|x|" "$(tr '\n' '|' <seen)"
    umount mnt/inner
    mkdir part
    mount --bind mnt/d part
    exits 0 'refused: a part of the volume is mounted elsewhere' -- run -- sh -c 'echo x >part/made'
    equal 'in the part' x "$(cat mnt/d/made)"
    umount part
    exits 0 'refused: it is not installed setuid root, or may not use that here' -- \
        setpriv --reuid $USER_ID --regid $USER_ID --clear-groups --no-new-privs bin/xact run --at mnt -- true
    without_helper
    run -- sh -c 'echo command; ./setuid-id -u' >seen 2>&1
    equal "said first" "xact run: $note (see 'xact run --help')|command|$USER_ID|" "$(tr '\n' '|' <seen)"
    as_user bin/xact -q run --at mnt -- true 2>said
    equal "with -q" '' "$(cat said)"
    # Root needs neither, nor does a process that sees no other users anyway.
    bin/xact run --at mnt -- true 2>said
    as_user unshare --user --map-current-user bin/xact run --at mnt -- true 2>>said
    equal "no note" '' "$(cat said)"
    # A program that others could have changed is not executed.
    install -m 4777 "$HELPER" bin/xact-run-helper
    exits 0 "see 'xact run --help'" -- run -- true
    install -m 4755 -o $USER_ID "$HELPER" bin/xact-run-helper
    exits 0 "see 'xact run --help'" -- run -- true
    mkdir -p libexec/xact
    install -m 4755 "$HELPER" libexec/xact/xact-run-helper
    equal "beside bin/" 0 "$(run -- ./setuid-id -u)"
    afterwards
}

# The view has the restrictions of each mount that it covers, and holds no other mount.
test_mounts_keep_their_restrictions() {
    fresh
    cp setuid-id mnt/setuid-id
    chmod 4755 mnt/setuid-id
    mkdir elsewhere other
    mount --bind mnt elsewhere
    mount -o remount,bind,nosuid,nodev,noexec,ro elsewhere
    local point
    for point in mnt elsewhere; do
        equal "options of $point" "$(findmnt -n -o OPTIONS $point)" "$(run -- findmnt -n -o OPTIONS $point | tail -n 1)"
    done
    equal "a setuid program at the first" 0 "$(run -- mnt/setuid-id -u)"
    exits 126 'cannot execute' -- run -- elsewhere/setuid-id -u
    exits 1 'Read-only file system' -- run -- touch elsewhere/u/x
    equal "one view" made "$(run -- sh -c 'touch mnt/u/made; ls elsewhere/u')"
    umount elsewhere
    # An unmount outside takes place in it too.
    mount -t tmpfs none other
    mkfifo -m 666 ask answer
    run -- sh -c 'mountpoint -q other; echo $?; echo go >ask; read -r _ <answer; mountpoint -q other; echo $?' >seen &
    local job=$!
    read -r _ <ask
    umount other
    echo go >answer
    wait $job
    equal "inside before and after" '0 32' "$(xargs <seen)"
    afterwards
}

# Setuid programs never see their own configuration in the state of a user's transaction.
test_places_of_the_system_are_refused() {
    fresh
    mkdir -p mnt/etc
    local place
    for place in /etc/security /var/log /opt; do
        mount --bind mnt "$place"
        exits 0 "refused: the volume is mounted where the system needs it: " -- run -- true
        umount "$place"
    done
    # A link from there to the volume.
    mount -t tmpfs none /var/spool
    mkdir mnt/mail
    mount --bind mnt/mail /var/spool
    exits 0 "refused: a part of the volume|refused: the volume is mounted where" -- run -- true
    umount /var/spool /var/spool
    local made=
    [[ -d /etc/xact ]] || { mkdir /etc/xact && made=1; }
    mount -t tmpfs -o mode=755 none /etc/xact
    printf '# records\n/srv/none\n\n%s/mnt/u\n' "$WORK" >/etc/xact/run-helper.deny
    exits 0 'refused: the volume is mounted where it must not be: a folder in /etc/xact/run-helper.deny' -- run -- true
    echo /srv/none >/etc/xact/run-helper.deny
    equal "another folder" 0 "$(run -- ./setuid-id -u)"
    chmod 666 /etc/xact/run-helper.deny
    exits 0 'refused: /etc/xact/run-helper.deny must be a file of root' -- run -- true
    umount /etc/xact
    [[ -z $made ]] || rmdir /etc/xact
    afterwards
}

test_install_with_and_without_the_bit() {
    needs make
    local helper=$WORK/usr/libexec/xact/xact-run-helper
    make -s -C "$ROOT" install PREFIX="$WORK/usr" CARGO=true >said
    equal "by default" '755 0' "$(stat -c '%a %u' "$helper")"
    has said 'SETUID=1'
    make -s -C "$ROOT" install PREFIX="$WORK/usr" CARGO=true SETUID=1 >/dev/null
    equal "on request" '4755 0' "$(stat -c '%a %u' "$helper")"
    make -s -C "$ROOT" install PREFIX="$WORK/usr" CARGO=true >/dev/null
    equal "taken back" '755 0' "$(stat -c '%a %u' "$helper")"
    make -s -C "$ROOT" uninstall PREFIX="$WORK/usr" >/dev/null
    equal "files left" '' "$(find "$WORK/usr" ! -type d)"
}

# A user's server can say anything of the user's own mount, and of that mount only.
test_a_server_that_lies() {
    needs python3 fusermount3
    mount --make-rshared /
    programs
    mkdir -m 777 mnt
    local refused="the transaction does not exist, or belongs to another user"
    as_user timeout 30 python3 "$TESTS/lying_server.py" "$WORK/bin/xact-run-helper" "$WORK/mnt" >said
    diff - said <<END
a transaction of root: 125 '' $refused
a transaction of another user: 125 '' $refused
a transaction open to all: 125 '' $refused
a transaction a file: 125 '' $refused
a transaction with a file as its root: 125 '' $refused
a transaction with a link as its root: 125 '' $refused
a late answer: -9 '' 
its own word: 0 ['RAN'] True True [['/.xact/tx/7/root', 'MNT', 'rw,nosuid,nodev,relatime']] 
mounts outside: ['/']
END
}

# Thousands of hostile calls: tests/run_helper.py has the list.
test_hostile_calls() {
    needs python3 gcc
    fresh
    python3 "$TESTS/run_helper.py" "$WORK/bin/xact" "$WORK/bin/xact-run-helper" "$WORK/mnt" "${CALLS:-1000}" >said || fail "$(cat said)"
    report "$(tail -n 1 said)"
    afterwards
}
