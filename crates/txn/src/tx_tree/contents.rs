//! File contents in a transaction: whole blocks that replace the base's, in memory or spilled.

use std::ops::Range;
use std::sync::Arc;

use xact_fs::{Allocate, Attr, AttrSet, BlockContents, InodeOps, SeekTo, VersionedFs};
use xact_types::{Errno, Error, FileBlock, Ino, Result};

use super::TxTree;
use crate::overlay::Node;
use crate::validation::conflict::CONTENTS_CHANGED;
use crate::validation::write_set::Write;

/// The contents of a block; `None` for a hole.
type Block = Option<Arc<[u8]>>;

/// A block as the transaction's own.
fn own(block: Option<(FileBlock, Block)>) -> Option<(FileBlock, Option<BlockContents>)> {
    block.map(|(at, bytes)| (at, bytes.map(BlockContents::Memory)))
}

impl<B: VersionedFs> TxTree<'_, B> {
    fn block_bytes(&self) -> u64 {
        u64::from(self.base.block_size())
    }

    fn size(&mut self, ino: Ino) -> Result<u64> {
        Ok(self.attr(ino)?.size)
    }

    /// A block of the view; `None` for a hole. After the end of the file it is zero. `base_size`:
    /// the size of the base's file as of the stamp.
    fn block(&self, ino: Ino, at: FileBlock, base_size: u64) -> Result<Block> {
        let node = self.node(ino);
        if let Some(node) = node {
            if let Some(block) = node.file.blocks.get(&at) {
                return block.as_ref().map(BlockContents::bytes).transpose();
            }
            if node.born || !node.file.base_has(at) {
                return Ok(None);
            }
        }
        let Some(mut block) = self.base.read_block_at(ino, at, self.stamp_of(ino))? else { return Ok(None) };
        // Bytes past the end of the base's file are undefined, and the view may have made the file
        // longer.
        let start = u64::from(at.0) * self.block_bytes();
        if base_size < start + self.block_bytes() {
            Arc::make_mut(&mut block)[base_size.saturating_sub(start) as usize..].fill(0);
        }
        Ok(Some(block))
    }

    /// Checks blocks before the transaction writes them (TX-4): a conflict if others have changed
    /// one of them, or one that it has written before, since the stamp. The commit would be refused
    /// for either, so this only reports it earlier. Later changes are left to the commit.
    fn check_not_overtaken(&self, ino: Ino, blocks: Range<FileBlock>) -> Result<()> {
        if self.is_born(ino) || blocks.is_empty() {
            return Ok(());
        }
        let stamp = self.stamp_of(ino);
        let mut changed = self.base.blocks_changed_since(ino, blocks.clone(), stamp)?;
        if changed.is_none()
            && let Some(node) = self.node(ino)
        {
            let mut reads = self.reads.lock();
            let compared = reads.compared.entry(ino).or_default();
            let after = stamp.max(*compared);
            let file = &node.file;
            let is_own = |changed: Range<FileBlock>| {
                let is_cut = file.base_end.is_some_and(|end| end < changed.end);
                is_cut || file.blocks.range(changed).next().is_some()
            };
            (changed, *compared) =
                self.base.find_changed_block(ino, stamp, after, &mut |changed| is_own(changed))?;
        }
        let Some(by) = changed else { return self.note_write(ino, &Write::Blocks(blocks)) };
        let mut reads = self.reads.lock();
        // The failed write counts among the blocks that the transaction uses.
        reads.blocks(ino, blocks.start.0.into()..blocks.end.0.into());
        Err(Error::Conflict { path: reads.paths.of(ino), why: CONTENTS_CHANGED, conflicting_tx: by.0 })
    }

    /// Records a change of the size.
    fn note_size(&self, ino: Ino) -> Result<()> {
        self.note_write(ino, &Write::Attrs(AttrSet::SIZE))
    }

    /// Records a read of the base's blocks in a range of bytes.
    fn note_read(&self, ino: Ino, bytes: Range<u64>) {
        if self.is_born(ino) || bytes.is_empty() {
            return;
        }
        let bs = self.block_bytes();
        let mut reads = self.reads.lock();
        reads.blocks(ino, bytes.start / bs..bytes.end.div_ceil(bs));
    }

    /// Records that the base's file must be at least this long, if it was as of the stamp.
    fn note_reach(&self, ino: Ino, end: u64, base_size: u64) {
        if !self.is_born(ino) && self.node(ino).is_none_or(|node| node.file.base_end.is_none()) {
            self.reads.lock().min_size(ino, end.min(base_size));
        }
    }

    fn base_size(&self, ino: Ino) -> Result<u64> {
        match self.node(ino) {
            Some(node) => Ok(node.origin.size),
            None => Ok(self.base.attr_at(ino, self.stamp_of(ino))?.size),
        }
    }

    pub(crate) fn read_range(&mut self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let size = self.size(ino)?;
        let bs = self.block_bytes();
        let wanted = offset.saturating_add(len as u64);
        let end = wanted.min(size);
        if wanted > size {
            self.depends_on(ino, AttrSet::SIZE);
        }
        if offset >= end {
            return Ok(());
        }
        self.note_read(ino, offset..end);
        let base_size = self.base_size(ino)?;
        self.note_reach(ino, end, base_size);
        let mut at = offset;
        while at < end {
            let stop = end.min((at / bs + 1) * bs);
            let start = at / bs * bs;
            match self.block(ino, FileBlock((at / bs) as u32), base_size)? {
                Some(block) => out.extend_from_slice(&block[(at - start) as usize..(stop - start) as usize]),
                None => out.resize(out.len() + (stop - at) as usize, 0),
            }
            at = stop;
        }
        Ok(())
    }

    pub(crate) fn write_range(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let bs = self.block_bytes();
        let end = offset + data.len() as u64;
        let base_size = self.base_size(ino)?;
        let (first, last) = (offset / bs, (end - 1) / bs);
        self.check_not_overtaken(ino, FileBlock(first as u32)..FileBlock(last as u32 + 1))?;
        // The first and the last block may be written in part: they are read before any change.
        let mut partial: Vec<(u64, Block)> = Vec::new();
        for at in [first, last] {
            let whole = offset <= at * bs && end >= (at + 1) * bs;
            if !whole && partial.iter().all(|(known, _)| *known != at) {
                partial.push((at, self.block(ino, FileBlock(at as u32), base_size)?));
            }
        }
        let tail = self.tail_before_growth(ino, end)?;
        if end > self.size(ino)? {
            self.note_size(ino)?;
        }
        self.note_reach(ino, end, base_size);
        let node = self.node_mut(ino)?;
        node.file.blocks.insert_all(own(tail));
        let mut fresh = Vec::new();
        for at in first..=last {
            let start = at * bs;
            let (from, to) = (offset.max(start), end.min(start + bs));
            let new = &data[(from - offset) as usize..(to - offset) as usize];
            let key = FileBlock(at as u32);
            let block = match partial.iter_mut().find(|(known, _)| *known == at) {
                Some((_, old)) => {
                    // The overlay's own block is changed in place unless a reader refers to it.
                    let old = match node.file.blocks.remove(key).flatten() {
                        Some(BlockContents::Memory(own)) => {
                            *old = None;
                            Some(own)
                        }
                        _ => {
                            fresh.push((ino, key));
                            old.take()
                        }
                    };
                    let mut block = old.unwrap_or_else(|| vec![0; bs as usize].into());
                    Arc::make_mut(&mut block)[(from - start) as usize..(to - start) as usize]
                        .copy_from_slice(new);
                    block
                }
                None => Arc::from(new),
            };
            let before = node.file.blocks.insert(key, Some(BlockContents::Memory(block)));
            let is_whole = partial.iter().all(|(known, _)| *known != at);
            if is_whole && !matches!(before, Some(Some(BlockContents::Memory(_)))) {
                fresh.push((ino, key));
            }
        }
        node.file.size = node.file.size.max(end);
        self.overlay_mut().in_memory.extend(fresh);
        Ok(())
    }

    /// The base's last block, if the file is about to grow past an end within that block. Bytes
    /// after the end are undefined there, so the transaction takes the block over with zeros in
    /// their place.
    fn tail_before_growth(&mut self, ino: Ino, new_size: u64) -> Result<Option<(FileBlock, Block)>> {
        let (bs, size) = (self.block_bytes(), self.size(ino)?);
        let tail = FileBlock((size / bs) as u32);
        let owned = self.node(ino).is_some_and(|node| {
            node.born || !node.file.base_has(tail) || node.file.blocks.contains_key(&tail)
        });
        if new_size <= size || size % bs == 0 || owned {
            return Ok(None);
        }
        let Some(mut block) = self.block(ino, tail, self.base_size(ino)?)? else { return Ok(None) };
        self.check_not_overtaken(ino, tail..tail.offset(1))?;
        Arc::make_mut(&mut block)[(size % bs) as usize..].fill(0);
        Ok(Some((tail, Some(block))))
    }

    pub(crate) fn cut_or_grow(&mut self, ino: Ino, size: u64) -> Result<()> {
        let bs = self.block_bytes();
        let Attr { size: old, sectors, .. } = self.attr(ino)?;
        if size >= old {
            // Without a change here, the result still depends on the size, which others may have
            // changed.
            self.depends_on(ino, AttrSet::SIZE);
        }
        // A cut to the file's own size frees what is reserved past its end, as in ext4.
        let reserves = sectors > 0 || self.node(ino).is_some_and(|node| !node.file.reserved.is_empty());
        if size > old || size == old && !reserves {
            let tail = self.tail_before_growth(ino, size)?;
            if size > old {
                self.note_size(ino)?;
            }
            let file = &mut self.node_mut(ino)?.file;
            file.blocks.insert_all(own(tail));
            file.size = size;
            return Ok(());
        }
        // The block in which the file now ends becomes the transaction's own, with zeros after the
        // end. So a commit removes whole blocks from the base's file and changes none in place.
        let tail = FileBlock((size / bs) as u32);
        let tail_block =
            if size % bs == 0 || size == old { None } else { self.block(ino, tail, self.base_size(ino)?)? };
        let end = FileBlock(u32::try_from(size.div_ceil(bs)).unwrap_or(u32::MAX));
        self.check_not_overtaken(ino, if tail_block.is_some() { tail } else { end }..FileBlock(u32::MAX))?;
        self.note_size(ino)?;
        let node = self.node_mut(ino)?;
        node.file.size = size;
        node.file.blocks.cut(end);
        node.file.reserved.remove(size.div_ceil(bs) * bs..u64::MAX);
        if !node.born {
            node.file.base_end = Some(node.file.base_end.map_or(end, |old| old.min(end)));
        }
        if let Some(mut block) = tail_block {
            Arc::make_mut(&mut block)[(size % bs) as usize..].fill(0);
            node.file.blocks.insert(tail, Some(BlockContents::Memory(block)));
        }
        Ok(())
    }

    pub(crate) fn allocate_range(&mut self, ino: Ino, range: Range<u64>, how: Allocate) -> Result<()> {
        let keep_size = match how {
            Allocate::Reserve { keep_size } | Allocate::ZeroRange { keep_size } => keep_size,
            Allocate::PunchHole => true,
        };
        self.depends_on(ino, AttrSet::SIZE);
        let (bs, size) = (self.block_bytes(), self.size(ino)?);
        match how {
            Allocate::Reserve { .. } => {}
            Allocate::ZeroRange { .. } => self.clear_range(ino, range.start..range.end.min(size))?,
            // A hole that reaches past the end includes the whole last block, as in ext4.
            Allocate::PunchHole if range.end > size => {
                self.clear_range(ino, range.start..size.div_ceil(bs) * bs)?;
            }
            Allocate::PunchHole => self.clear_range(ino, range.clone())?,
        }
        let tail = if keep_size { None } else { self.tail_before_growth(ino, range.end)? };
        if !keep_size && range.end > self.size(ino)? {
            self.note_size(ino)?;
        }
        let node = self.node_mut(ino)?;
        node.file.blocks.insert_all(own(tail));
        if how == Allocate::PunchHole {
            node.file.reserved.remove(range.start.div_ceil(bs) * bs..range.end / bs * bs);
        } else {
            node.file.reserved.insert(range.clone());
        }
        if !keep_size {
            node.file.size = node.file.size.max(range.end);
        }
        Ok(())
    }

    /// Makes a range read as zeros: whole blocks become holes, partial blocks are overwritten.
    fn clear_range(&mut self, ino: Ino, range: Range<u64>) -> Result<()> {
        let bs = self.block_bytes();
        let size = self.size(ino)?;
        let end = range.end;
        if range.start >= end {
            return Ok(());
        }
        let base_size = self.base_size(ino)?;
        let (first, past) = (range.start.div_ceil(bs), end / bs);
        // Everything is read first: partial blocks with data at the edges, and data in between.
        let edges = if first > past {
            [range.start..end, end..end]
        } else {
            [range.start..first * bs, past * bs..end]
        };
        let mut zeroed = Vec::new();
        for edge in edges.into_iter().filter(|edge| !edge.is_empty() && edge.start < size) {
            if self.block(ino, FileBlock((edge.start / bs) as u32), base_size)?.is_some() {
                zeroed.push(edge);
            }
        }
        let mut holes = Vec::new();
        let mut at = first;
        while at < past {
            match self.next_block(ino, FileBlock(at as u32), SeekTo::Data, size.div_ceil(bs))? {
                Some(found) if u64::from(found.0) < past => {
                    holes.push(found);
                    at = u64::from(found.0) + 1;
                }
                _ => break,
            }
        }
        self.note_read(ino, range.start..end);
        self.note_reach(ino, end.min(size), base_size);
        for run in holes.chunk_by(|one, two| one.offset(1) == *two) {
            self.check_not_overtaken(ino, run[0]..run[run.len() - 1].offset(1))?;
        }
        for edge in zeroed {
            self.write_range(ino, edge.start, &vec![0; (edge.end.min(size) - edge.start) as usize])?;
        }
        let node: &mut Node = self.node_mut(ino)?;
        for hole in holes {
            if node.born || !node.file.base_has(hole) {
                node.file.blocks.remove(hole);
            } else {
                node.file.blocks.insert(hole, None);
            }
        }
        Ok(())
    }

    pub(crate) fn seek_from(&mut self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64> {
        let size = self.size(ino)?;
        let bs = self.block_bytes();
        if offset >= size {
            return Err(Error::Posix(Errno::ENXIO));
        }
        let found = self.next_block(ino, FileBlock((offset / bs) as u32), to, size.div_ceil(bs))?;
        let at = match (found, to) {
            (Some(block), _) => (u64::from(block.0) * bs).max(offset).min(size),
            (None, _) => size,
        };
        // The found block is recorded, too, because it might become a hole (or data).
        self.note_read(ino, offset..(at + 1).min(size).max(offset + 1));
        if to == SeekTo::Data && found.is_none() { Err(Error::Posix(Errno::ENXIO)) } else { Ok(at) }
    }

    /// The first block in `from..past` that is data (or a hole) in the view.
    fn next_block(&self, ino: Ino, from: FileBlock, to: SeekTo, past: u64) -> Result<Option<FileBlock>> {
        let mut at = u64::from(from.0);
        while at < past {
            let block = FileBlock(at as u32);
            let own = self.node(ino).and_then(|node| node.file.blocks.get(&block));
            let (is_data, end) = match own {
                Some(own) => (own.is_some(), at + 1),
                None => self.base_run(ino, block)?,
            };
            if is_data == (to == SeekTo::Data) {
                return Ok(Some(block));
            }
            // Skip a long run of the base, up to its end or the overlay's next block within it.
            at = self.next_own(ino, at + 1).map_or(end, |own| end.min(own));
        }
        Ok(None)
    }

    /// The overlay's first block from `at` on.
    fn next_own(&self, ino: Ino, at: u64) -> Option<u64> {
        let from = FileBlock(u32::try_from(at).ok()?);
        self.node(ino)?.file.blocks.range(from..).next().map(|(at, _)| u64::from(at.0))
    }

    /// Whether the base has data in a block that the overlay does not have, and the block after the
    /// run of data or of holes that contains it.
    fn base_run(&self, ino: Ino, at: FileBlock) -> Result<(bool, u64)> {
        let end = match self.node(ino) {
            Some(node) if node.born => return Ok((false, u64::MAX)),
            Some(node) => node.file.base_end,
            None => None,
        };
        if end.is_some_and(|end| at >= end) {
            return Ok((false, u64::MAX));
        }
        let data = self.base.seek_at(ino, at, SeekTo::Data, self.stamp_of(ino))?;
        let (is_data, run_end) = match data {
            Some(found) if found == at => {
                (true, self.base.seek_at(ino, at, SeekTo::Hole, self.stamp_of(ino))?)
            }
            later => (false, later),
        };
        let run_end = run_end.map_or(u64::MAX, |end| u64::from(end.0));
        Ok(match end {
            Some(end) if is_data => (true, run_end.min(u64::from(end.0))),
            // After the truncation there is no data either: the hole continues.
            Some(end) if run_end >= u64::from(end.0) => (false, u64::MAX),
            _ => (is_data, run_end.max(u64::from(at.0) + 1)),
        })
    }
}
