//! The memory of a list of differences, charged to the user who requests the list.

use std::sync::Arc;

use xact_types::Result;

use crate::account::{Account, Charge, Resource};

/// The memory of a list under construction, charged to the user who requests it.
pub(crate) struct Budget {
    used: u64,
    charge: Charge,
}

impl Budget {
    pub fn of(account: &Arc<Account>) -> Budget {
        Budget { used: 0, charge: account.nothing(Resource::Memory) }
    }

    /// Charges more memory; `ENOMEM` beyond the user's limit.
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.used += bytes as u64;
        self.charge.cover(self.used)
    }
}
