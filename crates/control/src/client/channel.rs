//! A control channel of a mount: begins transactions, ends them, and lists what they change.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{SavepointHandle, ioctl, with_reason};
use crate::TxInfo;
use crate::abi::{
    self, Begin, Change, ChangeKind, ChangeSide, Commit, Diff, Info, Keep, ReadSide, Reason, Select, Status,
    TxStatus, Version,
};

/// A control channel. Closing its last descriptor aborts its transaction.
#[derive(Debug)]
pub struct Channel {
    mount: PathBuf,
    file: File,
}

/// A commit that failed. The transaction is aborted, or stays open if the commit asked for that.
#[derive(Debug)]
pub struct CommitError {
    pub errno: i32,
    pub reason: Reason,
    /// The path of a conflict, from the volume's root.
    pub path: Option<PathBuf>,
    /// In a conflict, the transaction that committed first; `None` if it was a call outside of any.
    pub conflicting_tx: Option<u64>,
    pub why: String,
}

/// One change of a transaction.
#[derive(Debug, Clone)]
pub struct TxChange {
    pub kind: ChangeKind,
    /// From the volume's root, with a leading `/`.
    pub path: Vec<u8>,
    /// The earlier path, in case of a rename.
    pub from: Option<Vec<u8>>,
    pub old: Option<ChangeSide>,
    pub new: Option<ChangeSide>,
}

impl TxChange {
    /// The first change of a page, and the rest.
    fn parse(data: &[u8]) -> Option<(TxChange, &[u8])> {
        let (change, rest) = Change::read_from_prefix(data).ok()?;
        let (path, rest) = rest.split_at_checked(change.path_len as usize)?;
        let (from, _) = rest.split_at_checked(change.from_len as usize)?;
        let len = (size_of::<Change>() + path.len() + from.len()).next_multiple_of(8);
        let side = |side: ChangeSide| (side != ChangeSide::default()).then_some(side);
        let parsed = TxChange {
            kind: ChangeKind::from_number(change.kind)?,
            path: path.to_vec(),
            from: (!from.is_empty()).then(|| from.to_vec()),
            old: side(change.old),
            new: side(change.new),
        };
        Some((parsed, data.get(len..)?))
    }
}

impl Channel {
    /// `mount`: the folder that the volume is mounted on. `ENOENT`, `EOPNOTSUPP`, `EISDIR`: it is
    /// not an xact volume.
    pub fn open(mount: &Path) -> io::Result<Channel> {
        let file = File::options()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_TMPFILE)
            .open(mount.join(abi::FOLDER))?;
        Ok(Channel { mount: mount.to_owned(), file })
    }

    /// Version of the daemon's interface.
    pub fn version(&self) -> io::Result<u32> {
        let mut version = Version::default();
        self.ioctl(abi::IOC_VERSION, version.as_mut_bytes())?;
        Ok(version.abi)
    }

    /// Begins a transaction with `BEGIN_…` flags; returns its number and the root of its view.
    pub fn begin(&self, flags: u32) -> io::Result<(u64, PathBuf)> {
        let mut begin = Begin { flags, ..Begin::default() };
        self.ioctl(abi::IOC_BEGIN, begin.as_mut_bytes())?;
        Ok((begin.id, self.root(begin.id)))
    }

    /// The root of a transaction's view.
    pub fn root(&self, id: u64) -> PathBuf {
        self.mount.join(format!("{}/tx/{id}/root", abi::FOLDER))
    }

    /// Commits, with `COMMIT_…` flags. Returns when the commit is visible to all, and durable
    /// unless the flags only ask for its order.
    pub fn commit(&self, flags: u32) -> Result<(), CommitError> {
        self.decide(abi::IOC_COMMIT, flags).map(drop)
    }

    /// Commits the selected changes; the transaction stays open with the rest. Returns the first
    /// conflict of the changes that were left out, with the reason `None`.
    pub fn commit_selected(&self, flags: u32) -> Result<Option<CommitError>, CommitError> {
        self.decide(abi::IOC_COMMIT, flags | abi::COMMIT_ONLY)
    }

    /// Adds a path, from the volume's root, to the selection of `COMMIT_ONLY` and
    /// [`Channel::drop_selected`]. `EINVAL`: too long.
    pub fn select(&self, path: &[u8]) -> io::Result<()> {
        let mut select = Select::new_zeroed();
        select.path.get_mut(..path.len()).ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(path);
        select.len = path.len() as u32;
        self.ioctl(abi::IOC_SELECT, select.as_mut_bytes())
    }

    /// Drops the selected changes; the transaction stays open.
    pub fn drop_selected(&self) -> Result<(), CommitError> {
        self.decide(abi::IOC_DROP, 0).map(drop)
    }

    fn decide(&self, command: u32, flags: u32) -> Result<Option<CommitError>, CommitError> {
        let mut commit = Commit::new_zeroed();
        commit.flags = flags;
        let done = self.ioctl(command, commit.as_mut_bytes());
        if done.is_ok() && commit.path_len == 0 {
            return Ok(None);
        }
        let cut = |bytes: &[u8], len: u32| bytes[..bytes.len().min(len as usize)].to_vec();
        let path = cut(&commit.path, commit.path_len);
        let why = String::from_utf8_lossy(&cut(&commit.errmsg, commit.errmsg_len)).into_owned();
        let error = done.as_ref().err();
        let report = CommitError {
            errno: error.map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO)),
            reason: Reason::from_number(commit.reason),
            path: (!path.is_empty()).then(|| PathBuf::from(std::ffi::OsString::from_vec(path))),
            conflicting_tx: (commit.conflicting_tx != 0).then_some(commit.conflicting_tx),
            why: match error {
                Some(error) if why.is_empty() => error.to_string(),
                _ => why,
            },
        };
        if done.is_ok() { Ok(Some(report)) } else { Err(report) }
    }

    /// Lets the channel's transaction outlive the channel from now on. `timeout_s`: seconds until
    /// it is dropped, 0 for never. `flags`: `KEEP_…`; if they cannot be met, the transaction is
    /// kept without them, and this fails.
    pub fn keep(&self, timeout_s: u32, label: &[u8], flags: u16) -> io::Result<()> {
        let mut keep = Keep::new_zeroed();
        let len = label.len().min(keep.label.len());
        keep.label[..len].copy_from_slice(&label[..len]);
        (keep.timeout_s, keep.label_len, keep.flags) = (timeout_s, len as u16, flags);
        self.ioctl(abi::IOC_KEEP, keep.as_mut_bytes())
    }

    /// Makes a kept transaction the channel's. `ENOENT`, `EPERM`; `EBUSY`: another channel has it.
    pub fn attach(&self, id: u64) -> io::Result<()> {
        let mut attach = Begin { id, ..Begin::default() };
        self.ioctl(abi::IOC_ATTACH, attach.as_mut_bytes())
    }

    /// The state of a transaction; with `next`, of the next open one above `id`.
    pub fn info(&self, id: u64, next: bool) -> io::Result<TxInfo> {
        let mut info = Info::new_zeroed();
        (info.id, info.flags) = (id, if next { abi::INFO_NEXT } else { 0 });
        self.ioctl(abi::IOC_INFO, info.as_mut_bytes())?;
        Ok(TxInfo {
            id: info.id,
            status: TxStatus::from_number(info.status).ok_or(io::ErrorKind::InvalidData)?,
            uid: info.uid,
            label: info.label[..info.label.len().min(info.label_len as usize)].to_vec(),
            age: Duration::from_millis(info.age_ms),
            left: (info.left_ms > 0).then(|| Duration::from_millis(info.left_ms)),
            persistent: info.flags & abi::INFO_PERSISTENT != 0,
        })
    }

    /// All open transactions that the caller may inspect, by number.
    pub fn list(&self) -> io::Result<Vec<TxInfo>> {
        let mut list: Vec<TxInfo> = Vec::new();
        loop {
            match self.info(list.last().map_or(0, |last| last.id), true) {
                Ok(info) => list.push(info),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(list),
                Err(e) => return Err(e),
            }
        }
    }

    /// The changes of a transaction, by path.
    pub fn diff(&self, id: u64) -> io::Result<Vec<TxChange>> {
        self.list_changes(abi::IOC_DIFF, id)
    }

    /// The changes file by file, as for patches: each path once, no folders renamed.
    pub fn diff_by_file(&self, id: u64) -> io::Result<Vec<TxChange>> {
        self.list_changes(abi::IOC_DIFF_BY_FILE, id)
    }

    fn list_changes(&self, command: u32, id: u64) -> io::Result<Vec<TxChange>> {
        let mut changes = Vec::new();
        let mut diff = Box::new(Diff::new_zeroed());
        diff.id = id;
        while diff.done == 0 {
            self.ioctl(command, diff.as_mut_bytes())?;
            let mut data = &diff.data[..diff.data.len().min(diff.len as usize)];
            while let Some((change, rest)) = TxChange::parse(data) {
                changes.push(change);
                data = rest;
            }
            if !data.is_empty() {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(changes)
    }

    /// A call about the snapshots of the volume, also if the path of the mount may show a view.
    pub fn snapshot(&self, request: &mut abi::Snapshot) -> Result<(), (io::Error, String)> {
        self.ioctl(abi::IOC_SNAPSHOT, request.as_mut_bytes())
            .map_err(|e| with_reason(e, &request.errmsg, request.errmsg_len))
    }

    /// The changes from a snapshot to another, or to the present volume (for an empty name). An
    /// error comes with its reason, if the daemon gave one.
    pub fn diff_snapshots(
        &self,
        request: &mut abi::SnapshotDiff,
    ) -> Result<Vec<TxChange>, (io::Error, String)> {
        self.ioctl(abi::IOC_SNAPSHOT_DIFF, request.as_mut_bytes())
            .map_err(|e| with_reason(e, &request.errmsg, request.errmsg_len))?;
        self.diff(0).map_err(|e| (e, String::new()))
    }

    /// Up to a page of a file's contents on one side of a change, from `offset` on; empty at its
    /// end.
    pub fn read_side(&self, id: u64, ino: u64, new: bool, offset: u64) -> io::Result<Vec<u8>> {
        let mut read = Box::new(ReadSide::new_zeroed());
        (read.id, read.ino, read.offset, read.side) = (id, ino, offset, new.into());
        self.ioctl(abi::IOC_READ, read.as_mut_bytes())?;
        Ok(read.data[..read.data.len().min(read.len as usize)].to_vec())
    }

    /// As [`pool`](super::pool), also if the view that the caller is in has ended.
    pub fn pool(&self) -> io::Result<abi::Pool> {
        let mut pool = abi::Pool::default();
        self.ioctl(abi::IOC_POOL, pool.as_mut_bytes())?;
        Ok(pool)
    }

    /// Makes a savepoint in the channel's transaction.
    pub fn savepoint(&self) -> io::Result<SavepointHandle> {
        SavepointHandle::of(&self.file)
    }

    pub fn abort(&self) -> io::Result<()> {
        self.ioctl(abi::IOC_ABORT, &mut [])
    }

    /// The number of the channel's transaction, if it has one.
    pub fn active(&self) -> io::Result<Option<u64>> {
        let mut status = Status::default();
        self.ioctl(abi::IOC_STATUS, status.as_mut_bytes())?;
        Ok((status.active != 0).then_some(status.id))
    }

    /// Whether the channel's transaction can never commit, because one of its changes conflicts
    /// with a change by others. Its commit reports which.
    pub fn is_doomed(&self) -> io::Result<bool> {
        let mut status = Status::default();
        self.ioctl(abi::IOC_STATUS, status.as_mut_bytes())?;
        Ok(status.doomed != 0)
    }

    /// Makes all changes of the volume so far durable.
    pub fn sync(&self) -> io::Result<()> {
        self.ioctl(abi::IOC_SYNC, &mut [])
    }

    pub(super) fn ioctl(&self, command: u32, argument: &mut [u8]) -> io::Result<()> {
        ioctl(&self.file, command, argument)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
