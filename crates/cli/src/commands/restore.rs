//! `xact snapshot restore` on a mount: files and folders become what a snapshot has, in one transaction.
//!
//! The transaction's view and the snapshot are folders of the mount (`.xact`), so this reads the one, writes the
//! other, and commits: others see all of it or nothing, a crash leaves all of it or nothing, and whoever changes
//! the same files meanwhile makes it a conflict. What is as it was (the same inode, not changed since) is left
//! alone. A folder keeps its inode, and its time of modification, which in a transaction never goes back
//! (`txn/src/commit/mod.rs`); a file that differs is replaced, so that who has it open keeps what he opened,
//! as with a deleted file.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use xact_control::abi::FOLDER;

use super::snapshot::copy_sparse;
use crate::control::{self, Transaction};
use crate::exit::{Exit, Failure, Result};
use crate::mounts::Mount;
use crate::progress::Steps;

/// Restores these paths, which count from the volume's root; none means all that the snapshot has. Of one of chosen
/// paths nothing else can be restored: in the folders that lead there it has no other names.
pub fn restore(mount: &Mount, name: &str, paths: &[PathBuf]) -> Result<()> {
    if mount.is_view() {
        return Err(Failure::usage("inside a transaction nothing is restored")
            .hint("Leave it, or copy from .xact/snapshots of the volume itself."));
    }
    let past = mount.point.join(FOLDER).join("snapshots").join(name);
    let snapshot = control::snapshots(&mount.point)?.into_iter().find(|snapshot| snapshot.name == name);
    let Some(snapshot) = snapshot else {
        return Err(Failure::usage(format!("there is no snapshot '{name}'")));
    };
    let taken = i64::try_from(snapshot.time).unwrap_or(i64::MAX);
    let transaction = Transaction::begin(&mount.point, 0)?;
    let now = transaction.channel().root(transaction.id());
    let mut restorer = Restorer { past, now, taken, links: HashMap::new() };
    let chosen: Vec<PathBuf> = snapshot.paths.iter().map(|path| OsStr::from_bytes(path).into()).collect();
    let tops = tops(paths, &chosen)?;
    let mut steps = Steps::new();
    for (done, path) in tops.iter().enumerate() {
        steps.at(&format!("restoring /{}", path.display()), done as f64 / tops.len() as f64);
        restorer.restore(path)?;
    }
    drop(steps);
    transaction.commit(0)
}

/// What is restored: the paths that are asked for, as far as the snapshot has them.
fn tops(paths: &[PathBuf], chosen: &[PathBuf]) -> Result<Vec<PathBuf>> {
    if paths.is_empty() {
        return Ok(if chosen.is_empty() { vec![PathBuf::new()] } else { chosen.to_vec() });
    }
    let mut found = Vec::new();
    for path in paths {
        let path = within(path)?;
        if chosen.is_empty() || chosen.iter().any(|top| path.starts_with(top)) {
            found.push(path);
            continue;
        }
        // A folder on the way: what is chosen in it.
        let before = found.len();
        found.extend(chosen.iter().filter(|top| top.starts_with(&path)).cloned());
        if found.len() == before {
            return Err(not_there(&path));
        }
    }
    Ok(found)
}

struct Restorer {
    /// The snapshot's root, and that of the view that becomes like it.
    past: PathBuf,
    now: PathBuf,
    /// When the snapshot was taken, in seconds since 1970.
    taken: i64,
    /// Of files with several names, by their inode numbers in the snapshot: the first one that is restored.
    links: HashMap<u64, PathBuf>,
}

/// A path from the volume's root, without one.
pub fn within(path: &Path) -> Result<PathBuf> {
    let mut relative = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => relative.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Failure::usage(format!("{}: no '..' in paths of a volume", path.display())));
            }
        }
    }
    Ok(relative)
}

/// The paths that a snapshot is to have, in order and none below another, as the volume keeps them.
pub fn texts(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
    let mut found = paths.iter().map(|path| within(path)).collect::<Result<Vec<_>>>()?;
    if found.iter().any(|path| path.as_os_str().is_empty()) {
        return Err(Failure::usage("the root is all of the volume: name no paths for that"));
    }
    found.sort();
    let mut tops: Vec<PathBuf> = Vec::new();
    for path in found {
        if tops.last().is_none_or(|top| !path.starts_with(top)) {
            tops.push(path);
        }
    }
    Ok(tops.into_iter().map(|path| path.into_os_string().into_vec()).collect())
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Failure + '_ {
    move |e| Failure::system(format_args!("restore {}", path.display()), e)
}

/// `None` where there is nothing; of a link what itself is.
fn status(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(path)(e)),
    }
}

/// Whether a file is the very one of a snapshot, and was not changed since that was taken. Of the numbers that a
/// mount shows, the lower half is the inode's; the upper one tells snapshots and views apart. Two changes within some
/// milliseconds may have one time, so of what changed last around the snapshot's second nothing is known.
fn is_unchanged(past: &Metadata, now: &Metadata, taken: i64) -> bool {
    let of = |file: &Metadata| (file.ino() as u32, file.mode(), file.size(), file.ctime(), file.ctime_nsec());
    of(past) == of(now) && past.ctime() < taken.saturating_sub(1)
}

impl Restorer {
    fn restore(&mut self, path: &Path) -> Result<()> {
        // A link on the way would lead to somewhere else, out of the view even.
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        for folder in above {
            let (past, now) = (self.past.join(folder), self.now.join(folder));
            let there = status(&past)?.filter(Metadata::is_dir).ok_or_else(|| not_there(path))?;
            match status(&now)? {
                Some(found) if found.is_dir() => {}
                Some(_) => {
                    let text = format!("/{} is no folder any more: restore that first", folder.display());
                    return Err(Failure::usage(text));
                }
                None => {
                    fs::create_dir(&now).map_err(failed(&now))?;
                    attributes(&past, &there, &now).map_err(failed(&now))?;
                }
            }
        }
        let (past, now) = (self.past.join(path), self.now.join(path));
        let there = status(&past)?.ok_or_else(|| not_there(path))?;
        self.entry(&past, &there, &now)
    }

    fn entry(&mut self, past: &Path, there: &Metadata, now: &Path) -> Result<()> {
        let here = status(now)?;
        if there.is_dir() {
            return self.folder(past, there, now, here.as_ref());
        }
        if let Some(here) = &here
            && is_unchanged(there, here, self.taken)
        {
            self.links.entry(there.ino()).or_insert_with(|| now.to_path_buf());
            return Ok(());
        }
        if here.is_some() {
            remove(now).map_err(failed(now))?;
        }
        if let Some(first) = self.links.get(&there.ino()) {
            return fs::hard_link(first, now).map_err(failed(now));
        }
        make(past, there, now)
            .and_then(|()| attributes(past, there, now))
            .and_then(|()| times(there, now))
            .map_err(failed(now))?;
        if there.nlink() > 1 {
            self.links.insert(there.ino(), now.to_path_buf());
        }
        Ok(())
    }

    fn folder(&mut self, past: &Path, there: &Metadata, now: &Path, here: Option<&Metadata>) -> Result<()> {
        let stays = here.is_some_and(Metadata::is_dir);
        if !stays {
            if here.is_some() {
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
            let there = status(&past)?.ok_or_else(|| {
                Failure::new(Exit::Unavailable, "the snapshot was deleted meanwhile: nothing was changed")
            })?;
            self.entry(&past, &there, &now.join(name))?;
        }
        attributes(past, there, now).map_err(failed(now))?;
        if stays { Ok(()) } else { times(there, now).map_err(failed(now)) }
    }
}

fn not_there(path: &Path) -> Failure {
    Failure::new(Exit::NoInput, format!("the snapshot has no /{}", path.display()))
}

fn names(folder: &Path) -> io::Result<BTreeSet<OsString>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
}

fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// A new file of the same kind, with its contents.
fn make(past: &Path, there: &Metadata, now: &Path) -> io::Result<()> {
    let kind = there.file_type();
    if kind.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(past)?, now);
    }
    if kind.is_file() {
        let (from, to) = (File::open(past)?, File::create_new(now)?);
        to.set_len(there.size())?;
        return copy_sparse(&from, &to, there.size(), &mut |_| ());
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
    Ok(rustix::fs::mknodat(CWD, now, special, Mode::from_raw_mode(0o600), there.rdev())?)
}

/// Owner, mode, and extended attributes with ACLs, as far as they differ. In this order: a new owner takes set-user-ID
/// bits and capabilities away.
fn attributes(past: &Path, there: &Metadata, now: &Path) -> io::Result<()> {
    let here = fs::symlink_metadata(now)?;
    if (here.uid(), here.gid()) != (there.uid(), there.gid()) {
        std::os::unix::fs::lchown(now, Some(there.uid()), Some(there.gid()))?;
    }
    let is_link = there.file_type().is_symlink();
    if !is_link && fs::symlink_metadata(now)?.mode() != there.mode() {
        fs::set_permissions(now, fs::Permissions::from_mode(there.mode() & 0o7777))?;
    }
    let (old, new) = (xattrs(now)?, xattrs(past)?);
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        rustix::fs::lremovexattr(now, &name[..])?;
    }
    for (name, value) in new.iter().filter(|(name, value)| old.get(*name) != Some(value)) {
        rustix::fs::lsetxattr(now, &name[..], value, XattrFlags::empty())?;
    }
    Ok(())
}

fn times(there: &Metadata, now: &Path) -> io::Result<()> {
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(there.atime(), there.atime_nsec()),
        last_modification: time(there.mtime(), there.mtime_nsec()),
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

/// Whether a path as the volume has it (`/folder/file`) is one of these or below one.
pub fn is_below(path: &[u8], tops: &[PathBuf]) -> bool {
    let path = Path::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
    tops.iter().any(|top| path.starts_with(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_count_from_the_root() {
        let text = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(tops(&[], &[]).unwrap(), text(&[""]));
        let bytes = |paths: &[&str]| paths.iter().map(|path| path.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(texts(&text(&["/b/", "a", "b/c", "ab"])).unwrap(), bytes(&["a", "ab", "b"]));
        assert_eq!(texts(&text(&["a", "/"])).unwrap_err().exit, Exit::Usage);
        let chosen = text(&["a/b", "c"]);
        assert_eq!(tops(&[], &chosen).unwrap(), chosen);
        assert_eq!(tops(&text(&["/a", "c/d"]), &chosen).unwrap(), text(&["a/b", "c/d"]));
        assert_eq!(tops(&text(&["/"]), &chosen).unwrap(), chosen);
        assert_eq!(tops(&text(&["a/x"]), &chosen).unwrap_err().exit, Exit::NoInput);
        assert_eq!(within(Path::new("/a/./b")).unwrap(), Path::new("a/b"));
        assert_eq!(within(Path::new("/")).unwrap(), Path::new(""));
        assert_eq!(within(Path::new("a/../b")).unwrap_err().exit, Exit::Usage);
        let tops = [PathBuf::from("a/b")];
        assert!(is_below(b"/a/b", &tops) && is_below(b"/a/b/c", &tops));
        assert!(!is_below(b"/a/bc", &tops) && !is_below(b"/a", &tops));
    }
}
