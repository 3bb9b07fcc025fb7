//! Keeps other programs from opening the image for writing, by fanotify(7): losetup, a loop mount,
//! e2fsck. Needs root.
//!
//! The kernel asks this process before any process opens the image, by whatever path, and that
//! process waits for the answer. So the answers come from a thread of their own, which takes no
//! lock and reads nothing but `/proc`. A daemon that is stopped (SIGSTOP) lets openers of the image
//! wait until it continues; if it dies, the kernel lets them pass.
//!
//! The question does not say how the image is to be opened. But the opener is in its system call,
//! so `/proc/TID/syscall` shows the call with its flags. An opener whose flags cannot be seen there
//! is denied, since it may write: a kernel thread, such as that of an NFS server or of io_uring; a
//! process of another pid namespace; a 32-bit program; a call of openat2(2), whose flags are in the
//! memory of the opener. That memory is not read: a page of it may be one that never comes, and
//! this thread would wait for it.
//!
//! Not noticed: descriptors and loop devices that exist already, and truncate(2).

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::thread::{CapabilitySet, capabilities};

/// How often the state of an opener is looked at, and the pause between: the question may come
/// before the opener sleeps.
const LOOKS: u32 = 100;
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// The image is guarded while this lives.
pub struct OpenGuard {
    group: Arc<OwnedFd>,
}

impl OpenGuard {
    /// Guards `image`, whose path is for the log. Other names for the file are guarded too.
    ///
    /// Errors: no permission for fanotify, or to see the system calls of others.
    pub fn start(image: &File, path: &Path) -> io::Result<OpenGuard> {
        if !capabilities(None)?.effective.contains(CapabilitySet::SYS_PTRACE) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        fs::read_to_string("/proc/self/syscall")?;
        let flags = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC | libc::FAN_REPORT_TID;
        let event_flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_LARGEFILE) as libc::c_uint;
        // SAFETY: no memory is passed; a descriptor that is returned is ours alone.
        let group = unsafe {
            match libc::fanotify_init(flags, event_flags) {
                -1 => return Err(io::Error::last_os_error()),
                fd => Arc::new(OwnedFd::from_raw_fd(fd)),
            }
        };
        // SAFETY: with a null path the descriptor itself is marked.
        let marked = unsafe {
            libc::fanotify_mark(
                group.as_raw_fd(),
                libc::FAN_MARK_ADD,
                libc::FAN_OPEN_PERM,
                image.as_raw_fd(),
                std::ptr::null(),
            )
        };
        if marked < 0 {
            return Err(io::Error::last_os_error());
        }
        let (answering, path) = (group.clone(), path.to_owned());
        thread::Builder::new().name("xact-guard-img".into()).spawn(move || answer(&answering, &path))?;
        Ok(OpenGuard { group })
    }
}

impl Drop for OpenGuard {
    /// Later opens are not asked about. The thread stays for those that wait.
    fn drop(&mut self) {
        // SAFETY: the descriptor lives, and a flush needs no other argument.
        unsafe {
            libc::fanotify_mark(
                self.group.as_raw_fd(),
                libc::FAN_MARK_FLUSH,
                0,
                libc::AT_FDCWD,
                std::ptr::null(),
            )
        };
    }
}

/// The answer to an opener, and what the opener is.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Allow,
    DenyWriter,
    DenyUnknown,
}

fn answer(group: &OwnedFd, path: &Path) {
    // Aligned as the struct.
    let mut buffer = [0_u64; 512];
    loop {
        // SAFETY: the kernel writes at most this number of bytes to the buffer.
        let n = unsafe { libc::read(group.as_raw_fd(), buffer.as_mut_ptr().cast(), size_of_val(&buffer)) };
        if n <= 0 {
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) if n < 0 => continue,
                _ => return,
            }
        }
        let mut at = 0;
        while at + size_of::<libc::fanotify_event_metadata>() <= n as usize {
            // SAFETY: the kernel has written a whole event here, and no event spans the end.
            let event = unsafe {
                buffer.as_ptr().cast::<u8>().add(at).cast::<libc::fanotify_event_metadata>().read_unaligned()
            };
            at += (event.event_len as usize).max(size_of::<libc::fanotify_event_metadata>());
            if event.fd < 0 {
                continue;
            }
            // SAFETY: the kernel has opened it for this process alone.
            let opened = unsafe { OwnedFd::from_raw_fd(event.fd) };
            let verdict = judge(event.pid);
            let response = if verdict == Verdict::Allow { libc::FAN_ALLOW } else { libc::FAN_DENY };
            let reply = libc::fanotify_response { fd: opened.as_raw_fd(), response };
            // SAFETY: the kernel reads one struct of this size.
            let sent =
                unsafe { libc::write(group.as_raw_fd(), (&raw const reply).cast(), size_of_val(&reply)) };
            drop(opened);
            if sent < 0 {
                crate::log(format_args!(
                    "no answer to an opener of the image: {}",
                    io::Error::last_os_error()
                ));
            }
            report(&verdict, event.pid, path);
        }
    }
}

fn report(verdict: &Verdict, thread: i32, path: &Path) {
    let how = match verdict {
        Verdict::Allow => return,
        Verdict::DenyWriter => "for writing",
        Verdict::DenyUnknown => "in an unknown way",
    };
    let name = fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
    let path = path.display();
    crate::log(format_args!(
        "denied: {} ({thread}) was to open {path} {how} while it is mounted (see the option noexclusive)",
        name.trim()
    ));
}

fn judge(thread: i32) -> Verdict {
    if thread > 0 && PathBuf::from(format!("/proc/self/task/{thread}")).exists() {
        return Verdict::Allow;
    }
    match open_flags(thread) {
        Some(flags) if flags & libc::O_ACCMODE == libc::O_RDONLY && flags & libc::O_TRUNC == 0 => {
            Verdict::Allow
        }
        Some(_) => Verdict::DenyWriter,
        None => Verdict::DenyUnknown,
    }
}

/// The flags of the call of open(2) that a thread is in; `None`: unknown.
fn open_flags(thread: i32) -> Option<i32> {
    if thread <= 0 {
        return None;
    }
    for _ in 0..LOOKS {
        let call = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
        if call.trim() != "running" {
            return flags_of_call(&call);
        }
        thread::sleep(LOOK_PAUSE);
    }
    None
}

/// The flags in a line of `/proc/TID/syscall`: the number of the call and its arguments.
fn flags_of_call(line: &str) -> Option<i32> {
    let mut words = line.split_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let mut argument = |nr: usize| {
        let text = words.nth(nr)?.strip_prefix("0x")?;
        u64::from_str_radix(text, 16).ok()
    };
    match number {
        libc::SYS_openat | libc::SYS_open_by_handle_at => Some(argument(2)? as i32),
        libc::SYS_execve | libc::SYS_execveat => Some(libc::O_RDONLY),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => Some(argument(1)? as i32),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => Some(libc::O_WRONLY | libc::O_TRUNC),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_of_the_call() {
        let line = |number: libc::c_long, rest: &str| format!("{number} {rest} 0x7ffc 0x7f12\n");
        let openat = line(libc::SYS_openat, "0xffffff9c 0x7ffd1 0x80002 0x0 0x0 0x0");
        assert_eq!(flags_of_call(&openat), Some(libc::O_RDWR | libc::O_CLOEXEC));
        let openat2 = line(libc::SYS_openat2, "0x3 0x7ffd1 0xabc0 0x18 0x0 0x0");
        assert_eq!(flags_of_call(&openat2), None);
        assert_eq!(flags_of_call(&line(libc::SYS_execve, "0x1 0x2 0x3 0x0 0x0 0x0")), Some(0));
        for other in
            [line(libc::SYS_read, "0x3 0x1 0x2 0x0 0x0 0x0"), "-1 0x7ffc 0x7f12".into(), String::new()]
        {
            assert_eq!(flags_of_call(&other), None, "{other}");
        }
    }

    #[test]
    fn a_thread_of_this_process_may_open() {
        // SAFETY: gettid takes no arguments.
        assert_eq!(judge(unsafe { libc::gettid() }), Verdict::Allow);
        assert_eq!(judge(0), Verdict::DenyUnknown);
    }
}
