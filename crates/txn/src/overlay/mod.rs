//! The private changes of a transaction, by inode.
//!
//! An overlay holds the differences between the transaction's state of the volume and the base as
//! of its stamp; without a difference, the base's value counts. It has the net effect, not the
//! history: a name that was added and removed again, or an inode that was created and deleted,
//! leaves no trace.

mod blocks;
mod links;
mod names;
mod node;
mod spill;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use xact_types::{FileBlock, Ino};

pub(crate) use names::{ADDED_COOKIES, Names};
pub(crate) use node::{FileChange, Node};

#[derive(Debug, Default, Clone)]
pub(crate) struct Overlay {
    pub nodes: BTreeMap<Ino, Node>,
    /// Numbers of inodes that were created and deleted in the transaction, and must not be reused
    /// yet.
    pub unlinked_numbers: BTreeSet<Ino>,
    /// Blocks in the order in which their contents came to memory; some may have left since. See
    /// `spill`.
    pub in_memory: VecDeque<(Ino, FileBlock)>,
    /// Memory of the nodes in bytes, without contents of files.
    pub bytes: usize,
}

impl Overlay {
    /// Updates `bytes` after a node was changed, added or removed; it used `before` bytes.
    pub fn note_bytes(&mut self, ino: Ino, before: usize) {
        let now = self.nodes.get(&ino).map_or(0, Node::bytes);
        self.bytes = self.bytes + now - before;
    }

    pub fn recount(&mut self) {
        self.bytes = self.nodes.values().map(Node::bytes).sum();
    }
}
