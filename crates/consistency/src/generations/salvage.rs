//! Reads a generation past damage, for an export or a conversion that saves what can be saved.
//!
//! A moved block with a wrong checksum is used as it is, since most of its bytes may be right. A
//! block that cannot be read is zeros. If a node of the map is damaged, the blocks below it are
//! taken from their homes: those that never moved are right there, and the others are older. All
//! three are noted ([`DamagedBlocks`]), and the result is marked as having errors, so that e2fsck
//! repairs it.
//!
//! A damaged group descriptor is replaced by its backup, as e2fsck does: without the places of the
//! inode tables, nothing could be read.
//!
//! A conversion in place ([`Salvage::write_home`]):
//! 1. All moved and logged blocks are written home, except for copies of the superblock. **Flush.**
//! 2. The superblock and its bit, as in `convert` 2 to 4.
//!
//! A crash in 1 leaves the volume with its generations: without snapshots, nothing reads the home
//! of a moved block, and the pool with the log stays unchanged. The log may describe a block at
//! home by the bytes that differ. After such a crash each byte at home is the old or the new one,
//! and those that differ are in the log, so the log gives the same block again.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use xact_device::BlockDevice;
use xact_layout::generations::{Pointer, Root, Target};
use xact_layout::group::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT, bitmap_checksum, bitmap_csum_matches};
use xact_layout::superblock::{SUPERBLOCK_BYTES, Superblock};
use xact_types::{BlockNr, Error, GroupNr, Result};

use super::map::{Map, MapReader};
use super::published_map::Logged;
use super::root::{Roots, read_roots};
use super::{convert, export, log, shape_of, snapshots, writeback_home};
use crate::core::block::BlockRef;
use crate::core::superblock_io::{self, Flags};
use crate::core::volume::Volume;
use crate::fault::Faults;

/// Blocks that are written home at once.
const BATCH_BLOCKS: usize = 256;

/// The kind of damage of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockDamage {
    /// Its checksum does not match. It was copied as it is.
    Checksum,
    /// The device cannot read it. It was replaced by zeros.
    Unreadable,
    /// The map does not say where it lies. It was copied from its home, where it may be older.
    UnknownPlace,
}

impl BlockDamage {
    /// The damage and what was done, as a phrase.
    pub fn text(self) -> &'static str {
        match self {
            BlockDamage::Checksum => "checksum does not match: copied as it is",
            BlockDamage::Unreadable => "cannot be read: replaced by zeros",
            BlockDamage::UnknownPlace => "the map that leads to it is damaged: it may be in an older state",
        }
    }
}

/// Consecutive damaged blocks of the ext4 volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedBlocks {
    /// The blocks.
    pub blocks: Range<u64>,
    /// Their damage.
    pub damage: BlockDamage,
}

/// A generation that is read past damage. See the head of the module.
pub struct Salvage {
    reader: MapReader,
    /// The home superblock: it may be older, but has the volume's geometry.
    home: Superblock,
    moved: BTreeMap<u64, Pointer>,
    logged: Logged,
    /// Blocks of descriptors with damaged ones replaced.
    descriptors: BTreeMap<u64, BlockRef>,
    damage: Mutex<BTreeMap<u64, BlockDamage>>,
    /// Sorted ranges of blocks below damaged nodes of the map.
    unknown: Vec<Range<u64>>,
    /// An error if that cannot be known.
    has_snapshots: Result<bool>,
}

impl Salvage {
    /// Opens the newest generation, or a snapshot. Nothing is written.
    ///
    /// Errors: `Usage` for a volume without generations, and for an unknown name; `Corrupt` if the
    /// superblock is unusable, or a name is given and the list of snapshots is damaged.
    pub fn open(device: Arc<dyn BlockDevice>, snapshot: Option<&str>) -> Result<Salvage> {
        let home = superblock_io::read(&*device)?.superblock;
        if !superblock_io::has_generations(&home) {
            return Err(Error::Usage(super::NO_GENERATIONS.into()));
        }
        let whole = shape_of(&home, device.size_bytes());
        let roots = read_roots(&*device, &whole, home.uuid(), Faults::default());
        let shape = roots.as_ref().map_or(whole, |roots| roots.root.shape);
        let mut volume = Volume::new(device, shape.block_size as usize, shape.volume_blocks)?;
        volume.extend_reach(shape.device_blocks.max(shape.volume_blocks));
        let reader = MapReader { volume: Arc::new(volume), shape };
        let root = roots.map(|Roots { root, .. }| root);
        let list = root.clone().and_then(|root| snapshots::read_list(&reader, &root));
        let root = past_corruption(root)?.filter(|root| root.map_levels == reader.levels());
        let (mut moved, mut unknown) = (Vec::new(), Vec::new());
        let map = match (snapshot, &root) {
            (Some(name), _) => {
                let list = list.clone()?;
                let found = list.iter().find(|entry| entry.is_complete() && entry.record.name == name);
                Some(found.ok_or_else(|| Error::Usage(format!("there is no snapshot '{name}'")))?.map.clone())
            }
            (None, Some(root)) => Some(Map::new(root.map_levels, root.map)),
            (None, None) => None,
        };
        match map {
            Some(map) => moved = map.moved_past_damage(&reader, &mut |blocks| unknown.push(blocks)),
            None => unknown.push(0..shape.volume_blocks),
        }
        let mut salvage = Salvage {
            reader,
            home,
            moved: moved.into_iter().map(|(block, pointer)| (block.0, pointer)).collect(),
            logged: Logged::default(),
            descriptors: BTreeMap::new(),
            damage: Mutex::default(),
            unknown,
            has_snapshots: list.map(|list| !list.is_empty()),
        };
        if let (None, Some(root)) = (snapshot, root) {
            salvage.logged = salvage.read_log(&root)?;
        }
        salvage.descriptors = salvage.replaced_descriptors();
        Ok(salvage)
    }

    /// The blocks of descriptors that have damaged ones, with backups in their place.
    fn replaced_descriptors(&self) -> BTreeMap<u64, BlockRef> {
        let superblock = self.superblock();
        let size = usize::from(superblock.desc_size());
        let mut replaced: BTreeMap<u64, BlockRef> = BTreeMap::new();
        for group in (0..superblock.group_count()).map(GroupNr) {
            let (block, at) = superblock.desc_place(group);
            let mut contents = replaced.get(&block.0).map_or_else(|| self.block(block), Arc::clone).to_vec();
            if GroupDesc::new(&contents[at..at + size]).checksum_matches(&superblock, group) {
                continue;
            }
            let Some(backup) = self.backup_descriptor(&superblock, group) else { continue };
            self.note(block, BlockDamage::Checksum);
            contents[at..at + size].copy_from_slice(backup.as_bytes());
            replaced.insert(block.0, contents.into());
        }
        replaced
    }

    /// The descriptor of a group from the first group with a sound copy. Backups do not follow the
    /// use of the volume: the bitmaps and all of the inode table count.
    fn backup_descriptor(&self, superblock: &Superblock, group: GroupNr) -> Option<GroupDesc> {
        let (first, (block, at)) = (superblock.desc_place(GroupNr(0)).0, superblock.desc_place(group));
        let copies = (1..superblock.group_count()).map(GroupNr).filter(|&copy| superblock.has_backup(copy));
        let mut copies = copies.filter_map(|copy| {
            let backup = superblock.group_start(copy).offset(1 + block.0 - first.0);
            let contents = self.reader.volume.read_block(backup).ok()?;
            let desc = GroupDesc::new(&contents[at..at + usize::from(superblock.desc_size())]);
            desc.checksum_matches(superblock, group).then_some(desc)
        });
        let mut desc = copies.next()?;
        desc.set_flags(desc.flags() & !(BLOCK_UNINIT | INODE_UNINIT));
        desc.set_itable_unused(0);
        desc.seal(superblock, group);
        Some(desc)
    }

    fn read_log(&self, root: &Root) -> Result<Logged> {
        let before = |block| Ok(self.block(block).to_vec());
        // A log that cannot be read ends before its first record, like a torn one.
        let logged = past_corruption(log::read_over(&self.reader, root, Faults::default(), before))?;
        Ok(logged.unwrap_or_default())
    }

    /// Size of the ext4 volume in bytes.
    pub fn volume_bytes(&self) -> u64 {
        self.reader.shape.volume_blocks * u64::from(self.reader.shape.block_size)
    }

    /// The damage met so far, sorted; complete after an export or a conversion.
    pub fn damage(&self) -> Vec<DamagedBlocks> {
        let unknown = self.unknown.iter().cloned();
        let mut found: Vec<DamagedBlocks> =
            unknown.map(|blocks| DamagedBlocks { blocks, damage: BlockDamage::UnknownPlace }).collect();
        for (&block, &damage) in &*self.damage.lock() {
            found.push(DamagedBlocks { blocks: block..block + 1, damage });
        }
        found.sort_by_key(|one| (one.blocks.start, one.damage));
        let mut joined: Vec<DamagedBlocks> = Vec::new();
        for one in found {
            match joined.last_mut() {
                Some(last) if last.damage == one.damage && last.blocks.end == one.blocks.start => {
                    last.blocks.end = one.blocks.end;
                }
                _ => joined.push(one),
            }
        }
        joined
    }

    fn note(&self, block: BlockNr, damage: BlockDamage) {
        self.damage.lock().insert(block.0, damage);
    }

    fn is_damaged(&self, block: BlockNr) -> bool {
        self.damage.lock().contains_key(&block.0)
            || self.unknown.iter().any(|blocks| blocks.contains(&block.0))
    }

    /// The contents of a block, as far as they can be read.
    fn block(&self, block: BlockNr) -> BlockRef {
        if let Some(replaced) = self.descriptors.get(&block.0) {
            return replaced.clone();
        }
        if let Some(Some(logged)) = self.logged.get(&block.0) {
            return logged.contents.clone();
        }
        let pointer = self.moved.get(&block.0).filter(|_| !self.logged.contains_key(&block.0));
        if pointer.is_some_and(Pointer::is_zeros) {
            return vec![0; self.reader.volume.block_size].into();
        }
        let Ok(contents) = self.reader.volume.read_block(pointer.map_or(block, |at| at.pool_block)) else {
            self.note(block, BlockDamage::Unreadable);
            return vec![0; self.reader.volume.block_size].into();
        };
        if pointer.is_some_and(|at| !at.matches(Target::Block(block), &contents)) {
            self.note(block, BlockDamage::Checksum);
        }
        contents
    }

    /// The superblock; the one at home if the generation's is damaged.
    fn superblock(&self) -> Superblock {
        let own = self.home.own_block();
        let contents = self.block(own);
        let bytes = contents[self.home.own_offset()..][..SUPERBLOCK_BYTES].try_into();
        let read = Superblock::decode(bytes.expect("a superblock fits its block")).ok();
        let fits = |read: &Superblock| {
            (read.blocks_count(), read.block_size(), read.uuid())
                == (self.home.blocks_count(), self.home.block_size(), self.home.uuid())
        };
        read.filter(|read| !self.is_damaged(own) && fits(read)).unwrap_or_else(|| self.home.clone())
    }

    /// Sorted ranges of blocks that may hold anything: all of a group whose descriptor or bitmap is
    /// damaged.
    fn used(&self, superblock: &Superblock) -> Vec<(u64, u64)> {
        let mut used = vec![(0, u64::from(superblock.first_data_block()))];
        for group in (0..superblock.group_count()).map(GroupNr) {
            let start = superblock.group_start(group).0;
            let all = (start, start + u64::from(superblock.blocks_in_group(group)));
            match self.used_in(superblock, group) {
                Some(ranges) => used.extend(ranges),
                None => used.push(all),
            }
        }
        export::joined(used)
    }

    fn used_in(&self, superblock: &Superblock, group: GroupNr) -> Option<Vec<(u64, u64)>> {
        let (at, offset) = superblock.desc_place(group);
        let block = self.block(at);
        let desc = GroupDesc::new(&block[offset..offset + usize::from(superblock.desc_size())]);
        if self.is_damaged(at) || !desc.checksum_matches(superblock, group) {
            return None;
        }
        let mut used = export::fixed_blocks(superblock, group, &desc);
        if used.iter().any(|&(_, end)| end > superblock.blocks_count()) {
            return None;
        }
        if superblock.has_group_csum() && desc.has_flag(BLOCK_UNINIT) {
            return Some(used);
        }
        let bitmap = self.block(desc.block_bitmap());
        let sum = bitmap_checksum(superblock, &bitmap, (superblock.clusters_per_group() / 8) as usize);
        let is_right =
            !superblock.has_metadata_csum() || bitmap_csum_matches(superblock, desc.block_bitmap_csum(), sum);
        if self.is_damaged(desc.block_bitmap()) || !is_right {
            return None;
        }
        used.extend(export::marked_blocks(superblock, group, &bitmap));
        Some(used)
    }

    /// Copies what the generation uses to `out`, which has at least the volume's size and reads as
    /// zeros. If there is damage, the copy is marked as having errors.
    pub fn export(&self, out: &dyn BlockDevice) -> Result<()> {
        if out.size_bytes() < self.volume_bytes() {
            return Err(Error::Usage("the image is smaller than the volume".into()));
        }
        let superblock = self.superblock();
        let block_size = self.reader.volume.block_size;
        for (start, end) in self.used(&superblock) {
            for block in start..end {
                let contents = self.block(BlockNr(block));
                if contents.iter().any(|&byte| byte != 0) {
                    out.write_at(&contents, block * block_size as u64)
                        .map_err(|e| Error::io("writing the image", e))?;
                }
            }
        }
        let copies = self.copies_of_the_superblock(&superblock, false);
        for (block, contents) in copies {
            out.write_at(&contents, block.0 * block_size as u64)
                .map_err(|e| Error::io("writing the image", e))?;
        }
        out.flush().map_err(|e| Error::io("flushing the image", e))
    }

    /// The blocks that hold a copy of the superblock, the primary one first. A damaged one is
    /// replaced by that at home.
    fn copies_of_the_superblock(
        &self,
        superblock: &Superblock,
        with_generations: bool,
    ) -> Vec<(BlockNr, Vec<u8>)> {
        let copies = writeback_home::superblock_copies(superblock).map(|block| {
            let mut contents = self.block(block).to_vec();
            let is_own = block == superblock.own_block();
            let at = if is_own { superblock.own_offset() } else { 0 };
            if self.is_damaged(block)
                && let Ok(home) = self.reader.volume.read_block(block)
            {
                contents = home.to_vec();
            }
            let errors = is_own && !self.damage().is_empty();
            let flags = Flags { generations: Some(with_generations), errors, ..Flags::default() };
            flags.apply(&mut contents[at..at + SUPERBLOCK_BYTES]);
            (block, contents)
        });
        copies.collect()
    }

    /// Makes the volume a plain ext4 one, in place. If there is damage, it is marked as having
    /// errors. The device must be writable, and no one else may have it open.
    ///
    /// Errors: `Usage` if there are snapshots, `Corrupt` if the roots or the list of snapshots are
    /// damaged; then nothing was written.
    pub fn write_home(&self) -> Result<()> {
        if self.has_snapshots.clone()? {
            return Err(Error::Usage(
                "only a volume without snapshots can be converted: export what you need with \
                 'xact snapshot export --best-effort'"
                    .into(),
            ));
        }
        let volume = &self.reader.volume;
        let superblock = self.superblock();
        let is_copy = |block: u64| {
            let group = superblock.group_of(BlockNr(block));
            block == superblock.own_block().0
                || superblock.has_backup(group) && block == superblock.group_start(group).0
        };
        let moved = self.moved.keys().filter(|block| !self.logged.contains_key(block)).copied();
        let logged = self.logged.iter().filter(|(_, logged)| logged.is_some()).map(|(&block, _)| block);
        let mut blocks: Vec<u64> = moved.chain(logged).filter(|&block| !is_copy(block)).collect();
        blocks.sort_unstable();
        for batch in blocks.chunks(BATCH_BLOCKS) {
            let contents = batch.iter().map(|&block| (BlockNr(block), self.block(BlockNr(block))));
            volume.write_sorted(&contents.collect::<Vec<_>>())?;
        }
        // Damage of the descriptors and bitmaps shows in `damage` after this.
        self.used(&superblock);
        // Durable by this flush: every block at home, before the superblock says so.
        volume.flush()?;
        for bit in [true, false] {
            let (own, contents) = self.copies_of_the_superblock(&superblock, bit).swap_remove(0);
            volume.write(own, &[IoSlice::new(&contents)])?;
            // As in `convert`.
            volume.flush()?;
        }
        convert::unmark(volume, &superblock)
    }
}

/// `None` for damage, and for a device that cannot read.
fn past_corruption<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Corrupt(_) | Error::Io { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
