//! Reliable and fast journaling: a file server's load (figure 8), as in Filebench's personality of
//! that name.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use xact::{PathExt, Volume, WriteHow};

use super::{Chart, Expectation, Figure, bound};
use crate::loads::{Bench, Load, Rated, because};
use crate::report::Section;
use crate::system::System;
use crate::volume::Result;

const DATA: System = System::XACT.named(
    "xact data, stock",
    "noatime,data=journal,commit_writes=two-step,inode_update=immediate,timestamps=immediate",
);
const ORDERED: System = System::XACT.named(
    "xact ordered, stock",
    "noatime,data=ordered,commit_writes=two-step,inode_update=immediate,timestamps=immediate",
);
const SELECTIVE: System = System::XACT.named("xact selective", "noatime,data=selective");
const ADAPTIVE: System = System::XACT.named("xact adaptive", "noatime,data=adaptive");

const SYSTEMS: &[System] = &[
    System::KERNEL.named("kernel data", "noatime,data=journal"),
    System::KERNEL.named("kernel ordered", "noatime,data=ordered"),
    System::KERNEL.named("kernel writeback", "noatime,data=writeback"),
    DATA,
    ORDERED,
    SELECTIVE,
    ADAPTIVE,
];

pub const FIGURES: &[Figure] = &[
    Figure {
        load: Load {
            name: "rfj-fileserver",
            systems: SYSTEMS,
            baselines: &["xact data, stock", "xact ordered, stock", "kernel data"],
            run: file_server,
        },
        paper: "RFJ",
        title: "A file server with 50 clients (figure 8)",
        about: "10,000 files of 128 KiB; each client makes a file and writes it whole, appends up to 16 KiB to \
                one, reads one whole, deletes one, and asks for one's attributes. In the paper selective \
                journaling is about 5 times as fast as data journaling, and ahead of ordered.",
        chart: Chart::Rates,
        claims,
    },
    Figure {
        load: Load {
            name: "rfj-inside",
            systems: &[DATA, ORDERED, SELECTIVE, ADAPTIVE],
            baselines: &["xact data, stock", "xact ordered, stock"],
            run: file_server_inside,
        },
        paper: "RFJ",
        title: "The same file server in process, without a mount",
        about: "The same clients as threads that call the library: what the modes differ by, without the messages of FUSE.",
        chart: Chart::Rates,
        claims,
    },
];

const CLIENTS: u64 = 50;
const FOLDERS: u64 = 20;
const FILE_BYTES: usize = 128 << 10;
const APPEND_BYTES: u64 = 16 << 10;

/// A file of the set. The client that has it locked works with it alone, as in Filebench.
struct Slot {
    /// Below the root.
    path: String,
    exists: bool,
}

/// The interface that serves the clients' calls.
trait FileCalls: Sync {
    fn make(&self, path: &str, contents: &[u8]) -> Result<()>;
    fn append(&self, path: &str, contents: &[u8]) -> Result<()>;
    /// Returns the number of bytes read.
    fn read(&self, path: &str) -> Result<usize>;
    fn delete(&self, path: &str) -> Result<()>;
    fn look(&self, path: &str) -> Result<()>;
}

/// A mount, used by system calls.
struct Mounted<'a>(&'a Path);

impl FileCalls for Mounted<'_> {
    fn make(&self, path: &str, contents: &[u8]) -> Result<()> {
        let mut file = File::create(self.0.join(path)).map_err(because("create"))?;
        file.write_all(contents).map_err(because("write"))
    }

    fn append(&self, path: &str, contents: &[u8]) -> Result<()> {
        let file = OpenOptions::new().append(true).open(self.0.join(path));
        file.map_err(because("open"))?.write_all(contents).map_err(because("append"))
    }

    fn read(&self, path: &str) -> Result<usize> {
        let mut contents = Vec::new();
        let mut file = File::open(self.0.join(path)).map_err(because("open"))?;
        file.read_to_end(&mut contents).map_err(because("read"))
    }

    fn delete(&self, path: &str) -> Result<()> {
        fs::remove_file(self.0.join(path)).map_err(because("delete"))
    }

    fn look(&self, path: &str) -> Result<()> {
        fs::metadata(self.0.join(path)).map(drop).map_err(because("stat"))
    }
}

/// A volume in this process, used by the library's calls.
struct Inside<'a>(&'a Volume);

impl FileCalls for Inside<'_> {
    fn make(&self, path: &str, contents: &[u8]) -> Result<()> {
        self.0.write(path, contents).map_err(because("make"))
    }

    fn append(&self, path: &str, contents: &[u8]) -> Result<()> {
        let ino = self.0.metadata(path).map_err(because("find"))?.ino;
        let how = WriteHow { append: true, ..WriteHow::default() };
        self.0.base().write(ino, 0, contents, how).map(drop).map_err(because("append"))
    }

    fn read(&self, path: &str) -> Result<usize> {
        self.0.read(path).map(|contents| contents.len()).map_err(because("read"))
    }

    fn delete(&self, path: &str) -> Result<()> {
        self.0.remove_file(path).map_err(because("delete"))
    }

    fn look(&self, path: &str) -> Result<()> {
        self.0.metadata(path).map(drop).map_err(because("stat"))
    }
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn file_server(bench: &mut Bench<'_, '_>) -> Result<()> {
    let slots = filled(bench)?;
    let seconds = seconds(bench);
    bench.phase_with_rate(PHASE, "op", |mount| serve(&Mounted(mount.dir()), &slots, seconds))
}

fn file_server_inside(bench: &mut Bench<'_, '_>) -> Result<()> {
    let slots = filled(bench)?;
    let seconds = seconds(bench);
    bench.phase_with_rate(PHASE, "op", |mount| {
        mount.in_process(|volume| serve(&Inside(volume), &slots, seconds))
    })
}

const PHASE: &str = "file server";

fn filled(bench: &Bench<'_, '_>) -> Result<Vec<Mutex<Slot>>> {
    let slots = fill(bench.mount.dir(), bench.count(10_000).max(4 * CLIENTS))?;
    bench.mount.settle()?;
    Ok(slots)
}

fn seconds(bench: &Bench<'_, '_>) -> f64 {
    (30.0 * bench.scale).max(3.0)
}

fn serve(files: &dyn FileCalls, slots: &[Mutex<Slot>], seconds: f64) -> Result<Rated> {
    let operations = AtomicU64::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let running: Vec<_> = (1..=CLIENTS)
            .map(|n| {
                let operations = &operations;
                scope.spawn(move || -> Result<()> {
                    let mut random = Random(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                    while started.elapsed() < Duration::from_secs_f64(seconds) {
                        one_turn(files, slots, &mut random, operations)?;
                    }
                    Ok(())
                })
            })
            .collect();
        running.into_iter().try_for_each(|t| t.join().map_err(|_| "a client panicked".to_owned())?)
    })?;
    let units = operations.load(Ordering::Relaxed) as f64;
    Ok(Rated { rate: units / started.elapsed().as_secs_f64(), units })
}

/// Four fifths of the set exist at the start, so that there are names to create.
fn fill(dir: &Path, count: u64) -> Result<Vec<Mutex<Slot>>> {
    for n in 0..FOLDERS {
        fs::create_dir(dir.join(format!("d{n}"))).map_err(because("mkdir"))?;
    }
    let content = vec![7u8; FILE_BYTES];
    (0..count)
        .map(|n| {
            let path = format!("d{}/f{n}", n % FOLDERS);
            let exists = n % 5 != 0;
            if exists {
                fs::write(dir.join(&path), &content).map_err(because("fill"))?;
            }
            Ok(Mutex::new(Slot { path, exists }))
        })
        .collect()
}

/// Runs `work` on a file that is not locked and that exists, or does not exist.
fn with_one<T>(
    slots: &[Mutex<Slot>],
    random: &mut Random,
    exists: bool,
    work: impl FnOnce(&mut Slot) -> Result<T>,
) -> Result<T> {
    loop {
        let slot = &slots[random.below(slots.len() as u64) as usize];
        // A panic of another client ends the load in its own thread.
        let Ok(mut slot) = slot.try_lock() else { continue };
        if slot.exists == exists {
            return work(&mut slot);
        }
    }
}

fn one_turn(
    files: &dyn FileCalls,
    slots: &[Mutex<Slot>],
    random: &mut Random,
    operations: &AtomicU64,
) -> Result<()> {
    let done = || operations.fetch_add(1, Ordering::Relaxed);
    with_one(slots, random, false, |slot| {
        files.make(&slot.path, &vec![1; FILE_BYTES])?;
        slot.exists = true;
        Ok(())
    })?;
    done();
    let append = random.below(2 * APPEND_BYTES) as usize + 1;
    with_one(slots, random, true, |slot| {
        files.append(&slot.path, &vec![2; append.min(APPEND_BYTES as usize)])
    })?;
    done();
    with_one(slots, random, true, |slot| match files.read(&slot.path)? {
        bytes if bytes < FILE_BYTES => Err(format!("{} is only {bytes} bytes long", slot.path)),
        _ => Ok(()),
    })?;
    done();
    with_one(slots, random, true, |slot| {
        files.delete(&slot.path)?;
        slot.exists = false;
        Ok(())
    })?;
    done();
    with_one(slots, random, true, |slot| files.look(&slot.path))?;
    done();
    Ok(())
}

/// RFJ-5.
fn claims(section: &Section) -> Vec<Expectation> {
    let Some(row) = section.row(PHASE) else { return Vec::new() };
    let ratio = |base| row.ratio("xact selective", base);
    let claims = [
        bound("RFJ-5", "selective is about 5 times data", ratio("xact data, stock"), |r| r >= 4.5),
        bound("RFJ-5", "selective is ahead of ordered", ratio("xact ordered, stock"), |r| r > 1.0),
        bound("RFJ-5", "selective against the kernel's data=journal", ratio("kernel data"), |r| r >= 4.5),
    ];
    claims.into_iter().flatten().collect()
}
