//! The position of the journal: from the superblock through its inode to physical runs.
//!
//! The file system's own extent code runs on top of an engine, and an engine needs its journal
//! first. So this is a small read-only walker. It knows extent trees and the block maps of ext3,
//! and checks every number against the volume.

use std::ops::Range;

use xact_layout::group::GroupDesc;
use xact_layout::inode::{Inode, flag};
use xact_layout::superblock::Superblock;
use xact_layout::{get_u16, get_u32};
use xact_types::{BlockNr, Error, GroupNr, Ino, Result, Site};

use crate::core::volume::Volume;

/// A contiguous part of the journal on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalRun {
    /// First block, in journal block numbers.
    pub log_block: u32,
    /// The same block, in volume block numbers.
    pub start: BlockNr,
    pub blocks: u32,
}

/// The journal's blocks in order, without holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalLayout {
    runs: Vec<JournalRun>,
}

const EXTENT_MAGIC: u16 = 0xF30A;
const EXTENT_BYTES: usize = 12;
/// Extents longer than this are unwritten ones (`EXT_INIT_MAX_LEN`).
const MAX_EXTENT_BLOCKS: u16 = 32768;
const MAX_DEPTH: u16 = 5;
const DIRECT_POINTERS: usize = 12;

fn corrupt<T>(what: &'static str) -> Result<T> {
    Err(Error::corrupt(Site::Inode(Ino::JOURNAL), what))
}

impl JournalLayout {
    /// `runs` in the journal's order; their `log_block`s must follow one another from 0.
    pub fn new(runs: Vec<JournalRun>) -> Result<JournalLayout> {
        let mut next = 0u32;
        for run in &runs {
            if run.log_block != next || run.blocks == 0 {
                return corrupt("the journal has holes");
            }
            next = match next.checked_add(run.blocks) {
                Some(end) => end,
                None => return corrupt("the journal is too long"),
            };
        }
        if runs.is_empty() {
            return corrupt("the journal has no blocks");
        }
        Ok(JournalLayout { runs })
    }

    /// Finds the journal of a volume for which [`has_journal`] is true.
    pub(crate) fn locate(volume: &Volume, superblock: &Superblock) -> Result<JournalLayout> {
        let inode = read_inode(volume, superblock)?;
        let blocks = inode.size() / volume.block_size as u64;
        if !inode.is_regular() || inode.links_count() == 0 {
            return corrupt("the journal's inode is not a file");
        }
        let Ok(blocks) = u32::try_from(blocks) else {
            return corrupt("the journal is too long");
        };
        let mut walk = Walk { volume, runs: Vec::new(), next: 0, blocks };
        if inode.flags() & flag::EXTENTS != 0 {
            walk.extents(inode.block_area(), None)?;
        } else {
            walk.pointers(inode.block_area())?;
        }
        if walk.next < blocks {
            return corrupt("the journal has holes");
        }
        JournalLayout::new(walk.runs)
    }

    /// The first `blocks` blocks of the same journal.
    pub fn first_blocks(&self, blocks: u32) -> Result<JournalLayout> {
        let runs = self.runs.iter().filter(|run| run.log_block < blocks);
        let cut = |run: &JournalRun| JournalRun { blocks: run.blocks.min(blocks - run.log_block), ..*run };
        JournalLayout::new(runs.map(cut).collect())
    }

    /// Its blocks on the volume.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        self.runs.iter().map(|run| run.start.0..run.start.0 + u64::from(run.blocks)).collect()
    }

    pub fn runs(&self) -> &[JournalRun] {
        &self.runs
    }

    /// Blocks of the whole journal.
    pub fn blocks(&self) -> u32 {
        let last = self.runs.last().expect("a journal has a run");
        last.log_block + last.blocks
    }

    /// The position of a journal block, and the number of blocks that follow it contiguously,
    /// itself included.
    pub fn place(&self, log_block: u32) -> Result<(BlockNr, u32)> {
        let index = self.runs.partition_point(|run| run.log_block <= log_block);
        if log_block >= self.blocks() || index == 0 {
            return Err(Error::corrupt(Site::JournalSuperblock, "the log reaches beyond the journal"));
        }
        let run = &self.runs[index - 1];
        let skip = log_block - run.log_block;
        Ok((run.start.offset(skip.into()), run.blocks - skip))
    }
}

/// The journal's inode. No checksum is verified: before the replay, its neighbours in the same
/// block may be torn, and the journal's superblock is a better test that this is the journal.
fn read_inode(volume: &Volume, superblock: &Superblock) -> Result<Inode> {
    let index = superblock.journal_inum() - 1;
    if index >= superblock.inodes_per_group() {
        return Err(Error::Unsupported("a journal inode outside the first group".into()));
    }
    let mut block = vec![0; volume.block_size];
    // The descriptor of group 0 follows the superblock with META_BG too.
    volume.read(superblock.own_block().offset(1), &mut block)?;
    let descriptor = GroupDesc::new(&block[..usize::from(superblock.desc_size())]);
    let inode_size = usize::from(superblock.inode_size());
    let at = index as usize * inode_size;
    let table = descriptor.inode_table();
    if volume.check_range(table, (at / volume.block_size) as u64 + 1).is_err() {
        return Err(Error::corrupt(Site::Group(GroupNr(0)), "inode table lies outside the volume"));
    }
    volume.read(table.offset((at / volume.block_size) as u64), &mut block)?;
    let at = at % volume.block_size;
    Ok(Inode::new(&block[at..at + inode_size]))
}

struct Walk<'a> {
    volume: &'a Volume,
    runs: Vec<JournalRun>,
    /// The journal block that must come next.
    next: u32,
    /// The number of blocks by the inode's size. Blocks mapped after that are not part of the
    /// journal.
    blocks: u32,
}

impl Walk<'_> {
    fn add(&mut self, start: u64, count: u32) -> Result<()> {
        let count = count.min(self.blocks - self.next);
        if count == 0 {
            return Ok(());
        }
        if start == 0 || self.volume.check_range(BlockNr(start), count.into()).is_err() {
            return corrupt("the journal lies outside the volume");
        }
        match self.runs.last_mut() {
            Some(last) if last.start.0 + u64::from(last.blocks) == start => last.blocks += count,
            _ => self.runs.push(JournalRun { log_block: self.next, start: BlockNr(start), blocks: count }),
        }
        self.next += count;
        Ok(())
    }

    /// A node of an extent tree: header {magic, entries, max, depth}, then 12-byte entries.
    fn extents(&mut self, node: &[u8], depth: Option<u16>) -> Result<()> {
        let found = get_u16(node, 6);
        let fits = found <= MAX_DEPTH && depth.is_none_or(|expected| found == expected);
        let entries = usize::from(get_u16(node, 2));
        if get_u16(node, 0) != EXTENT_MAGIC || !fits || (entries + 1) * EXTENT_BYTES > node.len() {
            return corrupt("the journal's extent tree is damaged");
        }
        for entry in node[EXTENT_BYTES..].chunks_exact(EXTENT_BYTES).take(entries) {
            if self.next == self.blocks {
                break;
            }
            if found == 0 {
                let (from, len) = (get_u32(entry, 0), get_u16(entry, 4));
                let start = u64::from(get_u16(entry, 6)) << 32 | u64::from(get_u32(entry, 8));
                if from != self.next || len == 0 || len > MAX_EXTENT_BLOCKS {
                    return corrupt("the journal has holes");
                }
                self.add(start, len.into())?;
            } else {
                let child = u64::from(get_u16(entry, 8)) << 32 | u64::from(get_u32(entry, 4));
                let mut block = vec![0; self.volume.block_size];
                self.volume.read(BlockNr(child), &mut block)?;
                let before = self.next;
                self.extents(&block, Some(found - 1))?;
                if self.next == before {
                    // An empty leaf is never legal, and a tree of many empty leaves would take
                    // forever to read.
                    return corrupt("the journal's extent tree is damaged");
                }
            }
        }
        Ok(())
    }

    /// ext3's map: twelve direct pointers, then one, two and three levels of blocks of pointers.
    fn pointers(&mut self, area: &[u8]) -> Result<()> {
        for index in 0..DIRECT_POINTERS + 3 {
            let level = (index + 1).saturating_sub(DIRECT_POINTERS);
            self.pointer(get_u32(area, index * 4).into(), level)?;
        }
        Ok(())
    }

    fn pointer(&mut self, target: u64, level: usize) -> Result<()> {
        if self.next == self.blocks {
            return Ok(());
        }
        if target == 0 {
            return corrupt("the journal has holes");
        }
        if level == 0 {
            return self.add(target, 1);
        }
        let mut block = vec![0; self.volume.block_size];
        self.volume.read(BlockNr(target), &mut block)?;
        block.chunks_exact(4).try_for_each(|entry| self.pointer(get_u32(entry, 0).into(), level - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(log_block: u32, start: u64, blocks: u32) -> JournalRun {
        JournalRun { log_block, start: BlockNr(start), blocks }
    }

    #[test]
    fn places() {
        let layout = JournalLayout::new(vec![run(0, 100, 10), run(10, 500, 5)]).unwrap();
        assert_eq!(layout.blocks(), 15);
        assert_eq!(layout.place(0).unwrap(), (BlockNr(100), 10));
        assert_eq!(layout.place(9).unwrap(), (BlockNr(109), 1));
        assert_eq!(layout.place(10).unwrap(), (BlockNr(500), 5));
        assert!(layout.place(15).is_err());
    }

    #[test]
    fn holes() {
        assert!(JournalLayout::new(vec![]).is_err());
        assert!(JournalLayout::new(vec![run(1, 100, 10)]).is_err());
        assert!(JournalLayout::new(vec![run(0, 100, 10), run(11, 500, 5)]).is_err());
        assert!(JournalLayout::new(vec![run(0, 100, u32::MAX), run(u32::MAX, 500, 5)]).is_err());
    }
}
