# xact mount and umount from a user's view, and all refusals, each with its message and code.

test_mount_and_umount() {
    volume disk.img --label data
    mounted disk.img mnt
    equal "type in df" fuseblk.xact "$(df --output=fstype mnt | tail -n 1)"
    equal "source in df" "$(losetup -n -O NAME -j disk.img)" "$(df --output=source mnt | tail -n 1)"
    echo x >mnt/file
    "$XACT" sync mnt
    "$XACT" stat mnt | grep -q "disk.img on $WORK/mnt"
    equal mount "$WORK/mnt" "$("$XACT" stat --json mnt/file | jq -r .mount)"
    # The counters follow the operations: an fsync of a small append is one commit, with its data,
    # which here begins in the first block of 1 KiB and ends in the fifth.
    local before
    before=$("$XACT" stat --json mnt | jq .counters)
    dd if=/dev/zero of=mnt/file bs=4096 count=1 oflag=append conv=notrunc,fsync status=none
    equal "an append with fsync" '{"c":1,"d":5,"n":5}' "$("$XACT" stat --json mnt |
        jq -c --argjson b "$before" '.counters | {c: (.commits - $b.commits),
            d: (.journaled_data_blocks - $b.journaled_data_blocks),
            n: (.new_blocks + .overwritten_blocks - $b.new_blocks - $b.overwritten_blocks)}')"
    timeout 5 "$XACT" stat --watch 0.1 --json mnt | head -n 2 | jq -e 'has("commits")' >watched
    equal "lines of --watch" 2 "$(grep -c true watched)"
    unmounted mnt
    [[ ! -e mnt/file ]]
    sound disk.img
    mounted disk.img mnt
    equal content x "$(cat mnt/file)"
    # Counters start at zero when the volume is mounted again while a process watches them.
    dd if=/dev/zero of=mnt/file bs=64k count=16 conv=fsync status=none
    timeout 10 "$XACT" stat --watch 2 --json mnt >watched &
    sleep 0.5
    unmounted mnt
    mounted disk.img mnt
    wait_until "figures after the second mount" grep -q commits watched
    kill $!
    unmounted mnt
}

# The blocks of each file that are new, and those that are overwritten (RFJ-6).
test_written_blocks_of_files() {
    needs jq python3
    volume disk.img --block-size 4096
    mounted disk.img mnt
    mkdir mnt/folder
    dd if=/dev/zero of=mnt/folder/new bs=4096 count=30 conv=fsync status=none
    dd if=/dev/zero of=mnt/overwritten bs=4096 count=4 conv=fsync status=none
    local n
    for n in 1 2 3 4 5; do
        dd if=/dev/zero of=mnt/overwritten bs=4096 count=4 conv=notrunc,fsync status=none
    done
    "$XACT" run --at mnt -- dd if=/dev/zero of=mnt/inside bs=4096 count=3 status=none
    dd if=/dev/zero of=mnt/deleted bs=4096 count=7 conv=fsync status=none
    rm mnt/deleted
    "$XACT" sync mnt
    equal "by file" '[["/folder/new",30,0],["/overwritten",4,20],["/inside",3,0]]' \
        "$("$XACT" stat --files --json mnt | jq -c '[.files[] | [.path, .new_blocks, .overwritten_blocks]]')"
    equal "the rest" '[1,14,0]' "$("$XACT" stat --files=1 --json mnt/folder |
        jq -c '[(.files | length), .other_new_blocks - 0, .other_overwritten_blocks - 20]')"
    "$XACT" stat --files mnt >said
    has said '^ +4 +20 +16  /overwritten$'
    has said '^ +7 +0 +100  deleted and other files$'
    equal "as a total" '[44,20]' "$("$XACT" stat --json mnt | jq -c '.counters | [.new_blocks, .overwritten_blocks]')"
    chmod 755 .
    exits 77 'Operation not permitted' -- setpriv --reuid 1000 --clear-groups "$XACT" stat --files mnt
    unmounted mnt
}

test_the_daemon_keeps_no_descriptors_of_the_caller() {
    volume disk.img
    mkdir mnt
    # This would wait for ever if the daemon kept the pipe open. The daemon's folder is not the
    # caller's.
    "$XACT" mount disk.img mnt 2>&1 7>pipe | cat
    mkdir other
    unmounted mnt
}

test_a_second_mount_is_refused() {
    volume disk.img
    mounted disk.img mnt
    mkdir other
    exits 69 "disk.img is in use: it is mounted at $PWD/mnt" -- "$XACT" mount disk.img other
    exits 69 'disk.img is in use' -- "$XACT" mount -o ro disk.img other
    exits 69 'disk.img is in use' -- "$XACT" recover disk.img
    exits 69 'disk.img is in use' -- "$XACT" mkfs --force disk.img
    unmounted mnt
    sound disk.img
}

test_an_image_that_the_kernel_has_is_refused() {
    volume disk.img
    kernel_mounted disk.img mnt
    mkdir other
    exits 69 'attached to the loop device' -- "$XACT" mount disk.img other
    kernel_unmounted mnt
}

test_read_only_mounts() {
    volume disk.img
    mounted disk.img mnt
    echo x >mnt/file
    unmounted mnt
    cp disk.img before.img
    mounted disk.img mnt -o ro
    mkdir other
    mounted disk.img other -o ro
    equal content 'x x' "$(cat mnt/file other/file | xargs)"
    exits 1 'Read-only file system' -- touch mnt/new
    equal "read_only" true "$("$XACT" stat --json mnt | jq .read_only)"
    exits 77 'mnt is mounted read-only and has no transactions' -- "$XACT" run --at mnt -- cat mnt/file
    unmounted other
    unmounted mnt
    cmp before.img disk.img
}

# As the kernel, a read-only mount replays the log that a crash left, or, with noload, ignores it
# and writes nothing. A volume with generations replays its log in memory.
test_read_only_mounts_after_a_crash() {
    volume disk.img
    mounted disk.img mnt
    echo x >mnt/file
    sync mnt/file
    cp --sparse=always disk.img crashed.img
    unmounted mnt
    local device option has_journal=true
    "$XACT" info disk.img | grep xact_generations >/dev/null && has_journal=false

    cp --sparse=always crashed.img used.img
    for option in noload norecovery; do
        mounted used.img mnt -o ro,$option
        equal "files without the log" lost+found "$(ls mnt)"
        # Another reader would have to write first.
        if $has_journal; then
            mkdir -p other
            exits 69 'used.img is (in use|attached to the loop device)' -- "$XACT" mount -o ro used.img other
        fi
        exits 32 'write-protected' -- mount -i -o remount,rw mnt
        unmounted mnt
    done
    cmp used.img crashed.img
    exits 64 'noload needs ro' -- "$XACT" mount -o noload used.img mnt

    # An image that cannot be written cannot be replayed.
    if $has_journal; then
        chmod 444 used.img
        exits 64 'must be replayed.*noload' -- setpriv --reuid nobody --regid nogroup --clear-groups \
            "$XACT" mount -o ro used.img mnt
    fi
    device=$(losetup -f --show used.img)
    blockdev --setro "$device"
    exits 77 "$device cannot be written" -- "$XACT" mount "$device" mnt
    if $has_journal; then
        exits 64 'must be replayed.*noload' -- "$XACT" mount -o ro "$device" mnt
    fi
    mounted "$device" mnt -o ro,noload
    equal "files without the log" lost+found "$(ls mnt)"
    unmounted mnt
    cmp used.img crashed.img
    blockdev --setrw "$device"
    mounted "$device" mnt -o ro
    equal "content on a device" x "$(cat mnt/file)"
    # Shared as any second mount of a device; noload does not matter any more.
    mounted "$device" other -o ro,noload
    equal "content at the second place" x "$(cat other/file)"
    unmounted other
    unmounted mnt
    losetup -d "$device"

    mounted crashed.img mnt -o ro
    mounted crashed.img other -o ro
    equal content 'x x' "$(cat mnt/file other/file | xargs)"
    unmounted other
    unmounted mnt
    if $has_journal; then
        equal "needs_recovery" false "$("$XACT" info --json crashed.img | jq .needs_recovery)"
    else
        cmp crashed.img used.img
    fi
    # The counts in the superblock follow with the next mount that writes, as in the kernel.
    mounted crashed.img mnt
    equal "content after all" x "$(cat mnt/file)"
    unmounted mnt
    sound crashed.img
}

test_bad_images() {
    needs mke2fs
    mkdir mnt
    exits 66 'no/such.img' -- "$XACT" mount no/such.img mnt
    truncate -s 10M empty.img
    exits 64 'empty.img: not an ext2, ext3 or ext4 volume' -- "$XACT" mount empty.img mnt
    local i
    for i in $(seq 20); do
        head -c 100000 /dev/urandom >noise.img
        exits 64 'noise.img: not an ext2, ext3 or ext4 volume' -- "$XACT" mount noise.img mnt
    done
    mke2fs -q -t ext4 -O encrypt encrypted.img 64M
    exits 78 'encrypt' -- "$XACT" mount encrypted.img mnt
    mke2fs -q -t ext4 -O verity verity.img 64M
    exits 78 'verity.*read-only' -- "$XACT" mount verity.img mnt
    "$XACT" mount -o ro verity.img mnt
    unmounted mnt
    volume short.img --size 64M
    truncate -s 20M short.img
    exits 74 'short.img' -- "$XACT" mount short.img mnt
    volume torn.img --size 64M
    printf '\xff\xff\xff\xff' | dd of=torn.img bs=1 seek=$((1024 + 4)) conv=notrunc status=none
    exits 74 'torn.img: .*superblock' -- "$XACT" mount torn.img mnt
    ! mountpoint -q mnt || fail "something is mounted"
}

test_bad_arguments() {
    volume disk.img
    mkdir mnt
    touch file
    exits 66 'no/such' -- "$XACT" mount disk.img no/such
    exits 64 'file is not a folder' -- "$XACT" mount disk.img file
    exits 64 'frobnicate' -- "$XACT" mount -o ro,frobnicate disk.img mnt
    exits 64 'invalid size' -- "$XACT" mount --cache-size many disk.img mnt
    exits 64 'invalid duration' -- "$XACT" mount --commit-interval never disk.img mnt
    exits 66 'cannot write the log' -- "$XACT" mount --log no/such/log disk.img mnt
    exits 64 'neither an image file nor a block device' -- "$XACT" mount "$WORK" mnt
    ! mountpoint -q mnt || fail "something is mounted"
}

test_no_permission() {
    needs setpriv
    volume disk.img
    chmod 600 disk.img
    mkdir mnt
    as_nobody() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }
    exits 77 'disk.img cannot be written: Permission denied' -- as_nobody "$XACT" mount disk.img mnt
    chmod 444 disk.img
    exits 77 'use -o ro' -- as_nobody "$XACT" mount disk.img mnt
    mounted disk.img mnt -o noallow_other
    exits 77 'Another user' -- as_nobody "$XACT" sync mnt
    unmounted mnt
    # The mount point is not the reason if it belongs to another user.
    chmod 666 disk.img
    [[ $(stat -c %a /dev/fuse) == 666 ]] || chmod 666 /dev/fuse
    exits 77 'cannot mount on .*/mnt: .*no write access' -- as_nobody "$XACT" mount disk.img mnt
}

# While one thread makes most of the calls, a worker of the daemon is under SCHED_IDLE, unless
# nosingle_caller forbids it.
test_single_caller_can_be_turned_off() {
    [[ $(nproc) -ge 2 ]] || {
        report "not tested: with one CPU no caller is served from its own"
        return
    }
    # An emulated CPU is too slow for the daemon to see that one thread makes most of the calls.
    [[ -z ${EMULATED:-} ]] || {
        report "not tested: the CPU is emulated"
        return
    }
    volume disk.img
    local options
    for options in single_caller nosingle_caller; do
        in_foreground disk.img mnt -o "$options"
        touch mnt/file
        python3 "$TESTS/single_caller.py" mnt/file "$DAEMON" >idle
        equal "$options: whether a worker was under SCHED_IDLE" \
            "$([[ $options == single_caller ]] && echo True || echo False)" "$(<idle)"
        unmounted mnt
        wait "$DAEMON"
    done
    sound disk.img
}

# The owner of the root folder.
test_root_owner() {
    needs setpriv
    chmod 777 .
    as_nobody() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }
    owner() { debugfs -R 'stat <2>' "$1" 2>/dev/null | sed -nE 's/^User: +([0-9]+) +Group: +([0-9]+) .*/\1:\2/p'; }
    as_nobody "$XACT" mkfs mine.img --size 64M >/dev/null
    equal "the maker" "$(id -u nobody):$(id -g nobody)" "$(owner mine.img)"
    sound mine.img
    "$XACT" mkfs root.img --size 64M >/dev/null
    equal "made by root" 0:0 "$(owner root.img)"
    "$XACT" mkfs other.img --size 64M --root-owner 1234:5678 >/dev/null
    equal "as said" 1234:5678 "$(owner other.img)"
    exits 64 'invalid owner' -- "$XACT" mkfs other.img --size 64M --root-owner me --force
    sound other.img
    # So a user's own volume is usable for that user.
    needs fusermount3
    [[ $(stat -c %a /dev/fuse) == 666 ]] || chmod 666 /dev/fuse
    mkdir mnt
    chown nobody mnt
    as_nobody "$XACT" mount mine.img mnt
    as_nobody "$XACT" run --at mnt -- touch mnt/file
    [[ -e mine.img ]] && as_nobody test -e mnt/file
    as_nobody "$XACT" umount mnt
    sound mine.img
}

# An impossible request is refused before any data is lost.
test_mkfs_of_impossible_sizes() {
    volume disk.img --size 64M
    cp disk.img before.img
    local wrong
    while read -r wrong; do
        # shellcheck disable=SC2086
        exits 64 -- "$XACT" mkfs disk.img --force $wrong
        cmp before.img disk.img
        # shellcheck disable=SC2086
        exits 64 -- "$XACT" mkfs new.img --size 64M $wrong
        [[ ! -e new.img ]]
    done <<'END'
--engine none --journal-size 4M
--engine generations --journal-size 4M
--pool-size 4M
--engine generations --pool-size 64M
--engine generations --pool-size 1G
--block-size 3K
--label seventeen-letters
--reserved-percent 60
--journal-size 60M
END
    exits 64 'a pool of 1 GiB in an image of 64 MiB leaves 0 bytes' -- \
        "$XACT" mkfs new.img --size 64M --engine generations --pool-size 1G
    exits 64 'pool of 4 MiB' -- "$XACT" mkfs new.img --size 4M --engine generations
    "$XACT" mkfs new.img --size 64M --engine none --journal-size 0 >/dev/null
}

test_an_ordinary_user_mounts() {
    needs setpriv fusermount3
    [[ $(stat -c %a /dev/fuse) == 666 ]] || chmod 666 /dev/fuse
    volume disk.img
    mkdir mnt
    chown nobody disk.img mnt
    as_nobody() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }
    as_nobody "$XACT" mount disk.img mnt
    # Root owns the root folder of the volume.
    exits 1 'Permission denied' -- as_nobody touch mnt/file
    as_nobody "$XACT" run --at mnt -- ls mnt >/dev/null
    as_nobody "$XACT" umount mnt
    sound disk.img
}

test_without_dev_fuse() {
    needs unshare
    volume disk.img
    mkdir mnt
    exits 69 '/dev/fuse does not exist' -- unshare --mount sh -c "mount -t tmpfs none /dev && exec '$XACT' mount disk.img mnt"
}

test_umount_of_a_mount_in_use_names_the_users() {
    volume disk.img
    mounted disk.img mnt
    (cd mnt && exec sleep 100) &
    local job=$!
    wait_until "the user of the mount" sh -c "readlink /proc/$job/cwd | grep -q mnt"
    exits 69 "mnt is in use" -- "$XACT" umount mnt
    has "$WORK/exits.err" "sleep \\($job\\)|bash \\($job\\)"
    kill $job
    wait $job 2>/dev/null || true
    # A command that uses it for a moment does not prevent the unmount.
    (cd mnt && touch "$WORK/inside" && exec sleep 0.05) &
    wait_until "the user of the mount" test -e inside
    unmounted mnt
    sound disk.img
}

test_signals_unmount_cleanly() {
    local signal
    for signal in TERM INT; do
        volume disk.img --force
        # The shell makes background jobs ignore SIGINT.
        mkdir -p mnt
        env --default-signal=INT "$XACT" mount --foreground disk.img mnt &
        DAEMON=$!
        wait_until "the mount" mountpoint -q mnt
        echo x >mnt/file
        kill -$signal $DAEMON
        wait $DAEMON
        ! mountpoint -q mnt || fail "still mounted"
        sound disk.img
        mounted disk.img mnt
        equal content x "$(cat mnt/file)"
        unmounted mnt
    done
}

test_a_killed_daemon_is_named_and_taken_away() {
    volume disk.img
    in_foreground disk.img mnt
    echo x >mnt/file
    "$XACT" sync mnt
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    exits 69 'daemon .* has died' -- "$XACT" sync mnt
    exits 69 'daemon .* has died' -- "$XACT" run --at mnt true
    exits 69 'xact umount' -- "$XACT" mount disk.img mnt
    unmounted mnt
    mounted disk.img mnt
    equal content x "$(cat mnt/file)"
    unmounted mnt
    sound disk.img
}

test_a_full_volume_can_delete_and_unmount() {
    volume disk.img --size 32M
    mounted disk.img mnt
    exits 1 'No space left' -- dd if=/dev/zero of=mnt/large bs=1M count=100
    # Fill the rest with names.
    local i
    for i in $(seq 5000); do mkdir "mnt/d$i" 2>/dev/null || break; done
    [[ $i -lt 5000 ]] || fail "5000 folders fit into a full volume"
    exits 73 -- "$XACT" run --at mnt -- sh -c 'dd if=/dev/zero of=mnt/more bs=1M count=50 2>/dev/null; true'
    "$XACT" run --at mnt -- rm mnt/large
    # The kernel releases a deleted file a moment after the call.
    wait_until "the space of the deleted file" sh -c 'echo x >mnt/file'
    rm -r mnt/d*
    unmounted mnt
    sound disk.img
}

test_the_log_goes_to_a_file() {
    volume disk.img
    mounted disk.img mnt --log log
    [[ -e log ]]
    unmounted mnt
    lacks log 'panicked'
}

test_the_cache_keeps_its_limit() {
    volume disk.img --size 1G
    in_foreground disk.img mnt --cache-size 32M
    dd if=/dev/urandom of=mnt/large bs=1M count=300 status=none
    cat mnt/large >/dev/null
    local kib
    kib=$(awk '/^VmHWM/ { print $2 }' "/proc/$DAEMON/status")
    report "peak memory of the daemon with --cache-size 32M: $((kib / 1024)) MiB"
    [[ $kib -lt $((160 << 10)) ]] || fail "the daemon took $kib KiB"
    unmounted mnt
    wait "$DAEMON"
    sound disk.img
}
