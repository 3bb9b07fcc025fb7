//! The requests to a loop device, as the kernel counts them below all file systems.

use std::fs;
use std::io;
use std::iter::Sum;
use std::ops::Sub;

use serde::{Deserialize, Serialize};

/// Totals from `/sys/block/loopN/stat`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Counts {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
}

pub const STAT_SECTOR_BYTES: u64 = 512;

/// The file with the kernel's counts of a device named like `loop3`.
pub fn statistics(device: &str) -> String {
    format!("/sys/block/{device}/stat")
}

impl Counts {
    /// The counts of a device named like `loop3`.
    pub fn of(device: &str) -> io::Result<Counts> {
        let path = statistics(device);
        let text = fs::read_to_string(&path)?;
        let fields: Vec<u64> = text.split_whitespace().filter_map(|f| f.parse().ok()).collect();
        // Documentation/block/stat.rst: reads, merges, sectors, ticks; the same of writes; in
        // flight, two times; the four of discards; flushes and their time.
        let [reads, _, read_sectors, _, writes, _, written_sectors, ..] = fields[..] else {
            return Err(io::Error::other(format!("{path} is not as expected")));
        };
        let flushes = *fields.get(15).ok_or_else(|| io::Error::other("this kernel counts no flushes"))?;
        Ok(Counts {
            reads,
            read_bytes: read_sectors * STAT_SECTOR_BYTES,
            writes,
            written_bytes: written_sectors * STAT_SECTOR_BYTES,
            flushes,
        })
    }
}

impl Counts {
    /// The counts in the output of `xact stat --json`.
    pub fn of_xact(text: &str) -> serde_json::Result<Counts> {
        #[derive(Deserialize)]
        struct Stat {
            counters: Counters,
        }
        #[derive(Deserialize)]
        struct Counters {
            device_reads: u64,
            device_read_bytes: u64,
            device_writes: u64,
            device_written_bytes: u64,
            device_flushes: u64,
        }
        let Stat { counters } = serde_json::from_str(text)?;
        Ok(Counts {
            reads: counters.device_reads,
            read_bytes: counters.device_read_bytes,
            writes: counters.device_writes,
            written_bytes: counters.device_written_bytes,
            flushes: counters.device_flushes,
        })
    }

    /// Counts only writes that carry data. The kernel counts an explicit flush, as each of a
    /// program's is, as a write too; the flushes of its own file systems precede writes.
    pub fn without_lone_flushes(self) -> Counts {
        Counts { writes: self.writes.saturating_sub(self.flushes), ..self }
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(all: I) -> Counts {
        all.fold(Counts::default(), |a, b| Counts {
            reads: a.reads + b.reads,
            read_bytes: a.read_bytes + b.read_bytes,
            writes: a.writes + b.writes,
            written_bytes: a.written_bytes + b.written_bytes,
            flushes: a.flushes + b.flushes,
        })
    }
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, before: Counts) -> Counts {
        Counts {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            writes: self.writes - before.writes,
            written_bytes: self.written_bytes - before.written_bytes,
            flushes: self.flushes - before.flushes,
        }
    }
}
