//! `xact run --snapshot`: a snapshot of the volume before the transaction.
//!
//! The snapshot is made first, and is durable before the commit begins. So a crash leaves both, the
//! snapshot alone, or neither, and never the commit without the snapshot.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xact::Date;

use crate::control::{self, Transaction};
use crate::exit::{Exit, Failure, Result};

/// Fails before the command runs if the snapshot could not be made after it: the volume has no
/// generations, or the name is in use.
pub fn check(mount_point: &Path, name: &str) -> Result<()> {
    if control::snapshots(mount_point)?.iter().any(|snapshot| snapshot.name == name) {
        return Err(Failure::usage(format!("snapshot '{name}' already exists")));
    }
    Ok(())
}

/// Makes a snapshot and commits. An empty name is replaced by the time. Returns the snapshot's
/// name.
pub fn commit_behind(transaction: &Transaction, name: &str, flags: u32) -> Result<String> {
    let name = if name.is_empty() { name_of_now(transaction.id()) } else { name.to_owned() };
    transaction.create_snapshot(&name)?;
    match transaction.commit(flags) {
        Ok(()) => Ok(name),
        // After a device error, the transaction may have been committed.
        Err(failure) if failure.exit == Exit::Io => Err(failure),
        Err(failure) => {
            if let Err(kept) = transaction.delete_snapshot(&name) {
                crate::output::note(
                    super::NAME,
                    &format!("snapshot '{name}' was not deleted: {}", kept.message),
                );
            }
            Err(failure)
        }
    }
}

fn name_of_now(id: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    format!("run-{}-{id}", Date::of(now))
}
