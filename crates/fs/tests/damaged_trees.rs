//! Damaged and crafted extent trees and block maps give an error with the place, or some result,
//! but no panic, no endless walk, and no access to the volume's own metadata.
//!
//! The volumes have no checksums, which would detect the damage first.

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::volume::{Volume, debugfs, ino_of};
use common::{Image, read_superblock};
use xact_consistency::{Engine, EngineOptions, Handle};
use xact_device::MemoryDevice;
use xact_fs::alloc::{Allocator, Purpose};
use xact_fs::extent::{Extents, Mapping, Owner};
use xact_fs::inode_table::InodeTable;
use xact_layout::extent::{END_OF_FILES, Index, empty_root, write_block, write_root};
use xact_layout::inode::{Inode, flag};
use xact_layout::{get_u16, put_u16, put_u32};
use xact_types::{BlockNr, Error, FileBlock, Ino, Result, Run};

struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32 % end
    }
}

/// A volume's bytes, with the inode of one file and its nodes or arrays.
struct Template {
    bytes: Vec<u8>,
    ino: Ino,
    nodes: Vec<BlockNr>,
}

/// A copy of the template in memory, to be damaged.
struct Copy {
    engine: Arc<Engine>,
    alloc: Allocator,
    ino: Ino,
    inode: Inode,
}

impl Template {
    fn copy(&self) -> Copy {
        let device = Arc::new(MemoryDevice::from_bytes(self.bytes.clone()));
        let sb = read_superblock(&*device);
        let engine = xact_consistency::open(device, EngineOptions::default()).unwrap();
        let alloc = xact_fs::fixed_blocks::open_allocator(engine.clone(), sb).unwrap();
        let inode = InodeTable::new(&alloc).read(self.ino).unwrap();
        Copy { engine, alloc, ino: self.ino, inode }
    }
}

impl Copy {
    fn extents(&self) -> Extents<'_> {
        let owner = Owner { ino: self.ino, generation: self.inode.generation() };
        Extents::new(&self.engine, self.alloc.superblock(), &self.alloc, owner)
    }

    fn damage(&mut self, block: Option<BlockNr>, damage: impl FnOnce(&mut [u8])) {
        match block {
            Some(block) => {
                Handle::begin(&self.engine, 1).unwrap().update(block, damage).unwrap();
            }
            None => {
                let mut area = *self.inode.block_area();
                damage(&mut area);
                self.inode.set_block_area(&area);
            }
        }
    }

    fn map(&self, at: u32) -> Result<Mapping> {
        let mapping = self.extents().map(&self.inode, FileBlock(at))?;
        assert!(mapping.blocks() > 0 && mapping.blocks() <= u32::MAX - at);
        if let Mapping::Written { start, len } | Mapping::Unwritten { start, len } = mapping {
            assert!(self.alloc.is_usable(Run { start, len }).unwrap(), "{mapping:?} is not for files");
        }
        Ok(mapping)
    }

    fn iterate(&self) -> Result<u32> {
        let mut count = 0;
        let range = FileBlock(0)..END_OF_FILES;
        self.extents().iterate(&self.inode, range, &mut |_| {
            count += 1;
            Ok(true)
        })?;
        Ok(count)
    }

    fn remove(&mut self, range: Range<u32>) -> Result<()> {
        let mut inode = self.inode.clone();
        let mut handle = Handle::begin(&self.engine, 10_000)?;
        let range = FileBlock(range.start)..FileBlock(range.end);
        let free = &mut |handle: &mut Handle, run: Run| self.alloc.free(handle, run, None);
        let result = self.extents().remove(&mut handle, &mut inode, range, free);
        self.inode = inode;
        result.map(|_| ())
    }

    /// Calls every operation once; any result is allowed.
    fn use_all(&mut self, random: &mut Random) {
        let mut hole = None;
        for _ in 0..50 {
            let at = random.below(4000);
            if let Ok(Mapping::Hole { .. }) = self.map(at) {
                hole = Some(at);
            }
        }
        let _ = self.iterate();
        if let Some(at) = hole {
            let purpose = Purpose::Data { privileged: true };
            let run = self.alloc.take(BlockNr(0), 1, purpose, None).unwrap();
            let mut inode = self.inode.clone();
            let mut handle = Handle::begin(&self.engine, 100).unwrap();
            let _ = self.extents().insert(&mut handle, &mut inode, FileBlock(at), run, true);
            self.inode = inode;
        }
        let mut inode = self.inode.clone();
        let mut handle = Handle::begin(&self.engine, 10_000).unwrap();
        let from = random.below(4000);
        let _ = self.extents().set_written(&mut handle, &mut inode, FileBlock(from)..FileBlock(from + 20));
        drop(handle);
        self.inode = inode;
        let _ = self.remove(from..from + 100);
        let _ = self.remove(0..u32::MAX);
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // Ends the engine's threads; its errors are not what the tests check.
        let _ = self.engine.close();
    }
}

fn assert_corrupt<T: std::fmt::Debug>(result: Result<T>, what: &str) {
    assert!(matches!(result, Err(Error::Corrupt(_))), "{what}: {result:?}");
}

/// A file of one-block extents, with three levels.
fn tree() -> Template {
    let image = Image::mke2fs(8 << 20, &["-b", "1024", "-O", "^metadata_csum,^has_journal"]);
    debugfs(&image, &["write /dev/null file"]);
    let ino = ino_of(&image, "file");
    let volume = Volume::open(image);
    let mut inode = volume.inodes.read(ino).unwrap();
    let owner = Owner { ino, generation: inode.generation() };
    let extents = Extents::new(&volume.engine, volume.sb(), &volume.alloc, owner);
    for at in 0..2000 {
        let mut handle = volume.begin(100);
        let purpose = Purpose::Data { privileged: true };
        let run = volume.alloc.take(BlockNr(0), 1, purpose, None).unwrap();
        volume.alloc.link(&mut handle, run).unwrap();
        extents.insert(&mut handle, &mut inode, FileBlock(2 * at), run, at % 3 == 0).unwrap();
    }
    inode.set_size(4000 * 1024);
    volume.write_inode(ino, &inode);
    let mut nodes = Vec::new();
    let mut level: Vec<[u8; 12]> = inode.block_area()[12..].as_chunks().0.to_vec();
    level.truncate(get_u16(inode.block_area(), 2).into());
    for _ in 0..get_u16(inode.block_area(), 6) {
        let blocks: Vec<BlockNr> = level.iter().map(|raw| Index::decode(raw).child).collect();
        level.clear();
        for &block in &blocks {
            let bytes = volume.engine.read(block).unwrap();
            let count = usize::from(get_u16(&bytes, 2));
            level.extend_from_slice(&bytes[12..].as_chunks().0[..count]);
        }
        nodes.extend(blocks);
    }
    let image = volume.close();
    Template { bytes: std::fs::read(&image.path).unwrap(), ino, nodes }
}

#[test]
fn random_damage_of_trees_causes_no_panic_or_hang() {
    let template = tree();
    assert!(template.nodes.len() > 24, "the tree has two levels of nodes");
    for seed in 0..400 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut copy = template.copy();
        for _ in 0..1 + random.below(4) {
            // The root and the upper nodes come first in the list.
            let nodes = template.nodes.len() as u32;
            let among = [1, 4, nodes][random.below(3) as usize];
            let block = (random.below(4) != 0).then(|| template.nodes[random.below(among) as usize]);
            let len = if block.is_some() { 200 } else { 60 };
            let (at, kind, value) = (random.below(len) as usize, random.below(3), random.below(1 << 16));
            copy.damage(block, |bytes| match kind {
                0 => bytes[at] ^= 1 << (value % 8),
                1 => bytes[at] = value as u8,
                _ => put_u16(bytes, at & !1, [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF][value as usize % 6]),
            });
        }
        copy.use_all(&mut random);
    }
}

#[test]
fn crafted_trees_are_refused() {
    let template = tree();
    let sb = template.copy().alloc.superblock().clone();
    let index = |at: u32, child: BlockNr| Index { at: FileBlock(at), child }.encode();

    // A node that is its own child.
    let mut copy = template.copy();
    let node = template.nodes[0];
    copy.damage(Some(node), |bytes| write_block(bytes, &sb, 0, 1, &[index(0, node)]));
    copy.damage(None, |area| write_root(area.try_into().unwrap(), 2, &[index(0, node)]));
    assert_corrupt(copy.map(5), "a node that is its own child");
    assert_corrupt(copy.iterate(), "a node that is its own child");
    assert_corrupt(copy.remove(0..u32::MAX), "a node that is its own child");

    // One leaf under many entries would be walked a million times.
    let mut copy = template.copy();
    let leaf = *template.nodes.last().unwrap();
    let first = {
        let bytes = copy.engine.read(leaf).unwrap();
        u32::from_le_bytes(bytes[12..16].try_into().unwrap())
    };
    let many: Vec<[u8; 12]> = (0..80).map(|i| index(first + i, leaf)).collect();
    copy.damage(Some(node), |bytes| write_block(bytes, &sb, 0, 1, &many));
    copy.damage(None, |area| write_root(area.try_into().unwrap(), 2, &[index(first, node)]));
    assert_corrupt(copy.iterate(), "one leaf under many entries");

    // A node in the inode table; data in a bitmap.
    for (at, depth) in [(5, 1), (0, 0)] {
        let mut copy = template.copy();
        let bitmap = BlockNr(u64::from(sb.first_data_block()) + 2 + u64::from(sb.reserved_gdt_blocks()));
        let entry = if depth == 1 {
            index(0, bitmap)
        } else {
            let mut raw = [0; 12];
            put_u16(&mut raw, 4, 1);
            put_u32(&mut raw, 8, bitmap.0 as u32);
            raw
        };
        copy.damage(None, |area| write_root(area.try_into().unwrap(), depth, &[entry]));
        assert_corrupt(copy.map(at), "a claim to the volume's metadata");
        assert_corrupt(copy.iterate(), "a claim to the volume's metadata");
        assert_corrupt(copy.remove(0..u32::MAX), "a claim to the volume's metadata");
    }
}

#[test]
fn damaged_block_maps_cause_no_panic_or_hang() {
    let image = Image::mke2fs(8 << 20, &["-b", "1024", "-O", "^extents,^64bit,^metadata_csum,^has_journal"]);
    let contents = image.dir.path().join("contents");
    std::fs::write(&contents, vec![7; 3000 * 1024]).unwrap();
    debugfs(&image, &[&format!("write {} file", contents.display())]);
    let ino = ino_of(&image, "file");
    let template = Template { bytes: std::fs::read(&image.path).unwrap(), ino, nodes: vec![] };
    let original = template.copy();
    assert_eq!(original.inode.flags() & flag::EXTENTS, 0);
    assert_ne!(original.inode.block_area(), &empty_root());
    let pointer = |slot: usize| {
        let area = original.inode.block_area();
        u32::from_le_bytes(area[4 * slot..4 * slot + 4].try_into().unwrap())
    };
    let arrays = [BlockNr(pointer(12).into()), BlockNr(pointer(13).into())];
    for seed in 0..200 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut copy = template.copy();
        for _ in 0..1 + random.below(3) {
            let block = (random.below(3) != 0).then(|| arrays[random.below(2) as usize]);
            let slot = random.below(if block.is_some() { 256 } else { 15 }) as usize;
            let value = match random.below(5) {
                0 => 0,
                1 => random.below(8192),
                2 => arrays[1].0 as u32,
                3 => random.below(60),
                _ => u32::MAX,
            };
            copy.damage(block, |bytes| put_u32(bytes, 4 * slot, value));
        }
        copy.use_all(&mut random);
    }
    let mut copy = template.copy();
    copy.damage(None, |area| put_u32(area, 0, 3));
    assert_corrupt(copy.map(0), "data in the volume's metadata");
    // Triply indirect blocks through the doubly indirect array, which is its own first entry.
    let mut copy = template.copy();
    copy.damage(None, |area| put_u32(area, 4 * 14, arrays[1].0 as u32));
    copy.damage(Some(arrays[1]), |bytes| {
        bytes.as_chunks_mut::<4>().0.fill((arrays[1].0 as u32).to_le_bytes())
    });
    assert_corrupt(copy.remove(0..u32::MAX), "an array within itself");
}
