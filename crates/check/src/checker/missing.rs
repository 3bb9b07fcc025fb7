//! The files and folders that damage has touched, by path where a name leads to them.
//!
//! Names are read past damage, block by block, without hash indexes and without checksums: e2fsck
//! keeps them too. It gives a new name in lost+found to everything that has lost its own.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use xact_consistency::{BlockDamage, DamagedBlocks};
use xact_device::BlockDevice;
use xact_layout::dirent::DirFormat;
use xact_layout::inode::{Inode, flag};
use xact_types::{Above, Error, Ino, InodePaths, Result, ShownPath, Site};

use super::Checker;
use super::dirs::inline_entries;
use super::found::DIRECTORY_TYPE;
use crate::report::{Progress, Report};
use crate::volume::Volume;

/// A file or folder with damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Its inode number.
    pub ino: Ino,
    /// Its path from the root, without a leading `/`. Below `lost+found/#INO` if a folder on the
    /// way has no name; `<inode N>/NAME`, with the number of the folder, if the path is longer than
    /// 4096 bytes; `None` if the inode itself has none.
    pub path: Option<Vec<u8>>,
    /// The part that is missing or may be wrong.
    pub part: MissingPart,
}

/// The damaged part of a file or folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingPart {
    /// All of it: its inode lies in a damaged block, or is in an older state.
    Inode,
    /// No name leads to it; its contents exist.
    Name,
    /// Names in this folder.
    Names,
    /// Ranges of bytes of its contents.
    Bytes(Vec<Range<u64>>),
    /// Extended attributes, access control lists included.
    Attributes,
}

/// The findings of [`missing`].
#[derive(Debug, Clone, Default)]
pub struct MissingReport {
    /// Files and folders with damage, by inode number.
    pub missing: Vec<Missing>,
    /// Problems that the full check of the volume has found.
    pub problem_count: u64,
}

/// Checks the ext4 volume on `device`, of whose blocks some are known to be damaged, and lists what
/// the damage has touched. Nothing is written.
///
/// Errors: `Corrupt` if the superblock is unusable; `Io`.
pub fn missing(
    device: Arc<dyn BlockDevice>,
    damaged: &[DamagedBlocks],
    progress: Progress<'_>,
) -> Result<MissingReport> {
    let volume = Volume::open(device)?;
    let mut checker = Checker::new(&volume, Report::default(), progress);
    checker.in_use = true;
    match checker.run() {
        Ok(()) => {}
        Err(Error::Corrupt(found)) => checker.report.problem(found.site, found.what),
        Err(error) => return Err(error),
    }
    let mut search = Search {
        names: checker.names_past_damage()?,
        paths: InodePaths::default(),
        damaged: damaged.to_vec(),
        found: Vec::new(),
    };
    for problem in &checker.report.problems {
        if let Site::Block(block) = problem.site {
            let blocks = block.0..block.0.saturating_add(1);
            search.damaged.push(DamagedBlocks { blocks, damage: BlockDamage::Checksum });
        }
    }
    let bad_inodes = checker.report.problems.iter().filter_map(|problem| match problem.site {
        Site::Inode(ino) if problem.what == "checksum does not match" => Some(ino),
        _ => None,
    });
    let bad_inodes: BTreeSet<Ino> = bad_inodes.collect();
    let problem_count = checker.report.problem_count;
    let (seen, orphans) = (std::mem::take(&mut checker.seen), std::mem::take(&mut checker.orphans));
    // Another one, for which no block is claimed yet.
    let mut no_progress = |_: &'static str, _: f64| ();
    let mut walker = Checker::new(&volume, Report::default(), &mut no_progress);
    let unused: Vec<Ino> = search.names.keys().copied().filter(|ino| !seen.get(*ino).used).collect();
    for ino in unused {
        search.add(ino, MissingPart::Inode);
    }
    for (ino, seen) in seen.iter().filter(|(_, seen)| seen.used) {
        if seen.internal || seen.is_value || orphans.contains(&ino) {
            continue;
        }
        let Some(inode) = volume.inode(ino)? else { continue };
        if bad_inodes.contains(&ino) || search.has_bad_inode(&volume, ino) {
            search.add(ino, MissingPart::Inode);
        }
        if ino != Ino::ROOT && !search.names.contains_key(&ino) {
            search.add(ino, MissingPart::Name);
        }
        if search.overlap(inode.xattr_block()..inode.xattr_block() + 1).next().is_some() {
            search.add(ino, MissingPart::Attributes);
        }
        walker.find_damaged_contents(&mut search, ino, &inode, seen.file_type == DIRECTORY_TYPE)?;
    }
    search.found.sort_by_key(|missing| missing.ino);
    Ok(MissingReport { missing: search.found, problem_count })
}

struct Search {
    /// For each inode with a name, one folder and the name there.
    names: BTreeMap<Ino, (Ino, Vec<u8>)>,
    paths: InodePaths,
    damaged: Vec<DamagedBlocks>,
    found: Vec<Missing>,
}

impl Search {
    fn add(&mut self, ino: Ino, part: MissingPart) {
        let path = self.path(ino);
        self.found.push(Missing { ino, path, part });
    }

    fn path(&mut self, ino: Ino) -> Option<Vec<u8>> {
        if ino == Ino::ROOT {
            return Some(Vec::new());
        }
        let (names, paths) = (&self.names, &mut self.paths);
        let (dir, name) = names.get(&ino)?;
        let above = |at: Ino| {
            let above = match names.get(&at) {
                _ if at == Ino::ROOT => Above::Top(Some(Vec::new())),
                Some((folder, name)) => Above::Folder(*folder, name),
                None => Above::Top(Some(format!("/lost+found/#{}", at.0).into_bytes())),
            };
            Ok::<_, Infallible>(above)
        };
        let Ok(folder) = paths.path(*dir, above);
        let path = ShownPath::of_name(*dir, folder?, name).shown;
        Some(path[1..].to_vec())
    }

    /// The parts of a range of blocks that are damaged.
    fn overlap(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.damaged.iter().filter_map(move |one| {
            let both = one.blocks.start.max(blocks.start)..one.blocks.end.min(blocks.end);
            (!both.is_empty()).then_some(both)
        })
    }

    /// Whether an inode lies in a damaged block. If several inodes there have wrong checksums,
    /// e2fsck clears all of the block.
    fn has_bad_inode(&self, volume: &Volume, ino: Ino) -> bool {
        let Some((group, index)) = volume.sb.inode_place(ino) else { return false };
        let table = volume.descs[group.0 as usize].inode_table().0;
        let block = table.saturating_add(u64::from(index / volume.sb.inodes_per_block()));
        self.damaged.iter().any(|one| one.blocks.contains(&block))
    }
}

impl Checker<'_> {
    fn names_past_damage(&self) -> Result<BTreeMap<Ino, (Ino, Vec<u8>)>> {
        let mut names = BTreeMap::new();
        for directory in &self.directories {
            let ino = directory.ino;
            let format = DirFormat::new(&self.volume.sb, ino, directory.generation);
            let mut add = |name: &[u8], of: Ino| {
                if !matches!(name, b"." | b"..") {
                    names.entry(of).or_insert((ino, name.to_vec()));
                }
            };
            if directory.flags & flag::INLINE_DATA != 0 {
                let Some(inode) = self.volume.inode(ino)? else { continue };
                for part in inline_entries(&inode) {
                    let entries = format.entries_of_area(&part, Site::Inode(ino));
                    entries.map_while(Result::ok).for_each(|entry| add(entry.name, entry.ino));
                }
                continue;
            }
            for (_, block) in directory.mapped.blocks() {
                let bytes = self.volume.block(block)?;
                let entries = format.entries(&bytes, 0, Site::Block(block));
                entries.map_while(Result::ok).for_each(|(_, entry)| add(entry.name, entry.ino));
            }
        }
        Ok(names)
    }

    fn find_damaged_contents(
        &mut self,
        search: &mut Search,
        ino: Ino,
        inode: &Inode,
        is_folder: bool,
    ) -> Result<()> {
        let has_map = inode.is_regular() || is_folder || inode.is_symlink();
        if !has_map || inode.flags() & flag::INLINE_DATA != 0 || (inode.is_symlink() && inode.size() < 60) {
            return Ok(());
        }
        let size = inode.size();
        let mapped = self.walk_map(ino, inode, true)?;
        let whole_map = mapped.as_ref().is_some_and(|mapped| {
            mapped.nodes.iter().all(|node| search.overlap(node.0..node.0 + 1).next().is_none())
        });
        let mut ranges = Vec::new();
        if !whole_map {
            ranges.push(0..size);
        } else if let Some(mapped) = mapped {
            let block_size = u64::from(self.volume.sb.block_size());
            for extent in mapped.extents {
                let (start, at) = (extent.run.start.0, u64::from(extent.at.0));
                for damaged in search.overlap(start..extent.run.end().0) {
                    let from = (at + damaged.start - start) * block_size;
                    let to = (at + damaged.end - start) * block_size;
                    ranges.push(from.min(size)..to.min(size));
                }
            }
            ranges.retain(|range| !range.is_empty());
            ranges.dedup();
        }
        match (ranges.is_empty(), is_folder) {
            (true, _) => {}
            (false, true) => search.add(ino, MissingPart::Names),
            (false, false) => search.add(ino, MissingPart::Bytes(ranges)),
        }
        Ok(())
    }
}
