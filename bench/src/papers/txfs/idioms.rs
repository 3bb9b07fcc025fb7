//! Programming idioms: files made and deleted, a log, an order of writes.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use xact::{Durability, View, Volume};
use xact_control::abi::COMMIT_ORDERED;
use xact_control::client::Channel;

use super::own_image::{CALLER, OwnImage};
use super::{Mode, PLAIN, REWRITTEN, WRAPPED, channel, within};
use crate::loads::{Bench, because};
use crate::papers::{Expectation, bound};
use crate::report::Section;
use crate::system::Server;
use crate::volume::{Mount, Result};

pub(super) fn idioms(bench: &mut Bench<'_, '_>) -> Result<()> {
    let mode = Mode::of(bench.mount.system());
    create_unlink_sync(bench, mode)?;
    if bench.mount.system().server == Server::Xact {
        in_process(bench, mode)?;
    }
    logging(bench, mode)?;
    ordering(bench, mode)?;
    replacing(bench, mode)
}

const THREADS: u64 = 6;

/// Runs `turns` turns in each of the threads.
fn in_threads(work: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n))).collect();
        running.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked".to_owned())?)
    })
}

fn create_unlink_sync(bench: &mut Bench<'_, '_>, mode: Mode) -> Result<()> {
    let turns = bench.count(1000);
    for n in 0..THREADS {
        fs::create_dir(bench.mount.dir().join(format!("thread{n}"))).map_err(because("mkdir"))?;
    }
    // So that no checkpoint of these is among the counted writes.
    bench.mount.cool()?;
    bench.mount.settle()?;
    bench.phase("create/unlink/sync", "op", (turns * THREADS) as f64, |mount| {
        let dir = mount.dir();
        let turn = |root: &Path, n: u64| {
            let folder = root.join(format!("thread{n}"));
            File::create(folder.join("file")).map_err(because("create"))?;
            fs::remove_file(folder.join("file")).map_err(because("unlink"))?;
            sync_folder(&folder)
        };
        in_threads(|n| {
            let channel = channel(mode, dir)?;
            match mode {
                Mode::Rewritten => {
                    within(channel.as_ref(), dir, 0, |root| (0..turns).try_for_each(|_| turn(root, n)))
                }
                _ => (0..turns).try_for_each(|_| within(channel.as_ref(), dir, 0, |root| turn(root, n))),
            }
        })
    })
}

/// The same without a mount, on an image of its own.
fn in_process(bench: &mut Bench<'_, '_>, mode: Mode) -> Result<()> {
    let turns = bench.count(1000);
    let own = OwnImage::new(bench)?;
    let volume = &own.volume;
    let root = xact::Ino::ROOT;
    let turn = |view: &dyn View, n: u64| -> xact::Result<()> {
        let name = format!("file{n}");
        view.make_node(&CALLER, root, name.as_bytes(), libc::S_IFREG as u16 | 0o644, 0)?;
        view.unlink(&CALLER, root, name.as_bytes())?;
        view.sync_file(root, false)
    };
    bench.phase("create/unlink/sync in process", "op", (turns * THREADS) as f64, |_| {
        in_threads(|n| {
            let all = || -> xact::Result<()> {
                let transacted = |volume: &Arc<Volume>, turns: u64| {
                    let transaction = volume.begin(Default::default()).into_shared();
                    (0..turns).try_for_each(|_| turn(&*transaction, n))?;
                    transaction.commit_with(Durability::Durable)
                };
                match mode {
                    Mode::Plain => (0..turns).try_for_each(|_| turn(&*volume.base(), n)),
                    Mode::Wrapped => (0..turns).try_for_each(|_| transacted(volume, 1)),
                    Mode::Rewritten => transacted(volume, turns),
                }
            };
            all().map_err(because("in process"))
        })
    })?;
    own.close()
}

const UPDATE_BYTES: usize = 64 << 10;
const UPDATED_FILE_BYTES: u64 = 16 << 20;

pub(super) const LOG: &str = "update through a log";

/// The file that is updated.
pub(super) fn fill_original(mount: &Mount<'_>) -> Result<()> {
    fs::write(mount.dir().join("original"), vec![1; UPDATED_FILE_BYTES as usize]).map_err(because("fill"))?;
    mount.settle()
}

pub(super) fn log_and_update(mode: Mode, channel: Option<&Channel>, dir: &Path, n: u64) -> Result<()> {
    let update = vec![2u8; UPDATE_BYTES];
    let offset = n * 7919 % (UPDATED_FILE_BYTES / UPDATE_BYTES as u64) * UPDATE_BYTES as u64;
    within(channel, dir, 0, |root| {
        let log = root.join("log");
        if mode != Mode::Rewritten {
            let mut file = File::create(&log).map_err(because("create the log"))?;
            file.write_all(&update).and_then(|()| file.sync_all()).map_err(because("write the log"))?;
            sync_folder(root)?;
        }
        let original = File::options().write(true).open(root.join("original"));
        let original = original.map_err(because("open"))?;
        original.write_all_at(&update, offset).map_err(because("update"))?;
        if mode != Mode::Rewritten {
            original.sync_all().map_err(because("sync"))?;
            fs::remove_file(&log).map_err(because("unlink the log"))?;
            sync_folder(root)?;
        }
        Ok(())
    })
}

fn logging(bench: &mut Bench<'_, '_>, mode: Mode) -> Result<()> {
    let turns = bench.count(300);
    fill_original(bench.mount)?;
    bench.phase(LOG, "op", turns as f64, |mount| {
        let channel = channel(mode, mount.dir())?;
        (0..turns).try_for_each(|n| log_and_update(mode, channel.as_ref(), mount.dir(), n))
    })
}

pub(super) const ORDERING: &str = "three files before an update";
const PART: usize = 10_000_000;

/// The file that is updated.
pub(super) fn fill_data(mount: &Mount<'_>) -> Result<()> {
    fs::write(mount.dir().join("data"), vec![1; 4 * PART]).map_err(because("fill"))?;
    mount.settle()
}

pub(super) fn three_before_an_update(
    mode: Mode,
    channel: Option<&Channel>,
    dir: &Path,
    turn: u64,
) -> Result<()> {
    let content = vec![2u8; PART];
    for n in 0..3 {
        within(channel, dir, COMMIT_ORDERED, |root| {
            let name = format!("{}{turn}.{n}", mode.name());
            let mut file = File::create(root.join(name)).map_err(because("create"))?;
            file.write_all(&content).map_err(because("write"))?;
            if mode == Mode::Plain { file.sync_all().map_err(because("sync")) } else { Ok(()) }
        })?;
    }
    within(channel, dir, 0, |root| {
        let data = File::options().write(true).open(root.join("data")).map_err(because("open"))?;
        data.write_all_at(&content, turn % 4 * PART as u64).map_err(because("update"))?;
        if mode == Mode::Plain { data.sync_all().map_err(because("sync")) } else { Ok(()) }
    })
}

fn ordering(bench: &mut Bench<'_, '_>, mode: Mode) -> Result<()> {
    let turns = bench.count(10);
    fill_data(bench.mount)?;
    bench.phase(ORDERING, "op", turns as f64, |mount| {
        let channel = channel(mode, mount.dir())?;
        (0..turns).try_for_each(|turn| three_before_an_update(mode, channel.as_ref(), mount.dir(), turn))
    })
}

const REPLACE: &str = "a new version of a file";
const VERSION_BYTES: usize = 64 << 10;
const CHANGED_BYTES: usize = 4096;

/// How editors, package managers and LevelDB change a file: the whole new version under another
/// name, renamed over the old one. Rewritten: the changed part, in place.
fn new_version(mode: Mode, channel: Option<&Channel>, dir: &Path, turn: u64) -> Result<()> {
    let offset = turn % (VERSION_BYTES / CHANGED_BYTES) as u64 * CHANGED_BYTES as u64;
    within(channel, dir, 0, |root| {
        let (old, new) = (root.join("version"), root.join("version.new"));
        if mode == Mode::Rewritten {
            let file = File::options().write(true).open(old).map_err(because("open"))?;
            return file.write_all_at(&[turn as u8; CHANGED_BYTES], offset).map_err(because("update"));
        }
        let mut content = fs::read(&old).map_err(because("read"))?;
        content[offset as usize..][..CHANGED_BYTES].fill(turn as u8);
        let mut file = File::create(&new).map_err(because("create"))?;
        file.write_all(&content).and_then(|()| file.sync_all()).map_err(because("write"))?;
        fs::rename(new, old).map_err(because("rename"))?;
        sync_folder(root)
    })
}

fn replacing(bench: &mut Bench<'_, '_>, mode: Mode) -> Result<()> {
    let turns = bench.count(500);
    fs::write(bench.mount.dir().join("version"), vec![1; VERSION_BYTES]).map_err(because("fill"))?;
    bench.mount.settle()?;
    bench.phase(REPLACE, "op", turns as f64, |mount| {
        let channel = channel(mode, mount.dir())?;
        (0..turns).try_for_each(|turn| new_version(mode, channel.as_ref(), mount.dir(), turn))
    })
}

fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(because("sync a folder"))
}

pub(super) fn idiom_claims(section: &Section) -> Vec<Expectation> {
    let ratio = |phase: &str, system: &str| section.row(phase).and_then(|row| row.ratio(system, PLAIN));
    let writes = |system: &str| {
        let row = section.row("create/unlink/sync")?;
        row.of(system, |sample| sample.counts.writes as f64)
    };
    let log_bytes = section.row(LOG).and_then(|row| {
        let bytes = |system: &str| row.of(system, |sample| sample.counts.written_bytes as f64);
        Some(bytes(WRAPPED)? / bytes(PLAIN)?)
    });
    let claims = [
        bound(
            "TX-22",
            "create/unlink/sync in process, 133 times",
            ratio("create/unlink/sync in process", REWRITTEN),
            |r| r >= 133.0,
        ),
        bound("TX-8", "create/unlink/sync mounted, device writes", writes(REWRITTEN), |writes| writes == 0.0),
        bound("TX-22", "a log, wrapped, half the I/O: share of the bytes written", log_bytes, |r| r <= 0.5),
    ];
    claims.into_iter().flatten().collect()
}
