# Volumes in fstab(5): mount(8), umount(8), mkfs(8) and fsck(8) with their helpers, and the options
# of ext4(5) and mount(8).

# The table of file systems, for mount(8) and fsck(8) of root.
fstab() { # LINE…
    printf '%s\n' "$@" >fstab
    export LIBMOUNT_FSTAB=$WORK/fstab
}

as_nobody() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }

test_volumes_of_fstab() {
    needs jq
    with_helpers
    volume a.img
    volume b.img
    local device
    device=$(losetup -f --show b.img)
    local uuid
    uuid=$("$XACT" info --json b.img | jq -r .uuid)
    mkdir a b c
    fstab "$WORK/a.img $WORK/a xact nofail,_netdev,x-systemd.automount,x-foo,user_xattr,nodelalloc,barrier=1,stripe=16,data_err=abort,commit=7,relatime,cache_size=32M,log=$WORK/a.log 0 0" \
        "UUID=$uuid $WORK/b xact noauto,ro 0 2" \
        "$WORK/none.img $WORK/c xact nofail 0 0"
    mount -a
    mountpoint -q a || fail "a is not mounted"
    ! mountpoint -q b || fail "noauto is mounted"
    equal "size of the cache" $((16 << 20)) "$("$XACT" stat --json a | jq .cache_limit_bytes)"
    has a.log "INFO  mount=$WORK/a: mounted $WORK/a.img"
    has <(findmnt -n -o OPTIONS a) relatime
    # Once is enough.
    mount -a
    equal "mounts of a" 1 "$(findmnt -n -o TARGET -R a | wc -l)"
    mount b
    has <(findmnt -n -o OPTIONS b) '^ro,'
    # A remount repeats the options of the table.
    mount -o remount,ro a
    mount -o remount,rw a
    exits 1 'option commit=9 cannot be changed .*it is 7s' -- mount -o remount,commit=9 a
    echo x >a/file
    umount a b
    has a.log "unmounted $WORK/a.img"
    mount -t xact -o loop,ro a.img c
    equal "through mount(8)'s loop device" x "$(cat c/file)"
    umount c
    mount -t fuse.xact a.img c
    umount c
    # fsck(8) checks what the table says.
    fsck -A -T >said
    has said "^$device: clean, 1[0-9]/[0-9]+ files"
    lacks said a.img
    losetup -d "$device"
    sound a.img
}

# mount(8) is a program of root that any user may call, if the table says so.
test_users_mount_their_volumes() {
    needs setpriv fusermount3
    [[ -e /etc/fstab && -u $(command -v mount) ]] || {
        report "not tested: this system has no /etc/fstab, or its mount is not set-user-ID"
        return
    }
    with_helpers
    [[ $(stat -c %a /dev/fuse) == 666 ]] || chmod 666 /dev/fuse
    chmod 755 .
    mkdir mnt
    chown nobody mnt .
    as_nobody "$XACT" mkfs disk.img --size 64M >/dev/null
    echo "$WORK/disk.img $WORK/mnt xact noauto,user 0 0" >fstab
    mount --bind fstab /etc/fstab
    as_nobody mount "$WORK/mnt"
    has <(findmnt -n -o OPTIONS mnt) 'nosuid.*nodev.*noexec|nosuid,nodev,noexec'
    as_nobody touch mnt/file
    as_nobody umount "$WORK/mnt"
    ! mountpoint -q mnt || fail "still mounted"
    sound disk.img
}

# Effects of options, and messages as users see them. The table of settings has a verdict on each.
test_options_of_ext4() {
    needs setpriv
    with_helpers
    volume disk.img --size 64M
    mkdir mnt
    # The group of new files.
    local option
    for option in grpid bsdgroups; do
        mounted disk.img mnt -o $option
        mkdir -p mnt/folder
        chgrp 1234 mnt/folder
        touch mnt/folder/$option
        mkdir mnt/folder/$option.d
        "$XACT" run --at mnt -- touch mnt/folder/$option.tx
        equal "$option" '1234 644, 1234 755, 1234 644' "$(stat -c '%g %a' mnt/folder/$option{,.d,.tx} | paste -sd , | sed 's/,/, /g')"
        unmounted mnt
    done
    mounted disk.img mnt -o sysvgroups
    touch mnt/folder/own
    equal sysvgroups 0 "$(stat -c %g mnt/folder/own)"
    local bsd
    bsd=$(stat -f -c %b mnt)
    unmounted mnt
    # The size that df shows.
    mounted disk.img mnt -o minixdf
    equal minixdf $((64 << 10)) "$(stat -f -c %b mnt)"
    [[ $bsd -lt $((64 << 10)) ]] || fail "bsddf counts $bsd blocks"
    chmod 777 mnt
    exits 1 'No space left' -- as_nobody dd if=/dev/zero of=mnt/full bs=64k status=none
    unmounted mnt
    # Users of the reserved space.
    for option in "resuid=$(id -u nobody)" "resgid=$(id -g nobody)"; do
        mounted disk.img mnt
        exits 1 'No space left' -- as_nobody dd if=/dev/zero of=mnt/more bs=64k count=1 status=none
        unmounted mnt
        mounted disk.img mnt -o "$option"
        as_nobody dd if=/dev/zero of=mnt/more bs=64k count=1 conv=fsync status=none
        rm mnt/more
        unmounted mnt
    done
    # Symbolic links.
    mounted disk.img mnt -o nosymfollow
    ln -s folder mnt/link
    exits 2 'Too many levels' -- ls mnt/link/
    unmounted mnt
    # Refusals name the reason, from xact mount and from mount(8).
    exits 64 'xact mount: error: -o dax: FUSE gives no direct access' -- "$XACT" mount -o dax disk.img mnt
    exits 64 '-o sb=131072: The volume is opened by its primary superblock' -- "$XACT" mount -o sb=131072 disk.img mnt
    exits 64 '-o stripe=wide: invalid value: expected stripe=N' -- "$XACT" mount -o stripe=wide disk.img mnt
    exits 1 '-o noacl: Access control lists always apply' -- mount -t xact -o noacl disk.img mnt
    exits 1 "unknown mount option 'frobnicate'" -- mount -t xact -o frobnicate disk.img mnt
    ! mountpoint -q mnt || fail "something is mounted"
    sound disk.img
}

# A volume on the first part of a block device, and its pool.
test_mkfs_on_a_part_of_a_device() {
    needs jq
    local device engine
    for engine in journal generations; do
        truncate -s 512M disk.img
        device=$(losetup -f --show disk.img)
        "$XACT" mkfs "$device" --size 256M --engine $engine -L part --force >made
        has made '(256 MiB in blocks|generations, with a pool of)'
        mkdir -p mnt
        mounted "$device" mnt
        dd if=/dev/urandom of=mnt/large bs=1M count=180 status=none
        [[ $engine == journal ]] || "$XACT" snapshot create mnt first
        rm mnt/large
        echo x >mnt/file
        unmounted mnt
        equal label part "$("$XACT" info --json "$device" | jq -r .label)"
        "$XACT" check "$device" >/dev/null
        # Nothing lies beyond.
        cmp <(head -c 256M /dev/zero) <(tail -c 256M disk.img)
        if [[ $engine == generations ]]; then
            mounted "$device" mnt
            equal "in the snapshot" $((180 << 20)) "$(stat -c %s mnt/.xact/snapshots/first/large)"
            unmounted mnt
            "$XACT" snapshot export "$device" exported.img --name first
            sound exported.img
        fi
        losetup -d "$device"
        rm disk.img
    done
    truncate -s 64M disk.img
    device=$(losetup -f --show disk.img)
    exits 64 'has 64 MiB, which is less than --size 65 MiB' -- "$XACT" mkfs "$device" --size 65M
    losetup -d "$device"
}

# Small volumes with generations, and the smallest.
test_mkfs_of_small_generations() {
    local size
    for size in 16M 40M 64M 100M 128M; do
        "$XACT" mkfs small.img --size $size --block-size 4K --engine generations --force >/dev/null
        mounted small.img mnt
        echo x >mnt/file
        unmounted mnt
        "$XACT" check small.img >/dev/null
    done
    local block least
    for block in 1K 4K; do
        exits 64 'the smallest size is|to .* at least' -- \
            "$XACT" mkfs new.img --size 1M --block-size $block --engine generations
        least=$(grep -oE '[0-9.]+ [KM]iB( at least|\.$)' exits.err | tail -n 1 | sed -E 's/ ([KM])iB.*/\1/')
        "$XACT" mkfs new.img --size "$least" --block-size $block --engine generations >/dev/null
        report "the smallest volume with generations and blocks of $block: $least"
        rm new.img
    done
}

test_mkfs_helper() {
    needs jq
    with_helpers
    mkfs -t xact -b 4096 -m 1 -L data new.img 25600 >said
    has said 'new.img: 100 MiB in blocks of 4 KiB'
    equal label data "$("$XACT" info --json new.img | jq -r .label)"
    exits 1 'already holds an ext2, ext3 or ext4 file system' -- mkfs.xact new.img
    mkfs.xact -F new.img 64M >/dev/null
    equal size $((64 << 20)) "$("$XACT" info --json new.img | jq .size_bytes)"
    exits 1 'mkfs.xact: .*--frobnicate' -- mkfs.xact --frobnicate new.img
    sound new.img
}

# The exit bits of fsck(8).
test_fsck_helper() {
    needs debugfs e2fsck
    with_helpers
    local options
    for options in "" "--engine generations"; do
        # shellcheck disable=SC2086  # words
        "$XACT" mkfs disk.img --force --size 64M $options >/dev/null
        fstab "$WORK/disk.img $WORK/mnt xact defaults 0 2"
        exits 0 -- fsck -a "$WORK/disk.img"
        has exits.out 'disk.img: clean, 1[0-9]/[0-9]+ files, '
        exits 0 -- fsck.xact -f -n disk.img
        mounted disk.img mnt
        echo x >mnt/file
        "$XACT" sync mnt
        # Goes to the intent log.
        dd if=/dev/zero of=mnt/file bs=100 count=1 oflag=append conv=notrunc,fsync status=none
        cp --sparse=always disk.img crashed.img
        exits 8 'disk.img is in use' -- fsck.xact -n disk.img
        unmounted mnt
        # After a crash: -n writes nothing, -a replays.
        cp --sparse=always crashed.img before.img
        exits 0 -- fsck.xact -n crashed.img
        cmp crashed.img before.img
        exits 0 -- fsck.xact -p crashed.img
        has exits.out "crashed.img: $([[ -z $options ]] && echo 'replayed [0-9]+ commits' || echo 'wrote a generation with [1-9][0-9]* blocks of the intent log')"
        has exits.out 'crashed.img: clean'
        exits 0 -- fsck.xact -p -f -C 3 crashed.img 3>progress
        has progress '^[1-5] [0-9]+ 1000 crashed.img$'
        mounted crashed.img mnt
        equal "after the replay" "x 102" "$(head -n 1 mnt/file) $(stat -c %s mnt/file)"
        unmounted mnt
    done
    # Without a journal a crash leaves errors, which e2fsck corrects.
    "$XACT" mkfs disk.img --force --size 64M --engine none >/dev/null
    mounted disk.img mnt
    echo x >mnt/file
    "$XACT" sync mnt
    cp --sparse=always disk.img crashed.img
    unmounted mnt
    exits 4 -- fsck.xact -n crashed.img
    exits 1 -- fsck.xact -p crashed.img
    exits 0 -- fsck.xact -n crashed.img
    # A log that only xact can replay.
    volume disk.img --size 64M --force --engine journal
    "$XACT" mode set disk.img log_records=sub-block
    mounted disk.img mnt
    echo x >mnt/file
    mkdir mnt/folder
    echo x >mnt/folder/inner
    "$XACT" sync mnt
    cp --sparse=always disk.img crashed.img
    unmounted mnt
    e2fsck -p crashed.img >/dev/null 2>&1 && fail "e2fsck replays it: the test is of no use"
    exits 0 -- fsck.xact -a crashed.img
    sound crashed.img
    # Damage: what is safe to repair, and what is not.
    "$XACT" mode set disk.img log_records=default
    debugfs -w -R 'set_inode_field file links_count 7' disk.img 2>/dev/null
    exits 0 -- fsck.xact -a disk.img
    exits 4 "1 problem found" -- fsck.xact -n disk.img
    has exits.out 'inode [0-9]+.*link'
    exits 1 -- fsck.xact -a -f disk.img
    has exits.out 'repaired by e2fsck'
    exits 0 -- fsck.xact -n disk.img
    debugfs -w -R 'clri folder' disk.img 2>/dev/null
    exits 4 -- fsck.xact -p -f disk.img
    exits 1 -- fsck.xact -y -f disk.img
    exits 0 -- fsck.xact -n disk.img
    sound disk.img
    # e2fsck cannot repair generations.
    "$XACT" mkfs disk.img --force --size 64M --engine generations >/dev/null
    mounted disk.img mnt
    mkdir mnt/folder
    unmounted mnt
    local at
    at=$(grep -aboF folder disk.img | head -n 1 | cut -d : -f 1)
    printf X | dd of=disk.img bs=1 seek="$at" conv=notrunc status=none
    exits 4 'export --best-effort' -- fsck.xact -y -f disk.img
    # Wrong usage, and files without a volume.
    exits 16 'cannot be used with' -- fsck.xact -n -y disk.img
    exits 16 'required' -- fsck.xact
    exits 8 'no.img does not exist' -- fsck.xact no.img
    truncate -s 1M empty.img
    exits 8 'not an ext2, ext3 or ext4 volume' -- fsck.xact empty.img
    exits 0 'fsck.xact [0-9.]+' -- fsck.xact -V
}
