//! Transactions that are left open when their channel closes. They stay in memory until a user
//! decides over them or their time runs out. With `KEEP_PERSISTENT` they are also on the volume,
//! and the next mount opens them again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xact::{PersistedInfo, Resource, SharedTransaction, Transaction};
use xact_control::abi::TxStatus;
use xact_types::{Errno, Error, Ino, Result, unix_seconds};

use crate::ioctl::answer::answer;
use crate::protocol::abi::InHeader;
use crate::protocol::node::Node;
use crate::server::Server;
use crate::server::transactions::TxView;
use crate::transport::channel::Channel;

/// How a transaction is left open.
pub(crate) struct KeepOptions {
    pub label: Vec<u8>,
    /// `None`: without limit.
    pub timeout: Option<Duration>,
    pub persist: bool,
}

/// Seconds since 1970, by the wall clock: the only clock that runs while nothing is mounted.
fn seconds_now() -> u64 {
    unix_seconds().max(0) as u64
}

impl Server {
    /// Leaves the channel's transaction open. Open files in its view become stale, so that
    /// processes which were left behind make no more changes. A transaction that was persisted
    /// before stays so.
    pub(crate) fn keep_later(
        self: &Arc<Self>,
        number: u32,
        channel: &Arc<Channel>,
        header: &InHeader,
        how: KeepOptions,
    ) -> Result<()> {
        let (channel, unique) = (channel.clone(), header.unique);
        let tx = self.transactions.take(number).ok_or(Errno::ENOENT)?;
        self.end_later(tx, move |server, tx| {
            for ino in tx.refs.with_contents() {
                server.forget_contents(Node::View(tx.nr, ino));
            }
            server.transactions.freeze(tx);
            server.undo_dead_parts(tx);
            let view = server.transactions.renew(tx);
            server.transactions.keep(number, view, how.label.clone(), how.timeout);
            let kept = if how.persist || tx.transaction.persisted_info().is_some() {
                server.keep_on_volume(tx, &how)
            } else {
                Ok(())
            };
            server.give_back(number, tx);
            server.forget_view(tx);
            server.reaper.wake(server);
            answer(&channel, unique, kept.as_ref().err().map(Error::errno), &());
        })
    }

    fn keep_on_volume(&self, tx: &TxView, how: &KeepOptions) -> Result<()> {
        let (id, now) = (tx.id(), seconds_now());
        let info = PersistedInfo {
            gid: tx.gid,
            label: how.label.clone(),
            begun: now.saturating_sub(tx.begun.elapsed().as_secs()),
            deadline: how.timeout.map(|timeout| now + timeout.as_secs()),
        };
        // The user has already been charged for one that is persisted.
        let is_new = tx.transaction.persisted_info().is_none();
        let charge = is_new.then(|| tx.account.charge(Resource::Persisted, 1)).transpose();
        let kept = charge.and_then(|charge| {
            tx.transaction.persist(info)?;
            if let Some(charge) = charge {
                self.transactions.note_persistent(id, charge);
            }
            Ok(())
        });
        match &kept {
            Ok(()) => {}
            Err(e) => crate::warn_tx(
                id,
                format_args!("transaction {id} is open, but its last changes are not persisted: {e}"),
            ),
        }
        // Its folder was created in the root.
        self.forget_attributes(Node::Live(Ino::ROOT));
        kept
    }

    /// Opens the persisted transactions of the volume, before any request is served.
    pub fn reopen_persisted(self: &Arc<Self>) {
        let all = self.volume.persisted_transactions().unwrap_or_else(|e| {
            crate::log(format_args!("cannot list the volume's persisted transactions: {e}"));
            Vec::new()
        });
        // All are opened before the first one is served.
        let all = all.into_iter().map(|id| (id, self.reopen(id))).collect::<Vec<_>>();
        let now = seconds_now();
        for (id, reopened) in all {
            match reopened {
                Ok(transaction) => {
                    let info = transaction.persisted_info().unwrap_or_default();
                    let label = String::from_utf8_lossy(&info.label).into_owned();
                    let age = Duration::from_secs(now.saturating_sub(info.begun));
                    let left = info.deadline.map(|at| Duration::from_secs(at.saturating_sub(now)));
                    let account = self.volume.accounts().of(transaction.options().owner);
                    self.transactions.add_left_open(transaction, &account, age, left);
                    crate::log_tx(id, format_args!("transaction {id} ({label}) is open again"));
                }
                Err(e) => crate::warn_tx(
                    id,
                    format_args!(
                        "transaction {id} is kept on the volume, but cannot be opened in this mount: {e}"
                    ),
                ),
            }
        }
        if !self.transactions.is_empty() {
            self.reaper.wake(self);
        }
    }

    fn reopen(&self, id: u64) -> Result<Arc<SharedTransaction>> {
        if self.volume.is_read_only() {
            return Err(Error::ReadOnly);
        }
        self.volume.reopen_transaction(id).map(Transaction::into_shared)
    }

    /// Aborts transactions that are left open and whose time has run out; returns when to look
    /// again.
    pub(crate) fn abort_expired(&self) -> Option<Instant> {
        let (expired, next) = self.transactions.take_expired();
        for tx in expired {
            let id = tx.id();
            crate::log_tx(id, format_args!("transaction {id} is aborted: its time has run out"));
            self.transactions.freeze(&tx);
            // An error was logged.
            let _ = self.abort_frozen(&tx, TxStatus::TimedOut);
            self.forget_view(&tx);
        }
        next
    }
}
