//! Atomic writes of several files without a view ([`control::IOC_WRITE_FILE`]): what a database
//! needs that keeps its journal in memory.
//!
//! ```text
//!   (none) ──WRITE──▶ batch of a channel ──WRITE with COMMIT──▶ (none): visible and durable
//!                          ▲ │    │
//!                          └─┘    └── a call fails, ABORT, the channel is closed ──▶ (none)
//!                         WRITE
//! ```
//! A batch is a transaction of the volume, so its atomicity, durability and crash argument are those
//! of a commit. The bytes travel in the calls. The kernel caches none of them, and no other program
//! can see them before the commit.
//!
//! Permissions. The kernel does not check them for an ioctl, and the daemon does not see opens. A
//! call needs three things:
//! 1. A descriptor of the file. It names the file, and is proof that the caller could open it.
//! 2. The key of a control channel of its user. A channel is a file made with `O_TMPFILE`, so its
//!    opener can write to the whole volume by path. Who sees the volume read-only, or only a part
//!    of it by a bind mount, has none.
//! 3. The file is its own, or the caller is root: the owner could grant itself write access.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use xact::{AbortHistory, Charge, Durability, Isolation, Resource, SharedTransaction, TxOptions};
use xact_control::abi::{
    PART_BYTES, PART_TRUNCATE, WRITE_ABORT, WRITE_COMMIT, WRITE_ORDERED, WriteFile, WritePart,
};
use xact_fs::{FileKind, SetAttr, View, WriteHow};
use xact_types::{AccessCheck, Errno, Error, Ino, Result};
use zerocopy::FromBytes;

use crate::commit::publish::Publisher;
use crate::ioctl::absent_pages::PAGE;
use crate::ioctl::answer::{answer_by, put};
use crate::ops::credentials::caller;
use crate::protocol::abi::InHeader;
use crate::protocol::reply::Reply;
use crate::server::jobs::Kind;
use crate::server::{Outcome, Server};
use crate::transport::channel::{Channel, SendReply};

/// Ranges of one file that are remembered; beyond it, the kernel forgets the whole file.
const SPANS_MAX: usize = 1 << 16;

/// Writes that are not committed yet. Dropping it aborts them.
pub struct Batch {
    transaction: Arc<SharedTransaction>,
    /// Charges the user for the transaction.
    _open: Charge,
    /// The written ranges of each file, in whole pages; `None`: the whole file.
    parts: BTreeMap<Ino, Option<Vec<(u64, u64)>>>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        // Has no effect after a commit.
        self.transaction.abort();
    }
}

/// One change of a file.
#[derive(Debug, PartialEq)]
enum Part<'a> {
    Bytes(u64, &'a [u8]),
    Truncate(u64),
}

/// The changes in the data of a request. `EINVAL`: they are malformed.
fn parts_of(mut data: &[u8]) -> Result<Vec<Part<'_>>, Errno> {
    let mut parts = Vec::new();
    while !data.is_empty() {
        let (part, rest) = WritePart::read_from_prefix(data).map_err(|_| Errno::EINVAL)?;
        let len = part.len as usize;
        let bytes = rest.get(..len).ok_or(Errno::EINVAL)?;
        part.offset
            .checked_add(part.len.into())
            .filter(|&end| end <= i64::MAX as u64)
            .ok_or(Errno::EINVAL)?;
        parts.push(match part.kind {
            PART_BYTES if len > 0 => Part::Bytes(part.offset, bytes),
            PART_TRUNCATE if len == 0 => Part::Truncate(part.offset),
            _ => return Err(Errno::EINVAL),
        });
        data = rest.get(len.next_multiple_of(8)..).ok_or(Errno::EINVAL)?;
    }
    Ok(parts)
}

impl Batch {
    fn add(&mut self, ino: Ino, header: &InHeader, parts: &[Part<'_>]) -> Result<()> {
        let by = caller(header, 0);
        let spans = self.parts.entry(ino).or_insert_with(|| Some(Vec::new()));
        for part in parts {
            match *part {
                Part::Bytes(offset, bytes) => {
                    let how = WriteHow { append: false, kill_suidgid: header.uid != 0, by, is_part: false };
                    if self.transaction.write(ino, offset, bytes, how)?.len < bytes.len() {
                        return Err(Errno::EFBIG.into());
                    }
                    if let Some(all) = spans {
                        let (start, end) =
                            (offset / PAGE * PAGE, (offset + bytes.len() as u64).next_multiple_of(PAGE));
                        match all.last_mut() {
                            Some((first, len)) if *first + *len == start => *len = end - *first,
                            _ => all.push((start, end - start)),
                        }
                        if all.len() > SPANS_MAX {
                            *spans = None;
                        }
                    }
                }
                Part::Truncate(size) => {
                    let change = SetAttr { size: Some(size), ..SetAttr::default() };
                    self.transaction.set_attr(&by, ino, &change)?;
                    *spans = None;
                }
            }
        }
        Ok(())
    }

    fn commit(&self, server: &Arc<Server>, durability: Durability) -> Result<()> {
        let parts = self.parts.iter().filter_map(|(&ino, spans)| Some((ino, spans.clone()?)));
        let mut publisher = Publisher::over_parts(server, parts);
        let commit = || self.transaction.commit_with_observer(durability, &mut publisher);
        catch_unwind(AssertUnwindSafe(commit)).unwrap_or_else(|_| {
            server.volume.poison("a panic in the commit of an atomic write");
            Err(Errno::EIO.into())
        })
    }
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
        Ok(Batch { transaction, _open: open, parts: BTreeMap::new() })
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
        let commit = move |server: &Arc<Server>, send: SendReply| {
            let result = batch.commit(server, durability);
            // The user may begin the next one as soon as it has the answer.
            drop(batch);
            answer_by(send, &to, unique, result.as_ref().err().map(Error::errno), &());
        };
        match self.inline_end.take(channel) {
            Some(_taken) => {
                commit(self, Channel::reply);
                Ok(())
            }
            None => {
                let account = self.volume.accounts().of(header.uid);
                self.spawn_for(&account, Kind::End, move |server| commit(server, Channel::send))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn encoded(parts: &[(u64, u32, u32, &[u8])]) -> Vec<u8> {
        let mut data = Vec::new();
        for &(offset, len, kind, bytes) in parts {
            data.extend(WritePart { offset, len, kind }.as_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(8), 0);
        }
        data
    }

    #[test]
    fn malformed_changes_are_refused() {
        let good = encoded(&[(5, 3, PART_BYTES, b"abc"), (9, 0, PART_TRUNCATE, b"")]);
        assert_eq!(parts_of(&good), Ok(vec![Part::Bytes(5, b"abc"), Part::Truncate(9)]));
        assert_eq!(parts_of(&[]), Ok(Vec::new()));
        for (offset, len, kind, bytes) in [
            (0, 9, PART_BYTES, &b"12345678"[..]),
            (0, 0, PART_BYTES, b""),
            (0, 1, PART_TRUNCATE, b"x"),
            (0, 1, 2, b"x"),
            (u64::MAX, 1, PART_BYTES, b"x"),
            (i64::MAX as u64, 1, PART_BYTES, b"x"),
        ] {
            assert_eq!(parts_of(&encoded(&[(offset, len, kind, bytes)])), Err(Errno::EINVAL), "{kind} {len}");
        }
        assert_eq!(parts_of(&good[..20]), Err(Errno::EINVAL));
    }
}
