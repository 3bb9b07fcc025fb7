//! What runs that have something in common leave each other to do.
//!
//! Sequences of operations that begin alike, on devices with clocks that repeat, leave the same devices under
//! the same promises until they part, and often the same devices after it. Two things follow:
//!
//! 1. A state that was examined is not examined again. Whether a tree may be there depends on its moment
//!    ([`super::Subject::moment`]), and which tree is there on the device and the settings.
//! 2. A device that was recovered is not recovered again to be judged at another moment: recovery sees nothing but
//!    the device, the settings and a clock that begins anew, so the tree is the same.
//!
//! Samples (e2fsck, the kernel, crashes of the recovery) are drawn anew at each moment and in each run, so that a
//! device that many have in common is as likely to be in one as if each run were alone; then all is done again.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

/// The runs so far, of subjects that differ in nothing but what they do.
pub struct Known<Tree> {
    /// By the digest of the device and the moment: how many runs have had it.
    states: Mutex<HashMap<(u128, u64), u64>>,
    /// What is on devices, by their digests. `None` where there is but one run, which may be a long one with much
    /// on its devices.
    trees: Option<Mutex<HashMap<u128, Tree>>>,
    /// Digests of closed devices that were inspected.
    inspected: Mutex<HashSet<u128>>,
}

impl<Tree: Clone> Known<Tree> {
    /// For one run.
    pub(super) fn of_one() -> Known<Tree> {
        Known { states: Mutex::default(), trees: None, inspected: Mutex::default() }
    }

    /// For several short ones.
    pub fn of_many() -> Known<Tree> {
        Known { trees: Some(Mutex::default()), ..Known::of_one() }
    }

    /// How many runs before this one have had this state.
    pub(super) fn meet(&self, device: u128, moment: u64) -> u64 {
        let mut states = self.states.lock();
        let runs = states.entry((device, moment)).or_default();
        *runs += 1;
        *runs - 1
    }

    /// What is on a device after its recovery, if that is known.
    pub(super) fn tree(&self, device: u128) -> Option<Tree> {
        self.trees.as_ref()?.lock().get(&device).cloned()
    }

    pub(super) fn remember(&self, device: u128, tree: &Tree) {
        if let Some(trees) = &self.trees {
            trees.lock().insert(device, tree.clone());
        }
    }

    /// Whether a closed device is inspected for the first time.
    pub(super) fn is_first_inspection(&self, device: u128) -> bool {
        self.inspected.lock().insert(device)
    }
}
