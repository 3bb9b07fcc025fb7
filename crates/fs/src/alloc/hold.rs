//! Holds: what keeps freed blocks from being used again while somebody still reads them.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Run, Shared};

/// Keeps the blocks that were freed under it from being handed out again until its last clone is
/// dropped. A view of a transaction keeps a clone while it may still read old blocks.
#[derive(Clone, Default)]
pub struct Hold {
    held: Arc<Held>,
}

#[derive(Default)]
struct Held {
    /// Freed, and the free is durable.
    runs: Mutex<Vec<(Arc<Shared>, Run)>>,
}

impl Hold {
    pub fn new() -> Hold {
        Hold::default()
    }

    /// Takes over a run whose free is durable.
    pub(super) fn keep(self, shared: Arc<Shared>, run: Run) {
        self.held.runs.lock().push((shared, run));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (shared, run) in self.runs.get_mut().drain(..) {
            shared.release(run);
        }
    }
}
