//! Reads of the file system as of an instant, and what has changed since.

use std::ops::Range;
use std::sync::Arc;

use xact_types::{FileBlock, Ino, Result};

use crate::api::{Attr, DirItem, Entry, Name, SeekTo};

/// A point in the order of changes of a volume. Not kept on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub u64);

/// Who made a change: the user transaction with this number, or a call outside of any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedBy(pub Option<u64>);

/// The file system with its past: readable as of the stamp of every open view.
pub trait ReadAsOf {
    /// Keeps the file system readable as of its stamp until it is dropped.
    type ReadView: Send + Sync;

    /// Opens a view of this instant.
    fn open_view(self: &Arc<Self>) -> Self::ReadView;
    fn stamp(view: &Self::ReadView) -> Stamp;

    // Reads as of a stamp. `ESTALE` for an inode that did not exist then; `TooOld` where the past
    // is no longer kept as far back.
    fn attr_at(&self, ino: Ino, stamp: Stamp) -> Result<Attr>;
    fn entry_at(&self, dir: Ino, name: &Name, stamp: Stamp) -> Result<Option<Entry>>;
    fn list_at(
        &self,
        dir: Ino,
        cookie: u64,
        stamp: Stamp,
        each: &mut dyn FnMut(DirItem<'_>) -> bool,
    ) -> Result<()>;
    fn parent_at(&self, dir: Ino, stamp: Stamp) -> Result<Ino>;
    fn read_link_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<u8>>;
    /// `None` for a hole. Bytes past the end of the file as of `stamp` are undefined.
    fn read_block_at(&self, ino: Ino, at: FileBlock, stamp: Stamp) -> Result<Option<Arc<[u8]>>>;
    /// The first block from `at` on that is data (or a hole), within the size as of `stamp`;
    /// `None` where no data follows. A hole always follows: the end of the file.
    fn seek_at(&self, ino: Ino, at: FileBlock, to: SeekTo, stamp: Stamp) -> Result<Option<FileBlock>>;
    fn xattr_at(&self, ino: Ino, name: &[u8], stamp: Stamp) -> Result<Option<Vec<u8>>>;
    fn list_xattrs_at(&self, ino: Ino, stamp: Stamp) -> Result<Vec<Vec<u8>>>;

    /// Who has changed any of these blocks of a file since a stamp whose view is open, if anybody
    /// has; as far as it is visible now, without the locks of a commit. `TooOld` as for reads.
    fn blocks_changed_since(
        &self,
        ino: Ino,
        blocks: Range<FileBlock>,
        since: Stamp,
    ) -> Result<Option<ChangedBy>>;
    /// The same of a file's blocks that are `wanted`, those that changed up to `after` perhaps left
    /// out; and the stamp up to which all others were looked at.
    fn find_changed_block(
        &self,
        ino: Ino,
        since: Stamp,
        after: Stamp,
        wanted: &mut dyn FnMut(FileBlock) -> bool,
    ) -> Result<(Option<ChangedBy>, Stamp)>;
}
