# Attacks of one user on another, for the suites that source this file. See attack.py.

# Resident memory of the daemon in KiB: its current value and its highest.
resident() { sed -nE 's/^VmRSS:\s+([0-9]+) kB/\1/p' "/proc/$DAEMON/status"; }
peak() { sed -nE 's/^VmHWM:\s+([0-9]+) kB/\1/p' "/proc/$DAEMON/status"; }

as_user() { # UID COMMAND…
    # Some programs on root's own PATH are not executable by others.
    PATH=/usr/sbin:/usr/bin:/sbin:/bin setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"
}

# Kills the processes that attack.py started, and unmounts. An exiting process has no command line,
# so pkill does not find it, but it still holds the mount for a moment.
attacker_gone() {
    pkill -KILL -u 65533 -f "$WORK/mnt" || true
    wait_until "the attacker's processes to release the mount" unmounted_saying
}
unmounted_saying() { "$XACT" umount mnt >said 2>&1; }

# attacked SECONDS: one user attacks on one CPU, and another user makes calls on the other CPU.
# - No call fails.
# - The calls keep at least ATTACK_LEAVES percent of the speed that they have beside a process that
#   spins (10: beside other tests the figure is noise). The figure is reported.
# - The daemon's memory stays below the limit of the cache plus 64 MiB.
# - The mount works afterwards.
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
    kill -0 "$DAEMON" 2>/dev/null || fail "the daemon has ended: $(tail -n 5 "$WORK/daemon.log")"
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
