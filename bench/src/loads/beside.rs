//! Systems that are mounted side by side, so that they can take turns within a load.
//!
//! How fast a virtual disk is changes within minutes, by more than some of these systems differ. Turns of seconds or
//! less have the same disk.

use super::{Bench, Rated, Sample, counted};
use crate::counts::Counts;
use crate::system::System;
use crate::volume::{LoopDevice, Mount, Result};

/// One of the systems that take turns.
pub struct Place<'a> {
    pub mount: &'a Mount<'a>,
    device: &'a LoopDevice,
}

impl Place<'_> {
    pub fn system(&self) -> System {
        self.mount.system()
    }

    /// All that its device has been asked to do.
    pub fn counts(&self) -> Result<Counts> {
        self.device.counts()
    }

    pub fn counts_since(&self, before: Counts) -> Result<Counts> {
        Ok(counted(self.system(), self.device.counts()? - before))
    }
}

/// What is done on one mount in the turn of this number.
pub type Turn<'a> = dyn Fn(&Mount<'_>, u64) -> Result<Rated> + 'a;

impl Bench<'_, '_> {
    /// Mounts `systems`, each on a loop device of its own of so many bytes, beside the bench's own mount, which is the
    /// first of the places that `work` is given. Keeps its samples.
    pub fn beside(
        &mut self,
        systems: &[System],
        bytes: u64,
        work: impl FnOnce(&[Place<'_>]) -> Result<Vec<Sample>>,
    ) -> Result<()> {
        let xact = self.mount.xact().to_owned();
        let image = |n: usize| self.supplies.join(format!("turns-{n}.bin"));
        let devices: Vec<LoopDevice> =
            (0..systems.len()).map(|n| LoopDevice::new(&image(n), bytes)).collect::<Result<_>>()?;
        let mut mounts = Vec::new();
        for (n, (device, system)) in devices.iter().zip(systems).enumerate() {
            device.format(system.format, &xact)?;
            mounts.push(Mount::new(device, *system, &self.supplies.join(format!("turns-{n}")), &xact)?);
        }
        let others = mounts.iter().zip(&devices).map(|(mount, device)| Place { mount, device });
        let places: Vec<_> =
            std::iter::once(Place { mount: &*self.mount, device: self.device }).chain(others).collect();
        let mut samples = work(&places)?;
        self.samples.append(&mut samples);
        for (mount, device) in mounts.into_iter().zip(&devices) {
            let format = mount.system().format;
            mount.unmount()?;
            device.check(format, &xact)?;
        }
        Ok(())
    }
}

/// Does `work` so many times on each of the places in turns: a sample for each, named `phase: system`. What a turn put
/// off is made durable before the next one begins, and counted.
pub fn in_turns(
    places: &[Place<'_>],
    turns: u64,
    phase: &str,
    unit: &str,
    work: &Turn<'_>,
) -> Result<Vec<Sample>> {
    let mut done: Vec<Vec<(Rated, Counts)>> = vec![Vec::new(); places.len()];
    for n in 0..turns {
        for turn in 0..places.len() {
            // Nobody is always first.
            let which = (n as usize + turn) % places.len();
            let place = &places[which];
            let before = place.counts()?;
            let rated = work(place.mount, n)?;
            place.mount.settle()?;
            done[which].push((rated, place.counts_since(before)?));
        }
    }
    let sample = |(place, turns): (&Place<'_>, Vec<(Rated, Counts)>)| {
        let (rated, counts): (Vec<Rated>, Vec<Counts>) = turns.into_iter().unzip();
        let units: f64 = rated.iter().map(|turn| turn.units).sum();
        let rate = units / rated.iter().map(|turn| turn.units / turn.rate).sum::<f64>();
        let (phase, unit) = (format!("{phase}: {}", place.system().name), unit.to_owned());
        Sample { phase, rate, unit, units, latency: None, counts: counts.into_iter().sum() }
    };
    Ok(places.iter().zip(done).map(sample).collect())
}
