//! `xact info`: what the superblock of an image says.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::Serialize;
use xact_consistency::{EngineOptions, PoolUse, open_generations};
use xact_device::OpenMode;
use xact_layout::feature::{compat, incompat, names, ro_compat};
use xact_layout::superblock::{
    STATE_CLEAN, STATE_ERRORS, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock, Support,
};
use xact_types::printable;

use crate::args::Info;
use crate::exit::{Exit, Failure, Result};
use crate::image;
use crate::output::{print, print_json};
use crate::values::{size_text as size, uuid_text};

/// What is told, in this order.
#[derive(Debug, Serialize)]
struct Facts {
    label: String,
    uuid: String,
    size_bytes: u64,
    /// As of the last clean unmount.
    free_bytes: u64,
    reserved_bytes: u64,
    block_size_bytes: u32,
    groups: u32,
    inodes: u32,
    free_inodes: u32,
    inode_size_bytes: u16,
    journal: bool,
    /// It has generations. Their pool is not told while the volume is mounted.
    generations: bool,
    pool: Option<Pool>,
    /// The journal holds changes that are not in their places yet.
    needs_recovery: bool,
    /// Unmounted cleanly, and no errors noted.
    clean: bool,
    errors_noted: bool,
    features: Vec<String>,
    /// `read-write`, `read-only` or `no`.
    mountable: &'static str,
    /// The features that stand in the way.
    unsupported: Option<String>,
}

/// How full the pool of the generations is.
#[derive(Debug, Serialize)]
struct Pool {
    size_bytes: u64,
    used_bytes: u64,
    /// Of those in use: held by snapshots alone.
    snapshot_bytes: u64,
    /// So much must be free for anything to be added, and is not.
    full: bool,
}

pub fn info(args: &Info) -> Result<()> {
    let home = read(&args.image)?;
    let newest = if home.has_incompat(incompat::XACT_GENERATIONS) { newest(&args.image) } else { None };
    let facts = match newest {
        Some((newest, pool)) => {
            let Facts { label, free_bytes, free_inodes, .. } = Facts::of(&newest);
            Facts { label, free_bytes, free_inodes, pool: Some(pool), ..Facts::of(&home) }
        }
        None => Facts::of(&home),
    };
    if args.json { print_json(&facts) } else { print(&facts.to_string()) }
}

fn read(image: &Path) -> Result<Superblock> {
    if image.is_dir() {
        return Err(Failure::usage(format!(
            "{} is a folder: name the image file or block device",
            image.display()
        ))
        .hint("'xact stat' tells of a mounted volume."));
    }
    let open = |e| Failure::system(format_args!("read {}", image.display()), e);
    let file = File::open(image).map_err(open)?;
    let mut bytes = [0; SUPERBLOCK_BYTES];
    file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => {
            Failure::new(Exit::Io, format!("{} is too short for a volume", image.display()))
        }
        _ => open(e),
    })?;
    Superblock::decode(&bytes).map_err(|e| Failure::volume(image, e))
}

/// The superblock of the newest generation and its pool, where nobody has the volume open and it is sound.
fn newest(image: &Path) -> Option<(Superblock, Pool)> {
    let device = image::open(image, OpenMode::ReadOnly).ok()?;
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let engine = open_generations(device, options).ok()?;
    let home = read(image).ok()?;
    let superblock = xact_fs::superblock::read(&engine, &home).ok()?;
    let pool = engine.snapshots()?.pool_use().ok()?;
    let PoolUse { size_bytes, used_bytes, .. } = pool;
    let snapshot_bytes = pool.for_snapshots_bytes();
    Some((superblock, Pool { size_bytes, used_bytes, snapshot_bytes, full: pool.is_full() }))
}

impl Facts {
    fn of(sb: &Superblock) -> Facts {
        let block = u64::from(sb.block_size());
        let (mountable, unsupported) = match sb.support() {
            Ok(Support::ReadWrite) => ("read-write", None),
            Ok(Support::ReadOnly(features)) => ("read-only", Some(features)),
            Err(error) => ("no", Some(error.to_string())),
        };
        let errors_noted = sb.state() & STATE_ERRORS != 0;
        let needs_recovery = sb.has_incompat(incompat::RECOVER);
        Facts {
            label: String::from_utf8_lossy(sb.volume_name()).into_owned(),
            uuid: uuid_text(&sb.uuid()),
            size_bytes: sb.blocks_count() * block,
            free_bytes: sb.free_blocks_count().saturating_mul(block),
            reserved_bytes: sb.reserved_blocks_count().saturating_mul(block),
            block_size_bytes: sb.block_size(),
            groups: sb.group_count(),
            inodes: sb.inodes_count(),
            free_inodes: sb.free_inodes_count(),
            inode_size_bytes: sb.inode_size(),
            journal: sb.has_compat(compat::HAS_JOURNAL),
            generations: sb.has_incompat(incompat::XACT_GENERATIONS),
            pool: None,
            needs_recovery,
            clean: sb.state() & STATE_CLEAN != 0 && !errors_noted && !needs_recovery,
            errors_noted,
            features: [
                names(sb.feature_compat(), compat::NAMES),
                names(sb.feature_incompat(), incompat::NAMES),
                names(sb.feature_ro_compat(), ro_compat::NAMES),
            ]
            .iter()
            .flat_map(|list| list.split(", "))
            .filter(|name| !name.is_empty())
            .map(str::to_string)
            .collect(),
            mountable,
            unsupported,
        }
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = if self.label.is_empty() { "(none)" } else { &self.label };
        let state = match (self.needs_recovery, self.errors_noted, self.clean) {
            (true, _, _) => "in use, or not unmounted cleanly: the journal holds changes",
            (_, true, _) => "errors were noted: check it with e2fsck",
            (_, _, true) => "clean",
            _ => "not unmounted cleanly",
        };
        writeln!(out, "label:       {}", printable(label))?;
        writeln!(out, "UUID:        {}", self.uuid)?;
        writeln!(out, "state:       {state}")?;
        writeln!(
            out,
            "size:        {}, {} free, {} reserved for root",
            size(self.size_bytes),
            size(self.free_bytes),
            size(self.reserved_bytes)
        )?;
        writeln!(out, "blocks:      {}, in {} groups", size(self.block_size_bytes.into()), self.groups)?;
        writeln!(
            out,
            "inodes:      {}, {} free, {} each",
            self.inodes,
            self.free_inodes,
            size(self.inode_size_bytes.into())
        )?;
        writeln!(out, "journal:     {}", if self.journal { "yes" } else { "no" })?;
        match &self.pool {
            Some(pool) => writeln!(
                out,
                "pool:        {} used of {}, {} of it by snapshots{}",
                size(pool.used_bytes),
                size(pool.size_bytes),
                size(pool.snapshot_bytes),
                if pool.full { "; full: delete snapshots" } else { "" }
            )?,
            None if self.generations => {
                writeln!(out, "pool:        not told while the volume is in use: see 'xact stat MNT'")?;
            }
            None => {}
        }
        writeln!(out, "features:    {}", self.features.join(" "))?;
        match &self.unsupported {
            None => writeln!(out, "xact mounts: {}", self.mountable),
            Some(why) => writeln!(out, "xact mounts: {} ({why})", self.mountable),
        }
    }
}
