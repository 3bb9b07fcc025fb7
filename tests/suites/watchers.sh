# Programs that watch files (inotify) learn of what commits change, on a mount with the option
# notify.

# watched FOLDER… -- SCRIPT: runs a script in a transaction; the events are in the file "events".
# The script and the watched folders are below mnt.
watched() {
    local folders=()
    while [[ $1 != -- ]]; do
        folders+=("$1")
        shift
    done
    (cd mnt && python3 "$TESTS/watch_events.py" "${folders[@]}" -- \
        "$XACT" run --at . -- sh -euc "$2") >events || fail "the transaction failed: $(<events)"
}

expected() { diff /dev/stdin events || fail "watchers got other events"; }

# Everything that a transaction can do to a name.
tree() {
    mkdir -p mnt/d/sub mnt/e mnt/gone/inner
    echo old | tee mnt/d/{written,program,grown,deleted,moved,leaving,replaced,attributes} >mnt/gone/inner/file
    chmod +x mnt/d/program
    ln mnt/d/deleted mnt/e/link
    mkdir mnt/d/deleted-folder mnt/d/moved-folder
    echo x >mnt/d/moved-folder/inner
}
CHANGES='
    echo new >d/created; mkdir d/created-folder; ln -s x d/created-symlink; mkfifo d/created-fifo
    echo inner >d/created-folder/inner
    echo new >d/written; echo new >d/program; echo more >>d/grown
    rm d/deleted; rmdir d/deleted-folder; rm -r gone
    mv d/moved d/renamed; mv d/leaving e/arrived; mv d/moved-folder e/moved-folder
    echo inside >>e/moved-folder/inner
    echo new >d/temporary; mv d/temporary d/replaced
    chmod 600 d/attributes; chmod 700 d/sub
'

test_events_of_a_commit() {
    needs python3
    for ENGINE in journal generations; do
        volume disk.img
        mounted disk.img mnt -o notify
        tree
        watched d e -- "$CHANGES"
        expected <<'END'
d/deleted DELETE
d/deleted-folder DELETE folder
d/moved MOVED_FROM
d/renamed MOVED_TO from moved
d/replaced MOVED_TO
d/leaving MOVED_FROM
e/arrived MOVED_TO from leaving
d/moved-folder MOVED_FROM folder
e/moved-folder MOVED_TO from moved-folder folder
d/created CREATE
d/created-fifo CREATE
d/created-folder CREATE folder
d/created-symlink CREATE
d/attributes ATTRIB
d/created MODIFY
d/created CLOSE_WRITE
d/grown MODIFY
d/grown CLOSE_WRITE
d/program MODIFY
d/replaced MODIFY
d/replaced CLOSE_WRITE
d/sub ATTRIB folder
d/written MODIFY
d/written CLOSE_WRITE
END
        # The kernel shows the state of the volume.
        (cd mnt && describe_tree .) >warm
        unmounted mnt
        sound disk.img
        mounted disk.img mnt -o ro
        (cd mnt && describe_tree .) >cold
        diff warm cold || fail "the kernel's caches differ from the volume"
        unmounted mnt
        rm disk.img
    done
}

# Names that each exist before and after the commit. A renamed folder is where its name was.
test_events_of_renames_in_a_circle() {
    needs python3
    volume disk.img
    mounted disk.img mnt -o notify
    mkdir -p mnt/d/folder
    echo 1 >mnt/d/one
    echo 2 >mnt/d/two
    echo x >mnt/d/folder/x
    watched d -- 'mv d/one d/three; mv d/two d/one; mv d/three d/two; mv d/folder d/moved; mv d/moved/x d/moved/y'
    expected <<'END'
d/folder MOVED_FROM folder
d/moved MOVED_TO from folder folder
d/one MOVED_TO
d/two MOVED_TO
END
    equal contents "2 1 x" "$(cat mnt/d/one mnt/d/two mnt/d/moved/y | xargs)"
    # The folder is watched at its new place, and its old place in the transaction is known.
    watched d/moved -- 'mv d/moved d/again; mv d/again/y d/z'
    expected <<'END'
d/moved/y MOVED_FROM
END
    unmounted mnt
}

# A watch of a file itself gets the events of its contents and attributes. Limits: see the guide.
test_events_of_a_watched_file() {
    needs python3
    volume disk.img
    mounted disk.img mnt -o notify
    tree
    watched d/written d/attributes d/moved d/deleted -- "$CHANGES"
    expected <<'END'
d/attributes ATTRIB
d/written MODIFY
d/written CLOSE_WRITE
END
    unmounted mnt
}

test_no_events_without_the_option() {
    needs python3
    volume disk.img
    mounted disk.img mnt
    tree
    watched d e -- "$CHANGES"
    expected </dev/null
    equal "a child of the daemon" "" "$(event_callers)"
    unmounted mnt
    mounted disk.img mnt -o notify,ro
    equal "a child of the daemon of a read-only mount" "" "$(event_callers)"
    unmounted mnt
}
# Children of daemons in this test's mount namespace.
event_callers() {
    local process name
    for process in /proc/[0-9]*; do
        { read -r name <"$process/comm"; } 2>/dev/null || continue
        if [[ $name == xact-events && $process/ns/mnt -ef /proc/self/ns/mnt ]]; then
            echo "${process#/proc/}"
        fi
    done
}

# A part of a transaction is committed: the rest is reported when it is committed.
test_events_of_a_partial_commit() {
    needs python3
    local id
    volume disk.img
    mounted disk.img mnt -o notify
    mkdir mnt/d
    "$XACT" run --at mnt --leave-open -- sh -c "echo 1 >$WORK/mnt/d/one; echo 2 >$WORK/mnt/d/two" 2>said
    id=$(sed -nE 's/.*transaction ([0-9]+) is open.*/\1/p' said)
    python3 "$TESTS/watch_events.py" mnt/d -- "$XACT" tx commit "$id" --only mnt/d/one --at mnt >events
    expected <<'END'
mnt/d/one CREATE
mnt/d/one MODIFY
mnt/d/one CLOSE_WRITE
END
    python3 "$TESTS/watch_events.py" mnt/d -- "$XACT" tx commit "$id" --at mnt >events
    expected <<'END'
mnt/d/two CREATE
mnt/d/two MODIFY
mnt/d/two CLOSE_WRITE
END
    unmounted mnt
}

# A thousand files, while others use the same folder, a program of it runs, and the mount ends.
test_many_events_beside_other_users() {
    needs python3
    for ENGINE in journal generations; do
        volume disk.img
        mounted disk.img mnt -o notify
        mkdir mnt/d mnt/other
        SECONDS=0
        cp /bin/true mnt/d/program
        for i in {1..500}; do echo "$i" >"mnt/d/old$i"; done
        # Other processes use names that the commit changes, and must see only what is right.
        (while [[ ! -e stop && $SECONDS -lt 60 ]]; do
            cat mnt/d/new* 2>/dev/null | grep -vx new && echo "wrong contents" >>wrong
            ls -l mnt/d >/dev/null 2>>wrong || true
            mnt/d/program || echo "cannot execute: $?" >>wrong
        done) &
        local user=$!
        (while [[ ! -e stop && $SECONDS -lt 60 ]]; do echo line >>mnt/other/log; done; wc -l <mnt/other/log >lines) &
        local appender=$!
        watched d -- 'for i in $(seq 500); do echo new >d/new$i; done; rm d/old[1-9] d/old??; for i in $(seq 100 500); do mv d/old$i d/moved$i; done; chmod 700 d/program'
        touch stop
        wait "$user" "$appender"
        rm stop
        touch wrong
        lacks wrong 'wrong|execute'
        equal "files that were created" 500 "$(grep -c '^d/new[0-9]* CREATE$' events)"
        equal "files that were closed" 500 "$(grep -c '^d/new[0-9]* CLOSE_WRITE$' events)"
        equal "files that were deleted" 99 "$(grep -c '^d/old[0-9]* DELETE$' events)"
        equal "files that were renamed" 401 "$(grep -c '^d/moved[0-9]* MOVED_TO from old' events)"
        # Nothing keeps the mount busy: umount(2) does not retry.
        umount mnt
        wait_until "the daemon's end" is_free disk.img
        equal "the daemon's child" "" "$(event_callers)"
        mounted disk.img mnt -o ro
        equal "lines of the log" "$(<lines)" "$(grep -cx line mnt/other/log)"
        unmounted mnt
        sound disk.img
        rm -f disk.img wrong
    done
}
is_free() { flock -n "$1" true; }

# The daemon is killed while its child is in a call: neither stays.
test_killed_during_events() {
    needs python3
    local i
    for i in 1 2 3; do
        volume disk.img
        in_foreground disk.img mnt -o notify
        mkdir mnt/d
        "$XACT" run --at mnt -- sh -c "for i in \$(seq 2000); do echo new >$WORK/mnt/d/new\$i; done" 2>/dev/null &
        wait_until "the commit" test -e mnt/d/new2000
        kill -9 "$DAEMON"
        wait "$DAEMON" $! || true
        umount mnt 2>/dev/null || umount -l mnt
        wait_until "the child's end" no_event_callers
        mounted disk.img mnt
        unmounted mnt
        sound disk.img
        rm disk.img
    done
}
no_event_callers() { [[ -z $(event_callers) ]]; }

# A commit on a volume without free space reports its events too.
test_events_on_a_full_volume() {
    needs python3
    volume disk.img --size 32M
    mounted disk.img mnt -o notify
    mkdir mnt/d
    echo old | tee mnt/d/{a,b} >/dev/null
    dd if=/dev/zero of=mnt/fill bs=64K status=none 2>/dev/null || true
    watched d -- 'rm d/a; mv d/b d/c'
    expected <<'END'
d/a DELETE
d/b MOVED_FROM
d/c MOVED_TO from b
END
    unmounted mnt
    sound disk.img
}

# An ordinary user's mount, in folders of the user's own.
test_events_of_an_ordinary_users_mount() {
    needs python3 setpriv fusermount3
    [[ $(stat -c %a /dev/fuse) == 666 ]] || chmod 666 /dev/fuse
    install -m 755 "$XACT" "$WORK/xact"
    volume disk.img
    mounted disk.img mnt
    mkdir mnt/own
    chown nobody mnt/own
    unmounted mnt
    chown nobody disk.img mnt
    as_nobody() { setpriv --reuid nobody --regid nogroup --clear-groups "$@"; }
    as_nobody "$WORK/xact" mount disk.img mnt -o notify
    # The first python3 of root's path may be closed to others.
    PATH=/usr/bin:/bin as_nobody python3 - mnt/own -- "$WORK/xact" -q run --at mnt -- sh -c "echo x >$WORK/mnt/own/a" \
        <"$TESTS/watch_events.py" >events
    expected <<'END'
mnt/own/a CREATE
mnt/own/a MODIFY
mnt/own/a CLOSE_WRITE
END
    as_nobody "$WORK/xact" umount mnt
    sound disk.img
}
