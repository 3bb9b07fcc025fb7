//! Signals while the command runs. A signal sent to xact alone is forwarded; a signal that the
//! terminal sent to the whole foreground group is not sent twice.

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};

/// Forwarded signals. `SIGTSTP` and `SIGCONT` keep their default action in xact, so that the
/// shell's job control works: the terminal stops and continues both processes.
const FORWARDED: [libc::c_int; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// The signals above, blocked, with a descriptor from which they can be read. They stay blocked
/// until xact ends, so that Ctrl-C does not interrupt a commit.
pub struct Blocked {
    before: libc::sigset_t,
    pending: File,
}

impl Blocked {
    pub fn block() -> io::Result<Blocked> {
        let mut set = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigemptyset and sigprocmask fill the two sets before they are used, all pointers
        // are to locals, and signalfd returns a new descriptor that no other object owns.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in FORWARDED {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            if libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Blocked { before: before.assume_init(), pending: File::from_raw_fd(fd) }),
            }
        }
    }

    /// The mask that xact was started with.
    pub fn mask_before(&self) -> Mask {
        Mask(self.before)
    }

    /// Readable when a signal is pending.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.pending.as_fd()
    }

    /// Takes a pending signal; `None` if the command received it too.
    pub fn take(&self) -> io::Result<Option<libc::c_int>> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        (&self.pending).read_exact(&mut info)?;
        let word = |at: usize| i32::from_ne_bytes(info[at..at + 4].try_into().expect("4 bytes"));
        let signal = word(std::mem::offset_of!(libc::signalfd_siginfo, ssi_signo));
        let code = word(std::mem::offset_of!(libc::signalfd_siginfo, ssi_code));
        // Signals of the terminal come from the kernel and go to the whole foreground group.
        Ok((code != libc::SI_KERNEL).then_some(signal))
    }
}

/// A signal mask for a child process.
#[derive(Clone, Copy)]
pub struct Mask(libc::sigset_t);

impl Mask {
    /// That of this thread.
    pub fn current() -> io::Result<Mask> {
        let mut now = MaybeUninit::uninit();
        // SAFETY: no mask is set, and sigprocmask fills the set if it succeeds.
        match unsafe { libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), now.as_mut_ptr()) } {
            0 => Ok(Mask(unsafe { now.assume_init() })),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sets the mask in this process. Safe between fork and exec.
    pub fn set(&self) -> io::Result<()> {
        // SAFETY: the set was filled by sigprocmask; the old mask is not asked for.
        match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
