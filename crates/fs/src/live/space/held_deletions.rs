//! Deleted inodes that were still held when their last name was removed.
//!
//! Nearly always the holder is the kernel, which forgets the inode a moment later (FORGET), and
//! then the inode's space is free. So a caller that finds no space waits for that moment. A file
//! that a program keeps open is waited for like any other, once: until [`WAIT_MAX`] after its
//! deletion.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xact_types::Ino;

/// How long after an inode's deletion a caller waits for its holder. Delays of 15 to 90 ms were
/// measured on two busy CPUs.
const WAIT_MAX: Duration = Duration::from_millis(250);
const WAIT_STEP: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(in crate::live) struct HeldDeletions(Mutex<VecDeque<(Ino, Instant)>>);

impl HeldDeletions {
    /// The last name of an inode with holders was removed.
    pub fn add(&self, ino: Ino) {
        let mut all = self.0.lock();
        while all.front().is_some_and(|(_, since)| since.elapsed() > WAIT_MAX) {
            all.pop_front();
        }
        all.push_back((ino, Instant::now()));
    }

    /// Waits until `is_gone` holds for all inodes that were deleted a moment ago, or the moment is
    /// over. Returns whether any of them went. Inodes that are deleted during the wait do not make
    /// it longer.
    pub fn wait(&self, mut is_gone: impl FnMut(Ino) -> bool) -> bool {
        let begun = Instant::now();
        let mut any = false;
        loop {
            let oldest = self.0.lock().front().copied();
            let Some((ino, since)) = oldest.filter(|(_, since)| *since <= begun) else { return any };
            let gone = is_gone(ino);
            if gone || since.elapsed() > WAIT_MAX {
                any |= gone;
                let mut all = self.0.lock();
                // Another caller may have taken it.
                if all.front() == Some(&(ino, since)) {
                    all.pop_front();
                }
            } else {
                std::thread::sleep(WAIT_STEP);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletions_are_waited_for_and_for_a_moment_only() {
        let held = HeldDeletions::default();
        assert!(!held.wait(|_| panic!("nothing was deleted")));
        held.add(Ino(12));
        held.add(Ino(13));
        assert!(held.wait(|_| true));
        assert!(!held.wait(|_| panic!("both were released")));
        held.add(Ino(14));
        let start = Instant::now();
        assert!(!held.wait(|_| false));
        assert!(start.elapsed() > WAIT_MAX);
        assert!(!held.wait(|_| panic!("it was waited for once")));
        // Others delete during the wait.
        held.add(Ino(15));
        let mut asked = 0;
        assert!(held.wait(|_| {
            asked += 1;
            std::thread::sleep(WAIT_STEP);
            held.add(Ino(16));
            true
        }));
        assert_eq!(asked, 1);
    }
}
