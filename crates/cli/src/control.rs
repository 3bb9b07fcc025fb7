//! Calls to the daemon of a mount over its control channel, with the errors of this command.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use xact::{DataMode, ModeChoice, SnapshotInfo};
use xact_control::abi::{
    COMMIT_RETAIN, Counters, FILE_MODE_ADAPTIVE, FILE_MODE_CLEAR, FILE_MODE_DATA, FILE_MODE_GET,
    FILE_MODE_NONE, FILE_MODE_ORDERED, FILE_MODE_SELECTIVE, FILE_MODE_SET, FileMode, FileUse,
    KEEP_PERSISTENT, Latencies, MODES_GET, MODES_OPTIONS, MODES_SET, MOUNT_READ_ONLY, Modes, MountInfo, Pool,
    Reason, SNAPSHOT_CREATE, SNAPSHOT_DELETE, SNAPSHOT_NAME_MAX, Snapshot as SnapshotRequest, SnapshotDiff,
    TxStatus, UserUse,
};
use xact_control::client::{self, Channel, CommitError, SavepointHandle, SnapshotEntry, TxChange};

use crate::exit::{Exit, Failure, Result, exit_of_errno};
use crate::full_pool;

/// Makes all completed changes on the mount durable.
pub fn sync(mount_point: &Path) -> Result<()> {
    client::sync(mount_point).map_err(|e| failure(mount_point, "make changes durable", e))
}

/// Keeps the mounted volume as it is now.
pub fn create_snapshot(mount_point: &Path, name: &str) -> Result<()> {
    create_snapshot_of(mount_point, name, &[])
}

/// Keeps some files and folders of the mounted volume as they are now.
pub fn create_snapshot_of(mount_point: &Path, name: &str, paths: &[Vec<u8>]) -> Result<()> {
    client::create_snapshot(mount_point, name, paths)
        .map_err(|(error, why)| failure_with_reason(mount_point, "create a snapshot", error, &why))
}

pub fn delete_snapshot(mount_point: &Path, name: &str) -> Result<()> {
    client::delete_snapshot(mount_point, name)
        .map_err(|(error, why)| failure_with_reason(mount_point, "delete a snapshot", error, &why))
}

/// From the oldest to the newest.
pub fn snapshots(mount_point: &Path) -> Result<Vec<SnapshotInfo>> {
    let found = client::list_snapshots(mount_point)
        .map_err(|(error, why)| failure_with_reason(mount_point, "list the snapshots", error, &why))?;
    let convert = |SnapshotEntry { name, generation, time, own_bytes, paths }| SnapshotInfo {
        name,
        generation,
        time,
        own_bytes,
        paths,
    };
    Ok(found.into_iter().map(convert).collect())
}

/// The differences between two snapshots, or between a snapshot and the current state.
pub fn diff_snapshots(mount_point: &Path, old: &str, new: Option<&str>) -> Result<Vec<TxChange>> {
    let mut request = SnapshotDiff::new(old, new.unwrap_or(""))
        .ok_or_else(|| Failure::usage(format!("a snapshot's name has at most {SNAPSHOT_NAME_MAX} bytes")))?;
    let doing = "compare snapshots";
    let channel = Channel::open(mount_point).map_err(|e| failure(mount_point, doing, e))?;
    channel.diff_snapshots(&mut request).map_err(|(e, why)| failure_with_reason(mount_point, doing, e, &why))
}

fn snapshot_request(action: u32, name: &str) -> Result<SnapshotRequest> {
    SnapshotRequest::new(action, name).ok_or_else(|| {
        Failure::usage(format!(
            "name '{name}' is too long: a snapshot's name has at most {SNAPSHOT_NAME_MAX} bytes"
        ))
    })
}

fn failure_with_reason(mount_point: &Path, doing: &str, error: io::Error, why: &str) -> Failure {
    match error.raw_os_error() {
        Some(errno @ (libc::EINVAL | libc::ENOSPC)) if !why.is_empty() => {
            let failure = Failure::new(exit_of_errno(errno), why.to_owned());
            let hint = match errno {
                libc::ENOSPC => full_pool::hint(mount_point, client::pool(mount_point)),
                _ => None,
            };
            hint.map_or(failure.clone(), |hint| failure.hint(hint))
        }
        _ => failure(mount_point, doing, error),
    }
}

/// Counters of the volume since it was mounted.
pub fn counters(mount_point: &Path) -> Result<Counters> {
    client::counters(mount_point).map_err(|e| failure(mount_point, "read statistics", e))
}

/// Latencies of syncs and commits since the volume was mounted.
pub fn latencies(mount_point: &Path) -> Result<Latencies> {
    client::latencies(mount_point).map_err(|e| failure(mount_point, "read statistics", e))
}

/// The mounted volume's own modes, and those that it is mounted with.
pub fn modes(mount_point: &Path) -> Result<(ModeChoice, ModeChoice)> {
    let reply = ask_modes(mount_point, MODES_GET)?;
    Ok((ModeChoice::from_numbers(reply.stored), ModeChoice::from_numbers(reply.effective)))
}

/// Those that its mount options say.
pub fn mode_options(mount_point: &Path) -> Result<ModeChoice> {
    Ok(ModeChoice::from_numbers(ask_modes(mount_point, MODES_OPTIONS)?.stored))
}

fn ask_modes(mount_point: &Path, action: u32) -> Result<Modes> {
    let mut request = Modes::new(action, [0; 8]);
    client::modes(mount_point, &mut request)
        .map_err(|(error, why)| failure_with_reason(mount_point, "read the modes", error, &why))?;
    Ok(request)
}

/// Keeps modes as the mounted volume's own; they count from its next mount on.
pub fn set_modes(mount_point: &Path, modes: ModeChoice) -> Result<()> {
    let mut request = Modes::new(MODES_SET, modes.numbers());
    client::modes(mount_point, &mut request)
        .map_err(|(error, why)| failure_with_reason(mount_point, "set the modes", error, &why))
}

/// The data mode that a file on a mount has of its own, and the one in which it is written.
pub fn file_mode(path: &Path) -> Result<(Option<DataMode>, DataMode)> {
    let reply = ask_file_mode(path, FileMode::new(FILE_MODE_GET, 0), "read the data mode")?;
    Ok((mode_of(reply.own), mode_of(reply.effective).unwrap_or(DataMode::Ordered)))
}

/// Gives a file on a mount a data mode of its own, or lets it follow the volume.
pub fn choose_file_mode(path: &Path, mode: Option<DataMode>) -> Result<()> {
    let request = match mode {
        Some(mode) => {
            let number = FILE_MODES.iter().find(|(_, known)| *known == mode).map_or(0, |(number, _)| *number);
            FileMode::new(FILE_MODE_SET, number)
        }
        None => FileMode::new(FILE_MODE_CLEAR, 0),
    };
    ask_file_mode(path, request, "set the data mode").map(drop)
}

/// The numbers of data modes in [`FileMode`].
const FILE_MODES: [(u32, DataMode); 5] = [
    (FILE_MODE_NONE, DataMode::Writeback),
    (FILE_MODE_ORDERED, DataMode::Ordered),
    (FILE_MODE_DATA, DataMode::Journal),
    (FILE_MODE_SELECTIVE, DataMode::Selective),
    (FILE_MODE_ADAPTIVE, DataMode::Adaptive),
];

fn mode_of(number: u32) -> Option<DataMode> {
    FILE_MODES.iter().find(|(known, _)| *known == number).map(|(_, mode)| *mode)
}

fn ask_file_mode(path: &Path, mut request: FileMode, doing: &str) -> Result<FileMode> {
    client::file_mode(path, &mut request)
        .map_err(|(error, why)| failure_with_reason(path, doing, error, &why))?;
    Ok(request)
}

/// The fill level of the volume's pool; `None` if it has no pool.
pub fn pool(mount_point: &Path) -> Result<Option<Pool>> {
    let pool = client::pool(mount_point).map_err(|e| failure(mount_point, "read statistics", e))?;
    Ok((pool.size > 0).then_some(pool))
}

/// The resources of the daemon that each user has in use, and the limits of one user.
pub fn users(mount_point: &Path) -> Result<(Vec<UserUse>, UserUse)> {
    client::users(mount_point).map_err(|e| failure(mount_point, "read statistics", e))
}

/// Files by the blocks of their data that were written back, and all others together.
pub fn files(mount_point: &Path) -> Result<(Vec<FileUse>, FileUse)> {
    client::files(mount_point).map_err(|e| failure(mount_point, "list written files", e))
}

/// Fails if one of the mount options differs from those that the volume is mounted with.
pub fn compare_options(mount_point: &Path, options: &str) -> Result<()> {
    mount_info(mount_point, options).map(drop)
}

/// How the volume is mounted, as `MOUNT_…`.
pub fn mount_flags(mount_point: &Path) -> Result<u32> {
    mount_info(mount_point, "")
}

fn mount_info(mount_point: &Path, options: &str) -> Result<u32> {
    let mut request =
        MountInfo::new(options).ok_or_else(|| Failure::usage("the list of mount options is too long"))?;
    client::mount_info(mount_point, &mut request)
        .map_err(|(error, why)| failure_with_reason(mount_point, "compare the mount options", error, &why))?;
    Ok(request.flags)
}

/// Fails if the daemon has opened the volume read-only.
pub fn is_writable(mount_point: &Path) -> Result<()> {
    if mount_flags(mount_point)? & MOUNT_READ_ONLY == 0 {
        return Ok(());
    }
    let text =
        format!("{} was mounted read-only, and the daemon cannot write the volume", mount_point.display());
    Err(Failure::usage(text).hint("Unmount it, and mount it again with -o rw."))
}

/// Whether an xact daemon serves the mount.
pub fn serves(mount_point: &Path) -> io::Result<bool> {
    match client::version(mount_point) {
        Ok(_) => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// A control channel of a mount, for calls outside of a transaction.
pub fn channel(mount_point: &Path) -> Result<Channel> {
    Channel::open(mount_point).map_err(|e| match e.raw_os_error() {
        Some(libc::EROFS) => Failure::new(
            Exit::NoPermission,
            format!("{} is mounted read-only and has no transactions", mount_point.display()),
        ),
        _ => failure(mount_point, "reach the daemon", e),
    })
}

/// A transaction on a channel of its own. It aborts when this is dropped or the process dies,
/// unless it was left open.
pub struct Transaction {
    channel: Channel,
    mount_point: PathBuf,
    id: u64,
}

impl Transaction {
    /// Begins one with `BEGIN_…` flags.
    pub fn begin(mount_point: &Path, flags: u32) -> Result<Transaction> {
        let channel = channel(mount_point)?;
        let (id, _) = channel.begin(flags).map_err(|e| failure(mount_point, "begin a transaction", e))?;
        Ok(Transaction { channel, mount_point: mount_point.to_path_buf(), id })
    }

    /// Begins another transaction after this one has ended; also works from inside its view.
    pub fn begin_again(&mut self, flags: u32) -> Result<()> {
        let begun = self.channel.begin(flags);
        (self.id, _) = begun.map_err(|e| failure(&self.mount_point, "begin a transaction", e))?;
        Ok(())
    }

    /// Attaches to an open transaction.
    pub fn attach(mount_point: &Path, id: u64) -> Result<Transaction> {
        let channel = channel(mount_point)?;
        match channel.attach(id) {
            Ok(()) => Ok(Transaction { channel, mount_point: mount_point.to_path_buf(), id }),
            Err(e) => Err(not_open(mount_point, &channel, id, e)),
        }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns when the changes are visible to all processes, and durable unless `flags` say
    /// otherwise.
    pub fn commit(&self, flags: u32) -> Result<()> {
        self.channel.commit(flags).map_err(|e| self.refused(&e, flags & COMMIT_RETAIN != 0))
    }

    /// Commits the selected changes; the transaction stays open with the rest. Returns a conflict
    /// of the changes that were left out, in a sentence.
    pub fn commit_selected(&self, flags: u32) -> Result<Option<String>> {
        let left_out =
            self.channel.commit_selected(flags | COMMIT_RETAIN).map_err(|e| self.refused(&e, true))?;
        Ok(left_out.map(|conflict| {
            let path = conflict.path.map(|path| path.display().to_string()).unwrap_or_default();
            let id = self.id;
            format!(
                "left out, and cannot be committed: conflict on {path}: {}\n  What was read of it did not count. Drop it with 'xact tx abort {id} --only {path}'.",
                conflict.why
            )
        }))
    }

    /// The ways out of a conflict of a transaction that stays open.
    fn ways_out(&self, conflict: Option<&Path>) -> String {
        let id = self.id;
        let patch = format!(
            "'xact tx diff {id} --patch >FILE' saves the changes for 'git apply FILE'; then abort the transaction."
        );
        let changes = self.channel.diff(id).unwrap_or_default();
        let Some(path) = conflict else { return patch };
        let failed = match self.is_doomed() {
            Ok(false) => "",
            _ => "A call in it has failed for that reason, so it may not be complete. ",
        };
        let shown = path.display();
        let at = path.as_os_str().as_bytes();
        let is_at =
            |path: &[u8]| path.strip_prefix(at).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        let concerned = |change: &&TxChange| is_at(&change.path) || change.from.as_deref().is_some_and(is_at);
        if failed.is_empty() && changes.iter().filter(concerned).count() == 0 {
            return format!("All of its changes may depend on what it has read of {shown}. {patch}");
        }
        format!(
            "{failed}Commit other changes with 'xact tx commit {id} --only PATH...' ('xact tx diff {id}' lists them), or drop \
             this one with 'xact tx abort {id} --only {shown}' and commit the rest. {patch}"
        )
    }

    /// Makes a savepoint, which is rolled back to if this process dies.
    pub fn savepoint(&self) -> Result<SavepointHandle> {
        self.channel.savepoint().map_err(|e| failure(&self.mount_point, "make a savepoint", e))
    }

    /// Whether its commit is known to fail.
    pub fn is_doomed(&self) -> Result<bool> {
        self.channel.is_doomed().map_err(|e| failure(&self.mount_point, "query the transaction", e))
    }

    /// Makes a snapshot of the volume, without the changes of this transaction.
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        self.about_snapshot("create a snapshot", SNAPSHOT_CREATE, name)
    }

    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.about_snapshot("delete a snapshot", SNAPSHOT_DELETE, name)
    }

    fn about_snapshot(&self, doing: &str, action: u32, name: &str) -> Result<()> {
        let mut request = snapshot_request(action, name)?;
        let reply = self.channel.snapshot(&mut request);
        reply.map_err(|(error, why)| failure_with_reason(&self.mount_point, doing, error, &why))
    }

    /// Selects paths for [`COMMIT_ONLY`](xact_control::abi::COMMIT_ONLY) and
    /// [`Transaction::drop_selected`].
    pub fn select(&self, paths: &[Vec<u8>]) -> Result<()> {
        paths.iter().try_for_each(|path| {
            let wrong = |e| failure(&self.mount_point, "select a path", e);
            self.channel.select(path).map_err(wrong)
        })
    }

    pub fn drop_selected(&self) -> Result<()> {
        self.channel.drop_selected().map_err(|e| self.refused(&e, true))
    }

    /// Leaves the transaction open when this process ends; with `persist`, stores it on the volume
    /// too. If it cannot be stored, this fails, and the transaction is left open
    /// ([`Transaction::is_kept`]).
    pub fn keep(&self, timeout_s: u32, label: &[u8], persist: bool) -> Result<()> {
        let flags = if persist { KEEP_PERSISTENT } else { 0 };
        self.channel.keep(timeout_s, label, flags).map_err(|e| match persist && self.is_kept() {
            false => failure(&self.mount_point, "leave the transaction open", e),
            true => failure(&self.mount_point, "store the transaction on the volume", e).hint(format!(
                "Transaction {} is open, but its current state is not stored on the volume.",
                self.id
            )),
        })
    }

    pub fn is_kept(&self) -> bool {
        self.channel.info(self.id, false).is_ok_and(|info| info.status == TxStatus::LeftOpen)
    }

    /// As [`Transaction::keep`] for a transaction that was open before, with its remaining time and
    /// its label. Files that processes of the command still have open in its view become stale.
    pub fn stay_open(&self) -> Result<()> {
        let doing = "leave the transaction open";
        let info = self.channel.info(self.id, false).map_err(|e| failure(&self.mount_point, doing, e))?;
        let left = info.left.map_or(0, |left| (left.as_secs() as u32).max(1));
        self.keep(left, &info.label, info.persistent)
    }

    pub fn abort(&self) -> Result<()> {
        self.channel.abort().map_err(|e| failure(&self.mount_point, "abort", e))
    }

    fn refused(&self, error: &CommitError, stays_open: bool) -> Failure {
        match error.errno {
            libc::ENOTCONN | libc::ECONNABORTED => {
                failure(&self.mount_point, "commit", io::Error::from_raw_os_error(error.errno))
            }
            _ => {
                let room = match error.reason {
                    Reason::NoSpace => full_pool::hint(&self.mount_point, self.channel.pool()),
                    Reason::TooLarge => Some(full_pool::too_large_hint(self.channel.pool())),
                    _ => None,
                };
                let ways = match error.reason {
                    Reason::Conflict if stays_open => Some(self.ways_out(error.path.as_deref())),
                    _ => None,
                };
                refused(error, stays_open.then_some(self.id), room, ways)
            }
        }
    }
}

/// Why an open transaction cannot be attached.
pub fn not_open(mount_point: &Path, channel: &Channel, id: u64, error: io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::ENOENT) => {
            let ended = channel.info(id, false).ok().map(|info| info.status);
            let what = match ended {
                Some(TxStatus::Committed) => "was committed",
                Some(TxStatus::Aborted) => "was aborted",
                Some(TxStatus::TimedOut) => "was aborted: its time ran out",
                Some(TxStatus::Running | TxStatus::LeftOpen) => "was not left open: it ends with its program",
                None => "is not open on this mount",
            };
            Failure::new(Exit::NoInput, format!("transaction {id} {what}"))
                .hint("'xact tx list' lists the open transactions.")
        }
        Some(libc::EBUSY) => {
            Failure::new(Exit::Unavailable, format!("transaction {id} is in use by another command"))
                .hint("Wait until the other 'xact tx' or 'xact run --tx' ends.")
        }
        Some(libc::EPERM) => {
            Failure::new(Exit::NoPermission, format!("transaction {id} belongs to another user"))
        }
        Some(libc::ESTALE) => Failure::new(
            Exit::Conflict,
            format!(
                "transaction {id} is too old: the state of the volume at its begin is no longer available"
            ),
        )
        .hint("It can only be aborted."),
        _ => failure(mount_point, &format!("reach transaction {id}"), error),
    }
}

pub fn failure(mount_point: &Path, doing: &str, error: io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::ENOTCONN | libc::ECONNABORTED) => Failure::new(
            Exit::Io,
            format!("cannot {doing}: the daemon of the mount at {} has died", mount_point.display()),
        )
        .hint("Unmount it with 'xact umount', then mount the image again, which recovers it."),
        Some(libc::EROFS) => Failure::new(
            Exit::NoPermission,
            format!("cannot {doing}: {} is mounted read-only", mount_point.display()),
        ),
        Some(libc::ENOSPC) => {
            let failure = Failure::system(format_args!("{doing} on {}", mount_point.display()), error);
            full_pool::hint(mount_point, client::pool(mount_point))
                .map_or(failure.clone(), |hint| failure.hint(hint))
        }
        _ => Failure::system(format_args!("{doing} on {}", mount_point.display()), error),
    }
}

/// A failed commit. `open` is the transaction if it stays open; `room` is the hint for how to free
/// space, `ways_out` that for a conflict.
fn refused(
    error: &CommitError,
    open: Option<u64>,
    room: Option<String>,
    ways_out: Option<String>,
) -> Failure {
    let exit = match error.reason {
        Reason::Conflict => Exit::Conflict,
        Reason::NoSpace | Reason::TooLarge => Exit::NoSpace,
        Reason::HostFull => Exit::HostFull,
        Reason::ReadOnly => Exit::NoPermission,
        Reason::Io => Exit::Io,
        Reason::TooOld => Exit::Conflict,
        Reason::NotApart => Exit::Usage,
        Reason::None | Reason::Other => exit_of_errno(error.errno),
    };
    let failure = match &error.path {
        Some(path) => {
            let path = path.display().to_string();
            let text = format!("not committed: conflict on {path}: {}", error.why);
            Failure::new(exit, text).path(path).conflicting_tx(error.conflicting_tx)
        }
        None if error.reason == Reason::NotApart => return Failure::new(exit, &*error.why),
        None => Failure::new(exit, format!("not committed: {}", error.why)),
    };
    let nothing = match open {
        Some(id) => format!("Nothing was changed, and transaction {id} is still open."),
        None => "Nothing was changed.".to_string(),
    };
    match exit {
        Exit::Conflict if open.is_some() => {
            let ways_out = ways_out.unwrap_or_else(|| "Abort it, and run its command again.".into());
            failure.hint(format!("{nothing} {ways_out}"))
        }
        Exit::Conflict => failure.hint(format!("{nothing} Run the command again on the new state.")),
        Exit::NoSpace => {
            let room = room.unwrap_or_else(|| "Free some space, or change less in one transaction.".into());
            failure.hint(format!("{nothing} {room}"))
        }
        Exit::HostFull => failure.hint(format!(
            "{nothing} Make space on the file system that the image lies on; the mount works on then."
        )),
        Exit::Io => failure.hint("See the daemon's log, and run 'xact check' on the unmounted volume."),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_says_where_and_what_to_do() {
        let error = CommitError {
            errno: libc::EAGAIN,
            reason: Reason::Conflict,
            path: Some("/a/b".into()),
            conflicting_tx: Some(3),
            why: "changed since, by transaction 3".into(),
        };
        let failure = refused(&error, None, None, None);
        assert_eq!(failure.exit, Exit::Conflict);
        assert_eq!(failure.path.as_deref(), Some("/a/b"));
        assert!(
            failure
                .to_string()
                .contains("conflict on /a/b: changed since, by transaction 3\n  Nothing was changed. R")
        );
        assert_eq!(failure.conflicting_tx, Some(3));
        let open = refused(&error, Some(7), None, Some("Drop it.".into()));
        assert!(open.to_string().contains("transaction 7 is still open. Drop it."));
    }

    #[test]
    fn a_full_volume_has_its_own_code() {
        let why = "no space left on the volume".to_string();
        let failure = refused(
            &CommitError {
                errno: libc::ENOSPC,
                reason: Reason::NoSpace,
                path: None,
                conflicting_tx: None,
                why,
            },
            None,
            Some("Delete snapshots.".into()),
            None,
        );
        assert_eq!(failure.hint.as_deref(), Some("Nothing was changed. Delete snapshots."));
        assert_eq!((failure.exit, failure.path.clone()), (Exit::NoSpace, None));
    }
}
