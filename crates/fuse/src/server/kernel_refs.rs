//! The kernel's knowledge of the inodes of one view: how often it has looked them up, whether it
//! may have pages of them, and by which names it reached them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use xact::{Account, Charge, Resource};
use xact_fs::{Attr, FileKind, Name};
use xact_types::{Ino, Result};

/// A name that was sent to the kernel, and its folder.
type KnownName = (Ino, Box<Name>);

struct InodeRef {
    /// Lookups that were answered with it, minus those forgotten. The view holds it as often.
    lookups: u64,
    /// The kernel may have pages of it.
    contents: bool,
    kind: FileKind,
    generation: u32,
    names: Vec<KnownName>,
    /// How often the volume's inode is held for it, after a commit that descriptors follow. 0: it
    /// stands for no inode of the volume.
    holds: u64,
}

/// Memory of an inode, and of one name without its bytes, which are stored twice.
const INODE_BYTES: usize = 160;
const NAME_BYTES: usize = 128;
/// The most memory that a lookup adds.
const LOOKUP_BYTES: usize = INODE_BYTES + NAME_BYTES + 2 * 255;

struct State {
    inodes: HashMap<Ino, InodeRef>,
    /// The names of all inodes.
    by_name: HashMap<KnownName, Ino>,
    /// Bytes of these names.
    name_bytes: usize,
    /// Charges the user for all of this memory.
    memory: Charge,
}

impl State {
    fn remove_name(&mut self, known: &KnownName) -> Option<Ino> {
        let ino = self.by_name.remove(known)?;
        self.name_bytes -= known.1.len();
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.names.retain(|name| name != known);
        }
        Some(ino)
    }

    fn add_name(&mut self, known: KnownName, ino: Ino) {
        if self.by_name.get(&known) == Some(&ino) {
            return;
        }
        self.remove_name(&known);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.names.push(known.clone());
            self.name_bytes += known.1.len();
            self.by_name.insert(known, ino);
        }
    }

    fn remove(&mut self, ino: Ino) -> Option<InodeRef> {
        let inode = self.inodes.remove(&ino)?;
        for known in &inode.names {
            self.by_name.remove(known);
            self.name_bytes -= known.1.len();
        }
        Some(inode)
    }
}

pub struct KernelRefs(Mutex<State>);

impl KernelRefs {
    /// The references of a user's view. The user is charged for their memory.
    pub fn new(account: &Arc<Account>) -> KernelRefs {
        let memory = account.nothing(Resource::Memory);
        let (inodes, by_name) = (HashMap::new(), HashMap::new());
        KernelRefs(Mutex::new(State { inodes, by_name, name_bytes: 0, memory }))
    }

    /// Called before a lookup is answered. `ENOMEM` if the user has no memory left for it.
    pub fn check_lookup(&self) -> Result<()> {
        let State { inodes, by_name, name_bytes, memory } = &mut *self.0.lock();
        let bytes = inodes.len() * INODE_BYTES + by_name.len() * NAME_BYTES + 2 * *name_bytes;
        memory.cover((bytes + LOOKUP_BYTES) as u64)
    }

    /// Counts a lookup that was answered with this inode, by this name in this folder if it has
    /// one.
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

    /// Notes that a name was removed.
    pub fn remove_name(&self, dir: Ino, name: &Name) {
        self.0.lock().remove_name(&(dir, name.into()));
    }

    /// Notes a rename: the inode at `from` has the name `to` now, and one that had this name has
    /// lost it. With `exchange` the two have each other's names.
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

    /// The kernel forgot `count` lookups. Returns how many holds of the volume's inode end with
    /// them.
    pub fn forget(&self, ino: Ino, count: u64) -> u64 {
        let mut state = self.0.lock();
        let Some(inode) = state.inodes.get_mut(&ino) else { return 0 };
        inode.lookups = inode.lookups.saturating_sub(count);
        if inode.lookups > 0 {
            return 0;
        }
        state.remove(ino).map_or(0, |inode| inode.holds)
    }

    /// The kernel gets, or sent, contents of the inode. From now on it may have a mapping of it.
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

    /// The names of all inodes that the kernel still knows.
    pub fn names(&self) -> Vec<KnownName> {
        self.0.lock().by_name.keys().cloned().collect()
    }

    /// Removes everything, and returns the number of lookups of each inode.
    pub fn drain(&self) -> Vec<(Ino, u64)> {
        let mut state = self.0.lock();
        (state.by_name, state.name_bytes) = (HashMap::new(), 0);
        state.inodes.drain().map(|(ino, inode)| (ino, inode.lookups)).collect()
    }

    /// Called before the view is committed. `hold` holds the volume's inode that an inode of this
    /// type and generation is, or will be.
    pub fn hold_all(&self, hold: impl Fn(Ino, FileKind, u32) -> bool) {
        for (&ino, inode) in &mut self.0.lock().inodes {
            inode.holds = hold(ino, inode.kind, inode.generation).into();
        }
    }

    /// Called after the commit, or its refusal. Inodes that exist on the volume stand for these
    /// from now on. Returns the other held inodes, to be released.
    pub fn finish_commit(&self, is_there: impl Fn(Ino) -> bool) -> Vec<Ino> {
        let mut released = Vec::new();
        for (&ino, inode) in &mut self.0.lock().inodes {
            inode.contents = false;
            if inode.holds > 0 && !is_there(ino) {
                inode.holds = 0;
                released.push(ino);
            }
        }
        released
    }

    /// Whether the inode stands for an inode of the volume.
    pub fn follows(&self, ino: Ino) -> bool {
        self.0.lock().inodes.get(&ino).is_some_and(|inode| inode.holds > 0)
    }

    /// As `add_lookup`, for a committed view, with a hold of the volume's inode.
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
    fn names_follow_renames_and_end_with_their_inode() {
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
        assert_eq!(names(&refs), [b"a"], "B has the name now");
        refs.rename((DIR, b"absent"), (DIR, b"a"), false);
        assert!(names(&refs).is_empty(), "an unknown inode replaced B");
        refs.add_lookup(&attr(B), Some((DIR, b"b")));
        refs.remove_name(DIR, b"b");
        assert!(names(&refs).is_empty() && !refs.is_empty());
    }

    #[test]
    fn memory_follows_inodes_and_names() {
        let refs = KernelRefs::new(&Account::unlimited());
        let bytes = || {
            let state = refs.0.lock();
            let stored: usize = state.by_name.keys().map(|(_, name)| name.len()).sum();
            assert_eq!(state.name_bytes, stored);
            let of_inodes: usize = state.inodes.values().map(|inode| inode.names.len()).sum();
            assert_eq!(of_inodes, state.by_name.len());
            stored
        };
        refs.add_lookup(&attr(A), Some((DIR, b"four")));
        refs.add_lookup(&attr(A), Some((DIR, b"as well")));
        refs.add_lookup(&attr(B), Some((A, b"four")));
        assert_eq!(bytes(), 15);
        refs.add_lookup(&attr(A), Some((DIR, b"four")));
        assert_eq!(bytes(), 15);
        // The name is another inode's now.
        refs.add_lookup(&attr(B), Some((DIR, b"as well")));
        assert_eq!(bytes(), 15);
        refs.rename((DIR, b"as well"), (DIR, b"longer than before"), false);
        assert_eq!(bytes(), 26);
        refs.remove_name(DIR, b"four");
        refs.remove_name(DIR, b"absent");
        assert_eq!(bytes(), 22);
        assert_eq!(refs.forget(B, 2), 0);
        assert_eq!(bytes(), 0);
        assert_eq!(refs.inodes(), [A]);
        refs.add_lookup(&attr(B), Some((DIR, b"b")));
        let mut drained = refs.drain();
        drained.sort();
        assert_eq!(drained, [(A, 3), (B, 1)]);
        assert_eq!(bytes(), 0);
        assert!(refs.is_empty() && refs.names().is_empty());
    }

    #[test]
    fn a_user_without_memory_gets_no_further_lookup() {
        let accounts = xact::Accounts::default();
        accounts.limit(xact::Limits::new(1 << 20, 1 << 20), 1, |_| ());
        let account = accounts.of(1000);
        let refs = KernelRefs::new(&account);
        refs.check_lookup().unwrap();
        let used = account.used(Resource::Memory);
        assert!(used >= LOOKUP_BYTES as u64);
        let mut count = 0;
        while refs.check_lookup().is_ok() {
            let name = format!("{count:0100}");
            refs.add_lookup(&attr(Ino(100 + count)), Some((DIR, name.as_bytes())));
            count += 1;
        }
        // Each takes 160 bytes for the inode, 128 and twice its length for its name.
        let each = 160 + 128 + 2 * 100;
        let most = account.limit(Resource::Memory);
        let expected = (most - 798) / each;
        assert!(
            (expected.saturating_sub(200)..=expected + 1).contains(&u64::from(count)),
            "{count} {expected}"
        );
        assert!(account.used(Resource::Memory) <= most);
    }

    #[test]
    fn contents_are_noted_until_a_commit() {
        let refs = KernelRefs::new(&Account::unlimited());
        refs.note_contents(A);
        refs.add_lookup(&attr(A), None);
        refs.add_lookup(&attr(B), None);
        assert!(refs.with_contents().is_empty());
        refs.note_contents(A);
        assert_eq!(refs.with_contents(), [A]);
        assert!(refs.finish_commit(|_| true).is_empty(), "none is held");
        assert!(refs.with_contents().is_empty());
        refs.add_held(&attr(A));
        refs.add_held(&attr(A));
        assert!(refs.follows(A) && !refs.follows(B));
        assert_eq!((refs.forget(A, 2), refs.forget(A, 1)), (0, 2));
        assert_eq!(refs.forget(A, 1), 0);
    }

    #[test]
    fn holds_of_inodes_missing_after_a_commit_are_returned() {
        let refs = KernelRefs::new(&Account::unlimited());
        refs.add_lookup(&attr(A), None);
        refs.add_lookup(&attr(B), None);
        refs.hold_all(|_, kind, generation| (kind, generation) == (FileKind::Regular, 7));
        assert_eq!(refs.finish_commit(|ino| ino == A), [B]);
        assert!(refs.follows(A) && !refs.follows(B));
        assert_eq!((refs.forget(A, 1), refs.forget(B, 1)), (1, 0));
        assert!(refs.is_empty());
    }
}
