//! The ioctls by which a user inspects an open transaction and decides over it: listing,
//! differences, contents of both sides, keeping and attaching, commits and aborts of parts.

use std::sync::Arc;
use std::time::Duration;

use xact::{Attr, Difference, Reader, SearchedFolders, Side, What};
use xact_control::TxInfo;
use xact_control::abi::{
    self as control, Change, ChangeKind, ChangeSide, Diff, Info, Keep, PAGE_BYTES, ReadSide, Select,
};
use xact_control::client::TxChange;
use xact_types::{AccessCheck, Errno, Ino, Result};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::ioctl::answer::answer;
use crate::ioctl::answer::put;
use crate::ioctl::change_list::ChangeList;
use crate::ioctl::keep_ioctl::KeepOptions;
use crate::ops::credentials;
use crate::protocol::abi::InHeader;
use crate::protocol::reply::Reply;
use crate::server::Outcome;
use crate::server::Server;
use crate::server::jobs::Kind;
use crate::server::transactions::TxView;
use crate::transport::channel::Channel;

/// Bytes of a path in the description of a change. Longer paths are cut.
const PATH_SHOWN: usize = PAGE_BYTES / 2 - size_of::<Change>();

impl Server {
    /// An ioctl on a control channel.
    pub(crate) fn tx_ioctl(
        self: &Arc<Self>,
        number: u32,
        channel: &Arc<Channel>,
        header: &InHeader,
        command: u32,
        input: &[u8],
        reply: &mut Reply,
    ) -> Result<Outcome> {
        match command {
            control::IOC_SELECT => {
                let select: Select = take(input)?;
                let path = bytes(&select.path, select.len)?.to_vec();
                self.transactions.select(number, path)?;
                put(reply, &());
            }
            control::IOC_DROP => {
                self.abort_part_later(number, channel, header)?;
                return Ok(Outcome::Later);
            }
            control::IOC_KEEP => {
                let keep: Keep = take(input)?;
                if keep.flags & !control::KEEP_PERSISTENT != 0 {
                    return Err(Errno::EINVAL.into());
                }
                let label = bytes(&keep.label, keep.label_len.into())?.to_vec();
                let timeout = (keep.timeout_s > 0).then(|| Duration::from_secs(keep.timeout_s.into()));
                let how = KeepOptions { label, timeout, persist: keep.flags & control::KEEP_PERSISTENT != 0 };
                self.keep_later(number, channel, header, how)?;
                return Ok(Outcome::Later);
            }
            control::IOC_ATTACH => {
                let attach: control::Begin = take(input)?;
                self.transactions.attach(number, attach.id, header.uid)?;
                put(reply, &());
            }
            control::IOC_INFO => {
                let asked: Info = take(input)?;
                let found = match asked.flags {
                    0 => self.transactions.info(asked.id, header.uid)?,
                    control::INFO_NEXT => self.transactions.next_info(asked.id, header.uid)?,
                    _ => return Err(Errno::EINVAL.into()),
                };
                put(reply, &info(&found));
            }
            control::IOC_DIFF | control::IOC_DIFF_BY_FILE => {
                let mut diff: Diff = take(input)?;
                // 0: the list is of snapshots, and exists already.
                if diff.id != 0 {
                    let tx = self.looked_at(diff.id, header)?;
                    if diff.index == 0 {
                        self.diff_later(number, channel, header, tx, command == control::IOC_DIFF_BY_FILE)?;
                        return Ok(Outcome::Later);
                    }
                }
                self.fill(number, &mut diff)?;
                put(reply, &diff);
            }
            control::IOC_READ => {
                let mut read: ReadSide = take(input)?;
                let tx = self.looked_at(read.id, header)?;
                let side = match read.side {
                    0 => Side::Old,
                    1 => Side::New,
                    _ => return Err(Errno::EINVAL.into()),
                };
                let ino = Ino(u32::try_from(read.ino).map_err(|_| Errno::EINVAL)?);
                let list = self.transactions.diff(number).filter(|list| list.of == read.id);
                let paths: Vec<&[u8]> = list.iter().flat_map(|list| list.paths_of(side, ino)).collect();
                // Only inodes that the channel was shown, so that no number reaches any other file.
                if paths.is_empty() && AccessCheck::ReadChangedOnly.is_made() {
                    return Err(Errno::ENOENT.into());
                }
                let (who, mut out) = (credentials::of(header), Vec::new());
                let unlisted = SearchedFolders::default();
                let searched = list.as_ref().map_or(&unlisted, |list| &list.searched);
                let by = Reader::User(&who, &paths, searched);
                tx.transaction.peek_contents(&by, side, ino, read.offset, PAGE_BYTES, &mut out)?;
                read.data[..out.len()].copy_from_slice(&out);
                read.len = out.len() as u32;
                put(reply, &read);
            }
            _ => return Err(Errno::ENOTTY.into()),
        }
        Ok(Outcome::Done)
    }

    /// Makes the list of a transaction's changes, and answers with its first page.
    fn diff_later(
        self: &Arc<Self>,
        number: u32,
        channel: &Arc<Channel>,
        header: &InHeader,
        tx: Arc<TxView>,
        by_file: bool,
    ) -> Result<()> {
        let (channel, unique) = (channel.clone(), header.unique);
        let account = self.transactions.account_of(number)?;
        let who = credentials::of(header);
        self.spawn_for(&account.clone(), Kind::Look, move |server| {
            let mut diff = Diff::new_zeroed();
            diff.id = tx.id();
            // Dropping the previous list frees its memory.
            server.transactions.set_diff(number, None);
            let made = if by_file { tx.transaction.diff_by_file(Some(&who)) } else { tx.transaction.diff() };
            let made = made.and_then(|changes| ChangeList::new(diff.id, changes, &account)).map(Arc::new);
            let filled = made.map(|list| {
                fill(&mut diff, &list.changes);
                server.transactions.set_diff(number, Some(list));
            });
            answer(&channel, unique, filled.err().map(|e| e.errno()), &diff);
        })
    }

    /// A page of the channel's list; `EINVAL` if it is the list of another transaction.
    fn fill(&self, number: u32, diff: &mut Diff) -> Result<()> {
        let list = self.transactions.diff(number).filter(|list| list.of == diff.id).ok_or(Errno::EINVAL)?;
        fill(diff, &list.changes);
        Ok(())
    }

    /// A transaction that its owner, or root, inspects.
    fn looked_at(&self, id: u64, header: &InHeader) -> Result<Arc<TxView>> {
        let tx = self.transactions.by_id(id).ok_or(Errno::ENOENT)?;
        if header.uid != 0 && tx.uid != header.uid { Err(Errno::EPERM.into()) } else { Ok(tx) }
    }
}

fn take<T: FromBytes>(input: &[u8]) -> Result<T> {
    let (value, _) = T::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
    Ok(value)
}

fn bytes(of: &[u8], len: u32) -> Result<&[u8]> {
    Ok(of.get(..len as usize).ok_or(Errno::EINVAL)?)
}

fn info(tx: &TxInfo) -> Info {
    let mut info = Info::new_zeroed();
    (info.id, info.status, info.uid) = (tx.id, tx.status as u32, tx.uid);
    info.flags = if tx.persistent { control::INFO_PERSISTENT } else { 0 };
    info.age_ms = tx.age.as_millis() as u64;
    info.left_ms = tx.left.map_or(0, |left| (left.as_millis() as u64).max(1));
    let len = tx.label.len().min(info.label.len());
    info.label[..len].copy_from_slice(&tx.label[..len]);
    info.label_len = len as u32;
    info
}

/// Fills in as many changes from `diff.index` on as fit.
fn fill(diff: &mut Diff, all: &[Difference]) {
    let start = usize::try_from(diff.index).unwrap_or(usize::MAX).min(all.len());
    let mut used = 0;
    let mut shown = 0;
    for difference in &all[start..] {
        let path = &difference.path[..difference.path.len().min(PATH_SHOWN)];
        let from = difference.from.as_deref().unwrap_or_default();
        let from = &from[..from.len().min(PATH_SHOWN)];
        let change = Change {
            kind: kind(difference.what) as u32,
            path_len: path.len() as u32,
            from_len: from.len() as u32,
            reserved: 0,
            old: side(difference.old.as_ref()),
            new: side(difference.new.as_ref()),
        };
        // Structs are aligned to 8 bytes.
        let len = (size_of::<Change>() + path.len() + from.len()).next_multiple_of(8);
        if used + len > PAGE_BYTES {
            break;
        }
        let mut at = used;
        for part in [change.as_bytes(), path, from] {
            diff.data[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        used += len;
        shown += 1;
    }
    diff.index = (start + shown) as u64;
    diff.done = u32::from(start + shown == all.len());
    diff.len = used as u32;
}

/// A change in the form of the control channel, for a process that has the volume open itself.
pub fn tx_change(difference: Difference) -> TxChange {
    let Difference { what, path, from, old, new, .. } = difference;
    let side_of = |attr: Option<Attr>| attr.as_ref().map(|attr| side(Some(attr)));
    TxChange { kind: kind(what), path, from, old: side_of(old), new: side_of(new) }
}

fn kind(what: What) -> ChangeKind {
    match what {
        What::Added => ChangeKind::Added,
        What::Deleted => ChangeKind::Deleted,
        What::Modified => ChangeKind::Modified,
        What::Renamed => ChangeKind::Renamed,
        What::Attributes => ChangeKind::Attributes,
    }
}

fn side(attr: Option<&Attr>) -> ChangeSide {
    attr.map_or_else(ChangeSide::default, |attr| ChangeSide {
        ino: attr.ino.0.into(),
        size: attr.size,
        mode: u32::from(attr.kind.mode_bits() | attr.perm),
        uid: attr.uid,
        gid: attr.gid,
        reserved: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(path: Vec<u8>) -> Difference {
        Difference { what: What::Added, path, from: None, was_at: None, old: None, new: None }
    }

    #[test]
    fn a_list_is_split_into_pages_without_loss() {
        let all: Vec<_> = (0..1000).map(|n| difference(vec![b'x'; n % 300])).collect();
        let mut diff = Diff::new_zeroed();
        let mut count = 0;
        while diff.done == 0 {
            fill(&mut diff, &all);
            let mut at = 0;
            while at < diff.len as usize {
                let (change, _) = Change::read_from_prefix(&diff.data[at..]).unwrap();
                assert_eq!(change.path_len as usize, count % 300);
                count += 1;
                at += (size_of::<Change>() + change.path_len as usize).next_multiple_of(8);
            }
        }
        assert_eq!(count, 1000);
    }

    #[test]
    fn a_path_of_any_length_fits_a_page() {
        let long = Difference { from: Some(vec![b'y'; 100_000]), ..difference(vec![b'x'; 100_000]) };
        let mut diff = Diff::new_zeroed();
        fill(&mut diff, &[long]);
        assert_eq!((diff.done, diff.index), (1, 1));
    }
}
