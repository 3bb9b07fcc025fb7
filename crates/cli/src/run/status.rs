//! The status file: the outcome of `xact run` for programs, apart from the command's own exit
//! status.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::exit::{Exit, Failure, Result};

/// The outcome of `xact run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The command succeeded, and its changes are durable.
    Committed,
    /// The command succeeded, and the transaction is open.
    #[serde(rename = "kept")]
    LeftOpen,
    /// The command failed, or the answer to `--ask` was no; nothing was changed. With `--tx`, the
    /// transaction is open, as it was before the command.
    Aborted,
    /// Others changed data that the command read or wrote; nothing was changed. The command may
    /// have succeeded, failed as a consequence, or not started.
    Conflict,
    /// The commit found no space; nothing was changed.
    NoSpace,
    /// The device or the daemon failed during the commit: after recovery, either all changes exist
    /// or none.
    IoError,
    /// xact failed before the command ran, or could not run it; nothing was changed.
    NotStarted,
    /// The commit failed in another way; nothing was changed.
    Failed,
}

impl Outcome {
    pub fn of_failure(failure: &Failure, command_ran: bool) -> Outcome {
        match failure.exit {
            // Also if the file of the command could not be read.
            Exit::Conflict => Outcome::Conflict,
            _ if !command_ran => Outcome::NotStarted,
            Exit::NoSpace | Exit::HostFull => Outcome::NoSpace,
            Exit::Io => Outcome::IoError,
            _ => Outcome::Failed,
        }
    }
}

/// The contents of the file.
#[derive(Debug, Serialize)]
pub struct Status {
    pub outcome: Outcome,
    pub exit_code: u8,
    /// The command's exit status, if it exited.
    pub command_status: Option<u8>,
    /// The signal that terminated the command, if one did.
    pub command_signal: Option<i32>,
    pub mount: Option<String>,
    pub transaction: Option<u64>,
    /// The number of times that the command was run.
    pub tries: u32,
    /// The path of a conflict, from the volume's root.
    pub path: Option<String>,
    /// The transaction that a conflict is with; null for a program outside of any transaction.
    pub conflicting_tx: Option<u64>,
    pub reason: Option<String>,
    /// The name of the snapshot that `--snapshot` made.
    pub snapshot: Option<String>,
}

impl Status {
    pub fn new() -> Status {
        Status {
            outcome: Outcome::NotStarted,
            exit_code: 0,
            command_status: None,
            command_signal: None,
            mount: None,
            transaction: None,
            tries: 0,
            path: None,
            conflicting_tx: None,
            reason: None,
            snapshot: None,
        }
    }

    pub fn command_ran(&self) -> bool {
        self.command_status.is_some() || self.command_signal.is_some()
    }
}

/// The file, created before the command starts and written at the end.
#[derive(Debug)]
pub struct StatusFile {
    file: File,
    path: PathBuf,
}

impl StatusFile {
    pub fn create(path: &Path) -> Result<StatusFile> {
        let file = File::create(path)
            .map_err(|e| Failure::system(format_args!("write the status file {}", path.display()), e))?;
        Ok(StatusFile { file, path: path.to_path_buf() })
    }

    pub fn write(mut self, status: &Status) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(status).expect("a status has no maps and no floats");
        text.push(b'\n');
        self.file
            .write_all(&text)
            .map_err(|e| Failure::system(format_args!("write the status file {}", self.path.display()), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_follows_from_the_failure() {
        let failure = |exit| Failure::new(exit, "x");
        assert_eq!(Outcome::of_failure(&failure(Exit::Conflict), true), Outcome::Conflict);
        assert_eq!(Outcome::of_failure(&failure(Exit::NoSpace), true), Outcome::NoSpace);
        assert_eq!(Outcome::of_failure(&failure(Exit::Io), true), Outcome::IoError);
        assert_eq!(Outcome::of_failure(&failure(Exit::Unavailable), true), Outcome::Failed);
        assert_eq!(Outcome::of_failure(&failure(Exit::Io), false), Outcome::NotStarted);
    }

    #[test]
    fn it_is_plain_json() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status");
        let file = StatusFile::create(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        let mut status = Status::new();
        status.outcome = Outcome::Conflict;
        status.exit_code = 75;
        status.command_status = Some(0);
        status.path = Some("/etc/a \"quoted\" name".into());
        file.write(&status).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read["outcome"], "conflict");
        assert_eq!(read["exit_code"], 75);
        assert_eq!(read["command_status"], 0);
        assert_eq!(read["command_signal"], serde_json::Value::Null);
        assert_eq!(read["path"], "/etc/a \"quoted\" name");
    }
}
