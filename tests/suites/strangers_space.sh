# timeout: 200
# The space of one volume and users that do not trust each other. An open transaction of one user
# may hold space, or keep it from becoming free. That space is limited, charged to this user, and
# never missing for others.

as() { # UID COMMAND…
    local uid=$1
    shift
    setpriv --reuid "$uid" --regid "$uid" --clear-groups "$@"
}

# A volume of 128 MiB with a folder for all users. Little memory, so that contents are spilled.
fresh() { # [ARGUMENTS OF xact mount…]
    needs setpriv python3 jq
    rm -f disk.img
    volume disk.img --size 128M
    in_foreground disk.img mnt --cache-size 32M "$@"
    mkdir -p -m 777 mnt/all
}

afterwards() {
    unmounted mnt
    wait "$DAEMON"
    sound disk.img
    "$XACT" check disk.img >check.out || fail "xact check: $(<check.out)"
}

# inside UID blocks|inodes NAME: opens a transaction, fills it up to an error, which goes to
# NAME.out, and stays.
inside() {
    rm -f "$3.out"
    # The user comes later: the interpreter may be in a folder of root's.
    python3 - mnt "$1" "$2" "$3" >"$3.tmp" 2>&1 <<'PYTHON' &
import errno, fcntl, os, struct, sys, time
mount, uid, what, name = sys.argv[1:]
os.setgroups([])
os.setgid(int(uid))
os.setuid(int(uid))
channel = os.open(mount + "/.xact", 0o20200000 | os.O_RDWR, 0o600)
begin = bytearray(16)
fcntl.ioctl(channel, 3 << 30 | 16 << 16 | 0xea << 8 | 1, begin, True)
view = f"{mount}/.xact/tx/{struct.unpack('IIQ', begin)[2]}/root/all/{name}"
count = 0
try:
    if what == "blocks":
        file = os.open(view, os.O_CREAT | os.O_WRONLY)
        while True:
            count += os.write(file, b"z" * 65536)
    else:
        while True:
            os.close(os.open(f"{view}{count}", os.O_CREAT | os.O_WRONLY))
            count += 1
except OSError as error:
    print(errno.errorcode[error.errno], count, flush=True)
time.sleep(300)
PYTHON
    INSIDE=$!
    wait_until "the transaction of $1" test -s "$3.tmp"
    mv "$3.tmp" "$3.out"
}

ended() { # PID…
    kill -9 "$@"
    wait "$@" 2>/dev/null || true
}

# free: blocks and inodes.
free() { stat -fc '%f %d' mnt; }
as_before() { [[ $(free) == "$BEFORE" ]]; }
held() { "$XACT" stat mnt --json | jq ".transactions.$1"; }

outside() { # UID NAME MIB
    as "$1" dd if=/dev/zero of="mnt/all/$2" bs=1M count="$3" conv=fsync status=none || fail "$1 found no space for $3 MiB"
}

test_each_has_a_share() {
    local one two three count
    for ENGINE in journal generations; do
        fresh
        BEFORE=$(free)
        inside 1001 blocks one && one=$INSIDE
        inside 1001 blocks two && two=$INSIDE
        inside 1002 blocks three && three=$INSIDE
        has one.out '^EDQUOT (4|5)[0-9]{7}$'
        has two.out '^EDQUOT [0-9]{0,7}$'
        has three.out '^EDQUOT (2|3)[0-9]{7}$'
        [[ $(held held_bytes) -gt 70000000 && $(held revoked) -eq 0 ]] || fail "$("$XACT" stat mnt)"
        has <("$XACT" stat mnt) '^held: .* and 3 inodes by open transactions; those of one user may hold 50%'
        outside 1003 file 10
        outside 1001 own 5
        rm mnt/all/file mnt/all/own
        ended "$one" "$two" "$three"
        "$XACT" sync mnt
        wait_until "everything to be given back" as_before
        inside 1001 inodes many && one=$INSIDE
        count=$(stat -fc %c mnt)
        has many.out '^EDQUOT '
        [[ $(cut -d' ' -f2 many.out) -le $((count / 2 + 1)) ]] || fail "$(<many.out) of $count"
        as 1003 sh -c 'for i in $(seq 1000); do : >"mnt/all/$i" || exit 1; done'
        ended "$one"
        afterwards
    done
}

test_the_share_is_a_setting() {
    fresh -o tx_space=10
    inside 1001 blocks one
    has one.out '^EDQUOT 1?[0-9]{7}$'
    equal percent 10 "$(held limit_percent)"
    ended "$INSIDE"
    afterwards
    exits 64 'invalid percentage' -- "$XACT" mount disk.img mnt -o tx_space=200
}

# Root's transactions have no limit. They give way to all others, and 'xact run' says so.
test_a_run_gives_way() {
    local run
    for ENGINE in journal generations; do
        fresh
        BEFORE=$(free)
        "$XACT" run --at mnt --status-file status -- \
            sh -c 'cat /dev/zero >mnt/all/large 2>/dev/null; touch "$0/filled"; while ! [ -e "$0/go" ]; do sleep 0.1; done; true' \
            "$WORK" 2>run.err &
        run=$!
        wait_until "the run to fill the volume" test -e filled
        outside 1003 file 20
        touch go
        wait "$run" && fail "it was committed"
        has run.err 'the transaction lost its space because the volume was full for others'
        has run.err 'Nothing was changed'
        equal outcome no-space "$(jq -r .outcome status)"
        equal revoked 1 "$(held revoked)"
        has daemon.log 'the volume was full: transaction .* of user 0 lost the'
        rm mnt/all/file filled go
        "$XACT" sync mnt
        wait_until "everything to be given back" as_before
        afterwards
    done
}

# Read-only transactions, left open and persisted, of several users: space that others free is free
# for others.
test_read_only_transactions() {
    local round
    for ENGINE in journal generations; do
        fresh
        head -c 70M /dev/urandom >mnt/all/big
        as 1001 "$XACT" run --at mnt --leave-open -- sh -c 'ls mnt/all; cat mnt/all/big' >/dev/null
        as 1002 "$XACT" run --at mnt --leave-open --persist -- sh -c 'ls mnt/all; echo more >mnt/all/persisted' >/dev/null
        for round in 1 2 3; do
            rm mnt/all/big
            head -c 70M /dev/urandom >mnt/all/big || fail "round $round"
            "$XACT" sync mnt
        done
        equal size $((70 << 20)) "$(stat -c %s mnt/all/big)"
        equal 'still open' 2 "$("$XACT" tx list --at mnt | grep -c open)"
        afterwards
    done
}

# Quotas count what a transaction holds at once. On disk they never count more than is used.
test_quotas() {
    local image=disk.img
    needs setpriv debugfs
    truncate -s 128M $image
    mke2fs -q -F -t ext4 -O quota,project -I 256 -E quotatype=usrquota:grpquota:prjquota $image
    in_foreground $image mnt --cache-size 32M
    mkdir -m 777 mnt/all
    as 1001 touch mnt/all/entry
    unmounted mnt
    wait "$DAEMON"
    (source "$TESTS/suites/quota.sh" && limit $image 3 1001 $SPACE_HARD $((20 << 10)) && limit $image 4 1001 $INODES_HARD 50)
    in_foreground $image mnt --cache-size 32M -o usrquota,grpquota
    BEFORE=$(free)
    inside 1001 blocks one
    has one.out '^EDQUOT 2[0-9]{7}$'
    # Another user has a separate limit.
    outside 1002 other 20
    as 1001 sh -c 'head -c 3M /dev/zero >mnt/all/own' 2>own.err && fail "the user has more than its limit"
    has own.err 'quota exceeded'
    rm mnt/all/own mnt/all/other
    ended "$INSIDE"
    "$XACT" sync mnt
    wait_until "everything to be given back" as_before
    inside 1001 inodes many
    has many.out '^EDQUOT 49$'
    ended "$INSIDE"
    wait_until "everything to be given back" as_before
    as 1001 sh -c 'head -c 15M /dev/zero >mnt/all/own'
    # If the daemon is killed during a transaction, usage is that of the inode table.
    rm mnt/all/own
    inside 1001 blocks one
    kill -9 "$DAEMON"
    wait "$DAEMON" || true
    umount -l mnt
    ended "$INSIDE"
    "$XACT" recover $image >/dev/null
    sound $image
    "$XACT" check $image >check.out || fail "xact check: $(<check.out)"
}

# Without any transaction: deletes and writes follow each other on a volume that is nearly full.
test_deleted_and_written() {
    local round
    for ENGINE in journal generations; do
        fresh
        for round in $(seq 12); do
            head -c 60M /dev/zero >"mnt/all/$((round % 2))" || fail "round $round"
            rm "mnt/all/$((round % 2))" &
            head -c 40M /dev/zero >mnt/all/other || fail "round $round"
            rm mnt/all/other
            wait $!
        done
        afterwards
    done
}
