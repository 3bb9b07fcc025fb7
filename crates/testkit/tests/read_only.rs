//! Crashed volumes that are opened read-only, under the explorer: the replay writes what it always
//! writes, a crash in it leaves a volume that can be replayed again, and nothing else is written.

use xact::{PathExt, Volume, VolumeOptions};
use xact_testkit::device::SimDevice;
use xact_testkit::explorer::{Plan, Recovered, Subject, Summary, report};
use xact_testkit::files::{FileWorkload, quiet_options, recover};
use xact_testkit::image::Image;
use xact_testkit::model::History;
use xact_testkit::recording::{Recording, Time};
use xact_testkit::tree::Tree;
use xact_testkit::workloads;

/// A workload whose crashed volumes are opened read-only.
struct ReadOnly(FileWorkload);

fn text(e: xact::Error) -> String {
    e.to_string()
}

/// Opens the volume read-only and reads all of it. Returns its tree and the writes.
fn look(image: &Image, options: &VolumeOptions) -> Result<(Tree, Recording, Image), String> {
    let device = SimDevice::new(image.clone());
    let volume = Volume::open(device.clone(), options).map_err(text)?;
    let tree = Tree::of_view(&*volume.base())?;
    volume.close().map_err(text)?;
    Ok((tree, device.recording(), device.image()))
}

impl ReadOnly {
    fn has_generations(&self) -> bool {
        self.0.format.pool_bytes.is_some()
    }

    /// Without the log nothing is written, and a generation is whole.
    fn look_without_the_log(&self, image: &Image) -> Result<(), String> {
        let options = VolumeOptions { read_only: true, no_recovery: true, ..quiet_options() };
        let device = SimDevice::new(image.clone());
        let seen = Volume::open(device.clone(), &options).map_err(text).and_then(|volume| {
            let tree = Tree::of_view(&*volume.base());
            volume.close().map_err(text)?;
            tree
        });
        if !device.recording().events.is_empty() {
            return Err("an opening without the log writes".into());
        }
        if self.has_generations() { seen.map(drop) } else { Ok(()) }
    }
}

impl Subject for ReadOnly {
    type Run = History;
    type Tree = Tree;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn record(&self, seed: u64) -> Result<(Recording, History), String> {
        self.0.record(seed)
    }

    fn moment(&self, run: &History, time: Time) -> u64 {
        self.0.moment(run, time)
    }

    fn recover(&self, image: &Image) -> Result<Recovered<Tree>, String> {
        self.look_without_the_log(image)?;
        let options = VolumeOptions { read_only: true, ..quiet_options() };
        let (tree, recording, replayed) = look(image, &options)?;
        if self.has_generations() && !recording.events.is_empty() {
            return Err("a read-only opening of a volume with generations writes".into());
        }
        let (again, writes, _) = look(&replayed, &options)?;
        if !writes.events.is_empty() {
            return Err("a second read-only opening writes".into());
        }
        let writable = recover(&replayed, &quiet_options())?;
        for (other, what) in [(&again, "a second read-only opening"), (&writable.tree, "writing")] {
            if *other != tree {
                return Err(format!("{what} changes the tree: {}", tree.difference(other)));
            }
        }
        Ok(Recovered { tree, recording, closed: writable.closed })
    }

    fn judge(&self, run: &History, time: Time, tree: &Tree) -> Result<(), String> {
        self.0.judge(run, time, tree)
    }

    fn inspect(&self, image: &Image) -> Result<(), String> {
        self.0.inspect(image)
    }

    fn second_opinion(&self, _: &Image, _: &Tree) -> Option<Result<Tree, String>> {
        None
    }

    fn difference(&self, ours: &Tree, theirs: &Tree) -> String {
        self.0.difference(ours, theirs)
    }
}

#[test]
fn read_only_openings_replay_and_write_nothing_else() {
    println!("{}", Summary::HEADER);
    for name in ["mix", "wrap", "orphans", "gen-log-mix"] {
        let workload = workloads::find(name).expect("a workload of this name");
        let plan = Plan { states: 300, ..Plan::quick() };
        let summary = report(&ReadOnly(workload), &plan).unwrap();
        assert!(summary.findings.is_empty(), "{name}: {:?}", summary.findings);
        assert!(summary.states > 100, "{summary:?}");
    }
}

/// The same through the path of an image: it is written for the replay alone.
#[test]
fn images_are_written_for_the_replay_alone() {
    for kind in ["mix", "gen-log-mix"] {
        let workload = workloads::find(kind).expect("a workload of this name");
        let image = tempfile::NamedTempFile::new().unwrap();
        workload.format.make().write_to(image.as_file()).unwrap();
        let open = |options: &VolumeOptions| Volume::open_path(image.path(), options);
        let bytes = || std::fs::read(image.path()).unwrap();
        let volume = open(&quiet_options()).unwrap();
        // A generation begins the log that the next fsync goes to.
        volume.sync().unwrap();
        volume.write("/file", "x").unwrap();
        volume.open("/file").unwrap().sync_all().unwrap();
        // The state of a crash, whatever the volume does when it is dropped.
        let crashed = bytes();
        volume.close().unwrap();
        std::fs::write(image.path(), &crashed).unwrap();

        let without = VolumeOptions { read_only: true, no_recovery: true, ..quiet_options() };
        let volume = open(&without).unwrap();
        assert!(volume.is_read_only() && !volume.exists("/file").unwrap());
        // Another reader would have to write first.
        let read_only = VolumeOptions { read_only: true, ..quiet_options() };
        assert_eq!(open(&read_only).is_err(), kind == "mix");
        volume.close().unwrap();
        assert!(bytes() == crashed);
        let error = open(&VolumeOptions { no_recovery: true, ..quiet_options() }).err().unwrap();
        assert!(error.to_string().contains("noload needs ro"), "{error}");

        let volume = open(&read_only).unwrap();
        let other = open(&read_only).unwrap();
        for volume in [volume, other] {
            assert_eq!(volume.read_to_string("/file").unwrap(), "x");
            volume.close().unwrap();
        }
        assert_eq!(bytes() != crashed, kind == "mix");
    }
}
