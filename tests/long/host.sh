# timeout: 3600
# A hundred rounds on a full host file system for each engine: nothing that was synced is lost, the
# volume is not poisoned, and it works on when there is space again.

source "$TESTS/host_full.sh"

test_a_full_host_for_long() {
    needs fstrim mkfs.ext4
    local engine
    for engine in journal generations; do
        host_full_rounds $engine tmpfs 50
        host_full_rounds $engine ext4 50
    done
}
