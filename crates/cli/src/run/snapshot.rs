//! `xact run --snapshot`: the volume as it was before the transaction, kept.
//!
//! The snapshot is taken first, and is durable before the commit begins: so a crash leaves both, the snapshot alone, or
//! neither, and never the commit without the snapshot.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xact::Date;

use crate::control::{self, Transaction};
use crate::exit::{Exit, Failure, Result};

/// Refuses, before the command runs, what could not be done after it: on a volume without generations, for a name
/// that is taken.
pub fn check(mount_point: &Path, name: &str) -> Result<()> {
    if control::snapshots(mount_point)?.iter().any(|snapshot| snapshot.name == name) {
        return Err(Failure::usage(format!("there is a snapshot '{name}' already")));
    }
    Ok(())
}

/// Commits, with a snapshot of the moment before; an empty name is replaced by one that tells when. Returns the
/// snapshot's name.
pub fn commit_behind(transaction: &Transaction, name: &str, flags: u32) -> Result<String> {
    let name = if name.is_empty() { name_of_now(transaction.id()) } else { name.to_owned() };
    transaction.create_snapshot(&name)?;
    match transaction.commit(flags) {
        Ok(()) => Ok(name),
        // What failed by an error of the device may be there.
        Err(failure) if failure.exit == Exit::Io => Err(failure),
        Err(failure) => {
            if let Err(kept) = transaction.delete_snapshot(&name) {
                crate::output::note(super::NAME, &format!("the snapshot '{name}' stays: {}", kept.message));
            }
            Err(failure)
        }
    }
}

fn name_of_now(id: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    format!("run-{}-{id}", Date::of(now))
}
