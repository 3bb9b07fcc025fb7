# timeout: 200
# The pages of docs/guide: their commands, run in order, print what the pages show. After a change
# of messages, 'FILL=1 tests/run guide' writes what they print now into the pages.

page() { # NAME
    needs jq rsync e2fsck findmnt
    mkdir bin run
    ln -s "$XACT" bin/xact
    cd run
    # The distribution's Python can load extensions of SQLite; others may be built without that.
    ln -s /usr/bin/python3 ../bin/python3
    # The SQLite extension is found by its name, as where it is installed.
    PATH=$WORK/bin:$PATH LD_LIBRARY_PATH=$TARGET/release python3 "$TESTS/doc_blocks.py" ${FILL:+--fill} "$ROOT/docs/guide/$1.md" ||
        fail "docs/guide/$1.md is not up to date: FILL=1 tests/run guide updates it"
}

test_first_steps() { page first-steps; }
test_engines() { page engines; }
test_transactions() { page transactions; }
test_programs() { page programs; }
test_snapshots() { page snapshots; }
test_undo() { page undo; }
test_backup() { page backup; }
test_containers() { page containers; }
test_monitoring() { page monitoring; }
test_settings() { page settings; }
test_troubleshooting() { page troubleshooting; }

test_every_page_is_run() {
    local file
    for file in "$ROOT"/docs/guide/*.md; do
        if grep -q '^```console' "$file"; then
            has "${BASH_SOURCE[0]}" "page $(basename "$file" .md);"
        fi
    done
}
