//! Systems that are mounted side by side, so that they can take turns within a load.
//!
//! The speed of a virtual disk changes within minutes, by more than the differences of some of
//! these systems. Turns of seconds or less have the same disk.

use super::{Bench, Rated, Sample, counted};
use crate::counts::Counts;
use crate::system::System;
use crate::volume::{Device, Mount, Result};

/// One of the systems that take turns.
pub struct Contender<'a> {
    pub mount: &'a Mount<'a>,
}

impl Contender<'_> {
    pub fn system(&self) -> System {
        self.mount.system()
    }

    /// All requests to its device.
    pub fn counts(&self) -> Result<Counts> {
        self.mount.counts()
    }

    pub fn counts_since(&self, before: Counts) -> Result<Counts> {
        Ok(counted(self.system(), self.counts()? - before))
    }

    /// One turn, and all work that it deferred.
    pub fn turn(&self, n: u64, work: &Turn<'_>, tally: &mut Tally) -> Result<()> {
        let before = self.counts()?;
        let rated = work(self.mount, n)?;
        self.mount.settle()?;
        tally.add(rated, self.counts_since(before)?);
        Ok(())
    }
}

/// The work on one mount in the turn of this number.
pub type Turn<'a> = dyn Fn(&Mount<'_>, u64) -> Result<Rated> + 'a;

impl Bench<'_, '_> {
    /// Mounts `systems`, each from an image of its own of `bytes` bytes, beside the bench's own
    /// mount, which is the first of the contenders that `work` gets. Keeps its samples.
    pub fn beside(
        &mut self,
        systems: &[System],
        bytes: u64,
        work: impl FnOnce(&[Contender<'_>]) -> Result<Vec<Sample>>,
    ) -> Result<()> {
        let xact = self.mount.xact().to_owned();
        let image = |n: usize| self.supplies.join(format!("turns-{n}.bin"));
        let device = |(n, system): (usize, &System)| Device::new(&image(n), bytes, system.source);
        let devices: Vec<Device> = systems.iter().enumerate().map(device).collect::<Result<_>>()?;
        let mut mounts = Vec::new();
        for (n, (device, system)) in devices.iter().zip(systems).enumerate() {
            device.format(system.format, &xact)?;
            mounts.push(Mount::new(device, *system, &self.supplies.join(format!("turns-{n}")), &xact)?);
        }
        let contenders: Vec<_> =
            std::iter::once(&*self.mount).chain(&mounts).map(|mount| Contender { mount }).collect();
        let mut samples = work(&contenders)?;
        self.samples.append(&mut samples);
        for (mount, device) in mounts.into_iter().zip(&devices) {
            let format = mount.system().format;
            mount.unmount()?;
            device.check(format, &xact)?;
        }
        Ok(())
    }
}

/// Runs the turns of each number for all systems: `each` gets the index of the system, and the
/// number.
pub fn take_turns(turns: u64, systems: usize, mut each: impl FnMut(usize, u64) -> Result<()>) -> Result<()> {
    for n in 0..turns {
        // The first one changes with each turn.
        (0..systems).try_for_each(|turn| each((n as usize + turn) % systems, n))?;
    }
    Ok(())
}

/// The results of one system's turns.
#[derive(Clone, Default)]
pub struct Tally(Vec<(Rated, Counts)>);

impl Tally {
    pub fn add(&mut self, rated: Rated, counts: Counts) {
        self.0.push((rated, counts));
    }

    pub fn sample(self, phase: String, unit: &str) -> Sample {
        let (rated, counts): (Vec<Rated>, Vec<Counts>) = self.0.into_iter().unzip();
        let units: f64 = rated.iter().map(|turn| turn.units).sum();
        let rate = units / rated.iter().map(|turn| turn.units / turn.rate).sum::<f64>();
        Sample { phase, rate, unit: unit.to_owned(), units, latency: None, counts: counts.into_iter().sum() }
    }
}

/// Does `work` the given number of times on each of the contenders in turns: a sample for each,
/// named `phase: system`. The deferred work of a turn is made durable before the next one begins,
/// and counted.
pub fn in_turns(
    contenders: &[Contender<'_>],
    turns: u64,
    phase: &str,
    unit: &str,
    work: &Turn<'_>,
) -> Result<Vec<Sample>> {
    let mut tallies = vec![Tally::default(); contenders.len()];
    take_turns(turns, contenders.len(), |which, n| contenders[which].turn(n, work, &mut tallies[which]))?;
    let sample = |(contender, tally): (&Contender<'_>, Tally)| {
        tally.sample(format!("{phase}: {}", contender.system().name), unit)
    };
    Ok(contenders.iter().zip(tallies).map(sample).collect())
}
