//! `xact snapshot restore` on a mount: files and folders become what a snapshot has, in one
//! transaction ([`xact::restore`]).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use xact::restore::{Restore, RestoreError, paths_to_restore};
use xact_control::abi::FOLDER;

use crate::control::{self, Transaction};
use crate::exit::{Exit, Failure, Result};
use crate::mounts::Mount;
use crate::progress::Steps;
use crate::volume_paths::on_volume_in;

/// Restores these paths, of the mount or from the volume's root; none means all that the snapshot
/// has.
pub fn restore(mount: &Mount, name: &str, paths: &[PathBuf]) -> Result<()> {
    if mount.is_view() {
        return Err(Failure::usage("a restore is not possible inside a transaction")
            .hint("Run it outside of 'xact run', or copy from MNT/.xact/snapshots."));
    }
    let past = mount.point.join(FOLDER).join("snapshots").join(name);
    let snapshot = control::snapshots(&mount.point)?.into_iter().find(|snapshot| snapshot.name == name);
    let Some(snapshot) = snapshot else {
        return Err(Failure::usage(format!("there is no snapshot '{name}'")));
    };
    let created = i64::try_from(snapshot.time).unwrap_or(i64::MAX);
    let transaction = Transaction::begin(&mount.point, 0)?;
    let now = transaction.channel().root(transaction.id());
    let chosen: Vec<PathBuf> = snapshot.paths.iter().map(|path| OsStr::from_bytes(path).into()).collect();
    let given = on_volume_in(&past, paths, &mount.point)?;
    let paths = paths_to_restore(&given, &chosen)?;
    let mut restore = Restore::new(past, now, created);
    let mut steps = Steps::new();
    for (done, path) in paths.iter().enumerate() {
        steps.at(&format!("restoring /{}", path.display()), done as f64 / paths.len() as f64);
        restore.restore(path)?;
    }
    drop(steps);
    transaction.commit(0)
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Failure {
        let exit = match error {
            RestoreError::Io { path, source } => {
                return Failure::system(format_args!("restore {}", path.display()), source);
            }
            RestoreError::NotInSnapshot(_) => Exit::NoInput,
            RestoreError::SnapshotDeleted => Exit::Unavailable,
            _ => Exit::Usage,
        };
        Failure::new(exit, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_paths_have_their_exit_codes() {
        let exit = |path: &str, chosen: &[PathBuf]| {
            Failure::from(paths_to_restore(&[PathBuf::from(path)], chosen).unwrap_err()).exit
        };
        assert_eq!(exit("a/x", &[PathBuf::from("a/b")]), Exit::NoInput);
        assert_eq!(exit("a/../b", &[]), Exit::Usage);
        let path = PathBuf::from("a");
        assert_eq!(Failure::from(RestoreError::NotAFolder(path.clone())).exit, Exit::Usage);
        let source = std::io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(Failure::from(RestoreError::Io { path, source }).exit, Exit::NoSpace);
    }
}
