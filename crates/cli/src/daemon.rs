//! Into the background, and back with a word: the command returns when its daemon is ready or has
//! failed, with the daemon's own message and exit code.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd};
use rustix::process::{Pid, WaitOptions, setsid, waitpid};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use serde::{Deserialize, Serialize};

use crate::exit::{Exit, Failure, Result};

/// What the daemon tells the command that waits for it.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    Ready,
    Failed { code: u8, message: String, hint: Option<String> },
}

/// The daemon's end. Dropped without a word it tells the command that the daemon died.
pub struct Caller(File);

/// Which side of the fork this is.
pub enum Side {
    /// The command: the daemon is ready, or failed as said.
    Command(Result<()>),
    Daemon(Caller),
}

/// Forks. The daemon is in a session of its own, in the folder `/`, with standard input and output
/// at `/dev/null` and no other inherited descriptor but standard error.
///
/// To be called while the process has one thread.
pub fn fork() -> Result<Side> {
    let trouble = |e: io::Error| Failure::system("start a daemon", e).exit(Exit::System);
    let (theirs, ours) = io::pipe().map_err(trouble)?;
    // SAFETY: there is one thread, so the child's memory is whole and no lock is held.
    match unsafe { libc::fork() } {
        -1 => Err(trouble(io::Error::last_os_error())),
        0 => {
            drop(theirs);
            let caller = Caller(File::from(OwnedFd::from(ours)));
            if let Err(e) = leave_terminal() {
                caller.failed(&trouble(e));
                std::process::exit(Exit::System as i32);
            }
            Ok(Side::Daemon(caller))
        }
        child => {
            drop(ours);
            Ok(Side::Command(listen(theirs, Pid::from_raw(child))))
        }
    }
}

impl Caller {
    /// The daemon does its work from now on; the command ends well.
    pub fn ready(self) {
        self.tell(&Report::Ready);
    }

    /// The daemon ends, and so does the command, with the daemon's message.
    pub fn failed(self, failure: &Failure) {
        self.tell(&Report::Failed {
            code: failure.code(),
            message: failure.message.clone(),
            hint: failure.hint.clone(),
        });
    }

    fn tell(mut self, report: &Report) {
        let text = serde_json::to_vec(report).expect("a report has plain fields");
        // A command that was killed in the meantime hears nothing, and nothing is lost by that.
        let _ = self.0.write_all(&text);
    }
}

fn listen(mut pipe: impl Read, child: Option<Pid>) -> Result<()> {
    let mut text = Vec::new();
    pipe.read_to_end(&mut text).map_err(|e| Failure::system("hear from the daemon", e))?;
    match serde_json::from_slice(&text) {
        Ok(Report::Ready) => Ok(()),
        Ok(Report::Failed { code, message, hint }) => {
            let failure = Failure::new(Exit::from_code(code), message);
            Err(match hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            })
        }
        Err(_) => {
            let status = waitpid(child, WaitOptions::empty()).ok().flatten();
            let how = match status.and_then(|(_, status)| status.terminating_signal()) {
                Some(signal) => format!("signal {signal} ended the daemon"),
                None => "the daemon ended".to_string(),
            };
            Err(Failure::new(Exit::System, format!("{how} before the volume was mounted"))
                .hint("With --foreground it may say more."))
        }
    }
}

fn leave_terminal() -> io::Result<()> {
    setsid()?;
    std::env::set_current_dir("/")?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    close_inherited()
}

/// Descriptors of the shell or program that called: a daemon that held the end of a pipe would
/// keep its reader waiting for ever.
fn close_inherited() -> io::Result<()> {
    let numbers: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for number in numbers.into_iter().filter(|&n| n > 2) {
        // SAFETY: borrowed for one question; a number that is no longer open gives an error.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        // Whatever this process opened itself is closed on exec.
        if fcntl_getfd(file.as_fd()).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC)) {
            // SAFETY: an inherited descriptor, which nothing in this process owns.
            unsafe { libc::close(file.as_raw_fd()) };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_words_arrive() {
        let said = |report: &Report| listen(serde_json::to_vec(report).unwrap().as_slice(), None);
        assert!(said(&Report::Ready).is_ok());
        let failed = Report::Failed { code: 74, message: "damaged".into(), hint: Some("e2fsck".into()) };
        let failure = said(&failed).unwrap_err();
        assert_eq!((failure.exit, failure.to_string()), (Exit::Io, "damaged\n  e2fsck".into()));
    }
}
