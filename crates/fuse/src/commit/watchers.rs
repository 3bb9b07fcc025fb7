//! Events of a commit for programs that watch files (inotify, fanotify); the option `notify`.
//!
//! The kernel reports an event when a process makes a call on the mount; a daemon cannot report
//! one. A commit changes the volume without such calls. So after the commit a child process
//! (`EventCaller`) makes one call for each name that changed, and the server answers it without
//! changing anything:
//!
//! | change | call | event |
//! |---|---|---|
//! | new name | mknod, mkdir, symlink | IN_CREATE |
//! | removed name | unlink, rmdir | IN_DELETE |
//! | renamed | rename | IN_MOVED_FROM, IN_MOVED_TO |
//! | replaced by another file | rename, from the folder `.xact` | IN_MOVED_TO |
//! | new contents | utimensat of the modification time | IN_MODIFY |
//! | new contents, without execute bits | open for writing, close | IN_OPEN, IN_CLOSE_WRITE |
//! | new attributes | utimensat | IN_ATTRIB |
//!
//! Why no process sees a wrong name or wrong data:
//! 1. **The volume.** A request of the child that is not one of these calls, or that does not fit
//!    the state of the volume, fails. None changes anything.
//! 2. **Stand-ins.** The kernel looks up a name before it removes or renames it. The child alone
//!    gets the answer that the old name exists, or that the new one does not. The inode in that
//!    answer, and in the one to mknod, mkdir, symlink, is a *stand-in*: a node id that is used
//!    once, without contents. So no attributes of a real inode reach the kernel by these calls;
//!    stale ones could undo the size that a write has set in between.
//! 3. **No lifetime.** A name that refers to a stand-in, or was removed by the child, has no
//!    lifetime in the kernel's cache. Each process that comes upon it asks the server, and gets the
//!    true answer. The kernel has locked the folder from the child's lookup to the end of its call,
//!    so no lookup of another process shares the child's answer. Until that call, the true answer
//!    that the old name does not exist has no lifetime either: otherwise there would be no event.
//! 4. **Times.** utimensat is answered with the inode's attributes, also without a lifetime. The
//!    kernel holds the inode's lock until it has stored them, as in every chmod.
//!
//! Why nothing deadlocks: the thread that commits is not a worker, and holds no lock and no fence
//! while it waits for the child. The child's calls wait for locks of folders, whose holders wait
//! for workers. The child does not wait for a process that watches, except for one that has asked
//! to permit opens; [`EventCaller::call`] gives up after a while.
//!
//! A crash leaves nothing, since nothing is written. If the daemon dies, the kernel ends the
//! connection, the child's call with it, and the child exits.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::CString;
use std::io;
use std::time::{Duration, Instant};

use xact::{Difference, SharedTransaction, What};
use xact_control::abi::FOLDER as CONTROL_FOLDER;
use xact_fs::{Attr, FileKind, View};
use xact_types::{Errno, Error, Ino, Result};

use crate::commit::expected_call::{Child, Expected};
use crate::protocol::abi::EntryOut;
use crate::protocol::node::Node;
use crate::protocol::reply::{self, Reply};
use crate::protocol::request::Operation;
use crate::server::Server;
use crate::transport::event_caller::{Call, EventCaller};

/// How long the events of one commit may take. Until then the commit does not return.
const BATCH_MAX: Duration = Duration::from_secs(10);

/// A name, below the root of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    folder: Vec<u8>,
    name: Vec<u8>,
}

/// The events of one change.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    Removed(Place, FileKind),
    Renamed(Place, Place, FileKind),
    Replaced(Place, FileKind),
    Made(Place, FileKind),
    Modified(Place),
    Attributes(Place),
}

impl Place {
    fn of(path: &[u8]) -> Option<Place> {
        let at = path.iter().rposition(|byte| *byte == b'/')?;
        let (folder, name) = (path[..at].strip_prefix(b"/").unwrap_or(&path[..at]), &path[at + 1..]);
        (!name.is_empty()).then(|| Place { folder: folder.to_vec(), name: name.to_vec() })
    }
}

/// The events of differences, in an order in which a program could have made the changes.
fn events(differences: &[Difference]) -> Vec<Event> {
    let is_folder = |attr: &Option<Attr>| attr.as_ref().is_some_and(|attr| attr.kind == FileKind::Directory);
    // Folders that exist no longer at their old paths, and their new paths.
    let mut moved: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
    let mut taken: HashSet<&[u8]> = HashSet::new();
    for change in differences {
        match (&change.from, change.what) {
            (Some(from), _) if is_folder(&change.new) => _ = moved.insert(from, Some(&change.path)),
            (_, What::Deleted) if is_folder(&change.old) => _ = moved.insert(&change.path, None),
            _ => {}
        }
        if change.what != What::Deleted {
            taken.insert(&change.path);
        }
    }
    let mut lists: [Vec<Event>; 4] = Default::default();
    for change in differences {
        let kind = |attr: &Option<Attr>| attr.as_ref().map_or(FileKind::Regular, |attr| attr.kind);
        let Some(place) = Place::of(&change.path) else {
            // The root itself.
            continue;
        };
        // A name in a folder whose old path is given.
        let old_place = |path: &[u8]| {
            let place = Place::of(path)?;
            let folder = path_now(&moved, &path[..path.len() - place.name.len() - 1])?;
            Some(Place { folder: folder.strip_prefix(b"/").unwrap_or(&folder).to_vec(), ..place })
        };
        let [removed, renamed, made, changed] = &mut lists;
        let (old, new) = (kind(&change.old), kind(&change.new));
        let is_new = |made: &mut Vec<Event>, changed: &mut Vec<Event>| {
            made.push(Event::Made(place.clone(), new));
            if new == FileKind::Regular {
                changed.push(Event::Modified(place.clone()));
            }
        };
        match change.what {
            What::Deleted => removed.extend(old_place(&change.path).map(|place| Event::Removed(place, old))),
            What::Added => is_new(made, changed),
            What::Renamed => {
                let from = change.from.as_deref().filter(|from| !taken.contains(from));
                match from.and_then(old_place) {
                    Some(from) => renamed.push(Event::Renamed(from, place.clone(), new)),
                    None => renamed.push(Event::Replaced(place.clone(), new)),
                }
                let differs = |old: &Attr, new: &Attr| (old.size, old.mtime) != (new.size, new.mtime);
                if let (Some(old), Some(new)) = (&change.old, &change.new)
                    && new.kind == FileKind::Regular
                    && differs(old, new)
                {
                    changed.push(Event::Modified(place));
                }
            }
            What::Modified
                if change.old.as_ref().map(|old| old.ino) != change.new.as_ref().map(|new| new.ino) =>
            {
                renamed.push(Event::Replaced(place.clone(), new));
                if new == FileKind::Regular {
                    changed.push(Event::Modified(place));
                }
            }
            What::Modified => changed.push(Event::Modified(place)),
            What::Attributes => changed.push(Event::Attributes(place)),
        }
    }
    lists.concat()
}

/// The path that an old folder has now. `None`: it was removed.
fn path_now(moved: &BTreeMap<&[u8], Option<&[u8]>>, folder: &[u8]) -> Option<Vec<u8>> {
    let mut end = folder.len();
    loop {
        if let Some(now) = moved.get(&folder[..end]) {
            return now.map(|now| [now, &folder[end..]].concat());
        }
        match folder[..end].iter().rposition(|byte| *byte == b'/') {
            Some(slash) => end = slash,
            None => return Some(folder.to_vec()),
        }
    }
}

/// Makes the calls of one commit.
struct Batch<'a> {
    server: &'a Server,
    caller: &'a mut EventCaller,
    /// The folders that the child has open, and their inodes.
    folders: Option<(Vec<Vec<u8>>, [Ino; 2])>,
}

impl Batch<'_> {
    fn report(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Removed(place, kind) => {
                let [folder, _] = self.open(&[&place.folder])?;
                let expected = Expected::Remove(folder, place.name.clone(), *kind);
                let mode = u32::from(kind.mode_bits());
                self.make(Some(expected), Some((folder, &place.name)), Call::Remove, mode, &place.name, None)
            }
            Event::Renamed(from, to, kind) => {
                let [old, new] = self.open(&[&from.folder, &to.folder])?;
                let from_name = (Node::Live(old), from.name.clone());
                let expected = Expected::Rename(from_name, (new, to.name.clone()), *kind);
                let gone = Some((old, &from.name[..]));
                self.make(Some(expected), gone, Call::Rename, 0, &from.name, Some(&to.name))
            }
            Event::Replaced(place, kind) => {
                let [_, folder] = self.open(&[CONTROL_FOLDER.as_bytes(), &place.folder])?;
                let to = (folder, place.name.clone());
                let expected = Expected::Rename((Node::ControlDir, to.1.clone()), to, *kind);
                self.make(Some(expected), None, Call::Rename, 0, &place.name, Some(&place.name))
            }
            Event::Made(place, kind) => {
                let [folder, _] = self.open(&[&place.folder])?;
                let expected = Expected::Make(folder, place.name.clone(), *kind);
                self.make(Some(expected), None, Call::Make, u32::from(kind.mode_bits()), &place.name, None)
            }
            Event::Modified(place) => {
                self.open(&[&place.folder])?;
                self.make(None, None, Call::Modify, 0, &place.name, None)?;
                self.make(None, None, Call::OpenAndClose, 0, &place.name, None)
            }
            Event::Attributes(place) => {
                self.open(&[&place.folder])?;
                self.make(None, None, Call::SetTimes, 0, &place.name, None)
            }
        }
    }

    fn open(&mut self, paths: &[&[u8]]) -> io::Result<[Ino; 2]> {
        if let Some((open, inodes)) = &self.folders
            && open == paths
        {
            return Ok(*inodes);
        }
        self.folders = None;
        let second = paths.get(1).map(|path| CString::new(*path)).transpose()?;
        let count = paths.len() as u32;
        let inodes = self.caller.call(Call::Folders, count, &CString::new(paths[0])?, second.as_deref())?;
        let inodes = inodes.map(|ino| Ino(ino as u32));
        self.folders = Some((paths.iter().map(|path| path.to_vec()).collect(), inodes));
        Ok(inodes)
    }

    /// Makes a call that the server expects. `gone`: a name that the kernel may know not to exist.
    fn make(
        &mut self,
        expected: Option<Expected>,
        gone: Option<(Ino, &[u8])>,
        call: Call,
        mode: u32,
        first: &[u8],
        second: Option<&[u8]>,
    ) -> io::Result<()> {
        let (first, second) = (CString::new(first)?, second.map(CString::new).transpose()?);
        *self.server.watchers.expected.lock() = expected;
        if let Some((folder, name)) = gone {
            self.server.forget_name(Node::Live(folder), name, false);
        }
        let made = self.caller.call(call, mode, &first, second.as_deref());
        *self.server.watchers.expected.lock() = None;
        made.map(|_| ())
    }
}

impl Server {
    /// The events that a commit of this transaction would report; none unless that is wanted.
    pub(crate) fn events_of(&self, transaction: &SharedTransaction) -> Vec<Difference> {
        if !self.watchers.are_served() {
            return Vec::new();
        }
        transaction.diff().unwrap_or_else(|e| {
            crate::log(format_args!("watchers get no events of a commit: {e}"));
            Vec::new()
        })
    }

    /// Reports changes, except those that are `left`, after they were committed.
    pub(crate) fn report_events(&self, changes: &[Difference], left: &[Difference]) {
        let left: BTreeSet<(What, &[u8])> =
            left.iter().map(|change| (change.what, &change.path[..])).collect();
        let done = |change: &&Difference| !left.contains(&(change.what, &change.path[..]));
        let changes: Vec<Difference> = changes.iter().filter(done).cloned().collect();
        let events = events(&changes);
        let mut child = self.watchers.child.lock();
        let (Some(Child { caller, device }), Some(at)) = (&mut *child, &self.at) else { return };
        let entered = caller.enter(at).and_then(|entered| match entered == *device {
            true => Ok(()),
            false => Err(io::Error::other("another file system is mounted over the mount point")),
        });
        let mut batch = Batch { server: self, caller, folders: None };
        let end = Instant::now() + BATCH_MAX;
        let mut failed = entered.err();
        for event in &events {
            if failed.is_some() {
                break;
            }
            failed = match batch.report(event) {
                Err(e) if is_lost(&e) => Some(e),
                // The name has changed since.
                _ if Instant::now() > end => Some(io::ErrorKind::TimedOut.into()),
                _ => None,
            };
        }
        // The child closes everything also if it is late.
        let _ = caller.call(Call::Leave, 0, c"", None);
        if let Some(e) = failed {
            crate::log(format_args!("watchers get no or not all events of a commit: {e}"));
        }
    }

    /// Answers a request of the child. `None`: like every other.
    pub(crate) fn answer_event_call(
        &self,
        node: Node,
        operation: &Operation<'_>,
        reply: &mut Reply,
    ) -> Option<Result<()>> {
        let mut expected = self.watchers.expected.lock();
        let fits = match (operation, &*expected) {
            (Operation::Lookup { name }, Some(call)) => {
                let answer = self.answer_event_lookup(call, node, name)?;
                reply.put(&answer);
                return Some(Ok(()));
            }
            (
                Operation::Mknod { name, .. }
                | Operation::Mkdir { name, .. }
                | Operation::Symlink { name, .. },
                Some(Expected::Make(dir, new, kind)),
            ) if node == Node::Live(*dir) && *name == *new => {
                reply.put(&self.watchers.stand_in(*kind));
                self.live_kind(node, name) == Some(*kind)
            }
            (Operation::Unlink { name } | Operation::Rmdir { name }, Some(Expected::Remove(dir, old, _))) => {
                node == Node::Live(*dir) && *name == *old && self.live_kind(node, name).is_none()
            }
            (Operation::Rename { new_dir, old, new, .. }, Some(Expected::Rename(from, to, kind))) => {
                let new_dir = Node::from_id(*new_dir);
                (node, new_dir) == (from.0, Some(Node::Live(to.0)))
                    && *old == from.1
                    && *new == to.1
                    && self.live_kind(node, old).is_none()
                    && self.live_kind(Node::Live(to.0), new) == Some(*kind)
            }
            (Operation::SetAttr(_), _) => {
                let Node::Live(ino) = node else { return Some(Err(Errno::EPERM.into())) };
                return Some(self.live.attr(ino).map(|attr| {
                    reply.put(&reply::attr_out(ino.0.into(), &attr, 0));
                }));
            }
            (Operation::Refused, _) => return None,
            (operation, _) if operation.only_looks() => return None,
            _ => false,
        };
        if !fits {
            return Some(Err(Errno::EBUSY.into()));
        }
        *expected = None;
        Some(Ok(()))
    }

    /// The answer to the lookup before an expected call. `None`: the true one.
    fn answer_event_lookup(&self, call: &Expected, node: Node, name: &[u8]) -> Option<EntryOut> {
        let (hidden, shown) = match call {
            Expected::Make(dir, new, _) => (Some((*dir, new)), None),
            Expected::Remove(dir, old, kind) => (None, Some((Node::Live(*dir), old, kind))),
            Expected::Rename(from, to, kind) => (Some((to.0, &to.1)), Some((from.0, &from.1, kind))),
        };
        if hidden.is_some_and(|(dir, new)| node == Node::Live(dir) && name == &new[..]) {
            return Some(EntryOut::default());
        }
        let (dir, old, kind) = shown?;
        let is_it = node == dir && name == &old[..] && self.live_kind(node, name).is_none();
        is_it.then(|| self.watchers.stand_in(*kind))
    }

    /// The type of the file that has a name in a folder of the live volume.
    fn live_kind(&self, dir: Node, name: &[u8]) -> Option<FileKind> {
        // The server's own folder has none.
        let Node::Live(dir) = dir else { return None };
        let view: &dyn View = &*self.live;
        match view.lookup(dir, name) {
            Ok(attr) => Some(attr.kind),
            // An error of the device does not say that the name is free.
            Err(Error::Posix(Errno::ENOENT)) => None,
            Err(_) => Some(FileKind::Socket),
        }
    }
}

/// Whether the child cannot make further calls for now.
fn is_lost(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::BrokenPipe | io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_folders_are_found_at_their_new_paths() {
        let mut moved: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
        moved.insert(b"/a", Some(b"/x/b"));
        moved.insert(b"/a/in", Some(b"/in"));
        moved.insert(b"/gone", None);
        let now = |path: &str| path_now(&moved, path.as_bytes()).map(|path| String::from_utf8(path).unwrap());
        assert_eq!(now("").as_deref(), Some(""));
        assert_eq!(now("/ab/c").as_deref(), Some("/ab/c"));
        assert_eq!(now("/a/c/d").as_deref(), Some("/x/b/c/d"));
        assert_eq!(now("/a/in/d").as_deref(), Some("/in/d"));
        assert_eq!(now("/gone/d"), None);
    }

    #[test]
    fn paths_are_divided() {
        let place = |path: &[u8]| Place::of(path).map(|place| (place.folder, place.name));
        assert_eq!(place(b"/a"), Some((b"".to_vec(), b"a".to_vec())));
        assert_eq!(place(b"/a/b/c"), Some((b"a/b".to_vec(), b"c".to_vec())));
        assert_eq!(place(b""), None);
    }
}
