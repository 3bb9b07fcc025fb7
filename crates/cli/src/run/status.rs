//! The file that tells a program how `xact run` ended, apart from the command's own exit status.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::exit::{Exit, Failure, Result};

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The command succeeded, and its changes are durable.
    Committed,
    /// The command succeeded, and the transaction is open.
    Kept,
    /// The command succeeded, and the answer to the question whether to commit was no.
    Declined,
    /// The command failed; nothing was changed.
    Aborted,
    /// The command succeeded, but others changed what it read or wrote; nothing was changed.
    Conflict,
    /// The commit found no space; nothing was changed.
    NoSpace,
    /// The device or the daemon failed in the commit: after recovery it is there whole or not at
    /// all.
    IoError,
    /// xact failed before the command ran, or could not run it; nothing was changed.
    NotStarted,
    /// The commit failed in another way; nothing was changed.
    Failed,
}

impl Outcome {
    pub fn of_failure(failure: &Failure, command_ran: bool) -> Outcome {
        match failure.exit {
            _ if !command_ran => Outcome::NotStarted,
            Exit::Conflict => Outcome::Conflict,
            Exit::NoSpace => Outcome::NoSpace,
            Exit::Io => Outcome::IoError,
            _ => Outcome::Failed,
        }
    }
}

/// What is written.
#[derive(Debug, Serialize)]
pub struct Status {
    pub outcome: Outcome,
    pub exit_code: u8,
    /// The command's exit status, where it exited.
    pub command_status: Option<u8>,
    /// The signal that ended the command, where one did.
    pub command_signal: Option<i32>,
    pub mount: Option<String>,
    pub transaction: Option<u64>,
    /// How often the command was run.
    pub tries: u32,
    /// What a conflict is about, from the root of the volume.
    pub path: Option<String>,
    /// The transaction that came first in a conflict; null for a program outside of any.
    pub winner: Option<u64>,
    pub reason: Option<String>,
    /// What `--snapshot` has taken.
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
            winner: None,
            reason: None,
            snapshot: None,
        }
    }

    pub fn command_ran(&self) -> bool {
        self.command_status.is_some() || self.command_signal.is_some()
    }
}

/// The file, opened before the command starts and filled when all is over.
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
