//! Stalls one thread, so that the test decides what other threads do during that time.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use xact_consistency::Engine;
use xact_types::CommitId;

/// Far longer than the work that a test waits for; only a blocked thread reaches it.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// A point that a thread does not pass before [`Stall::release`].
#[derive(Default)]
pub struct Stall {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_released: bool,
    is_reached: bool,
}

impl Stall {
    /// Called by the thread that is to stall.
    pub fn pass(&self) {
        let mut state = self.state.lock();
        state.is_reached = true;
        self.changed.notify_all();
        while !state.is_released {
            self.changed.wait(&mut state);
        }
    }

    /// Waits until the thread is stalled; false if it has ended without reaching the point.
    ///
    /// # Panics
    /// If neither happens.
    pub fn is_stalled(&self, ended: impl Fn() -> bool) -> bool {
        let until = Instant::now() + TIMEOUT;
        let mut state = self.state.lock();
        while !state.is_reached && !ended() {
            assert!(Instant::now() < until, "the thread neither ends nor reaches the stall");
            self.changed.wait_for(&mut state, Duration::from_micros(200));
        }
        state.is_reached
    }

    pub fn release(&self) {
        self.state.lock().is_released = true;
        self.changed.notify_all();
    }
}

/// Waits until that commit is closed and another one is open.
///
/// # Errors
/// It stays open.
pub fn await_closing(engine: &Engine, commit: CommitId) -> Result<(), String> {
    let until = Instant::now() + TIMEOUT;
    while engine.running() == commit {
        if Instant::now() > until {
            return Err("the commit is not closed while an operation is in it".into());
        }
        std::thread::yield_now();
    }
    Ok(())
}
