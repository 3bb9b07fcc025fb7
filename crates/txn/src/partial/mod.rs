//! Partial commits and aborts: selected changes of a transaction, by path.
//!
//! An overlay is split into two kinds of pieces: changes of names, and changes of an inode itself.
//! Link counts, subdirectory counts and `..` follow from the names, so they are derived again for
//! each part ([`Overlay::part`](crate::overlay::Overlay::part)). A new inode belongs to its names.
//!
//! Changes that must stay together:
//! 1. all names of one rename, and names that several renames share;
//! 2. in a commit: a name in a new folder and the folder's own name; the deletion of a folder and
//!    all deletions in it;
//! 3. in an abort: a name that is restored in a deleted folder and the folder's own name; a new
//!    folder and all names in it.
//!
//! A part that is still impossible, with folders moved into each other, is refused.
//!
//! `left_out` says what a partial commit validates. What it left out and others have changed stays
//! a conflict (`pins`).

mod left_out;
pub(crate) mod pins;
mod selection;
mod split;

pub(crate) use left_out::LeftOut;
pub(crate) use selection::{Purpose, Selection};
pub(crate) use split::Keep;
