# timeout: 400
# Volumes of many kinds.
# Trees of thousands of files go kernel -> xact -> kernel -> xact, changed by each in turn and
# compared by content, extended attributes, times, modes, owners and links each time; e2fsck has
# nothing to say in between.

compare() { # FOLDER, WHO LOOKS
    describe_tree "$1" >seen
    cmp -s expected seen || fail "$2 sees another tree: $(diff expected seen | head -n 20)"
}

# Operations of the kernel, xact and a transaction in each round. The kinds of volume make the
# difference, not the number of files. For more operations: BY_KERNEL=5000 BY_XACT=4000 tests/run
# interop.
BY_KERNEL=${BY_KERNEL:-1000} BY_XACT=${BY_XACT:-800} BY_TRANSACTION=150

# Linux 6.18 leaves a file type in the '..' of a folder now and then, on volumes whose entries
# have none, also where xact never was; e2fsck clears that, and nothing else is let through.
clear_file_types() {
    local said remarks
    said=$(e2fsck -fn disk.img 2>&1) && return 0
    remarks=$(grep -c "^Entry '\.\.' in .* has filetype set\.$" <<<"$said") || return 0
    [[ $(grep -c '? no$' <<<"$said") -eq $remarks ]] || return 0
    e2fsck -fy disk.img >/dev/null 2>&1 || [[ $? -eq 1 ]]
    report "cleared $remarks file types that the kernel had left"
}

through_the_kernel() { # SEED
    kernel_mounted disk.img mnt
    [[ ! -e expected ]] || compare mnt "the kernel"
    python3 "$TESTS/grow_tree.py" mnt "$1" "$BY_KERNEL"
    # Compares the volume, not the kernel's memory: with inline_data Linux 6.18 loses a zeroed end
    # of a block now and then, which its own next mount shows.
    kernel_unmounted mnt
    clear_file_types
    sound disk.img
    kernel_mounted disk.img mnt ro
    describe_tree mnt >expected
    kernel_unmounted mnt
}

through_xact() { # SEED
    mounted disk.img mnt
    compare mnt xact
    python3 "$TESTS/grow_tree.py" mnt "$1" "$BY_XACT"
    "$XACT" run --at mnt -- python3 "$TESTS/grow_tree.py" "$WORK/mnt" "$1$1" "$BY_TRANSACTION"
    describe_tree mnt >expected
    unmounted mnt
    sound disk.img
}

round_trip() { # ARGUMENTS OF mke2fs…
    truncate -s 800M disk.img
    [[ " $* " == *has_journal* || " $* " == *"-t ext2"* ]] || set -- -J size=128 "$@"
    [[ " $* " == *" -t "* ]] || set -- -t ext4 "$@"
    mke2fs -q -F "$@" disk.img
    through_the_kernel 1
    through_xact 2
    through_the_kernel 3
    through_xact 4
    kernel_mounted disk.img mnt
    compare mnt "the kernel"
    kernel_unmounted mnt
    report "$(wc -l <expected) files"
}

# The same with fewer operations, for options that change one thing.
short_trip() { # ARGUMENTS OF mke2fs…
    BY_KERNEL=500 BY_XACT=400 BY_TRANSACTION=100
    rm -f expected
    round_trip "$@"
}

test_volumes_of_mke2fs() { round_trip; }
test_features_of_newer_e2fsprogs() { round_trip -O orphan_file,metadata_csum_seed,64bit,metadata_csum; }
test_features_of_debian_12() { round_trip -O ^orphan_file,^metadata_csum_seed,64bit,metadata_csum; }
test_without_checksums_and_64bit() { round_trip -O ^metadata_csum,^64bit; }
test_old_group_checksums() { round_trip -O ^metadata_csum,uninit_bg; }
test_blocks_of_1_kib() { round_trip -b 1024; }
test_blocks_of_2_kib() { round_trip -b 2048; }
test_without_a_journal() { round_trip -O ^has_journal; }

test_ext3() { round_trip -t ext3; }
test_ext2_with_blocks_of_1_kib() { round_trip -t ext2 -b 1024; }

test_ext3_and_ext2_variants() {
    short_trip -t ext3 -b 1024 -I 128
    short_trip -t ext2 -O ^dir_index,^resize_inode
    short_trip -t ext2 -O ^filetype,^sparse_super,^resize_inode -b 1024
    short_trip -t ext4 -O ^extents,^64bit
}

test_sizes_of_inodes() {
    short_trip -I 128
    short_trip -O ^metadata_csum,^64bit -I 128 -b 1024
    short_trip -I 512
    short_trip -I 1024 -b 2048
    short_trip -O ^extra_isize
}

test_places_of_group_metadata() {
    short_trip -O ^flex_bg
    short_trip -O ^metadata_csum,uninit_bg,^flex_bg -b 1024
    short_trip -O sparse_super2,^resize_inode
    short_trip -O ^sparse_super,^resize_inode -b 1024
    short_trip -O meta_bg,^resize_inode
    short_trip -O meta_bg,^resize_inode,^flex_bg -b 1024 -g 1024
    short_trip -G 64 -E packed_meta_blocks=1
    short_trip -b 1024 -g 2048
}

test_directories() {
    short_trip -O ^dir_index
    short_trip -O ^filetype
    short_trip -O large_dir -b 1024
    short_trip -E hash_seed=6ba7b810-9dad-11d1-80b4-00c04fd430c8
}

test_small_features() {
    short_trip -O ^huge_file,^dir_nlink,^large_file
    short_trip -O stable_inodes
    short_trip -O fast_commit
    short_trip -O mmp
    short_trip -O orphan_file,^metadata_csum
    short_trip -E lazy_itable_init=0,lazy_journal_init=0 -N 30000
}

test_inline_data() {
    short_trip -O inline_data
    short_trip -O inline_data -I 1024 -b 1024
}

# Contents in the inode count as space used, as in the kernel: tar takes a file without any for a
# hole. Behind its bytes a file reads as zeros, which is how mke2fs -d stores a hole.
test_space_of_inline_data() {
    local engine
    mkdir files
    head -c 1500 /dev/zero | tr '\0' p >files/small
    echo hi >files/tiny
    : >files/empty
    truncate -s 1M files/hole
    spaces() { (cd "$1" && stat -c '%n %b %s %W' empty hole small tiny | cut -d ' ' -f 1-3); }
    for engine in journal generations; do
        rm -f disk.img
        truncate -s 64M disk.img
        mke2fs -q -F -t ext4 -b 4096 -I 2048 -O inline_data -d files disk.img
        mkdir -p mnt
        mount -o loop,ro disk.img mnt
        spaces mnt >expected
        kernel_unmounted mnt
        [[ $engine = journal ]] || "$XACT" convert disk.img --to generations >/dev/null
        sound disk.img
        mounted disk.img mnt
        spaces mnt | diff expected - || fail "the space differs from the kernel's"
        # The first asks for no time of birth, and so without statx.
        equal "sectors" "$(stat -c %b mnt/small)" "$(python3 -c 'import os; print(os.stat("mnt/small").st_blocks)')"
        "$XACT" run --at mnt -- bash -c "cd $WORK/mnt && stat -c '%n %b %s' empty hole small tiny" | diff expected - ||
            fail "the space differs in a transaction"
        tar -C mnt -cSf archive.tar small tiny hole empty
        "$XACT" run --at mnt -- tar -C "$WORK/mnt" -cSf "$WORK/archive2.tar" small tiny hole empty
        local archive
        for archive in archive archive2; do
            rm -rf out
            mkdir out
            tar -C out -xf $archive.tar
            diff -r files out
        done
        # A change in the middle of the hole, by a call and by a transaction; and a cut.
        cp --sparse=always files/hole expected.hole
        printf xyz | dd of=expected.hole bs=1 seek=500000 conv=notrunc status=none
        printf xyz | dd of=mnt/hole bs=1 seek=500000 conv=notrunc status=none
        cmp expected.hole mnt/hole
        unmounted mnt
        sound disk.img
        rm disk.img
        truncate -s 64M disk.img
        mke2fs -q -F -t ext4 -b 4096 -I 2048 -O inline_data -d files disk.img
        [[ $engine = journal ]] || "$XACT" convert disk.img --to generations >/dev/null
        mounted disk.img mnt
        "$XACT" run --at mnt -- bash -c "printf xyz | dd of=$WORK/mnt/hole bs=1 seek=500000 conv=notrunc status=none
            truncate -s 700 $WORK/mnt/small"
        cmp expected.hole mnt/hole
        equal "bytes after a cut" "$(head -c 700 files/small | md5sum)" "$(md5sum <mnt/small)"
        unmounted mnt
        sound disk.img
        mounted disk.img mnt
        cmp expected.hole mnt/hole
        unmounted mnt
    done
}

# The volume is read with the feature named; the tree is the one that the kernel sees.
test_attributes_in_inodes_of_their_own() {
    truncate -s 200M disk.img
    mke2fs -q -t ext4 -O ea_inode disk.img
    kernel_mounted disk.img mnt
    python3 - <<'END'
import os
# The last two have the same value, and so the same inode for it.
for n, size in enumerate([10, 5000, 20000, 60000, 60000]):
    path = f"mnt/{n}"
    open(path, "w").close()
    os.setxattr(path, "user.large", bytes(i * 7 % 251 for i in range(size)))
END
    describe_tree mnt >expected
    kernel_unmounted mnt
    "$XACT" check disk.img >checked || fail "$(cat checked)"
    exits 78 'ea_inode.*read-only' -- "$XACT" mount disk.img mnt
    "$XACT" mount -o ro disk.img mnt
    compare mnt xact
    unmounted mnt
    sound disk.img
}

# Fast commits that were not replayed hold changes that Linux has acknowledged. They are refused by
# name, and nothing is written. Linux replays them, and then the volume is like any other. Linux
# decides whether an fsync becomes a fast commit or a full one, and any sync(2) on the machine makes
# it full. Then all changes are in the full commit.
test_unreplayed_fast_commits() {
    truncate -s 64M linux.img
    mke2fs -q -t ext4 -O fast_commit linux.img
    kernel_mounted linux.img linux commit=600
    local refused='fast commits that have not been replayed.*mount the volume with Linux once, or run e2fsck'
    local n=0 refusals=0
    mkdir mnt
    while [[ $refusals -lt 3 && $n -lt 60 ]]; do
        n=$((n + 1))
        dd if=/dev/zero of=linux/file bs=5000 count=1 oflag=append conv=notrunc,fsync status=none
        cp --sparse=always linux.img disk.img
        cp --sparse=always disk.img before.img
        if ! "$XACT" recover disk.img >said 2>&1; then
            refusals=$((refusals + 1))
            has said "$refused"
            exits 78 "$refused" -- "$XACT" mount disk.img mnt
            exits 78 "$refused" -- "$XACT" mount -o ro disk.img mnt
            exits 78 "$refused" -- "$XACT" check disk.img
            cmp disk.img before.img
            kernel_mounted disk.img mnt
            kernel_unmounted mnt
        fi
        mounted disk.img mnt
        equal "size of the file" $((n * 5000)) "$(stat -c %s mnt/file)"
        unmounted mnt
        sound disk.img
    done
    kernel_unmounted linux
    [[ $refusals -gt 0 ]] || fail "Linux made no fast commit"
    report "refused $refusals times of $n"
}

# A directory of three index levels, made by both in turn.
test_large_directories() {
    truncate -s 400M disk.img
    mke2fs -q -t ext4 -O large_dir -b 1024 -N 200000 -J size=32 disk.img
    local name turn
    name=$(printf 'x%.0s' $(seq 240))
    make_names() { # FROM TO
        python3 -c '
import os, sys
os.chdir("mnt/large")
for n in range(int(sys.argv[1]), int(sys.argv[2])):
    os.link("../file", f"{n:06}{sys.argv[3]}")' "$1" "$2" "$name"
    }
    kernel_mounted disk.img mnt
    mkdir mnt/large
    touch mnt/file
    make_names 0 20000
    kernel_unmounted mnt
    mounted disk.img mnt
    make_names 20000 56000
    equal names 56000 "$(find mnt/large -type f | wc -l)"
    unmounted mnt
    sound disk.img
    kernel_mounted disk.img mnt
    make_names 56000 60000
    equal names 60000 "$(find mnt/large -type f | wc -l)"
    kernel_unmounted mnt
    has <(debugfs -R 'htree_dump /large' disk.img 2>/dev/null) 'Indirect levels: 2'
    mounted disk.img mnt
    equal names 60000 "$(find mnt/large -type f | wc -l)"
    rm -r mnt/large
    unmounted mnt
    sound disk.img
}

test_made_by_xact_mkfs() {
    volume disk.img --size 800M --journal-size 128M
    sound disk.img
    through_the_kernel 1
    through_xact 2
    through_the_kernel 3
}

# Volumes with clusters of blocks are read. All other commands refuse them by the feature's name.
test_bigalloc_is_read_only() {
    truncate -s 64M disk.img
    mke2fs -q -t ext4 -O bigalloc -C 16384 disk.img 2>/dev/null
    kernel_mounted disk.img mnt
    mkdir mnt/folder
    seq 100000 >mnt/folder/numbers
    for i in {1..100}; do echo "$i" >"mnt/folder/$i"; done
    setfattr -n user.a -v b mnt/folder/1
    (cd mnt && describe_tree .) >expected
    kernel_unmounted mnt
    cp --sparse=always disk.img before.img
    exits 78 'the volume uses bigalloc' -- "$XACT" mount disk.img mnt
    exits 78 'the volume uses bigalloc' -- "$XACT" check disk.img
    exits 78 'bigalloc' -- "$XACT" convert --to generations disk.img
    mounted disk.img mnt -o ro
    (cd mnt && describe_tree .) >seen
    diff expected seen || fail "xact reads another tree"
    unmounted mnt
    cmp disk.img before.img
    sound disk.img
}
