//! Bytes that a program has stored into a mapping behind the end of a file, in its last page. They
//! must not become contents when the file grows, but the kernel keeps them in its cache, and sends
//! them with the page once the file is longer.
//!
//! When a file grows past an end within a page, two things keep these bytes out:
//! - Until the kernel has dropped the page, the daemon takes them for zeros in what the kernel
//!   writes of it.
//! - The kernel drops the page before the caller continues: after a truncation it does so
//!   unasked, and in all other cases because the daemon asks for it before the reply. It then
//!   writes the page as far as the file reached before.
//!
//! The kernel locks the last page for a write into it until the reply, but only if it does not have
//! the page's contents; then nothing is stored in it either. So the page is dropped only if the
//! kernel has read it, and a write whose page was evicted since is answered after [`LOCKED_WAIT`].

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use xact_types::{Ino, Result};

use crate::ioctl::absent_pages::{LOCKED_WAIT, PAGE};
use crate::protocol::abi::{InHeader, WRITE_CACHE, fattr};
use crate::protocol::node::Node;
use crate::protocol::reply::Reply;
use crate::protocol::request::Operation;
use crate::server::request_view::RequestView;
use crate::server::{Outcome, Server};
use crate::transport::channel::Channel;

/// Parts of the set of nodes, so that readers seldom meet at a lock.
const SHARDS: usize = 16;

/// A growth past an end within a page.
pub(crate) struct Growth {
    node: Node,
    /// From the old end to the first new byte, or to the end of the page.
    tail: Range<u64>,
    /// The kernel drops the page unasked.
    by_truncation: bool,
    /// The request writes into this page, which may be locked.
    may_be_locked: bool,
}

#[derive(Default)]
pub(crate) struct Tails {
    /// Nodes whose last page the kernel has read.
    read: [Mutex<HashSet<u64>>; SHARDS],
    /// Bytes that are zeros in what the kernel writes.
    masks: Mutex<HashMap<Node, Range<u64>>>,
    /// The number of masks. Read by every read and write, so without the lock.
    count: AtomicUsize,
}

impl Tails {
    fn shard(&self, id: u64) -> &Mutex<HashSet<u64>> {
        &self.read[id as usize % SHARDS]
    }

    /// The kernel reads `len` bytes; `end`: the file ended within them.
    pub fn note_read(&self, node: Node, offset: u64, len: u64, end: bool) {
        if end {
            self.shard(node.id()).lock().insert(node.id());
        }
        self.unmask(node, offset, len);
    }

    /// The kernel has forgotten a node, and its pages.
    pub fn forget(&self, node: Node) {
        self.shard(node.id()).lock().remove(&node.id());
        self.remove_mask(node);
    }

    fn has_read(&self, node: Node) -> bool {
        self.shard(node.id()).lock().contains(&node.id())
    }

    fn mask(&self, node: Node, tail: Range<u64>) {
        let mut masks = self.masks.lock();
        masks.insert(node, tail);
        self.count.store(masks.len(), Ordering::SeqCst);
    }

    fn remove_mask(&self, node: Node) -> Option<Range<u64>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut masks = self.masks.lock();
        let mask = masks.remove(&node);
        self.count.store(masks.len(), Ordering::SeqCst);
        mask
    }

    /// The kernel gets these bytes, or a program has written them: what it stores from now on is
    /// contents.
    pub fn unmask(&self, node: Node, offset: u64, len: u64) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let meets = |mask: &Range<u64>| offset < mask.end && mask.start < offset.saturating_add(len);
        let is_met = self.masks.lock().get(&node).is_some_and(meets);
        if is_met {
            self.remove_mask(node);
        }
    }

    /// The contents of pages that the kernel writes, with zeros in place of masked bytes.
    pub fn masked<'a>(&self, node: Node, offset: u64, data: &'a [u8]) -> Cow<'a, [u8]> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return data.into();
        }
        let end = offset + data.len() as u64;
        let mask = self.masks.lock().get(&node).cloned();
        match mask.filter(|mask| offset < mask.end && mask.start < end) {
            Some(mask) => {
                self.remove_mask(node);
                let mut data = data.to_vec();
                data[(mask.start.max(offset) - offset) as usize..(mask.end.min(end) - offset) as usize]
                    .fill(0);
                data.into()
            }
            None => data.into(),
        }
    }
}

impl Server {
    /// Called before an operation: whether it makes a file longer whose last page the kernel may
    /// have. The bytes behind the end are masked from now on.
    pub(crate) fn before_growth(
        &self,
        request_view: &RequestView<'_>,
        ino: Ino,
        operation: &Operation<'_>,
    ) -> Result<Option<Growth>> {
        if !matches!(request_view, RequestView::Live { .. } | RequestView::Tx { .. }) {
            return Ok(None);
        }
        // From the old end up to `past` the file will have zeros.
        let (ino, past) = match operation {
            Operation::Write { args, .. } if args.write_flags & WRITE_CACHE == 0 => {
                self.tails.unmask(request_view.node(ino), args.offset, args.size.into());
                if args.flags & libc::O_APPEND as u32 != 0 {
                    return Ok(None);
                }
                (ino, args.offset)
            }
            Operation::Fallocate(args) if args.mode & libc::FALLOC_FL_KEEP_SIZE as u32 == 0 => {
                (ino, args.offset.saturating_add(args.length))
            }
            Operation::CopyFileRange { args, .. } => {
                (self.same_view(request_view, args.nodeid_out)?, args.off_out)
            }
            Operation::SetAttr(args) if args.valid & fattr::SIZE != 0 => (ino, args.size),
            _ => return Ok(None),
        };
        let node = request_view.node(ino);
        if !self.tails.has_read(node) {
            return Ok(None);
        }
        let size = request_view.view().size(ino)?;
        if past <= size || size % PAGE == 0 {
            return Ok(None);
        }
        let page_end = size.next_multiple_of(PAGE);
        let tail = size..past.min(page_end);
        self.tails.mask(node, tail.clone());
        let may_be_locked = matches!(operation, Operation::Write { .. }) && past < page_end;
        let by_truncation = matches!(operation, Operation::SetAttr(_));
        Ok(Some(Growth { node, tail, by_truncation, may_be_locked }))
    }

    /// Replies to a growth when the kernel has dropped the page.
    pub(crate) fn after_growth(
        self: &Arc<Self>,
        growth: Growth,
        done: Result<()>,
        channel: &Arc<Channel>,
        header: &InHeader,
        reply: &mut Reply,
    ) -> Result<Outcome> {
        let Growth { node, tail, by_truncation, may_be_locked } = growth;
        if done.is_err() {
            self.tails.remove_mask(node);
        }
        // The reply to a change of a file that committed views have cached waits for these.
        if done.is_err() || by_truncation || self.transactions.followers.any_cached() {
            return done.map(|()| Outcome::Done);
        }
        let held = self.hold_reply(channel.clone(), reply.finish(header.unique, Ok(())).to_vec(), None);
        if may_be_locked {
            *held.until.lock() = Instant::now() + LOCKED_WAIT;
            self.reaper.wake(self);
        }
        let ours = held.clone();
        let started = self.spawn(move |server| {
            server.forget_range(node, tail.start, tail.end - tail.start);
            server.tails.remove_mask(node);
            server.send_held(&ours);
        });
        if let Err(e) = started {
            crate::log(format_args!("node {:#x} may look outdated: {e}", node.id()));
            self.send_held(&held);
        }
        Ok(Outcome::Later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_bytes_are_zeros_once() {
        let (tails, node) = (Tails::default(), Node::Live(Ino(12)));
        assert_eq!(*tails.masked(node, 0, b"abcd"), *b"abcd");
        tails.mask(node, 2..10);
        assert_eq!(*tails.masked(Node::Live(Ino(13)), 0, b"abcd"), *b"abcd");
        assert_eq!(*tails.masked(node, 10, b"abcd"), *b"abcd");
        assert_eq!(*tails.masked(node, 0, b"abcd"), *b"ab\0\0");
        assert_eq!(*tails.masked(node, 0, b"abcd"), *b"abcd");
        tails.mask(node, 2..10);
        tails.note_read(node, 0, 2, false);
        assert_eq!(*tails.masked(node, 8, b"abcd"), *b"\0\0cd");
        tails.mask(node, 2..10);
        tails.note_read(node, 0, 4096, true);
        assert_eq!(*tails.masked(node, 8, b"abcd"), *b"abcd");
        assert!(tails.has_read(node));
        // Bytes that only touch the mask leave it.
        for (offset, len, is_met) in [(0, 2, false), (10, 5, false), (0, 3, true), (9, 1, true), (4, 2, true)]
        {
            tails.mask(node, 2..10);
            tails.unmask(node, offset, len);
            assert_eq!(tails.count.load(Ordering::SeqCst), usize::from(!is_met), "{offset} {len}");
        }
        tails.mask(node, 2..10);
        tails.unmask(Node::Live(Ino(13)), 0, 100);
        assert_eq!(*tails.masked(node, 0, b"ab"), *b"ab");
        assert_eq!(*tails.masked(node, 0, b"abcdefghijklm"), *b"ab\0\0\0\0\0\0\0\0klm");
        tails.mask(node, 2..10);
        assert_eq!(*tails.masked(node, 4, b"abcd"), *b"\0\0\0\0");
        assert_eq!(tails.remove_mask(node), None);
        tails.mask(node, 2..10);
        assert_eq!(tails.remove_mask(node), Some(2..10));
        // A shard keeps its nodes apart.
        let same_shard = Node::Live(Ino(12 + SHARDS as u32));
        tails.note_read(same_shard, 0, 10, true);
        tails.forget(same_shard);
        assert!(tails.has_read(node) && !tails.has_read(same_shard));
        tails.mask(node, 2..10);
        tails.forget(node);
        assert!(!tails.has_read(node) && tails.count.load(Ordering::SeqCst) == 0);
    }
}
