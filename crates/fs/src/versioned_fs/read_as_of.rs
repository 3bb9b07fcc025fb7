//! Reads of the file system as of an instant, and changes since.

use std::ops::Range;
use std::sync::Arc;

use xact_types::{FileBlock, Ino, Result};

use crate::api::{Attr, DirItem, Entry, Name, SeekTo};

/// A point in the order of changes of a volume; in memory only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub u64);

/// The author of a change: the user transaction with this number, or a call outside transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedBy(pub Option<u64>);

/// A file system that is readable as of the stamp of every open view.
pub trait ReadAsOf {
    /// Keeps the file system readable as of its stamp until it is dropped.
    type ReadView: Send + Sync;

    /// Opens a view of this instant.
    fn open_view(self: &Arc<Self>) -> Self::ReadView;
    fn stamp(view: &Self::ReadView) -> Stamp;

    /// `TooOld` if the view of this stamp has expired. Without the locks of a commit, it may expire
    /// at any time.
    fn check_stamp(&self, stamp: Stamp) -> Result<()>;

    // Reads as of a stamp. `ESTALE` for an inode that did not exist then; `TooOld` if the view has
    // expired.
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

    /// The author of a change of these blocks since the stamp of an open view, if there is one.
    /// Without the locks of a commit, it covers only the changes visible now. `TooOld` as for
    /// reads.
    fn blocks_changed_since(
        &self,
        ino: Ino,
        blocks: Range<FileBlock>,
        since: Stamp,
    ) -> Result<Option<ChangedBy>>;
    /// The author of a change of blocks for which `wanted` returns true, if there is one; and the
    /// stamp up to which all changes were examined. Changes up to `after` may be left out, and
    /// those of a block that had changed before since the stamp of the view. A range of several
    /// blocks stands for changes of some of them.
    fn find_changed_block(
        &self,
        ino: Ino,
        since: Stamp,
        after: Stamp,
        wanted: &mut dyn FnMut(Range<FileBlock>) -> bool,
    ) -> Result<(Option<ChangedBy>, Stamp)>;
}
