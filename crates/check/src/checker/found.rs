//! The findings about inode numbers.

use xact_layout::superblock::Superblock;
use xact_types::{GroupNr, Ino};

/// `EXT4_FT_DIR`.
pub(crate) const DIRECTORY_TYPE: u8 = 2;

/// The findings about an inode number.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InodeFindings {
    /// In use: it has links, or the volume itself uses it.
    pub used: bool,
    /// Its number, and perhaps blocks, belong to the volume: no name leads to it.
    pub internal: bool,
    /// `EXT4_FT_*` of its mode; 0 if it has none.
    pub file_type: u8,
    pub links: u16,
    /// Names that lead to it, `.` and `..` included.
    pub refs: u32,
    /// Holds an attribute's value.
    pub is_value: bool,
    /// A folder with a hash index.
    pub is_indexed: bool,
    /// Waits for its deletion, or for the end of a truncation.
    pub is_orphan: bool,
}

/// The findings about all inode numbers. A group takes memory up to its last inode in use, so a
/// large empty volume takes little.
#[derive(Default)]
pub(crate) struct FoundInodes {
    per_group: u32,
    groups: Vec<Vec<InodeFindings>>,
}

impl FoundInodes {
    pub fn new(sb: &Superblock) -> FoundInodes {
        FoundInodes { per_group: sb.inodes_per_group(), groups: vec![Vec::new(); sb.group_count() as usize] }
    }

    fn place(&self, ino: Ino) -> (usize, usize) {
        let index = ino.0 - 1;
        ((index / self.per_group) as usize, (index % self.per_group) as usize)
    }

    /// The findings about a number; those of an unused inode for any number that is not known.
    pub fn get(&self, ino: Ino) -> InodeFindings {
        if ino.0 == 0 {
            return InodeFindings::default();
        }
        let (group, index) = self.place(ino);
        self.groups.get(group).and_then(|group| group.get(index)).copied().unwrap_or_default()
    }

    /// The findings about an inode in use; `None` for another.
    pub fn used_mut(&mut self, ino: Ino) -> Option<&mut InodeFindings> {
        if ino.0 == 0 {
            return None;
        }
        let (group, index) = self.place(ino);
        self.groups.get_mut(group)?.get_mut(index).filter(|seen| seen.used)
    }

    /// The findings about an inode of the volume, in order to change them.
    pub fn entry(&mut self, ino: Ino) -> &mut InodeFindings {
        let (group, index) = self.place(ino);
        let group = &mut self.groups[group];
        if group.len() <= index {
            group.resize(index + 1, InodeFindings::default());
        }
        &mut group[index]
    }

    /// The findings about the inodes of a group up to the last one in use.
    pub fn of_group(&self, group: GroupNr) -> &[InodeFindings] {
        &self.groups[group.0 as usize]
    }

    /// All findings, with the numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, InodeFindings)> {
        self.groups.iter().zip(0..).flat_map(|(group, number)| {
            let first = number * self.per_group + 1;
            group.iter().zip(first..).map(|(seen, number)| (Ino(number), *seen))
        })
    }
}
