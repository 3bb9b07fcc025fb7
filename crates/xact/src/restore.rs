//! Files and folders of a mount become what a snapshot has.
//!
//! The snapshot and the view of a transaction are folders of the mount (`.xact`). [`Restore`] reads
//! the first and writes the second. The caller commits the transaction, so other processes see all
//! of the restored files or none, a crash leaves all or none, and a concurrent change of the same
//! files is a conflict.
//!
//! A file that is unchanged (the same inode, not changed since) is skipped. A folder keeps its
//! inode, and its time of modification, which in a transaction never goes back
//! (`txn/src/commit/mod.rs`). A file that differs is replaced: a process that has it open keeps the
//! old contents, as after unlink.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::selection::from_root;
use crate::sparse::copy_sparse;

/// The reason why files were not restored. The transaction must be aborted then.
#[derive(Debug)]
#[non_exhaustive]
pub enum RestoreError {
    /// A path that was asked for is not a path of a volume.
    Usage(crate::Error),
    /// The snapshot has no such path, counted from the volume's root.
    NotInSnapshot(PathBuf),
    /// The snapshot has a folder at this path, and the volume has something else now.
    NotAFolder(PathBuf),
    /// The snapshot was deleted while it was read.
    SnapshotDeleted,
    /// A call on a path of the mount failed.
    Io {
        /// The path that the call was for.
        path: PathBuf,
        /// The error of the call.
        source: io::Error,
    },
}

/// The result of restoring.
pub type RestoreResult<T> = Result<T, RestoreError>;

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Usage(error) => error.fmt(f),
            RestoreError::NotInSnapshot(path) => write!(f, "the snapshot has no /{}", path.display()),
            RestoreError::NotAFolder(path) => {
                write!(f, "/{} is no longer a folder: restore that first", path.display())
            }
            RestoreError::SnapshotDeleted => {
                f.write_str("the snapshot was deleted concurrently: nothing was changed")
            }
            RestoreError::Io { path, source } => write!(f, "cannot restore {}: {source}", path.display()),
        }
    }
}

impl std::error::Error for RestoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RestoreError::Usage(error) => Some(error),
            RestoreError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The paths to restore: those that are asked for, limited to what a snapshot has. `chosen` are the
/// snapshot's paths, none for one of the volume. No `paths` means all that the snapshot has. Of a
/// snapshot of chosen paths nothing else can be restored: it lacks the other names in the folders
/// that lead there.
///
/// # Errors
/// [`RestoreError::Usage`]; [`RestoreError::NotInSnapshot`].
pub fn paths_to_restore(paths: &[PathBuf], chosen: &[PathBuf]) -> RestoreResult<Vec<PathBuf>> {
    if paths.is_empty() {
        return Ok(if chosen.is_empty() { vec![PathBuf::new()] } else { chosen.to_vec() });
    }
    let mut found = Vec::new();
    for path in paths {
        let path = from_root(path).map_err(RestoreError::Usage)?;
        if chosen.is_empty() || chosen.iter().any(|top| path.starts_with(top)) {
            found.push(path);
            continue;
        }
        // A folder on the way to chosen paths: the chosen paths in it.
        let before = found.len();
        found.extend(chosen.iter().filter(|top| top.starts_with(&path)).cloned());
        if found.len() == before {
            return Err(RestoreError::NotInSnapshot(path));
        }
    }
    Ok(found)
}

/// A snapshot that is written back to the view of a transaction.
pub struct Restore {
    /// The snapshot's root, and that of the view that becomes like it.
    past: PathBuf,
    now: PathBuf,
    /// Time at which the snapshot was created, in seconds since 1970.
    created: i64,
    /// The first restored name of each file with several names, by inode number in the snapshot.
    links: HashMap<u64, PathBuf>,
}

impl Restore {
    /// Restores from the snapshot at the folder `past`, which was `created` at this time (seconds
    /// since 1970), to the view at the folder `now`.
    pub fn new(past: PathBuf, now: PathBuf, created: i64) -> Restore {
        Restore { past, now, created, links: HashMap::new() }
    }

    /// Restores one path ([`paths_to_restore`]) with everything below it, and creates the folders
    /// that lead to it.
    ///
    /// # Errors
    /// Those of [`RestoreError`]; `Usage` for a path with `..`. Part of the path may be restored
    /// then.
    pub fn restore(&mut self, path: &Path) -> RestoreResult<()> {
        // An absolute path would lead out of the view.
        let path = &*from_root(path).map_err(RestoreError::Usage)?;
        // A symbolic link on the way would lead elsewhere, even out of the view.
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        for folder in above {
            let (past, now) = (self.past.join(folder), self.now.join(folder));
            let old = status(&past)?
                .filter(Metadata::is_dir)
                .ok_or_else(|| RestoreError::NotInSnapshot(path.to_path_buf()))?;
            match status(&now)? {
                Some(found) if found.is_dir() => {}
                Some(_) => return Err(RestoreError::NotAFolder(folder.to_path_buf())),
                None => {
                    fs::create_dir(&now).map_err(failed(&now))?;
                    attributes(&past, &old, &now).map_err(failed(&now))?;
                }
            }
        }
        let (past, now) = (self.past.join(path), self.now.join(path));
        let old = status(&past)?.ok_or_else(|| RestoreError::NotInSnapshot(path.to_path_buf()))?;
        self.entry(&past, &old, &now)
    }

    fn entry(&mut self, past: &Path, old: &Metadata, now: &Path) -> RestoreResult<()> {
        let new = status(now)?;
        if old.is_dir() {
            return self.folder(past, old, now, new.as_ref());
        }
        if let Some(new) = &new
            && is_unchanged(old, new, self.created)
        {
            self.links.entry(old.ino()).or_insert_with(|| now.to_path_buf());
            return Ok(());
        }
        if new.is_some() {
            remove(now).map_err(failed(now))?;
        }
        if let Some(first) = self.links.get(&old.ino()) {
            return fs::hard_link(first, now).map_err(failed(now));
        }
        make(past, old, now)
            .and_then(|()| attributes(past, old, now))
            .and_then(|()| times(old, now))
            .map_err(failed(now))?;
        if old.nlink() > 1 {
            self.links.insert(old.ino(), now.to_path_buf());
        }
        Ok(())
    }

    fn folder(
        &mut self,
        past: &Path,
        old: &Metadata,
        now: &Path,
        new: Option<&Metadata>,
    ) -> RestoreResult<()> {
        let stays = new.is_some_and(Metadata::is_dir);
        if !stays {
            if new.is_some() {
                remove(now).map_err(failed(now))?;
            }
            fs::create_dir(now).map_err(failed(now))?;
        }
        let names = names(past).map_err(failed(past))?;
        for name in self::names(now).map_err(failed(now))?.difference(&names) {
            let later = now.join(name);
            remove(&later).map_err(failed(&later))?;
        }
        for name in &names {
            let past = past.join(name);
            let old = status(&past)?.ok_or(RestoreError::SnapshotDeleted)?;
            self.entry(&past, &old, &now.join(name))?;
        }
        attributes(past, old, now).map_err(failed(now))?;
        if stays { Ok(()) } else { times(old, now).map_err(failed(now)) }
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> RestoreError + '_ {
    move |source| RestoreError::Io { path: path.to_path_buf(), source }
}

/// `None` if the path does not exist. Links are not followed.
fn status(path: &Path) -> RestoreResult<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(path)(e)),
    }
}

/// Whether a file is the same as in a snapshot, unchanged since its creation. The lower half of the
/// inode numbers that a mount shows is the inode's; the upper half distinguishes snapshots and
/// views. Two changes within some milliseconds may have the same time, so a file whose last change
/// was around the second of the snapshot may have changed.
fn is_unchanged(old: &Metadata, new: &Metadata, created: i64) -> bool {
    let of = |file: &Metadata| (file.ino() as u32, file.mode(), file.size(), file.ctime(), file.ctime_nsec());
    of(old) == of(new) && old.ctime() < created.saturating_sub(1)
}

fn names(folder: &Path) -> io::Result<BTreeSet<OsString>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
}

fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Makes a new file of the same kind, with its contents.
fn make(past: &Path, old: &Metadata, now: &Path) -> io::Result<()> {
    let kind = old.file_type();
    if kind.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(past)?, now);
    }
    if kind.is_file() {
        let (from, to) = (File::open(past)?, File::create_new(now)?);
        to.set_len(old.size())?;
        return copy_sparse(&from, &to, old.size(), &mut |_| ());
    }
    let special = if kind.is_fifo() {
        FileType::Fifo
    } else if kind.is_socket() {
        FileType::Socket
    } else if kind.is_block_device() {
        FileType::BlockDevice
    } else {
        FileType::CharacterDevice
    };
    Ok(rustix::fs::mknodat(CWD, now, special, Mode::from_raw_mode(0o600), old.rdev())?)
}

/// Sets the owner, the mode, and extended attributes with ACLs if they differ. The order matters: a
/// change of the owner clears set-user-ID bits and capabilities.
fn attributes(past: &Path, old: &Metadata, now: &Path) -> io::Result<()> {
    let new = fs::symlink_metadata(now)?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        std::os::unix::fs::lchown(now, Some(old.uid()), Some(old.gid()))?;
    }
    let is_link = old.file_type().is_symlink();
    if !is_link && fs::symlink_metadata(now)?.mode() != old.mode() {
        fs::set_permissions(now, fs::Permissions::from_mode(old.mode() & 0o7777))?;
    }
    let (present, wanted) = (xattrs(now)?, xattrs(past)?);
    for name in present.keys().filter(|name| !wanted.contains_key(*name)) {
        rustix::fs::lremovexattr(now, &name[..])?;
    }
    for (name, value) in wanted.iter().filter(|(name, value)| present.get(*name) != Some(value)) {
        rustix::fs::lsetxattr(now, &name[..], value, XattrFlags::empty())?;
    }
    Ok(())
}

fn times(old: &Metadata, now: &Path) -> io::Result<()> {
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(old.atime(), old.atime_nsec()),
        last_modification: time(old.mtime(), old.mtime_nsec()),
    };
    Ok(rustix::fs::utimensat(CWD, now, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn xattrs(path: &Path) -> io::Result<HashMap<Vec<u8>, Vec<u8>>> {
    const LIST_MAX: usize = 64 << 10;
    const VALUE_MAX: usize = 64 << 10;
    let mut list = Vec::with_capacity(LIST_MAX);
    rustix::fs::llistxattr(path, rustix::buffer::spare_capacity(&mut list))?;
    let mut found = HashMap::new();
    for name in list.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = Vec::with_capacity(VALUE_MAX);
        rustix::fs::lgetxattr(path, name, rustix::buffer::spare_capacity(&mut value))?;
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_paths_are_limited_to_the_snapshot() {
        let text = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(paths_to_restore(&[], &[]).unwrap(), text(&[""]));
        let chosen = text(&["a/b", "c"]);
        assert_eq!(paths_to_restore(&[], &chosen).unwrap(), chosen);
        assert_eq!(paths_to_restore(&text(&["/a", "c/d"]), &chosen).unwrap(), text(&["a/b", "c/d"]));
        assert_eq!(paths_to_restore(&text(&["/"]), &chosen).unwrap(), chosen);
        let missing = paths_to_restore(&text(&["a/x"]), &chosen).unwrap_err();
        assert_eq!(missing.to_string(), "the snapshot has no /a/x");
        assert!(matches!(paths_to_restore(&text(&["../a"]), &[]), Err(RestoreError::Usage(_))));
    }

    /// Two folders of any file system suffice for everything but the times of snapshots.
    #[test]
    fn a_folder_becomes_what_the_other_is() {
        let dir = tempfile::tempdir().unwrap();
        let (past, now) = (dir.path().join("past"), dir.path().join("now"));
        fs::create_dir_all(past.join("kept/in")).unwrap();
        fs::create_dir_all(now.join("kept")).unwrap();
        fs::write(past.join("kept/in/file"), "old").unwrap();
        fs::hard_link(past.join("kept/in/file"), past.join("kept/second")).unwrap();
        std::os::unix::fs::symlink("in/file", past.join("kept/link")).unwrap();
        fs::set_permissions(past.join("kept/in/file"), fs::Permissions::from_mode(0o640)).unwrap();
        fs::write(now.join("kept/later"), "new").unwrap();
        fs::write(now.join("kept/in"), "a file where a folder was").unwrap();
        fs::write(now.join("outside"), "stays").unwrap();

        let mut restore = Restore::new(past.clone(), now.clone(), 0);
        let refused = restore.restore(Path::new("kept/in/file")).unwrap_err();
        assert!(matches!(refused, RestoreError::NotAFolder(path) if path == Path::new("kept/in")));
        let missing = restore.restore(Path::new("kept/none")).unwrap_err();
        assert!(matches!(missing, RestoreError::NotInSnapshot(_)));

        restore.restore(Path::new("kept")).unwrap();
        let file = fs::symlink_metadata(now.join("kept/in/file")).unwrap();
        assert_eq!(fs::read(now.join("kept/link")).unwrap(), b"old");
        assert_eq!((file.nlink(), file.mode() & 0o777), (2, 0o640));
        assert_eq!(file.mtime(), fs::metadata(past.join("kept/in/file")).unwrap().mtime());
        assert!(!now.join("kept/later").exists());
        assert_eq!(fs::read(now.join("outside")).unwrap(), b"stays");
    }

    /// A path counts from the root of the view, so that nothing outside of it is changed.
    #[test]
    fn a_path_does_not_lead_out_of_the_view() {
        let dir = tempfile::tempdir().unwrap();
        let (past, now) = (dir.path().join("past"), dir.path().join("now"));
        fs::create_dir(&past).unwrap();
        fs::create_dir(&now).unwrap();
        fs::write(past.join("file"), "old").unwrap();
        let outside = dir.path().join("outside");
        fs::write(&outside, "stays").unwrap();
        let mut restore = Restore::new(past, now.clone(), 0);
        restore.restore(Path::new("/file")).unwrap();
        assert_eq!(fs::read(now.join("file")).unwrap(), b"old");
        assert!(matches!(restore.restore(&outside), Err(RestoreError::NotInSnapshot(_))));
        assert!(matches!(restore.restore(Path::new("../outside")), Err(RestoreError::Usage(_))));
        assert_eq!(fs::read(outside).unwrap(), b"stays");
    }
}
