//! Atomic writes of several files without a view ([`control::IOC_WRITE_FILE`]): what a database
//! needs that keeps its journal in memory.
//!
//! ```text
//!   (none) ──WRITE──▶ batch of a channel ──WRITE with COMMIT──▶ (none): visible and durable
//!                          ▲ │    │
//!                          └─┘    └── a call fails, ABORT, the channel is closed ──▶ (none)
//!                         WRITE
//! ```
//! A batch is a transaction of the volume, so its atomicity, durability and crash argument are
//! those of a commit. The bytes travel in the calls. The kernel caches none of them, and no other
//! program can see them before the commit.
//!
//! Permissions. The kernel does not check them for an ioctl, and the daemon does not see opens. A
//! call needs three things:
//! 1. A descriptor of the file. It names the file, and is proof that the caller could open it.
//! 2. The key of a control channel of its user. A channel is a file made with `O_TMPFILE`, so its
//!    opener can write to the whole volume by path. A process that sees the volume read-only, or
//!    only a part of it by a bind mount, has none.
//! 3. The file is its own, or the caller is root: the owner could grant itself write access.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use xact::{AbortHistory, Durability, Isolation, Resource, TxOptions};
use xact_control::abi::{WRITE_ABORT, WRITE_COMMIT, WRITE_ORDERED, WriteFile};
use xact_fs::FileKind;
use xact_types::{AccessCheck, Errno, Error, Ino, Result};
use zerocopy::FromBytes;

use crate::commit::publish::Publisher;
use crate::ioctl::answer::{answer_by, put};
use crate::ioctl::batch::{Batch, parts_of};
use crate::protocol::abi::InHeader;
use crate::protocol::reply::Reply;
use crate::server::jobs::Kind;
use crate::server::{Outcome, Server};
use crate::transport::channel::{Channel, SendReply};

fn commit(batch: &Batch, server: &Arc<Server>, durability: Durability) -> Result<()> {
    let parts = batch.parts.iter().filter_map(|(&ino, spans)| Some((ino, spans.clone()?)));
    let mut publisher = Publisher::over_parts(server, parts);
    let commit = || batch.transaction.commit_with_observer(durability, &mut publisher);
    catch_unwind(AssertUnwindSafe(commit)).unwrap_or_else(|_| {
        server.volume.poison("a panic in the commit of an atomic write");
        Err(Errno::EIO.into())
    })
}

impl Server {
    pub(crate) fn write_file_ioctl(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        ino: Ino,
        header: &InHeader,
        input: &[u8],
        reply: &mut Reply,
    ) -> Result<Outcome> {
        let (request, _) = WriteFile::ref_from_prefix(input).map_err(|_| Errno::EINVAL)?;
        let number = self.transactions.channel_of_key(request.key, header.uid)?;
        // A call that fails discards the batch.
        let batch = self.transactions.take_batch(number);
        let flags = request.flags;
        if flags & !(WRITE_COMMIT | WRITE_ORDERED | WRITE_ABORT) != 0 {
            return Err(Errno::EINVAL.into());
        }
        let attr = self.live.attr(ino)?;
        if attr.kind != FileKind::Regular {
            return Err(Errno::ENOTTY.into());
        }
        if header.uid != 0 && header.uid != attr.uid && AccessCheck::AtomicWriteOwner.is_made() {
            return Err(Errno::EACCES.into());
        }
        if attr.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        let parts = parts_of(request.data.get(..request.len as usize).ok_or(Errno::EINVAL)?)?;
        let mut batch = batch.filter(|_| flags & WRITE_ABORT == 0);
        if !parts.is_empty() {
            let mut started = match batch.take() {
                Some(batch) => batch,
                None => self.begin_batch(header)?,
            };
            started.add(ino, header, &parts)?;
            batch = Some(started);
        }
        match batch {
            Some(batch) if flags & WRITE_COMMIT != 0 => {
                let ordered = flags & WRITE_ORDERED != 0;
                let durability = if ordered { Durability::Ordered } else { Durability::Durable };
                self.commit_batch(channel, header, batch, durability)?;
                return Ok(Outcome::Later);
            }
            Some(batch) => self.transactions.put_batch(number, batch),
            None => {}
        }
        put(reply, &());
        Ok(Outcome::Done)
    }

    fn begin_batch(&self, header: &InHeader) -> Result<Batch> {
        let open = self.volume.accounts().of(header.uid).charge(Resource::Transactions, 1)?;
        let options = TxOptions { isolation: Isolation::Snapshot, ..TxOptions::default() };
        let transaction = self.begin_transaction(header.uid, options, &AbortHistory::default())?;
        Ok(Batch::new(transaction, open))
    }

    /// Commits on this worker if a single thread calls, as `tx_end` does, else on a thread of its
    /// own.
    fn commit_batch(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        header: &InHeader,
        batch: Batch,
        durability: Durability,
    ) -> Result<()> {
        let (to, unique) = (channel.clone(), header.unique);
        let end = move |server: &Arc<Server>, send: SendReply| {
            let result = commit(&batch, server, durability);
            // The user may begin the next one as soon as it has the answer.
            drop(batch);
            answer_by(send, &to, unique, result.as_ref().err().map(Error::errno), &());
        };
        match self.inline_end.take(channel) {
            Some(_taken) => {
                end(self, Channel::reply);
                Ok(())
            }
            None => {
                let account = self.volume.accounts().of(header.uid);
                self.spawn_for(&account, Kind::End, move |server| end(server, Channel::send))
            }
        }
    }
}
