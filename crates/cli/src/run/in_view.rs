//! This program as `xact-run-helper` starts it: in the namespace of the view, as the user, without
//! a right of its own. It opens the inherited descriptors again in the view, enters the current
//! folder there, and becomes the command.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use xact_namespace::descriptors::{Scope, Survey};
use xact_namespace::mount::Mount;
use xact_namespace::mounts;
use xact_namespace::namespace::Bound;

use crate::exit::{Exit, Failure, Result, plain};
use crate::run::signals::Mask;

/// The word on the command line that stands for this. Descriptors follow: of the report, of the
/// [`Spec`], and of this program.
pub const WORD: &str = "--in-view";
/// The exit status, which is not used: the report has the failure.
const FAILED: u8 = 125;

/// The command, and where it is to run.
#[derive(Debug, PartialEq, Eq)]
pub struct Spec {
    pub transaction: u64,
    /// Major and minor number of the volume's file system.
    pub device: (u32, u32),
    pub command: Vec<OsString>,
}

/// The report of the process before the command to the one that waits for it.
pub enum Report {
    /// The command was executed.
    Started,
    /// It was not, with this error number.
    NotExecuted(i32),
    Failed(Failure),
    /// Written by the helper.
    Refused(String),
    Nothing,
}

/// Written before the command is executed; what follows is why that failed.
const STARTED: u8 = b'+';

#[derive(Serialize, Deserialize)]
struct Written {
    exit: u8,
    message: String,
    hint: Option<String>,
}

impl Report {
    pub fn parse(said: &[u8]) -> Report {
        let text = String::from_utf8_lossy(said);
        match said {
            [] => Report::Nothing,
            [STARTED] => Report::Started,
            [STARTED, ..] => Report::NotExecuted(text[1..].parse().unwrap_or(libc::EIO)),
            [b'{', ..] => match serde_json::from_str::<Written>(&text) {
                Ok(Written { exit, message, hint }) => {
                    let mut failure = Failure::new(Exit::from_code(exit), message);
                    failure.hint = hint;
                    Report::Failed(failure)
                }
                Err(_) => Report::Failed(Failure::new(Exit::System, "the report of a process is broken")),
            },
            _ => Report::Refused(with_error_text(text.trim_end())),
        }
    }
}

/// The helper writes error numbers.
fn with_error_text(line: &str) -> String {
    match line.rsplit_once(": error ").map(|(before, number)| (before, number.parse())) {
        Some((before, Ok(number))) => format!("{before}: {}", plain(&io::Error::from_raw_os_error(number))),
        _ => line.to_owned(),
    }
}

/// Becomes the command, if this process is the one that this file is about.
pub fn run() -> Option<ExitCode> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [first, numbers @ ..] = &words[..] else { return None };
    if first != WORD {
        return None;
    }
    let numbers: Vec<RawFd> =
        numbers.iter().filter_map(|word| word.to_str()?.parse().ok()).filter(|number| *number > 2).collect();
    // Typed by hand, it is a wrong option.
    let &[status, spec, program] = &numbers[..] else { return None };
    // SAFETY: `Helper::run` gave this process these descriptors, which nothing else here uses.
    let [mut status, spec, program] =
        [status, spec, program].map(|number| File::from(unsafe { OwnedFd::from_raw_fd(number) }));
    drop(program);
    if fcntl_setfd(&status, FdFlags::CLOEXEC).is_err() {
        return Some(ExitCode::from(FAILED));
    }
    let report = match execute(&mut status, spec) {
        Ok(error) => error.raw_os_error().unwrap_or(libc::EIO).to_string().into_bytes(),
        Err(failure) => {
            let written = Written { exit: failure.exit as u8, message: failure.message, hint: failure.hint };
            serde_json::to_vec(&written).expect("a report has plain fields")
        }
    };
    // If the process that reads it has died, so has the transaction.
    let _ = status.write_all(&report);
    Some(ExitCode::from(FAILED))
}

/// Executes the command. Returns the error if that failed.
fn execute(status: &mut File, mut spec: File) -> Result<io::Error> {
    let wrong = |e| Failure::system("prepare the command", e);
    let mask = Mask::current().map_err(wrong)?;
    let mut bytes = Vec::new();
    spec.read_to_end(&mut bytes).map_err(wrong)?;
    drop(spec);
    let (spec, environment) = Spec::parse(&bytes).ok_or_else(|| wrong(io::ErrorKind::InvalidData.into()))?;
    let is_volume = |mount: &Mount| mount.device == spec.device && mount.root == Path::new("/");
    let mount = mounts::all()?.into_iter().find(is_volume);
    let mount = mount.ok_or_else(|| Failure::new(Exit::Unavailable, "the volume is no longer mounted"))?;
    let bound = Bound::existing(&mount, spec.transaction)?;
    let inherited = Survey::of_volume(&mount, Scope::Inherited)?;
    bound.enter_current_folder(&mount)?;
    // The originals are closed by the exec.
    let _reopened = inherited.reopen(&bound)?;
    status.write_all(&[STARTED]).map_err(wrong)?;
    let mut process = Command::new(&spec.command[0]);
    process.args(&spec.command[1..]).env_clear().envs(environment);
    // SAFETY: the closure makes one async-signal-safe call on a set of its own.
    unsafe { process.pre_exec(move || mask.set()) };
    Ok(process.exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_told_apart() {
        assert!(matches!(Report::parse(b""), Report::Nothing));
        assert!(matches!(Report::parse(b"+"), Report::Started));
        assert!(matches!(Report::parse(b"+2"), Report::NotExecuted(2)));
        let Report::Failed(failure) = Report::parse(br#"{"exit":66,"message":"m","hint":"h"}"#) else {
            panic!()
        };
        assert_eq!((failure.exit, failure.hint.as_deref()), (Exit::NoInput, Some("h")));
        assert!(matches!(Report::parse(b"{"), Report::Failed(_)));
        let Report::Refused(reason) = Report::parse(b"cannot open x: error 13\n") else { panic!() };
        assert_eq!(reason, "cannot open x: Permission denied");
    }
}
