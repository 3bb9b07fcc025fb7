//! `xact mount`: opens a volume and serves it, as a daemon or in the foreground.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::time::Duration;

use xact::device::{FileDevice, OpenMode};
use xact::settings::{Id, Value, parse_option};
use xact::{Error, Limits, RetentionPolicy, Schedule, Volume, VolumeOptions};
use xact_fuse::{Ended, MountOptions, Session};

use crate::args::Mount;
use crate::daemon::{self, Side};
use crate::exit::{Exit, Failure, Result};
use crate::log::{self, Log, Prepared, Target};
use crate::notify::Notifier;
use crate::outcome::{Loss, Reporter};
use crate::values::uuid_text;
use crate::{control, image, mounts, output, volume_paths};

const NAME: &str = "xact mount";
/// The least default of --user-memory, for small caches.
const USER_MEMORY_MIN: u64 = 24 << 20;
/// Below all other processes, and above those that must never be killed (-1000).
const OOM_SCORE_ADJ: &str = "-900";

/// The checked arguments, with absolute paths.
struct Plan {
    image: PathBuf,
    mount_point: PathBuf,
    volume: VolumeOptions,
    mount: MountOptions,
    /// For each user.
    limits: Limits,
    snapshots: Option<(Duration, RetentionPolicy)>,
    /// Paths of these snapshots; empty: the volume.
    snapshot_paths: Vec<Vec<u8>>,
    log: Target,
    foreground: bool,
}

pub fn mount(args: &Mount) -> Result<()> {
    let plan = Plan::new(args)?;
    let hides = std::fs::read_dir(&plan.mount_point).is_ok_and(|mut names| names.next().is_some());
    if share_mount(&plan, args)? {
        return Ok(());
    }
    if hides {
        let point = plan.mount_point.display();
        output::note(NAME, &format!("{point} is not empty: what it contains is hidden until the unmount"));
    }
    if args.foreground {
        let log = log::prepare(&plan.log, &plan.mount_point, &plan.image)?;
        return serve(&plan, log, || ());
    }
    match daemon::fork()? {
        Side::Command(outcome) => outcome,
        Side::Daemon(caller) => {
            let mut caller = Some(caller);
            let log = log::prepare(&plan.log, &plan.mount_point, &plan.image);
            let served =
                log.and_then(|log| serve(&plan, log, || caller.take().into_iter().for_each(|c| c.ready())));
            let code = match (&served, caller) {
                (Ok(()), _) => 0,
                (Err(failure), Some(caller)) => {
                    caller.failed(failure);
                    failure.code()
                }
                (Err(failure), None) => failure.code(),
            };
            process::exit(code.into())
        }
    }
}

/// Mounts a block device at a second place if it is mounted with the type `fuseblk` already: both
/// mounts show the same volume, as with the kernel's ext4. False if it is not mounted so.
fn share_mount(plan: &Plan, args: &Mount) -> Result<bool> {
    let mounts = mounts::all()?;
    let is_it = |mount: &&mounts::Mount| mount.is_block() && mount.source == plan.image && !mount.is_view();
    let Some(first) = mounts.iter().find(is_it) else { return Ok(false) };
    if args.settings.any_given || !args.snapshot_of.is_empty() {
        let text =
            format!("{} is mounted already, and a second mount shares its settings", plan.image.display());
        return Err(Failure::usage(text).hint("Leave out the long options. Options of -o may be repeated."));
    }
    control::compare_options(&first.point, &args.options.join(","))?;
    xact_fuse::mount_again(&plan.mount_point, &plan.mount).map_err(|e| not_mounted(plan, e))?;
    if !control::serves(&plan.mount_point).unwrap_or(false) {
        // The first mount has gone in between, and this one leads to no daemon.
        let _ = rustix::mount::unmount(&plan.mount_point, rustix::mount::UnmountFlags::DETACH);
        return Ok(false);
    }
    let what = if args.log.is_some() { "the volume and the log" } else { "the volume" };
    let (point, first) = (plan.mount_point.display(), first.point.display());
    output::note(NAME, &format!("{point} shares {what} mounted at {first}"));
    Ok(true)
}

impl Plan {
    fn new(args: &Mount) -> Result<Plan> {
        let image = args
            .image
            .canonicalize()
            .map_err(|e| Failure::system(format_args!("find the image {}", args.image.display()), e))?;
        let mount_point = mount_point(&args.mount_point)?;
        let mut mount = MountOptions::new(&image);
        mount.set(Id::AccessTimes, None);
        let mut volume = VolumeOptions {
            mounted_at: Some(mount_point.as_os_str().as_bytes().to_vec()),
            ..VolumeOptions::default()
        };
        let (mut transactions, mut memory, mut snapshot_every) = (0, None, None);
        for (id, value) in settings_of(args)? {
            volume.set(id, value);
            mount.set(id, value);
            match (id, value) {
                (Id::UserTransactions, Some(Value::Count(count))) => transactions = count,
                (Id::UserTransactions, _) => transactions = id.setting().default_number(),
                (Id::UserMemory, Some(Value::Size(bytes))) => memory = Some(bytes),
                (Id::SnapshotEvery, Some(Value::Duration(interval))) => snapshot_every = Some(interval),
                _ => {}
            }
        }
        if !Path::new("/dev/fuse").exists() {
            return Err(Failure::new(Exit::Unavailable, "/dev/fuse does not exist: this system has no FUSE")
                .hint("Load it with 'modprobe fuse'; start a container with '--device /dev/fuse'."));
        }
        Ok(Plan {
            snapshots: snapshot_every.map(|every| (every, args.settings.snapshot_retain)),
            snapshot_paths: snapshot_paths(&args.snapshot_of, &mount_point)?,
            limits: Limits::new(transactions, memory.unwrap_or(USER_MEMORY_MIN.max(volume.cache_bytes / 8))),
            volume,
            image,
            mount_point,
            mount,
            log: Target::choose(args.log.as_deref(), args.foreground)?,
            foreground: args.foreground,
        })
    }
}

/// The settings of the long options, and those of `-o`, which count for more.
fn settings_of(args: &Mount) -> Result<Vec<(Id, Option<Value>)>> {
    let options = args
        .options
        .iter()
        .filter(|option| !option.is_empty())
        .map(|option| parse_option(option).map_err(|why| Failure::usage(format!("-o {option}: {why}"))));
    args.settings.values.iter().copied().map(Ok).chain(options).collect()
}

fn mount_point(path: &Path) -> Result<PathBuf> {
    let point = crate::mounts::absolute(path)?;
    // Some kernels answer stat(2) from their cache after the daemon's death, but not statfs(2).
    let about = std::fs::metadata(&point).and_then(|about| {
        rustix::fs::statfs(&point)?;
        Ok(about)
    });
    match about {
        Ok(about) if about.is_dir() => Ok(point),
        Ok(_) => Err(Failure::usage(format!("{} is not a folder", point.display()))),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => Err(Failure::new(
            Exit::Unavailable,
            format!("the daemon of the volume mounted at {} has died", point.display()),
        )
        .hint(format!("Unmount it first: xact umount {}", path.display()))),
        Err(e) => Err(Failure::system(format_args!("mount on {}", point.display()), e)),
    }
}

/// Makes the allocator return unused memory to the system. Each of its arenas keeps the memory that
/// its threads freed, and by default there are eight arenas per CPU. The memory of the process
/// should follow from the limits of users.
fn limit_arenas() {
    let arenas = std::thread::available_parallelism().map_or(2, |cpus| cpus.get().clamp(2, 8));
    // SAFETY: sets parameters of the allocator; no other thread is running yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, arenas as libc::c_int);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 << 10);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}

/// The paths of scheduled snapshots, given as paths on the mount or from the volume's root.
fn snapshot_paths(given: &[PathBuf], mount_point: &Path) -> Result<Vec<Vec<u8>>> {
    let paths = volume_paths::on_volume(given, mount_point)?.into_iter();
    let paths: Vec<PathBuf> = paths.map(|path| OsString::from_vec(path).into()).collect();
    xact::selection::outermost(&paths).map_err(Failure::unnamed)
}

/// Makes the kernel kill other processes first when memory is short: with the daemon, every file on
/// the mount becomes unusable. A value that is not the default was set on purpose. Needs root.
fn avoid_out_of_memory_killer() {
    const FILE: &str = "/proc/self/oom_score_adj";
    if std::fs::read_to_string(FILE).is_ok_and(|value| value.trim() == "0")
        && let Err(e) = std::fs::write(FILE, OOM_SCORE_ADJ)
    {
        tracing::debug!("cannot write {FILE}: {e}");
    }
}

/// Opens the volume, mounts it, calls `ready`, serves until it is unmounted, and closes the volume.
fn serve(plan: &Plan, log: Prepared, ready: impl FnOnce()) -> Result<()> {
    let wrong = |e| Failure::volume(&plan.image, e);
    limit_arenas();
    avoid_out_of_memory_killer();
    let notifier = Notifier::from_environment();
    // Before any thread starts, so that each inherits the mask.
    Session::block_signals();
    let device = open_device(plan)?;
    let volume = xact::Volume::open(device.clone(), &plan.volume).map_err(wrong)?;
    // A sandbox may forbid sockets: then a command that unmounts cannot ask how it went.
    let reporter = Reporter::new().ok();
    let served = session(plan, &volume, &device, log, reporter.as_ref().map(Reporter::name), || {
        notifier
            .ready(&format!("{} on {}", plan.image.display(), plan.mount_point.display()), plan.foreground);
        ready();
    });
    notifier.stopping();
    // For other processes that want the image.
    let _ = rustix::thread::set_name(image::CLOSING);
    // Also if mounting failed: the volume was opened, and must be left clean.
    let lost = match volume.close() {
        Err(e) if !volume.was_shut_down() => Some(Loss::of(&volume, &e)),
        _ => None,
    };
    let closed = match &lost {
        Some(loss) => {
            let failure = loss.failure(&plan.image);
            tracing::error!("{}", failure.message);
            Err(failure)
        }
        None => Ok(()),
    };
    if let Some(reporter) = reporter {
        reporter.report(lost, volume.is_host_full());
    }
    if served.is_ok() {
        tracing::info!("unmounted {}", plan.image.display());
    }
    let served = served.map(|(log, mut ended)| {
        ended.unguard();
        (log, ended)
    });
    // After a close that failed, a thread of the engine may still write: then the end of this
    // process releases the lock.
    if closed.is_ok()
        && let Err(e) = device.unlock()
    {
        tracing::error!("{}: not unlocked: {e}", plan.image.display());
    }
    let (log, ended) = served?;
    // From here on umount(2) returns.
    drop(ended);
    log.finish();
    closed
}

/// Opens the image. For a read-only mount the log that a crash left is replayed first.
fn open_device(plan: &Plan) -> Result<Arc<FileDevice>> {
    let open = |mode| image::open_file(&plan.image, mode);
    match (plan.volume.read_only, plan.volume.no_recovery) {
        (false, _) => open(OpenMode::ReadWrite),
        (true, true) => open(OpenMode::ReadOnly),
        (true, false) => {
            let is_unwritable = |failure: &Failure| failure.exit == Exit::NoPermission;
            xact::open_replayed(open, is_unwritable, |e| Failure::volume(&plan.image, e))
        }
    }
}

/// Mounts, calls `ready`, and serves until it is unmounted. Returns the running log, and the
/// session, for which umount(2) may wait until the volume is closed.
fn session(
    plan: &Plan,
    volume: &Arc<Volume>,
    device: &FileDevice,
    log: Prepared,
    outcome_socket: Option<&[u8]>,
    ready: impl FnOnce(),
) -> Result<(Log, Ended)> {
    xact_fuse::limit_users(volume.accounts(), plan.limits);
    let mut session = xact_fuse::serve_device(volume.clone(), &plan.mount_point, &plan.mount, Some(device))
        .map_err(|e| not_mounted(plan, e))?;
    outcome_socket.into_iter().for_each(|name| session.set_outcome_socket(name));
    session.unmount_on_signals().map_err(|e| not_mounted(plan, e))?;
    let uuid = uuid_text(&volume.uuid());
    let log = log.start(&uuid).map_err(|e| Failure::system("start the log", e))?;
    let how = if plan.volume.read_only { " read-only" } else { "" };
    tracing::info!("mounted {} (UUID {uuid}){how}", plan.image.display());
    session.log_sync();
    let schedule = plan.snapshots.map(|(every, rules)| {
        let failed = |error: &Error| tracing::warn!("no scheduled snapshot: {error}");
        Schedule::start(volume, every, rules, plan.snapshot_paths.clone(), failed)
            .map_err(|e| Failure::volume(&plan.image, e))
    });
    let schedule = schedule.transpose()?;
    ready();
    let ended = session.wait();
    drop(schedule);
    Ok((log, ended))
}

/// The error of a mount that failed for another reason than the volume or the arguments.
fn not_mounted(plan: &Plan, error: Error) -> Failure {
    match error {
        Error::Usage(text) => Failure::new(Exit::Unavailable, text),
        Error::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            let text = source.to_string();
            let hint = match text.contains("user_allow_other") {
                true => "Mount without -o allow_other, or add 'user_allow_other' to /etc/fuse.conf as root.",
                false => "Users other than root can mount only on folders they own.",
            };
            Failure::new(Exit::NoPermission, text).hint(hint)
        }
        error => Failure::volume(&plan.image, error),
    }
}
