//! Moves a process or thread into the view of a transaction: the mounts of a volume, the mount
//! namespace in which the view covers them, and the descriptors that were opened before. `xact run`
//! does it for a process that is about to start a command, `libxact` for a running thread, which
//! returns at the end.

pub mod descriptors;
pub mod file_identity;
pub mod long_path;
pub mod mappings;
pub mod mount;
pub mod mounts;
pub mod namespace;
mod ours;
mod statmount;
pub mod staying;

use std::fmt;
use std::io;

/// The reason why a process or thread could not be moved into a view. Nothing has been done on the
/// volume.
#[derive(Debug)]
pub enum Error {
    /// A system call failed; `doing` completes "cannot …". `resource`: the cause is a limit of the
    /// system, and not the volume.
    System { doing: String, error: io::Error, resource: bool, hint: Option<&'static str> },
    /// An obstacle that the caller can remove.
    Busy { what: String, hint: String },
    /// There is no xact volume at the given place; the text names it.
    NoVolume(String),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    fn system(doing: impl fmt::Display, error: impl Into<io::Error>) -> Error {
        Error::System { doing: doing.to_string(), error: error.into(), resource: false, hint: None }
    }

    /// The system refused a namespace or mount. The volume is not the cause.
    fn refused(doing: impl fmt::Display, error: impl Into<io::Error>, hint: Option<&'static str>) -> Error {
        Error::System { doing: doing.to_string(), error: error.into(), resource: true, hint }
    }

    /// The error number for callers in C.
    pub fn errno(&self) -> i32 {
        match self {
            Error::System { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
            Error::Busy { .. } => libc::EBUSY,
            Error::NoVolume(_) => libc::ENODEV,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::System { doing, error, hint, .. } => {
                let text = error.to_string();
                write!(f, "cannot {doing}: {}", text.split(" (os error").next().unwrap_or(&text))?;
                hint.map_or(Ok(()), |hint| write!(f, ". {hint}"))
            }
            Error::Busy { what, hint } => write!(f, "{what}. {hint}"),
            Error::NoVolume(what) => f.write_str(what),
        }
    }
}
