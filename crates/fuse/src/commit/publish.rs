//! A commit becomes visible all at once, even to readers for which the kernel has cached
//! everything.
//!
//! A reader gets its data from the volume or from the kernel's caches. So the caches must not keep
//! old data of one part of a commit when any reader can see new data of another part. Forgetting
//! the old data after the change is too late. Forgetting it before the change is not enough, since
//! readers bring the old state back. So a commit takes these steps:
//!
//! 1. **Begin**: all inodes that the commit changes come under a fence (`cache_fence`). From here
//!    on, replies give their attributes and names a lifetime of 0: the kernel asks again at the
//!    next use.
//! 2. **Names**: the kernel forgets all changed names. That waits for the lock of their folder, and
//!    thus for every call that looks up, creates or lists names in it. Replies from before step 1
//!    have then reached the kernel's caches, and are forgotten.
//! 3. **Listings**: the kernel forgets the listings of these folders. Steps 2 and 3 are repeated if
//!    a listing was sent since step 2 began. Otherwise all of these folders are blocked: from here
//!    on READDIR waits.
//! 4. **Pages and attributes** of each inode: the kernel forgets them while READs are still
//!    answered with the old state. A READ that was sent before has locked its page, and the kernel
//!    waits for it. The step is repeated if a READ was received during it. Otherwise the inode is
//!    blocked: READs wait. Now the kernel has nothing cached of what will change.
//! 5. The transaction locks, validates and **applies**, or refuses. From then on the volume shows
//!    all of the commit to every reader: all locks are held together, and each inode is read under
//!    its lock.
//! 6. **Release**: the thread that commits answers the parked requests.
//!
//! Why nothing deadlocks. Forgetting waits for locks of folders in step 2, and for locks of pages
//! in steps 3 and 4. The threads that hold these locks may wait for requests. So in steps 2 and 3
//! no request waits for this commit. In step 4, READDIR waits for it, and so do READs of inodes
//! that are already blocked. Their callers hold the lock of a folder or of other pages, and no
//! thread needs a folder's lock to finish with a page. WRITE, LOOKUP, GETATTR and all other
//! requests never wait. A parked request occupies no worker. The kernel limits the number of
//! read-ahead requests that wait for a reply. So only a few may be parked while the commit may have
//! to wait for a page. If there are more, all inodes are opened and the steps begin again. Two
//! commits that change the same inode run one after the other. Of two commits that change different
//! inodes, one may wait for the other in step 2, but they never wait for each other. All this runs
//! on a thread of its own (`tx_end`).
//!
//! Data that was sent to the kernel may take effect late:
//! - Attributes: the kernel ignores those that it asked for before it forgot the inode (its
//!   `attr_version`). Those that it asks for later have no lifetime. The kernel may report that it
//!   does not know an inode, although the daemon counts it as known to the kernel. Then the reply
//!   to the first LOOKUP is still on its way, and the commit waits until the kernel has stored the
//!   inode.
//! - The kernel accepts the attributes in replies to SETATTR and LINK unchecked. While transactions
//!   are open, these have no lifetime.
//! - ACLs: when the kernel has to forget an inode, it also drops ACLs that it has asked for. Those
//!   that it asks for later are treated like READs.
//!
//! A hot file may be read at the wrong moment any number of times. The commit continues
//! nevertheless after [`ROUNDS_MAX`] rounds. It then logs a message, and makes the kernel forget
//! once more at the end.

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

/// How often one step is repeated. A round that fails takes microseconds, and one in ten may fail.
const ROUNDS_MAX: u32 = 500;
/// How long the kernel may take to store an inode of a reply.
const LEARNING: Duration = Duration::from_micros(100);

/// A range of a file: its first byte and its length.
type Span = (u64, u64);

/// Hides a commit from the kernel until all of it is visible.
pub(crate) struct Publisher<'a> {
    server: &'a Arc<Server>,
    /// The parts of files to forget; of all other files, all.
    parts: BTreeMap<Ino, Vec<Span>>,
    fence: Option<FenceNr>,
    /// Inodes of which the kernel may still have old data.
    again: Vec<Ino>,
}

/// The cached data of the kernel that a commit makes outdated.
struct Affected<'a> {
    names: BTreeMap<Ino, Vec<&'a Name>>,
    /// Inodes without changed names, and whether the kernel may have pages that will be wrong.
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
        Publisher { server, parts: BTreeMap::new(), fence: None, again: Vec::new() }
    }

    /// For a commit that changes these files in these parts only.
    pub fn over_parts(
        server: &'a Arc<Server>,
        parts: impl IntoIterator<Item = (Ino, Vec<Span>)>,
    ) -> Publisher<'a> {
        let mut publisher = Publisher::new(server);
        publisher.parts = parts.into_iter().map(|(ino, parts)| (ino, merged(parts))).collect();
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
        crate::log(format_args!(
            "commit published non-atomically: cache invalidation did not converge in {ROUNDS_MAX} rounds"
        ));
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
                // Names have no lifetime from now on, so one round is enough for them. After that,
                // one name is forgotten for the sake of the folder's lock.
                let names = &names[dir];
                for name in if round == 0 { &names[..] } else { &names[..1] } {
                    server.forget_name(Node::Live(*dir), name, false);
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

    /// Makes the kernel forget an inode. If the kernel is about to learn of it, waits until it has.
    fn forget(&mut self, ino: Ino, has_pages: bool) {
        self.server.forget_followers(ino);
        for _ in 0..ROUNDS_MAX {
            match self.forget_known(ino, has_pages) {
                Ok(true) => return,
                Ok(false) if !self.server.is_known(ino) => return,
                Ok(false) => thread::sleep(LEARNING),
                Err(e) => {
                    return crate::log(format_args!("kernel cache invalidation of inode {ino} failed: {e}"));
                }
            }
        }
        self.again.push(ino);
    }

    /// False: the kernel does not know the inode.
    fn forget_known(&self, ino: Ino, has_pages: bool) -> io::Result<bool> {
        let (kernel, node) = (&self.server.kernel, Node::Live(ino));
        match self.parts.get(&ino) {
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
            self.server.forget_contents(Node::Live(ino));
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

/// A panic in a commit must not leave other threads waiting.
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

/// Whether the kernel caches the reply, apart from attributes and names in it.
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
            Some(Node::Live(ino)) => ino,
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
            // Only requests that can be decoded are parked.
            if let Ok(request) = Request::decode(&request) {
                self.respond(&channel, &request, &mut reply, Channel::send);
            }
        }
    }

    /// How long the kernel may keep attributes of an inode that are read after this call, in
    /// seconds.
    pub(crate) fn lifetime(&self, request_view: &RequestView<'_>, ino: Ino) -> u64 {
        match request_view {
            RequestView::Live { thread, .. } if !self.cache_fence.may_keep(ino, *thread) => 0,
            RequestView::Followed { .. } => 0,
            _ => VALID_SECS,
        }
    }

    /// The same of names in a folder.
    pub(crate) fn lifetime_of_names(&self, request_view: &RequestView<'_>, dir: Ino) -> u64 {
        match request_view {
            RequestView::Live { .. } if !self.cache_fence.may_keep_names(dir) => 0,
            RequestView::Followed { .. } => 0,
            _ => VALID_SECS,
        }
    }

    /// The same for attributes in the reply to a change. The kernel accepts these even if it was
    /// made to forget the inode since.
    pub(crate) fn lifetime_of_changed(&self, request_view: &RequestView<'_>) -> u64 {
        let quiet = || !self.cache_fence.any() && !self.sections.any() && self.transactions.is_empty();
        match request_view {
            RequestView::Live { .. } if !quiet() => 0,
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
    fn changed_inodes_are_classified_for_invalidation() {
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
