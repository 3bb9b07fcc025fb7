//! `xact stat --prometheus`: statistics in Prometheus' text format, for the textfile collector of
//! node_exporter.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process;

use xact::LatencySnapshot;
use xact_control::TxInfo;
use xact_control::abi::{MOUNT_SYNCS, Pool, TxStatus};

use crate::exit::{Failure, Result};
use crate::full_pool;
use crate::mounts;
use crate::output::print_bytes;
use crate::volumes::{self, Facts, Found, Mounted, State};

#[derive(Clone, Copy)]
enum Kind {
    Gauge,
    Counter,
    Histogram,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        }
    }
}

/// A metric: the help text, and the values of one volume, each with labels of its own.
struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    values: fn(&Facts) -> Vec<Value>,
}

/// A value, with the end of the metric's name and further labels.
struct Value {
    suffix: &'static str,
    labels: Vec<(&'static str, String)>,
    value: f64,
}

fn one(value: u64) -> Vec<Value> {
    of_label("", "", value)
}

/// A value with a label; none if the label's name is empty.
fn of_label(name: &'static str, label: &str, value: u64) -> Vec<Value> {
    let labels = if name.is_empty() { Vec::new() } else { vec![(name, label.to_owned())] };
    vec![Value { suffix: "", labels, value: value as f64 }]
}

fn of_pool(facts: &Facts, value: fn(&Pool) -> u64) -> Vec<Value> {
    facts.pool.iter().flat_map(|pool| one(value(pool))).collect()
}

/// The open transactions by their state.
fn by_state(facts: &Facts, value: fn(&[&TxInfo]) -> u64) -> Vec<Value> {
    let Some(all) = &facts.transactions else { return Vec::new() };
    let state = |info: &TxInfo| match (info.status, info.persistent) {
        (TxStatus::Running, _) => "running",
        (_, false) => "open",
        (_, true) => "persisted",
    };
    let of = |name| {
        let these: Vec<&TxInfo> = all.iter().filter(|info| state(info) == name).collect();
        of_label("state", name, value(&these))
    };
    ["running", "open", "persisted"].into_iter().flat_map(of).collect()
}

fn histogram(latencies: &LatencySnapshot) -> Vec<Value> {
    let value = |suffix, labels, value| Value { suffix, labels, value };
    let mut values: Vec<Value> = latencies
        .cumulative()
        .into_iter()
        .map(|(end, count)| value("_bucket", vec![("le", end.as_secs_f64().to_string())], count as f64))
        .collect();
    let count = latencies.summary().count as f64;
    values.push(value("_bucket", vec![("le", "+Inf".into())], count));
    values.push(value("_sum", Vec::new(), latencies.sum_ns as f64 / 1e9));
    values.push(value("_count", Vec::new(), count));
    values
}

macro_rules! metrics {
    ($($kind:ident $name:literal $help:literal $values:expr;)*) => {
        &[$(Metric { name: $name, kind: Kind::$kind, help: $help, values: $values }),*]
    };
}

const METRICS: &[Metric] = metrics! {
    Gauge "xact_volume_info" "The engine of the volume; the value is always 1."
        |f| of_label("engine", f.engine().unwrap_or("unknown"), 1);
    Gauge "xact_read_only" "Whether the volume is mounted read-only." |f| one(f.is_read_only().into());
    Gauge "xact_sync_reaches" "Whether sync(2) and syncfs(2) make the volume durable."
        |f| one((f.flags & MOUNT_SYNCS != 0).into());
    Gauge "xact_errors_noted" "Errors that the superblock notes; more than 0 means damage."
        |f| one(f.counters.errors_noted);
    Gauge "xact_size_bytes" "Size of the volume." |f| one(f.size_bytes());
    Gauge "xact_free_bytes" "Free space." |f| one(f.free_bytes());
    Gauge "xact_available_bytes" "Free space for users other than root." |f| one(f.available_bytes());
    Gauge "xact_inodes" "Number of inodes." |f| one(f.space.f_files);
    Gauge "xact_inodes_free" "Number of free inodes." |f| one(f.space.f_ffree);
    Gauge "xact_pool_size_bytes" "Size of the pool of a volume with generations." |f| of_pool(f, |p| p.size);
    Gauge "xact_pool_used_bytes" "Use of the pool." |f| of_pool(f, |p| p.used);
    Gauge "xact_pool_snapshots_bytes" "Space in the pool that only snapshots hold."
        |f| of_pool(f, |p| p.snapshots);
    Gauge "xact_pool_log_bytes" "Space in the pool for the intent log." |f| of_pool(f, |p| p.log);
    Gauge "xact_pool_full" "Whether nothing can be added until a part of the pool becomes free."
        |f| of_pool(f, |p| full_pool::is_full(p).into());
    Gauge "xact_snapshots" "Number of snapshots."
        |f| f.snapshots.iter().flat_map(|all| one(all.len() as u64)).collect();
    Gauge "xact_snapshot_newest_timestamp_seconds" "Time of the newest snapshot, since 1970."
        |f| f.snapshots.iter().flatten().map(|s| s.time).max().map_or_else(Vec::new, one);
    Gauge "xact_transactions" "Open transactions, by state." |f| by_state(f, |all| all.len() as u64);
    Gauge "xact_transaction_oldest_age_seconds" "Age of the oldest open transaction; 0 without one."
        |f| by_state(f, |all| all.iter().map(|info| info.age.as_secs()).max().unwrap_or(0));
    Gauge "xact_transactions_held_bytes" "Space that open transactions hold before their commits."
        |f| one(f.counters.tx_held_bytes);
    Gauge "xact_transactions_held_inodes" "Inodes that open transactions hold before their commits."
        |f| one(f.counters.tx_held_inodes);
    Counter "xact_transactions_revoked_total" "Transactions that lost their space to others."
        |f| one(f.counters.tx_revoked);
    Counter "xact_commits_total" "Commits of the engine." |f| one(f.counters.commits);
    Counter "xact_committed_blocks_total" "Blocks in these commits." |f| one(f.counters.committed_blocks);
    Counter "xact_journaled_data_blocks_total" "Blocks of file data in these commits."
        |f| one(f.counters.journaled_data_blocks);
    Counter "xact_checkpoint_writes_total" "Blocks written to their places." |f| one(f.counters.checkpoint_writes);
    Counter "xact_checkpoint_writes_saved_total" "Writes of blocks to their places that were avoided."
        |f| one(f.counters.checkpoint_writes_saved);
    Counter "xact_data_blocks_total" "Blocks of file data that were written, by kind."
        |f| [("new", f.counters.new_blocks), ("overwritten", f.counters.overwritten_blocks)]
            .into_iter().flat_map(|(kind, blocks)| of_label("kind", kind, blocks)).collect();
    Counter "xact_device_reads_total" "Reads of the device." |f| one(f.counters.device_reads);
    Counter "xact_device_read_bytes_total" "Bytes read from the device." |f| one(f.counters.device_read_bytes);
    Counter "xact_device_writes_total" "Writes to the device." |f| one(f.counters.device_writes);
    Counter "xact_device_written_bytes_total" "Bytes written to the device."
        |f| one(f.counters.device_written_bytes);
    Counter "xact_device_flushes_total" "Flushes of the device." |f| one(f.counters.device_flushes);
    Counter "xact_device_empty_flushes_total" "Flushes without a write since the flush before."
        |f| one(f.counters.device_empty_flushes);
    Gauge "xact_cache_bytes" "File data in the cache." |f| one(f.counters.data_bytes);
    Gauge "xact_cache_limit_bytes" "Limit of the file data in the cache." |f| one(f.counters.data_limit_bytes);
    Counter "xact_data_cache_hits_total" "Lookups of file data that found it in the cache."
        |f| one(f.counters.data_hits);
    Counter "xact_data_cache_misses_total" "Lookups of file data that did not." |f| one(f.counters.data_misses);
    Counter "xact_metadata_cache_hits_total" "Lookups of metadata that found it in the cache."
        |f| one(f.counters.metadata_hits);
    Counter "xact_metadata_cache_misses_total" "Lookups of metadata that did not."
        |f| one(f.counters.metadata_misses);
    Counter "xact_user_refused_total" "Calls that failed because of the limits of a user, by user."
        |f| f.users.iter().flat_map(|u| of_label("uid", &u.uid.to_string(), u.refused)).collect();
    Gauge "xact_user_memory_bytes" "Memory of the daemon that a user's transactions take, by user."
        |f| f.users.iter().flat_map(|u| of_label("uid", &u.uid.to_string(), u.memory)).collect();
    Histogram "xact_fsync_seconds" "Durations of fsync and fdatasync." |f| histogram(&f.fsync);
    Histogram "xact_commit_seconds" "Durations of commits." |f| histogram(&f.commit);
};

/// Prints the metrics of all volumes in the caller's mount namespace, or of one mount point, or
/// writes them to a file, which then has all of them or is as it was.
pub fn metrics(only: Option<&Path>, output: Option<&Path>) -> Result<()> {
    let mut mounted = volumes::mounted()?;
    let is_it = |one: &Mounted| only.is_none_or(|point| one.mount.point == point);
    mounted.retain(|one| one.process.is_none() && is_it(one));
    let text = exposition(&volumes::ask(mounted));
    match output {
        None => print_bytes(text.as_bytes()),
        Some(path) => replace(path, text.as_bytes())
            .map_err(|e| Failure::system(format_args!("write {}", path.display()), e)),
    }
}

/// The text of all metrics. Each has its help and type once, before its values.
fn exposition(all: &[Found]) -> String {
    let labels: Vec<Vec<(&str, String)>> = all
        .iter()
        .map(|found| {
            let mount = &found.mounted.mount;
            let text = |path: &Path| path.display().to_string();
            vec![("mount", text(&mount.point)), ("image", text(&mounts::image(mount)))]
        })
        .collect();
    let mut text = heading("xact_up", Kind::Gauge, "Whether the daemon of the volume has answered.");
    for (found, labels) in all.iter().zip(&labels) {
        let is_up = matches!(found.state, State::Serves(_));
        if !matches!(found.state, State::NoPermission) {
            text += &line("xact_up", labels, is_up.into());
        }
    }
    for metric in METRICS {
        let mut lines = String::new();
        for (found, labels) in all.iter().zip(&labels) {
            let State::Serves(facts) = &found.state else { continue };
            for value in (metric.values)(facts) {
                let name = format!("{}{}", metric.name, value.suffix);
                lines += &line(&name, &[labels.as_slice(), value.labels.as_slice()].concat(), value.value);
            }
        }
        if !lines.is_empty() {
            text += &heading(metric.name, metric.kind, metric.help);
            text += &lines;
        }
    }
    text
}

fn heading(name: &str, kind: Kind, help: &str) -> String {
    format!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.word())
}

fn line(name: &str, labels: &[(&str, String)], value: f64) -> String {
    let mut text = name.to_owned();
    for (at, (label, of)) in labels.iter().enumerate() {
        let of = of.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(text, "{}{label}=\"{of}\"", if at == 0 { '{' } else { ',' });
    }
    format!("{text}}} {value}\n")
}

/// Replaces a file by rename. The collector reads files that end in `.prom`, which the name of the
/// new file does not until it is complete.
fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
    name.push(format!(".{}", process::id()));
    let temporary: PathBuf = path.with_file_name(name);
    let write = || {
        let mut file = File::options().write(true).create_new(true).open(&temporary)?;
        // The collector may run as another user, whatever the umask says.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(contents)?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|e| {
        if e.kind() != io::ErrorKind::AlreadyExists {
            let _ = fs::remove_file(&temporary);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let labels = [("mount", "/a \"b\"\\c\nd".to_owned()), ("image", "x".to_owned())];
        assert_eq!(line("m", &labels, 1.5), "m{mount=\"/a \\\"b\\\"\\\\c\\nd\",image=\"x\"} 1.5\n");
    }

    #[test]
    fn names_follow_the_conventions() {
        for (at, metric) in METRICS.iter().enumerate() {
            let is_counter = matches!(metric.kind, Kind::Counter);
            assert_eq!(metric.name.ends_with("_total"), is_counter, "{}", metric.name);
            assert!(METRICS[..at].iter().all(|other| other.name != metric.name), "{} twice", metric.name);
            assert!(metric.help.ends_with('.') && !metric.help.contains(['\\', '\n']), "{}", metric.name);
        }
    }
}
