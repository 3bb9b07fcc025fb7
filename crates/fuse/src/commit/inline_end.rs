//! Ends a transaction on the worker that got the call, while a single thread calls (see `tx_end`).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use crate::transport::channel::Channel;
use crate::transport::single_caller::TICK;

/// When the guard had to call a worker for one transaction, this number of further transactions end
/// on threads of their own.
const ENDS_ELSEWHERE: u32 = 1000;

/// The right to end a transaction on the called worker. One worker has it at a time.
#[derive(Default)]
pub struct InlineEnd {
    taken: AtomicBool,
    /// Transactions yet to come that end on other threads.
    elsewhere: AtomicU32,
}

pub struct InlineGuard<'a>(&'a InlineEnd);

impl InlineEnd {
    pub fn take(&self, channel: &Channel) -> Option<InlineGuard<'_>> {
        if !channel.has_single_caller() || self.taken.swap(true, Acquire) {
            return None;
        }
        let taken = InlineGuard(self);
        let left = self.elsewhere.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        left.is_err().then_some(taken)
    }

    /// Notes how long a notification took. One that waited for a request lasted until the guard had
    /// called a worker, plus at most one tick. That is longer than any fast disk takes.
    pub fn note_wait(&self, time: Duration) {
        if self.taken.load(Relaxed) && time >= TICK {
            self.elsewhere.store(ENDS_ELSEWHERE, Relaxed);
        }
    }
}

impl Drop for InlineGuard<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}
