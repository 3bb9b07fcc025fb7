//! Durations: a histogram that many threads add to, and its summary.
//!
//! Buckets are 16 to each doubling, from a microsecond to a minute: a percentile read from them is
//! at most 6 % too high. Two snapshots can be subtracted, so that a period of time has percentiles
//! of its own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const PER_DOUBLING: usize = 16;
const DOUBLINGS: usize = 26;
/// Number of buckets.
pub const LATENCY_BUCKETS: usize = PER_DOUBLING * DOUBLINGS;

/// Counts durations.
pub struct Latencies {
    buckets: [AtomicU32; LATENCY_BUCKETS],
    sum_ns: AtomicU64,
    worst_ns: AtomicU64,
}

/// [`Latencies`] at one moment, or the difference of two moments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencySnapshot {
    /// Number of durations in each bucket; the buckets are in the order of their durations.
    pub buckets: [u32; LATENCY_BUCKETS],
    /// Sum of all durations, in nanoseconds.
    pub sum_ns: u64,
    /// The longest duration, in nanoseconds.
    pub worst_ns: u64,
}

/// The summary of a snapshot; all 0 if nothing was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatencySummary {
    /// Number of durations.
    pub count: u64,
    /// Mean of the durations.
    pub mean: Duration,
    /// Half of the durations are at most this long.
    pub median: Duration,
    /// 99 of 100 durations are at most this long.
    pub p99: Duration,
    /// The longest duration.
    pub worst: Duration,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies {
            buckets: std::array::from_fn(|_| AtomicU32::new(0)),
            sum_ns: AtomicU64::new(0),
            worst_ns: AtomicU64::new(0),
        }
    }
}

impl Default for LatencySnapshot {
    fn default() -> LatencySnapshot {
        LatencySnapshot { buckets: [0; LATENCY_BUCKETS], sum_ns: 0, worst_ns: 0 }
    }
}

impl Latencies {
    /// Counts a duration.
    pub fn add(&self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        self.buckets[bucket_of(nanos)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(nanos, Relaxed);
        self.worst_ns.fetch_max(nanos, Relaxed);
    }

    /// The counts of this moment.
    pub fn snapshot(&self) -> LatencySnapshot {
        LatencySnapshot {
            buckets: std::array::from_fn(|i| self.buckets[i].load(Relaxed)),
            sum_ns: self.sum_ns.load(Relaxed),
            worst_ns: self.worst_ns.load(Relaxed),
        }
    }
}

impl LatencySnapshot {
    /// The durations added since `before`. The longest is only known to the precision of the
    /// buckets.
    pub fn since(&self, before: &LatencySnapshot) -> LatencySnapshot {
        let buckets = std::array::from_fn(|i| self.buckets[i].wrapping_sub(before.buckets[i]));
        let last = buckets.iter().rposition(|&count| count > 0);
        let worst_ns = last.map_or(0, |bucket| end_of(bucket).min(self.worst_ns));
        LatencySnapshot { buckets, sum_ns: self.sum_ns.wrapping_sub(before.sum_ns), worst_ns }
    }

    /// The number of durations up to the end of each doubling, rising. Longer ones than the last of
    /// these are in the count only.
    pub fn cumulative(&self) -> Vec<(Duration, u64)> {
        let mut seen = 0;
        let doublings = self.buckets.chunks_exact(PER_DOUBLING).enumerate().take(DOUBLINGS - 1);
        doublings
            .map(|(doubling, buckets)| {
                seen += buckets.iter().map(|&count| u64::from(count)).sum::<u64>();
                (Duration::from_nanos(end_of((doubling + 1) * PER_DOUBLING - 1)), seen)
            })
            .collect()
    }

    /// The count, mean, median, 99th percentile and maximum.
    pub fn summary(&self) -> LatencySummary {
        let count: u64 = self.buckets.iter().map(|&count| u64::from(count)).sum();
        if count == 0 {
            return LatencySummary::default();
        }
        let worst = Duration::from_nanos(self.worst_ns);
        LatencySummary {
            count,
            mean: Duration::from_nanos(self.sum_ns / count),
            median: self.reached(count.div_ceil(2)).min(worst),
            p99: self.reached(count - count / 100).min(worst),
            worst,
        }
    }

    /// The time within which the first `wanted` events ended.
    fn reached(&self, wanted: u64) -> Duration {
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|&count| {
            seen += u64::from(count);
            seen >= wanted
        });
        Duration::from_nanos(end_of(bucket.unwrap_or(LATENCY_BUCKETS - 1)))
    }
}

/// The buckets are by microseconds: 16 of one each, then 16 to a doubling.
fn bucket_of(nanos: u64) -> usize {
    let micros = nanos / 1000;
    if micros < PER_DOUBLING as u64 {
        return micros as usize;
    }
    let doubling = (micros.ilog2() - PER_DOUBLING.ilog2()) as usize;
    let within = (micros >> doubling) as usize - PER_DOUBLING;
    ((doubling + 1) * PER_DOUBLING + within).min(LATENCY_BUCKETS - 1)
}

/// The upper end of a bucket, in nanoseconds.
fn end_of(bucket: usize) -> u64 {
    let next = bucket + 1;
    let doubling = (next / PER_DOUBLING).saturating_sub(1);
    let within = (next - doubling * PER_DOUBLING) as u64;
    (within << doubling) * 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_times_in_order() {
        assert_eq!((bucket_of(0), bucket_of(999), bucket_of(1000)), (0, 0, 1));
        for bucket in 0..LATENCY_BUCKETS - 1 {
            assert_eq!(bucket_of(end_of(bucket)), bucket + 1, "bucket {bucket}");
            assert_eq!(bucket_of(end_of(bucket) - 1), bucket);
        }
        assert_eq!(bucket_of(u64::MAX), LATENCY_BUCKETS - 1);
        assert!(end_of(LATENCY_BUCKETS - 1) > 60_000_000_000);
    }

    #[test]
    fn summaries() {
        let latencies = Latencies::default();
        assert_eq!(latencies.snapshot().summary(), LatencySummary::default());
        for micros in 1..=1000 {
            latencies.add(Duration::from_micros(micros));
        }
        let first = latencies.snapshot();
        let summary = first.summary();
        assert_eq!((summary.count, summary.worst), (1000, Duration::from_micros(1000)));
        assert_eq!(summary.mean, Duration::from_nanos(500_500));
        for (found, micros) in [(summary.median, 500), (summary.p99, 990)] {
            let exact = Duration::from_micros(micros);
            assert!(found >= exact && found <= exact * 107 / 100, "{found:?} for {exact:?}");
        }
        latencies.add(Duration::from_millis(50));
        let last = latencies.snapshot().since(&first).summary();
        assert_eq!(last.count, 1);
        assert_eq!(last.worst, Duration::from_millis(50));
    }

    #[test]
    fn cumulative_counts_rise() {
        let latencies = Latencies::default();
        for micros in [3, 15, 16, 40, 1_000_000_000] {
            latencies.add(Duration::from_micros(micros));
        }
        let counts = latencies.snapshot().cumulative();
        let micros = |micros| Duration::from_micros(micros);
        assert_eq!(counts[..3], [(micros(16), 2), (micros(32), 3), (micros(64), 4)]);
        // The longest is beyond the last end.
        assert_eq!(counts.last().unwrap().1, 4);
        assert!(counts.is_sorted());
    }
}
