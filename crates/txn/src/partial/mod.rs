//! Partial commits and aborts: some of the changes of a transaction apart from the rest, by path.
//!
//! An overlay is taken apart along two kinds of pieces: changes of names, and changes of an inode
//! itself. Link counts, subdirectory counts and `..` follow from the names, so they are derived
//! again for each part ([`Overlay::part`](crate::overlay::Overlay::part)); an inode that was born
//! belongs to the names it has.
//!
//! What has to stay together:
//! 1. all names that one rename concerns, and names that several renames share;
//! 2. to commit: a name in a new folder and that folder's own; a folder's deletion and all
//!    deletions in it;
//! 3. to drop: a name that comes back in a deleted folder and that folder's own; a new folder and
//!    all names in it.
//!
//! What then could still not be, folders moved into each other, is refused.

mod selection;
mod split;

pub(crate) use selection::{Purpose, Selection};
pub(crate) use split::Keep;
