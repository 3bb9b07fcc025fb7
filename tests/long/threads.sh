# timeout: 2400
# The load of tests/suites/threads.sh for ten minutes, in C and in Python at the same time.

source "$TESTS/suites/threads.sh"

test_load_of_threads() {
    needs sqlite3
    local seconds=${THREADS_SECONDS:-600} in_c
    # Each transaction leaves two inodes.
    SIZE=4G fresh --log log
    (load_in_c "$seconds") &
    in_c=$!
    load_in_python "$seconds"
    wait "$in_c"
    checked_databases
    afterwards
}
