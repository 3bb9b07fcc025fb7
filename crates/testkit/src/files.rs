//! Whole volumes under the explorer: workloads of operations on files, judged by the model.

use std::sync::Arc;
use std::time::Duration;

use xact::{DataMode, Fsync, InodeUpdate, LogRecords, ModeChoice, PathExt, Volume, VolumeOptions};
use xact_consistency::{CommitWrites, Fault};
use xact_fs::{Caller, Synced};
use xact_layout::generations::PoolShape;
use xact_types::{BlockNr, Error, Ino, Steps, Timestamp};

use crate::blocks::log_copies;
use crate::device::SimDevice;
use crate::driver::{Done, Driver, FileOps, Stop};
use crate::explorer::{Recovered, Subject};
use crate::generations;
use crate::image::Image;
use crate::model::{History, Promise, ThreadHistory};
use crate::recording::{Action, Event, Recording, Time};
use crate::rng::Rng;
use crate::tools::{KernelMount, e2fsck, e2fsck_mends, formatted, superblock_is_whole, with_file};
use crate::tree::Tree;

/// The format of a volume: arguments of mke2fs, and its size.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    pub options: &'static [&'static str],
    pub size: &'static str,
    /// Bytes of the pool, after the volume, of a volume with generations.
    pub pool_bytes: Option<u64>,
}

impl Format {
    /// In bytes.
    fn block_size(&self) -> u32 {
        if self.options.contains(&"4096") { 4096 } else { 1024 }
    }

    /// A new volume.
    pub fn make(&self) -> Image {
        let image = formatted(self.options, self.size);
        match self.pool_bytes {
            None => image,
            Some(pool_bytes) => generations::give(&image, pool_bytes),
        }
    }
}

impl Format {
    /// Whether there is neither a journal nor generations. Then e2fsck must run after a crash, and
    /// synced data is only guaranteed until the next change.
    pub fn has_no_engine(&self) -> bool {
        self.pool_bytes.is_none() && self.options.contains(&"^has_journal")
    }
}

/// Small blocks and a small journal: many blocks change, and the log wraps around soon.
pub const SMALL: Format = Format { options: &["-b", "1024", "-J", "size=1"], size: "8M", pool_bytes: None };

/// A thread's part of a workload.
pub type Script = fn(&mut Driver, &mut Rng) -> Done;

/// Judges a recovered tree.
pub type Check = fn(&Tree) -> Result<(), String>;

/// A workload: the scripts of its threads, each in a folder of its own if there are several.
#[derive(Clone)]
pub struct FileWorkload {
    pub name: &'static str,
    pub format: Format,
    pub threads: Vec<Script>,
    /// Runs first, on the first thread, and is made durable.
    pub prepare: Option<Script>,
    pub commit_writes: CommitWrites,
    pub data_mode: DataMode,
    pub inode_update: InodeUpdate,
    pub timestamps: InodeUpdate,
    pub log_records: LogRecords,
    pub fsync: Fsync,
    /// Freed blocks are discarded.
    pub discard: bool,
    /// The sizes of steps.
    pub steps: Steps,
    /// Calls that are durable when they return.
    pub synced: Synced,
    /// Opening and closing the volume may crash too.
    pub from_open_to_close: bool,
    /// An additional check of the recovered tree, after the model's.
    pub also: Option<Check>,
    /// The promise to check, if it is not that of its settings.
    pub held_to: Option<Promise>,
    /// A rule to break, to see whether the explorer notices.
    pub fault: Option<Fault>,
}

fn text(e: Error) -> String {
    e.to_string()
}

/// With these options only the workload writes, so that runs repeat.
pub fn quiet_options() -> VolumeOptions {
    VolumeOptions {
        commit_interval: Duration::from_secs(86_400),
        dirty_blocks: Some(u32::MAX),
        flusher: false,
        cache_bytes: 16 << 20,
        ..VolumeOptions::default()
    }
}

/// Opens the transactions that a crash has left undecided. They are whole, and can be committed,
/// since the files that they depend on are unchanged. (See `Driver::persisted_transaction`.)
fn decide_over_kept(volume: &Arc<Volume>, tree: &Tree) -> Result<(), String> {
    for id in volume.persisted_transactions().map_err(text)? {
        let wrong = |what: &str| format!("kept transaction {id} {what}");
        let open = volume.reopen_transaction(id).map_err(|e| wrong(&format!("cannot be opened: {e}")))?;
        let (part, done) = (format!("/one/part-{id}"), format!("/two/done-{id}"));
        let changes = open.diff().map_err(text)?;
        let changes = |path: &str| changes.iter().any(|one| one.path == path.as_bytes());
        if !changes(&done) {
            return Err(wrong("does not change what it has changed"));
        }
        if changes(&part) == tree.entries.contains_key(part.as_bytes()) {
            return Err(wrong("and what was committed of it do not make a whole"));
        }
        open.commit().map_err(|e| wrong(&format!("cannot be committed: {e}")))?;
        if !volume.exists(&part).map_err(text)? || !volume.exists(&done).map_err(text)? {
            return Err(wrong("was committed, and is not there"));
        }
    }
    Ok(())
}

/// Opens a crashed volume, reads all of it, and closes it.
pub fn recover(image: &Image, options: &VolumeOptions) -> Result<Recovered<Tree>, String> {
    let device = SimDevice::new(image.clone());
    let volume = Volume::open(device.clone(), options).map_err(text)?;
    let recording = device.recording();
    let tree = Tree::of_view(&*volume.base())?;
    decide_over_kept(&volume, &tree)?;
    volume.close().map_err(|e| format!("closing after recovery: {e}"))?;
    Ok(Recovered { tree, recording, closed: device.image() })
}

/// The kernel's clock for files, which lags some milliseconds behind [`Timestamp::now`].
fn coarse_now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp { secs: now.tv_sec, nanos: now.tv_nsec as u32 }
}

impl FileWorkload {
    fn options(&self) -> VolumeOptions {
        VolumeOptions {
            modes: ModeChoice {
                data: Some(self.data_mode),
                commit_writes: Some(self.commit_writes),
                inode_update: Some(self.inode_update),
                timestamps: Some(self.timestamps),
                log_records: Some(self.log_records),
                fsync: Some(self.fsync),
            },
            discard: self.discard,
            steps: self.steps,
            synced: self.synced,
            fault: self.fault,
            ..quiet_options()
        }
    }

    fn prefix(&self, thread: usize) -> String {
        if self.threads.len() == 1 { String::new() } else { format!("/t{thread}") }
    }

    /// Runs the threads in parallel and returns their histories.
    fn run_threads(&self, drivers: Vec<Driver>, seed: u64) -> Result<Vec<ThreadHistory>, String> {
        let run = |thread: usize, driver: &mut Driver| {
            (self.threads[thread])(driver, &mut Rng::of(&[seed, thread as u64]))
        };
        std::thread::scope(|scope| {
            let handles: Vec<_> = drivers
                .into_iter()
                .enumerate()
                .map(|(thread, mut driver)| {
                    scope.spawn(move || {
                        let result = run(thread, &mut driver);
                        (result, driver.finish())
                    })
                })
                .collect();
            let mut threads = Vec::new();
            for handle in handles {
                let (result, thread) = handle.join().map_err(|_| "the workload panicked".to_owned())?;
                if let Err(Stop::Wrong(why)) = result {
                    let story = self.history(vec![thread]).story(Time::MAX);
                    return Err(format!("{why}\n{story}"));
                }
                threads.push(thread);
            }
            Ok(threads)
        })
    }
}

impl FileWorkload {
    /// The histories of the threads, with the promise of the settings.
    pub fn history(&self, threads: Vec<ThreadHistory>) -> History {
        let promise = match (self.inode_update, self.data_mode) {
            (_, DataMode::Writeback) if self.has_one_flush() => Promise::Unordered,
            (InodeUpdate::Immediate, _) | (_, DataMode::Writeback) => Promise::Sectors,
            (_, DataMode::Journal | DataMode::Selective) => Promise::Writes,
            (_, DataMode::Ordered | DataMode::Adaptive) => Promise::Sizes,
        };
        let goes_ahead = self.format.pool_bytes.is_some() && self.fsync == Fsync::File;
        History { threads, promise: self.held_to.unwrap_or(promise), goes_ahead }
    }

    /// Whether a commit has only one flush, so that data is durable before it only if it is
    /// ordered.
    fn has_one_flush(&self) -> bool {
        let logs = self.format.pool_bytes.is_some() && self.fsync != Fsync::Generation;
        logs || self.commit_writes == CommitWrites::Single
    }

    /// A new volume, opened.
    pub fn start(&self) -> Result<(Arc<SimDevice>, Arc<Volume>), String> {
        let device = SimDevice::new(self.format.make());
        let volume = Volume::open(device.clone(), &self.options()).map_err(text)?;
        Ok((device, volume))
    }

    /// Runs the workload on a new volume. `before` may break the device once the volume is
    /// prepared; a thread ends when it gets an error.
    pub fn run_with(
        &self,
        seed: u64,
        before: impl FnOnce(&SimDevice),
    ) -> Result<(Arc<SimDevice>, History), String> {
        const FILES_PER_THREAD: u32 = 10_000;
        let (device, volume) = self.start()?;
        let mut drivers = Vec::new();
        for thread in 0..self.threads.len() {
            let prefix = self.prefix(thread);
            if let Some(name) = prefix.strip_prefix('/') {
                volume.base().make_dir(&Caller::ROOT, Ino::ROOT, name.as_bytes(), 0o755).map_err(text)?;
            }
            let first = 2 + thread as u32 * FILES_PER_THREAD;
            drivers.push(Driver::new(&volume, device.clone(), &prefix, first));
        }
        if let [only] = &mut drivers[..] {
            only.adopt().map_err(|e| e.to_string())?;
        }
        if let Some(prepare) = self.prepare {
            prepare(&mut drivers[0], &mut Rng::of(&[seed])).map_err(|e| e.to_string())?;
        }
        // A sync is a promise to all threads; this one is in the first history only.
        drivers[0].sync().map_err(|e| e.to_string())?;
        if !self.from_open_to_close {
            device.restart_recording();
        }
        before(&device);
        let threads = self.run_threads(drivers, seed)?;
        if self.from_open_to_close {
            volume.close().map_err(text)?;
        }
        Ok((device, self.history(threads)))
    }
}

impl Subject for FileWorkload {
    type Run = History;
    type Tree = Tree;

    fn name(&self) -> &str {
        self.name
    }

    fn record(&self, seed: u64) -> Result<(Recording, History), String> {
        let (device, history) = self.run_with(seed, |_| ())?;
        Ok((device.recording(), history))
    }

    fn moment(&self, run: &History, time: Time) -> u64 {
        run.moment(time)
    }

    fn recover(&self, image: &Image) -> Result<Recovered<Tree>, String> {
        if !self.format.has_no_engine() {
            return recover(image, &self.options());
        }
        let mended = with_file(image, |file| {
            let checked = e2fsck_mends(file.path());
            let mended = file.take().map_err(|e| e.to_string());
            checked.and(mended)
        })?;
        recover(&mended, &self.options())
    }

    fn promises_from(&self, recording: &Recording) -> usize {
        if self.format.has_no_engine() { recording.events.len() } else { 0 }
    }

    fn judge(&self, run: &History, time: Time, tree: &Tree) -> Result<(), String> {
        run.judge(time, tree)?;
        self.also.map_or(Ok(()), |also| also(tree))
    }

    fn inspect(&self, image: &Image) -> Result<(), String> {
        match self.format.pool_bytes {
            None => with_file(image, |file| e2fsck(file.path())),
            Some(_) => generations::inspect(image),
        }
    }

    /// The kernel does not support generations, so it gets the exported newest one.
    fn second_opinion(&self, image: &Image, ours: &Tree) -> Option<Result<Tree, String>> {
        // Only xact may replay a log with patches. And many kernels are built without quota files
        // (CONFIG_QFMT_V2), and then mount no such volume for writing.
        let quotas = self.format.options.iter().any(|options| options.contains("quota"));
        if quotas || self.log_records == LogRecords::SubBlock {
            return None;
        }
        let exported = match self.format.pool_bytes {
            None => Ok(image.clone()),
            Some(_) => generations::export(image, None),
        };
        let image = match exported {
            Ok(image) => image,
            Err(why) => return Some(Err(why)),
        };
        // If a crash has torn the superblock, whose checksum is in another sector than its flags,
        // the kernel refuses the volume. e2fsck would repair it from a backup, which volumes of one
        // group, as here, do not have.
        if !superblock_is_whole(&image) {
            return None;
        }
        Some(with_file(&image, |file| {
            let since = coarse_now();
            let mount = KernelMount::new(file.path(), "noatime")?;
            let tree = Tree::of_path(mount.path());
            mount.unmount();
            file.spoilt();
            e2fsck(file.path()).map_err(|e| format!("after the kernel: {e}"))?;
            tree.map(|theirs| theirs.with_truncations_dated_as(ours, since))
        }))
    }

    /// The preparation is large, and each state reads all of it.
    fn weight(&self) -> u64 {
        if self.prepare.is_some() { 6 } else { 1 }
    }

    /// On a volume with generations: a block's own place, the two roots, the pool's bitmap, and the
    /// pool.
    fn kind(&self, recording: &Recording, event: &Event) -> u64 {
        let (Some(pool_bytes), Action::Write { offset, .. }) = (self.format.pool_bytes, &event.action) else {
            return 0;
        };
        let (bytes, block_size) = (recording.base.size_bytes(), self.format.block_size());
        let device_blocks = bytes / u64::from(block_size);
        let volume_blocks = (bytes - pool_bytes) / u64::from(block_size);
        let shape = PoolShape { block_size, volume_blocks, device_blocks };
        let place = |block: BlockNr| block.0 * u64::from(block_size);
        match *offset {
            offset if offset < place(BlockNr(volume_blocks)) => 1,
            offset if offset < shape.root_offset(1) => 2,
            offset if offset < shape.root_offset(2) => 3,
            offset if offset < place(shape.first_pool_block()) => 4,
            _ => 5,
        }
    }

    fn repeats(&self) -> bool {
        self.threads.len() == 1
    }

    fn story(&self, run: &History, time: Time) -> String {
        run.story(time)
    }

    fn guarded(&self, image: &Image) -> Vec<u64> {
        // Without checksums the loss cannot be noticed, and damage in the last single-write
        // transaction looks like a crash.
        let bare = self.format.options.iter().any(|o| o.contains("^metadata_csum,"));
        if bare || self.commit_writes == CommitWrites::Single { Vec::new() } else { log_copies(image) }
    }

    fn difference(&self, ours: &Tree, theirs: &Tree) -> String {
        ours.difference(theirs)
    }
}
