//! A transaction of this process: on a channel of its own, or within the one that it runs in.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use xact_control::abi::{BEGIN_OWN_INODES, COMMIT_RETAIN, Reason};
use xact_control::client::{Channel, CommitError, SavepointHandle};
use xact_namespace::file_identity::FileIdentity;

use crate::mount_path::MountPath;

/// A transaction, with the folder in its view that it was begun at.
pub struct Tx {
    kind: Kind,
    dir: File,
}

enum Kind {
    Own {
        channel: Channel,
        id: u64,
    },
    /// A savepoint in the transaction that this process runs in.
    Within(SavepointHandle),
}

/// Why a commit was refused.
pub struct Failed {
    pub errno: i32,
    pub reason: Reason,
    pub conflicting_tx: Option<u64>,
    pub path: Option<Vec<u8>>,
    pub why: String,
}

impl Failed {
    pub fn of(error: CommitError) -> Failed {
        Failed {
            errno: error.errno,
            reason: error.reason,
            conflicting_tx: error.conflicting_tx,
            path: error.path.map(|path| path.into_os_string().into_vec()),
            why: error.why,
        }
    }

    pub fn of_io(error: &io::Error) -> Failed {
        let text = error.to_string();
        let why = match error.raw_os_error() {
            Some(libc::ESTALE) => "the transaction has ended",
            Some(libc::ENOTCONN | libc::ECONNABORTED) => "the daemon of the mount is gone",
            _ => text.split(" (os error").next().unwrap_or(&text),
        };
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Failed { errno, reason: Reason::Other, conflicting_tx: None, path: None, why: why.to_owned() }
    }

    /// As `of_io`, with what it is about before it.
    fn of_io_at(what: impl Display, error: &io::Error) -> Failed {
        let failed = Failed::of_io(error);
        Failed { why: format!("{what}: {}", failed.why), ..failed }
    }

    /// No xact volume is where one was looked for.
    fn no_volume(at: &Path) -> Failed {
        let why = format!("{} is not on a mounted xact volume", at.display());
        Failed { why, ..Failed::of_errno(libc::ENODEV) }
    }

    /// A control channel of the mount that has `at` could not be opened, or no transaction begun on
    /// it.
    pub fn of_channel(at: &Path, error: &io::Error) -> Failed {
        match error.raw_os_error() {
            // Other file systems know nothing of it.
            Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EISDIR | libc::ENOTTY | libc::ENOSYS) => {
                Failed::no_volume(at)
            }
            _ => Failed::of_io_at(at.display(), error),
        }
    }

    /// There is nothing that could be ended.
    pub fn none_open() -> Failed {
        Failed { why: "this thread has no open transaction".into(), ..Failed::of_errno(libc::ESTALE) }
    }

    /// This process is a child of the one that began the transaction.
    pub fn of_parent() -> Failed {
        let why = "the transaction was begun by the process that forked this one".into();
        Failed { why, ..Failed::of_errno(libc::EPERM) }
    }

    pub fn of_errno(errno: i32) -> Failed {
        Failed::of_io(&io::Error::from_raw_os_error(errno))
    }

    pub fn of_namespace(error: &xact_namespace::Error) -> Failed {
        Failed { why: error.to_string(), ..Failed::of_errno(error.errno()) }
    }
}

impl Tx {
    pub fn begin(at: &Path, flags: u32) -> Result<Tx, Failed> {
        let wrong = |e: io::Error| Failed::of_io_at(at.display(), &e);
        if !FileIdentity::of_path(at).map_err(|e| wrong(e.into()))?.is_dir() {
            return Err(wrong(io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        let place = MountPath::of(at).map_err(wrong)?;
        match SavepointHandle::begin(&place.mount) {
            Ok(inner) => {
                let dir = File::open(at).map_err(wrong)?;
                return Ok(Tx { dir, kind: Kind::Within(inner) });
            }
            // In no transaction.
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => {}
            Err(e) => return Err(wrong(e)),
        }
        let none = |e: io::Error| Failed::of_channel(at, &e);
        let channel = Channel::open(&place.mount).map_err(none)?;
        // A process may have several, and SQLite takes files of one number for one file.
        let (id, root) = channel.begin(flags | BEGIN_OWN_INODES).map_err(none)?;
        // Closing the channel aborts, where the folder is none any more.
        let dir = File::open(root.join(place.below)).map_err(wrong)?;
        Ok(Tx { dir, kind: Kind::Own { channel, id } })
    }

    /// 0 within another one.
    pub fn id(&self) -> u64 {
        match &self.kind {
            Kind::Own { id, .. } => *id,
            Kind::Within(_) => 0,
        }
    }

    /// Whether its commit is known to be refused; within another one that is the other's to say.
    pub fn is_doomed(&self) -> io::Result<bool> {
        match &self.kind {
            Kind::Own { channel, .. } => channel.is_doomed(),
            Kind::Within(_) => Ok(false),
        }
    }

    pub fn dir(&self) -> &File {
        &self.dir
    }

    /// Where it is refused and was to be retained, it comes back.
    pub fn commit(self, flags: u32) -> Result<(), (Option<Tx>, Failed)> {
        let Tx { kind, dir } = self;
        match kind {
            Kind::Own { channel, id } => match channel.commit(flags) {
                Ok(()) => Ok(()),
                Err(error) => {
                    let retained = flags & COMMIT_RETAIN != 0;
                    let left = retained.then_some(Tx { kind: Kind::Own { channel, id }, dir });
                    Err((left, Failed::of(error)))
                }
            },
            Kind::Within(inner) => inner.release().map_err(|e| (None, Failed::of_io(&e))),
        }
    }

    pub fn abort(self) -> io::Result<()> {
        match self.kind {
            Kind::Own { channel, .. } => channel.abort(),
            Kind::Within(inner) => inner.roll_back(),
        }
    }

    pub fn savepoint(&self) -> io::Result<u64> {
        SavepointHandle::of(&self.dir).map(|inner| inner.number())
    }

    pub fn roll_back(&self, number: u64) -> io::Result<()> {
        SavepointHandle::with_number(&self.dir, number)?.roll_back()
    }

    pub fn release(&self, number: u64) -> io::Result<()> {
        SavepointHandle::with_number(&self.dir, number)?.release()
    }
}
