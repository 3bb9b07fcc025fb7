//! The system zone: the blocks of the volume's fixed metadata. They are never taken and never
//! freed, even if a corrupt bitmap or extent claims them (the kernel's `ext4_system_zone`).

use xact_layout::group::GroupDesc;
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, GroupNr, Ino, Result, Site};

use super::Run;

/// Sorted ranges `start..end` without overlap; adjacent ranges are joined.
#[derive(Default)]
pub(super) struct SystemZone {
    ranges: Vec<(u64, u64)>,
}

impl SystemZone {
    /// The zone of consecutive groups, the first of which is `first`. Checks that every bitmap and
    /// inode table lies within the volume, and that no two share a block.
    pub fn new(sb: &Superblock, first: GroupNr, descs: &[GroupDesc]) -> Result<SystemZone> {
        // Start, length, and the site of an error.
        let mut parts: Vec<(u64, u64, Site)> = Vec::with_capacity(4 * descs.len());
        for (number, desc) in (first.0..).zip(descs) {
            let group = GroupNr(number);
            let site = Site::Group(group);
            let base = u64::from(sb.base_meta_blocks(group).min(sb.blocks_in_group(group)));
            if base > 0 {
                parts.push((sb.group_start(group).0, base, site));
            }
            let table = u64::from(sb.inode_table_blocks());
            for (start, len) in
                [(desc.block_bitmap(), 1), (desc.inode_bitmap(), 1), (desc.inode_table(), table)]
            {
                if !sb.contains(start, len) {
                    return Err(Error::corrupt(site, "a bitmap or the inode table lies outside the volume"));
                }
                parts.push((start.0, len, site));
            }
        }
        SystemZone::from_parts(parts)
    }

    /// Adds the blocks of the journal, and that of multi-mount protection.
    pub fn with_fixed(self, sb: &Superblock, runs: &[Run]) -> Result<SystemZone> {
        let site = Site::Inode(Ino::JOURNAL);
        if runs.iter().any(|run| !sb.contains(run.start, u64::from(run.len))) {
            return Err(Error::corrupt(site, "the journal or the mmp block lies outside the volume"));
        }
        let old = self.ranges.iter().map(|range| (range.0, range.1 - range.0, site));
        let new = runs.iter().map(|run| (run.start.0, u64::from(run.len), site));
        SystemZone::from_parts(old.chain(new).collect())
    }

    fn from_parts(mut parts: Vec<(u64, u64, Site)>) -> Result<SystemZone> {
        parts.sort_unstable_by_key(|part| part.0);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (start, len, site) in parts {
            match ranges.last_mut() {
                Some(last) if start < last.1 => {
                    return Err(Error::corrupt(
                        site,
                        "two structures of the volume's metadata share a block",
                    ));
                }
                Some(last) if start == last.1 => last.1 += len,
                _ => ranges.push((start, start + len)),
            }
        }
        Ok(SystemZone { ranges })
    }

    /// The parts of the zone within a range, as pairs of start and end.
    pub fn within(&self, start: BlockNr, end: BlockNr) -> impl Iterator<Item = (u64, u64)> {
        let first = self.ranges.partition_point(|range| range.1 <= start.0);
        self.ranges[first..]
            .iter()
            .take_while(move |range| range.0 < end.0)
            .map(move |range| (range.0.max(start.0), range.1.min(end.0)))
    }

    pub fn touches(&self, run: Run) -> bool {
        self.within(run.start, run.start.offset(u64::from(run.len))).next().is_some()
    }

    /// Number of blocks in the zone.
    pub fn blocks(&self) -> u64 {
        self.ranges.iter().map(|range| range.1 - range.0).sum()
    }
}
