//! Old versions of one inode's items, kept under the inode's lock while open views need them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use xact_types::{BlockNr, FileBlock, Ino};

use crate::alloc::Hold;
use crate::api::{Attr, Entry};
use crate::versioned_fs::read_as_of::Stamp;

/// An old version of a file block.
#[derive(Clone)]
pub(in crate::live) enum BlockVersion {
    Hole,
    Bytes(Arc<[u8]>),
    /// Still in its place on the device; the hold prevents reuse.
    OnDisk(BlockNr, #[allow(dead_code, reason = "held, not read")] Hold),
}

/// The versions of one item: each with the stamp of the change that ended it, in rising order.
struct Chain<T>(Vec<(Stamp, T)>);

impl<T> Default for Chain<T> {
    fn default() -> Self {
        Chain(Vec::new())
    }
}

impl<T> Chain<T> {
    /// Returns whether the version was added.
    fn push(&mut self, until: Stamp, value: impl FnOnce() -> T) -> bool {
        // For several changes by one operation, the version before the first one counts.
        let first = self.0.last().is_none_or(|(last, _)| *last < until);
        if first {
            self.0.push((until, value()));
        }
        first
    }

    fn at(&self, stamp: Stamp) -> Option<&T> {
        self.0.iter().find(|(until, _)| *until > stamp).map(|(_, value)| value)
    }

    /// The newest change after `stamp`.
    fn changed_since(&self, stamp: Stamp) -> Option<Stamp> {
        self.0.last().map(|(until, _)| *until).filter(|until| *until > stamp)
    }

    /// Drops versions that no view at or after `oldest` can need, and calls `dropped` with each.
    /// True if none is left.
    fn prune(&mut self, oldest: Option<Stamp>, dropped: &mut impl FnMut(&T)) -> bool {
        self.0.retain(|(until, value)| {
            let keep = oldest.is_some_and(|oldest| *until > oldest);
            if !keep {
                dropped(value);
            }
            keep
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
            BlockVersion::Hole | BlockVersion::OnDisk(..) => VERSION_BYTES,
        }
    }
}

fn xattr_bytes(name: &[u8], value: Option<&Vec<u8>>) -> u64 {
    VERSION_BYTES + name.len() as u64 + value.map_or(0, |value| value.len() as u64)
}

/// Old versions of an inode's items. Almost always empty.
#[derive(Default)]
pub(in crate::live) struct Versions {
    /// Memory used, approximately.
    bytes: u64,
    /// The part of `bytes` that the volume's sum includes ([`Versions::uncounted`]).
    counted: u64,
    attr: Chain<Option<Attr>>,
    parent: Chain<Ino>,
    names: BTreeMap<Box<[u8]>, Chain<Option<Entry>>>,
    blocks: BTreeMap<FileBlock, Chain<BlockVersion>>,
    /// Changed blocks in rising order of stamps: a caller that has examined the older changes looks
    /// only at newer ones.
    block_log: Vec<(Stamp, FileBlock)>,
    xattrs: BTreeMap<Box<[u8]>, Chain<Option<Vec<u8>>>>,
}

impl Versions {
    pub fn is_empty(&self) -> bool {
        self.attr.0.is_empty()
            && self.parent.0.is_empty()
            && self.names.is_empty()
            && self.blocks.is_empty()
            && self.xattrs.is_empty()
    }

    /// The growth since the last call, for the volume's sum.
    pub fn uncounted(&mut self) -> i64 {
        let more = self.bytes as i64 - self.counted as i64;
        self.counted = self.bytes;
        more
    }

    fn count(&mut self, kept: bool, bytes: u64) {
        if kept {
            self.bytes += bytes;
        }
    }

    /// `None` for "did not exist".
    pub fn keep_attr(&mut self, until: Stamp, old: impl FnOnce() -> Option<Attr>) {
        let kept = self.attr.push(until, old);
        self.count(kept, VERSION_BYTES);
    }

    pub fn keep_parent(&mut self, until: Stamp, old: Ino) {
        let kept = self.parent.push(until, || old);
        self.count(kept, VERSION_BYTES);
    }

    pub fn keep_name(&mut self, until: Stamp, name: &[u8], old: Option<Entry>) {
        let kept = self.names.entry(name.into()).or_default().push(until, || old);
        self.count(kept, VERSION_BYTES + name.len() as u64);
    }

    pub fn keep_block(&mut self, until: Stamp, at: FileBlock, old: BlockVersion) {
        let bytes = old.bytes();
        let kept = self.blocks.entry(at).or_default().push(until, || old);
        if kept {
            self.block_log.push((until, at));
        }
        self.count(kept, bytes);
    }

    /// Whether the operation with this stamp has already kept the block.
    pub fn has_block(&self, until: Stamp, at: FileBlock) -> bool {
        self.blocks.get(&at).and_then(|chain| chain.0.last()).is_some_and(|(last, _)| *last == until)
    }

    pub fn keep_xattr(&mut self, until: Stamp, name: &[u8], old: Option<Vec<u8>>) {
        let bytes = xattr_bytes(name, old.as_ref());
        let kept = self.xattrs.entry(name.into()).or_default().push(until, || old);
        self.count(kept, bytes);
    }

    /// `None`: unchanged since; `Some(None)`: the inode did not exist.
    pub fn attr_at(&self, stamp: Stamp) -> Option<Option<&Attr>> {
        self.attr.at(stamp).map(Option::as_ref)
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

    pub fn block_at(&self, at: FileBlock, stamp: Stamp) -> Option<&BlockVersion> {
        self.blocks.get(&at).and_then(|chain| chain.at(stamp))
    }

    /// Blocks from `first` on whose contents at `stamp` differ from the present ones.
    pub fn blocks_at(
        &self,
        first: FileBlock,
        stamp: Stamp,
    ) -> impl Iterator<Item = (FileBlock, &BlockVersion)> {
        self.blocks.range(first..).filter_map(move |(at, chain)| chain.at(stamp).map(|v| (*at, v)))
    }

    pub fn xattr_at(&self, name: &[u8], stamp: Stamp) -> Option<Option<&Vec<u8>>> {
        self.xattrs.get(name).and_then(|chain| chain.at(stamp)).map(Option::as_ref)
    }

    pub fn xattrs_at(&self, stamp: Stamp) -> impl Iterator<Item = (&[u8], bool)> {
        self.xattrs
            .iter()
            .filter_map(move |(name, chain)| chain.at(stamp).map(|v| (name.as_ref(), v.is_some())))
    }

    /// The stamp of the newest change of the attributes after `stamp`.
    pub fn attr_changed_since(&self, stamp: Stamp) -> Option<Stamp> {
        self.attr.changed_since(stamp)
    }

    pub fn name_changed_since(&self, name: &[u8], stamp: Stamp) -> Option<Stamp> {
        self.names.get(name).and_then(|chain| chain.changed_since(stamp))
    }

    /// The newest change of a name other than `ignored` after `stamp`.
    pub fn any_name_changed_since(&self, stamp: Stamp, ignored: Option<&[u8]>) -> Option<Stamp> {
        let counts = self.names.iter().filter(|(name, _)| ignored != Some(&name[..]));
        counts.filter_map(|(_, chain)| chain.changed_since(stamp)).max()
    }

    pub fn any_block_changed_since(&self, blocks: Range<FileBlock>, stamp: Stamp) -> Option<Stamp> {
        self.blocks.range(blocks).filter_map(|(_, chain)| chain.changed_since(stamp)).max()
    }

    /// Blocks that changed after `stamp`, with the stamps of the changes, oldest first.
    pub fn block_changes_after(&self, stamp: Stamp) -> &[(Stamp, FileBlock)] {
        let from = self.block_log.partition_point(|(until, _)| *until <= stamp);
        &self.block_log[from..]
    }

    pub fn xattr_changed_since(&self, name: &[u8], stamp: Stamp) -> Option<Stamp> {
        self.xattrs.get(name).and_then(|chain| chain.changed_since(stamp))
    }

    pub fn any_xattr_changed_since(&self, stamp: Stamp) -> Option<Stamp> {
        self.xattrs.values().filter_map(|chain| chain.changed_since(stamp)).max()
    }

    /// Drops versions that no view at or after `oldest` needs.
    pub fn prune(&mut self, oldest: Option<Stamp>) {
        let mut gone = 0;
        self.attr.prune(oldest, &mut |_| gone += VERSION_BYTES);
        self.parent.prune(oldest, &mut |_| gone += VERSION_BYTES);
        self.names
            .retain(|name, chain| !chain.prune(oldest, &mut |_| gone += VERSION_BYTES + name.len() as u64));
        self.blocks.retain(|_, chain| !chain.prune(oldest, &mut |block| gone += block.bytes()));
        let seen_by_all = oldest
            .map_or(self.block_log.len(), |oldest| self.block_log.partition_point(|(s, _)| *s <= oldest));
        self.block_log.drain(..seen_by_all);
        self.xattrs.retain(|name, chain| {
            !chain.prune(oldest, &mut |value| gone += xattr_bytes(name, value.as_ref()))
        });
        self.bytes -= gone;
    }
}
