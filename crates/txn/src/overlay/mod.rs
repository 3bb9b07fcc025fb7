//! The private changes of a transaction, by inode.
//!
//! An overlay says how the transaction's state of the volume differs from the base as of its
//! stamp; where it says nothing, the base holds. It keeps the net effect, not the history: a
//! name that was made and removed again, or an inode that was born and died, leaves nothing.

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
    /// Numbers of inodes that were born here and are gone, but must not be used by others yet.
    pub unlinked_numbers: BTreeSet<Ino>,
    /// Blocks whose contents came to memory, in this order; some may have left since. See `spill`.
    pub in_memory: VecDeque<(Ino, FileBlock)>,
    /// What the nodes take in memory, contents of files apart.
    pub bytes: usize,
}

impl Overlay {
    /// A node has changed that took `before` bytes, or came or went.
    pub fn note_bytes(&mut self, ino: Ino, before: usize) {
        let now = self.nodes.get(&ino).map_or(0, Node::bytes);
        self.bytes = self.bytes + now - before;
    }

    pub fn recount(&mut self) {
        self.bytes = self.nodes.values().map(Node::bytes).sum();
    }
}
