//! `xact run`: runs a command in a transaction.
//!
//! The order of the steps ensures that no change of the command reaches the volume itself:
//!
//! 1. Survey what the command would inherit: descriptors and the current folder.
//! 2. Begin. The transaction belongs to the control descriptor: closing it aborts, also when this
//!    process dies.
//! 3. Enter a mount namespace in which the transaction's view covers every mount of the volume.
//! 4. Reopen the inherited descriptors in the view. If one cannot be reopened, fail before the
//!    command starts.
//! 5. Run the command, wait for it, then commit, abort, or leave the transaction open. The view is
//!    frozen from then on: a transaction that stays open gets a new view.
//! 6. After a conflict, with --retry: begin again, replace the old view by the new one, and
//!    continue at 4.
//!
//! xact itself enters the namespace before it starts the command, so a failure in step 3 or 4 is
//! reported like any other. It changes nothing on the volume. For an ordinary user, a setuid helper
//! makes the namespace (`helper.rs`), and steps 3 to 5 are those of the command's process
//! (`in_view.rs`), which reports a failure to this one. Without the helper, xact enters a user
//! namespace (`place.rs`).

mod ask;
mod child;
mod helper;
pub mod in_view;
mod place;
mod signals;
mod snapshot;
mod status;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use xact_control::abi::{BEGIN_EAGER, BEGIN_SNAPSHOT, COMMIT_ORDERED, COMMIT_RETAIN};
use xact_control::client::SavepointHandle;
use xact_namespace::descriptors::{Scope, Survey};

use crate::args::{Detection, Isolation, Run};
use crate::control::Transaction;
use crate::exit::{Exit, Failure, Result};
use crate::mounts::Mount;
use crate::{mounts, output};
use ask::{Answer, Terminal};
use child::Ended;
use place::Place;
use status::{Outcome, Status, StatusFile};

const NAME: &str = "xact run";

/// Exit code when the answer to --ask is no.
const ANSWERED_NO: u8 = 1;

/// Runs the command and returns the exit code of `xact run`.
pub fn run(args: &Run) -> u8 {
    let mut status = Status::new();
    // Created first, so that the path means what it means to the caller's shell: a file outside of
    // the transaction.
    let file = match args.status_file.as_deref().map(StatusFile::create).transpose() {
        Ok(file) => file,
        Err(failure) => return report(&failure),
    };
    let code = attempt(args, &mut status).unwrap_or_else(|failure| {
        status.outcome = Outcome::of_failure(&failure, status.command_ran());
        status.reason = Some(failure.message.clone());
        status.path = failure.path.clone();
        status.conflicting_tx = failure.conflicting_tx;
        report(&failure)
    });
    status.exit_code = code;
    if let Some(file) = file
        && let Err(failure) = file.write(&status)
    {
        // The transaction has ended, and its exit code stands: this error can only be reported.
        report(&failure);
    }
    code
}

fn report(failure: &Failure) -> u8 {
    output::error(NAME, failure);
    failure.code()
}

fn attempt(args: &Run, status: &mut Status) -> Result<u8> {
    let mount = mounts::containing(&args.at)?;
    status.mount = Some(mount.point.display().to_string());
    if mount.is_view() {
        return within(args, &mount, status);
    }
    let terminal = if args.ask { Some(Terminal::open()?) } else { None };
    let inherited = Survey::of_volume(&mount, Scope::Inherited)?;
    let flags = begin_flags(args.isolation, args.conflict);
    if let Some(name) = &args.snapshot {
        snapshot::check(&mount.point, name)?;
    }
    let mut transaction = match args.tx {
        Some(id) => Transaction::attach(&mount.point, id)?,
        None => Transaction::begin(&mount.point, flags)?,
    };
    // A savepoint in a transaction that was open before: the changes of a failed command are rolled
    // back.
    let mut part = match args.tx {
        Some(_) => Some(transaction.savepoint()?),
        None => None,
    };
    let mut place = Place::enter(&mount)?;
    loop {
        status.transaction = Some(transaction.id());
        status.tries += 1;
        let ended = place.run(&args.command, transaction.id(), &inherited);
        let decided = match ended {
            Ok(ended) => {
                status.command_status = ended.status;
                status.command_signal = ended.signal;
                decide(args, &transaction, part.take(), &ended, terminal.as_ref(), status)
            }
            // A file of the volume was needed to start it.
            Err(failure) => {
                let failure = conflict(&transaction, args.tx.is_some())?.unwrap_or(failure);
                part.take().map_or(Ok(()), released)?;
                Err(failure)
            }
        };
        match decided {
            Err(conflict) if conflict.exit == Exit::Conflict && status.tries <= args.retry => {
                let first = conflict.message.lines().next().unwrap_or_default();
                output::note(NAME, &format!("{first}: retry {} of {}", status.tries, args.retry));
                pause(status.tries);
                transaction.begin_again(flags)?;
            }
            result => return result,
        }
    }
}

/// `xact run` inside a transaction: a savepoint, to which a failed command is rolled back. This
/// process is in the transaction's namespace already.
fn within(args: &Run, mount: &Mount, status: &mut Status) -> Result<u8> {
    if args.leave_open || args.ask || args.tx.is_some() || args.snapshot.is_some() {
        return Err(Failure::usage(
            "--leave-open, --ask, --tx and --snapshot cannot be used inside a transaction",
        )
        .hint("Use them for the outer 'xact run'."));
    }
    let inner = SavepointHandle::begin(&mount.point).map_err(|e| Failure::system("make a savepoint", e))?;
    status.tries = 1;
    let ended = child::run(&args.command, || ())?;
    status.command_status = ended.status;
    status.command_signal = ended.signal;
    if ended.code() == 0 {
        released(inner)?;
        status.outcome = Outcome::Committed;
    } else {
        rolled_back(inner)?;
        let what = ended.describe(&args.command[0]);
        output::note(NAME, &format!("{what}: its changes to the transaction were rolled back"));
        status.outcome = Outcome::Aborted;
        status.reason = Some(what);
    }
    Ok(ended.code())
}

fn released(savepoint: SavepointHandle) -> Result<()> {
    savepoint.release().map_err(|e| Failure::system("release the savepoint", e))
}

fn rolled_back(savepoint: SavepointHandle) -> Result<()> {
    savepoint.roll_back().map_err(|e| Failure::system("roll back to the savepoint", e))
}

pub fn begin_flags(isolation: Isolation, conflict: Detection) -> u32 {
    let isolation = if isolation == Isolation::Snapshot { BEGIN_SNAPSHOT } else { 0 };
    let conflict = if conflict == Detection::Eager { BEGIN_EAGER } else { 0 };
    isolation | conflict
}

/// Waits a random time, which grows with each try, so that two transactions in conflict do not stay
/// in step.
fn pause(tries: u32) {
    let limit_ms = 10u64 << tries.min(7);
    let mut random = [0; 8];
    // If this fails, the pause is the shortest one.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    std::thread::sleep(Duration::from_millis(u64::from_ne_bytes(random) % limit_ms + 1));
}

/// The conflict of a doomed transaction. Every failure in one is a conflict, because it may be a
/// consequence of one. It is aborted unless it stays open.
fn conflict(transaction: &Transaction, stays_open: bool) -> Result<Option<Failure>> {
    if !transaction.is_doomed()? {
        return Ok(None);
    }
    Ok(transaction.commit(if stays_open { COMMIT_RETAIN } else { 0 }).err())
}

/// Commits, aborts or leaves open the transaction after the command has ended. `part` is the
/// savepoint of a command in a transaction that was open before.
fn decide(
    args: &Run,
    transaction: &Transaction,
    part: Option<SavepointHandle>,
    ended: &Ended,
    terminal: Option<&Terminal>,
    status: &mut Status,
) -> Result<u8> {
    let id = transaction.id();
    if ended.code() != 0 {
        if let Some(conflict) = conflict(transaction, part.is_some())? {
            // Its changes stay for a look: some of them may be committed without the conflict.
            if let Some(part) = part {
                released(part)?;
                transaction.stay_open()?;
            }
            return Err(conflict);
        }
        let what = ended.describe(&args.command[0]);
        let outcome = match part {
            Some(part) => {
                rolled_back(part)?;
                transaction.stay_open()?;
                format!(
                    "{what}: its changes to transaction {id} were rolled back; the transaction stays open"
                )
            }
            None => {
                transaction.abort()?;
                format!("{what}: nothing was changed")
            }
        };
        output::note(NAME, &outcome);
        status.outcome = Outcome::Aborted;
        status.reason = Some(what);
        return Ok(ended.code());
    }
    let answer = match terminal {
        Some(terminal) => terminal.ask(transaction)?,
        None if part.is_some() => Answer::StayOpen,
        None if args.leave_open => Answer::LeaveOpen,
        None => Answer::Commit,
    };
    part.map_or(Ok(()), released)?;
    let mut code = 0;
    status.outcome = match answer {
        Answer::Commit => {
            let flags = if args.ordered { COMMIT_ORDERED } else { 0 };
            match &args.snapshot {
                Some(name) => status.snapshot = Some(snapshot::commit_behind(transaction, name, flags)?),
                None => transaction.commit(flags)?,
            }
            Outcome::Committed
        }
        Answer::LeaveOpen => {
            // The command took no notice of a call that has failed. Its changes can be looked at.
            let conflict = conflict(transaction, true)?;
            if let Err(failure) = transaction.keep(args.timeout, &label(&args.command), args.persist) {
                if !transaction.is_kept() {
                    return Err(failure);
                }
                code = report(&failure);
                status.reason = Some(failure.message);
            }
            // The option as it can be typed in the current folder.
            let at = match args.at.as_path() {
                here if here == Path::new(".") => String::new(),
                at => format!(" --at {}", at.display()),
            };
            let text = format!(
                "transaction {id} is open: review it with 'xact tx diff {id}{at}', then 'xact tx commit {id}{at}' or \
                 'xact tx abort {id}{at}'"
            );
            output::note(NAME, &text);
            code = conflict.map_or(code, |conflict| note_conflict(status, &conflict));
            Outcome::LeftOpen
        }
        Answer::StayOpen => {
            let conflict = conflict(transaction, true)?;
            transaction.stay_open()?;
            code = conflict.map_or(code, |conflict| note_conflict(status, &conflict));
            Outcome::LeftOpen
        }
        Answer::Abort => {
            transaction.abort()?;
            let what = "aborted as requested";
            output::note(NAME, &format!("{what}: nothing was changed"));
            status.reason = Some(what.into());
            code = ANSWERED_NO;
            Outcome::Aborted
        }
    };
    Ok(code)
}

/// Reports the conflict of a transaction that stays open, and returns the exit code.
fn note_conflict(status: &mut Status, conflict: &Failure) -> u8 {
    status.reason = Some(conflict.message.clone());
    status.path = conflict.path.clone();
    status.conflicting_tx = conflict.conflicting_tx;
    report(conflict)
}

/// The words of the command, separated by spaces: the label of a transaction that is left open.
fn label(command: &[OsString]) -> Vec<u8> {
    command.join(OsStr::new(" ")).into_encoded_bytes()
}
