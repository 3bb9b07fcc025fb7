# Users of one mount who do not trust each other: through xact nobody reads, changes or ends what plain calls would
# not let him (docs/SECURITY.md).

shared_volume() {
    volume disk.img
    mounted disk.img mnt
    # Other users have to get there.
    chmod 755 .
    mkdir -m 700 mnt/private && echo secret >mnt/private/secret && chmod 600 mnt/private/secret
    mkdir mnt/theirs && echo secret >mnt/theirs/deleted && chmod 600 mnt/theirs/deleted
    printf old >mnt/theirs/readable && chmod 666 mnt/theirs/readable
    mkdir -p mnt/theirs/shut && touch mnt/theirs/shut/hidden-name && chown 1000 mnt/theirs mnt/theirs/shut && chmod 300 mnt/theirs/shut
    head -c 8192 /dev/zero | tr '\0' o >mnt/theirs/database && chown 1000 mnt/theirs/database && chmod 666 mnt/theirs/database
    mkdir -m 777 mnt/shared && printf 'contents' >mnt/shared/file && chmod 666 mnt/shared/file
}
afterwards() {
    unmounted mnt
    sound disk.img
}
told() { python3 "$TESTS/strangers.py" "$1" "$PWD/mnt"; }

test_sides_are_read_as_their_caller_may() {
    shared_volume
    equal sides 'ENOENT ENOENT EACCES old new' "$(told reads)"
    afterwards
}

test_lists_walk_no_folder_that_may_not_be_listed() {
    shared_volume
    equal 'a name below, the folder itself' 'False True' "$(told renamed)"
    afterwards
}

test_parts_are_their_users() {
    shared_volume
    equal 'make, undo, release; root itself' 'EPERM EPERM EPERM done committed True' "$(told parts)"
    afterwards
}

test_atomic_writes_are_the_owners() {
    shared_volume
    equal 'a stranger, the owner; stores' 'EACCES started written True mine mine' "$(told sections)"
    afterwards
}

test_a_right_taken_away_refuses_the_commit() {
    shared_volume
    equal commits 'EAGAIN EAGAIN EAGAIN EAGAIN EAGAIN committed' "$(told rights)"
    afterwards
}

test_labels_forge_no_line() {
    shared_volume
    told labels
    "$XACT" tx list --at mnt >list
    "$XACT" umount mnt 2>said
    has list 'FORGED \\u\{1b\}\[31m'
    lacks list '^xact: FORGED'
    lacks said '^xact: FORGED'
    lacks list $'\x1b'
    lacks said $'\x1b'
    sound disk.img
}
