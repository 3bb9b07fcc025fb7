//! Nodes of views that were committed with [`COMMIT_FOLLOW`](xact_control::abi::COMMIT_FOLLOW),
//! which stand for the volume's inodes (see `followers`).
//!
//! In a folder of such a view, a lookup finds files as the volume's own nodes, and folders as nodes
//! of the view. The reason is that the kernel keeps the node of a folder in one place only: it
//! would move the volume's node to the view, away from where other processes use it.
//!
//! A change may make data outdated that the kernel has cached through other nodes. The change is
//! answered when the kernel has forgotten this data. Forgetting waits for locks of pages, so it
//! runs on a separate thread.
//!
//! Two writes to one file through different nodes could wait for each other. Suppose that the
//! kernel has no contents of a page. A write to a part of this page holds it until the write is
//! answered. If both writes hold their node's page, each waits until the other is answered. So the
//! later of two such writes is answered after at most [`CROSSING_MAX`]. That is safe, since a page
//! without contents shows no old data. If the page has contents, the write does not hold it, and
//! forgetting it takes microseconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xact_fs::Attr;
use xact_types::Ino;

use crate::commit::held_reply::HeldReply;
use crate::protocol::abi::{InHeader, fattr};
use crate::protocol::node::{Node, ViewNr};
use crate::protocol::reply::Reply;
use crate::protocol::request::Operation;
use crate::server::Server;
use crate::server::transactions::TxView;
use crate::transport::channel::Channel;

/// How long the reply to a change waits for the kernel to forget outdated data. The first limit is
/// for the later one of two writes that may wait for each other, the second one for all others. The
/// second is a safety net: no case is known that needs it.
const CROSSING_MAX: Duration = Duration::from_millis(5);
const HELD_MAX: Duration = Duration::from_secs(1);

/// Everything that a change makes outdated.
#[derive(Debug, Default, PartialEq)]
struct Outdated {
    contents: Vec<Ino>,
    attributes: Vec<Ino>,
    names: Vec<(Ino, Vec<u8>)>,
}

impl Outdated {
    fn by(ino: Ino, operation: &Operation<'_>) -> Outdated {
        let inode_of = |id: u64| match Node::from_id(id) {
            Some(Node::Live(ino) | Node::View(_, ino)) => Some(ino),
            _ => None,
        };
        let name = |dir: Ino, name: &[u8]| (dir, name.to_vec());
        let mut outdated = Outdated::default();
        match operation {
            Operation::Write { .. } | Operation::Fallocate(_) => outdated.contents.push(ino),
            Operation::SetAttr(args) if args.valid & fattr::SIZE != 0 => outdated.contents.push(ino),
            Operation::CopyFileRange { args, .. } => outdated.contents.extend(inode_of(args.nodeid_out)),
            Operation::SetAttr(_)
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. }
            | Operation::Ioctl { .. } => outdated.attributes.push(ino),
            Operation::Mknod { name: new, .. }
            | Operation::Mkdir { name: new, .. }
            | Operation::Symlink { name: new, .. }
            | Operation::Unlink { name: new }
            | Operation::Rmdir { name: new } => outdated.names.push(name(ino, new)),
            Operation::Link { old_node, name: new } => {
                outdated.names.push(name(ino, new));
                outdated.attributes.extend(inode_of(*old_node));
            }
            Operation::Rename { new_dir, old, new, .. } => {
                outdated.names.push(name(ino, old));
                outdated.names.extend(inode_of(*new_dir).map(|dir| name(dir, new)));
            }
            _ => {}
        }
        // A listing is the contents of a folder.
        outdated.contents.extend(outdated.names.iter().map(|(dir, _)| *dir));
        outdated
    }
}

impl Server {
    /// Called before the commit of a closed view. Holds the inodes that the view's nodes will stand
    /// for, so that none of the numbers belongs to another inode by then. An inode that the view
    /// found on the volume is still the same if its generation is. The number of an inode that was
    /// created in the view is reserved for it.
    pub(crate) fn hold_followed(&self, tx: &TxView) {
        tx.refs.hold_all(|ino, kind, generation| {
            let held = if tx.transaction.will_make(ino) {
                self.volume.hold_reserved(ino);
                true
            } else if self.live.hold(ino).is_ok() {
                let same = |attr: Attr| (attr.kind, attr.generation) == (kind, generation);
                let same = self.live.attr(ino).is_ok_and(same);
                if !same {
                    self.live.release(ino, 1);
                }
                same
            } else {
                false
            };
            if held {
                self.transactions.followers.add_hold(ino);
            }
            held
        });
    }

    /// Called after the commit. The view's nodes stand for the held inodes from now on, or for what
    /// they were if the commit was refused.
    pub(crate) fn follow(&self, tx: &TxView, committed: bool) {
        let is_there = |ino| committed && self.live.attr(ino).is_ok();
        tx.refs.finish_commit(is_there).into_iter().for_each(|ino| self.release_followed(ino, 1));
        if !committed {
            return;
        }
        self.transactions.followers.add(tx.nr, tx.refs.clone());
        self.transactions.freeze(tx);
        // First the kernel drops all unused nodes, then the names of those in use, and the pages
        // and attributes of these.
        self.forget_name(Node::Tx(tx.nr), b"root", false);
        for (dir, name) in tx.refs.names() {
            self.forget_name(Node::View(tx.nr, dir), &name, false);
        }
        for ino in tx.refs.inodes() {
            self.forget_contents(Node::View(tx.nr, ino));
        }
        self.transactions.followers.drop_if_forgotten(tx.nr);
    }

    /// The order matters: see `Followers::has_all_holds`.
    pub(crate) fn release_followed(&self, ino: Ino, holds: u64) {
        self.transactions.followers.remove_holds(ino, holds);
        self.live.release(ino, holds);
    }

    /// The volume's inode that a node stands for.
    pub(crate) fn followed(&self, node: Node) -> Option<(ViewNr, Ino)> {
        let Node::View(nr, ino) = node else { return None };
        self.transactions.followers.get(nr).filter(|view| view.refs.follows(ino)).map(|_| (nr, ino))
    }

    /// Makes the kernel forget what it has of an inode through committed views.
    pub(crate) fn forget_followers(&self, ino: Ino) {
        for nr in self.transactions.followers.take_cached(ino, None) {
            self.forget_contents(Node::View(nr, ino));
        }
    }

    /// Called after a change was made. Sends its reply when no old data can be seen any more.
    /// False: there is nothing to wait for.
    pub(crate) fn reply_when_forgotten(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        header: &InHeader,
        operation: &Operation<'_>,
        reply: &mut Reply,
    ) -> bool {
        let (own, ino) = match Node::from_id(header.nodeid) {
            Some(Node::Live(ino)) if self.transactions.followers.any_cached() => (None, ino),
            Some(node @ Node::View(..)) => match self.followed(node) {
                Some((nr, ino)) => (Some(nr), ino),
                None => return false,
            },
            _ => return false,
        };
        let outdated = Outdated::by(ino, operation);
        if outdated == Outdated::default() {
            return false;
        }
        let mut nodes: Vec<Node> = Vec::new();
        for &ino in outdated.contents.iter().chain(&outdated.attributes) {
            let views = self.transactions.followers.take_cached(ino, own);
            nodes.extend(views.into_iter().map(|nr| Node::View(nr, ino)));
        }
        nodes.extend(outdated.contents.iter().filter(|_| own.is_some()).map(|&ino| Node::Live(ino)));
        if own.is_none() && nodes.is_empty() {
            return false;
        }
        let reply = reply.finish(header.unique, Ok(())).to_vec();
        let written = matches!(operation, Operation::Write { .. }).then_some((ino, own));
        let held = self.hold_reply(channel.clone(), reply, written);
        let ours = held.clone();
        let started = self.spawn(move |server| {
            if ours.crosses {
                *ours.until.lock() = Instant::now() + CROSSING_MAX;
                server.reaper.wake(server);
            }
            if own.is_some() {
                outdated.attributes.iter().for_each(|&ino| server.forget_attributes(Node::Live(ino)));
                let names = outdated.names.iter();
                names.for_each(|(dir, name)| server.forget_name(Node::Live(*dir), name, false));
            }
            nodes.iter().for_each(|&node| server.forget_contents(node));
            server.send_held(&ours);
        });
        if let Err(e) = started {
            crate::log(format_args!("node {:#x} may look outdated: {e}", header.nodeid));
            self.send_held(&held);
        }
        true
    }

    /// Sends a reply that was held, if it was not sent yet.
    pub(crate) fn send_held(&self, held: &Arc<HeldReply>) {
        held.send();
        self.held.lock().retain(|other| !Arc::ptr_eq(other, held));
    }

    pub(crate) fn hold_reply(
        self: &Arc<Self>,
        channel: Arc<Channel>,
        reply: Vec<u8>,
        written: Option<(Ino, Option<ViewNr>)>,
    ) -> Arc<HeldReply> {
        let mut all = self.held.lock();
        let crosses = |other: &Arc<HeldReply>| match (written, other.written) {
            (Some((ino, by)), Some((other_ino, other_by))) => {
                ino == other_ino && by != other_by && !other.sent.load(SeqCst)
            }
            _ => false,
        };
        let (crosses, until) = (all.iter().any(crosses), Mutex::new(Instant::now() + HELD_MAX));
        let held =
            Arc::new(HeldReply { channel, reply, written, crosses, until, sent: AtomicBool::new(false) });
        all.push(held.clone());
        drop(all);
        self.reaper.wake(self);
        held
    }

    /// Answers the changes that have waited for too long; returns when to look again.
    pub(crate) fn answer_late_replies(&self) -> Option<Instant> {
        let held = self.held.lock().clone();
        let now = Instant::now();
        let (late, waits): (Vec<_>, Vec<_>) = held.into_iter().partition(|held| *held.until.lock() <= now);
        late.iter().for_each(|held| held.send());
        waits.iter().map(|held| *held.until.lock()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::abi;

    #[test]
    fn each_operation_lists_what_it_makes_outdated() {
        let dir = Ino(12);
        let made = Outdated::by(dir, &Operation::Unlink { name: b"x" });
        assert_eq!(made.names, [(dir, b"x".to_vec())]);
        assert_eq!(made.contents, [dir]);
        let args = abi::SetattrIn { valid: fattr::SIZE, ..Default::default() };
        assert_eq!(Outdated::by(dir, &Operation::SetAttr(args)).contents, [dir]);
        let args = abi::SetattrIn { valid: fattr::MODE, ..Default::default() };
        assert_eq!(Outdated::by(dir, &Operation::SetAttr(args)).attributes, [dir]);
        let to = Node::View(ViewNr::FIRST, Ino(13)).id();
        let moved = Outdated::by(dir, &Operation::Rename { new_dir: to, flags: 0, old: b"x", new: b"y" });
        assert_eq!(moved.contents, [dir, Ino(13)]);
        assert_eq!(Outdated::by(dir, &Operation::GetAttr), Outdated::default());
    }
}
