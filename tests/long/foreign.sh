# timeout: 3600
source "$TESTS/suites/foreign.sh"

test_python_modules() { python_agrees test_os test_shutil test_tempfile test_sqlite3 test_mailbox test_mmap; }
