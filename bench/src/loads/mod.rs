//! The loads. Each is a list of phases. A phase is timed, and its device I/O is counted until all
//! its deferred work is written too.

mod files;
pub mod programs;
mod side_by_side;
pub mod sqlite;
mod synced;

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::counts::Counts;
use crate::system::{Server, Source, System};
use crate::volume::{Device, Mount, Result};

pub use side_by_side::{Contender, in_turns, take_turns};

/// The durations of single operations, in microseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Latency {
    pub median: f64,
    pub mean: f64,
    pub p99: f64,
    pub p9999: f64,
    pub worst: f64,
}

impl Latency {
    /// # Panics
    /// If there are none.
    pub fn of(mut times: Vec<Duration>) -> Latency {
        times.sort_unstable();
        let us = |d: Duration| d.as_secs_f64() * 1e6;
        let at = |share: f64| us(times[((times.len() - 1) as f64 * share).round() as usize]);
        let mean = us(times.iter().sum()) / times.len() as f64;
        Latency { median: at(0.5), mean, p99: at(0.99), p9999: at(0.9999), worst: at(1.0) }
    }
}

/// A program's own figures of its speed.
#[derive(Debug, Clone, Copy)]
pub struct Rated {
    /// Units a second.
    pub rate: f64,
    pub units: f64,
}

/// The result of a phase.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sample {
    pub phase: String,
    /// Work done per second.
    pub rate: f64,
    /// The unit of the work ("op", "MiB").
    pub unit: String,
    pub units: f64,
    pub latency: Option<Latency>,
    pub counts: Counts,
}

/// A phase, and a turn of it.
pub type WorkInTurns<'a> = (String, Box<dyn FnMut(u64) -> Result<()> + 'a>);

/// One load on one mounted volume.
pub struct Bench<'a, 'm> {
    pub mount: &'a mut Mount<'m>,
    pub device: &'a Device,
    /// Loads are this much of their full size.
    pub scale: f64,
    /// A folder on the system's own disk with files that loads need.
    pub supplies: &'a Path,
    pub samples: Vec<Sample>,
}

impl Bench<'_, '_> {
    /// `full` items at full size.
    pub fn count(&self, full: u64) -> u64 {
        ((full as f64 * self.scale) as u64).max(1)
    }

    /// Times `work`, which does `units` of something.
    pub fn phase(
        &mut self,
        phase: impl Into<String>,
        unit: &'static str,
        units: f64,
        work: impl FnOnce(&mut Mount<'_>) -> Result<()>,
    ) -> Result<()> {
        let (before, rate) = self.timed(units, work)?;
        self.note(phase.into(), unit, units, rate, None, before)
    }

    /// As [`Bench::phase`], without the deferred work: for the part that callers wait for.
    pub fn phase_waited_for(
        &mut self,
        phase: impl Into<String>,
        unit: &'static str,
        units: f64,
        work: impl FnOnce(&mut Mount<'_>) -> Result<()>,
    ) -> Result<()> {
        let (before, rate) = self.timed(units, work)?;
        let counts = self.counts_since(before)?;
        self.samples.push(Sample {
            phase: phase.into(),
            rate,
            unit: unit.to_owned(),
            units,
            latency: None,
            counts,
        });
        self.mount.settle()
    }

    /// Does `work`. Returns the device's counts before it, and its `units` per second.
    fn timed(
        &mut self,
        units: f64,
        work: impl FnOnce(&mut Mount<'_>) -> Result<()>,
    ) -> Result<(Counts, f64)> {
        let before = self.device.counts()?;
        let started = Instant::now();
        work(self.mount)?;
        Ok((before, units / started.elapsed().as_secs_f64()))
    }

    /// As [`Bench::phase`], for work that measures its own speed.
    pub fn phase_with_rate(
        &mut self,
        phase: impl Into<String>,
        unit: &'static str,
        work: impl FnOnce(&mut Mount<'_>) -> Result<Rated>,
    ) -> Result<()> {
        let before = self.device.counts()?;
        let Rated { rate, units } = work(self.mount)?;
        self.note(phase.into(), unit, units, rate, None, before)
    }

    /// As [`Bench::phase`], for work that times each of its units.
    pub fn phase_with_latency(
        &mut self,
        phase: impl Into<String>,
        unit: &'static str,
        work: impl FnOnce(&mut Mount<'_>) -> Result<Vec<Duration>>,
    ) -> Result<()> {
        let before = self.device.counts()?;
        let started = Instant::now();
        let times = work(self.mount)?;
        let units = times.len() as f64;
        let rate = units / started.elapsed().as_secs_f64();
        self.note(phase.into(), unit, units, rate, Some(Latency::of(times)), before)
    }

    /// Does several kinds of work on one mount in turns, so that the state of the disk is the same
    /// for all of them. Times each turn, and counts its requests to the device until it returned.
    pub fn phases_in_turns(&mut self, unit: &str, turns: u64, works: &mut [WorkInTurns<'_>]) -> Result<()> {
        let mut done: Vec<Vec<(Duration, Counts)>> = vec![Vec::new(); works.len()];
        take_turns(turns, works.len(), |which, n| {
            let before = self.device.counts()?;
            let started = Instant::now();
            (works[which].1)(n)?;
            let took = started.elapsed();
            done[which].push((took, self.counts_since(before)?));
            Ok(())
        })?;
        for ((phase, _), turns) in works.iter().zip(done) {
            let units = turns.len() as f64;
            let (times, counts): (Vec<Duration>, Vec<Counts>) = turns.into_iter().unzip();
            let rate = units / times.iter().sum::<Duration>().as_secs_f64();
            let (phase, unit, counts) = (phase.clone(), unit.to_owned(), counts.into_iter().sum());
            let latency = Some(Latency::of(times));
            self.samples.push(Sample { phase, rate, unit, units, latency, counts });
        }
        self.mount.settle()
    }

    /// Runs `prepare` and `work` for each of `turns`. Keeps the time and the device's counts, until
    /// it returned, of the median `work` by bytes written.
    pub fn phase_counted(
        &mut self,
        phase: impl Into<String>,
        unit: &'static str,
        turns: Range<u64>,
        prepare: impl Fn(u64) -> Result<()>,
        work: impl Fn(u64) -> Result<()>,
    ) -> Result<()> {
        let mut each = Vec::new();
        for turn in turns {
            prepare(turn)?;
            let before = self.device.counts()?;
            let started = Instant::now();
            work(turn)?;
            let rate = 1.0 / started.elapsed().as_secs_f64();
            each.push((self.counts_since(before)?, rate));
        }
        each.sort_by_key(|(counts, _)| counts.written_bytes);
        let (counts, rate) = each[each.len() / 2];
        let (phase, unit) = (phase.into(), unit.to_owned());
        self.samples.push(Sample { phase, rate, unit, units: 1.0, latency: None, counts });
        self.mount.settle()
    }

    /// Counts the phase's requests to the device until all its deferred work is written.
    fn note(
        &mut self,
        phase: String,
        unit: &'static str,
        units: f64,
        rate: f64,
        latency: Option<Latency>,
        before: Counts,
    ) -> Result<()> {
        self.mount.settle()?;
        let counts = self.counts_since(before)?;
        self.samples.push(Sample { phase, rate, unit: unit.to_owned(), units, latency, counts });
        Ok(())
    }

    fn counts_since(&self, before: Counts) -> Result<Counts> {
        Ok(counted(self.mount.system(), self.device.counts()? - before))
    }
}

/// A device's counts in a form that is comparable with others: the kernel counts an explicit flush
/// as a write too.
pub fn counted(system: System, counts: Counts) -> Counts {
    // xact's own counts, which are used for an image, count calls.
    let as_they_are = system.server == Server::Kernel || system.source == Source::Image;
    if as_they_are { counts } else { counts.without_lone_flushes() }
}

/// A load: its name for the command line, its systems, and its work.
pub struct Load {
    pub name: &'static str,
    pub systems: &'static [System],
    /// Names of systems that the others are compared with.
    pub baselines: &'static [&'static str],
    pub run: fn(&mut Bench<'_, '_>) -> Result<()>,
}

/// A load of `make bench`.
const fn load(name: &'static str, run: fn(&mut Bench<'_, '_>) -> Result<()>) -> Load {
    const PEERS: &[System] = &[System::XACT, System::KERNEL, System::FUSE2FS];
    Load { name, systems: PEERS, baselines: &["kernel", "fuse2fs"], run }
}

pub const ALL: &[Load] = &[
    load("append", synced::append),
    Load { systems: &[System::XACT], baselines: &[], ..load("append-turns", synced::append_in_turns) },
    load("overwrite", synced::overwrite),
    load("files", files::create_stat_unlink),
    load("small-writes", files::small_writes),
    load("sequential", files::sequential),
    load("untar", programs::untar),
    load("postmark", programs::postmark),
    load("dbench", programs::dbench),
    load("sqlite", sqlite::transactions),
    Load { systems: &[System::XACT], baselines: &[], ..load("sqlite-extension", sqlite::extension_in_turns) },
    load("run", programs::commit),
];

/// A `map_err` function that names the failed action.
pub(crate) fn because<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> String {
    move |e| format!("{what}: {e}")
}
