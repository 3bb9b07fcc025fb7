//! How long commits of one user wait for claims of others: a budget that is used up by waiting and
//! comes back with time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long commits of one user wait, at a time, for claims of others.
pub const WAIT_FOR_OTHERS_MAX: Duration = Duration::from_secs(1);
/// They wait one part in this many of the time in the long run.
const SHARE: u32 = 10;
/// Users above which those whose budget is whole are not remembered.
const USERS_MAX: usize = 64;

/// The budget that a user has left.
#[derive(Debug, Clone, Copy)]
struct WaitBudget {
    left: Duration,
    /// When that was so.
    at: Instant,
}

impl WaitBudget {
    fn now(self, now: Instant) -> Duration {
        (self.left + now.saturating_duration_since(self.at) / SHARE).min(WAIT_FOR_OTHERS_MAX)
    }

    /// As `now`, or nothing where a wait would be so short that many would follow each other.
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
    /// How much longer commits of a user wait for claims of others.
    pub fn left(&self, user: u32, now: Instant) -> Duration {
        self.by_user.get(&user).map_or(WAIT_FOR_OTHERS_MAX, |budget| budget.worth_waiting(now))
    }

    /// The user has waited since `from`.
    pub fn note_wait(&mut self, user: u32, from: Instant) {
        let now = Instant::now();
        // What came back during the wait is not counted.
        let before = self.by_user.get(&user).map_or(WAIT_FOR_OTHERS_MAX, |budget| budget.now(from));
        let left = before.saturating_sub(now - from);
        if self.by_user.len() >= USERS_MAX {
            self.by_user.retain(|_, budget| budget.now(now) < WAIT_FOR_OTHERS_MAX);
        }
        self.by_user.insert(user, WaitBudget { left, at: now });
    }
}
