//! `--best-effort`: a damaged volume with generations becomes plain ext4, and what is missing is
//! listed.

use std::ops::Range;
use std::path::Path;

use serde::Serialize;
use xact::Error;
use xact::salvage::{BlockDamage, DamagedBlocks, Missing, MissingPart, Salvage, Salvaged};
use xact::text::printable;

use crate::exit::{Exit, Failure, Result};
use crate::output::{print, print_json};
use crate::progress::Steps;

#[derive(Debug, Serialize)]
struct Outcome {
    image: String,
    /// Whether nothing is missing, and e2fsck finds nothing to repair.
    complete: bool,
    damaged_blocks: Vec<Blocks>,
    missing: Vec<Part>,
}

#[derive(Debug, Serialize)]
struct Blocks {
    first: u64,
    count: u64,
    /// `checksum`, `unreadable` or `unknown_place`.
    damage: &'static str,
}

#[derive(Debug, Serialize)]
struct Part {
    inode: u32,
    /// From the root; `null` if no name leads to the inode.
    path: Option<String>,
    /// `inode`: all of it; `name`; `names` of a folder; `bytes` of the contents; `attributes`.
    part: &'static str,
    /// For `bytes`: first byte, and the byte after the last one.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    ranges: Vec<(u64, u64)>,
}

/// The advice after damage has stopped a command that has the flag.
pub fn advice(error: &Error) -> Option<&'static str> {
    let is_damage = match error {
        Error::Corrupt(_) | Error::Poisoned(_) => true,
        Error::Io { what, .. } => what.starts_with("reading"),
        _ => false,
    };
    is_damage.then_some("With --best-effort it continues past damage, and lists what is missing.")
}

/// Runs `save`, and reports what it has left out of the plain volume at `image`.
pub fn report(
    image: &Path,
    source: &Salvage,
    json: bool,
    save: impl FnOnce(&Salvage, &mut Steps) -> xact::Result<Salvaged>,
) -> Result<()> {
    let mut steps = Steps::new();
    let salvaged = save(source, &mut steps).map_err(|e| Failure::volume(image, e))?;
    drop(steps);
    if json {
        print_json(&Outcome::of(image, &salvaged))?;
    } else {
        print(&sentences(&salvaged))?;
    }
    if !salvaged.needs_repair {
        return Ok(());
    }
    let blocks: u64 = salvaged.damaged.iter().map(|one| one.blocks.end - one.blocks.start).sum();
    let (name, count) = (image.display(), salvaged.missing.len());
    let message =
        format!("{name}: saved in part; damaged blocks: {blocks}, incomplete files and folders: {count}");
    Err(Failure::new(Exit::Incomplete, message).hint(format!(
        "Repair it with 'e2fsck -fy {name}', which puts files without a name into lost+found."
    )))
}

fn sentences(salvaged: &Salvaged) -> String {
    let mut text = String::new();
    for DamagedBlocks { blocks, damage } in &salvaged.damaged {
        let what = damage.text();
        text += &match blocks.end - blocks.start {
            1 => format!("block {}: {what}\n", blocks.start),
            _ => format!("blocks {}-{}: {what}\n", blocks.start, blocks.end - 1),
        };
    }
    for missing in &salvaged.missing {
        text += &format!("{}: {}\n", printable(&name(missing)), what(&missing.part));
    }
    text
}

fn name(missing: &Missing) -> String {
    match path(missing) {
        Some(path) => format!("{path} (inode {})", missing.ino.0),
        None => format!("inode {}", missing.ino.0),
    }
}

fn path(missing: &Missing) -> Option<String> {
    missing.path.as_ref().map(|path| format!("/{}", String::from_utf8_lossy(path)))
}

fn what(part: &MissingPart) -> String {
    match part {
        MissingPart::Inode => "may be missing, or in an older state".into(),
        MissingPart::Name => "has lost its name".into(),
        MissingPart::Names => "names may be missing".into(),
        MissingPart::Bytes(ranges) => {
            let text = |range: &Range<u64>| format!("{}-{}", range.start, range.end - 1);
            format!("damaged bytes: {}", ranges.iter().map(text).collect::<Vec<_>>().join(", "))
        }
        MissingPart::Attributes => "its attributes are damaged".into(),
    }
}

impl Outcome {
    fn of(image: &Path, salvaged: &Salvaged) -> Outcome {
        let blocks = |one: &DamagedBlocks| Blocks {
            first: one.blocks.start,
            count: one.blocks.end - one.blocks.start,
            damage: match one.damage {
                BlockDamage::Checksum => "checksum",
                BlockDamage::Unreadable => "unreadable",
                BlockDamage::UnknownPlace => "unknown_place",
            },
        };
        let part = |missing: &Missing| Part {
            inode: missing.ino.0,
            path: path(missing),
            part: match missing.part {
                MissingPart::Inode => "inode",
                MissingPart::Name => "name",
                MissingPart::Names => "names",
                MissingPart::Bytes(_) => "bytes",
                MissingPart::Attributes => "attributes",
            },
            ranges: match &missing.part {
                MissingPart::Bytes(ranges) => ranges.iter().map(|range| (range.start, range.end)).collect(),
                _ => Vec::new(),
            },
        };
        Outcome {
            image: image.display().to_string(),
            complete: !salvaged.needs_repair,
            damaged_blocks: salvaged.damaged.iter().map(blocks).collect(),
            missing: salvaged.missing.iter().map(part).collect(),
        }
    }
}
