//! Opens the allocator, which must know the journal's blocks, and is needed to read them.
//!
//! Layer: above the allocator, the inode table and the extents.

use std::sync::Arc;

use xact_consistency::Engine;
use xact_layout::extent::END_OF_FILES;
use xact_layout::feature::compat;
use xact_layout::superblock::Superblock;
use xact_types::{FileBlock, Ino, Result, Run};

use crate::alloc::Allocator;
use crate::extent::{Extents, Owner};
use crate::inode_table::InodeTable;
use crate::journal_map::lasting_runs;

/// Opens the allocator of a volume. Reads only the journal's inode.
///
/// Errors: `Corrupt` for a journal that cannot be read.
pub fn open_allocator(engine: Arc<Engine>, sb: Superblock) -> Result<Allocator> {
    let mut alloc = Allocator::new(engine, sb);
    let runs = journal_runs(&alloc)?;
    alloc.set_journal(runs);
    Ok(alloc)
}

/// The blocks of the journal inode, if the volume has one, without those added for large commits.
fn journal_runs(alloc: &Allocator) -> Result<Vec<Run>> {
    let (engine, sb) = (alloc.engine(), alloc.superblock());
    let mut runs = Vec::new();
    let ino = Ino(sb.journal_inum());
    if sb.has_compat(compat::HAS_JOURNAL) && ino.0 != 0 {
        let inode = InodeTable::new(alloc).read(ino)?;
        let owner = Owner { ino, generation: inode.generation() };
        let extents = Extents::new(engine, sb, alloc, owner);
        extents.iterate(&inode, FileBlock(0)..END_OF_FILES, &mut |extent| {
            runs.push(extent.run);
            Ok(true)
        })?;
    }
    let made_with = engine.journal().and_then(|journal| journal.size().made_with);
    Ok(lasting_runs(runs, made_with))
}
