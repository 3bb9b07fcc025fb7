//! Starts a daemon. The command returns when its daemon is ready or has failed, with the daemon's
//! message and exit code.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd};
use rustix::process::{Pid, WaitOptions, setsid, waitpid};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use serde::{Deserialize, Serialize};

use crate::exit::{Exit, Failure, Result};

/// The daemon's report to the waiting command.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    Ready,
    Failed { code: u8, message: String, hint: Option<String> },
}

/// The daemon's end of the pipe. If it is dropped without a report, the command concludes that the
/// daemon died.
pub struct Caller(File);

/// The process after the fork.
pub enum Side {
    /// The command: the daemon is ready, or failed with this error.
    Command(Result<()>),
    Daemon(Caller),
}

/// Forks. The daemon has the current folder `/`, standard input and output at `/dev/null`, and no
/// other inherited descriptor except standard error. It gets a session of its own when it is ready:
/// the kernel lets only the process group of systemd pass a mount point of autofs before it
/// is mounted on.
///
/// Must be called while the process has one thread.
pub fn fork() -> Result<Side> {
    let failed = |e: io::Error| Failure::system("start a daemon", e).exit(Exit::System);
    let (theirs, ours) = io::pipe().map_err(failed)?;
    // SAFETY: the process has one thread, so no lock is held in the child's copy of its memory.
    match unsafe { libc::fork() } {
        -1 => Err(failed(io::Error::last_os_error())),
        0 => {
            drop(theirs);
            let caller = Caller(File::from(OwnedFd::from(ours)));
            if let Err(e) = leave_terminal() {
                caller.failed(&failed(e));
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
    /// Leaves the session of the command, and reports that the daemon is ready: the command
    /// succeeds.
    pub fn ready(self) {
        // Fails only for the leader of a process group, which a new process is not.
        let _ = setsid();
        self.send(&Report::Ready);
    }

    /// Reports a failure: the command fails with the daemon's message.
    pub fn failed(self, failure: &Failure) {
        self.send(&Report::Failed {
            code: failure.code(),
            message: failure.message.clone(),
            hint: failure.hint.clone(),
        });
    }

    fn send(mut self, report: &Report) {
        let text = serde_json::to_vec(report).expect("a report has plain fields");
        // Fails if the command was killed, which does not concern the daemon.
        let _ = self.0.write_all(&text);
    }
}

fn listen(mut pipe: impl Read, child: Option<Pid>) -> Result<()> {
    let mut text = Vec::new();
    pipe.read_to_end(&mut text).map_err(|e| Failure::system("read the report of the daemon", e))?;
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
                Some(signal) => format!("signal {signal} terminated the daemon"),
                None => "the daemon ended".to_string(),
            };
            Err(Failure::new(Exit::System, format!("{how} before the volume was mounted"))
                .hint("Use --foreground to see its messages."))
        }
    }
}

fn leave_terminal() -> io::Result<()> {
    std::env::set_current_dir("/")?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    close_inherited()
}

/// Closes descriptors of the calling program: a daemon that held the write end of a pipe would make
/// its reader wait forever.
fn close_inherited() -> io::Result<()> {
    let numbers: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for number in numbers.into_iter().filter(|&n| n > 2) {
        // SAFETY: borrowed for one call, which fails for a number that is no longer open.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        // Descriptors that this process opened itself are marked close-on-exec.
        if fcntl_getfd(file.as_fd()).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC)) {
            // SAFETY: an inherited descriptor, which no object of this process owns.
            unsafe { libc::close(file.as_raw_fd()) };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_receives_the_report() {
        let received = |report: &Report| listen(serde_json::to_vec(report).unwrap().as_slice(), None);
        assert!(received(&Report::Ready).is_ok());
        let failed = Report::Failed { code: 74, message: "damaged".into(), hint: Some("e2fsck".into()) };
        let failure = received(&failed).unwrap_err();
        assert_eq!((failure.exit, failure.to_string()), (Exit::Io, "damaged\n  e2fsck".into()));
    }
}
