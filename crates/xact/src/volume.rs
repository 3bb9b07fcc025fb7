//! An open volume.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;
use xact_consistency::{Engine, EngineStats, PoolUse, SnapshotImage, SnapshotInfo, Snapshots};
use xact_device::{BlockDevice, FileDevice, OpenMode};
use xact_fs::{LiveFs, ModeChoice, Modes, Shutdown, TxSpaceUse, View, VolumeOptions};
use xact_layout::superblock::Superblock;
use xact_txn::{AbortHistory, Accounts, ContentionManager, TxOptions};
use xact_types::{Error, Ino, LatencySnapshot, Result};

use crate::snapshot::Snapshot;

/// A private view of the volume as of one instant; see [`xact_txn::Transaction`].
pub type Transaction = xact_txn::Transaction<LiveFs>;

/// What the cache of file data holds and was good for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Blocks that reads found in it, and that they had to read from the device.
    pub hits: u64,
    pub misses: u64,
    pub bytes: u64,
    pub limit_bytes: u64,
}

/// Is told the name of a snapshot that was created or deleted.
pub type SnapshotWatcher = Box<dyn Fn(&str) + Send + Sync>;

/// A volume that this process has open. Close it with [`Volume::close`]; dropped without that, it
/// is left as a crash would leave it, and the next opening recovers it.
pub struct Volume {
    base: Arc<LiveFs>,
    contention: Arc<ContentionManager>,
    accounts: Accounts,
    last_transaction: AtomicU64,
    watcher: RwLock<Option<SnapshotWatcher>>,
    /// Where the volume was opened by path.
    file: Option<Arc<FileDevice>>,
}

impl Volume {
    /// Recovers and opens the volume on `device`. Errors as [`xact_fs::open`].
    pub fn open(device: Arc<dyn BlockDevice>, options: &VolumeOptions) -> Result<Arc<Volume>> {
        Volume::open_device(device, None, options)
    }

    fn open_device(
        device: Arc<dyn BlockDevice>,
        file: Option<Arc<FileDevice>>,
        options: &VolumeOptions,
    ) -> Result<Arc<Volume>> {
        let base = xact_fs::open(device, options)?;
        // What cannot be listed cannot be opened again either; whoever asks for it is told.
        let kept = xact_txn::persisted_transactions(&*base).unwrap_or_default();
        let last_transaction = AtomicU64::new(kept.last().copied().unwrap_or(0));
        let contention = Arc::default();
        let (accounts, watcher) = (Accounts::default(), RwLock::default());
        Ok(Arc::new(Volume { base, contention, accounts, last_transaction, watcher, file }))
    }

    /// Opens an image file or a block device, which stays locked while the volume is open.
    pub fn open_path(path: &Path, options: &VolumeOptions) -> Result<Arc<Volume>> {
        let mode = if options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let device = FileDevice::open(path, mode).map_err(|e| Error::io("opening the image", e))?;
        let device = Arc::new(device);
        Volume::open_device(device.clone(), Some(device), options)
    }

    /// The volume as everybody sees it.
    pub fn base(&self) -> Arc<dyn View> {
        self.base.clone()
    }

    /// How often an inode is held (`View::hold`).
    pub fn holds(&self, ino: Ino) -> u64 {
        self.base.holds(ino)
    }

    /// Holds an inode that the commit of a transaction is about to make.
    pub fn hold_reserved(&self, ino: Ino) {
        self.base.hold_reserved(ino);
    }

    /// Begins a transaction on the volume as it is now. Its number, `options.id`, is given here:
    /// above those of all kept ones, and to no other while the volume is open.
    pub fn begin(&self, options: TxOptions) -> Arc<Transaction> {
        self.begin_after(options, &AbortHistory::default())
    }

    /// As [`Volume::begin`], after tries that were lost to conflicts ([`Transaction::take_lost_attempt`]). After some,
    /// commits that would be in its way wait for it, for a while; so one that is tried again gets through.
    pub fn begin_after(&self, options: TxOptions, history: &AbortHistory) -> Arc<Transaction> {
        let id = self.last_transaction.fetch_add(1, Relaxed) + 1;
        let options = TxOptions { id, ..options };
        let transaction = Transaction::begin_after(&self.base, options, &self.contention, history);
        Arc::new(transaction.charged_to(&self.accounts.of(options.owner)))
    }

    /// What users may use up of this process, and what they use. Without limits, until some are set.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Numbers of the transactions that were undecided when the volume was last closed or crashed, and are kept
    /// on it ([`Transaction::persist`]), and of those that have been kept since.
    pub fn persisted_transactions(&self) -> Result<Vec<u64>> {
        xact_txn::persisted_transactions(&*self.base)
    }

    /// Opens one of these again, once. Errors as [`Transaction::reopen`].
    pub fn reopen_transaction(&self, id: u64) -> Result<Arc<Transaction>> {
        let transaction = Transaction::reopen(&self.base, id, &self.contention)?;
        let account = self.accounts.of(transaction.options().owner);
        Ok(Arc::new(transaction.charged_to(&account)))
    }

    /// Makes everything done so far durable.
    pub fn sync(&self) -> Result<()> {
        self.base.sync_all()
    }

    /// Keeps the volume as it is now under a name, in one commit whatever its size.
    ///
    /// Everything done before this call is in the snapshot; of what others do meanwhile, the
    /// first so many operations. Errors: `Usage` on a volume without generations, and for a name
    /// that is taken or no name; `NoSpace` where the pool is full of what is kept.
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        let snapshots = self.generations()?;
        self.sync()?;
        let now = xact_types::unix_seconds();
        snapshots.create(name, u64::try_from(now).unwrap_or(0))?;
        self.tell_watcher(name);
        Ok(())
    }

    /// Keeps some files and folders as they are now, with all that is below them, under a name; their paths count from
    /// the volume's root. Costs two commits, and what is chosen has to be gone through; it holds space for nothing else.
    ///
    /// It is there when this returns, and after a crash before that there is none. Errors: as
    /// [`Volume::create_snapshot`]; `Usage` for a path that is not there; `Unsupported` on a volume without checksums of
    /// groups or without extents.
    pub fn create_snapshot_of(&self, name: &str, paths: &[Vec<u8>]) -> Result<()> {
        let snapshots = self.generations()?;
        self.sync()?;
        let now = xact_types::unix_seconds();
        let cut = |image: Arc<dyn SnapshotImage>| xact_fs::prune::prune(image, paths);
        snapshots.create_partial(name, u64::try_from(now).unwrap_or(0), &cut)?;
        self.tell_watcher(name);
        Ok(())
    }

    /// The paths that a snapshot has; none for one of the volume. Errors: `Usage` where there is none of this name.
    pub fn snapshot_paths(&self, name: &str) -> Result<Vec<Vec<u8>>> {
        self.generations()?.paths(name)
    }

    /// Deletes a snapshot and frees what it alone has kept. Works on a full volume.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.generations()?.delete(name)?;
        self.tell_watcher(name);
        Ok(())
    }

    /// Calls `watcher` with the name of each snapshot that is created or deleted from now on.
    pub fn watch_snapshots(&self, watcher: SnapshotWatcher) {
        *self.watcher.write() = Some(watcher);
    }

    fn tell_watcher(&self, name: &str) {
        if let Some(watcher) = &*self.watcher.read() {
            watcher(name);
        }
    }

    /// The snapshots, from the oldest to the newest.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        self.generations()?.list()
    }

    /// Their names alone, which cost nothing to find.
    pub fn snapshot_names(&self) -> Result<Vec<String>> {
        Ok(self.generations()?.times().into_iter().map(|(name, _)| name).collect())
    }

    /// What the places of the pool are in use for; `None` on a volume without generations. Costs what the pool
    /// holds, and commits wait for that long.
    pub fn pool_use(&self) -> Result<Option<PoolUse>> {
        self.base.engine().snapshots().map(Snapshots::pool_use).transpose()
    }

    /// Whether it is a full pool that leaves no space on the volume.
    pub fn is_pool_full(&self) -> bool {
        self.base.engine().snapshots().is_some_and(Snapshots::is_pool_full)
    }

    /// Opens a snapshot for reading, whatever is done to the volume meanwhile.
    pub fn open_snapshot(&self, name: &str) -> Result<Snapshot> {
        Ok(Snapshot::new(self.generations()?.image(Some(name))?))
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
                "only a volume with generations has snapshots ('xact mkfs --engine generations')".into(),
            )
        };
        self.base.engine().snapshots().ok_or_else(none)
    }

    /// Tells the device what is free in a range of bytes, in runs of at least `min_bytes` (fstrim).
    /// Returns how many bytes that was.
    pub fn trim(&self, range: Range<u64>, min_bytes: u64) -> Result<u64> {
        self.base.trim(range, min_bytes)
    }

    pub fn label(&self) -> Result<Vec<u8>> {
        self.base.label()
    }

    /// Changes the label, of at most 16 bytes, durably.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.base.set_label(label)
    }

    /// Stops all writing for good; what is not durable by then a crash would lose, and so does this.
    pub fn shut_down(&self, how: Shutdown) -> Result<()> {
        self.base.shut_down(how)
    }

    /// Writes everything back, marks the volume clean, and lets others open the image. Nothing may use
    /// the volume afterwards; transactions that are still open can only be dropped.
    pub fn close(&self) -> Result<()> {
        self.base.close()?;
        match &self.file {
            Some(file) => file.unlock().map_err(|e| Error::io("unlocking the image", e)),
            None => Ok(()),
        }
    }

    /// Stops all writing for good, with the reason for the log.
    pub fn poison(&self, why: &str) {
        self.base.engine().poison(why);
    }

    /// Whether nothing can be changed on it.
    pub fn is_read_only(&self) -> bool {
        self.base.engine().is_read_only()
    }

    /// `Ok` unless the volume was stopped by an error.
    pub fn health(&self) -> Result<()> {
        self.base.engine().health()
    }

    /// The modes that the volume is open with.
    pub fn modes(&self) -> Modes {
        self.base.modes()
    }

    /// Those of them that whoever opened it asked for.
    pub fn mode_options(&self) -> ModeChoice {
        self.base.mode_options()
    }

    /// The modes that the volume itself asks for.
    pub fn stored_modes(&self) -> Result<ModeChoice> {
        self.base.stored_modes()
    }

    /// Keeps modes as the volume's own, durably; they count from the next opening on. Errors as
    /// [`LiveFs::store_modes`].
    pub fn store_modes(&self, modes: ModeChoice) -> Result<()> {
        self.base.store_modes(modes)
    }

    /// Blocks of file data written back so far: to new places, and over old contents.
    pub fn written_blocks(&self) -> (u64, u64) {
        self.base.written_blocks()
    }

    /// The cache of file data.
    pub fn cache_use(&self) -> CacheUse {
        let (hits, misses) = self.base.cache_lookups();
        let (bytes, limit_bytes) = (self.base.cached_bytes(), self.base.cache_limit_bytes());
        CacheUse { hits, misses, bytes, limit_bytes }
    }

    /// What open transactions hold of the volume before their commits.
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

    /// How long operations that were to begin had to wait at each of them.
    pub fn held_up_times(&self) -> LatencySnapshot {
        self.base.engine().held_up_times()
    }

    /// How often an operation waited for the device, or for somebody who did, where a sync has to wait for it.
    pub fn waits_in_handles(&self) -> u64 {
        self.base.engine().waits_in_handles()
    }

    pub fn stats(&self) -> EngineStats {
        self.base.engine().stats()
    }
}
