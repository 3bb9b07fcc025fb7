# Functions for the tests on mounts. tests/run sources this file, and also runs it with a suite and
# the name of a test: then it is the process of that test, and any command that fails ends it.

source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"
PATH=$PATH:/usr/sbin:/sbin:$TOOLS/bin
# The tests run make. Variables of a make that runs the tests would change its output.
unset MAKEFLAGS MAKELEVEL MFLAGS
# The tests use the same shell everywhere; the caller may have another one, or none.
export SHELL=/bin/sh
TESTS=$ROOT/tests

# --- reports and checks --------------------------------------------------------------------------

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

# needs TOOL…: a test whose tool is missing fails.
needs() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || fail "$tool is missing: run 'make deps'"
    done
}

# --- volumes -------------------------------------------------------------------------------------

# volume IMG [ARGUMENTS OF xact mkfs…]: makes a volume with the engine that ENGINE names. Its size
# is 256 MiB unless --size is given.
ENGINE=${ENGINE:-journal}
volume() {
    local image=$1
    shift
    [[ " $* " == *" --size "* ]] || set -- --size 256M "$@"
    [[ " $* " == *" --engine "* ]] || set -- --engine "$ENGINE" "$@"
    # The pool limits the size of a commit as the journal does.
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

# Mounts with the kernel's ext4. A volume with generations is exported first, and the export is
# mounted read-only: changes to it would not reach the volume.
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

# A process that reads the list of all mounts keeps each of them busy for a moment. The loop device
# may outlive the umount: another process may have the mount in its own mount namespace.
kernel_unmounted() { # MNT
    local device
    device=$(findmnt -n -o SOURCE --mountpoint "$1")
    wait_until "the last user of $1" kernel_umount "$1"
    wait_until "the kernel to release $device" detached "$device"
}
kernel_umount() { umount "$1" 2>/dev/null; }
detached() { ! losetup "$1" >/dev/null 2>&1; }

# sound IMG: e2fsck corrects nothing and prints no remark, except that a tree of extents could be
# narrower. For a volume with generations that holds for xact check and for an export.
sound() {
    local said
    if "$XACT" info "$1" | grep xact_generations >/dev/null; then
        "$XACT" check "$1" >"$WORK/checked" 2>&1 || fail "xact check $1 found errors: $(<"$WORK/checked")"
        rm -f "$1.exported"
        "$XACT" snapshot export "$1" "$1.exported"
        sound "$1.exported"
        rm "$1.exported"
        return
    fi
    said=$(e2fsck -fn -E no_optimize_extents "$1" 2>&1) || fail "e2fsck -fn $1 found errors: $said"
    # The expected output is five passes and the summary.
    said=$(grep -vE '^(e2fsck [0-9]|Pass [1-5]: |.*: [0-9]+/[0-9]+ files \([0-9.]+% non-contiguous\), [0-9]+/[0-9]+ blocks$|$)' <<<"$said") || return 0
    fail "e2fsck -fn $1 printed remarks: $said"
}

# in_foreground IMG MNT [ARGUMENTS…]: mounts with the daemon as a child of the test; its process
# number is in DAEMON.
in_foreground() {
    local image=$1 point=$2
    shift 2
    mkdir -p "$point"
    "$XACT" mount --foreground "$image" "$point" "$@" 2>>"$WORK/daemon.log" &
    DAEMON=$!
    wait_until "the mount at $point" mountpoint -q "$point"
}

# wait_until WHAT COMMAND…: repeats the command until it succeeds, for up to 20 seconds.
wait_until() {
    local what=$1 i
    shift
    for ((i = 0; i < 2000; i++)); do
        "$@" && return 0
        sleep 0.01
    done
    fail "timeout while waiting for $what"
}

# Installs the helpers of mount(8), umount(8), mkfs(8) and fsck(8), for this test's mount namespace
# only.
with_helpers() {
    local name copy=$WORK/sbin
    mkdir "$copy"
    mount -t tmpfs none "$copy"
    cp -a /sbin/. "$copy/"
    for name in {mount,umount,fsck}.{,fuse.,fuseblk.}xact mkfs.xact; do ln -sf "$XACT" "$copy/$name"; done
    mount --bind "$copy" /sbin
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
    # The topmost mount comes first. A busy mount is detached, so that its daemon ends.
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
