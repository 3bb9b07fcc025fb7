//! Images and block devices: opening them, finding the processes that use them, and identifying
//! their contents.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xact::device::{BlockDevice, FileDevice, OpenMode, attached_loop_device, file_of_loop_device, is_busy};

use crate::exit::{Exit, Failure, Result, plain};
use crate::output;

/// The name of a daemon's process after the volume was unmounted, until the image is closed.
pub const CLOSING: &CStr = c"xact-closing";
/// How long opening waits for a daemon that may have been unmounted a moment ago.
const GRACE: Duration = Duration::from_secs(2);
/// The longest wait for a daemon that is closing the image.
const CLOSING_MAX: Duration = Duration::from_secs(120);
/// After this time a note says what the command is waiting for.
const NOTE_AFTER: Duration = Duration::from_secs(1);

/// Opens the image or block device, exclusively if it is opened for writing. If the daemon of an
/// unmounted volume is still closing it, waits for that.
pub fn open(image: &Path, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
    Ok(open_file(image, mode)?)
}

/// As [`open`], for a caller that needs to know the file.
pub fn open_file(image: &Path, mode: OpenMode) -> Result<Arc<FileDevice>> {
    let start = Instant::now();
    let mut noted = false;
    loop {
        let failure = match try_open(image, mode) {
            Err(failure) if failure.exit == Exit::Unavailable => failure,
            other => return other.map(Arc::new),
        };
        if !is_about_to_close(image, start.elapsed()) {
            return Err(failure);
        }
        if !noted && start.elapsed() > NOTE_AFTER {
            let daemon = lock_holder(image).unwrap_or_default();
            output::note("xact", &format!("waiting for {daemon} to close {}", image.display()));
            noted = true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn try_open(image: &Path, mode: OpenMode) -> Result<FileDevice> {
    // The daemon of a mount has a loop device of its own, so that its lock is the better reason.
    if let Err(e) = FileDevice::probe(image)
        && is_busy(&e)
    {
        return Err(cannot_open(image, mode, &e));
    }
    if mode == OpenMode::ReadWrite {
        refuse_attached(image)?;
    }
    refuse_held(image)?;
    FileDevice::open(image, mode).map_err(|e| cannot_open(image, mode, &e))
}

/// Whether a daemon that has the image is closing it, or may be about to.
fn is_about_to_close(image: &Path, waited: Duration) -> bool {
    let name = lock_holder_pid(image).and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    let is_closing = name.is_some_and(|name| name.trim().as_bytes() == CLOSING.to_bytes());
    let image = image.canonicalize().unwrap_or_else(|_| image.to_owned());
    let is_mounted = || {
        let mounts = crate::mounts::all().unwrap_or_default();
        mounts.iter().any(|mount| crate::mounts::images(mount).contains(&image))
    };
    waited < if is_closing { CLOSING_MAX } else { GRACE } && (is_closing || !is_mounted())
}

fn cannot_open(image: &Path, mode: OpenMode, error: &io::Error) -> Failure {
    let name = image.display();
    match error.kind() {
        _ if is_busy(error) => {
            let failure = Failure::new(Exit::Unavailable, format!("{name} is in use{}", by_whom(image)));
            failure.hint("Unmount it with 'xact umount MNT', or wait until the other command ends.")
        }
        io::ErrorKind::InvalidInput => {
            Failure::usage(format!("{name} is neither an image file nor a block device"))
        }
        io::ErrorKind::NotFound => Failure::new(Exit::NoInput, format!("{name} does not exist"))
            .hint("'xact mkfs IMG --size 1G' makes a volume in a new image file."),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            if mode == OpenMode::ReadWrite =>
        {
            Failure::new(Exit::NoPermission, format!("{name} cannot be written: {}", plain(error)))
                .hint("To mount a volume that cannot be written, use -o ro.")
        }
        _ => Failure::system(format_args!("open {name}"), io::Error::from(error.kind()))
            .exit(crate::exit::exit_of_io(error)),
    }
}

/// The users of the image, as far as this user may see: `: it is mounted at /mnt`, or the processes
/// that have it open.
fn by_whom(image: &Path) -> String {
    let Ok(image) = image.canonicalize() else { return String::new() };
    let mounts = crate::mounts::all().unwrap_or_default();
    if let Some(mount) = mounts.iter().find(|mount| crate::mounts::images(mount).contains(&image)) {
        return format!(": it is mounted at {}", mount.point.display());
    }
    // Compares the names of open files: a stat of the files might hang on a mount whose daemon does
    // not answer.
    let has_it = |process: &Path| {
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        open.into_iter().any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == image))
    };
    match processes(has_it).as_slice() {
        [] => ": it is mounted, or another command works on it".into(),
        users => format!(" by {}", users.join(", ")),
    }
}

/// The process that has locked the image for writing, as "name (pid)".
pub fn lock_holder(image: &Path) -> Option<String> {
    let pid = lock_holder_pid(image)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("{} ({pid})", name.trim()))
}

/// The process that has locked the image for writing. The table of locks names files by the number
/// of their inode; the device there may differ from that of `stat` (overlays, btrfs).
fn lock_holder_pid(image: &Path) -> Option<u32> {
    let ino = fs::metadata(image).ok()?.ino().to_string();
    let table = fs::read_to_string("/proc/locks").ok()?;
    table.lines().find_map(|line| {
        // 1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, file, ..] = words[..] else { return None };
        let pid: u32 = pid.parse().ok()?;
        let is_it = file.rsplit(':').next() == Some(&ino);
        (is_it && Path::new(&format!("/proc/{pid}")).exists()).then_some(pid)
    })
}

/// Other processes for which `wanted` is true, given their folder in /proc, as "name (pid)": at
/// most ten, and only those that this user may inspect.
pub fn processes(wanted: impl Fn(&Path) -> bool) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .filter_map(|entry| {
            let process = entry.ok()?.path();
            let pid = process.file_name()?.to_str()?.parse::<u32>().ok()?;
            if pid == std::process::id() || !wanted(&process) {
                return None;
            }
            let name = fs::read_to_string(process.join("comm")).ok()?;
            Some(format!("{} ({pid})", name.trim()))
        })
        .take(10)
        .collect()
}

/// Fails if a loop device is attached to the image: the kernel locks no file behind a loop device,
/// and two writers would corrupt the image.
fn refuse_attached(image: &Path) -> Result<()> {
    let Some(device) = attached_loop_device(image) else { return Ok(()) };
    let message = format!("{} is attached to the loop device {device}", image.display());
    // Such as the mount of a daemon that was killed.
    let mounts = crate::mounts::all().unwrap_or_default();
    if let Some(mount) = mounts.iter().find(|mount| mount.source == Path::new(&device)) {
        let point = mount.point.display();
        let command = if mount.is_block() { "xact umount" } else { "umount" };
        return Err(Failure::new(Exit::Unavailable, format!("{message}, which is mounted at {point}"))
            .hint(format!("Unmount it first: {command} {point}")));
    }
    Err(Failure::new(Exit::Unavailable, message)
        .hint(format!("Unmount it, or detach it with 'losetup -d {device}'.")))
}

/// Fails if the device is a loop device whose file another process, such as the daemon of a mount,
/// has locked.
fn refuse_held(device: &Path) -> Result<()> {
    let Some(file) = file_of_loop_device(device) else { return Ok(()) };
    match FileDevice::probe(&file) {
        Err(e) if is_busy(&e) => {
            let (device, name) = (device.display(), file.display());
            let message = format!("{device} is attached to {name}, which is in use{}", by_whom(&file));
            Err(Failure::new(Exit::Unavailable, message).hint("Unmount it with 'xact umount MNT'."))
        }
        _ => Ok(()),
    }
}

/// Bytes at the start of a device that identify its contents.
const PROBED_BYTES: u64 = 128 << 10;

/// The contents of an image or device by its first bytes, as a noun phrase; `None` if they are all
/// zero.
pub fn contents(image: &Path) -> io::Result<Option<&'static str>> {
    let mut start = Vec::new();
    File::open(image)?.take(PROBED_BYTES).read_to_end(&mut start)?;
    if start.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let known: [(&'static str, usize, &[u8]); 11] = [
        ("an ext2, ext3 or ext4 file system", 0x438, b"\x53\xef"),
        ("an XFS file system", 0, b"XFSB"),
        ("a Btrfs file system", 0x10040, b"_BHRfS_M"),
        ("an F2FS file system", 0x400, b"\x10\x20\xf5\xf2"),
        ("a SquashFS file system", 0, b"hsqs"),
        ("an ISO 9660 image", 0x8001, b"CD001"),
        ("an NTFS file system", 3, b"NTFS    "),
        ("an encrypted volume (LUKS)", 0, b"LUKS\xba\xbe"),
        ("swap space", 4086, b"SWAPSPACE2"),
        ("a partition table (GPT)", 512, b"EFI PART"),
        ("a boot sector or partition table", 510, b"\x55\xaa"),
    ];
    let found = known.iter().find(|(_, at, magic)| start.get(*at..at + magic.len()) == Some(*magic));
    Ok(Some(found.map_or("data", |(what, _, _)| what)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn zeros_are_nothing_and_the_rest_is_named() {
        let image = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(contents(image.path()).unwrap(), None);
        image.as_file().write_all_at(b"short", 0).unwrap();
        assert_eq!(contents(image.path()).unwrap(), Some("data"));
        image.as_file().set_len(1 << 20).unwrap();
        image.as_file().write_all_at(&[0x53, 0xef], 0x438).unwrap();
        assert_eq!(contents(image.path()).unwrap(), Some("an ext2, ext3 or ext4 file system"));
        image.as_file().write_all_at(&[0; 0x500], 0).unwrap();
        assert_eq!(contents(image.path()).unwrap(), None);
    }

    #[test]
    fn failures_say_what_to_do() {
        let missing = open(Path::new("/no/such.img"), OpenMode::ReadWrite).err().unwrap();
        assert_eq!(missing.exit, Exit::NoInput);
        assert!(missing.to_string().contains("xact mkfs"));
        assert_eq!(open(Path::new("/"), OpenMode::ReadOnly).err().unwrap().exit, Exit::Usage);
        let file = tempfile::NamedTempFile::new().unwrap();
        let _held = open(file.path(), OpenMode::ReadWrite).ok().unwrap();
        let busy = open(file.path(), OpenMode::ReadWrite).err().unwrap();
        assert_eq!(busy.exit, Exit::Unavailable);
        assert!(busy.to_string().contains("is in use"), "{busy}");
    }
}
