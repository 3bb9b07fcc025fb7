//! Crashes of the journal engine and of its recovery, by the explorer of the testkit.

mod common;
#[path = "common/ledger.rs"]
mod ledger;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use common::{Image as ImageFile, quiet, try_run};
use ledger::{Found, History, Place, Workload};
use xact_consistency::{CommitWrites, EngineOptions, open_journal, recover};
use xact_device::{BlockDevice, MemoryDevice};
use xact_layout::jbd2::{JOURNAL_SUPERBLOCK_BYTES, JournalSuperblock};
use xact_testkit::device::SimDevice;
use xact_testkit::explorer::{Plan, Recovered, Subject, explore};
use xact_testkit::image::Image;
use xact_testkit::recording::{Recording, Time};
use xact_testkit::rng::Rng;

/// Journal blocks in use. A short ring wraps around often.
const RING: u32 = 64;

struct Journaled {
    name: String,
    base: Image,
    /// One for each thread.
    places: Vec<Place>,
    options: EngineOptions,
    operations: u32,
    /// States that debugfs replayed, and those that it refused to open.
    compared: AtomicU64,
    refused: AtomicU64,
}

impl Journaled {
    fn new(name: &str, mke2fs: &[&str], block_size: usize) -> Journaled {
        let size_mib = if block_size == 1024 { 4 } else { 16 };
        let file = ImageFile::make(size_mib, mke2fs);
        let at: u64 = file.debugfs("bmap <8> 0").parse().expect("where the journal begins");
        let base = Image::from_file(&std::fs::File::open(&file.path).unwrap()).unwrap();
        let base = shorten(base, at * block_size as u64);
        // Free on every volume made here: the last blocks but some.
        let first = (size_mib << 20) / block_size as u64 - 100;
        Journaled {
            name: name.into(),
            base,
            places: vec![Place { block_size, first }],
            options: quiet(),
            operations: 60,
            compared: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    fn in_single_writes(mut self) -> Journaled {
        self.options.commit_writes = CommitWrites::Single;
        self
    }

    fn explore(&self, plan: &Plan) -> Vec<String> {
        let summary = explore(self, plan).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        println!("{}", summary.row());
        println!(
            "  debugfs agreed on {} states and would not replay {}",
            self.compared.load(Relaxed),
            self.refused.load(Relaxed)
        );
        let few = summary.findings.is_empty() && summary.states < 200;
        assert!(!few, "too few states to mean anything");
        summary.findings.into_iter().map(|f| format!("{}\n  {}", f.what, f.replay)).collect()
    }
}

impl Journaled {
    fn read(&self, device: &dyn BlockDevice) -> Result<Vec<Found>, String> {
        self.places.iter().map(|place| ledger::read(place, device)).collect()
    }
}

/// Lets the journal use its first blocks only.
fn shorten(mut image: Image, at: u64) -> Image {
    let mut bytes = vec![0; JOURNAL_SUPERBLOCK_BYTES];
    image.read(&mut bytes, at);
    let mut sb = JournalSuperblock::decode(&bytes).expect("a journal superblock");
    sb.maxlen = RING;
    // The first transactions have the last sequence numbers before they wrap.
    sb.sequence = 0u32.wrapping_sub(20);
    sb.encode_into(&mut bytes);
    image.write(&bytes, at);
    image
}

impl Subject for Journaled {
    type Run = Vec<History>;
    type Tree = Vec<Found>;

    fn name(&self) -> &str {
        &self.name
    }

    fn record(&self, seed: u64) -> Result<(Recording, Vec<History>), String> {
        let device = SimDevice::new(self.base.clone());
        let engine = open_journal(device.clone(), self.options.clone()).map_err(|e| e.to_string())?;
        let clock = || device.tick();
        let checkpoint = || engine.journal().expect("has one").checkpoint().expect("a checkpoint");
        let run = |index: usize| {
            let mut workload =
                Workload::new(self.places[index], &engine, &clock, Rng::of(&[seed, index as u64]).next());
            workload.run(self.operations, &checkpoint);
            workload.history
        };
        let history = if self.places.len() == 1 {
            vec![run(0)]
        } else {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..self.places.len()).map(|i| scope.spawn(move || run(i))).collect();
                threads.into_iter().map(|t| t.join().expect("a thread of the workload")).collect()
            })
        };
        // Half of the runs end cleanly.
        if seed.is_multiple_of(2) {
            engine.close().map_err(|e| e.to_string())?;
        }
        Ok((device.recording(), history))
    }

    fn moment(&self, run: &Vec<History>, time: Time) -> u64 {
        let ends =
            run.iter().map(|h| h.legal(time)).flat_map(|l| [u64::from(*l.start()), u64::from(*l.end())]);
        Rng::of(&ends.collect::<Vec<_>>()).next()
    }

    fn recover(&self, image: &Image) -> Result<Recovered<Vec<Found>>, String> {
        let device = SimDevice::new(image.clone());
        let shared: Arc<dyn BlockDevice> = device.clone();
        recover(&shared, &self.options).map_err(|e| e.to_string())?;
        let recording = device.recording();
        let tree = self.read(&*device)?;
        let engine = open_journal(device.clone(), self.options.clone()).map_err(|e| e.to_string())?;
        engine.close().map_err(|e| e.to_string())?;
        Ok(Recovered { tree, recording, closed: device.image() })
    }

    fn judge(&self, run: &Vec<History>, time: Time, tree: &Vec<Found>) -> Result<(), String> {
        for (history, found) in run.iter().zip(tree) {
            let legal = history.legal(time);
            if !legal.contains(&found.operation) {
                return Err(format!("operation {} was recovered, but {legal:?} were legal", found.operation));
            }
        }
        Ok(())
    }

    fn inspect(&self, image: &Image) -> Result<(), String> {
        let file = ImageFile::of_bytes(&[]);
        image.write_to(&std::fs::File::create(&file.path).unwrap()).unwrap();
        let output = try_run("e2fsck", &["-fn", file.str()]);
        let text = String::from_utf8_lossy(&output.stdout).to_string();
        if output.status.success() { Ok(()) } else { Err(format!("e2fsck: {text}")) }
    }

    fn second_opinion(&self, image: &Image, _: &Vec<Found>) -> Option<Result<Vec<Found>, String>> {
        let file = ImageFile::of_bytes(&[]);
        image.write_to(&std::fs::File::create(&file.path).unwrap()).unwrap();
        let output = try_run("debugfs", &["-w", "-R", "jr", file.str()]);
        let text = String::from_utf8_lossy(&output.stderr);
        // debugfs cannot open a volume with a torn superblock, and has nothing to replay on clean
        // ones.
        if !output.status.success() || text.lines().count() > 1 {
            self.refused.fetch_add(1, Relaxed);
            return None;
        }
        self.compared.fetch_add(1, Relaxed);
        Some(self.read(&MemoryDevice::from_bytes(file.bytes())))
    }

    fn difference(&self, ours: &Vec<Found>, theirs: &Vec<Found>) -> String {
        let operations = |tree: &[Found]| tree.iter().map(|f| f.operation).collect::<Vec<_>>();
        format!("operations {:?} against {:?}", operations(ours), operations(theirs))
    }
}

fn formats() -> Vec<Journaled> {
    let small = ["-t", "ext4", "-b", "1024", "-J", "size=1"];
    let bare = ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit", "-J", "size=1"];
    vec![
        Journaled::new("journal, v3", &small, 1024),
        Journaled::new("journal, no checksums", &bare, 1024),
        Journaled::new("journal, 4 KiB blocks", &["-t", "ext4", "-b", "4096", "-J", "size=4"], 4096),
        Journaled::new("journal, single write", &small, 1024).in_single_writes(),
        Journaled::new("journal, single write, no metadata_csum", &bare, 1024).in_single_writes(),
    ]
}

fn plan(seed: u64) -> Plan {
    Plan { seed, states: 900, inspect_one_in: 60, second_one_in: 30, ..Plan::quick() }
}

#[test]
fn every_crash_leaves_a_legal_state() {
    for subject in formats() {
        for seed in [1, 2] {
            let findings = subject.explore(&plan(seed));
            assert!(findings.is_empty(), "{}: {}", subject.name, findings.join("\n"));
        }
        assert!(subject.compared.load(Relaxed) > 0, "debugfs never replayed anything");
    }
}

/// Handles of several threads, commits by time, by callers and for lack of space, and checkpoints
/// in the background, all at once.
#[test]
fn every_crash_of_many_threads_leaves_a_legal_state() {
    let mut subject = formats().remove(0);
    subject.name = "journal, four threads".into();
    let first = subject.places[0].first;
    subject.places =
        (0..4).map(|i| Place { first: first - i * (ledger::POOL + 2), ..subject.places[0] }).collect();
    subject.operations = 30;
    subject.options.commit_interval = std::time::Duration::from_millis(1);
    for seed in 1..5 {
        subject.options.commit_writes =
            if seed % 2 == 0 { CommitWrites::Single } else { CommitWrites::TwoStep };
        let findings = subject.explore(&plan(seed));
        assert!(findings.is_empty(), "{}: {}", subject.name, findings.join("\n"));
    }
}

/// Each rule that is left out must be noticed; otherwise the test above proves nothing.
#[cfg(feature = "faults")]
#[test]
fn every_omitted_rule_is_found() {
    use xact_consistency::Fault;
    // The first two are about damage and about lookalikes, and have tests in `damage.rs`. The third
    // is about file data, the fourth about records of parts of blocks, the fifth about the
    // journal's inode and the last two about blocks that a commit leaves out, which the testkit's
    // workloads on files cover.
    let elsewhere = [
        Fault::AcceptBadChecksum,
        Fault::NoEscape,
        Fault::DataBesideItsCopy,
        Fault::TailPastBase,
        Fault::LongerBeforeInode,
        Fault::SameAsOlder,
        Fault::LeftOutForGood,
    ];
    for fault in Fault::JOURNAL.into_iter().filter(|f| !elsewhere.contains(f)) {
        let mut found = false;
        for mut subject in formats() {
            subject.options.fault = Some(fault);
            subject.name = format!("{:?}, {}", fault, subject.name);
            for seed in [1, 2, 3] {
                let plan =
                    Plan { findings: 1, nested_one_in: 4, inspect_one_in: 0, second_one_in: 0, ..plan(seed) };
                let findings = subject.explore(&plan);
                found |= !findings.is_empty();
                if let Some(first) = findings.first() {
                    println!("  as it should: {}", first.lines().next().unwrap_or(""));
                    break;
                }
            }
        }
        assert!(found, "no state revealed {fault:?}");
    }
}
