# timeout: 14400
# The tests of suites/posix.sh, on volumes of all kinds and with ten times the operations.

POSIX_VOLUMES="1k 2k 4k ext3 ext2"
FSX_OPERATIONS=${FSX_OPERATIONS:-100000}
FSX_SEEDS=${FSX_SEEDS:-10}
source "$TESTS/suites/posix.sh"

test_pjdfstest() { test_pjdfstest_on_the_mount; }
test_fsx_mount() { test_fsx_on_the_mount; }
test_fsx_transaction() { test_fsx_in_a_transaction; }
