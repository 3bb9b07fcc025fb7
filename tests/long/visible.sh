# timeout: 7200
# The litmus test of atomic visibility, for ten minutes; and 500 random histories through the mount.

source "$TESTS/litmus.sh"

test_litmus() {
    litmus "${LITMUS_SECONDS:-600}"
}

test_histories() {
    (cd "$ROOT" && HISTORIES=${HISTORIES:-500} cargo test --release -p xact-fuse --test histories -- --nocapture) >said 2>&1 ||
        fail "$(tail -n 40 said)"
    report "$(grep -E '^[0-9]+ histories' said)"
}
