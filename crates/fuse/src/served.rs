//! The library's volume as the server wants it.

use std::sync::Arc;

use xact::{
    AbortHistory, Accounts, CommitObserver, Credentials, Difference, Isolation, Limits, LostAttempt,
    ModeChoice, Modes, PersistedInfo, Reader, Side, Snapshot, SnapshotInfo, SnapshotWatcher, TxOptions,
    TxState, Volume,
};
use xact_fs::View;
use xact_types::{Error, Ino, Result};

use crate::control::{Counters, Latencies, Pool};
use crate::host::{Changes, CommitHow, Host, HostTransaction, Reopened};
use crate::limits;

/// A volume to mount.
pub struct Served {
    volume: Arc<Volume>,
}

impl Served {
    pub fn new(volume: Arc<Volume>) -> Served {
        Served { volume }
    }

    /// With limits for each user but root and the one who runs this process.
    pub fn limited(volume: Arc<Volume>, limits: Limits) -> Served {
        limits::set(volume.accounts(), limits);
        Served { volume }
    }
}

impl Host for Served {
    fn base(&self) -> Arc<dyn View> {
        self.volume.base()
    }

    fn accounts(&self) -> &Accounts {
        self.volume.accounts()
    }

    fn holds(&self, ino: Ino) -> u64 {
        self.volume.holds(ino)
    }

    fn hold_reserved(&self, ino: Ino) {
        self.volume.hold_reserved(ino);
    }

    fn begin(
        &self,
        uid: u32,
        isolation: Isolation,
        losses: &AbortHistory,
    ) -> Result<Arc<dyn HostTransaction>> {
        self.volume.health()?;
        let options = TxOptions { owner: uid, isolation, mounted: true, ..TxOptions::default() };
        Ok(Arc::new(ServedTransaction { transaction: self.volume.begin_after(options, losses) }))
    }

    fn reopen_kept(&self) -> Result<Vec<(u64, Result<Reopened>)>> {
        let reopen = |id: u64| {
            if self.volume.is_read_only() {
                return Err(Error::ReadOnly);
            }
            let transaction = self.volume.reopen_transaction(id)?;
            let (uid, info) = (transaction.options().owner, transaction.persisted_info().unwrap_or_default());
            let transaction: Arc<dyn HostTransaction> = Arc::new(ServedTransaction { transaction });
            Ok(Reopened { transaction, uid, info })
        };
        Ok(self.volume.persisted_transactions()?.into_iter().map(|id| (id, reopen(id))).collect())
    }

    fn create_snapshot(&self, name: &str) -> Result<()> {
        self.volume.create_snapshot(name)
    }

    fn create_snapshot_of(&self, name: &str, paths: &[Vec<u8>]) -> Result<()> {
        self.volume.create_snapshot_of(name, paths)
    }

    fn snapshot_paths(&self, name: &str) -> Result<Vec<Vec<u8>>> {
        self.volume.snapshot_paths(name)
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.volume.delete_snapshot(name)
    }

    fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        self.volume.snapshots()
    }

    fn volume(&self) -> Option<&Volume> {
        Some(&self.volume)
    }

    fn watch_snapshots(&self, watcher: SnapshotWatcher) {
        self.volume.watch_snapshots(watcher);
    }

    fn snapshot_names(&self) -> Result<Vec<String>> {
        self.volume.snapshot_names()
    }

    fn open_snapshot(&self, name: &str) -> Result<Snapshot> {
        self.volume.open_snapshot(name)
    }

    fn diff_snapshots(&self, old: &str, new: Option<&str>) -> Result<Vec<Difference>> {
        self.volume.diff_snapshots(old, new)
    }

    fn counters(&self) -> Counters {
        let stats = self.volume.stats();
        let (new_blocks, overwritten_blocks) = self.volume.written_blocks();
        let cache = self.volume.cache_use();
        let held = self.volume.tx_space_use();
        Counters {
            commits: stats.commits,
            committed_blocks: stats.committed_blocks,
            journaled_data_blocks: stats.journaled_data_blocks,
            checkpoint_writes: stats.checkpoint_writes,
            checkpoint_writes_saved: stats.checkpoint_writes_saved,
            new_blocks,
            overwritten_blocks,
            device_reads: stats.device.reads,
            device_read_bytes: stats.device.read_bytes,
            device_writes: stats.device.writes,
            device_written_bytes: stats.device.written_bytes,
            device_flushes: stats.device.flushes,
            device_empty_flushes: stats.device.empty_flushes,
            data_hits: cache.hits,
            data_misses: cache.misses,
            data_bytes: cache.bytes,
            data_limit_bytes: cache.limit_bytes,
            metadata_hits: stats.metadata_hits,
            metadata_misses: stats.metadata_misses,
            tx_held_bytes: held.bytes,
            tx_held_inodes: held.inodes,
            tx_space_percent: held.limit_percent.into(),
            tx_revoked: held.revoked,
            reserved: [0; 1],
        }
    }

    fn latencies(&self) -> Latencies {
        Latencies { fsync: (&self.volume.sync_times()).into(), commit: (&self.volume.commit_times()).into() }
    }

    fn pool(&self) -> Result<Pool> {
        Ok(self.volume.pool_use()?.map_or_else(Pool::default, |pool| Pool {
            size: pool.size_bytes,
            used: pool.used_bytes,
            snapshots: pool.for_snapshots_bytes(),
            log: pool.log_bytes,
            waiting: pool.in_flight_bytes,
            needed: pool.needed_bytes,
            reserved: [0; 2],
        }))
    }

    fn is_pool_full(&self) -> bool {
        self.volume.is_pool_full()
    }

    fn modes(&self) -> Modes {
        self.volume.modes()
    }

    fn mode_options(&self) -> ModeChoice {
        self.volume.mode_options()
    }

    fn stored_modes(&self) -> Result<ModeChoice> {
        self.volume.stored_modes()
    }

    fn store_modes(&self, modes: ModeChoice) -> Result<()> {
        self.volume.store_modes(modes)
    }

    fn poison(&self, why: &str) {
        self.volume.poison(why);
    }
}

struct ServedTransaction {
    transaction: Arc<xact::Transaction>,
}

impl HostTransaction for ServedTransaction {
    fn id(&self) -> u64 {
        self.transaction.options().id
    }

    fn view(&self) -> Arc<dyn View> {
        self.transaction.clone()
    }

    fn is_open(&self) -> bool {
        self.transaction.state() == TxState::Active
    }

    fn is_doomed(&self) -> bool {
        self.transaction.is_doomed()
    }

    fn goes_first(&self) -> bool {
        self.transaction.has_claim()
    }

    fn written_files(&self) -> Vec<Ino> {
        self.transaction.changes().files
    }

    fn will_make(&self, ino: Ino) -> bool {
        self.transaction.will_make(ino)
    }

    fn commit(&self, how: &CommitHow, audience: &mut dyn CommitObserver) -> Result<()> {
        match &how.only {
            Some(paths) => self.transaction.commit_only(paths, how.durability, audience),
            None if how.retain => self.transaction.try_commit(how.durability, audience),
            None => self.transaction.commit_with_observer(how.durability, audience),
        }
    }

    fn abort(&self) {
        self.transaction.abort();
    }

    fn drop_all(&self) -> Result<()> {
        self.transaction.abort_persisted()
    }

    fn keep(&self, info: PersistedInfo) -> Result<()> {
        self.transaction.persist(info)
    }

    fn kept_info(&self) -> Option<PersistedInfo> {
        self.transaction.persisted_info()
    }

    fn keep_up(&self) -> Result<()> {
        self.transaction.update_persisted()
    }

    fn take_lost(&self) -> Option<LostAttempt> {
        self.transaction.take_lost_attempt()
    }

    fn drop_only(&self, paths: &[Vec<u8>]) -> Result<()> {
        self.transaction.abort_only(paths)
    }

    fn savepoint(&self) -> Result<u64> {
        self.transaction.savepoint()
    }

    fn roll_back(&self, savepoint: u64) -> Result<Changes> {
        self.transaction.roll_back(savepoint)
    }

    fn release_savepoint(&self, savepoint: u64) -> Result<()> {
        self.transaction.release_savepoint(savepoint)
    }

    fn diff(&self) -> Result<Vec<Difference>> {
        self.transaction.diff()
    }

    fn diff_by_file(&self, who: &Credentials) -> Result<Vec<Difference>> {
        self.transaction.diff_by_file(Some(who))
    }

    fn read_side(
        &self,
        by: &Reader<'_>,
        side: Side,
        ino: Ino,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.transaction.peek_contents(by, side, ino, offset, len, out)
    }
}
