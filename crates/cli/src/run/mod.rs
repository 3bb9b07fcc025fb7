//! `xact run`: a command in a transaction.
//!
//! The order matters, since nothing that the command does may reach the volume itself:
//!
//! 1. Look at what the command would inherit: descriptors and the current folder.
//! 2. Begin: the control descriptor stands for the transaction; closing it, by death too, aborts.
//! 3. Enter a mount namespace in which the view lies over every mount of the volume.
//! 4. Reopen there what was found in 1. What cannot be is refused before the command starts.
//! 5. Run the command, wait, and commit, abort, or leave the transaction open. The view is frozen from
//!    then on: a transaction that stays open gets a new one.
//! 6. After a conflict, with --retry: begin again, put the new view in the place of the old one, and
//!    go on with 4.
//!
//! xact itself moves into the namespace, before it starts the command: so a failure in 3 or 4 is
//! reported like any other. It changes nothing on the volume.

mod ask;
mod child;
mod signals;
mod snapshot;
mod status;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use xact_control::abi::{BEGIN_SNAPSHOT, COMMIT_ORDERED};
use xact_control::client::SavepointHandle;
use xact_namespace::descriptors::{Scope, Survey};
use xact_namespace::namespace::Namespace;

use crate::args::{Isolation, Run};
use crate::control::Transaction;
use crate::exit::{Exit, Failure, Result};
use crate::mounts::Mount;
use crate::{mounts, output};
use ask::{Answer, Terminal};
use child::Ended;
use status::{Outcome, Status, StatusFile};

const NAME: &str = "xact run";

/// Exit code when the answer to --ask is no.
const DECLINED: u8 = 1;

/// Runs the command and returns the exit code of `xact run`.
pub fn run(args: &Run) -> u8 {
    let mut status = Status::new();
    // Before anything else, so that the file is where the caller's shell would put it: outside.
    let file = match args.status_file.as_deref().map(StatusFile::create).transpose() {
        Ok(file) => file,
        Err(failure) => return report(&failure),
    };
    let code = attempt(args, &mut status).unwrap_or_else(|failure| {
        status.outcome = Outcome::of_failure(&failure, status.command_ran());
        status.reason = Some(failure.message.clone());
        status.path = failure.path.clone();
        status.winner = failure.winner;
        report(&failure)
    });
    status.exit_code = code;
    if let Some(file) = file
        && let Err(failure) = file.write(&status)
    {
        // The transaction is over and its code is the truth; this can only be said.
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
    let flags = begin_flags(args.isolation);
    if let Some(name) = &args.snapshot {
        snapshot::check(&mount.point, name)?;
    }
    let mut transaction = match args.tx {
        Some(id) => Transaction::attach(&mount.point, id)?,
        None => Transaction::begin(&mount.point, flags)?,
    };
    let mut namespace = Namespace::enter(&mount)?;
    loop {
        status.transaction = Some(transaction.id());
        status.tries += 1;
        let bound = namespace.show(transaction.id())?;
        let reopened = inherited.reopen(&bound)?;
        // The view's descriptors go with the command: xact's own messages are no part of the view.
        let ended = child::run(&args.command, move || drop(reopened))?;
        status.command_status = ended.status;
        status.command_signal = ended.signal;
        match decide(args, &transaction, &ended, terminal.as_ref(), status) {
            Err(conflict) if conflict.exit == Exit::Conflict && status.tries <= args.retry => {
                let first = conflict.message.lines().next().unwrap_or_default();
                output::note(NAME, &format!("{first}: trying again, {} of {}", status.tries, args.retry));
                pause(status.tries);
                transaction.begin_again(flags)?;
            }
            result => return result,
        }
    }
}

/// `xact run` in a transaction: a part of it that can be undone by itself, from a savepoint on. The
/// command is where it should be already.
fn within(args: &Run, mount: &Mount, status: &mut Status) -> Result<u8> {
    if args.keep || args.ask || args.tx.is_some() || args.snapshot.is_some() {
        return Err(Failure::usage("inside a transaction there is nothing to decide")
            .hint("--keep, --ask, --tx and --snapshot are for the xact run around it."));
    }
    let wrong = |doing: &'static str| move |e| Failure::system(doing, e);
    let inner = SavepointHandle::begin(&mount.point).map_err(wrong("make a savepoint"))?;
    status.tries = 1;
    let ended = child::run(&args.command, || ())?;
    status.command_status = ended.status;
    status.command_signal = ended.signal;
    if ended.code() == 0 {
        inner.release().map_err(wrong("release the savepoint"))?;
        status.outcome = Outcome::Committed;
    } else {
        inner.roll_back().map_err(wrong("roll back to the savepoint"))?;
        let what = ended.describe(&args.command[0]);
        output::note(NAME, &format!("{what}: what it did in the transaction is undone"));
        status.outcome = Outcome::Aborted;
        status.reason = Some(what);
    }
    Ok(ended.code())
}

pub fn begin_flags(isolation: Isolation) -> u32 {
    if isolation == Isolation::Snapshot { BEGIN_SNAPSHOT } else { 0 }
}

/// A random time, longer from try to try: two that collide again and again come apart.
fn pause(tries: u32) {
    let limit_ms = 10u64 << tries.min(7);
    let mut random = [0; 8];
    // Without randomness it is the longest pause, which is none the worse.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    std::thread::sleep(Duration::from_millis(u64::from_ne_bytes(random) % limit_ms + 1));
}

/// What becomes of the transaction after the command has ended.
fn decide(
    args: &Run,
    transaction: &Transaction,
    ended: &Ended,
    terminal: Option<&Terminal>,
    status: &mut Status,
) -> Result<u8> {
    let id = transaction.id();
    if ended.code() != 0 {
        // A command that was told of a conflict in the middle has failed for that, and may be run again.
        if args.tx.is_none() && transaction.is_doomed()? {
            transaction.commit(0)?;
        }
        let what = ended.describe(&args.command[0]);
        let outcome = if args.tx.is_some() {
            transaction.keep_on()?;
            format!("{what}: transaction {id} stays open with all it did")
        } else {
            transaction.abort()?;
            format!("{what}: nothing was changed")
        };
        output::note(NAME, &outcome);
        status.outcome = Outcome::Aborted;
        status.reason = Some(what);
        return Ok(ended.code());
    }
    let answer = match terminal {
        Some(terminal) => terminal.ask(transaction)?,
        None if args.tx.is_some() => Answer::KeepOn,
        None if args.keep => Answer::Keep,
        None => Answer::Commit,
    };
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
        Answer::Keep => {
            if let Err(failure) = transaction.keep(args.timeout, &label(&args.command), args.persist) {
                if !transaction.is_kept() {
                    return Err(failure);
                }
                code = report(&failure);
                status.reason = Some(failure.message);
            }
            // As it can be typed where this was.
            let at = match args.at.as_path() {
                here if here == Path::new(".") => String::new(),
                at => format!(" --at {}", at.display()),
            };
            let text = format!(
                "transaction {id} is open: see it with 'xact tx diff {id}{at}', then 'xact tx commit {id}{at}' or \
                 'xact tx drop {id}{at}'"
            );
            output::note(NAME, &text);
            Outcome::Kept
        }
        Answer::KeepOn => {
            transaction.keep_on()?;
            Outcome::Kept
        }
        Answer::Drop => {
            transaction.abort()?;
            output::note(NAME, "not committed, as you said: nothing was changed");
            Outcome::Declined
        }
    };
    Ok(if status.outcome == Outcome::Declined { DECLINED } else { code })
}

/// The command as a person would type it, more or less.
fn label(command: &[OsString]) -> Vec<u8> {
    command.join(OsStr::new(" ")).into_encoded_bytes()
}
