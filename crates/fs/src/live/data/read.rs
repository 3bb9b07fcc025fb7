//! Reads of file data through the cache, at present and as of a stamp.
//!
//! Callers hold the inode's lock, shared or exclusive. Reads insert pages into the cache under the
//! shared lock. Only a holder of the exclusive lock changes a page's contents or a block's mapping,
//! so a page read from the device is still valid when it is inserted.

use std::ops::Range;
use std::sync::Arc;

use xact_types::{BlockNr, Error, FileBlock, Result, Site};

use super::inline::is_inline;
use crate::extent::Mapping;
use crate::live::LiveFs;
use crate::live::inode::cached::{CachedInode, InodeState};
use crate::live::mvcc::versions::OldBlock;
use crate::versioned_fs::read_as_of::Stamp;

/// Blocks read from the device at once.
const READ_BLOCKS_MAX: u32 = 256;
/// Size from which one read from the device bypasses the cache: such a reader reads the whole file
/// once, and would evict pages that are read repeatedly.
const READ_THROUGH_BYTES: u64 = 256 << 10;

impl LiveFs {
    /// Appends a range of the file to `out`, as far as the file reaches.
    pub(in crate::live) fn read_data(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if offset >= state.size || len == 0 {
            return Ok(());
        }
        let end = state.size.min(offset.saturating_add(len as u64));
        if is_inline(state) {
            let contents = self.inline_contents(cached.ino, state)?;
            let kept = contents.len() as u64;
            let past = out.len() + (end - offset) as usize;
            out.extend_from_slice(&contents[offset.min(kept) as usize..end.min(kept) as usize]);
            out.resize(past, 0);
            return Ok(());
        }
        let bs = self.block_bytes();
        let last = ((end - 1) / bs) as u32;
        let mut at = (offset / bs) as u32;
        // Appends the wanted part of one block.
        let push = |out: &mut Vec<u8>, at: u32, data: Option<&[u8]>| {
            let start = u64::from(at) * bs;
            let from = offset.saturating_sub(start).min(bs) as usize;
            let to = (end - start).min(bs) as usize;
            match data {
                Some(data) => out.extend_from_slice(&data[from..to]),
                None => out.resize(out.len() + (to - from), 0),
            }
        };
        while at <= last {
            let gap = {
                let found_from = at;
                let mut pages = cached.pages.lock();
                while at <= last {
                    let Some(page) = pages.map.get_mut(&at) else { break };
                    page.referenced = true;
                    push(out, at, Some(&page.data));
                    at += 1;
                }
                self.page_cache.looked_up(u64::from(at - found_from), 0);
                if at > last {
                    break;
                }
                let next = pages.map.range(at..).next().map_or(u32::MAX, |(next, _)| *next);
                (next - at).min(last - at + 1).min(READ_BLOCKS_MAX)
            };
            match self.extents(cached.ino, state).map(&state.inode, FileBlock(at))? {
                Mapping::Hole { len } | Mapping::Unwritten { len, .. } => {
                    for _ in 0..gap.min(len) {
                        push(out, at, None);
                        at += 1;
                    }
                }
                Mapping::Written { start, len } => {
                    let count = gap.min(len);
                    self.page_cache.looked_up(0, count.into());
                    if u64::from(count) * bs >= READ_THROUGH_BYTES {
                        at = self.read_through(out, (at, start, count), offset..end)?;
                        continue;
                    }
                    let mut buf = vec![0; count as usize * bs as usize];
                    self.engine.read_data(start, &mut buf)?;
                    let mut pages = cached.pages.lock();
                    for data in buf.chunks(bs as usize) {
                        push(out, at, Some(data));
                        self.page_cache.insert_clean(cached.ino, &mut pages, at, data.into());
                        at += 1;
                    }
                    drop(pages);
                    self.page_cache.evict(&self.inodes, count as usize);
                }
            }
        }
        Ok(())
    }

    /// Appends the byte range `wanted` of `count` file blocks without inserting them into the
    /// cache. The blocks begin at file block `at`, and at `start` on the device. Returns the file
    /// block after the last.
    fn read_through(
        &self,
        out: &mut Vec<u8>,
        (at, start, count): (u32, BlockNr, u32),
        wanted: Range<u64>,
    ) -> Result<u32> {
        let bs = self.block_bytes();
        let from = u64::from(at) * bs;
        let past = from + u64::from(count) * bs;
        let begin = out.len();
        out.resize(begin + (past - from) as usize, 0);
        self.engine.read_data(start, &mut out[begin..])?;
        out.truncate(begin + (wanted.end.min(past) - from) as usize);
        if wanted.start > from {
            out.drain(begin..begin + (wanted.start - from) as usize);
        }
        Ok(at + count)
    }

    /// The whole block; `None` for a hole.
    pub(in crate::live) fn read_block(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        at: FileBlock,
    ) -> Result<Option<Arc<[u8]>>> {
        if is_inline(state) {
            let mut contents = self.inline_contents(cached.ino, state)?;
            contents.resize(self.block_bytes() as usize, 0);
            return Ok((at.0 == 0 && state.size > 0).then(|| contents.into()));
        }
        if let Some(page) = cached.pages.lock().map.get_mut(&at.0) {
            page.referenced = true;
            return Ok(Some(page.data.clone()));
        }
        match self.extents(cached.ino, state).map(&state.inode, at)? {
            Mapping::Hole { .. } | Mapping::Unwritten { .. } => Ok(None),
            Mapping::Written { start, .. } => {
                let mut buf = vec![0; self.block_bytes() as usize];
                self.engine.read_data(start, &mut buf)?;
                let data: Arc<[u8]> = buf.into();
                self.page_cache.insert_clean(cached.ino, &mut cached.pages.lock(), at.0, data.clone());
                self.page_cache.evict(&self.inodes, 1);
                Ok(Some(data))
            }
        }
    }

    /// A file block as it was at `stamp`; `None` for a hole.
    pub(in crate::live) fn block_as_of(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        at: FileBlock,
        stamp: Stamp,
    ) -> Result<Option<Arc<[u8]>>> {
        match state.versions.block_at(at, stamp) {
            Some(OldBlock::Hole) => Ok(None),
            Some(OldBlock::Bytes(data)) => Ok(Some(data.clone())),
            Some(OldBlock::Place(block)) => {
                let mut buf = vec![0; self.block_bytes() as usize];
                self.engine.read_data(block, &mut buf)?;
                Ok(Some(buf.into()))
            }
            None => self.read_block(cached, state, at),
        }
    }

    /// Whether the file has data (not a hole) at the block, cached or mapped.
    pub(in crate::live) fn has_data(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        at: FileBlock,
    ) -> Result<(bool, u32)> {
        if is_inline(state) {
            return Ok(if at.0 == 0 { (true, 1) } else { (false, u32::MAX - at.0) });
        }
        let next_page = {
            let pages = cached.pages.lock();
            if pages.map.contains_key(&at.0) {
                let mut run = 1;
                while pages.map.contains_key(&(at.0 + run)) && run < READ_BLOCKS_MAX {
                    run += 1;
                }
                return Ok((true, run));
            }
            pages.map.range(at.0..).next().map_or(u32::MAX, |(next, _)| *next)
        };
        let gap = next_page - at.0;
        match self.extents(cached.ino, state).map(&state.inode, at)? {
            Mapping::Written { len, .. } => Ok((true, len)),
            Mapping::Hole { len } | Mapping::Unwritten { len, .. } => Ok((false, len.min(gap))),
        }
    }

    pub(in crate::live) fn check_is_file(&self, cached: &CachedInode, state: &InodeState) -> Result<()> {
        if state.inode.is_regular() {
            return Ok(());
        }
        Err(Error::corrupt(Site::Inode(cached.ino), "not a regular file, where one is expected"))
    }
}
