# Chains of folders whose paths are longer than any call accepts: every command that walks through
# folders reaches all of them.

# The path of the deepest folder has 101 kB. A shell passes it on in PWD, of which the kernel takes
# 128 KiB.
DEPTH=1000
tree() { python3 "$TESTS/deep_tree.py" "$@"; }

test_deep_trees_in_transactions() {
    volume disk.img --size 512M
    mounted disk.img mnt -o allow_other
    mkdir -m 777 mnt/top
    local id
    # The current folder is deep in the tree.
    tree make mnt/top "$DEPTH"
    tree at mnt/top "$DEPTH" "$XACT" run -- sh -c 'cat f && echo inside >>f && pwd >/dev/null && test -e ../f' >said
    equal "the file in the transaction" made "$(<said)"
    equal "the file after the commit" "made inside " "$(tree read mnt/top | tail -n 1)"

    id=$("$XACT" tx begin --at mnt)
    tree append "mnt/.xact/tx/$id/root/top" "of $id"
    equal "differences" "$DEPTH" "$("$XACT" tx diff "$id" --at mnt | grep -c '^modified')"
    equal "lines added" "$DEPTH" "$("$XACT" tx diff "$id" --at mnt --patch | grep -c "^+of $id")"
    has <("$XACT" tx diff "$id" --at mnt --stat) "$DEPTH changes, $DEPTH lines added, 0 removed"
    # The longest path that a program can use has this one and all below it.
    local path
    path=/top$(printf "/%0.s$(printf 'n%.0s' {1..100})" {1..39})
    "$XACT" tx commit "$id" --at mnt --only "$path"
    equal "the rest" 38 "$("$XACT" tx diff "$id" --at mnt | wc -l)"
    "$XACT" tx abort "$id" --at mnt --only "$path/../.."
    "$XACT" tx abort "$id" --at mnt
    equal "files with the change" "$((DEPTH - 38))" "$(tree read mnt/top | grep -c "of $id")"

    # A persisted transaction, over an unmount.
    id=$("$XACT" tx begin --at mnt --persist)
    tree append "mnt/.xact/tx/$id/root/top" "of $id"
    unmounted mnt
    mounted disk.img mnt -o allow_other
    "$XACT" tx commit "$id" --at mnt
    equal "files with the persisted change" "$DEPTH" "$(tree read mnt/top | grep -c "of $id")"
    unmounted mnt
    sound disk.img
}

# The C library, as Python uses it, begins at a current folder of any depth.
test_deep_trees_in_the_library() {
    volume disk.img
    mounted disk.img mnt
    mkdir mnt/top
    tree make mnt/top "$DEPTH"
    cat >program.py <<'END'
import os, xact
with xact.folder(".") as tx:
    with open(os.open("f", os.O_WRONLY | os.O_APPEND, dir_fd=tx.dir_fd), "w") as file:
        file.write("folder\n")
    assert open("f").read() == "made\n"
with xact.transaction("."):
    with open("f", "a") as file:
        file.write("thread\n")
with xact.transaction("../."):
    with open("f", "a") as file:
        file.write("above\n")
with open("f", "a") as file:
    file.write("outside\n")
END
    export LIBXACT=$TARGET/release/libxact_c.so PYTHONPATH=$ROOT/python PYTHONDONTWRITEBYTECODE=1
    tree at mnt/top "$DEPTH" python3 "$PWD/program.py"
    equal "the file" "made folder thread above outside " "$(tree read mnt/top | tail -n 1)"
    unmounted mnt
}

# An ordinary user reads the changes of files that no path reaches, and no others: a folder on the
# way that the user may not search closes off all below it.
test_deep_trees_of_an_ordinary_user() {
    volume disk.img
    mounted disk.img mnt -o allow_other
    mkdir -m 777 mnt/top
    local id
    as_user() { setpriv --reuid 1234 --regid 1234 --clear-groups "$@"; }
    AS_USER=1234 tree make mnt/top 200
    id=$(as_user "$XACT" tx begin --at mnt)
    AS_USER=1234 tree append "mnt/.xact/tx/$id/root/top" "of $id"
    as_user "$XACT" tx diff "$id" --at mnt --patch >patch
    equal "lines added" 200 "$(grep -c "^+of $id" patch)"
    # The folder above them all belongs to root, and is closed in the view.
    local view="mnt/.xact/tx/$id/root"
    chmod 700 "$view/top"
    exits 77 'denied' -- as_user "$XACT" tx diff "$id" --at mnt --patch
    unmounted mnt
}

test_deep_trees_in_snapshots() {
    ENGINE=generations volume disk.img --size 512M --pool-size 128M
    mounted disk.img mnt
    mkdir mnt/top
    tree make mnt/top "$DEPTH"
    sleep 2
    "$XACT" snapshot create mnt good
    "$XACT" snapshot create mnt part top
    tree append mnt/top spoilt
    local snapshot
    for snapshot in good part; do
        equal "differences from $snapshot" "$DEPTH" "$("$XACT" snapshot diff mnt "$snapshot" | grep -c '^modified')"
    done
    "$XACT" snapshot restore mnt good
    equal "files as before" "$DEPTH" "$(tree read mnt/top | grep -c '^made $')"
    # A restore removes what is as deep and not in the snapshot, and makes what is not there.
    mv mnt/top mnt/other
    "$XACT" snapshot restore mnt good
    [[ ! -e mnt/other ]] || fail "mnt/other is still there"
    equal "files after a restore of all" "$DEPTH" "$(tree read mnt/top | grep -c '^made $')"
    "$XACT" snapshot restore mnt part
    equal "files of the snapshot" "$DEPTH" "$(tree read mnt/.xact/snapshots/good/top | grep -c '^made $')"
    unmounted mnt
    sound disk.img
}
