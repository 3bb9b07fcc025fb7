//! The steps of a run, and which of them are durable at a time.

use std::collections::BTreeMap;

use super::contents::BlockUse;
use crate::recording::Time;

pub(super) struct Step {
    pub began: Time,
    pub changes: Vec<(u64, BlockUse)>,
}

/// The steps, and their acknowledgements.
#[derive(Default)]
pub struct BlockHistory {
    pub(super) steps: Vec<Step>,
    /// The times at which numbers of steps were acknowledged as durable.
    pub(super) acknowledged: Vec<(Time, usize)>,
}

impl BlockHistory {
    pub(super) fn begun(&self, time: Time) -> usize {
        self.steps.partition_point(|s| s.began < time)
    }

    pub(super) fn promised(&self, time: Time) -> usize {
        self.acknowledged.iter().take_while(|(t, _)| *t < time).map(|(_, n)| *n).max().unwrap_or(0)
    }

    pub(super) fn after(&self, k: usize) -> BTreeMap<u64, BlockUse> {
        self.steps[..k].iter().flat_map(|s| s.changes.iter().copied()).collect()
    }
}
