# Damaged volumes: an error for what is damaged, and all else as before.

# A volume of mke2fs with the features and options given, and the files a to f.
damaged_sample() { # IMG OPTIONS…
    local image=$1 name
    shift
    needs mke2fs debugfs
    mke2fs -q -F "$@" "$image" 8M
    echo hello >"$WORK/contents"
    for name in a b c d e f; do echo "write $WORK/contents $name"; done >"$WORK/commands"
    debugfs -w -f "$WORK/commands" "$image" >/dev/null 2>&1
}

errors_noted() { # IMG
    dumpe2fs -h "$1" 2>/dev/null | sed -nE 's/^FS Error count: +//p'
}

# The inode bitmap says that inodes in use are free: creating a file is an error once for each, in
# a transaction too; no inode gets a second owner.
test_inodes_in_use_that_are_marked_free() {
    local free image
    for image in ext2.img ext4.img; do
        damaged_sample $image -t "${image%.img}"
        free=$(dumpe2fs -h $image 2>/dev/null | sed -nE 's/^Free inodes: +//p')
        debugfs -w -R 'freei <12>' $image 2>/dev/null
        debugfs -w -R 'freei <14>' $image 2>/dev/null
        debugfs -w -R "ssv free_inodes_count $((free + 2))" $image 2>/dev/null
        debugfs -w -R "set_bg 0 free_inodes_count $((free + 2))" $image 2>/dev/null
        debugfs -w -R 'set_bg 0 checksum calc' $image 2>/dev/null
        mounted $image mnt --log log
        equal "contents before" hello "$(cat mnt/a)"
        exits 1 'Structure needs cleaning|Input/output error' -- touch mnt/first
        exits 1 'Structure needs cleaning|Input/output error' -- "$XACT" run --at mnt -- mkdir mnt/second
        touch mnt/third
        mkdir mnt/fourth
        ln -s target mnt/fifth
        "$XACT" run --at mnt -- mkfifo mnt/sixth
        equal "contents" hello "$(cat mnt/a)"
        equal "contents" hello "$(cat mnt/c)"
        equal "owners of one inode" '' "$(stat -c %i mnt/* | sort | uniq -d)"
        unmounted mnt
        lacks log panicked
        has log 'the inode is in use, but the inode bitmap says that it is free'
        equal "errors in the superblock" 2 "$(errors_noted $image)"
        rm log
    done
}

# A group with a corrupt bitmap is not used, and the volume remembers it: e2fsck does not skip the
# volume, and info, check and stat show the damage.
test_a_corrupt_bitmap_is_recorded() {
    local block what at
    needs mke2fs dumpe2fs e2fsck jq
    for what in 'Inode bitmap' 'Block bitmap'; do
        # The offset of bits of free inodes, and of free blocks.
        [[ $what == Inode* ]] && at=100 || at=1000
        mke2fs -q -F -t ext4 -b 1024 -O metadata_csum disk.img 64M
        block=$(dumpe2fs disk.img 2>/dev/null | sed -nE "s/.*$what at ([0-9]+).*/\\1/p" | head -1)
        printf '\xff' | dd of=disk.img bs=1 seek=$((block * 1024 + at)) conv=notrunc status=none
        mounted disk.img mnt --log log
        mkdir mnt/d || true
        seq 10000 >mnt/file || true
        "$XACT" sync mnt || true
        "$XACT" stat mnt >stat
        has stat 'damage: .* run .xact check. on it'
        unmounted mnt
        has log "checksum of the ${what,} does not match"
        [[ $(errors_noted disk.img) -ge 1 ]] || fail "the superblock has no error"
        dumpe2fs -h disk.img 2>/dev/null >head
        has head "^Last error block #: +$block\$"
        has head "^Last error function: +checksum of the ${what,}"
        equal "$what: info" true "$("$XACT" info disk.img --json | jq .errors_noted)"
        { "$XACT" check disk.img || true; } >checked 2>&1
        has checked "note: .* errors were noted in use; the last is 'checksum of the ${what,} .* block $block"
        # Without -f, e2fsck skips a volume that seems to be clean.
        { e2fsck -p disk.img || true; } >checked 2>&1
        has checked 'contains a file system with errors, check forced'
        rm log
    done
}

# The same on a volume with generations, where e2fsck cannot look.
test_damage_of_a_generation_is_recorded() {
    local at volume
    needs jq python3
    "$XACT" mkfs disk.img --size 64M --block-size 1K --engine generations >/dev/null
    mounted disk.img mnt
    mkdir mnt/folder
    seq -f 'mnt/folder/name-%g' 30 | xargs touch
    unmounted mnt
    volume=$("$XACT" info disk.img --json | jq .size_bytes)
    at=$(grep -abo 'name-17' disk.img | cut -d : -f 1 | awk -v "volume=$volume" '$1 > volume' | tail -n 1)
    printf '\377' | dd of=disk.img bs=1 seek="$at" conv=notrunc status=none
    equal "info before" false "$("$XACT" info disk.img --json | jq .errors_noted)"
    mounted disk.img mnt --log log
    exits 1 'Structure needs cleaning' -- stat mnt/folder/name-17
    "$XACT" stat mnt >stat
    has stat 'damage: .* run .xact check. on it'
    unmounted mnt
    equal "info" true "$("$XACT" info disk.img --json | jq .errors_noted)"
    { "$XACT" check disk.img || true; } >checked 2>&1
    has checked "note: .* errors? w.* noted in use"
}

# A damaged inode bitmap is not "no space": if no other group has an inode, the damage is reported.
test_a_corrupt_inode_bitmap_is_not_a_full_volume() {
    local block
    needs mke2fs dumpe2fs
    mke2fs -q -F -t ext4 -b 1024 -O metadata_csum disk.img 8M
    block=$(dumpe2fs disk.img 2>/dev/null | sed -nE 's/.*Inode bitmap at ([0-9]+).*/\1/p' | head -1)
    printf '\xff' | dd of=disk.img bs=1 seek=$((block * 1024 + 100)) conv=notrunc status=none
    mounted disk.img mnt
    exits 1 'Structure needs cleaning' -- mkdir mnt/d
    exits 1 'Structure needs cleaning' -- touch mnt/file
    unmounted mnt
}

# folder_of_300 IMG OPTIONS OF mke2fs…: a volume on which the kernel made a folder d of 300 names.
folder_of_300() {
    local image=$1
    shift
    needs mke2fs debugfs
    mke2fs -q -F -t ext4 -b 1024 "$@" "$image" 8M
    mkdir -p mnt
    mount -o loop "$image" mnt
    mkdir mnt/d
    (cd mnt/d && seq -f 'file-number-%g' 300 | xargs touch)
    kernel_unmounted mnt
}

# spoiled IMG BLOCK OFFSET BYTES: overwrites bytes of the folder's block.
spoiled() {
    local block
    block=$(debugfs -R "bmap d $2" "$1" 2>/dev/null)
    # shellcheck disable=SC2059  # the bytes are escapes
    printf "$4" | dd of="$1" bs=1 seek=$((block * 1024 + $3)) conv=notrunc status=none
}

# names_of DIR: what ls lists, whatever its status.
names_of() { { ls "$1" 2>/dev/null || true; } | wc -l; }

# One damaged block of a folder: the names in the other blocks are listed, also by a transaction,
# and the listing ends with an error.
test_one_damaged_block_hides_no_other_names() {
    local listed features
    for features in '^dir_index,^metadata_csum' '^dir_index,metadata_csum' 'dir_index,^metadata_csum' 'dir_index,metadata_csum'; do
        folder_of_300 disk.img -O "$features"
        spoiled disk.img 4 0 '\377\377\377\377\001\000'
        mounted disk.img mnt --log log
        listed=$(names_of mnt/d)
        [[ $listed -ge 240 && $listed -lt 300 ]] || fail "$features: $listed of 300 names are listed"
        exits 2 'reading directory|cannot access|Structure needs cleaning|Input/output error' -- ls mnt/d
        equal "$features: names in a transaction" "$listed" "$("$XACT" run --at mnt -- sh -c 'ls mnt/d 2>/dev/null | wc -l')"
        equal "$features: names once" '' "$({ ls mnt/d 2>/dev/null || true; } | sort | uniq -d)"
        unmounted mnt
        has log "the folder .* is damaged"
        [[ $(errors_noted disk.img) -ge 1 ]] || fail "$features: the superblock has no error"
        rm log
    done
}

# The root of a folder's hash index is damaged: the leaves are listed.
test_a_damaged_index_hides_no_names() {
    folder_of_300 disk.img
    spoiled disk.img 0 40 '\377\377'
    mounted disk.img mnt
    equal "names" 300 "$(names_of mnt/d)"
    unmounted mnt
}

# Without the feature filetype, a name's type comes from its inode. One of unknown type is an error
# for its own name.
test_one_bad_inode_hides_no_other_names() {
    damaged_sample disk.img -t ext2 -O ^filetype
    debugfs -w -R 'sif c mode 0150644' disk.img 2>/dev/null
    mounted disk.img mnt
    equal "names" 'a b c d e f lost+found' "$(echo $(ls mnt))"
    equal "contents" hello "$(cat mnt/a)"
    exits 1 'mnt/c' -- cat mnt/c
    unmounted mnt
}
