//! Many threads on one volume with a small journal: no deadlock, no corruption, and each thread's
//! own files have the contents that it wrote.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use xact_device::{FileDevice, OpenMode};
use xact_fs::{Caller, LiveFs, ReadAsOf, RenameHow, SetAttr, View, VolumeOptions, WriteHow};
use xact_types::{Errno, Error, Ino};

const ROOT: Caller = Caller::ROOT;

fn make_volume(image: &Path, size_mib: u64, options: &[&str]) {
    std::fs::File::create(image).unwrap().set_len(size_mib << 20).unwrap();
    let made =
        Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).args(options).arg(image).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn open(image: &Path) -> Arc<LiveFs> {
    let device = Arc::new(FileDevice::open(image, OpenMode::ReadWrite).unwrap());
    xact_fs::open(device, &VolumeOptions { cache_bytes: 8 << 20, ..VolumeOptions::default() }).unwrap()
}

fn check(image: &Path) {
    let check =
        Command::new("e2fsck").args(["-fn", "-E", "no_optimize_extents"]).arg(image).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}

/// A small random generator: a failure is repeated from its seed.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Whether an error is a legal outcome of a race between threads.
fn is_race(error: &Error) -> bool {
    let Error::Posix(errno) = error else { return false };
    // EPERM: the target of a link has become a directory.
    let outcomes =
        [Errno::ENOENT, Errno::EEXIST, Errno::ENOTEMPTY, Errno::ESTALE, Errno::EISDIR, Errno::ENOTDIR];
    outcomes.contains(errno) || [Errno::EINVAL, Errno::EPERM].contains(errno)
}

/// One random operation on names that all threads share.
fn shared_step(fs: &LiveFs, dirs: &[Ino], random: &mut Random) -> Result<(), Error> {
    let dir = dirs[random.next(dirs.len() as u64) as usize];
    let other = dirs[random.next(dirs.len() as u64) as usize];
    let name = format!("n{}", random.next(40));
    let name2 = format!("n{}", random.next(40));
    match random.next(9) {
        0 | 1 => {
            let ino = fs.make_node(&ROOT, dir, name.as_bytes(), 0o100644, 0)?.ino;
            fs.write(ino, 0, &vec![7; random.next(9000) as usize], WriteHow::default())?;
        }
        2 => fs.unlink(&ROOT, dir, name.as_bytes())?,
        3 => fs.rename(&ROOT, (dir, name.as_bytes()), (other, name2.as_bytes()), RenameHow::Replace)?,
        4 => fs.rename(&ROOT, (dir, name.as_bytes()), (other, name2.as_bytes()), RenameHow::Exchange)?,
        5 => {
            let ino = fs.lookup(dir, name.as_bytes())?.ino;
            fs.link(&ROOT, ino, other, name2.as_bytes())?;
        }
        6 => {
            fs.make_dir(&ROOT, dir, name.as_bytes(), 0o755)?;
        }
        7 => fs.remove_dir(&ROOT, dir, name.as_bytes())?,
        _ => {
            let ino = fs.lookup(dir, name.as_bytes())?.ino;
            fs.hold(ino)?;
            let size = Some(random.next(20_000));
            let result = fs.set_attr(&ROOT, ino, &SetAttr { size, ..SetAttr::default() });
            fs.sync_file(ino, false)?;
            fs.release(ino, 1);
            result?;
        }
    }
    Ok(())
}

fn worker(fs: &LiveFs, dirs: &[Ino], thread: u64, steps: u64) {
    let mut random = Random(thread + 1);
    let own = fs.make_dir(&ROOT, Ino::ROOT, format!("own-{thread}").as_bytes(), 0o755).unwrap().ino;
    let mut files: Vec<(String, Ino, Vec<u8>)> = Vec::new();
    for step in 0..steps {
        match shared_step(fs, dirs, &mut random) {
            Ok(()) => {}
            Err(error) => assert!(is_race(&error), "{error}"),
        }
        if files.len() < 30 {
            let name = format!("f{step}");
            let ino = fs.make_node(&ROOT, own, name.as_bytes(), 0o100600, 0).unwrap().ino;
            files.push((name, ino, Vec::new()));
        }
        let which = random.next(files.len() as u64) as usize;
        let (name, ino, content) = &mut files[which];
        let at = random.next(30_000) as usize;
        let data = vec![(step % 251) as u8; random.next(6000) as usize + 1];
        fs.write(*ino, at as u64, &data, WriteHow::default()).unwrap();
        content.resize(content.len().max(at + data.len()), 0);
        content[at..at + data.len()].copy_from_slice(&data);
        if random.next(10) == 0 {
            fs.sync_file(*ino, true).unwrap();
        }
        if random.next(8) == 0 {
            fs.unlink(&ROOT, own, name.as_bytes()).unwrap();
            files.swap_remove(which);
        }
    }
    for (name, ino, content) in files {
        assert_eq!(fs.lookup(own, name.as_bytes()).unwrap().ino, ino);
        let mut found = Vec::new();
        fs.read(ino, 0, 1 << 20, &mut found).unwrap();
        assert!(found == content, "contents of {name} of thread {thread}");
    }
}

fn storm(options: &[&str], threads: u64, steps: u64, with_views: bool) {
    let dir = tempfile::TempDir::new().unwrap();
    let image = dir.path().join("volume");
    make_volume(&image, 64, options);
    let fs = open(&image);
    let dirs: Vec<Ino> = (0..4)
        .map(|i| fs.make_dir(&ROOT, Ino::ROOT, format!("shared-{i}").as_bytes(), 0o755).unwrap().ino)
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (fs, dirs) = (&fs, &dirs);
            scope.spawn(move || worker(fs, dirs, thread, steps));
        }
        if with_views {
            let fs = &fs;
            scope.spawn(move || {
                for _ in 0..steps / 4 {
                    let view = fs.open_view();
                    let mut count = 0;
                    for _ in 0..2 {
                        let mut now = 0;
                        fs.list_at(Ino::ROOT, 0, view.stamp(), &mut |_| {
                            now += 1;
                            true
                        })
                        .unwrap();
                        assert!(count == 0 || count == now, "a view changed under its reader");
                        count = now;
                    }
                }
            });
        }
    });
    fs.close().unwrap();
    drop(fs);
    check(&image);
}

#[test]
fn threads_share_a_volume() {
    storm(&["-b", "4096"], 6, 2000, false);
}

#[test]
fn threads_share_a_volume_of_small_blocks_and_a_small_journal() {
    storm(&["-b", "1024", "-J", "size=1"], 6, 2000, false);
}

#[test]
fn threads_share_a_volume_while_views_come_and_go() {
    storm(&["-b", "4096"], 4, 1000, true);
}

#[test]
fn threads_share_a_volume_without_a_journal() {
    storm(&["-b", "4096", "-O", "^has_journal"], 6, 2000, false);
}
