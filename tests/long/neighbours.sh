# timeout: 14400
# The tests of suites/neighbours.sh with as many steps as a busy day has, and PostgreSQL.

APPENDS=${APPENDS:-1000000}
WAL_COMMITS=${WAL_COMMITS:-100000}
GIT_COMMITS=${GIT_COMMITS:-1000}
OVERWRITES=${OVERWRITES:-1000000}
PAGE_COMMITS=${PAGE_COMMITS:-100000}
source "$TESTS/suites/neighbours.sh"

# pgbench, with a server as an ordinary user.
postgres() { # [ENGINE]
    # Debian keeps the server's programs apart, by version.
    PATH=$PATH:$(printf '%s\n' /usr/lib/postgresql/*/bin | tail -n 1)
    needs initdb pg_ctl pgbench setpriv
    local -a user=(setpriv --reuid nobody --regid nogroup --clear-groups env HOME=/ PGHOST=/tmp PGPORT=54329 PGUSER=x)
    fresh "${1:-$ENGINE}"
    mkdir mnt/b/server
    chown nobody:nogroup mnt/b/server
    "${user[@]}" initdb -D mnt/b/server -U x >initdb.out
    "${user[@]}" pg_ctl -D mnt/b/server -o "-p 54329 -k /tmp -h '' -c max_wal_size=128MB" -l /dev/null -w start >/dev/null
    "${user[@]}" pgbench -q -i -s 2 postgres 2>/dev/null >/dev/null
    rm -f progress.done
    ("${user[@]}" pgbench -n -c 4 -t "$((PAGE_COMMITS / 4))" postgres >pgbench.out 2>&1; touch progress.done) &
    "$XACT" run --at mnt -- sh -c "$INSIDE"
    has pgbench.out "number of transactions actually processed: $PAGE_COMMITS/$PAGE_COMMITS"
    equal "what the transaction read" "$sum" "$(<seen)"
    "${user[@]}" pg_ctl -D mnt/b/server -w stop >/dev/null
    afterwards
}
# Both servers have the same port.
# alone
test_postgres() { postgres; }
# alone
test_generations_postgres() { postgres generations; }

# The loads of the suite, one after the other.
all_loads() { # [ENGINE]
    beside append "$APPENDS" "$@"
    beside overwrite "$OVERWRITES" "$@"
    beside wal "$WAL_COMMITS" "$@"
    beside git "$GIT_COMMITS" "$@"
}
test_loads() { all_loads; }
test_generations_loads() { all_loads generations; }
