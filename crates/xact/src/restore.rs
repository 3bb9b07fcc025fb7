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

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat,
    chownat, linkat, mkdirat, mknodat, openat, readlinkat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use crate::descent::{Descent, open_folder};
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
    /// The folders that were entered, each with the one above it in this list and its name there.
    /// The first is the root.
    folders: Vec<(usize, OsString)>,
    /// The first restored name of each file with several names, by inode number in the snapshot: a
    /// folder of `folders` and the name in it.
    links: HashMap<u64, (usize, OsString)>,
    /// Folders of the view that were opened last to add a name to a file.
    linked: VecDeque<(usize, OwnedFd)>,
}

/// The same folder in the snapshot and in the view.
type Both = [OwnedFd; 2];

/// A folder that is being restored.
struct Level {
    /// Its place in [`Restore::folders`].
    folder: usize,
    old: Stat,
    /// It is not new.
    stays: bool,
    /// The names to restore.
    left: std::collections::btree_set::IntoIter<OsString>,
}

impl Restore {
    /// Restores from the snapshot at the folder `past`, which was `created` at this time (seconds
    /// since 1970), to the view at the folder `now`.
    pub fn new(past: PathBuf, now: PathBuf, created: i64) -> Restore {
        let folders = vec![(0, OsString::new())];
        Restore { past, now, created, folders, links: HashMap::new(), linked: VecDeque::new() }
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
        let missing = || RestoreError::NotInSnapshot(path.to_path_buf());
        let open = |root: &Path| open_way(CWD, root).map_err(|e| failed(root.to_path_buf())(e.into()));
        let mut both = [open(&self.past)?, open(&self.now)?];
        let mut folder = 0;
        // A symbolic link on the way would lead elsewhere, even out of the view.
        for name in path.parent().into_iter().flat_map(Path::iter) {
            let above = folder;
            folder = self.add_folder(above, name);
            let wrong = |e| failed(self.path(above, name))(e);
            let old = status(&both[0], name).map_err(wrong)?.filter(is_dir).ok_or_else(missing)?;
            match status(&both[1], name).map_err(wrong)? {
                Some(found) if is_dir(&found) => {}
                Some(_) => return Err(RestoreError::NotAFolder(self.below_root(folder))),
                None => make_folder(&both, name, &old).map_err(wrong)?,
            }
            let next = [open_way(&both[0], name), open_way(&both[1], name)];
            let [past, now] = next.map(|opened| opened.map_err(|e| wrong(e.into())));
            both = [past?, now?];
        }
        let name = path.file_name().unwrap_or(OsStr::new("."));
        let old = status(&both[0], name).map_err(|e| failed(self.path(folder, name))(e))?;
        self.tree(both, folder, name, old.ok_or_else(missing)?)
    }

    /// Restores a name in a folder, with everything below it. It keeps a list of the levels, and
    /// does not recurse: a tree may be deeper than the stack of a thread.
    fn tree(&mut self, above: Both, folder: usize, name: &OsStr, old: Stat) -> RestoreResult<()> {
        let mut descent = Descent::from(above);
        let mut levels: Vec<Level> = Vec::new();
        levels.extend(self.name(&mut descent, folder, name, old)?);
        while let Some(level) = levels.last_mut() {
            let at = level.folder;
            if let Some(name) = level.left.next() {
                let found = status(&descent.here()[0], &name).map_err(|e| failed(self.path(at, &name))(e))?;
                let old = found.ok_or(RestoreError::SnapshotDeleted)?;
                levels.extend(self.name(&mut descent, at, &name, old)?);
                continue;
            }
            // The folder's own attributes come last: they may forbid to change names in it.
            let Level { old, stays, .. } = levels.pop().expect("the last one");
            let name = &*self.folders[at].1;
            descent
                .leave()
                .and_then(|()| attributes(descent.here(), name, &old))
                .and_then(|()| if stays { Ok(()) } else { times(&descent.here()[1], name, &old) })
                .map_err(|e| failed(self.now.join(self.below_root(at)))(e))?;
        }
        Ok(())
    }

    /// Restores a name in the present folder. A folder is entered, and returned.
    fn name(
        &mut self,
        descent: &mut Descent<2>,
        folder: usize,
        name: &OsStr,
        old: Stat,
    ) -> RestoreResult<Option<Level>> {
        if is_dir(&old) {
            let at = self.add_folder(folder, name);
            let entered = enter(descent, name).map_err(|e| failed(self.now.join(self.below_root(at)))(e))?;
            let (stays, left) = entered;
            return Ok(Some(Level { folder: at, old, stays, left: left.into_iter() }));
        }
        self.file(descent.here(), folder, name, &old).map_err(|e| failed(self.path(folder, name))(e))?;
        Ok(None)
    }

    fn file(&mut self, both: &Both, folder: usize, name: &OsStr, old: &Stat) -> io::Result<()> {
        let now = &both[1];
        match status(now, name)? {
            Some(new) if is_unchanged(old, &new, self.created) => {
                self.links.entry(old.st_ino).or_insert_with(|| (folder, name.to_owned()));
                return Ok(());
            }
            Some(_) => remove(now, name)?,
            None => {}
        }
        if let Some((first, first_name)) = self.links.get(&old.st_ino).cloned() {
            return match first == folder {
                true => Ok(linkat(now, &first_name, now, name, AtFlags::empty())?),
                false => Ok(linkat(self.opened(first)?, &first_name, now, name, AtFlags::empty())?),
            };
        }
        make(both, name, old)?;
        attributes(both, name, old)?;
        times(now, name, old)?;
        if old.st_nlink > 1 {
            self.links.insert(old.st_ino, (folder, name.to_owned()));
        }
        Ok(())
    }

    fn add_folder(&mut self, above: usize, name: &OsStr) -> usize {
        self.folders.push((above, name.to_owned()));
        self.folders.len() - 1
    }

    /// The path of a folder from the root.
    fn below_root(&self, folder: usize) -> PathBuf {
        self.names(folder).into_iter().collect()
    }

    fn names(&self, mut folder: usize) -> Vec<&OsStr> {
        let mut names = Vec::new();
        while folder != 0 {
            let (above, name) = &self.folders[folder];
            names.push(&**name);
            folder = *above;
        }
        names.reverse();
        names
    }

    /// The path of a name in the view, for a message.
    fn path(&self, folder: usize, name: &OsStr) -> PathBuf {
        self.now.join(self.below_root(folder)).join(name)
    }

    /// A folder of the view that was entered before.
    fn opened(&mut self, folder: usize) -> io::Result<&OwnedFd> {
        if let Some(at) = self.linked.iter().position(|(known, _)| *known == folder) {
            return Ok(&self.linked[at].1);
        }
        let mut opened = open_way(CWD, &self.now)?;
        for name in self.names(folder) {
            opened = open_way(&opened, name)?;
        }
        self.linked.truncate(LINKED_MAX - 1);
        self.linked.push_front((folder, opened));
        Ok(&self.linked[0].1)
    }
}

/// Folders that stay open to add names to files in them.
const LINKED_MAX: usize = 16;

fn failed(path: PathBuf) -> impl FnOnce(io::Error) -> RestoreError {
    move |source| RestoreError::Io { path, source }
}

fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Opens a folder on a way. That takes no permission to list it.
fn open_way(dir: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(dir, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// `None` if the name does not exist. Links are not followed.
fn status(dir: impl AsFd, name: &OsStr) -> io::Result<Option<Stat>> {
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Whether a file is the same as in a snapshot, unchanged since its creation. The lower half of the
/// inode numbers that a mount shows is the inode's; the upper half distinguishes snapshots and
/// views. Two changes within some milliseconds may have the same time, so a file whose last change
/// was around the second of the snapshot may have changed.
fn is_unchanged(old: &Stat, new: &Stat, created: i64) -> bool {
    let of =
        |stat: &Stat| (stat.st_ino as u32, stat.st_mode, stat.st_size, stat.st_ctime, stat.st_ctime_nsec);
    of(old) == of(new) && old.st_ctime < created.saturating_sub(1)
}

fn names(folder: &OwnedFd) -> io::Result<BTreeSet<OsString>> {
    let mut names = BTreeSet::new();
    for entry in Dir::read_from(folder)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.insert(name);
        }
    }
    Ok(names)
}

fn make_folder(both: &Both, name: &OsStr, old: &Stat) -> io::Result<()> {
    mkdirat(&both[1], name, Mode::RWXU | Mode::RWXG | Mode::RWXO)?;
    attributes(both, name, old)
}

/// Makes a folder exist, removes the names in it that the snapshot does not have, and enters it.
/// Returns whether it existed, and the names to restore.
fn enter(descent: &mut Descent<2>, name: &OsStr) -> io::Result<(bool, BTreeSet<OsString>)> {
    let [past, now] = descent.here();
    let new = status(now, name)?;
    let stays = new.as_ref().is_some_and(is_dir);
    if !stays {
        if new.is_some() {
            remove(now, name)?;
        }
        mkdirat(now, name, Mode::RWXU | Mode::RWXG | Mode::RWXO)?;
    }
    descent.enter([open_folder(past, name)?, open_folder(now, name)?])?;
    let [past, now] = descent.here();
    let wanted = names(past)?;
    names(now)?.difference(&wanted).try_for_each(|later| remove(now, later))?;
    Ok((stays, wanted))
}

/// Removes a name, with everything below it.
fn remove(dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
    if !status(dir, name)?.as_ref().is_some_and(is_dir) {
        return Ok(unlinkat(dir, name, AtFlags::empty())?);
    }
    let mut descent = Descent::from([dir.try_clone()?]);
    // The folders on the way down: each one's name, and the folders in it that are left to remove.
    let mut levels: Vec<(OsString, Vec<OsString>)> = vec![empty(&mut descent, name.to_owned())?];
    while let Some((_, left)) = levels.last_mut() {
        if let Some(name) = left.pop() {
            levels.push(empty(&mut descent, name)?);
        } else if let Some((name, _)) = levels.pop() {
            descent.leave()?;
            unlinkat(&descent.here()[0], &name, AtFlags::REMOVEDIR)?;
        }
    }
    Ok(())
}

/// Enters a folder and removes all but folders from it. Returns its name, and the names of these.
fn empty(descent: &mut Descent<1>, name: OsString) -> io::Result<(OsString, Vec<OsString>)> {
    let folder = open_folder(&descent.here()[0], &name)?;
    let mut folders = Vec::new();
    for below in names(&folder)? {
        match status(&folder, &below)?.as_ref().is_some_and(is_dir) {
            true => folders.push(below),
            false => unlinkat(&folder, &below, AtFlags::empty())?,
        }
    }
    descent.enter([folder])?;
    Ok((name, folders))
}

/// Makes a new file of the same kind, with its contents.
fn make([past, now]: &Both, name: &OsStr, old: &Stat) -> io::Result<()> {
    let kind = FileType::from_raw_mode(old.st_mode);
    match kind {
        FileType::Symlink => Ok(symlinkat(readlinkat(past, name, Vec::new())?, now, name)?),
        FileType::RegularFile => {
            let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let from = openat(past, name, flags | OFlags::RDONLY, Mode::empty())?;
            let new = Mode::from_raw_mode(0o666);
            let to = openat(now, name, flags | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, new)?;
            let (from, to, size) = (File::from(from), File::from(to), old.st_size as u64);
            to.set_len(size)?;
            copy_sparse(&from, &to, size, &mut |_| ())
        }
        _ => Ok(mknodat(now, name, kind, Mode::from_raw_mode(0o600), old.st_rdev)?),
    }
}

/// Sets the owner, the mode, and extended attributes with ACLs if they differ. The order matters: a
/// change of the owner clears set-user-ID bits and capabilities.
fn attributes([past, now]: &Both, name: &OsStr, old: &Stat) -> io::Result<()> {
    let stat = || statat(now, name, AtFlags::SYMLINK_NOFOLLOW);
    let new = stat()?;
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid) {
        let (uid, gid) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
        chownat(now, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    let is_link = FileType::from_raw_mode(old.st_mode) == FileType::Symlink;
    if !is_link && stat()?.st_mode != old.st_mode {
        chmodat(now, name, Mode::from_raw_mode(old.st_mode & 0o7777), AtFlags::empty())?;
    }
    let place = path_of(now, name);
    let (present, wanted) = (xattrs(&place)?, xattrs(&path_of(past, name))?);
    for name in present.keys().filter(|name| !wanted.contains_key(*name)) {
        rustix::fs::lremovexattr(&place, &name[..])?;
    }
    for (name, value) in wanted.iter().filter(|(name, value)| present.get(*name) != Some(value)) {
        rustix::fs::lsetxattr(&place, &name[..], value, XattrFlags::empty())?;
    }
    Ok(())
}

fn times(now: &OwnedFd, name: &OsStr, old: &Stat) -> io::Result<()> {
    let time = |tv_sec, tv_nsec: u64| Timespec { tv_sec, tv_nsec: tv_nsec as i64 };
    let times = Timestamps {
        last_access: time(old.st_atime, old.st_atime_nsec),
        last_modification: time(old.st_mtime, old.st_mtime_nsec),
    };
    Ok(utimensat(now, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// A path of a name in an open folder, of limited length: the calls for extended attributes take no
/// descriptor of a folder before Linux 6.13.
fn path_of(folder: &OwnedFd, name: &OsStr) -> PathBuf {
    Path::new("/proc/thread-self/fd").join(folder.as_raw_fd().to_string()).join(name)
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
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

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

    /// Names are reached by descriptors: a path may be longer than any call accepts.
    #[test]
    fn deep_trees_are_restored() {
        const DEPTH: usize = 300;
        let name = OsStr::from_bytes(&[b'n'; 100]).to_owned();
        let dir = tempfile::tempdir().unwrap();
        let (past, now) = (dir.path().join("past"), dir.path().join("now"));
        fs::create_dir(&past).unwrap();
        fs::create_dir(&now).unwrap();
        let way_down = |root: &Path, each: &mut dyn FnMut(&OwnedFd, usize)| {
            let mut at = open_way(CWD, root).unwrap();
            for depth in 0..DEPTH {
                each(&at, depth);
                at = open_way(&at, &name).unwrap();
            }
        };
        way_down(&past, &mut |folder, depth| {
            mkdirat(folder, &name, Mode::RWXU).unwrap();
            if depth == 0 {
                fs::write(past.join("file"), "text").unwrap();
            } else {
                linkat(CWD, past.join("file"), folder, "link", AtFlags::empty()).unwrap();
            }
        });
        // A folder as deep that the snapshot does not have.
        fs::create_dir(now.join("later")).unwrap();
        way_down(&now.join("later"), &mut |folder, _| mkdirat(folder, &name, Mode::RWXU).unwrap());

        Restore::new(past, now.clone(), 0).restore(Path::new("")).unwrap();
        assert!(!now.join("later").exists());
        assert_eq!(fs::metadata(now.join("file")).unwrap().nlink(), DEPTH as u64);
        let first = fs::metadata(now.join("file")).unwrap().ino();
        way_down(&now, &mut |folder, depth| {
            let found = status(folder, OsStr::new("link")).unwrap();
            assert_eq!(found.map(|found| found.st_ino), (depth > 0).then_some(first));
        });
        // And back: from the middle of the chain on.
        let path: PathBuf = std::iter::repeat_n(&name, DEPTH / 2).collect();
        Restore::new(dir.path().join("past"), now, 0).restore(&path).unwrap();
        remove(&open_way(CWD, dir.path()).unwrap(), OsStr::new("past")).unwrap();
        remove(&open_way(CWD, dir.path()).unwrap(), OsStr::new("now")).unwrap();
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
