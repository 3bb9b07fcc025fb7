# The command itself: help, pages, wrong calls, bad input.

test_help_and_version() {
    "$XACT" --version | grep -qE '^xact [0-9]+\.[0-9]+'
    "$XACT" --help | grep -q 'Exit codes:'
    "$XACT" --help | grep -qE '^  75 +conflict'
    local command
    for command in $("$XACT" --help | sed -nE '/^Commands:/,/^$/s/^  ([a-z]+) .*/\1/p' | grep -v help); do
        "$XACT" "$command" --help >/dev/null
    done
}

test_wrong_calls_are_usage_errors() {
    exits 64 -- "$XACT"
    exits 64 '^xact: error: unrecognized subcommand' -- "$XACT" mont
    exits 64 'to mount a volume: xact mount IMAGE FOLDER' -- "$XACT" mnt disk.img mnt
    exits 64 'to unmount a volume: xact umount FOLDER' -- "$XACT" unmount mnt
    exits 64 'to list mounted volumes: xact list; open transactions: xact tx list' -- "$XACT" ls
    exits 64 '^xact tx diff: error: the following required arguments' -- "$XACT" tx diff
    exits 64 'unexpected argument' -- "$XACT" info --no-such-option x
    exits 64 'required' -- "$XACT" info
    exits 64 "invalid number 'x'" -- "$XACT" run --retry x -- true
    exits 64 "invalid number 'x'" -- "$XACT" tx diff x
    # Also the errors that are found later name the subcommand.
    exits 66 '^xact snapshot export: error: ' -- "$XACT" snapshot export /no/such out.img
    exits 66 '^xact mode set: error: ' -- "$XACT" mode set /no/such data=journal
    exits 66 '^xact tx abort: error: ' -- "$XACT" -q tx drop 7 --at /no/such
}

test_no_colours_off_a_terminal() {
    exits 66 -- "$XACT" info /no/such/image
    lacks "$WORK/exits.err" $'\e'
}

test_completions() {
    "$XACT" completions bash >complete.bash
    bash -n complete.bash
    local shell
    for shell in zsh fish; do "$XACT" completions $shell | grep -q XACT_COMPLETE; done
    exits 64 -- "$XACT" completions tcl
}

# As the script of a shell asks: the words, and the number of the word under the cursor.
completed() { # SHELL WORD…
    local shell=$1
    shift
    env XACT_COMPLETE="$shell" _CLAP_COMPLETE_INDEX=$(($# - 1)) _CLAP_IFS=$'\n' "$XACT" -- "$@"
}

test_shells_complete_from_the_state_of_a_mount() {
    needs jq
    volume disk.img --engine generations
    mounted disk.img mnt
    "$XACT" snapshot create mnt monday
    "$XACT" snapshot create mnt tuesday
    "$XACT" run --at mnt --leave-open --status-file status -- touch mnt/new
    local id shell
    id=$(jq .transaction status)
    for shell in bash zsh fish; do
        completed $shell xact umount '' >found
        has found "^$WORK/mnt"
        completed $shell xact tx diff --at mnt '' >found
        has found "^$id"
        completed $shell xact snapshot delete mnt '' >found
        has found '^monday'
        has found '^tuesday'
        completed $shell xact mount -o ro,errors=r >found
        has found '^ro,errors=remount-ro'
        completed $shell xact mode set mnt fsync=g >found
        has found '^fsync=generation'
        completed $shell xact mkfs --engine g >found
        has found '^generations'
    done
    has <(completed fish xact tx diff --at mnt '') 'touch mnt/new'
    equal "names that begin with t" tuesday "$(completed bash xact snapshot restore mnt t)"
    # Off a mount there are no transactions: options alone are left.
    completed bash xact tx diff --at / '' >found
    lacks found '^[0-9]'
    # The function of the script itself, as bash calls it.
    mkdir bin
    ln -s "$XACT" bin/xact
    equal "by bash" tuesday "$(PATH=$WORK/bin:$PATH bash -c '
        source <(xact completions bash) 2>/dev/null
        COMP_WORDS=(xact snapshot delete mnt t) COMP_CWORD=4 COMP_TYPE=9
        _clap_complete_xact xact t mnt
        printf "%s\n" "${COMPREPLY[@]}"')"
    # Another mount, whose daemon does not answer.
    volume other.img
    in_foreground other.img below/other
    kill -STOP "$DAEMON"
    XACT_COMPLETE=bash _CLAP_COMPLETE_INDEX=2 _CLAP_IFS=$'\n' timeout 10 "$XACT" -- xact umount '' >found || true
    kill -CONT "$DAEMON"
    has found "^$WORK/mnt"
    has found "^$WORK/below/other"
    unmounted below/other
    unmounted mnt
}

test_progress_for_programs() {
    needs jq
    "$XACT" mkfs disk.img --size 64M --progress=json >/dev/null 2>lines
    equal "steps of mkfs" 'making disk.img' "$(jq -r .step lines | sort -u)"
    equal "last line of mkfs" true "$(jq -s '.[-1].finished' lines)"
    "$XACT" check disk.img --progress=json >out 2>lines
    has out 'files'
    equal "lines of check" true "$(jq -s 'all(.done <= .total and .unit == "share")' lines)"
    equal "last line of check" true "$(jq -s '.[-1] | .done == 1 and .finished' lines)"
    "$XACT" check disk.img >out 2>lines
    equal "without the option" '' "$(cat lines)"
    "$XACT" convert disk.img --to generations --progress=json 2>lines
    equal "unit of convert" bytes "$(jq -r .unit lines | sort -u)"
    "$XACT" snapshot create disk.img one
    "$XACT" snapshot export disk.img out.img --name one --progress=json 2>lines
    equal "step of export" 'exporting to out.img' "$(jq -r .step lines | sort -u)"
    "$XACT" snapshot restore disk.img one --progress=json 2>lines
    equal "step of restore" 'restoring disk.img' "$(jq -r .step lines | sort -u)"
    mounted disk.img mnt
    echo text >mnt/file
    "$XACT" snapshot create mnt two
    echo changed >mnt/file
    "$XACT" snapshot restore mnt two /file --progress=json 2>lines
    equal "step on a mount" 'restoring /file' "$(jq -r .step lines | sort -u)"
    "$XACT" snapshot export mnt two.img --name two --progress=json 2>lines
    equal "last line of export" true "$(jq -s '.[-1].finished' lines)"
    unmounted mnt
}

test_log_lines_have_level_and_mount() {
    volume disk.img
    mkdir mnt
    exits 64 'invalid filter' -- env XACT_LOG=xact_fs=loud "$XACT" info disk.img
    mounted disk.img mnt --log log
    "$XACT" run --at mnt --leave-open -- touch mnt/new 2>said
    has said 'transaction 1 is open'
    unmounted mnt 2>said
    has log "^20[0-9-]+T[0-9:.]+Z INFO  mount=$WORK/mnt transaction=1: transaction 1 \\(touch mnt/new\\) was open"
    # Only errors are logged, and no notes are printed.
    mounted disk.img mnt --log quiet -q
    "$XACT" -q run --at mnt --leave-open -- touch mnt/new 2>said
    "$XACT" umount mnt -q 2>>said
    equal "said quietly" '' "$(cat said quiet)"
}

# A stand-in for journald: a socket that prints what it receives.
test_the_journal_has_fields() {
    volume disk.img
    mkdir mnt
    mount -t tmpfs none /run
    mkdir -p /run/systemd/journal
    python3 -c '
import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("/run/systemd/journal/socket")
while True:
    print(s.recv(1 << 16).decode(errors="replace"), flush=True)
' >journal &
    local listener=$!
    until [[ -S /run/systemd/journal/socket ]]; do sleep 0.1; done
    mounted disk.img mnt
    "$XACT" run --at mnt --leave-open -- touch mnt/new 2>said
    unmounted mnt 2>said
    wait_until "the last entry" grep -q "unmounted $WORK/disk.img" journal
    kill $listener
    # The number of bytes of a value precedes it.
    tr -d '\000-\011\013-\037\177-\377' <journal | tr -s '\n' >entries
    local uuid
    uuid=$("$XACT" info --json disk.img | jq -r .uuid)
    value() { grep -A1 -E "^$1\$" entries | grep -vE "^($1|--)\$" | sort -u; }
    has <(value MOUNT) "$WORK/mnt"
    has <(value IMAGE) "$WORK/disk.img"
    has <(value VOLUME_UUID) "$uuid"
    has <(value SYSLOG_IDENTIFIER) xact
    has journal '^TRANSACTION$'
    has journal "mounted $WORK/disk.img"
    has journal 'transaction 1 \(touch mnt/new\) was open'
}

test_man_pages() {
    "$XACT" man pages
    grep -q '^.TH xact 1' pages/xact.1
    [[ -s pages/xact-umount.1 && -s pages/xact-snapshot-create.1 ]]
    needs groff
    local page
    for page in pages/*.1 pages/{mkfs,fsck}.xact.8; do
        equal "warnings of $page" '' "$(groff -man -Tutf8 -ww -z "$page" 2>&1)"
        has "$page" '^.SH EXAMPLES'
        has "$page" '^.SH "SEE ALSO"'
    done
    groff -man -Tascii -P -cbou pages/xact-mount.1 >mount.txt
    has mount.txt '^MOUNT OPTIONS'
    has mount.txt 'commit=TIME'
    exits 64 -- "$XACT" man
    touch file
    exits 64 'cannot write man pages' -- "$XACT" man file
}

test_info_reads_volumes_of_mke2fs() {
    needs mke2fs jq
    mke2fs -q -t ext4 -L data -U 123e4567-e89b-12d3-a456-426614174000 disk.img 64M
    "$XACT" info disk.img | grep -q '^label: *data$'
    equal label data "$("$XACT" info --json disk.img | jq -r .label)"
    equal uuid 123e4567-e89b-12d3-a456-426614174000 "$("$XACT" info --json disk.img | jq -r .uuid)"
    equal size $((64 << 20)) "$("$XACT" info --json disk.img | jq -r .size_bytes)"
    equal mountable read-write "$("$XACT" info --json disk.img | jq -r .mountable)"
    mke2fs -q -F -t ext4 -O encrypt disk.img 64M
    equal mountable no "$("$XACT" info --json disk.img | jq -r .mountable)"
    "$XACT" info disk.img | grep -q 'encrypt'
}

test_info_of_bad_input() {
    exits 66 'cannot read .*/no/such' -- "$XACT" info /no/such
    exits 64 'is a folder: name the image' -- "$XACT" info "$WORK"
    truncate -s 100 short.img
    exits 74 'short.img is too short' -- "$XACT" info short.img
    truncate -s 1M empty.img
    exits 64 'empty.img: not an ext2, ext3 or ext4 volume' -- "$XACT" info empty.img
    mke2fs -q -t ext4 disk.img 64M
    printf '\xff' | dd of=disk.img bs=1 seek=1100 conv=notrunc status=none
    exits 74 'disk.img: .*damaged.*superblock' -- "$XACT" info disk.img
}

test_umount_where_nothing_is() {
    exits 66 'cannot find .*/no/such' -- "$XACT" umount /no/such
    exits 69 'no xact volume is mounted at' -- "$XACT" umount "$WORK"
    exits 69 'no xact volume is mounted at' -- "$XACT" umount /
}

test_sync_and_run_where_nothing_is() {
    exits 66 'cannot look at /no/such' -- "$XACT" sync /no/such
    exits 69 'is not on a mounted xact volume' -- "$XACT" sync "$WORK"
    exits 69 'xact run: error: the current folder is not on a mounted xact volume' -- "$XACT" run true
    exits 69 'xact mount IMG MNT' -- "$XACT" run --at / -- true
    exits 64 'required' -- "$XACT" run
}

test_status_file_of_a_run_that_did_not_start() {
    needs jq
    exits 69 -- "$XACT" run --status-file status --at / -- true
    equal outcome not-started "$(jq -r .outcome status)"
    equal exit_code 69 "$(jq -r .exit_code status)"
    equal command_status null "$(jq -r .command_status status)"
    exits 66 'cannot write the status file /no/such/status' -- \
        "$XACT" run --status-file /no/such/status --at / -- true
}

test_install_and_uninstall() {
    needs make
    make -s -C "$ROOT" install PREFIX="$WORK/usr" CARGO=true >/dev/null
    "$WORK/usr/bin/xact" --version >/dev/null
    has "$WORK/usr/share/man/man1/xact-run.1" 'transaction'
    has <(MANPATH=$WORK/usr/share/man man xact-snapshot-create) 'Make a snapshot'
    [[ -s $WORK/usr/share/bash-completion/completions/xact ]]
    local helper
    for helper in {mount,umount}.{,fuse.,fuseblk.}xact; do
        exits 1 'mount.8. and umount.8. call it' -- "$WORK/usr/sbin/$helper"
    done
    "$WORK/usr/sbin/mkfs.xact" --help | grep -q '^Make an ext4 volume'
    "$WORK/usr/sbin/fsck.xact" --help | grep -q '^Check a volume'
    has <(MANPATH=$WORK/usr/share/man man mount.xact) 'xact-mount'
    make -s -C "$ROOT" uninstall PREFIX="$WORK/usr" >/dev/null
    equal "files left" '' "$(find "$WORK/usr" ! -type d)"
}

# The caches of the system know the library and the pages at once, and forget them at once. The
# folders of the system that change are copies, in the mount namespace of the test.
test_uninstall_leaves_no_cache_entries() {
    needs make ldconfig mandb apropos
    local folder
    for folder in /etc /usr/sbin /var/cache/man; do
        mkdir -p "copy$folder" "$folder"
        cp -a "$folder/." "copy$folder"
        mount --bind "copy$folder" "$folder"
    done
    mount -t tmpfs none /usr/local
    known() { # COMMAND…: what it prints of xact
        "$@" 2>/dev/null | grep -E '\b(lib)?xact' || true
    }
    files() { find /usr/local ! -type d; find /usr/sbin /etc -name '*xact*' | sort; }
    files >before
    make -s -C "$ROOT" install CARGO=true >/dev/null
    has <(known ldconfig -p) 'libxact.so.0 .*=> /usr/local/lib/libxact.so.0'
    has <(known apropos --exact xact-run) 'xact-run .*transaction'
    make -s -C "$ROOT" uninstall >/dev/null
    equal "known libraries" '' "$(known ldconfig -p)"
    equal "known pages" '' "$(known apropos xact)"
    files | diff before -
}

# A mistyped option before the command is an error of xact, not the command.
test_mistyped_options_are_not_the_command() {
    volume disk.img
    mounted disk.img mnt
    exits 64 '--kepe' -- "$XACT" run --at mnt --kepe -- touch mnt/file
    exits 64 '--kepe' -- "$XACT" run --kepe touch mnt/file
    exits 64 "^xact run: error: unexpected argument '--timeot'" -- "$XACT" run --at mnt --timeot 5 touch mnt/file
    has exits.err "a similar argument exists: '--timeout'"
    [[ ! -e mnt/file ]] || fail "the command ran"
    # After the command's name, all belongs to it.
    equal "arguments" '-n --keep' "$("$XACT" run --at mnt printf '%s %s' -n --keep)"
    unmounted mnt
}

# A volume without generations has no folders of snapshots.
test_snapshot_folders_exist_with_generations_only() {
    ENGINE=journal volume disk.img
    mounted disk.img mnt
    exits 2 'No such file' -- ls mnt/.xact/snapshots
    exits 2 'No such file' -- ls mnt/.xact/images
    unmounted mnt
}
