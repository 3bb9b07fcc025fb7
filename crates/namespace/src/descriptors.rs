//! Descriptors of files on the volume that were opened before the transaction.
//!
//! Writes through them would reach the volume itself. Regular files and folders are opened again in
//! the view, by path, with the same flags and offset; descriptors that shared an offset share it
//! again (`> log 2>&1`). Every other descriptor on the volume is refused with its number. At the
//! end the originals take their numbers again.
//!
//! A file that was opened in the view must be opened again outside of it if its descriptor is to
//! survive a commit.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, SeekFrom, fcntl_getfl, open, seek};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd};

use xact_control::abi::FOLDER;

use crate::file_identity::{self, FileIdentity};
use crate::mount::Mount;
use crate::namespace::Bound;
use crate::{Error, Result, ours};

/// One open file description, with the descriptors that refer to it.
struct Description {
    numbers: Vec<(RawFd, FdFlags)>,
    path: PathBuf,
    inode: u64,
    flags: OFlags,
    /// `None` for a descriptor opened with `O_PATH`.
    offset: Option<u64>,
}

/// The descriptors to examine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those that an exec keeps.
    Inherited,
    All,
}

/// The descriptors on a volume.
pub struct Survey(Vec<Description>);

impl Survey {
    /// Examines the descriptors of this process on the volume of `mount` that are to join a
    /// transaction.
    pub fn of_volume(mount: &Mount, scope: Scope) -> Result<Survey> {
        let mut found = Survey(Vec::new());
        if scope == Scope::All {
            for (number, identity) in Volume::new(mount).open()? {
                let flags = fcntl_getfd(borrow(number))
                    .map_err(|e| Error::system(format_args!("look at descriptor {number}"), e))?;
                found.add(number, flags, &identity)?;
            }
            return Ok(found);
        }
        for (number, flags) in list(scope)? {
            let Ok(identity) = FileIdentity::of(borrow(number)) else { continue };
            if identity.device == mount.device && identity.inode <= u64::from(u32::MAX) {
                found.add(number, flags, &identity)?;
            }
        }
        Ok(found)
    }

    /// Nothing joins.
    pub fn none() -> Survey {
        Survey(Vec::new())
    }

    /// Examines the descriptors that were opened in a view, except for deleted files, which have no
    /// path. Leaves out those that cannot be examined.
    pub fn of_view(bound: &Bound) -> Result<Survey> {
        let mut found = Survey(Vec::new());
        for (number, flags) in list(Scope::All)? {
            if let Ok(identity) = FileIdentity::of(borrow(number))
                && bound.shows(identity.mount)
            {
                // Refuses only descriptors that could not be opened again anyway.
                let _ = found.add(number, flags, &identity);
            }
        }
        Ok(found)
    }

    fn add(&mut self, number: RawFd, fd_flags: FdFlags, identity: &FileIdentity) -> Result<()> {
        let file = borrow(number);
        if let Some(same) = self.0.iter_mut().find(|i| i.inode == identity.inode && i.shares_with(number)) {
            same.numbers.push((number, fd_flags));
            return Ok(());
        }
        let wrong = |e| Error::system(format_args!("look at descriptor {number}"), e);
        let path = fs::read_link(format!("/proc/thread-self/fd/{number}")).map_err(wrong)?;
        if identity.links == 0 {
            return Err(refuse(number, &path, "is a deleted file on the volume"));
        }
        if !matches!(identity.kind, FileType::RegularFile | FileType::Directory) {
            return Err(refuse(number, &path, "is neither a file nor a folder"));
        }
        let flags = fcntl_getfl(file).map_err(|e| wrong(e.into()))?;
        let offset = match flags.contains(OFlags::PATH) {
            true => None,
            false => seek(file, SeekFrom::Current(0)).ok(),
        };
        let numbers = vec![(number, fd_flags)];
        self.0.push(Description { numbers, path, inode: identity.inode, flags, offset });
        Ok(())
    }

    /// Replaces each descriptor by one in the view. The originals come back when the result is
    /// dropped or settled.
    pub fn reopen(&self, bound: &Bound) -> Result<Moved> {
        let mut moved = Moved(Vec::new());
        for description in &self.0 {
            let file = description.open_again(|identity| bound.shows(identity.mount))?;
            for &(number, flags) in &description.numbers {
                let original = fcntl_dupfd_cloexec(borrow(number), 3)
                    .map_err(|e| Error::system("keep a descriptor", e))?;
                replace(number, flags, &file)?;
                moved.0.push(Move { number, flags, original });
            }
        }
        Ok(moved)
    }

    /// After a commit: replaces the descriptors that were opened in the view by descriptors outside
    /// of it. A descriptor whose file no longer has its path stays unchanged.
    pub fn take_out(&self, mount: &Mount) {
        for description in &self.0 {
            if let Ok(file) = description.open_again(|identity| identity.device == mount.device) {
                for &(number, flags) in &description.numbers {
                    // It fails only if the number is out of range, and the number was in use a
                    // moment ago.
                    let _ = replace(number, flags, &file);
                }
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Without the descriptors that have one of these numbers, or this one.
    pub fn without(mut self, moved: &Moved, own: RawFd) -> Survey {
        for description in &mut self.0 {
            let other = |number| number != own && moved.0.iter().all(|m| m.number != number);
            description.numbers.retain(|(number, _)| other(*number));
        }
        self.0.retain(|description| !description.numbers.is_empty());
        self
    }
}

impl Description {
    fn shares_with(&self, number: RawFd) -> bool {
        self.numbers.iter().any(|&(own, _)| same_description(own, number))
    }

    fn open_again(&self, is_there: impl FnOnce(&FileIdentity) -> bool) -> Result<OwnedFd> {
        let number = self.numbers[0].0;
        // The path is that of the file itself, so a link at its end is another file.
        let flags = (self.flags & !OFlags::TMPFILE) | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = open(&self.path, flags, Mode::empty()).map_err(|e| {
            let why = format!("cannot be opened in the transaction ({})", std::io::Error::from(e).kind());
            refuse(number, &self.path, &why)
        })?;
        if !FileIdentity::of(&file).is_ok_and(|identity| identity.inode == self.inode && is_there(&identity))
        {
            return Err(refuse(number, &self.path, "no longer exists at its path"));
        }
        if let Some(offset) = self.offset {
            seek(&file, SeekFrom::Start(offset))
                .map_err(|e| Error::system(format_args!("position descriptor {number}"), e))?;
        }
        Ok(file)
    }
}

struct Move {
    number: RawFd,
    flags: FdFlags,
    original: OwnedFd,
}

/// Descriptors that refer to the view, and their originals, which take their numbers again on drop,
/// unchanged.
pub struct Moved(Vec<Move>);

impl Moved {
    /// The first of them, for a message.
    pub fn first(&self) -> Option<String> {
        self.0.first().map(|moved| name_of(moved.number))
    }

    /// The transaction has committed: the originals come back with the offsets of the view's
    /// descriptors. A number that was closed since, or given to another file, stays unchanged.
    pub fn settle(mut self, bound: &Bound) {
        for Move { number, flags, original } in std::mem::take(&mut self.0) {
            if bound.has(borrow(number)) {
                if let Ok(offset) = seek(borrow(number), SeekFrom::Current(0)) {
                    // For a file this worked a moment ago. For a folder it may fail; then the
                    // folder is read from its start.
                    let _ = seek(&original, SeekFrom::Start(offset));
                }
                let _ = replace(number, flags, &original);
            }
        }
    }

    /// As before: a number that was closed since, or given to another file, stays unchanged.
    pub fn restore(mut self, bound: &Bound) {
        for Move { number, flags, original } in std::mem::take(&mut self.0) {
            if bound.has(borrow(number)) {
                let _ = replace(number, flags, &original);
            }
        }
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        for Move { number, flags, original } in &self.0 {
            // It fails only if the number is out of range, and the number was in use a moment ago.
            let _ = replace(*number, *flags, original);
        }
    }
}

impl Bound {
    fn has(&self, file: BorrowedFd<'_>) -> bool {
        FileIdentity::of(file).is_ok_and(|identity| self.shows(identity.mount))
    }
}

/// Decides which descriptors of this process are on a volume, outside of transactions.
pub struct Volume<'a> {
    mount: &'a Mount,
}

impl Volume<'_> {
    pub fn new(mount: &Mount) -> Volume<'_> {
        Volume { mount }
    }

    pub fn open(&self) -> Result<Vec<(RawFd, FileIdentity)>> {
        let mut open = Vec::new();
        for (number, _) in list(Scope::All)? {
            if let Some(identity) = self.has(number)? {
                open.push((number, identity));
            }
        }
        Ok(open)
    }

    /// Examines a descriptor. `None`: it is on another file system, in the view of a transaction of
    /// this process, the library's or the server's own, or of a snapshot; or it is stale and cannot
    /// be used.
    pub fn has(&self, number: RawFd) -> Result<Option<FileIdentity>> {
        let Ok(identity) = FileIdentity::of(borrow(number)) else { return Ok(None) };
        let is_here = identity.device == self.mount.device
            && identity.inode >> 32 < SERVERS
            && !ours::shows_view(identity.mount)
            && !ours::is_own(number)
            && !is_in_views(number, self.mount)
            // Most descriptors on the volume are on this mount of it. A descriptor on another mount
            // may belong to an aborted transaction.
            && (identity.mount == self.mount.id || !file_identity::is_stale(borrow(number)));
        Ok(is_here.then_some(identity))
    }
}

/// The upper half of an inode number at which the server's own inodes and those of snapshots begin.
const SERVERS: u64 = 0x8000_0000;

/// Whether it was opened below the folder of the views.
fn is_in_views(number: RawFd, mount: &Mount) -> bool {
    let path = fs::read_link(format!("/proc/thread-self/fd/{number}"));
    path.is_ok_and(|path| path.starts_with(mount.point.join(FOLDER)))
}

/// The name of a descriptor for messages.
pub fn name_of(number: RawFd) -> String {
    match number {
        0 => "standard input".to_string(),
        1 => "standard output".to_string(),
        2 => "standard error".to_string(),
        n => format!("descriptor {n}"),
    }
}

fn refuse(number: RawFd, path: &Path, why: &str) -> Error {
    Error::Busy {
        what: format!("{} ({}) {why}", name_of(number), path.display()),
        hint: format!(
            "Its use would not be part of the transaction: close it (in a shell: {number}>&-), or redirect it \
             to a file that is not on the volume."
        ),
    }
}

fn list(scope: Scope) -> Result<Vec<(RawFd, FdFlags)>> {
    let list =
        fs::read_dir("/proc/thread-self/fd").map_err(|e| Error::system("list the open descriptors", e))?;
    let mut numbers: Vec<(RawFd, FdFlags)> = list
        .filter_map(|entry| {
            let number = entry.ok()?.file_name().to_str()?.parse().ok()?;
            Some((number, fcntl_getfd(borrow(number)).ok()?))
        })
        .filter(|(_, flags)| scope == Scope::All || !flags.contains(FdFlags::CLOEXEC))
        .collect();
    numbers.sort_unstable_by_key(|(number, _)| *number);
    Ok(numbers)
}

fn borrow(number: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the process has this number, or had it. If another thread closes it concurrently, a
    // call fails with EBADF or examines another file, and a file is changed only after it was found
    // to be on the volume.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Makes `number` refer to the file of `file`.
fn replace(number: RawFd, flags: FdFlags, file: &OwnedFd) -> Result<()> {
    let cloexec = if flags.contains(FdFlags::CLOEXEC) { libc::O_CLOEXEC } else { 0 };
    // SAFETY: dup3 takes numbers and no memory. `number` belongs to the program, not to a value in
    // this crate.
    match unsafe { libc::dup3(file.as_raw_fd(), number, cloexec) } {
        -1 => Err(Error::system(
            format_args!("put descriptor {number} into the transaction"),
            std::io::Error::last_os_error(),
        )),
        _ => Ok(()),
    }
}

/// Whether two descriptors share offset and flags.
fn same_description(a: RawFd, b: RawFd) -> bool {
    const KCMP_FILE: libc::c_int = 0;
    let own = std::process::id();
    // SAFETY: kcmp takes numbers and no memory.
    match unsafe { libc::syscall(libc::SYS_kcmp, own, own, KCMP_FILE, a, b) } {
        -1 => looks_same(a, b),
        order => order == 0,
    }
}

/// For kernels without kcmp. Two descriptions of one file with the same flags and offset count as
/// one: a shared offset is the meaning of a shell's `2>&1`, and the other case is rare.
fn looks_same(a: RawFd, b: RawFd) -> bool {
    let facts = |number| {
        let file = borrow(number);
        Some((fcntl_getfl(file).ok()?, seek(file, SeekFrom::Current(0)).ok()))
    };
    facts(a) == facts(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_distinguished() {
        let file = tempfile::tempfile().unwrap();
        let shared = file.try_clone().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let other = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert!(same_description(file.as_raw_fd(), shared.as_raw_fd()));
        assert!(!same_description(file.as_raw_fd(), other.as_raw_fd()));
    }

    #[test]
    fn a_refusal_names_the_descriptor_and_the_way_out() {
        let text = refuse(2, Path::new("/mnt/log (deleted)"), "is a deleted file on the volume").to_string();
        assert!(text.starts_with("standard error (/mnt/log (deleted)) is a deleted file"), "{text}");
        assert!(text.contains("2>&-"), "{text}");
        assert!(refuse(7, Path::new("/mnt/p"), "is x").to_string().starts_with("descriptor 7 (/mnt/p)"));
    }
}
