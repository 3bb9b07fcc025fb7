//! The control channel of a mount, from the side of a program that uses it (Rust's counterpart
//! to `include/xact_ioctl.h`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::control::{
    self, Begin, Change, ChangeKind, ChangeSide, Commit, Counters, Diff, Info, Keep, ReadSide, Reason,
    Savepoint, Select, Standing, Status, Version,
};

/// A control channel. Dropping the last descriptor of it aborts its transaction.
#[derive(Debug)]
pub struct Channel {
    mount: PathBuf,
    file: File,
}

/// A commit that failed; the transaction is aborted, or goes on if it was to be retained.
#[derive(Debug)]
pub struct CommitError {
    pub errno: i32,
    pub reason: Reason,
    /// Of a conflict, from the volume's root.
    pub path: Option<PathBuf>,
    /// Of a conflict, the transaction that came first; none where it was a call outside of any.
    pub winner: Option<u64>,
    pub why: String,
}

/// What is known of a transaction.
#[derive(Debug, Clone)]
pub struct TxInfo {
    pub id: u64,
    pub standing: Standing,
    pub uid: u32,
    pub label: Vec<u8>,
    /// Since its begin.
    pub age: Duration,
    /// Until its time runs out.
    pub left: Option<Duration>,
    /// It survives the end of the mount.
    pub persistent: bool,
}

/// One change of a transaction.
#[derive(Debug, Clone)]
pub struct TxChange {
    pub kind: ChangeKind,
    /// From the volume's root, with a leading `/`.
    pub path: Vec<u8>,
    /// Where a renamed one was.
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
    /// `mount`: the folder that the volume is mounted on. `ENOENT`, `EOPNOTSUPP`, `EISDIR`: it is none of
    /// ours.
    pub fn open(mount: &Path) -> io::Result<Channel> {
        let file = File::options()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_TMPFILE)
            .open(mount.join(control::FOLDER))?;
        Ok(Channel { mount: mount.to_owned(), file })
    }

    /// Version of the daemon's interface.
    pub fn version(&self) -> io::Result<u32> {
        let mut version = Version::default();
        self.ioctl(control::IOC_VERSION, version.as_mut_bytes())?;
        Ok(version.abi)
    }

    /// Begins a transaction with `BEGIN_…` flags; returns its number and the root of its view.
    pub fn begin(&self, flags: u32) -> io::Result<(u64, PathBuf)> {
        let mut begin = Begin { flags, ..Begin::default() };
        self.ioctl(control::IOC_BEGIN, begin.as_mut_bytes())?;
        Ok((begin.id, self.root(begin.id)))
    }

    /// The root of a transaction's view.
    pub fn root(&self, id: u64) -> PathBuf {
        self.mount.join(format!("{}/tx/{id}/root", control::FOLDER))
    }

    /// Commits, with `COMMIT_…` flags. Returns when it is visible to all, and durable unless it was
    /// asked only to keep the order.
    pub fn commit(&self, flags: u32) -> Result<(), CommitError> {
        self.decide(control::IOC_COMMIT, flags)
    }

    /// Adds a path, from the volume's root, to what `COMMIT_ONLY` and [`Channel::drop_selected`]
    /// mean. `EINVAL`: too long.
    pub fn select(&self, path: &[u8]) -> io::Result<()> {
        let mut select = Select::new_zeroed();
        select.path.get_mut(..path.len()).ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(path);
        select.len = path.len() as u32;
        self.ioctl(control::IOC_SELECT, select.as_mut_bytes())
    }

    /// Drops the selected changes; the transaction goes on.
    pub fn drop_selected(&self) -> Result<(), CommitError> {
        self.decide(control::IOC_DROP, 0)
    }

    fn decide(&self, command: u32, flags: u32) -> Result<(), CommitError> {
        let mut commit = Commit::new_zeroed();
        commit.flags = flags;
        let Err(error) = self.ioctl(command, commit.as_mut_bytes()) else { return Ok(()) };
        let cut = |bytes: &[u8], len: u32| bytes[..bytes.len().min(len as usize)].to_vec();
        let path = cut(&commit.path, commit.path_len);
        let why = String::from_utf8_lossy(&cut(&commit.why, commit.why_len)).into_owned();
        Err(CommitError {
            errno: error.raw_os_error().unwrap_or(libc::EIO),
            reason: Reason::from_number(commit.reason),
            path: (!path.is_empty()).then(|| PathBuf::from(std::ffi::OsString::from_vec(path))),
            winner: (commit.winner != 0).then_some(commit.winner),
            why: if why.is_empty() { error.to_string() } else { why },
        })
    }

    /// The channel's transaction outlives the channel from now on. `timeout_s`: seconds until it is
    /// dropped, 0 for never. `flags`: `KEEP_…`; where it cannot be kept so, it is kept without, and this fails.
    pub fn keep(&self, timeout_s: u32, label: &[u8], flags: u16) -> io::Result<()> {
        let mut keep = Keep::new_zeroed();
        let len = label.len().min(keep.label.len());
        keep.label[..len].copy_from_slice(&label[..len]);
        (keep.timeout_s, keep.label_len, keep.flags) = (timeout_s, len as u16, flags);
        self.ioctl(control::IOC_KEEP, keep.as_mut_bytes())
    }

    /// Makes a kept transaction the channel's. `ENOENT`, `EPERM`; `EBUSY`: another channel has it.
    pub fn attach(&self, id: u64) -> io::Result<()> {
        let mut attach = Begin { id, ..Begin::default() };
        self.ioctl(control::IOC_ATTACH, attach.as_mut_bytes())
    }

    /// What is known of a transaction: with `next`, of the next open one above `id`.
    pub fn info(&self, id: u64, next: bool) -> io::Result<TxInfo> {
        let mut info = Info::new_zeroed();
        (info.id, info.flags) = (id, if next { control::INFO_NEXT } else { 0 });
        self.ioctl(control::IOC_INFO, info.as_mut_bytes())?;
        Ok(TxInfo {
            id: info.id,
            standing: Standing::from_number(info.standing).ok_or(io::ErrorKind::InvalidData)?,
            uid: info.uid,
            label: info.label[..info.label.len().min(info.label_len as usize)].to_vec(),
            age: Duration::from_millis(info.age_ms),
            left: (info.left_ms > 0).then(|| Duration::from_millis(info.left_ms)),
            persistent: info.flags & control::INFO_PERSISTENT != 0,
        })
    }

    /// All open transactions that one may look at, by number.
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

    /// What a transaction would change, by path.
    pub fn diff(&self, id: u64) -> io::Result<Vec<TxChange>> {
        self.list_changes(control::IOC_DIFF, id)
    }

    /// The same file by file, as for patches: each path once, no folders renamed.
    pub fn diff_by_file(&self, id: u64) -> io::Result<Vec<TxChange>> {
        self.list_changes(control::IOC_DIFF_BY_FILE, id)
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

    /// As [`snapshot`], where the path of the mount may show a view.
    pub fn snapshot(&self, request: &mut control::Snapshot) -> Result<(), (io::Error, String)> {
        self.ioctl(control::IOC_SNAPSHOT, request.as_mut_bytes()).map_err(|error| told(error, request))
    }

    /// What differs from a snapshot to another, or to the volume as it is now (for an empty name). An error
    /// comes with its reason, as far as the daemon gave one.
    pub fn diff_snapshots(
        &self,
        request: &mut control::SnapshotDiff,
    ) -> Result<Vec<TxChange>, (io::Error, String)> {
        self.ioctl(control::IOC_SNAPSHOT_DIFF, request.as_mut_bytes()).map_err(|error| {
            let len = (request.why_len as usize).min(request.why.len());
            (error, String::from_utf8_lossy(&request.why[..len]).into_owned())
        })?;
        self.diff(0).map_err(|e| (e, String::new()))
    }

    /// Up to a page of a file's contents on one side of a change, from `offset` on; empty at its end.
    pub fn read_side(&self, id: u64, ino: u64, new: bool, offset: u64) -> io::Result<Vec<u8>> {
        let mut read = Box::new(ReadSide::new_zeroed());
        (read.id, read.ino, read.offset, read.side) = (id, ino, offset, new.into());
        self.ioctl(control::IOC_READ, read.as_mut_bytes())?;
        Ok(read.data[..read.data.len().min(read.len as usize)].to_vec())
    }

    /// As [`pool`], also where the view that the caller is in has ended.
    pub fn pool(&self) -> io::Result<control::Pool> {
        let mut pool = control::Pool::default();
        self.ioctl(control::IOC_POOL, pool.as_mut_bytes())?;
        Ok(pool)
    }

    pub fn abort(&self) -> io::Result<()> {
        self.ioctl(control::IOC_ABORT, &mut [])
    }

    /// Number of the channel's transaction, if it has one.
    pub fn active(&self) -> io::Result<Option<u64>> {
        let mut status = Status::default();
        self.ioctl(control::IOC_STATUS, status.as_mut_bytes())?;
        Ok((status.active != 0).then_some(status.id))
    }

    /// Whether the channel's transaction can never commit: a change in it has met what others have
    /// changed. Its commit says what.
    pub fn is_doomed(&self) -> io::Result<bool> {
        let mut status = Status::default();
        self.ioctl(control::IOC_STATUS, status.as_mut_bytes())?;
        Ok(status.doomed != 0)
    }

    /// Makes everything done so far on the volume durable.
    pub fn sync(&self) -> io::Result<()> {
        self.ioctl(control::IOC_SYNC, &mut [])
    }

    fn ioctl(&self, command: u32, argument: &mut [u8]) -> io::Result<()> {
        ioctl(&self.file, command, argument)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Makes everything done so far on the volume of `mount` durable (`XACT_IOC_SYNC`); works on
/// read-only mounts too. `ENOTTY`: it is none of ours.
pub fn sync(mount: &Path) -> io::Result<()> {
    ioctl(&File::open(mount)?, control::IOC_SYNC, &mut [])
}

/// A begin within a transaction, from inside its view.
#[derive(Debug)]
pub struct Inner {
    folder: File,
    number: u64,
}

impl Inner {
    /// Makes a savepoint in the transaction whose view `folder` lies in. `ENOTTY`: it lies in none.
    pub fn begin(folder: &Path) -> io::Result<Inner> {
        Inner::of(&File::open(folder)?)
    }

    /// As [`Inner::begin`], with a file or folder of the view that is open.
    pub fn of(folder: &File) -> io::Result<Inner> {
        let folder = folder.try_clone()?;
        let mut savepoint = Savepoint::default();
        ioctl(&folder, control::IOC_SAVEPOINT, savepoint.as_mut_bytes())?;
        Ok(Inner { folder, number: savepoint.number })
    }

    /// A savepoint that was made before, by its number.
    pub fn again(folder: &File, number: u64) -> io::Result<Inner> {
        Ok(Inner { folder: folder.try_clone()?, number })
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Makes what was done since part of the transaction around it.
    pub fn release(self) -> io::Result<()> {
        ioctl(&self.folder, control::IOC_RELEASE, Savepoint { number: self.number }.as_mut_bytes())
    }

    /// Undoes what was done since.
    pub fn roll_back(self) -> io::Result<()> {
        ioctl(&self.folder, control::IOC_ROLLBACK, Savepoint { number: self.number }.as_mut_bytes())
    }
}

/// A call about the snapshots of the volume of `mount` (`XACT_IOC_SNAPSHOT`); an error comes with its
/// reason, as far as the daemon gave one.
pub fn snapshot(mount: &Path, request: &mut control::Snapshot) -> Result<(), (io::Error, String)> {
    let file = File::open(mount).map_err(|e| (e, String::new()))?;
    ioctl(&file, control::IOC_SNAPSHOT, request.as_mut_bytes()).map_err(|error| told(error, request))
}

/// As [`snapshot`], of chosen paths (`XACT_IOC_SNAPSHOT_PATHS`).
pub fn snapshot_paths(mount: &Path, request: &mut control::SnapshotPaths) -> Result<(), (io::Error, String)> {
    let file = File::open(mount).map_err(|e| (e, String::new()))?;
    ioctl(&file, control::IOC_SNAPSHOT_PATHS, request.as_mut_bytes()).map_err(|error| {
        let len = (request.why_len as usize).min(request.why.len());
        (error, String::from_utf8_lossy(&request.why[..len]).into_owned())
    })
}

/// An error with the reason that came with it.
fn told(error: io::Error, answer: &control::Snapshot) -> (io::Error, String) {
    let len = (answer.why_len as usize).min(answer.why.len());
    (error, String::from_utf8_lossy(&answer.why[..len]).into_owned())
}

/// Version of the interface of the daemon that serves `mount`; `ENOTTY`: it is none of ours.
pub fn version(mount: &Path) -> io::Result<u32> {
    let mut bytes = [0; size_of::<Version>()];
    ioctl(&File::open(mount)?, control::IOC_VERSION, &mut bytes)?;
    Ok(Version::read_from_bytes(&bytes).map_or(0, |v| v.abi))
}

/// Figures of the volume that is mounted at `mount`; `ENOTTY`: it is none of ours.
pub fn counters(mount: &Path) -> io::Result<Counters> {
    let mut counters = Counters::default();
    ioctl(&File::open(mount)?, control::IOC_COUNTERS, counters.as_mut_bytes())?;
    Ok(counters)
}

/// How full the pool of the volume is that is mounted at `mount`; all 0 where it has none.
pub fn pool(mount: &Path) -> io::Result<control::Pool> {
    let mut pool = control::Pool::default();
    ioctl(&File::open(mount)?, control::IOC_POOL, pool.as_mut_bytes())?;
    Ok(pool)
}

/// What each user has of the daemon of `mount`, as far as the caller may know, and what one may have.
pub fn users(mount: &Path) -> io::Result<(Vec<control::UserUse>, control::UserUse)> {
    let file = File::open(mount)?;
    let (mut all, mut users) = (Vec::new(), Box::new(control::Users::new_zeroed()));
    loop {
        ioctl(&file, control::IOC_USERS, users.as_mut_bytes())?;
        all.extend_from_slice(&users.users[..(users.len as usize).min(control::USERS_MAX)]);
        if users.done != 0 {
            return Ok((all, users.limits));
        }
    }
}

/// How long syncs and commits took on the volume that is mounted at `mount`.
pub fn latencies(mount: &Path) -> io::Result<control::Latencies> {
    let mut latencies = control::Latencies::new_zeroed();
    ioctl(&File::open(mount)?, control::IOC_LATENCIES, latencies.as_mut_bytes())?;
    Ok(latencies)
}

/// A call about the modes of the volume of `mount` (`XACT_IOC_MODES`); an error comes with its reason,
/// as far as the daemon gave one.
pub fn modes(mount: &Path, request: &mut control::Modes) -> Result<(), (io::Error, String)> {
    let file = File::open(mount).map_err(|e| (e, String::new()))?;
    ioctl(&file, control::IOC_MODES, request.as_mut_bytes()).map_err(|error| {
        let len = (request.why_len as usize).min(request.why.len());
        (error, String::from_utf8_lossy(&request.why[..len]).into_owned())
    })
}

fn ioctl(file: &File, command: u32, argument: &mut [u8]) -> io::Result<()> {
    // SAFETY: the command's number says how many bytes the kernel copies, and `argument` is the
    // struct of that size; a command without one ignores the pointer.
    let done =
        unsafe { libc::ioctl(file.as_raw_fd(), libc::c_ulong::from(command) as _, argument.as_mut_ptr()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
