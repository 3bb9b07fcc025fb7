//! The mount namespace in which the view of a transaction covers the volume.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind_recursive, mount_change, unmount};
use rustix::process::{chroot, fchdir, getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use xact_control::abi::FOLDER;

use crate::file_identity::FileIdentity;
use crate::long_path;
use crate::mount::Mount;
use crate::mounts;
use crate::ours::{self, Own};
use crate::{Error, Result};

/// The view in this namespace.
pub struct Bound {
    /// Ids of the mounts through which the view is reached.
    ids: Vec<u64>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        ours::remove_views(&self.ids);
    }
}

impl Bound {
    /// The view of transaction `id`, which covers the volume of `mount` in the namespace of this
    /// process already.
    pub fn existing(mount: &Mount, id: u64) -> Result<Bound> {
        let root = Path::new("/").join(FOLDER).join(format!("tx/{id}/root"));
        let table = mounts::all()?;
        let ids: Vec<u64> =
            table.iter().filter(|m| m.device == mount.device && m.root == root).map(|m| m.id).collect();
        if ids.is_empty() {
            return Err(Error::NoVolume(format!("the view of transaction {id} is not mounted here")));
        }
        ours::add_views(&ids);
        Ok(Bound { ids })
    }

    /// Moves the current folder, if it is on the volume, into the view.
    pub fn enter_current_folder(&self, mount: &Mount) -> Result<()> {
        current_folder(mount)?.map_or(Ok(()), |folder| enter_folder(&folder, self))
    }

    /// Whether a mount with this id shows the view.
    pub fn shows(&self, mount_id: u64) -> bool {
        self.ids.contains(&mount_id)
    }

    /// Whether the current folder is in it.
    pub fn has_current_folder(&self) -> bool {
        mounts::mount_id(CWD, Path::new("."), AtFlags::STATX_DONT_SYNC).is_ok_and(|id| self.shows(id))
    }
}

/// A mount namespace of this process, in which a view is to cover every mount of the volume.
pub struct Namespace {
    /// The folder of the views, held by a descriptor, since a view will hide it.
    views: OwnedFd,
    /// The mounts of the volume: the folder that each shows, and its mount point.
    points: Vec<(PathBuf, PathBuf)>,
    /// File systems that are mounted inside the volume and keep their places.
    inside: Vec<(OwnedFd, PathBuf)>,
    /// The current folder, if it is on the volume.
    folder: Option<PathBuf>,
    shown: bool,
}

/// Whether a process may enter a user namespace, which it can never leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserNamespace {
    Accepted,
    Refused,
}

/// The namespace of a thread before a temporary move into another.
pub struct Home {
    namespace: Own,
    root: Own,
    folder: Own,
}

impl Home {
    pub fn here() -> Result<Home> {
        let path = |path: &str, flags| {
            let opened = open(path, flags | OFlags::CLOEXEC, Mode::empty());
            opened.map(Own::new).map_err(|e| Error::system(format_args!("open {path}"), e))
        };
        Ok(Home {
            namespace: path("/proc/thread-self/ns/mnt", OFlags::RDONLY)?,
            root: path("/", OFlags::PATH)?,
            folder: path(".", OFlags::PATH)?,
        })
    }

    /// Moves the thread back. On an error the thread stays.
    pub fn go(&self) -> Result<()> {
        // In the view's namespace this thread may be the last one, so there may be no other thread
        // to return through.
        let here = Home::here()?;
        self.enter().inspect_err(|_| _ = here.enter())
    }

    fn enter(&self) -> Result<()> {
        let wrong = |e| {
            let hint = "The transaction remains open, and the thread in it. To leave it, the thread needs the privileges \
                        that it had at the begin.";
            Error::refused("leave the namespace of the transaction", e, Some(hint))
        };
        // Threads that this one has started share its root and folder. The kernel refuses the move
        // while they do.
        unshare_now(UnshareFlags::FS).map_err(wrong)?;
        move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Mount)).map_err(wrong)?;
        fchdir(&self.root).map_err(wrong)?;
        chroot(".").map_err(wrong)?;
        fchdir(&self.folder).map_err(wrong)
    }
}

impl Namespace {
    /// As [`Namespace::enter`] for this thread alone, which returns later. A process without the
    /// right to make a mount namespace enters a user namespace for the rest of its life, the first
    /// time, if it has allowed that.
    pub fn visit(mount: &Mount, user: UserNamespace) -> Result<(Home, Namespace)> {
        let mut home = Home::here()?;
        let mut unshared = unshare_now(UnshareFlags::NEWNS);
        if unshared == Err(Errno::PERM) {
            if user == UserNamespace::Refused {
                let hint = "Use xact_tx_begin (Python: xact.folder), which needs no privilege, or begin with \
                            XACT_BEGIN_USER_NAMESPACE (Python: user_namespace=True), which keeps the process in a \
                            user namespace until it exits.";
                return Err(Error::refused("make a mount namespace", Errno::PERM, Some(hint)));
            }
            unshare_user()?;
            home = Home::here()?;
            unshared = unshare_now(UnshareFlags::NEWNS);
        }
        unshared.map_err(|e| Error::refused("make a mount namespace", e, None))?;
        match Namespace::here(mount) {
            Ok(namespace) => Ok((home, namespace)),
            Err(error) => {
                home.go()?;
                Err(error)
            }
        }
    }

    /// Moves this process into a mount namespace of its own. Changes nothing on the volume. `None`:
    /// it has no right to make one.
    pub fn enter(mount: &Mount) -> Result<Option<Namespace>> {
        match unshare_now(UnshareFlags::NEWNS) {
            Err(Errno::PERM) => Ok(None),
            Err(e) => Err(Error::refused("make a mount namespace", e, None)),
            Ok(()) => Namespace::here(mount).map(Some),
        }
    }

    /// The same inside of a user namespace, which needs no right. In it every other user appears as
    /// the overflow user.
    pub fn enter_as_user(mount: &Mount) -> Result<Namespace> {
        unshare_user()?;
        Namespace::here(mount)
    }

    /// The namespace that this thread has just created.
    fn here(mount: &Mount) -> Result<Namespace> {
        let table = mounts::all()?;
        // The other mounts of the same volume, also of its folders: a path through any of them
        // would bypass the transaction.
        let same: Vec<&Mount> = table.iter().filter(|m| m.device == mount.device && !m.is_view()).collect();
        if same.iter().any(|m| m.point == Path::new("/")) {
            return Err(Error::Busy {
                what: "the volume is the root file system of this process".into(),
                hint: "Start the transaction from a process with another root.".into(),
            });
        }
        let folder = current_folder(mount)?;
        keep_to_ourselves(&table)
            .map_err(|e| Error::refused("make the mounts of the new namespace private", e, None))?;
        // Opened in this namespace, since mounts of another one cannot be bound.
        let views = mount.point.join(FOLDER).join("tx");
        let views = open(&views, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::system(format_args!("open {}", views.display()), e))?;
        let inside = mounted_inside(&table, &same)?;
        // In the order of mountinfo: a mount comes before those inside it.
        let points = same.iter().map(|m| (m.root.clone(), m.point.clone())).collect();
        Ok(Namespace { views, points, inside, folder, shown: false })
    }

    /// Covers the volume with the view of a transaction, in place of an earlier view, and moves the
    /// current folder into it.
    pub fn show(&mut self, id: u64) -> Result<Bound> {
        if self.shown {
            for (_, point) in self.points.iter().rev() {
                unmount(point, UnmountFlags::DETACH).map_err(|e| {
                    Error::refused(format_args!("remove the last view from {}", point.display()), e, None)
                })?;
            }
        }
        self.shown = true;
        let root = format!("{id}/root");
        let view = openat(&self.views, &root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::system(format_args!("open the view of transaction {id}"), e))?;
        let mut ids = Vec::new();
        for (root, point) in &self.points {
            let source = descriptor_path(&view).join(root.strip_prefix("/").unwrap_or(root));
            bind(&source, point)?;
            ids.push(id_of(point)?);
            ours::add_views(&ids[ids.len() - 1..]);
        }
        for (file_system, point) in &self.inside {
            bind(&descriptor_path(file_system), point)?;
        }
        let bound = Bound { ids };
        if let Some(folder) = &self.folder {
            enter_folder(folder, &bound)?;
        }
        Ok(bound)
    }
}

/// The topmost file systems mounted inside the volume, each held by a descriptor. Mounts in this
/// namespace stay private from now on.
fn keep_to_ourselves(table: &[Mount]) -> rustix::io::Result<()> {
    match mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC) {
        // The root of a chroot need not be a mount point. The table has the mounts that are visible
        // from it.
        Err(Errno::INVAL) => {
            table.iter().try_for_each(|mount| mount_change(&mount.point, MountPropagationFlags::DOWNSTREAM))
        }
        done => done,
    }
}

fn mounted_inside(table: &[Mount], same: &[&Mount]) -> Result<Vec<(OwnedFd, PathBuf)>> {
    let mut points: Vec<&Path> = Vec::new();
    for mount in table {
        let on_volume = same.iter().any(|s| mount.point != s.point && mount.point.starts_with(&s.point));
        let foreign = !same.iter().any(|s| s.id == mount.id || s.point.starts_with(&mount.point));
        if on_volume && foreign && !points.iter().any(|p| mount.point.starts_with(p)) {
            points.push(&mount.point);
        }
    }
    points
        .into_iter()
        .map(|point| {
            open(point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                .map(|file_system| (file_system, point.to_path_buf()))
                .map_err(|e| Error::system(format_args!("open {}", point.display()), e))
        })
        .collect()
}

/// The current folder, if it is on the volume.
fn current_folder(mount: &Mount) -> Result<Option<PathBuf>> {
    let here =
        FileIdentity::of_path(Path::new(".")).map_err(|e| Error::system("look at the current folder", e))?;
    if here.device != mount.device {
        return Ok(None);
    }
    match std::env::current_dir() {
        Ok(path) => Ok(Some(path)),
        Err(error) => Err(Error::System {
            doing: "find the path of the current folder".into(),
            error,
            resource: false,
            hint: Some("It is on the volume, and the transaction needs its path: start from another folder."),
        }),
    }
}

fn enter_folder(folder: &Path, bound: &Bound) -> Result<()> {
    let wrong = |e| Error::system(format_args!("enter {} in the transaction", folder.display()), e);
    long_path::enter(folder).map_err(wrong)?;
    if bound.shows(id_of(Path::new("."))?) {
        Ok(())
    } else {
        Err(Error::Busy {
            what: format!("the current folder cannot be reached by its path {}", folder.display()),
            hint: "Something else is mounted over it: start from another folder.".into(),
        })
    }
}

/// Makes a mount namespace inside a user namespace, in which this user may mount.
fn unshare_user() -> Result<()> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    unshare_now(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(|e| {
        let hint = match e {
            Errno::INVAL => {
                "Only a process with one thread may do this: begin the first transaction before starting a thread, \
                 run as root, or use xact_tx_begin (Python: xact.folder), which needs no privilege."
            }
            _ => {
                "This system does not allow ordinary users to make user namespaces: run as root, or set the \
                 sysctls user.max_user_namespaces and kernel.unprivileged_userns_clone."
            }
        };
        Error::refused("make a user namespace", e, Some(hint))
    })?;
    // Without the right to change groups, the kernel requires that setgroups is off before the map
    // is written.
    let maps = [
        ("setgroups", "deny".to_string()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ];
    for (file, text) in maps {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(|e| Error::refused("map this user into the user namespace", e, None))?;
    }
    Ok(())
}

fn unshare_now(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the flags touch namespaces only, not the descriptor table or the memory that other
    // code may rely on to be shared, and this process has one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

fn bind(source: &Path, point: &Path) -> Result<()> {
    mount_bind_recursive(source, point).map_err(|e| {
        Error::refused(format_args!("put the transaction's view over {}", point.display()), e, None)
    })
}

/// The id of the topmost mount at `path`.
fn id_of(path: &Path) -> Result<u64> {
    mounts::mount_id(CWD, path, AtFlags::STATX_DONT_SYNC)
        .map_err(|e| Error::system(format_args!("look at {}", path.display()), e))
}

fn descriptor_path(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/thread-self/fd/{}", file.as_raw_fd()))
}
