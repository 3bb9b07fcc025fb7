# timeout: 1800
# Volumes with generations: the guarantees of volumes with a journal hold, and those of snapshots.

source "$TESTS/suites/posix.sh"
source "$TESTS/suites/programs.sh"
source "$TESTS/suites/copies.sh"
ENGINE=generations

test_generations_pjdfstest() { test_pjdfstest_on_the_mount; }
test_generations_pjdfstest_in_a_transaction() { test_pjdfstest_in_a_transaction; }
test_generations_fsx() { test_fsx_on_the_mount; }
test_generations_git() { test_git_on_the_mount; }
test_generations_git_in_a_transaction() { test_git_in_a_transaction; }
test_generations_sqlite() { test_sqlite_on_the_mount; }
test_generations_sqlite_in_a_transaction() { test_sqlite_in_a_transaction; }
test_generations_copies() { test_copies_on_the_mount; }

# The same while snapshots are made and deleted.
test_generations_fsx_under_snapshots() {
    needs fsx
    volume disk.img
    mounted disk.img mnt
    under_snapshots mnt exerciser mnt/file
    unmounted mnt
    sound disk.img
}
# MNT COMMAND…: runs it while two snapshots at a time are created and deleted.
under_snapshots() {
    local mnt=$1 maker
    shift
    (
        trap 'exit 0' TERM
        for ((n = 0; ; n++)); do
            "$XACT" snapshot create "$mnt" "s$n"
            ((n < 2)) || "$XACT" snapshot delete "$mnt" "s$((n - 2))"
            echo "$n" >made
            sleep 0.1
        done
    ) &
    maker=$!
    "$@"
    # It only ends without this if a command failed.
    kill -TERM "$maker"
    wait "$maker" || fail "making snapshots ended with $?"
    report "$(<made) snapshots made at the same time"
    [[ $(<made) -gt 1 ]] || fail "no snapshots were made"
}

# Neither Linux nor e2fsck changes such a volume, not even from the backups of its superblock.
test_generations_are_refused_by_others() {
    volume disk.img --size 512M --block-size 4K
    cp disk.img before
    mkdir mnt
    ! mount -t ext4 -o loop disk.img mnt 2>/dev/null || fail "Linux mounts it"
    ! e2fsck -fy disk.img >/dev/null 2>&1 || fail "e2fsck repairs it"
    ! e2fsck -fy -b 32768 -B 4096 disk.img >/dev/null 2>&1 || fail "e2fsck repairs it by a backup"
    cmp disk.img before
    sound disk.img
}

# A killed daemon leaves nothing to be recovered: all acknowledged changes are visible at once.
test_generations_after_a_kill() {
    volume disk.img
    in_foreground disk.img mnt
    mkdir mnt/folder
    seq 10000 >mnt/folder/file
    "$XACT" sync mnt
    echo lost >mnt/unsynced
    kill -9 "$DAEMON"
    wait "$DAEMON" || true
    umount -l mnt
    "$XACT" snapshot export disk.img crashed
    sound crashed
    kernel_mounted crashed kernel ro
    seq 10000 | cmp - kernel/folder/file
    kernel_unmounted kernel
    mounted disk.img mnt
    seq 10000 | cmp - mnt/folder/file
    unmounted mnt
    sound disk.img
}

# Snapshots keep the old contents, byte for byte, whatever happens to the volume afterwards.
test_generations_snapshots() {
    needs jq
    volume disk.img
    mounted disk.img mnt
    mkdir mnt/tree
    python3 "$TESTS/grow_tree.py" mnt/tree 7 400
    describe_tree mnt >first
    unmounted mnt
    "$XACT" snapshot create disk.img first
    mounted disk.img mnt
    # Overwritten in place, and then deleted, so that their blocks are used for other files.
    find mnt/tree -type f -size +0 -exec dd if=/dev/urandom of={} bs=2000 count=2 conv=notrunc status=none \;
    find mnt/tree -type f -links 1 -name '*1*' -delete
    dd if=/dev/urandom of=mnt/large bs=1M count=8 status=none
    describe_tree mnt >second
    unmounted mnt
    "$XACT" snapshot create disk.img second
    mounted disk.img mnt
    rm -r mnt/tree mnt/large
    unmounted mnt
    equal names "first second" "$("$XACT" snapshot list disk.img --json | jq -r '[.[].name] | join(" ")')"
    local name
    for name in first second; do
        "$XACT" snapshot export disk.img "$name.img" --name $name
        sound $name.img
        kernel_mounted $name.img kernel ro
        describe_tree kernel >"$name.kernel"
        kernel_unmounted kernel
        cmp $name "$name.kernel"
    done
    exits 64 'there is a snapshot' -- "$XACT" snapshot create disk.img first
    exits 64 'there is no snapshot' -- "$XACT" snapshot delete disk.img third
    # Restores the first snapshot, then the second, and then the first again: the volume has the old
    # contents, and works. A restore does not change its settings.
    "$XACT" mode set disk.img timestamps=immediate
    for name in first second first; do
        "$XACT" snapshot restore disk.img $name
        equal "modes after a restore" '"immediate"' "$("$XACT" mode get --json disk.img | jq -c .volume.timestamps)"
        sound disk.img
        mounted disk.img mnt
        describe_tree mnt >restored
        cmp $name restored
        dd if=/dev/urandom of=mnt/new bs=1M count=2 status=none
        find mnt/tree -type f -links 1 -size +0 -exec dd if=/dev/urandom of={} bs=1000 count=1 conv=notrunc status=none \;
        exits 69 'in use' -- "$XACT" snapshot restore disk.img $name
        unmounted mnt
    done
    "$XACT" snapshot delete disk.img first
    "$XACT" snapshot export disk.img again.img --name second
    cmp <(e2fsck -fn again.img 2>&1 | tail -n 1 | sed 's/.*: //') <(e2fsck -fn second.img 2>&1 | tail -n 1 | sed 's/.*: //')
    "$XACT" snapshot delete disk.img second
    equal names "" "$("$XACT" snapshot list disk.img)"
    sound disk.img
}

# The same while the volume is mounted and programs work on it.
test_generations_snapshots_of_a_mount() {
    needs jq sqlite3
    volume disk.img
    mounted disk.img mnt
    mkdir mnt/files
    sqlite3 mnt/db 'create table t(x)'
    local round
    for round in 1 2 3 4 5 6; do
        seq "$round" "$round" 40000 >mnt/files/overwritten
        sqlite3 mnt/db "insert into t values ($round); pragma wal_checkpoint" >/dev/null
        describe_tree mnt/files >"files$round"
        "$XACT" snapshot create mnt "s$round"
        (seq 100000 >mnt/files/overwritten) &
        "$XACT" run --at mnt -- sh -c "echo $round >mnt/files/from-transaction$round"
        wait $!
    done
    "$XACT" snapshot delete mnt/files s2
    "$XACT" snapshot delete mnt s5
    equal names "s1 s3 s4 s6" "$("$XACT" snapshot list mnt --json | jq -r '[.[].name] | join(" ")')"
    exits 64 'there is a snapshot' -- "$XACT" snapshot create mnt s1
    exits 64 'there is no snapshot' -- "$XACT" snapshot delete mnt s2
    exits 64 'not possible inside a transaction' -- "$XACT" run --at mnt -- "$XACT" snapshot create mnt inside
    exits 64 'not possible inside a transaction' -- "$XACT" run --at mnt -- "$XACT" snapshot delete mnt s1
    exits 64 'not possible inside a transaction' -- "$XACT" run --at mnt -- "$XACT" snapshot prune mnt --retain last=1 --prefix s
    equal "listed inside" "s1 s3 s4 s6" "$("$XACT" run --at mnt -- "$XACT" snapshot list mnt --json | jq -r '[.[].name] | join(" ")')"
    exits 64 'at most 100 bytes' -- "$XACT" snapshot create mnt "$(printf '%0101d' 0)"
    unmounted mnt
    for round in 1 3 4 6; do
        "$XACT" snapshot export disk.img out.img --name "s$round"
        sound out.img
        kernel_mounted out.img kernel
        describe_tree kernel/files | cmp - "files$round"
        equal "rows of s$round" "$round" "$(sqlite3 kernel/db 'select count(*) from t')"
        kernel_unmounted kernel
        rm out.img
    done
    sound disk.img
}

# Snapshots are read on the mount, as files and as ext4 images, while the volume changes.
test_generations_reading_snapshots() {
    volume disk.img
    mounted disk.img mnt
    mkdir mnt/tree
    python3 "$TESTS/grow_tree.py" mnt/tree 3 200
    describe_tree mnt/tree >first
    seq 1000 >mnt/open
    exec 3<mnt/open
    rm mnt/open
    "$XACT" snapshot create mnt first
    exec 3<&-
    rm -r mnt/tree
    mkdir mnt/tree
    python3 "$TESTS/grow_tree.py" mnt/tree 4 200
    "$XACT" snapshot create mnt second
    local past=mnt/.xact/snapshots image
    equal names "first second" "$(ls $past | xargs)"
    describe_tree $past/first/tree | cmp - first
    ! touch $past/first/new 2>error || fail "a snapshot was changed"
    grep -q 'Read-only' error || fail "$(<error)"
    [[ ! -e $past/first/.xact ]] || fail "a snapshot has a folder of its own"
    # A restored file differs from the present one, and has the snapshot's attributes.
    rm -r mnt/tree
    cp -a $past/first/tree mnt/tree
    describe_tree mnt/tree | cmp - first
    image=$("$XACT" snapshot image mnt/tree first)
    sound "$image"
    mkdir kernel
    mount -o ro,loop "$image" kernel
    describe_tree kernel/tree | cmp - first
    [[ ! -e kernel/open ]] || fail "a deleted file is back"
    umount kernel
    "$XACT" snapshot export mnt out.img --name first
    sound out.img
    exits 64 'name a snapshot' -- "$XACT" snapshot export mnt other.img
    exits 64 "no snapshot 'third'" -- "$XACT" snapshot image mnt third
    # Deleted while a process has it open.
    exec 3<$past/first/tree
    "$XACT" snapshot delete mnt first
    equal names second "$(ls $past)"
    ! stat /proc/self/fd/3/unseen >/dev/null 2>error || fail "there is a file that was never there"
    grep -q 'Stale file handle' error || fail "a deleted snapshot answers: $(<error)"
    exec 3<&-
    # A new snapshot of the same name is another snapshot.
    "$XACT" snapshot create mnt first
    [[ -d $past/first/tree ]] || fail "the new one cannot be looked into"
    unmounted mnt
    sound disk.img
    # The same for a volume that is mounted read-only.
    mounted disk.img mnt -o ro
    describe_tree mnt/.xact/snapshots/second >/dev/null
    sound mnt/.xact/images/second
    unmounted mnt
}

# Two of 100 files are kept: on a mount and in an image, to read, to compare, to restore, as an ext4
# image.
test_generations_snapshots_of_paths() {
    needs jq setfacl
    volume disk.img --size 256M --pool-size 32M
    mounted disk.img mnt
    local n of
    for n in $(seq 100); do
        mkdir -p mnt/d$((n % 4))
        dd if=/dev/urandom of=mnt/d$((n % 4))/$n bs=64K count=1 status=none
    done
    setfacl -m u:1234:r mnt/d1/41
    ln mnt/d1/41 mnt/d3/same
    mkdir mnt/kept mnt/kept/tree
    python3 "$TESTS/grow_tree.py" mnt/kept/tree 3 200
    describe_tree mnt/kept >kept
    cp -a mnt/d1/41 mnt/d2/78 .
    "$XACT" snapshot create mnt two d1/41 /d2/78
    "$XACT" snapshot create mnt tree kept
    exits 64 '/none does not exist' -- "$XACT" snapshot create mnt other d1/41 none
    exits 64 'the root is the whole volume' -- "$XACT" snapshot create mnt other /
    exits 64 'there is a snapshot' -- "$XACT" snapshot create mnt two d1
    exits 64 'not possible inside a transaction' -- "$XACT" run --at mnt -- "$XACT" snapshot create mnt inside d1
    equal nothing "" "$("$XACT" snapshot diff mnt two)$("$XACT" snapshot diff mnt tree)"
    own() { "$XACT" snapshot list "$1" --json | jq '.[] | select(.name == "two").own_bytes'; }
    local fresh held
    fresh=$(own mnt)
    # Overwritten in place, then deleted, and their blocks used for other files.
    for n in $(seq 100); do
        dd if=/dev/urandom of=mnt/d$((n % 4))/$n bs=64K count=1 conv=notrunc status=none
    done
    "$XACT" sync mnt
    equal differs "modified /d1/41 modified /d2/78" "$("$XACT" snapshot diff mnt two | xargs)"
    rm -r mnt/d? mnt/kept
    dd if=/dev/urandom of=mnt/filler bs=1M count=16 status=none
    "$XACT" sync mnt
    held=$(own mnt)
    report "holds $held bytes of 2 * 65536, $fresh of them when it was made"
    [[ $held -ge 131072 && $held -lt $((131072 + fresh + 65536)) ]] || fail "it holds $held bytes"
    equal paths '"/d1/41","/d2/78"' \
        "$("$XACT" snapshot list mnt --json | jq -r '.[] | select(.name == "two").paths | @csv')"
    has <("$XACT" snapshot list mnt) '^two .* of its own, of /d1/41 /d2/78$'
    local past=mnt/.xact/snapshots/two
    equal "what is there" "d1 d1/41 d2 d2/78 lost+found" "$(cd $past && find . -mindepth 1 -printf '%P\n' | sort | xargs)"
    equal links 1 "$(stat -c %h $past/d1/41)"
    cmp 41 $past/d1/41
    cmp 78 $past/d2/78
    sound mnt/.xact/images/two
    "$XACT" snapshot export mnt two.img --name two
    sound two.img
    kernel_mounted two.img kernel ro
    equal "what Linux sees" "d1 d1/41 d2 d2/78 lost+found" "$(cd kernel && find . -mindepth 1 -printf '%P\n' | sort | xargs)"
    cmp 41 kernel/d1/41
    cmp 78 kernel/d2/78
    getfacl -c kernel/d1/41 | grep -q '^user:1234:r--' || fail "the ACL is not there"
    kernel_unmounted kernel
    # Only these are restored; all else stays.
    exits 66 'has no /d3' -- "$XACT" snapshot restore mnt two d3
    equal "untouched" "filler lost+found" "$(ls mnt | xargs)"
    mkdir mnt/d1
    echo other >mnt/d1/other
    "$XACT" snapshot restore mnt two
    equal restored "d1 d1/41 d1/other d2 d2/78 filler lost+found" "$(cd mnt && find . -mindepth 1 -printf '%P\n' | sort | xargs)"
    cmp 41 mnt/d1/41
    equal "another file" "modified /d2/78" "$("$XACT" snapshot diff mnt two --path d2 | xargs)"
    rm mnt/d2/78
    # By its path on the mount.
    "$XACT" snapshot restore mnt two "$PWD/mnt/d2"
    cmp 78 mnt/d2/78
    rm mnt/d2/78
    "$XACT" snapshot restore mnt two mnt/d2
    cmp 78 mnt/d2/78
    echo other >mnt/d2/78
    equal "compared by its path on the mount" "modified /d2/78" "$("$XACT" snapshot diff mnt two --path mnt/d2 | xargs)"
    (cd mnt/d2 && "$XACT" snapshot restore . two 78)
    cmp 78 mnt/d2/78
    "$XACT" snapshot create mnt by-mount mnt/d2
    equal "paths of the snapshot" /d2 "$("$XACT" snapshot list mnt --json | jq -r '.[] | select(.name == "by-mount") | .paths[]')"
    "$XACT" snapshot delete mnt by-mount
    "$XACT" snapshot restore mnt tree
    describe_tree mnt/kept | cmp - kept
    unmounted mnt
    sound disk.img
    exits 64 'chosen paths only' -- "$XACT" snapshot restore disk.img two
    "$XACT" snapshot create disk.img third kept/tree
    equal names "two tree third" "$("$XACT" snapshot list disk.img --json | jq -r '[.[].name] | join(" ")')"
    equal "of nothing in common" "" "$("$XACT" snapshot diff disk.img two third)"
    for of in two tree third; do
        "$XACT" snapshot delete disk.img $of
    done
    mounted disk.img mnt
    "$XACT" sync mnt
    equal "nothing held" 0 "$("$XACT" stat --json mnt | jq .pool.snapshot_bytes)"
    unmounted mnt
    # Scheduled: a snapshot is taken when one of these files changes.
    mounted disk.img mnt --snapshot-every 1s --snapshot-of /kept --snapshot-of mnt/d1 --snapshot-retain last=2
    made() { "$XACT" snapshot list mnt --json | jq -c '[.[].paths | join(" ")]'; }
    count() { [[ $("$XACT" snapshot list mnt --json | jq length) -eq $1 ]]; }
    wait_until "the first" count 1
    echo more >mnt/filler
    sleep 3
    equal "still one" '["/d1 /kept"]' "$(made)"
    echo more >mnt/kept/more
    wait_until "another" count 2
    unmounted mnt
    sound disk.img
}

# Converts to generations and back, with and without a journal. Linux reads the results.
test_generations_convert() {
    local engine
    for engine in journal none; do
        rm -f disk.img
        volume disk.img --size 100M --engine $engine
        mounted disk.img mnt
        python3 "$TESTS/grow_tree.py" mnt 9 200
        describe_tree mnt >before
        exits 69 'in use' -- "$XACT" convert disk.img --to generations
        unmounted mnt
        "$XACT" convert disk.img --to generations
        "$XACT" info disk.img | grep xact_generations >/dev/null || fail "no generations"
        sound disk.img
        mounted disk.img mnt
        describe_tree mnt | cmp - before
        "$XACT" snapshot create mnt one
        seq 20000 >mnt/new
        unmounted mnt
        exits 64 'already' -- "$XACT" convert disk.img --to generations
        exits 64 'delete the snapshots' -- "$XACT" convert disk.img --to ext4
        "$XACT" snapshot delete disk.img one
        "$XACT" convert disk.img --to ext4
        sound disk.img
        equal size 104857600 "$(stat -c %s disk.img)"
        kernel_mounted disk.img kernel
        seq 20000 | cmp - kernel/new
        rm kernel/new
        kernel_unmounted kernel
        sound disk.img
    done
}

test_generations_what_differs() {
    needs jq
    volume disk.img
    mounted disk.img mnt
    python3 "$TESTS/grow_tree.py" mnt 5 300
    "$XACT" snapshot create mnt before
    equal nothing "" "$("$XACT" snapshot diff mnt before)"
    mkdir mnt/new
    seq 5000 >mnt/new/file
    equal "the new ones" "added /new added /new/file" "$("$XACT" snapshot diff mnt before | xargs)"
    "$XACT" snapshot create mnt after
    rm -r mnt/new
    equal json '"deleted /new","deleted /new/file"' \
        "$("$XACT" snapshot diff mnt after --json | jq -c '.[] | "\(.change) \(.path)"' | paste -sd,)"
    equal back "" "$("$XACT" snapshot diff mnt before)"
    exits 64 'no snapshot' -- "$XACT" snapshot diff mnt none
    unmounted mnt
    "$XACT" snapshot diff disk.img before after --stat | grep -q '^2 changes, files 23.3 KiB larger, 0 bytes smaller$' ||
        fail "$("$XACT" snapshot diff disk.img before after --stat)"
}

# Scheduled snapshots, while the volume is mounted and changes, pruned by rules.
test_generations_scheduled_snapshots() {
    needs jq
    volume disk.img
    exits 64 "invalid number 'x' in 'last=x'" -- "$XACT" mount disk.img mnt --snapshot-every 1s --snapshot-retain last=x
    mounted disk.img mnt --snapshot-every 1s --snapshot-retain last=2
    local past=mnt/.xact/snapshots seen="" round
    automatic() { ls $past | grep '^auto-'; }
    has_new() { [[ $(automatic | tail -n 1) != "$seen" && $(cat "$past/$(automatic | tail -n 1)/file" 2>/dev/null) == "$round" ]]; }
    two_left() { [[ $(automatic | wc -l) -eq 2 ]]; }
    "$XACT" snapshot create mnt by-hand
    for round in 1 2 3 4; do
        echo $round >mnt/file
        wait_until "a snapshot of round $round" has_new
        seen=$(automatic | tail -n 1)
    done
    wait_until "the older ones to go" two_left
    [[ -d $past/by-hand ]] || fail "the schedule deleted what it has not made"
    unmounted mnt
    sound disk.img
    exits 64 'keep no snapshot' -- "$XACT" snapshot prune disk.img --retain ''
    equal "dry run" 1 "$("$XACT" snapshot prune disk.img --retain last=1 --dry-run | wc -l)"
    equal deleted 1 "$("$XACT" snapshot prune disk.img --retain last=1 --json | jq '.deleted | length')"
    mounted disk.img mnt
    equal "all pruned" "by-hand" "$("$XACT" snapshot prune mnt --prefix '' --retain last=1)"
    equal left 1 "$(ls $past | wc -l)"
    unmounted mnt
    sound disk.img
    volume plain.img --engine journal
    exits 64 'only a volume with generations' -- "$XACT" mount plain.img mnt --snapshot-every 1h
}

# The signs of a full pool, and the ways to free space in it.
test_generations_full_pool() {
    needs jq
    volume disk.img --size 128M --pool-size 4M
    pool() { "$XACT" stat --json mnt | jq "$1"; }
    mounted disk.img mnt --log log
    equal "at first" 'false 0' "$(pool '"\(.pool.full) \(.pool.snapshot_bytes)"' | jq -r .)"
    lacks <("$XACT" stat mnt) 'must be free'
    local round
    for ((round = 1; round < 40; round++)); do
        "$XACT" snapshot create mnt "s$round" 2>said || break
        # Until no more files can be created.
        (for i in $(seq 300); do echo $round.$i >mnt/file$i || exit; done) 2>/dev/null || true
    done
    [[ $round -gt 2 && $round -lt 40 ]] || fail "full after $round rounds"
    has said "no space left in the volume's pool, which is full until a snapshot is deleted \(volume on $PWD/mnt\)"
    has said "Snapshots hold [0-9.]+ [KM]iB of the volume's pool \(4.0 MiB\) on .*/mnt; 'xact snapshot list .*/mnt' lists them"
    has log "WARN  mount=.*: the pool is full: .*delete snapshots"
    equal "logged once" 1 "$(grep -c 'pool is full' log)"
    equal full true "$(pool .pool.full)"
    has <("$XACT" stat mnt) '^pool: +[0-9.]+ MiB used of 4.0 MiB: .* by snapshots'
    has <("$XACT" stat mnt) '^ +full: 2.0 MiB must be free'
    exits 1 'No space left' -- touch mnt/new
    exits 73 'not committed: no space left in the volume.s pool' -- "$XACT" run --at mnt -- mkdir mnt/new
    grep -q 'Nothing was changed. Snapshots hold' exits.err || fail "no way out is named: $(cat exits.err)"
    "$XACT" snapshot prune mnt --retain last=1 --prefix s >/dev/null
    equal "with free blocks again" false "$(pool .pool.full)"
    touch mnt/new
    has <("$XACT" info disk.img) '^pool: +unknown while the volume is in use'
    unmounted mnt
    has <("$XACT" info disk.img) '^pool: +.* used of 4.0 MiB'
    equal "no journal, no pool" null "$(volume plain.img --engine journal && "$XACT" info --json plain.img | jq .pool)"
    lacks <("$XACT" check disk.img) '^note'
    sound disk.img
}

test_generations_snapshots_need_generations() {
    volume disk.img --engine journal
    exits 64 'no generations.*xact convert --to generations' -- "$XACT" snapshot create disk.img one
    mounted disk.img mnt
    exits 64 'only a volume with generations.*xact convert' -- "$XACT" snapshot create mnt one
    unmounted mnt
}

test_generations_of_all_sizes() {
    local size
    for size in 8M 32M 100M 600M 20G; do
        volume disk.img --size $size --force
        mounted disk.img mnt
        seq 1000 >mnt/file
        unmounted mnt
        "$XACT" snapshot create disk.img one
        [[ $size == 20G ]] || sound disk.img
        mounted disk.img mnt
        seq 1000 | cmp - mnt/file
        unmounted mnt
    done
    exits 64 'too small' -- "$XACT" mkfs small.img --size 64M --engine generations --pool-size 200K
    exits 64 'it needs [0-9]+K' -- "$XACT" mkfs small.img --size 64M --engine generations --pool-size 400K
    exits 64 'needs --engine generations' -- "$XACT" mkfs small.img --size 64M --pool-size 8M
}

# The state before a transaction, taken just before its commit.
test_generations_run_with_a_snapshot() {
    needs jq
    volume disk.img
    mounted disk.img mnt
    seq 1000 >mnt/file
    cp mnt/file before
    "$XACT" run --at mnt --snapshot=one --status-file status -- sh -c 'cd mnt && seq 2000 >file && echo new >other'
    equal name one "$(jq -r .snapshot status)"
    cmp mnt/.xact/snapshots/one/file before
    [[ ! -e mnt/.xact/snapshots/one/other ]] || fail "the snapshot has what the transaction made"
    seq 2000 | cmp - mnt/file
    equal differs "added /other modified /file" "$("$XACT" snapshot diff mnt one | sort | xargs)"
    # A transaction that is not committed gets no snapshot.
    exits 3 'nothing was changed' -- "$XACT" run --at mnt --snapshot=two -- sh -c 'echo x >mnt/file; exit 3'
    mkfifo answer
    exits 75 'conflict on /file' -- "$XACT" run --at mnt --snapshot=two -- sh -c \
        'cat mnt/file >mnt/copy && echo go >&7 && read -r _ <answer' 7> >(
        read -r _
        seq 2000 >mnt/file
        echo done >answer
    )
    equal snapshots one "$(ls mnt/.xact/snapshots)"
    exits 64 "snapshot 'one' already exists" -- "$XACT" run --at mnt --snapshot=one -- touch mnt/never
    [[ ! -e mnt/never ]] || fail "the command ran"
    # The default name has the time.
    "$XACT" run --at mnt --snapshot -- touch mnt/more
    equal named 1 "$(ls mnt/.xact/snapshots | grep -cE '^run-[0-9]{4}-.*Z-[0-9]+$')"
    unmounted mnt
    # Restores the state before it.
    "$XACT" snapshot restore disk.img one
    mounted disk.img mnt
    cmp mnt/file before
    [[ ! -e mnt/other ]] || fail "a restored volume has a file of later"
    unmounted mnt
    sound disk.img
    volume plain.img --engine journal
    mounted plain.img mnt
    exits 64 'only a volume with generations' -- "$XACT" run --at mnt --snapshot -- touch mnt/never
    [[ ! -e mnt/never ]] || fail "the command ran"
    unmounted mnt
}

# Chosen files and folders of a mount, and all of it, are restored at once, also files that
# processes have open.
test_generations_restore_of_a_mount() {
    needs jq setfattr setfacl
    volume disk.img
    mounted disk.img mnt
    python3 "$TESTS/grow_tree.py" mnt 11 200
    mkdir -p mnt/chosen/below mnt/other
    seq 3000 >mnt/chosen/file
    seq 10 >mnt/chosen/kept
    seq 20 >mnt/chosen/below/deep
    ln mnt/chosen/file mnt/chosen/below/link
    ln -s ../other mnt/chosen/symlink
    mkfifo -m 640 mnt/chosen/fifo
    truncate -s 30M mnt/chosen/sparse
    setfattr -n user.kept -v yes mnt/chosen/file
    setfacl -m u:1234:r mnt/chosen/below
    chmod 4755 mnt/chosen/below/deep
    chown 33:44 mnt/chosen/below
    # Times of folders that still exist are not restored.
    all() { python3 "$TESTS/describe_tree.py" "$1" --no-times; }
    all mnt >before
    describe_tree mnt/chosen >chosen
    # A change just before a snapshot cannot be distinguished from one just after it.
    sleep 2
    "$XACT" snapshot create mnt good
    local kept above
    above=$(stat -c '%u:%g %a' mnt/chosen/below)
    kept=$(stat -c %i mnt/chosen/kept)
    exec 3<mnt/chosen/file
    echo spoilt >mnt/chosen/file
    rm -r mnt/chosen/below mnt/chosen/fifo
    echo in-the-way >mnt/chosen/below
    setfattr -n user.later -v yes mnt/chosen
    mkdir -p mnt/chosen/later/folder
    echo later >mnt/chosen/later/folder/file
    rm mnt/chosen/symlink
    ln -s / mnt/chosen/symlink
    chmod 700 mnt/chosen
    echo later >mnt/other/file
    rm -r "mnt/$(ls mnt | grep -avE 'chosen|other|lost' | head -n 1)"
    equal below "added /other/file" "$("$XACT" snapshot diff mnt good --path /other/ | xargs)"
    exits 66 'has no /never' -- "$XACT" snapshot restore mnt good /never
    exits 66 'has no /chosen/symlink/etc' -- "$XACT" snapshot restore mnt good /chosen/symlink/etc
    exits 64 'no snapshot' -- "$XACT" snapshot restore mnt none /chosen
    exits 64 'no longer a folder' -- "$XACT" snapshot restore mnt good /chosen/below/deep
    # One file, with the folders above it.
    "$XACT" snapshot restore mnt good /chosen
    describe_tree mnt/chosen | cmp - chosen
    equal "what was not changed is the same file" "$kept" "$(stat -c %i mnt/chosen/kept)"
    equal "the open file" spoilt "$(cat <&3)"
    exec 3<&-
    equal other later "$(cat mnt/other/file)"
    rm -r mnt/chosen
    "$XACT" snapshot restore mnt good chosen/below/deep
    equal above "$above" "$(stat -c '%u:%g %a' mnt/chosen/below)"
    equal deep 20 "$(wc -l <mnt/chosen/below/deep)"
    [[ ! -e mnt/chosen/file ]] || fail "more than was asked for"
    # All of it.
    "$XACT" snapshot restore mnt good
    all mnt | cmp - before
    # In a transaction a restore belongs to that transaction.
    "$XACT" run --at mnt -- sh -c 'echo mine >mnt/chosen/kept; "$1" snapshot restore mnt good 2>said; echo $? >code' - "$XACT"
    has said 'inside a transaction'
    equal refused 64 "$(<code)"
    unmounted mnt
    sound disk.img
    exits 64 'an image can only be restored as a whole' -- "$XACT" snapshot restore disk.img good /chosen
    mounted disk.img mnt
    "$XACT" snapshot restore mnt good
    all mnt | cmp - before
    unmounted mnt
    sound disk.img
}

# A restore that does not fit one commit is refused, and the message says what the limit depends on.
test_generations_too_large_for_the_pool() {
    volume disk.img --pool-size 4M
    mounted disk.img mnt
    exits 73 'volume.s pool, which has 4.* MiB here' -- "$XACT" run --at mnt -- sh -c 'mkdir $(seq -f "mnt/folder%g" 400)'
    equal "nothing of it" "lost+found" "$(ls mnt)"
    unmounted mnt
    sound disk.img
}

# The daemon is killed during a restore: all of it is on the volume, or nothing.
test_generations_restore_and_kills() {
    needs python3
    local round began took restore done rounds=8 whole=0 none=0
    # A large pool, since a restore is one commit.
    volume disk.img --pool-size 64M
    in_foreground disk.img mnt
    mkdir mnt/tree
    grow() { python3 "$TESTS/grow_tree.py" mnt/tree "$1" "$2"; }
    all() { python3 "$TESTS/describe_tree.py" mnt/tree --no-times; }
    grow 5 150
    all >good
    "$XACT" snapshot create mnt good
    grow 6 60
    began=$(date +%s%N)
    "$XACT" snapshot restore mnt good
    took=$((($(date +%s%N) - began) / 1000))
    all | cmp - good
    for ((round = 1; round <= rounds; round++)); do
        grow $((6 + round)) 60
        "$XACT" sync mnt
        all >spoilt
        ! cmp -s good spoilt || fail "nothing was changed"
        "$XACT" snapshot restore mnt good 2>>restore.log &
        restore=$!
        # From its beginning to beyond its end.
        sleep "$(printf '%d.%06d' $((took * round / 6 / 1000000)) $((took * round / 6 % 1000000)))"
        kill -KILL "$DAEMON"
        done=no
        wait "$restore" && done=yes
        wait || true
        "$XACT" umount mnt
        in_foreground disk.img mnt
        all >found
        [[ $done = no ]] || cmp found good || fail "a restore that was acknowledged is not there"
        if cmp -s found good; then
            whole=$((whole + 1))
        elif cmp -s found spoilt; then
            none=$((none + 1))
        else
            diff spoilt found | head -n 20
            fail "half a restore"
        fi
    done
    report "$rounds kills of a restore of $((took / 1000)) ms: $whole whole, $none not there"
    unmounted mnt
    wait "$DAEMON"
    sound disk.img
}

# Small volumes get the pool that they need, with every block size.
test_generations_on_small_volumes() {
    local size block
    for size in 12M 16M 40M 100M 128M; do
        for block in 1K 2K 4K; do
            volume disk.img --size $size --block-size $block --force
            mounted disk.img mnt
            seq 1000 >mnt/file
            unmounted mnt
            sound disk.img
        done
    done
    exits 64 'enlarge the image with --size to [0-9]+ MiB at least' -- \
        "$XACT" mkfs small.img --size 5M --block-size 4K --engine generations
    [[ ! -e small.img ]] || fail "a failed mkfs left its image"
}

# A volume with files, in source too. VOLUME is its size without the pool. With a snapshot, some
# contents are in the pool, since the snapshot has their places.
to_be_damaged() { # [SNAPSHOT]
    needs python3 jq setfattr
    mkdir source
    python3 "$TESTS/grow_tree.py" source 7 200
    volume disk.img --size 96M --block-size 1K
    mounted disk.img mnt
    mkdir mnt/many
    seq -f 'mnt/many/file-%g' 100 | while read -r file; do echo old >"$file"; done
    cp -a source/. mnt
    if [[ $# -gt 0 ]]; then
        "$XACT" snapshot create mnt "$1"
        # The names have characters of all kinds.
        find mnt/many -type f -exec sh -c 'echo "$1" >"$1"' - {} \;
    fi
    rm -rf source
    cp -a mnt source
    rmdir source/lost+found
    unmounted mnt
    VOLUME=$("$XACT" info disk.img --json | jq .size_bytes)
}

# repaired IMG: e2fsck repairs it, and then finds nothing more.
repaired() {
    local status=0
    e2fsck -fy "$1" >e2fsck.out 2>&1 || status=$?
    [[ $status -le 1 ]] || fail "e2fsck -fy $1 ended with $status: $(<e2fsck.out)"
    sound "$1"
}

# saves WHAT IMG COMMAND…: the command saves the volume as the ext4 volume IMG. Everything that it
# does not list is equal to source, and e2fsck repairs the rest. The number of these files is in
# COMPARED.
saves() {
    local what=$1 image=$2 status=0
    shift 2
    "$@" --best-effort --json >report 2>said || status=$?
    [[ $status -eq 0 || $status -eq 76 ]] || fail "$what: exit status $status: $(<said)"
    if [[ $status -eq 0 ]]; then
        equal "$what: complete" true "$(jq .complete report)"
        sound "$image"
    else
        equal "$what: complete" false "$(jq .complete report)"
        has said "e2fsck -fy $image"
        repaired "$image"
    fi
    kernel_mounted "$image" kernel ro
    COMPARED=$(python3 "$TESTS/damage_pool.py" compare source kernel report) || fail "$what"
    kernel_unmounted kernel
}

test_best_effort_export_saves_all_that_it_does_not_list() {
    local seed total=0
    to_be_damaged first
    saves "no damage" saved.img "$XACT" snapshot export disk.img saved.img
    equal "nothing is missing" '[]' "$(jq -c .missing report)"
    for seed in $(seq 12); do
        rm saved.img
        cp --sparse=always disk.img damaged.img
        python3 "$TESTS/damage_pool.py" damage damaged.img "$VOLUME" "$seed"
        saves "seed $seed" saved.img "$XACT" snapshot export damaged.img saved.img
        total=$((total + COMPARED))
    done
    report "$total files compared"
    [[ $total -gt 1000 ]] || fail "only $total files were compared"
    exits 64 'without snapshots' -- "$XACT" convert damaged.img --to ext4 --best-effort
}

test_best_effort_conversion_saves_all_that_it_does_not_list() {
    local seed total=0
    to_be_damaged
    for seed in $(seq 12); do
        cp --sparse=always disk.img damaged.img
        python3 "$TESTS/damage_pool.py" damage damaged.img "$VOLUME" "$seed"
        saves "seed $seed" damaged.img "$XACT" convert damaged.img --to ext4
        total=$((total + COMPARED))
        equal "size" "$VOLUME" "$(stat -c %s damaged.img)"
    done
    report "$total files compared"
    [[ $total -gt 1000 ]] || fail "only $total files were compared"
}

# Damage without a way out before: a block of the root folder, and both roots. The messages name
# --best-effort, and none advises e2fsck for the volume.
test_best_effort_is_advised() {
    local at
    to_be_damaged
    # The block of the root folder.
    at=$(grep -abo 'lost+found' disk.img | cut -d : -f 1 | awk -v "volume=$VOLUME" '$1 > volume' | tail -n 1)
    cp --sparse=always disk.img damaged.img
    printf '\377\377\377' | dd of=damaged.img bs=1 seek=$((at + 12)) conv=notrunc status=none
    exits 65 'snapshot export --best-effort' -- "$XACT" check damaged.img
    exits 74 'With --best-effort' -- "$XACT" snapshot export damaged.img saved.img
    lacks exits.err 'with e2fsck'
    [[ ! -e saved.img ]] || fail "a failed export left its image"
    exits 74 'With --best-effort' -- "$XACT" convert damaged.img --to ext4
    mounted damaged.img mnt --log log
    exits 64 'not mounted' -- "$XACT" snapshot export mnt saved.img --best-effort
    ls mnt >/dev/null 2>&1 || true
    unmounted mnt
    lacks log 'e2fsck'
    exits 76 'e2fsck -fy saved.img' -- "$XACT" snapshot export damaged.img saved.img --best-effort
    has exits.out '^/ \(inode 2\): names may be missing'
    repaired saved.img
    # Without a root, all metadata comes from its home. A conversion in place would be a gamble.
    python3 "$TESTS/damage_pool.py" roots damaged.img "$VOLUME"
    exits 74 'neither of the two slots' -- "$XACT" convert damaged.img --to ext4 --best-effort
    rm saved.img
    exits 76 'e2fsck -fy saved.img' -- "$XACT" snapshot export damaged.img saved.img --best-effort
    repaired saved.img
}

# The unit of delayed inode update is one write(2). The kernel sends an append that begins within a
# page as two requests. Each snapshot holds what a crash at its moment would leave.
test_generations_writes_are_whole() {
    needs python3
    volume disk.img
    mounted disk.img mnt
    python3 - mnt/running <<'PYTHON' &
import mmap, os, sys

KIB = 1024
folder = os.path.dirname(sys.argv[1])
fd = os.open(folder + "/file", os.O_CREAT | os.O_WRONLY)
os.write(fd, b"x" * 2 * KIB)
# The bytes of the second part are in pages of a mapping that have to be read first, which takes a
# while.
source = os.open(folder + "/source", os.O_CREAT | os.O_RDWR)
os.write(source, b"x" * 16 * KIB)
os.fsync(source)
pages = mmap.mmap(source, 16 * KIB, mmap.MAP_SHARED, mmap.PROT_READ)
pages.madvise(mmap.MADV_RANDOM)
open(sys.argv[1], "w").close()
while os.path.exists(sys.argv[1]):
    pages.madvise(mmap.MADV_DONTNEED)
    os.posix_fadvise(source, 0, 0, os.POSIX_FADV_DONTNEED)
    assert pages[0] == ord("x")
    os.write(fd, memoryview(pages)[2 * KIB:10 * KIB])
PYTHON
    wait_until "the writer" test -e mnt/running
    local n
    for ((n = 0; n < 50; n++)); do
        "$XACT" snapshot create mnt "s$n" >/dev/null
    done
    rm mnt/running
    wait
    find mnt/.xact/snapshots -name file -printf '%s\n' >sizes
    equal "lengths of the last write" 2048 "$(awk '{ print $1 % 8192 }' sizes | sort -u)"
    (($(sort -u sizes | wc -l) > 10)) || fail "the file did not grow beside the snapshots: $(sort sizes | uniq -c)"
    unmounted mnt
    sound disk.img
}
