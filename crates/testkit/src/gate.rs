//! Holds one thread back, so that what others do meanwhile is chosen and not a matter of luck.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use xact_consistency::Engine;
use xact_types::CommitId;

/// Far longer than the work takes that a test waits for; only who is held up reaches it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A place that a thread does not get past before [`Gate::open`].
#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_open: bool,
    holds_back: bool,
}

impl Gate {
    /// To be called by the thread that is to be held back.
    pub fn pass(&self) {
        let mut state = self.state.lock();
        state.holds_back = true;
        self.changed.notify_all();
        while !state.is_open {
            self.changed.wait(&mut state);
        }
    }

    /// Waits until the thread is held back; false where it has ended without coming by.
    ///
    /// # Panics
    /// Where it does neither.
    pub fn is_held_back(&self, ended: impl Fn() -> bool) -> bool {
        let until = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while !state.holds_back && !ended() {
            assert!(Instant::now() < until, "the thread neither ends nor comes to the gate");
            self.changed.wait_for(&mut state, Duration::from_micros(200));
        }
        state.holds_back
    }

    pub fn open(&self) {
        self.state.lock().is_open = true;
        self.changed.notify_all();
    }
}

/// Waits until that commit is closed and another one is open.
///
/// # Errors
/// It stays open.
pub fn await_closing(engine: &Engine, commit: CommitId) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    while engine.running() == commit {
        if Instant::now() > until {
            return Err("the commit is not closed while an operation is in it".into());
        }
        std::thread::yield_now();
    }
    Ok(())
}
