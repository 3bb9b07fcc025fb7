# sync, umount and remount by other programs than xact, and programs that open the image of a
# mounted volume. Each on mounts of the type fuseblk and on plain ones.

TYPES=(fuseblk nofuseblk)

# umount(2) itself, without any helper.
bare_umount() { # MNT
    python3 -c '
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(libc.umount2(sys.argv[1].encode(), 0) and ctypes.get_errno())' "$PWD/$1"
}

# Succeeds if no process has locked the image.
is_free() { flock --nonblock --shared "$1" true; }

# Prints FILE as a power cut would leave it now.
after_power_cut() { # IMG FILE
    cp --sparse=always "$1" "$1.cut"
    mounted "$1.cut" cut
    cat "cut/$2"
    unmounted cut
}

kernel_syncs() { [[ $(printf '%s\n' 6.18 "$(uname -r)" | sort -V | head -n 1) == 6.18 ]]; }

test_the_type_is_fuseblk_for_root() {
    volume disk.img
    mounted disk.img mnt --log log
    equal type fuseblk.xact "$(findmnt -n -o FSTYPE mnt)"
    equal "the image" "$WORK/disk.img" "$("$XACT" stat --json mnt | jq -r .image)"
    equal "what reaches the daemon" "$(kernel_syncs && echo true || echo false)" \
        "$("$XACT" stat --json mnt | jq .sync_reaches)"
    kernel_syncs || has log 'sync\(2\) and syncfs\(2\) do not reach this mount'
    unmounted mnt
    mounted disk.img mnt --log log2 -o nofuseblk
    equal type fuse.xact "$(findmnt -n -o FSTYPE mnt)"
    equal "what reaches the daemon" false "$("$XACT" stat --json mnt | jq .sync_reaches)"
    has <("$XACT" stat mnt) "do not reach this mount: use 'xact sync'"
    has log2 "do not reach this mount .the option nofuseblk"
    unmounted mnt
    mounted disk.img mnt -o ro
    equal "type of a read-only mount" fuseblk.xact "$(findmnt -n -o FSTYPE mnt)"
    unmounted mnt
    # Without loop devices, the type is the plain one, unless fuseblk was asked for.
    mkdir dev
    mount -t tmpfs none dev
    local name
    for name in fuse null urandom; do cp -a "/dev/$name" dev/; done
    mount --move dev /dev
    mounted disk.img mnt --log log3
    equal "type without loop devices" fuse.xact "$(findmnt -n -o FSTYPE mnt)"
    has log3 'do not reach this mount .attaching a loop device: No such file'
    unmounted mnt
    exits 69 'cannot mount with the type fuseblk: attaching a loop device' -- "$XACT" mount disk.img mnt -o fuseblk
    sound disk.img
}

test_sync_makes_everything_durable() {
    kernel_syncs || {
        report "not tested: kernels before 6.18 do not report sync(2) to the daemon"
        return
    }
    volume disk.img
    mounted disk.img mnt --commit-interval 300
    echo one >mnt/one
    sync
    equal "after sync" one "$(after_power_cut disk.img one)"
    echo two >mnt/two
    sync -f mnt/two
    equal "after syncfs" two "$(after_power_cut disk.img two)"
    echo three >mnt/three
    mount -i -o remount,ro mnt
    equal "after remount,ro" three "$(after_power_cut disk.img three)"
    unmounted mnt
    sound disk.img
}

test_umount_waits_for_the_daemon() {
    with_helpers
    volume disk.img
    local type how
    for how in "bare_umount fuseblk" "umount fuseblk" "umount nofuseblk"; do
        type=${how#* }
        in_foreground disk.img mnt -o "$type" --commit-interval 300
        dd if=/dev/zero of="mnt/large" bs=1M count=50 status=none
        kill -STOP "$DAEMON"
        ${how% *} mnt 2>said &
        local job=$!
        sleep 2
        kill -0 $job 2>/dev/null || fail "$how: it returned before the daemon had closed the image"
        kill -CONT "$DAEMON"
        wait $job || fail "$how: it failed: $(<said)"
        is_free disk.img || fail "$how: the image is in use"
        [[ $how == bare* ]] || has said "waiting for the daemon .* \\($DAEMON\\)"
        sound disk.img
        wait "$DAEMON"
    done
}

test_a_mount_waits_for_a_daemon_that_is_closing() {
    volume disk.img
    in_foreground disk.img mnt -o nofuseblk
    echo x >mnt/file
    kill -STOP "$DAEMON"
    bare_umount mnt
    "$XACT" mount disk.img mnt &
    local job=$!
    sleep 1
    kill -0 $job 2>/dev/null || fail "it did not wait"
    kill -CONT "$DAEMON"
    wait $job
    equal content x "$(cat mnt/file)"
    unmounted mnt
    # Also if another command wants the image.
    in_foreground disk.img mnt -o nofuseblk
    kill -STOP "$DAEMON"
    bare_umount mnt
    (sleep 0.7 && kill -CONT "$DAEMON") &
    "$XACT" check disk.img >/dev/null
}

test_remount() {
    with_helpers
    volume disk.img
    local type
    for type in "${TYPES[@]}"; do
        mounted disk.img mnt -o "$type" --commit-interval 300
        echo "$type" >mnt/file
        mount -o remount,ro mnt
        exits 1 'Read-only file system' -- touch mnt/new
        equal "$type: after remount,ro" "$type" "$(after_power_cut disk.img file)"
        mount -o remount,rw mnt
        cp /bin/true mnt/true
        mount -o remount,noexec mnt
        exits 126 -- bash -c mnt/true
        mount -o remount,exec,nosuid mnt
        mnt/true
        has <(findmnt -n -o OPTIONS mnt) '^rw,nosuid'
        # An option that cannot be changed is refused. One with the present value changes nothing.
        exits 1 'option commit=7 cannot be changed while the volume is mounted .it is 5m' -- mount -o remount,commit=7 mnt
        exits 1 'option discard cannot be changed' -- mount -o remount,ro,discard mnt
        exits 1 "unknown mount option 'frobnicate'" -- mount -o remount,frobnicate mnt
        touch mnt/still-writable
        mount -o "remount,commit=300,nodiscard,noatime,allow_other,$type,exclusive" mnt
        # A file that is open for writing keeps the mount writable.
        exec 8>mnt/open
        exits 32 'in use: files are open for writing' -- mount -o remount,ro mnt
        exec 8>&-
        unmounted mnt
    done
    # The kinds of access times that the table of mounts shows are those of the daemon.
    mounted disk.img mnt -o strictatime,nodiratime,lazytime
    mount -o remount,ro mnt
    equal "access times" 'ro,nodiratime ro,lazytime' "$(findmnt -n -o VFS-OPTIONS mnt) $(findmnt -n -o FS-OPTIONS mnt | cut -d , -f 1,2)"
    mount -o remount,rw mnt
    exits 1 'option relatime cannot be changed' -- mount -o remount,relatime mnt
    unmounted mnt
    mounted disk.img mnt -o ro
    exits 1 'was mounted read-only' -- mount -o remount,rw mnt
    unmounted mnt
    # fstab(5) may name the type.
    mount -t fuse.xact -o commit=7,nofail "$WORK/disk.img" mnt
    equal content nofuseblk "$(cat mnt/file)"
    umount mnt
    sound disk.img
}

test_a_folder_with_contents_is_hidden() {
    volume disk.img
    mkdir -p mnt/below
    exits 0 'mnt is not empty: what it contains is hidden until the unmount' -- "$XACT" mount disk.img mnt
    unmounted mnt
    rmdir mnt/below
    "$XACT" mount disk.img mnt 2>said
    lacks said 'not empty'
    unmounted mnt
}

test_the_loop_device_goes_with_the_mount() {
    volume disk.img
    in_foreground disk.img mnt
    [[ -n $(losetup -j disk.img) ]] || fail "no loop device is attached"
    unmounted mnt
    wait "$DAEMON"
    equal "after umount" '' "$(losetup -j disk.img)"
    in_foreground disk.img mnt
    echo x >mnt/file
    "$XACT" sync mnt
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    # The loop device keeps the daemon's lock.
    mkdir other
    exits 69 "disk.img is in use: it is mounted at $WORK/mnt" -- "$XACT" mount disk.img other
    unmounted mnt
    equal "after the daemon's death" '' "$(losetup -j disk.img)"
    mounted disk.img mnt
    equal content x "$(cat mnt/file)"
    # With a transaction that was left open.
    "$XACT" run --at mnt --leave-open -- sh -c 'echo y >mnt/file'
    bare_umount mnt
    equal "with an open transaction" '' "$(losetup -j disk.img)"
    sound disk.img
}

test_a_mounted_device_may_be_mounted_again() {
    volume disk.img
    local device
    device=$(losetup -f --show disk.img)
    mounted "$device" mnt
    mkdir other
    exits 0 'shares the volume and the log mounted at' -- "$XACT" mount "$device" other --log other.log
    echo x >mnt/file
    equal content x "$(cat other/file)"
    mkdir third
    exits 64 'option ro cannot be changed' -- "$XACT" mount -o ro "$device" third
    exits 64 'a second mount shares its settings' -- "$XACT" mount --cache-size 64M "$device" third
    exits 69 'mounted at|attached to' -- "$XACT" mount disk.img third
    exits 32 -- mount -t ext4 "$device" third
    exits 0 'still mounted at .*/other' -- "$XACT" umount mnt
    equal content x "$(cat other/file)"
    unmounted other
    e2fsck -fn "$device" >checked 2>&1 || [[ $ENGINE == generations ]] || fail "$(<checked)"
    losetup -d "$device"
    sound disk.img
}

# Programs that open the image for writing are denied; readers and the daemon are not.
test_other_programs_cannot_open_the_image() {
    volume disk.img
    local type
    mkdir kernel
    for type in "${TYPES[@]}"; do
        in_foreground disk.img mnt -o "$type" --log log
        echo one >mnt/one
        ! losetup -f disk.img 2>said || fail "losetup attaches the image"
        ! mount -o loop disk.img kernel 2>said || fail "the kernel mounts the image"
        ! e2fsck -fy disk.img >said 2>&1 || fail "e2fsck writes to the image: $(<said)"
        ! dd if=/dev/zero of=disk.img bs=4096 count=1 conv=notrunc status=none 2>said || fail "dd writes"
        has said 'Operation not permitted'
        has log 'denied: dd .* was to open .*disk.img for writing'
        cp --sparse=always disk.img copy.img
        "$XACT" info disk.img >/dev/null
        echo two >mnt/two
        # A daemon that does not answer lets others wait, and a dead one lets them pass.
        kill -STOP "$DAEMON"
        ! timeout 0.5 sh -c ': <disk.img' || fail "the question was not asked"
        kill -KILL "$DAEMON"
        timeout 5 sh -c ': <disk.img' || fail "an opener waits for a dead daemon"
        wait "$DAEMON" 2>/dev/null || true
        unmounted mnt
        in_foreground disk.img mnt -o "$type,noexclusive"
        dd if=disk.img of=disk.img bs=4096 count=1 conv=notrunc status=none
        unmounted mnt
        wait "$DAEMON"
        # Nothing is left of it after the unmount.
        dd if=disk.img of=disk.img bs=4096 count=1 conv=notrunc status=none
        sound disk.img
    done
}

test_a_loop_device_of_a_held_image_is_refused() {
    volume disk.img
    mounted disk.img mnt -o noexclusive,nofuseblk
    local device
    device=$(losetup -f --show disk.img)
    mkdir other
    exits 69 "$device is attached to .*disk.img, which is in use: it is mounted at $WORK/mnt" -- \
        "$XACT" mount "$device" other
    unmounted mnt
    exits 69 "disk.img is attached to the loop device $device" -- "$XACT" mount disk.img other
    losetup -d "$device"
    mounted disk.img other
    unmounted other
    sound disk.img
}

# Another writer is noticed before the next write, by root and by ordinary users.
test_another_writer_is_noticed() {
    needs setpriv fusermount3
    [[ $(stat -c %a /dev/fuse) == 666 ]] || chmod 666 /dev/fuse
    local user
    mkdir kernel
    for user in 0 65534; do
        volume disk.img --force --root-owner "$user:$user"
        mkdir -p mnt
        chown "$user" disk.img mnt
        as() { setpriv --reuid "$user" --regid "$user" --clear-groups "$@"; }
        rm -f "log.$user"
        : >"log.$user"
        chown "$user" "log.$user"
        as "$XACT" mount disk.img mnt -o noexclusive,nofuseblk --log "$WORK/log.$user"
        as "$XACT" sync mnt
        if [[ $ENGINE == generations ]]; then
            # The kernel does not mount it. Any other program that counts a mount:
            printf '\x77' | dd of=disk.img bs=1 seek=$((1024 + 0x34)) conv=notrunc status=none
        else
            mount -t ext4 -o loop disk.img kernel
            umount kernel
        fi
        exits 1 'Read-only file system|Input/output error' -- as sh -c 'touch mnt; exec sync mnt'
        has "log.$user" 'another program has written to the volume while it was mounted'
        as "$XACT" umount mnt || true
    done
}

test_umount_names_what_it_waits_for() {
    volume disk.img
    local type job keeper
    for type in "${TYPES[@]}"; do
        mounted disk.img mnt -o "$type"
        unshare --mount --propagation private sleep 100 &
        keeper=$!
        rm -f said
        wait_until "the namespace" grep -q sleep "/proc/$keeper/comm"
        "$XACT" umount mnt 2>said &
        job=$!
        wait_until "the note" grep -q waiting said
        has said "waiting for the daemon xact.* \\([0-9]+\\), which serves .*disk.img to other mount namespaces: the volume is mounted in those of sleep \\($keeper\\)"
        kill $keeper
        wait $keeper 2>/dev/null || true
        wait $job
        is_free disk.img
        sound disk.img
    done
}

test_an_ordinary_user_unmounts_by_umount() {
    needs setpriv fusermount3
    [[ $(stat -c %a /dev/fuse) == 666 ]] || chmod 666 /dev/fuse
    with_helpers
    # Others may execute it here.
    install -m 755 "$XACT" "$WORK/xact"
    ln -sf "$WORK/xact" /sbin/umount.fuse.xact
    volume disk.img
    mkdir mnt
    chown nobody disk.img mnt
    as_nobody() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }
    as_nobody "$WORK/xact" mount disk.img mnt
    equal type fuse.xact "$(as_nobody findmnt -n -o FSTYPE mnt)"
    as_nobody umount mnt
    is_free disk.img
    sound disk.img
}

# The daemon syncs its own mount once, to find out whether sync(2) reaches it. A thread that waits
# for its own process cannot be killed.
test_killed_in_its_own_sync() {
    needs strace
    kernel_syncs || { report "this kernel does not report sync(2) to FUSE servers" && return; }
    local daemon
    volume disk.img
    mkdir mnt
    strace -f -qq -o calls -e trace=fsync,fdatasync,syncfs -e inject=fsync,fdatasync:delay_enter=700ms \
        "$XACT" mount --foreground disk.img mnt --log log 2>traced &
    wait_until "the daemon's own sync" grep -qs 'syncfs(.*unfinished' calls
    daemon=$(pgrep -f "^$XACT mount --foreground disk.img mnt" | head -n 1)
    kill -9 "$daemon"
    wait_until "the daemon's end" has_ended "$daemon"
    umount mnt
    wait_until "the image to be free" is_free disk.img
    mounted disk.img mnt
    unmounted mnt
    sound disk.img
}
has_ended() { ! kill -0 "$1" 2>/dev/null; }
