//! Signals while the command runs: what reaches xact alone is passed on, what the terminal sends
//! to the whole foreground group is not sent twice.

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};

/// Signals that ask a command to end or to look again. `SIGTSTP` and `SIGCONT` keep their meaning
/// for xact, so that the shell's job control works: the terminal stops and continues both.
const FORWARDED: [libc::c_int; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// The signals above, blocked, with a descriptor from which they can be read. They stay blocked
/// until xact ends: a commit is not to be interrupted half-way by an impatient Ctrl-C.
pub struct Blocked {
    before: libc::sigset_t,
    pending: File,
}

impl Blocked {
    pub fn block() -> io::Result<Blocked> {
        let mut set = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigemptyset and sigprocmask fill the two sets before they are used, all pointers
        // are to locals, and signalfd returns a new descriptor that nobody else owns.
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

    /// Readable when a signal came.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.pending.as_fd()
    }

    /// Takes the signal that came; `None` where the command got it too.
    pub fn take(&self) -> io::Result<Option<libc::c_int>> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        (&self.pending).read_exact(&mut info)?;
        let word = |at: usize| i32::from_ne_bytes(info[at..at + 4].try_into().expect("4 bytes"));
        let signal = word(std::mem::offset_of!(libc::signalfd_siginfo, ssi_signo));
        let code = word(std::mem::offset_of!(libc::signalfd_siginfo, ssi_code));
        // The terminal's signals come from the kernel and go to the whole group.
        Ok((code != libc::SI_KERNEL).then_some(signal))
    }
}

/// A signal mask, to be set in a child.
#[derive(Clone, Copy)]
pub struct Mask(libc::sigset_t);

impl Mask {
    /// Makes it the mask of this process. Safe between fork and exec.
    pub fn set(&self) -> io::Result<()> {
        // SAFETY: the set was filled by sigprocmask; the old mask is not asked for.
        match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
