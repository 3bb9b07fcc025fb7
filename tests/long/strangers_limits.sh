# timeout: 1200
# What one user can do to others, for ten minutes.

source "$TESTS/attack.sh"

# alone
test_a_user_does_his_worst() {
    attacked "${ATTACK_SECONDS:-600}"
}
