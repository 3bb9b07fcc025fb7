//! A transaction of this process: on a channel of its own, or inside the transaction that the
//! process runs in.

use std::fs::File;
use std::io;
use std::path::Path;

use xact_control::abi::{BEGIN_OWN_INODES, COMMIT_CONSOLIDATE, COMMIT_ORDERED, COMMIT_RETAIN};
use xact_control::client::{Channel, SavepointHandle};
use xact_namespace::file_identity::FileIdentity;
use xact_namespace::long_path::open_folder;

use crate::failure::Failed;
use crate::mount_path::MountPath;

/// A transaction, with the folder that it was begun at, as its view shows it.
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

/// `EINVAL` for commit flags that the library does not know. Checked before anything else: a call
/// that fails for its arguments leaves the transaction open.
pub fn check_commit_flags(flags: u32) -> Result<(), Failed> {
    const KNOWN: u32 = COMMIT_ORDERED | COMMIT_RETAIN | COMMIT_CONSOLIDATE;
    match flags & !KNOWN {
        0 => Ok(()),
        unknown => {
            let text = format!("a commit has no flag {unknown:#x}; the transaction is still open");
            Err(Failed::new(libc::EINVAL, text))
        }
    }
}

impl Tx {
    pub fn begin(at: &Path, flags: u32) -> Result<Tx, Failed> {
        let wrong = |e: io::Error| Failed::of_io_at(at.display(), &e);
        if !FileIdentity::of_path(at).map_err(|e| wrong(e.into()))?.is_dir() {
            return Err(wrong(io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        let mount_path = MountPath::of(at).map_err(wrong)?;
        match SavepointHandle::begin(&mount_path.mount) {
            Ok(inner) => {
                let dir = File::open(at).map_err(wrong)?;
                return Ok(Tx { dir, kind: Kind::Within(inner) });
            }
            // The process runs in no transaction.
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => {}
            Err(e) => return Err(wrong(e)),
        }
        let none = |e: io::Error| Failed::of_channel(at, &e);
        let channel = Channel::open(&mount_path.mount).map_err(none)?;
        // A process may have several, and SQLite identifies files by their inode numbers.
        let (id, root) = channel.begin(flags | BEGIN_OWN_INODES).map_err(none)?;
        // If the folder does not exist in the view, closing the channel aborts.
        let dir = open_folder(&root.join(mount_path.below)).map_err(wrong)?;
        Ok(Tx { dir, kind: Kind::Own { channel, id } })
    }

    /// 0 inside another transaction.
    pub fn id(&self) -> u64 {
        match &self.kind {
            Kind::Own { id, .. } => *id,
            Kind::Within(_) => 0,
        }
    }

    /// Whether its commit is known to be refused. Inside another transaction, that one reports it.
    pub fn is_doomed(&self) -> io::Result<bool> {
        match &self.kind {
            Kind::Own { channel, .. } => channel.is_doomed(),
            Kind::Within(_) => Ok(false),
        }
    }

    pub fn dir(&self) -> &File {
        &self.dir
    }

    /// Returns the transaction too if the commit was refused and the flags retain it.
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
