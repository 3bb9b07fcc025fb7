# timeout: 900
# The README's code blocks, in order.

# Stand-ins for 'make', 'sudo' and 'cargo' of the README: nothing is built twice, and nothing is
# installed outside of the test's folder.
stand_ins() {
    mkdir bin
    cat >bin/make <<END
#!/bin/sh
case \$1 in
install) exec "$ROOT/scripts/install" "$WORK/local" ;;
# The tests are run by 'make test'. That its recipe and that of the demo exist is checked here.
*) exec "$(command -v make)" -C "$ROOT" --dry-run "\$@" ;;
esac
END
    printf '#!/bin/sh\nexec "$@"\n' >bin/sudo
    printf '#!/bin/sh\ncd "%s" && exec "%s" "$@"\n' "$ROOT" "$(command -v cargo)" >bin/cargo
    chmod +x bin/*
    export PATH=$WORK/bin:$WORK/local/bin:$PATH PYTHONPATH=$ROOT/python
    export LD_LIBRARY_PATH=$WORK/local/lib PKG_CONFIG_PATH=$WORK/local/lib/pkgconfig
}

test_every_block_in_order() {
    needs cc python3 pkg-config
    stand_ins
    mkdir run
    cd run
    python3 "$TESTS/doc_blocks.py" "$ROOT/README.md"
    cmp first_steps.rs "$ROOT/crates/xact/examples/first_steps.rs" ||
        fail "README's Rust block is not crates/xact/examples/first_steps.rs"
    sound disk.img
}

# The two commands that a newcomer tries first, and the one that continuous integration runs.
test_make_demo_and_make_test() {
    local target
    for target in demo test; do
        has "$ROOT/README.md" "^make $target "
        make -C "$ROOT" --dry-run "$target" >/dev/null
    done
    has "$ROOT/.ci/run" 'make test$'
}
