//! Old versions of one inode's items, kept under the inode's lock while open views need them.
//!
//! A change keeps the version that it ends only if an open view would read it: see point 3 of
//! `mvcc::stamps`. Two kinds of changes keep nothing at all:
//! - Blocks past the end of the file in every open view. One record ([`Versions::note_growth`])
//!   says from which block on the file has changed, however much is appended.
//! - Items of an inode that no open view sees. The callers leave these out (`mvcc::born`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use xact_types::{BlockNr, FileBlock, Ino, Run};

use super::spilled_version::SpilledVersion;
use super::stamps::{Change, OpenViews};
use crate::alloc::Hold;
use crate::api::{Attr, Entry};
use crate::versioned_fs::read_as_of::{ChangedBy, Stamp};

/// An old version of a file block.
pub(in crate::live) enum BlockVersion {
    Hole,
    Bytes(Arc<[u8]>),
    /// Still in its place on the device; the hold prevents reuse.
    OnDisk(BlockNr, #[allow(dead_code, reason = "held, not read")] Hold),
    Spilled(SpilledVersion),
}

/// An old version in memory that may be spilled.
pub(super) struct BlockInMemory {
    at: FileBlock,
    until: Stamp,
    pub bytes: Arc<[u8]>,
}

/// An old version of a file block, where a view finds it.
pub(in crate::live) enum OldBlock<'a> {
    Hole,
    Bytes(&'a Arc<[u8]>),
    Place(BlockNr),
}

impl BlockVersion {
    fn old_block(&self) -> OldBlock<'_> {
        match self {
            BlockVersion::Hole => OldBlock::Hole,
            BlockVersion::Bytes(bytes) => OldBlock::Bytes(bytes),
            BlockVersion::OnDisk(place, _) => OldBlock::Place(*place),
            BlockVersion::Spilled(block) => OldBlock::Place(block.place()),
        }
    }
}

/// Consecutive blocks that left the file at once: one version for all of them, still in place on
/// the device. No other change of any of them was kept before.
struct RemovedRun {
    until: Stamp,
    by: ChangedBy,
    run: Run,
    /// Prevents reuse.
    _hold: Hold,
}

/// The block after the last possible one.
const END: FileBlock = FileBlock(u32::MAX);

/// One version of an item.
struct Version<T> {
    /// The stamp of the change that ended it.
    until: Stamp,
    /// The author of that change.
    by: ChangedBy,
    value: T,
}

/// The versions of one item, in the order of their stamps.
struct Chain<T>(Vec<Version<T>>);

impl<T> Default for Chain<T> {
    fn default() -> Self {
        Chain(Vec::new())
    }
}

impl<T> Chain<T> {
    /// Whether an open view would read the version that `change` ends. For several changes by one
    /// operation, the version before the first one counts.
    fn needs(&self, change: &Change) -> bool {
        self.0.last().is_none_or(|last| last.until <= change.newest_view)
    }

    /// Returns whether the version was kept.
    fn push(&mut self, change: &Change, value: impl FnOnce() -> T) -> bool {
        let needed = self.needs(change);
        if needed {
            // Most chains have one version only.
            self.0.reserve_exact(if self.0.is_empty() { 1 } else { 0 });
            self.0.push(Version { until: change.stamp, by: change.by, value: value() });
        }
        needed
    }

    fn at(&self, stamp: Stamp) -> Option<&T> {
        self.0.iter().find(|version| version.until > stamp).map(|version| &version.value)
    }

    /// The newest known change after `stamp`; some, if there was any.
    fn changed_since(&self, stamp: Stamp) -> Option<(Stamp, ChangedBy)> {
        self.0.last().map(|last| (last.until, last.by)).filter(|(until, _)| *until > stamp)
    }

    fn has(&self, until: Stamp) -> bool {
        self.0.binary_search_by_key(&until, |version| version.until).is_ok()
    }

    /// Drops versions that no open view reads, and calls `dropped` with each. True if none is left.
    fn prune(&mut self, views: &OpenViews, dropped: &mut impl FnMut(&T)) -> bool {
        self.prune_from(Stamp(0), views, dropped)
    }

    /// The same, if the first version began at `from`.
    fn prune_from(&mut self, mut from: Stamp, views: &OpenViews, dropped: &mut impl FnMut(&T)) -> bool {
        self.0.retain(|version| {
            let needed = views.any_in(from, version.until);
            from = version.until;
            if !needed {
                dropped(&version.value);
            }
            needed
        });
        self.0.is_empty()
    }
}

/// Memory of a version beyond its contents, approximately.
const VERSION_BYTES: u64 = 160;

impl BlockVersion {
    fn bytes(&self) -> u64 {
        match self {
            BlockVersion::Bytes(data) => VERSION_BYTES + data.len() as u64,
            _ => VERSION_BYTES,
        }
    }
}

fn xattr_bytes(name: &[u8], value: Option<&Vec<u8>>) -> u64 {
    VERSION_BYTES + name.len() as u64 + value.map_or(0, |value| value.len() as u64)
}

/// The first change of a block since some view was opened; with `past` beyond `first + 1`, of some
/// blocks in the range.
struct BlockChange {
    stamp: Stamp,
    by: ChangedBy,
    first: FileBlock,
    past: FileBlock,
}

/// Old versions of an inode's items. Almost always empty.
#[derive(Default)]
pub(in crate::live) struct Versions {
    /// Memory used, approximately.
    bytes: u64,
    /// The part of `bytes` that the volume's sum includes ([`Versions::uncounted`]).
    counted: u64,
    /// An item has more versions than there are open views.
    crowded: bool,
    attr: Chain<Attr>,
    parent: Chain<Ino>,
    names: BTreeMap<Box<[u8]>, Chain<Option<Entry>>>,
    blocks: BTreeMap<FileBlock, Chain<BlockVersion>>,
    /// Older versions than those in `blocks`, by their first block. They do not overlap.
    removed: BTreeMap<FileBlock, RemovedRun>,
    /// For each version: the first block that may have changed past the ends of the file in the
    /// views that were open then. These views see no data there.
    growth: Chain<FileBlock>,
    /// Changes of blocks in rising order of stamps: a caller that has examined the older changes
    /// looks only at newer ones.
    block_log: Vec<BlockChange>,
    xattrs: BTreeMap<Box<[u8]>, Chain<Option<Vec<u8>>>>,
}

impl Versions {
    pub fn is_empty(&self) -> bool {
        self.attr.0.is_empty()
            && self.parent.0.is_empty()
            && self.names.is_empty()
            && self.blocks.is_empty()
            && self.removed.is_empty()
            && self.growth.0.is_empty()
            && self.xattrs.is_empty()
    }

    /// The growth since the last call, for the volume's sum.
    pub fn uncounted(&mut self) -> i64 {
        let more = self.bytes as i64 - self.counted as i64;
        self.counted = self.bytes;
        more
    }

    /// Whether an item has more versions than there are open views: some of them can be dropped.
    pub fn is_crowded(&self) -> bool {
        self.crowded
    }

    fn count(&mut self, kept: bool, bytes: u64, crowded: bool) -> bool {
        if kept {
            self.bytes += bytes;
            self.crowded |= crowded;
        }
        kept
    }

    // Each of these returns whether the version was kept.

    pub fn keep_attr(&mut self, change: &Change, old: impl FnOnce() -> Attr) -> bool {
        let kept = self.attr.push(change, old);
        let crowded = self.attr.0.len() > change.views;
        self.count(kept, VERSION_BYTES + size_of::<Attr>() as u64, crowded)
    }

    pub fn keep_parent(&mut self, change: &Change, old: Ino) -> bool {
        let kept = self.parent.push(change, || old);
        let crowded = self.parent.0.len() > change.views;
        self.count(kept, VERSION_BYTES, crowded)
    }

    pub fn keep_name(&mut self, change: &Change, name: &[u8], old: Option<Entry>) -> bool {
        let chain = match self.names.get_mut(name) {
            Some(chain) => chain,
            None => self.names.entry(name.into()).or_default(),
        };
        let kept = chain.push(change, || old);
        let crowded = chain.0.len() > change.views;
        self.count(kept, VERSION_BYTES + name.len() as u64, crowded)
    }

    /// A name was removed. If no open view has it either, nothing has changed for any of them.
    pub fn forget_absent_name(&mut self, name: &[u8]) {
        let Some(chain) = self.names.get(name) else { return };
        if chain.0.iter().all(|version| version.value.is_none()) {
            self.bytes -= chain.0.len() as u64 * (VERSION_BYTES + name.len() as u64);
            self.names.remove(name);
        }
    }

    /// Whether an open view would read the version of a block that `change` ends.
    pub fn needs_block(&self, change: &Change, at: FileBlock) -> bool {
        self.blocks.get(&at).is_none_or(|chain| chain.needs(change))
            && self.removed_at(at).is_none_or(|(_, removed)| removed.until <= change.newest_view)
    }

    /// The run of removed blocks that contains a block, with its first block.
    fn removed_at(&self, at: FileBlock) -> Option<(FileBlock, &RemovedRun)> {
        let (first, removed) = self.removed.range(..=at).next_back()?;
        (at < first.offset(removed.run.len)).then_some((*first, removed))
    }

    /// The end of the run that `change` has kept, if it contains the block.
    pub fn end_of_removed(&self, change: &Change, at: FileBlock) -> Option<FileBlock> {
        let (first, removed) = self.removed_at(at)?;
        (removed.until == change.stamp).then(|| first.offset(removed.run.len))
    }

    /// The parts of a range in which no version of any block is kept.
    pub fn unkept_parts(&self, range: Range<FileBlock>) -> Vec<Range<FileBlock>> {
        let before = self.removed_at(range.start).map(|(first, removed)| (first, removed.run.len));
        let removed = self.removed.range(range.clone()).map(|(first, removed)| (*first, removed.run.len));
        let single = self.blocks.range(range.clone()).map(|(at, _)| (*at, 1));
        let mut kept: Vec<(FileBlock, u32)> = before.into_iter().chain(removed).chain(single).collect();
        kept.sort_unstable();
        let mut parts = Vec::new();
        let mut at = range.start;
        for (first, len) in kept {
            if first > at {
                parts.push(at..first);
            }
            at = at.max(first.offset(len));
        }
        if at < range.end {
            parts.push(at..range.end);
        }
        parts
    }

    /// Keeps blocks that leave the file: a part of [`Self::unkept_parts`].
    pub fn keep_removed(&mut self, change: &Change, first: FileBlock, run: Run, hold: &Hold) -> bool {
        let (stamp, by) = (change.stamp, change.by);
        self.removed.insert(first, RemovedRun { until: stamp, by, run, _hold: hold.clone() });
        self.block_log.push(BlockChange { stamp, by, first, past: first.offset(run.len) });
        self.count(true, VERSION_BYTES, false)
    }

    pub fn keep_block(&mut self, change: &Change, at: FileBlock, old: BlockVersion) -> bool {
        let bytes = old.bytes();
        let chain = self.blocks.entry(at).or_default();
        let kept = chain.push(change, || old);
        let crowded = chain.0.len() > change.views;
        if kept {
            let (stamp, by) = (change.stamp, change.by);
            self.block_log.push(BlockChange { stamp, by, first: at, past: at.offset(1) });
        }
        self.count(kept, bytes, crowded)
    }

    /// The first block past the end of the file in every open view. `size`: its present size. The
    /// views up to `change` are covered by the kept attributes, or see the present ones.
    pub fn end_in_views(&self, change: &Change, size: u64, block_bytes: u64) -> FileBlock {
        let known = self.attr.0.iter().map(|version| version.value.size).max().unwrap_or(0);
        let is_covered = self.attr.at(change.newest_view).is_some();
        let size = if is_covered { known } else { known.max(size) };
        FileBlock(u32::try_from(size.div_ceil(block_bytes)).unwrap_or(u32::MAX))
    }

    /// Records that blocks from `end` on change, which no open view sees ([`Self::end_in_views`]).
    pub fn note_growth(&mut self, change: &Change, end: FileBlock) -> bool {
        let kept = self.growth.push(change, || end);
        if kept {
            let (stamp, by) = (change.stamp, change.by);
            self.block_log.push(BlockChange { stamp, by, first: end, past: END });
        } else if let Some(last) = self.growth.0.last_mut() {
            // Views that saw more of the file have ended since.
            last.value = last.value.min(end);
        }
        let crowded = self.growth.0.len() > change.views;
        self.count(kept, VERSION_BYTES, crowded)
    }

    pub fn keep_xattr(&mut self, change: &Change, name: &[u8], old: Option<Vec<u8>>) -> bool {
        let bytes = xattr_bytes(name, old.as_ref());
        let chain = self.xattrs.entry(name.into()).or_default();
        let kept = chain.push(change, || old);
        let crowded = chain.0.len() > change.views;
        self.count(kept, bytes, crowded)
    }

    /// `None`: unchanged since.
    pub fn attr_at(&self, stamp: Stamp) -> Option<&Attr> {
        self.attr.at(stamp)
    }

    pub fn parent_at(&self, stamp: Stamp) -> Option<Ino> {
        self.parent.at(stamp).copied()
    }

    pub fn name_at(&self, name: &[u8], stamp: Stamp) -> Option<Option<Entry>> {
        self.names.get(name).and_then(|chain| chain.at(stamp)).copied()
    }

    /// Names whose entry at `stamp` differs from the present one.
    pub fn names_at(&self, stamp: Stamp) -> impl Iterator<Item = (&[u8], Option<Entry>)> {
        self.names
            .iter()
            .filter_map(move |(name, chain)| chain.at(stamp).map(|entry| (name.as_ref(), *entry)))
    }

    pub fn block_at(&self, at: FileBlock, stamp: Stamp) -> Option<OldBlock<'_>> {
        // The versions of single blocks are newer than those of runs.
        if let Some((first, removed)) = self.removed_at(at).filter(|(_, removed)| removed.until > stamp) {
            return Some(OldBlock::Place(removed.run.start.offset(u64::from(at.0 - first.0))));
        }
        let kept = self.blocks.get(&at).and_then(|chain| chain.at(stamp));
        kept.map(BlockVersion::old_block)
            .or_else(|| (self.growth_since(stamp)?.0 <= at).then_some(OldBlock::Hole))
    }

    /// The first block that may have changed after `stamp` past the end of the file as of then, and
    /// the newest known change there.
    fn growth_since(&self, stamp: Stamp) -> Option<(FileBlock, (Stamp, ChangedBy))> {
        let changed = self.growth.changed_since(stamp)?;
        let later = self.growth.0.iter().filter(|version| version.until > stamp);
        later.map(|version| version.value).min().map(|first| (first, changed))
    }

    /// The first block from `first` on whose contents at `stamp` differ from the present ones,
    /// except those past the end of the file as of `stamp`.
    pub fn next_block_at(&self, first: FileBlock, stamp: Stamp) -> Option<FileBlock> {
        if self.removed_at(first).is_some_and(|(_, removed)| removed.until > stamp) {
            return Some(first);
        }
        let removed = self.removed.range(first..).find(|(_, removed)| removed.until > stamp);
        let single = self.blocks.range(first..).find(|(_, chain)| chain.at(stamp).is_some());
        removed.map(|(at, _)| *at).into_iter().chain(single.map(|(at, _)| *at)).min()
    }

    pub fn xattr_at(&self, name: &[u8], stamp: Stamp) -> Option<Option<&Vec<u8>>> {
        self.xattrs.get(name).and_then(|chain| chain.at(stamp)).map(Option::as_ref)
    }

    pub fn xattrs_at(&self, stamp: Stamp) -> impl Iterator<Item = (&[u8], bool)> {
        self.xattrs
            .iter()
            .filter_map(move |(name, chain)| chain.at(stamp).map(|v| (name.as_ref(), v.is_some())))
    }

    // The author of a change after `stamp`, if there was one. Of several changes, the newest that
    // ended a kept version counts.

    pub fn attr_changed_since(&self, stamp: Stamp) -> Option<ChangedBy> {
        author(self.attr.changed_since(stamp))
    }

    pub fn name_changed_since(&self, name: &[u8], stamp: Stamp) -> Option<ChangedBy> {
        author(self.names.get(name).and_then(|chain| chain.changed_since(stamp)))
    }

    /// Any name that is not `ignored`.
    pub fn any_name_changed_since(&self, stamp: Stamp, ignored: impl Fn(&[u8]) -> bool) -> Option<ChangedBy> {
        let counts = self.names.iter().filter(|(name, _)| !ignored(name));
        author(counts.filter_map(|(_, chain)| chain.changed_since(stamp)).max_by_key(|(stamp, _)| *stamp))
    }

    pub fn any_block_changed_since(&self, blocks: Range<FileBlock>, stamp: Stamp) -> Option<ChangedBy> {
        let grown = self.growth_since(stamp).filter(|(first, _)| *first < blocks.end && !blocks.is_empty());
        let before = self.removed_at(blocks.start).filter(|_| !blocks.is_empty()).map(|(_, removed)| removed);
        let removed =
            before.into_iter().chain(self.removed.range(blocks.clone()).map(|(_, removed)| removed));
        let removed =
            removed.filter(|removed| removed.until > stamp).map(|removed| (removed.until, removed.by));
        let kept = self.blocks.range(blocks).filter_map(|(_, chain)| chain.changed_since(stamp));
        let all = kept.chain(removed).chain(grown.map(|(_, changed)| changed));
        author(all.max_by_key(|(stamp, _)| *stamp))
    }

    /// The author of a change of blocks after `stamp` for which `wanted` returns true: the oldest.
    /// A range stands for changes of some of its blocks.
    pub fn find_block_change_after(
        &self,
        stamp: Stamp,
        wanted: &mut dyn FnMut(Range<FileBlock>) -> bool,
    ) -> Option<ChangedBy> {
        let from = self.block_log.partition_point(|change| change.stamp <= stamp);
        let found = self.block_log[from..].iter().find(|change| wanted(change.first..change.past));
        found.map(|change| change.by)
    }

    pub fn xattr_changed_since(&self, name: &[u8], stamp: Stamp) -> Option<ChangedBy> {
        author(self.xattrs.get(name).and_then(|chain| chain.changed_since(stamp)))
    }

    pub fn any_xattr_changed_since(&self, stamp: Stamp) -> Option<ChangedBy> {
        let changed = self.xattrs.values().filter_map(|chain| chain.changed_since(stamp));
        author(changed.max_by_key(|(stamp, _)| *stamp))
    }

    /// Drops versions that no open view reads.
    pub fn prune(&mut self, views: &OpenViews) {
        let mut gone = 0;
        self.attr.prune(views, &mut |_| gone += VERSION_BYTES + size_of::<Attr>() as u64);
        self.parent.prune(views, &mut |_| gone += VERSION_BYTES);
        self.names
            .retain(|name, chain| !chain.prune(views, &mut |_| gone += VERSION_BYTES + name.len() as u64));
        self.prune_blocks(views, &mut gone);
        self.xattrs.retain(|name, chain| {
            !chain.prune(views, &mut |value| gone += xattr_bytes(name, value.as_ref()))
        });
        self.bytes -= gone;
        self.crowded = false;
    }

    fn prune_blocks(&mut self, views: &OpenViews, gone: &mut u64) {
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.retain(|at, chain| {
            let from = self.removed_at(*at).map_or(Stamp(0), |(_, removed)| removed.until);
            !chain.prune_from(from, views, &mut |block| *gone += block.bytes())
        });
        self.blocks = blocks;
        self.removed.retain(|_, removed| {
            let needed = views.any_in(Stamp(0), removed.until);
            *gone += if needed { 0 } else { VERSION_BYTES };
            needed
        });
        self.prune_growth(views, gone);
        let (blocks, removed, growth) = (&self.blocks, &self.removed, &self.growth);
        self.block_log.retain(|change| {
            let (first, stamp) = (change.first, change.stamp);
            change.past == END && growth.has(stamp)
                || blocks.get(&first).is_some_and(|chain| chain.has(stamp))
                || removed.get(&first).is_some_and(|removed| removed.until == stamp)
        });
    }

    /// As `Chain::prune`. Older views keep to the lowest block of all later versions.
    fn prune_growth(&mut self, views: &OpenViews, gone: &mut u64) {
        let mut lowest = END;
        for version in self.growth.0.iter_mut().rev() {
            lowest = lowest.min(version.value);
            version.value = lowest;
        }
        self.growth.prune(views, &mut |_| *gone += VERSION_BYTES);
    }

    /// Versions of blocks whose contents are in memory, at most `max`.
    pub(super) fn blocks_in_memory(&self, max: usize) -> Vec<BlockInMemory> {
        let versions = self.blocks.iter().flat_map(|(at, chain)| chain.0.iter().map(|v| (*at, v)));
        let in_memory = versions.filter_map(|(at, version)| match &version.value {
            BlockVersion::Bytes(bytes) => {
                Some(BlockInMemory { at, until: version.until, bytes: bytes.clone() })
            }
            _ => None,
        });
        in_memory.take(max).collect()
    }

    /// A version was written to the volume; the inode's lock was held since
    /// [`Self::blocks_in_memory`].
    pub(super) fn set_spilled(&mut self, block: &BlockInMemory, place: SpilledVersion) {
        let chain = self.blocks.get_mut(&block.at).expect("listed under the same lock");
        let version = chain.0.iter_mut().find(|version| version.until == block.until);
        let version = version.expect("listed under the same lock");
        self.bytes -= version.value.bytes();
        version.value = BlockVersion::Spilled(place);
        self.bytes += version.value.bytes();
    }

    /// Drops all versions, of an inode that no view sees.
    pub fn clear(&mut self) {
        *self = Versions { counted: self.counted, ..Versions::default() };
    }
}

fn author(change: Option<(Stamp, ChangedBy)>) -> Option<ChangedBy> {
    change.map(|(_, by)| by)
}
