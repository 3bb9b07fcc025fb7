//! Memory accounting of a transaction.
//!
//! The memory of the read set and the changes is counted as it grows, and charged to the user after
//! each operation. If the user's limit is exceeded, the read set is coarsened
//! ([`ReadSet::coarsen`]). If that is not enough, the operation still succeeds, so that no read is
//! forgotten, but the *next* operations fail with `ENOMEM` before they do anything, until there is
//! memory again. Commit, abort and rollback still work.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;
use xact_types::{Errno, Result};

use super::{Inner, Transaction};
use crate::account::{Account, Charge, Resource};
use crate::validation::read_set::ReadSet;
use xact_fs::{SpaceLimits, VersionedFs};

/// Memory of an inode number that is held until the transaction's end, in bytes.
const UNLINKED_NUMBER_BYTES: usize = 32;
/// Maximum charge beyond the memory in use; the excess is given back.
const SPARE_BYTES: u64 = 128 << 10;

/// The transaction's share of its user's memory.
pub(crate) struct Memory {
    charge: Mutex<Charge>,
    /// The charged amount, which each operation reads without the lock.
    charged: AtomicU64,
    /// The transaction needs more than its user may have.
    short: AtomicBool,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::of(&Account::unlimited())
    }
}

impl Memory {
    pub fn of(account: &Arc<Account>) -> Memory {
        let charge = Mutex::new(account.nothing(Resource::Memory));
        Memory { charge, charged: AtomicU64::new(0), short: AtomicBool::new(false) }
    }

    pub fn account(&self) -> Arc<Account> {
        self.charge.lock().account().clone()
    }

    /// Makes the charge cover this many bytes.
    fn cover(&self, bytes: u64) -> Result<()> {
        let charged = self.charged.load(Relaxed);
        if bytes <= charged && bytes + SPARE_BYTES >= charged {
            return Ok(());
        }
        let mut charge = self.charge.lock();
        let covered = charge.cover(bytes);
        self.charged.store(charge.amount(), Relaxed);
        covered
    }

    fn is_short(&self) -> bool {
        self.short.load(Relaxed)
    }
}

impl<B: VersionedFs> Transaction<B> {
    /// Charges the transaction's memory to this user, from its begin on.
    #[must_use]
    pub fn charged_to(mut self, account: &Arc<Account>) -> Transaction<B> {
        self.memory = Memory::of(account);
        // A reopened transaction is charged without checking limits.
        self.charge_memory(&self.inner.read());
        self
    }

    fn bytes(&self, inner: &Inner<B>, reads: &ReadSet) -> u64 {
        let overlay = &inner.overlay;
        let contents = overlay.in_memory.len() as u64 * u64::from(self.base.block_size());
        let rest = overlay.bytes
            + overlay.unlinked_numbers.len() * UNLINKED_NUMBER_BYTES
            + inner.savepoints.bytes()
            + reads.bytes();
        contents + rest as u64
    }

    /// Charges the growth after an operation, or coarsens the read set.
    pub(crate) fn charge_memory(&self, inner: &Inner<B>) {
        let mut reads = self.reads.lock();
        let mut covered = self.memory.cover(self.bytes(inner, &reads));
        if covered.is_err() && reads.may_coarsen() {
            reads.coarsen(inner.overlay.nodes.keys().copied());
            covered = self.memory.cover(self.bytes(inner, &reads));
        }
        if covered.is_err() != self.memory.is_short() {
            self.memory.short.store(covered.is_err(), Relaxed);
        }
    }

    /// `ENOMEM` if no memory is left; called before an operation that may need some.
    pub(crate) fn check_memory(&self, inner: &Inner<B>) -> Result<()> {
        if self.memory.is_short() {
            self.charge_memory(inner);
        }
        if self.memory.is_short() { Err(Errno::ENOMEM.into()) } else { Ok(()) }
    }

    /// Maximum number of blocks of contents in memory.
    fn contents_max(&self) -> usize {
        let share = self.memory.charge.lock().account().limit(Resource::Memory) / 4;
        (self.base.private_bytes_max().min(share) / u64::from(self.base.block_size())) as usize
    }

    /// Frees memory for contents by spilling; called before an operation that adds some.
    pub(crate) fn make_room(&self, inner: &mut Inner<B>) -> Result<()> {
        self.spill_to(inner, self.contents_max())?;
        if self.memory.is_short() {
            self.spill_to(inner, 0)?;
        }
        self.check_memory(inner)
    }

    fn spill_to(&self, inner: &mut Inner<B>, blocks: usize) -> Result<()> {
        inner.overlay.spill(blocks, &mut |place, blocks| {
            self.base.spill(&self.space, place, blocks, SpaceLimits::Enforced)
        })
    }

    /// Frees memory for a copy of the overlay, for a savepoint.
    pub(crate) fn make_room_for_copy(&self, inner: &mut Inner<B>) -> Result<()> {
        self.check_memory(inner)?;
        let with_copy = |inner: &Inner<B>| {
            let contents = inner.overlay.in_memory.len() as u64 * u64::from(self.base.block_size());
            self.bytes(inner, &self.reads.lock()) + inner.overlay.bytes as u64 + contents
        };
        if self.memory.cover(with_copy(inner)).is_err() {
            // Contents that the copy shares stay in memory for it, even if they are replaced.
            self.spill_to(inner, 0)?;
            self.memory.cover(with_copy(inner))?;
        }
        Ok(())
    }
}
