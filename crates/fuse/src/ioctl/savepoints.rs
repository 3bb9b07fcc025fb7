//! Savepoints, by ioctl: a begin within a transaction, from inside its view.
//!
//! The kernel holds stores into mappings of the view's files. Before a savepoint is created, rolled
//! back to, or released, the kernel writes them into the view, so that they belong to the part in
//! which they were made. After a rollback the kernel forgets everything that was undone. That waits
//! for requests, so it runs on a separate thread (see `tx_end`).
//!
//! A savepoint belongs to the process that created it, if the daemon can see the process (not in a
//! PID namespace beside the daemon's). If that process dies and has neither released the savepoint
//! nor rolled back to it, all changes since the savepoint are undone (TX-13). That happens before
//! the next operation in the view that reaches the daemon, so no later change of another process is
//! undone with it. A check every [`LOOK`] makes the kernel's caches forget the changes even if no
//! request reaches the daemon.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xact_control::abi::{self as control, Savepoint};
use xact_types::{AccessCheck, Errno, Error, Result};
use zerocopy::FromBytes;

use crate::ioctl::answer::answer;
use crate::protocol::abi::InHeader;
use crate::protocol::node::Node;
use crate::server::Server;
use crate::server::jobs::Kind;
use crate::server::transactions::TxView;
use crate::transport::channel::Channel;
use xact::Changes;

/// Interval of the check for dead owners, while savepoints are open.
const LOOK: Duration = Duration::from_millis(20);

/// Whether the ioctl is about savepoints.
pub(crate) fn is_savepoint_command(command: u32) -> bool {
    matches!(command, control::IOC_SAVEPOINT | control::IOC_ROLLBACK | control::IOC_RELEASE)
}

impl Server {
    pub(crate) fn savepoint_later(
        self: &Arc<Self>,
        node: Node,
        channel: &Arc<Channel>,
        header: &InHeader,
        command: u32,
        input: &[u8],
    ) -> Result<()> {
        let tx = match node {
            Node::View(nr, _) => self.part_owner_only(header, self.transactions.view(nr)?)?,
            Node::Control(number) => self.transactions.of_channel(number).ok_or(Errno::ENOENT)?,
            _ => return Err(Errno::ENOTTY.into()),
        };
        let mut savepoint = Savepoint::default();
        if command != control::IOC_SAVEPOINT {
            (savepoint, _) = Savepoint::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
        }
        let (channel, unique) = (channel.clone(), header.unique);
        // If no descriptor is left to watch the process, the savepoint is refused, since the
        // changes of the process would stay when it is killed. If the daemon cannot see the process
        // (ENOTTY), the changes stay whatever happens to it.
        let owner = match command {
            control::IOC_SAVEPOINT => match self.processes.of(header.pid, &tx.account) {
                Ok(owner) => Some(owner),
                Err(Error::Posix(Errno::ENOTTY)) => None,
                Err(error) => return Err(error),
            },
            _ => None,
        };
        self.spawn_of(&tx.clone(), Kind::End, move |server| {
            for ino in tx.refs.with_contents() {
                server.forget_contents(Node::View(tx.nr, ino));
            }
            server.undo_dead_parts(&tx);
            let result = match command {
                control::IOC_SAVEPOINT => tx.transaction.savepoint().map(|number| {
                    savepoint.number = number;
                    if let Some(owner) = owner {
                        tx.add_part(number, owner);
                        server.reaper.wake(server);
                    }
                }),
                control::IOC_ROLLBACK => server.roll_back(&tx, savepoint.number),
                _ => tx.transaction.release_savepoint(savepoint.number),
            };
            if command != control::IOC_SAVEPOINT && result.is_ok() {
                tx.end_parts(savepoint.number);
            }
            let errno = result.as_ref().err().map(Error::errno);
            // Only the savepoint itself has an output.
            if command == control::IOC_SAVEPOINT {
                answer(&channel, unique, errno, &savepoint);
            } else {
                answer(&channel, unique, errno, &());
            }
        })
    }

    /// `EPERM` unless the caller is the transaction's user or root. A descriptor in the view is not
    /// enough: undoing a part also undoes all later changes of other processes in the transaction.
    fn part_owner_only(&self, header: &InHeader, tx: Arc<TxView>) -> Result<Arc<TxView>> {
        let is_owner = header.uid == 0 || header.uid == tx.uid;
        if is_owner || !AccessCheck::SavepointOwner.is_made() { Ok(tx) } else { Err(Errno::EPERM.into()) }
    }

    fn roll_back(&self, tx: &TxView, savepoint: u64) -> Result<()> {
        let changes = tx.transaction.roll_back(savepoint)?;
        self.forget_undone(tx, &changes);
        Ok(())
    }

    /// Undoes the unfinished parts of dead processes. A worker may call it: another thread does
    /// everything that waits for the kernel.
    pub(crate) fn undo_dead_parts(self: &Arc<Self>, tx: &Arc<TxView>) {
        // A savepoint that was ended with an outer one, or with the transaction, has nothing to
        // undo.
        let undo = |savepoint| tx.transaction.roll_back(savepoint).unwrap_or_default();
        while tx.has_parts()
            && let Some(changes) = tx.end_dead_part(undo)
        {
            let ours = tx.clone();
            let forget = move |server: &Arc<Server>| server.forget_undone(&ours, &changes);
            if let Err(e) = self.spawn_of(tx, Kind::End, forget) {
                crate::log(format_args!(
                    "undone changes of a killed process may be visible for a while: {e}"
                ));
            }
        }
    }

    /// Looks at all views with open parts; returns when to look again.
    pub(crate) fn check_part_owners(self: &Arc<Self>) -> Option<Instant> {
        let mut any = false;
        for tx in self.transactions.all() {
            self.undo_dead_parts(&tx);
            any |= tx.has_parts();
        }
        any.then(|| Instant::now() + LOOK)
    }

    fn forget_undone(&self, tx: &TxView, changes: &Changes) {
        for &ino in &changes.inodes {
            self.forget_contents(Node::View(tx.nr, ino));
        }
        for (dir, name) in &changes.names {
            // The name may exist again or not: the next lookup asks the daemon.
            self.forget_name(Node::View(tx.nr, *dir), name, false);
        }
    }
}
