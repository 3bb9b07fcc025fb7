//! One quota file: finds, adds and changes the entries of ids.
//!
//! The blocks of the file are metadata: they change in the handle of the counted change. The whole
//! tree is read when the volume is opened, so that corruption is found before anything depends on
//! it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use xact_consistency::{Engine, Handle};
use xact_layout::inode::Inode;
use xact_layout::quota::{
    ENTRY_BYTES, Info, LEAF_ENTRIES, LEVELS, LeafHeader, PIECE_BYTES, QuotaEntry, QuotaKind, ROOT_PIECE,
    entry_at, slot,
};
use xact_layout::{get_u32, put_u32};
use xact_types::{BlockNr, Error, FileBlock, Ino, Result, Run, Site};

use crate::alloc::{Allocator, Purpose};
use crate::extent::{Extents, Owner};
use crate::inode_table::InodeTable;

/// The place of an entry.
#[derive(Debug, Clone, Copy)]
struct EntryPlace {
    block: BlockNr,
    at: usize,
}

pub(super) struct QuotaFile {
    pub kind: QuotaKind,
    ino: Ino,
    engine: Arc<Engine>,
    allocator: Allocator,
    table: InodeTable,
    /// Locked within a handle, and held while entries are added.
    known: Mutex<FileIndex>,
}

struct FileIndex {
    /// The file's blocks in order.
    blocks: Vec<BlockNr>,
    /// The places of all entries.
    places: HashMap<u32, EntryPlace>,
}

impl QuotaFile {
    /// Credits of [`QuotaFile::add`]: info, three new nodes, a new leaf and its predecessor in the
    /// list. Each new node may need a block of its own, with its bitmap and descriptor and a split
    /// of the file's map.
    pub const ADD_CREDITS: u32 = 48;

    /// `Corrupt` if the file, or its tree, is invalid.
    pub fn open(allocator: &Allocator, table: &InodeTable, kind: QuotaKind, ino: Ino) -> Result<QuotaFile> {
        let mut file = QuotaFile {
            kind,
            ino,
            engine: allocator.engine().clone(),
            allocator: allocator.clone(),
            table: table.clone(),
            known: Mutex::new(FileIndex { blocks: Vec::new(), places: HashMap::new() }),
        };
        let inode = table.read(ino)?;
        if !inode.is_regular() || inode.size() < 2 * PIECE_BYTES as u64 {
            return Err(file.corrupt("not a quota file"));
        }
        let mut blocks = Vec::new();
        let count = FileBlock(u32::try_from(file.blocks_of(inode.size())).unwrap_or(u32::MAX));
        file.extents(&inode).iterate(&inode, FileBlock(0)..count, &mut |extent| {
            let part = extent.part(extent.at, extent.end().min(count));
            if part.unwritten || part.at.0 as usize != blocks.len() {
                return Err(file.corrupt("the quota file has a hole"));
            }
            blocks.extend((0..part.run.len).map(|i| part.run.start.offset(u64::from(i))));
            Ok(true)
        })?;
        if blocks.len() != count.0 as usize {
            return Err(file.corrupt("the quota file has a hole"));
        }
        let known = file.known.get_mut();
        known.blocks = blocks;
        file.read_tree()?;
        Ok(file)
    }

    fn corrupt(&self, what: &'static str) -> Error {
        Error::corrupt(Site::Inode(self.ino), what)
    }

    fn blocks_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.engine.block_size() as u64)
    }

    fn extents(&self, inode: &Inode) -> Extents<'_> {
        let owner = Owner { ino: self.ino, generation: inode.generation() };
        Extents::new(&self.engine, self.allocator.superblock(), &self.allocator, owner)
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Number of blocks of the file.
    pub fn blocks(&self) -> u64 {
        self.known.lock().blocks.len() as u64
    }

    fn read_tree(&mut self) -> Result<()> {
        let known = self.known.lock();
        let info = self.info(&known)?;
        let pieces = info.blocks();
        if u64::from(pieces) > known.blocks.len() as u64 * self.pieces_per_block() || pieces <= ROOT_PIECE {
            return Err(self.corrupt("the quota file counts more than it holds"));
        }
        let mut met = vec![false; pieces as usize];
        let mut places = HashMap::new();
        let mut waiting = vec![(ROOT_PIECE, 0)];
        while let Some((piece, level)) = waiting.pop() {
            if piece < ROOT_PIECE || piece >= pieces || std::mem::replace(&mut met[piece as usize], true) {
                return Err(self.corrupt("the tree of the quota file has an invalid pointer"));
            }
            let bytes = self.piece(&known, piece)?;
            if level == LEVELS {
                let place = self.place(&known, piece, 0)?;
                for index in 0..LEAF_ENTRIES {
                    let Some(entry) = QuotaEntry::decode(&bytes[entry_at(index)..]) else { continue };
                    let at = place.at + entry_at(index);
                    if places.insert(entry.id(), EntryPlace { at, ..place }).is_some() {
                        return Err(self.corrupt("the quota file has two entries of one id"));
                    }
                }
                continue;
            }
            // Several ids lead to one leaf, which is read once.
            let mut below: Vec<u32> =
                bytes.chunks_exact(4).map(|word| get_u32(word, 0)).filter(|&piece| piece != 0).collect();
            if level == LEVELS - 1 {
                below.sort_unstable();
                below.dedup();
                below.retain(|&piece| !met.get(piece as usize).is_some_and(|&met| met));
            }
            waiting.extend(below.into_iter().map(|piece| (piece, level + 1)));
        }
        drop(known);
        self.known.get_mut().places = places;
        Ok(())
    }

    fn pieces_per_block(&self) -> u64 {
        (self.engine.block_size() / PIECE_BYTES) as u64
    }

    fn place(&self, known: &FileIndex, piece: u32, at: usize) -> Result<EntryPlace> {
        let byte = u64::from(piece) * PIECE_BYTES as u64;
        let block_size = self.engine.block_size() as u64;
        match known.blocks.get((byte / block_size) as usize) {
            Some(&block) => Ok(EntryPlace { block, at: (byte % block_size) as usize + at }),
            None => Err(self.corrupt("the quota file points past its end")),
        }
    }

    fn piece(&self, known: &FileIndex, piece: u32) -> Result<Vec<u8>> {
        let place = self.place(known, piece, 0)?;
        Ok(self.engine.read(place.block)?[place.at..place.at + PIECE_BYTES].to_vec())
    }

    fn info(&self, known: &FileIndex) -> Result<Info> {
        Info::decode(&self.piece(known, 0)?, self.kind, Site::Inode(self.ino))
    }

    /// Grace times for space and for the number of inodes, in seconds.
    pub fn grace(&self) -> Result<(u64, u64)> {
        let info = self.info(&self.known.lock())?;
        Ok((info.bgrace().into(), info.igrace().into()))
    }

    /// The entry of an id, if it has one.
    pub fn entry(&self, id: u32) -> Result<Option<QuotaEntry>> {
        let Some(place) = self.known.lock().places.get(&id).copied() else { return Ok(None) };
        Ok(QuotaEntry::decode(&self.engine.read(place.block)?[place.at..place.at + ENTRY_BYTES]))
    }

    /// Changes the entry of an id; adds it if it does not exist.
    pub fn change(
        &self,
        handle: &mut Handle,
        id: u32,
        mut change: impl FnMut(&mut QuotaEntry),
    ) -> Result<()> {
        let known = self.known.lock().places.get(&id).copied();
        let place = match known {
            Some(place) => place,
            None => self.add(handle, id)?,
        };
        handle.update_shared(place.block, |_, bytes| {
            let bytes = &mut bytes[place.at..place.at + ENTRY_BYTES];
            let mut entry = QuotaEntry::decode(bytes).unwrap_or_else(|| QuotaEntry::new(id));
            change(&mut entry);
            bytes.copy_from_slice(&entry.encode());
        })?;
        Ok(())
    }

    /// Changes the entry of an id ahead of the handle's commit, which has the change already.
    /// False: not ahead of it. The entry may be new in the commit.
    pub fn catch_up(
        &self,
        handle: &mut Handle,
        id: u32,
        mut change: impl FnMut(&mut QuotaEntry),
    ) -> Result<bool> {
        let Some(place) = self.known.lock().places.get(&id).copied() else { return Ok(false) };
        handle.catch_up(place.block, |bytes| {
            let bytes = &mut bytes[place.at..place.at + ENTRY_BYTES];
            let Some(mut entry) = QuotaEntry::decode(bytes).filter(|entry| entry.id() == id) else {
                return false;
            };
            change(&mut entry);
            bytes.copy_from_slice(&entry.encode());
            true
        })
    }

    pub fn has(&self, id: u32) -> bool {
        self.known.lock().places.contains_key(&id)
    }

    /// Adds an entry without usage (`qtree_write_dquot` of a new one). The tree is the same in all
    /// versions: an addition in a later commit waits until the previous commit has drained.
    fn add(&self, handle: &mut Handle, id: u32) -> Result<EntryPlace> {
        handle.await_drained()?;
        let mut known = self.known.lock();
        if let Some(&place) = known.places.get(&id) {
            return Ok(place);
        }
        let mut info = self.info(&known)?;
        // Walk down to the node above the leaf, whose slot for this id is empty.
        let mut node = ROOT_PIECE;
        for level in 0..LEVELS - 1 {
            let below = get_u32(&self.piece(&known, node)?, slot(id, level));
            node = match below {
                0 => {
                    let new = self.free_piece(handle, &mut known, &mut info)?;
                    self.update(handle, &known, node, |bytes| put_u32(bytes, slot(id, level), new))?;
                    new
                }
                below => below,
            };
        }
        let leaf = match info.free_entry() {
            0 => {
                let new = self.free_piece(handle, &mut known, &mut info)?;
                info.set_free_entry(new);
                new
            }
            leaf => leaf,
        };
        let bytes = self.piece(&known, leaf)?;
        let is_free = |index: &usize| QuotaEntry::decode(&bytes[entry_at(*index)..]).is_none();
        let index = (0..LEAF_ENTRIES)
            .find(is_free)
            .ok_or_else(|| self.corrupt("the quota file has a full leaf among those with free entries"))?;
        let mut header = LeafHeader::decode(&bytes);
        header.entries += 1;
        if usize::from(header.entries) >= LEAF_ENTRIES {
            // The leaf was the first of the list.
            info.set_free_entry(header.next_free);
            if header.next_free != 0 {
                self.update(handle, &known, header.next_free, |bytes| {
                    let next = LeafHeader { previous_free: 0, ..LeafHeader::decode(bytes) };
                    next.encode(bytes);
                })?;
            }
            header.next_free = 0;
            header.previous_free = 0;
        }
        self.update(handle, &known, leaf, |bytes| {
            header.encode(bytes);
            bytes[entry_at(index)..][..ENTRY_BYTES].copy_from_slice(&QuotaEntry::new(id).encode());
        })?;
        self.update(handle, &known, node, |bytes| put_u32(bytes, slot(id, LEVELS - 1), leaf))?;
        self.update(handle, &known, 0, |bytes| {
            bytes[..info.as_bytes().len()].copy_from_slice(info.as_bytes())
        })?;
        let place = self.place(&known, leaf, entry_at(index))?;
        known.places.insert(id, place);
        Ok(place)
    }

    fn update(
        &self,
        handle: &mut Handle,
        known: &FileIndex,
        piece: u32,
        mut change: impl FnMut(&mut [u8]),
    ) -> Result<()> {
        let place = self.place(known, piece, 0)?;
        handle.update_shared(place.block, |_, bytes| change(&mut bytes[place.at..place.at + PIECE_BYTES]))?;
        Ok(())
    }

    /// A piece of zeros: a free one, or a new one at the end.
    fn free_piece(&self, handle: &mut Handle, known: &mut FileIndex, info: &mut Info) -> Result<u32> {
        let piece = match info.free_blk() {
            0 => {
                let piece = info.blocks();
                self.grow(handle, known, u64::from(piece + 1) * PIECE_BYTES as u64)?;
                info.set_blocks(piece + 1);
                piece
            }
            piece => {
                info.set_free_blk(LeafHeader::decode(&self.piece(known, piece)?).next_free);
                piece
            }
        };
        self.update(handle, known, piece, |bytes| bytes.fill(0))?;
        Ok(piece)
    }

    /// Extends the file to `bytes` bytes, if it is shorter.
    fn grow(&self, handle: &mut Handle, known: &mut FileIndex, bytes: u64) -> Result<()> {
        let mut inode = self.table.read(self.ino)?;
        while (known.blocks.len() as u64) < self.blocks_of(bytes) {
            let at = FileBlock(known.blocks.len() as u32);
            let goal =
                known.blocks.last().map_or_else(|| self.allocator.goal_for(self.ino), |last| last.offset(1));
            let run: Run = self.allocator.take(goal, 1, Purpose::Metadata, None)?;
            self.allocator.link(handle, run)?;
            handle.create(run.start, vec![0; self.engine.block_size()])?;
            self.extents(&inode).insert(handle, &mut inode, at, run, false)?;
            known.blocks.push(run.start);
        }
        inode.set_size(inode.size().max(bytes));
        self.table.write(handle, self.ino, &inode)
    }
}
