# timeout: 400
# A transaction beside programs that write in other folders of the volume without a pause: however
# much they write, it commits, and the daemon's memory stays within its limit.

APPENDS=${APPENDS:-12000}
WAL_COMMITS=${WAL_COMMITS:-4000}
GIT_COMMITS=${GIT_COMMITS:-40}
OVERWRITES=${OVERWRITES:-40000}
# Beside the cache of 256 MiB, which is the default, and the program itself.
MEMORY_MIB=400

fresh() { # [ENGINE]
    rm -f disk.img
    volume disk.img --size 1G --engine "${1:-$ENGINE}"
    in_foreground disk.img mnt -o allow_other
    mkdir mnt/a mnt/b
    head -c 8M /dev/urandom >mnt/a/read
    sum=$(sha256sum <mnt/a/read)
}
afterwards() {
    local peak
    peak=$(awk '/^VmHWM/ { print int($2 / 1024) }' "/proc/$DAEMON/status")
    ((peak < MEMORY_MIB)) || fail "the daemon took $peak MiB"
    report "the daemon took $peak MiB at most"
    unmounted mnt
    wait "$DAEMON"
    sound disk.img
}

starts() { # KIND COUNT
    rm -f progress progress.done
    python3 "$TESTS/neighbour.py" "$1" mnt/b "$2" progress &
    NEIGHBOUR=$!
    wait_until "the first step of the neighbour" test -s progress
}
ends() { # COUNT
    wait "$NEIGHBOUR"
    equal steps "$1" "$(<progress)"
}

# A transaction that reads and writes in a folder of its own until the neighbour's last step.
INSIDE='
    i=0
    until [ -e progress.done ]; do
        echo $i >mnt/a/$((i % 100))
        i=$((i + 1))
        sleep 0.05
    done
    sha256sum <mnt/a/read >seen'

beside() { # KIND COUNT [ENGINE]
    fresh "${3:-$ENGINE}"
    starts "$1" "$2"
    "$XACT" run --at mnt -- sh -c "$INSIDE"
    ends "$2"
    equal "what the transaction read" "$sum" "$(<seen)"
    [[ -s mnt/a/0 ]] || fail "the transaction's file is missing"
    afterwards
}

test_a_log() { beside append "$APPENDS"; }
test_generations_a_log() { beside append "$APPENDS" generations; }
test_overwriting() { beside overwrite "$OVERWRITES"; }
test_generations_overwriting() { beside overwrite "$OVERWRITES" generations; }
test_sqlite() { beside wal "$WAL_COMMITS"; }
test_generations_sqlite() { beside wal "$WAL_COMMITS" generations; }
test_git() { beside git "$GIT_COMMITS"; }
test_generations_git() { beside git "$GIT_COMMITS" generations; }

# Unpacking 31 MB in a transaction.
unpacking() { # [ENGINE]
    local i
    mkdir tree
    for i in {1..31}; do head -c 1M /dev/urandom >"tree/$i"; done
    tar cf tree.tar tree
    fresh "${1:-$ENGINE}"
    starts append 0
    "$XACT" run --at mnt -- sh -c 'tar xf tree.tar -C mnt/a; sleep 3'
    kill "$NEIGHBOUR"
    diff -r tree mnt/a/tree
    afterwards
}
test_unpacking() { unpacking; }
test_generations_unpacking() { unpacking generations; }

# A transaction that is left open, while the neighbour works.
left_open() { # COUNT, ARGUMENTS OF xact run…
    fresh
    "$XACT" run --at mnt --leave-open "${@:2}" --status-file status -- sh -c 'sha256sum <mnt/a/read; echo x >mnt/a/x' >seen
    starts append "$1"
    ends "$1"
    "$XACT" tx commit "$(jq .transaction status)" --at mnt
    equal committed x "$(<mnt/a/x)"
    afterwards
}
test_left_open() { left_open "$APPENDS"; }
test_persisted() { left_open "$APPENDS" --persist; }

# More old versions than memory may hold are on the volume.
test_a_large_file() {
    volume disk.img --size 1G
    in_foreground disk.img mnt
    mkdir mnt/a
    head -c 200M /dev/urandom >mnt/large
    "$XACT" sync mnt
    sum=$(sha256sum <mnt/large)
    "$XACT" run --at mnt -- sh -c '
        touch begun
        until [ -e written ]; do sleep 0.05; done
        echo x >mnt/a/x
        sha256sum <mnt/large >seen
        exit 3' && fail "the command failed" || equal status 3 $? &
    run=$!
    wait_until "the transaction" test -e begun
    head -c 200M /dev/zero | dd of=mnt/large conv=notrunc bs=1M status=none
    "$XACT" sync mnt
    touch written
    wait "$run"
    equal "the contents at the begin" "$sum" "$(<seen)"
    afterwards
}
