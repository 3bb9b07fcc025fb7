# Volumes from the outside: making, mounting, unmounting, recovering, and all refusals.

afterwards() {
    unmounted mnt
    sound disk.img
}

# --- mkfs ----------------------------------------------------------------------------------------

test_mkfs_follows_its_options() {
    needs jq dumpe2fs
    "$XACT" mkfs disk.img --size 300M --label "a label" --uuid 123e4567-e89b-12d3-a456-426614174000 \
        --block-size 2K --inode-ratio 8K --journal-size 8M --reserved-percent 1 --json >made
    sound disk.img
    dumpe2fs -h disk.img >facts 2>/dev/null
    has facts '^Filesystem volume name: +a label$'
    has facts '^Filesystem UUID: +123e4567-e89b-12d3-a456-426614174000$'
    has facts '^Block size: +2048$'
    has facts '^Total journal size: +8M$'
    has facts '^Reserved block count: +1536$'
    equal uuid 123e4567-e89b-12d3-a456-426614174000 "$(jq -r .uuid made)"
    equal size $((300 << 20)) "$(stat -c %s disk.img)"
    [[ $(stat -c %b disk.img) -lt 20000 ]] || fail "the image is not sparse: $(du -h disk.img)"
    kernel_mounted disk.img mnt
    echo x >mnt/file
    kernel_unmounted mnt
    sound disk.img
}

test_mkfs_of_all_block_sizes_and_of_large_volumes() {
    local arguments
    for arguments in "--size 8M" "--size 100M --block-size 1K" "--size 1G --block-size 2K" "--size 4G" \
        "--size 1T" "--size 64M --journal-size 0"; do
        # shellcheck disable=SC2086  # words
        "$XACT" mkfs disk.img $arguments --force >/dev/null
        [[ $arguments == *T* ]] || sound disk.img
        kernel_mounted disk.img mnt
        kernel_unmounted mnt
        rm disk.img
    done
}

# On a block device, --size is the part of it that the volume takes; -L is short for --label.
test_mkfs_of_a_part_of_a_block_device() {
    local loop
    needs losetup
    truncate -s 64M device
    loop=$(losetup -f --show device)
    # shellcheck disable=SC2064  # the device of now
    trap "losetup -d $loop" RETURN
    exits 64 'has 64.* MiB, which is less than --size 128' -- "$XACT" mkfs "$loop" --size 128M
    exits 64 'smallest' -- "$XACT" mkfs "$loop" --size 64K
    "$XACT" mkfs "$loop" --size 32M -L part
    equal "size" 33554432 "$("$XACT" info "$loop" --json | sed -nE 's/.*"size_bytes": ([0-9]+).*/\1/p' | head -n 1)"
    "$XACT" info "$loop" | grep -q 'label: *part'
    mounted "$loop" mnt
    seq 1000 >mnt/file
    unmounted mnt
    sound "$loop"
}

test_mkfs_overwrites_nothing_without_force() {
    "$XACT" mkfs disk.img --size 64M --label first >/dev/null
    exits 64 'already holds an ext2, ext3 or ext4 file system' -- "$XACT" mkfs disk.img --label second
    exits 64 'add --force' -- "$XACT" mkfs disk.img --size 128M
    "$XACT" info disk.img | grep -q first
    "$XACT" mkfs disk.img --label second --force >/dev/null
    "$XACT" info disk.img | grep -q second
    equal "size kept" $((64 << 20)) "$(stat -c %s disk.img)"
    echo "a letter" >letter
    exits 64 'already holds data' -- "$XACT" mkfs letter --size 64M
    equal content "a letter" "$(cat letter)"
}

test_mkfs_of_wrong_arguments() {
    exits 64 'Set the size' -- "$XACT" mkfs disk.img
    exits 64 'invalid size' -- "$XACT" mkfs disk.img --size lots
    exits 64 'too small' -- "$XACT" mkfs disk.img --size 1k
    exits 64 'the smallest size is [0-9]+ MiB' -- "$XACT" mkfs disk.img --size 8M --journal-size 16M
    exits 64 'invalid UUID' -- "$XACT" mkfs disk.img --size 64M --uuid x
    exits 64 'disk.img: ' -- "$XACT" mkfs disk.img --size 64M --block-size 3000
    exits 64 'disk.img: ' -- "$XACT" mkfs disk.img --size 64M --reserved-percent 99
    exits 64 'disk.img: ' -- "$XACT" mkfs disk.img --size 64M --journal-size 60M
    exits 64 'disk.img: ' -- "$XACT" mkfs disk.img --size 64M --label "a label of more than 16 bytes"
    [[ ! -e disk.img ]] || fail "a failed mkfs left its image"
    exits 66 'cannot create' -- "$XACT" mkfs no/such/folder/disk.img --size 64M
    exits 64 'neither an image file nor a block device' -- "$XACT" mkfs "$WORK" --size 64M
    mkdir full
    mount -t tmpfs -o size=64k none full
    exits 73 'no space|No space' -- "$XACT" mkfs full/disk.img --size 1G --block-size 4K --journal-size 64M
    umount full
}

test_mkfs_on_a_block_device() {
    truncate -s 64M backing
    local device
    device=$(losetup --find --show backing)
    "$XACT" mkfs "$device" >/dev/null || {
        losetup -d "$device"
        fail "mkfs of $device"
    }
    exits 64 'already holds' -- "$XACT" mkfs "$device"
    exits 69 'attached to the loop device' -- "$XACT" mkfs backing --force
    losetup -d "$device"
    sound backing
}

# --- recovery ------------------------------------------------------------------------------------

# A volume that the kernel left while it worked: its image is copied while it is mounted.
left_by_the_kernel() { # IMG
    volume work.img
    kernel_mounted work.img kernel
    python3 "$TESTS/grow_tree.py" kernel 1 500
    sync -f kernel/.
    python3 "$TESTS/grow_tree.py" kernel 2 200
    python3 -c 'import os; os.fsync(os.open("kernel", os.O_RDONLY))'
    exec 7>kernel/orphan
    dd if=/dev/zero bs=1M count=3 status=none >&7
    rm kernel/orphan
    python3 -c 'import os; os.fsync(os.open("kernel", os.O_RDONLY))'
    cp work.img "$1"
    exec 7>&-
    kernel_unmounted kernel
    has <(dumpe2fs -h "$1" 2>/dev/null) 'needs_recovery'
}

test_recover_a_volume_left_by_the_kernel() {
    needs debugfs jq
    left_by_the_kernel disk.img
    cp disk.img same.img
    cp disk.img xact.img
    kernel_mounted same.img mnt
    describe_tree mnt >expected
    kernel_unmounted mnt
    "$XACT" recover --json xact.img >report
    equal replayed true "$(jq -r .replayed report)"
    sound xact.img
    kernel_mounted xact.img mnt ro
    describe_tree mnt | diff expected - | head -n 20 >difference
    kernel_unmounted mnt
    [[ ! -s difference ]] || fail "$(cat difference)"
    "$XACT" recover --json xact.img >report
    equal "replayed again" false "$(jq -r .replayed report)"
}

test_recover_journal_only_leaves_what_debugfs_leaves() {
    needs debugfs
    left_by_the_kernel disk.img
    cp disk.img debugfs.img
    debugfs -w -R jr debugfs.img 2>/dev/null
    "$XACT" recover --journal-only disk.img >/dev/null
    # The superblock's statistics, and a field of the journal's superblock that debugfs does not
    # set.
    python3 - disk.img debugfs.img <<'END'
import sys
ours, theirs = (open(name, "rb").read() for name in sys.argv[1:])
assert len(ours) == len(theirs)
differ = [at for at in range(0, len(ours), 512) if ours[at:at + 512] != theirs[at:at + 512]]
assert len(differ) <= 4, f"{len(differ)} sectors differ, such as those at {differ[:8]}"
END
}

test_recover_of_bad_input() {
    exits 66 'does not exist' -- "$XACT" recover /no/such
    truncate -s 8M empty.img
    exits 64 'not an ext2, ext3 or ext4 volume' -- "$XACT" recover empty.img
    volume disk.img
    "$XACT" recover disk.img | grep -q 'nothing to replay'
    sound disk.img
    chmod 400 disk.img
    exits 77 'cannot be written' -- setpriv --reuid nobody --regid nogroup --clear-groups "$XACT" recover disk.img
}

# --- xact check ----------------------------------------------------------------------------------

test_check() {
    needs jq debugfs
    volume disk.img
    mounted disk.img mnt
    python3 "$TESTS/grow_tree.py" mnt 1 200
    exits 69 'in use' -- "$XACT" check disk.img
    unmounted mnt
    "$XACT" check disk.img >said
    has said '^disk.img: .* directories'
    "$XACT" check --json disk.img >report
    equal sound true "$(jq .sound report)"
    equal problems 0 "$(jq .problem_count report)"
    debugfs -w -R 'set_inode_field <2> links_count 99' disk.img 2>/dev/null
    exits 65 'problems? found' -- "$XACT" check disk.img
    has exits.out '^inode 2: counts 99 links'
    exits 65 -- "$XACT" check --json disk.img
    equal sound false "$(jq .sound exits.out)"
    equal where inode "$(jq -r '.problems[0].kind' exits.out)"
    equal number 2 "$(jq '.problems[0].number' exits.out)"
    # The result of a crash is judged as its recovery leaves it, and stays unchanged.
    left_by_the_kernel dirty.img
    cp --sparse=always dirty.img same.img
    "$XACT" check dirty.img >said 2>&1
    has said 'note: one inode waits for its deletion or truncation'
    has said 'note: the journal holds [0-9]+ transactions'
    cmp dirty.img same.img
    truncate -s 1M empty.img
    exits 64 'not an ext2, ext3 or ext4 volume' -- "$XACT" check empty.img
    exits 66 -- "$XACT" check no/such.img
}
