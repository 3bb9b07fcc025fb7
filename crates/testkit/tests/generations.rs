//! Volumes with generations under the explorer.

use std::sync::Arc;

use xact::{PathExt, Volume};
use xact_consistency::{EngineOptions, open_generations, volume_on};
use xact_testkit::device::SimDevice;
use xact_testkit::explorer::{Plan, Recovered, Subject, Summary, report};
use xact_testkit::files::{Format, quiet_options, recover};
use xact_testkit::image::Image;
use xact_testkit::recording::{Recording, Time};
use xact_testkit::tree::Tree;
use xact_testkit::{generations, workloads};

#[test]
fn the_generations_engine_keeps_its_promises() {
    println!("{}", Summary::HEADER);
    for workload in workloads::on_generations() {
        let summary = report(&workload, &Plan::quick()).unwrap();
        assert!(summary.findings.is_empty(), "{}: {:?}", workload.name, summary.findings);
        assert!(summary.states > 20, "{summary:?}");
    }
}

/// Snapshots are restored one after the other, and one of them is deleted at the end. The tree is
/// always that of the last acknowledged restore, or of the running one, and the volume's label does
/// not change.
struct Restores;

/// The label of the volume, which is not part of a snapshot.
const LABEL: &[u8] = b"of now";

/// The begin and end of a restore, and its tree.
type Restored = (Time, Time, Tree);

impl Restores {
    /// A volume with three snapshots of one file's contents each, and their names and trees.
    fn prepare(device: &Arc<SimDevice>, seed: u64) -> xact::Result<Vec<(String, Tree)>> {
        let volume = Volume::open(device.clone(), &quiet_options())?;
        let mut made = Vec::new();
        for n in 0..3u8 {
            let contents = vec![n + seed as u8; 3000 + 1000 * usize::from(n)];
            volume.write("/file", &contents)?;
            volume.write(format!("/only{n}"), &contents)?;
            if n > 0 {
                volume.remove_file(format!("/only{}", n - 1))?;
            }
            volume.sync()?;
            let tree = Tree::of_view(&*volume.base()).map_err(xact::Error::Usage)?;
            let name = format!("{n}-{:016x}", tree.digest());
            volume.create_snapshot(&name)?;
            made.push((name, tree));
        }
        // Set after all of them: a restore keeps it.
        volume.set_label(LABEL)?;
        volume.close()?;
        Ok(made)
    }
}

impl Subject for Restores {
    type Run = Vec<Restored>;
    type Tree = Tree;

    fn name(&self) -> &str {
        "restores"
    }

    fn record(&self, seed: u64) -> Result<(Recording, Vec<Restored>), String> {
        let device = SimDevice::new(workloads::generations_volume());
        let made = Restores::prepare(&device, seed).map_err(|e| e.to_string())?;
        device.restart_recording();
        let mut run = vec![(0, 0, made[2].1.clone())];
        let engine = open_generations(device.clone(), EngineOptions::default()).map_err(|e| e.to_string())?;
        for n in [0, 2, 1, 0, 1] {
            let (name, tree) = &made[n];
            let began = device.tick();
            engine.snapshots().unwrap().restore(name).map_err(|e| e.to_string())?;
            run.push((began, device.tick(), tree.clone()));
        }
        engine.snapshots().unwrap().delete(&made[0].0).map_err(|e| e.to_string())?;
        engine.close().map_err(|e| e.to_string())?;
        Ok((device.recording(), run))
    }

    fn moment(&self, run: &Vec<Restored>, time: Time) -> u64 {
        run.iter().map(|(began, ended, _)| u64::from(*began < time) + u64::from(*ended < time)).sum()
    }

    fn recover(&self, image: &Image) -> Result<Recovered<Tree>, String> {
        recover(image, &quiet_options())
    }

    fn judge(&self, run: &Vec<Restored>, time: Time, tree: &Tree) -> Result<(), String> {
        let done = run.iter().rposition(|(_, ended, _)| *ended < time).unwrap_or(0);
        let legal = run[done..].iter().take_while(|(began, _, _)| *began < time);
        match legal.into_iter().any(|(_, _, legal)| legal == tree) || run[done].2 == *tree {
            true => Ok(()),
            false => Err(format!("after {done} restores the tree is none of those it may be")),
        }
    }

    fn inspect(&self, image: &Image) -> Result<(), String> {
        let volume =
            Volume::open(SimDevice::new(image.clone()), &quiet_options()).map_err(|e| e.to_string())?;
        match volume.label().map_err(|e| e.to_string())? {
            label if label == LABEL => generations::inspect(image),
            label => Err(format!("the label is {:?}", String::from_utf8_lossy(&label))),
        }
    }

    fn second_opinion(&self, _: &Image, _: &Tree) -> Option<Result<Tree, String>> {
        None
    }

    fn story(&self, run: &Vec<Restored>, time: Time) -> String {
        format!(
            "{} of {} restores begun",
            run.iter().filter(|(began, _, _)| *began < time).count(),
            run.len()
        )
    }

    fn difference(&self, ours: &Tree, theirs: &Tree) -> String {
        ours.difference(theirs)
    }
}

/// A volume that is converted to generations or back: at each moment it is one or the other, with
/// its tree.
struct Conversion {
    to: Target,
}

/// The direction of a conversion.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Generations,
    Plain,
    /// A plain volume, by `--best-effort`, from one with an intent log.
    PlainPastDamage,
}

const POOL_BYTES: u64 = 4 << 20;

impl Conversion {
    /// A volume with a journal and a tree, with space after it.
    fn prepare(seed: u64) -> Result<(Arc<SimDevice>, Tree), String> {
        let plain = Format { options: &["-b", "1024"], size: "24M", pool_bytes: None }.make();
        let device = SimDevice::new(generations::resized(&plain, plain.size_bytes() + POOL_BYTES));
        let volume = Volume::open(device.clone(), &quiet_options()).map_err(|e| e.to_string())?;
        let fill = || -> xact::Result<()> {
            for n in 0..40u8 {
                volume.create_dir_all(format!("/{}", n % 5))?;
                let contents = vec![n + seed as u8; 700 * usize::from(n)];
                volume.write(format!("/{}/{n}", n % 5), &contents)?;
            }
            volume.sync()
        };
        fill().map_err(|e| e.to_string())?;
        let tree = Tree::of_view(&*volume.base())?;
        volume.close().map_err(|e| e.to_string())?;
        Ok((device, tree))
    }

    /// The volume with generations, and with data in the pool that must go home too.
    fn give_generations(device: &Arc<dyn xact::BlockDevice>) -> Result<Tree, String> {
        xact::convert::to_generations(device).map_err(|e| e.to_string())?;
        let volume = Volume::open(device.clone(), &quiet_options()).map_err(|e| e.to_string())?;
        let overwrite = || -> xact::Result<()> {
            volume.create_snapshot("passing")?;
            let ino = volume.base().lookup(volume.base().lookup(xact::Ino::ROOT, b"3")?.ino, b"38")?.ino;
            volume.base().write(ino, 0, &[0xEE; 700 * 38], xact_fs::WriteHow::default())?;
            volume.sync()?;
            volume.delete_snapshot("passing")
        };
        overwrite().map_err(|e| e.to_string())?;
        let tree = Tree::of_view(&*volume.base())?;
        volume.close().map_err(|e| e.to_string())?;
        Ok(tree)
    }

    /// The volume as a crash leaves it, with changes in its intent log: of a block at home, and of
    /// a new file.
    fn with_log(device: &Arc<SimDevice>) -> Result<(Arc<SimDevice>, Tree), String> {
        let volume = Volume::open(device.clone(), &quiet_options()).map_err(|e| e.to_string())?;
        let change = || -> xact::Result<()> {
            for n in 0..4u8 {
                let file = volume.create(format!("/1/logged-{n}"))?;
                file.write_all_at(&[n; 3000], 0)?;
                // The first commit after opening is a generation, the others go to the log.
                file.sync_all()?;
            }
            Ok(())
        };
        change().map_err(|e| e.to_string())?;
        let tree = Tree::of_view(&*volume.base())?;
        Ok((SimDevice::new(device.image()), tree))
    }

    fn convert(&self, device: &Arc<dyn xact::BlockDevice>) -> Result<(), String> {
        let done = match self.to {
            Target::Generations => xact::convert::to_generations(device),
            Target::Plain => xact::convert::to_plain(device),
            Target::PlainPastDamage => {
                let source = xact::salvage::Salvage::open(device.clone(), None);
                source.and_then(|source| source.convert(&mut |_, _| ())).map(|salvaged| {
                    assert!(!salvaged.needs_repair, "nothing was damaged: {salvaged:?}");
                })
            }
        };
        done.map_err(|e| e.to_string())
    }
}

impl Subject for Conversion {
    type Run = Tree;
    type Tree = Tree;

    fn name(&self) -> &str {
        match self.to {
            Target::Generations => "convert",
            Target::Plain => "convert-back",
            Target::PlainPastDamage => "convert-past-damage",
        }
    }

    fn record(&self, seed: u64) -> Result<(Recording, Tree), String> {
        let (mut device, mut tree) = Conversion::prepare(seed)?;
        if self.to != Target::Generations {
            let shared: Arc<dyn xact::BlockDevice> = device.clone();
            tree = Conversion::give_generations(&shared)?;
        }
        if self.to == Target::PlainPastDamage {
            (device, tree) = Conversion::with_log(&device)?;
        }
        device.restart_recording();
        let shared: Arc<dyn xact::BlockDevice> = device.clone();
        self.convert(&shared)?;
        Ok((device.recording(), tree))
    }

    fn moment(&self, _: &Tree, _: Time) -> u64 {
        0
    }

    fn recover(&self, image: &Image) -> Result<Recovered<Tree>, String> {
        let device = SimDevice::new(image.clone());
        let volume = Volume::open(device.clone(), &quiet_options()).map_err(|e| e.to_string())?;
        let recording = device.recording();
        let tree = Tree::of_view(&*volume.base())?;
        volume.close().map_err(|e| e.to_string())?;
        Ok(Recovered { tree, recording, closed: device.image() })
    }

    fn judge(&self, run: &Tree, _: Time, tree: &Tree) -> Result<(), String> {
        if tree == run { Ok(()) } else { Err(run.difference(tree)) }
    }

    /// Sound in its present form, and the same command completes the conversion.
    fn inspect(&self, image: &Image) -> Result<(), String> {
        let text = |e: xact::Error| e.to_string();
        let device = SimDevice::new(image.clone());
        let shared: Arc<dyn xact::BlockDevice> = device.clone();
        let found = volume_on(&*shared).map_err(text)?;
        let (bytes, has) = (found.size_bytes, found.has_generations);
        if has {
            generations::inspect(image)?;
        } else {
            generations::inspect_plain(image, bytes)?;
        }
        match (self.to, has) {
            (Target::Generations, true) => Ok(()),
            (Target::Generations, false) => {
                self.convert(&shared)?;
                generations::inspect(&device.image())
            }
            (Target::Plain, _) | (Target::PlainPastDamage, true) => {
                self.convert(&shared)?;
                generations::inspect_plain(&device.image(), bytes)
            }
            (Target::PlainPastDamage, false) => {
                xact::convert::to_plain(&shared).map_err(text)?;
                generations::inspect_plain(&device.image(), bytes)
            }
        }
    }

    fn second_opinion(&self, _: &Image, _: &Tree) -> Option<Result<Tree, String>> {
        None
    }

    fn story(&self, _: &Tree, _: Time) -> String {
        "in a conversion".into()
    }

    fn difference(&self, ours: &Tree, theirs: &Tree) -> String {
        ours.difference(theirs)
    }
}

#[test]
fn conversions_lose_nothing() {
    println!("{}", Summary::HEADER);
    for to in [Target::Generations, Target::Plain, Target::PlainPastDamage] {
        let summary = report(&Conversion { to }, &Plan::quick()).unwrap();
        assert!(summary.findings.is_empty(), "{:?}", summary.findings);
        assert!(summary.states > 10 && summary.inspected > 0, "{summary:?}");
    }
}

#[test]
fn restores_are_whole_or_absent() {
    println!("{}", Summary::HEADER);
    let plan = Plan { inspect_one_in: 1, ..Plan::quick() };
    let summary = report(&Restores, &plan).unwrap();
    assert!(summary.findings.is_empty(), "{:?}", summary.findings);
    // Each of the volumes that the six commits lead to.
    assert!(summary.states > 20 && summary.inspected >= 6, "{summary:?}");
}
