//! A directory in memory, and a strict reader of whole directories.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use xact_consistency::test_engine::TestEngine;
use xact_consistency::{Engine, Handle};
use xact_device::MemoryDevice;
use xact_layout::feature::{compat, incompat, ro_compat};
use xact_layout::htree;
use xact_layout::inode::flag;
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, FileBlock, Ino, Result, Site};

use super::super::{ADD_APPENDS, ADD_CREDITS, CHANGE_CREDITS, Dir, DirBlocks, DirEntry};
use crate::api::{Entry, FileKind};

pub const OWN: Ino = Ino(12);
pub const PARENT: Ino = Ino(2);
pub const GENERATION: u32 = 77;
pub const INODES: u32 = 1_000_000;

/// A small random generator: a failure is repeated from its seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32 % limit
    }

    /// A name of up to `longest` bytes, of all bytes that names may have.
    pub fn name(&mut self, longest: u32) -> Vec<u8> {
        let len = 1 + self.below(longest);
        let mut name: Vec<u8> = (0..len).map(|_| self.below(256) as u8).collect();
        name.iter_mut().filter(|b| matches!(**b, 0 | b'/' | b'.')).for_each(|b| *b = b'_');
        name
    }

    pub fn entry(&mut self) -> Entry {
        let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Symlink, FileKind::Socket];
        Entry { ino: Ino(1 + self.below(INODES)), kind: kinds[self.below(4) as usize] }
    }
}

/// The properties of a test volume.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub block_size: u32,
    pub csum: bool,
    pub dir_index: bool,
    pub types: bool,
    /// Feature `large_dir`.
    pub large: bool,
    pub hash_version: u8,
    /// `s_flags`.
    pub flags: u32,
}

pub const DEFAULT: Kind = Kind {
    block_size: 4096,
    csum: true,
    dir_index: true,
    types: true,
    large: false,
    hash_version: 1,
    flags: 1,
};
pub const SMALL: Kind = Kind { block_size: 1024, ..DEFAULT };

impl Kind {
    pub fn superblock(&self) -> Superblock {
        let mut sb = Superblock::zeroed();
        sb.set_log_block_size(self.block_size.trailing_zeros() - 10);
        sb.set_inodes_count(INODES);
        sb.set_uuid(*b"0123456789abcdef");
        sb.set_hash_seed([1, 2, 3, 4]);
        sb.set_def_hash_version(self.hash_version);
        sb.set_flags(self.flags);
        sb.set_feature_compat(if self.dir_index { compat::DIR_INDEX } else { 0 });
        let types = if self.types { incompat::FILETYPE } else { 0 };
        sb.set_feature_incompat(types | if self.large { incompat::LARGEDIR } else { 0 });
        sb.set_feature_ro_compat(if self.csum { ro_compat::METADATA_CSUM } else { 0 });
        sb
    }
}

/// A directory's blocks: file block `i` is `map[i]`; blocks in `spare` can be appended.
pub struct TestBlocks {
    pub map: Vec<BlockNr>,
    pub spare: Vec<BlockNr>,
    pub indexed: bool,
    /// Number of look-ups of blocks.
    pub looked_up: Cell<u64>,
}

impl DirBlocks for TestBlocks {
    fn count(&self) -> u32 {
        self.map.len() as u32
    }

    fn block(&self, at: FileBlock) -> Result<BlockNr> {
        self.looked_up.set(self.looked_up.get() + 1);
        self.map.get(at.0 as usize).copied().ok_or(Error::corrupt(Site::Inode(OWN), "hole"))
    }

    fn append(&mut self, _h: &mut Handle) -> Result<(FileBlock, BlockNr)> {
        let block = self.spare.pop().ok_or(Error::NoSpace)?;
        self.map.push(block);
        Ok((FileBlock(self.map.len() as u32 - 1), block))
    }

    fn set_indexed(&mut self, _h: &mut Handle, indexed: bool) -> Result<()> {
        self.indexed = indexed;
        Ok(())
    }
}

/// A directory on a volume of its own.
pub struct Sample {
    pub sb: Superblock,
    pub engine: Arc<Engine>,
    pub ino: Ino,
    pub generation: u32,
    pub blocks: TestBlocks,
}

impl Sample {
    /// A new directory of at most `blocks` blocks, scattered over the device.
    pub fn new(kind: Kind, blocks: u32) -> Sample {
        let size = u64::from(kind.block_size) * u64::from(blocks + 1);
        let device = MemoryDevice::new(size);
        let engine: Arc<Engine> = TestEngine::new(Arc::new(device), kind.block_size as usize).engine;
        // Taken from the end, so that the first blocks have the lowest numbers, which simplifies
        // damage.
        let mut spare: Vec<BlockNr> = (1..=u64::from(blocks)).rev().map(BlockNr).collect();
        let map = vec![spare.pop().expect("at least one block")];
        let blocks = TestBlocks { map, spare, indexed: false, looked_up: Cell::new(0) };
        let sample = Sample { sb: kind.superblock(), engine, ino: OWN, generation: GENERATION, blocks };
        let mut h = Handle::begin(&sample.engine, CHANGE_CREDITS).unwrap();
        sample.dir().init(&mut h, sample.blocks.map[0], PARENT).unwrap();
        drop(h);
        sample
    }

    pub fn dir(&self) -> Dir<'_> {
        let flags = flag::EXTENTS | if self.blocks.indexed { flag::INDEX } else { 0 };
        Dir::new(&self.sb, &self.engine, self.ino, self.generation, flags).unwrap()
    }

    fn handle(&self, credits: u32) -> Handle {
        Handle::begin(&self.engine, credits).unwrap()
    }

    pub fn add(&mut self, name: &[u8], entry: Entry) -> Result<()> {
        let mut h = self.handle(ADD_CREDITS);
        let before = self.blocks.count();
        let flags = flag::EXTENTS | if self.blocks.indexed { flag::INDEX } else { 0 };
        let mut dir = Dir::new(&self.sb, &self.engine, self.ino, self.generation, flags)?;
        dir.add(&mut self.blocks, &mut h, name, entry)?;
        assert!(self.blocks.count() <= before + ADD_APPENDS, "appended more blocks than ADD_APPENDS");
        Ok(())
    }

    pub fn remove(&mut self, name: &[u8]) -> Result<()> {
        self.dir().remove(&self.blocks, &mut self.handle(CHANGE_CREDITS), name)
    }

    pub fn set(&mut self, name: &[u8], entry: Entry) -> Result<()> {
        self.dir().set(&self.blocks, &mut self.handle(CHANGE_CREDITS), name, entry)
    }

    pub fn set_parent(&mut self, parent: Ino) -> Result<()> {
        self.dir().set_parent(&self.blocks, &mut self.handle(CHANGE_CREDITS), parent)
    }

    pub fn lookup(&self, name: &[u8]) -> Result<Option<DirEntry>> {
        self.dir().lookup(&self.blocks, name)
    }

    /// Lists up to `limit` names from `cookie` on, each with its `next_cookie`.
    pub fn list_some(&self, cookie: u64, limit: usize) -> Result<Vec<(Vec<u8>, DirEntry, u64)>> {
        let mut list = Vec::new();
        self.dir().list(&self.blocks, cookie, &mut None, &mut |item| {
            if list.len() == limit {
                return false;
            }
            assert!(item.next_cookie > 3 && item.next_cookie >> 63 == 0);
            let from = list.last().map_or(cookie, |last: &(_, _, u64)| last.2);
            // In a damaged directory, a name may be in two blocks: then the first cookie leads to
            // both.
            assert!(item.key >= from && item.next_cookie >= item.key, "keys in order");
            let entry = DirEntry { ino: item.ino, kind: item.kind };
            list.push((item.name.to_vec(), entry, item.next_cookie));
            true
        })?;
        Ok(list)
    }

    pub fn list(&self) -> Result<BTreeMap<Vec<u8>, DirEntry>> {
        let list = self.list_some(0, usize::MAX)?;
        let len = list.len();
        let map: BTreeMap<_, _> = list.into_iter().map(|(name, entry, _)| (name, entry)).collect();
        assert_eq!(map.len(), len, "a name was listed twice");
        Ok(map)
    }

    /// Number of index blocks from the root down to a leaf; 0 without an index.
    pub fn depth(&self) -> usize {
        if !self.blocks.indexed {
            return 0;
        }
        self.dir().probe(&self.blocks, |_| 0).unwrap().1.depth()
    }

    /// Reads the whole index, and checks that it has every block once and every name in the leaf of
    /// its hash. Returns the number of leaves that continue the hash of the previous leaf.
    pub fn check_index(&self) -> usize {
        let dir = self.dir();
        let (_, mut path) = dir.probe(&self.blocks, |_| 0).unwrap();
        let mut seen = vec![false; self.blocks.map.len()];
        let mut continued = 0;
        let mut see = |at: FileBlock, again: bool| {
            let was = std::mem::replace(&mut seen[at.0 as usize], true);
            assert_eq!(was, again, "{at} in the index");
        };
        // The index blocks of the previous path.
        let mut before: Vec<FileBlock> = Vec::new();
        loop {
            let way: Vec<FileBlock> = (0..path.depth()).map(|level| path.step(level).file_block).collect();
            for (level, block) in way.iter().enumerate() {
                see(*block, before.get(level) == Some(block));
            }
            before = way;
            see(path.leaf(), false);
            let (low, high) = (path.hash(), path.next_hash());
            continued += (low & 1) as usize;
            let (block, bytes) = dir.read_leaf(&self.blocks, &path).unwrap();
            for item in dir.format.entries(&bytes, 0, Site::Block(block)) {
                let hash = path.hasher.hash(item.unwrap().1.name).major;
                assert!(hash >= low & !1, "name in a leaf above its hash");
                assert!(high.is_none_or(|high| hash < high), "name in a leaf below its hash");
            }
            match high {
                Some(high) => assert!(high >= low & !1, "order of the index"),
                None => break,
            }
            dir.advance(&self.blocks, &mut path).unwrap();
        }
        assert!(seen.iter().all(|&seen| seen), "a block is not in the index");
        assert!(path.depth() <= htree::MAX_DEPTH);
        continued
    }
}
