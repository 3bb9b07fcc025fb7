//! A commit becomes visible at once, also to readers whose kernel has everything cached.
//!
//! What a reader sees comes from the volume or from the kernel's caches, so the caches may not keep
//! anything old of one part of a commit when anybody can see something new of another. Forgetting
//! after the change is too late, and forgetting before it alone is no use: readers bring the old
//! state back. So:
//!
//! 1. **Begin**: all inodes that the commit changes come under a fence (`cache_fence`). From here
//!    on attributes and names of these are told with a lifetime of 0: the kernel asks again at the
//!    next look.
//! 2. **Names**: the kernel forgets all changed names. That waits for the lock of their folder,
//!    thus for whoever is looking something up in it, making or listing: what they were told before
//!    1 is with the kernel then, and forgotten.
//! 3. **Listings**: it forgets the listings of these folders. Was one told since before 2: again,
//!    from 2. Else all of these folders are blocked: from here on READDIR waits.
//! 4. **Pages and attributes** of each inode: forgotten while its READs are answered still, with
//!    the old state. A READ that was sent before has locked its page, and is waited for. Was one
//!    received since: again. Else the inode is blocked: READs wait. Now the kernel has nothing of
//!    what will change.
//! 5. The transaction locks, validates and **applies**, or refuses. The base shows all of it to
//!    whoever comes after, since all locks are held together and who reads one inode reads it under
//!    its lock.
//! 6. **Release**: what waited is answered, by the thread that commits.
//!
//! Why nothing deadlocks. Forgetting waits in 2 for locks of folders, in 3 and 4 for locks of
//! pages, and those who hold these may wait for requests. So in 2 and 3 no request of this commit
//! waits; in 4 READDIR and READs of other inodes do, whose callers hold the lock of a folder or of
//! other pages, and nobody needs a folder's lock to be done with a page. WRITE, LOOKUP, GETATTR and
//! the rest never wait. What waits takes no worker. The kernel sends but so many reads ahead at
//! once: so no more than a few wait while a page may have to be waited for, else all is opened and
//! begun anew. Two commits that change one inode come one after the other; one of two others may
//! wait for the other in 2, which in turn waits for nothing of the first. All this runs on a thread
//! of its own (`tx_end`).
//!
//! What is told to the kernel and takes effect late:
//! - attributes: those asked for before the inode was forgotten count for nothing (the kernel's
//!   `attr_version`), those asked for later have no lifetime. Where the kernel says that it does
//!   not know an inode that it holds, the reply of a first LOOKUP is on its way, and is waited for.
//! - SETATTR and LINK are believed by the kernel unseen: while transactions are open their
//!   attributes have no lifetime.
//! - ACLs: the kernel drops what it had asked for when it was told to forget; those asked for later
//!   are treated as READs are.
//!
//! A hot file may be read at just the wrong moment any number of times. After [`ROUNDS_MAX`] the
//! commit goes on all the same, says so in the log, and the kernel forgets once more at the end.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use xact::CommitObserver;
use xact_fs::Name;
use xact_types::Ino;

use crate::commit::cache_fence::{Admission, FenceNr};
use crate::protocol::node::Node;
use crate::protocol::reply::{Reply, VALID_SECS};
use crate::protocol::request::{Operation, Request};
use crate::server::Server;
use crate::server::request_view::RequestView;
use crate::transport::channel::Channel;
use crate::transport::parked_request::ParkedRequest;
use xact::Changes;

/// How often one step is tried anew. A round that fails takes microseconds, and one in ten may.
const ROUNDS_MAX: u32 = 500;
/// How long the kernel may take to learn of an inode that was told to it.
const LEARNING: Duration = Duration::from_micros(100);

/// A range of a file: its first byte and its length.
type Span = (u64, u64);

/// Who hides a commit from the kernel until it is there as a whole.
pub(crate) struct Publisher<'a> {
    server: &'a Arc<Server>,
    /// Of files, forget these parts alone; `None`: all.
    parts: Option<Vec<Span>>,
    fence: Option<FenceNr>,
    /// Inodes of which the kernel may still have something old.
    again: Vec<Ino>,
}

/// What of the kernel's an inode has.
struct Affected<'a> {
    names: BTreeMap<Ino, Vec<&'a Name>>,
    /// Those without changed names; and whether the kernel may have pages that will be wrong.
    others: BTreeMap<Ino, bool>,
}

impl<'a> Affected<'a> {
    fn of(changes: &'a Changes) -> Affected<'a> {
        let mut names: BTreeMap<Ino, Vec<&Name>> = BTreeMap::new();
        for (dir, name) in &changes.names {
            names.entry(*dir).or_default().push(name);
        }
        let others = changes.inodes.iter().filter(|ino| !names.contains_key(ino));
        let mut others: BTreeMap<Ino, bool> = others.map(|&ino| (ino, false)).collect();
        others.extend(changes.files.iter().map(|&ino| (ino, true)));
        Affected { names, others }
    }

    fn inodes(&self) -> Vec<Ino> {
        self.names.keys().chain(self.others.keys()).copied().collect()
    }
}

impl<'a> Publisher<'a> {
    pub fn new(server: &'a Arc<Server>) -> Publisher<'a> {
        Publisher { server, parts: None, fence: None, again: Vec::new() }
    }

    /// For a commit that changes one file, in these parts.
    pub fn over_parts(server: &'a Arc<Server>, parts: Vec<Span>) -> Publisher<'a> {
        let mut publisher = Publisher::new(server);
        publisher.parts = Some(merged(parts));
        publisher
    }

    fn block_all(&mut self, fence: FenceNr, affected: &Affected<'_>) {
        for _ in 0..ROUNDS_MAX {
            // Nothing waits while names are forgotten.
            self.server.answer_all(self.server.cache_fence.open(fence));
            let blocked = self.block_folders(&affected.names)
                && affected.others.iter().all(|(&ino, &has_pages)| self.block_inode(ino, has_pages));
            if !blocked {
                break;
            }
            if self.server.cache_fence.complete(fence) {
                return;
            }
        }
        crate::log(format_args!("files are read so much that a commit became visible bit by bit"));
        self.server.cache_fence.force(fence);
        self.again = affected.inodes();
    }

    fn block_folders(&mut self, names: &BTreeMap<Ino, Vec<&Name>>) -> bool {
        let server = self.server;
        let all: Vec<Ino> = names.keys().copied().collect();
        let mut open = all.clone();
        for round in 0..ROUNDS_MAX {
            open.iter().for_each(|&dir| server.cache_fence.watch(dir));
            for dir in &open {
                // Names are told without a lifetime now, so once is enough. After that, one name is
                // for the lock.
                let names = &names[dir];
                for name in if round == 0 { &names[..] } else { &names[..1] } {
                    server.forget_name(Node::Base(*dir), name, false);
                }
                self.forget(*dir, true);
            }
            open = server.cache_fence.block(&all);
            if open.is_empty() {
                return true;
            }
        }
        all.is_empty()
    }

    fn block_inode(&mut self, ino: Ino, has_pages: bool) -> bool {
        for _ in 0..ROUNDS_MAX {
            self.server.cache_fence.watch(ino);
            self.forget(ino, has_pages);
            if self.server.cache_fence.block(&[ino]).is_empty() {
                return true;
            }
        }
        false
    }

    /// Makes the kernel forget an inode; one that it is about to learn of, when it has.
    fn forget(&mut self, ino: Ino, has_pages: bool) {
        self.server.forget_followers(ino);
        for _ in 0..ROUNDS_MAX {
            match self.forget_known(Node::Base(ino), has_pages) {
                Ok(true) => return,
                Ok(false) if !self.server.is_known(ino) => return,
                Ok(false) => thread::sleep(LEARNING),
                Err(e) => {
                    return crate::log(format_args!("the kernel did not forget inode {ino}: {e}"));
                }
            }
        }
        self.again.push(ino);
    }

    /// False: it does not know the inode.
    fn forget_known(&self, node: Node, has_pages: bool) -> io::Result<bool> {
        let kernel = &self.server.kernel;
        match &self.parts {
            _ if !has_pages => kernel.forget_attributes(node),
            None => kernel.forget_contents(node),
            Some(parts) => {
                let mut known = kernel.forget_attributes(node)?;
                for &(offset, len) in parts {
                    known &= kernel.forget_range(node, offset, len)?;
                }
                Ok(known)
            }
        }
    }

    fn release(&mut self) {
        let Some(fence) = self.fence.take() else { return };
        self.server.answer_all(self.server.cache_fence.release(fence));
        for ino in self.again.drain(..) {
            self.server.forget_contents(Node::Base(ino));
        }
    }
}

impl CommitObserver for Publisher<'_> {
    fn before(&mut self, changes: &Changes) {
        let affected = Affected::of(changes);
        let fence = self.server.cache_fence.begin(affected.inodes());
        self.fence = Some(fence);
        self.block_all(fence, &affected);
    }

    fn after(&mut self) {
        self.release();
    }
}

/// A panic in a commit must not leave others waiting.
impl Drop for Publisher<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

/// Ranges in rising order, none of which touches another.
fn merged(mut parts: Vec<Span>) -> Vec<Span> {
    parts.sort_unstable();
    let mut merged: Vec<Span> = Vec::new();
    for (offset, len) in parts {
        match merged.last_mut() {
            Some((first, sum)) if offset <= *first + *sum => *sum = (*sum).max(offset + len - *first),
            _ => merged.push((offset, len)),
        }
    }
    merged
}

/// Whether the kernel keeps for good what this is answered with, beside attributes and names.
fn is_fill(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Read(_) | Operation::ReadDir { .. } => true,
        Operation::GetXattr { name, .. } => name.starts_with(b"system.posix_acl_"),
        _ => false,
    }
}

impl Server {
    /// Whether the kernel knows the volume's own node of an inode, or is about to learn of it.
    fn is_known(&self, ino: Ino) -> bool {
        !self.transactions.followers.has_all_holds(ino, self.volume.holds(ino))
    }

    /// Whether a request is to be answered now.
    pub(crate) fn admits(self: &Arc<Self>, channel: &Arc<Channel>, request: &Request<'_>) -> bool {
        if !self.cache_fence.any() || !is_fill(&request.operation) {
            return true;
        }
        let ino = match request.node() {
            Some(Node::Base(ino)) => ino,
            Some(node) => match self.followed(node) {
                Some((_, ino)) => ino,
                None => return true,
            },
            None => return true,
        };
        let park = || ParkedRequest { channel: channel.clone(), request: request.bytes.to_vec() };
        match self.cache_fence.admit(ino, park) {
            Admission::Now => true,
            Admission::Later => false,
            Admission::WithThese(others) => {
                self.answer_all(others);
                true
            }
        }
    }

    fn answer_all(self: &Arc<Self>, waited: Vec<ParkedRequest>) {
        let mut reply = Reply::new();
        for ParkedRequest { channel, request } in waited {
            reply.clear();
            // Those that cannot be decoded are not parked.
            if let Ok(request) = Request::decode(&request) {
                self.respond(&channel, &request, &mut reply, Channel::send);
            }
        }
    }

    /// How long the kernel may keep attributes of an inode that are looked at after this call; in
    /// seconds.
    pub(crate) fn lifetime(&self, request_view: &RequestView<'_>, ino: Ino) -> u64 {
        match request_view {
            RequestView::Base { thread, .. } if !self.cache_fence.may_keep(ino, *thread) => 0,
            RequestView::Followed { .. } => 0,
            _ => VALID_SECS,
        }
    }

    /// The same of names in a folder.
    pub(crate) fn lifetime_of_names(&self, request_view: &RequestView<'_>, dir: Ino) -> u64 {
        match request_view {
            RequestView::Base { .. } if !self.cache_fence.may_keep_names(dir) => 0,
            RequestView::Followed { .. } => 0,
            _ => VALID_SECS,
        }
    }

    /// The same for attributes in the reply of a change: the kernel takes these even if it was told
    /// to forget since.
    pub(crate) fn lifetime_of_changed(&self, request_view: &RequestView<'_>) -> u64 {
        let quiet = || !self.cache_fence.any() && !self.sections.any() && self.transactions.is_empty();
        match request_view {
            RequestView::Base { .. } if !quiet() => 0,
            RequestView::Followed { .. } => 0,
            _ => VALID_SECS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_merged() {
        assert_eq!(merged(vec![(8192, 4096), (0, 4096), (4096, 4096), (0, 100)]), [(0, 12288)]);
        assert_eq!(merged(vec![(20, 10), (0, 10), (25, 1)]), [(0, 10), (20, 10)]);
        assert_eq!(merged(Vec::new()), []);
    }

    #[test]
    fn what_changes_is_forgotten_by_what_it_is() {
        let changes = Changes {
            inodes: vec![Ino(2), Ino(12), Ino(13)],
            files: vec![Ino(13)],
            names: vec![(Ino(2), b"a".to_vec()), (Ino(2), b"b".to_vec())],
        };
        let affected = Affected::of(&changes);
        assert_eq!(affected.names[&Ino(2)], [b"a", b"b"]);
        assert_eq!(affected.others, [(Ino(12), false), (Ino(13), true)].into());
        assert_eq!(affected.inodes(), [Ino(2), Ino(12), Ino(13)]);
    }
}
