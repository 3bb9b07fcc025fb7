//! Savepoints over the ioctls: a begin within a transaction, from inside its view.
//!
//! The kernel holds what mappings of the view's files have stored. Before a savepoint is made,
//! rolled back to, or released, it writes that into the view, so that it counts as done where it
//! was done; after a rollback it forgets what it knew of what was undone. That waits for requests,
//! so it runs on a thread of its own (see `tx_end`).
//!
//! A savepoint belongs to the process that made it, as far as its number means anything here (not
//! in a pid namespace that the daemon cannot see). When that process is dead and has neither
//! released it nor rolled back to it, what was done since is undone (TX-13): before anything else
//! is done in the view that the daemon hears of, so nothing that others do after that death is
//! undone with it; and by a look every [`LOOK`], which makes the kernel's caches forget it where
//! nobody asks the daemon.

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

/// How often dead owners are looked for, while savepoints are open.
const LOOK: Duration = Duration::from_millis(20);

/// Whether the ioctl is about savepoints.
pub(crate) fn is_one(command: u32) -> bool {
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
        // One that cannot be watched for want of a descriptor is not made: what its process did
        // would stay when that is killed. Where a process is out of sight (ENOTTY), the part stays
        // whatever becomes of it.
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

    /// `EPERM` for who is neither the transaction's user nor root. A descriptor in the view is no
    /// right to it: a part that is undone takes with it what everybody has done in the transaction
    /// since.
    fn part_owner_only(&self, header: &InHeader, tx: Arc<TxView>) -> Result<Arc<TxView>> {
        let is_owner = header.uid == 0 || header.uid == tx.uid;
        if is_owner || !AccessCheck::SavepointOwner.is_made() { Ok(tx) } else { Err(Errno::EPERM.into()) }
    }

    fn roll_back(&self, tx: &TxView, savepoint: u64) -> Result<()> {
        let changes = tx.transaction.roll_back(savepoint)?;
        self.forget_undone(tx, &changes);
        Ok(())
    }

    /// Undoes what processes have left behind half-done. A worker may call it: what waits for the
    /// kernel is done by another thread.
    pub(crate) fn undo_dead_parts(self: &Arc<Self>, tx: &Arc<TxView>) {
        // One that was ended with what is around it, or the transaction with it, has nothing to
        // undo.
        let undo = |savepoint| tx.transaction.roll_back(savepoint).unwrap_or_default();
        while tx.has_parts()
            && let Some(changes) = tx.end_dead_part(undo)
        {
            let ours = tx.clone();
            let forget = move |server: &Arc<Server>| server.forget_undone(&ours, &changes);
            if let Err(e) = self.spawn_of(tx, Kind::End, forget) {
                crate::log(format_args!("what a killed process did may be seen for a while: {e}"));
            }
        }
    }

    /// Looks at all views with open parts; returns when to look again.
    pub(crate) fn look_after_parts(self: &Arc<Self>) -> Option<Instant> {
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
            // Whether it is there again or gone: whoever looks asks anew.
            self.forget_name(Node::View(tx.nr, *dir), name, false);
        }
    }
}
