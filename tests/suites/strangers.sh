# Users that do not trust each other on one mount: through xact no user reads, changes or ends
# anything that plain calls would not permit (docs/SECURITY.md).

shared_volume() {
    volume disk.img
    mounted disk.img mnt
    # Other users must be able to reach it.
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
outcome() { python3 "$TESTS/strangers.py" "$1" "$PWD/mnt"; }

test_sides_are_read_as_their_caller_may() {
    shared_volume
    equal sides 'ENOENT ENOENT EACCES old new' "$(outcome reads)"
    afterwards
}

test_lists_skip_unreadable_folders() {
    shared_volume
    equal 'a name below, the folder itself' 'False True' "$(outcome renamed)"
    afterwards
}

test_parts_are_their_users() {
    shared_volume
    equal 'make, undo, release; root itself' 'EPERM EPERM EPERM done committed True' "$(outcome parts)"
    afterwards
}

test_atomic_writes_are_the_owners() {
    shared_volume
    equal 'a stranger, the owner; stores' 'EACCES started written True mine mine' "$(outcome sections)"
    afterwards
}

test_a_right_taken_away_refuses_the_commit() {
    shared_volume
    equal commits 'EAGAIN EAGAIN EAGAIN EAGAIN EAGAIN committed' "$(outcome rights)"
    afterwards
}

test_labels_forge_no_line() {
    shared_volume
    outcome labels
    "$XACT" tx list --at mnt >list
    "$XACT" umount mnt 2>said
    has list 'FORGED \\u\{1b\}\[31m'
    lacks list '^xact: FORGED'
    lacks said '^xact: FORGED'
    lacks list $'\x1b'
    lacks said $'\x1b'
    sound disk.img
}
