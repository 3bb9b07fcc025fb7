# timeout: 14400
# Suites on older kernels, in qemu without hardware virtualisation: what xact does without the
# features of newer ones (docs/guide/kernels.md).

# The kernel of Debian 12. The suites are those in which the kernel's version matters: mounting,
# transactions, what others see, sync and umount.
test_linux_6_1() {
    local suites=${SUITES:-calls/ mount/ openers/ run/ synced/ tx/ visible/}
    # shellcheck disable=SC2086  # one word for each suite
    "$ROOT/scripts/guest" debian-12 env EMULATED=1 JOBS=2 tests/run $suites >"$WORK/guest" 2>&1 || {
        cat "$WORK/guest"
        fail "tests failed on Linux 6.1"
    }
    report "Linux 6.1: $(grep ' passed, ' "$WORK/guest" | tail -n 1)"
}
