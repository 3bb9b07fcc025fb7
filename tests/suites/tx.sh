# timeout: 200
# xact tx: transactions that are inspected and decided over later; and how xact run treats
# conflicts.

fresh() { # [ARGUMENTS OF xact mount…]
    volume disk.img
    mounted disk.img mnt "$@"
    printf 'one\ntwo\n' >mnt/file
    mkdir mnt/folder
    echo x >mnt/folder/x
}
afterwards() {
    unmounted mnt
    sound disk.img
}
tx() { "$XACT" tx "$1" --at mnt "${@:2}"; }
# Runs a shell script in a transaction that stays open; its number goes to ID.
kept() { # SCRIPT [ARGUMENTS OF xact run…]
    "$XACT" run --at mnt --leave-open --status-file status "${@:2}" -- sh -c "$1" 2>said
    equal outcome kept "$(jq -r .outcome status)"
    ID=$(jq .transaction status)
}

test_look_first_decide_later() {
    fresh
    kept 'echo three >>mnt/file; mkdir mnt/new; echo y >mnt/new/y; mv mnt/folder/x mnt/new/x; chmod 700 mnt/folder'
    has said "transaction $ID is open: review it with 'xact tx diff $ID --at mnt'"
    equal "seen outside" 'one two' "$(xargs <mnt/file)"
    tx diff "$ID" >diff
    diff diff - <<'END'
modified    /file
attributes  /folder
added       /new
renamed     /folder/x -> /new/x
added       /new/y
END
    tx diff "$ID" --patch mnt/file >patch
    diff patch - <<'END'
diff --git a/file b/file
--- a/file
+++ b/file
@@ -1,2 +1,3 @@
 one
 two
+three
END
    tx diff "$ID" --stat >stat
    has stat '^/file  \+1 -0 lines$'
    tx diff "$ID" --json new >json
    equal paths '/new /new/x /new/y' "$(jq -r '.[].path' json | xargs)"
    equal mode 0755 "$(jq -r '.[0].new.mode' json)"
    tx list >list
    has list "^$ID +open +(24|23) h left +begun [0-9]+ s ago .* sh -c"
    equal standing open "$(tx status "$ID" --json | jq -r .standing)"
    equal extent '5 16' "$(tx status "$ID" --json | jq -r '.changes | "\(.paths) \(.file_bytes)"')"
    has <(tx status "$ID") '^changes: 5 paths'
    tx commit "$ID"
    equal "seen outside" 'one two three' "$(xargs <mnt/file)"
    equal moved 'x y' "$(ls mnt/new | xargs)"
    equal list '' "$(tx list)"
    has <(tx status "$ID") "transaction $ID: committed"
    exits 66 'was committed' -- tx commit "$ID"
    afterwards
}

# Applying the patch to the old tree gives the new one, as far as Git can represent it.
test_a_patch_applies() {
    needs git patch
    fresh
    seq 1000 >mnt/numbers
    mkdir -p mnt/folder/deep mnt/target
    echo y >mnt/folder/deep/y
    echo over >mnt/target/over
    echo 1 >mnt/one
    echo 2 >mnt/two
    echo plain >mnt/becomes-a-link
    echo plain >mnt/becomes-a-folder
    echo plain >mnt/script
    echo plain >mnt/secret
    echo spaces >'mnt/with spaces'
    : >mnt/empty
    ln -s file mnt/link
    cp -a mnt before
    cp -a mnt patched
    kept 'cd mnt
        sed -i "s/^500$/five hundred/" numbers
        rm file empty
        printf "no newline" >n
        : >new-empty
        ln -s to new-link
        ln -sfn numbers link
        echo "#!" >tool
        chmod +x tool script
        chmod 600 secret
        mv folder moved
        echo more >>moved/deep/y
        mv moved/x .
        mv n target/over
        mv one three; mv two one; mv three two
        rm becomes-a-link becomes-a-folder
        ln -s x becomes-a-link
        mkdir becomes-a-folder hollow
        echo in >becomes-a-folder/inside
        echo more >>"with spaces"
        echo odd >"$(printf "a\ttab and \\"quotes\\"")"
        mkfifo pipe'
    tx diff "$ID" --patch >patch
    has patch '^rename from folder/deep/y$'
    has patch '^rename to moved/deep/y$'
    has patch '^attributes of /secret$'
    has patch '^new folder /hollow$'
    has patch '^new special file /pipe$'
    (cd before && git apply ../patch)
    # A part of it, with the other tool, which deletes no empty files and changes no links.
    tx diff "$ID" --patch mnt/numbers >part
    equal part 1 "$(grep -c '^diff --git' part)"
    tx diff "$ID" --patch numbers file target new-empty new-link tool script folder moved x one two 'with spaces' >part
    patch -d patched -p1 -s <part
    tx commit "$ID"
    rm mnt/pipe
    rmdir mnt/hollow
    diff -r --no-dereference -x lost+found before mnt
    equal "a changed link" numbers "$(readlink before/link)"
    equal "a new link" x "$(readlink before/becomes-a-link)"
    local tree
    for tree in before patched; do
        [[ -x $tree/tool && -x $tree/script && ! -x $tree/numbers ]] || fail "modes in $tree: $(ls -l $tree)"
    done
    for file in numbers target/over new-empty tool script moved/deep/y x one two 'with spaces'; do
        cmp "patched/$file" "mnt/$file"
    done
    equal "a new link by patch" to "$(readlink patched/new-link)"
    [[ ! -e patched/file && ! -e patched/folder ]]

    kept 'head -c 9000 /dev/zero >mnt/zero; echo x >>mnt/x; mv mnt/target/over mnt/target/under'
    tx diff "$ID" --patch >patch
    has patch 'Binary files /dev/null and b/zero differ'
    (cd before && exits 1 'binary patch' -- git apply ../patch && git apply --exclude zero ../patch)
    tx commit "$ID"
    rm mnt/zero
    diff -r --no-dereference -x lost+found before mnt
    afterwards
}

test_drop() {
    fresh
    describe_tree mnt >before
    kept 'rm -r mnt/folder; echo >mnt/file; echo >mnt/new'
    exits 64 'changes nothing at or below /nothing' -- tx abort "$ID" --only mnt/nothing
    tx abort "$ID"
    describe_tree mnt | diff before -
    exits 66 'was aborted' -- tx diff "$ID"
    exits 66 'is not open on this mount' -- tx diff 99
    afterwards
}

test_parts() {
    fresh
    kept 'mkdir -p mnt/a/b; echo 1 >mnt/a/b/1; echo 2 >mnt/a/2; rm -r mnt/folder; echo four >>mnt/file'
    tx commit "$ID" --only mnt/a/b/1
    equal committed 'a a/b a/b/1 file folder folder/x lost+found' "$(cd mnt && find * | sort | xargs)"
    tx abort "$ID" --only /folder/x a/2
    # The folder was restored with the file.
    equal left 'modified /file' "$(tx diff "$ID" | xargs)"
    # The rest is of a newer instant, and work in it can continue.
    echo outside >mnt/outside
    "$XACT" run --at mnt --tx "$ID" -- sh -c 'cat mnt/a/b/1 mnt/folder/x; echo five >>mnt/file' >said
    equal "seen inside" '1 x' "$(xargs <said)"
    equal left 'modified /file' "$(tx diff "$ID" | xargs)"
    tx commit "$ID" --ordered
    equal content 'one two four five' "$(xargs <mnt/file)"
    equal all 'a a/b a/b/1 file folder folder/x lost+found outside' "$(cd mnt && find * | sort | xargs)"
    afterwards
}

test_begin_and_work_in_the_folder() {
    fresh
    local id
    id=$(tx begin --timeout 0)
    echo new >"mnt/.xact/tx/$id/root/new"
    [[ ! -e mnt/new ]]
    has <(tx list) "^$id +open +no time limit +begun [0-9]+ s ago +user 0 +xact tx begin$"
    tx commit "$id"
    equal content new "$(cat mnt/new)"
    afterwards
}

test_inspecting_is_not_reading() {
    fresh
    kept 'echo y >mnt/folder/x'
    echo three >>mnt/file
    tx diff "$ID" --patch >/dev/null
    tx commit "$ID"
    afterwards
}

test_refused_commit_stays_open() {
    fresh
    kept 'echo mine >mnt/file; echo new >mnt/new'
    echo theirs >mnt/file
    exits 75 "conflict on /file: .*, by a program outside.*" -- tx commit "$ID"
    grep -q "transaction $ID is still open" exits.err
    equal "still there" mine "$("$XACT" run --at mnt --tx "$ID" -- cat mnt/file)"
    tx abort "$ID"
    equal content theirs "$(cat mnt/file)"
    afterwards
}

# A conflict on one path: the others are committed, or that one is dropped.
test_ways_out_of_a_conflict() {
    fresh
    kept 'cat mnt/file mnt/folder/x; ls mnt mnt/folder; echo mine >mnt/file; echo new >mnt/folder/new
          echo y >>mnt/folder/x'
    echo theirs >mnt/file
    exits 75 'conflict on /file' -- tx commit "$ID"
    has exits.err "'xact tx commit $ID --only PATH...' .'xact tx diff $ID' lists them"
    has exits.err "'xact tx abort $ID --only /file' and commit the rest"
    has exits.err "'xact tx diff $ID --patch >FILE' saves the changes for 'git apply FILE'"
    tx commit "$ID" --only mnt/folder 2>note
    has note 'left out, and cannot be committed: conflict on /file: its (contents|size)'
    equal committed 'new x y' "$(cat mnt/folder/new mnt/folder/x | xargs)"
    equal "file outside" theirs "$(cat mnt/file)"
    exits 75 'conflict on /file' -- tx commit "$ID"
    exits 75 'conflict on /file' -- tx commit "$ID" --only mnt/file
    # Its difference is that of the command, without the others' change.
    tx diff "$ID" --patch >patch
    has patch '^\+mine$'
    has patch '^-one$'
    lacks patch theirs
    tx abort "$ID" --only mnt/file
    tx commit "$ID"
    equal "file outside" theirs "$(cat mnt/file)"

    kept 'cat mnt/file; ls mnt mnt/folder; echo mine >>mnt/file; echo z >mnt/folder/new'
    echo again >mnt/file
    tx abort "$ID" --only mnt/file
    tx commit "$ID"
    equal contents 'again z' "$(cat mnt/file mnt/folder/new | xargs)"
    afterwards
}

# Others replace the file by a rename, as editors do; and a name that others have made too.
test_ways_out_if_a_name_is_taken() {
    fresh
    kept 'ls mnt/folder; echo mine >>mnt/folder/x; echo mine >mnt/folder/made; echo other >mnt/other'
    echo theirs >mnt/tmp
    mv mnt/tmp mnt/folder/x
    echo theirs >mnt/folder/made
    exits 75 'conflict on /folder' -- tx commit "$ID"
    tx commit "$ID" --only mnt/other 2>note
    has note 'conflict on /folder/(x|made)'
    equal other other "$(cat mnt/other)"
    tx abort "$ID" --only mnt/folder/x
    exits 75 'conflict on /folder/made' -- tx commit "$ID"
    tx abort "$ID" --only mnt/folder/made
    tx commit "$ID"
    equal theirs 'theirs theirs' "$(cat mnt/folder/x mnt/folder/made | xargs)"
    afterwards
}

# A change that the chosen ones depend on is never left out.
test_a_part_that_depends_on_a_conflict() {
    fresh
    kept 'mkdir mnt/new; echo 1 >mnt/new/1; echo 2 >mnt/2'
    mkdir mnt/new
    exits 75 'conflict on /new' -- tx commit "$ID" --only mnt/new/1
    tx commit "$ID" --only mnt/2
    tx abort "$ID"
    equal "the others' folder" '' "$(ls mnt/new)"

    kept 'cat mnt/file; echo copy >mnt/copy'
    echo changed >mnt/file
    exits 75 'conflict on /file' -- tx commit "$ID" --only mnt/copy
    has exits.err 'All of its changes may depend on what it has read of /file'
    tx abort "$ID"

    kept 'ln mnt/file mnt/link; echo mine >mnt/file; echo x >mnt/x'
    echo theirs >mnt/file
    exits 75 'conflict on /(file|link)' -- tx commit "$ID" --only mnt/link
    tx commit "$ID" --only mnt/x
    tx abort "$ID"
    afterwards
}

test_time_runs_out() {
    in_foreground_fresh() { volume disk.img && in_foreground disk.img mnt; }
    in_foreground_fresh
    kept 'echo new >mnt/new' --timeout 1s
    gone() { [[ $("$XACT" tx status --at mnt "$ID" --json | jq -r .standing) == timed-out ]]; }
    wait_until "the transaction to time out" gone
    exits 66 'its time ran out' -- tx commit "$ID"
    has "$WORK/daemon.log" "transaction $ID is aborted: its time has run out"
    [[ ! -e mnt/new ]]
    afterwards
}

test_open_transactions_end_with_the_mount() {
    volume disk.img
    in_foreground disk.img mnt
    kept 'echo new >mnt/new'
    "$XACT" umount mnt 2>said
    has said "transaction $ID \(sh -c .*\) was open and is aborted: its changes are discarded"
    wait "$DAEMON"
    has "$WORK/daemon.log" "transaction $ID .* was open and is aborted"
    sound disk.img
    # The same if the daemon is asked to end.
    : >daemon.log
    in_foreground disk.img mnt
    kept 'echo new >mnt/new' --timeout 0
    kill -TERM "$DAEMON"
    wait "$DAEMON"
    has daemon.log "transaction $ID .* was open and is aborted: the mount ends"
    sound disk.img
}

test_ownership() {
    fresh
    chmod 777 mnt
    local other=(setpriv --reuid 99 --regid 99 --clear-groups)
    kept 'echo new >mnt/new'
    exits 77 'belongs to another user' -- "${other[@]}" "$XACT" tx abort "$ID" --at mnt
    exits 77 '' -- "${other[@]}" "$XACT" tx diff "$ID" --at mnt
    equal "list of another" '' "$("${other[@]}" "$XACT" tx list --at mnt)"
    local theirs
    theirs=$("${other[@]}" "$XACT" tx begin --at mnt)
    has <(tx list) "^$theirs +open .*user 99"
    tx abort "$theirs"
    tx abort "$ID"
    afterwards
}

# How a transaction ended, and its command line, are for its own user.
test_ownership_of_what_has_ended() {
    fresh
    local other=(setpriv --reuid 99 --regid 99 --clear-groups) command
    hidden() { # ID
        for command in status diff commit abort; do
            # Only the status of a transaction that has ended is left.
            exits "$([[ $command == status ]] && echo 77 || echo 66)" '' -- \
                "${other[@]}" "$XACT" tx "$command" "$1" --at mnt
            lacks "$WORK/exits.err" password
            lacks "$WORK/exits.out" password
        done
        exits 77 'belongs to another user' -- "${other[@]}" "$XACT" tx status "$1" --at mnt --json
        lacks "$WORK/exits.err" password
        lacks "$WORK/exits.out" password
        equal "list of another" '' "$("${other[@]}" "$XACT" tx list --at mnt)"
    }
    for how in abort commit 'run out'; do
        kept 'echo password >mnt/new' --timeout "$([[ $how == 'run out' ]] && echo 1s || echo 60s)"
        if [[ $how == 'run out' ]]; then
            gone() { [[ $("$XACT" tx status --at mnt "$ID" --json | jq -r .standing) == timed-out ]]; }
            wait_until "the transaction to time out" gone
        else
            tx "$how" "$ID"
        fi
        hidden "$ID"
        # Its own user, and root, see the command line.
        has <(tx status "$ID") 'password'
    done
    afterwards
}

test_processes_left_behind_are_out() {
    fresh
    mkfifo ask answer
    kept '(exec >left 2>&1; read -r _ <answer; echo late >mnt/late && echo wrote) & echo now >mnt/now'
    echo go >answer
    wait_until "the process left behind" grep -q . left
    lacks left wrote
    equal changes 'added /now' "$(tx diff "$ID" | xargs)"
    tx abort "$ID"
    afterwards
}

test_retry() {
    fresh
    echo 0 >tries
    # Each of the first two attempts loses to a write outside, in the same file.
    outside() { # writes on request
        while read -r n; do
            echo "theirs $n" >mnt/file
            echo done >answer
        done <ask
    }
    mkfifo ask answer
    cat >script <<'END'
n=$(cat tries)
echo $((n + 1)) >tries
cat mnt/file >/dev/null
if [ "$n" -lt 2 ]; then echo "$n" >&7; read -r _ <answer; fi
echo "mine after $n" >>mnt/file
END
    outside &
    exec 7>ask
    "$XACT" run --at mnt --retry 3 --status-file status -- sh script 2>said
    exec 7>&-
    wait
    has said 'conflict on /file: .*, by a program outside of any transaction: retry 2 of 3'
    equal tries 3 "$(jq .tries status)"
    equal content 'theirs 1 mine after 2' "$(xargs <mnt/file)"
    echo 0 >tries
    outside &
    exec 7>ask
    exits 75 'conflict on /file' -- "$XACT" run --at mnt --retry 1 --status-file status -- sh script
    exec 7>&-
    wait
    equal tries 2 "$(jq .tries status)"
    equal "conflicting transaction" null "$(jq .conflicting_tx status)"
    afterwards
}

test_a_long_transaction_commits_between_short_ones() {
    fresh
    echo 0 >mnt/counter
    touch beats
    short_ones() {
        while [[ ! -e stop ]]; do
            "$XACT" run --at mnt --ordered -- sh -c 'n=$(cat mnt/counter); echo $((n + 1)) >mnt/counter' 2>/dev/null &&
                echo beat >>beats
        done
    }
    # Blocks until others have committed changes of what it has read, as long as they can.
    cat >script <<'END'
n=$(cat mnt/counter)
before=$(wc -l <beats)
for i in 1 2 3 4 5 6 7 8 9 10; do
    [ "$(wc -l <beats)" -gt $((before + 2)) ] && break
    sleep 0.1
done
echo "$n" >mnt/seen
END
    short_ones &
    short_ones &
    wait_until "the short ones to get going" test -s beats
    CODE=0
    "$XACT" run --at mnt --retry 30 --status-file status -- sh script 2>said || CODE=$?
    touch stop
    wait
    equal code 0 "$CODE"
    echo "# it took $(jq .tries status) tries"
    [[ $(jq .tries status) -gt 3 ]]
    # None of the short ones is lost.
    equal counter "$(wc -l <beats)" "$(cat mnt/counter)"
    [[ -s mnt/seen ]]
    afterwards
}

test_the_conflicting_transaction_is_named() {
    fresh
    kept 'echo first >mnt/file'
    local first=$ID
    kept 'echo second >mnt/file'
    tx commit "$first"
    exits 75 "conflict on /file: .*, by transaction $first" -- tx commit "$ID"
    tx abort "$ID"
    afterwards
}

test_snapshot_isolation() {
    fresh
    kept 'cat mnt/folder/x >mnt/copy'
    echo changed >mnt/folder/x
    exits 75 '/folder/x' -- tx commit "$ID"
    tx abort "$ID"
    echo x >mnt/folder/x
    kept 'cat mnt/folder/x >mnt/copy' --isolation snapshot
    echo changed >mnt/folder/x
    tx commit "$ID"
    equal content x "$(cat mnt/copy)"
    afterwards
}

# Two transactions write different pages of one file, both opened by a kernel that asks for its size
# and times.
test_different_pages_of_one_file() {
    fresh
    head -c 65536 /dev/zero >mnt/pages
    local write='dd of=mnt/pages conv=notrunc bs=4096 count=1 status=none'
    kept "printf a | $write seek=1; stat mnt/pages >/dev/null"
    local first=$ID
    kept "printf b | $write seek=9"
    printf c | dd of=mnt/pages conv=notrunc bs=4096 seek=14 status=none
    tx commit "$first"
    tx commit "$ID"
    equal pages abc "$(tr -d '\0' <mnt/pages)"
    kept "cat mnt/file >/dev/null; printf d | $write seek=1"
    first=$ID
    kept "printf e | $write seek=1"
    tx commit "$first"
    exits 75 '/pages: its contents were changed' -- tx commit "$ID"
    tx abort "$ID"
    # A transaction that only reads the times depends on them.
    kept 'stat mnt/pages >mnt/looked'
    printf f | dd of=mnt/pages conv=notrunc bs=4096 seek=3 status=none
    exits 75 '/pages: it was written' -- tx commit "$ID"
    tx abort "$ID"
    afterwards
}

test_older_spellings() {
    fresh
    "$XACT" run --at mnt --keep --status-file status -- touch mnt/new
    tx drop "$(jq .transaction status)"
    [[ ! -e mnt/new ]]
    afterwards
}

test_ask() {
    needs script
    fresh
    local answer
    for answer in n y; do
        echo "$answer" | script -qec "'$XACT' run --at mnt --ask --status-file status -- sh -c 'echo $answer >mnt/asked'" \
            /dev/null >said || true
        has said 'added       /asked'
        has said 'Commit\?'
        if [[ $answer == n ]]; then
            equal outcome aborted "$(jq -r .outcome status)"
            equal "status of the command" 0 "$(jq -r .command_status status)"
            equal reason 'aborted as requested' "$(jq -r .reason status)"
            has said 'aborted as requested: nothing was changed'
            equal code 1 "$(jq -r .exit_code status)"
            [[ ! -e mnt/asked ]]
        fi
    done
    equal outcome committed "$(jq -r .outcome status)"
    equal content y "$(cat mnt/asked)"
    exits 64 'cannot ask on the terminal' -- setsid "$XACT" run --at mnt --ask -- touch mnt/no
    [[ ! -e mnt/no ]]
    # A signal ends the wait, and aborts. Each round has its own file: the question of the round
    # before would send the signal to a command that has not set up its signals.
    local signal job
    for signal in INT TERM HUP; do
        sleep 60 | script -qec "'$XACT' run --at mnt --ask --status-file $WORK/asked-$signal -- touch mnt/no" /dev/null \
            >"said-$signal" &
        job=$!
        wait_until "the question" grep -q 'Commit?' "said-$signal"
        pkill "-$signal" -f "^$XACT run --at mnt --ask --status-file $WORK/asked-$signal"
        wait_until "the end" grep -q 'nothing was changed' "said-$signal"
        kill "$job" 2>/dev/null || true
        equal outcome aborted "$(jq -r .outcome "asked-$signal")"
        [[ ! -e mnt/no ]]
    done
    afterwards
}

# A command that fails in an open transaction undoes its own changes, as a nested 'xact run' does.
test_a_failed_command_in_an_open_transaction() {
    fresh
    kept 'echo first >mnt/file; echo x >mnt/made'
    exits 3 "sh failed with exit status 3: its changes to transaction $ID were rolled back; the transaction stays open" -- \
        "$XACT" run --at mnt --tx "$ID" --status-file status -- \
        sh -c 'echo second >mnt/file; rm mnt/made; mkdir -p mnt/a/b; mv mnt/folder mnt/moved; exit 3'
    equal outcome 'aborted 3' "$(jq -r '"\(.outcome) \(.exit_code)"' status)"
    equal changes 'added /made modified /file' "$(tx diff "$ID" | sort | xargs)"
    equal contents first "$("$XACT" run --at mnt --tx "$ID" -- cat mnt/file)"
    # Also if it could not be started, or the 'xact run' is killed.
    exits 127 'command not found' -- "$XACT" run --at mnt --tx "$ID" -- no-such-command
    "$XACT" run --at mnt --tx "$ID" -- \
        sh -c 'echo $$ >shell; echo third >mnt/file; kill -KILL $PPID; sleep 0.1' 2>said || true
    equal "after the kill" first "$("$XACT" run --at mnt --tx "$ID" -- cat mnt/file)"
    # Changes of a command that succeeded stay when a later one fails.
    "$XACT" run --at mnt --tx "$ID" -- sh -c 'echo fourth >>mnt/file'
    exits 1 -- "$XACT" run --at mnt --tx "$ID" -- sh -c 'rm mnt/file; "$1" run --at mnt -- rm mnt/made; false' - "$XACT"
    tx commit "$ID"
    equal committed 'first fourth' "$(xargs <mnt/file)"
    [[ -e mnt/made && ! -e mnt/a && -d mnt/folder ]]
    # The command of the killed 'xact run' has the mount in use until it ends.
    shell_has_ended() { ! kill -0 "$(<shell)" 2>/dev/null; }
    wait_until "the end of the shell" shell_has_ended
    afterwards
}

# A stored transaction is stored without what a failed command has done.
test_a_failed_command_in_a_stored_transaction() {
    fresh
    kept 'echo first >mnt/file' --persist
    exits 1 -- "$XACT" run --at mnt --tx "$ID" -- sh -c 'echo second >mnt/file; false'
    unmounted mnt 2>said
    mounted disk.img mnt 2>said
    tx commit "$ID"
    equal committed first "$(cat mnt/file)"
    afterwards
}

# A day that was just begun is shown as a day.
test_times_are_rounded() {
    fresh
    local timeout
    for timeout in 2h:2:h 1d:24:h 2d:2:days; do
        kept 'touch mnt/new' --timeout "${timeout%%:*}"
        tx status "$ID" >shown
        has shown "^left: *$(cut -d : -f 2 <<<"$timeout") $(cut -d : -f 3 <<<"$timeout")\$"
        tx abort "$ID"
    done
    afterwards
}

# Others change more than is kept in memory and on the volume while a transaction is open.
test_snapshot_too_old() {
    fresh --cache-size 16M -o version_space=1%
    head -c 8M /dev/urandom >mnt/large
    "$XACT" sync mnt
    kept 'head -c 1 mnt/large >/dev/null; echo new >mnt/new'
    local i
    for i in 1 2 3; do
        head -c 8M /dev/urandom | dd of=mnt/large conv=notrunc bs=1M status=none
    done
    exits 75 'too old' -- tx commit "$ID"
    tx abort "$ID"
    afterwards
}

test_a_thousand_open() {
    fresh
    cat >many.py <<'END'
import fcntl, os, struct
channels = []
for i in range(1000):
    channel = os.open("mnt/.xact", os.O_TMPFILE | os.O_RDWR, 0o600)
    begin = bytearray(16)
    fcntl.ioctl(channel, 0xc010ea01, begin)
    number = struct.unpack("IIQ", begin)[2]
    with open(f"mnt/.xact/tx/{number}/root/file-{i}", "w") as file:
        file.write(str(i))
    channels.append(channel)
assert len(os.listdir("mnt")) == 3
for channel in channels:
    fcntl.ioctl(channel, 0xd118ea02, bytearray(24 + 4096 + 256))
assert len(os.listdir("mnt")) == 1003
END
    ulimit -n 4096
    python3 many.py
    afterwards
}

# A kernel that received a name in a listing does not look it up.
test_paths_of_listed_names() {
    fresh
    unmounted mnt
    mounted disk.img mnt
    kept 'ls -l mnt/folder; echo y >>mnt/folder/x'
    equal "what changed" 'modified /folder/x' "$(tx diff "$ID" | xargs)"
    tx commit "$ID" --only mnt/folder/x
    equal contents 'x y' "$(xargs <mnt/folder/x)"
    tx abort "$ID"
    afterwards
}
