# The file system below an image: a full host, and an image that others truncate or delete. What was
# not saved is reported when the volume is unmounted.

source "$TESTS/host_full.sh"

# one_write_is_lost: a file is in memory only, and the image is spoilt by the command given.
one_write_is_lost() {
    echo kept >mnt/kept
    "$XACT" sync mnt
    mkdir mnt/folder
    echo lost >mnt/folder/lost
    "$@"
    # No sync succeeds any more.
    if sync mnt/folder/lost 2>said; then fail "an fsync succeeded after '$*'"; fi
    if "$XACT" sync mnt 2>said; then fail "xact sync succeeded after '$*'"; fi
}

# By its path: as root, the daemon lets no program open the image for writing.
truncated() { python3 -c 'import os, sys; os.truncate(sys.argv[1], int(sys.argv[2]))' "$@"; }
export -f truncated

test_umount_reports_what_was_lost() {
    local spoil
    for spoil in 'truncated disk.img 104857600' 'rm disk.img' 'cp kept.img other.img; mv other.img disk.img'; do
        rm -f disk.img said daemon.log
        volume disk.img
        cp --sparse=always disk.img kept.img
        mounted disk.img mnt --log daemon.log
        one_write_is_lost bash -c "$spoil"
        exits 74 'disk\.img( \(deleted\))?: not everything was saved: .*another program has (truncated|deleted or replaced) the image' \
            -- "$XACT" umount mnt
        has exits.err 'since the last successful sync are lost, among them those of .*/folder/lost'
        has daemon.log 'not everything was saved: .*another program has'
        if mountpoint -q mnt; then fail "mnt is still mounted"; fi
    done
    [[ $(stat -c %s disk.img) -gt 0 ]]
}

test_a_truncated_image_does_not_grow_again() {
    volume disk.img
    mounted disk.img mnt --log daemon.log
    one_write_is_lost truncated disk.img 1048576
    exits 74 'truncated the image from 268435456 to 1048576 bytes' -- "$XACT" umount mnt
    equal "size of the image" 1048576 "$(stat -c %s disk.img)"
}

test_umount_waits_for_the_report_of_all_who_ask() {
    volume disk.img
    mounted disk.img mnt
    echo text >mnt/file
    "$XACT" umount mnt 2>said
    equal "messages of an unmount that saved everything" '' "$(<said)"
    # The daemon had died before: what it had is in the journal or lost, and the command says so.
    in_foreground disk.img mnt
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    "$XACT" umount mnt 2>said
    has said 'the daemon of .*disk\.img had died: changes that were not synced may be lost'
}

test_mount_in_foreground_fails_if_something_was_lost() {
    local status=0
    volume disk.img
    in_foreground disk.img mnt
    one_write_is_lost rm disk.img
    exits 74 'not everything was saved' -- "$XACT" umount mnt
    wait "$DAEMON" || status=$?
    equal "exit status of the daemon" 74 "$status"
    has daemon.log 'not everything was saved: .*/folder/lost'
}

test_a_shutdown_on_request_is_no_loss() {
    volume disk.img
    mounted disk.img mnt
    echo text >mnt/file
    python3 - mnt <<'PY'
import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack("I", 0))
PY
    "$XACT" umount mnt
}

# A volume whose only bitmap of blocks is damaged. On a device, data is accepted before it is known
# that there is no place for it.
test_umount_reports_a_file_that_had_no_place() {
    [[ $ENGINE == journal ]] || return 0
    needs debugfs mke2fs losetup
    local block device
    truncate -s 8M disk.img
    mke2fs -q -F -t ext4 disk.img
    echo hi >small
    debugfs -w -R "write small a" disk.img >/dev/null 2>&1
    block=$(debugfs -R "bmap a 0" disk.img 2>/dev/null)
    debugfs -w -R "freeb $block" disk.img 2>/dev/null
    cp disk.img image.img
    device=$(losetup -f --show disk.img)
    mounted "$device" mnt --log daemon.log
    head -c 100000 /dev/zero >mnt/new
    exits 74 'not everything was saved: .*bitmap.*lost, among them those of .*/new' -- "$XACT" umount mnt
    losetup -d "$device"
    # In an image file, a write asks for its place on the host first.
    mounted image.img mnt --log image.log
    if head -c 100000 /dev/zero 2>said >mnt/new; then fail "a write without a place was accepted"; fi
    "$XACT" umount mnt
}

test_a_full_host() {
    needs fstrim mkfs.ext4
    local engine
    for engine in journal generations; do
        host_full_rounds $engine tmpfs 3
        host_full_rounds $engine ext4 2
    done
}

test_a_full_host_is_reported() {
    small_host tmpfs host
    volume host/disk.img --size 200M
    volume host/second.img --size 100M
    mounted host/disk.img mnt --log daemon.log
    echo text >mnt/file
    "$XACT" sync mnt
    if dd if=/dev/zero of=mnt/big bs=64k count=2000 conv=fsync 2>said; then fail "128 MB fit into 40 MB"; fi
    has said 'No space left on device'
    has daemon.log 'WARN.* the host file system of the image is full'
    exits 72 'not committed: no space left on the host file system of the image' -- \
        "$XACT" run --at mnt -- sh -c 'head -c 3000000 /dev/urandom >mnt/new'
    has exits.err 'Make space on the file system that the image lies on'
    # Deleting works, and what was deleted can be written again.
    rm mnt/big
    "$XACT" sync mnt
    head -c 5000000 /dev/urandom >mnt/other
    sync mnt/other
    # The host still has no space for more of the image.
    if dd if=/dev/zero of=mnt/big bs=64k count=2000 2>said; then fail "128 MB fit into 40 MB"; fi
    "$XACT" umount mnt 2>said
    has said 'the file system of .*disk\.img is full: everything that calls accepted was saved'
    lacks daemon.log 'read-only from now on'
    sound host/disk.img
    # The log of a volume needs space at once.
    dd if=/dev/zero of=host/ballast bs=64k 2>/dev/null || true
    exits 72 'no space left on the host file system' -- "$XACT" mount host/second.img mnt
    wait_until "the host file system to be free" umount_host
}
