//! Numbers, times and the one public error type. Every layer may use this crate; it uses none.

mod access_check;
mod error;
mod inode_paths;
mod latency;
mod limits;
mod number;
mod printable;
pub mod selection;
pub mod settings;
mod steps;
mod time;
pub mod units;

pub use access_check::AccessCheck;
pub use error::{Corruption, Errno, Error, Result, Site, conflicting_tx_text};
pub use inode_paths::{
    Above, InodePaths, SHOWN_PATH_MAX, ShownPath, name_by_number, path_by_number, path_in,
};
pub use latency::{LATENCY_BUCKETS, Latencies, LatencySnapshot, LatencySummary};
pub use limits::{SNAPSHOT_NAME_MAX, SNAPSHOT_PATHS_MAX};
pub use number::{BlockNr, CommitId, FileBlock, GroupNr, Ino, Run};
pub use printable::{printable, printable_bytes, printable_lines};
pub use steps::Steps;
#[cfg(feature = "simulated-clock")]
pub use time::SimulatedClock;
pub use time::{Timestamp, unix_seconds};
