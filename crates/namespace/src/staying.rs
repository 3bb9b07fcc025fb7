//! The files that a process with several threads has open on the volume when one thread begins a
//! transaction.
//!
//! A descriptor belongs to the process, so the thread that uses it is unknown. Descriptors of the
//! beginning thread stay open during the begin, since the thread does nothing else. Descriptors
//! that other threads use briefly are closed after a moment. So each descriptor of the first scan
//! is watched until it is closed; if one stays for [`STAY_MAX`], the begin is refused. A descriptor
//! opened after the first scan belongs to another thread.
//!
//! epoll detects whether a number still refers to the same open file: it drops a file with its last
//! descriptor, and does not find another file with the same number. Folders and `O_PATH`
//! descriptors cannot be watched that way. They count as the same while they look the same, in
//! scans at irregular intervals.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::descriptors::{self, Volume};
use crate::file_identity::FileIdentity;
use crate::mappings::{self, Mapping};
use crate::mount::Mount;
use crate::{Error, Result};

/// The longest brief use by another thread.
const STAY_MAX: Duration = Duration::from_secs(2);
/// Pause between scans.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LAST_PAUSE: Duration = Duration::from_millis(5);

/// The number of threads of this process.
pub fn threads() -> usize {
    let links = FileIdentity::of_path("/proc/self/task".as_ref()).map_or(0, |identity| identity.links);
    // Two are links of the folder itself.
    (links as usize).saturating_sub(2).max(1)
}

/// Waits until every descriptor on the volume that was open at the call is closed, and refuses
/// those that stay.
pub fn check(mount: &Mount) -> Result<()> {
    let volume = Volume::new(mount);
    let mut files = Watched::all(&volume)?;
    let mut mapped = mappings::all(mount)?;
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    while !files.found.is_empty() || !mapped.is_empty() {
        if began.elapsed() >= STAY_MAX {
            return Err(match files.found.first() {
                Some(file) => stays(file.number, &path_of(file.number)),
                None => mapped[0].refuse(),
            });
        }
        // Irregular, so that the scans do not keep step with a thread that opens the same file
        // again and again.
        thread::sleep(pause + pause.mul_f64(f64::from(began.elapsed().subsec_nanos() % 1000) / 1000.0));
        pause = (pause * 2).min(LAST_PAUSE);
        files.look(&volume)?;
        if !mapped.is_empty() {
            let now = mappings::all(mount)?;
            mapped.retain(|mapping: &Mapping| now.contains(mapping));
        }
    }
    Ok(())
}

fn stays(number: RawFd, path: &std::path::Path) -> Error {
    Error::Busy {
        what: format!("{} ({}) is open on the volume", descriptors::name_of(number), path.display()),
        hint: "In a process with several threads it cannot join the transaction: close it first, or begin with \
               XACT_BEGIN_LEAVE_OUTSIDE (Python: leave_outside=True), which leaves it outside the transaction."
            .into(),
    }
}

fn path_of(number: RawFd) -> PathBuf {
    fs::read_link(format!("/proc/thread-self/fd/{number}")).unwrap_or_default()
}

struct File {
    number: RawFd,
    mount: u64,
    inode: u64,
    by_epoll: bool,
}

/// Descriptors of the first scan that may still be open.
struct Watched {
    epoll: Option<OwnedFd>,
    found: Vec<File>,
}

impl Watched {
    fn all(volume: &Volume<'_>) -> Result<Watched> {
        let mut watched = Watched { epoll: None, found: Vec::new() };
        for (number, identity) in volume.open()? {
            let by_epoll = watched.add(number);
            watched.found.push(File { number, mount: identity.mount, inode: identity.inode, by_epoll });
        }
        // A number may have been given to another file between the scan and the watch.
        watched.look(volume)?;
        Ok(watched)
    }

    fn add(&mut self, number: RawFd) -> bool {
        if self.epoll.is_none() {
            // SAFETY: it takes flags and no memory; the number that it returns belongs to the
            // caller alone.
            self.epoll = match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
                -1 => None,
                epoll => Some(unsafe { OwnedFd::from_raw_fd(epoll) }),
            };
        }
        self.control(libc::EPOLL_CTL_ADD, number)
    }

    fn control(&self, action: libc::c_int, number: RawFd) -> bool {
        use std::os::fd::AsRawFd;
        let Some(epoll) = &self.epoll else { return false };
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: the kernel reads one event.
        unsafe { libc::epoll_ctl(epoll.as_raw_fd(), action, number, &mut event) == 0 }
    }

    /// Drops those that are closed.
    fn look(&mut self, volume: &Volume<'_>) -> Result<()> {
        let mut found = std::mem::take(&mut self.found);
        let mut failed = None;
        found.retain(|file| {
            let same = match volume.has(file.number) {
                Ok(Some(identity)) if file.by_epoll => {
                    // The inode number of a file that was opened in a transaction changes with its
                    // commit.
                    identity.mount == file.mount
                }
                Ok(Some(identity)) => (identity.mount, identity.inode) == (file.mount, file.inode),
                Ok(None) => false,
                Err(e) => {
                    failed = Some(e);
                    false
                }
            };
            same && (!file.by_epoll || self.control(libc::EPOLL_CTL_MOD, file.number))
        });
        self.found = found;
        failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn threads_are_counted() {
        let before = threads();
        let (send, receive) = std::sync::mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || receive.recv());
            // Threads of other tests come and go.
            assert!(threads() >= 2 && before >= 1);
            drop(send);
        });
    }

    /// A property that FUSE shares with pipes: epoll accepts them.
    #[test]
    fn another_file_under_the_same_number_is_not_the_same() {
        let mut watched = Watched { epoll: None, found: Vec::new() };
        let (one, _end) = std::io::pipe().unwrap();
        let (other, _other_end) = std::io::pipe().unwrap();
        let number = one.as_raw_fd();
        assert!(watched.add(number) && watched.control(libc::EPOLL_CTL_MOD, number));
        // SAFETY: both numbers are of pipes of this test.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert!(!watched.control(libc::EPOLL_CTL_MOD, number));
    }

    #[test]
    fn the_refusal_names_number_path_and_way_out() {
        let text = stays(7, "/mnt/log".as_ref()).to_string();
        assert!(text.starts_with("descriptor 7 (/mnt/log) is open"), "{text}");
        assert!(text.contains("XACT_BEGIN_LEAVE_OUTSIDE"), "{text}");
    }
}
