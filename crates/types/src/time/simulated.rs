//! A clock that advances with each reading, so that the same work writes the same times: the crash
//! explorer compares devices byte by byte. Each thread has its own, and threads without one have
//! the system's.

use std::cell::Cell;
use std::marker::PhantomData;

use super::Timestamp;

thread_local! {
    /// Nanoseconds since 1970 at the last reading.
    static LAST: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The step of each reading: more than the 4 ns that an inode can distinguish, and small enough
/// that a few hundred readings take a second.
const STEP_NANOS: u64 = 3_000_000;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// The clock of this thread, as long as the value lives.
pub struct SimulatedClock {
    before: Option<u64>,
    /// It belongs to the thread that made it.
    _here: PhantomData<*const ()>,
}

impl SimulatedClock {
    /// Starts at this number of seconds since 1970.
    pub fn start(unix_seconds: u32) -> SimulatedClock {
        let before = LAST.replace(Some(u64::from(unix_seconds) * NANOS_PER_SEC));
        SimulatedClock { before, _here: PhantomData }
    }
}

impl Drop for SimulatedClock {
    fn drop(&mut self) {
        LAST.set(self.before);
    }
}

/// The next moment of this thread's clock, if it has one.
pub(super) fn read() -> Option<Timestamp> {
    let nanos = LAST.get()? + STEP_NANOS;
    LAST.set(Some(nanos));
    Some(Timestamp { secs: (nanos / NANOS_PER_SEC) as i64, nanos: (nanos % NANOS_PER_SEC) as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_repeats_itself_and_ends() {
        const BEGIN: u32 = 1_000_000_000;
        let run = || {
            let _clock = SimulatedClock::start(BEGIN);
            [Timestamp::now(), Timestamp::now()]
        };
        let [first, second] = run();
        assert!(first < second && first.secs == i64::from(BEGIN));
        assert_eq!(run(), [first, second]);
        assert!(Timestamp::now().secs > i64::from(BEGIN) + 1000);
    }
}
