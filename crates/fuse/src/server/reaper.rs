//! The thread that aborts transactions which were left open when their time has run out. It is
//! started for the first one with a time limit, and sleeps until the next deadline.

use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Something with deadlines.
pub trait Deadlines: Send + Sync + 'static {
    /// Does everything that is due, and returns when to look again.
    fn due(self: &Arc<Self>) -> Option<Instant>;
    fn reaper(&self) -> &Reaper;
}

#[derive(Default)]
pub struct Reaper {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// There is a new deadline to look at.
    woken: bool,
    stopped: bool,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    /// Call it when there may be a new deadline.
    pub fn wake<T: Deadlines>(&self, of: &Arc<T>) {
        let mut state = self.state.lock();
        state.woken = true;
        self.changed.notify_all();
        if state.thread.is_none() && !state.stopped {
            let of = Arc::downgrade(of);
            match thread::Builder::new().name("xact-reaper".into()).spawn(move || run(&of)) {
                Ok(thread) => state.thread = Some(thread),
                Err(e) => crate::log(format_args!("transactions left open will not time out: {e}")),
            }
        }
    }

    /// Returns when the thread has ended; it is not started again.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.changed.notify_all();
        let thread = state.thread.take();
        drop(state);
        if let Some(thread) = thread {
            // A panic in it was printed.
            let _ = thread.join();
        }
    }
}

fn run<T: Deadlines>(of: &Weak<T>) {
    while let Some(of) = of.upgrade() {
        let next = of.due();
        let reaper = of.reaper();
        let mut state = reaper.state.lock();
        while !state.woken && !state.stopped {
            match next {
                Some(next) if reaper.changed.wait_until(&mut state, next).timed_out() => break,
                Some(_) => {}
                None => reaper.changed.wait(&mut state),
            }
        }
        state.woken = false;
        if state.stopped {
            return;
        }
    }
}
