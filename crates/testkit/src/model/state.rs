//! A file system of maps: the meaning of the operations in its simplest form.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use xact_fs::{FileKind, RenameHow};
use xact_types::Errno;

use crate::tree::{Body, Tree};

use super::op::Op;
use super::stamp;

/// The model's own number of a file: never reused, unlike inode numbers.
pub type Id = u32;

pub const ROOT: Id = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Dir(BTreeMap<Vec<u8>, Id>),
    File(Arc<Vec<u8>>),
    Symlink(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub content: Content,
}

impl Node {
    fn new(perm: u16, content: Content) -> Node {
        Node { perm, uid: 0, gid: 0, xattrs: BTreeMap::new(), content }
    }

    pub fn kind(&self) -> FileKind {
        match self.content {
            Content::Dir(_) => FileKind::Directory,
            Content::File(_) => FileKind::Regular,
            Content::Symlink(_) => FileKind::Symlink,
        }
    }

    pub fn file(&self) -> Option<&Arc<Vec<u8>>> {
        match &self.content {
            Content::File(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// One state of the whole. Copies share their common parts.
#[derive(Debug, Clone)]
pub struct State {
    nodes: BTreeMap<Id, Arc<Node>>,
    next: Id,
}

fn split(path: &str) -> (&str, &[u8]) {
    let (dir, name) = path.rsplit_once('/').expect("absolute path");
    (dir, name.as_bytes())
}

impl State {
    /// An empty root. New files get numbers from `next` on.
    pub fn new(next: Id) -> State {
        assert!(next > ROOT, "the root has number {ROOT}");
        let root = Node::new(0o755, Content::Dir(BTreeMap::new()));
        State { nodes: BTreeMap::from([(ROOT, Arc::new(root))]), next }
    }

    /// Takes the contents of `tree`, which has no hard links.
    pub fn adopt(&mut self, tree: &Tree) {
        for (path, entry) in &tree.entries {
            let content = match &entry.body {
                Body::File(bytes) => Content::File(bytes.clone()),
                Body::Symlink(target) => Content::Symlink(String::from_utf8_lossy(target).into_owned()),
                Body::None => Content::Dir(BTreeMap::new()),
            };
            let mut node = Node::new(entry.perm, content);
            (node.uid, node.gid) = (entry.uid, entry.gid);
            node.xattrs = entry.xattrs.clone();
            if path == b"/" {
                self.nodes.insert(ROOT, Arc::new(node));
                continue;
            }
            let path = std::str::from_utf8(path).expect("names of tests are text");
            let (dir, name) = split(path);
            let dir = self.resolve(dir).expect("a folder comes before what is in it");
            let id = self.next;
            self.next += 1;
            self.nodes.insert(id, Arc::new(node));
            let Content::Dir(names) =
                &mut Arc::make_mut(self.nodes.get_mut(&dir).expect("it was resolved")).content
            else {
                panic!("{path}: not below a folder");
            };
            names.insert(name.to_vec(), id);
        }
    }

    pub fn node(&self, id: Id) -> Option<&Node> {
        self.nodes.get(&id).map(|n| &**n)
    }

    /// The files, each with its contents.
    pub fn files(&self) -> impl Iterator<Item = (Id, &Arc<Vec<u8>>)> {
        self.nodes.iter().filter_map(|(&id, node)| Some((id, node.file()?)))
    }

    /// Whether `op`, done now, renames `id` over another file.
    pub fn is_replaced_by(&self, op: &Op, id: Id) -> bool {
        let Op::Rename { from, to, how: RenameHow::Replace } = op else { return false };
        self.resolve(from) == Ok(id) && self.resolve(to).is_ok_and(|old| old != id)
    }

    pub fn resolve(&self, path: &str) -> Result<Id, Errno> {
        let mut id = ROOT;
        for name in path.split('/').filter(|n| !n.is_empty()) {
            let Content::Dir(names) = &self.nodes[&id].content else { return Err(Errno::ENOTDIR) };
            id = *names.get(name.as_bytes()).ok_or(Errno::ENOENT)?;
        }
        Ok(id)
    }

    /// Whether the two are equal.
    pub fn same(&self, other: &State) -> bool {
        self.nodes == other.nodes
    }

    /// Every name but the root's: path, id.
    pub fn paths(&self) -> Vec<(Vec<u8>, Id)> {
        let mut out = Vec::new();
        let mut todo = vec![(Vec::new(), ROOT)];
        while let Some((path, id)) = todo.pop() {
            let Content::Dir(names) = &self.nodes[&id].content else { continue };
            for (name, child) in names {
                let mut path = path.clone();
                path.push(b'/');
                path.extend_from_slice(name);
                out.push((path.clone(), *child));
                todo.push((path, *child));
            }
        }
        out
    }

    /// The link counts that `stat` should show.
    pub fn all_links(&self) -> HashMap<Id, u32> {
        let mut links: HashMap<Id, u32> = HashMap::new();
        for (&dir, node) in &self.nodes {
            let Content::Dir(names) = &node.content else { continue };
            *links.entry(dir).or_default() += 2;
            for child in names.values() {
                let is_dir = self.nodes[child].kind() == FileKind::Directory;
                *links.entry(if is_dir { dir } else { *child }).or_default() += 1;
            }
        }
        links
    }

    pub fn links(&self, id: Id) -> u32 {
        self.all_links().get(&id).copied().unwrap_or(0)
    }

    /// Applies `op`, and returns the files and folders whose inodes it changed. On an error nothing
    /// is changed.
    pub fn apply(&mut self, op: &Op) -> Result<Vec<Id>, Errno> {
        let mut next = self.clone();
        let changed = next.perform(op)?;
        *self = next;
        Ok(changed)
    }

    fn perform(&mut self, op: &Op) -> Result<Vec<Id>, Errno> {
        match op {
            Op::Create { path, perm } => self.make(path, Node::new(*perm, Content::File(Arc::default()))),
            Op::Mkdir { path, perm } => self.make(path, Node::new(*perm, Content::Dir(BTreeMap::new()))),
            Op::Symlink { path, target } => {
                self.make(path, Node::new(0o777, Content::Symlink(target.clone())))
            }
            Op::Link { from, to } => {
                let id = self.resolve(from)?;
                if self.nodes[&id].kind() == FileKind::Directory {
                    return Err(Errno::EPERM);
                }
                let dir = self.enter(to, id)?;
                Ok(vec![id, dir])
            }
            Op::Unlink { path } => {
                let id = self.resolve(path)?;
                if self.nodes[&id].kind() == FileKind::Directory {
                    return Err(Errno::EISDIR);
                }
                let dir = self.leave(path)?;
                self.collect(id);
                Ok(vec![id, dir])
            }
            Op::Rmdir { path } => {
                let id = self.resolve(path)?;
                match &self.nodes[&id].content {
                    Content::Dir(names) if names.is_empty() => {}
                    Content::Dir(_) => return Err(Errno::ENOTEMPTY),
                    _ => return Err(Errno::ENOTDIR),
                }
                let dir = self.leave(path)?;
                self.nodes.remove(&id);
                Ok(vec![id, dir])
            }
            Op::Rename { from, to, how } => self.rename(from, to, *how),
            Op::Commit { ops, .. } => {
                let mut changed = Vec::new();
                for op in ops {
                    changed.extend(self.perform(op)?);
                }
                changed.sort();
                changed.dedup();
                Ok(changed)
            }
            Op::Fsync { path } | Op::Fdatasync { path } => self.resolve(path).map(|_| Vec::new()),
            Op::Sync => Ok(Vec::new()),
            _ => self.change(op),
        }
    }

    /// Operations on one inode.
    fn change(&mut self, op: &Op) -> Result<Vec<Id>, Errno> {
        let id = self.resolve(op.path().expect("operations on one inode have a path"))?;
        let node = Arc::make_mut(self.nodes.get_mut(&id).expect("resolved"));
        match op {
            Op::Chmod { perm, .. } => node.perm = *perm,
            Op::Chown { uid, gid, .. } => (node.uid, node.gid) = (*uid, *gid),
            // User attributes exist on files and folders only.
            Op::SetXattr { .. } if node.kind() == FileKind::Symlink => return Err(Errno::EPERM),
            Op::SetXattr { name, value, .. } => {
                node.xattrs.insert(name.clone().into_bytes(), value.clone());
            }
            Op::Journal { .. } => {}
            Op::RemoveXattr { name, .. } => {
                node.xattrs.remove(name.as_bytes()).ok_or(Errno::ENODATA)?;
            }
            _ => {
                let Content::File(bytes) = &mut node.content else { return Err(Errno::EISDIR) };
                edit(Arc::make_mut(bytes), id, op);
            }
        }
        Ok(vec![id])
    }

    fn make(&mut self, path: &str, node: Node) -> Result<Vec<Id>, Errno> {
        let id = self.next;
        let dir = self.enter(path, id)?;
        self.nodes.insert(id, Arc::new(node));
        self.next += 1;
        Ok(vec![id, dir])
    }

    fn names(&mut self, dir: Id) -> Result<&mut BTreeMap<Vec<u8>, Id>, Errno> {
        match &mut Arc::make_mut(self.nodes.get_mut(&dir).ok_or(Errno::ENOENT)?).content {
            Content::Dir(names) => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn enter(&mut self, path: &str, id: Id) -> Result<Id, Errno> {
        let (dir, name) = split(path);
        let dir = self.resolve(dir)?;
        let names = self.names(dir)?;
        if names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        names.insert(name.to_vec(), id);
        Ok(dir)
    }

    fn leave(&mut self, path: &str) -> Result<Id, Errno> {
        let (dir, name) = split(path);
        let dir = self.resolve(dir)?;
        self.names(dir)?.remove(name).ok_or(Errno::ENOENT)?;
        Ok(dir)
    }

    /// Drops a file that lost its last name.
    fn collect(&mut self, id: Id) {
        if self.links(id) == 0 {
            self.nodes.remove(&id);
        }
    }

    fn rename(&mut self, from: &str, to: &str, how: RenameHow) -> Result<Vec<Id>, Errno> {
        let id = self.resolve(from)?;
        let old = self.resolve(to).ok();
        let is_dir = |state: &State, id| state.nodes[&id].kind() == FileKind::Directory;
        if is_dir(self, id) && to.starts_with(&format!("{from}/")) {
            return Err(Errno::EINVAL);
        }
        if how == RenameHow::Exchange {
            let old = old.ok_or(Errno::ENOENT)?;
            if old == id {
                return Ok(Vec::new());
            }
            let (a, b) = (self.leave(from)?, self.leave(to)?);
            self.enter(from, old)?;
            self.enter(to, id)?;
            return Ok(vec![id, old, a, b]);
        }
        if let Some(old) = old {
            if how == RenameHow::NoReplace {
                return Err(Errno::EEXIST);
            }
            if old == id {
                return Ok(Vec::new());
            }
            match (is_dir(self, id), &self.nodes[&old].content) {
                (true, Content::Dir(names)) if !names.is_empty() => return Err(Errno::ENOTEMPTY),
                (true, Content::Dir(_)) => {}
                (true, _) => return Err(Errno::ENOTDIR),
                (false, Content::Dir(_)) => return Err(Errno::EISDIR),
                (false, _) => {}
            }
            self.leave(to)?;
        }
        let from_dir = self.leave(from)?;
        let to_dir = self.enter(to, id)?;
        let mut changed = vec![id, from_dir, to_dir];
        if let Some(old) = old {
            changed.push(old);
            if is_dir(self, old) {
                self.nodes.remove(&old);
            } else {
                self.collect(old);
            }
        }
        Ok(changed)
    }
}

/// Applies an operation on the inside of a file to its bytes.
pub fn edit(bytes: &mut Vec<u8>, id: Id, op: &Op) {
    match op {
        Op::Truncate { size, .. } => bytes.resize(*size as usize, 0),
        Op::Write { offset, len, generation, .. } => {
            let end = (offset + len) as usize;
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*offset as usize..end].copy_from_slice(&stamp::bytes(id, *generation, *offset, *len));
        }
        Op::ZeroRange { offset, len, keep_size, .. } => {
            let end = (offset + len) as usize;
            if !keep_size && bytes.len() < end {
                bytes.resize(end, 0);
            }
            let end = bytes.len().min(end);
            let start = end.min(*offset as usize);
            bytes[start..end].fill(0);
        }
        Op::Punch { offset, len, .. } => {
            let end = bytes.len().min((offset + len) as usize);
            let start = end.min(*offset as usize);
            bytes[start..end].fill(0);
        }
        Op::Reserve { offset, len, keep_size, .. } => {
            let end = (offset + len) as usize;
            if !keep_size && bytes.len() < end {
                bytes.resize(end, 0);
            }
        }
        _ => unreachable!("{op} does not change what is inside a file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ops: &[Op]) -> State {
        let mut state = State::new(2);
        for op in ops {
            state.apply(op).unwrap_or_else(|e| panic!("{op}: {e}"));
        }
        state
    }

    fn create(path: &str) -> Op {
        Op::Create { path: path.into(), perm: 0o644 }
    }

    fn mkdir(path: &str) -> Op {
        Op::Mkdir { path: path.into(), perm: 0o755 }
    }

    fn rename(from: &str, to: &str, how: RenameHow) -> Op {
        Op::Rename { from: from.into(), to: to.into(), how }
    }

    #[test]
    fn links_and_renames() {
        let mut state = all(&[
            mkdir("/d"),
            create("/d/a"),
            Op::Link { from: "/d/a".into(), to: "/b".into() },
            create("/c"),
            rename("/c", "/b", RenameHow::Replace),
        ]);
        let a = state.resolve("/d/a").unwrap();
        assert_eq!(state.links(a), 1);
        assert_eq!(state.links(ROOT), 3);
        assert_eq!(state.apply(&rename("/d", "/d/e", RenameHow::Replace)), Err(Errno::EINVAL));
        assert_eq!(state.apply(&rename("/d", "/b", RenameHow::Replace)), Err(Errno::ENOTDIR));
        assert_eq!(state.apply(&rename("/b", "/d/a", RenameHow::NoReplace)), Err(Errno::EEXIST));
        state.apply(&rename("/b", "/d", RenameHow::Exchange)).unwrap();
        assert_eq!(state.resolve("/b/a"), Ok(a));
        assert_eq!(state.apply(&Op::Rmdir { path: "/b".into() }), Err(Errno::ENOTEMPTY));
        state.apply(&Op::Unlink { path: "/b/a".into() }).unwrap();
        assert!(state.node(a).is_none());
    }

    #[test]
    fn copies_keep_their_contents() {
        let mut state =
            all(&[create("/f"), Op::Write { path: "/f".into(), offset: 100, len: 50, generation: 1 }]);
        let before = state.clone();
        state.apply(&Op::Truncate { path: "/f".into(), size: 120 }).unwrap();
        state.apply(&Op::Truncate { path: "/f".into(), size: 200 }).unwrap();
        let id = state.resolve("/f").unwrap();
        let bytes = state.node(id).unwrap().file().unwrap();
        assert_eq!(bytes.len(), 200);
        assert!(bytes[120..].iter().all(|&b| b == 0));
        assert_eq!(before.node(id).unwrap().file().unwrap()[100..], stamp::bytes(id, 1, 100, 50));
    }
}
