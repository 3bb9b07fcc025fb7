//! The contents of a volume, read through xact or through a mount, in a comparable form.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use xact_fs::{FileKind, View};
use xact_types::{Ino, Timestamp};

/// Bytes of a name or path.
pub type Bytes = Vec<u8>;

/// The contents of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Body {
    File(Arc<Vec<u8>>),
    Symlink(Bytes),
    /// Directories and devices: their contents are other entries, or none.
    None,
}

/// One name with everything that `stat`, `getxattr` and `read` return, except for atime, which
/// reading changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    pub ino: u64,
    pub kind: FileKind,
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    /// For device nodes.
    pub rdev: u64,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
    pub xattrs: BTreeMap<Bytes, Bytes>,
    pub body: Body,
}

/// A whole volume by absolute path ("/", "/a", "/a/b"); `/lost+found` is left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    pub entries: BTreeMap<Bytes, Entry>,
}

/// The deepest nesting of folders: a loop in a damaged volume must end.
const DEPTH_MAX: usize = 200;
/// The most bytes read of one file.
const FILE_MAX: u64 = 1 << 30;

fn join(dir: &[u8], name: &[u8]) -> Bytes {
    let mut path = if dir == b"/" { Vec::new() } else { dir.to_vec() };
    path.push(b'/');
    path.extend_from_slice(name);
    path
}

impl Tree {
    /// A number that differs for different trees.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.entries.hash(&mut hasher);
        hasher.finish()
    }

    /// The tree of a snapshot of these paths: everything below them, and the folders that lead
    /// there, without other names.
    pub fn cut_down(&self, paths: &[&str]) -> Tree {
        let below = |path: &[u8], top: &[u8]| {
            path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || top == b"/")
        };
        let chosen = |path: &[u8]| paths.iter().any(|top| below(path, top.as_bytes()));
        let leads_on = |path: &[u8]| paths.iter().any(|top| below(top.as_bytes(), path));
        let mut cut = Tree::default();
        for (path, entry) in &self.entries {
            if chosen(path) || leads_on(path) {
                cut.entries.insert(path.clone(), entry.clone());
            }
        }
        let mut names: BTreeMap<u64, u32> = BTreeMap::new();
        cut.entries.values().for_each(|entry| *names.entry(entry.ino).or_default() += 1);
        for (path, entry) in &mut cut.entries {
            if entry.kind != FileKind::Directory {
                entry.nlink = names[&entry.ino];
                continue;
            }
            let gone = |other: &&Bytes| {
                let parent = &other[..other.iter().rposition(|&byte| byte == b'/').unwrap_or(0).max(1)];
                parent == &path[..] && other[..] != b"/"[..] && !chosen(other) && !leads_on(other)
            };
            let dirs = self.entries.iter().filter(|(_, other)| other.kind == FileKind::Directory);
            entry.nlink -= dirs.map(|(path, _)| path).filter(gone).count() as u32;
        }
        cut
    }

    /// Walks a view.
    pub fn of_view(view: &dyn View) -> Result<Tree, String> {
        let mut tree = Tree::default();
        tree.visit_view(view, b"/".to_vec(), Ino::ROOT, 0)?;
        Ok(tree)
    }

    fn visit_view(&mut self, view: &dyn View, path: Bytes, ino: Ino, depth: usize) -> Result<(), String> {
        let shown = String::from_utf8_lossy(&path).into_owned();
        let fail = |what: &str, e: xact_types::Error| format!("{what} {shown}: {e}");
        if depth > DEPTH_MAX {
            return Err(format!("{shown}: folders too deep"));
        }
        let attr = view.attr(ino).map_err(|e| fail("stat", e))?;
        let mut xattrs = BTreeMap::new();
        for name in view.list_xattrs(ino).map_err(|e| fail("list attributes of", e))? {
            let value = view.xattr(ino, &name).map_err(|e| fail("attribute of", e))?;
            xattrs.insert(name, value);
        }
        let body = match attr.kind {
            FileKind::Regular => {
                if attr.size > FILE_MAX {
                    return Err(format!("{shown}: absurd size {}", attr.size));
                }
                let mut bytes = Vec::new();
                view.read(ino, 0, attr.size as usize, &mut bytes).map_err(|e| fail("read", e))?;
                if bytes.len() as u64 != attr.size {
                    return Err(format!("{shown}: {} of {} bytes read", bytes.len(), attr.size));
                }
                Body::File(Arc::new(bytes))
            }
            FileKind::Symlink => Body::Symlink(view.read_link(ino).map_err(|e| fail("readlink", e))?),
            _ => Body::None,
        };
        let mut children = Vec::new();
        if attr.is_dir() {
            view.read_dir(ino, 0, &mut |item| {
                if item.name != b"." && item.name != b".." {
                    children.push((item.name.to_vec(), item.ino, item.kind));
                }
                true
            })
            .map_err(|e| fail("list", e))?;
        }
        let entry = Entry {
            ino: attr.ino.0.into(),
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink,
            rdev: attr.rdev,
            mtime: (attr.mtime.secs, attr.mtime.nanos),
            ctime: (attr.ctime.secs, attr.ctime.nanos),
            xattrs,
            body,
        };
        let is_root = path == b"/";
        self.entries.insert(path.clone(), entry);
        for (name, child, kind) in children {
            if is_root && name == b"lost+found" {
                continue;
            }
            let found = view.lookup(ino, &name).map_err(|e| fail("lookup in", e))?;
            if found.ino != child || found.kind != kind {
                return Err(format!("{shown}: listing and lookup disagree on {name:?}"));
            }
            let child_path = join(&path, &name);
            if self.entries.contains_key(&child_path) {
                return Err(format!("{shown}: {name:?} is listed twice"));
            }
            self.visit_view(view, child_path, child, depth + 1)?;
        }
        Ok(())
    }

    /// Walks a mounted volume (or any folder).
    pub fn of_path(root: &Path) -> Result<Tree, String> {
        let mut tree = Tree::default();
        tree.visit_path(root, b"/".to_vec()).map_err(|e| format!("reading {}: {e}", root.display()))?;
        Ok(tree)
    }

    fn visit_path(&mut self, at: &Path, path: Bytes) -> std::io::Result<()> {
        let meta = std::fs::symlink_metadata(at)?;
        let file_type = meta.file_type();
        let kind = if file_type.is_dir() {
            FileKind::Directory
        } else if file_type.is_file() {
            FileKind::Regular
        } else if file_type.is_symlink() {
            FileKind::Symlink
        } else if file_type.is_char_device() {
            FileKind::CharDevice
        } else if file_type.is_block_device() {
            FileKind::BlockDevice
        } else if file_type.is_fifo() {
            FileKind::Fifo
        } else {
            FileKind::Socket
        };
        let body = match kind {
            FileKind::Regular => Body::File(Arc::new(std::fs::read(at)?)),
            FileKind::Symlink => Body::Symlink(std::fs::read_link(at)?.into_os_string().into_vec()),
            _ => Body::None,
        };
        let mut xattrs = BTreeMap::new();
        for name in xattr::list(at)? {
            if let Some(value) = xattr::get(at, &name)? {
                xattrs.insert(name.into_vec(), value);
            }
        }
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let entry = Entry {
            ino: meta.ino(),
            kind,
            perm: (meta.mode() & 0o7777) as u16,
            uid: meta.uid(),
            gid: meta.gid(),
            nlink: meta.nlink() as u32,
            rdev: if is_device { meta.rdev() } else { 0 },
            mtime: (meta.mtime(), meta.mtime_nsec() as u32),
            ctime: (meta.ctime(), meta.ctime_nsec() as u32),
            xattrs,
            body,
        };
        let is_root = path == b"/";
        self.entries.insert(path.clone(), entry);
        if kind == FileKind::Directory {
            for child in std::fs::read_dir(at)? {
                let child = child?;
                let name = child.file_name();
                if !(is_root && name.as_bytes() == b"lost+found") {
                    self.visit_path(&child.path(), join(&path, name.as_bytes()))?;
                }
            }
        }
        Ok(())
    }

    /// The part below `prefix` ("" for all), as a tree of its own.
    pub fn below(&self, prefix: &str) -> Tree {
        if prefix.is_empty() {
            return self.clone();
        }
        let inside = format!("{prefix}/").into_bytes();
        let entries = self.entries.iter().filter_map(|(path, entry)| {
            if path == prefix.as_bytes() {
                Some((b"/".to_vec(), entry.clone()))
            } else {
                path.starts_with(&inside).then(|| (path[prefix.len()..].to_vec(), entry.clone()))
            }
        });
        Tree { entries: entries.collect() }
    }

    /// Takes `other`'s times for files that have a time of `since` (seconds) or later here: the
    /// kernel sets a file's time again (`ext4_truncate`) when it finishes a truncation that a crash
    /// interrupted.
    #[must_use]
    pub fn with_truncations_dated_as(mut self, other: &Tree, since: Timestamp) -> Tree {
        let since = (since.secs, since.nanos);
        for (path, entry) in &mut self.entries {
            let truncated =
                entry.kind == FileKind::Regular && entry.mtime == entry.ctime && entry.mtime >= since;
            if let Some(theirs) = other.entries.get(path).filter(|_| truncated) {
                (entry.mtime, entry.ctime) = (theirs.mtime, theirs.ctime);
            }
        }
        self
    }

    /// The first few differences, as text; empty if there is none.
    pub fn difference(&self, other: &Tree) -> String {
        const SHOWN: usize = 5;
        let mut out = Vec::new();
        for (path, ours) in &self.entries {
            let shown = String::from_utf8_lossy(path);
            match other.entries.get(path) {
                None => out.push(format!("{shown} only in the first")),
                Some(theirs) if ours != theirs => out.push(format!("{shown}: {}", ours.difference(theirs))),
                Some(_) => {}
            }
        }
        for path in other.entries.keys().filter(|p| !self.entries.contains_key(*p)) {
            out.push(format!("{} only in the second", String::from_utf8_lossy(path)));
        }
        let more = out.len().saturating_sub(SHOWN);
        out.truncate(SHOWN);
        if more > 0 {
            out.push(format!("and {more} more"));
        }
        out.join("; ")
    }
}

impl Entry {
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.body {
            Body::File(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn difference(&self, other: &Entry) -> String {
        let mut out = Vec::new();
        macro_rules! field {
            ($($name:ident)*) => {
                $(if self.$name != other.$name {
                    out.push(format!(concat!(stringify!($name), " {:?} and {:?}"), self.$name, other.$name));
                })*
            };
        }
        field!(ino kind perm uid gid nlink rdev mtime ctime xattrs);
        match (self.bytes(), other.bytes()) {
            (Some(a), Some(b)) if a != b => {
                let at = a.iter().zip(b).position(|(x, y)| x != y).unwrap_or(a.len().min(b.len()));
                out.push(format!("contents of {} and {} bytes differ at {at}", a.len(), b.len()));
            }
            _ if self.body != other.body => out.push(format!("{:?} and {:?}", self.body, other.body)),
            _ => {}
        }
        out.join(", ")
    }
}
