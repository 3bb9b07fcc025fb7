//! `xact stat`: statistics of a mounted volume.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{StatVfsMountFlags, statvfs};
use serde::Serialize;
use xact::ModeChoice;
use xact::{LatencySnapshot, LatencySummary};
use xact_control::abi::{Counters, MOUNT_SYNCS, Pool, USER_UNLIMITED, UserUse};

use crate::args::Stat;
use crate::commands::{file_writes, metrics};
use crate::exit::{Failure, Result};
use crate::full_pool;
use crate::output::{print, print_json};
use crate::values::size_text;
use crate::{control, mounts};

#[derive(Debug, Serialize)]
struct Statistics {
    mount: String,
    image: String,
    read_only: bool,
    /// Whether this is the view of a transaction.
    in_transaction: bool,
    /// Errors that the superblock notes; 0 on a sound volume.
    errors_noted: u64,
    /// Whether sync(2) and syncfs(2) reach the daemon.
    sync_reaches: bool,
    size_bytes: u64,
    free_bytes: u64,
    /// Free for users other than root.
    available_bytes: u64,
    inodes: u64,
    free_inodes: u64,
    /// For a volume with generations.
    pool: Option<PoolUse>,
    /// How it is journaled; see `xact mode`.
    modes: BTreeMap<&'static str, Option<&'static str>>,
    /// Since the volume was mounted.
    counters: Activity,
    /// File data in the cache, and its limit.
    cached_bytes: u64,
    cache_limit_bytes: u64,
    /// Space that open transactions hold before their commits.
    transactions: TxSpace,
    /// Resources of the daemon in use by each user: of all users for root and the user who mounted,
    /// else of the caller.
    users: Vec<UserResources>,
    /// Limits of each user except root and the user who mounted; `None`: unlimited.
    user_limits: UserResources,
}

/// Resources in use by a user, or their limits.
#[derive(Debug, Clone, Copy, Serialize)]
struct UserResources {
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    channels: Option<u64>,
    transactions: Option<u64>,
    persisted: Option<u64>,
    savepoints: Option<u64>,
    memory_bytes: Option<u64>,
    descriptors: Option<u64>,
    /// Calls that failed because of a limit, since the volume was mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<u64>,
    /// Whether the limits apply to this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    limited: Option<bool>,
}

impl UserResources {
    fn of(user: &UserUse) -> UserResources {
        let amount = |amount: u64| (amount != u64::MAX).then_some(amount);
        UserResources {
            uid: Some(user.uid),
            channels: amount(user.channels),
            transactions: amount(user.transactions),
            persisted: amount(user.persisted),
            savepoints: amount(user.savepoints),
            memory_bytes: amount(user.memory),
            descriptors: amount(user.descriptors),
            refused: Some(user.refused),
            limited: Some(user.flags & USER_UNLIMITED == 0),
        }
    }

    fn limits(limits: &UserUse) -> UserResources {
        UserResources { uid: None, refused: None, limited: None, ..UserResources::of(limits) }
    }

    fn text(&self, limits: &UserResources) -> String {
        let (count, size) = (|n: u64| n.to_string(), |bytes: u64| size_text(bytes));
        let of = |have: Option<u64>, may: Option<u64>, text: &dyn Fn(u64) -> String| {
            let have = text(have.unwrap_or(0));
            may.filter(|_| self.limited == Some(true))
                .map_or(have.clone(), |may| format!("{have} of {}", text(may)))
        };
        format!(
            "user {}: {} transactions ({} persisted), {} memory, {} savepoints, {} channels, {} descriptors; {} refused\n",
            self.uid.unwrap_or_default(),
            of(self.transactions, limits.transactions, &count),
            self.persisted.unwrap_or(0),
            of(self.memory_bytes, limits.memory_bytes, &size),
            of(self.savepoints, limits.savepoints, &count),
            of(self.channels, limits.channels, &count),
            of(self.descriptors, limits.descriptors, &count),
            self.refused.unwrap_or(0),
        )
    }
}

/// Space of open transactions.
#[derive(Debug, Clone, Copy, Serialize)]
struct TxSpace {
    /// Contents that do not fit into memory.
    held_bytes: u64,
    held_inodes: u64,
    /// Limit of one user other than root, in percent of the free space.
    limit_percent: u64,
    /// Transactions that lost their space to others since the volume was mounted.
    revoked: u64,
}

impl TxSpace {
    fn of(counters: &Counters) -> TxSpace {
        TxSpace {
            held_bytes: counters.tx_held_bytes,
            held_inodes: counters.tx_held_inodes,
            limit_percent: counters.tx_space_percent,
            revoked: counters.tx_revoked,
        }
    }

    fn text(&self) -> String {
        format!(
            "held:    {} and {} inodes by open transactions; those of one user may hold {}% of the free space; {} aborted \
             for lack of space\n",
            size_text(self.held_bytes),
            self.held_inodes,
            self.limit_percent,
            self.revoked,
        )
    }
}

/// The fill level of the pool, by use.
#[derive(Debug, Clone, Copy, Serialize)]
struct PoolUse {
    size_bytes: u64,
    used_bytes: u64,
    /// Parts of the used bytes: held by snapshots alone, and by the intent log. The rest belongs to
    /// the newest generation.
    snapshot_bytes: u64,
    log_bytes: u64,
    /// Changed metadata, which the next generation adds.
    waiting_bytes: u64,
    /// Bytes that must be free before anything can be added.
    needed_bytes: u64,
    /// Fewer bytes are free.
    full: bool,
}

impl PoolUse {
    fn of(pool: Pool) -> PoolUse {
        PoolUse {
            size_bytes: pool.size,
            used_bytes: pool.used,
            snapshot_bytes: pool.snapshots,
            log_bytes: pool.log,
            waiting_bytes: pool.waiting,
            needed_bytes: pool.needed,
            full: full_pool::is_full(&pool),
        }
    }

    fn text(&self) -> String {
        let rest = self.used_bytes.saturating_sub(self.snapshot_bytes + self.log_bytes);
        let mut text = format!(
            "pool:    {} used of {}: {} by snapshots, {} by the newest generation, {} by its log; the next generation \
             adds {}\n",
            size_text(self.used_bytes),
            size_text(self.size_bytes),
            size_text(self.snapshot_bytes),
            size_text(rest),
            size_text(self.log_bytes),
            size_text(self.waiting_bytes),
        );
        if self.full {
            text += &format!("         {}\n", full_pool::line(self.needed_bytes));
        }
        text
    }
}

/// The counters of a mount at one moment.
struct Reading {
    counters: Counters,
    fsync: LatencySnapshot,
    commit: LatencySnapshot,
}

impl Reading {
    fn of(mount_point: &Path) -> Result<Reading> {
        let counters = control::counters(mount_point)?;
        let latencies = control::latencies(mount_point)?;
        Ok(Reading { counters, fsync: (&latencies.fsync).into(), commit: (&latencies.commit).into() })
    }

    /// The counters of a new mount.
    fn at_first() -> Reading {
        let none = LatencySnapshot::default;
        Reading { counters: Counters::default(), fsync: none(), commit: none() }
    }

    /// Whether the volume was mounted again since `before`: counters start at zero then, and only
    /// grow while it is mounted.
    fn is_of_another_mount(&self, before: &Reading) -> bool {
        let totals = |reading: &Reading| {
            let c = &reading.counters;
            [
                c.commits,
                c.committed_blocks,
                c.journaled_data_blocks,
                c.checkpoint_writes,
                c.checkpoint_writes_saved,
                c.new_blocks,
                c.overwritten_blocks,
                c.device_reads,
                c.device_read_bytes,
                c.device_writes,
                c.device_written_bytes,
                c.device_flushes,
                c.device_empty_flushes,
                c.data_hits,
                c.data_misses,
                c.metadata_hits,
                c.metadata_misses,
            ]
        };
        totals(self).iter().zip(totals(before)).any(|(now, before)| *now < before)
    }
}

/// Latencies of an operation, in seconds; all 0 if there was none.
#[derive(Debug, Clone, Copy, Serialize, PartialEq)]
struct Took {
    count: u64,
    median_s: f64,
    mean_s: f64,
    p99_s: f64,
    worst_s: f64,
}

impl From<LatencySummary> for Took {
    fn from(summary: LatencySummary) -> Took {
        let LatencySummary { count, mean, median, p99, worst, .. } = summary;
        let [mean_s, median_s, p99_s, worst_s] = [mean, median, p99, worst].map(|time| time.as_secs_f64());
        Took { count, median_s, mean_s, p99_s, worst_s }
    }
}

impl Took {
    fn text(&self) -> String {
        if self.count == 0 {
            return "none".into();
        }
        let [median, mean, p99, worst] =
            [self.median_s, self.mean_s, self.p99_s, self.worst_s].map(|seconds| seconds * 1e3);
        format!(
            "{}, each {median:.3} ms (median), {mean:.3} (mean), {p99:.3} (99th percentile), {worst:.3} (worst)",
            self.count
        )
    }
}

/// The activity of an interval.
#[derive(Debug, Clone, Copy, Serialize, PartialEq)]
struct Activity {
    commits: u64,
    committed_blocks: u64,
    journaled_data_blocks: u64,
    checkpoint_writes: u64,
    checkpoint_writes_saved: u64,
    new_blocks: u64,
    overwritten_blocks: u64,
    device_reads: u64,
    device_read_bytes: u64,
    device_writes: u64,
    device_written_bytes: u64,
    device_flushes: u64,
    /// Flushes without a write since the flush before.
    device_empty_flushes: u64,
    /// 0 without a commit.
    device_writes_per_commit: f64,
    device_flushes_per_commit: f64,
    /// Share of new data in the written data; 0 if none was written.
    new_share: f64,
    /// Lookups in the caches, and the share that hit; 0 without any.
    data_lookups: u64,
    data_hit_share: f64,
    metadata_lookups: u64,
    metadata_hit_share: f64,
    /// Syncs of files (fsync, fdatasync), and commits.
    fsync: Took,
    commit: Took,
}

impl Activity {
    /// The difference between two readings.
    fn between(Reading { counters: before, fsync, commit }: &Reading, reading: &Reading) -> Activity {
        let now = &reading.counters;
        let share = |part: u64, all: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 };
        let commits = now.commits - before.commits;
        let device_writes = now.device_writes - before.device_writes;
        let device_flushes = now.device_flushes - before.device_flushes;
        let new_blocks = now.new_blocks - before.new_blocks;
        let overwritten_blocks = now.overwritten_blocks - before.overwritten_blocks;
        let data_hits = now.data_hits - before.data_hits;
        let data_misses = now.data_misses - before.data_misses;
        let metadata_hits = now.metadata_hits - before.metadata_hits;
        let metadata_misses = now.metadata_misses - before.metadata_misses;
        Activity {
            commits,
            committed_blocks: now.committed_blocks - before.committed_blocks,
            journaled_data_blocks: now.journaled_data_blocks - before.journaled_data_blocks,
            checkpoint_writes: now.checkpoint_writes - before.checkpoint_writes,
            checkpoint_writes_saved: now.checkpoint_writes_saved - before.checkpoint_writes_saved,
            new_blocks,
            overwritten_blocks,
            device_reads: now.device_reads - before.device_reads,
            device_read_bytes: now.device_read_bytes - before.device_read_bytes,
            device_writes,
            device_written_bytes: now.device_written_bytes - before.device_written_bytes,
            device_flushes,
            device_empty_flushes: now.device_empty_flushes - before.device_empty_flushes,
            device_writes_per_commit: share(device_writes, commits),
            device_flushes_per_commit: share(device_flushes, commits),
            new_share: share(new_blocks, new_blocks + overwritten_blocks),
            data_lookups: data_hits + data_misses,
            data_hit_share: share(data_hits, data_hits + data_misses),
            metadata_lookups: metadata_hits + metadata_misses,
            metadata_hit_share: share(metadata_hits, metadata_hits + metadata_misses),
            fsync: reading.fsync.since(fsync).summary().into(),
            commit: reading.commit.since(commit).summary().into(),
        }
    }

    fn cache_text(&self) -> String {
        let found = |share: f64, lookups: u64| match lookups {
            0 => "no lookups".to_owned(),
            _ => format!("{:.1}% of {lookups} lookups hit", 100.0 * share),
        };
        let data = found(self.data_hit_share, self.data_lookups);
        let metadata = found(self.metadata_hit_share, self.metadata_lookups);
        format!("data: {data}; metadata: {metadata}")
    }

    fn text(&self) -> String {
        let new = match self.new_blocks + self.overwritten_blocks {
            0 => String::new(),
            _ => format!(" ({:.0}% new)", 100.0 * self.new_share),
        };
        format!(
            "commits: {} with {} blocks, {} of them file data\n\
             home:    {} blocks checkpointed, {} checkpoint writes avoided\n\
             data:    {} new blocks, {} overwritten{new}\n\
             device:  {} writes of {}, {} flushes ({} empty), {} reads of {}; {:.1} writes and {:.1} flushes \
             per commit\n\
             cache:   {}\n\
             syncs:   {}\n\
             commits: {}\n",
            self.commits,
            self.committed_blocks,
            self.journaled_data_blocks,
            self.checkpoint_writes,
            self.checkpoint_writes_saved,
            self.new_blocks,
            self.overwritten_blocks,
            self.device_writes,
            size_text(self.device_written_bytes),
            self.device_flushes,
            self.device_empty_flushes,
            self.device_reads,
            size_text(self.device_read_bytes),
            self.device_writes_per_commit,
            self.device_flushes_per_commit,
            self.cache_text(),
            self.fsync.text(),
            self.commit.text(),
        )
    }
}

pub fn stat(args: &Stat) -> Result<()> {
    let at = args.at.as_deref();
    if args.prometheus {
        let only = at.map(mounts::containing).transpose()?;
        return metrics::metrics(only.as_ref().map(|mount| mount.point.as_path()), args.output.as_deref());
    }
    let mount = mounts::containing(at.unwrap_or(Path::new(".")))?;
    if let Some(every) = args.watch {
        return watch(&mount.point, every, args.json);
    }
    if let Some(most) = args.files {
        return file_writes::list(&mount.point, most, args.json);
    }
    let space = statvfs(&mount.point)
        .map_err(|e| Failure::system(format_args!("look at {}", mount.point.display()), e))?;
    let reading = Reading::of(&mount.point)?;
    let (_, modes) = control::modes(&mount.point)?;
    let (users, limits) = control::users(&mount.point)?;
    let statistics = Statistics {
        mount: mount.point.display().to_string(),
        image: mounts::image(&mount).display().to_string(),
        read_only: space.f_flag.contains(StatVfsMountFlags::RDONLY),
        in_transaction: mount.is_view(),
        errors_noted: reading.counters.errors_noted,
        sync_reaches: control::mount_flags(&mount.point).is_ok_and(|flags| flags & MOUNT_SYNCS != 0),
        size_bytes: space.f_blocks.saturating_mul(space.f_frsize),
        free_bytes: space.f_bfree.saturating_mul(space.f_frsize),
        available_bytes: space.f_bavail.saturating_mul(space.f_frsize),
        inodes: space.f_files,
        free_inodes: space.f_ffree,
        pool: control::pool(&mount.point)?.map(PoolUse::of),
        modes: modes.names().into_iter().collect(),
        cached_bytes: reading.counters.data_bytes,
        cache_limit_bytes: reading.counters.data_limit_bytes,
        transactions: TxSpace::of(&reading.counters),
        counters: Activity::between(&Reading::at_first(), &reading),
        users: users.iter().map(UserResources::of).collect(),
        user_limits: UserResources::limits(&limits),
    };
    if args.json {
        return print_json(&statistics);
    }
    print(&format!(
        "{} on {}{}\n{}space:   {} free of {}, {} for users\ninodes:  {} free of {}\n{}{}modes:   {}\nsync:    {}\n{}data in cache: {} of {}\n{}",
        statistics.image,
        statistics.mount,
        match (statistics.read_only, statistics.in_transaction) {
            (true, _) => ", read-only",
            (_, true) => ", inside a transaction",
            _ => "",
        },
        match statistics.errors_noted {
            0 => String::new(),
            count => format!(
                "damage:  {count} errors were noted: unmount the volume, and run 'xact check' on it\n"
            ),
        },
        size_text(statistics.free_bytes),
        size_text(statistics.size_bytes),
        size_text(statistics.available_bytes),
        statistics.free_inodes,
        statistics.inodes,
        statistics.transactions.text(),
        statistics.pool.map(|pool| pool.text()).unwrap_or_default(),
        modes_text(modes),
        match statistics.sync_reaches {
            true => "sync(2) and syncfs(2) make everything durable",
            false => "sync(2) and syncfs(2) do not reach this mount: use 'xact sync'",
        },
        statistics.counters.text(),
        size_text(statistics.cached_bytes),
        size_text(statistics.cache_limit_bytes),
        statistics.users.iter().map(|user| user.text(&statistics.user_limits)).collect::<String>(),
    ))
}

fn modes_text(modes: ModeChoice) -> String {
    let words = modes.names().into_iter().map(|(name, value)| format!("{name}={}", value.unwrap_or("?")));
    words.collect::<Vec<_>>().join(", ")
}

/// Prints the activity of each interval until the reader closes the pipe.
fn watch(mount_point: &Path, every: Duration, json: bool) -> Result<()> {
    let mut before = Reading::of(mount_point)?;
    loop {
        std::thread::sleep(every);
        let now = Reading::of(mount_point)?;
        if now.is_of_another_mount(&before) {
            before = Reading::at_first();
        }
        let activity = Activity::between(&before, &now);
        before = now;
        let text = match json {
            true => serde_json::to_string(&activity).expect("the activity has plain fields"),
            false => activity.text(),
        };
        match io::stdout().write_all((text + "\n").as_bytes()) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(|e| Failure::system("write the output", e))?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_nothing_are_nothing() {
        let activity = Activity::between(&Reading::at_first(), &Reading::at_first());
        assert_eq!((activity.device_writes_per_commit, activity.new_share), (0.0, 0.0));
        assert_eq!((activity.data_hit_share, activity.fsync.count), (0.0, 0));
        let counters = Counters {
            commits: 4,
            device_writes: 6,
            new_blocks: 3,
            overwritten_blocks: 1,
            ..Counters::default()
        };
        let now = Reading { counters, ..Reading::at_first() };
        let activity = Activity::between(&Reading::at_first(), &now);
        assert_eq!((activity.device_writes_per_commit, activity.new_share), (1.5, 0.75));
        assert_eq!(Activity::between(&now, &now).commits, 0);
        assert!(Reading::at_first().is_of_another_mount(&now));
        assert!(!now.is_of_another_mount(&now) && !now.is_of_another_mount(&Reading::at_first()));
        assert!(activity.text().contains("1 overwritten (75% new)"));
        let nothing = Activity::between(&now, &now).text();
        assert!(nothing.contains("data: no lookups; metadata: no lookups"), "{nothing}");
        assert!(!nothing.contains('%'), "{nothing}");
    }
}
