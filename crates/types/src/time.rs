//! Points in time with the range and the resolution of ext4's 256-byte inodes.

#[cfg(feature = "simulated-clock")]
mod simulated;

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

#[cfg(feature = "simulated-clock")]
pub use simulated::SimulatedClock;

/// Seconds and nanoseconds since 1970-01-01 UTC; `nanos` is below 1,000,000,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970; negative before that.
    pub secs: i64,
    /// Nanoseconds of the second, below 1,000,000,000.
    pub nanos: u32,
}

impl Timestamp {
    /// The system's exact clock, which gives the times of files.
    pub fn now() -> Timestamp {
        #[cfg(feature = "simulated-clock")]
        if let Some(now) = simulated::read() {
            return now;
        }
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(d) => Timestamp { secs: d.as_secs() as i64, nanos: d.subsec_nanos() },
            Err(before) => Timestamp { secs: -(before.duration().as_secs() as i64), nanos: 0 },
        }
    }
}

/// Seconds since 1970-01-01 UTC as `time(2)` returns them and ext4 writes them to its superblock:
/// those of the clock's last tick. The exact clock is some milliseconds later. With its time in the
/// superblock, an e2fsck that starts just after a second begins would find a time in the future.
pub fn unix_seconds() -> i64 {
    #[cfg(feature = "simulated-clock")]
    if let Some(now) = simulated::read() {
        return now.secs;
    }
    clock_gettime(ClockId::RealtimeCoarse).tv_sec
}
