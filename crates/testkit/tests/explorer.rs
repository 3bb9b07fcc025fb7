//! The explorer itself, on a subject that is small enough to verify by reading: one number in two
//! slots with checksums, of which the newer valid one counts.

use std::sync::Arc;

use xact_device::BlockDevice;
use xact_testkit::crash::Effort;
use xact_testkit::device::{Call, Fault, Harm, SimDevice};
use xact_testkit::explorer::{Finding, Plan, Recovered, Replay, Subject, explore, replay};
use xact_testkit::image::Image;
use xact_testkit::recording::{Action, Cursor, Event, Part, Recording, Time};

const SLOT_BYTES: usize = 1024;

#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// Acknowledges before the flush.
    NoFlush,
    /// Ignores the checksum in the recovery.
    NoChecksum,
    /// Recovery copies the newer slot over the older one incorrectly: in two writes without a
    /// flush.
    TornRepair,
}

struct Register(Mistake);

fn slot(value: u64) -> Vec<u8> {
    let mut bytes = vec![0; SLOT_BYTES];
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

impl Register {
    fn read(&self, device: &SimDevice) -> (u64, u64) {
        let mut values = [0; 2];
        for (n, value) in values.iter_mut().enumerate() {
            let mut bytes = vec![0; SLOT_BYTES];
            device.read_at(&mut bytes, (n * SLOT_BYTES) as u64).unwrap();
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            // Half of the number from either end, so that a torn slot gives a number that was never
            // written.
            let found = (word(SLOT_BYTES - 8) >> 32 << 32) | (word(0) & 0xffff_ffff);
            if self.0 == Mistake::NoChecksum || bytes == slot(found) {
                *value = found;
            }
        }
        (values[0], values[1])
    }
}

impl Subject for Register {
    /// Times at which each value was begun and acknowledged.
    type Run = Vec<(u64, Time, Time)>;
    type Tree = u64;

    fn name(&self) -> &str {
        "register"
    }

    fn record(&self, seed: u64) -> Result<(Recording, Self::Run), String> {
        let device = SimDevice::new(Image::new(1 << 16));
        let mut run = Vec::new();
        for n in 1..=4 + seed % 2 {
            let value = n << 32 | n;
            let began = device.tick();
            device.write_at(&slot(value), (n % 2) * SLOT_BYTES as u64).map_err(|e| e.to_string())?;
            if self.0 != Mistake::NoFlush {
                device.flush().map_err(|e| e.to_string())?;
            }
            run.push((value, began, device.tick()));
        }
        Ok((device.recording(), run))
    }

    fn moment(&self, run: &Self::Run, time: Time) -> u64 {
        run.iter().map(|r| (r.1 < time) as u64 + (r.2 < time) as u64).sum()
    }

    fn recover(&self, image: &Image) -> Result<Recovered<u64>, String> {
        let device = SimDevice::new(image.clone());
        let (a, b) = self.read(&device);
        let (newer, older_slot) = if a > b { (a, 1) } else { (b, 0) };
        let bytes = slot(newer);
        let at = older_slot * SLOT_BYTES as u64;
        if self.0 == Mistake::TornRepair {
            // Damages the newer slot before the copy is safe.
            device.write_at(&bytes, at).unwrap();
            device.write_at(&[0; SLOT_BYTES], (1 - older_slot) * SLOT_BYTES as u64).unwrap();
            device.flush().unwrap();
        } else {
            device.write_at(&bytes, at).unwrap();
            device.flush().unwrap();
        }
        Ok(Recovered { tree: newer, recording: device.recording(), closed: device.image() })
    }

    fn judge(&self, run: &Self::Run, time: Time, tree: &u64) -> Result<(), String> {
        let acked = run.iter().filter(|r| r.2 < time).map(|r| r.0).max().unwrap_or(0);
        let begun = run.iter().filter(|r| r.1 < time).map(|r| r.0).max().unwrap_or(0);
        let known = *tree == 0 || run.iter().any(|r| r.0 == *tree);
        if known && *tree >= acked && *tree <= begun {
            Ok(())
        } else {
            Err(format!("holds {tree:x}, acknowledged {acked:x}, begun {begun:x}"))
        }
    }

    fn inspect(&self, _image: &Image) -> Result<(), String> {
        Ok(())
    }

    fn second_opinion(&self, _image: &Image, _: &u64) -> Option<Result<u64, String>> {
        None
    }

    fn story(&self, run: &Self::Run, time: Time) -> String {
        format!("{} of {} done", run.iter().filter(|r| r.1 < time).count(), run.len())
    }

    fn difference(&self, ours: &u64, theirs: &u64) -> String {
        format!("{ours:x} and {theirs:x}")
    }
}

fn plan() -> Plan {
    Plan { nested_one_in: 1, effort: Effort { exhaustive: 6, per_point: 100, noise: false }, ..Plan::quick() }
}

fn first_finding(mistake: Mistake) -> Option<Finding> {
    explore(&Register(mistake), &plan()).unwrap().findings.into_iter().next()
}

#[test]
fn a_correct_subject_is_clean() {
    let summary = explore(&Register(Mistake::None), &plan()).unwrap();
    assert!(summary.findings.is_empty(), "{:?}", summary.findings);
    assert!(summary.states > 20 && summary.nested > 20, "{summary:?}");
}

#[test]
fn each_mistake_is_found_and_its_line_replays_it() {
    for mistake in [Mistake::NoFlush, Mistake::NoChecksum, Mistake::TornRepair] {
        let finding = first_finding(mistake).expect("a mistake must be found");
        let line: Replay = finding.replay.parse().unwrap();
        assert_eq!(line.to_string(), finding.replay);
        let again = replay(&Register(mistake), &line, &plan()).unwrap().finding;
        assert_eq!(again.expect("the line replays").what, finding.what);
        // The shape of the runs is the same, so the right code passes the same line.
        if mistake != Mistake::NoFlush {
            assert!(
                line.states.len() > 1
                    || replay(&Register(Mistake::None), &line, &plan()).unwrap().finding.is_none()
            );
        }
    }
    assert!(
        explore(&Register(Mistake::TornRepair), &Plan { depth: 0, ..plan() }).unwrap().findings.is_empty(),
        "a mistake in recovery shows only when recovery is crashed"
    );
}

fn write(device: &SimDevice, byte: u8, at: u64) -> std::io::Result<()> {
    device.write_at(&[byte; 1024], at)
}

fn byte(image: &Image, at: u64) -> u8 {
    let mut buf = [0];
    image.read(&mut buf, at);
    buf[0]
}

#[test]
fn a_flush_covers_what_returned_before_it() {
    let device = SimDevice::new(Image::new(1 << 16));
    write(&device, 1, 0).unwrap();
    device.flush().unwrap();
    write(&device, 2, 0).unwrap();
    write(&device, 3, 4096).unwrap();
    let recording = device.recording();
    let cursor = Cursor::at(&recording, 4);
    assert_eq!(cursor.pending(), [2, 3]);
    let lost = cursor.crash(&[Part::None, Part::None]);
    assert_eq!((byte(&lost, 0), byte(&lost, 4096)), (1, 0));
    let torn = cursor.crash(&[Part::Sectors(vec![2]), Part::All]);
    assert_eq!((byte(&torn, 0), byte(&torn, 512), byte(&torn, 4096)), (1, 2, 3));
    let noisy = cursor.crash(&[Part::Noise(vec![1]), Part::None]);
    assert_eq!(byte(&noisy, 512), 2);
    assert_ne!((byte(&noisy, 0), byte(&noisy, 1)), (1, 1));
    assert_eq!(Cursor::at(&recording, 1).pending(), [0], "before the flush nothing is safe");
}

#[test]
fn a_failed_flush_loses_what_it_should_have_kept() {
    let device = SimDevice::new(Image::new(1 << 16));
    device.inject(Fault { call: Call::Flush, range: None, nth: 0, for_good: false, harm: Harm::Error });
    write(&device, 1, 0).unwrap();
    device.flush().unwrap_err();
    write(&device, 2, 4096).unwrap();
    device.flush().unwrap();
    let recording = device.recording();
    let cursor = Cursor::at(&recording, recording.events.len());
    assert_eq!(cursor.pending(), [0], "the second flush covers the second write only");
}

#[test]
fn faults_count_the_calls_they_are_for() {
    let device = SimDevice::new(Image::new(1 << 16));
    device.inject(Fault {
        call: Call::Write,
        range: Some(0..512),
        nth: 1,
        for_good: true,
        harm: Harm::Error,
    });
    device.inject(Fault { call: Call::Read, range: None, nth: 0, for_good: false, harm: Harm::Lie });
    write(&device, 1, 0).unwrap();
    write(&device, 1, 8192).unwrap();
    write(&device, 2, 0).unwrap_err();
    write(&device, 2, 0).unwrap_err();
    let mut buf = [9];
    device.read_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [0], "the lying read");
    device.read_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [1], "a failed write changes nothing that can be read");
}

#[test]
fn a_lost_flush_is_acknowledged_and_keeps_nothing() {
    let device = SimDevice::new(Image::new(1 << 16));
    device.inject(Fault { call: Call::Flush, range: None, nth: 0, for_good: false, harm: Harm::Lie });
    write(&device, 1, 0).unwrap();
    device.flush().unwrap();
    let recording = device.recording();
    assert_eq!(Cursor::at(&recording, 2).pending(), [0]);
    device.flush().unwrap();
    let recording = device.recording();
    assert!(Cursor::at(&recording, 3).pending().is_empty(), "the next honest flush does");
}

#[test]
fn a_stall_blocks_reads_of_its_range_only() {
    let device = SimDevice::new(Image::new(1 << 16));
    let stall = device.stall_reads(4096..8192);
    let reader = {
        let device = Arc::clone(&device);
        std::thread::spawn(move || device.read_at(&mut [0; 512], 4096).unwrap())
    };
    while device.waiting_reads() == 0 {
        std::thread::yield_now();
    }
    device.read_at(&mut [0; 512], 0).unwrap();
    assert!(!reader.is_finished());
    drop(stall);
    reader.join().unwrap();
}

/// The register as a subject whose states take long, which records the times at which it was
/// judged.
struct Heavy {
    register: Register,
    judged: parking_lot::Mutex<std::collections::BTreeSet<Time>>,
}

impl Subject for Heavy {
    type Run = Vec<(u64, Time, Time)>;
    type Tree = u64;

    fn name(&self) -> &str {
        "heavy"
    }

    fn record(&self, seed: u64) -> Result<(Recording, Self::Run), String> {
        self.register.record(seed)
    }

    fn moment(&self, run: &Self::Run, time: Time) -> u64 {
        self.register.moment(run, time)
    }

    fn recover(&self, image: &Image) -> Result<Recovered<u64>, String> {
        self.register.recover(image)
    }

    fn judge(&self, run: &Self::Run, time: Time, tree: &u64) -> Result<(), String> {
        self.judged.lock().insert(time);
        self.register.judge(run, time, tree)
    }

    fn inspect(&self, _image: &Image) -> Result<(), String> {
        Ok(())
    }

    fn second_opinion(&self, _image: &Image, _: &u64) -> Option<Result<u64, String>> {
        None
    }

    fn difference(&self, ours: &u64, theirs: &u64) -> String {
        self.register.difference(ours, theirs)
    }

    fn weight(&self) -> u64 {
        100
    }

    /// The two slots.
    fn kind(&self, _: &Recording, event: &Event) -> u64 {
        if let Action::Write { offset, .. } = event.action { offset } else { 0 }
    }
}

#[test]
fn a_heavy_subject_is_thinned_out_and_no_kind_of_write_is_missing() {
    let judged = |thins_out: bool| {
        let heavy = Heavy { register: Register(Mistake::None), judged: Default::default() };
        let plan = Plan { states: 700, depth: 0, thins_out, ..Plan::quick() };
        let states = explore(&heavy, &plan).unwrap().states;
        (states, heavy.judged.into_inner())
    };
    let (all, _) = judged(false);
    let (few, times) = judged(true);
    assert!(few <= 7 && few < all / 2, "{few} of {all}");
    let (recording, _) = Register(Mistake::None).record(1).unwrap();
    // Behind the first write to either slot.
    for point in [1, 3] {
        assert!(times.contains(&recording.time_of(point)), "point {point} is not among {times:?}");
    }
}
