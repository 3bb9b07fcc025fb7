//! A child process that makes calls through the mount, so that the kernel reports events to
//! watchers (`commit::watchers`).
//!
//! It is a process and not a thread: a thread that waits for an answer of its own process cannot be
//! killed, and keeps the mount. The child has no descriptor but a socket to the daemon and, during
//! a batch, those of the folders. When the daemon dies, the kernel ends the connection and thus the
//! call that the child is in; then the socket is closed, and the child exits.
//!
//! Between two batches the child has nothing open on the mount, so it keeps no unmount waiting.

use std::ffi::{CStr, CString, c_int, c_uint};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use std::os::unix::ffi::OsStrExt;

/// How long the child may take for one call. A process that watches with the right to deny
/// (fanotify) may hold it up.
const CALL_MAX: Duration = Duration::from_secs(2);

/// Bytes of the two names of a call, with their zero bytes. A longer path gets no event.
const NAMES_MAX: usize = 2 * 4096;

/// A call of the child. The names are below the root of the mount, or in the folders that were
/// opened last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Call {
    /// Opens the mount's root, whose path is given. Returns its device.
    Enter,
    /// Opens one or two folders by their paths. Returns their inode numbers.
    Folders,
    /// Makes a file of a type (`S_IFMT`) with a name in the first folder.
    Make,
    /// Removes a name from the first folder; of a folder, if that is its type.
    Remove,
    /// Moves a name from the first folder to the second.
    Rename,
    /// Sets a modification time.
    Modify,
    /// Sets both times.
    SetTimes,
    /// Opens a regular file without execute bits for writing, and closes it.
    OpenAndClose,
    /// Closes everything.
    Leave,
}

const CALLS: [Call; 9] = [
    Call::Enter,
    Call::Folders,
    Call::Make,
    Call::Remove,
    Call::Rename,
    Call::Modify,
    Call::SetTimes,
    Call::OpenAndClose,
    Call::Leave,
];

#[derive(Debug, Clone, Copy, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CallHeader {
    number: u32,
    call: u32,
    mode: u32,
    /// Length of the first name with its zero byte; 0: none. The second name follows.
    first_len: u32,
}

#[derive(Debug, Clone, Copy, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CallReply {
    number: u32,
    errno: i32,
    values: [u64; 2],
}

/// The daemon's end.
pub struct EventCaller {
    socket: OwnedFd,
    pid: u32,
    number: u32,
}

impl EventCaller {
    pub fn start() -> io::Result<EventCaller> {
        let mut ends: [c_int; 2] = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the call fills `ends`.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both are new descriptors that nothing else owns.
        let [ours, its] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        // SAFETY: other threads may hold locks at this moment, which stay locked in the child. So
        // the child calls nothing but system calls until it ends, with memory on its stack.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => run_child(its.as_raw_fd()),
            pid => Ok(EventCaller { socket: ours, pid: pid as u32, number: 0 }),
        }
    }

    /// The process, which is also its only thread.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn enter(&mut self, root: &Path) -> io::Result<u64> {
        let root = CString::new(root.as_os_str().as_bytes())?;
        self.call(Call::Enter, 0, &root, None).map(|[device, _]| device)
    }

    /// Makes one call. `TimedOut` and `BrokenPipe`: the child may make it later, or has ended.
    pub fn call(
        &mut self,
        call: Call,
        mode: u32,
        first: &CStr,
        second: Option<&CStr>,
    ) -> io::Result<[u64; 2]> {
        self.number = self.number.wrapping_add(1);
        let names = [first.to_bytes_with_nul(), second.map_or(&[][..], CStr::to_bytes_with_nul)];
        if names[0].len() + names[1].len() > NAMES_MAX {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let header =
            CallHeader { number: self.number, call: call as u32, mode, first_len: names[0].len() as u32 };
        let message = [header.as_bytes(), names[0], names[1]].concat();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message outlives the call.
        let sent =
            unsafe { libc::send(self.socket.as_raw_fd(), message.as_ptr().cast(), message.len(), flags) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let end = Instant::now() + CALL_MAX;
        loop {
            let reply = self.receive(end)?;
            // An earlier call may have been given up.
            if reply.number == self.number {
                return match reply.errno {
                    0 => Ok(reply.values),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                };
            }
        }
    }

    fn receive(&self, end: Instant) -> io::Result<CallReply> {
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let left = end.saturating_duration_since(Instant::now()).as_millis() as c_int;
        // SAFETY: one structure, which outlives the call.
        match unsafe { libc::poll(&mut poll, 1, left) } {
            0 => return Err(io::ErrorKind::TimedOut.into()),
            -1 => return Err(io::Error::last_os_error()),
            _ => {}
        }
        let mut reply = CallReply { number: 0, errno: 0, values: [0; 2] };
        let bytes = reply.as_mut_bytes();
        // SAFETY: the buffer outlives the call.
        match unsafe { libc::recv(poll.fd, bytes.as_mut_ptr().cast(), bytes.len(), 0) } {
            -1 => Err(io::Error::last_os_error()),
            len if len as usize == size_of::<CallReply>() => Ok(reply),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// Ends the child. To be called when no call can wait for the daemon any more.
impl Drop for EventCaller {
    fn drop(&mut self) {
        // SAFETY: the child was not waited for, so the number is its own; a null status is allowed.
        unsafe {
            libc::kill(self.pid as libc::pid_t, libc::SIGKILL);
            while libc::waitpid(self.pid as libc::pid_t, std::ptr::null_mut(), 0) < 0
                && *libc::__errno_location() == libc::EINTR
            {}
        }
    }
}

/// The child's open descriptors; -1: none.
struct Open {
    root: RawFd,
    folders: [RawFd; 2],
}

impl Open {
    fn close(fd: &mut RawFd) {
        if *fd >= 0 {
            // SAFETY: it is the child's own.
            unsafe { libc::close(*fd) };
        }
        *fd = -1;
    }

    fn close_all(&mut self) {
        Open::close(&mut self.root);
        self.folders.iter_mut().for_each(Open::close);
    }
}

/// The child: no allocation, no lock, no panic.
fn run_child(socket: RawFd) -> ! {
    let mut open = Open { root: -1, folders: [-1; 2] };
    let mut buffer = [0u8; size_of::<CallHeader>() + NAMES_MAX + 2];
    // SAFETY: system calls with descriptors and memory of this process.
    unsafe {
        libc::dup2(socket, 0);
        libc::close_range(1, c_uint::MAX, 0);
        libc::chdir(c"/".as_ptr());
        libc::prctl(libc::PR_SET_NAME, c"xact-events".as_ptr());
        loop {
            // Two zero bytes always follow.
            let len = libc::recv(0, buffer.as_mut_ptr().cast(), buffer.len() - 2, 0);
            let Some(rest) = usize::try_from(len).ok().and_then(|len| buffer.get_mut(len..)) else {
                libc::_exit(0)
            };
            rest.iter_mut().for_each(|byte| *byte = 0);
            let Ok((header, names)) = CallHeader::read_from_prefix(&buffer) else { libc::_exit(0) };
            if len <= 0 {
                libc::_exit(0);
            }
            let mut values = [0; 2];
            let second = names.get(header.first_len as usize..).unwrap_or(&[]);
            let done = match (
                CALLS.iter().find(|call| **call as u32 == header.call),
                CStr::from_bytes_until_nul(names),
                CStr::from_bytes_until_nul(second),
            ) {
                (Some(&call), Ok(first), Ok(second)) => {
                    perform(call, header.mode, first, second, &mut open, &mut values)
                }
                _ => false,
            };
            let errno = if done { 0 } else { *libc::__errno_location() };
            let reply = CallReply { number: header.number, errno, values };
            if libc::send(0, (&raw const reply).cast(), size_of::<CallReply>(), libc::MSG_NOSIGNAL) < 0 {
                libc::_exit(0);
            }
        }
    }
}

/// # Safety
/// To be called in the child, of which the descriptors in `open` are.
unsafe fn perform(
    call: Call,
    mode: u32,
    first: &CStr,
    second: &CStr,
    open: &mut Open,
    values: &mut [u64; 2],
) -> bool {
    let [folder, other] = open.folders;
    let nofollow = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: the names end with a zero byte, and all memory outlives the calls.
    unsafe {
        match call {
            Call::Enter => {
                open.close_all();
                let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
                open.root = libc::open(first.as_ptr(), flags);
                status(open.root).is_some_and(|status| {
                    values[0] = status.st_dev;
                    true
                })
            }
            Call::Folders => {
                let paths = [Some(first), (mode > 1).then_some(second)];
                for ((fd, path), value) in open.folders.iter_mut().zip(paths).zip(values) {
                    Open::close(fd);
                    let Some(path) = path else { continue };
                    *fd = open_below(open.root, path);
                    let Some(status) = status(*fd) else { return false };
                    *value = status.st_ino;
                }
                true
            }
            Call::Make => {
                let made = match mode {
                    libc::S_IFDIR => libc::mkdirat(folder, first.as_ptr(), 0o700),
                    libc::S_IFLNK => libc::symlinkat(c"x".as_ptr(), folder, first.as_ptr()),
                    _ => libc::mknodat(folder, first.as_ptr(), mode | 0o600, 0),
                };
                made == 0 && look(folder, first)
            }
            Call::Remove => {
                let flags = if mode == libc::S_IFDIR { libc::AT_REMOVEDIR } else { 0 };
                libc::unlinkat(folder, first.as_ptr(), flags) == 0
            }
            Call::Rename => {
                let to = if other >= 0 { other } else { folder };
                // The kernel asks for the new name even if it believes to know it.
                let how = libc::RENAME_NOREPLACE;
                libc::syscall(libc::SYS_renameat2, folder, first.as_ptr(), to, second.as_ptr(), how) == 0
                    && look(to, second)
            }
            Call::Modify | Call::SetTimes => {
                let omitted = if call == Call::Modify { libc::UTIME_OMIT } else { 0 };
                let times = [
                    libc::timespec { tv_sec: 0, tv_nsec: omitted },
                    libc::timespec { tv_sec: 0, tv_nsec: 0 },
                ];
                libc::utimensat(folder, first.as_ptr(), times.as_ptr(), nofollow) == 0
            }
            Call::OpenAndClose => {
                let mut file =
                    libc::openat(folder, first.as_ptr(), libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC);
                // A process that executes the file could not do so while it is open for writing. To
                // open a device has effects.
                let fits = status(file).is_some_and(|status| {
                    status.st_mode & libc::S_IFMT == libc::S_IFREG && status.st_mode & 0o111 == 0
                });
                let mut path = *b"/proc/self/fd/\0\0\0\0";
                let mut opened = -1;
                if fits && (0..100).contains(&file) {
                    let digits = [b'0' + (file / 10) as u8, b'0' + (file % 10) as u8];
                    let digits = if file < 10 { &digits[1..] } else { &digits[..] };
                    path[14..14 + digits.len()].copy_from_slice(digits);
                    opened = libc::open(path.as_ptr().cast(), libc::O_WRONLY | libc::O_CLOEXEC);
                }
                Open::close(&mut file);
                let done = opened >= 0 || !fits;
                Open::close(&mut opened);
                done
            }
            Call::Leave => {
                open.close_all();
                true
            }
        }
    }
}

/// Looks a name up, so that the kernel forgets the answer to the call before.
///
/// # Safety
/// As for `perform`.
unsafe fn look(folder: RawFd, name: &CStr) -> bool {
    // SAFETY: all-zero is a valid stat; the call fills it.
    unsafe {
        let mut status: libc::stat = zeroed();
        libc::fstatat(folder, name.as_ptr(), &mut status, libc::AT_SYMLINK_NOFOLLOW);
    }
    true
}

fn status(fd: RawFd) -> Option<libc::stat> {
    // SAFETY: all-zero is a valid stat; the call fills it. A descriptor of -1 is an error.
    unsafe {
        let mut status: libc::stat = zeroed();
        (fd >= 0 && libc::fstat(fd, &mut status) == 0).then_some(status)
    }
}

/// Opens a folder, but none on which, or above which, another file system is mounted.
///
/// # Safety
/// As for `perform`.
unsafe fn open_below(root: RawFd, path: &CStr) -> RawFd {
    let path = if path.is_empty() { c"." } else { path };
    // SAFETY: all-zero is a valid `open_how`, which outlives the call.
    unsafe {
        let mut how: libc::open_how = zeroed();
        how.flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
        how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_XDEV;
        libc::syscall(libc::SYS_openat2, root, path.as_ptr(), &how, size_of::<libc::open_how>()) as RawFd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_made_in_a_folder_of_the_root() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        std::os::unix::fs::symlink("sub", folder.path().join("link")).unwrap();
        let mut caller = EventCaller::start().unwrap();
        caller.enter(folder.path()).unwrap();
        assert!(caller.call(Call::Folders, 1, c"link", None).is_err(), "symbolic links are not followed");
        assert!(caller.call(Call::Folders, 1, c"sub/../..", None).is_err(), "nothing above the root");
        caller.call(Call::Folders, 2, c"sub", Some(c"")).unwrap();
        caller.call(Call::Make, libc::S_IFREG, c"a", None).unwrap();
        caller.call(Call::Make, libc::S_IFDIR, c"d", None).unwrap();
        caller.call(Call::Rename, 0, c"a", Some(c"b")).unwrap();
        caller.call(Call::Remove, libc::S_IFDIR, c"d", None).unwrap();
        assert!(folder.path().join("b").exists() && !folder.path().join("sub/d").exists());
        let gone = caller.call(Call::Modify, 0, c"a", None).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ENOENT));
        caller.call(Call::Leave, 0, c"", None).unwrap();
        assert!(caller.call(Call::Folders, 1, c"sub", None).is_err(), "nothing is open after the batch");
    }
}
