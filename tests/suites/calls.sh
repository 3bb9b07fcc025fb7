# Calls that few programs make: kernel ext4, xact and a transaction of xact return the same.

# The answers. Before Linux 6.6, FUSE carries no time of birth (docs/guide/kernels.md).
answers() { # FOLDER [COMMAND THAT RUNS THE CALLS…]
    "${@:2}" python3 "$TESTS/calls.py" "$1" >all
    if [[ $(printf '%s\n' 6.6 "$(uname -r)" | sort -V | head -n 1) == 6.6 ]]; then
        cat all
    else
        grep -v '^time of birth ' all
    fi
}

compared() { # ARGUMENTS OF mke2fs…
    needs python3 mke2fs setfacl
    truncate -s 300M kernel.img
    mke2fs -q "$@" kernel.img
    cp --sparse=always kernel.img xact.img
    kernel_mounted kernel.img kernel
    mkdir kernel/calls
    answers kernel/calls >expected
    kernel_unmounted kernel
    mounted xact.img mnt
    mkdir mnt/calls mnt/inside
    answers mnt/calls >seen
    diff expected seen || fail "the kernel answers otherwise ($*)"
    answers "$WORK/mnt/inside" "$XACT" run --at mnt -- >seen
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

# The kernel's page cache agrees with the file system, on the mount and in a transaction.
page_cache() { # KIND OF page_cache.py
    needs python3
    for ENGINE in journal generations; do
        volume disk.img
        mounted disk.img mnt
        mkdir mnt/inside
        python3 "$TESTS/page_cache.py" "$1" "$WORK/mnt"
        "$XACT" run --at mnt -- python3 "$TESTS/page_cache.py" "$1" "$WORK/mnt/inside"
        unmounted mnt
        sound disk.img
        rm disk.img
    done
}

test_seek_finds_what_was_stored_into_mappings() { page_cache seek; }
test_bytes_stored_behind_the_end_never_become_contents() { page_cache tails; }
test_buffered_reads_see_direct_writes() { page_cache direct; }

# File handles work on the mount. In a transaction they open only what the kernel still knows.
test_file_handles() {
    needs python3 mke2fs
    truncate -s 256M kernel.img
    mke2fs -q -t ext4 kernel.img
    kernel_mounted kernel.img kernel
    python3 "$TESTS/handles.py" "$WORK/kernel" >/dev/null
    kernel_unmounted kernel
    for ENGINE in journal generations; do
        volume disk.img
        mounted disk.img mnt
        report "$(python3 "$TESTS/handles.py" "$WORK/mnt")"
        mkdir mnt/inside
        exits 1 -- "$XACT" run --at mnt -- python3 "$TESTS/handles.py" "$WORK/mnt/inside"
        has exits.err 'a file that is forgotten: ESTALE'
        unmounted mnt
        sound disk.img
        rm disk.img
    done
}
