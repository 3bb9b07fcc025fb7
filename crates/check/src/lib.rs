//! A full check of an ext4 volume, from the superblock to the last block; it repairs nothing.
//!
//! Layer: above the codecs (`xact_layout`) and the recovery, beside the file system. It uses no
//! line of the file system, so that each of the two reveals the other's mistakes.
//!
//! The steps, in order; each uses the findings of the steps before:
//! 1. `fixed`: superblock, group descriptors, positions of the fixed metadata; `journal`;
//!    `special`: the resize inode, the orphan file, multi-mount protection;
//! 2. `inodes`, `map`, `xattrs`: every inode in use, the blocks it claims, its attributes;
//! 3. `dirs`: every block of every directory, hash indexes included;
//! 4. `tree`: reachability, parents, link counts;
//! 5. `bitmaps`: bitmaps, counts and totals against the findings; `quotas`: the usage of each
//!    owner.
//!
//! On a volume with generations, `generations` checks the pool after the ext4 volume, and each
//! generation goes through all steps.
//!
//! A volume that a crash left is checked as its recovery would leave it: the log is replayed into
//! memory ([`xact_device::Overlay`]), and nothing is written. An unusable superblock or group
//! descriptor is replaced by a copy, also in memory (`backups`), and a damaged journal is not
//! replayed; the rest is checked all the same.
//!
//! Invariants: the device is never written; the number of steps is bounded by the volume's size,
//! whatever its bytes are; a problem names its block, inode or group.

mod backups;
mod checker;
mod generations;
mod owners;
mod replay;
mod report;
mod used;
mod volume;

use std::sync::Arc;

use xact_device::BlockDevice;
use xact_layout::feature::{self, ro_compat};
use xact_layout::superblock::Superblock;
use xact_types::{Error, Result, Site};

pub use checker::{Missing, MissingPart, MissingReport, missing};
pub use owners::{Use, uses};
pub use report::{Problem, Progress, Report, Totals};

use checker::Checker;
use replay::{Replayed, replayed};
use volume::Volume;

/// Features whose structures the check does not support.
const RO_COMPAT_UNKNOWN: u32 = ro_compat::BIGALLOC | ro_compat::SHARED_BLOCKS | ro_compat::BTREE_DIR;

/// Checks the volume on `device`.
///
/// Errors: `Usage` if it is not an ext4 volume, `Corrupt` if neither its superblock nor a copy of
/// it is usable, `Unsupported` for features that the check does not support, `Io`. Everything else
/// is in the report.
pub fn check(device: Arc<dyn BlockDevice>, progress: Progress<'_>) -> Result<Report> {
    let unusable = match check_by_superblock(&device, Report::default(), progress) {
        Err(error) if backups::is_of_superblock(&error) => error,
        result => return result,
    };
    let Some((usable, how)) = backups::with_usable_superblock(&device)? else { return Err(unusable) };
    let mut report = Report::default();
    let why = match &unusable {
        Error::Corrupt(found) => found.what.to_owned(),
        other => other.to_string(),
    };
    report.problem(Site::Superblock, format!("{why}; {how}"));
    check_by_superblock(&usable, report, progress)
}

/// Checks a volume by the superblock in its first place. Errors as [`check`].
fn check_by_superblock(
    device: &Arc<dyn BlockDevice>,
    mut report: Report,
    progress: Progress<'_>,
) -> Result<Report> {
    if let Some(sb) = generations::superblock(&**device)? {
        return check_generations(device, &sb, report, progress);
    }
    let replayed = replayed(device.clone(), &mut report)?;
    check_volume(replayed, report, false, progress)
}

/// Checks the pool after the ext4 volume, and each generation as an ext4 volume.
fn check_generations(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    mut report: Report,
    progress: Progress<'_>,
) -> Result<Report> {
    progress("generations", 0.0);
    for generation in generations::generations(device, sb, &mut report)? {
        let volume = Replayed { device: generation.image, without_journal: false };
        match check_volume(volume, Report::default(), true, progress) {
            Ok(one) => report.add(one, generation.snapshot.as_deref()),
            Err(Error::Corrupt(found)) => report.problem(found.site, found.what),
            Err(error) => return Err(error),
        }
    }
    Ok(report)
}

/// Checks an ext4 volume; `in_use`: as of a moment of its use, and not after it was closed.
fn check_volume(replayed: Replayed, report: Report, in_use: bool, progress: Progress<'_>) -> Result<Report> {
    let volume = Volume::open(replayed.device)?;
    let named = ro_compat::NAMES.iter().fold(0, |all, (bit, _)| all | bit);
    let unknown = volume.sb.feature_ro_compat() & (RO_COMPAT_UNKNOWN | !named);
    if unknown != 0 {
        return Err(Error::Unsupported(feature::names(unknown, ro_compat::NAMES)));
    }
    volume.sb.support()?;
    let mut checker = Checker::new(&volume, report, progress);
    checker.in_use = in_use;
    checker.without_journal = replayed.without_journal;
    checker.run()?;
    Ok(checker.report)
}
