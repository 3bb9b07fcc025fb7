//! The memory of a list of differences, charged to the user for whom the list is made.

use std::sync::Arc;

use xact_types::Result;

use crate::account::{Account, Charge, Resource};

/// The memory that a list takes while it is made, charged to the user for whom it is made.
pub(crate) struct Budget {
    used: u64,
    charge: Charge,
}

impl Budget {
    pub fn of(account: &Arc<Account>) -> Budget {
        Budget { used: 0, charge: account.nothing(Resource::Memory) }
    }

    /// `ENOMEM` where the user may not have so much more.
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.used += bytes as u64;
        self.charge.cover(self.used)
    }
}
