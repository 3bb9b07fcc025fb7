//! The common operations by path, on any view.

use std::path::{Component, Path};

use std::os::unix::ffi::OsStrExt;

use xact_fs::{Attr, Caller, Entry, FileKind, RenameHow, SetAttr, View, WriteHow};
use xact_types::{Errno, Error, Ino, Result};

/// Symbolic links that one path may lead through, as in Linux.
const LINKS_MAX: u32 = 40;
const REGULAR: u16 = 0o100_000;
/// What a file is written in, as large as the kernel's requests at the most.
const PIECE_BYTES: usize = 1 << 20;

/// Operations by path, as the superuser. Paths begin at the volume's root, with or without a
/// leading `/`; symbolic links are followed.
pub trait Files: View {
    /// What a path names. With `follow` a symbolic link at its end is followed too.
    fn find(&self, path: impl AsRef<Path>, follow: bool) -> Result<Attr> {
        let found = walk(self, Ino::ROOT, path.as_ref(), follow, &mut 0)?;
        self.attr(found.ino)
    }

    fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match walk(self, Ino::ROOT, path.as_ref(), true, &mut 0) {
            Ok(_) => Ok(true),
            Err(Error::Posix(Errno::ENOENT)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read_file(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let attr = self.find(path, true)?;
        let mut contents = Vec::new();
        self.read(attr.ino, 0, usize::try_from(attr.size).unwrap_or(usize::MAX), &mut contents)?;
        Ok(contents)
    }

    /// Makes the file or replaces its contents: a piece after the other, since a volume on which snapshots leave
    /// little room takes no more at once than that.
    fn write_file(&self, path: impl AsRef<Path>, contents: &[u8]) -> Result<()> {
        let path = path.as_ref();
        let ino = match walk(self, Ino::ROOT, path, true, &mut 0) {
            Ok(found) => {
                let empty = SetAttr { size: Some(0), ..SetAttr::default() };
                self.set_attr(&Caller::ROOT, found.ino, &empty)?.ino
            }
            Err(Error::Posix(Errno::ENOENT)) => {
                let (dir, name) = parent_and_name(self, path)?;
                self.make_node(&Caller::ROOT, dir, name, REGULAR | 0o644, 0)?.ino
            }
            Err(error) => return Err(error),
        };
        contents
            .chunks(PIECE_BYTES)
            .zip((0..).step_by(PIECE_BYTES))
            .try_for_each(|(piece, offset)| self.write(ino, offset, piece, WriteHow::default()).map(drop))
    }

    fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut dir = Ino::ROOT;
        for name in names(path.as_ref())? {
            let there = walk(self, dir, Path::new(std::ffi::OsStr::from_bytes(name)), true, &mut 0);
            dir = match there {
                Ok(found) if found.kind == FileKind::Directory => found.ino,
                Ok(_) => return Err(Error::Posix(Errno::ENOTDIR)),
                Err(Error::Posix(Errno::ENOENT)) => self.make_dir(&Caller::ROOT, dir, name, 0o755)?.ino,
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let (dir, name) = parent_and_name(self, path.as_ref())?;
        self.unlink(&Caller::ROOT, dir, name)
    }

    fn remove_empty_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let (dir, name) = parent_and_name(self, path.as_ref())?;
        self.remove_dir(&Caller::ROOT, dir, name)
    }

    /// Renames, replacing what is at `to`.
    fn rename_path(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let from = parent_and_name(self, from.as_ref())?;
        let to = parent_and_name(self, to.as_ref())?;
        self.rename(&Caller::ROOT, from, to, RenameHow::Replace)
    }

    /// Names in a directory, without `.` and `..`, in no order.
    fn list_dir(&self, path: impl AsRef<Path>) -> Result<Vec<(Vec<u8>, FileKind)>> {
        let dir = walk(self, Ino::ROOT, path.as_ref(), true, &mut 0)?.ino;
        let mut list = Vec::new();
        self.read_dir(dir, 0, &mut |item| {
            if item.name != b"." && item.name != b".." {
                list.push((item.name.to_vec(), item.kind));
            }
            true
        })?;
        Ok(list)
    }
}

impl<V: View + ?Sized> Files for V {}

/// What a path leads to. Only names are looked at, so a transaction does not come to depend on the
/// attributes of the directories on the way.
fn walk<V: View + ?Sized>(view: &V, from: Ino, path: &Path, follow: bool, links: &mut u32) -> Result<Entry> {
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
            let target = Path::new(std::ffi::OsStr::from_bytes(&target));
            at = walk(view, parent, target, true, links)?;
        }
    }
    Ok(at)
}

fn parent_of<V: View + ?Sized>(view: &V, dir: Ino) -> Result<Ino> {
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

/// The directory that a path's last name is in, and that name.
fn parent_and_name<'p, V: View + ?Sized>(view: &V, path: &'p Path) -> Result<(Ino, &'p [u8])> {
    let name = path.file_name().ok_or(Error::Posix(Errno::EINVAL))?;
    let parent = path.parent().unwrap_or(Path::new(""));
    let dir = walk(view, Ino::ROOT, parent, true, &mut 0)?;
    Ok((dir.ino, name.as_bytes()))
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
