# The list of mounted volumes, metrics for Prometheus, warnings about space.

listed() { "$XACT" list --json | jq -r ".[] | select(.mount == \"$WORK/$1\") | $2"; }

test_list() {
    needs jq python3
    volume one.img --engine journal
    volume two.img --engine generations --pool-size 32M
    volume three.img --engine none
    mounted one.img one
    mounted two.img 'two of them'
    mounted three.img three -o ro
    "$XACT" run --at one --leave-open -- touch one/new 2>said
    "$XACT" run --at one --leave-open -- touch one/newer 2>said
    "$XACT" snapshot create 'two of them' monday
    local facts='"\(.image) \(.uid) \(.state) \(.engine) \(.read_only) \(.transactions) \(.snapshots)"'
    equal one "$WORK/one.img 0 mounted journal false 2 null" "$(listed one "$facts")"
    equal two "$WORK/two.img 0 mounted generations false 0 1" "$(listed 'two of them' "$facts")"
    equal three "$WORK/three.img 0 mounted none true 0 null" "$(listed three "$facts")"
    # The same figures as df shows.
    local size used
    read -r size used < <(df -B1 --output=size,used one | tail -n 1)
    equal space "$size $used" "$(listed one '"\(.size_bytes) \(.used_bytes)"')"
    equal pool $((32 << 20)) "$(listed 'two of them' '(.pool_size_bytes + 1048575) / 1048576 | floor * 1048576')"
    "$XACT" list >list
    has list "^$WORK/one  $WORK/one.img, user 0, journal, [0-9.]+ .iB of [0-9.]+ MiB used, 2 open transactions$"
    has list "^$WORK/two of them  .*, generations, .* used, .* of the pool of 32.* MiB, 1 snapshot$"
    has list "^$WORK/three  .*, no engine, .* used, read-only$"
    # The view of a transaction is not listed as a volume of its own.
    "$XACT" run --at one -- "$XACT" list --json >inside
    equal "views" 0 "$(jq '[.[] | select(.image | contains(".xact"))] | length' inside)"
    unmounted 'two of them'
    equal "after the unmount" '' "$(listed 'two of them' .state)"
    # An ordinary user sees all mounts, and what is on those that it may use.
    [[ $(stat -c %a /dev/fuse) == 666 ]] || chmod 666 /dev/fuse
    as() { setpriv --reuid "$1" --regid nogroup --clear-groups "${@:2}"; }
    theirs() { as "$1" "$XACT" list --json | jq -r ".[] | select(.mount == \"$WORK/$2\") | \"\(.uid) \(.state) \(.transactions)\""; }
    equal "a mount of root" '0 mounted 0' "$(theirs 65534 one)"
    mkdir closed
    volume four.img
    chown 65534 closed four.img
    as 65534 "$XACT" mount four.img closed
    equal "its own" '65534 mounted 0' "$(theirs 65534 closed)"
    equal "to a third user" '65534 no-permission null' "$(theirs 1 closed)"
    as 65534 "$XACT" umount closed
    unmounted one 2>said
    unmounted three
}

# A daemon that died or is stopped is listed, and the list does not wait for it.
test_list_without_an_answer() {
    needs jq
    volume disk.img
    in_foreground disk.img mnt
    volume other.img
    mounted other.img other
    kill -STOP "$DAEMON"
    local begun=$SECONDS
    "$XACT" list --json >list
    kill -CONT "$DAEMON"
    [[ $((SECONDS - begun)) -lt 20 ]] || fail "the list waited for a daemon"
    equal stopped no-answer "$(jq -r ".[] | select(.mount == \"$WORK/mnt\") | .state" list)"
    equal other mounted "$(jq -r ".[] | select(.mount == \"$WORK/other\") | .state" list)"
    kill -KILL "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    equal killed dead "$(listed mnt .state)"
    "$XACT" list >list
    has list "^$WORK/mnt  .*its daemon has died: unmount it with 'xact umount $WORK/mnt'"
    "$XACT" stat --prometheus >metrics
    has metrics "^xact_up\\{mount=\"$WORK/mnt\",.* 0$"
    has metrics "^xact_up\\{mount=\"$WORK/other\",.* 1$"
    unmounted mnt
    unmounted other
}

# A volume that only another mount namespace has, as in a container.
test_list_of_other_namespaces() {
    needs jq
    volume disk.img
    mkdir mnt
    mkfifo go
    unshare --mount bash -c '"$1" mount disk.img mnt && echo mounted >mounted && read -r _ <go
        "$1" umount mnt' - "$XACT" &
    local job=$!
    wait_until "the mount" test -s mounted
    mountpoint -q mnt && fail "it is mounted here, too"
    equal state elsewhere "$(listed mnt .state)"
    local process
    process=$(listed mnt .in_namespace_of)
    equal "in its own namespace" mounted "$(nsenter --mount --target "$process" "$XACT" list --json |
        jq -r ".[] | select(.mount == \"$WORK/mnt\") | .state")"
    "$XACT" stat --prometheus >metrics
    lacks metrics "$WORK/mnt"
    echo end >go
    wait $job
    equal "after the unmount" '' "$(listed mnt .state)"
}

# The text is what Prometheus' own rules ask for, and agrees with the JSON.
test_metrics() {
    needs jq python3
    volume disk.img --engine generations --pool-size 32M
    mkdir $'a "b" \\c'
    mounted disk.img $'a "b" \\c'
    ln -s $'a "b" \\c' mnt
    for n in 1 2 3 4 5; do dd if=/dev/zero of=mnt/file$n bs=64k count=1 conv=fsync status=none; done
    "$XACT" run --at mnt --leave-open -- touch mnt/new 2>said
    "$XACT" run --at mnt --leave-open --persist -- touch mnt/newer 2>said
    "$XACT" snapshot create mnt monday
    "$XACT" stat mnt --prometheus >metrics
    "$XACT" stat mnt --json >json
    python3 - "$WORK/a \"b\" \\c" <<'PY'
import json, re, sys
families, samples = {}, {}
label = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
for line in open("metrics"):
    if heading := re.fullmatch(r"# (HELP|TYPE) ([a-z_]+) (.+)\n", line):
        what, name, text = heading.groups()
        families.setdefault(name, {})
        assert what not in families[name], f"{line!r} comes twice"
        families[name][what] = text
        current = name
        continue
    sample = re.fullmatch(rf"([a-z_]+)\{{({label}(?:,{label})*)\}} (-?[0-9.e+]+|\+Inf)\n", line)
    assert sample, f"not a line of the format: {line!r}"
    name, labels, value = sample.groups()
    kind = families[current]["TYPE"]
    base = re.sub(r"_(bucket|sum|count)$", "", name) if kind == "histogram" else name
    assert base == current and set(families[current]) == {"HELP", "TYPE"}, line
    assert (kind == "counter") == name.endswith("_total"), line
    labels = {k: re.sub(r'\\(.)', lambda m: "\n" if m[1] == "n" else m[1], v) for k, v in re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', labels)}
    assert labels.pop("mount") == sys.argv[1], line
    assert labels.pop("image").endswith("/disk.img"), line
    key = name, tuple(sorted(labels.items()))
    assert key not in samples, f"{line!r} comes twice"
    samples[key] = float(value)

def value(name, **labels):
    return samples[name, tuple(sorted(labels.items()))]

stat = json.load(open("json"))
for name, expected in {
    "xact_up": 1, "xact_size_bytes": stat["size_bytes"], "xact_available_bytes": stat["available_bytes"],
    "xact_inodes_free": stat["free_inodes"], "xact_pool_size_bytes": stat["pool"]["size_bytes"],
    "xact_snapshots": 1, "xact_read_only": 0, "xact_errors_noted": 0,
    "xact_commits_total": stat["counters"]["commits"],
    "xact_device_flushes_total": stat["counters"]["device_flushes"],
    "xact_fsync_seconds_count": stat["counters"]["fsync"]["count"],
}.items():
    assert value(name) == expected, (name, value(name), expected)
assert value("xact_volume_info", engine="generations") == 1
states = [value("xact_transactions", state=state) for state in ("running", "open", "persisted")]
assert states == [0, 1, 1], states
# A histogram rises to its count, and its sum is the mean times the count.
bounds = sorted((float(dict(labels)["le"]), n) for (name, labels), n in samples.items() if name == "xact_fsync_seconds_bucket")
counts = [n for _, n in bounds]
assert counts == sorted(counts) and counts[-1] == value("xact_fsync_seconds_count") >= 5 and bounds[-1][0] == float("inf")
mean = stat["counters"]["fsync"]["mean_s"]
assert abs(value("xact_fsync_seconds_sum") - mean * counts[-1]) < 1e-5
median = next(bound for bound, n in bounds if n >= counts[-1] / 2)
assert stat["counters"]["fsync"]["median_s"] <= median
PY
    # Without a path, the metrics are those of all volumes. Options exclude each other.
    "$XACT" stat --prometheus >all
    has all '^xact_up\{mount=".*a \\"b\\" \\\\c",.*\} 1$'
    exits 64 'cannot be used with' -- "$XACT" stat --prometheus --json
    exits 64 'required' -- "$XACT" stat --output file
    unmounted mnt 2>said
}

# Each reader of the file sees all of it; a writer that fails leaves the old one.
test_metrics_file_is_whole() {
    volume disk.img
    mounted disk.img mnt
    mkdir collector
    "$XACT" stat mnt --prometheus --output collector/xact.prom
    equal mode 644 "$(stat -c %a collector/xact.prom)"
    local lines i
    lines=$(wc -l <collector/xact.prom)
    [[ $lines -gt 100 ]]
    (while [[ ! -e stop ]]; do "$XACT" stat mnt --prometheus --output collector/xact.prom; done) &
    for ((i = 0; i < 60; i++)); do equal "lines that a reader sees" "$lines" "$(wc -l <collector/xact.prom)"; done
    touch stop
    wait
    equal "files" xact.prom "$(ls -A collector)"
    exits 66 'cannot write collector/none/xact.prom' -- "$XACT" stat mnt --prometheus --output collector/none/xact.prom
    # A folder without space, as the collector's may be.
    mkdir full
    mount -t tmpfs -o size=4k none full
    echo old >full/xact.prom
    exits 73 'cannot write full/xact.prom' -- "$XACT" stat mnt --prometheus --output full/xact.prom
    equal "the file from before" old "$(cat full/xact.prom)"
    equal "files there" xact.prom "$(ls -A full)"
    umount full
    unmounted mnt
}

# The dashboard asks for metrics that exist.
test_dashboard() {
    needs jq
    volume disk.img --engine generations
    mounted disk.img mnt
    "$XACT" snapshot create mnt monday
    "$XACT" run --at mnt --leave-open -- touch mnt/new 2>said
    "$XACT" stat mnt --prometheus | sed -nE 's/^([a-z_]+)\{.*/\1/p' | sort -u >metrics
    unmounted mnt 2>said
    jq -r '.. | .expr? // empty' "$ROOT/examples/grafana.json" >queries
    [[ $(wc -l <queries) -ge 10 ]]
    grep -oE 'xact_[a-z_]+' queries | sort -u >used
    equal "metrics that do not exist" '' "$(comm -23 used metrics | xargs)"
    equal "panels without a query" 0 "$(jq '[.panels[] | select(.type != "row" and (.targets | length) == 0)] | length' "$ROOT/examples/grafana.json")"
}

# --- space --------------------------------------------------------------------------------------

warnings() { grep -c "WARN .*$1" log || true; }

test_a_nearly_full_volume_names_what_fills_it() {
    volume disk.img --size 128M --engine journal
    mounted disk.img mnt --log log --cache-size 16M
    mkdir mnt/folder
    head -c 20M /dev/zero >mnt/folder/large
    head -c 3M /dev/zero >mnt/small
    # Open, with more contents than memory takes; stored; deleted and still open.
    "$XACT" run --at mnt --leave-open -- sh -c 'head -c 30M /dev/urandom >mnt/building' 2>said
    "$XACT" run --at mnt --leave-open --persist -- sh -c 'head -c 5M /dev/urandom >mnt/stored' 2>said
    head -c 12M /dev/zero >mnt/gone
    exec 3<mnt/gone
    rm mnt/gone
    "$XACT" sync mnt
    sleep 1.1
    equal "too early" 0 "$(warnings 'nearly full')"
    local free
    free=$(df -k --output=avail mnt | tail -n 1)
    head -c $(((free - 4000) * 1024)) /dev/zero >mnt/filler
    "$XACT" sync mnt
    # The next change looks at the space.
    sleep 1.1
    echo more >mnt/more
    "$XACT" sync mnt
    wait_until "the warning" grep -q 'nearly full' log
    has log 'WARN  mount=.*: the volume is nearly full: [0-9.]+ .iB of [0-9.]+ MiB are free'
    has log 'Open transactions hold transaction [0-9]+ of user 0 \(sh -c head -c 30M .*\) [0-9.]+ MiB'
    has log "Stored transactions hold transaction [0-9]+ 5\\.[0-9] MiB \\('xact tx list'\\)"
    has log "Deleted files that are still open, 1 in number, hold 12\.0 MiB \('lsof \+L1'\)"
    has log 'The largest files: (/filler [0-9.]+ MiB, /folder/large 20\.[0-9] MiB|/folder/large 20\.[0-9] MiB, /filler [0-9.]+ MiB), '
    # Calls that find no space: one warning, however many there are.
    local i
    for i in 1 2 3 4 5; do fallocate -l 60M mnt/no 2>said && fail "there was space"; done
    wait_until "the second warning" grep -q 'found no space' log
    exec 3<&-
    sleep 1.1
    echo more >>mnt/more
    fallocate -l 60M mnt/no 2>said && fail "there was space"
    equal "warnings" '1 1' "$(warnings 'nearly full') $(warnings 'found no space')"
    unmounted mnt 2>said
}

test_a_full_pool_names_its_snapshots() {
    volume disk.img --size 128M --engine generations --pool-size 4M
    mounted disk.img mnt --log log
    local i
    for i in $(seq 40); do
        "$XACT" snapshot create mnt "number-$i" 2>>said || break
        (for n in $(seq 300); do echo "$i" >"mnt/file-$n"; done) 2>>said || break
        "$XACT" sync mnt || break
    done
    for n in $(seq 300); do echo x >"mnt/more-$n"; done 2>>said || true
    wait_until "the warning" grep -qE 'WARN .*(nearly full|found no space)' log
    has log "In the pool, which is full, snapshots hold number-[0-9]+ [0-9.]+ .iB, .* more \\('xact snapshot list', 'prune'\\)"
    unmounted mnt
}
