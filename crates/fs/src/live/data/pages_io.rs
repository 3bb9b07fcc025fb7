//! File data through the cache: read, write, and what a block was at a stamp.
//!
//! Callers hold the inode's lock, shared for reading and exclusive for writing. Reading puts
//! pages into the cache under the shared lock; only a holder of the exclusive lock changes a
//! page's contents or what a block is mapped to, so a page read from the device is right when it
//! is put in.
//!
//! What lies past the end of the file in its last block may be anything, in the cache and on
//! disk. Whoever makes a file longer clears it first ([`LiveFs::clear_tail`]); the cleared block is
//! dirty and so reaches the device before the new size does.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use xact_types::{BlockNr, Error, FileBlock, Result, Site};

use crate::alloc::Purpose;
use crate::extent::Mapping;
use crate::live::LiveFs;
use crate::live::data::inline::is_inline;
use crate::live::data::mode::InodeUpdate;
use crate::live::inode::cached::{CachedInode, Changed, InodeState, Page, Pages};
use crate::live::mvcc::stamps::Stamp;
use crate::live::mvcc::versions::BlockVersion;
use crate::live::op::run::Privileges;
use crate::quota::Charge;

/// Blocks read from the device at once.
const READ_BLOCKS_MAX: u32 = 256;
/// From here on what is read from the device at once is not kept: whoever reads so much at a time reads
/// a file through, and would drive out all that is read again and again.
const READ_THROUGH_BYTES: u64 = 256 << 10;

impl LiveFs {
    /// Appends what the file has of the range to `out`; less only at the end of file.
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
            out.extend_from_slice(&contents[offset as usize..end as usize]);
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
                self.cache.looked_up(u64::from(at - found_from), 0);
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
                    self.cache.looked_up(0, count.into());
                    if u64::from(count) * bs >= READ_THROUGH_BYTES {
                        at = self.read_through(out, (at, start, count), offset..end)?;
                        continue;
                    }
                    let mut buf = vec![0; count as usize * bs as usize];
                    self.engine.read_data(start, &mut buf)?;
                    let mut pages = cached.pages.lock();
                    for data in buf.chunks(bs as usize) {
                        push(out, at, Some(data));
                        self.insert_clean(cached, &mut pages, at, data.into());
                        at += 1;
                    }
                    drop(pages);
                    self.cache.evict(&self.inodes, count as usize);
                }
            }
        }
        Ok(())
    }

    /// Appends what the byte range `wanted` has of `count` blocks from file block `at`, which lie from
    /// `start` on, without putting them into the cache. Returns the block after the last.
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
                self.insert_clean(cached, &mut cached.pages.lock(), at.0, data.clone());
                self.cache.evict(&self.inodes, 1);
                Ok(Some(data))
            }
        }
    }

    fn insert_clean(&self, cached: &CachedInode, pages: &mut Pages, at: u32, data: Arc<[u8]>) {
        pages.map.entry(at).or_insert_with(|| {
            self.cache.inserted(cached.ino, at);
            Page { data, dirty: false, changed: Changed::default(), promised: false, referenced: false }
        });
    }

    /// Writes into the cache and grows the size. Space is promised first, so a full volume says
    /// so here and changes nothing.
    ///
    /// `keep` is the operation's stamp where old versions are to be kept.
    pub(in crate::live) fn write_data(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        offset: u64,
        data: &[u8],
        keep: Option<Stamp>,
        privileges: Privileges,
    ) -> Result<()> {
        let written = self.write_pages(cached, state, offset, data, keep, privileges);
        if written.is_err() {
            // What had its space promised already would be written back and linked, behind the end of the file.
            let bs = self.block_bytes();
            let first = state.size.div_ceil(bs).max(offset / bs);
            let past = (offset + data.len() as u64).div_ceil(bs);
            if first < past {
                self.drop_pages(cached, state, first as u32, past.min(u32::MAX.into()) as u32);
            }
            self.release_writeback(&mut cached.pages.lock(), 0, state.dirty);
        }
        written
    }

    fn write_pages(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        offset: u64,
        data: &[u8],
        keep: Option<Stamp>,
        privileges: Privileges,
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let bs = self.block_bytes();
        let end = offset + data.len() as u64;
        let (first, last) = ((offset / bs) as u32, ((end - 1) / bs) as u32);
        self.reserve_pages(cached, state, first, last, privileges)?;
        // Sizes at once may be there before the bytes written are.
        let at_once = self.modes.inode_update == InodeUpdate::Immediate;
        if offset > state.size || at_once && end > state.size {
            self.clear_tail(cached, state, keep, privileges)?;
        }
        let size = state.size;
        let mut rest = data;
        for at in first..=last {
            let start = u64::from(at) * bs;
            let from = offset.saturating_sub(start) as usize;
            let to = (end - start).min(bs) as usize;
            let (part, tail) = rest.split_at(to - from);
            rest = tail;
            // A block that the write covers up to its end, or up to the end of file, is not read.
            let covers = from == 0 && (to as u64 == bs || start + to as u64 >= size);
            if let Some(until) = keep {
                self.keep_block(cached, state, FileBlock(at), until)?;
            }
            if covers {
                let fresh = if to as u64 == bs {
                    Arc::from(part)
                } else {
                    let mut fresh = vec![0; bs as usize];
                    fresh[..to].copy_from_slice(part);
                    fresh.into()
                };
                self.put_dirty(cached, at, fresh, Changed::ALL);
            } else {
                let mut old = match self.read_block(cached, state, FileBlock(at))? {
                    Some(data) => data,
                    None => self.zeros.clone(),
                };
                // The cache's own reference goes first, else make_mut would copy the block.
                if keep.is_none() {
                    self.detach(cached, at);
                }
                Arc::make_mut(&mut old)[from..to].copy_from_slice(part);
                self.put_dirty(cached, at, old, Changed::new(from, to));
            }
        }
        if end > state.size {
            state.size = end;
            state.dirty = true;
        }
        self.cache.mark_dirty_inode(cached.ino);
        self.cache.evict(&self.inodes, (last - first + 1) as usize);
        Ok(())
    }

    /// Replaces a page's contents by nothing for a moment, so that its buffer can be changed in
    /// place. The caller holds the exclusive lock and puts the contents back.
    fn detach(&self, cached: &CachedInode, at: u32) {
        if let Some(page) = cached.pages.lock().map.get_mut(&at) {
            page.data = Arc::new([]);
        }
    }

    /// Puts a page and marks it dirty: what was put differs in `changed` from what was there, in the
    /// cache or on the device. Its space is promised or it has a block.
    fn put_dirty(&self, cached: &CachedInode, at: u32, data: Arc<[u8]>, changed: Changed) {
        let mut pages = cached.pages.lock();
        let pages = &mut *pages;
        match pages.map.get_mut(&at) {
            Some(page) => {
                page.data = data;
                page.referenced = true;
                page.changed = if page.dirty { page.changed.join(changed) } else { changed };
                if !page.dirty {
                    page.dirty = true;
                    pages.count_dirty(at);
                    self.cache.dirtied(1);
                }
            }
            None => {
                pages.map.insert(at, Page { data, dirty: true, changed, promised: false, referenced: true });
                pages.count_dirty(at);
                self.cache.inserted(cached.ino, at);
                self.cache.dirtied(1);
            }
        }
    }

    /// Promises a block to every page of the range that has none. On failure nothing changed.
    fn reserve_pages(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        first: u32,
        last: u32,
        privileges: Privileges,
    ) -> Result<()> {
        self.reserve_writeback(cached, first..=last)?;
        let mut missing = Vec::new();
        let mut at = first;
        let extents = self.extents(cached.ino, state);
        while at <= last {
            {
                let pages = cached.pages.lock();
                if pages.map.get(&at).is_some_and(|page| page.promised) {
                    at += 1;
                    continue;
                }
            }
            match extents.map(&state.inode, FileBlock(at))? {
                Mapping::Hole { len } => {
                    let pages = cached.pages.lock();
                    let end = last.min(at.saturating_add(len - 1));
                    missing
                        .extend((at..=end).filter(|b| !pages.map.get(b).is_some_and(|page| page.promised)));
                    at = match end.checked_add(1) {
                        Some(next) => next,
                        None => break,
                    };
                }
                Mapping::Written { len, .. } | Mapping::Unwritten { len, .. } => {
                    at = match at.checked_add(len) {
                        Some(next) => next,
                        None => break,
                    };
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let count = missing.len() as u64;
        let payer = self.quotas.payer_of(&state.inode);
        let charge = Charge { payer, bytes: count * self.block_bytes(), inodes: 0 };
        self.quotas.promise(&charge, privileges.beyond_quota)?;
        let more = match self.allocator.reserve(count, Purpose::Data { privileged: privileges.reserve }) {
            Ok(more) => more,
            Err(error) => {
                self.quotas.end_promise(&charge);
                return Err(error);
            }
        };
        let mut pages = cached.pages.lock();
        let pages = &mut *pages;
        match &mut pages.reservation {
            Some(reservation) => reservation.absorb(more),
            none => *none = Some(more),
        }
        pages.promised += count;
        for at in missing {
            match pages.map.get_mut(&at) {
                Some(page) => page.promised = true,
                None => {
                    let (data, changed) = (self.zeros.clone(), Changed::ALL);
                    let page = Page { data, dirty: true, changed, promised: true, referenced: true };
                    pages.map.insert(at, page);
                    pages.count_dirty(at);
                    self.cache.inserted(cached.ino, at);
                    self.cache.dirtied(1);
                }
            }
        }
        Ok(())
    }

    /// Makes what lies past the end of the file in its last block read as zeros, before the file
    /// grows over it.
    pub(in crate::live) fn clear_tail(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        keep: Option<Stamp>,
        privileges: Privileges,
    ) -> Result<()> {
        let bs = self.block_bytes();
        let used = (state.size % bs) as usize;
        if used == 0 {
            return Ok(());
        }
        let at = (state.size / bs) as u32;
        let Some(mut data) = self.read_block(cached, state, FileBlock(at))? else { return Ok(()) };
        let waits = |page: &Page| page.dirty && page.changed.to as usize > used;
        state.tail_cleared |= cached.pages.lock().map.get(&at).is_some_and(waits);
        if data[used..].iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        self.reserve_pages(cached, state, at, at, privileges)?;
        if let Some(until) = keep {
            self.keep_block(cached, state, FileBlock(at), until)?;
        }
        Arc::make_mut(&mut data)[used..].fill(0);
        self.put_dirty(cached, at, data, Changed::new(used, bs as usize));
        state.tail_cleared = true;
        self.cache.mark_dirty_inode(cached.ino);
        Ok(())
    }

    /// Keeps the present contents of a block for the open views.
    pub(in crate::live) fn keep_block(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        at: FileBlock,
        until: Stamp,
    ) -> Result<()> {
        if state.versions.has_block(until, at) {
            return Ok(());
        }
        let old = match self.read_block(cached, state, at)? {
            // A page that was only just promised space is still a hole to every view, and takes no memory of its own.
            Some(data) if !Arc::ptr_eq(&data, &self.zeros) => BlockVersion::Bytes(data),
            _ => BlockVersion::Hole,
        };
        state.versions.keep_block(until, at, old);
        self.mvcc.note_versioned(cached.ino);
        Ok(())
    }

    /// Drops cached pages from `first` on (all of them for 0), dirty or not.
    pub(in crate::live) fn drop_pages(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        first: u32,
        past: u32,
    ) {
        let (mut unpromised, mut cleaned) = (0, 0);
        let mut pages = cached.pages.lock();
        let pages = &mut *pages;
        if past == u32::MAX {
            pages.pattern.cut();
        }
        let gone: Vec<u32> = pages.map.range(first..past).map(|(at, _)| *at).collect();
        for at in &gone {
            let page = pages.map.remove(at).expect("listed above");
            if page.dirty {
                pages.dirty -= 1;
                cleaned += 1;
                self.cache.cleaned(1);
            }
            if page.promised {
                pages.promised -= 1;
                unpromised += 1;
                if let Some(reservation) = &mut pages.reservation {
                    drop(reservation.split(1));
                }
            }
        }
        self.release_writeback(pages, cleaned, state.dirty);
        self.cache.removed(gone.len() as u64);
        let payer = self.quotas.payer_of(&state.inode);
        self.quotas.end_promise(&Charge { payer, bytes: unpromised * self.block_bytes(), inodes: 0 });
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
            Some(BlockVersion::Hole) => Ok(None),
            Some(BlockVersion::Bytes(data)) => Ok(Some(data.clone())),
            Some(BlockVersion::OnDisk(block, _)) => {
                let mut buf = vec![0; self.block_bytes() as usize];
                self.engine.read_data(*block, &mut buf)?;
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
            return Ok((at.0 == 0, 1));
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
        Err(Error::corrupt(Site::Inode(cached.ino), "is no regular file where one is expected"))
    }

    pub(in crate::live) fn promised_sectors(&self, cached: &CachedInode) -> u64 {
        cached.pages.lock().promised * (self.block_bytes() / 512)
    }

    /// In-place data was written; the next fsync of the inode has to flush.
    pub(in crate::live) fn note_unflushed(&self, cached: &CachedInode) {
        cached.placed.fetch_add(1, SeqCst);
    }
}
