//! Mounting and unmounting: by mount(2) for privileged users, through `fusermount3` for all others.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use xact::device::FileDevice;
use xact_types::settings::{Id, Value};
use xact_types::{Error, Result};

use crate::transport::channel::open_device;
use crate::transport::loop_device::LoopDevice;

/// How to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The device in `df` and `/proc/mounts`: the path of the image.
    pub source: PathBuf,
    pub read_only: bool,
    /// Whether other users may use the mount, as they may an ext4 mount; permission bits decide.
    /// The default is yes for root, and no for other users, who need `user_allow_other` in
    /// /etc/fuse.conf for it.
    pub allow_other: Option<bool>,
    /// Whether a thread that makes most of the calls is served from its own CPU.
    pub single_caller: bool,
    /// Whether the type is `fuseblk`; `None`: if that is possible.
    pub fuseblk: Option<bool>,
    /// Whether other programs are kept from opening the image for writing; `None`: if that is
    /// possible.
    pub exclusive: Option<bool>,
    /// Whether watchers (inotify, fanotify) get events of commits.
    pub notify: bool,
    /// Flags of mount(2).
    flags: u64,
    /// All settings that were given, in their order: a remount compares with them.
    given: Vec<(Id, Option<Value>)>,
}

/// The type of a mount in `/proc/mounts` without a block device. mount(8) and umount(8) derive the
/// names of the programs that they call from it: `mount.fuse.xact` and `umount.fuse.xact`.
const TYPE: &CStr = c"fuse.xact";
/// The type with a block device.
const BLOCK_TYPE: &CStr = c"fuseblk.xact";

/// A mount that was made.
pub struct Mounted {
    /// The connection's device.
    pub device: OwnedFd,
    /// Whether it has a block device as its source; if not, the reason.
    pub block_device: std::result::Result<(), String>,
}

/// Linux 5.10; the libc crate has no name for it.
const MS_NOSYMFOLLOW: u64 = 256;

/// Options that are flags of mount(2).
const FLAGS: [(Id, u64); 8] = [
    (Id::NoSuid, libc::MS_NOSUID),
    (Id::NoDev, libc::MS_NODEV),
    (Id::NoExec, libc::MS_NOEXEC),
    (Id::NoSymFollow, MS_NOSYMFOLLOW),
    (Id::Sync, libc::MS_SYNCHRONOUS),
    (Id::DirSync, libc::MS_DIRSYNC),
    // For the table of mounts, as with the access times below.
    (Id::NoDirAtime, libc::MS_NODIRATIME),
    (Id::LazyTime, libc::MS_LAZYTIME),
];
/// Flags that fusermount3 does not know.
const UNKNOWN_TO_HELPER: u64 = libc::MS_LAZYTIME;

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            source: PathBuf::new(),
            read_only: false,
            allow_other: None,
            single_caller: Id::SingleCaller.setting().default_flag(),
            fuseblk: None,
            exclusive: None,
            notify: Id::Notify.setting().default_flag(),
            flags: 0,
            given: Vec::new(),
        }
    }
}

impl MountOptions {
    pub fn new(source: &Path) -> MountOptions {
        MountOptions { source: source.to_owned(), ..Default::default() }
    }

    /// Sets an option by its row in the table of settings; no value is the default. False if the
    /// option does not concern the mount.
    pub fn set(&mut self, id: Id, value: Option<Value>) -> bool {
        let is_on = value == Some(Value::Flag(true));
        self.given.push((id, value));
        match id {
            Id::ReadOnly => self.read_only = is_on,
            Id::AllowOther => self.allow_other = value.map(|_| is_on),
            Id::SingleCaller => {
                self.single_caller = value.map_or(MountOptions::default().single_caller, |_| is_on);
            }
            Id::FuseBlk => self.fuseblk = value.map(|_| is_on),
            Id::Exclusive => self.exclusive = value.map(|_| is_on),
            Id::Notify => self.notify = is_on,
            // For the table of mounts: the kernel itself keeps no access times on a FUSE mount. For
            // it, relatime is what applies without a flag.
            Id::AccessTimes => {
                let value = value.or(Id::AccessTimes.setting().default_value());
                self.set_flag(libc::MS_NOATIME, value == Some(Value::Choice(0)));
                self.set_flag(libc::MS_STRICTATIME, value == Some(Value::Choice(2)));
            }
            // Permissions always apply; the word needs nothing else.
            Id::Defaults => {}
            _ => match FLAGS.iter().find(|(flag, _)| *flag == id) {
                Some((_, flag)) => self.set_flag(*flag, is_on),
                None => return false,
            },
        }
        true
    }

    /// The value of a setting, or its default. `None`: a default that depends on something else.
    pub fn value(&self, id: Id) -> Option<Value> {
        let given = self.given.iter().rev().find(|(given, _)| *given == id).and_then(|(_, value)| *value);
        given.or(id.setting().default_value())
    }

    fn set_flag(&mut self, flag: u64, is_on: bool) {
        if is_on { self.flags |= flag } else { self.flags &= !flag }
    }

    /// Whether other users may use the mount.
    pub fn allows_other(&self) -> bool {
        self.allow_other.unwrap_or_else(is_root)
    }

    fn mount_flags(&self) -> u64 {
        self.flags | if self.read_only { libc::MS_RDONLY } else { 0 }
    }

    /// The `-o` argument of fusermount3.
    fn helper_options(&self) -> Vec<u8> {
        let mut options = b"default_permissions".to_vec();
        options.extend(if self.read_only { &b",ro"[..] } else { b",rw" });
        if self.allows_other() {
            options.extend(b",allow_other");
        }
        let names = FLAGS.iter().map(|(id, flag)| (id.setting().name, *flag));
        for (name, flag) in names.chain([("noatime", libc::MS_NOATIME)]) {
            if self.flags & flag & !UNKNOWN_TO_HELPER != 0 {
                options.push(b',');
                options.extend(name.as_bytes());
            }
        }
        options.extend(b",subtype=xact,fsname=");
        for &byte in self.source.as_os_str().as_bytes() {
            if byte == b',' || byte == b'\\' {
                options.push(b'\\');
            }
            options.push(byte);
        }
        options
    }
}

fn is_root() -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn c_string(bytes: &OsStr) -> io::Result<CString> {
    CString::new(bytes.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Mounts on `at` (an absolute path of a directory). `image`: the device of the volume, which a
/// mount with the type `fuseblk` needs.
pub fn mount(at: &Path, options: &MountOptions, image: Option<&FileDevice>) -> Result<Mounted> {
    match std::fs::metadata(at) {
        Ok(there) if there.is_dir() => {}
        Ok(_) => return Err(Error::Usage(format!("{} is not a directory", at.display()))),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => {
            let at = at.display();
            return Err(Error::Usage(format!(
                "{at} is the mount of a FUSE daemon that has ended: unmount it (umount {at}) and try again"
            )));
        }
        Err(e) => return Err(refused(at, &e.to_string())),
    }
    let block_device = match (image, options.fuseblk) {
        (_, Some(false)) => Err("the option nofuseblk was given".to_owned()),
        (None, _) => Err("the volume is not on a file".to_owned()),
        (Some(_), _) if !is_root() => Err("only root can mount with the type fuseblk".to_owned()),
        (Some(image), _) => {
            let device = new_device()?;
            match mount_block_device(&device, at, options, image) {
                Ok(()) => return Ok(Mounted { device, block_device: Ok(()) }),
                // The volume must not be served while another process may have the device.
                Err(BlockMountError::Taken(why)) => return Err(Error::InUse(why)),
                Err(BlockMountError::Refused(why)) => Err(why),
            }
        }
    };
    if let (Err(why), Some(true)) = (&block_device, options.fuseblk) {
        return Err(Error::Usage(format!("cannot mount with the type fuseblk: {why}")));
    }
    if is_root() {
        let device = new_device()?;
        match mount_directly(&device, at, options, TYPE, &options.source, "") {
            Ok(()) => return Ok(Mounted { device, block_device }),
            // Root of a container may not mount, but the container's fusermount3 may.
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
            Err(e) => return Err(refused(at, &e.to_string())),
        }
    }
    Ok(Mounted { device: mount_by_helper(at, options)?, block_device })
}

/// Mounts a block device at a second place that is mounted with the type `fuseblk` already. The
/// daemon that serves it is not asked. `EBUSY`: it is mounted with another type, or `ro` differs.
pub fn mount_again(at: &Path, options: &MountOptions) -> Result<()> {
    let device = new_device()?;
    mount_directly(&device, at, options, BLOCK_TYPE, &options.source, "")
        .map_err(|e| refused(at, &e.to_string()))
}

fn new_device() -> Result<OwnedFd> {
    open_device().map_err(|e| {
        Error::Usage(format!("cannot open /dev/fuse: {e} (does this system have FUSE? modprobe fuse)"))
    })
}

enum BlockMountError {
    /// The volume can be mounted with another type.
    Refused(String),
    /// Another process has claimed the device.
    Taken(String),
}

/// Mounts with the type `fuseblk`. The kernel claims the block device for the mount, so that this
/// process cannot hold its own claim during mount(2). The caller checks afterwards that the volume
/// is unchanged.
fn mount_block_device(
    device: &OwnedFd,
    at: &Path,
    options: &MountOptions,
    image: &FileDevice,
) -> std::result::Result<(), BlockMountError> {
    let refused = |e: io::Error, what: &str| BlockMountError::Refused(format!("{what}: {e}"));
    let kind = image.as_file().metadata().map_err(|e| refused(e, "looking at the image"))?.file_type();
    if kind.is_block_device() {
        let block_size = block_size(image.as_file()).map_err(|e| refused(e, "asking for the block size"))?;
        image.release_claim();
        let data = format!(",blksize={block_size}");
        let mounted = mount_directly(device, at, options, BLOCK_TYPE, &options.source, &data);
        return mounted.map_err(|e| match image.reclaim() {
            Ok(()) => refused(e, "mount(2)"),
            Err(e) => BlockMountError::Taken(format!(
                "another process took {} while it was being mounted: {e}",
                options.source.display()
            )),
        });
    }
    let source = LoopDevice::attach(image.as_file(), &options.source, options.read_only)
        .map_err(|e| refused(e, "attaching a loop device"))?;
    mount_directly(device, at, options, BLOCK_TYPE, &source.path, "").map_err(|e| refused(e, "mount(2)"))
}

/// The block size of the device's page cache. A mount with another one would empty that cache.
fn block_size(device: &File) -> io::Result<u64> {
    const BLKBSZGET: libc::c_ulong = 0x8008_1270;
    let mut size = 0_u64;
    // SAFETY: the ioctl writes an int, for which there is space, through the pointer.
    match unsafe { libc::ioctl(device.as_raw_fd(), BLKBSZGET as _, &mut size) } {
        0 => Ok(size & u64::from(u32::MAX)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The error for a refusal of the system, or of fusermount3. Missing permission is reported as an
/// `Io` error of the kind `PermissionDenied`.
fn refused(at: &Path, said: &str) -> Error {
    let said = said.strip_prefix("fusermount3: ").unwrap_or(said);
    let said = said.split(" (os error").next().unwrap_or(said);
    let said = format!("cannot mount on {}: {said}", at.display());
    let permission = ["ermission denied", "not permitted", "no write access", "user_allow_other"];
    if permission.iter().any(|words| said.contains(words)) {
        return Error::io("no permission", io::Error::new(io::ErrorKind::PermissionDenied, said));
    }
    Error::Usage(said)
}

fn mount_directly(
    device: &OwnedFd,
    at: &Path,
    options: &MountOptions,
    kind: &CStr,
    source: &Path,
    more: &str,
) -> io::Result<()> {
    // SAFETY: no arguments, cannot fail.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let allow_other = if options.allows_other() { ",allow_other" } else { "" };
    let fd = device.as_raw_fd();
    let data =
        format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},default_permissions{allow_other}{more}");
    let (source, at) = (c_string(source.as_os_str())?, c_string(at.as_os_str())?);
    let data = CString::new(data)?;
    // SAFETY: all pointers are to C strings that outlive the call.
    let done = unsafe {
        libc::mount(
            source.as_ptr(),
            at.as_ptr(),
            kind.as_ptr(),
            options.mount_flags() as libc::c_ulong,
            data.as_ptr().cast(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// fusermount3 opens the device, mounts, and sends the descriptor over the socket that it inherits.
fn mount_by_helper(at: &Path, options: &MountOptions) -> Result<OwnedFd> {
    let usage = |e: io::Error| Error::Usage(format!("cannot mount through fusermount3: {e} (install fuse3)"));
    let (ours, theirs) = UnixStream::pair().map_err(usage)?;
    let output = Command::new("fusermount3")
        .arg("-o")
        .arg(OsStr::from_bytes(&options.helper_options()))
        .arg("--")
        .arg(at)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stderr(Stdio::piped())
        .output()
        .map_err(usage)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(refused(at, said.trim()));
    }
    receive_descriptor(&ours).map_err(usage)
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0_u8; 1];
    let mut slices = [IoSliceMut::new(&mut byte)];
    // Space for one descriptor, aligned as a cmsghdr.
    let mut control = [0_u64; 4];
    // SAFETY: an all-zero msghdr is a valid one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = slices.as_mut_ptr().cast();
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the message points at buffers of the stated lengths, which live during the call.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel filled the control buffer; CMSG_FIRSTHDR returns null or a header in it,
    // and SCM_RIGHTS means that a descriptor, now ours alone, follows the header.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::Error::other("it sent no descriptor"));
        }
        Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned()))
    }
}

/// Unmounts. With `lazy` the mount is detached at once, and ends when the last file on it is
/// closed.
pub fn unmount(at: &Path, lazy: bool) -> io::Result<()> {
    let path = c_string(at.as_os_str())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: a C string that outlives the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EPERM) {
        return Err(error);
    }
    let mut helper = Command::new("fusermount3");
    helper.arg("-u");
    if lazy {
        helper.arg("-z");
    }
    let output = helper.arg("--").arg(at).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let busy = said.contains("busy");
    Err(if busy {
        io::Error::from_raw_os_error(libc::EBUSY)
    } else {
        io::Error::other(said.trim().to_owned())
    })
}

/// Device number of the mount, as (major, minor). Sends no request to the server.
pub fn device_number(at: &Path) -> io::Result<(u32, u32)> {
    let path = c_string(at.as_os_str())?;
    // SAFETY: all-zero is a valid statx; the call fills it.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are valid for the call.
    let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), libc::AT_STATX_DONT_SYNC, 0, &mut stat) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok((stat.stx_dev_major, stat.stx_dev_minor)) }
}

/// The file system in which the kernel shows connections; usually mounted by the system's init.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Ends a connection, even if processes use it.
pub fn abort_connection(number: u32) -> io::Result<()> {
    let path = Path::new(CONNECTIONS).join(number.to_string()).join("abort");
    if !path.exists() {
        let (kind, at) = (c"fusectl", c_string(OsStr::new(CONNECTIONS))?);
        // SAFETY: C strings that outlive the call; a null pointer means no data. Should it fail, so
        // does the write below.
        unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
    }
    std::fs::write(path, "1")
}

#[cfg(test)]
mod tests {
    use xact_types::settings::parse_option;

    use super::*;

    #[test]
    fn options_match_those_of_ext4() {
        let mut options = MountOptions::new(Path::new("/a,b\\c"));
        let mut set = |option: &str| {
            let (id, value) = parse_option(option).unwrap();
            options.set(id, value)
        };
        for option in ["ro", "nosuid", "noexec", "exec", "noallow_other", "defaults", "noatime"] {
            assert!(set(option), "{option}");
        }
        assert!(!set("data=journal"));
        assert_eq!(options.mount_flags(), libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NOATIME);
        assert_eq!(
            options.helper_options(),
            b"default_permissions,ro,nosuid,noatime,subtype=xact,fsname=/a\\,b\\\\c"
        );
    }

    #[test]
    fn missing_permission_is_reported_as_such() {
        for said in [
            "fusermount3: user has no write access to mountpoint /mnt",
            "fusermount3: mount failed: Operation not permitted",
            "Permission denied (os error 13)",
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf",
        ] {
            let Error::Io { source, .. } = refused(Path::new("/mnt"), said) else { panic!("{said}") };
            assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
            let text = source.to_string();
            assert!(text.starts_with("cannot mount on /mnt: ") && !text.contains("fusermount3"), "{text}");
        }
        assert!(matches!(refused(Path::new("/mnt"), "No such device (os error 19)"), Error::Usage(_)));
    }

    #[test]
    fn a_path_that_is_not_a_directory_is_refused_with_its_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = mount(file.path(), &MountOptions::default(), None).err().unwrap().to_string();
        assert!(error.contains("is not a directory"), "{error}");
    }
}
