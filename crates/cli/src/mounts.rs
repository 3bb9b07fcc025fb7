//! Mounted volumes: which mount a path lies in.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD};
pub use xact_namespace::mount::Mount;
pub use xact_namespace::mounts::{all, mount_id, of_process, owners};

use crate::control;
use crate::exit::{Exit, Failure, Result};

/// The xact mount that `path` lies in: the mount point itself, anything below it, or a bind mount
/// of that.
pub fn containing(path: &Path) -> Result<Mount> {
    let id = mount_id(CWD, path, AtFlags::empty()).map_err(|e| match e {
        rustix::io::Errno::NOTCONN => dead(path),
        rustix::io::Errno::ACCESS if below_fuse(path) => no_permission(path),
        e => Failure::system(format_args!("look at {}", path.display()), e),
    })?;
    let mount = all()?.into_iter().find(|m| m.id == id);
    let none = || {
        let what = match path {
            here if here == Path::new(".") => "the current folder".to_owned(),
            path => path.display().to_string(),
        };
        Failure::new(Exit::Unavailable, format!("{what} is not on a mounted xact volume"))
            .hint("Mount one with 'xact mount IMG MNT', or name a folder where one is mounted.")
    };
    let mount = mount.filter(Mount::is_fuse).ok_or_else(none)?.of_the_whole()?;
    // The daemon is asked, because other FUSE servers have the same file system type.
    match control::serves(&mount.point) {
        Ok(true) => Ok(mount),
        Ok(false) => Err(none()),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => Err(dead(&mount.point)),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(no_permission(&mount.point)),
        Err(e) => Err(Failure::system(format_args!("query the mount at {}", mount.point.display()), e)),
    }
}

/// The mount whose mount point is `path`, even if its daemon has died.
pub fn mounted_at(path: &Path) -> Result<Mount> {
    let point = absolute(path)?;
    all()?.into_iter().rfind(|m| m.point == point && m.is_fuse()).ok_or_else(|| {
        Failure::new(Exit::Unavailable, format!("no xact volume is mounted at {}", point.display()))
            .hint("'xact list' lists the mounted volumes.")
    })
}

/// The image files and devices that the daemon of a mount may have locked: the source and, if that
/// is a loop device, the file behind it.
pub fn images(mount: &Mount) -> Vec<PathBuf> {
    let mut images = vec![mount.source.clone()];
    images.extend(xact::device::file_of_loop_device(&mount.source));
    images
}

/// The image of a mount: its source, or the file behind the loop device that the daemon has made
/// for the mount. Such a device is detached with the last user (autoclear).
pub fn image(mount: &Mount) -> PathBuf {
    let file = xact::device::file_of_loop_device(&mount.source);
    file.filter(|_| xact::device::is_autoclear(&mount.source)).unwrap_or_else(|| mount.source.clone())
}

/// Whether the path is on a FUSE mount, judged by its text alone.
fn below_fuse(path: &Path) -> bool {
    let Ok(path) = std::path::absolute(path) else { return false };
    all().is_ok_and(|mounts| mounts.iter().any(|m| m.is_fuse() && path.starts_with(&m.point)))
}

fn no_permission(path: &Path) -> Failure {
    Failure::new(Exit::NoPermission, format!("no permission to use the mount at {}", path.display()))
        .hint("Another user mounted it without -o allow_other.")
}

fn dead(path: &Path) -> Failure {
    Failure::new(
        Exit::Unavailable,
        format!("the daemon of the volume mounted at {} has died", path.display()),
    )
    .hint("Unmount it with 'xact umount', then mount the image again, which recovers it.")
}

/// `path` without symbolic links, even if its last part is a mount whose daemon does not answer.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => {
            let path = std::path::absolute(path)
                .map_err(|e| Failure::system(format_args!("find {}", path.display()), e))?;
            match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) if !parent.as_os_str().as_bytes().is_empty() => {
                    Ok(absolute(parent)?.join(name))
                }
                _ => Ok(path),
            }
        }
        Err(e) => Err(Failure::system(format_args!("find {}", path.display()), e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_folder_is_no_xact_mount() {
        let failure = containing(Path::new("/")).unwrap_err();
        assert_eq!(failure.exit, Exit::Unavailable);
        assert!(failure.hint.unwrap().contains("xact mount"));
    }

    #[test]
    fn a_missing_path_is_no_input() {
        assert_eq!(containing(Path::new("/no/such/path")).unwrap_err().exit, Exit::NoInput);
        assert_eq!(mounted_at(Path::new("/no/such/path")).unwrap_err().exit, Exit::NoInput);
    }
}
