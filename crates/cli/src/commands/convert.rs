//! `xact convert`: generations for a plain volume, and back.

use std::fs::OpenOptions;
use std::path::Path;

use xact::convert;
use xact::device::OpenMode;
use xact::{default_pool_bytes, volume_on};

use crate::args::{Convert, ConvertTo};
use crate::exit::{Failure, Result};
use crate::image;
use crate::progress::Progress;

pub fn convert(args: &Convert) -> Result<()> {
    match args.to {
        ConvertTo::Generations => to_generations(args),
        ConvertTo::Ext4 => to_ext4(args),
    }
}

fn to_generations(args: &Convert) -> Result<()> {
    let image = &args.image;
    let (volume, has_generations) = look_at(image)?;
    if has_generations {
        return Err(Failure::usage(format!("{} has generations already", image.display())));
    }
    let pool = args.pool_size.unwrap_or(default_pool_bytes(volume));
    // It grows first: the space behind the volume is harmless as long as nothing refers to it.
    resize(image, |size| size.max(volume.saturating_add(pool)))?;
    let device = image::open(image, OpenMode::ReadWrite)?;
    let (device, progress) = Progress::over(device, format!("converting {}", image.display()));
    let result = convert::to_generations(&device).map_err(|e| Failure::volume(image, e));
    drop((device, progress));
    if result.is_err() && !look_at(image)?.1 {
        resize(image, |_| volume)?;
    }
    result
}

fn to_ext4(args: &Convert) -> Result<()> {
    let image = &args.image;
    if args.pool_size.is_some() {
        return Err(Failure::usage("--pool-size is for --to generations"));
    }
    let device = image::open(image, OpenMode::ReadWrite)?;
    let (device, progress) = Progress::over(device, format!("converting {}", image.display()));
    convert::to_plain(&device).map_err(|e| Failure::volume(image, e))?;
    drop((device, progress));
    let (volume, _) = look_at(image)?;
    resize(image, |_| volume)
}

/// Size of the ext4 volume, and whether it has generations. Refused where anybody has it open.
fn look_at(image: &Path) -> Result<(u64, bool)> {
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
