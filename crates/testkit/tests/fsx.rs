//! `fsx`'s operations on a file, done in the library: random operations on the inside of one file,
//! each read of it compared with a copy in memory. Outside of transactions, in transactions that
//! are committed or dropped, and over remounts.
//!
//! FSX_OPERATIONS and FSX_SEEDS ask for more than the default 4000 operations and 3 seeds.

use std::sync::Arc;
use std::time::Duration;

use xact::{
    Allocate, Caller, CommitWrites, DataMode, FileKind, Ino, ModeChoice, SetAttr, SharedTransaction,
    TxOptions, View, Volume, VolumeOptions,
};
use xact_fs::{SeekTo, WriteHow};
use xact_testkit::device::SimDevice;
use xact_testkit::rng::Rng;
use xact_testkit::tools::{ImageFile, e2fsck, formatted};

/// The largest size of the file.
const FILE_MAX: u64 = 256 << 10;
/// The most bytes of one operation.
const LEN_MAX: u64 = 32 << 10;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: {text}?")))
}

/// One file and its contents.
struct Exerciser {
    device: Arc<SimDevice>,
    options: VolumeOptions,
    volume: Arc<Volume>,
    ino: Ino,
    bytes: Vec<u8>,
    /// A transaction that all operations go to, and the contents at its begin.
    open: Option<(Arc<SharedTransaction>, Vec<u8>)>,
    has_extents: bool,
    rng: Rng,
    /// The last operations, for the reader of a difference.
    log: Vec<String>,
}

impl Exerciser {
    fn new(mke2fs: &[&str], options: VolumeOptions, seed: u64) -> Exerciser {
        let device = SimDevice::new(formatted(mke2fs, "16M"));
        let volume = Volume::open(device.clone(), &options).unwrap();
        let mode = FileKind::Regular.mode_bits() | 0o644;
        let ino = volume.base().make_node(&Caller::ROOT, Ino::ROOT, b"file", mode, 0).unwrap().ino;
        let has_extents = !mke2fs.iter().any(|option| option.contains("^extents"));
        let (bytes, rng) = (Vec::new(), Rng::of(&[seed]));
        Exerciser { device, options, volume, ino, bytes, open: None, has_extents, rng, log: Vec::new() }
    }

    fn view(&self) -> Arc<dyn View> {
        match &self.open {
            Some((transaction, _)) => transaction.clone(),
            None => self.volume.base(),
        }
    }

    fn note(&mut self, what: String) {
        if self.log.len() == 60 {
            self.log.remove(0);
        }
        self.log.push(what);
    }

    fn wrong(&self, what: &str) -> ! {
        panic!("{what}; the last operations:\n{}", self.log.join("\n"))
    }

    fn must<T>(&self, what: &str, result: xact::Result<T>) -> T {
        result.unwrap_or_else(|error| self.wrong(&format!("{what}: {error}")))
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// An offset within the file or a bit behind it, often at the start of a block.
    fn place(&mut self, limit: u64) -> u64 {
        let at = self.rng.below(limit + 1);
        if self.rng.one_in(3) { at / 4096 * 4096 } else { at }
    }

    fn range(&mut self) -> (u64, u64) {
        let offset = self.place(FILE_MAX - 1);
        (offset, 1 + self.rng.below(LEN_MAX.min(FILE_MAX - offset)))
    }

    fn step(&mut self) {
        match self.rng.below(64) {
            0..=14 => self.read(),
            15..=30 => self.write(),
            31..=35 => self.truncate(),
            36..=40 => self.zero(Allocate::PunchHole),
            41..=44 => self.zero(Allocate::ZeroRange { keep_size: false }),
            45..=47 => self.reserve(),
            48..=53 => self.copy(),
            54..=56 => self.sync(),
            57 => self.holes(),
            58..=61 => self.begin_or_end(),
            _ => self.reopen(),
        }
    }

    fn read(&mut self) {
        let (offset, len) = self.range();
        self.note(format!("read {len} at {offset}"));
        let mut out = Vec::new();
        self.must("read", self.view().read(self.ino, offset, len as usize, &mut out));
        let from = (offset as usize).min(self.bytes.len());
        let to = ((offset + len) as usize).min(self.bytes.len());
        if out != self.bytes[from..to] {
            let at = out.iter().zip(&self.bytes[from..to]).position(|(a, b)| a != b);
            self.wrong(&format!("{} of {} bytes read, the first wrong one is {at:?}", out.len(), to - from));
        }
    }

    fn grow(&mut self, end: u64) {
        if end > self.size() {
            self.bytes.resize(end as usize, 0);
        }
    }

    fn write(&mut self) {
        let (offset, len) = self.range();
        let append = self.rng.one_in(8) && self.size() + len <= FILE_MAX;
        let offset = if append { self.size() } else { offset };
        self.note(format!("write {len} at {offset}, append: {append}"));
        let data: Vec<u8> = (0..len).map(|_| self.rng.next() as u8).collect();
        let how = WriteHow { append, ..WriteHow::default() };
        let at = self.must("write", self.view().write(self.ino, offset, &data, how)).offset;
        assert_eq!(at, offset);
        self.grow(offset + len);
        self.bytes[offset as usize..(offset + len) as usize].copy_from_slice(&data);
    }

    fn truncate(&mut self) {
        let size = self.place(FILE_MAX);
        self.note(format!("truncate to {size}"));
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        let attr = self.must("truncate", self.view().set_attr(&Caller::ROOT, self.ino, &change));
        assert_eq!(attr.size, size);
        self.bytes.resize(size as usize, 0);
    }

    /// Punches a hole or writes zeros.
    fn zero(&mut self, how: Allocate) {
        let (offset, len) = self.range();
        if how != Allocate::PunchHole && !self.has_extents {
            return;
        }
        self.note(format!("{how:?} {len} at {offset}"));
        self.must("zero", self.view().allocate(&Caller::ROOT, self.ino, offset, len, how));
        if how != Allocate::PunchHole {
            self.grow(offset + len);
        }
        let from = (offset as usize).min(self.bytes.len());
        let to = ((offset + len) as usize).min(self.bytes.len());
        self.bytes[from..to].fill(0);
    }

    fn reserve(&mut self) {
        if !self.has_extents {
            return;
        }
        let (offset, len) = self.range();
        let keep_size = self.rng.one_in(2);
        self.note(format!("reserve {len} at {offset}, keep size: {keep_size}"));
        let how = Allocate::Reserve { keep_size };
        self.must("reserve", self.view().allocate(&Caller::ROOT, self.ino, offset, len, how));
        if !keep_size {
            self.grow(offset + len);
        }
    }

    fn copy(&mut self) {
        let (from, len) = self.range();
        let to = self.place(FILE_MAX - len);
        let len = len.min(self.size().saturating_sub(from));
        if len == 0 || from.abs_diff(to) < len {
            return;
        }
        self.note(format!("copy {len} from {from} to {to}"));
        let how = WriteHow::default();
        let copied = self.must("copy", self.view().copy_range((self.ino, from), (self.ino, to), len, how));
        assert_eq!(copied, len);
        self.grow(to + len);
        self.bytes.copy_within(from as usize..(from + len) as usize, to as usize);
    }

    fn sync(&mut self) {
        let data_only = self.rng.one_in(2);
        self.note(format!("sync, data only: {data_only}"));
        self.must("sync", self.view().sync_file(self.ino, data_only));
    }

    /// Reported holes read as zeros.
    fn holes(&mut self) {
        let view = self.view();
        let (mut at, size) = (0, self.size());
        while at < size {
            let hole = self.must("seek a hole", view.seek(self.ino, at, SeekTo::Hole));
            assert!(hole >= at && hole <= size);
            let data = view.seek(self.ino, hole, SeekTo::Data).unwrap_or(size);
            assert!(data >= hole && data <= size);
            if self.bytes[hole as usize..data as usize].iter().any(|&byte| byte != 0) {
                self.wrong(&format!("a hole from {hole} to {data} that has data"));
            }
            at = data.max(at + 1);
        }
    }

    fn begin_or_end(&mut self) {
        let Some((transaction, before)) = self.open.take() else {
            self.note("begin".into());
            self.open = Some((self.volume.begin(TxOptions::default()).into_shared(), self.bytes.clone()));
            return;
        };
        if self.rng.one_in(3) {
            self.note("abort".into());
            transaction.abort();
            self.bytes = before;
        } else {
            self.note("commit".into());
            self.must("commit", transaction.commit());
        }
    }

    fn reopen(&mut self) {
        if self.open.is_some() {
            return;
        }
        self.note("close and open".into());
        self.must("close", self.volume.close());
        self.device.restart_recording();
        self.volume = self.must("open", Volume::open(self.device.clone(), &self.options));
    }

    fn finish(mut self) {
        if self.open.is_some() {
            self.begin_or_end();
        }
        self.reopen();
        let mut out = Vec::new();
        self.must("read", self.view().read(self.ino, 0, FILE_MAX as usize, &mut out));
        if out != self.bytes {
            self.wrong("the file is another in the end");
        }
        self.must("close", self.volume.close());
        let mut file = ImageFile::default();
        file.put(&self.device.image()).unwrap();
        e2fsck(file.path()).unwrap_or_else(|why| self.wrong(&why));
    }
}

fn exercise(mke2fs: &[&str], data_mode: DataMode, commit_writes: CommitWrites) {
    let operations = setting("FSX_OPERATIONS", 4000);
    for seed in 0..setting("FSX_SEEDS", 3) {
        let options = VolumeOptions {
            commit_interval: Duration::from_secs(86_400),
            flusher: false,
            cache_bytes: 4 << 20,
            modes: ModeChoice {
                data: Some(data_mode),
                commit_writes: Some(commit_writes),
                ..ModeChoice::default()
            },
            ..VolumeOptions::default()
        };
        let mut exerciser = Exerciser::new(mke2fs, options, seed);
        for _ in 0..operations {
            exerciser.step();
        }
        exerciser.finish();
    }
}

#[test]
fn blocks_of_4_kib() {
    exercise(&["-b", "4096", "-J", "size=4"], DataMode::Adaptive, CommitWrites::Single);
}

#[test]
fn blocks_of_1_kib_and_data_in_the_journal() {
    exercise(&["-b", "1024", "-J", "size=4"], DataMode::Journal, CommitWrites::TwoStep);
}

#[test]
fn mapped_files() {
    let ext3 = ["-b", "1024", "-J", "size=4", "-O", "^extents,^metadata_csum,^64bit,^flex_bg"];
    exercise(&ext3, DataMode::Ordered, CommitWrites::Single);
}

#[test]
fn no_journal() {
    exercise(&["-b", "2048", "-O", "^has_journal"], DataMode::Ordered, CommitWrites::Single);
}
