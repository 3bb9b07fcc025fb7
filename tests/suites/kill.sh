# timeout: 900
# The daemon is killed in mid-load, again and again. Every acknowledged transaction is on the
# volume, none of them in part, and the volume is sound.

ROUNDS=${KILL_ROUNDS:-100}
WORKERS=3

# One worker: transactions, each of which moves the worker's state from i-1 to i in several files.
# Acknowledges outside of the volume. Ends with the daemon.
work() { # WORKER
    local worker=$1 i
    i=$(cat "acknowledged$worker")
    while :; do
        i=$((i + 1))
        echo "$i" >"attempted$worker"
        "$XACT" run --at mnt -- sh -ec "
            cd mnt/w$worker
            mkdir t$i
            echo $i >t$i/a
            dd if=/dev/zero of=t$i/large bs=5000 count=$((i % 7)) status=none
            mv t$i/a t$i/b
            ln t$i/b t$i/c
            rm -r t$((i - 1))
            echo $i >state" 2>>work.log || return 0
        echo "$i" >"acknowledged$worker"
    done
}

# A writer without transactions: the data that it fsynced must be on the volume.
append() {
    python3 - <<'END' 2>>work.log || true
import os
done = int(open("acknowledged-lines").read())
log = os.open("mnt/lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
while True:
    os.write(log, b"%07d\n" % (done + 1))
    os.fsync(log)
    done += 1
    with open("acknowledged-lines.new", "w") as file:
        file.write(str(done))
    os.rename("acknowledged-lines.new", "acknowledged-lines")
END
}

verify() { # WORKER
    local worker=$1 state acknowledged attempted folder=mnt/w$1
    state=$(cat "$folder/state")
    acknowledged=$(cat "acknowledged$worker")
    attempted=$(cat "attempted$worker")
    [[ $state -ge $acknowledged ]] || fail "worker $worker: transaction $acknowledged was acknowledged, but the state is $state"
    [[ $state -le $attempted ]] || fail "worker $worker: state $state was never attempted ($attempted was the last)"
    equal "names of worker $worker" "state t$state" "$(ls "$folder" | xargs)"
    [[ $state -eq 0 ]] || equal "names of transaction $state" "b c large" "$(ls "$folder/t$state" | xargs)"
    [[ $state -eq 0 ]] || equal "content of transaction $state" "$state" "$(cat "$folder/t$state/b")"
    [[ $state -eq 0 ]] || equal "size in transaction $state" $((state % 7 * 5000)) "$(stat -c %s "$folder/t$state/large")"
    echo "$state" >"acknowledged$worker"
}

verify_lines() {
    local lines acknowledged
    acknowledged=$(cat acknowledged-lines)
    # A first line may exist though its write was not acknowledged: the next one continues behind
    # it.
    [[ $acknowledged -eq 0 && ! -e mnt/lines ]] && return 0
    lines=$(wc -l <mnt/lines)
    [[ $lines -ge $acknowledged ]] || fail "$acknowledged lines were fsynced, $lines are there"
    # Whole and in order, also lines that were not yet acknowledged.
    seq -f %07g "$lines" | cmp - mnt/lines
    echo "$lines" >acknowledged-lines
}

test_killed_in_mid_load() {
    needs python3
    local round worker jobs
    volume disk.img --size 256M
    in_foreground disk.img mnt
    for worker in $(seq $WORKERS); do
        mkdir "mnt/w$worker" "mnt/w$worker/t0"
        echo 0 >"mnt/w$worker/state"
        echo 0 >"acknowledged$worker"
        echo 0 >"attempted$worker"
    done
    echo 0 >acknowledged-lines
    "$XACT" sync mnt
    for ((round = 1; round <= ROUNDS; round++)); do
        jobs=()
        for worker in $(seq $WORKERS); do
            work "$worker" &
            jobs+=($!)
        done
        append &
        jobs+=($!)
        # Between 50 and 350 ms, at another point each time, and the same points in each run.
        sleep "0.$(printf %03d $((50 + round * 7919 % 300)))"
        kill -KILL "$DAEMON"
        wait "$DAEMON" 2>/dev/null || true
        for worker in "${jobs[@]}"; do wait "$worker" || true; done
        "$XACT" umount mnt
        if ((round % 20 == 0)); then
            cp --sparse=always disk.img copy.img
            "$XACT" recover copy.img >/dev/null
            sound copy.img
            # The kernel recovers it too, whichever of the two wrote the log.
            cp --sparse=always disk.img copy.img
            kernel_mounted copy.img copy
            kernel_unmounted copy
            sound copy.img
        fi
        # In every mode, and every other time with commits in two steps.
        local modes=(adaptive ordered journal selective)
        in_foreground disk.img mnt -o "$((( round % 8 < 4 )) && echo no)journal_async_commit,data=${modes[round % 4]}"
        for worker in $(seq $WORKERS); do verify "$worker"; done
        verify_lines
    done
    for worker in $(seq $WORKERS); do report "worker $worker: $(cat "acknowledged$worker") transactions"; done
    report "$(cat acknowledged-lines) lines with fsync, $ROUNDS kills"
    unmounted mnt
    wait "$DAEMON"
    sound disk.img
}

# A program appends to a log and never syncs: the commit interval bounds what a kill loses.
test_commit_interval() {
    local old_enough n
    for ENGINE in journal generations; do
        volume disk.img --size 64M
        in_foreground disk.img mnt --commit-interval 500ms
        old_enough=0
        # The last two seconds are the interval and a margin.
        for ((n = 1; n <= 140; n++)); do
            printf '%0999d\n' "$n" >>mnt/log
            ((n != 40)) || old_enough=$(stat -c %s mnt/log)
            sleep 0.02
        done
        kill -KILL "$DAEMON"
        wait "$DAEMON" 2>/dev/null || true
        unmounted mnt
        mounted disk.img mnt
        [[ $(stat -c %s mnt/log) -ge $old_enough ]] ||
            fail "on $ENGINE $(stat -c %s mnt/log) bytes are left, of $old_enough that were two seconds old"
        unmounted mnt
        sound disk.img
        rm disk.img
    done
}
