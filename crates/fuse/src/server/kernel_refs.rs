//! What the kernel knows of the inodes of one view: how often it has looked them up, whether it may
//! have pages of them, and by which names it reached them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use xact::{Account, Charge, Resource};
use xact_fs::{Attr, FileKind, Name};
use xact_types::{Ino, Result};

/// A name that the kernel was told, and its folder.
type KnownName = (Ino, Box<Name>);

struct InodeRef {
    /// Lookups that were answered with it, less those forgotten; the view holds it as often.
    lookups: u64,
    /// The kernel may have pages of it.
    contents: bool,
    kind: FileKind,
    generation: u32,
    names: Vec<KnownName>,
    /// After a commit that descriptors follow: how often the volume's inode is held for it. 0:
    /// there is none.
    holds: u64,
}

/// What an inode, and one name, take in memory besides the name's bytes, which stand twice.
const INODE_BYTES: usize = 160;
const NAME_BYTES: usize = 128;
/// The most that a lookup adds.
const LOOKUP_BYTES: usize = INODE_BYTES + NAME_BYTES + 2 * 255;

struct State {
    inodes: HashMap<Ino, InodeRef>,
    /// The names of all of them.
    by_name: HashMap<KnownName, Ino>,
    /// Bytes of these names.
    name_bytes: usize,
    /// For all of it.
    memory: Charge,
}

impl State {
    fn remove_name(&mut self, told: &KnownName) -> Option<Ino> {
        let ino = self.by_name.remove(told)?;
        self.name_bytes -= told.1.len();
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.names.retain(|name| name != told);
        }
        Some(ino)
    }

    fn add_name(&mut self, told: KnownName, ino: Ino) {
        if self.by_name.get(&told) == Some(&ino) {
            return;
        }
        self.remove_name(&told);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.names.push(told.clone());
            self.name_bytes += told.1.len();
            self.by_name.insert(told, ino);
        }
    }

    fn remove(&mut self, ino: Ino) -> Option<InodeRef> {
        let inode = self.inodes.remove(&ino)?;
        for told in &inode.names {
            self.by_name.remove(told);
            self.name_bytes -= told.1.len();
        }
        Some(inode)
    }
}

pub struct KernelRefs(Mutex<State>);

impl KernelRefs {
    /// Those of a user's view, who is charged for their memory.
    pub fn new(account: &Arc<Account>) -> KernelRefs {
        let memory = account.nothing(Resource::Memory);
        let (inodes, by_name) = (HashMap::new(), HashMap::new());
        KernelRefs(Mutex::new(State { inodes, by_name, name_bytes: 0, memory }))
    }

    /// Before a lookup is answered: `ENOMEM` where the user has no memory for what the kernel
    /// learns by it.
    pub fn check_lookup(&self) -> Result<()> {
        let State { inodes, by_name, name_bytes, memory } = &mut *self.0.lock();
        let bytes = inodes.len() * INODE_BYTES + by_name.len() * NAME_BYTES + 2 * *name_bytes;
        memory.cover((bytes + LOOKUP_BYTES) as u64)
    }

    /// A lookup was answered with this inode, by this name in this folder if it has one.
    pub fn add_lookup(&self, attr: &Attr, name: Option<(Ino, &Name)>) {
        let mut state = self.0.lock();
        let inode = state.inodes.entry(attr.ino).or_insert_with(|| InodeRef {
            lookups: 0,
            contents: false,
            kind: attr.kind,
            generation: attr.generation,
            names: Vec::new(),
            holds: 0,
        });
        inode.lookups += 1;
        if let Some((dir, name)) = name {
            state.add_name((dir, name.into()), attr.ino);
        }
    }

    /// A name was removed.
    pub fn remove_name(&self, dir: Ino, name: &Name) {
        self.0.lock().remove_name(&(dir, name.into()));
    }

    /// A name was given to what had another one, in the place of what had it; or these two have
    /// been exchanged.
    pub fn rename(&self, from: (Ino, &Name), to: (Ino, &Name), exchange: bool) {
        let mut state = self.0.lock();
        let (from, to) = ((from.0, from.1.into()), (to.0, to.1.into()));
        let (moved, replaced) = (state.remove_name(&from), state.remove_name(&to));
        if let Some(ino) = moved {
            state.add_name(to, ino);
        }
        if let Some(ino) = replaced.filter(|_| exchange) {
            state.add_name(from, ino);
        }
    }

    /// The kernel forgot `count` lookups; returns how many holds of the volume's inode end with
    /// that.
    pub fn forget(&self, ino: Ino, count: u64) -> u64 {
        let mut state = self.0.lock();
        let Some(inode) = state.inodes.get_mut(&ino) else { return 0 };
        inode.lookups = inode.lookups.saturating_sub(count);
        if inode.lookups > 0 {
            return 0;
        }
        state.remove(ino).map_or(0, |inode| inode.holds)
    }

    /// The kernel gets, or gave, contents of the inode: it may have a mapping of it from now on.
    pub fn note_contents(&self, ino: Ino) {
        if let Some(inode) = self.0.lock().inodes.get_mut(&ino) {
            inode.contents = true;
        }
    }

    /// Inodes of which the kernel may have pages.
    pub fn with_contents(&self) -> Vec<Ino> {
        self.0.lock().inodes.iter().filter(|(_, inode)| inode.contents).map(|(&ino, _)| ino).collect()
    }

    pub fn inodes(&self) -> Vec<Ino> {
        self.0.lock().inodes.keys().copied().collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().inodes.is_empty()
    }

    /// All names of what the kernel still knows.
    pub fn names(&self) -> Vec<KnownName> {
        self.0.lock().by_name.keys().cloned().collect()
    }

    /// Everything, with the lookups of each inode; nothing is known afterwards.
    pub fn drain(&self) -> Vec<(Ino, u64)> {
        let mut state = self.0.lock();
        (state.by_name, state.name_bytes) = (HashMap::new(), 0);
        state.inodes.drain().map(|(ino, inode)| (ino, inode.lookups)).collect()
    }

    /// The view is about to be committed: `hold` holds what an inode of this type and generation is
    /// on the volume, or will be.
    pub fn hold_all(&self, hold: impl Fn(Ino, FileKind, u32) -> bool) {
        for (&ino, inode) in &mut self.0.lock().inodes {
            inode.holds = hold(ino, inode.kind, inode.generation).into();
        }
    }

    /// It has been, or not: inodes that are there stand for the volume's from now on. Returns the
    /// others that were held, to be released.
    pub fn settle(&self, is_there: impl Fn(Ino) -> bool) -> Vec<Ino> {
        let mut gone = Vec::new();
        for (&ino, inode) in &mut self.0.lock().inodes {
            inode.contents = false;
            if inode.holds > 0 && !is_there(ino) {
                inode.holds = 0;
                gone.push(ino);
            }
        }
        gone
    }

    /// Whether the inode stands for one of the volume.
    pub fn follows(&self, ino: Ino) -> bool {
        self.0.lock().inodes.get(&ino).is_some_and(|inode| inode.holds > 0)
    }

    /// As `add_lookup` in a view that was committed, with a hold of the volume's inode.
    pub fn add_held(&self, attr: &Attr) {
        self.add_lookup(attr, None);
        if let Some(inode) = self.0.lock().inodes.get_mut(&attr.ino) {
            inode.holds += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use xact_types::Timestamp;

    use super::*;

    const DIR: Ino = Ino(2);
    const A: Ino = Ino(12);
    const B: Ino = Ino(13);

    fn attr(ino: Ino) -> Attr {
        let time = Timestamp { secs: 1, nanos: 0 };
        Attr {
            ino,
            kind: FileKind::Regular,
            perm: 0o644,
            uid: 0,
            gid: 0,
            project: 0,
            nlink: 1,
            size: 0,
            sectors: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: None,
            rdev: 0,
            flags: 0,
            generation: 7,
        }
    }

    fn names(refs: &KernelRefs) -> Vec<Vec<u8>> {
        let mut names: Vec<_> = refs.names().into_iter().map(|(_, name)| name.to_vec()).collect();
        names.sort();
        names
    }

    #[test]
    fn names_go_with_renames_and_end_with_what_they_name() {
        let refs = KernelRefs::new(&Account::unlimited());
        refs.add_lookup(&attr(A), Some((DIR, b"a")));
        refs.add_lookup(&attr(A), Some((DIR, b"a")));
        refs.add_lookup(&attr(B), Some((DIR, b"b")));
        for n in 0..100 {
            let (from, to) = if n % 2 == 0 { (b"a", b"c") } else { (b"c", b"a") };
            refs.rename((DIR, from), (DIR, to), false);
        }
        assert_eq!(names(&refs), [b"a", b"b"]);
        refs.rename((DIR, b"a"), (DIR, b"b"), true);
        assert_eq!(refs.forget(A, 2), 0);
        assert_eq!(names(&refs), [b"a"], "B has it now");
        refs.rename((DIR, b"absent"), (DIR, b"a"), false);
        assert!(names(&refs).is_empty(), "B was replaced by what is not known");
        refs.add_lookup(&attr(B), Some((DIR, b"b")));
        refs.remove_name(DIR, b"b");
        assert!(names(&refs).is_empty() && !refs.is_empty());
    }

    #[test]
    fn what_is_not_there_after_a_commit_is_given_back() {
        let refs = KernelRefs::new(&Account::unlimited());
        refs.add_lookup(&attr(A), None);
        refs.add_lookup(&attr(B), None);
        refs.hold_all(|_, kind, generation| (kind, generation) == (FileKind::Regular, 7));
        assert_eq!(refs.settle(|ino| ino == A), [B]);
        assert!(refs.follows(A) && !refs.follows(B));
        assert_eq!((refs.forget(A, 1), refs.forget(B, 1)), (1, 0));
        assert!(refs.is_empty());
    }
}
