# Maintenance of a mounted volume: discarding, the label, shutting down, damage.

# used IMG: KiB that the image file takes.
used() { du -k "$1" | cut -f1; }

# freed BLOCKS: at least this number is free.
freed() { [[ $(stat -fc %f mnt) -ge $1 ]]; }

test_fstrim() {
    needs fstrim
    local journal before
    for journal in "" "-O ^has_journal"; do
        rm -f disk.img
        # At the start the image holds every block of the file.
        head -c 128M /dev/zero | tr '\0' x >disk.img
        # shellcheck disable=SC2086  # words
        mke2fs -q -F -t ext4 -E nodiscard,lazy_itable_init=0 $journal disk.img
        mounted disk.img mnt
        head -c 40M /dev/urandom >mnt/kept
        head -c 30M /dev/urandom >mnt/gone
        sha256sum mnt/kept >kept.sum
        "$XACT" sync mnt
        before=$(stat -fc %f mnt)
        rm mnt/gone
        # The kernel notifies the daemon only a moment later that the file is no longer open.
        wait_until "the deletion" freed $((before + 6000))
        before=$(used disk.img)
        fstrim -v mnt >trimmed
        has trimmed 'MiB'
        [[ $(used disk.img) -lt $((before - 60000)) ]] || fail "trimmed $(cat trimmed), and $before KiB became $(used disk.img)"
        exits 1 -- fstrim -m 4G mnt
        exits 1 'Operation not permitted' -- setpriv --reuid 1000 --clear-groups -- fstrim mnt
        sha256sum --quiet -c kept.sum
        head -c 20M /dev/urandom >mnt/more
        sha256sum mnt/more >>kept.sum
        unmounted mnt
        sound disk.img
        kernel_mounted disk.img mnt ro
        sha256sum --quiet -c kept.sum
        kernel_unmounted mnt
    done
}

# shrunk IMG KIB: it takes less, once all changes are durable. (The kernel notifies the daemon only
# a moment after a deletion that the file is no longer open.)
shrunk() {
    "$XACT" sync mnt
    [[ $(used "$1") -lt $2 ]]
}

test_discard_of_freed_space() {
    local options before
    "$XACT" mkfs disk.img --size 256M >/dev/null
    for options in nodiscard discard; do
        mounted disk.img mnt -o $options
        head -c 60M /dev/urandom >mnt/file
        "$XACT" sync mnt
        before=$(used disk.img)
        rm mnt/file
        if [[ $options == discard ]]; then
            wait_until "the image to shrink" shrunk disk.img $((before - 58000))
        fi
        unmounted mnt
        sound disk.img
    done
}

# volume_ioctl FILE label|set-label TEXT|version|set-version|shutdown HOW
volume_ioctl() {
    python3 - "$@" <<'PYTHON'
import array, fcntl, os, struct, sys

path, what, argument = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
descriptor = os.open(path, os.O_RDONLY)
if what == "label":
    buffer = bytearray(256)
    fcntl.ioctl(descriptor, 0x81009431, buffer)
    print(buffer.split(b"\0")[0].decode())
elif what == "set-label":
    fcntl.ioctl(descriptor, 0x41009432, argument.encode().ljust(256, b"\0"))
elif what == "version":
    buffer = bytearray(8)
    fcntl.ioctl(descriptor, int(argument, 0), buffer)
    print(struct.unpack_from("<I", buffer)[0])
elif what == "set-version":
    fcntl.ioctl(descriptor, 0x40087602, struct.pack("<q", 5))
elif what == "shutdown":
    fcntl.ioctl(descriptor, 0x8004587D, bytearray(struct.pack("<I", int(argument))))
PYTHON
}

test_label_and_versions() {
    volume disk.img --label before
    mounted disk.img mnt
    equal label before "$(volume_ioctl mnt label)"
    volume_ioctl mnt set-label "sixteen letters!"
    equal label "sixteen letters!" "$(volume_ioctl mnt label)"
    # The superblock of a volume with generations is in the pool.
    [[ $ENGINE == generations ]] ||
        equal "label on the device" "sixteen letters!" "$(blkid -p -o value -s LABEL disk.img)"
    exits 1 'Invalid argument' -- volume_ioctl mnt set-label "seventeen letters"
    exits 1 'not permitted' -- python3 -c '
import fcntl, os
os.setuid(1000)
fcntl.ioctl(os.open("mnt", os.O_RDONLY), 0x41009432, b"x".ljust(256, b"\0"))'
    touch mnt/file
    equal "both numbers" "$(volume_ioctl mnt/file version 0x80087601)" "$(volume_ioctl mnt/file version 0x80086603)"
    exits 1 'not supported' -- volume_ioctl mnt/file set-version
    unmounted mnt
    sound disk.img
    "$XACT" info disk.img | grep -q "sixteen letters!"
}

test_shutdown() {
    local how
    for how in 0 1 2; do
        rm -f disk.img
        volume disk.img
        in_foreground disk.img mnt --commit-interval 3600
        echo synced >mnt/synced
        sync mnt/synced
        echo "not synced" >mnt/unsynced
        exits 1 'not permitted' -- python3 -c '
import fcntl, os
os.setuid(1000)
fcntl.ioctl(os.open("mnt", os.O_RDONLY), 0x8004587D, bytearray(4))'
        volume_ioctl mnt shutdown $how
        exits 1 'Input/output error' -- touch mnt/later
        equal "what was there" synced "$(cat mnt/synced)"
        umount mnt
        wait "$DAEMON" || true
        "$XACT" recover disk.img >/dev/null
        sound disk.img
        mounted disk.img mnt
        equal synced synced "$(cat mnt/synced)"
        [[ ! -e mnt/later ]] || fail "a file was made after the shutdown"
        case $how in
        0) equal unsynced "not synced" "$(cat mnt/unsynced)" ;;
        1) [[ -e mnt/unsynced ]] || fail "the log was not flushed" ;;
        2) [[ ! -e mnt/unsynced ]] || fail "something was flushed" ;;
        esac
        unmounted mnt
    done
}

# damaged IMG: a volume with a directory whose block is damaged, and a sound one.
damaged() {
    local block
    rm -f "$1"
    truncate -s 64M "$1"
    mke2fs -q -F -t ext4 -O metadata_csum "$1"
    mounted "$1" mnt
    mkdir mnt/bad mnt/good
    seq -f "mnt/bad/%.0f" 20 | xargs touch
    unmounted mnt
    block=$(debugfs -R "bmap /bad 0" "$1" 2>/dev/null)
    dd if=/dev/urandom of="$1" bs=$(dumpe2fs -h "$1" 2>/dev/null | awk '/^Block size/ { print $3 }') \
        seek="$block" count=1 conv=notrunc status=none
}

test_damage() {
    local how count=0
    for how in continue remount-ro panic; do
        damaged disk.img
        in_foreground disk.img mnt -o errors=$how
        exits 2 'Structure needs cleaning' -- ls mnt/bad/5
        case $how in
        continue) touch mnt/good/file ;;
        remount-ro)
            exits 1 'Read-only file system' -- touch mnt/good/file
            ls mnt/good
            ;;
        panic) exits 2 'Input/output error' -- ls mnt/good/none ;;
        esac
        umount mnt
        wait "$DAEMON" || true
        "$XACT" recover disk.img >/dev/null
        dumpe2fs -h disk.img >facts 2>/dev/null
        has facts '^Filesystem state: +clean with errors$'
        has facts '^FS Error count: +[1-9]'
        has facts '^First error function: +'
        e2fsck -fy disk.img >/dev/null 2>&1 || true
        dumpe2fs -h disk.img 2>/dev/null | grep -q '^Filesystem state: *clean$'
        count=$((count + 1))
    done
    # The superblock's own setting, if no other is given.
    damaged disk.img
    tune2fs -e remount-ro disk.img >/dev/null
    mounted disk.img mnt
    ls mnt/bad/5 2>/dev/null && fail "damage was not noticed"
    exits 1 'Read-only file system' -- touch mnt/good/file
    unmounted mnt
}
