//! Figures by ioctl: counters and latencies of the volume, its pool, and what each user holds.

use std::time::{Duration, Instant};

use xact::{RESOURCES, Resource, Volume, WrittenBlocks};
use xact_control::abi::{
    Counters, FILES_MAX, FileUse, FileUses, Latencies, Pool, USER_UNLIMITED, USERS_MAX, UserUse, Users,
};
use xact_types::Result;

use crate::protocol::abi::InHeader;
use crate::server::Server;

/// Interval at which the whole pool is examined for users.
const POOL_LOOK: Duration = Duration::from_secs(1);

pub fn counters(volume: &Volume) -> Counters {
    let stats = volume.stats();
    let written = volume.written_blocks();
    let cache = volume.cache_use();
    let held = volume.tx_space_use();
    Counters {
        commits: stats.commits,
        committed_blocks: stats.committed_blocks,
        journaled_data_blocks: stats.journaled_data_blocks,
        checkpoint_writes: stats.checkpoint_writes,
        checkpoint_writes_saved: stats.checkpoint_writes_saved,
        new_blocks: written.new,
        overwritten_blocks: written.overwritten,
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
        errors_noted: volume.errors_noted(),
    }
}

/// FileUses by their written blocks, from `files.from` on.
pub fn files(volume: &Volume, files: &mut FileUses) {
    let (all, others) = volume.file_writes();
    let mut wanted = all.into_iter().filter(|(ino, _)| u64::from(ino.0) >= files.from).peekable();
    files.len = 0;
    for (to, (ino, blocks)) in files.files.iter_mut().zip(wanted.by_ref().take(FILES_MAX)) {
        *to = file_use(ino.0.into(), blocks);
        files.len += 1;
    }
    files.others = file_use(0, others);
    files.done = u32::from(wanted.peek().is_none());
    files.from = wanted.peek().map_or(u64::MAX, |(next, _)| next.0.into());
}

fn file_use(ino: u64, blocks: WrittenBlocks) -> FileUse {
    FileUse { ino, new_blocks: blocks.new, overwritten_blocks: blocks.overwritten }
}

pub fn latencies(volume: &Volume) -> Latencies {
    Latencies { fsync: (&volume.sync_times()).into(), commit: (&volume.commit_times()).into() }
}

/// All fields are 0 if the volume has no pool.
fn pool_of(volume: &Volume) -> Result<Pool> {
    Ok(volume.pool_use()?.map_or_else(Pool::default, |pool| Pool {
        size: pool.size_bytes,
        used: pool.used_bytes,
        snapshots: pool.for_snapshots_bytes(),
        log: pool.log_bytes,
        waiting: pool.in_flight_bytes,
        needed: pool.needed_bytes,
        reserved: [0; 2],
    }))
}

impl Server {
    /// The resources that users have in use, from `users.from` on.
    pub(crate) fn users(&self, header: &InHeader, users: &mut Users) {
        let accounts = self.volume.accounts();
        let sees_all = self.owner_only(header).is_ok();
        let all = accounts.all().into_iter();
        let mut wanted = all
            .filter(|account| account.uid() >= users.from && (sees_all || account.uid() == header.uid))
            .peekable();
        users.limits = in_use(u32::MAX, accounts.limits().each(), 0);
        users.len = 0;
        for (to, account) in users.users.iter_mut().zip(wanted.by_ref().take(USERS_MAX)) {
            *to = in_use(account.uid(), Resource::ALL.map(|of| account.used(of)), account.refused());
            if account.limit(Resource::Transactions) == u64::MAX {
                to.flags = USER_UNLIMITED;
            }
            users.len += 1;
        }
        users.done = u32::from(wanted.peek().is_none());
        users.from = wanted.peek().map_or(u32::MAX, |next| next.uid());
    }

    /// The fill level of the pool. To find it takes time proportional to the pool's contents,
    /// during which commits wait. So users other than the owner get figures that may be a second
    /// old.
    pub(crate) fn pool_use(&self, header: &InHeader) -> Result<Pool> {
        let mut known = self.pool_use.lock();
        if let Some((at, pool)) = &*known
            && at.elapsed() < POOL_LOOK
            && self.owner_only(header).is_err()
        {
            return Ok(*pool);
        }
        let pool = pool_of(&self.volume)?;
        *known = Some((Instant::now(), pool));
        Ok(pool)
    }
}

fn in_use(uid: u32, amounts: [u64; RESOURCES], refused: u64) -> UserUse {
    let of = |resource: Resource| amounts[resource as usize];
    UserUse {
        uid,
        flags: 0,
        channels: of(Resource::Channels),
        transactions: of(Resource::Transactions),
        persisted: of(Resource::Persisted),
        savepoints: of(Resource::Savepoints),
        memory: of(Resource::Memory),
        descriptors: of(Resource::Descriptors),
        refused,
    }
}
