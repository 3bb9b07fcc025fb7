# timeout: 3600
# The suite of the SQLite extension with 200 kills and more random statements, also on volumes with
# generations.

SQLITE_KILLS=${SQLITE_KILLS:-200}
SQLITE_SEEDS=${SQLITE_SEEDS:-300}
source "$TESTS/suites/sqlite_extension.sh"

test_extension_killed() { test_killed_in_mid_load; }
test_extension_statements() { test_as_a_database_in_memory; }
test_generations_extension_killed() { ENGINE=generations KILLS=50 test_killed_in_mid_load; }
test_generations_extension_readers() { ENGINE=generations test_readers_and_killed_writers; }
test_generations_extension_databases() { ENGINE=generations test_several_databases; }
