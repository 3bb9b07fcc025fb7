# Rounds of work on a volume whose host file system is full; sourced by the suites.

umount_host() { umount host 2>/dev/null; }

# small_host KIND FOLDER: a host file system of 40 MiB.
small_host() {
    mkdir -p "$2"
    if [[ $1 == tmpfs ]]; then
        mount -t tmpfs -o size=40M none "$2"
    else
        truncate -s 44M "$2.img"
        mkfs.ext4 -q -F -m 0 "$2.img"
        mount -o loop "$2.img" "$2"
    fi
}

# host_full_rounds ENGINE KIND ROUNDS: works on a full host, kills the daemon, and looks for every
# file that was synced.
host_full_rounds() {
    local engine=$1 kind=$2 rounds=$3 round worker status fulls
    mkdir -p mnt
    small_host "$kind" host
    ENGINE=$engine volume host/disk.img --size 200M
    rm -f acks
    touch acks
    for ((round = 1; round <= rounds; round++)); do
        # Without space on the host a mount may need some for its log first.
        rm -f host/ballast
        in_foreground host/disk.img mnt -o discard
        python3 "$TESTS/host_full.py" work mnt host acks $((round * 100)) 2>said &
        worker=$!
        sleep "1.$(printf %03d $((round * 7919 % 900)))"
        kill -KILL "$DAEMON"
        wait "$DAEMON" 2>/dev/null || true
        status=0
        wait "$worker" || status=$?
        [[ $status -eq 0 ]] ||
            fail "$engine on $kind, round $round: $(<said); the daemon's log: $(tail -n 20 daemon.log)"
        "$XACT" umount mnt 2>/dev/null
        lacks daemon.log 'read-only from now on'
        rm -f host/ballast
        mounted host/disk.img mnt --log after.log
        python3 "$TESTS/host_full.py" verify mnt acks || fail "$engine on $kind, round $round: a synced file is lost"
        rm -rf mnt/d*
        grep -c ^full acks >>fulls || true
        grep -c ^again acks >>agains || true
        : >acks
        fstrim mnt 2>/dev/null || true
        unmounted mnt
        # Deleting and trimming gives space back to the host.
        [[ $(du -k host/disk.img | cut -f1) -lt 30000 ]] ||
            fail "$engine on $kind, round $round: the image still takes $(du -k host/disk.img | cut -f1) KiB"
        if ((round % 5 == 1)); then
            cp --sparse=always host/disk.img copy.img
            sound copy.img
            rm -f copy.img
        fi
    done
    # A mount namespace that another program has just made keeps the loop device for a moment.
    wait_until "the host file system to be free" umount_host
    fulls=$(awk '{ n += $1 } END { print n + 0 }' fulls)
    report "$engine on $kind: $rounds rounds, $fulls times no space, $(awk '{ n += $1 } END { print n + 0 }' agains) times space again"
    [[ $fulls -gt 0 ]] || fail "$engine on $kind: the host was never full"
    rm -rf fulls agains host host.img
}
