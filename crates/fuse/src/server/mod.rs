//! Operations of the protocol as calls of a view. One file for each kind of operation.

pub mod jobs;
pub mod kernel_refs;
pub mod process;
pub mod reaper;
pub mod transactions;
pub mod user_limits;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use xact_control::abi::Pool;
use xact_fs::{Attr, Caller, FileKind, Name, View};
use xact_types::{Errno, Error, Ino, Result};
use zerocopy::FromBytes;

use crate::commit::cache_fence::Veils;
use crate::commit::followers::Followed;
use crate::commit::{following, tx_end};
use crate::dotxact::open_snapshots::{OpenSnapshot, OpenSnapshots};
use crate::dotxact::snapshot_dirs;
use crate::host::Host;
use crate::ioctl::atomic_write;
use crate::ops::attributes;
use crate::protocol::abi::{ForgetOne, InHeader};
use crate::protocol::init::Agreed;
use crate::protocol::node::{Node, ViewNr};
use crate::protocol::reply::{self, Reply};
use crate::protocol::request::{self, Described, Operation, Waits};
use crate::server::process::Owners;
use crate::server::reaper::{Deadlines, Reaper};
use crate::server::transactions::{Pass, Registry, TxView};
use crate::transport::channel::Channel;
use crate::transport::worker_pool::Handler;

/// The server behind one mount.
pub struct Server {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) base: Arc<dyn View>,
    pub(crate) registry: Registry,
    pub(crate) past: OpenSnapshots,
    /// For notifications.
    pub(crate) kernel: Channel,
    pub(crate) agreed: Agreed,
    pub(crate) jobs: jobs::Jobs,
    pub(crate) owners: Owners,
    pub(crate) here: tx_end::Here,
    pub(crate) reaper: Reaper,
    pub(crate) sections: atomic_write::Sections,
    pub(crate) veils: Veils,
    /// What was told of the pool last, and when.
    pub(crate) pool_use: Mutex<Option<(Instant, Pool)>>,
    /// Answers that wait until the kernel has forgotten (see `following`).
    pub(crate) held: Mutex<Vec<Arc<following::Held>>>,
}

impl Deadlines for Server {
    fn due(self: &Arc<Self>) -> Option<Instant> {
        let sections = self.look_after_sections();
        let parts = self.look_after_parts();
        let held = self.look_after_held();
        self.drop_expired().into_iter().chain(sections).chain(parts).chain(held).min()
    }

    fn reaper(&self) -> &Reaper {
        &self.reaper
    }
}

/// What became of a request.
pub(crate) enum Outcome {
    /// The reply's body is put together.
    Done,
    /// The kernel expects no reply.
    Silent,
    /// Another thread replies.
    Later,
}

/// The view that an operation runs in, for as long as it runs.
pub(crate) enum Place<'a> {
    /// `thread`: whose request it is; 0 where that is not known.
    Base {
        view: &'a dyn View,
        thread: u32,
    },
    Tx {
        tx: Arc<TxView>,
        _pass: Pass,
    },
    /// A view that was committed: its nodes stand for the volume's inodes.
    Followed {
        view: &'a dyn View,
        by: Arc<Followed>,
        registry: &'a Registry,
    },
    Past {
        snapshot: Arc<OpenSnapshot>,
        view: Arc<dyn View>,
    },
}

impl Place<'_> {
    pub(crate) fn view(&self) -> &dyn View {
        match self {
            Place::Base { view, .. } | Place::Followed { view, .. } => *view,
            Place::Tx { tx, .. } => &*tx.view,
            Place::Past { view, .. } => &**view,
        }
    }

    pub(crate) fn view_nr(&self) -> Option<ViewNr> {
        match self {
            Place::Base { .. } | Place::Past { .. } => None,
            Place::Tx { tx, .. } => Some(tx.nr),
            Place::Followed { by, .. } => Some(by.nr),
        }
    }

    pub(crate) fn node(&self, ino: Ino) -> Node {
        match self {
            Place::Base { .. } => Node::Base(ino),
            Place::Tx { tx, .. } => Node::View(tx.nr, ino),
            Place::Followed { by, .. } => Node::View(by.nr, ino),
            Place::Past { snapshot, .. } => Node::Past(snapshot.nr, ino),
        }
    }

    /// The node by which what was found in a folder is known.
    pub(crate) fn found(&self, attr: &Attr) -> Node {
        match self {
            Place::Followed { .. } if attr.kind != FileKind::Directory => Node::Base(attr.ino),
            _ => self.node(attr.ino),
        }
    }

    /// What `stat` tells as the inode's number. That of a snapshot's file is another than that of the
    /// file as it is now: else `cp` would take the two for one. So is that in a view of a program that has several
    /// open: SQLite lets connections with files of the same number share locks, descriptors and its WAL's index.
    pub(crate) fn st_ino(&self, ino: Ino) -> u64 {
        match self {
            Place::Tx { tx, .. } if tx.own_inodes => self.node(ino).id(),
            Place::Base { .. } | Place::Tx { .. } | Place::Followed { .. } => u64::from(ino.0),
            Place::Past { .. } => self.node(ino).id(),
        }
    }

    pub(crate) fn note_contents(&self, ino: Ino) {
        match self {
            Place::Tx { tx, .. } => tx.refs.note_contents(ino),
            Place::Followed { by, registry, .. } => registry.followers.note_contents(by.nr, ino),
            Place::Base { .. } | Place::Past { .. } => {}
        }
    }

    /// Before the kernel learns of an inode. `ENOMEM`: no memory is left for the view's user.
    pub(crate) fn check_lookup(&self) -> Result<()> {
        match self {
            Place::Tx { tx, .. } => tx.refs.check_lookup(),
            Place::Followed { by, .. } => by.refs.check_lookup(),
            Place::Base { .. } | Place::Past { .. } => Ok(()),
        }
    }

    pub(crate) fn remove_name(&self, dir: Ino, name: &Name) {
        if let Place::Tx { tx, .. } = self {
            tx.refs.remove_name(dir, name);
        }
    }

    /// Attributes are about to be looked at. Two answers to the kernel may overtake each other: one that is older than
    /// a change must not be the last, so the kernel is made to forget it.
    pub(crate) fn note_attributes(&self, ino: Ino) {
        if let Place::Followed { by, registry, .. } = self {
            registry.followers.note_contents(by.nr, ino);
        }
    }

    /// Counts an answer with this inode, by this name in this folder if it has one.
    pub(crate) fn add_lookup(&self, attr: &Attr, name: Option<(Ino, &Name)>) {
        match self {
            Place::Base { .. } => {}
            Place::Tx { tx, .. } => tx.refs.add_lookup(attr, name),
            Place::Followed { by, registry, .. } if attr.kind == FileKind::Directory => {
                registry.followers.add_hold(attr.ino);
                by.refs.add_held(attr);
            }
            Place::Followed { .. } => {}
            Place::Past { snapshot, .. } => snapshot.add_lookup(),
        }
    }
}

pub(crate) fn caller(header: &InHeader, umask: u32) -> Caller {
    Caller { uid: header.uid, gid: header.gid, umask: (umask & 0o777) as u16 }
}

impl Server {
    pub fn new(host: Arc<dyn Host>, kernel: Channel, agreed: Agreed) -> Server {
        let base = host.base();
        Server {
            host,
            base,
            registry: Registry::default(),
            past: OpenSnapshots::default(),
            kernel,
            agreed,
            jobs: jobs::Jobs::default(),
            owners: Owners::default(),
            pool_use: Mutex::default(),
            here: tx_end::Here::default(),
            reaper: Reaper::default(),
            sections: atomic_write::Sections::default(),
            veils: Veils::default(),
            held: Mutex::default(),
        }
    }

    /// Makes everything done so far durable.
    pub fn sync(&self) -> Result<()> {
        self.base.sync_all()
    }

    /// Refuses what is for root and for who mounted the volume alone.
    pub(crate) fn owner_only(&self, header: &InHeader) -> Result<()> {
        // SAFETY: geteuid has no way to fail and takes no memory.
        let owner = unsafe { libc::geteuid() };
        if header.uid == 0 || header.uid == owner { Ok(()) } else { Err(Errno::EPERM.into()) }
    }

    /// An error as a sentence for people: with what has to be known of this volume.
    pub(crate) fn sentence(&self, error: &Error) -> String {
        match error {
            Error::NoSpace if self.host.is_pool_full() => {
                "no space left in the volume's pool, which is full until a snapshot is deleted".into()
            }
            _ => error.to_string(),
        }
    }

    /// Refuses, inside a transaction, what would happen to the volume at once and stay if the transaction fails.
    pub(crate) fn outside_only(&self, node: Node, what: &str) -> Result<()> {
        match node {
            Node::View(..) => Err(Error::Usage(format!(
                "{what} is no part of a transaction: it would happen at once, and stay if the transaction fails"
            ))),
            _ => Ok(()),
        }
    }

    pub(crate) fn enter(self: &Arc<Self>, node: Node, header: &InHeader) -> Result<(Place<'_>, Ino)> {
        match node {
            Node::Base(ino) => Ok((Place::Base { view: &*self.base, thread: header.pid }, ino)),
            Node::View(nr, ino) => {
                let tx = match self.registry.view(nr) {
                    Ok(tx) => tx,
                    Err(e) => {
                        let by = self.registry.followers.get(nr).filter(|by| by.refs.follows(ino));
                        let by = by.ok_or(e)?;
                        return Ok((
                            Place::Followed { view: &*self.base, by, registry: &self.registry },
                            ino,
                        ));
                    }
                };
                if tx.has_parts() {
                    self.undo_dead_parts(&tx);
                }
                let pass = tx.enter()?;
                Ok((Place::Tx { tx, _pass: pass }, ino))
            }
            Node::Past(nr, ino) => {
                let snapshot = self.past.get(nr)?;
                let view = snapshot.snapshot.view()?;
                Ok((Place::Past { snapshot, view }, ino))
            }
            _ => Err(Errno::EXDEV.into()),
        }
    }

    /// The kernel forgot `count` lookups of a node.
    pub(crate) fn forget(self: &Arc<Self>, id: u64, count: u64) {
        match Node::from_id(id) {
            Some(Node::Base(ino)) => self.base.release(ino, count),
            Some(Node::View(nr, ino)) => {
                let Some(refs) = self.registry.refs(nr) else { return };
                let held = refs.forget(ino, count);
                if held > 0 {
                    self.registry.followers.remove_cached(nr, ino);
                    self.release_followed(ino, held);
                }
                // A view that has ended has released everything.
                if let Ok(tx) = self.registry.view(nr)
                    && let Ok(_pass) = tx.enter()
                {
                    tx.view.release(ino, count);
                }
                self.registry.followers.drop_if_forgotten(nr);
            }
            Some(Node::Past(nr, ino)) => {
                // As of a view that has ended.
                if let Ok(one) = self.past.get(nr) {
                    if let Ok(view) = one.snapshot.view() {
                        view.release(ino, count);
                    }
                    self.past.forget(nr, count);
                }
            }
            Some(Node::Image(nr)) => self.past.forget(nr, count),
            Some(Node::Control(channel)) => self.channel_closed(channel),
            Some(Node::Hidden | Node::TxList | Node::Tx(_) | Node::Snapshots | Node::Images) | None => {}
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
            Operation::Statfs | Operation::Destroy | Operation::SyncFs => {}
            Operation::Refused | Operation::Init(_) => return Err(Errno::ENOSYS.into()),
            _ => {
                let node = Node::from_id(header.nodeid).ok_or(Errno::ESTALE)?;
                if let Operation::Ioctl { args, input } = operation {
                    return self.ioctl(channel, header, node, args, input, reply);
                }
                if let (Operation::Write { args, data }, Node::Base(ino)) = (operation, node)
                    && let Some(outcome) = self.section_write(channel, header, ino, args, data, reply)
                {
                    return outcome;
                }
                return match node {
                    Node::Base(_) | Node::View(..) | Node::Past(..) => {
                        let (place, ino) = self.enter(node, header)?;
                        self.in_view(&place, ino, header, operation, reply)
                    }
                    _ => self.in_hidden(node, header, operation, reply),
                }
                .map(|()| Outcome::Done);
            }
        }
        // What concerns the whole mount.
        match operation {
            Operation::Statfs => reply.put(&reply::statfs_out(&self.base.space()?)),
            Operation::SyncFs => self.sync()?,
            _ => {}
        }
        Ok(Outcome::Done)
    }

    pub(crate) fn in_view(
        self: &Arc<Self>,
        place: &Place<'_>,
        ino: Ino,
        header: &InHeader,
        operation: &Operation<'_>,
        reply: &mut Reply,
    ) -> Result<()> {
        let view = place.view();
        if matches!(place, Place::Past { .. }) && !snapshot_dirs::only_looks(operation) {
            return match operation {
                // All of it is durable.
                Operation::Fsync { .. } => Ok(()),
                // Who copies out of a snapshot does it by reading and writing.
                Operation::CopyFileRange { .. } => Err(Errno::EXDEV.into()),
                _ => Err(Error::ReadOnly),
            };
        }
        match operation {
            Operation::Lookup { name } => self.lookup(place, ino, name, reply),
            Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Tmpfile { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. } => self.make(place, ino, header, operation, reply),
            Operation::Unlink { name } => self.unlink(place, ino, header, name),
            Operation::Rmdir { name } => self.rmdir(place, ino, header, name),
            Operation::Rename { new_dir, flags, old, new } => {
                self.rename(place, (ino, old), (*new_dir, new), *flags, header)
            }
            Operation::ReadDir { args, plus } => self.read_dir(place, ino, args, *plus, reply),
            Operation::GetAttr => {
                place.note_attributes(ino);
                let lifetime = self.lifetime(place, ino);
                reply.put(&reply::attr_out(place.st_ino(ino), &view.attr(ino)?, lifetime));
                Ok(())
            }
            Operation::Statx => {
                place.note_attributes(ino);
                let lifetime = self.lifetime(place, ino);
                reply.put(&reply::statx_out(place.st_ino(ino), &view.attr(ino)?, lifetime));
                Ok(())
            }
            Operation::SetAttr(args) => {
                place.note_attributes(ino);
                let change = attributes::change(args);
                let attr = view.set_attr(&caller(header, 0), ino, &change)?;
                reply.put(&reply::attr_out(place.st_ino(ino), &attr, self.lifetime_of_changed(place)));
                Ok(())
            }
            Operation::ReadLink => {
                reply.put_bytes(&view.read_link(ino)?);
                Ok(())
            }
            Operation::GetXattr { name, size } => attributes::get_xattr(view, ino, name, *size, reply),
            Operation::ListXattr { size } => attributes::list_xattrs(view, ino, header, *size, reply),
            Operation::SetXattr { args, name, value } => {
                attributes::set_xattr(view, ino, header, args, name, value)
            }
            Operation::RemoveXattr { name } => attributes::remove_xattr(view, ino, header, name),
            _ => self.on_contents(place, ino, header, operation, reply),
        }
    }

    /// Logs what a person should know of, and turns the error into what the caller gets.
    pub(crate) fn errno(&self, error: &Error, header: &InHeader, operation: &Operation<'_>) -> Errno {
        if matches!(error, Error::Io { .. } | Error::Corrupt(_)) {
            crate::log(format_args!("{}: {error}", Described(header, operation)));
        }
        error.errno()
    }
}

/// How a reply is sent.
pub(crate) type Sending = fn(&Channel, &[u8]) -> io::Result<()>;

impl Handler for Server {
    fn waits(&self, request: &[u8]) -> bool {
        match request::waits(request) {
            Waits::No => false,
            Waits::Yes => true,
            Waits::Reads { node, offset, len } => match node {
                // What a transaction reads is mostly what the volume has too, or had until now.
                Some(Node::Base(ino) | Node::View(_, ino)) => !self.base.is_in_memory(ino, offset, len),
                _ => true,
            },
        }
    }

    fn handle(self: &Arc<Self>, channel: &Arc<Channel>, request: &[u8], reply: &mut Reply) {
        self.respond(channel, request, reply, Channel::reply);
    }

    fn refuse(&self, channel: &Arc<Channel>, request: &[u8], reply: &mut Reply) {
        if let Ok((header, _)) = InHeader::read_from_prefix(request) {
            sent(channel.reply(reply.finish(header.unique, Err(Errno::EAGAIN))));
        }
    }
}

impl Server {
    pub(crate) fn respond(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        request: &[u8],
        reply: &mut Reply,
        send: Sending,
    ) {
        let (header, operation) = match request::decode(request) {
            Ok(decoded) => decoded,
            Err(errno) => {
                crate::log(format_args!("a request of {} bytes that cannot be read", request.len()));
                if let Ok((header, _)) = InHeader::read_from_prefix(request) {
                    sent(send(channel, reply.finish(header.unique, Err(errno))));
                }
                return;
            }
        };
        if !self.admits(channel, &header, &operation, request) {
            return;
        }
        // A panic ends at this border. What it left half-done must not reach the disk.
        let result = catch_unwind(AssertUnwindSafe(|| self.dispatch(channel, &header, &operation, reply)));
        let outcome = match result {
            Ok(Ok(Outcome::Done)) => {
                if self.reply_when_forgotten(channel, &header, &operation, reply) {
                    return;
                }
                Ok(())
            }
            Ok(Ok(Outcome::Silent | Outcome::Later)) => return,
            Ok(Err(error)) => Err(self.errno(&error, &header, &operation)),
            Err(_) => {
                let why = format!("a panic in {}", Described(&header, &operation));
                crate::log(format_args!("{why}: the volume is read-only from now on"));
                self.host.poison(&why);
                if matches!(operation, Operation::Forget { .. } | Operation::BatchForget { .. }) {
                    return;
                }
                Err(Errno::EIO)
            }
        };
        sent(send(channel, reply.finish(header.unique, outcome)));
    }
}

pub(crate) fn sent(result: io::Result<()>) {
    if let Err(e) = result {
        crate::log(format_args!("a reply was refused: {e}"));
    }
}
