//! `xact convert`: generations for a plain volume, and back.

use std::fs::OpenOptions;
use std::path::Path;

use xact::convert;
use xact::device::OpenMode;
use xact::salvage::Salvage;
use xact::{VolumeOn, default_pool_bytes, volume_on};

use super::salvage;
use crate::args::{Convert, ConvertTo};
use crate::exit::{Exit, Failure, Result};
use crate::image;
use crate::progress::Progress;

pub fn convert(args: &Convert) -> Result<()> {
    match args.to {
        ConvertTo::Generations if args.salvage.best_effort => {
            Err(Failure::usage("--best-effort is for --to ext4"))
        }
        ConvertTo::Generations => to_generations(args),
        ConvertTo::Ext4 => to_ext4(args),
    }
}

fn to_generations(args: &Convert) -> Result<()> {
    let image = &args.image;
    let found = look_at(image)?;
    if found.has_generations {
        return Err(Failure::usage(format!("{} has generations already", image.display())));
    }
    let volume = found.size_bytes;
    let pool = args.pool_size.unwrap_or(default_pool_bytes(volume, found.block_size));
    // It grows first: the space behind the volume is harmless as long as nothing refers to it.
    resize(image, |size| size.max(volume.saturating_add(pool)))?;
    let device = image::open(image, OpenMode::ReadWrite)?;
    let (device, progress) = Progress::over(device, format!("converting {}", image.display()));
    let result = convert::to_generations(&device).map_err(|e| Failure::volume(image, e));
    drop((device, progress));
    if result.is_err() && !look_at(image)?.has_generations {
        resize(image, |_| volume)?;
    }
    result
}

fn to_ext4(args: &Convert) -> Result<()> {
    let image = &args.image;
    if args.pool_size.is_some() {
        return Err(Failure::usage("--pool-size is for --to generations"));
    }
    let has_generations = look_at(image)?.has_generations;
    if args.salvage.best_effort && has_generations {
        return to_ext4_past_damage(args);
    }
    let device = image::open(image, OpenMode::ReadWrite)?;
    let (device, progress) = Progress::over(device, format!("converting {}", image.display()));
    convert::to_plain(&device).map_err(|e| {
        let advice = salvage::advice(&e).filter(|_| has_generations);
        let failure = Failure::volume(image, e);
        advice.map_or(failure.clone(), |advice| failure.hint(advice))
    })?;
    drop((device, progress));
    cut_pool(image)
}

fn to_ext4_past_damage(args: &Convert) -> Result<()> {
    let image = &args.image;
    let source = Salvage::open(image::open(image, OpenMode::ReadWrite)?, None);
    let source = source.map_err(|e| Failure::volume(image, e))?;
    let result = salvage::report(image, &source, args.salvage.json, |source, steps| {
        source.convert(&mut |step, share| steps.at(step, share))
    });
    drop(source);
    match &result {
        Err(failure) if failure.exit != Exit::Incomplete => result,
        _ => cut_pool(image).and(result),
    }
}

/// Cuts off the pool of a volume that has become a plain one.
fn cut_pool(image: &Path) -> Result<()> {
    let volume = look_at(image)?.size_bytes;
    resize(image, |_| volume)
}

/// The volume in an image. Refused where anybody has it open.
fn look_at(image: &Path) -> Result<VolumeOn> {
    let device = image::open(image, OpenMode::ReadWrite)?;
    volume_on(&*device).map_err(|e| Failure::volume(image, e))
}

/// Makes an image file another size; a block device has the one that it has.
fn resize(image: &Path, to: impl Fn(u64) -> u64) -> Result<()> {
    let resized = OpenOptions::new().write(true).open(image).and_then(|file| {
        let about = file.metadata()?;
        let size = to(about.len());
        if !about.is_file() || size == about.len() {
            return Ok(());
        }
        file.set_len(size)?;
        file.sync_all()
    });
    resized.map_err(|e| Failure::system(format_args!("change the size of {}", image.display()), e))
}
