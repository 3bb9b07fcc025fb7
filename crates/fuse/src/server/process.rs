//! Processes whose transactions, sections or savepoints end with them, each known by a pidfd.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use xact::{Account, Charge, Resource};
use xact_types::{Errno, Result};

/// A process that owns something as long as it lives.
pub struct Process {
    /// The thread that called.
    thread: u32,
    process: u32,
    pidfd: OwnedFd,
}

impl Process {
    /// `ENOTTY`: the process is in a PID namespace where its number means nothing to this process,
    /// so it cannot be watched. With other errors, such as `EMFILE`, it could be.
    pub fn of(thread: u32) -> Result<Process, Errno> {
        if thread == 0 {
            return Err(Errno::ENOTTY);
        }
        // In a process with several threads, only the first one has the process's number.
        match open_pidfd(thread) {
            Ok(pidfd) => return Ok(Process { thread, process: thread, pidfd }),
            Err(e) if is_shortage(&e) => return Err(Errno::EMFILE),
            Err(_) => {}
        }
        let failed = |e: io::Error| if is_shortage(&e) { Errno::EMFILE } else { Errno::ENOTTY };
        let process = process_of(thread).map_err(failed)?;
        Ok(Process { thread, process, pidfd: open_pidfd(process).map_err(failed)? })
    }

    /// Whether a thread belongs to the process. Once the process has died, its number may belong to
    /// another.
    pub fn is(&self, thread: u32) -> bool {
        let is_of = thread == self.thread || process_of(thread).is_ok_and(|process| process == self.process);
        is_of && !self.is_dead()
    }

    pub fn is_dead(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel reads and writes one pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }
}

fn open_pidfd(process: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers and no memory; no other owner has the new descriptor.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, process, 0) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd as i32)),
        }
    }
}

/// Whether descriptors, or the memory for one, ran out.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// The process that a thread belongs to.
fn process_of(thread: u32) -> io::Result<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status"))?;
    let number = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    number.and_then(|number| number.trim().parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A process that may own any number of things, with one descriptor for all of them.
pub struct SharedProcess {
    owner: Process,
    _descriptor: Charge,
}

impl SharedProcess {
    pub fn is_dead(&self) -> bool {
        self.owner.is_dead()
    }
}

/// The processes that own something.
#[derive(Default)]
pub struct Processes(Mutex<HashMap<u32, Weak<SharedProcess>>>);

impl Processes {
    /// The process of a thread; its descriptor is charged to `account`. Errors: as [`Process::of`].
    pub fn of(&self, thread: u32, account: &Arc<Account>) -> Result<Arc<SharedProcess>> {
        let mut known = self.0.lock();
        let number = match known.contains_key(&thread) {
            true => thread,
            false => process_of(thread).unwrap_or(thread),
        };
        // The number of a dead process may belong to another by now.
        if let Some(owner) = known.get(&number).and_then(Weak::upgrade).filter(|owner| !owner.is_dead()) {
            return Ok(owner);
        }
        let descriptor = account.charge(Resource::Descriptors, 1)?;
        let owner = Process::of(thread)?;
        let process = owner.process;
        let owner = Arc::new(SharedProcess { owner, _descriptor: descriptor });
        known.retain(|_, owner| owner.strong_count() > 0);
        known.insert(process, Arc::downgrade(&owner));
        Ok(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_includes_all_its_threads() {
        let own = Process::of(std::process::id()).unwrap();
        // SAFETY: it only returns a number.
        let thread = || unsafe { libc::gettid() } as u32;
        assert!(own.is(std::thread::spawn(thread).join().unwrap()) || own.is(thread()));
        let of_thread = std::thread::spawn(move || Process::of(thread())).join().unwrap().unwrap();
        assert_eq!(of_thread.process, std::process::id());
        assert!(of_thread.is(own.thread) && !of_thread.is_dead());
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let child_owner = Process::of(child.id()).unwrap();
        assert!(!child_owner.is_dead() && !child_owner.is(own.thread));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(child_owner.is_dead());
        assert!(Process::of(0).is_err());
    }

    #[test]
    fn a_process_takes_one_descriptor_whatever_it_owns() {
        let accounts = xact::Accounts::default();
        accounts.limit(xact::Limits::new(1, 0), 1, |_| ());
        let (account, owners) = (accounts.of(1000), Processes::default());
        // SAFETY: it only returns a number.
        let thread = || unsafe { libc::gettid() } as u32;
        let of_process = owners.of(std::process::id(), &account).unwrap();
        let of_thread = std::thread::scope(|scope| {
            scope.spawn(|| owners.of(thread(), &account).unwrap()).join().unwrap()
        });
        assert!(Arc::ptr_eq(&of_process, &of_thread));
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let refused = owners.of(child.id(), &account).err().unwrap();
        assert_eq!(refused.errno(), Errno::EMFILE);
        drop((of_process, of_thread));
        assert!(!owners.of(child.id(), &account).unwrap().is_dead());
        assert_eq!(account.used(Resource::Descriptors), 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
