# Calls that few programs make: kernel ext4, xact and a transaction of xact return the same.

compared() { # ARGUMENTS OF mke2fs…
    needs python3 mke2fs setfacl
    truncate -s 300M kernel.img
    mke2fs -q "$@" kernel.img
    cp --sparse=always kernel.img xact.img
    kernel_mounted kernel.img kernel
    mkdir kernel/calls
    python3 "$TESTS/calls.py" kernel/calls >expected
    kernel_unmounted kernel
    mounted xact.img mnt
    mkdir mnt/calls mnt/inside
    python3 "$TESTS/calls.py" mnt/calls >seen
    diff expected seen || fail "the kernel answers otherwise ($*)"
    "$XACT" run --at mnt -- python3 "$TESTS/calls.py" "$WORK/mnt/inside" >seen
    diff expected seen || fail "in a transaction the answers are others ($*)"
    (cd mnt/calls && describe_tree .) | sed 's/mtime=[0-9]*//' >outside
    (cd mnt/inside && describe_tree .) | sed 's/mtime=[0-9]*//' >inside
    diff outside inside || fail "the transaction left another tree"
    unmounted mnt
    sound xact.img
}

test_calls_on_ext4() { compared -t ext4 -b 4096; }
test_calls_on_blocks_of_1_kib() { compared -t ext4 -b 1024; }
test_calls_on_ext3() { compared -t ext3 -b 4096; }
