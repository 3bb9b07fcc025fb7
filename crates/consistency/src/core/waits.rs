//! Waits of handles: for the device, for a lock whose holders may wait for the device, or for long
//! work.
//!
//! A commit is not closed while a handle in it waits (`pipeline`), so that no other thread has to
//! wait for it too. The volume notes its own waits here, and does not know the pipeline.

use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    /// The pipeline in which this thread has handles, and their number. An operation has handles in
    /// one pipeline only.
    static HANDLES: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// A handle begins in a pipeline, in this thread.
pub(crate) fn handle_begins(pipeline: u64) {
    HANDLES.with(|handles| match handles.get() {
        (id, count) if id == pipeline => handles.set((id, count + 1)),
        (_, 0) => handles.set((pipeline, 1)),
        _ => {}
    });
}

/// A handle ends.
pub(crate) fn handle_ends(pipeline: u64) {
    HANDLES.with(|handles| match handles.get() {
        (id, count) if id == pipeline && count > 0 => handles.set((id, count - 1)),
        _ => {}
    });
}

/// Whether this thread has a handle in a pipeline.
pub(crate) fn has_handle(pipeline: u64) -> bool {
    let (id, count) = HANDLES.get();
    id == pipeline && count > 0
}

/// The receiver of notes about waits: the pipeline.
pub(crate) trait WaitRegistry: Send + Sync {
    /// See [`crate::Engine::waits`].
    fn begin_wait(self: Arc<Self>) -> Option<Waiting>;

    fn end_wait(&self, number: u64);
}

/// A handle's wait for the device, or its long work.
pub struct Waiting {
    registry: Arc<dyn WaitRegistry>,
    number: u64,
}

impl Waiting {
    pub(crate) fn new(registry: Arc<dyn WaitRegistry>, number: u64) -> Waiting {
        Waiting { registry, number }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.registry.end_wait(self.number);
    }
}
