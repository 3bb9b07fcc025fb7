//! Savepoints over the ioctls: a begin within a transaction, from inside its view.
//!
//! The kernel holds what mappings of the view's files have stored. Before a savepoint is made, rolled
//! back to, or released, it writes that into the view, so that it counts as done where it was done;
//! after a rollback it forgets what it knew of what was undone. That waits for requests, so it runs on
//! a thread of its own (see `ending`).

use std::sync::Arc;

use xact_base::{Errno, Error, Result};
use zerocopy::FromBytes;

use super::Server;
use super::ending::answer;
use crate::abi::InHeader;
use crate::channel::Channel;
use crate::control::{self, Savepoint};
use crate::node::Node;
use crate::registry::TxView;

/// Whether the ioctl is about savepoints.
pub(super) fn is_one(command: u32) -> bool {
    matches!(command, control::IOC_SAVEPOINT | control::IOC_ROLLBACK | control::IOC_RELEASE)
}

impl Server {
    pub(super) fn savepoint_later(
        self: &Arc<Self>,
        node: Node,
        channel: &Arc<Channel>,
        header: &InHeader,
        command: u32,
        input: &[u8],
    ) -> Result<()> {
        let tx = match node {
            Node::View(nr, _) => self.registry.view(nr)?,
            Node::Control(number) => self.registry.of_channel(number).ok_or(Errno::ENOENT)?,
            _ => return Err(Errno::ENOTTY.into()),
        };
        let mut savepoint = Savepoint::default();
        if command != control::IOC_SAVEPOINT {
            (savepoint, _) = Savepoint::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
        }
        let (channel, unique) = (channel.clone(), header.unique);
        self.spawn(move |server| {
            for ino in tx.with_contents() {
                server.forget_contents(Node::View(tx.nr, ino));
            }
            let result = match command {
                control::IOC_SAVEPOINT => tx.transaction.savepoint().map(|number| savepoint.number = number),
                control::IOC_ROLLBACK => server.roll_back(&tx, savepoint.number),
                _ => tx.transaction.release_savepoint(savepoint.number),
            };
            let errno = result.as_ref().err().map(Error::errno);
            // Only the savepoint itself has an output.
            if command == control::IOC_SAVEPOINT {
                answer(&channel, unique, errno, &savepoint);
            } else {
                answer(&channel, unique, errno, &());
            }
        })
    }

    fn roll_back(&self, tx: &TxView, savepoint: u64) -> Result<()> {
        let changes = tx.transaction.roll_back(savepoint)?;
        for &ino in &changes.inodes {
            self.forget_contents(Node::View(tx.nr, ino));
        }
        for (dir, name) in &changes.names {
            // Whether it is there again or gone: whoever looks asks anew.
            self.forget_name(Node::View(tx.nr, *dir), name, false);
        }
        Ok(())
    }
}
