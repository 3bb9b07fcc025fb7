//! Writes of file data into the cache, and dropping cached data.
//!
//! Callers hold the inode's lock exclusively.
//!
//! The bytes past the end of the file in its last block are undefined, in the cache and on disk. An
//! operation that makes a file longer clears them first ([`LiveFs::clear_tail`]); the cleared block
//! is dirty and so reaches the device before the new size does.

use std::sync::Arc;

use xact_types::{FileBlock, Result};

use crate::alloc::{Purpose, Run};
use crate::extent::Mapping;
use crate::journal_modes::InodeUpdate;
use crate::live::LiveFs;
use crate::live::data::pages::{Changed, Page};
use crate::live::inode::cached::{CachedInode, InodeState};
use crate::live::mvcc::stamps::Change;
use crate::live::mvcc::versions::BlockVersion;
use crate::live::op::Privileges;
use crate::quota::Charge;

impl LiveFs {
    /// Writes into the cache and extends the size. Space is reserved first, so a full volume fails
    /// here and changes nothing.
    ///
    /// `keep`: the change if old versions of the file must be kept.
    pub(in crate::live) fn write_data(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        offset: u64,
        data: &[u8],
        keep: Option<Change>,
        privileges: Privileges,
    ) -> Result<()> {
        let written = self.write_pages(cached, state, offset, data, keep, privileges);
        if written.is_err() {
            // Otherwise pages with reserved space would be written back and linked past the end of
            // the file.
            let bs = self.block_bytes();
            let first = state.size.div_ceil(bs).max(offset / bs);
            let past = (offset + data.len() as u64).div_ceil(bs);
            if first < past {
                self.drop_pages(cached, state, first as u32, past.min(u32::MAX.into()) as u32);
            }
            self.writeback.release(&mut cached.pages.lock(), 0, state.dirty);
        }
        written
    }

    fn write_pages(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        offset: u64,
        data: &[u8],
        keep: Option<Change>,
        privileges: Privileges,
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let bs = self.block_bytes();
        let end = offset + data.len() as u64;
        let (first, last) = ((offset / bs) as u32, ((end - 1) / bs) as u32);
        self.reserve_pages(cached, state, first, last, privileges)?;
        // With immediate updates, the new size may be durable before the written bytes.
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
            // A block is not read if the write covers it up to its end or to the end of the file.
            let covers = from == 0 && (to as u64 == bs || start + to as u64 >= size);
            if let Some(change) = &keep {
                self.keep_block(cached, state, FileBlock(at), change)?;
            }
            if covers {
                let fresh = if to as u64 == bs {
                    Arc::from(part)
                } else {
                    let mut fresh = vec![0; bs as usize];
                    fresh[..to].copy_from_slice(part);
                    fresh.into()
                };
                self.page_cache.put_dirty(cached, at, fresh, Changed::ALL);
            } else {
                let mut old = match self.read_block(cached, state, FileBlock(at))? {
                    Some(data) => data,
                    None => self.page_cache.zeros(),
                };
                // Drop the cache's own reference first, or make_mut would copy the block. It does
                // so if an old version refers to it.
                cached.pages.lock().detach(at);
                Arc::make_mut(&mut old)[from..to].copy_from_slice(part);
                self.page_cache.put_dirty(cached, at, old, Changed::new(from, to));
            }
        }
        if end > state.size {
            if size > state.inode.size() && !self.writeback.parts.holds(cached.ino) {
                // A batch may leave a quarter of its pages for the next one.
                let apart = self.options.steps.batch_pages as u64 / 4 * bs;
                cached.pages.lock().note_size(size, apart);
            }
            state.size = end;
            state.dirty = true;
        }
        self.page_cache.mark_dirty_inode(cached.ino);
        self.page_cache.evict(&self.inodes, (last - first + 1) as usize);
        Ok(())
    }

    /// Reserves a block for every page of the range that has none. An error changes nothing.
    fn reserve_pages(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        first: u32,
        last: u32,
        privileges: Privileges,
    ) -> Result<()> {
        self.writeback.reserve(cached, first..=last)?;
        let mut missing = Vec::new();
        let mut at = first;
        let extents = self.extents(cached.ino, state);
        while at <= last {
            {
                let pages = cached.pages.lock();
                if pages.map.get(&at).is_some_and(|page| page.reserved) {
                    at += 1;
                    continue;
                }
            }
            match extents.map(&state.inode, FileBlock(at))? {
                Mapping::Hole { len } => {
                    let pages = cached.pages.lock();
                    let end = last.min(at.saturating_add(len - 1));
                    missing
                        .extend((at..=end).filter(|b| !pages.map.get(b).is_some_and(|page| page.reserved)));
                    at = match end.checked_add(1) {
                        Some(next) => next,
                        None => break,
                    };
                }
                Mapping::Written { start, len } | Mapping::Unwritten { start, len } => {
                    self.allocator.back(Run { start, len: len.min((last - at).saturating_add(1)) })?;
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
        self.quotas.reserve(&charge, privileges.beyond_quota)?;
        let more = match self.allocator.reserve(count, Purpose::Data { privileged: privileges.reserve }) {
            Ok(more) => more,
            Err(error) => {
                self.quotas.release(&charge);
                return Err(error);
            }
        };
        let mut pages = cached.pages.lock();
        let pages = &mut *pages;
        match &mut pages.reservation {
            Some(reservation) => reservation.absorb(more),
            none => *none = Some(more),
        }
        pages.reserved += count;
        for at in missing {
            match pages.map.get_mut(&at) {
                Some(page) => page.reserved = true,
                None => self.page_cache.insert_reserved(cached.ino, pages, at),
            }
        }
        Ok(())
    }

    /// Clears the bytes past the end of the file in its last block, before the file grows over
    /// them.
    pub(in crate::live) fn clear_tail(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        keep: Option<Change>,
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
        if let Some(change) = &keep {
            self.keep_block(cached, state, FileBlock(at), change)?;
        }
        Arc::make_mut(&mut data)[used..].fill(0);
        self.page_cache.put_dirty(cached, at, data, Changed::new(used, bs as usize));
        state.tail_cleared = true;
        self.page_cache.mark_dirty_inode(cached.ino);
        Ok(())
    }

    /// Keeps the present contents of a block, if an open view would read them.
    pub(in crate::live) fn keep_block(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        at: FileBlock,
        change: &Change,
    ) -> Result<()> {
        if !self.needs_block(cached, state, at, change) {
            return Ok(());
        }
        let old = match self.read_block(cached, state, at)? {
            // A page whose space was just reserved is still a hole to every view, and uses no
            // memory of its own.
            Some(data) if !self.page_cache.is_zeros(&data) => BlockVersion::Bytes(data),
            _ => BlockVersion::Hole,
        };
        let kept = state.versions.keep_block(change, at, old);
        self.mvcc.note_versioned(cached.ino, change, kept);
        Ok(())
    }

    /// Whether an open view would read the present contents of a block that is about to change. It
    /// also records changes past the end of the file in these views.
    pub(in crate::live) fn needs_block(
        &self,
        cached: &CachedInode,
        state: &mut InodeState,
        at: FileBlock,
        change: &Change,
    ) -> bool {
        let end = state.versions.end_in_views(change, state.size, self.block_bytes());
        if at < end {
            return state.versions.needs_block(change, at);
        }
        let kept = state.versions.note_growth(change, end);
        self.mvcc.note_versioned(cached.ino, change, kept);
        false
    }

    /// Drops the cached pages of a range, dirty or not.
    pub(in crate::live) fn drop_pages(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        first: u32,
        past: u32,
    ) {
        let (mut unreserved, mut cleaned) = (0, 0);
        let mut pages = cached.pages.lock();
        let pages = &mut *pages;
        if past == u32::MAX {
            pages.pattern.truncated();
        }
        let gone: Vec<u32> = pages.map.range(first..past).map(|(at, _)| *at).collect();
        for at in &gone {
            let page = pages.map.remove(at).expect("listed above");
            if page.dirty {
                pages.dirty -= 1;
                cleaned += 1;
                self.page_cache.cleaned(1);
            }
            if page.reserved {
                pages.reserved -= 1;
                unreserved += 1;
                if let Some(reservation) = &mut pages.reservation {
                    drop(reservation.split(1));
                }
            }
        }
        self.writeback.release(pages, cleaned, state.dirty);
        self.page_cache.removed(gone.len() as u64);
        let payer = self.quotas.payer_of(&state.inode);
        self.quotas.release(&Charge { payer, bytes: unreserved * self.block_bytes(), inodes: 0 });
    }
}
