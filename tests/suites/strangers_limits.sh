# timeout: 300
# The share of the daemon's resources that one user can use up, and the rest for others.

source "$TESTS/attack.sh"

# Resident memory of the daemon, and its limit with this cache: 64 MiB more.
CACHE=32
stays_small() { # WHAT
    local limit=$(((CACHE + 64) << 10))
    [[ $(peak) -le $limit ]] || fail "$1: the daemon had $(peak) KiB, which is more than $limit"
    report "$1: $(($(peak) >> 10)) MiB at its peak"
}
fresh() { # [ARGUMENTS OF xact mount…]
    volume disk.img
    in_foreground disk.img mnt --cache-size "${CACHE}M" "$@"
    mkdir mnt/attacker mnt/other
    chown 65533 mnt/attacker
    chown 65534 mnt/other
    echo shared >mnt/shared
}
afterwards() {
    echo alive >mnt/file
    attacker_gone
    sound disk.img
}
# Runs a Python script as one of the two users, with the functions of attack.py.
user() { # UID SCRIPT [ARGUMENTS…]
    PYTHONPATH=$TESTS as_user "$1" python3 -c "
import errno, os, sys, time
from attack import *
mnt = '$WORK/mnt'
def refused(code, call):
    try:
        call()
    except OSError as error:
        assert error.errno == code, error
        return True
    return False
def until_refused(code, call, most):
    for count in range(most):
        if refused(code, call):
            return count
    raise SystemExit(f'{call} was called {most} times')
$2" "${@:3}"
}

# alone
test_attacks_of_one_user() {
    attacked 20
}

# Each kind of resource has its limit and its error. Another user has a separate limit, and root
# none.
test_each_limit() {
    fresh --user-transactions 10
    user 65533 '
channels = []
count = until_refused(errno.EMFILE, lambda: channels.append(Channel(mnt)), 1000)
assert count == 40, count
for channel in channels[:10]:
    channel.begin()
assert refused(errno.EDQUOT, channels[10].begin)
channels[0].abort()
channels[10].begin()
count = until_refused(errno.EMFILE, channels[1].savepoint, 1000)
assert count == 100, count
# They end with the transaction.
channels[1].abort()
channels[2].savepoint()
# Transactions that are left open count, whichever channel has them. One that ends frees its share.
channels[3].keep()
channels[3].close()
channels[1].begin()
assert refused(errno.EDQUOT, channels[20].begin)
'
    user 65534 'Channel(mnt).begin()'
    user 0 '
channels = [Channel(mnt) for _ in range(200)]
for channel in channels:
    channel.begin()
for _ in range(300):
    channels[0].savepoint()
'
    "$XACT" stat mnt >figures
    has figures '^user 65533: [0-9]+ transactions? ?\(|^user 65533: [0-9]+ of 10 transactions'
    equal "refusals" true "$("$XACT" stat --json mnt | jq '.users[] | select(.uid == 65533) | .refused >= 4')"
    equal limits '10 100 40' \
        "$("$XACT" stat --json mnt | jq -r '.user_limits | "\(.transactions) \(.savepoints) \(.channels)"')"
    has daemon.log 'user 65533 is refused more'
    # Other users see only themselves.
    equal "users seen" 65534 "$(as_user 65534 "$XACT" stat --json mnt | jq '.users[].uid')"
    for id in $("$XACT" tx list --at mnt --json | jq -r '.[].id'); do "$XACT" tx abort "$id" --at mnt; done
    afterwards
}

# Each kind of memory that is used for a user has a bound. At the bound the user gets an error, and
# the daemon does not abort.
test_memory_of_each_kind() {
    local kind
    fresh
    for kind in selections absent_names many_files_inside contents_inside savepoints deep_differences; do
        as_user 65533 taskset -c 0 python3 "$TESTS/attack.py" worst "$WORK/mnt" /attacker 4 "$kind" >attack.log 2>&1
        stays_small "$kind"
        lacks attack.log EIO
        user 65534 'channel = Channel(mnt); open(channel.begin() + "/other/x", "w").write("x"); channel.commit()'
    done
    wait_until "the memory to be given back" given_back
    afterwards
}
given_back() { [[ $("$XACT" stat --json mnt | jq '[.users[] | select(.uid == 65533) | .memory_bytes] | add // 0') == 0 ]]; }

# At its limit a transaction gets ENOMEM, and its changes so far can be committed.
test_a_transaction_at_the_memory_limit() {
    fresh --user-memory 2M
    user 65533 '
channel = Channel(mnt)
view, made = channel.begin() + "/attacker", 0
def make():
    global made
    os.close(os.open(f"{view}/{made:0100d}", os.O_CREAT | os.O_WRONLY))
    made += 1
until_refused(errno.ENOMEM, make, 100000)
assert made > 500, made
channel.commit()
assert len(os.listdir(mnt + "/attacker")) >= made, made
# The list of changes of a transaction that fits is returned.
channel.begin()
import time
until = time.monotonic() + 10
while True:
    # The memory of the transaction before is released when the kernel has forgotten its files.
    try:
        open(f"{mnt}/.xact/tx/{channel.id}/root/attacker/one", "w").write("1")
        break
    except OSError as error:
        assert error.errno == errno.ENOMEM and time.monotonic() < until, error
        time.sleep(0.01)
channel.diff(), channel.diff(True)
'
    afterwards
}

# When memory is short, a transaction forgets the single names that it looked up and did not find,
# but not that it depends on them.
test_a_conflict_is_found_beyond_the_memory_limit() {
    fresh --user-memory 1M
    user 65533 '
for appears in (False, True):
    channel = Channel(mnt)
    view = channel.begin()
    for n in range(20000):
        assert not os.path.exists(f"{view}/attacker/{appears}{n:0200}")
    open(view + "/attacker/own", "w").write("1")
    if appears:
        open(f"{mnt}/attacker/{appears}{77:0200}", "w").write("1")
    assert refused(errno.EAGAIN, channel.commit) == appears, appears
'
    afterwards
}

# A killed part is undone also when its user has no descriptors left. A part that could not be
# watched is not begun.
test_descriptors() {
    ulimit -n 1024
    fresh
    user 65533 '
import signal, subprocess
channel = Channel(mnt)
channel.begin()
# One process takes one descriptor, whatever it owns.
for _ in range(500):
    channel.savepoint()
children = []
def of_another_process():
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        code = 0
        try:
            channel.savepoint()
        except OSError as error:
            code = error.errno
        os.write(done, bytes([code]))
        signal.pause()
    children.append(child)
    code = os.read(ready, 1)[0]
    os.close(ready), os.close(done)
    if code:
        raise OSError(code, "savepoint")
count = until_refused(errno.EMFILE, of_another_process, 500)
assert 20 < count < 150, count
print("attack", flush=True)
time.sleep(8)
for child in children:
    os.kill(child, signal.SIGKILL)
' >attack.log 2>&1 &
    local attacker=$!
    wait_until "the attack" grep -q attack attack.log
    [[ $(find "/proc/$DAEMON/fd" | wc -l) -lt 400 ]] || fail "the daemon has $(find "/proc/$DAEMON/fd" | wc -l) descriptors"
    "$XACT" run --at mnt -- sh -c "echo 1 >mnt/outer
        '$XACT' run --at mnt -- sh -c 'echo 2 >mnt/inner; kill -9 \$PPID; sleep 0.5'; sleep 0.5; true"
    equal outer 1 "$(<mnt/outer)"
    [[ ! -e mnt/inner ]] || fail "what a killed part did was committed"
    # Also by another user, with descriptors left.
    user 65534 'channel = Channel(mnt); channel.begin(); channel.savepoint()'
    wait $attacker
    afterwards
}

# Many lists, requested at the same time, of which each takes long: other callers do not wait.
test_lists_of_changes_and_other_callers() {
    local began took attacker
    fresh
    as_user 65533 taskset -c 0 python3 "$TESTS/attack.py" worst "$WORK/mnt" /attacker 8 deep_differences deep_differences >attack.log 2>&1 &
    attacker=$!
    sleep 3
    for _ in 1 2 3 4 5; do
        began=$(date +%s%N)
        as_user 65534 touch mnt/other/file
        took=$((($(date +%s%N) - began) / 1000000))
        [[ $took -lt 2000 ]] || fail "a touch took $took ms"
    done
    wait $attacker
    afterwards
}

# A user who loses on purpose delays no one else for long: neither users who change what that user
# may only read, nor those who wait one after the other.
test_claims_of_another_user() {
    local began took attacker
    fresh
    as_user 65533 python3 "$TESTS/attack.py" worst "$WORK/mnt" /attacker 12 claims claims >attack.log 2>&1 &
    attacker=$!
    sleep 2
    began=$(date +%s%N)
    for n in $(seq 20); do "$XACT" run --at mnt -- sh -c "echo $n >mnt/shared"; done
    took=$((($(date +%s%N) - began) / 1000000))
    report "20 transactions on what is claimed: $took ms"
    [[ $took -lt 6000 ]] || fail "20 transactions took $took ms"
    wait $attacker
    afterwards
}

# Transactions that are left open, persisted or not, are limited, and an unmount prints few lines
# about them.
test_transactions_left_open_and_unmounting() {
    local began took
    fresh
    user 65533 '
def keep(persist):
    channel = Channel(mnt)
    channel.begin()
    channel.keep(persist)
    channel.close()
for n in range(50):
    keep(True)
count = until_refused(errno.EDQUOT, lambda: keep(False), 1000)
assert count == 50, count
'
    began=$(date +%s%N)
    "$XACT" umount mnt >said 2>&1
    took=$((($(date +%s%N) - began) / 1000000))
    [[ $took -lt 10000 ]] || fail "xact umount took $took ms"
    equal "lines of xact umount" 21 "$(wc -l <said)"
    has said '80 more transactions were open: [0-9]+ stay open, [0-9]+ are aborted'
    # Those that stayed open count in the next mount.
    in_foreground disk.img mnt --user-transactions 50
    user 65533 'assert refused(errno.EDQUOT, Channel(mnt).begin)'
    equal persisted 50 "$("$XACT" stat --json mnt | jq '.users[] | select(.uid == 65533) | .persisted')"
    user 65534 'Channel(mnt).begin()'
    unmounted mnt 2>/dev/null
    sound disk.img
}
