//! Holds keep freed blocks from being reused while views still read them.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{AllocatorCore, Run};

/// Keeps the blocks that were freed under it from being taken again until its last clone is
/// dropped. A view of a transaction keeps a clone while it may still read old blocks.
#[derive(Clone, Default)]
pub struct Hold {
    held: Arc<HeldRuns>,
}

#[derive(Default)]
struct HeldRuns {
    /// Runs whose free is durable.
    runs: Mutex<Vec<(Arc<AllocatorCore>, Run)>>,
}

impl Hold {
    pub fn new() -> Hold {
        Hold::default()
    }

    /// Adds a run whose free is durable.
    pub(super) fn keep(self, shared: Arc<AllocatorCore>, run: Run) {
        self.held.runs.lock().push((shared, run));
    }
}

impl Drop for HeldRuns {
    fn drop(&mut self) {
        for (shared, run) in self.runs.get_mut().drain(..) {
            shared.release(run);
        }
    }
}
