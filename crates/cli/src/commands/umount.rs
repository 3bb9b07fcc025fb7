//! `xact umount`: unmounts a volume, waits until the daemon has closed the image, and fails if
//! something could not be saved.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
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
use crate::image::{lock_holder, processes};
use crate::mounts::{self, Mount};
use crate::outcome::Ending;
use crate::output;

const NAME: &str = "xact umount";

/// After this time a note says what the command is waiting for.
const NOTE_AFTER: Duration = Duration::from_secs(1);
/// How long a mount may be in use before that is an error. Commands that look at all mounts, such
/// as 'xact list' and df(1), use each of them for a moment.
const BUSY_MAX: Duration = Duration::from_millis(300);
/// Maximum number of open transactions that are named.
const NAMED_MAX: usize = 20;
/// The longest wait. A slower daemon continues on its own.
const LIMIT: Duration = Duration::from_secs(120);

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Fail if the mount is in use; return when the daemon has closed the image.
    Wait,
    /// Detach the mount now; the daemon continues until the last file is closed (`umount -l`).
    Lazy,
    /// End the connection first: open files fail with ENOTCONN (`umount -f`).
    Force,
}

pub fn umount(args: &Umount) -> Result<()> {
    umount_as(args, Unmount::Wait)
}

pub fn umount_as(args: &Umount, how: Unmount) -> Result<()> {
    let mount = mounts::mounted_at(&args.mount_point)?;
    if how == Unmount::Lazy {
        return detach(&mount.point);
    }
    // A volume that is mounted at a second place stays mounted there.
    let stays = mounts::all()?.into_iter().find(|other| other.id != mount.id && is_whole(other, &mount));
    // The kernel would unmount without an error: these processes have the volume in their own
    // namespace, and the daemon would run until the last of them has ended.
    if let users @ [_, ..] = processes(|process| has_view(process, &mount)).as_slice() {
        return Err(busy(&mount.point, users));
    }
    let images = mounts::images(&mount);
    // The daemon is asked, and the kernel may wait for it too.
    let (open, ending) = noted_if_slow(
        || waited_for(&mount, &images),
        || {
            // One that hangs is not asked.
            let asks = how != Unmount::Force;
            let ending = if asks { Ending::of(&mount.point) } else { Ending::Unknown };
            let open = if asks && stays.is_none() { open_transactions(&mount) } else { Vec::new() };
            unmount_point(&mount, how).map(|()| (open, ending))
        },
    )?;
    for line in left_open(&open) {
        output::note(NAME, &line);
    }
    if let Some(other) = stays {
        output::note(NAME, &format!("the volume is still mounted at {}", other.point.display()));
        return Ok(());
    }
    noted_if_slow(|| waited_for(&mount, &images), || wait_for_images(&mount, &images))?;
    ending.finish(NAME, images.last().unwrap_or(&mount.source))
}

/// Whether `other` is a mount of the same volume, and not the view of a transaction.
fn is_whole(other: &Mount, mount: &Mount) -> bool {
    other.device == mount.device && other.root == mount.root && !other.is_view()
}

/// Runs `action`. If that takes long, prints a note with what it waits for.
fn noted_if_slow<T>(what: impl FnOnce() -> String + Send, action: impl FnOnce() -> T) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(NOTE_AFTER) == Err(RecvTimeoutError::Timeout) {
                output::note(NAME, &what());
            }
        });
        let result = action();
        drop(done);
        result
    })
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

fn unmount_point(mount: &Mount, how: Unmount) -> Result<()> {
    let force = if how == Unmount::Force { UnmountFlags::FORCE } else { UnmountFlags::empty() };
    let mut unmounted = unmount(&mount.point, UnmountFlags::NOFOLLOW | force);
    let until = Instant::now() + BUSY_MAX;
    while unmounted == Err(Errno::BUSY) && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
        unmounted = unmount(&mount.point, UnmountFlags::NOFOLLOW | force);
    }
    match unmounted {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => with_fusermount(&mount.point, &[]),
        Err(Errno::BUSY) => Err(busy(&mount.point, &users_of(&mount.point))),
        Err(e) => Err(Failure::system(format_args!("unmount {}", mount.point.display()), e)),
    }
}

/// Detaches the mount, without waiting for its users and the daemon.
fn detach(point: &Path) -> Result<()> {
    match unmount(point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
        Err(Errno::PERM) => with_fusermount(point, &["-z"]),
        other => other.map_err(|e| Failure::system(format_args!("detach {}", point.display()), e)),
    }
}

/// Unmounts by the setuid helper, which lets a user unmount their own mounts.
fn with_fusermount(point: &Path, options: &[&str]) -> Result<()> {
    let mut helper = Command::new("fusermount3");
    let output = helper.arg("-u").args(options).arg("--").arg(point).output().map_err(|e| {
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
/// is closed. An image that was deleted or cannot be opened cannot be waited for; the report of the
/// daemon can.
fn wait_for_images(mount: &Mount, images: &[PathBuf]) -> Result<()> {
    let start = Instant::now();
    for image in images {
        // The path is in the table of mounts, where an ordinary user may have put any text.
        let Some(file) = open_image(image) else { continue };
        let mut pause = Duration::from_millis(1);
        while is_locked(&file)
            .map_err(|e| Failure::system(format_args!("wait for {}", image.display()), e))?
        {
            if start.elapsed() > LIMIT {
                let text =
                    format!("{} is unmounted, but {}", mount.point.display(), waited_for(mount, images));
                return Err(Failure::new(Exit::Unavailable, text).hint(how_to_end(mount)));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
    Ok(())
}

/// Opens a file or a block device for its lock alone; `None` for all else. Waits for no FIFO.
fn open_image(path: &Path) -> Option<File> {
    let is_image = |about: fs::Metadata| about.file_type().is_file() || about.file_type().is_block_device();
    if !fs::metadata(path).is_ok_and(is_image) {
        return None;
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().is_ok_and(is_image).then_some(file)
}

/// Whether a process that writes the image has locked it.
fn is_locked(image: &File) -> rustix::io::Result<bool> {
    match flock(image, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(true),
        done => done.map(|()| false),
    }
}

/// The processes that this command waits for, in words: the daemon, and those that have the volume
/// in mount namespaces of their own.
fn waited_for(mount: &Mount, images: &[PathBuf]) -> String {
    let image = images.last().unwrap_or(&mount.source).display();
    let daemon = images.iter().find_map(|image| lock_holder(image));
    let daemon = daemon.map_or("the daemon".to_owned(), |daemon| format!("the daemon {daemon}"));
    match with_mount(mount).as_slice() {
        [] => format!("waiting for {daemon}, which writes the last changes to {image}"),
        users => format!(
            "waiting for {daemon}, which serves {image} to other mount namespaces: the volume is mounted in \
             those of {}",
            users.join(", ")
        ),
    }
}

fn how_to_end(mount: &Mount) -> String {
    match with_mount(mount).first().and_then(|user| user.rsplit_once('(')) {
        Some((_, pid)) => format!(
            "End these processes, or unmount it there: nsenter --mount --target {} umount {}",
            pid.trim_end_matches(')'),
            mount.point.display()
        ),
        None => {
            "The image may be moved or checked once the daemon has ended; its log says what it does.".into()
        }
    }
}

/// Processes that have the volume mounted in their mount namespace.
fn with_mount(mount: &Mount) -> Vec<String> {
    let has_it = |table: &[Mount]| table.iter().any(|m| m.device == mount.device && m.is_fuse());
    processes(|process| has_it(&mounts::of_process(process).unwrap_or_default()))
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
