//! Exit codes, and the error type of all commands.
//!
//! The codes follow `sysexits.h` where it has a fitting one, so that a script can distinguish wrong
//! usage from a full volume and from a conflict that is worth another try.

use std::fmt;
use std::io;
use std::path::Path;

use xact::Error;
use xact::text::printable;

/// The exit code of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Wrong usage, or an operation that needs `--force`.
    Usage = 64,
    /// A check found problems.
    Damaged = 65,
    /// A named image, folder or file does not exist.
    NoInput = 66,
    /// Nothing is mounted at the path, or the volume is in use.
    Unavailable = 69,
    /// The operating system denied a resource (a process, a namespace, memory).
    System = 71,
    /// The file system that the image lies on is full, and the image is sparse.
    HostFull = 72,
    /// No space on the volume.
    NoSpace = 73,
    /// The device failed, or the volume is damaged.
    Io = 74,
    /// Another change conflicts with the transaction. Another try may succeed.
    Conflict = 75,
    /// `--best-effort` has saved a damaged volume in part.
    Incomplete = 76,
    /// Not permitted.
    NoPermission = 77,
    /// The volume uses a feature that xact does not support.
    Unsupported = 78,
}

impl Exit {
    const ALL: [Exit; 12] = [
        Exit::Usage,
        Exit::Damaged,
        Exit::NoInput,
        Exit::Unavailable,
        Exit::System,
        Exit::HostFull,
        Exit::NoSpace,
        Exit::Io,
        Exit::Conflict,
        Exit::Incomplete,
        Exit::NoPermission,
        Exit::Unsupported,
    ];

    /// The exit with this code, which another xact process returned.
    pub fn from_code(code: u8) -> Exit {
        Exit::ALL.into_iter().find(|exit| *exit as u8 == code).unwrap_or(Exit::System)
    }
}

/// The table in `--help` and in the man pages.
pub const HELP: &str = "\
Exit codes:
  0    success
  64   wrong usage, or --force is needed
  65   'xact check' found problems
  66   a named image, folder or file does not exist
  69   nothing is mounted at the path, or the volume is in use
  71   the operating system denied a process, a namespace or memory
  72   the file system that the image lies on is full
  73   no space on the volume
  74   I/O error, a damaged volume, or changes that could not be saved
  75   conflict: another change was committed first; retrying may succeed
  76   --best-effort has saved a damaged volume in part
  77   no permission
  78   the volume uses a feature that xact does not support";

/// The additions of `xact run` to the table.
pub const RUN_HELP: &str = "\
Exit codes of run:
  0    CMD succeeded, and its changes are durable (with --leave-open: the transaction is open)
  1    with the message 'aborted as requested': --ask was answered with no
  126  CMD could not be executed
  127  CMD was not found
  128+N  signal N terminated CMD
  Otherwise, the exit status of CMD if it failed; then nothing was changed.
  The codes of xact itself (75 conflict, 74 I/O, 73 no space, ...) come with a message that begins
  with 'xact run: error:'; programs distinguish them from those of CMD by --status-file.";

/// A failed command: its exit code and its message.
#[derive(Debug, Clone)]
pub struct Failure {
    pub exit: Exit,
    /// The event and its path, in one line.
    pub message: String,
    /// Advice for the user.
    pub hint: Option<String>,
    /// The path of a conflict, on the volume.
    pub path: Option<String>,
    /// The transaction that a conflict is with; `None` for a program outside of any transaction.
    pub conflicting_tx: Option<u64>,
    /// 126 or 127, if the command of `xact run` could not be run.
    shell_code: Option<u8>,
}

pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure {
            exit,
            message: message.into(),
            hint: None,
            path: None,
            conflicting_tx: None,
            shell_code: None,
        }
    }

    /// A command that could not be run, with the code of a shell.
    pub fn of_shell(code: u8, message: impl Into<String>) -> Failure {
        Failure { shell_code: Some(code), ..Failure::new(Exit::NoInput, message) }
    }

    /// The exit code of the process.
    pub fn code(&self) -> u8 {
        self.shell_code.unwrap_or(self.exit as u8)
    }

    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// With a path on the volume.
    pub fn path(mut self, path: String) -> Failure {
        self.path = Some(path);
        self
    }

    /// With the transaction that a conflict is with.
    pub fn conflicting_tx(mut self, id: Option<u64>) -> Failure {
        self.conflicting_tx = id;
        self
    }

    /// With another exit code.
    pub fn exit(mut self, exit: Exit) -> Failure {
        self.exit = exit;
        self
    }

    /// An error of the operating system; `doing` completes "cannot …".
    pub fn system(doing: impl fmt::Display, error: impl Into<io::Error>) -> Failure {
        let error = error.into();
        Failure::new(exit_of_io(&error), format!("cannot {doing}: {}", plain(&error)))
    }

    /// An error of a call before any volume is opened.
    pub fn unnamed(error: Error) -> Failure {
        Failure::new(exit_of(&error), error.to_string())
    }

    /// An error of the volume at `path`.
    pub fn volume(path: &Path, error: Error) -> Failure {
        let mut failure = Failure::new(exit_of(&error), format!("{}: {error}", path.display()));
        if let Error::Conflict { path, .. } = error {
            failure.path = Some(path);
        }
        failure
    }
}

impl From<xact_namespace::Error> for Failure {
    fn from(error: xact_namespace::Error) -> Failure {
        match error {
            xact_namespace::Error::Busy { what, hint } => Failure::usage(what).hint(hint),
            xact_namespace::Error::NoVolume(what) => Failure::new(Exit::Unavailable, what),
            xact_namespace::Error::System { doing, error, resource, hint } => {
                let failure = Failure::system(doing, error);
                let failure = match (resource, failure.exit) {
                    (true, exit) if exit != Exit::NoPermission => failure.exit(Exit::System),
                    _ => failure,
                };
                hint.map_or(failure.clone(), |hint| failure.hint(hint))
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The message may contain a path or a label that another user chose.
        f.write_str(&printable(&self.message))?;
        match &self.hint {
            Some(hint) => write!(f, "\n  {hint}"),
            None => Ok(()),
        }
    }
}

/// The text of an error of the operating system without "(os error N)".
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

pub fn exit_of_io(error: &io::Error) -> Exit {
    match error.raw_os_error() {
        Some(code) => exit_of_errno(code),
        None => match error.kind() {
            io::ErrorKind::NotFound => Exit::NoInput,
            io::ErrorKind::PermissionDenied => Exit::NoPermission,
            io::ErrorKind::InvalidInput => Exit::Usage,
            _ => Exit::Io,
        },
    }
}

pub fn exit_of_errno(code: i32) -> Exit {
    match code {
        libc::ENOENT | libc::ENOTDIR | libc::ENXIO => Exit::NoInput,
        libc::EPERM | libc::EACCES | libc::EROFS => Exit::NoPermission,
        libc::EBUSY | libc::EAGAIN | libc::ENOTCONN | libc::ENODEV | libc::ETXTBSY => Exit::Unavailable,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Exit::NoSpace,
        libc::ENOMEM | libc::EMFILE | libc::ENFILE => Exit::System,
        libc::EINVAL | libc::EISDIR | libc::EEXIST | libc::ENAMETOOLONG => Exit::Usage,
        libc::EOPNOTSUPP | libc::ENOSYS => Exit::Unsupported,
        _ => Exit::Io,
    }
}

fn exit_of(error: &Error) -> Exit {
    match error {
        Error::Io { source, .. } => match exit_of_io(source) {
            // A failing device is an I/O error whatever its error number. The codes below are not
            // failures of the device but of opening it.
            exit @ (Exit::NoInput | Exit::NoPermission | Exit::Unavailable | Exit::NoSpace) => exit,
            _ => Exit::Io,
        },
        Error::Corrupt(_) | Error::Poisoned(_) => Exit::Io,
        Error::Unsupported(_) => Exit::Unsupported,
        Error::NoSpace | Error::DoesNotFit(_) | Error::SpaceRevoked | Error::TooLarge { .. } => Exit::NoSpace,
        Error::HostFull => Exit::HostFull,
        Error::Conflict { .. } => Exit::Conflict,
        Error::ReadOnly => Exit::NoPermission,
        Error::Ended | Error::TooOld | Error::InUse(_) => Exit::Unavailable,
        Error::Usage(_) => Exit::Usage,
        Error::Posix(errno) => exit_of_errno(errno.0),
        // The library may get new errors, which at least have an errno.
        _ => exit_of_errno(error.errno().0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_code() {
        for exit in Exit::ALL {
            assert!(HELP.contains(&format!("\n  {}   ", exit as u8)), "{exit:?} is not in the table");
        }
    }

    #[test]
    fn errors_of_the_volume_have_their_codes() {
        let path = Path::new("disk.img");
        let exit = |error| Failure::volume(path, error).exit;
        assert_eq!(exit(Error::NoSpace), Exit::NoSpace);
        assert_eq!(exit(Error::HostFull), Exit::HostFull);
        assert_eq!(exit(Error::Unsupported("encryption".into())), Exit::Unsupported);
        assert_eq!(exit(Error::io("read", io::Error::from_raw_os_error(libc::EIO))), Exit::Io);
        assert_eq!(
            exit(Error::io("open", io::Error::from_raw_os_error(libc::EWOULDBLOCK))),
            Exit::Unavailable
        );
        let conflict = Failure::volume(
            path,
            Error::Conflict { path: "/a".into(), why: "changed", conflicting_tx: None },
        );
        assert_eq!((conflict.exit, conflict.path.as_deref()), (Exit::Conflict, Some("/a")));
    }

    #[test]
    fn texts_have_no_os_error_numbers() {
        let failure = Failure::system("open x", io::Error::from_raw_os_error(libc::ENOENT)).hint("Make it.");
        assert_eq!(failure.to_string(), "cannot open x: No such file or directory\n  Make it.");
        assert_eq!(failure.exit, Exit::NoInput);
    }
}
