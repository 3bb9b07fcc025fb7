//! The command: starts it, forwards signals, and returns its exit code as a shell would.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal as Number, pidfd_open, pidfd_send_signal};

use crate::exit::{Failure, Result, plain};
use crate::run::signals::Blocked;

/// Exit codes of a shell for a command that cannot be run.
const CANNOT_EXECUTE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// How the command ended: exactly one of the two is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub status: Option<u8>,
    pub signal: Option<i32>,
}

impl Ended {
    fn of(status: ExitStatus) -> Ended {
        Ended { status: status.code().map(|code| code as u8), signal: status.signal() }
    }

    /// The exit code that a shell would return.
    pub fn code(&self) -> u8 {
        match (self.status, self.signal) {
            (Some(status), _) => status,
            (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
            (None, None) => unreachable!("a process ends by exit or by a signal"),
        }
    }

    pub fn describe(&self, command: &OsStr) -> String {
        let command = command.to_string_lossy();
        match (self.status, self.signal) {
            (Some(status), _) => format!("{command} failed with exit status {status}"),
            (None, signal) => format!("{command} was terminated by signal {}", signal.unwrap_or(0)),
        }
    }
}

/// Runs `command` until it ends; calls `started` once the process exists.
pub fn run(command: &[OsString], started: impl FnOnce()) -> Result<Ended> {
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]);
    run_process(process, started)?.map_err(|e| cannot_run(&command[0], &e))
}

/// The same for a process. The inner error is that of starting it.
pub fn run_process(mut process: Command, started: impl FnOnce()) -> Result<io::Result<Ended>> {
    let blocked = Blocked::block().map_err(|e| Failure::system("take signals", e))?;
    let mask = blocked.mask_before();
    // SAFETY: the closure makes one async-signal-safe call on a set of its own.
    unsafe { process.pre_exec(move || mask.set()) };
    let mut child = match process.spawn() {
        Ok(child) => child,
        Err(e) => return Ok(Err(e)),
    };
    started();
    wait(&mut child, &blocked).map(Ok).map_err(|e| Failure::system("wait for the command", e))
}

fn wait(child: &mut Child, blocked: &Blocked) -> io::Result<Ended> {
    let pid = Pid::from_child(child);
    let end = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let mut events =
            [PollFd::new(&end, PollFlags::IN), PollFd::from_borrowed_fd(blocked.as_fd(), PollFlags::IN)];
        match poll(&mut events, None) {
            Err(Errno::INTR) => continue,
            result => result?,
        };
        let [ended, signalled] = events.map(|event| !event.revents().is_empty());
        if signalled && let Some(signal) = blocked.take()?.and_then(Number::from_named_raw) {
            // This fails for a command that changed its user, as in a shell, or that has just
            // ended.
            let _ = pidfd_send_signal(&end, signal);
        }
        if ended {
            return Ok(Ended::of(child.wait()?));
        }
    }
}

pub fn cannot_run(command: &OsStr, error: &io::Error) -> Failure {
    let name = command.to_string_lossy();
    let (code, text) = match error.kind() {
        io::ErrorKind::NotFound if name.contains('/') => (NOT_FOUND, format!("{name}: {}", plain(error))),
        io::ErrorKind::NotFound => (NOT_FOUND, format!("{name}: command not found")),
        _ => (CANNOT_EXECUTE, format!("cannot execute {name}: {}", plain(error))),
    };
    Failure::of_shell(code, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(words: &[&str]) -> Result<Ended> {
        run(&words.iter().map(OsString::from).collect::<Vec<_>>(), || ())
    }

    #[test]
    fn codes_are_those_of_a_shell() {
        let exited = ended(&["sh", "-c", "exit 75"]).unwrap();
        assert_eq!((exited.status, exited.signal, exited.code()), (Some(75), None, 75));
        let killed = ended(&["sh", "-c", "kill -KILL $$"]).unwrap();
        assert_eq!((killed.status, killed.signal, killed.code()), (None, Some(9), 137));
        assert_eq!(ended(&["no-such-command"]).unwrap_err().code(), 127);
        assert_eq!(ended(&["/no/such/command"]).unwrap_err().code(), 127);
        assert_eq!(ended(&["/"]).unwrap_err().code(), 126);
    }

    #[test]
    fn the_command_has_the_mask_that_xact_was_started_with() {
        // A blocked SIGTERM would leave this shell alive and the status 0.
        let killed = ended(&["sh", "-c", "kill -TERM $$; sleep 1"]).unwrap();
        assert_eq!(killed.code(), 128 + libc::SIGTERM as u8);
    }
}
