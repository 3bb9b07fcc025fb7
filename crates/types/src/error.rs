//! The one error type of xact, and its only translation into errno values.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::{BlockNr, GroupNr, Ino};

/// The result of a call of xact.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The place of a corruption on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// The superblock of the volume.
    Superblock,
    /// The superblock of the journal.
    JournalSuperblock,
    /// A root slot of a generations volume, and the blocks that only it points to.
    Root,
    /// The descriptor of a block group.
    Group(GroupNr),
    /// An inode.
    Inode(Ino),
    /// A block of metadata.
    Block(BlockNr),
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Site::Superblock => write!(f, "superblock"),
            Site::JournalSuperblock => write!(f, "journal superblock"),
            Site::Root => write!(f, "root of the generations"),
            Site::Group(g) => write!(f, "descriptor of {g}"),
            Site::Inode(i) => write!(f, "{i}"),
            Site::Block(b) => write!(f, "{b}"),
        }
    }
}

/// The fault of the bytes at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corruption {
    /// The place of the bytes.
    pub site: Site,
    /// The violated expectation, as a phrase ("checksum does not match").
    pub what: &'static str,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.site, self.what)
    }
}

/// All errors, from a torn sector to a conflict of transactions.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed. A failed read leaves the volume unchanged; a failed write or flush
    /// poisons it.
    #[error("{what}: {source}")]
    Io {
        /// The failed action, as a phrase ("reading the superblock").
        what: &'static str,
        /// The error of the device or of `open(2)`.
        source: Arc<io::Error>,
    },
    /// The volume's bytes are not what ext4 allows there.
    #[error("the volume is damaged: {0} (run 'xact check' on it)")]
    Corrupt(Corruption),
    /// The volume needs a feature that xact does not have.
    #[error("the volume uses {0}, which xact does not support")]
    Unsupported(String),
    /// Another process has the volume; the text names it.
    #[error("the volume is in use: {0}")]
    InUse(String),
    /// No block or inode is left for this caller.
    #[error("no space left on the volume")]
    NoSpace,
    /// The image is sparse, and the file system that it lies on has no space for more of it. The
    /// volume works on, and calls succeed again when there is space.
    #[error("no space left on the host file system of the image")]
    HostFull,
    /// A full structure that more free space would not enlarge.
    #[error("no space left in {0}")]
    DoesNotFit(&'static str),
    /// A transaction cannot commit because a change by others conflicts with its reads or writes.
    #[error("conflict on {path}: {why}, by {}", conflicting_tx_text(*conflicting_tx))]
    Conflict {
        /// The path of the conflict, with a leading `/`.
        path: String,
        /// The conflict, as a phrase ("its contents were changed").
        why: &'static str,
        /// The number of the transaction that committed first, or that has made the change first
        /// and was open (eager detection); `None` for a call outside of any.
        conflicting_tx: Option<u64>,
    },
    /// The volume's state at a transaction's begin is no longer available: neither memory nor the
    /// volume had space for the old versions of what others have changed since.
    #[error("the transaction's snapshot is too old: no space was left for the old versions that it needs")]
    TooOld,
    /// The volume was full for others, and the space that a transaction held before its commit was
    /// given to them.
    #[error(
        "the transaction lost its space because the volume was full for others: its changes are discarded"
    )]
    SpaceRevoked,
    /// One transaction needs more journal than there is.
    #[error(
        "the transaction is too large: it needs {blocks} metadata blocks; the limit of one commit on this volume is {limit}"
    )]
    TooLarge {
        /// Number of metadata blocks that the transaction changes.
        blocks: u64,
        /// The most that one commit takes on this volume.
        limit: u64,
    },
    /// An earlier device error or corruption stopped all writing.
    #[error("the volume was made read-only after an error: {0}")]
    Poisoned(Arc<str>),
    /// The volume, or the view, cannot be written.
    #[error("read-only file system")]
    ReadOnly,
    /// The view of a transaction that has ended.
    #[error("the transaction has ended")]
    Ended,
    /// A call's argument or a volume's use is wrong; the text says what and what to do.
    #[error("{0}")]
    Usage(String),
    /// An outcome that POSIX names.
    #[error("{0}")]
    Posix(Errno),
}

/// The other side of a conflict, for messages: a transaction's number, or none.
pub fn conflicting_tx_text(conflicting_tx: Option<u64>) -> String {
    conflicting_tx
        .map_or_else(|| "a program outside of any transaction".into(), |id| format!("transaction {id}"))
}

impl Error {
    /// An error of the device during `what`, a phrase such as "reading the superblock".
    pub fn io(what: &'static str, source: io::Error) -> Error {
        Error::Io { what, source: Arc::new(source) }
    }

    /// A violated expectation `what` about the bytes at a site.
    pub fn corrupt(site: Site, what: &'static str) -> Error {
        Error::Corrupt(Corruption { site, what })
    }

    /// Whether space that becomes free on the volume may help.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::NoSpace | Error::HostFull)
    }

    /// The errno of this error in FUSE, C and Python.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Io { .. } | Error::Poisoned(_) => Errno::EIO,
            Error::Corrupt(_) => Errno::EUCLEAN,
            Error::Unsupported(_) => Errno::EOPNOTSUPP,
            Error::InUse(_) => Errno::EBUSY,
            Error::NoSpace | Error::HostFull | Error::DoesNotFit(_) | Error::SpaceRevoked => Errno::ENOSPC,
            Error::Conflict { .. } => Errno::EAGAIN,
            Error::TooLarge { .. } => Errno::EFBIG,
            Error::ReadOnly => Errno::EROFS,
            Error::Ended | Error::TooOld => Errno::ESTALE,
            Error::Usage(_) => Errno::EINVAL,
            Error::Posix(e) => *e,
        }
    }
}

/// For [`io::Read`] and its relatives: the kind is that of the errno, and the inner error this one.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(io::Error::from_raw_os_error(error.errno().0).kind(), error)
    }
}

impl From<Errno> for Error {
    fn from(e: Errno) -> Error {
        Error::Posix(e)
    }
}

/// A Linux error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errno {
    ($($name:ident)*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "` of `errno(3)`.")]
            pub const $name: Errno = Errno(libc::$name);)*
        }
    };
}

errno! {
    EPERM ENOENT EIO EBADF EAGAIN EACCES EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENOTTY EFBIG
    ENOSPC EDQUOT EROFS EMLINK EMFILE ENFILE ERANGE ENAMETOOLONG ENOSYS ENOTEMPTY ELOOP ENODATA EOVERFLOW
    EOPNOTSUPP ESTALE EUCLEAN ENXIO ETXTBSY EINTR ENOMEM EPROTO E2BIG
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // std appends " (os error N)", which does not help a reader.
        let text = io::Error::from_raw_os_error(self.0).to_string();
        f.write_str(text.split(" (os error").next().unwrap_or(&text))
    }
}
