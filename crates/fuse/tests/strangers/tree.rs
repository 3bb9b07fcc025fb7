//! A folder with everything below it, as root sees it: to be compared, copied and removed.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::process::{flags_of, get_xattr, mode_of};

/// Flags that users can set (immutable, append-only, and less important ones).
pub const FLAGS: u32 = 0x10 | 0x20 | 0x8 | 0x40 | 0x80;
const XATTRS: [&str; 4] = ["system.posix_acl_access", "system.posix_acl_default", "user.a", "user.b"];

/// The inode at a path, without times and folders' sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub mode: u32,
    /// The mode with the setgid bit that [`mode_of`] leaves out, for copies.
    full_mode: u32,
    pub uid: u32,
    pub gid: u32,
    links: u64,
    flags: u32,
    xattrs: Vec<(&'static str, Vec<u8>)>,
    /// Contents of a file, target of a link.
    pub bytes: Vec<u8>,
    /// The first path with this inode.
    same_as: String,
}

impl Entry {
    pub fn is_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    fn is_same(&self, other: &Entry) -> bool {
        *self == Entry { full_mode: self.full_mode, ..other.clone() }
    }

    fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

pub type Tree = BTreeMap<String, Entry>;

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)
}

fn c(path: &Path) -> std::ffi::CString {
    std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap()
}

pub fn read(root: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    let mut inodes = HashMap::new();
    let mut todo = vec![String::new()];
    while let Some(path) = todo.pop() {
        let at = root.join(&path);
        let meta = fs::symlink_metadata(&at)?;
        let kind = meta.file_type();
        let mut xattrs = Vec::new();
        for name in XATTRS.into_iter().filter(|_| !kind.is_symlink()) {
            match get_xattr(&c(&at), &std::ffi::CString::new(name).unwrap()) {
                Ok(value) => xattrs.push((name, value)),
                Err(e) if e.raw_os_error() == Some(libc::ENODATA) => {}
                Err(e) => return Err(e),
            }
        }
        let (mut flags, mut bytes) = (0, Vec::new());
        if kind.is_file() {
            let file = open(&at)?;
            flags = flags_of(&file)? & FLAGS;
            bytes = fs::read(&at)?;
        } else if kind.is_symlink() {
            bytes = fs::read_link(&at)?.as_os_str().as_bytes().to_vec();
        } else if kind.is_dir() {
            flags = flags_of(&open(&at)?)? & FLAGS;
            for entry in fs::read_dir(&at)? {
                let name = entry?.file_name().into_string().unwrap();
                todo.push(if path.is_empty() { name } else { format!("{path}/{name}") });
            }
        }
        let first = inodes.entry(meta.ino()).or_insert_with(|| path.clone());
        let entry = Entry {
            mode: mode_of(&meta),
            full_mode: meta.mode(),
            uid: meta.uid(),
            gid: meta.gid(),
            links: if kind.is_dir() { 0 } else { meta.nlink() },
            flags,
            xattrs,
            bytes,
            same_as: first.clone(),
        };
        tree.insert(path, entry);
    }
    // The first path of an inode differs from one file system to the other.
    let mut firsts: HashMap<String, String> = HashMap::new();
    for (path, entry) in &tree {
        firsts.entry(entry.same_as.clone()).or_insert_with(|| path.clone());
    }
    for entry in tree.values_mut() {
        entry.same_as = firsts[&entry.same_as].clone();
    }
    Ok(tree)
}

/// A path with a tag in it.
pub fn path_with(tree: &Tree, tag: u64) -> Option<&String> {
    tree.iter().find(|(_, entry)| crate::tag::all(&entry.bytes).contains(&tag)).map(|(path, _)| path)
}

/// The paths below a folder.
pub fn paths(root: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let mut todo = vec![String::new()];
    while let Some(path) = todo.pop() {
        for entry in fs::read_dir(root.join(&path)).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let below = if path.is_empty() { name } else { format!("{path}/{name}") };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                todo.push(below.clone());
            }
            paths.push(below);
        }
    }
    paths.sort();
    paths
}

/// The first difference.
pub fn difference(ours: &Tree, kernels: &Tree) -> Option<String> {
    for (path, entry) in ours {
        match kernels.get(path) {
            None => return Some(format!("{path} exists, and not on the kernel's ext4")),
            Some(other) if !entry.is_same(other) => {
                return Some(format!("{path} is {}, on the kernel's ext4 {}", text(entry), text(other)));
            }
            Some(_) => {}
        }
    }
    kernels.keys().find(|path| !ours.contains_key(*path)).map(|path| format!("{path} is not there"))
}

fn text(entry: &Entry) -> String {
    let Entry { mode, uid, gid, links, flags, xattrs, bytes, same_as, .. } = entry;
    let xattrs: Vec<String> = xattrs.iter().map(|(n, v)| format!("{n}={}", hex(v))).collect();
    let tags = crate::tag::all(bytes);
    format!(
        "{mode:o} {uid}:{gid} links {links} flags {flags:#x} {xattrs:?} {} bytes ({} of them 0) {tags:?} as {same_as}",
        bytes.len(),
        bytes.iter().filter(|&&b| b == 0).count()
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Removes everything in a folder, whatever its flags.
pub fn clear(root: &Path) -> io::Result<()> {
    let mut todo = vec![root.to_owned()];
    let mut dirs = Vec::new();
    while let Some(dir) = todo.pop() {
        set_flags(&dir, 0)?;
        for entry in fs::read_dir(&dir)? {
            let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type()))?;
            let kind = kind?;
            if kind.is_dir() {
                todo.push(path);
                continue;
            }
            if kind.is_file() {
                set_flags(&path, 0)?;
            }
            fs::remove_file(path)?;
        }
        dirs.push(dir);
    }
    dirs.iter().skip(1).rev().try_for_each(fs::remove_dir)
}

fn set_flags(path: &Path, flags: u32) -> io::Result<()> {
    let file = open(path)?;
    let was = flags_of(&file)?;
    if was & FLAGS == flags {
        return Ok(());
    }
    let flags = libc::c_long::from((was & !FLAGS | flags) as i32);
    // SAFETY: the ioctl reads a number.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a folder equal to a tree.
pub fn write(tree: &Tree, root: &Path) -> io::Result<()> {
    clear(root)?;
    for (path, entry) in tree.iter().filter(|(path, _)| !path.is_empty()) {
        let at = root.join(path);
        if entry.same_as != *path {
            fs::hard_link(root.join(&entry.same_as), &at)?;
            continue;
        }
        match entry.mode & libc::S_IFMT {
            libc::S_IFDIR => fs::create_dir(&at)?,
            libc::S_IFLNK => std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(&entry.bytes), &at)?,
            libc::S_IFIFO => {
                // SAFETY: a C string.
                if unsafe { libc::mkfifo(c(&at).as_ptr(), 0o600) } < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            _ => fs::write(&at, &entry.bytes)?,
        }
        std::os::unix::fs::lchown(&at, Some(entry.uid), Some(entry.gid))?;
        if fs::symlink_metadata(&at)?.file_type().is_symlink() {
            continue;
        }
        // It has inherited one from a default ACL above.
        for name in XATTRS {
            let name = std::ffi::CString::new(name).unwrap();
            // SAFETY: C strings; there may be nothing to remove.
            unsafe { libc::lremovexattr(c(&at).as_ptr(), name.as_ptr()) };
        }
        fs::set_permissions(&at, Permissions::from_mode(entry.full_mode & 0o7777))?;
        for (name, value) in &entry.xattrs {
            let (path, name) = (c(&at), std::ffi::CString::new(*name).unwrap());
            // SAFETY: C strings, and the number of bytes given.
            let set = unsafe {
                libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
            };
            if set < 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    for (path, entry) in tree.iter().filter(|(_, entry)| entry.flags != 0) {
        let at = root.join(path);
        debug_assert!(entry.is_dir() || !at.metadata()?.file_type().is_fifo());
        set_flags(&at, entry.flags)?;
    }
    Ok(())
}
