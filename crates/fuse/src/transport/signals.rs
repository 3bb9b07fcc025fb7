//! SIGTERM and SIGINT, taken by a thread of their own.

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Blocks SIGTERM and SIGINT in this thread and in all threads that it starts from now on, so that
/// they wait for a [`Watch`]. Called before any other thread is started.
pub fn block() {
    let set = set();
    // SAFETY: a valid set; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

fn set() -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the set that sigaddset then changes.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        set
    }
}

/// A thread that calls a function for each signal, with their number so far (from 1).
pub struct Watch {
    thread: JoinHandle<()>,
    over: Arc<AtomicBool>,
}

impl Watch {
    pub fn start(mut each: impl FnMut(u32) + Send + 'static) -> io::Result<Watch> {
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let thread = thread::Builder::new().name("xact-signals".into()).spawn(move || {
            let set = set();
            let mut count = 0;
            loop {
                let mut signal = 0;
                // SAFETY: valid pointers; the set is blocked in all threads.
                unsafe { libc::sigwait(&set, &mut signal) };
                if seen.load(Ordering::Acquire) {
                    return;
                }
                count += 1;
                each(count);
            }
        })?;
        Ok(Watch { thread, over })
    }

    /// Ends the thread.
    pub fn stop(self) {
        self.over.store(true, Ordering::Release);
        // SAFETY: the thread is not joined yet, so its handle is valid.
        unsafe { libc::pthread_kill(self.thread.as_pthread_t(), libc::SIGTERM) };
        // A panic in it was printed; there is nothing to undo.
        let _ = self.thread.join();
    }
}
