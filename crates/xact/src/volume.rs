//! An open volume.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;
use xact_consistency::{Engine, EngineStats, PoolUse, SnapshotInfo, Snapshots};
use xact_device::{BlockDevice, FileDevice, OpenMode};
use xact_fs::{
    DataMode, LiveFs, ModeChoice, Modes, Shutdown, TxSpaceUse, View, VolumeOptions, WrittenBlocks,
};
use xact_layout::feature::compat;
use xact_layout::superblock::Superblock;
use xact_txn::{AbortHistory, Accounts, ContentionManager, TxOptions};
use xact_types::{Error, Ino, LatencySnapshot, Result};

use crate::device::is_unwritable;
use crate::paths::PathExt;
use crate::recover::open_replayed;
use crate::snapshot::Snapshot;
use crate::transaction::{SharedTransaction, Transaction};

/// The cache of file data: its size, and how often it was of use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheUse {
    /// Blocks that reads have found in the cache.
    pub hits: u64,
    /// Blocks that reads had to read from the device.
    pub misses: u64,
    /// Bytes that are cached now.
    pub bytes: u64,
    /// The most bytes that are kept for reads.
    pub limit_bytes: u64,
}

/// Called with the name of a snapshot that was created or deleted.
pub type SnapshotWatcher = Box<dyn Fn(&str) + Send + Sync>;

/// A volume that this process has open.
///
/// Threads share it by its [`Arc`]. File operations are those of [`PathExt`], or by inode number
/// those of [`Volume::base`]; each is atomic, and becomes durable with a sync, a durable commit, or
/// within [`VolumeOptions::commit_interval`]. Close it with [`Volume::close`]. A volume that is
/// dropped without that is as a crash leaves it: the next opening recovers it.
///
/// ```
/// # fn main() -> xact::Result<()> {
/// use std::sync::Arc;
/// use xact::{MemoryDevice, PathExt, Volume, VolumeOptions, mkfs};
/// let device = Arc::new(MemoryDevice::new(64 << 20));
/// mkfs::mkfs(&*device, &mkfs::MkfsOptions::default())?;
/// let volume = Volume::open(device, &VolumeOptions::default())?;
/// volume.write("/greeting", "hello")?;
/// volume.sync()?;
/// volume.close()
/// # }
/// ```
pub struct Volume {
    base: Arc<LiveFs>,
    contention: Arc<ContentionManager>,
    accounts: Accounts,
    last_transaction: AtomicU64,
    /// A caller has asked for the end of all writing.
    shut_down: AtomicBool,
    watcher: RwLock<Option<SnapshotWatcher>>,
    /// The device, if the volume was opened by path.
    file: Option<Arc<FileDevice>>,
}

impl PathExt for Volume {
    fn view(&self) -> Arc<dyn View> {
        self.base.clone()
    }
}

impl Volume {
    /// Recovers and opens the volume on a device ([`device::open`](crate::device::open)).
    ///
    /// # Errors
    /// [`Error::Usage`] for a device without an ext4 volume, and where the volume needs a recovery
    /// that a read-only device does not allow; [`Error::Unsupported`], naming the features;
    /// [`Error::ReadOnly`] where features allow reading only; [`Error::InUse`] where another
    /// machine has it (feature `mmp`); [`Error::Corrupt`], [`Error::Io`].
    pub fn open(device: Arc<dyn BlockDevice>, options: &VolumeOptions) -> Result<Arc<Volume>> {
        Volume::open_device(device, None, options)
    }

    fn open_device(
        device: Arc<dyn BlockDevice>,
        file: Option<Arc<FileDevice>>,
        options: &VolumeOptions,
    ) -> Result<Arc<Volume>> {
        let base = xact_fs::open(device, options)?;
        // Transactions that cannot be listed cannot be reopened either, and that reports the error.
        let persisted = xact_txn::persisted_transactions(&*base).unwrap_or_default();
        let last_transaction = AtomicU64::new(persisted.last().copied().unwrap_or(0));
        let contention = Arc::default();
        let (accounts, watcher) = (Accounts::default(), RwLock::default());
        let shut_down = AtomicBool::new(false);
        Ok(Arc::new(Volume { base, contention, accounts, last_transaction, shut_down, watcher, file }))
    }

    /// Opens an image file or a block device, which stays locked while the volume is open. A
    /// volume that is opened read-only is locked for other writers alone, except while the log that
    /// a crash left is replayed. Errors as [`Volume::open`], and [`Error::Io`] as `open(2)`.
    pub fn open_path(path: &Path, options: &VolumeOptions) -> Result<Arc<Volume>> {
        let open =
            |mode| FileDevice::open(path, mode).map(Arc::new).map_err(|e| Error::io("opening the image", e));
        let is_unwritable = |e: &Error| matches!(e, Error::Io { source, .. } if is_unwritable(source));
        let device = match (options.read_only, options.no_recovery) {
            (false, _) => open(OpenMode::ReadWrite),
            (true, true) => open(OpenMode::ReadOnly),
            (true, false) => open_replayed(open, is_unwritable, |e| e),
        }?;
        Volume::open_device(device.clone(), Some(device), options)
    }

    /// The state that all threads share, with operations by inode number.
    pub fn base(&self) -> Arc<dyn View> {
        self.base.clone()
    }

    /// How many times an inode is held ([`View::hold`]).
    pub fn holds(&self, ino: Ino) -> u64 {
        self.base.holds(ino)
    }

    /// Holds an inode that the commit of a transaction is about to create.
    pub fn hold_reserved(&self, ino: Ino) {
        self.base.hold_reserved(ino);
    }

    /// Begins a transaction on the volume as it is now. The volume assigns its number,
    /// `options.id`: higher than those of all persisted transactions, and unique while the volume
    /// is open.
    pub fn begin(&self, options: TxOptions) -> Transaction {
        self.begin_after(options, &AbortHistory::default())
    }

    /// As [`Volume::begin`], after attempts that were lost to conflicts
    /// ([`SharedTransaction::take_lost_attempt`]). After some of them the transaction has priority:
    /// commits that would be in its way wait for a while. [`Volume::retry`] does all of that.
    pub fn begin_after(&self, options: TxOptions, history: &AbortHistory) -> Transaction {
        let id = self.last_transaction.fetch_add(1, Relaxed) + 1;
        let options = TxOptions { id, ..options };
        let transaction = SharedTransaction::begin_after(&self.base, options, &self.contention, history);
        Transaction::new(Arc::new(transaction.charged_to(&self.accounts.of(options.owner))))
    }

    /// Runs `action` in a transaction and commits it; after a conflict again, up to `attempts`
    /// times in all. A transaction that keeps losing is given priority (the contention manager of
    /// software transactional memory).
    ///
    /// ```
    /// # fn main() -> xact::Result<()> {
    /// # let device = std::sync::Arc::new(xact::MemoryDevice::new(64 << 20));
    /// # xact::mkfs::mkfs(&*device, &Default::default())?;
    /// # let volume = xact::Volume::open(device, &Default::default())?;
    /// use xact::PathExt;
    /// volume.write("/counter", "7")?;
    /// let before = volume.retry(10, |transaction| {
    ///     let count: u32 = transaction.read_to_string("/counter")?.parse().unwrap_or(0);
    ///     transaction.write("/counter", (count + 1).to_string())?;
    ///     Ok(count)
    /// })?;
    /// assert_eq!((before, volume.read_to_string("/counter")?.as_str()), (7, "8"));
    /// # volume.close()
    /// # }
    /// ```
    ///
    /// # Errors
    /// That of `action`, unless the transaction is doomed by then ([`Transaction::is_doomed`]);
    /// that of the last commit, as [`Transaction::commit`]. [`Error::TooOld`] counts as a conflict.
    pub fn retry<R>(
        &self,
        attempts: u32,
        mut action: impl FnMut(&mut Transaction) -> Result<R>,
    ) -> Result<R> {
        let mut history = AbortHistory::default();
        for attempt in 1.. {
            let mut transaction = self.begin_after(TxOptions::default(), &history);
            let done = action(&mut transaction);
            match &done {
                Ok(_) => {}
                // The commit reports the conflict that a call has met, whatever the action made of
                // it, and what the attempt lost.
                Err(_) if transaction.is_doomed() => {}
                Err(_) => return done,
            }
            match transaction.commit_in_series(&mut history) {
                Ok(()) => return done,
                Err(Error::Conflict { .. } | Error::TooOld) if attempt < attempts => {}
                Err(error) => return Err(error),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// The limits of users in this process, and what they use. Without limits until some are set.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// The numbers of the transactions that are kept on the volume ([`Transaction::persist`]): of
    /// those that were open when the volume was last closed or crashed, and of new ones.
    pub fn persisted_transactions(&self) -> Result<Vec<u64>> {
        xact_txn::persisted_transactions(&*self.base)
    }

    /// Opens one of these again, once. Errors as [`SharedTransaction::reopen`].
    pub fn reopen_transaction(&self, id: u64) -> Result<Transaction> {
        let transaction = SharedTransaction::reopen(&self.base, id, &self.contention)?;
        let account = self.accounts.of(transaction.options().owner);
        Ok(Transaction::new(Arc::new(transaction.charged_to(&account))))
    }

    /// Makes everything done so far durable.
    pub fn sync(&self) -> Result<()> {
        self.base.sync_all()
    }

    /// Keeps the volume as it is now under a name, in one commit whatever its size. Everything done
    /// before this call is in the snapshot; of concurrent operations, those up to some moment.
    ///
    /// # Errors
    /// [`Error::Usage`] on a volume without generations, and for a name that exists or is invalid
    /// (up to 100 bytes, no `/`, no leading dot); [`Error::NoSpace`] where the pool is full of what
    /// is kept.
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        let snapshots = self.generations()?;
        self.sync()?;
        snapshots.create(name, now_seconds())?;
        self.notify_watcher(name);
        Ok(())
    }

    /// Keeps some files and folders as they are now, with everything below them, under a name. The
    /// paths begin at the volume's root, without a leading `/`. Costs two commits and a walk
    /// through the chosen files; the snapshot holds space for these alone.
    ///
    /// It exists when this returns; a crash before that leaves none.
    ///
    /// # Errors
    /// As [`Volume::create_snapshot`]; [`Error::Usage`] for a missing path;
    /// [`Error::Unsupported`] on a volume without checksums of groups or without extents.
    pub fn create_snapshot_of(&self, name: &str, paths: &[Vec<u8>]) -> Result<()> {
        let snapshots = self.generations()?;
        self.sync()?;
        let unpruned = snapshots.begin_partial(name, now_seconds())?;
        let part = xact_fs::prune::prune(unpruned.image(), paths)?;
        unpruned.finish(part)?;
        self.notify_watcher(name);
        Ok(())
    }

    /// The chosen paths of a snapshot; none for one of the whole volume. [`Error::Usage`] where no
    /// snapshot has this name.
    pub fn snapshot_paths(&self, name: &str) -> Result<Vec<Vec<u8>>> {
        self.generations()?.paths(name)
    }

    /// Deletes a snapshot and frees what it alone has kept. Works on a full volume.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.generations()?.delete(name)?;
        self.notify_watcher(name);
        Ok(())
    }

    /// Calls `watcher` with the name of each snapshot that is created or deleted from now on.
    pub fn watch_snapshots(&self, watcher: SnapshotWatcher) {
        *self.watcher.write() = Some(watcher);
    }

    fn notify_watcher(&self, name: &str) {
        if let Some(watcher) = &*self.watcher.read() {
            watcher(name);
        }
    }

    /// The snapshots, from the oldest to the newest. Costs a walk through the pool.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        self.generations()?.list()
    }

    /// The names of the snapshots, from the oldest to the newest. They are in memory.
    pub fn snapshot_names(&self) -> Result<Vec<String>> {
        Ok(self.generations()?.times().into_iter().map(|(name, _)| name).collect())
    }

    /// The use of the pool's blocks; `None` on a volume without generations. Takes time in
    /// proportion to the pool's contents, and commits wait for that long.
    pub fn pool_use(&self) -> Result<Option<PoolUse>> {
        self.base.engine().snapshots().map(Snapshots::pool_use).transpose()
    }

    /// Whether the volume has generations, and so can have snapshots.
    pub fn has_generations(&self) -> bool {
        self.base.engine().snapshots().is_some()
    }

    /// Whether the volume has a jbd2 journal.
    pub fn has_journal(&self) -> bool {
        self.superblock().has_compat(compat::HAS_JOURNAL)
    }

    /// Whether a full pool is the reason for [`Error::NoSpace`].
    pub fn is_pool_full(&self) -> bool {
        self.base.engine().snapshots().is_some_and(Snapshots::is_pool_full)
    }

    /// Whether the file system that a sparse image lies on had no space for the last call that
    /// needed more of it.
    pub fn is_host_full(&self) -> bool {
        self.base.engine().is_host_full()
    }

    /// Number of errors that the superblock notes: damage met since the last repair.
    pub fn errors_noted(&self) -> u64 {
        self.base.errors_noted()
    }

    /// Opens a snapshot for reading. [`Error::Usage`] where no snapshot has this name.
    pub fn open_snapshot(&self, name: &str) -> Result<Snapshot> {
        Ok(Snapshot::new(self.generations()?.image(Some(name))?))
    }

    pub(crate) fn live(&self) -> &Arc<LiveFs> {
        &self.base
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.base.engine()
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        self.base.superblock()
    }

    pub(crate) fn generations(&self) -> Result<&dyn Snapshots> {
        let none = || {
            Error::Usage(
                "only a volume with generations has snapshots ('xact convert --to generations' makes one of an \
                 unmounted volume)"
                    .into(),
            )
        };
        self.base.engine().snapshots().ok_or_else(none)
    }

    /// Discards free blocks in a range of bytes, in runs of at least `min_bytes` (fstrim). Returns
    /// the number of bytes discarded.
    pub fn trim(&self, range: Range<u64>, min_bytes: u64) -> Result<u64> {
        self.base.trim(range, min_bytes)
    }

    /// The UUID of the volume, in the order of its bytes on the volume.
    pub fn uuid(&self) -> [u8; 16] {
        self.superblock().uuid()
    }

    /// The volume's label.
    pub fn label(&self) -> Result<Vec<u8>> {
        self.base.label()
    }

    /// Changes the label, of at most 16 bytes, durably.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.base.set_label(label)
    }

    /// Stops all writing until the volume is closed (`EXT4_IOC_SHUTDOWN`). What is not durable by
    /// then is lost, as in a crash.
    pub fn shut_down(&self, how: Shutdown) -> Result<()> {
        self.shut_down.store(true, Relaxed);
        self.base.shut_down(how)
    }

    /// Whether [`Self::shut_down`] was called: what is lost then is lost by request.
    pub fn was_shut_down(&self) -> bool {
        self.shut_down.load(Relaxed)
    }

    /// Writes everything back, marks the volume clean, and unlocks the image. The volume must not
    /// be used afterwards; transactions that are still open can only be aborted.
    pub fn close(&self) -> Result<()> {
        self.base.close()?;
        match &self.file {
            Some(file) => file.unlock().map_err(|e| Error::io("unlocking the image", e)),
            None => Ok(()),
        }
    }

    /// Stops all writing until the volume is closed, as after a device error; `why` is for the log.
    pub fn poison(&self, why: &str) {
        self.base.engine().poison(why);
    }

    /// Stops all writing, and fails, if another program has changed the volume's superblock since
    /// the volume was opened for writing. Every commit looks at that too.
    pub fn check_other_writers(&self) -> Result<()> {
        self.base.engine().check_other_writers()
    }

    /// Whether the volume cannot be changed.
    pub fn is_read_only(&self) -> bool {
        self.base.engine().is_read_only()
    }

    /// [`Error::Poisoned`] where an error has stopped all writing.
    pub fn health(&self) -> Result<()> {
        self.base.engine().health()
    }

    /// The modes that the volume is open with.
    pub fn modes(&self) -> Modes {
        self.base.modes()
    }

    /// The modes that its [`VolumeOptions`] have set.
    pub fn mode_options(&self) -> ModeChoice {
        self.base.mode_options()
    }

    /// The data mode that a file has of its own in a view, or that new files in a folder get.
    /// `None`: the volume's. [`FILE_MODE`](crate::FILE_MODE) is the attribute that chooses it.
    ///
    /// # Errors
    /// Those of [`View::xattr`].
    pub fn own_file_mode(&self, view: &dyn View, ino: Ino) -> Result<Option<DataMode>> {
        self.base.own_file_mode(view, ino)
    }

    /// The modes that are stored on the volume.
    pub fn stored_modes(&self) -> Result<ModeChoice> {
        self.base.stored_modes()
    }

    /// Stores modes on the volume, durably; they take effect when it is opened next. Errors as
    /// [`LiveFs::store_modes`].
    pub fn store_modes(&self, modes: ModeChoice) -> Result<()> {
        self.base.store_modes(modes)
    }

    /// Blocks of file data written back so far: to new places, and over old contents.
    pub fn written_blocks(&self) -> WrittenBlocks {
        self.base.written_blocks()
    }

    /// The same by file, in the order of inode numbers, and of deleted and other files together. A
    /// few thousand files are counted separately, those with the fewest blocks are not.
    pub fn file_writes(&self) -> (Vec<(Ino, WrittenBlocks)>, WrittenBlocks) {
        self.base.file_writes()
    }

    /// The cache of file data.
    pub fn cache_use(&self) -> CacheUse {
        let (hits, misses) = self.base.cache_lookups();
        let (bytes, limit_bytes) = (self.base.cached_bytes(), self.base.cache_limit_bytes());
        CacheUse { hits, misses, bytes, limit_bytes }
    }

    /// The space that open transactions hold before their commits.
    pub fn tx_space_use(&self) -> TxSpaceUse {
        self.base.tx_space_use()
    }

    /// How long each `fsync` and `fdatasync` took so far.
    pub fn sync_times(&self) -> LatencySnapshot {
        self.base.sync_times()
    }

    /// How long each commit took, from its locking to its durability.
    pub fn commit_times(&self) -> LatencySnapshot {
        self.base.engine().commit_times()
    }

    /// How long operations that were about to begin had to wait for commits.
    pub fn held_up_times(&self) -> LatencySnapshot {
        self.base.engine().held_up_times()
    }

    /// How many times an operation waited for the device, directly or behind another operation,
    /// while a sync had to wait for it.
    pub fn waits_in_handles(&self) -> u64 {
        self.base.engine().waits_in_handles()
    }

    /// Counters of commits and of the device, since the opening.
    pub fn stats(&self) -> EngineStats {
        self.base.engine().stats()
    }
}

/// The time of a snapshot: seconds since 1970.
pub(crate) fn now_seconds() -> u64 {
    u64::try_from(xact_types::unix_seconds()).unwrap_or(0)
}
