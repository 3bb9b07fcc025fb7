//! `xact-run-helper STATUS POINT ID COMMAND [ARGUMENT…]`: runs a command in a mount namespace in
//! which the view of a transaction covers the volume that is mounted at POINT.
//!
//! It is meant to be installed setuid root, so each line of it counts. `docs/SECURITY.md` has the
//! argument why its callers gain nothing that they should not have. The steps:
//!
//! 1. Become the caller: all ids are those of the caller, before anything else happens. One
//!    capability, `CAP_SYS_ADMIN`, stays permitted, and is effective in the calls of step 2 and 5
//!    only. So the kernel checks every path and file with the rights of the caller.
//! 2. Make a mount namespace from which no mount spreads to others.
//! 3. Open POINT, the view of transaction ID below it, and every other mount of the same volume.
//!    From here on, only these descriptors are used, so names that change no longer matter.
//! 4. Refuse unless POINT is the root of an xact mount, the transaction belongs to the caller, and
//!    no folder of the system is on the volume (`closed`).
//! 5. Put the view over the mounts, with all restrictions that they have.
//! 6. Give the capability up, and verify that. Execute COMMAND.
//!
//! A step that fails ends the process, and the namespace with it. The reason is one line, on the
//! descriptor STATUS. Nothing is read from the environment, nothing is allocated, and Rust's own
//! start code does not run: it would change signals and descriptors that COMMAND is to inherit.

mod closed;
mod cover;
mod identity;
mod mountinfo;
mod path;
mod refusal;
mod sys;

use std::ffi::{CStr, c_char, c_int};

use path::{Path, number};
use refusal::{Refusal, Result};

/// The exit status after a refusal.
const REFUSED: c_int = 125;
/// That of a shell for a command that cannot be executed.
const CANNOT_EXECUTE: c_int = 126;

const USAGE: &str =
    "it is called by 'xact run' only, as: xact-run-helper STATUS POINT ID COMMAND [ARGUMENT...]";

/// The arguments. All of them come from the caller.
struct Arguments {
    status: c_int,
    point: Path,
    transaction: u64,
    /// COMMAND and what follows it, ended by a null pointer, as execve(2) takes it.
    command: *const *const c_char,
}

impl Arguments {
    /// `None`: they are not as in the head of this file.
    fn parse(count: c_int, words: *const *const c_char) -> Option<Arguments> {
        if count < 5 {
            return None;
        }
        // SAFETY: the kernel passes `count` pointers to strings, then a null pointer.
        let word = |at: usize| unsafe { CStr::from_ptr(*words.add(at)) }.to_bytes();
        let point = Path::new(word(2)).filter(Path::is_absolute)?;
        // SAFETY: the same; `count` is at least 5.
        let command = unsafe { words.add(4) };
        Some(Arguments { status: number(word(1))?, point, transaction: number(word(3))?, command })
    }
}

/// The program. Returns the exit status if it did not become the command.
///
/// # Safety
/// The arguments must be those of main in C.
pub unsafe fn run(count: c_int, words: *const *const c_char, environment: *const *const c_char) -> c_int {
    // First of all, since a program that has other rights than its caller must not even print.
    let became = identity::become_caller();
    if !identity::is_caller() {
        return REFUSED;
    }
    let arguments = Arguments::parse(count, words);
    let status = arguments.as_ref().map_or(libc::STDERR_FILENO, |arguments| arguments.status);
    let done = became.and_then(|()| arguments.ok_or(Refusal::new(USAGE))).and_then(|arguments| {
        prepare(&arguments)?;
        Ok(arguments)
    });
    match done {
        Ok(arguments) => {
            // SAFETY: both are arrays of strings that end with a null pointer.
            let error = unsafe { sys::execute(arguments.command, environment) };
            Refusal::system("execute the command", error).report(status);
            CANNOT_EXECUTE
        }
        Err(refusal) => {
            refusal.report(status);
            REFUSED
        }
    }
}

/// Everything up to the command. Afterwards, the process has no privilege that its caller has not.
fn prepare(arguments: &Arguments) -> Result<()> {
    sys::fill_standard_descriptors()?;
    identity::as_administrator(sys::enter_mount_namespace)?;
    cover::cover(&arguments.point, arguments.transaction)?;
    identity::give_up()
}
