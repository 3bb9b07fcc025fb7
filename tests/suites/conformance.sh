# The driver for xfstests (tests/conformance): the steps that xfstests takes, on loop devices.

DRIVER=$ROOT/tests/conformance/xfstests/bin

# A device with an empty volume, as TEST_DEV. All commands that follow are the driver's.
driven() { # ENGINE
    needs losetup mke2fs
    truncate -s 64M backing
    TEST_DEV=$(losetup -f --show backing)
    export TEST_DEV XACT XACT_ENGINE=$1 PATH=$DRIVER:$PATH
    mkdir -p mnt
    mkfs.ext4 -q -F -b 4096 "$TEST_DEV"
}

# After driven.
released() {
    umount mnt 2>/dev/null || true
    losetup -d "$TEST_DEV"
}

each_step() { # ENGINE
    driven "$1"
    mount -t ext4 -o acl,user_xattr "$TEST_DEV" mnt
    equal "type in df" ext4 "$(df -T -P mnt | awk 'END { print $2 }')"
    equal "mount in findmnt" "$TEST_DEV $PWD/mnt" "$(findmnt -rncv -t ext4 -S "$TEST_DEV" -o SOURCE,TARGET)"
    equal "type in findmnt" ext4 "$(findmnt -n -o FSTYPE mnt)"
    "$XACT" stat mnt >/dev/null || fail "the volume is not mounted by xact"
    echo contents >mnt/file
    setfacl -m u:1:r mnt/file
    umount mnt
    fsck -t ext4 -nf "$TEST_DEV" >check || fail "the volume is not clean: $(cat check)"
    mount -o ro "$TEST_DEV" mnt
    equal contents contents "$(cat mnt/file)"
    if touch mnt/new 2>/dev/null; then fail "a read-only mount was written to"; fi
    umount mnt
    # A check that cannot fail would hide all damage.
    printf '\001\000\000\000' | dd of="$TEST_DEV" bs=1 seek=$((1024 + 0xC)) conv=notrunc status=none
    if fsck -t ext4 -nf "$TEST_DEV" >check 2>&1; then fail "damage was not found"; fi
}

test_steps_of_xfstests() {
    trap released RETURN
    each_step journal
}

test_steps_of_xfstests_on_generations() {
    trap released RETURN
    each_step generations
}

# A command that has nothing to do with the devices under test is the machine's own.
test_other_devices() {
    driven journal
    trap released RETURN
    mkdir other
    mount -t tmpfs none other
    equal "another type" tmpfs "$(findmnt -n -o FSTYPE other)"
    umount other
    mke2fs -q -t ext4 -F other.img 8M
    e2fsck -nf other.img >/dev/null 2>&1 || fail "e2fsck of another image failed"
    if XACT=/nonexistent e2fsck -nf "$TEST_DEV" >/dev/null 2>&1; then fail "xact did not check the device"; fi
}
