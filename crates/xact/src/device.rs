//! Devices by their names: `xact::device::open("disk.img", …)`.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use xact_device::{
    BlockDevice, CountingDevice, DeviceCounts, FileDevice, MemoryDevice, OpenMode, Overlay,
};
use xact_types::{Error, Result};

/// The kinds of devices that [`open`] knows, for messages.
const KINDS: &str = "paths of image files and block devices, and file: URLs";

/// Opens the device with this name: the path of an image file or a block device, or a URL.
///
/// `file:` URLs name a path (`file:disk.img`, `file:///srv/disk.img`); no character of it is
/// escaped. Other URLs (`SCHEME://…`) name no known kind of device.
///
/// ```
/// # fn main() -> xact::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let image = dir.path().join("disk.img");
/// # std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
/// # let image = image.to_str().unwrap();
/// use xact::device::{OpenMode, open};
/// let device = open(&format!("file://{image}"), OpenMode::ReadWrite)?;
/// assert_eq!(device.size_bytes(), 1 << 20);
/// assert!(open("nbd://host/export", OpenMode::ReadOnly).is_err());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Usage`] for an unknown kind of device, and for a `file:` URL of another host;
/// [`Error::InUse`] where another process has it open, or a loop device is attached to the image
/// that is to be written; [`Error::Io`] as `open(2)`, with `InvalidInput` where it is neither a
/// regular file nor a block device.
pub fn open(name: impl AsRef<OsStr>, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
    let name = name.as_ref();
    let path = path_of(name)?;
    if mode == OpenMode::ReadWrite
        && let Some(device) = attached_loop_device(path)
    {
        let name = path.display();
        return Err(Error::InUse(format!("{name} is attached to the loop device {device}")));
    }
    match FileDevice::open(path, mode) {
        Ok(device) => Ok(Arc::new(device)),
        Err(e) if is_busy(&e) => {
            Err(Error::InUse(format!("{} is mounted, or another process works on it", path.display())))
        }
        Err(e) => Err(Error::io("opening the device", e)),
    }
}

/// Whether an error of [`FileDevice::open`] says that another process has the device.
pub fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::EBUSY)
}

/// Whether an error of [`FileDevice::open`] says that this user, or any, cannot write the device.
pub fn is_unwritable(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// The path that the name of a device stands for.
fn path_of(name: &OsStr) -> Result<&Path> {
    let bytes = name.as_bytes();
    if let Some(rest) = bytes.strip_prefix(b"file:") {
        return match rest.strip_prefix(b"//") {
            // The host before the path, which is this one.
            Some(rest) if rest.starts_with(b"localhost/") => {
                Ok(Path::new(OsStr::from_bytes(&rest["localhost".len()..])))
            }
            Some(rest) if rest.starts_with(b"/") => Ok(Path::new(OsStr::from_bytes(rest))),
            Some(_) => Err(Error::Usage(format!(
                "{} names another host: a file: URL has an absolute path behind //",
                name.display()
            ))),
            None => Ok(Path::new(OsStr::from_bytes(rest))),
        };
    }
    match scheme(bytes) {
        Some(scheme) => Err(Error::Usage(format!(
            "devices of the kind {} are not supported: xact opens {KINDS}",
            String::from_utf8_lossy(scheme)
        ))),
        None => Ok(Path::new(name)),
    }
}

/// The text before `://`, where it is a scheme of URLs (RFC 3986).
fn scheme(name: &[u8]) -> Option<&[u8]> {
    let len = name.windows(3).position(|three| three == b"://")?;
    let scheme = &name[..len];
    let may_follow = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    (scheme.first()?.is_ascii_alphabetic() && scheme.iter().all(may_follow)).then_some(scheme)
}

/// The loop device that an image file is attached to, as `/dev/loop0`.
///
/// The kernel takes no lock on the file behind a loop device, and two writers on one image would
/// ruin it.
pub fn attached_loop_device(image: &Path) -> Option<String> {
    let identity = |about: fs::Metadata| (about.dev(), about.ino());
    let image = identity(fs::metadata(image).ok()?);
    // Not every system has loop devices.
    fs::read_dir("/sys/block").ok()?.flatten().find_map(|device| {
        let backing = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        let device = format!("/dev/{}", device.file_name().to_string_lossy());
        // The device itself knows the file even where its path means another one, or none.
        let attached = identity_behind(Path::new(&device))
            .or_else(|| fs::metadata(backing.trim_end_matches('\n')).ok().map(identity))?;
        (attached == image).then_some(device)
    })
}

/// Device and inode number of the file behind a loop device, for users who may open it.
fn identity_behind(device: &Path) -> Option<(u64, u64)> {
    const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
    let device = fs::File::open(device).ok()?;
    // `struct loop_info64` of linux/loop.h: 232 bytes that begin with the two numbers.
    let mut info = [0_u64; 29];
    // SAFETY: the ioctl writes one struct of this size, and the pointer outlives the call.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, info.as_mut_ptr()) };
    (done == 0).then_some((info[0], info[1]))
}

/// The file that a loop device (`/dev/loop0`, or a partition of it) is attached to.
pub fn file_of_loop_device(device: &Path) -> Option<PathBuf> {
    Some(PathBuf::from(about_loop_device(device, "backing_file")?))
}

/// Whether the kernel detaches a loop device when its last user closes it.
pub fn is_autoclear(device: &Path) -> bool {
    about_loop_device(device, "autoclear").as_deref() == Some("1")
}

/// A property of a loop device in `/sys`.
fn about_loop_device(device: &Path, property: &str) -> Option<String> {
    let name = device.strip_prefix("/dev").ok()?.to_str()?.strip_prefix("loop")?;
    // Without the number of a partition.
    let number = name.split('p').next()?;
    let text = fs::read_to_string(format!("/sys/block/loop{number}/loop/{property}")).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        let path = |name: &'static str| path_of(OsStr::new(name)).map(|path| path.to_str().unwrap());
        assert_eq!(path("disk.img").unwrap(), "disk.img");
        assert_eq!(path("/dev/sdb1").unwrap(), "/dev/sdb1");
        assert_eq!(path("a:b").unwrap(), "a:b");
        assert_eq!(path("./nbd://x").unwrap(), "./nbd://x");
        assert_eq!(path("file:disk.img").unwrap(), "disk.img");
        assert_eq!(path("file:/srv/disk.img").unwrap(), "/srv/disk.img");
        assert_eq!(path("file:///srv/a b.img").unwrap(), "/srv/a b.img");
        assert_eq!(path("file://localhost/srv/disk.img").unwrap(), "/srv/disk.img");
        assert!(path("file://other/srv/disk.img").unwrap_err().to_string().contains("another host"));
        let unknown = path("nbd+tls://host/export").unwrap_err();
        assert!(matches!(unknown, Error::Usage(_)));
        assert_eq!(
            unknown.to_string(),
            "devices of the kind nbd+tls are not supported: xact opens paths of image files and block \
             devices, and file: URLs"
        );
    }

    #[test]
    fn a_device_in_use_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let held = open(file.path(), OpenMode::ReadWrite).ok().unwrap();
        assert!(matches!(open(file.path(), OpenMode::ReadOnly), Err(Error::InUse(_))));
        drop(held);
        assert!(open(file.path(), OpenMode::ReadOnly).is_ok());
        assert!(matches!(open("/no/such.img", OpenMode::ReadOnly), Err(Error::Io { .. })));
    }
}
