//! Wait budgets: the time that commits of one user may wait for claims of others. Waiting uses the
//! budget up, and it refills with time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Maximum budget: the time that commits of one user wait at once for claims of others.
pub const WAIT_FOR_OTHERS_MAX: Duration = Duration::from_secs(1);
/// In the long run they wait for one part in `SHARE` of the time.
const SHARE: u32 = 10;
/// Number of users above which those with a full budget are forgotten.
const USERS_MAX: usize = 64;

/// The remaining budget of a user.
#[derive(Debug, Clone, Copy)]
struct WaitBudget {
    left: Duration,
    /// Time at which `left` was computed.
    at: Instant,
}

impl WaitBudget {
    fn now(self, now: Instant) -> Duration {
        (self.left + now.saturating_duration_since(self.at) / SHARE).min(WAIT_FOR_OTHERS_MAX)
    }

    /// The budget at `now`, or zero if the wait would be so short that many would follow each
    /// other.
    fn worth_waiting(self, now: Instant) -> Duration {
        Some(self.now(now)).filter(|left| *left >= WAIT_FOR_OTHERS_MAX / 20).unwrap_or_default()
    }
}

/// The budgets of all users.
#[derive(Debug, Default)]
pub(super) struct WaitBudgets {
    by_user: HashMap<u32, WaitBudget>,
}

impl WaitBudgets {
    /// The time that commits of a user may still wait for claims of others.
    pub fn left(&self, user: u32, now: Instant) -> Duration {
        self.by_user.get(&user).map_or(WAIT_FOR_OTHERS_MAX, |budget| budget.worth_waiting(now))
    }

    /// Charges a wait of the user since `from`.
    pub fn note_wait(&mut self, user: u32, from: Instant) {
        let now = Instant::now();
        // The budget does not refill during the wait.
        let before = self.by_user.get(&user).map_or(WAIT_FOR_OTHERS_MAX, |budget| budget.now(from));
        let left = before.saturating_sub(now - from);
        if self.by_user.len() >= USERS_MAX {
            self.by_user.retain(|_, budget| budget.now(now) < WAIT_FOR_OTHERS_MAX);
        }
        self.by_user.insert(user, WaitBudget { left, at: now });
    }
}
