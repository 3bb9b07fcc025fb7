# How a volume is journaled: xact mode, xact journal, and what a sync costs below the process.

test_modes_are_kept_with_the_volume() {
    needs dumpe2fs jq
    volume disk.img
    modes() { "$XACT" mode get --json "$1" | jq -c "$2"; }
    equal "what a new volume says" '[null,null,null,null,null,null]' "$(modes disk.img '[.volume[]]')"
    equal "what counts" '"adaptive"' "$(modes disk.img .effective.data)"
    cp disk.img before.img
    exits 64 "invalid value 'fast': expected writeback, ordered" -- "$XACT" mode set disk.img data=fast
    exits 64 "unknown mode 'speed': expected data, commit_writes" -- "$XACT" mode set disk.img speed=high
    exits 64 'NAME=VALUE' -- "$XACT" mode set disk.img data
    cmp before.img disk.img
    "$XACT" mode set disk.img data=selective commit_writes=two-step timestamps=immediate
    equal "stored" '["two-step","selective",null,null,null,"immediate"]' "$(modes disk.img '[.volume[]]')"
    sound disk.img
    # No other user sees them.
    kernel_mounted disk.img kernel
    echo kernel >kernel/file
    kernel_unmounted kernel
    sound disk.img
    equal "after a mount by Linux" '"selective"' "$(modes disk.img .volume.data)"

    mounted disk.img mnt -o data=journal
    equal "an option counts for more" '["journal","selective"]' "$(modes mnt '[.effective.data, .volume.data]')"
    equal "in stat" '["journal","two-step","delayed","immediate"]' \
        "$("$XACT" stat --json mnt | jq -c '.modes | [.data, .commit_writes, .inode_update, .timestamps]')"
    "$XACT" mode get mnt >said
    has said '^data +journal +by a mount option; the volume says selective$'
    has said '^inode_update +delayed +by default$'
    has said '^commit_writes +two-step +as the volume says$'
    exits 64 'not possible inside a transaction' -- "$XACT" run --at mnt -- "$XACT" mode set mnt data=ordered
    equal "set inside" '"selective"' "$(modes mnt .volume.data)"
    # Set while the volume is mounted: durable at once, in effect from the next mount on.
    "$XACT" mode set mnt data=ordered timestamps=default
    equal "set on a mount" '["journal","ordered",null]' \
        "$(modes mnt '[.effective.data, .volume.data, .volume.timestamps]')"
    equal "whence" '["option","volume","before-mount","default"]' \
        "$(modes mnt '.source | [.data, .commit_writes, .timestamps, .fsync]')"
    "$XACT" mode get mnt >said
    has said '^timestamps +immediate +since it was mounted; from the next mount on delayed, by default$'
    "$XACT" mode set mnt inode_update=immediate
    has <("$XACT" mode get mnt) '^inode_update +delayed .* from the next mount on immediate$'
    "$XACT" mode set mnt inode_update=default
    unmounted mnt
    mounted disk.img mnt
    equal "the next mount" '["ordered","two-step"]' "$(modes mnt '[.effective.data, .effective.commit_writes]')"
    equal file kernel "$(cat mnt/file)"
    unmounted mnt
    # ext4's own modes are stored where Linux and tune2fs store them.
    dumpe2fs -h disk.img 2>/dev/null | grep -q 'Default mount options:.*journal_data_ordered' ||
        fail "dumpe2fs does not see data=ordered"
    tune2fs -o journal_data_writeback disk.img >/dev/null
    equal "set by tune2fs" '"writeback"' "$(modes disk.img .volume.data)"
    "$XACT" mode set disk.img data=default commit_writes=default
    equal "all taken back" '[null,null,null,null,null,null]' "$(modes disk.img '[.volume[]]')"
    sound disk.img
}

test_modes_of_a_volume_that_was_killed() {
    volume disk.img
    in_foreground disk.img mnt
    "$XACT" mode set mnt data=selective
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    unmounted mnt
    # Only the log has them. Reading them does not replay it.
    cp disk.img before.img
    equal "in the log" '"selective"' "$("$XACT" mode get --json disk.img | jq -c .volume.data)"
    cmp before.img disk.img
    mounted disk.img mnt
    equal "after the recovery" '"selective"' "$("$XACT" mode get --json mnt | jq -c .effective.data)"
    unmounted mnt
    sound disk.img
}

test_modes_of_volumes_without_a_journal() {
    volume none.img --engine none
    exits 64 'no journal' -- "$XACT" mode set none.img data=journal
    "$XACT" mode set none.img timestamps=immediate
    volume generations.img --engine generations
    "$XACT" mode set generations.img timestamps=immediate data=ordered
    equal "data's mode" '"ordered"' "$("$XACT" mode get --json generations.img | jq -c .volume.data)"
    exits 64 'needs a journal' -- "$XACT" mode set generations.img data=selective
    mkdir -p mnt
    exits 64 'needs a journal' -- "$XACT" mount -o data=journal generations.img mnt
    for image in none.img generations.img; do
        equal "$image" '"immediate"' "$("$XACT" mode get --json $image | jq -c .volume.timestamps)"
        mounted $image mnt
        equal "$image" '"immediate"' "$("$XACT" mode get --json mnt | jq -c .effective.timestamps)"
        unmounted mnt
    done
}

test_only_the_owner_sets_modes() {
    needs setpriv
    volume disk.img
    mounted disk.img mnt
    as_nobody() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }
    as_nobody "$XACT" mode get mnt >/dev/null
    exits 77 -- as_nobody "$XACT" mode set mnt data=ordered
    unmounted mnt
}

# JOJ-4: the owner of a file chooses how its data is journaled, and the choice is kept, copied and
# inherited.
test_a_file_has_a_data_mode_of_its_own() {
    needs jq setpriv getfattr setfattr lsattr chattr tar rsync
    volume disk.img --size 64M
    mounted disk.img mnt -o data=journal
    mode() { "$XACT" mode get --json --file "$1" | jq -c '[.own, .effective]'; }
    attribute() { getfattr --only-values -n user.xact.data "$1" 2>/dev/null; }
    # Blocks of data that ten writes through a mapping, each with msync, put into the journal.
    journaled() {
        local before
        before=$("$XACT" stat --json mnt | jq .counters.journaled_data_blocks)
        python3 - "$1" <<'END'
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    pages = mmap.mmap(file.fileno(), 40960)
    for n in range(10):
        pages[n * 4096:n * 4096 + 4096] = b"%d" % n * 4096
        pages.flush(n * 4096, 4096)
END
        echo $(($("$XACT" stat --json mnt | jq .counters.journaled_data_blocks) - before))
    }
    head -c 40960 /dev/zero >mnt/table
    sync mnt/table
    equal "as the volume" '[null,"data"]' "$(mode mnt/table)"
    [[ $(journaled mnt/table) -ge 10 ]] || fail "a file of data=journal is not journaled"
    # Out of the journal, once what is in it is at home.
    "$XACT" mode set --file mnt/table ordered
    "$XACT" sync mnt
    unmounted mnt
    mounted disk.img mnt -o data=journal
    equal "kept with the file" '["ordered","ordered"]' "$(mode mnt/table)"
    equal "ten msyncs of a file outside the journal" 0 "$(journaled mnt/table)"
    "$XACT" mode get --file mnt/table >said
    has said '^data +ordered +of the file itself$'

    # Copies of the file have it.
    cp -a mnt/table mnt/copy
    equal "cp -a" ordered "$(attribute mnt/copy)"
    rsync -X mnt/table mnt/rsynced
    equal "rsync -X" ordered "$(attribute mnt/rsynced)"
    tar --xattrs -C mnt -cf table.tar table
    mkdir mnt/unpacked
    tar --xattrs -C mnt/unpacked -xf table.tar
    equal "tar --xattrs" ordered "$(attribute mnt/unpacked/table)"
    equal "ten msyncs of the copy" 0 "$(journaled mnt/copy)"

    # The flag +j is 'data', whichever way it is set.
    chattr +j mnt/copy
    equal "after chattr +j" '["data","data"]' "$(mode mnt/copy)"
    equal "its attribute" '' "$(attribute mnt/copy || true)"
    "$XACT" mode set --file mnt/copy selective
    has <(lsattr mnt/copy) '^[^j]* '
    setfattr -n user.xact.data -v data mnt/copy
    has <(lsattr mnt/copy) '^[^ ]*j[^ ]* '
    chattr -j mnt/copy
    equal "after chattr -j" '[null,"data"]' "$(mode mnt/copy)"
    chattr +j mnt/copy
    "$XACT" mode clear --file mnt/copy
    equal "cleared" '[null,"data"]' "$(mode mnt/copy)"
    has <(lsattr mnt/copy) '^[^j]* '

    # Inherited where that is asked for.
    mkdir mnt/logs
    exits 64 "'--inherit' sets the mode of new files" -- "$XACT" mode set --file mnt/logs none
    exits 64 'not a folder' -- "$XACT" mode set --file mnt/table --inherit none
    "$XACT" mode set --file mnt/logs --inherit none
    mkdir mnt/logs/d
    head -c 40960 /dev/zero >mnt/logs/d/log
    equal inherited '["none","none"]' "$(mode mnt/logs/d/log)"
    sync mnt/logs/d/log
    equal "ten msyncs of it" 0 "$(journaled mnt/logs/d/log)"
    "$XACT" run --at mnt -- sh -c "echo x >mnt/logs/new && '$XACT' mode set --file mnt/table adaptive"
    equal "in a transaction" '["none","none"] ["adaptive","adaptive"]' "$(mode mnt/logs/new) $(mode mnt/table)"

    # Wrong values, and other users, who may write the file.
    exits 64 'expected none, ordered, data' -- "$XACT" mode set --file mnt/table journal
    exits 1 'Invalid argument' -- setfattr -n user.xact.data -v fast mnt/table
    chmod 666 mnt/table
    as_nobody() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }
    exits 77 -- as_nobody "$XACT" mode set --file mnt/table none
    exits 77 -- as_nobody "$XACT" mode clear --file mnt/table
    exits 1 'not permitted' -- as_nobody setfattr -n user.xact.data -v none mnt/table
    exits 1 'not permitted' -- as_nobody setfattr -x user.xact.data mnt/table
    equal "unchanged" '["adaptive","adaptive"]' "$(mode mnt/table)"
    chown nobody mnt/table
    chmod 444 mnt/table
    as_nobody "$XACT" mode set --file mnt/table ordered
    equal "by its owner" '["ordered","ordered"]' "$(mode mnt/table)"
    unmounted mnt
    sound disk.img
    # Linux ignores and keeps it; what it stores wrongly does not count.
    kernel_mounted disk.img kernel
    equal "in Linux" ordered "$(attribute kernel/table)"
    setfattr -n user.xact.data -v odd kernel/table
    kernel_unmounted kernel
    mounted disk.img mnt
    equal "an odd value" '[null,"adaptive"]' "$(mode mnt/table)"
    unmounted mnt
}

test_data_modes_of_files_without_a_journal() {
    needs jq setfattr
    volume generations.img --engine generations
    volume none.img --engine none
    local image word
    for image in generations.img none.img; do
        mounted $image mnt
        touch mnt/file
        for word in data selective; do
            exits 64 "$word needs a journal" -- "$XACT" mode set --file mnt/file $word
            exits 1 'not supported' -- setfattr -n user.xact.data -v $word mnt/file
        done
        for word in none ordered; do
            "$XACT" mode set --file mnt/file $word
            equal "$image" "\"$word\"" "$("$XACT" mode get --json --file mnt/file | jq -c .own)"
        done
        case $image in
        none.img) exits 64 'adaptive needs a journal' -- "$XACT" mode set --file mnt/file adaptive ;;
        *) "$XACT" mode set --file mnt/file adaptive ;;
        esac
        unmounted mnt
    done
}

# The log of Linux and the log of xact, each copied from under a mount.
test_journal_shows_the_log() {
    needs jq
    log() { "$XACT" journal --json "$1" | jq -c "$2"; }
    volume disk.img --size 64M
    equal "a new volume" '[true,0]' "$(log disk.img '[.empty, (.transactions | length)]')"
    kernel_mounted disk.img mnt data=journal
    mkdir mnt/d
    head -c 20000 /dev/urandom >mnt/d/file
    sync -f mnt
    rm -r mnt/d
    sync -f mnt
    cp disk.img linux.img
    kernel_unmounted mnt
    equal "of Linux" '[true,"v3",true]' \
        "$(log linux.img '[.needs_recovery, .checksums, ([.transactions[].state] | all(. == "complete"))]')"
    equal "data in it" true "$(log linux.img '[.transactions[].copies[].kind] | any(. == "inode table")')"
    equal "checksums in it" true "$(log linux.img '[.transactions[].copies[].checksum_ok] | all')"
    "$XACT" journal --blocks linux.img >said
    has said '^transaction [0-9]+: complete, 20'
    has said 'inode table of inodes 1 to'
    equal "what is to be replayed" "$(log linux.img '.transactions | length')" \
        "$("$XACT" recover --journal-only --json linux.img | jq .transactions)"

    in_foreground disk.img mnt -o data=journal
    head -c 20000 /dev/urandom >mnt/file
    sync mnt/file
    rm mnt/file
    "$XACT" sync mnt
    exits 69 'in use' -- "$XACT" journal disk.img
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    unmounted mnt
    equal "of xact" '["v1",["complete"]]' "$(log disk.img '[.checksums, ([.transactions[].state] | unique)]')"
    equal "the data was freed" true "$(log disk.img '[.transactions[].copies[] | select(.kind == "free")] | length >= 5')"
    equal "and revoked" true "$(log disk.img '[.transactions[].revoked | length] | add >= 5')"

    # The end of the last transaction, its commit block, is torn off: the transaction is dropped. A
    # damaged copy in the middle of an earlier transaction is reported, and recovery refuses it.
    cp disk.img torn.img
    break_block torn.img "$(log torn.img '.transactions[-1] | .start_block + .blocks - 1')" 0
    equal "without a commit block" '"unfinished"' "$(log torn.img '.transactions[-1].state')"
    cp disk.img damaged.img
    break_block damaged.img "$(log damaged.img '.transactions[-2].copies[0].log_block')" 100
    equal "damaged" '"damaged"' "$(log damaged.img '.transactions[-2].state')"
    "$XACT" journal damaged.img | grep -q 'wrong: .*checksum' || fail "the damage is not reported"
    exits 74 'damaged' -- "$XACT" recover damaged.img
    cp disk.img lost.img
    break_block lost.img 0 0
    exits 74 'journal superblock' -- "$XACT" journal lost.img
    volume none.img --engine none
    exits 64 'no journal' -- "$XACT" journal none.img
}

# JOJ-9: only xact can read a log with sub-block records, until it is empty.
test_a_log_of_patches_is_refused_by_others() {
    needs jq e2fsck
    volume disk.img --size 64M
    cp disk.img empty.img
    # Without scheduled commits, the last one is that of the last fsync.
    in_foreground disk.img mnt -o log_records=sub-block,data=journal,commit=1000
    python3 - <<'END'
import os
os.mkdir("mnt/d")
file = os.open("mnt/d/file", os.O_RDWR | os.O_CREAT)
os.write(file, bytes(range(256)) * 64)
os.fsync(file)
for n in range(200):
    os.pwrite(file, b"%08d" % n, n * 77)
    os.fsync(file)
END
    sha256sum <mnt/d/file >expected
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    unmounted mnt
    cp disk.img before.img
    mkdir -p kernel
    ! mount -t ext4 -o loop disk.img kernel 2>/dev/null || fail "Linux mounts a log that it cannot replay"
    ! mount -t ext4 -o loop,ro disk.img kernel 2>/dev/null || fail "Linux mounts it read-only"
    local status=0
    e2fsck -fy disk.img >said 2>&1 || status=$?
    [[ $status -ge 8 ]] || fail "e2fsck ended with $status: $(cat said)"
    cmp before.img disk.img
    "$XACT" journal --json disk.img >log.json
    equal "in the log" '["complete"]' "$(jq -c '[.transactions[].state] | unique' log.json)"
    equal "by patches" true "$(jq '.features | any(. == "xact_patches")' log.json)"
    # 8 bytes and their inode take two blocks of the log: patches, commit.
    equal "blocks of a small write" 2 "$(jq '.transactions[-1].blocks' log.json)"
    cp disk.img damaged.img
    break_block damaged.img "$(jq '.transactions[-1].start_block' log.json)" 40
    equal "a damaged block of patches" '"torn"' "$("$XACT" journal --json damaged.img | jq '.transactions[-1].state')"
    "$XACT" recover disk.img
    sound disk.img
    kernel_mounted disk.img kernel
    sha256sum <kernel/d/file | cmp - expected
    kernel_unmounted kernel
    sound disk.img
    # A clean unmount leaves none of it either.
    cp empty.img disk.img
    "$XACT" mode set disk.img log_records=sub-block
    mounted disk.img mnt
    equal "mounted with" '"sub-block"' "$("$XACT" mode get --json mnt | jq .effective.log_records)"
    echo x >mnt/file
    sync mnt/file
    unmounted mnt
    sound disk.img
    kernel_mounted disk.img kernel
    equal content x "$(cat kernel/file)"
    kernel_unmounted kernel
}

# break_block IMG JOURNAL-BLOCK OFFSET: spoils some bytes of a block of the journal.
break_block() {
    local size block
    size=$(dumpe2fs -h "$1" 2>/dev/null | sed -nE 's/^Block size: +//p')
    block=$(debugfs -R "bmap <8> $2" "$1" 2>/dev/null)
    printf '\x5a\xa5\x5a\xa5\x5a\xa5\x5a\xa5' |
        dd of="$1" bs=1 seek=$((block * size + $3)) conv=notrunc status=none
}

# JOJ-2, counted by the loop device below the daemon. Appending 4 KiB with fsync costs the same as
# one write of 24 KiB and one fdatasync: no more writes, bytes or flushes. (The kernel counts a
# flush among the writes too.)
test_an_append_with_fsync_is_one_write_and_one_flush() {
    needs losetup fallocate
    # No hole is filled by the test.
    fallocate -l 256M backing
    DEVICE=$(losetup --find --show backing)
    trap 'losetup --detach "$DEVICE"' RETURN
    # Writes, sectors and flushes that the device completes while a command runs.
    counted() {
        local before after
        read -r -a before < <(awk '{ print $5, $7, $16 }' "/sys/block/${DEVICE#/dev/}/stat")
        "$@"
        read -r -a after < <(awk '{ print $5, $7, $16 }' "/sys/block/${DEVICE#/dev/}/stat")
        echo "$((after[0] - before[0])) $((after[1] - before[1])) $((after[2] - before[2]))"
    }
    raw() {
        python3 - "$DEVICE" <<'END'
import os, sys
device = os.open(sys.argv[1], os.O_RDWR)
for n in range(100):
    os.pwrite(device, b"x" * 24576, n * 24576)
    os.fdatasync(device)
END
    }
    append() {
        python3 - "$1" <<'END'
import os, sys
file = os.open("mnt/file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for _ in range(int(sys.argv[1])):
    os.write(file, b"x" * 4096)
    os.fsync(file)
END
    }
    local raw
    raw=$(counted raw)
    "$XACT" mkfs --force "$DEVICE" --block-size 4K >/dev/null
    # No scheduled commit in between.
    mounted "$DEVICE" mnt --commit-interval 600
    append 10
    equal "writes, sectors and flushes of 100 appends" "$raw" "$(counted append 100)"
    report "100 appends of 4 KiB with fsync: $raw writes, sectors, flushes"
    unmounted mnt
}
