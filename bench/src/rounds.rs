//! The run: loads in rounds, in which the systems take turns on one device.

use std::path::Path;
use std::time::Instant;

use crate::loads::{Bench, Load, Sample};
use crate::memory::MemoryLimit;
use crate::report::Report;
use crate::samples::{Samples, Turn};
use crate::system::{Server, System};
use crate::volume::{Device, Mount, Result};

/// The extent of a run, and its files.
pub struct Rounds<'a> {
    pub rounds: usize,
    pub scale: f64,
    /// Only the systems with these names; all if it is empty.
    pub systems: &'a [String],
    pub device: Device,
    /// A folder on the system's own disk.
    pub out: &'a Path,
    /// The xact program.
    pub xact: &'a Path,
    /// Another version of it, for [`System::BEFORE`].
    pub before: Option<&'a Path>,
    pub samples: Samples,
}

impl Rounds<'_> {
    /// Returns the results, and a line for each failure: a load that fails on a system is left out
    /// of the report of that system. `save` is called after each addition to the report, so that an
    /// interrupted run leaves its results.
    pub fn run(
        &mut self,
        loads: &[&Load],
        mut save: impl FnMut(&Report, &[String]) -> Result<()>,
    ) -> Result<(Report, Vec<String>)> {
        let mut report = Report::default();
        let mut failures = Vec::new();
        for round in 0..self.rounds {
            for load in loads {
                let systems = self.systems_of(load);
                report.open(load.name, systems.clone(), self.baselines_of(load));
                for turn in 0..systems.len() {
                    // The first system changes with each round.
                    let system = systems[(turn + round) % systems.len()];
                    let this = Turn { load: load.name.to_owned(), system: system.name.to_owned(), round };
                    let samples = match self.samples.take(&this) {
                        Some(samples) => Ok(samples),
                        None => self.measure_and_save(load, system, this),
                    };
                    match samples {
                        Ok(samples) => samples.into_iter().for_each(|s| report.add(load.name, &system, s)),
                        Err(why) => {
                            eprintln!("  failed: {why}");
                            failures.push(format!("{} on {}: {why}", load.name, system.name));
                        }
                    }
                }
                save(&report, &failures)?;
            }
        }
        Ok((report, failures))
    }

    fn systems_of(&self, load: &Load) -> Vec<System> {
        let chosen = |s: &&System| self.systems.is_empty() || self.systems.iter().any(|n| n == s.name);
        let mut systems: Vec<System> = load.systems.iter().filter(chosen).copied().collect();
        if self.takes_turns_with_before(load) {
            systems.push(System::BEFORE);
        }
        systems
    }

    fn baselines_of(&self, load: &Load) -> Vec<&'static str> {
        let before = self.takes_turns_with_before(load).then_some(System::BEFORE.name);
        before.into_iter().chain(load.baselines.iter().copied()).collect()
    }

    /// A load whose systems are configurations of xact has no system that `before` is a version of.
    fn takes_turns_with_before(&self, load: &Load) -> bool {
        self.before.is_some() && load.systems.contains(&System::XACT)
    }

    /// The xact program that serves a system, or formats and checks its volume.
    fn program(&self, system: System) -> &Path {
        self.before.filter(|_| system == System::BEFORE).unwrap_or(self.xact)
    }

    fn measure_and_save(&mut self, load: &Load, system: System, this: Turn) -> Result<Vec<Sample>> {
        let started = Instant::now();
        eprintln!("round {} of {}: {} on {}", this.round + 1, self.rounds, load.name, system.name);
        let samples = self.measure(load, system)?;
        eprintln!("  {:.0} s", started.elapsed().as_secs_f64());
        self.samples.add(this, &samples)?;
        Ok(samples)
    }

    fn measure(&self, load: &Load, system: System) -> Result<Vec<Sample>> {
        let xact = self.program(system);
        self.device.format(system.format, xact)?;
        let mut mount = Mount::new(&self.device, system, &self.out.join("mnt"), xact)?;
        let mut bench = Bench {
            mount: &mut mount,
            device: &self.device,
            scale: self.scale,
            supplies: self.out,
            samples: Vec::new(),
        };
        let limit = match (system.server, system.memory) {
            (Server::Kernel, Some(bytes)) => Some(MemoryLimit::new(bytes)?),
            _ => None,
        };
        let result = (load.run)(&mut bench);
        let samples = bench.samples;
        drop(limit);
        mount.unmount()?;
        result?;
        self.device.check(system.format, xact).map_err(|e| format!("the volume is damaged: {e}"))?;
        Ok(samples)
    }
}
