//! `xact snapshot`: states of a volume with generations, on a mount or in an image.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::SeekFrom;
use serde::Serialize;
use xact::{Date, Volume, VolumeOptions};
use xact_consistency::{Engine, EngineOptions, SnapshotInfo, Snapshots, open_generations};
use xact_control::abi::FOLDER;
use xact_control::client::TxChange;
use xact_device::{BlockDevice, OpenMode};
use xact_types::{Error, printable};

use super::restore;
use crate::args::{Prune, Snapshot, SnapshotCommand, SnapshotName};
use crate::exit::{Failure, Result};
use crate::output::{print, print_bytes, print_json};
use crate::progress::{Progress, Steps};
use crate::tx::show;
use crate::values::size_text;
use crate::{control, image, mounts};

pub fn snapshot(args: &Snapshot) -> Result<()> {
    match &args.command {
        SnapshotCommand::Create { of, paths } if paths.is_empty() => create(of),
        SnapshotCommand::Create { of, paths } => create_of(of, paths),
        SnapshotCommand::List { at, json } => list(at, *json),
        SnapshotCommand::Delete(args) => delete(args),
        SnapshotCommand::Prune(args) => prune(args),
        SnapshotCommand::Diff { at, old, new, paths, stat, json } => {
            let mut changes = differences(at, old, new.as_deref())?;
            if !paths.is_empty() {
                let tops = paths.iter().map(|path| restore::within(path)).collect::<Result<Vec<_>>>()?;
                let below = |path: &Vec<u8>| restore::is_below(path, &tops);
                changes.retain(|change| below(&change.path) || change.from.as_ref().is_some_and(below));
            }
            match (json, stat) {
                (true, _) => print_json(&show::json(&changes)),
                (_, true) => print(&show::totals(&changes)),
                _ => print(&show::names(&changes)),
            }
        }
        SnapshotCommand::Restore { at, name, paths, .. } if at.is_dir() => {
            restore::restore(&mounts::containing(at)?, name, paths)
        }
        SnapshotCommand::Restore { paths, .. } if !paths.is_empty() => {
            Err(Failure::usage("of an image all is restored: mount it to restore single files"))
        }
        SnapshotCommand::Restore { at, name, .. } => restore_image(at, name),
        SnapshotCommand::Export { at, out, name, .. } => export(at, out, name.as_deref()),
        SnapshotCommand::Image { at, name } => print_image(at, name),
    }
}

fn open(image: &Path, mode: OpenMode) -> Result<Arc<Engine>> {
    open_device(image::open(image, mode)?, image, mode)
}

fn open_device(device: Arc<dyn BlockDevice>, image: &Path, mode: OpenMode) -> Result<Arc<Engine>> {
    let options = EngineOptions { read_only: mode == OpenMode::ReadOnly, ..EngineOptions::default() };
    open_generations(device, options).map_err(|e| Failure::volume(image, e))
}

fn snapshots(engine: &Engine) -> &dyn Snapshots {
    engine.snapshots().expect("was opened as one with generations")
}

fn create(args: &SnapshotName) -> Result<()> {
    if args.at.is_dir() {
        return control::create_snapshot(&mounts::containing(&args.at)?.point, &args.name);
    }
    let wrong = |e: Error| Failure::volume(&args.at, e);
    let engine = open(&args.at, OpenMode::ReadWrite)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    snapshots(&engine).create(&args.name, now).map_err(wrong)?;
    engine.close().map_err(wrong)
}

fn create_of(of: &SnapshotName, paths: &[PathBuf]) -> Result<()> {
    let texts = restore::texts(paths)?;
    if of.at.is_dir() {
        return control::create_snapshot_of(&mounts::containing(&of.at)?.point, &of.name, &texts);
    }
    let wrong = |e: Error| Failure::volume(&of.at, e);
    let device = image::open(&of.at, OpenMode::ReadWrite)?;
    let volume = Volume::open(device, &VolumeOptions::default()).map_err(wrong)?;
    let made = volume.create_snapshot_of(&of.name, &texts);
    let closed = volume.close();
    made.and(closed).map_err(wrong)
}

fn restore_image(image: &Path, name: &str) -> Result<()> {
    let wrong = |e: Error| Failure::volume(image, e);
    let device = image::open(image, OpenMode::ReadWrite)?;
    let (device, _progress) = Progress::over(device, format!("restoring {}", image.display()));
    let engine = open_device(device, image, OpenMode::ReadWrite)?;
    snapshots(&engine).restore(name).map_err(wrong)?;
    engine.close().map_err(wrong)
}

fn delete(args: &SnapshotName) -> Result<()> {
    if args.at.is_dir() {
        return control::delete_snapshot(&mounts::containing(&args.at)?.point, &args.name);
    }
    let wrong = |e: Error| Failure::volume(&args.at, e);
    let engine = open(&args.at, OpenMode::ReadWrite)?;
    snapshots(&engine).delete(&args.name).map_err(wrong)?;
    engine.close().map_err(wrong)
}

fn differences(at: &Path, old: &str, new: Option<&str>) -> Result<Vec<TxChange>> {
    if at.is_dir() {
        return control::diff_snapshots(&mounts::containing(at)?.point, old, new);
    }
    let wrong = |e: Error| Failure::volume(at, e);
    let device = image::open(at, OpenMode::ReadOnly)?;
    let options = VolumeOptions { read_only: true, ..VolumeOptions::default() };
    let volume = Volume::open(device, &options).map_err(wrong)?;
    let found = volume.diff_snapshots(old, new).map_err(wrong)?;
    Ok(found.into_iter().map(xact_fuse::tx_change).collect())
}

#[derive(Debug, Serialize)]
struct Pruned {
    dry_run: bool,
    /// From the oldest on.
    deleted: Vec<String>,
}

fn prune(args: &Prune) -> Result<()> {
    let wrong = |e: Error| Failure::volume(&args.at, e);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let expired =
        |snapshots: &[(String, u64)]| args.retain.expired(snapshots, &args.prefix, now).map_err(wrong);
    let deleted = if args.at.is_dir() {
        let point = mounts::containing(&args.at)?.point;
        let times = control::snapshots(&point)?.into_iter().map(|s| (s.name, s.time)).collect::<Vec<_>>();
        let expired = expired(&times)?;
        if !args.dry_run {
            expired.iter().try_for_each(|name| control::delete_snapshot(&point, name))?;
        }
        expired
    } else {
        let engine = open(&args.at, if args.dry_run { OpenMode::ReadOnly } else { OpenMode::ReadWrite })?;
        let expired = expired(&snapshots(&engine).times())?;
        if !args.dry_run {
            expired.iter().try_for_each(|name| snapshots(&engine).delete(name)).map_err(wrong)?;
        }
        engine.close().map_err(wrong)?;
        expired
    };
    if args.json {
        return print_json(&Pruned { dry_run: args.dry_run, deleted });
    }
    print(&deleted.iter().map(|name| format!("{}\n", printable(name))).collect::<String>())
}

#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    generation: u64,
    /// Seconds since 1970.
    time: u64,
    /// Bytes of the pool that deleting it alone would free, once the sweep has gone round.
    own_bytes: u64,
    /// What it has, from the volume's root; none: all of it.
    paths: Vec<String>,
}

fn list(at: &Path, json: bool) -> Result<()> {
    let snapshots = if at.is_dir() {
        control::snapshots(&mounts::containing(at)?.point)?
    } else {
        snapshots(&*open(at, OpenMode::ReadOnly)?).list().map_err(|e| Failure::volume(at, e))?
    };
    let listed: Vec<Listed> = snapshots
        .into_iter()
        .map(|SnapshotInfo { name, generation, time, own_bytes, paths }| Listed {
            name,
            generation,
            time,
            own_bytes,
            paths: paths.iter().map(|path| format!("/{}", String::from_utf8_lossy(path))).collect(),
        })
        .collect();
    if json {
        return print_json(&listed);
    }
    let line = |s: &Listed| {
        let of = if s.paths.is_empty() {
            String::new()
        } else {
            format!(", of {}", printable(&s.paths.join(" ")))
        };
        let own = size_text(s.own_bytes);
        format!(
            "{}  {}, generation {}, {own} of its own{of}\n",
            printable(&s.name),
            Date::of(s.time),
            s.generation
        )
    };
    print(&listed.iter().map(line).collect::<String>())
}

/// The file of a mount that reads as the snapshot's image.
fn image_of(mount_point: &Path, name: &str) -> Result<PathBuf> {
    let path = mount_point.join(FOLDER).join("images").join(name);
    match fs::symlink_metadata(&path) {
        Ok(_) => Ok(path),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let point = mount_point.display();
            Err(Failure::usage(format!("{point}: there is no snapshot '{name}'")))
        }
        Err(e) => Err(Failure::system(format_args!("look at {}", path.display()), e)),
    }
}

fn print_image(at: &Path, name: &str) -> Result<()> {
    let path = image_of(&mounts::containing(at)?.point, name)?;
    print_bytes(&[path.as_os_str().as_bytes(), b"\n"].concat())
}

fn export(at: &Path, out: &Path, name: Option<&str>) -> Result<()> {
    let made = |size| {
        let file = File::create_new(out);
        file.and_then(|file| file.set_len(size).map(|()| file))
            .map_err(|e| Failure::system(format_args!("create {}", out.display()), e))
    };
    let result = if at.is_dir() {
        let name = name.ok_or_else(|| {
            Failure::usage("what is mounted changes while it is written out: name a snapshot (--name NAME)")
        })?;
        let source = image_of(&mounts::containing(at)?.point, name)?;
        let failed = |e| Failure::system(format_args!("copy {}", source.display()), e);
        let from = File::open(&source).map_err(failed)?;
        let size = from.metadata().map_err(failed)?.len();
        let to = made(size)?;
        let (mut steps, step) = (Steps::new(), format!("exporting {name}"));
        let mut copied = |at: u64| steps.at(&step, at as f64 / size as f64);
        copy_sparse(&from, &to, size, &mut copied).and_then(|()| to.sync_all()).map_err(failed)
    } else {
        let engine = open(at, OpenMode::ReadOnly)?;
        made(engine.volume_bytes())?;
        fill(&engine, at, out, name)
    };
    if result.is_err() {
        // Nothing but an image of ours that is not whole.
        let _ = fs::remove_file(out);
    }
    result
}

/// Copies what holds data, as far as the file can tell, to a file that reads as zeros.
/// Calls `copied` with the offset up to which the copy is complete.
pub fn copy_sparse(from: &File, to: &File, size: u64, copied: &mut dyn FnMut(u64)) -> io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut buf = vec![0; 1 << 20];
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?.min(size);
        at = start;
        while at < end {
            let bytes = &mut buf[..((end - at) as usize).min(1 << 20)];
            from.read_exact_at(bytes, at)?;
            for (n, part) in bytes.chunks(ZEROS.len()).enumerate() {
                if *part != ZEROS[..part.len()] {
                    to.write_all_at(part, at + (n * ZEROS.len()) as u64)?;
                }
            }
            at += bytes.len() as u64;
            copied(at);
        }
    }
    Ok(())
}

fn fill(engine: &Engine, image: &Path, out: &Path, name: Option<&str>) -> Result<()> {
    let device = image::open(out, OpenMode::ReadWrite)?;
    let (device, _progress) = Progress::over(device, format!("exporting to {}", out.display()));
    let copied = snapshots(engine).image(name).and_then(|image| image.export(&*device));
    copied.map_err(|e| Failure::volume(image, e))?;
    // Files that were deleted while they were open are still on the list of orphans; opening frees
    // them, so that e2fsck has nothing to say.
    let wrong = |e: Error| Failure::volume(out, e);
    let volume = xact_fs::open(device, &VolumeOptions::default()).map_err(wrong)?;
    volume.close().map_err(wrong)
}
