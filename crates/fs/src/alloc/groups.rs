//! The groups of a volume, whose descriptors are read when they are first needed (SNAP-8): the time
//! to open a volume does not depend on their number.
//!
//! - *All groups* are read together before blocks or inodes are taken or given back, and before
//!   free space is counted: that count is the sum over all descriptors, and any block may hold
//!   fixed metadata of any group.
//! - *One flex group* is read before that, to read an inode or a file: it gives the places of its
//!   inode tables, and the blocks that cannot belong to a file. This is enough on a volume where
//!   the bitmaps and the table of each group lie in its own flex group, as mke2fs places them. If
//!   those of the last group (`-E packed_meta_blocks`) or of a requested group do not, all groups
//!   are read at once. Until all groups are read, a file that claims an inode table of another flex
//!   group's group is not detected; that is before any space is taken, freed or linked.
//!
//! No descriptor and no written part of a table changes before all groups are read, so a flex group
//! in memory is never out of date while it is used.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use xact_consistency::{Engine, lock_within};
use xact_layout::group::GroupDesc;
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, GroupNr, Result, Run, Site};

use super::AllocatorCore;
use super::group::{Group, table_ready};
use super::zone::SystemZone;

/// The groups in memory.
pub(super) struct Groups {
    all: OnceLock<AllGroups>,
    /// Held by the thread that reads all groups.
    reading: Mutex<()>,
    /// Flex groups that were requested before all groups were read.
    parts: RwLock<HashMap<u32, Arc<FlexGroup>>>,
    is_regular: OnceLock<bool>,
    flex: u32,
    /// The journal's blocks, and that of multi-mount protection.
    fixed: Vec<Run>,
}

pub(super) struct AllGroups {
    groups: Box<[Group]>,
    pub zone: SystemZone,
}

struct FlexGroup {
    /// For each group, the first block of its inode table, and the number of inodes in the table's
    /// written part.
    tables: Box<[(BlockNr, u32)]>,
    zone: SystemZone,
}

impl Groups {
    pub fn new(sb: &Superblock, fixed: Vec<Run>) -> Groups {
        let count = sb.group_count();
        let flex =
            1u32.checked_shl(u32::from(sb.log_groups_per_flex())).unwrap_or(count).clamp(1, count.max(1));
        Groups {
            all: OnceLock::new(),
            reading: Mutex::new(()),
            parts: RwLock::default(),
            is_regular: OnceLock::new(),
            flex,
            fixed,
        }
    }
}

impl AllocatorCore {
    /// Reads all groups into memory, unless they are.
    ///
    /// Errors: `Corrupt` for a descriptor whose checksum does not match, or whose bitmaps or inode
    /// table lie outside the volume, over one another or over the journal.
    pub(super) fn read_all(&self) -> Result<&AllGroups> {
        if let Some(all) = self.groups.all.get() {
            return Ok(all);
        }
        let _reading = lock_within(&self.engine, &self.groups.reading);
        if let Some(all) = self.groups.all.get() {
            return Ok(all);
        }
        let descs = read_descriptors(&self.engine, &self.sb, 0..self.sb.group_count())?;
        let zone = SystemZone::new(&self.sb, GroupNr(0), &descs)?.with_fixed(&self.sb, &self.groups.fixed)?;
        let cluster = u64::from(self.sb.cluster_blocks());
        let free_blocks = descs.iter().map(|desc| u64::from(desc.free_blocks()) * cluster).sum();
        let free_inodes = descs.iter().map(|desc| u64::from(desc.free_inodes())).sum();
        let sparse = self.is_sparse();
        self.counters.begin(free_blocks, free_inodes, sparse);
        let groups = descs.iter().map(|desc| Group::new(&self.sb, desc, sparse)).collect();
        Ok(self.groups.all.get_or_init(|| AllGroups { groups, zone }))
    }

    fn has_read_all(&self) -> bool {
        self.groups.all.get().is_some()
    }

    /// All groups. The caller has called [`Self::read_all`].
    pub(super) fn all(&self) -> &AllGroups {
        self.groups.all.get().expect("all groups are read before free space changes")
    }

    pub(super) fn group(&self, number: GroupNr) -> &Group {
        &self.all().groups[number.0 as usize]
    }

    /// A group's inode table: its first block, and the number of inodes in its written part.
    pub(crate) fn inode_table(&self, number: GroupNr) -> Result<(BlockNr, u32)> {
        if let Some(part) = self.part(number)? {
            return Ok(part.tables[(number.0 % self.groups.flex) as usize]);
        }
        let group = self.group(number);
        Ok((group.inode_table, group.table_ready.load(Relaxed)))
    }

    /// Whether a run of the volume contains fixed metadata.
    pub(super) fn is_fixed(&self, run: Run) -> Result<bool> {
        let last = run.end().0.saturating_sub(1).max(run.start.0);
        for number in self.sb.group_of(run.start).0..=self.sb.group_of(BlockNr(last)).0 {
            let Some(part) = self.part(GroupNr(number))? else { return Ok(self.all().zone.touches(run)) };
            if part.zone.touches(run) {
                return Ok(true);
            }
        }
        Ok(self.groups.fixed.iter().any(|fixed| fixed.start < run.end() && run.start < fixed.end()))
    }

    /// The flex group of a group; `None` if all groups are in memory.
    fn part(&self, number: GroupNr) -> Result<Option<Arc<FlexGroup>>> {
        if self.has_read_all() {
            return Ok(None);
        }
        if !self.is_regular()? {
            self.read_all()?;
            return Ok(None);
        }
        let key = number.0 / self.groups.flex;
        if let Some(part) = self.groups.parts.read().get(&key) {
            return Ok(Some(part.clone()));
        }
        let range = self.flex_group(number);
        let descs = read_descriptors(&self.engine, &self.sb, range.clone())?;
        if !self.lie_within(&range, &descs) {
            self.read_all()?;
            return Ok(None);
        }
        let tables = descs.iter().map(|desc| (desc.inode_table(), table_ready(&self.sb, desc))).collect();
        let zone = SystemZone::new(&self.sb, GroupNr(range.start), &descs)?;
        let part = Arc::new(FlexGroup { tables, zone });
        self.groups.parts.write().insert(key, part.clone());
        Ok(Some(part))
    }

    /// Whether the last group's bitmaps and table lie in its own flex group. If not, those of other
    /// groups may lie anywhere, too.
    fn is_regular(&self) -> Result<bool> {
        if let Some(known) = self.groups.is_regular.get() {
            return Ok(*known);
        }
        let last = self.sb.group_count() - 1;
        let descs = read_descriptors(&self.engine, &self.sb, last..last + 1)?;
        Ok(*self.groups.is_regular.get_or_init(|| self.lie_within(&self.flex_group(GroupNr(last)), &descs)))
    }

    fn flex_group(&self, number: GroupNr) -> Range<u32> {
        let first = number.0 - number.0 % self.groups.flex;
        first..first.saturating_add(self.groups.flex).min(self.sb.group_count())
    }

    fn lie_within(&self, groups: &Range<u32>, descs: &[GroupDesc]) -> bool {
        let last = GroupNr(groups.end - 1);
        let start = self.sb.group_start(GroupNr(groups.start));
        let end = self.sb.group_start(last).offset(u64::from(self.sb.blocks_in_group(last)));
        let table = u64::from(self.sb.inode_table_blocks());
        descs.iter().all(|desc| {
            [(desc.block_bitmap(), 1), (desc.inode_bitmap(), 1), (desc.inode_table(), table)]
                .iter()
                .all(|&(first, len)| first >= start && first.0.saturating_add(len) <= end.0)
        })
    }
}

/// Reads and checks descriptors.
fn read_descriptors(engine: &Engine, sb: &Superblock, groups: Range<u32>) -> Result<Vec<GroupDesc>> {
    let size = usize::from(sb.desc_size());
    let per_block = sb.descs_per_block();
    let mut descs = Vec::with_capacity(groups.len());
    for first in (groups.start - groups.start % per_block..groups.end).step_by(per_block as usize) {
        let block = sb.desc_place(GroupNr(first)).0;
        if !sb.contains(block, 1) {
            return Err(Error::corrupt(Site::Superblock, "the group descriptors do not fit the volume"));
        }
        let bytes = engine.read(block)?;
        let all = bytes.chunks_exact(size).zip(first..).take(per_block as usize);
        for (bytes, number) in all.filter(|(_, number)| groups.contains(number)) {
            let desc = GroupDesc::new(bytes);
            if !desc.checksum_matches(sb, GroupNr(number)) {
                return Err(Error::corrupt(Site::Group(GroupNr(number)), "checksum does not match"));
            }
            descs.push(desc);
        }
    }
    Ok(descs)
}
