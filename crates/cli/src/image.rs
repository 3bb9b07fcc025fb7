//! Images and block devices: opening them, finding the processes that use them, and identifying
//! their contents.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use xact::device::{BlockDevice, FileDevice, OpenMode, attached_loop_device, is_busy};

use crate::exit::{Exit, Failure, Result, plain};

/// Opens the image or block device, exclusively if it is opened for writing.
pub fn open(image: &Path, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
    if mode == OpenMode::ReadWrite {
        refuse_attached(image)?;
    }
    match FileDevice::open(image, mode) {
        Ok(device) => Ok(Arc::new(device)),
        Err(e) => Err(cannot_open(image, mode, &e)),
    }
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
    if let Some(mount) = mounts.iter().find(|mount| mount.source == image) {
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
    Err(Failure::new(Exit::Unavailable, message)
        .hint(format!("Unmount it, or detach it with 'losetup -d {device}'.")))
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
