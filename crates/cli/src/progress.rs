//! Progress of long work on standard error: a bar on a terminal, or JSON lines for a program.
//!
//! A bar appears once the work has taken [`BAR_AFTER`], and only if standard error is a terminal
//! and `-q` was not given. With `--progress=json`, standard error has a line when a step begins,
//! one at most every [`INTERVAL`], and one at the end.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use xact::device::{BlockDevice, CountingDevice};

/// Shorter work shows no bar.
const BAR_AFTER: Duration = Duration::from_millis(700);
/// Between two lines or two states of the bar.
const INTERVAL: Duration = Duration::from_millis(200);
/// Length of a bar for a share from 0 to 1.
const WHOLE: u64 = 1000;

/// The argument of `--progress`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A bar on standard error if it is a terminal, else nothing.
    Auto,
    /// Lines on standard error, each a JSON object with step, done, total, unit and elapsed_s.
    Json,
}

/// The option of commands that may take long.
#[derive(Debug, clap::Args)]
pub struct ProgressOption {
    /// How to report progress.
    ///
    /// In a line of json, unit is "bytes" or "share". With "bytes", done and total are numbers of
    /// bytes; total is null if it is unknown. With "share", done is a share of the work, from 0 to
    /// 1, and total is 1. The last line has "finished": true.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Auto)]
    pub progress: Format,
}

const HIDDEN: u8 = 0;
const BAR: u8 = 1;
const JSON: u8 = 2;
/// The way of this process, set once from the command line.
static WAY: AtomicU8 = AtomicU8::new(HIDDEN);

/// Sets the way for all progress of this process.
pub fn configure(format: Format, quiet: bool) {
    let way = match format {
        Format::Json => JSON,
        Format::Auto if !quiet && std::io::stderr().is_terminal() => BAR,
        Format::Auto => HIDDEN,
    };
    WAY.store(way, Relaxed);
}

/// A line for programs.
#[derive(Debug, Serialize)]
struct Line<'a> {
    step: &'a str,
    done: f64,
    total: Option<f64>,
    unit: &'static str,
    elapsed_s: f64,
    finished: bool,
}

/// The display of one step of the work.
struct Display {
    way: u8,
    start: Instant,
    /// When the last line was printed; `None` before the first.
    printed: Option<Instant>,
    bar: ProgressBar,
}

impl Display {
    fn new(template: &str, length: Option<u64>) -> Display {
        let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template(template).expect("the template is valid");
        bar.set_style(style.progress_chars("## "));
        Display { way: WAY.load(Relaxed), start: Instant::now(), printed: None, bar }
    }

    fn show(&mut self, step: &str, done: f64, total: Option<f64>, unit: &'static str, finished: bool) {
        let elapsed = self.start.elapsed();
        match self.way {
            JSON => {
                if !finished && self.printed.is_some_and(|printed| printed.elapsed() < INTERVAL) {
                    return;
                }
                self.printed = Some(Instant::now());
                let line = Line { step, done, total, unit, elapsed_s: elapsed.as_secs_f64(), finished };
                let line = serde_json::to_string(&line).expect("a line has plain fields") + "\n";
                // The work does not depend on the reader.
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
            BAR if elapsed >= BAR_AFTER && !finished => {
                if self.printed.is_none() {
                    self.printed = Some(Instant::now());
                    self.bar.set_draw_target(ProgressDrawTarget::stderr());
                }
                self.bar.set_message(step.to_owned());
                let whole = if unit == "share" { done * WHOLE as f64 } else { done };
                self.bar.set_position(whole as u64);
                self.bar.tick();
            }
            _ => {}
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress of work whose written bytes are counted; ends when it is dropped.
pub struct Progress {
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Counts the bytes written to `device`; returns the device that counts them.
    pub fn over(device: Arc<dyn BlockDevice>, step: String) -> (Arc<dyn BlockDevice>, Progress) {
        if WAY.load(Relaxed) == HIDDEN {
            return (device, Progress { thread: None });
        }
        let counting = Arc::new(CountingDevice::new(device));
        let counted = counting.clone();
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let mut display = Display::new("{spinner} {msg}: {bytes} written, {elapsed}", None);
            let written = || counted.counts().written_bytes as f64;
            display.show(&step, 0.0, None, "bytes", false);
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                display.show(&step, written(), None, "bytes", false);
            }
            display.show(&step, written(), None, "bytes", true);
        });
        (counting, Progress { thread: Some((stop, thread)) })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // It only prints; a panic in it does not concern the work.
            let _ = thread.join();
        }
    }
}

/// Progress of work in named steps, with the share of each step that is done.
pub struct Steps {
    display: Display,
    /// The current step.
    step: String,
}

impl Steps {
    pub fn new() -> Steps {
        Steps { display: Display::new("{msg:22} [{bar:30}] {elapsed}", Some(WHOLE)), step: String::new() }
    }

    /// `share` of the step is done, from 0 to 1.
    pub fn at(&mut self, step: &str, share: f64) {
        if self.step != step {
            self.step = step.to_owned();
            self.display.printed = self.display.printed.filter(|_| self.display.way != JSON);
        }
        self.display.show(step, share.clamp(0.0, 1.0), Some(1.0), "share", false);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if !self.step.is_empty() {
            self.display.show(&self.step, 1.0, Some(1.0), "share", true);
        }
    }
}
