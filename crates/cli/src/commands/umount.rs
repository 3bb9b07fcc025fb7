//! `xact umount`: unmounts a volume and waits until the daemon has closed the image.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use xact::text::printable_bytes;
use xact_control::TxInfo;
use xact_control::abi::TxStatus;
use xact_control::client::Channel;

use crate::args::Umount;
use crate::exit::{Exit, Failure, Result};
use crate::image::processes;
use crate::mounts::{self, Mount};
use crate::output;

const NAME: &str = "xact umount";

/// After this time a note says what the command is waiting for.
const NOTE_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of open transactions that are named.
const NAMED_MAX: usize = 20;
/// The longest wait. A slower daemon continues on its own.
const LIMIT: Duration = Duration::from_secs(120);

pub fn umount(args: &Umount) -> Result<()> {
    let mount = mounts::mounted_at(&args.mount_point)?;
    // The kernel would unmount without an error: these processes have the volume in their own
    // namespace, and the daemon would run until the last of them has ended.
    if let users @ [_, ..] = processes(|process| has_view(process, &mount)).as_slice() {
        return Err(busy(&mount.point, users));
    }
    let open = open_transactions(&mount);
    unmount_point(&mount)?;
    for line in left_open(&open) {
        output::note(NAME, &line);
    }
    wait_for_image(&mount)
}

/// One line for each of the first open transactions, and one for the number of the others.
fn left_open(open: &[(String, bool)]) -> Vec<String> {
    let becomes = |persistent| match persistent {
        true => "open and stays open: it is available again after the next mount",
        false => "open and is aborted: its changes are discarded",
    };
    let named = open.iter().take(NAMED_MAX);
    let mut lines: Vec<String> = named
        .map(|(transaction, persistent)| format!("transaction {transaction} was {}", becomes(*persistent)))
        .collect();
    let rest = &open[lines.len()..];
    if !rest.is_empty() {
        let stay = rest.iter().filter(|(_, persistent)| *persistent).count();
        let aborted = rest.len() - stay;
        lines.push(format!(
            "{} more transactions were open: {stay} stay open, {aborted} are aborted",
            rest.len()
        ));
    }
    lines
}

/// Open transactions, as "7 (make install)", and whether each is stored on the volume. Empty if the
/// daemon has died, or is not xact.
fn open_transactions(mount: &Mount) -> Vec<(String, bool)> {
    let list = Channel::open(&mount.point).and_then(|channel| channel.list()).unwrap_or_default();
    let open = list.iter().filter(|info| info.status == TxStatus::LeftOpen);
    let name = |info: &TxInfo| format!("{} ({})", info.id, printable_bytes(&info.label));
    open.map(|info| (name(info), info.persistent)).collect()
}

fn unmount_point(mount: &Mount) -> Result<()> {
    match unmount(&mount.point, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => with_fusermount(&mount.point),
        Err(Errno::BUSY) => Err(busy(&mount.point, &users_of(&mount.point))),
        Err(e) => Err(Failure::system(format_args!("unmount {}", mount.point.display()), e)),
    }
}

/// Unmounts by the setuid helper, which lets a user unmount their own mounts.
fn with_fusermount(point: &Path) -> Result<()> {
    let output = Command::new("fusermount3").arg("-u").arg("--").arg(point).output().map_err(|e| {
        Failure::system("run fusermount3, which unmounts for ordinary users", e)
            .hint("Install the package fuse3, or unmount as root.")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("busy") {
        return Err(busy(point, &users_of(point)));
    }
    Err(Failure::new(Exit::NoPermission, format!("cannot unmount {}: {}", point.display(), message.trim())))
}

/// Waits for the daemon, which holds a lock on the image until all data is written and the journal
/// is closed.
fn wait_for_image(mount: &Mount) -> Result<()> {
    // An image that was deleted or cannot be opened cannot be waited for; the volume is unmounted
    // in any case.
    let Ok(image) = File::open(&mount.source) else { return Ok(()) };
    let start = Instant::now();
    let mut noted = false;
    let mut pause = Duration::from_millis(1);
    loop {
        match flock(&image, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Ok(()) => return Ok(()),
            Err(e) => {
                return Err(Failure::system(format_args!("wait for {}", mount.source.display()), e));
            }
        }
        if start.elapsed() > LIMIT {
            return Err(Failure::new(
                Exit::Unavailable,
                format!(
                    "{} is unmounted, but its daemon still has {} open",
                    mount.point.display(),
                    mount.source.display()
                ),
            )
            .hint("A program inside 'xact run' may still use the volume; the daemon ends after it."));
        }
        if !noted && start.elapsed() > NOTE_AFTER {
            output::note(NAME, &format!("waiting for the daemon to close {}", mount.source.display()));
            noted = true;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn busy(point: &Path, users: &[String]) -> Failure {
    let failure = Failure::new(Exit::Unavailable, format!("{} is in use", point.display()));
    match users {
        [] => {
            failure.hint("Close its open files, and change the current folder of every shell that is in it.")
        }
        users => {
            failure.hint(format!("In use by: {}. End these processes, then try again.", users.join(", ")))
        }
    }
}

/// Processes with a current folder or an open file on the mount.
fn users_of(point: &Path) -> Vec<String> {
    processes(|process| uses(process, point).unwrap_or(false))
}

/// Whether the process is inside a transaction of the volume.
fn has_view(process: &Path, mount: &Mount) -> bool {
    let table = mounts::of_process(process).unwrap_or_default();
    table.iter().any(|m| m.device == mount.device && m.is_view())
}

fn uses(process: &Path, point: &Path) -> io::Result<bool> {
    let on_mount = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(point));
    if on_mount(process.join("cwd")) || on_mount(process.join("root")) || on_mount(process.join("exe")) {
        return Ok(true);
    }
    Ok(fs::read_dir(process.join("fd"))?.flatten().any(|entry| on_mount(entry.path())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_that_were_left_open_are_counted() {
        let open: Vec<_> = (0..1000).map(|id| (format!("{id} (make)"), id % 4 == 0)).collect();
        assert_eq!(
            left_open(&open[..2]),
            [
                "transaction 0 (make) was open and stays open: it is available again after the next mount",
                "transaction 1 (make) was open and is aborted: its changes are discarded",
            ]
        );
        let lines = left_open(&open);
        assert_eq!(lines.len(), NAMED_MAX + 1);
        assert_eq!(lines[NAMED_MAX], "980 more transactions were open: 245 stay open, 735 are aborted");
        assert!(left_open(&[]).is_empty());
    }
}
