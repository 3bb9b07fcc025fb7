//! `xact info`: the properties in the superblock of an image.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use xact::text::printable;
use xact::{Access, Error, PoolUse, VolumeInfo};

use crate::args::Info;
use crate::exit::{Exit, Failure, Result};
use crate::output::{print, print_json};
use crate::values::{size_text as size, uuid_text};

/// The output, in this order.
#[derive(Debug, Serialize)]
struct Facts {
    label: String,
    uuid: String,
    size_bytes: u64,
    /// Free space at the last clean unmount.
    free_bytes: u64,
    reserved_bytes: u64,
    block_size_bytes: u32,
    groups: u32,
    inodes: u32,
    free_inodes: u32,
    inode_size_bytes: u16,
    journal: bool,
    /// Whether it has generations. Their pool is unknown while the volume is mounted.
    generations: bool,
    pool: Option<Pool>,
    /// Whether journal or intent log hold changes that were not written to their places yet.
    needs_recovery: bool,
    /// Whether it was unmounted cleanly and has no errors noted.
    clean: bool,
    errors_noted: bool,
    features: Vec<String>,
    /// `read-write`, `read-only` or `no`.
    mountable: &'static str,
    /// The features that prevent it.
    unsupported: Option<String>,
}

/// Use of the pool of the generations.
#[derive(Debug, Serialize)]
struct Pool {
    size_bytes: u64,
    used_bytes: u64,
    /// The part that only snapshots use.
    snapshot_bytes: u64,
    /// Whether too little is free for anything to be added.
    full: bool,
}

pub fn info(args: &Info) -> Result<()> {
    let facts = Facts::of(read(&args.image)?);
    if args.json { print_json(&facts) } else { print(&facts.to_string()) }
}

fn read(image: &Path) -> Result<VolumeInfo> {
    if image.is_dir() {
        return Err(Failure::usage(format!(
            "{} is a folder: name the image file or block device",
            image.display()
        ))
        .hint("'xact stat' shows statistics of a mounted volume."));
    }
    VolumeInfo::read(image).map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof => {
            Failure::new(Exit::Io, format!("{} is too short for a volume", image.display()))
        }
        Error::Io { source, .. } => {
            let source = Arc::into_inner(source).unwrap_or_else(|| io::ErrorKind::Other.into());
            Failure::system(format_args!("read {}", image.display()), source)
        }
        error => Failure::volume(image, error),
    })
}

impl From<PoolUse> for Pool {
    fn from(pool: PoolUse) -> Pool {
        let snapshot_bytes = pool.for_snapshots_bytes();
        let PoolUse { size_bytes, used_bytes, .. } = pool;
        Pool { size_bytes, used_bytes, snapshot_bytes, full: pool.is_full() }
    }
}

impl Facts {
    fn of(info: VolumeInfo) -> Facts {
        let (mountable, unsupported) = match info.access {
            Access::ReadWrite => ("read-write", None),
            Access::ReadOnly(features) => ("read-only", Some(features)),
            Access::Unsupported(why) => ("no", Some(why)),
            _ => ("no", None),
        };
        Facts {
            label: String::from_utf8_lossy(&info.label).into_owned(),
            uuid: uuid_text(&info.uuid),
            size_bytes: info.size_bytes,
            free_bytes: info.free_bytes,
            reserved_bytes: info.reserved_bytes,
            block_size_bytes: info.block_size_bytes,
            groups: info.groups,
            inodes: info.inodes,
            free_inodes: info.free_inodes,
            inode_size_bytes: info.inode_size_bytes,
            journal: info.journal,
            generations: info.generations,
            pool: info.pool.map(Pool::from),
            needs_recovery: info.needs_recovery,
            clean: info.clean,
            errors_noted: info.errors_noted,
            features: info.features,
            mountable,
            unsupported,
        }
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = if self.label.is_empty() { "(none)" } else { &self.label };
        let state = match (self.needs_recovery, self.errors_noted, self.clean) {
            (true, _, _) => "in use, or not unmounted cleanly: the log holds changes",
            (_, true, _) => "errors were noted: run 'xact check' on it",
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
                writeln!(out, "pool:        unknown while the volume is in use: see 'xact stat MNT'")?;
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
