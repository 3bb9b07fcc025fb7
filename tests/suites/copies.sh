# timeout: 600
# Programs that copy trees with all attributes. The copies on the mount and in a transaction equal
# the source, and so do copies back to kernel ext4.

# A tree with ACLs, attributes, hard links, sparse files and names of all kinds, on kernel ext4.
grow_source() {
    needs python3 mke2fs setfacl setfattr rsync tar
    truncate -s 400M kernel.img
    mke2fs -q -t ext4 kernel.img
    kernel_mounted kernel.img kernel
    mkdir kernel/source
    python3 "$TESTS/grow_tree.py" kernel/source 11 400
    setfacl -R -d -m user:1234:rwx "$(find kernel/source -mindepth 1 -maxdepth 1 -type d | head -n 1)"
    truncate -s 40M kernel/source/sparse
    printf middle | dd of=kernel/source/sparse bs=1 seek=20M conv=notrunc status=none
    describe_tree kernel/source >expected
}

copy_all() { # FROM, TO
    mkdir "$2/rsync" "$2/cp" "$2/tar"
    # -1: times are compared to the nanosecond; rsync alone looks at seconds.
    rsync -aHAXS --modify-window=-1 --numeric-ids "$1/" "$2/rsync/"
    cp -a --sparse=always "$1/." "$2/cp/"
    tar -C "$1" --format=posix --xattrs --xattrs-include='*' --acls -S --numeric-owner -cf - . |
        tar -C "$2/tar" --xattrs --xattrs-include='*' --acls --numeric-owner -xpf -
    # rsync's own check of its work: nothing is left to be copied.
    [[ -z $(rsync -aHAXS --modify-window=-1 --numeric-ids --itemize-changes --checksum --dry-run "$1/" "$2/rsync/") ]]
}
export -f copy_all

compare_copies() { # FOLDER
    local tool sectors
    for tool in rsync cp tar; do
        # tar carries no sockets.
        if [[ $tool == tar ]]; then
            diff <(grep -vE "^'[^ ]*.*' 14[0-7]{4} " expected) <(describe_tree "$1/$tool") || fail "$tool: another tree"
        else
            diff expected <(describe_tree "$1/$tool") || fail "$tool: another tree"
        fi
        sectors=$(stat -c %b "$1/$tool/sparse")
        [[ $sectors -lt 1000 ]] || fail "$tool: the sparse file takes $sectors sectors"
    done
}

test_copies_on_the_mount() {
    grow_source
    volume disk.img --size 1G --journal-size 200M
    mounted disk.img mnt
    copy_all kernel/source mnt
    compare_copies mnt
    mkdir kernel/back
    cp -a --sparse=always mnt/rsync/. kernel/back
    diff expected <(describe_tree kernel/back) || fail "the copy back is another tree"
    unmounted mnt
    sound disk.img
    kernel_mounted disk.img mnt
    compare_copies mnt
    kernel_unmounted mnt
    kernel_unmounted kernel
}

test_copies_in_a_transaction() {
    grow_source
    volume disk.img --size 1G --journal-size 200M
    mounted disk.img mnt
    "$XACT" run --at mnt -- bash -euo pipefail -c 'copy_all kernel/source mnt'
    compare_copies mnt
    unmounted mnt
    sound disk.img
    kernel_unmounted kernel
}
