# timeout: 200
# Transactions that are kept on the volume: across an unmount, a killed daemon, another system's
# mount.

fresh() { # [ARGUMENTS OF xact mkfs…]
    volume disk.img "$@"
    again
    printf 'one\ntwo\n' >mnt/file
    mkdir mnt/folder
    echo x >mnt/folder/x
}
# Mounts with the daemon as a child of the test.
again() { in_foreground disk.img mnt "$@"; }
stopped() {
    "$XACT" umount mnt 2>said
    wait "$DAEMON"
}
killed() {
    kill -9 "$DAEMON"
    wait "$DAEMON" || true
    "$XACT" umount mnt
}
afterwards() {
    stopped
    sound disk.img
}
tx() { "$XACT" tx "$1" --at mnt "${@:2}"; }
kept() { # SCRIPT [ARGUMENTS OF xact run…]
    "$XACT" run --at mnt --leave-open --persist --status-file status "${@:2}" -- sh -c "$1" 2>said
    equal outcome kept "$(jq -r .outcome status)"
    ID=$(jq .transaction status)
}
CHANGES='echo three >>mnt/file; mkdir mnt/new; echo y >mnt/new/y; mv mnt/folder/x mnt/new/x; chmod 700 mnt/folder
    ln -s target mnt/new/link; ln mnt/new/y mnt/new/also; mkfifo mnt/new/fifo; setfattr -n user.a -v 1 mnt/new/y
    dd if=/dev/urandom of=mnt/new/large bs=100k count=5 seek=3 status=none; rmdir mnt/folder'

# Whatever ends the mount: the list, the patch, and the tree in the end are the same.
over() { # stopped OR killed
    fresh
    kept "$CHANGES"
    equal root 'file folder lost+found' "$(ls -A mnt | xargs)"
    exits 1 '' -- test -e mnt/.xact-kept
    tx diff "$ID" --json >list
    tx diff "$ID" --patch >patch
    has <(tx list) "^$ID +open +(24|23) h left +begun [0-9]+ s ago, persistent +user 0 +sh -c"
    mkdir seen
    tar -C "mnt/.xact/tx/$ID/root" -cf seen.tar --exclude=./new/fifo .
    "$1"
    # e2fsck cannot judge the result of a crash before it is recovered.
    [[ $1 == killed ]] || sound disk.img
    again
    equal root 'file folder lost+found' "$(ls -A mnt | xargs)"
    equal "the number" "$ID" "$(tx list --json | jq .[].id)"
    has <(tx status "$ID") '^stored: +on the volume'
    has <(tx list) "^$ID +open +(24|23) h left +begun [0-9]+ s ago, persistent +user 0 +sh -c"
    # Except inode numbers, which are new.
    plain() { jq 'del(.[].old.ino, .[].new.ino)' "$1"; }
    tx diff "$ID" --json >list.again
    diff <(plain list) <(plain list.again)
    tx diff "$ID" --patch | diff patch -
    tx commit "$ID"
    equal content 'one two three' "$(xargs <mnt/file)"
    tar -C seen -xf seen.tar
    diff -r --no-dereference -x lost+found -x fifo seen mnt
    equal links 2 "$(stat -c %h mnt/new/y)"
    equal attribute 1 "$(getfattr --only-values -n user.a mnt/new/also)"
    equal list '' "$(tx list)"
    # A decision is final.
    killed
    again
    equal list '' "$(tx list)"
    equal content 'one two three' "$(xargs <mnt/file)"
    afterwards
}
test_over_an_unmount() { over stopped; }
test_over_a_killed_daemon() { over killed; }
test_generations_over_an_unmount() {
    ENGINE=generations
    over stopped
}
test_generations_over_a_killed_daemon() {
    ENGINE=generations
    over killed
}
test_no_journal_over_an_unmount() {
    ENGINE=none
    fresh
    kept "$CHANGES"
    stopped
    sound disk.img
    again
    tx commit "$ID"
    equal content 'one two three' "$(xargs <mnt/file)"
    afterwards
}

test_umount_says_so() {
    fresh
    kept 'echo new >mnt/new'
    stopped
    has said "transaction $ID \(sh -c .*\) was open and stays open"
    has "$WORK/daemon.log" "transaction $ID .* was open and stays open on the volume"
    again
    has "$WORK/daemon.log" "transaction $ID .* is open again"
    # A new one has another number.
    equal another $((ID + 1)) "$(tx begin)"
    tx abort $((ID + 1))
    tx abort "$ID"
    killed
    again
    equal list '' "$(tx list)"
    [[ ! -e mnt/new ]]
    afterwards
}

test_parts_over_stops() {
    fresh
    kept 'mkdir -p mnt/a/b; echo 1 >mnt/a/b/1; echo 2 >mnt/a/2; rm -r mnt/folder; echo four >>mnt/file'
    stopped
    again
    tx commit "$ID" --only mnt/a/b/1
    killed
    again
    equal committed 'a a/b a/b/1 file folder folder/x lost+found' "$(cd mnt && find * | sort | xargs)"
    tx abort "$ID" --only /folder/x a/2
    killed
    again
    equal left 'modified /file' "$(tx diff "$ID" | xargs)"
    "$XACT" run --at mnt --tx "$ID" -- sh -c 'cat mnt/a/b/1 mnt/folder/x; echo five >>mnt/file' >said
    equal "seen inside" '1 x' "$(xargs <said)"
    killed
    again
    tx commit "$ID"
    equal content 'one two four five' "$(xargs <mnt/file)"
    afterwards
}

test_concurrent_changes_by_others() {
    fresh
    kept 'cat mnt/file; echo new >mnt/new'
    local first=$ID
    kept 'cat mnt/folder/x; echo other >mnt/other'
    stopped
    kernel_mounted disk.img kernel
    echo three >>kernel/file
    equal "the kernel's root" '.xact-kept' "$(cd kernel && echo .xact-*)"
    equal "mode and owner" '700 root' "$(stat -c '%a %U' kernel/.xact-kept)"
    kernel_unmounted kernel
    again
    exits 75 "conflict on /file: .*" -- tx commit "$first"
    tx abort "$first"
    tx commit "$ID"
    equal committed 'other' "$(cat mnt/other)"
    [[ ! -e mnt/new ]]
    afterwards
}

test_time_goes_on_while_it_is_not_mounted() {
    fresh
    kept 'echo new >mnt/new' --timeout 2s
    stopped
    sleep 2
    again
    gone() { [[ $("$XACT" tx status --at mnt "$ID" --json | jq -r .standing) == timed-out ]]; }
    wait_until "the transaction to time out" gone
    killed
    again
    equal list '' "$(tx list)"
    afterwards
}

test_the_time_counts_from_where_it_was_left_open() {
    fresh
    # The rest of 60 s, as of the moment in the file 'mark': work before it takes nothing away.
    left_at_mark() {
        local now left
        left=$(tx list --json | jq .[].seconds_left)
        now=$(date +%s)
        echo "$((left + now - $(<mark)))"
    }
    whole() { (($2 >= 58 && $2 <= 62)) || fail "$1: $2 s of 60 s were left where it was left open"; }
    kept 'sleep 4; echo new >mnt/new; date +%s >mark' --timeout 60s
    whole 'left open' "$(left_at_mark)"
    killed
    again
    whole 'mounted again' "$(left_at_mark)"
    # A command in it makes it last neither longer nor shorter.
    "$XACT" run --at mnt --tx "$ID" -- sh -c 'sleep 4; echo more >>mnt/new'
    whole 'after another command' "$(left_at_mark)"
    stopped
    again
    whole 'after another command, and mounted again' "$(left_at_mark)"
    # The age counts from the begin.
    local begun
    begun=$(tx list --json | jq .[].age_seconds)
    ((begun >= 8)) || fail "it was begun $begun s ago"
    tx abort "$ID"
    # In memory.
    "$XACT" run --at mnt --leave-open --status-file status --timeout 60s -- \
        sh -c 'sleep 4; echo new >mnt/new; date +%s >mark' 2>said
    whole 'in memory' "$(left_at_mark)"
    tx abort "$(jq .transaction status)"
    afterwards
}

test_ownership() {
    fresh
    chmod 777 mnt
    local other=(setpriv --reuid 99 --regid 99 --clear-groups) id
    id=$("${other[@]}" "$XACT" tx begin --at mnt --persist)
    "${other[@]}" "$XACT" run --at mnt --tx "$id" -- sh -c 'echo theirs >mnt/theirs'
    killed
    again
    has <(tx list) "^$id +open .*user 99"
    exits 77 'belongs to another user' -- setpriv --reuid 98 --regid 98 --clear-groups "$XACT" tx abort "$id" --at mnt
    "${other[@]}" "$XACT" tx commit "$id" --at mnt
    equal owner '99 99' "$(stat -c '%u %g' mnt/theirs)"
    afterwards
}

test_no_space_for_it() {
    volume disk.img --size 32M
    # Little memory, so that the contents are already on the volume.
    again --cache-size 8M
    exits 73 'store the transaction on the volume' -- "$XACT" run --at mnt --leave-open --persist --status-file status -- \
        sh -c 'dd if=/dev/urandom of=mnt/new bs=1M count=14 status=none'
    equal outcome kept "$(jq -r .outcome status)"
    ID=$(jq .transaction status)
    has <(tx list) "^$ID +open .*ago +user 0"
    tx commit "$ID"
    equal size $((14 << 20)) "$(stat -c %s mnt/new)"
    afterwards
}

test_mounted_read_only() {
    fresh
    kept 'echo new >mnt/new'
    stopped
    again -o ro
    has "$WORK/daemon.log" "transaction $ID is kept on the volume, but cannot be opened in this mount: read-only"
    stopped
    again
    tx commit "$ID"
    equal content new "$(cat mnt/new)"
    afterwards
}

test_a_snapshot_shows_nothing_of_it() {
    ENGINE=generations
    fresh
    kept 'echo new >mnt/new'
    "$XACT" snapshot create mnt before
    equal "in the snapshot" 'file folder lost+found' "$(ls -A mnt/.xact/snapshots/before | xargs)"
    tx commit "$ID"
    equal differences 'added /new' "$("$XACT" snapshot diff mnt before | xargs)"
    afterwards
}

# A conflict on one path, before and after an unmount: the others are committed, or it is dropped.
test_ways_out_of_a_conflict() {
    local drops
    for drops in 0 1; do
        volume disk.img
        mounted disk.img mnt
        mkdir mnt/folder
        echo one >mnt/file
        "$XACT" run --at mnt --leave-open --persist --status-file status -- \
            sh -c 'cat mnt/file; ls mnt mnt/folder; echo mine >mnt/file; echo new >mnt/folder/new; echo b >mnt/b' 2>said
        ID=$(jq .transaction status)
        echo theirs >mnt/file
        unmounted mnt
        mounted disk.img mnt
        exits 75 'conflict on /file' -- "$XACT" tx commit --at mnt "$ID"
        if [[ $drops = 1 ]]; then
            "$XACT" tx abort --at mnt "$ID" --only mnt/file
        else
            "$XACT" tx commit --at mnt "$ID" --only mnt/folder 2>note
            has note 'conflict on /file'
            equal committed new "$(cat mnt/folder/new)"
            unmounted mnt
            mounted disk.img mnt
            exits 75 'conflict on /file' -- "$XACT" tx commit --at mnt "$ID"
            "$XACT" tx abort --at mnt "$ID" --only mnt/file
        fi
        unmounted mnt
        mounted disk.img mnt
        "$XACT" tx commit --at mnt "$ID"
        equal contents 'theirs new b' "$(cat mnt/file mnt/folder/new mnt/b | xargs)"
        unmounted mnt
        sound disk.img
        rm disk.img
    done
}
