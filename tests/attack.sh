# What one user can do to others: sourced by suites. See attack.py.

# Resident memory of the daemon, in KiB: now, and at its highest.
resident() { sed -nE 's/^VmRSS:\s+([0-9]+) kB/\1/p' "/proc/$DAEMON/status"; }
peak() { sed -nE 's/^VmHWM:\s+([0-9]+) kB/\1/p' "/proc/$DAEMON/status"; }

as_user() { # UID COMMAND…
    # Of the programs of root's own PATH some are not for others.
    PATH=/usr/sbin:/usr/bin:/sbin:/bin setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"
}

# Ends what attack.py has started on this test's mount, and unmounts: a process that is about to end
# holds the mount for a moment, when it has no command line any more.
attacker_gone() {
    pkill -KILL -u 65533 -f "$WORK/mnt" || true
    wait_until "the attacker's processes to let go of the mount" unmounted_saying
}
unmounted_saying() { "$XACT" umount mnt >said 2>&1; }

# attacked SECONDS: on one CPU a user does his worst; on the other one another user makes calls, and none fails. What is left of
# their speed beside a process that spins there is reported, and is at least ATTACK_LEAVES percent (10: beside other tests
# the figure is noise). The memory of the daemon stays at the limit of the cache plus 64
# MiB, and the mount lives.
attacked() {
    local seconds=$1 quiet=8 attacker limit kind before during
    [[ $(nproc) -ge 2 ]] || fail "this test needs two CPUs"
    volume disk.img --size 2G
    in_foreground disk.img mnt --cache-size 32M
    mkdir mnt/attacker mnt/other
    chown 65533 mnt/attacker
    chown 65534 mnt/other
    echo shared >mnt/shared
    as_user 65534 taskset -c 1 python3 "$TESTS/attack.py" calls "$WORK/mnt" /other 2 >/dev/null
    taskset -c 0 python3 "$TESTS/attack.py" spin $((quiet + 1)) &
    as_user 65534 taskset -c 1 python3 "$TESTS/attack.py" calls "$WORK/mnt" /other "$quiet" >before.json
    wait $!
    as_user 65533 taskset -c 0 python3 "$TESTS/attack.py" worst "$WORK/mnt" /attacker $((seconds + 2)) >attack.log 2>&1 &
    attacker=$!
    sleep 1
    as_user 65534 taskset -c 1 python3 "$TESTS/attack.py" calls "$WORK/mnt" /other "$seconds" >during.json ||
        fail "a call of the other user failed"
    limit=$(((32 + 64) << 10))
    wait $attacker
    kill -0 "$DAEMON" 2>/dev/null || fail "the daemon is gone: $(tail -n 5 "$WORK/daemon.log")"
    report "memory of the daemon: $(($(peak) >> 10)) MiB at its peak, $(($(resident) >> 10)) after"
    for kind in write look make_and_remove transaction; do
        before=$(jq ".$kind.rate" before.json) during=$(jq ".$kind.rate" during.json)
        report "$(jq -rn "\"$kind: \($before | floor) a second beside a process that spins, \($during | floor) beside the attack\""), the longest $(jq ".$kind.worst_ms | floor" during.json) ms"
    done
    report "refusals: $(grep -c 'is refused more' "$WORK/daemon.log" || true) in the log"
    [[ $(peak) -le $limit ]] || fail "the daemon had $(peak) KiB, which is more than $limit"
    before=$(jq .round.rate before.json) during=$(jq .round.rate during.json)
    report "all of them in turns: $(jq -n "$during / $before * 100 | floor") % of the speed"
    [[ $(jq -n "$during / $before * 100 >= ${ATTACK_LEAVES:-10}") == true ]] || fail "too little of the speed is left"
    lacks attack.log EIO
    echo alive >mnt/file
    attacker_gone
    [[ $(wc -l <said) -le 30 ]] || fail "xact umount says $(wc -l <said) lines"
    sound disk.img
}
