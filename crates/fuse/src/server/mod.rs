//! Operations of the protocol as calls of a view. One file for each kind of operation.

pub mod failed_stores;
pub mod jobs;
pub mod kernel_refs;
pub mod process;
pub mod reaper;
pub mod request_view;
mod space_watch;
pub mod tails;
pub mod transactions;
pub mod user_limits;
mod write_parts;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use xact::Volume;
use xact_control::abi::{self as control, Outcome as DaemonOutcome, Pool, SOCKET_MAX};
use xact_fs::View;
use xact_types::{Errno, Error, Ino, Result};
use zerocopy::{FromBytes, FromZeros};

use crate::commit::cache_fence::CacheFence;
use crate::commit::expected_call::Watchers;
use crate::commit::held_reply::HeldReply;
use crate::commit::inline_end::InlineEnd;
use crate::dotxact::open_snapshots::OpenSnapshots;
use crate::ioctl::sections::Sections;
use crate::protocol::abi::{ForgetOne, InHeader};
use crate::protocol::init::Agreed;
use crate::protocol::node::Node;
use crate::protocol::reply::{self, Reply};
use crate::protocol::request::{DeviceWait, Operation, Request};
use crate::server::process::Processes;
use crate::server::reaper::{Deadlines, Reaper};
use crate::server::request_view::RequestView;
use crate::server::tails::Tails;
use crate::server::transactions::Transactions;
use crate::server::write_parts::WriteParts;
use crate::transport::channel::Channel;
use crate::transport::channel::{SendReply, log_refused};
use crate::transport::mount::MountOptions;
use crate::transport::worker_pool::Handler;

/// The server behind one mount.
pub struct Server {
    pub(crate) volume: Arc<Volume>,
    pub(crate) live: Arc<dyn View>,
    pub(crate) transactions: Transactions,
    pub(crate) open_snapshots: OpenSnapshots,
    /// The descriptor for notifications.
    pub(crate) kernel: Channel,
    pub(crate) agreed: Agreed,
    /// The mount point; `None` for a connection without a mount.
    pub(crate) at: Option<PathBuf>,
    pub(crate) options: MountOptions,
    /// The kernel has sent a SYNCFS: sync(2) reaches this server.
    pub(crate) syncs: AtomicBool,
    /// The mount has a block device as its source.
    pub(crate) block_device: AtomicBool,
    /// Other programs cannot open the image for writing.
    pub(crate) exclusive: AtomicBool,
    /// The kernel's last request, which is answered when the volume is closed.
    destroy: Mutex<Option<(Arc<Channel>, u64)>>,
    pub(crate) jobs: jobs::Jobs,
    failed_stores: failed_stores::FailedStores,
    space_watch: space_watch::SpaceWatch,
    pub(crate) processes: Processes,
    pub(crate) inline_end: InlineEnd,
    pub(crate) reaper: Reaper,
    pub(crate) sections: Sections,
    pub(crate) tails: Tails,
    pub(crate) parts: WriteParts,
    pub(crate) cache_fence: CacheFence,
    pub(crate) watchers: Watchers,
    /// The last figures of the pool that were returned, and when.
    pub(crate) pool_use: Mutex<Option<(Instant, Pool)>>,
    /// Replies that wait until the kernel has forgotten outdated data (see `following`).
    pub(crate) held: Mutex<Vec<Arc<HeldReply>>>,
    outcome_socket: OnceLock<Vec<u8>>,
}

impl Deadlines for Server {
    fn due(self: &Arc<Self>) -> Option<Instant> {
        let sections = self.check_section_owners();
        let parts = self.check_part_owners();
        let held = self.answer_late_replies();
        self.abort_expired().into_iter().chain(sections).chain(parts).chain(held).min()
    }

    fn reaper(&self) -> &Reaper {
        &self.reaper
    }
}

/// The outcome of a request.
pub(crate) enum Outcome {
    /// The reply's body is complete.
    Done,
    /// The kernel expects no reply.
    Silent,
    /// Another thread replies.
    Later,
}

impl Server {
    /// `at`: the mount point, if there is one.
    pub fn new(
        volume: Arc<Volume>,
        kernel: Channel,
        agreed: Agreed,
        at: Option<PathBuf>,
        options: MountOptions,
    ) -> Server {
        let live = volume.base();
        Server {
            volume,
            live,
            transactions: Transactions::default(),
            open_snapshots: OpenSnapshots::default(),
            kernel,
            agreed,
            at,
            options,
            syncs: AtomicBool::new(false),
            block_device: AtomicBool::new(false),
            exclusive: AtomicBool::new(false),
            destroy: Mutex::default(),
            jobs: jobs::Jobs::default(),
            failed_stores: Default::default(),
            space_watch: Default::default(),
            processes: Processes::default(),
            pool_use: Mutex::default(),
            inline_end: InlineEnd::default(),
            reaper: Reaper::default(),
            sections: Sections::default(),
            tails: Tails::default(),
            parts: WriteParts::default(),
            cache_fence: CacheFence::default(),
            watchers: Watchers::default(),
            held: Mutex::default(),
            outcome_socket: OnceLock::new(),
        }
    }

    /// Sets the name of the socket at which the daemon reports how it ended.
    pub(crate) fn set_outcome_socket(&self, name: &[u8]) {
        assert!(name.len() <= SOCKET_MAX, "the name fits");
        // Once for each mount: no one listens on a second name.
        let _ = self.outcome_socket.set(name.to_vec());
    }

    pub(crate) fn outcome(&self) -> DaemonOutcome {
        let mut outcome = DaemonOutcome::new_zeroed();
        if let Some(name) = self.outcome_socket.get() {
            outcome.socket[..name.len()].copy_from_slice(name);
            outcome.len = name.len() as u32;
        }
        outcome
    }

    /// Makes everything done so far durable.
    pub fn sync(&self) -> Result<()> {
        self.live.sync_all()
    }

    /// How it is mounted, as `MOUNT_…` of the control interface.
    pub(crate) fn mount_flags(&self) -> u32 {
        let flag = |is_on: bool, flag: u32| if is_on { flag } else { 0 };
        let engine = match (self.volume.has_generations(), self.volume.has_journal()) {
            (true, _) => control::MOUNT_GENERATIONS,
            (_, true) => control::MOUNT_JOURNAL,
            _ => control::MOUNT_UNJOURNALED,
        };
        flag(self.volume.is_read_only(), control::MOUNT_READ_ONLY)
            | flag(self.syncs.load(Ordering::Relaxed), control::MOUNT_SYNCS)
            | flag(self.exclusive.load(Ordering::Relaxed), control::MOUNT_EXCLUSIVE)
            | engine
    }

    /// Answers the kernel's last request, for which umount(2) waits.
    pub(crate) fn answer_destroy(&self) {
        if let Some((channel, unique)) = self.destroy.lock().take() {
            log_refused(channel.send(Reply::new().finish(unique, Ok(()))));
        }
    }

    /// Refuses a request unless root or the mount's owner made it.
    pub(crate) fn owner_only(&self, header: &InHeader) -> Result<()> {
        // SAFETY: geteuid cannot fail and takes no memory.
        let owner = unsafe { libc::geteuid() };
        if header.uid == 0 || header.uid == owner { Ok(()) } else { Err(Errno::EPERM.into()) }
    }

    /// The text of an error for people, with facts about this volume that explain it.
    pub(crate) fn sentence(&self, error: &Error) -> String {
        match error {
            Error::NoSpace if self.volume.is_pool_full() => {
                let full = "no space left in the volume's pool, which is full until a snapshot is deleted";
                match &self.at {
                    Some(at) => format!("{full} (volume on {})", at.display()),
                    None => full.into(),
                }
            }
            _ => error.to_string(),
        }
    }

    /// Refuses, inside a transaction, an operation that takes effect at once and would stay if the
    /// transaction fails.
    pub(crate) fn outside_only(&self, node: Node, what: &str) -> Result<()> {
        match node {
            Node::View(..) => Err(Error::Usage(format!(
                "{what} is not possible inside a transaction: it would take effect at once, \
                 and stay if the transaction fails"
            ))),
            _ => Ok(()),
        }
    }

    pub(crate) fn enter(self: &Arc<Self>, node: Node, header: &InHeader) -> Result<(RequestView<'_>, Ino)> {
        match node {
            Node::Live(ino) => Ok((RequestView::Live { view: &*self.live, thread: header.pid }, ino)),
            Node::View(nr, ino) => {
                let tx = match self.transactions.view(nr) {
                    Ok(tx) => tx,
                    Err(e) => {
                        let by = self.transactions.followers.get(nr).filter(|by| by.refs.follows(ino));
                        let by = by.ok_or(e)?;
                        return Ok((
                            RequestView::Followed { view: &*self.live, by, transactions: &self.transactions },
                            ino,
                        ));
                    }
                };
                if tx.has_parts() {
                    self.undo_dead_parts(&tx);
                }
                let pass = tx.enter()?;
                Ok((RequestView::Tx { tx, _guard: pass }, ino))
            }
            Node::Snapshot(nr, ino) => {
                let snapshot = self.open_snapshots.get(nr)?;
                let view = snapshot.snapshot.view()?;
                Ok((RequestView::Snapshot { snapshot, view }, ino))
            }
            _ => Err(Errno::EXDEV.into()),
        }
    }

    /// The kernel forgot `count` lookups of a node.
    pub(crate) fn forget(self: &Arc<Self>, id: u64, count: u64) {
        let node = Node::from_id(id);
        if let Some(node @ (Node::Live(_) | Node::View(..))) = node {
            self.tails.forget(node);
        }
        match node {
            Some(Node::Live(ino)) => self.live.release(ino, count),
            Some(Node::View(nr, ino)) => {
                let Some(refs) = self.transactions.refs(nr) else { return };
                let held = refs.forget(ino, count);
                if held > 0 {
                    self.transactions.followers.remove_cached(nr, ino);
                    self.release_followed(ino, held);
                }
                // A view that has ended has already released everything.
                if let Ok(tx) = self.transactions.view(nr)
                    && let Ok(_guard) = tx.enter()
                {
                    tx.transaction.release(ino, count);
                }
                self.transactions.followers.drop_if_forgotten(nr);
            }
            Some(Node::Snapshot(nr, ino)) => {
                // The same holds for a snapshot that was closed.
                if let Ok(one) = self.open_snapshots.get(nr) {
                    if let Ok(view) = one.snapshot.view() {
                        view.release(ino, count);
                    }
                    self.open_snapshots.forget(nr, count);
                }
            }
            Some(Node::Image(nr)) => self.open_snapshots.forget(nr, count),
            Some(Node::Control(channel)) => self.channel_closed(channel),
            Some(
                Node::ControlDir
                | Node::TxList
                | Node::Tx(_)
                | Node::SnapshotDir
                | Node::ImageDir
                | Node::StandIn(_),
            )
            | None => {}
        }
    }

    pub(crate) fn dispatch(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        header: &InHeader,
        operation: &Operation<'_>,
        reply: &mut Reply,
    ) -> Result<Outcome> {
        match operation {
            Operation::Forget { nlookup } => {
                self.forget(header.nodeid, *nlookup);
                return Ok(Outcome::Silent);
            }
            Operation::BatchForget { items } => {
                for item in items.chunks_exact(size_of::<ForgetOne>()) {
                    let item = ForgetOne::read_from_bytes(item).map_err(|_| Errno::EIO)?;
                    self.forget(item.nodeid, item.nlookup);
                }
                return Ok(Outcome::Silent);
            }
            Operation::Destroy => {
                *self.destroy.lock() = Some((channel.clone(), header.unique));
                return Ok(Outcome::Later);
            }
            Operation::Statfs | Operation::SyncFs => {}
            Operation::Refused | Operation::Init(_) => return Err(Errno::ENOSYS.into()),
            _ => {
                let node = Node::from_id(header.nodeid).ok_or(Errno::ESTALE)?;
                if self.watchers.is_call(header.pid)
                    && let Some(done) = self.answer_event_call(node, operation, reply)
                {
                    return done.map(|()| Outcome::Done);
                }
                if let Operation::Ioctl { args, input } = operation {
                    return self.ioctl(channel, header, node, args, input, reply);
                }
                if let (Operation::Write { args, data }, Node::Live(ino)) = (operation, node)
                    && let Some(outcome) = self.section_write(channel, header, ino, args, data, reply)
                {
                    return outcome;
                }
                if !matches!(node, Node::Live(_) | Node::View(..) | Node::Snapshot(..)) {
                    return self.in_control_dir(node, header, operation, reply).map(|()| Outcome::Done);
                }
                if let Operation::Lseek(args) = operation {
                    return self.seek(channel, header, node, args, reply);
                }
                let (request_view, ino) = self.enter(node, header)?;
                let growth = self.before_growth(&request_view, ino, operation)?;
                let done = self.in_view(&request_view, ino, header, operation, reply);
                drop(request_view);
                return match growth {
                    Some(growth) => self.after_growth(growth, done, channel, header, reply),
                    None => done.map(|()| Outcome::Done),
                };
            }
        }
        // These operations concern the whole mount.
        match operation {
            Operation::Statfs => reply.put(&reply::statfs_out(&self.live.space()?)),
            Operation::SyncFs => {
                self.syncs.store(true, Ordering::Relaxed);
                self.sync()?;
            }
            _ => {}
        }
        Ok(Outcome::Done)
    }
}

impl Handler for Server {
    fn waits(&self, request: &Request<'_>) -> bool {
        match request.device_wait() {
            DeviceWait::No => false,
            DeviceWait::Yes => true,
            DeviceWait::UnlessCached { node, offset, len } => match node {
                // Contents of a file in a transaction are mostly those on the volume, or were until
                // recently.
                Some(Node::Live(ino) | Node::View(_, ino)) => !self.live.is_in_memory(ino, offset, len),
                _ => true,
            },
        }
    }

    fn handle(self: &Arc<Self>, channel: &Arc<Channel>, request: &Request<'_>, reply: &mut Reply) {
        self.respond(channel, request, reply, Channel::reply);
    }

    fn refuse(&self, channel: &Arc<Channel>, request: &Request<'_>, reply: &mut Reply) {
        log_refused(channel.reply(reply.finish(request.header.unique, Err(Errno::EAGAIN))));
    }

    fn refuse_unreadable(&self, channel: &Arc<Channel>, bytes: &[u8], errno: Errno, reply: &mut Reply) {
        crate::log(format_args!("cannot decode a request of {} bytes", bytes.len()));
        if let Ok((header, _)) = InHeader::read_from_prefix(bytes) {
            log_refused(channel.reply(reply.finish(header.unique, Err(errno))));
        }
    }
}

impl Server {
    /// Logs errors that an administrator should see, and returns the error number for the caller.
    fn errno(self: &Arc<Self>, error: &Error, request: &Request<'_>) -> Errno {
        self.note_no_space(error);
        if matches!(error, Error::Io { .. } | Error::Corrupt(_)) {
            let id = match Node::from_id(request.header.nodeid) {
                Some(Node::View(nr, _)) => self.transactions.view(nr).ok().map(|tx| tx.id()),
                _ => None,
            };
            let line = format!("{request}: {error}");
            let line = xact_types::printable(&line);
            // Without the field where the request is not of a transaction.
            tracing::error!(transaction = id, "{line}");
        }
        error.errno()
    }

    pub(crate) fn respond(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        request: &Request<'_>,
        reply: &mut Reply,
        send: SendReply,
    ) {
        if !self.admits(channel, request) {
            return;
        }
        let Request { header, operation, .. } = request;
        while let Some(ino) = self.parts.ended_by(header, operation) {
            self.live.end_write(ino);
        }
        // A panic ends at this boundary. Its half-done changes must not reach the disk.
        let result = catch_unwind(AssertUnwindSafe(|| self.dispatch(channel, header, operation, reply)));
        let outcome = match result {
            Ok(Ok(Outcome::Done)) => {
                self.look_at_space(operation);
                if self.reply_when_forgotten(channel, header, operation, reply) {
                    return;
                }
                Ok(())
            }
            Ok(Ok(Outcome::Silent | Outcome::Later)) => return,
            Ok(Err(error)) => Err(self.errno(&error, request)),
            Err(_) => {
                let why = format!("a panic in {request}");
                crate::log(format_args!("{why}: the volume is read-only from now on"));
                self.volume.poison(&why);
                if matches!(operation, Operation::Forget { .. } | Operation::BatchForget { .. }) {
                    return;
                }
                Err(Errno::EIO)
            }
        };
        log_refused(send(channel, reply.finish(header.unique, outcome)));
    }
}
