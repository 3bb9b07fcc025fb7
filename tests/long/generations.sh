# timeout: 14400
# The suites of volumes with a journal, at full length, on volumes with generations.

POSIX_VOLUMES="1k 2k 4k"
FSX_OPERATIONS=${FSX_OPERATIONS:-100000}
FSX_SEEDS=${FSX_SEEDS:-10}
source "$TESTS/suites/sqlite.sh"
source "$TESTS/suites/generations.sh"
source "$TESTS/long/stress.sh"

test_generations_pjdfstest() { test_pjdfstest_on_the_mount; }
test_generations_fsx() { test_fsx_on_the_mount; }
test_generations_fsx_transaction() { test_fsx_in_a_transaction; }
test_generations_fsx_snapshots() { test_generations_fsx_under_snapshots; }
test_generations_copies_in_a_transaction() { test_copies_in_a_transaction; }
test_generations_tar() { test_tar_on_the_mount; }
test_generations_tar_in_a_transaction() { test_tar_in_a_transaction; }
test_generations_make() { test_make_on_the_mount; }
test_generations_make_in_a_transaction() { test_make_in_a_transaction; }
test_generations_atomic_writes() { test_atomic_write_ioctls; }
test_generations_atomic_and_isolated() { test_atomic_and_isolated; }
test_generations_no_journal_file() { test_no_journal_file; }
test_generations_stress() { test_stress_ng; }
