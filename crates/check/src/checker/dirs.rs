//! Step 3: directories, block by block: entries, `.` and `..`, hash indexes.

use std::collections::HashSet;

use xact_layout::dirent::{DirEntry, DirFormat};
use xact_layout::dirhash::DirHasher;
use xact_layout::get_u32;
use xact_layout::htree::Index;
use xact_layout::inode::{BLOCK_AREA_BYTES, Inode, flag};
use xact_layout::xattr::{Value, entries_in_body, index};
use xact_types::{BlockNr, Ino, Result, Site};

use super::Checker;
use super::map::Mapped;

/// `EXT4_FT_DIR`.
const DIRECTORY_TYPE: u8 = 2;
/// The offset of an inline directory's entries.
const INLINE_ENTRIES_AT: usize = 4;

/// A directory to read.
pub(crate) struct Directory {
    pub ino: Ino,
    generation: u32,
    flags: u32,
    mapped: Mapped,
    /// The inode that `..` names.
    pub dotdot: Option<Ino>,
}

impl Directory {
    pub fn new(ino: Ino, inode: &Inode, mapped: Mapped) -> Directory {
        let (generation, flags) = (inode.generation(), inode.flags());
        Directory { ino, generation, flags, mapped, dotdot: None }
    }
}

/// The findings while one directory is read.
struct Reading {
    ino: Ino,
    format: DirFormat,
    names: HashSet<Vec<u8>>,
    dotdot: Option<Ino>,
}

/// The hashes that a leaf may have, both ends included.
#[derive(Clone, Copy)]
struct Bounds {
    low: u32,
    high: u32,
}

impl Checker<'_> {
    pub(crate) fn check_directories(&mut self) -> Result<()> {
        let mut directories = std::mem::take(&mut self.directories);
        let count = directories.len();
        for (at, directory) in directories.iter_mut().enumerate() {
            if at % 64 == 0 {
                (self.progress)("directories", at as f64 / count as f64);
            }
            self.check_directory(directory)?;
        }
        self.directories = directories;
        Ok(())
    }

    fn check_directory(&mut self, directory: &mut Directory) -> Result<()> {
        let ino = directory.ino;
        let format = DirFormat::new(&self.volume.sb, ino, directory.generation);
        let mut reading = Reading { ino, format, names: HashSet::new(), dotdot: None };
        if directory.flags & flag::INLINE_DATA != 0 {
            self.check_inline_directory(&mut reading)?;
        } else if directory.flags & flag::INDEX != 0 {
            self.check_index(directory, &mut reading)?;
        } else {
            for at in 0..directory.mapped.end as u32 {
                self.check_leaf(directory, &mut reading, at, None)?;
            }
        }
        directory.dotdot = reading.dotdot;
        Ok(())
    }

    fn dir_block(&mut self, directory: &Directory, at: u32) -> Result<Option<(BlockNr, Vec<u8>)>> {
        let result = self.file_block(directory.ino, &directory.mapped, at);
        self.report.note(result)
    }

    /// A block of entries.
    fn check_leaf(
        &mut self,
        directory: &Directory,
        reading: &mut Reading,
        at: u32,
        bounds: Option<(Bounds, &DirHasher)>,
    ) -> Result<()> {
        let Some((block, bytes)) = self.dir_block(directory, at)? else { return Ok(()) };
        let site = Site::Block(block);
        if self.report.note(reading.format.verify(&bytes, site))?.is_none() {
            return Ok(());
        }
        let mut from = 0;
        if at == 0 {
            match self.report.note(reading.format.dots(&bytes, reading.ino, site))? {
                Some(dots) => {
                    self.found_dots(reading, dots.parent);
                    from = dots.next;
                }
                None => return Ok(()),
            }
        }
        for item in reading.format.entries(&bytes, from, site) {
            let Some((_, entry)) = self.report.note(item)? else { break };
            if let Some((bounds, hasher)) = bounds {
                let hash = hasher.hash(entry.name).major;
                if hash < bounds.low || hash > bounds.high {
                    self.report
                        .problem(site, "a name is in a leaf of the index where its hash does not belong");
                }
            }
            self.found_entry(reading, &entry, site);
        }
        Ok(())
    }

    fn found_dots(&mut self, reading: &mut Reading, parent: Ino) {
        reading.dotdot = Some(parent);
        for ino in [reading.ino, parent] {
            if let Some(seen) = self.seen.get_mut(ino.0 as usize) {
                seen.refs += 1;
            }
        }
    }

    fn found_entry(&mut self, reading: &mut Reading, entry: &DirEntry<'_>, site: Site) {
        let name = String::from_utf8_lossy(entry.name);
        if entry.name.iter().any(|&byte| byte == 0 || byte == b'/') || matches!(entry.name, b"." | b"..") {
            self.report.problem(site, format!("invalid name '{name}'"));
        }
        if !reading.names.insert(entry.name.to_vec()) {
            self.report.problem(site, format!("the name '{name}' is there twice"));
        }
        let ino = entry.ino;
        // The codec has compared the number with the volume's.
        let seen = &mut self.seen[ino.0 as usize];
        seen.refs += 1;
        let seen = *seen;
        if !seen.used || seen.internal || ino == Ino::ROOT {
            self.report.problem(site, format!("'{name}' leads to {ino}, which no name may lead to"));
            return;
        }
        if reading.format.has_types() && entry.file_type != seen.file_type {
            self.report.problem(site, format!("'{name}' has another type than {ino}"));
        }
        if seen.file_type == DIRECTORY_TYPE {
            self.child_of(ino, reading.ino, site);
        }
    }

    /// Notes the directory that names a directory.
    fn child_of(&mut self, child: Ino, parent: Ino, site: Site) {
        if self.parents.insert(child, parent).is_some() {
            self.report.problem(site, format!("{child} is a directory and has two names"));
        }
    }

    /// An indexed directory: every block is an index block or a leaf, and reached once.
    fn check_index(&mut self, directory: &Directory, reading: &mut Reading) -> Result<()> {
        let Some((block, bytes)) = self.dir_block(directory, 0)? else { return Ok(()) };
        let root = Index::root(&reading.format, &bytes, reading.ino, Site::Block(block));
        let Some((info, index)) = self.report.note(root)? else { return Ok(()) };
        self.found_dots(reading, info.parent);
        let hasher = DirHasher::new(&self.volume.sb, info.hash_version);
        let mut reached = vec![false; directory.mapped.end as usize];
        reached[0] = true;
        let all = Bounds { low: 0, high: u32::MAX };
        let mut walk = IndexWalk { directory, reading, hasher: &hasher, reached: &mut reached };
        self.walk_index(&mut walk, &index, &bytes, block, u32::from(info.levels), all)?;
        if let Some(at) = reached.iter().position(|reached| !reached) {
            let what = format!("file block {at} is not in its hash index");
            self.report.problem(Site::Inode(directory.ino), what);
        }
        Ok(())
    }

    fn walk_index(
        &mut self,
        walk: &mut IndexWalk<'_, '_>,
        index: &Index,
        bytes: &[u8],
        block: BlockNr,
        levels: u32,
        bounds: Bounds,
    ) -> Result<()> {
        for at in 0..index.count() {
            let low = if at == 0 { bounds.low } else { index.hash(bytes, at) & !1 };
            let high = match at + 1 < index.count() {
                // The lowest bit says that the next leaf continues with this hash.
                true => {
                    let next = index.hash(bytes, at + 1);
                    if next & 1 != 0 { next & !1 } else { next.saturating_sub(1) }
                }
                false => bounds.high,
            };
            if low < bounds.low || low > bounds.high || low > high {
                self.report.problem(Site::Block(block), "hash index is out of order");
            }
            let child = index.block(bytes, at).0;
            match walk.reached.get_mut(child as usize) {
                Some(reached) if !*reached => *reached = true,
                Some(_) => {
                    self.report.problem(Site::Block(block), "hash index leads to a block more than once");
                    continue;
                }
                None => {
                    self.report.problem(Site::Block(block), "hash index leads out of the directory");
                    continue;
                }
            }
            let bounds = Bounds { low, high };
            if levels == 0 {
                self.check_leaf(walk.directory, walk.reading, child, Some((bounds, walk.hasher)))?;
                continue;
            }
            let Some((child_block, child_bytes)) = self.dir_block(walk.directory, child)? else { continue };
            let node = Index::node(&walk.reading.format, &child_bytes, Site::Block(child_block));
            if let Some(node) = self.report.note(node)? {
                self.walk_index(walk, &node, &child_bytes, child_block, levels - 1, bounds)?;
            }
        }
        Ok(())
    }

    fn check_inline_directory(&mut self, reading: &mut Reading) -> Result<()> {
        let site = Site::Inode(reading.ino);
        let Some(inode) = self.volume.inode(reading.ino)? else { return Ok(()) };
        let area = *inode.block_area();
        let rest = inline_rest(&inode).unwrap_or_default();
        self.found_dots(reading, Ino(get_u32(&area, 0)));
        for part in [&area[INLINE_ENTRIES_AT..], &rest] {
            let format = reading.format;
            for entry in format.entries_of_area(part, site) {
                let Some(entry) = self.report.note(entry)? else { break };
                self.found_entry(reading, &entry, site);
            }
        }
        Ok(())
    }

    /// Size and attribute of an inode that holds its contents itself.
    pub(crate) fn check_inline(&mut self, ino: Ino, inode: &Inode) -> Result<()> {
        let site = Site::Inode(ino);
        let Some(rest) = inline_rest(inode) else {
            self.report.problem(site, "holds its contents itself, and has no attribute for them");
            return Ok(());
        };
        let room = (BLOCK_AREA_BYTES + rest.len()) as u64;
        if inode.size() > room || inode.is_directory() && inode.size() != room {
            self.report.problem(site, format!("its size of {} bytes does not fit its inode", inode.size()));
        }
        Ok(())
    }
}

struct IndexWalk<'w, 'd> {
    directory: &'d Directory,
    reading: &'w mut Reading,
    hasher: &'w DirHasher,
    reached: &'w mut [bool],
}

/// The value of `system.data` in the inode's body; `None` if it has none.
fn inline_rest(inode: &Inode) -> Option<Vec<u8>> {
    let entries = entries_in_body(inode.xattr_area()).ok()?;
    for entry in entries {
        let entry = entry.ok()?;
        if (entry.index, entry.name) == (index::SYSTEM, b"data") {
            return match entry.value {
                Value::Here(value) => Some(value.to_vec()),
                Value::InInode { .. } => None,
            };
        }
    }
    None
}
