//! Finds the writes of which the kernel sends only a part, so that the parts become durable
//! together (DIU-1, [`WriteHow::is_part`](xact_fs::WriteHow)).
//!
//! `fuse_fill_write_pages` of Linux ends a request in two cases before the write ends: after the
//! first page, if the write begins within a page whose contents the kernel does not have; and at
//! the longest request. (A third is rare and left out: the program's buffer leaves memory while it
//! is copied.) No request says whether another follows. But a thread waits for each of its
//! requests, and the kernel holds the inode's lock from the first to the last. So the write has
//! ended when its thread sends anything else than the next part, and when another thread changes or
//! syncs the file. Reads prove nothing: the kernel reads the program's buffer from a mapped file in
//! the midst of a write. A thread that sends nothing is found by time, in the file system.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xact_types::Ino;

use crate::ioctl::absent_pages::PAGE;
use crate::protocol::abi::{InHeader, WRITE_CACHE, WriteIn};
use crate::protocol::init::MAX_IO;
use crate::protocol::node::Node;
use crate::protocol::request::Operation;

/// Longer writes become durable in pieces of about this size, so that they do not fill the memory.
const WHOLE_MAX: u64 = 2 << 20;

/// Longer than the file system waits for the next part.
const AWAITED_MAX: Duration = Duration::from_secs(1);

/// The writes that may continue with the next request of their thread.
#[derive(Default)]
pub(crate) struct WriteParts {
    /// Entries of `threads`. Every request reads it, so it has no lock.
    count: AtomicUsize,
    /// By the kernel's number of the thread.
    threads: Mutex<HashMap<u32, Parts>>,
}

struct Parts {
    ino: Ino,
    /// The offset at which the next part begins, as the kernel counts.
    next: u64,
    bytes: u64,
    since: Instant,
}

impl Parts {
    /// Whether the file system still waits for more. The thread may have ended.
    fn is_awaited(&self) -> bool {
        self.since.elapsed() < AWAITED_MAX
    }
}

impl WriteParts {
    /// Notes a write to a file outside all transactions; returns whether more of it may follow.
    pub fn note_write(&self, header: &InHeader, ino: Ino, args: &WriteIn, len: usize) -> bool {
        let end = args.offset + len as u64;
        let at_first_page = !args.offset.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
        let is_longest = len > MAX_IO - PAGE as usize;
        let may_continue = args.write_flags & WRITE_CACHE == 0 && (at_first_page || is_longest);
        if !may_continue && self.count.load(SeqCst) == 0 {
            return false;
        }
        let mut threads = self.threads.lock();
        let before = threads.get(&header.pid).filter(|parts| parts.ino == ino && parts.next == args.offset);
        let bytes = before.map_or(0, |parts| parts.bytes) + len as u64;
        // The inode's lock is with this thread now, so an earlier write of another has ended.
        threads.retain(|_, parts| parts.ino != ino && parts.is_awaited());
        // Threads outside the mount's PID namespace have no number.
        let is_part = may_continue && bytes <= WHOLE_MAX && header.pid != 0;
        if is_part {
            threads.insert(header.pid, Parts { ino, next: end, bytes, since: Instant::now() });
        }
        self.count.store(threads.len(), SeqCst);
        is_part
    }

    /// A file of which this request shows that a write has ended; to be called until there is none.
    pub fn ended_by(&self, header: &InHeader, operation: &Operation<'_>) -> Option<Ino> {
        if self.count.load(SeqCst) == 0 || matches!(operation, Operation::Read(_)) {
            return None;
        }
        let file = Node::from_id(header.nodeid);
        let is_of = |parts: &Parts| file == Some(Node::Live(parts.ino));
        let is_next = |parts: &Parts| {
            is_of(parts) && matches!(operation, Operation::Write { args, .. } if args.offset == parts.next)
        };
        // Also sent with the inode's lock held; for a write, `note_write` does the same.
        let locks =
            matches!(operation, Operation::Fsync { .. } | Operation::SetAttr(_) | Operation::Fallocate(_));
        let mut threads = self.threads.lock();
        threads.retain(|_, parts| parts.is_awaited());
        self.count.store(threads.len(), SeqCst);
        let ended = threads.iter().find(|(thread, parts)| match **thread == header.pid {
            true => !is_next(parts),
            false => locks && is_of(parts),
        });
        let thread = *ended?.0;
        let parts = threads.remove(&thread)?;
        self.count.store(threads.len(), SeqCst);
        Some(parts.ino)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    const KIB: u64 = 1024;
    const FILE: Ino = Ino(12);
    const OTHER: Ino = Ino(13);

    fn header(thread: u32, ino: Ino) -> InHeader {
        InHeader { pid: thread, nodeid: Node::Live(ino).id(), ..InHeader::new_zeroed() }
    }

    fn write(parts: &WriteParts, thread: u32, offset: u64, len: u64) -> bool {
        let args = WriteIn { offset, ..WriteIn::new_zeroed() };
        let operation = Operation::Write { args, data: &[] };
        assert_eq!(parts.ended_by(&header(thread, FILE), &operation), None);
        parts.note_write(&header(thread, FILE), FILE, &args, len as usize)
    }

    #[test]
    fn the_parts_of_one_write() {
        let parts = WriteParts::default();
        assert!(write(&parts, 1, 14 * KIB, 2 * KIB));
        assert!(!write(&parts, 1, 16 * KIB, 4 * KIB));
        assert!(!write(&parts, 1, 20 * KIB, KIB), "within a page");
        assert!(!write(&parts, 1, 0, 64 * KIB), "whole pages");
        let first = MAX_IO as u64 - KIB;
        assert!(write(&parts, 1, KIB, first), "as long as a request can be");
        assert!(!write(&parts, 1, KIB + first, KIB));
        assert!(write(&parts, 1, 0, MAX_IO as u64));
        assert!(write(&parts, 1, MAX_IO as u64, MAX_IO as u64));
        assert!(!write(&parts, 1, 2 * MAX_IO as u64, MAX_IO as u64), "too long to be kept whole");
        assert!(!write(&parts, 0, 14 * KIB, 2 * KIB), "a thread without a number");
        let mapped = WriteIn { offset: KIB, write_flags: WRITE_CACHE, ..WriteIn::new_zeroed() };
        assert!(!parts.note_write(&header(1, FILE), FILE, &mapped, 3 * KIB as usize));
    }

    #[test]
    fn the_end_of_a_write() {
        let parts = WriteParts::default();
        let begin = || assert!(write(&parts, 1, 14 * KIB, 2 * KIB));
        let ended = |thread, ino, operation: Operation<'_>| parts.ended_by(&header(thread, ino), &operation);
        begin();
        assert_eq!(ended(1, FILE, Operation::Read(FromZeros::new_zeroed())), None);
        assert_eq!(ended(2, FILE, Operation::GetAttr), None);
        assert_eq!(ended(2, OTHER, Operation::Fsync { data_only: false }), None);
        assert_eq!(ended(1, OTHER, Operation::GetAttr), Some(FILE));
        assert_eq!(ended(1, OTHER, Operation::GetAttr), None);
        begin();
        assert_eq!(ended(2, FILE, Operation::Fsync { data_only: false }), Some(FILE));
        begin();
        let elsewhere = WriteIn { offset: 0, ..WriteIn::new_zeroed() };
        assert_eq!(ended(1, FILE, Operation::Write { args: elsewhere, data: &[] }), Some(FILE));
        // Another thread's write: the first thread's next request says nothing about it.
        begin();
        assert!(write(&parts, 2, 18 * KIB, 2 * KIB));
        assert_eq!(ended(1, OTHER, Operation::GetAttr), None);
        assert_eq!(ended(2, OTHER, Operation::GetAttr), Some(FILE));
    }
}
