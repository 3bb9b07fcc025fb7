# What the tests on mounts are written with. Sourced by tests/run; run with a suite and the name of
# one test it is the process of that test: any command that fails ends it.

source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"
PATH=$PATH:/usr/sbin:/sbin:$TOOLS/bin
# The tests run make, and may themselves be run by one, which would have a say in what that prints.
unset MAKEFLAGS MAKELEVEL MFLAGS
# Whoever runs the tests may have another shell than CI, or none.
export SHELL=/bin/sh
TESTS=$ROOT/tests

# --- what a test can say -------------------------------------------------------------------------

# A line for the report of a test that passed: figures, what was left out and why.
report() { printf '# %s\n' "$*"; }

fail() {
    printf 'FAIL: %s\n' "$*" >&2
    exit 1
}

# equal WHAT EXPECTED ACTUAL
equal() {
    [[ $2 == "$3" ]] || fail "$1: expected '$2', got '$3'"
}

# exits CODE [MESSAGE] -- COMMAND…: the command ends with CODE; MESSAGE, an extended regular
# expression, is found in what it wrote to standard error.
exits() {
    local code=$1 message='' status=0
    shift
    if [[ $1 != -- ]]; then
        message=$1
        shift
    fi
    shift
    "$@" >"$WORK/exits.out" 2>"$WORK/exits.err" || status=$?
    if [[ $status -ne $code ]]; then
        fail "'$*' ended with $status instead of $code; it said: $(cat "$WORK/exits.err" "$WORK/exits.out")"
    fi
    if [[ -n $message ]] && ! grep -qE -- "$message" "$WORK/exits.err"; then
        fail "'$*' did not say '$message' but: $(cat "$WORK/exits.err")"
    fi
    if grep -q 'panicked at' "$WORK/exits.err"; then
        fail "'$*' panicked: $(cat "$WORK/exits.err")"
    fi
}

# has FILE PATTERN, lacks FILE PATTERN: an extended regular expression in a file.
has() {
    grep -qE -- "$2" "$1" || fail "'$2' is not in $1: $(cat "$1")"
}
lacks() {
    if grep -qE -- "$2" "$1"; then fail "'$2' is in $1: $(cat "$1")"; fi
}

# needs TOOL…: a test whose tool is missing fails, it does not pass silently.
needs() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || fail "$tool is missing: run 'make deps'"
    done
}

# --- volumes -------------------------------------------------------------------------------------

# volume IMG [ARGUMENTS OF xact mkfs…]: makes one, of 256 MiB unless --size is given, for the engine
# that ENGINE names.
ENGINE=${ENGINE:-journal}
volume() {
    local image=$1
    shift
    [[ " $* " == *" --size "* ]] || set -- --size 256M "$@"
    [[ " $* " == *" --engine "* ]] || set -- --engine "$ENGINE" "$@"
    # What a commit may change depends on the one as on the other.
    [[ $ENGINE != generations ]] || set -- "${@/#--journal-size/--pool-size}"
    "$XACT" mkfs "$image" "$@" >/dev/null
}

# mounted IMG MNT [ARGUMENTS OF xact mount…]
mounted() {
    mkdir -p "$2"
    "$XACT" mount "$@"
}

unmounted() { # MNT
    "$XACT" umount "$1"
}

# The kernel's own ext4. Of a volume with generations it sees the newest, written out, and only to read: what it
# changed there the volume would not have.
kernel_mounted() { # IMG MNT [OPTIONS]
    local image=$1 options=loop${3:+,$3}
    if "$XACT" info "$1" | grep xact_generations >/dev/null; then
        rm -f "$1.kernel"
        "$XACT" snapshot export "$1" "$1.kernel"
        image=$1.kernel options=$options,ro
    fi
    mkdir -p "$2"
    mount -t ext4 -o "$options" "$image" "$2"
}

# Whoever looks at all mounts of the machine keeps one busy for a moment. Waits until the loop device
# is gone too: another process may still have the mount in a mount namespace of its own, and then it
# lives on after the umount.
kernel_unmounted() { # MNT
    local device
    device=$(findmnt -n -o SOURCE --mountpoint "$1")
    wait_until "nobody to use $1" let_go "$1"
    wait_until "the kernel to let go of $device" detached "$device"
}
let_go() { umount "$1" 2>/dev/null; }
detached() { ! losetup "$1" >/dev/null 2>&1; }

# sound IMG: e2fsck finds nothing to correct, nor to remark; of a volume with generations, in the newest.
sound() {
    local said
    if "$XACT" info "$1" | grep xact_generations >/dev/null; then
        "$XACT" check "$1" >"$WORK/checked" 2>&1 || fail "xact check $1 is not content: $(<"$WORK/checked")"
        rm -f "$1.exported"
        "$XACT" snapshot export "$1" "$1.exported"
        sound "$1.exported"
        rm "$1.exported"
        return
    fi
    said=$(e2fsck -fn "$1" 2>&1) || fail "e2fsck -fn $1 is not content: $said"
    # Five passes, the summary, and nothing else.
    said=$(grep -vE '^(e2fsck [0-9]|Pass [1-5]: |.*: [0-9]+/[0-9]+ files \([0-9.]+% non-contiguous\), [0-9]+/[0-9]+ blocks$|$)' <<<"$said") || return 0
    fail "e2fsck -fn $1 remarks: $said"
}

# in_foreground IMG MNT [ARGUMENTS…]: mounts with the daemon as a child of the test; its process
# number goes to DAEMON.
in_foreground() {
    local image=$1 point=$2
    shift 2
    mkdir -p "$point"
    "$XACT" mount --foreground "$image" "$point" "$@" 2>>"$WORK/daemon.log" &
    DAEMON=$!
    wait_until "the mount at $point" mountpoint -q "$point"
}

# wait_until WHAT COMMAND…: for up to 20 seconds.
wait_until() {
    local what=$1 i
    shift
    for ((i = 0; i < 2000; i++)); do
        "$@" && return 0
        sleep 0.01
    done
    fail "waited in vain for $what"
}

# One line for each file: name, kind, mode, owner, links, size, times, link target, attributes,
# ACL, and a checksum of the contents. Equal output means equal trees.
describe_tree() { # DIR
    python3 "$TESTS/describe_tree.py" "$1"
}

# --- the process of one test ---------------------------------------------------------------------

require_mounting() {
    [[ -e /dev/fuse ]] || die "/dev/fuse is missing: the tests on mounts need FUSE (modprobe fuse)"
    [[ $EUID -eq 0 ]] || die "the tests on mounts need root (the kernel's ext4 is mounted for comparison)"
    [[ -x $XACT ]] || die "$XACT is missing: run 'make build'"
}

clean_up() {
    local point pid
    cd /
    # Topmost first. A mount that does not go is detached, so that its daemon ends.
    while read -r point; do
        umount "$point" 2>/dev/null || umount -l "$point" 2>/dev/null
    done < <(awk '{ print $5 }' /proc/self/mountinfo | grep -F "$WORK/" | tac)
    for pid in $(jobs -p); do kill "$pid" 2>/dev/null; done
    if [[ -n ${KEEP:-} && ${1:-0} -ne 0 ]]; then
        printf 'kept: %s\n' "$WORK"
    else
        rm -rf --one-file-system "$WORK"
    fi
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    set -Eeuo pipefail
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/xact-test.XXXXXX")
    # Other users take part in some tests.
    chmod 755 "$WORK"
    trap 'status=$?; set +e; clean_up $status; exit $status' EXIT
    trap 'exit 124' TERM INT
    trap 'printf "FAIL: %s, line %s: %s\n" "$(basename "${BASH_SOURCE[0]}")" "$LINENO" "$BASH_COMMAND" >&2' ERR
    cd "$WORK"
    source "$1"
    "$2"
fi
