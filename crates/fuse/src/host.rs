//! What the server needs of the volume: the base, and transactions over it.

use std::sync::Arc;

use xact::{
    AbortHistory, Accounts, CommitObserver, Credentials, Difference, Durability, Isolation, LostAttempt,
    ModeChoice, Modes, PersistedInfo, Reader, Side, Snapshot, SnapshotInfo, SnapshotWatcher, Volume,
};
use xact_fs::View;
use xact_types::{Ino, Result};

use crate::control::{Counters, Latencies, Pool};

pub use xact::Changes;

/// A volume to serve.
pub trait Host: Send + Sync {
    fn base(&self) -> Arc<dyn View>;

    /// What users may use up of this process, and use.
    fn accounts(&self) -> &Accounts;

    /// How often this inode of the base is held (`View::hold`).
    fn holds(&self, ino: Ino) -> u64;

    /// Holds an inode of the base that a commit is about to make.
    fn hold_reserved(&self, ino: Ino);

    /// Begins a transaction for the user `uid`, after tries that were lost to conflicts. Where these
    /// have weight it waits for the commits that run.
    fn begin(
        &self,
        uid: u32,
        isolation: Isolation,
        losses: &AbortHistory,
    ) -> Result<Arc<dyn HostTransaction>>;

    /// The transactions that are kept on the volume since before it was mounted, each opened again. Of those that
    /// cannot be, why not.
    fn reopen_kept(&self) -> Result<Vec<(u64, Result<Reopened>)>>;

    /// Keeps the volume as it is now under a name.
    fn create_snapshot(&self, name: &str) -> Result<()>;

    /// Keeps some files and folders; paths from the volume's root and without one.
    fn create_snapshot_of(&self, name: &str, paths: &[Vec<u8>]) -> Result<()>;

    /// What a snapshot has; nothing for one of the volume.
    fn snapshot_paths(&self, name: &str) -> Result<Vec<Vec<u8>>>;

    fn delete_snapshot(&self, name: &str) -> Result<()>;

    /// From the oldest to the newest.
    fn snapshots(&self) -> Result<Vec<SnapshotInfo>>;

    /// The volume itself, for what concerns all of it; `None` where the host has none.
    fn volume(&self) -> Option<&Volume> {
        None
    }

    /// Calls `watcher` with the name of each snapshot that is created or deleted, by whomever.
    fn watch_snapshots(&self, watcher: SnapshotWatcher);

    fn snapshot_names(&self) -> Result<Vec<String>>;

    /// Opens a snapshot for reading.
    fn open_snapshot(&self, name: &str) -> Result<Snapshot>;

    /// What differs between two snapshots, or one and now.
    fn diff_snapshots(&self, old: &str, new: Option<&str>) -> Result<Vec<Difference>>;

    fn counters(&self) -> Counters;

    fn latencies(&self) -> Latencies;

    /// All 0 where there is none.
    fn pool(&self) -> Result<Pool>;

    /// Whether it is a full pool that leaves no space.
    fn is_pool_full(&self) -> bool;

    /// The modes that it is open with.
    fn modes(&self) -> Modes;

    /// Those of them that whoever opened it asked for.
    fn mode_options(&self) -> ModeChoice;

    /// The modes that the volume itself asks for, at the next opening.
    fn stored_modes(&self) -> Result<ModeChoice>;

    fn store_modes(&self, modes: ModeChoice) -> Result<()>;

    /// Stops all writing for good: the server met a state that should not exist.
    fn poison(&self, why: &str);
}

/// A transaction that was kept on the volume.
pub struct Reopened {
    pub transaction: Arc<dyn HostTransaction>,
    pub uid: u32,
    pub info: PersistedInfo,
}

/// How a transaction is committed.
#[derive(Debug, Clone, Default)]
pub struct CommitHow {
    pub durability: Durability,
    /// Where the commit is refused, the transaction stays open as it was.
    pub retain: bool,
    /// Only the changes at and below these paths; the transaction goes on with the rest.
    pub only: Option<Vec<Vec<u8>>>,
}

/// One transaction of a volume. It ends with `commit` or `abort`, whichever comes first; after
/// that its view answers [`xact_types::Error::Ended`].
pub trait HostTransaction: Send + Sync {
    /// Not given to another transaction while the volume is mounted.
    fn id(&self) -> u64;

    fn view(&self) -> Arc<dyn View>;

    fn is_open(&self) -> bool;

    /// Whether its commit is known to be refused.
    fn is_doomed(&self) -> bool;

    /// Whether commits of others wait for its end, after tries that were lost.
    fn goes_first(&self) -> bool;

    /// Inodes of the base whose contents the commit will change. Stores that others made through
    /// mappings of these are written to the base before the commit validates.
    fn written_files(&self) -> Vec<Ino>;

    /// Whether the commit will make this inode: its number is reserved for that.
    fn will_make(&self, ino: Ino) -> bool;

    /// Returns when it is as durable as was asked for. The audience sees to it that nobody sees some of
    /// it beside what was before. On an error before the base shows the changes nothing has happened;
    /// the transaction is aborted, or stays open if it was to be retained or committed in part.
    fn commit(&self, how: &CommitHow, audience: &mut dyn CommitObserver) -> Result<()>;

    /// Drops what is in memory; what is kept of it on the volume stays there.
    fn abort(&self);

    /// Drops it, durably where it is kept on the volume. It has ended, even where that fails.
    fn drop_all(&self) -> Result<()>;

    /// Keeps it on the volume too, as it is now; to be called again when it has changed.
    fn keep(&self, info: PersistedInfo) -> Result<()>;

    /// What it is kept with, if it is.
    fn kept_info(&self) -> Option<PersistedInfo>;

    /// As `keep`, where it is kept and has changed since.
    fn keep_up(&self) -> Result<()>;

    /// After a commit that was refused for a conflict: what is to be known for another try.
    fn take_lost(&self) -> Option<LostAttempt>;

    /// Drops the changes at and below these paths.
    fn drop_only(&self, paths: &[Vec<u8>]) -> Result<()>;

    /// Marks a state to go back to; returns its number.
    fn savepoint(&self) -> Result<u64>;

    /// Undoes everything since a savepoint; returns what of the view differs then.
    fn roll_back(&self, savepoint: u64) -> Result<Changes>;

    /// Makes what was done since a savepoint part of what is around it.
    fn release_savepoint(&self, savepoint: u64) -> Result<()>;

    /// What a commit would change, by path.
    fn diff(&self) -> Result<Vec<Difference>>;

    /// The same file by file, as for patches, without what this caller may not list.
    fn diff_by_file(&self, who: &Credentials) -> Result<Vec<Difference>>;

    /// Contents of a file, or the target of a link, on one side of a difference, as far as the caller may read
    /// it there; not a read.
    fn read_side(
        &self,
        by: &Reader<'_>,
        side: Side,
        ino: Ino,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()>;
}
