//! The mounts of the volume, and the view over them.

use crate::closed;
use crate::identity::as_administrator;
use crate::mountinfo;
use crate::path::Path;
use crate::refusal::{Refusal, Result};
use crate::sys::{self, Descriptor, Status};

/// Mounts of one volume that are covered at most.
const MOUNTS_MAX: usize = 16;

const NOT_XACT: Refusal = Refusal::new("the folder is not the mount point of a whole xact volume");
const NOT_OWNED: Refusal = Refusal::new("the transaction does not exist, or belongs to another user");

/// A mount of the volume that the caller can reach.
struct Target {
    /// The root of the mount.
    file: Descriptor,
    mount: u64,
}

/// Puts the view of a transaction over every mount of its volume.
pub fn cover(point: &Path, transaction: u64) -> Result<()> {
    let opened = sys::open_resolved(point).map_err(|error| Refusal::system("open the mount point", error))?;
    let status = opened.status()?;
    if !status.is_directory() || !status.is_mount_root || !opened.is_fuse()? {
        return Err(NOT_XACT);
    }
    let view = open_view(&opened, transaction, &status)?;
    let (targets, is_xact) = find(&status)?;
    let targets = || targets.iter().flatten();
    if !is_xact || !targets().any(|target| target.mount == status.mount) {
        return Err(NOT_XACT);
    }
    // A mount on a covered one would be hidden. It may be root's, so nothing takes its place.
    mountinfo::each(|entry| match targets().any(|target| target.mount == entry.parent) {
        true => Err(Refusal::new("something is mounted inside the volume")),
        false => Ok(()),
    })?;
    for target in targets() {
        let restrictions = target.file.restrictions()?;
        let moved = as_administrator(|| {
            let copy = sys::copy_mount(&view)?;
            sys::restrict_mount(&copy, restrictions)?;
            sys::move_mount(&copy, &target.file)?;
            Ok(copy)
        })?;
        if target.mount == status.mount {
            verify(point, &moved)?;
        }
    }
    Ok(())
}

/// The root of the transaction's view. The kernel lets only the owner of the transaction's folder
/// and root look into it; the process has no rights of root.
fn open_view(volume: &Descriptor, transaction: u64, at: &Status) -> Result<Descriptor> {
    let below = |name| {
        let path = Path::of_transaction(transaction, name).ok_or(NOT_OWNED)?;
        sys::open_below(volume, &path).map_err(|_| NOT_OWNED)
    };
    let folder = below("")?.fresh_status()?;
    if folder.user != sys::real_ids().0 || folder.mode != libc::S_IFDIR | 0o700 {
        return Err(NOT_OWNED);
    }
    let view = below("/root")?;
    let status = view.status()?;
    if !status.is_directory() || status.device != at.device || status.mount != at.mount {
        return Err(NOT_OWNED);
    }
    Ok(view)
}

/// The mounts of the volume that are reached by their paths, and whether the one in `status` is of
/// xact.
fn find(status: &Status) -> Result<([Option<Target>; MOUNTS_MAX], bool)> {
    let mut targets = [const { None }; MOUNTS_MAX];
    let mut count = 0;
    let mut is_xact = false;
    mountinfo::each(|entry| {
        if entry.device != status.device || entry.is_view() {
            return Ok(());
        }
        let point = entry.point()?;
        let Some(target) = open_target(entry, &point)? else { return Ok(()) };
        // In the view, the caller may have put another folder at the place of the part.
        if entry.root != b"/" {
            return Err(Refusal::new("a part of the volume is mounted elsewhere"));
        }
        closed::check(&point, status.device)?;
        is_xact |= entry.id == status.mount && entry.is_xact();
        if count == MOUNTS_MAX {
            return Err(Refusal::new("the volume is mounted in too many places"));
        }
        targets[count] = Some(target);
        count += 1;
        Ok(())
    })?;
    Ok((targets, is_xact))
}

/// `None`: another mount hides this one, or the caller has no permission to reach it.
fn open_target(entry: &mountinfo::Entry<'_>, point: &Path) -> Result<Option<Target>> {
    let file = match sys::open_resolved(point) {
        Err(libc::EACCES | libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => return Ok(None),
        opened => opened.map_err(|error| Refusal::system("open a mount of the volume", error))?,
    };
    let shown = file.status()?;
    let is_this = shown.mount == entry.id && shown.device == entry.device && shown.is_mount_root;
    Ok(is_this.then_some(Target { file, mount: shown.mount }))
}

/// Whether the path leads to the view.
fn verify(point: &Path, view: &Descriptor) -> Result<()> {
    let shown = sys::open_resolved(point).map_err(|error| Refusal::system("open the view", error))?;
    match shown.status()?.mount == view.status()?.mount {
        true => Ok(()),
        false => Err(Refusal::new("something else was mounted over the view at the same time")),
    }
}
