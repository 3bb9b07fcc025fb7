# timeout: 120
# A commit becomes visible at once, to readers whose kernel has everything cached
# (docs/TRANSACTIONS.md).

source "$TESTS/litmus.sh"

test_at_once() {
    litmus 8
}
