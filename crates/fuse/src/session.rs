//! A session: from mounting to the last reply.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use xact::Volume;
use xact::device::{BlockDevice, FileDevice};
use xact_types::settings::Id;
use xact_types::{Error, Result};

use crate::protocol::init::{self, Agreed, BUFFER};
use crate::protocol::reply::Reply;
use crate::protocol::request::{Operation, Request};
use crate::server::Server;
use crate::transport::channel::{Channel, Received};
use crate::transport::mount::{self, MountOptions, Mounted};
use crate::transport::open_guard::OpenGuard;
use crate::transport::signals::{self, Watch};
use crate::transport::worker_pool::WorkerPool;

/// Read-ahead of the kernel for a program that reads in sequence, in KiB. The kernel's default of
/// 128 makes eight requests of what could be one.
const READ_AHEAD_KIB: u32 = 1024;

/// A volume that is being served, mounted or not.
pub struct Connection {
    server: Arc<Server>,
    pool: Arc<WorkerPool<Server>>,
}

/// A volume that is mounted and being served.
pub struct Session {
    connection: Connection,
    unmounter: Unmounter,
    watch: Option<Watch>,
    /// Why sync(2) does not reach the server, if that is so.
    sync_reaches: std::result::Result<(), String>,
    guard: Option<OpenGuard>,
}

/// Ends a session from another thread.
#[derive(Debug, Clone)]
pub struct Unmounter {
    at: PathBuf,
    /// Number of the connection in `/sys/fs/fuse/connections`.
    connection: Option<u32>,
}

/// Mounts `volume` on `mountpoint` and serves it on separate threads. When this returns, the mount
/// is usable.
///
/// `Usage` errors name the obstacle: no such folder, no /dev/fuse, no permission.
pub fn serve(volume: Arc<Volume>, mountpoint: &Path, options: &MountOptions) -> Result<Session> {
    serve_device(volume, mountpoint, options, None)
}

/// As [`serve`], for the volume on `image`, which a mount with the type `fuseblk` needs.
///
/// `InUse`: another process has taken the block device while it was being mounted.
pub fn serve_device(
    volume: Arc<Volume>,
    mountpoint: &Path,
    options: &MountOptions,
    image: Option<&FileDevice>,
) -> Result<Session> {
    let wrong = |e: io::Error| Error::Usage(format!("cannot mount on {}: {e}", mountpoint.display()));
    // canonicalize would fail on a dead mount, for which mount::mount has a better message.
    let at = std::path::absolute(mountpoint).map_err(wrong)?;
    let at = at.canonicalize().unwrap_or(at);
    let guard = guard(options, image)?;
    let Mounted { device, block_device } = mount::mount(&at, options, image)?;
    // The claim on a block device was released for a moment; and no claim keeps a writer from an
    // image that was opened a moment before the guard.
    if let Err(e) = volume.check_other_writers() {
        let _ = mount::unmount(&at, true);
        return Err(e);
    }
    let channel = Channel::new(device);
    let connection = match start(volume, channel, Some(at.clone()), options) {
        Ok(connection) => connection,
        Err(e) => {
            // Every process that looks at the mount would hang, and so would an unmount with the
            // type fuseblk, which waits for an answer: no session answers any more.
            if let Ok((major, minor)) = mount::device_number(&at) {
                let _ = mount::abort_connection(major << 20 | minor);
            }
            let _ = mount::unmount(&at, true);
            return Err(e);
        }
    };
    let is_block = block_device.is_ok();
    let device = mount::device_number(&at).ok();
    if let Some((major, minor)) = device {
        // Needs root. Otherwise the kernel's default applies.
        let kind = if is_block { "-fuseblk" } else { "" };
        let path = format!("/sys/class/bdi/{major}:{minor}{kind}/read_ahead_kb");
        let _ = std::fs::write(path, READ_AHEAD_KIB.to_string());
    }
    let sync_reaches = block_device.and_then(|()| try_sync(&connection.server, &at));
    connection.server.block_device.store(is_block, Ordering::Relaxed);
    connection.server.exclusive.store(guard.is_some(), Ordering::Relaxed);
    if options.notify && !connection.server.volume.is_read_only() {
        connection.server.watchers.serve(device);
    }
    // The kernel's own form of the number.
    let unmounter = Unmounter { at, connection: device.map(|(major, minor)| major << 20 | minor) };
    Ok(Session { connection, unmounter, watch: None, sync_reaches, guard })
}

/// Keeps other programs from opening an image file for writing, if that is possible and wanted.
fn guard(options: &MountOptions, image: Option<&FileDevice>) -> Result<Option<OpenGuard>> {
    let Some(image) = image.filter(|image| !image.is_read_only() && options.exclusive != Some(false)) else {
        return Ok(None);
    };
    if !image.as_file().metadata().is_ok_and(|about| about.is_file()) {
        return Ok(None);
    }
    match (OpenGuard::start(image.as_file(), &options.source), options.exclusive) {
        (Ok(guard), _) => Ok(Some(guard)),
        (Err(e), Some(true)) => {
            let hint = "needs root, and a kernel with CONFIG_FANOTIFY_ACCESS_PERMISSIONS";
            Err(Error::Usage(format!("cannot keep other programs from the image: {e} (it {hint})")))
        }
        (Err(e), _) => {
            tracing::debug!("other programs can open the image for writing: {e}");
            Ok(None)
        }
    }
}

/// Finds out by a try whether sync(2) reaches the server: kernels before 6.18 send nothing.
fn try_sync(server: &Server, at: &Path) -> std::result::Result<(), String> {
    // The kernel syncs no read-only mount, and nothing has to be synced.
    if server.volume.is_read_only() || server.options.read_only {
        return Ok(());
    }
    match sync_in_a_child(at) {
        Ok(()) if server.syncs.load(Ordering::Relaxed) => Ok(()),
        Ok(()) => Err("this kernel does not report them to FUSE servers".into()),
        Err(e) => Err(format!("syncfs(2) failed: {e}")),
    }
}

/// syncfs(2) of the own mount, by a process that has no descriptor of it.
///
/// A process that is killed closes its descriptors when its last thread ends. A thread that waits
/// for an answer of its own process ends when it has the answer: never, if the threads that would
/// give it are killed. The mount, and the image's lock, would stay until the next boot. A child
/// that waits keeps nothing open, so the kernel ends the connection, and then the child's call.
fn sync_in_a_child(at: &Path) -> io::Result<()> {
    let path = CString::new(at.as_os_str().as_bytes())?;
    // SAFETY: other threads may hold locks at this moment, which stay locked in the child. So the
    // child calls nothing but system calls until it ends, with memory that was made before.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: as above; `path` ends with a zero byte.
            unsafe {
                libc::close_range(0, libc::c_uint::MAX, 0);
                let root = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
                let failed = root < 0 || libc::syncfs(root) != 0;
                libc::_exit(if failed { *libc::__errno_location() } else { 0 })
            }
        }
        _ => {
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return Err(e);
                }
            }
            match libc::WEXITSTATUS(status) {
                _ if !libc::WIFEXITED(status) => Err(io::Error::other("its process was killed")),
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }
}

/// Serves `volume` over a socket that preserves message boundaries (`SOCK_SEQPACKET`), from INIT
/// on, without a mount. The process at the other end plays the kernel, and may send requests that
/// the kernel would not.
pub fn serve_socket(volume: Arc<Volume>, socket: OwnedFd) -> Result<Connection> {
    start(volume, Channel::new(socket), None, &MountOptions::default())
}

impl Connection {
    /// Returns when the other end is closed, the last request is answered, and open transactions
    /// are aborted. The caller closes the volume.
    pub fn wait(self) {
        self.pool.wait();
        self.server.shut_down();
    }
}

fn start(
    volume: Arc<Volume>,
    channel: Channel,
    at: Option<PathBuf>,
    options: &MountOptions,
) -> Result<Connection> {
    let io = |e| Error::io("serving /dev/fuse", e);
    let noatime = Id::AccessTimes.setting().default_value();
    let agreed = handshake(&channel, options.value(Id::AccessTimes) != noatime)?;
    let server =
        Arc::new(Server::new(volume.clone(), channel.share().map_err(io)?, agreed, at, options.clone()));
    server.reopen_persisted();
    let watching = Arc::downgrade(&server);
    volume.watch_snapshots(Box::new(move |name| {
        if let Some(server) = watching.upgrade() {
            server.snapshot_changed(name);
        }
    }));
    let pool = WorkerPool::start(channel, server.clone(), options.single_caller).map_err(io)?;
    Ok(Connection { server, pool })
}

/// Answers INIT, the first request.
fn handshake(channel: &Channel, keeps_access_times: bool) -> Result<Agreed> {
    let io = |e| Error::io("starting FUSE", e);
    let mut buffer = vec![0; BUFFER];
    loop {
        let len = match channel.receive(&mut buffer).map_err(io)? {
            Received::Request(len) => len,
            Received::Nothing => continue,
            Received::Closed => {
                return Err(Error::Usage("unmounted while the mount was being set up".into()));
            }
        };
        let mut reply = Reply::new();
        let (unique, asked) = match Request::decode(&buffer[..len]) {
            Ok(Request { header, operation: Operation::Init(asked), .. }) => (header.unique, asked),
            _ => return Err(Error::Usage("the kernel did not start with INIT".into())),
        };
        let (answer, agreed) = init::negotiate(&asked, keeps_access_times)?;
        reply.put(&answer);
        channel.send(reply.finish(unique, Ok(()))).map_err(io)?;
        if asked.major == crate::protocol::abi::KERNEL_VERSION {
            return Ok(agreed);
        }
    }
}

impl Session {
    /// Blocks SIGTERM and SIGINT for [`Session::unmount_on_signals`]. To be called before any
    /// thread is started, also those of the volume.
    pub fn block_signals() {
        signals::block();
    }

    /// From now on the first SIGTERM or SIGINT unmounts as [`Unmounter::unmount`] does. A second
    /// one ends the session at once: open files then answer `ENOTCONN`.
    pub fn unmount_on_signals(&mut self) -> Result<()> {
        let unmounter = self.unmounter.clone();
        let server = self.connection.server.clone();
        let watch = Watch::start(move |count| {
            if count > 1 {
                return unmounter.abort();
            }
            // All changes so far become durable, however long the unmount takes.
            if let Err(e) = server.sync() {
                crate::log(format_args!("sync before unmounting: {e}"));
            }
            match unmounter.unmount() {
                Ok(true) => {}
                Ok(false) => crate::log(format_args!(
                    "{} is in use: it is detached, and served until the last file on it is closed",
                    unmounter.at.display()
                )),
                Err(e) => crate::log(format_args!("cannot unmount {}: {e}", unmounter.at.display())),
            }
        });
        self.watch = Some(watch.map_err(|e| Error::io("starting the signal thread", e))?);
        Ok(())
    }

    /// Logs what sync(2) does on this mount.
    pub fn log_sync(&self) {
        match &self.sync_reaches {
            Ok(()) => tracing::debug!("sync(2), syncfs(2) and 'mount -o remount,ro' make everything durable"),
            Err(why) => tracing::info!(
                "sync(2) and syncfs(2) do not reach this mount ({why}): 'xact sync' makes everything durable"
            ),
        }
    }

    /// Sets the name of the abstract Unix socket at which the caller will report how the session
    /// and the closing of the volume ended; programs ask for it by `XACT_IOC_OUTCOME`.
    pub fn set_outcome_socket(&self, name: &[u8]) {
        self.connection.server.set_outcome_socket(name);
    }

    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Returns when the volume is unmounted, by any process, the last request is answered, and open
    /// transactions are aborted. The caller closes the volume, and drops what this returns then.
    pub fn wait(self) -> Ended {
        let server = self.connection.server.clone();
        self.connection.wait();
        Ended { server, watch: self.watch, guard: self.guard }
    }
}

/// A session that has ended. When it is dropped, umount(2) returns, if it waits for the volume to
/// be closed: from then on the image may be checked or mounted again.
pub struct Ended {
    server: Arc<Server>,
    watch: Option<Watch>,
    guard: Option<OpenGuard>,
}

impl Ended {
    /// Lets other programs open the image, once the volume is closed.
    pub fn unguard(&mut self) {
        self.guard = None;
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.unguard();
        self.server.answer_destroy();
        // Its thread may be the one in umount(2).
        if let Some(watch) = self.watch.take() {
            watch.stop();
        }
    }
}

impl Unmounter {
    /// Unmounts. If files on the mount are open or it is a process's working directory, it is
    /// detached, and the session continues until the last of them is closed: then false.
    pub fn unmount(&self) -> io::Result<bool> {
        match mount::unmount(&self.at, false) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                mount::unmount(&self.at, true)?;
                Ok(false)
            }
            // Another process has unmounted it.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Aborts the connection: processes with open files get `ENOTCONN`.
    fn abort(&self) {
        let Some(connection) = self.connection else { return };
        if let Err(e) = mount::abort_connection(connection) {
            crate::log(format_args!("cannot cut connection {connection}: {e}"));
        }
    }
}
