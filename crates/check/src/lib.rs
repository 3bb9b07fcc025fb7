//! A full check of an ext4 volume, from the superblock to the last block; it repairs nothing.
//!
//! Layer: above the codecs (`xact_layout`) and the recovery, beside the file system: of that it uses no
//! line, so that the two can tell each other's mistakes.
//!
//! The steps, in order, each over what the ones before have gathered:
//! 1. `fixed`: superblock, group descriptors, where the fixed metadata lies; `journal`; `special`: the
//!    resize inode, the orphan file, multi-mount protection;
//! 2. `inodes`, `map`, `xattrs`: every inode in use, the blocks it claims, its attributes;
//! 3. `dirs`: every block of every directory, hash indexes included;
//! 4. `tree`: reachability, parents, link counts;
//! 5. `bitmaps`: bitmaps, counts and totals against what was seen; `quotas`: what each owner uses.
//!
//! Of a volume with generations, `generations` checks what lies behind the ext4 volume, and each generation
//! that is kept goes through all steps.
//!
//! A volume that a crash left is judged as its recovery would leave it: the log is replayed into memory
//! ([`xact_device::Overlay`]), and nothing is written.
//!
//! Invariants: the device is never written; the number of steps is bounded by the volume's size,
//! whatever its bytes are; a problem names the block, inode or group that it is about.

mod bitmaps;
mod dirs;
mod fixed;
mod generations;
mod inodes;
mod journal;
mod map;
mod orphans;
mod owners;
mod quotas;
mod report;
mod special;
mod tree;
mod used;
mod volume;
mod xattrs;

use std::sync::Arc;

use xact_consistency::EngineOptions;
use xact_device::BlockDevice;
use xact_layout::feature::{self, incompat, ro_compat};
use xact_layout::superblock::Superblock;
use xact_types::{Error, Ino, Result};

pub use owners::{Use, uses};
pub use report::{Problem, Report, Totals};

use inodes::Seen;
use used::UsedBlocks;
use volume::Volume;

/// Features whose structures the check does not know.
const RO_COMPAT_UNKNOWN: u32 = ro_compat::BIGALLOC | ro_compat::SHARED_BLOCKS | ro_compat::BTREE_DIR;

/// Told how far the check has come: the step's name, and a share of it between 0 and 1.
pub type Progress<'p> = &'p mut dyn FnMut(&'static str, f64);

/// Checks the volume on `device`.
///
/// Errors: `Usage` for what is no ext4 volume, `Corrupt` for a superblock or a log that nothing can be
/// built on, `Unsupported` for features that the check does not know, `Io`. Everything else is in the
/// report.
pub fn check(device: Arc<dyn BlockDevice>, progress: Progress<'_>) -> Result<Report> {
    let mut report = Report::default();
    if let Some(sb) = generations::superblock(&*device)? {
        return check_generations(&device, &sb, report, progress);
    }
    let device = replayed(device, &mut report)?;
    check_volume(device, report, false, progress)
}

/// Checks what lies behind the ext4 volume, and each generation as an ext4 volume.
fn check_generations(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    mut report: Report,
    progress: Progress<'_>,
) -> Result<Report> {
    progress("generations", 0.0);
    for generation in generations::generations(device, sb, &mut report)? {
        match check_volume(generation.image, Report::default(), true, progress) {
            Ok(one) => report.add(one, generation.snapshot.as_deref()),
            Err(Error::Corrupt(found)) => report.problem(found.site, found.what),
            Err(error) => return Err(error),
        }
    }
    Ok(report)
}

/// Checks an ext4 volume; `in_use`: as it was at a moment of its use, and not after it was closed.
fn check_volume(
    device: Arc<dyn BlockDevice>,
    report: Report,
    in_use: bool,
    progress: Progress<'_>,
) -> Result<Report> {
    let volume = Volume::open(device)?;
    let named = ro_compat::NAMES.iter().fold(0, |all, (bit, _)| all | bit);
    let unknown = volume.sb.feature_ro_compat() & (RO_COMPAT_UNKNOWN | !named);
    if unknown != 0 {
        return Err(Error::Unsupported(feature::names(unknown, ro_compat::NAMES)));
    }
    volume.sb.support()?;
    let mut checker = Checker::new(&volume, report, progress);
    checker.in_use = in_use;
    checker.run()?;
    Ok(checker.report)
}

/// The device as recovery would leave it.
fn replayed(device: Arc<dyn BlockDevice>, report: &mut Report) -> Result<Arc<dyn BlockDevice>> {
    let overlay: Arc<dyn BlockDevice> = Arc::new(xact_device::Overlay::new(device.clone()));
    let recovery = xact_consistency::recover(&overlay, &EngineOptions::default())?;
    if !recovery.replayed {
        return Ok(device);
    }
    report.is_replayed = true;
    report.remark(format!(
        "the journal holds {} transactions that are not in their places; checked as after their replay",
        recovery.transactions
    ));
    Ok(overlay)
}

/// What the steps share.
struct Checker<'a> {
    volume: &'a Volume,
    report: Report,
    in_use: bool,
    /// In use without a name, on a volume that is checked as it was in its use.
    orphans: std::collections::BTreeSet<Ino>,
    used: UsedBlocks,
    /// By inode number.
    seen: Vec<Seen>,
    directories: Vec<dirs::Directory>,
    /// Of each directory that a name leads to: the one that has the name.
    parents: std::collections::BTreeMap<Ino, Ino>,
    /// Attribute blocks met so far.
    xattr_blocks: std::collections::BTreeMap<u64, xattrs::SharedBlock>,
    /// Attributes whose value is in an inode, by that inode.
    value_users: std::collections::BTreeMap<u32, u64>,
    /// How many of them there are, as that inode counts them.
    value_counts: std::collections::BTreeMap<u32, u64>,
    /// What each user, group and project uses.
    usage: quotas::SeenUsage,
    progress: Progress<'a>,
}

impl<'a> Checker<'a> {
    fn new(volume: &'a Volume, report: Report, progress: Progress<'a>) -> Checker<'a> {
        Checker {
            used: UsedBlocks::new(volume.sb.blocks_count()),
            seen: vec![Seen::default(); volume.sb.inodes_count() as usize + 1],
            volume,
            report,
            in_use: false,
            orphans: Default::default(),
            directories: Vec::new(),
            parents: Default::default(),
            xattr_blocks: Default::default(),
            value_users: Default::default(),
            value_counts: Default::default(),
            usage: Default::default(),
            progress,
        }
    }
}

impl Checker<'_> {
    /// Whether files may be without a name: held open, or deleted in part, when the volume was left.
    fn was_in_use(&self) -> bool {
        self.in_use || self.report.is_replayed
    }

    fn run(&mut self) -> Result<()> {
        (self.progress)("superblock and groups", 0.0);
        self.check_fixed()?;
        if self.was_in_use() {
            self.find_orphans()?;
        }
        self.check_inodes()?;
        self.check_special()?;
        self.check_journal()?;
        self.check_shared_xattrs();
        self.check_directories()?;
        (self.progress)("tree", 0.0);
        self.check_tree();
        self.check_bitmaps()?;
        self.check_quotas()?;
        if self.volume.sb.has_incompat(incompat::RECOVER) {
            self.report.remark("the superblock says that the journal needs recovery".into());
        }
        Ok(())
    }
}
