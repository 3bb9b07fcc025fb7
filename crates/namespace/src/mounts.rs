//! Mounts of this namespace or another process's, from `mountinfo`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::mount::Mount;
use crate::{Error, Result, statmount};

impl Mount {
    /// The mount of the whole volume, of which this may be a bind mount of a part: the control
    /// channel is in the root. `NoVolume`: that mount is not in this namespace.
    pub fn of_the_whole(self) -> Result<Mount> {
        if self.root == Path::new("/") || self.is_view() {
            return Ok(self);
        }
        let whole = |mount: &Mount| mount.device == self.device && mount.root == Path::new("/");
        all()?.into_iter().find(whole).ok_or_else(|| {
            let point = self.point.display();
            Error::NoVolume(format!(
                "{point} shows a part of a volume, the rest of which is not mounted here"
            ))
        })
    }
}

/// All mounts of this namespace, in the order in which they were made.
pub fn all() -> Result<Vec<Mount>> {
    // The mounts of this thread, which may have a namespace of its own.
    of_process(Path::new("/proc/thread-self"))
        .map_err(|e| Error::system("read the table of mounts, /proc/thread-self/mountinfo", e))
}

/// All mounts of a process (`/proc/PID`).
pub fn of_process(process: &Path) -> io::Result<Vec<Mount>> {
    let table = read_table(&process.join("mountinfo"))?;
    Ok(table.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// The users who mounted the FUSE file systems of a process (`/proc/PID`), by the ids of the
/// mounts.
pub fn owners(process: &Path) -> io::Result<HashMap<u64, u32>> {
    let table = read_table(&process.join("mountinfo"))?;
    Ok(table.split(|&b| b == b'\n').filter_map(owner).collect())
}

/// The id of the mount, and the user in the options of its file system.
fn owner(line: &[u8]) -> Option<(u64, u32)> {
    let mut words = line.split(|&b| b == b' ');
    let id = text(words.next()?)?.parse().ok()?;
    let options = words.skip_while(|word| *word != b"-").nth(3)?;
    let user = options.split(|&b| b == b',').find_map(|option| option.strip_prefix(b"user_id="))?;
    Some((id, text(user)?.parse().ok()?))
}

/// Reads a file of `/proc` in few calls: its size is 0, so `fs::read` would not know how much to
/// read at once.
fn read_table(path: &Path) -> io::Result<Vec<u8>> {
    let mut table = Vec::with_capacity(64 << 10);
    File::open(path)?.read_to_end(&mut table)?;
    Ok(table)
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|&b| b == b' ');
    let id = text(words.next()?)?.parse().ok()?;
    let _parent = words.next()?;
    let (major, minor) = text(words.next()?)?.split_once(':').map(|(a, b)| (a.parse(), b.parse()))?;
    let root = unescape(words.next()?);
    let point = unescape(words.next()?);
    let mut rest = words.skip_while(|w| *w != b"-").skip(1);
    let fs_type = text(rest.next()?)?.to_string();
    let source = unescape(rest.next()?);
    Some(Mount { id, device: (major.ok()?, minor.ok()?), root, point, fs_type, source })
}

fn text(word: &[u8]) -> Option<&str> {
    std::str::from_utf8(word).ok()
}

/// Decodes the octal escapes that the kernel uses for space, tab, newline and backslash.
fn unescape(word: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// The mount that `path` is in, if its kind may be ours; its control channel gives the final
/// answer. Without a path, the only mounted volume, or the one of the current folder. `NoVolume`:
/// there is none, or there are several.
pub fn serving(path: Option<&Path>) -> Result<Mount> {
    let none = || match path {
        Some(path) => format!("{} is not on a mounted xact volume", path.display()),
        None => {
            "the current folder is not on a mounted xact volume, and not exactly one is mounted".to_owned()
        }
    };
    let none = || Error::NoVolume(none());
    let is_ours = |mount: &Mount| {
        let whole = || mount.clone().of_the_whole();
        mount.is_fuse() && whole().is_ok_and(|whole| xact_control::client::version(&whole.point).is_ok())
    };
    let at = path.unwrap_or(Path::new("."));
    if let Some(mount) = path.and_then(statmount::of_path) {
        return if mount.is_fuse() { mount.of_the_whole() } else { Err(none()) };
    }
    let id = mount_id(CWD, at, AtFlags::STATX_DONT_SYNC)
        .map_err(|e| Error::system(format_args!("look at {}", at.display()), e))?;
    let table = all()?;
    let there = table.iter().find(|mount| mount.id == id && mount.is_fuse());
    match (there.filter(|mount| path.is_some() || is_ours(mount)), path) {
        (Some(mount), _) => mount.clone().of_the_whole(),
        (None, Some(_)) => Err(none()),
        (None, None) => {
            let mut ours: Vec<&Mount> = table.iter().filter(|mount| is_ours(mount)).collect();
            ours.dedup_by_key(|mount| mount.device);
            if let [mount] = ours[..] { mount.clone().of_the_whole() } else { Err(none()) }
        }
    }
}

/// The id of the mount through which a path (or, with an empty path, a descriptor) is reached.
pub fn mount_id(dir: impl rustix::fd::AsFd, path: &Path, flags: AtFlags) -> rustix::io::Result<u64> {
    let found = statx(dir, path, flags | AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID)?;
    Ok(found.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = br"221 31 0:87 / /mnt/my\040volume rw,nosuid shared:7 master:1 - fuse /tmp/a\134b.img rw,user_id=0";
        let mount = parse(line).unwrap();
        assert_eq!((mount.id, mount.device), (221, (0, 87)));
        assert_eq!(mount.point, Path::new("/mnt/my volume"));
        assert_eq!(mount.source, Path::new(r"/tmp/a\b.img"));
        assert_eq!(mount.fs_type, "fuse");
        assert!(!mount.is_view());
        assert_eq!(owner(line), Some((221, 0)));
        assert_eq!(owner(b"22 1 0:1 / / rw - ext4 /dev/sda rw,errors=remount-ro"), None);
    }

    #[test]
    fn a_view_is_known_by_its_root() {
        let line = b"221 31 0:87 /.xact/tx/3/root /mnt rw - fuse /disk.img rw";
        assert!(parse(line).unwrap().is_view());
    }

    #[test]
    fn broken_lines_are_passed_over() {
        for line in [&b""[..], b"12", b"x y 0:1 / / rw - ext4", b"1 2 0 / / rw - fuse x rw"] {
            assert_eq!(parse(line), None);
        }
    }

    /// The same result as in the table, for a file system with a plain name and for one without a
    /// name.
    #[test]
    fn a_mount_is_told_as_in_the_table() {
        let table = all().unwrap();
        for path in ["/", "/proc", "/dev", "/sys"].map(Path::new) {
            let Some(mount) = statmount::of_path(path) else {
                println!("this kernel does not report {}", path.display());
                continue;
            };
            assert!(table.contains(&mount), "{mount:?} in {table:#?}");
            assert!(path.starts_with(&mount.point), "{mount:?}");
        }
    }
}
