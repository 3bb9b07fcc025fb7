# timeout: 3600
# As tests/suites/run_helper.sh, with many more hostile calls of the setuid helper.

source "$TESTS/suites/run_helper.sh"

test_hostile_calls_at_length() { CALLS=${CALLS:-50000} test_hostile_calls; }
