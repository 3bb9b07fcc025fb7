//! The end of a transaction: commit, abort, and what the kernel has to forget with it.
//!
//! Notifications wait for requests (a page's READ, a mapping's WRITE) and for locks that are held
//! while other requests are being answered. If all workers waited in notifications, no worker could
//! answer. So all of this runs on separate threads, one for each transaction that ends (see
//! `jobs`).
//!
//! There is one exception: a single thread that calls (see `single_caller`). A separate thread
//! would cost a fifth of the time of a small commit, and wake the caller on another CPU. So the
//! worker that got the call ends the transaction itself, if no other worker is doing so
//! ([`InlineEnd`](crate::commit::inline_end::InlineEnd)). Requests that it waits for are answered
//! by another worker, which the pool's guard calls after a tick or two. A program that writes
//! through mappings would wait like this at each commit. So after one such wait, transactions end
//! on separate threads for a while.
//!
//! A commit takes these steps:
//! 1. The kernel writes back mappings. Stores into mappings of the view's files go into the view.
//!    Stores into mappings of the same files outside of the view go into the volume, and count as
//!    writes in the validation that follows.
//! 2. The view is closed: operations that run in it end, later ones get `ESTALE`. (If the commit is
//!    refused and the transaction retained, the view is opened again.)
//! 3. The transaction validates and applies, behind a fence (see `publish`): all of it becomes
//!    visible at once.
//! 4. The volume makes it durable. The kernel forgets what it knew of the view.
//! 5. The caller is answered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use xact::{CommitObserver, Durability, SharedTransaction};
use xact_control::abi::{
    COMMIT_CONSOLIDATE, COMMIT_FOLLOW, COMMIT_ONLY, COMMIT_ORDERED, COMMIT_RETAIN, Commit, ERRMSG_MAX,
    PATH_MAX, Reason, TxStatus,
};
use xact_types::{Errno, Error, Ino, Result};
use zerocopy::FromZeros;

use crate::commit::publish::Publisher;
use crate::ioctl::answer::answer_by;
use crate::protocol::abi::InHeader;
use crate::protocol::node::Node;
use crate::server::Server;
use crate::server::jobs::Kind;
use crate::server::transactions::TxView;
use crate::transport::channel::Channel;
use crate::transport::channel::SendReply;

/// How a transaction is committed.
struct CommitHow {
    durability: Durability,
    /// If the commit is refused, the transaction stays open as it was.
    retain: bool,
    /// Only the changes at and below these paths; the transaction stays open with the rest.
    only: Option<Vec<Vec<u8>>>,
}

impl CommitHow {
    /// Returns when the commit is as durable as `self` says. If it fails before the volume shows
    /// the changes, no changes were applied: the transaction is aborted, or stays open if it was to
    /// be retained or committed in part. A commit in part may return a conflict of the other
    /// changes.
    fn commit(
        &self,
        transaction: &SharedTransaction,
        observer: &mut dyn CommitObserver,
    ) -> Result<Option<Error>> {
        match &self.only {
            Some(paths) => transaction.commit_only(paths, self.durability, observer),
            None if self.retain => transaction.try_commit(self.durability, observer).map(|()| None),
            None => transaction.commit_with_observer(self.durability, observer).map(|()| None),
        }
    }
}

impl Server {
    /// Called when the connection is closed: waits for running jobs, aborts open transactions.
    pub fn shut_down(&self) {
        self.jobs.wait();
        self.watchers.stop();
        self.reaper.stop();
        self.abort_sections();
        self.transactions.drop_batches();
        for tx in self.transactions.all() {
            let id = tx.id();
            self.transactions.freeze(&tx);
            if let Some(kept) = self.transactions.left_open(id) {
                let label = String::from_utf8_lossy(&kept.label).into_owned();
                let persistent = kept.persistent.is_some();
                let becomes = if persistent { "stays open on the volume" } else { "is aborted" };
                crate::log_tx(
                    id,
                    format_args!("transaction {id} ({label}) was open and {becomes}: the mount ends"),
                );
                // A command that was still running has left no state that a user could decide over.
                if persistent
                    && !kept.is_attached()
                    && let Err(e) = tx.transaction.update_persisted()
                {
                    crate::warn_tx(id, format_args!("transaction {id} stays as it was last persisted: {e}"));
                }
            }
            tx.transaction.abort();
        }
    }

    /// Makes the kernel forget an inode, soon.
    pub(crate) fn forget_later(self: &Arc<Self>, node: Node) {
        let forgotten = self.spawn(move |server| server.forget_contents(node));
        if let Err(e) = forgotten {
            crate::log(format_args!("node {:#x} may look outdated: {e}", node.id()));
        }
    }

    pub(crate) fn commit_later(
        self: &Arc<Self>,
        number: u32,
        channel: &Arc<Channel>,
        header: &InHeader,
        flags: u32,
    ) -> Result<()> {
        let selection = self.transactions.take_selection(number);
        let how = CommitHow {
            durability: match flags & (COMMIT_ORDERED | COMMIT_CONSOLIDATE) {
                0 => Durability::Durable,
                COMMIT_ORDERED => Durability::Ordered,
                _ => Durability::Consolidated,
            },
            retain: flags & COMMIT_RETAIN != 0,
            only: (flags & COMMIT_ONLY != 0).then_some(selection),
        };
        let follow = flags & COMMIT_FOLLOW != 0;
        self.report_later(number, channel, header, move |server, tx| server.commit(tx, &how, follow))
    }

    /// Aborts the selected changes.
    pub(crate) fn abort_part_later(
        self: &Arc<Self>,
        number: u32,
        channel: &Arc<Channel>,
        header: &InHeader,
    ) -> Result<()> {
        let paths = self.transactions.take_selection(number);
        self.report_later(number, channel, header, move |server, tx| {
            for ino in tx.refs.with_contents() {
                server.forget_contents(Node::View(tx.nr, ino));
            }
            tx.close();
            let result = tx.transaction.abort_only(&paths);
            server.resume(tx, result.is_ok());
            result.map(|()| None)
        })
    }

    /// Takes the channel's transaction, applies `action` to it where waiting is allowed, gives it
    /// back if it is still open, and answers with the result.
    fn report_later(
        self: &Arc<Self>,
        number: u32,
        channel: &Arc<Channel>,
        header: &InHeader,
        action: impl FnOnce(&Arc<Server>, &Arc<TxView>) -> Result<Option<Error>> + Send + 'static,
    ) -> Result<()> {
        let (channel, unique) = (channel.clone(), header.unique);
        let tx = self.transactions.take(number).ok_or(Errno::ENOENT)?;
        self.end_here_or_later(tx, &channel.clone(), move |server, tx, reply| {
            let result = catch_unwind(AssertUnwindSafe(|| action(server, tx))).unwrap_or_else(|_| {
                server.volume.poison("a panic in a commit");
                server.transactions.freeze(tx);
                Err(Errno::EIO.into())
            });
            if tx.is_open() {
                server.give_back(number, tx);
            } else {
                server.transactions.note_end(number, tx.transaction.take_lost_attempt());
            }
            match &result {
                Ok(_) => server.look_at_space_now(),
                Err(error) => server.note_no_space(error),
            }
            let errno = result.as_ref().err().map(Error::errno);
            let mut reported = report(result.as_ref().err(), |error| server.sentence(error));
            if let Ok(Some(left_out)) = &result {
                reported = report(Some(left_out), |error| server.sentence(error));
                reported.reason = Reason::None as u32;
            }
            answer_by(reply, &channel, unique, errno, &reported);
        })
    }

    /// Gives a transaction back to its channel, with its newest view.
    pub(crate) fn give_back(&self, number: u32, tx: &Arc<TxView>) {
        let view = self.transactions.by_id(tx.id()).unwrap_or_else(|| tx.clone());
        if let Some(left) = self.transactions.give_back(number, view) {
            // It was not left open, so nothing can fail.
            let _ = self.abort(&left);
        }
    }

    /// The transaction of a closed view continues: as it was, or in a new view if the kernel's
    /// knowledge of the old one is outdated.
    fn resume(&self, tx: &TxView, renew: bool) {
        if renew {
            self.transactions.freeze(tx);
            self.transactions.renew(tx);
            self.forget_view(tx);
        } else {
            tx.reopen();
        }
    }

    pub(crate) fn abort_later(
        self: &Arc<Self>,
        number: u32,
        channel: &Arc<Channel>,
        header: &InHeader,
    ) -> Result<()> {
        let (channel, unique) = (channel.clone(), header.unique);
        let tx = self.transactions.take(number).ok_or(Errno::ENOENT)?;
        self.end_here_or_later(tx, &channel.clone(), move |server, tx, reply| {
            let aborted = server.abort(tx);
            server.transactions.note_end(number, None);
            answer_by(reply, &channel, unique, aborted.err().map(|e| e.errno()), &());
        })
    }

    /// The last descriptor of the channel was closed.
    pub(crate) fn channel_closed(self: &Arc<Self>, number: u32) {
        if let Some(tx) = self.transactions.close_channel(number) {
            // The transaction is aborted also if this fails.
            let _ = self.end_later(tx, |server, tx| _ = server.abort(tx));
        }
    }

    /// Runs the end of a transaction on this worker, if that is allowed, or on a separate thread.
    /// `end` receives the function that sends a reply from there.
    fn end_here_or_later(
        self: &Arc<Self>,
        tx: Arc<TxView>,
        channel: &Channel,
        end: impl FnOnce(&Arc<Server>, &Arc<TxView>, SendReply) + Send + 'static,
    ) -> Result<()> {
        // Events are reported by calls on the mount, which another worker would have to answer.
        match self.inline_end.take(channel).filter(|_| !self.watchers.are_served()) {
            Some(_taken) => {
                end(self, &tx, Channel::reply);
                Ok(())
            }
            None => self.end_later(tx, move |server, tx| end(server, tx, Channel::send)),
        }
    }

    /// The transaction belongs to no channel now. If its end cannot be run, it is aborted here. The
    /// kernel does not forget the view then, since that would wait, but all nodes of the view
    /// answer `ESTALE`.
    pub(crate) fn end_later(
        self: &Arc<Self>,
        tx: Arc<TxView>,
        end: impl FnOnce(&Arc<Server>, &Arc<TxView>) + Send + 'static,
    ) -> Result<()> {
        let ours = tx.clone();
        self.spawn_of(&tx, Kind::End, move |server| end(server, &ours)).inspect_err(|_| {
            self.transactions.freeze(&tx);
            // An error was logged.
            let _ = self.abort_frozen(&tx, TxStatus::Aborted);
        })
    }

    fn commit(self: &Arc<Self>, tx: &Arc<TxView>, how: &CommitHow, follow: bool) -> Result<Option<Error>> {
        for ino in tx.refs.with_contents() {
            self.forget_contents(Node::View(tx.nr, ino));
        }
        for ino in tx.transaction.changes().files {
            self.forget_contents(Node::Live(ino));
        }
        tx.close();
        self.undo_dead_parts(tx);
        if follow {
            self.hold_followed(tx);
        }
        let on_volume = tx.transaction.persisted_info().is_some();
        let events = self.events_of(&tx.transaction);
        let result = how.commit(&tx.transaction, &mut Publisher::new(self));
        if on_volume {
            // Its folder may have been removed from the root.
            self.forget_attributes(Node::Live(Ino::ROOT));
        }
        let followed = follow && result.is_ok() && !tx.is_open();
        if follow {
            self.follow(tx, followed);
        }
        if tx.is_open() {
            // A part was committed: from now on the view shows another instant.
            self.resume(tx, result.is_ok());
        } else {
            self.transactions.freeze(tx);
            let status = if result.is_ok() { TxStatus::Committed } else { TxStatus::Aborted };
            self.transactions.ended(tx, status);
            self.forget_view(tx);
        }
        if result.is_ok() && !events.is_empty() {
            let left = if tx.is_open() { self.events_of(&tx.transaction) } else { Vec::new() };
            self.report_events(&events, &left);
        }
        result
    }

    fn abort(&self, tx: &TxView) -> Result<()> {
        self.transactions.freeze(tx);
        let aborted = self.abort_frozen(tx, TxStatus::Aborted);
        self.forget_view(tx);
        aborted
    }

    /// Ends a transaction whose view is frozen.
    pub(crate) fn abort_frozen(&self, tx: &TxView, status: TxStatus) -> Result<()> {
        let on_volume = tx.transaction.persisted_info().is_some();
        let aborted = tx.transaction.abort_persisted();
        if on_volume {
            self.forget_attributes(Node::Live(Ino::ROOT));
        }
        if let Err(e) = &aborted {
            let id = tx.id();
            crate::warn_tx(id, format_args!("transaction {id} may be open again after the next mount: {e}"));
        }
        self.transactions.ended(tx, status);
        aborted
    }

    /// Drops the pages that the kernel has of a view's files, and the view's folder.
    pub(crate) fn forget_view(&self, tx: &TxView) {
        for ino in tx.refs.with_contents() {
            self.forget_contents(Node::View(tx.nr, ino));
        }
        let id = tx.id().to_string();
        self.forget_name(Node::TxList, id.as_bytes(), self.agreed.can_expire());
    }

    pub(crate) fn forget_contents(&self, node: Node) {
        let started = Instant::now();
        if let Err(e) = self.kernel.forget_contents(node) {
            crate::log(format_args!("kernel cache invalidation of node {:#x} failed: {e}", node.id()));
        }
        self.inline_end.note_wait(started.elapsed());
    }

    /// The same for the pages of a range of bytes; `len` 0: up to the end of the file.
    pub(crate) fn forget_range(&self, node: Node, offset: u64, len: u64) {
        if let Err(e) = self.kernel.forget_range(node, offset, len) {
            crate::log(format_args!(
                "kernel cache invalidation of part of node {:#x} failed: {e}",
                node.id()
            ));
        }
    }

    /// The invalidation that a worker may call.
    pub(crate) fn forget_attributes(&self, node: Node) {
        if let Err(e) = self.kernel.forget_attributes(node) {
            crate::log(format_args!("kernel cache invalidation of node {:#x} failed: {e}", node.id()));
        }
    }

    pub(crate) fn forget_name(&self, dir: Node, name: &[u8], expire: bool) {
        if let Err(e) = self.kernel.forget_name(dir, name, expire) {
            crate::log(format_args!(
                "kernel cache invalidation of a name in node {:#x} failed: {e}",
                dir.id()
            ));
        }
    }
}

/// The report to the caller of a commit; `sentence` is the error's text for people.
fn report(error: Option<&Error>, sentence: impl FnOnce(&Error) -> String) -> Commit {
    let mut commit = Commit::new_zeroed();
    let Some(error) = error else { return commit };
    let reason = match error {
        Error::Conflict { path, conflicting_tx, .. } => {
            commit.path_len = fill(&mut commit.path, path.as_bytes());
            commit.conflicting_tx = conflicting_tx.unwrap_or(0);
            Reason::Conflict
        }
        Error::TooOld => Reason::TooOld,
        Error::Usage(_) => Reason::NotApart,
        Error::NoSpace | Error::DoesNotFit(_) | Error::SpaceRevoked => Reason::NoSpace,
        Error::HostFull => Reason::HostFull,
        Error::TooLarge { .. } => Reason::TooLarge,
        Error::ReadOnly => Reason::ReadOnly,
        Error::Io { .. } | Error::Corrupt(_) | Error::Poisoned(_) => Reason::Io,
        _ => Reason::Other,
    };
    commit.reason = reason as u32;
    let why = match error {
        Error::Conflict { why, conflicting_tx, .. } => {
            format!("{why}, by {}", xact_types::conflicting_tx_text(*conflicting_tx))
        }
        other => sentence(other),
    };
    commit.errmsg_len = fill(&mut commit.errmsg, why.as_bytes());
    commit
}

fn fill<const N: usize>(to: &mut [u8; N], from: &[u8]) -> u32 {
    const { assert!(N == PATH_MAX || N == ERRMSG_MAX) };
    let len = from.len().min(N);
    to[..len].copy_from_slice(&from[..len]);
    len as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_is_reported_with_its_path() {
        let path = "x".repeat(PATH_MAX + 1);
        let report = |error: Option<&Error>| report(error, Error::to_string);
        let commit =
            report(Some(&Error::Conflict { path, why: "written by others", conflicting_tx: Some(3) }));
        assert_eq!(commit.reason, Reason::Conflict as u32);
        assert_eq!(commit.path_len as usize, PATH_MAX);
        assert_eq!(&commit.errmsg[..commit.errmsg_len as usize], b"written by others, by transaction 3");
        assert_eq!(commit.conflicting_tx, 3);
        assert_eq!(report(None).reason, Reason::None as u32);
        assert_eq!(Reason::from_number(report(Some(&Error::NoSpace)).reason), Reason::NoSpace);
    }
}
