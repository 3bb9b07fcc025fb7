//! Folders on which the system itself relies.
//!
//! A view shows its volume as it was at the transaction's begin, and changes in it may be dropped.
//! A setuid program that sees its own configuration that way would honour a permission that was
//! withdrawn since, and would forget failed passwords. So no view covers these folders, nor
//! anything above or below them.

use std::ffi::CStr;

use crate::path::{Path, is_in};
use crate::refusal::{Refusal, Result};
use crate::sys;

/// The folders, also those of other distributions.
const SYSTEM: [&CStr; 20] = [
    c"/", c"/bin", c"/boot", c"/dev", c"/efi", c"/etc", c"/gnu", c"/lib", c"/lib32", c"/lib64", c"/libx32",
    c"/nix", c"/opt", c"/proc", c"/root", c"/run", c"/sbin", c"/sys", c"/usr", c"/var",
];

/// Folders below them that are for mounts and files of users.
const USERS: [&str; 3] = ["/run/media", "/run/user", "/var/tmp"];

/// Parts of them that may be links to elsewhere.
const PARTS: [&CStr; 22] = [
    c"/etc/group",
    c"/etc/pam.d",
    c"/etc/passwd",
    c"/etc/security",
    c"/etc/shadow",
    c"/etc/ssh",
    c"/etc/sudoers",
    c"/etc/sudoers.d",
    c"/usr/bin",
    c"/usr/lib",
    c"/usr/lib64",
    c"/usr/libexec",
    c"/usr/local",
    c"/usr/sbin",
    c"/usr/share",
    c"/var/cache",
    c"/var/db",
    c"/var/lib",
    c"/var/log",
    c"/var/mail",
    c"/var/run",
    c"/var/spool",
];

/// The folders that the administrator adds: an absolute path on each line; lines that begin with
/// `#` are comments.
const LIST: &CStr = c"/etc/xact/run-helper.deny";
const LIST_MAX: usize = 16 << 10;
const LISTED: &str = "a folder in /etc/xact/run-helper.deny";
const WRONG_LIST: Refusal = Refusal::new(
    "/etc/xact/run-helper.deny must be a file of root, which only root can write, of at most 16 KiB, with an \
     absolute path on each line",
);

/// Refuses a mount point above, at or below one of the folders, and a volume that one of them is
/// on.
pub fn check(point: &Path, device: (u32, u32)) -> Result<()> {
    let is_users = USERS.iter().any(|folder| is_in(point.as_bytes(), folder.as_bytes()));
    for folder in SYSTEM {
        // A name without a link, too: the folder itself may not exist yet.
        let by_name = folder != c"/" && !is_users && is_in(point.as_bytes(), folder.to_bytes());
        check_folder(folder, point, device, by_name, !is_users && folder != c"/")?;
    }
    for folder in PARTS {
        check_folder(folder, point, device, false, false)?;
    }
    check_list(point, device)
}

/// `inside`: the mount point must not be below the folder either, wherever links lead.
fn check_folder(
    folder: &'static CStr,
    point: &Path,
    device: (u32, u32),
    refused: bool,
    inside: bool,
) -> Result<()> {
    let name = folder.to_str().unwrap_or("");
    if refused || touches(folder, point, device, inside, name)? {
        return Err(Refusal::about("the volume is mounted where the system needs it: ", name));
    }
    Ok(())
}

/// Whether the folder is on the device, or the mount point is above it or, if `inside`, in it.
fn touches(
    folder: &CStr,
    point: &Path,
    device: (u32, u32),
    inside: bool,
    name: &'static str,
) -> Result<bool> {
    if is_in(folder.to_bytes(), point.as_bytes()) {
        return Ok(true);
    }
    let file = match sys::open_path(folder) {
        Err(libc::ENOENT | libc::ENOTDIR) => return Ok(false),
        opened => opened.map_err(|_| Refusal::about("this user may not look at ", name))?,
    };
    let real = file.real_path()?;
    Ok(file.status()?.device == device
        || is_in(real.as_bytes(), point.as_bytes())
        || inside && is_in(point.as_bytes(), real.as_bytes()))
}

fn check_list(point: &Path, device: (u32, u32)) -> Result<()> {
    let file = match sys::open_file(LIST) {
        Err(libc::ENOENT | libc::ENOTDIR) => return Ok(()),
        opened => opened.map_err(|_| WRONG_LIST)?,
    };
    let status = file.status()?;
    if status.user != 0 || status.mode & libc::S_IFMT != libc::S_IFREG || status.mode & 0o022 != 0 {
        return Err(WRONG_LIST);
    }
    let mut text = [0; LIST_MAX];
    let mut len = 0;
    loop {
        match sys::read(&file, &mut text[len..]).map_err(|_| WRONG_LIST)? {
            0 if len == text.len() => return Err(WRONG_LIST),
            0 => break,
            read => len += read,
        }
    }
    text[..len].split(|&byte| byte == b'\n').try_for_each(|line| check_line(line, point, device))
}

fn check_line(line: &[u8], point: &Path, device: (u32, u32)) -> Result<()> {
    let line = line.trim_ascii();
    if line.is_empty() || line.starts_with(b"#") {
        return Ok(());
    }
    let folder = Path::new(line).filter(Path::is_absolute).ok_or(WRONG_LIST)?;
    let by_name = is_in(point.as_bytes(), folder.as_bytes());
    if by_name || touches(folder.as_c_str(), point, device, true, LISTED)? {
        return Err(Refusal::about("the volume is mounted where it must not be: ", LISTED));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// No mounted file system has it.
    const ELSEWHERE: (u32, u32) = (4095, 4095);

    fn check_at(point: &str) -> Result<()> {
        check(&Path::new(point.as_bytes()).unwrap(), ELSEWHERE)
    }

    #[test]
    fn mounts_at_places_of_the_system_are_refused() {
        for point in ["/", "/etc", "/etc/sudoers.d", "/var", "/var/log", "/usr/local/x", "/run/x", "/dev/shm"]
        {
            assert!(check_at(point).is_err(), "{point}");
        }
        for point in ["/mnt", "/home", "/home/user/volume", "/tmp/x", "/srv", "/etcetera", "/run/user/1000/x"]
        {
            assert_eq!(check_at(point), Ok(()), "{point}");
        }
        for point in ["/run/media/user/disk", "/var/tmp", "/var/tmp/x"] {
            assert_eq!(check_at(point), Ok(()), "{point}");
        }
        assert!(check_at("/run/userland").is_err());
    }

    /// Wherever the volume is mounted.
    #[test]
    fn a_volume_with_folders_of_the_system_is_refused() {
        let device = std::fs::metadata("/etc").unwrap().dev();
        let device = (libc::major(device), libc::minor(device));
        assert!(check(&Path::new(b"/mnt").unwrap(), device).is_err());
    }

    #[test]
    fn lines_of_the_list_are_folders() {
        let point = Path::new(b"/srv/app/data").unwrap();
        let check = |line: &str| check_line(line.as_bytes(), &point, ELSEWHERE).is_ok();
        for line in ["", "  ", "# /srv", "/srv/application", "/home"] {
            assert!(check(line), "{line}");
        }
        for line in ["/srv", "/srv/app", " /srv/app/data\r", "/srv/app/data/records", "/", "relative"] {
            assert!(!check(line), "{line}");
        }
    }
}
