//! Pages of files that the kernel's page cache is known not to have.
//!
//! The kernel keeps the lock of a page until a write into a part of it is answered, if the page's
//! contents are not in its cache, and does not take them for valid afterwards. Otherwise it has
//! changed the page before the request, without a lock. Only then the daemon must make it forget
//! the page before the answer, and only then it can: in the first case that would wait for the
//! lock.
//!
//! A page is added before it is forgotten. A page's contents get into the cache by a READ, or by a
//! write of the whole page, and the daemon sees both: each removes the page here before it is
//! answered. A READ that was answered before the page was added holds the page's lock, so the page
//! is forgotten after it.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use xact_types::Ino;

/// Bytes of a page of the kernel's cache.
pub const PAGE: u64 = 4096;
/// How long a write waits until the kernel has forgotten a page that the write itself may have
/// locked.
pub const LOCKED_WAIT: Duration = Duration::from_millis(20);
/// Limit of all pages; beyond it, all of them count as unknown.
const PAGES_MAX: usize = 1 << 16;

#[derive(Default)]
pub struct AbsentPages {
    pages: Mutex<HashMap<Ino, BTreeSet<u64>>>,
    /// Read by every read and write, so without the lock.
    any: AtomicBool,
}

/// The pages that a range of bytes concerns.
fn pages_of(offset: u64, len: u64) -> RangeInclusive<u64> {
    offset / PAGE..=offset.saturating_add(len.max(1) - 1) / PAGE
}

impl AbsentPages {
    /// The pages of this range are about to be forgotten.
    pub fn add(&self, ino: Ino, offset: u64, len: u64) {
        let mut pages = self.pages.lock();
        self.any.store(true, Ordering::Release);
        if pages.values().map(BTreeSet::len).sum::<usize>() > PAGES_MAX {
            pages.clear();
        }
        pages.entry(ino).or_default().extend(pages_of(offset, len));
    }

    /// The kernel may have contents of these pages from now on.
    pub fn remove(&self, ino: Ino, offset: u64, len: u64) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut all = self.pages.lock();
        if let Some(pages) = all.get_mut(&ino) {
            pages_of(offset, len).for_each(|page| _ = pages.remove(&page));
            if pages.is_empty() {
                all.remove(&ino);
                self.any.store(!all.is_empty(), Ordering::Release);
            }
        }
    }

    pub fn has(&self, ino: Ino, page: u64) -> bool {
        self.pages.lock().get(&ino).is_some_and(|pages| pages.contains(&page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_leave_when_they_may_be_cached() {
        let absent = AbsentPages::default();
        absent.add(Ino(12), 4000, 200);
        assert!(absent.has(Ino(12), 0) && absent.has(Ino(12), 1) && !absent.has(Ino(13), 0));
        absent.remove(Ino(12), 0, 1);
        assert!(!absent.has(Ino(12), 0) && absent.has(Ino(12), 1));
        absent.remove(Ino(12), 4096, 0);
        assert!(!absent.has(Ino(12), 1));
    }

    #[test]
    fn their_number_is_limited() {
        let absent = AbsentPages::default();
        for ino in 0..40 {
            absent.add(Ino(100 + ino), 0, 4096 * PAGE);
        }
        assert!(absent.pages.lock().values().map(BTreeSet::len).sum::<usize>() <= PAGES_MAX + 4096);
    }
}
