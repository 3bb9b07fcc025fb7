//! Blocks of file data that were written back, by file: to new places, and over old contents. The
//! paper on selective journaling classifies workloads by this ratio (RFJ-6, figure 5).

use std::collections::HashMap;

use parking_lot::Mutex;
use xact_types::Ino;

use crate::live::data::data_mode::Placement;

/// Files that are counted separately.
const FILES_MAX: usize = 4096;

/// Blocks of file data that were written back since the volume was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WrittenBlocks {
    /// Written to places that held no contents of the file.
    pub new: u64,
    /// Over contents of the file.
    pub overwritten: u64,
}

impl WrittenBlocks {
    pub fn total(self) -> u64 {
        self.new + self.overwritten
    }

    pub fn add(&mut self, other: WrittenBlocks) {
        self.new += other.new;
        self.overwritten += other.overwritten;
    }
}

/// Written blocks by file, as far as there is space for them.
#[derive(Default)]
pub(in crate::live) struct FileWrites(Mutex<Table>);

#[derive(Default)]
struct Table {
    files: HashMap<Ino, WrittenBlocks>,
    /// Blocks of files that were deleted, or that had the fewest when there was no space for more.
    others: WrittenBlocks,
}

impl FileWrites {
    pub fn count(&self, ino: Ino, placement: Placement, blocks: u32) {
        let blocks = u64::from(blocks);
        let added = match placement {
            Placement::Written => WrittenBlocks { new: 0, overwritten: blocks },
            Placement::Fresh | Placement::Unwritten => WrittenBlocks { new: blocks, overwritten: 0 },
        };
        let mut table = self.0.lock();
        if table.files.len() >= FILES_MAX && !table.files.contains_key(&ino) {
            table.make_room();
        }
        table.files.entry(ino).or_default().add(added);
    }

    /// The file was deleted: another may get its number.
    pub fn forget(&self, ino: Ino) {
        let mut table = self.0.lock();
        if let Some(blocks) = table.files.remove(&ino) {
            table.others.add(blocks);
        }
    }

    /// By file, in the order of their numbers, and of all others together.
    pub fn all(&self) -> (Vec<(Ino, WrittenBlocks)>, WrittenBlocks) {
        let table = self.0.lock();
        let mut files: Vec<_> = table.files.iter().map(|(ino, blocks)| (*ino, *blocks)).collect();
        files.sort_unstable_by_key(|(ino, _)| *ino);
        (files, table.others)
    }
}

impl Table {
    /// Adds the half with the fewest blocks to the others. So a file with many blocks stays.
    fn make_room(&mut self) {
        let mut totals: Vec<u64> = self.files.values().map(|blocks| blocks.total()).collect();
        let middle = totals.len() / 2;
        let (_, median, _) = totals.select_nth_unstable(middle);
        let median = *median;
        let mut left = middle;
        let others = &mut self.others;
        self.files.retain(|_, blocks| {
            let stays = blocks.total() > median || left == 0;
            if !stays {
                left -= 1;
                others.add(*blocks);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_many_blocks_stay() {
        let writes = FileWrites::default();
        writes.count(Ino(1), Placement::Fresh, 100);
        writes.count(Ino(1), Placement::Written, 20);
        for number in 0..3 * FILES_MAX as u32 {
            writes.count(Ino(100 + number), Placement::Unwritten, 1);
        }
        let (files, others) = writes.all();
        assert!(files.len() <= FILES_MAX);
        assert_eq!(files[0], (Ino(1), WrittenBlocks { new: 100, overwritten: 20 }));
        let listed: u64 = files.iter().map(|(_, blocks)| blocks.total()).sum();
        assert_eq!(listed + others.total(), 120 + 3 * FILES_MAX as u64);
        writes.forget(Ino(1));
        let (files, others) = writes.all();
        assert!(files.iter().all(|(ino, _)| *ino != Ino(1)));
        assert_eq!(others.overwritten, 20);
    }
}
