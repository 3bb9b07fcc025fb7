# timeout: 7200
# One transaction with a million new files through a journal of 16 MiB, and one that removes them.

test_a_million_files() {
    local count=${SIZE_FILES:-1000000}
    truncate -s 12G disk.img
    mke2fs -q -F -t ext4 -b 4096 -N 2000000 -J size=16 disk.img
    in_foreground disk.img mnt
    "$XACT" run --at mnt -- python3 - "$count" <<'END'
import os, sys
count = int(sys.argv[1])
for folder in range(0, count, 10000):
    os.mkdir(f"mnt/{folder}")
    for i in range(folder, min(folder + 10000, count)):
        os.close(os.open(f"mnt/{folder}/{i}", os.O_CREAT | os.O_WRONLY, 0o644))
END
    report "the daemon with $count new files: $(grep VmHWM "/proc/$DAEMON/status")"
    "$XACT" sync mnt
    unmounted mnt
    wait "$DAEMON"
    sound disk.img
    kernel_mounted disk.img mnt
    equal "files for the kernel" "$count" "$(find mnt -type f | wc -l)"
    kernel_unmounted mnt
    mounted disk.img mnt
    "$XACT" run --at mnt -- sh -c 'rm -rf mnt/[0-9]*'
    unmounted mnt
    sound disk.img
    dumpe2fs -h disk.img 2>/dev/null | grep -qE '^Total journal size: *16M' || fail "the journal is not as it was"
}

# 4 GiB in one transaction through a small cache.
test_four_gigabytes() {
    truncate -s 6G disk.img
    mke2fs -q -F -t ext4 -b 4096 disk.img
    in_foreground disk.img mnt --cache-size 32M
    "$XACT" run --at mnt -- sh -c 'head -c 4G /dev/zero | tr "\0" x >mnt/file'
    report "the daemon: $(grep VmHWM "/proc/$DAEMON/status")"
    "$XACT" umount mnt
    wait "$DAEMON"
    sound disk.img
    kernel_mounted disk.img mnt
    head -c 4G /dev/zero | tr '\0' x | cmp - mnt/file
    kernel_unmounted mnt
}
