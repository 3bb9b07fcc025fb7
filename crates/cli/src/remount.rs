//! `mount -o remount,…`: changes what the kernel keeps of a mount, and refuses the rest.
//!
//! The kernel keeps whether the mount is read-only, and `nosuid`, `nodev` and `noexec`. It would
//! ignore every other option without an error. So the daemon compares these with the options that
//! the volume was mounted with: mount(8) passes all options of the table of mounts and of fstab(5)
//! again, and equal ones change nothing.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

use crate::control;
use crate::exit::{Exit, Failure, Result};
use crate::mounts::{self, Mount};

/// Options that the kernel changes on a mounted volume.
const CHANGEABLE: [(&str, MountFlags, bool); 8] = [
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
];
/// Flags that the table of mounts names. A remount keeps those that its options repeat.
const KEPT: [(&str, MountFlags); 6] = [
    ("sync", MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC),
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("lazytime", MountFlags::LAZYTIME),
    ("nosymfollow", MountFlags::from_bits_retain(256)),
];

/// Remounts. `dry_run`: checks the options only.
pub fn remount(point: &Path, options: &[String], dry_run: bool) -> Result<()> {
    let mount = mounts::mounted_at(point)?;
    let now = options_now(&mount)?;
    let (flags, others) = wanted(&now, options);
    control::compare_options(&mount.point, &others.join(","))?;
    if !now.iter().any(|option| option == "rw") && !flags.contains(MountFlags::RDONLY) {
        control::is_writable(&mount.point)?;
    }
    if dry_run {
        return Ok(());
    }
    mount_remount(&mount.point, flags, "").map_err(|e| refused(&mount, e))?;
    if flags.contains(MountFlags::RDONLY) {
        // On a mount without a block device the kernel does not ask for it.
        control::sync(&mount.point)?;
    }
    Ok(())
}

/// The options in the table of mounts: of the mount, and of the file system.
fn options_now(mount: &Mount) -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|e| Failure::system("read the table of mounts, /proc/self/mountinfo", e))?;
    let id = mount.id.to_string();
    let line = table.lines().find(|line| line.split(' ').next() == Some(&id)).unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    let lists = [words.get(5), words.last()];
    Ok(lists.into_iter().flatten().flat_map(|list| list.split(',')).map(str::to_owned).collect())
}

/// The flags after the remount, and the options that the daemon has to compare. As for mount(2),
/// the list of options is the whole one: mount(8) adds those of the table of mounts.
fn wanted(now: &[String], options: &[String]) -> (MountFlags, Vec<String>) {
    let mut flags = MountFlags::empty();
    let mut others = Vec::new();
    let has = |list: &[String], option: &str| list.iter().any(|one| one == option);
    for option in options {
        let kept = KEPT.into_iter().find(|(name, _)| name == option);
        match CHANGEABLE.into_iter().find(|(name, ..)| name == option) {
            Some((_, flag, is_on)) => flags.set(flag, is_on),
            None if option == "remount" => {}
            None if has(now, option) => flags |= kept.map_or(MountFlags::empty(), |(_, flag)| flag),
            None => others.push(option.clone()),
        }
    }
    // The table has no word for strictatime, which is neither of the two.
    if !has(now, "noatime") && !has(now, "relatime") {
        flags |= MountFlags::STRICTATIME;
    }
    // Without a word for it, sync would be turned off.
    if has(now, "sync") && !has(options, "sync") && !has(options, "async") {
        others.push("async".into());
    }
    (flags, others)
}

/// Makes a mount read-only that is too busy to be unmounted (`umount -r`).
pub fn make_read_only(point: &Path) -> Result<()> {
    let mut options = options_now(&mounts::mounted_at(point)?)?;
    options.extend(["remount".into(), "ro".into()]);
    remount(point, &options, false)
}

fn refused(mount: &Mount, error: Errno) -> Failure {
    let point = mount.point.display();
    match error {
        Errno::BUSY => Failure::new(
            Exit::Unavailable,
            format!("{point} is in use: files are open for writing, or a transaction is running"),
        )
        .hint("Close the files and end the transactions, then try again."),
        error => Failure::system(format_args!("remount {point}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn the_last_option_counts_and_the_rest_is_compared() {
        let now = words("rw,nosuid,noatime,rw,user_id=0,allow_other");
        let (flags, others) = wanted(&now, &words("rw,nosuid,noatime,user_id=0,remount,ro,commit=7"));
        assert_eq!(flags, MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOATIME);
        assert_eq!(others, ["commit=7"]);
        let now = words("ro,noexec,relatime,sync");
        let (flags, others) = wanted(&now, &words("noexec,relatime,sync,remount,rw,exec"));
        assert_eq!((flags, others), (MountFlags::SYNCHRONOUS, vec![]));
        let (flags, others) = wanted(&now, &words("remount,rw"));
        assert_eq!((flags, others), (MountFlags::empty(), words("async")));
        let (flags, others) = wanted(&words("rw,nodiratime"), &words("rw,nodiratime,remount,ro"));
        let kept = MountFlags::RDONLY | MountFlags::NODIRATIME | MountFlags::STRICTATIME;
        assert_eq!((flags, others), (kept, vec![]));
    }
}
