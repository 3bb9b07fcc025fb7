# timeout: 1200
# The effects of one user on others, for ten minutes; and the cost of a harmless neighbour.

source "$TESTS/attack.sh"

# alone
test_attacks_of_one_user() {
    attacked "${ATTACK_SECONDS:-600}"
}

# The calls of one user on one CPU, beside another user's on the other CPU, in percent of their
# speed beside a process that computes there.
# alone
test_neighbours() {
    local seconds=8 neighbour alone beside
    [[ $(nproc) -ge 2 ]] || fail "this test needs two CPUs"
    volume disk.img --size 1G
    in_foreground disk.img mnt
    mkdir mnt/attacker mnt/other
    chown 65533 mnt/attacker
    chown 65534 mnt/other
    as_user 65534 taskset -c 1 python3 "$TESTS/attack.py" calls "$WORK/mnt" /other 2 >/dev/null
    for neighbour in "spin" "rare $WORK/mnt" "calls $WORK/mnt /attacker"; do
        # shellcheck disable=SC2086 # words of the command
        as_user 65533 taskset -c 0 python3 "$TESTS/attack.py" $neighbour "$seconds" >neighbour.json &
        as_user 65534 taskset -c 1 python3 "$TESTS/attack.py" calls "$WORK/mnt" /other "$seconds" >beside.json
        wait $!
        beside=$(jq .round.rate beside.json)
        [[ $neighbour != spin ]] || alone=$beside
        report "beside ${neighbour%% *}: $(jq -n "$beside / $alone * 100 | floor") %"
        [[ $(jq -n "$beside / $alone >= 0.1") == true ]] || fail "too little of the speed is left"
    done
    report "the neighbour that makes the same calls: $(jq -n "$(jq .round.rate neighbour.json) / $alone * 100 | floor") %"
    attacker_gone
    sound disk.img
}
