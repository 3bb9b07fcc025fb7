# timeout: 200
# Calls that are durable when they return: the mount options sync and dirsync, and the flags +S and
# +D of chattr. A copy of the image right after the call is what a power cut would leave.

# A long commit interval, so that nothing becomes durable without a sync.
fresh() { # [ARGUMENTS OF xact mkfs… -- ARGUMENTS OF xact mount…]
    local of_mkfs=()
    while [[ $# -gt 0 && $1 != -- ]]; do of_mkfs+=("$1"); shift; done
    volume disk.img --size 64M "${of_mkfs[@]}"
    mounted disk.img mnt --commit-interval 300 "${@:2}"
}

# after_crash COMMAND…: runs it on the volume as a power cut now would leave it, mounted on crash.
after_crash() {
    cp --sparse=always disk.img crash.img
    # Without a journal, nothing repairs the volume.
    [[ $ENGINE != none ]] || e2fsck -fy crash.img >/dev/null 2>&1 || true
    mounted crash.img crash
    "$@" || fail "lost by a crash: '$*'"
    unmounted crash
    rm crash.img
}
is_not() { ! test "$@"; }

# Each call that changes names, in folder DIR.
names_are_durable() { # DIR
    local dir=$1 there=${1/mnt/crash}
    mkdir "$dir/folder"
    after_crash test -d "$there/folder"
    : >"$dir/file"
    after_crash test -f "$there/file"
    ln "$dir/file" "$dir/link"
    after_crash test -f "$there/link"
    mv "$dir/file" "$dir/moved"
    after_crash test -f "$there/moved"
    ln -s target "$dir/symbolic"
    after_crash test -L "$there/symbolic"
    mkfifo "$dir/fifo"
    after_crash test -p "$there/fifo"
    mv "$dir/moved" "$dir/folder/moved"
    after_crash test -f "$there/folder/moved"
    after_crash is_not -e "$there/moved"
    rm "$dir/link"
    after_crash is_not -e "$there/link"
    rm "$dir/folder/moved"
    rmdir "$dir/folder"
    after_crash is_not -e "$there/folder"
}
size_is() { equal "size of $1 after a crash" "$2" "$(stat -c %s "$1")"; }
holds() { equal "contents after a crash" "$2" "$(head -c "${#2}" "$1")"; }

test_options() {
    local option
    for option in dirsync sync; do
        fresh -- -o "$option"
        mkdir mnt/d
        names_are_durable mnt
        names_are_durable mnt/d
        unmounted mnt
        sound disk.img
        rm disk.img
    done
    fresh -- -o sync
    printf first >mnt/file
    after_crash holds crash/file first
    printf SECOND 1<>mnt/file
    after_crash holds crash/file SECOND
    truncate -s 3 mnt/file
    after_crash size_is crash/file 3
    truncate -s 5000 mnt/file
    after_crash size_is crash/file 5000
    unmounted mnt
}

test_flags() {
    fresh
    mkdir mnt/d mnt/s
    chattr +D mnt/d
    chattr +S mnt/s
    names_are_durable mnt/d
    # A folder with +S is synced as one with +D.
    names_are_durable mnt/s
    echo old >mnt/file
    chattr +S mnt/file
    printf new 1<>mnt/file
    after_crash holds crash/file new
    # Others in the same folder are not.
    : >mnt/unsynced
    after_crash is_not -e crash/unsynced
    unmounted mnt
    sound disk.img
}

# As the kernel's ext4: files and folders inherit +S, folders inherit +D.
test_inheritance() {
    fresh
    mkdir mnt/d mnt/s
    chattr +D mnt/d
    chattr +S mnt/s
    mkdir mnt/d/d mnt/s/d
    : >mnt/d/file
    : >mnt/s/file
    flags() { lsattr -d "$1" | cut -d' ' -f1 | tr -d '-' | tr -d 'e'; }
    equal "flags" 'D - S S' "$(for path in d/d d/file s/d s/file; do f=$(flags mnt/$path); echo "${f:--}"; done | xargs)"
    names_are_durable mnt/d/d
    printf new >mnt/s/file
    after_crash holds crash/s/file new
    unmounted mnt
}

# In a transaction nothing is durable before the commit, which is.
test_transactions() {
    fresh -- -o sync
    mkdir mnt/d
    "$XACT" run --at mnt --leave-open --status-file status -- sh -c 'for i in 1 2 3 4 5; do mkdir mnt/d/$i; echo $i >mnt/d/$i/f; done' 2>said
    after_crash is_not -e crash/d/1
    "$XACT" tx commit --at mnt "$(jq .transaction status)"
    after_crash holds crash/d/5/f 5
    unmounted mnt
}

test_without_a_journal() {
    ENGINE=none
    fresh --
    mkdir mnt/d
    chattr +D mnt/d
    "$XACT" sync mnt
    names_are_durable mnt/d
    echo old >mnt/file
    chattr +S mnt/file
    printf new 1<>mnt/file
    after_crash holds crash/file new
    unmounted mnt
}
