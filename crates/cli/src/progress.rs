//! A line on a terminal about work that takes its time: what is going on, how much was written.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use xact_device::{BlockDevice, CountingDevice};

use crate::values::size_text;

/// Work that is done sooner needs no line.
const PATIENCE: Duration = Duration::from_millis(700);
const EVERY: Duration = Duration::from_millis(150);

/// Shows the line until it is dropped. Does nothing where standard error is no terminal.
pub struct Progress {
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Counts what is written to `device`; returns the device to be used instead of it.
    pub fn over(device: Arc<dyn BlockDevice>, doing: String) -> (Arc<dyn BlockDevice>, Progress) {
        if !std::io::stderr().is_terminal() {
            return (device, Progress { thread: None });
        }
        let counting = Arc::new(CountingDevice::new(device));
        let counted = counting.clone();
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            let mut shown = false;
            let mut pause = PATIENCE;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let written = size_text(counted.counts().written_bytes);
                eprint!("\r{doing}: {written} written, {} s\x1b[K", start.elapsed().as_secs());
                let _ = std::io::stderr().flush();
                (shown, pause) = (true, EVERY);
            }
            if shown {
                eprint!("\r\x1b[K");
            }
        });
        (counting, Progress { thread: Some((stop, thread)) })
    }
}

/// A line about work in named steps, with how much of a step is done. Nothing where standard error
/// is no terminal.
pub struct Steps {
    start: Instant,
    /// When the line was written last; `None` before.
    shown: Option<Instant>,
    is_terminal: bool,
}

impl Steps {
    pub fn new() -> Steps {
        Steps { start: Instant::now(), shown: None, is_terminal: std::io::stderr().is_terminal() }
    }

    /// `share` of the step is done, from 0 to 1.
    pub fn at(&mut self, step: &str, share: f64) {
        let due = self.shown.map_or(self.start.elapsed() > PATIENCE, |shown| shown.elapsed() > EVERY);
        if !self.is_terminal || !due {
            return;
        }
        self.shown = Some(Instant::now());
        const WIDTH: usize = 30;
        let done = (share.clamp(0.0, 1.0) * WIDTH as f64) as usize;
        let seconds = self.start.elapsed().as_secs();
        eprint!("\r{step:<22} [{}{}] {seconds} s\x1b[K", "#".repeat(done), " ".repeat(WIDTH - done));
        let _ = std::io::stderr().flush();
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // It only prints; if that panicked, the work itself is not concerned.
            let _ = thread.join();
        }
    }
}
