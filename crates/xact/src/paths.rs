//! File operations by path, in the style of [`std::fs`].
//!
//! They run as the superuser: permission bits are stored and returned, and not checked. Paths begin
//! at the volume's root, with or without a leading `/`. Symbolic links are followed except where a
//! method says otherwise; a target with a leading `/` begins at the volume's root too.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use xact_fs::{Attr, Caller, Entry, FileKind, RenameHow, SetAttr, View, WriteHow, XattrHow};
use xact_types::{Errno, Error, Ino, Result};

use crate::file::{File, OpenOptions};

/// Symbolic links that one path may lead through, as in Linux.
const LINKS_MAX: u32 = 40;
/// The most bytes that one operation reads or writes: as large as the kernel's largest requests.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// A name in a directory, with the kind of file that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// The last component of the path.
    pub name: OsString,
    /// The kind of the named inode. A symbolic link is not followed.
    pub kind: FileKind,
    /// The named inode.
    pub ino: Ino,
}

/// File operations by path. [`Volume`](crate::Volume) and [`Transaction`](crate::Transaction) have
/// them, and [`Paths`] gives them to any other [`View`].
///
/// The methods are named after the functions of [`std::fs`] and do the same. Each call on a volume
/// is one atomic operation of the file system, except those that say that they take several.
///
/// ```
/// # fn main() -> xact::Result<()> {
/// use xact::PathExt;
/// # let device = std::sync::Arc::new(xact::MemoryDevice::new(64 << 20));
/// # xact::mkfs::mkfs(&*device, &Default::default())?;
/// # let volume = xact::Volume::open(device, &Default::default())?;
/// volume.create_dir_all("/mail/new")?;
/// volume.write("/mail/new/1", "hello")?;
/// volume.rename("/mail/new/1", "/mail/1")?;
/// assert_eq!(volume.read_to_string("/mail/1")?, "hello");
/// assert_eq!(volume.metadata("/mail/1")?.size, 5);
/// # volume.close()
/// # }
/// ```
///
/// # Errors
/// All methods: [`Error::Posix`] with the errno that the system call of the same purpose returns
/// (`ENOENT` for a missing path, `ENOTDIR`, `EEXIST`, `ELOOP` and so on), [`Error::Corrupt`] where
/// the volume is damaged, and [`Error::Io`] where the device fails. Methods that change something:
/// also [`Error::NoSpace`], [`Error::ReadOnly`] and [`Error::Poisoned`]. In a transaction:
/// [`Error::Ended`] after its end, [`Error::TooOld`], and [`Error::Conflict`] where a change meets
/// contents that others have changed since the transaction began.
pub trait PathExt {
    /// The state of the volume that the paths are looked up in.
    fn view(&self) -> Arc<dyn View>;

    /// Opens a file for reading.
    fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Opens a file for writing; creates it, or truncates it to length 0.
    fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// Reads a whole file into memory. Outside of a transaction this takes several operations for a
    /// file of more than 1 MiB, between which others may change it.
    fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let view = self.view();
        let ino = walk(&*view, path.as_ref(), true)?.ino;
        let mut contents = Vec::new();
        loop {
            let before = contents.len();
            view.read(ino, before as u64, PIECE_BYTES, &mut contents)?;
            if contents.len() - before < PIECE_BYTES {
                return Ok(contents);
            }
        }
    }

    /// As [`PathExt::read`], as text. `EILSEQ` where the contents are not UTF-8.
    fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        String::from_utf8(self.read(path)?).map_err(|_| Error::Posix(Errno(libc::EILSEQ)))
    }

    /// Creates a file with these contents, or replaces the contents of an existing one. Takes
    /// several operations: a crash or another reader may meet part of the contents, except in a
    /// transaction. A new file has the permissions `rw-r--r--`.
    fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
        let view = self.view();
        let (ino, is_new) = find_or_create(&*view, path.as_ref(), 0o644)?;
        if !is_new {
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            view.set_attr(&Caller::ROOT, ino, &empty)?;
        }
        write_all(&*view, ino, 0, contents.as_ref())
    }

    /// Copies the contents and permissions of a file to another path, which is created or replaced.
    /// Returns the number of bytes copied. Takes several operations, as [`PathExt::write`].
    fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let perm = self.metadata(from)?.perm;
        let contents = self.read(from)?;
        self.write(to, &contents)?;
        self.set_permissions(to, perm)?;
        Ok(contents.len() as u64)
    }

    /// Attributes of what a path leads to.
    fn metadata(&self, path: impl AsRef<Path>) -> Result<Attr> {
        let view = self.view();
        view.attr(walk(&*view, path.as_ref(), true)?.ino)
    }

    /// As [`PathExt::metadata`], of the symbolic link itself where the path names one.
    fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Attr> {
        let view = self.view();
        view.attr(walk(&*view, path.as_ref(), false)?.ino)
    }

    /// Whether a path leads to a file of any kind. A dangling symbolic link does not.
    fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match walk(&*self.view(), path.as_ref(), true) {
            Ok(_) => Ok(true),
            Err(Error::Posix(Errno::ENOENT)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The names in a directory, without `.` and `..`, in no particular order.
    fn read_dir(&self, path: impl AsRef<Path>) -> Result<Vec<DirEntry>> {
        let view = self.view();
        let dir = walk(&*view, path.as_ref(), true)?.ino;
        let entry = |(name, Entry { kind, ino })| DirEntry { name: OsString::from_vec(name), kind, ino };
        Ok(entries(&*view, dir)?.into_iter().map(entry).collect())
    }

    /// Creates a directory with the permissions `rwxr-xr-x`.
    fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let view = self.view();
        let (dir, name) = parent_and_name(&*view, path.as_ref())?;
        view.make_dir(&Caller::ROOT, dir, name, 0o755).map(drop)
    }

    /// Creates a directory and its missing parents. Does nothing where it exists. `EINVAL` for a
    /// path with `..`.
    fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let view = self.view();
        let mut dir = Ino::ROOT;
        for name in names(path.as_ref())? {
            dir = match walk_from(&*view, dir, Path::new(OsStr::from_bytes(name)), true, &mut 0) {
                Ok(found) if found.kind == FileKind::Directory => found.ino,
                Ok(_) => return Err(Error::Posix(Errno::ENOTDIR)),
                Err(Error::Posix(Errno::ENOENT)) => view.make_dir(&Caller::ROOT, dir, name, 0o755)?.ino,
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    /// Removes a name of a file that is not a directory. The file is deleted with its last name,
    /// once no [`File`] has it open.
    fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let view = self.view();
        let (dir, name) = parent_and_name(&*view, path.as_ref())?;
        view.unlink(&Caller::ROOT, dir, name)
    }

    /// Removes an empty directory.
    fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let view = self.view();
        let (dir, name) = parent_and_name(&*view, path.as_ref())?;
        view.remove_dir(&Caller::ROOT, dir, name)
    }

    /// Removes a directory with everything in it. Symbolic links in it are removed, and not
    /// followed. Takes an operation for each name.
    fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let view = self.view();
        let top = walk(&*view, path, false)?;
        if top.kind != FileKind::Directory {
            return Err(Error::Posix(Errno::ENOTDIR));
        }
        let (parent, name) = parent_and_name(&*view, path)?;
        // By inodes: a path from the root for each name would cost the square of the depth. Each
        // directory is met twice: first its entries are removed, and then the directory itself.
        let mut left = vec![(parent, name.to_vec(), Some(top.ino))];
        while let Some((parent, name, full)) = left.pop() {
            let Some(dir) = full else {
                view.remove_dir(&Caller::ROOT, parent, &name)?;
                continue;
            };
            left.push((parent, name, None));
            for (name, entry) in entries(&*view, dir)? {
                match entry.kind {
                    FileKind::Directory => left.push((dir, name, Some(entry.ino))),
                    _ => view.unlink(&Caller::ROOT, dir, &name)?,
                }
            }
        }
        Ok(())
    }

    /// Renames a file or directory. A file at `to`, or an empty directory, is replaced in the same
    /// operation.
    fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let view = self.view();
        let from = parent_and_name(&*view, from.as_ref())?;
        let to = parent_and_name(&*view, to.as_ref())?;
        view.rename(&Caller::ROOT, from, to, RenameHow::Replace)
    }

    /// Gives a file another name. A symbolic link at the end of `original` is not followed.
    fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let view = self.view();
        let ino = walk(&*view, original.as_ref(), false)?.ino;
        let (dir, name) = parent_and_name(&*view, link.as_ref())?;
        view.link(&Caller::ROOT, ino, dir, name).map(drop)
    }

    /// Creates a symbolic link at `link` with the target `original`, which need not exist.
    fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let view = self.view();
        let (dir, name) = parent_and_name(&*view, link.as_ref())?;
        view.make_symlink(&Caller::ROOT, dir, name, original.as_ref().as_os_str().as_bytes()).map(drop)
    }

    /// The target of a symbolic link. `EINVAL` where the path names something else.
    fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let view = self.view();
        let ino = walk(&*view, path.as_ref(), false)?.ino;
        Ok(OsString::from_vec(view.read_link(ino)?).into())
    }

    /// Sets the permission bits of a file, with set-user-ID, set-group-ID and sticky (`chmod`).
    fn set_permissions(&self, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.set_attr(path, &SetAttr { perm: Some(mode & 0o7777), ..SetAttr::default() })
    }

    /// Sets the owner and the group of a file; `None` leaves one as it is (`chown`). Unlike the
    /// system call it keeps set-user-ID and set-group-ID.
    fn set_owner(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set_attr(path, &SetAttr { uid, gid, ..SetAttr::default() })
    }

    /// Changes several attributes of a file in one operation.
    fn set_attr(&self, path: impl AsRef<Path>, change: &SetAttr) -> Result<()> {
        let view = self.view();
        let ino = walk(&*view, path.as_ref(), true)?.ino;
        view.set_attr(&Caller::ROOT, ino, change).map(drop)
    }

    /// The value of an extended attribute, by its full name (`user.mime_type`). `ENODATA` where the
    /// file has none of this name.
    fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        let view = self.view();
        view.xattr(walk(&*view, path.as_ref(), true)?.ino, name.as_ref().as_bytes())
    }

    /// The full names of a file's extended attributes, in no particular order.
    fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        let view = self.view();
        let names = view.list_xattrs(walk(&*view, path.as_ref(), true)?.ino)?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// Sets an extended attribute; it need not exist.
    fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let view = self.view();
        let ino = walk(&*view, path.as_ref(), true)?.ino;
        view.set_xattr(&Caller::ROOT, ino, name.as_ref().as_bytes(), value.as_ref(), XattrHow::Set)
    }

    /// Removes an extended attribute. `ENODATA` where the file has none of this name.
    fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        let view = self.view();
        let ino = walk(&*view, path.as_ref(), true)?.ino;
        view.remove_xattr(&Caller::ROOT, ino, name.as_ref().as_bytes())
    }
}

/// The operations of [`PathExt`] on a [`View`], such as that of a snapshot.
///
/// A view has operations of its own, by inode number, some under the same names; hence this type.
#[derive(Clone)]
pub struct Paths(Arc<dyn View>);

impl Paths {
    /// Paths are looked up in `view`.
    pub fn of(view: Arc<dyn View>) -> Paths {
        Paths(view)
    }
}

impl PathExt for Paths {
    fn view(&self) -> Arc<dyn View> {
        self.0.clone()
    }
}

/// Makes an empty regular file and returns its inode.
pub(crate) fn create_file(view: &dyn View, path: &Path, perm: u16) -> Result<Ino> {
    let (dir, name) = parent_and_name(view, path)?;
    let mode = FileKind::Regular.mode_bits() | perm & 0o7777;
    Ok(view.make_node(&Caller::ROOT, dir, name, mode, 0)?.ino)
}

/// Writes all of `data`, in pieces: a volume on which snapshots leave little space takes no more at
/// once.
pub(crate) fn write_all(view: &dyn View, ino: Ino, mut offset: u64, mut data: &[u8]) -> Result<()> {
    while !data.is_empty() {
        let piece = &data[..data.len().min(PIECE_BYTES)];
        let written = view.write(ino, offset, piece, WriteHow::default())?;
        offset = written.end();
        data = &data[written.len..];
    }
    Ok(())
}

/// The inode of a file, and whether this call has made it. `EEXIST` for a dangling symbolic link.
pub(crate) fn find_or_create(view: &dyn View, path: &Path, perm: u16) -> Result<(Ino, bool)> {
    match walk(view, path, true) {
        Ok(found) => return Ok((found.ino, false)),
        Err(Error::Posix(Errno::ENOENT)) => {}
        Err(error) => return Err(error),
    }
    match create_file(view, path, perm) {
        Ok(ino) => Ok((ino, true)),
        // Another thread came first, or it is a symbolic link to nothing.
        Err(exists @ Error::Posix(Errno::EEXIST)) => match walk(view, path, true) {
            Ok(found) => Ok((found.ino, false)),
            Err(_) => Err(exists),
        },
        Err(error) => Err(error),
    }
}

/// The inode that a path leads to. Only names are looked at, so a transaction does not depend on
/// the attributes of the directories on the way. With `follow` a symbolic link at the end is
/// followed too.
pub(crate) fn walk(view: &dyn View, path: &Path, follow: bool) -> Result<Entry> {
    walk_from(view, Ino::ROOT, path, follow, &mut 0)
}

fn walk_from(view: &dyn View, from: Ino, path: &Path, follow: bool, links: &mut u32) -> Result<Entry> {
    const ROOT: Entry = Entry { ino: Ino::ROOT, kind: FileKind::Directory };
    let mut at = Entry { ino: from, kind: FileKind::Directory };
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        let parent = at.ino;
        at = match part {
            Component::RootDir | Component::Prefix(_) => ROOT,
            Component::CurDir => at,
            Component::ParentDir => Entry { ino: parent_of(view, at.ino)?, kind: FileKind::Directory },
            Component::Normal(name) => view.resolve(at.ino, name.as_bytes())?,
        };
        if at.kind == FileKind::Symlink && (follow || parts.peek().is_some()) {
            *links += 1;
            if *links > LINKS_MAX {
                return Err(Error::Posix(Errno::ELOOP));
            }
            let target = view.read_link(at.ino)?;
            let target = Path::new(OsStr::from_bytes(&target));
            at = walk_from(view, parent, target, true, links)?;
        }
    }
    Ok(at)
}

/// The entries of a directory, without `.` and `..`.
fn entries(view: &dyn View, dir: Ino) -> Result<Vec<(Vec<u8>, Entry)>> {
    let mut list = Vec::new();
    view.read_dir(dir, 0, &mut |item| {
        if item.name != b"." && item.name != b".." {
            list.push((item.name.to_vec(), Entry { ino: item.ino, kind: item.kind }));
        }
        true
    })?;
    Ok(list)
}

fn parent_of(view: &dyn View, dir: Ino) -> Result<Ino> {
    let mut parent = Ino::ROOT;
    // Stops at `..`, so that this does not count as a listing of the directory.
    view.read_dir(dir, 0, &mut |item| {
        if item.name == b".." {
            parent = item.ino;
        }
        item.name == b"."
    })?;
    Ok(parent)
}

/// The directory of a path's last name, and that name. `EINVAL` for a path that ends in `..` and
/// for the root.
fn parent_and_name<'p>(view: &dyn View, path: &'p Path) -> Result<(Ino, &'p [u8])> {
    let name = path.file_name().ok_or(Error::Posix(Errno::EINVAL))?;
    let parent = path.parent().unwrap_or(Path::new(""));
    Ok((walk(view, parent, true)?.ino, name.as_bytes()))
}

/// The names of a path without `..`.
fn names(path: &Path) -> Result<Vec<&[u8]>> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name.as_bytes()),
            Component::ParentDir => return Err(Error::Posix(Errno::EINVAL)),
            _ => {}
        }
    }
    Ok(names)
}
