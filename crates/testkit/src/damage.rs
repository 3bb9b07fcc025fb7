//! A volume with one of everything, and the calls of programs on it. Damage of any kind may lead to
//! nothing worse than an error that names the damaged place.

use std::sync::Arc;
use std::time::Duration;

use xact::{Volume, VolumeOptions};
use xact_device::BlockDevice;
use xact_fs::{Allocate, Caller, FileKind, RenameHow, SetAttr, View, WriteHow, XattrHow};
use xact_types::{Error, Ino, Result};

use crate::device::SimDevice;
use crate::image::Image;
use crate::tools::formatted;

const HOW: WriteHow = WriteHow { append: false, kill_suidgid: false, by: Caller::ROOT, is_part: false };
const ROOT: Caller = Caller::ROOT;
/// Bytes of the device after the volume, which must not change.
const BEHIND: u64 = 1 << 20;
const BEHIND_BYTE: u8 = 0x5A;
/// The most entries that a walk visits: damage may lead in circles without an end.
const WALK_MAX: usize = 5000;

pub(crate) fn options() -> VolumeOptions {
    VolumeOptions {
        commit_interval: Duration::from_secs(3600),
        flusher: false,
        cache_bytes: 8 << 20,
        ..VolumeOptions::default()
    }
}

/// A volume with one of everything, in front of bytes that do not belong to it.
///
/// Returns the image, and the number of its bytes that are the volume's.
pub fn populated(mke2fs: &[&str]) -> (Image, u64) {
    let volume_image = formatted(mke2fs, "8M");
    let size = volume_image.size_bytes();
    let mut image = Image::new(size + BEHIND);
    for (offset, bytes) in volume_image.changed_since(&Image::new(size)) {
        image.write(bytes, offset);
    }
    image.write(&vec![BEHIND_BYTE; BEHIND as usize], size);
    let device = SimDevice::new(image);
    let volume = Volume::open(device.clone(), &options()).unwrap();
    populate(&*volume.base()).unwrap();
    volume.close().unwrap();
    (device.image(), size)
}

/// Makes one of everything.
pub(crate) fn populate(view: &dyn View) -> Result<()> {
    let file = |dir: Ino, name: &str, data: &[u8]| -> Result<Ino> {
        let ino = view.make_node(&ROOT, dir, name.as_bytes(), 0o100_644, 0)?.ino;
        view.write(ino, 0, data, HOW)?;
        Ok(ino)
    };
    let linear = view.make_dir(&ROOT, Ino::ROOT, b"linear", 0o755)?.ino;
    for n in 0..10 {
        file(linear, &format!("file-{n}"), &vec![n as u8; 700 * n])?;
    }
    let indexed = view.make_dir(&ROOT, Ino::ROOT, b"indexed", 0o755)?.ino;
    for n in 0..150 {
        file(indexed, &format!("{n}-{}", "a-name-to-fill-blocks-".repeat(4)), b"")?;
    }
    let fragments = file(Ino::ROOT, "fragments", b"")?;
    for n in 0..120u64 {
        view.write(fragments, n * 3 * 4096, &[n as u8; 100], HOW)?;
        if n % 10 == 0 {
            view.sync_file(fragments, true)?;
        }
    }
    view.make_symlink(&ROOT, Ino::ROOT, b"link", "x".repeat(200).as_bytes())?;
    view.set_xattr(&ROOT, linear, b"user.large", &[7; 600], XattrHow::Set)?;
    view.make_node(&ROOT, Ino::ROOT, b"fifo", 0o010_644, 0)?;
    Ok(())
}

/// Reads everything; damage in one place does not end the walk. Returns the errors.
fn walk(view: &dyn View) -> Vec<Error> {
    let (mut errors, mut left, mut looked_at) = (Vec::new(), vec![Ino::ROOT], 0);
    while let Some(dir) = left.pop() {
        let mut entries = Vec::new();
        let listed = view.read_dir(dir, 0, &mut |item| {
            if item.name != b"." && item.name != b".." {
                entries.push((item.name.to_vec(), item.ino, item.kind));
            }
            entries.len() < WALK_MAX
        });
        errors.extend(listed.err());
        for (name, ino, kind) in entries {
            looked_at += 1;
            if looked_at > WALK_MAX {
                return errors;
            }
            errors.extend(view.lookup(dir, &name).err());
            errors.extend(view.attr(ino).err());
            match view.list_xattrs(ino) {
                Ok(names) => errors.extend(names.iter().filter_map(|name| view.xattr(ino, name).err())),
                Err(error) => errors.push(error),
            }
            match kind {
                FileKind::Directory => left.push(ino),
                FileKind::Symlink => errors.extend(view.read_link(ino).err()),
                FileKind::Regular => {
                    for offset in [0, 8 << 10, 100 << 10, 1 << 20] {
                        errors.extend(view.read(ino, offset, 64 << 10, &mut Vec::new()).err());
                    }
                }
                _ => {}
            }
        }
    }
    errors
}

/// Changes a bit of everything, each step independently.
fn change(view: &dyn View) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut step = |result: Result<()>| errors.extend(result.err());
    let find = |path: &str| -> Result<Ino> {
        path.split('/').try_fold(Ino::ROOT, |dir, name| Ok(view.lookup(dir, name.as_bytes())?.ino))
    };
    let on = |path: &str, act: &dyn Fn(Ino) -> Result<()>| find(path).and_then(act);
    step(on("linear", &|dir| {
        for n in 0..8 {
            let name = format!("new-{n}");
            let ino = view.make_node(&ROOT, dir, name.as_bytes(), 0o100_644, 0)?.ino;
            view.write(ino, 0, &[n; 9000], HOW)?;
        }
        view.unlink(&ROOT, dir, b"file-3")?;
        view.rename(&ROOT, (dir, b"file-4"), (dir, b"file-5"), RenameHow::Replace)
    }));
    step(on("indexed", &|dir| {
        view.make_dir(&ROOT, dir, b"below", 0o755)?;
        let name = format!("7-{}", "a-name-to-fill-blocks-".repeat(4));
        view.unlink(&ROOT, dir, name.as_bytes())
    }));
    step(on("fragments", &|ino| view.write(ino, 5000, &[1; 30_000], HOW).map(drop)));
    step(on("fragments", &|ino| view.sync_file(ino, false)));
    step(on("fragments", &|ino| view.allocate(&Caller::ROOT, ino, 60_000, 50_000, Allocate::PunchHole)));
    step(on("fragments", &|ino| {
        view.set_attr(&ROOT, ino, &SetAttr { size: Some(1000), ..SetAttr::default() }).map(drop)
    }));
    step(on("linear", &|ino| view.set_xattr(&ROOT, ino, b"user.large", &[8; 500], XattrHow::Set)));
    step(view.unlink(&ROOT, Ino::ROOT, b"link"));
    step(view.sync_all());
    errors
}

/// Whether the bytes after a volume of `size` bytes are as [`populated`] left them.
pub fn is_untouched_behind(image: &Image, size: u64) -> bool {
    let mut behind = vec![0; BEHIND as usize];
    image.read(&mut behind, size);
    behind.iter().all(|&byte| byte == BEHIND_BYTE)
}

/// Everything done to one image: opened, walked, changed, walked and closed. Returns the errors
/// that a program would see, and the resulting image.
pub fn exercise(image: Image) -> (Vec<Error>, Image) {
    let device = SimDevice::new(image);
    let volume = match Volume::open(device.clone() as Arc<dyn BlockDevice>, &options()) {
        Ok(volume) => volume,
        Err(error) => return (vec![error], device.image()),
    };
    let view = volume.base();
    let mut errors = walk(&*view);
    errors.extend(change(&*view));
    errors.extend(walk(&*view));
    errors.extend(volume.close().err());
    (errors, device.image())
}

/// Whether damage may cause this error. An I/O error would mean an access outside of the volume.
pub fn is_fair(error: &Error) -> bool {
    !matches!(error, Error::Io { .. } | Error::Conflict { .. } | Error::Ended)
}

/// Whether an error names the damage and its place, or a missing feature; `Poisoned` and similar
/// errors follow such an error and do not.
pub fn names_the_place(error: &Error) -> bool {
    matches!(error, Error::Corrupt(_) | Error::Unsupported(_) | Error::Usage(_))
}

/// Whether an error follows from damage, and is not the POSIX outcome of a call.
pub fn is_of_damage(error: &Error) -> bool {
    !matches!(error, Error::Posix(_) | Error::NoSpace | Error::DoesNotFit(_))
}
