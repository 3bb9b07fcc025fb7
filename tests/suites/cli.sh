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
    exits 64 'unrecognized subcommand' -- "$XACT" mont
    exits 64 'unexpected argument' -- "$XACT" info --no-such-option x
    exits 64 'required' -- "$XACT" info
    exits 64 "invalid number 'x'" -- "$XACT" run --retry x -- true
    exits 64 "invalid number 'x'" -- "$XACT" tx diff x
}

test_no_colours_off_a_terminal() {
    exits 66 -- "$XACT" info /no/such/image
    lacks "$WORK/exits.err" $'\e'
}

test_completions() {
    "$XACT" completions bash >complete.bash
    bash -n complete.bash
    local shell
    for shell in zsh fish; do "$XACT" completions $shell | grep -q xact; done
    exits 64 -- "$XACT" completions tcl
}

test_man_pages() {
    "$XACT" man pages
    grep -q '^.TH xact 1' pages/xact.1
    [[ -s pages/xact-umount.1 ]]
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
    [[ -s $WORK/usr/share/bash-completion/completions/xact ]]
    make -s -C "$ROOT" uninstall PREFIX="$WORK/usr" >/dev/null
    equal "files left" '' "$(find "$WORK/usr" -type f)"
}
