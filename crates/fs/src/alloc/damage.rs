//! The corruption that the allocator has met.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use parking_lot::Mutex;
use xact_types::{Corruption, Error};

/// The damage found so far. A corrupt bitmap is reported once: its group is not used afterwards.
#[derive(Default)]
pub(super) struct Damage {
    first: Mutex<Option<Error>>,
    unrecorded: Mutex<Vec<Corruption>>,
    /// Whether `unrecorded` has anything, for a look without the lock.
    is_unrecorded: AtomicBool,
}

impl Damage {
    /// A group cannot be used.
    pub fn add_group(&self, corruption: &Corruption) {
        self.first.lock().get_or_insert_with(|| Error::Corrupt(*corruption));
        self.add(corruption);
    }

    pub fn add(&self, corruption: &Corruption) {
        self.unrecorded.lock().push(*corruption);
        self.is_unrecorded.store(true, SeqCst);
    }

    /// The first corruption that made a group unusable: the reason why a volume with free space
    /// seems to be full.
    pub fn first(&self) -> Option<Error> {
        self.first.lock().clone()
    }

    /// Returns the damage found since the last call.
    pub fn take_unrecorded(&self) -> Vec<Corruption> {
        if !self.is_unrecorded.swap(false, SeqCst) {
            return Vec::new();
        }
        std::mem::take(&mut self.unrecorded.lock())
    }
}
