//! The states and devices that earlier runs have explored, so that later runs can skip them.
//!
//! Sequences of operations with a common beginning, on devices with clocks that repeat, leave the
//! same devices under the same promises until they differ, and often the same devices afterwards.
//! Two things follow:
//!
//! 1. A state that was examined is not examined again. Whether a tree is legal depends on its
//!    moment ([`super::Subject::moment`]), and the tree depends on the device and the settings.
//! 2. A device that was recovered is not recovered again for another moment: recovery sees only the
//!    device, the settings and a clock that starts from the same time, so the tree is the same.
//!
//! Samples (e2fsck, the kernel, crashes of the recovery) are chosen again at each moment and in
//! each run, so that a common device is as likely to be in one as if each run were alone; then all
//! checks are done again.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

/// The runs so far, of subjects that differ only in their operations.
pub struct ExploredStates<Tree> {
    /// By the digest of the device and the moment: the number of runs that had it.
    states: Mutex<HashMap<(u128, u64), u64>>,
    /// The trees of devices, by their digests. `None` for a single run, which may be long and have
    /// large devices.
    trees: Option<Mutex<HashMap<u128, Tree>>>,
    /// Digests of closed devices that were inspected.
    inspected: Mutex<HashSet<u128>>,
}

impl<Tree: Clone> ExploredStates<Tree> {
    /// For one run.
    pub(super) fn of_one() -> ExploredStates<Tree> {
        ExploredStates { states: Mutex::default(), trees: None, inspected: Mutex::default() }
    }

    /// For several short ones.
    pub fn of_many() -> ExploredStates<Tree> {
        ExploredStates { trees: Some(Mutex::default()), ..ExploredStates::of_one() }
    }

    /// The number of earlier runs that had this state.
    pub(super) fn meet(&self, device: u128, moment: u64) -> u64 {
        let mut states = self.states.lock();
        let runs = states.entry((device, moment)).or_default();
        *runs += 1;
        *runs - 1
    }

    /// The tree of a device after its recovery, if it is known.
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
