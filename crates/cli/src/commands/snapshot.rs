//! `xact snapshot`: states of a volume with generations, on a mount or in an image.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use xact::device::OpenMode;
use xact::salvage::Salvage;
use xact::selection::{from_root, is_below, outermost};
use xact::text::printable;
use xact::{Date, Error, OfflineSnapshots, SnapshotInfo, Volume, VolumeOptions, copy_sparse};
use xact_control::abi::FOLDER;
use xact_control::client::TxChange;

use super::{restore, salvage};
use crate::args::{Prune, Snapshot, SnapshotCommand, SnapshotName};
use crate::exit::{Exit, Failure, Result};
use crate::output::{print, print_bytes, print_json};
use crate::progress::{Progress, Steps};
use crate::tx::show;
use crate::values::size_text;
use crate::volume_paths::on_volume_in;
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
                let tops = paths_of_volume(at, paths)?;
                let tops = tops.iter().map(|path| from_root(path)).collect::<Result<Vec<_>, _>>();
                let tops = tops.map_err(Failure::unnamed)?;
                let below = |path: &Vec<u8>| is_below(path, &tops);
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
            Err(Failure::usage("an image can only be restored as a whole: mount it to restore single files"))
        }
        SnapshotCommand::Restore { at, name, .. } => restore_image(at, name),
        SnapshotCommand::Export { at, out, name, salvage, .. } if salvage.best_effort => {
            export_past_damage(at, out, name.as_deref(), salvage.json)
        }
        SnapshotCommand::Export { at, out, name, .. } => export(at, out, name.as_deref()),
        SnapshotCommand::Image { at, name } => print_image(at, name),
    }
}

/// Runs `action` on the snapshots of an image, and closes it after a success.
fn offline<T>(
    image: &Path,
    mode: OpenMode,
    action: impl FnOnce(&OfflineSnapshots) -> xact::Result<T>,
) -> Result<T> {
    let device = image::open(image, mode)?;
    let run = || {
        let snapshots = OfflineSnapshots::open(device, mode)?;
        let done = action(&snapshots)?;
        snapshots.close().map(|()| done)
    };
    run().map_err(|e| Failure::volume(image, e))
}

fn create(args: &SnapshotName) -> Result<()> {
    if args.at.is_dir() {
        return control::create_snapshot(&mounts::containing(&args.at)?.point, &args.name);
    }
    offline(&args.at, OpenMode::ReadWrite, |snapshots| snapshots.create(&args.name))
}

/// Paths from the volume's root. If `at` is a mount, paths on the mount may be given, too.
fn paths_of_volume(at: &Path, paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    if !at.is_dir() {
        return Ok(paths.to_vec());
    }
    let point = mounts::containing(at)?.point;
    on_volume_in(&point, paths, &point)
}

fn create_of(of: &SnapshotName, paths: &[PathBuf]) -> Result<()> {
    let texts = outermost(&paths_of_volume(&of.at, paths)?).map_err(Failure::unnamed)?;
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
    let device = image::open(image, OpenMode::ReadWrite)?;
    let (device, _progress) = Progress::over(device, format!("restoring {}", image.display()));
    let restore = || {
        let snapshots = OfflineSnapshots::open(device, OpenMode::ReadWrite)?;
        snapshots.restore(name)?;
        snapshots.close()
    };
    restore().map_err(|e| Failure::volume(image, e))
}

fn delete(args: &SnapshotName) -> Result<()> {
    if args.at.is_dir() {
        return control::delete_snapshot(&mounts::containing(&args.at)?.point, &args.name);
    }
    offline(&args.at, OpenMode::ReadWrite, |snapshots| snapshots.delete(&args.name))
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
    let deleted = if args.at.is_dir() {
        let point = mounts::containing(&args.at)?.point;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let times = control::snapshots(&point)?.into_iter().map(|s| (s.name, s.time)).collect::<Vec<_>>();
        let expired = args.retain.expired(&times, &args.prefix, now);
        let expired = expired.map_err(|e| Failure::volume(&args.at, e))?;
        if !args.dry_run {
            expired.iter().try_for_each(|name| control::delete_snapshot(&point, name))?;
        }
        expired
    } else {
        let mode = if args.dry_run { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        offline(&args.at, mode, |snapshots| snapshots.prune(&args.retain, &args.prefix, args.dry_run))?
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
    /// Bytes of the pool that deleting it alone would free, once the old copies were written home.
    own_bytes: u64,
    /// Its paths, from the volume's root; empty for the whole volume.
    paths: Vec<String>,
}

fn list(at: &Path, json: bool) -> Result<()> {
    let snapshots = if at.is_dir() {
        control::snapshots(&mounts::containing(at)?.point)?
    } else {
        offline(at, OpenMode::ReadOnly, OfflineSnapshots::list)?
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

/// Makes the file of an export.
fn new_image(out: &Path, size: u64) -> Result<File> {
    let file = File::create_new(out);
    file.and_then(|file| file.set_len(size).map(|()| file))
        .map_err(|e| Failure::system(format_args!("create {}", out.display()), e))
}

fn export(at: &Path, out: &Path, name: Option<&str>) -> Result<()> {
    let result = if at.is_dir() {
        let name = name.ok_or_else(|| {
            Failure::usage("a mounted volume changes during the export: name a snapshot (--name NAME)")
        })?;
        let source = image_of(&mounts::containing(at)?.point, name)?;
        let failed = |e| Failure::system(format_args!("copy {}", source.display()), e);
        let from = File::open(&source).map_err(failed)?;
        let size = from.metadata().map_err(failed)?.len();
        let to = new_image(out, size)?;
        let (mut steps, step) = (Steps::new(), format!("exporting {name}"));
        let mut copied = |at: u64| steps.at(&step, at as f64 / size as f64);
        copy_sparse(&from, &to, size, &mut copied).and_then(|()| to.sync_all()).map_err(|e| {
            failed(e)
                .hint("If the volume is damaged: unmount it, and export from its image with --best-effort.")
        })
    } else {
        let wrong = |e: Error| {
            let advice = salvage::advice(&e);
            let failure = Failure::volume(at, e);
            advice.map_or(failure.clone(), |advice| failure.hint(advice))
        };
        let snapshots = OfflineSnapshots::open(image::open(at, OpenMode::ReadOnly)?, OpenMode::ReadOnly);
        let snapshots = snapshots.map_err(wrong)?;
        new_image(out, snapshots.volume_bytes())?;
        let to = image::open(out, OpenMode::ReadWrite);
        to.and_then(|to| {
            let (to, _progress) = Progress::over(to, format!("exporting to {}", out.display()));
            let incomplete = || format!("The export to {} was incomplete and is deleted.", out.display());
            snapshots.export(name, to).map_err(|e| {
                let failure = wrong(e);
                let hint = failure.hint.iter().cloned().fold(incomplete(), |all, more| all + "\n  " + &more);
                failure.hint(hint)
            })
        })
    };
    if result.is_err() {
        // The file has only an incomplete image.
        let _ = fs::remove_file(out);
    }
    result
}

fn export_past_damage(at: &Path, out: &Path, name: Option<&str>, json: bool) -> Result<()> {
    if at.is_dir() {
        let what = "--best-effort reads the image of a volume that is not mounted";
        return Err(Failure::usage(what).hint("Unmount the volume, and name its image file or device."));
    }
    let source = Salvage::open(image::open(at, OpenMode::ReadOnly)?, name);
    let source = source.map_err(|e| Failure::volume(at, e))?;
    new_image(out, source.volume_bytes())?;
    let result = image::open(out, OpenMode::ReadWrite).and_then(|to| {
        salvage::report(out, &source, json, |source, steps| {
            source.export(to, &mut |step, share| steps.at(step, share))
        })
    });
    if result.as_ref().is_err_and(|failure| failure.exit != Exit::Incomplete) {
        let _ = fs::remove_file(out);
    }
    result
}
