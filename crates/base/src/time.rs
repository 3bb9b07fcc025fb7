//! Points in time with the range and the resolution of ext4's 256-byte inodes.

use rustix::time::{ClockId, clock_gettime};

/// Seconds and nanoseconds since 1970-01-01 UTC; `nanos` is below 1,000,000,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    pub secs: i64,
    pub nanos: u32,
}

impl Timestamp {
    /// The clock that ext4 in the kernel stamps with, and that `time(2)` reads: the system's, as of
    /// its last tick (some milliseconds ago at most). The exact clock is ahead of it, so that
    /// e2fsck, started at once after a second begins, would find what is stamped with it in the
    /// future.
    pub fn now() -> Timestamp {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Timestamp { secs: now.tv_sec, nanos: now.tv_nsec as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_never_ahead_of_what_other_programs_read() {
        for _ in 0..1000 {
            let ours = Timestamp::now();
            let theirs = clock_gettime(ClockId::RealtimeCoarse);
            assert!((ours.secs, i64::from(ours.nanos)) <= (theirs.tv_sec, theirs.tv_nsec));
        }
    }
}
