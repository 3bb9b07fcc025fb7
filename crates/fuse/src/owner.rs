//! Processes that began something which ends with them, known by a pidfd.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use xact_base::Errno;

/// A process that something belongs to, as long as it lives.
pub struct Owner {
    /// The thread that called.
    thread: u32,
    process: u32,
    pidfd: OwnedFd,
}

impl Owner {
    /// `ENOTTY`: it lives where its number means nothing to this process.
    pub fn of(thread: u32) -> Result<Owner, Errno> {
        let no_process = |_: io::Error| Errno::ESTALE;
        if thread == 0 {
            return Err(Errno::ENOTTY);
        }
        // Of a process with threads, only the first one has the process's number.
        if let Ok(pidfd) = open_pidfd(thread) {
            return Ok(Owner { thread, process: thread, pidfd });
        }
        let process = process_of(thread).ok_or(Errno::ESTALE)?;
        Ok(Owner { thread, process, pidfd: open_pidfd(process).map_err(no_process)? })
    }

    /// Whether a thread is one of the process. A number may be another process's once this one has died.
    pub fn is(&self, thread: u32) -> bool {
        (thread == self.thread || process_of(thread) == Some(self.process)) && !self.is_dead()
    }

    pub fn is_dead(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel reads and writes one pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }
}

fn open_pidfd(process: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers and no memory; the new descriptor belongs to nobody else.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, process, 0) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd as i32)),
        }
    }
}

/// The process that a thread belongs to.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_process_with_all_its_threads() {
        let own = Owner::of(std::process::id()).unwrap();
        // SAFETY: it only tells a number.
        let thread = || unsafe { libc::gettid() } as u32;
        assert!(own.is(std::thread::spawn(thread).join().unwrap()) || own.is(thread()));
        let of_thread = std::thread::spawn(move || Owner::of(thread())).join().unwrap().unwrap();
        assert_eq!(of_thread.process, std::process::id());
        assert!(of_thread.is(own.thread) && !of_thread.is_dead());
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let child_owner = Owner::of(child.id()).unwrap();
        assert!(!child_owner.is_dead() && !child_owner.is(own.thread));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(child_owner.is_dead());
        assert!(Owner::of(0).is_err());
    }
}
