//! `xact mkfs`: makes a volume, and protects existing data from being overwritten by mistake.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use rustix::process::{getegid, geteuid};
use serde::Serialize;
use xact::device::OpenMode;
use xact::mkfs::{JournalSize, MkfsOptions, MkfsReport, check, check_generations, default_pool_bytes_for};

use crate::args::{EngineKind, Mkfs};
use crate::exit::{Failure, Result};
use crate::image;
use crate::output::{print, print_json};
use crate::progress::Progress;
use crate::values::{size_text, uuid_text};

/// The smallest volume: below it, ext4's own structures hardly fit.
const SMALLEST: u64 = 256 << 10;
/// The smallest size that fits is searched in these steps, and with this number of doublings.
const STEP: u64 = 1 << 20;
const DOUBLINGS: u32 = 12;

#[derive(Debug, Serialize)]
struct Made {
    image: String,
    uuid: String,
    size_bytes: u64,
    block_size_bytes: u32,
    groups: u32,
    inodes: u32,
    journal_bytes: u64,
    /// The pool behind the volume, for metadata that generations move.
    pool_bytes: u64,
    reserved_bytes: u64,
}

pub fn mkfs(args: &Mkfs) -> Result<()> {
    let prepared = prepare(args)?;
    let result = make(args, &prepared);
    if result.is_err() && prepared.new {
        // An empty file that this command made. If it cannot be removed, it remains an empty file.
        let _ = fs::remove_file(&args.image);
    }
    let made = result?;
    if args.json {
        return print_json(&made);
    }
    print(&format!(
        "{}: {} in blocks of {}, {} inodes, {}\n",
        made.image,
        size_text(made.size_bytes),
        size_text(made.block_size_bytes.into()),
        made.inodes,
        match (made.pool_bytes, made.journal_bytes) {
            (0, 0) => "no journal".to_string(),
            (0, bytes) => format!("a journal of {}", size_text(bytes)),
            (bytes, _) => format!("generations, with a pool of {}", size_text(bytes)),
        }
    ))
}

/// The image or device, ready to be written.
struct Prepared {
    /// This command created the file.
    new: bool,
    /// It reads as zeros.
    zeroed: bool,
}

fn prepare(args: &Mkfs) -> Result<Prepared> {
    let name = args.image.display();
    check_options(args)?;
    match fs::metadata(&args.image) {
        Ok(about) if about.is_file() => {
            check_contents(args)?;
            let Some(size) = args.size.or((about.len() > 0).then_some(about.len())) else {
                return Err(Failure::usage(format!("{name} is empty")).hint("Set its size with --size."));
            };
            check_size(args, size)?;
            let file = OpenOptions::new().write(true).open(&args.image);
            // Truncated first, so that the file is sparse and its old contents are discarded.
            file.and_then(|file| file.set_len(0).and_then(|()| file.set_len(size)))
                .map_err(|e| cannot_size(&args.image, size, e))?;
            Ok(Prepared { new: false, zeroed: true })
        }
        Ok(_) => {
            check_contents(args)?;
            let device_bytes = image::open(&args.image, OpenMode::ReadWrite)?.size_bytes();
            let size = args.size.unwrap_or(device_bytes);
            if size > device_bytes {
                let (has, wanted) = (size_text(device_bytes), size_text(size));
                return Err(Failure::usage(format!("{name} has {has}, which is less than --size {wanted}")));
            }
            check_size(args, size)?;
            Ok(Prepared { new: false, zeroed: false })
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let Some(size) = args.size else {
                return Err(Failure::usage(format!("{name} does not exist"))
                    .hint("Set the size of the new image, such as --size 1G."));
            };
            check_size(args, size)?;
            let made = File::create_new(&args.image);
            let file = made.map_err(|e| Failure::system(format_args!("create {name}"), e))?;
            file.set_len(size).map_err(|e| {
                let _ = fs::remove_file(&args.image);
                cannot_size(&args.image, size, e)
            })?;
            Ok(Prepared { new: true, zeroed: true })
        }
        Err(e) => Err(Failure::system(format_args!("look at {name}"), e)),
    }
}

fn check_options(args: &Mkfs) -> Result<()> {
    if args.pool_size.is_some() && args.engine != EngineKind::Generations {
        return Err(Failure::usage("--pool-size needs --engine generations"));
    }
    match (args.engine, args.journal_size) {
        (EngineKind::Journal, _) | (_, None | Some(0)) => Ok(()),
        (EngineKind::Generations, _) => Err(Failure::usage("--journal-size needs --engine journal")
            .hint("A volume with generations has no journal; --pool-size sets the size of its pool.")),
        (EngineKind::None, _) => Err(Failure::usage("--journal-size needs --engine journal")),
    }
}

/// Checks the size of the volume against the options, before an old image is truncated.
fn check_size(args: &Mkfs, size: u64) -> Result<()> {
    let pool = match args.engine {
        EngineKind::Generations => {
            args.pool_size.unwrap_or(default_pool_bytes_for(size, &options(args, true)))
        }
        EngineKind::Journal | EngineKind::None => 0,
    };
    let volume = size.saturating_sub(pool);
    if volume < SMALLEST && pool > 0 {
        let enough = smallest_size(args, size)
            .map_or(String::new(), |least| format!(" to {} at least", size_text(least)));
        let (size, pool, left) = (size_text(size), size_text(pool), size_text(volume));
        return Err(Failure::usage(format!(
            "a pool of {pool} in an image of {size} leaves {left} for the volume"
        ))
        .hint(format!(
            "The pool is part of the image: reduce it with --pool-size, or enlarge the image with --size{enough}."
        )));
    }
    if volume < SMALLEST {
        return Err(Failure::usage(format!("a volume of {} is too small", size_text(size)))
            .hint(format!("The smallest is {}.", size_text(SMALLEST))));
    }
    fits(args, size).map_err(|e| {
        let failure = Failure::volume(&args.image, e);
        let smallest = smallest_size(args, size).map(size_text);
        smallest.map_or(failure.clone(), |least| {
            failure.hint(format!("With these options, the smallest size is {least}."))
        })
    })
}

/// An error if no volume with these options fits.
fn fits(args: &Mkfs, size: u64) -> xact::Result<()> {
    let options = options(args, true);
    match args.engine {
        EngineKind::Generations => check_generations(size, &options, args.pool_size),
        EngineKind::Journal | EngineKind::None => check(size, &options),
    }
}

/// The smallest size above `size` that fits the options, rounded up; `None` if none was found.
fn smallest_size(args: &Mkfs, size: u64) -> Option<u64> {
    let step = if size < STEP { 64 << 10 } else { STEP };
    let mut too_small = size / step;
    let mut enough = (0..DOUBLINGS).map(|n| (too_small + 1) << n).find(|&n| fits(args, n * step).is_ok())?;
    while enough - too_small > 1 {
        let middle = too_small.midpoint(enough);
        if fits(args, middle * step).is_ok() { enough = middle } else { too_small = middle }
    }
    Some(enough * step)
}

fn cannot_size(image: &Path, size: u64, error: io::Error) -> Failure {
    Failure::system(format_args!("make {} {} large", image.display(), size_text(size)), error)
}

/// Fails if the image is in use or, without `--force`, if it holds data.
fn check_contents(args: &Mkfs) -> Result<()> {
    // Fails if another process has it open.
    drop(image::open(&args.image, OpenMode::ReadWrite)?);
    let contents = image::contents(&args.image)
        .map_err(|e| Failure::system(format_args!("read {}", args.image.display()), e))?;
    match contents {
        Some(what) if !args.force => {
            Err(Failure::usage(format!("{} already holds {what}", args.image.display()))
                .hint("Nothing was changed. To discard its contents, add --force."))
        }
        _ => Ok(()),
    }
}

fn make(args: &Mkfs, prepared: &Prepared) -> Result<Made> {
    let device = image::open(&args.image, OpenMode::ReadWrite)?;
    let options = options(args, prepared.zeroed);
    let (device, progress) = Progress::over(device, format!("making {}", args.image.display()));
    let report = match args.engine {
        EngineKind::Generations => xact::mkfs::mkfs_generations(&device, &options, args.pool_size),
        EngineKind::Journal | EngineKind::None => xact::mkfs::mkfs(&*device, &options),
    };
    let report = report.map_err(|e| Failure::volume(&args.image, e))?;
    drop(progress);
    Ok(Made::of(&args.image, &report))
}

fn options(args: &Mkfs, zeroed: bool) -> MkfsOptions {
    // The owner of a file that the caller makes.
    let caller = || (geteuid().as_raw(), getegid().as_raw());
    let journal = match (args.engine, args.journal_size) {
        (EngineKind::None | EngineKind::Generations, _) | (_, Some(0)) => JournalSize::None,
        (_, None) => JournalSize::Default,
        (_, Some(bytes)) => JournalSize::Bytes(bytes),
    };
    MkfsOptions {
        label: args.label.clone(),
        uuid: args.uuid,
        block_size: args.block_size,
        size_bytes: args.size,
        inode_ratio: args.inode_ratio,
        journal,
        reserved_percent: args.reserved_percent,
        zeroed,
        root_owner: args.root_owner.unwrap_or_else(caller),
        ..MkfsOptions::default()
    }
}

impl Made {
    fn of(image: &Path, report: &MkfsReport) -> Made {
        let block = u64::from(report.block_size);
        Made {
            image: image.display().to_string(),
            uuid: uuid_text(&report.uuid),
            size_bytes: report.blocks * block,
            block_size_bytes: report.block_size,
            groups: report.groups,
            inodes: report.inodes,
            journal_bytes: u64::from(report.journal_blocks) * block,
            pool_bytes: report.pool_bytes,
            reserved_bytes: report.reserved_blocks * block,
        }
    }
}
