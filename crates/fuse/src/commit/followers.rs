//! Committed views of which the kernel still has nodes. These nodes stand for the volume's inodes.
//!
//! A descriptor may be opened in a transaction by one thread of several. After the commit it
//! continues to work under the same number ([`xact_control::abi::COMMIT_FOLLOW`]). To the kernel
//! its inode differs from that of the same file opened outside, and has a page cache of its own.
//! Three rules keep either one from showing old contents:
//!
//! - Attributes of such a node and names below it have no lifetime: the kernel asks each time.
//! - Contents and attributes that the kernel gets through such a node are *noted* before they are
//!   read. A change of the file is applied first. Then the notes of all other nodes are removed,
//!   and the kernel forgets what it has of these nodes. Only then is the change answered. A read
//!   that was noted too late for that has already seen the change. (Attributes are noted although
//!   the kernel keeps none of them: a reply on its way must not arrive after a newer one, or the
//!   size would be wrong.)
//! - A change through such a node makes the kernel forget what it has of the volume's own node, in
//!   the same way.
//!
//! Stores into mappings are refused (`following`): the kernel writes back whole pages, and the
//! bytes of a page that the program did not store may be old.
//!
//! While no process reads through such nodes, a change of a file costs one look at a counter.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::{Mutex, RwLock};
use xact_types::Ino;

use crate::protocol::node::ViewNr;
use crate::server::kernel_refs::KernelRefs;

/// A view that was committed.
pub struct Followed {
    pub nr: ViewNr,
    pub refs: Arc<KernelRefs>,
}

#[derive(Default)]
pub struct Followers {
    views: RwLock<HashMap<ViewNr, Arc<Followed>>>,
    /// Nodes of which the kernel may have pages, by inode.
    cached: Mutex<HashMap<Ino, Vec<ViewNr>>>,
    /// Read by every change of contents, so without a lock.
    cached_count: AtomicUsize,
    /// Holds of the volume's inodes that belong to such nodes.
    holds: Mutex<HashMap<Ino, u64>>,
}

impl Followers {
    pub fn add(&self, nr: ViewNr, refs: Arc<KernelRefs>) {
        self.views.write().insert(nr, Arc::new(Followed { nr, refs }));
    }

    pub fn get(&self, nr: ViewNr) -> Option<Arc<Followed>> {
        self.views.read().get(&nr).cloned()
    }

    pub fn has(&self, nr: ViewNr) -> bool {
        self.views.read().contains_key(&nr)
    }

    /// The kernel has forgotten a node of this view. The view ends with the last of them.
    pub fn drop_if_forgotten(&self, nr: ViewNr) {
        let mut views = self.views.write();
        if views.get(&nr).is_some_and(|view| view.refs.is_empty()) {
            views.remove(&nr);
        }
    }

    pub fn add_hold(&self, ino: Ino) {
        *self.holds.lock().entry(ino).or_default() += 1;
    }

    pub fn remove_holds(&self, ino: Ino, count: u64) {
        let mut all = self.holds.lock();
        if let Some(holds) = all.get_mut(&ino) {
            *holds = holds.saturating_sub(count);
            if *holds == 0 {
                all.remove(&ino);
            }
        }
    }

    /// Whether all `holds` of an inode belong to such nodes, so that the kernel does not know the
    /// volume's own node. A hold is counted here after it was made, and its count ends before the
    /// hold does. So for a moment the kernel may seem to have a hold too many, but never one too
    /// few.
    pub fn has_all_holds(&self, ino: Ino, holds: u64) -> bool {
        holds <= self.holds.lock().get(&ino).copied().unwrap_or(0)
    }

    /// The kernel is about to get, or gave, pages of this inode through this view.
    pub fn note_contents(&self, nr: ViewNr, ino: Ino) {
        let mut cached = self.cached.lock();
        let views = cached.entry(ino).or_default();
        if !views.contains(&nr) {
            views.push(nr);
        }
        self.cached_count.store(cached.len(), SeqCst);
    }

    pub fn any_cached(&self) -> bool {
        self.cached_count.load(SeqCst) > 0
    }

    /// The kernel has forgotten this node.
    pub fn remove_cached(&self, nr: ViewNr, ino: Ino) {
        let mut cached = self.cached.lock();
        if let Some(views) = cached.get_mut(&ino) {
            views.retain(|&view| view != nr);
            if views.is_empty() {
                cached.remove(&ino);
            }
            self.cached_count.store(cached.len(), SeqCst);
        }
    }

    /// Takes the nodes of an inode of which the kernel may have pages, except the one that a change
    /// came through.
    pub fn take_cached(&self, ino: Ino, own: Option<ViewNr>) -> Vec<ViewNr> {
        if !self.any_cached() {
            return Vec::new();
        }
        let mut cached = self.cached.lock();
        let Some(views) = cached.get_mut(&ino) else { return Vec::new() };
        let taken = views.extract_if(.., |nr| Some(*nr) != own).collect();
        if views.is_empty() {
            cached.remove(&ino);
        }
        self.cached_count.store(cached.len(), SeqCst);
        taken
    }
}

#[cfg(test)]
mod tests {
    use xact::Account;

    use super::*;

    #[test]
    fn nodes_with_pages_are_taken_once_and_never_the_changing_one() {
        let (followers, ino) = (Followers::default(), Ino(12));
        let (one, two) = (ViewNr::FIRST, ViewNr::FIRST.next());
        assert!(!followers.any_cached());
        followers.note_contents(one, ino);
        followers.note_contents(one, ino);
        followers.note_contents(two, ino);
        assert_eq!(followers.take_cached(Ino(13), None), []);
        assert_eq!(followers.take_cached(ino, Some(one)), [two]);
        assert!(followers.any_cached());
        assert_eq!(followers.take_cached(ino, None), [one]);
        assert_eq!(followers.take_cached(ino, None), []);
        assert!(!followers.any_cached());
    }

    #[test]
    fn a_view_lives_while_the_kernel_knows_any_of_its_nodes() {
        let followers = Followers::default();
        let refs = Arc::new(KernelRefs::new(&Account::unlimited()));
        followers.add(ViewNr::FIRST, refs);
        assert!(followers.has(ViewNr::FIRST));
        followers.drop_if_forgotten(ViewNr::FIRST);
        assert!(followers.get(ViewNr::FIRST).is_none());
    }
}
