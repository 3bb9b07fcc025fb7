//! A loop device over an image file: the block device that a mount of the type `fuseblk` needs.
//!
//! The daemon's own reads and writes go to the image, never through the loop device. The kernel
//! detaches the device when its last user closes it (autoclear): the mount, also if the daemon was
//! killed. It keeps the daemon's open file, and with it the lock on the image, for as long.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const FLAG_READ_ONLY: u32 = 1;
const FLAG_AUTOCLEAR: u32 = 4;
/// How often another process may take the number that the kernel has offered.
const TRIES: u32 = 64;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

/// A loop device that exists as long as this, or a mount of it.
pub struct LoopDevice {
    pub path: PathBuf,
    _file: File,
}

impl LoopDevice {
    /// Attaches a free loop device to `image`. Needs root, and `/dev/loop-control`.
    pub fn attach(image: &File, image_path: &Path, read_only: bool) -> io::Result<LoopDevice> {
        let control = File::options().read(true).write(true).open("/dev/loop-control")?;
        let mut file_name = [0; 64];
        let name = image_path.as_os_str().as_encoded_bytes();
        let shown = name.len().min(file_name.len() - 1);
        file_name[..shown].copy_from_slice(&name[..shown]);
        for _ in 0..TRIES {
            // SAFETY: the ioctl has no argument.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let file = File::options().read(true).write(!read_only).open(&path)?;
            // SAFETY: all-zero is a valid value of this struct of numbers and bytes.
            let mut config: LoopConfig = unsafe { std::mem::zeroed() };
            config.fd = image.as_raw_fd() as u32;
            config.info.flags = FLAG_AUTOCLEAR | if read_only { FLAG_READ_ONLY } else { 0 };
            config.info.file_name = file_name;
            // SAFETY: the ioctl reads one struct through the pointer, which outlives the call.
            if unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CONFIGURE as _, &config) } == 0 {
                return Ok(LoopDevice { path, _file: file });
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(error);
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }
}
