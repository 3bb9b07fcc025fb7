//! A cache, for each thread, of the nodes that it has checked: a lookup then does not repeat the
//! checks of checksum and entries.
//!
//! A node is identified by the address of its bytes. The contents of a metadata block in memory
//! never change ([`BlockRef`]), and a weak reference prevents reuse of their address. So no
//! invalidation is needed when a block changes: its new contents have another address.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use xact_consistency::BlockRef;
use xact_layout::extent::{Expected, Node};
use xact_types::{BlockNr, Result};

use super::Owner;

/// Number of nodes that a thread remembers: the upper ones of a few trees, and leaves in use. Each
/// keeps the memory of one block.
const SLOTS: usize = 32;

struct Accepted {
    bytes: Weak<[u8]>,
    owner: Owner,
    expected: Expected,
}

thread_local! {
    static ACCEPTED: RefCell<[Option<Accepted>; SLOTS]> = const { RefCell::new([const { None }; SLOTS]) };
}

/// The node in `bytes`, checked by `check` unless this thread has already checked it for the same
/// file and parent.
pub(super) fn node<'b>(
    bytes: &'b BlockRef,
    block: BlockNr,
    owner: Owner,
    expected: Expected,
    check: impl FnOnce() -> Result<Node<'b>>,
) -> Result<Node<'b>> {
    let slot = (block.0 % SLOTS as u64) as usize;
    let known = ACCEPTED.with_borrow(|slots| {
        slots[slot].as_ref().is_some_and(|known| {
            std::ptr::eq(known.bytes.as_ptr(), Arc::as_ptr(bytes))
                && known.owner == owner
                && known.expected == expected
        })
    });
    if known {
        return Ok(Node::accepted(bytes));
    }
    let node = check()?;
    let accepted = Accepted { bytes: Arc::downgrade(bytes), owner, expected };
    ACCEPTED.with_borrow_mut(|slots| slots[slot] = Some(accepted));
    Ok(node)
}
