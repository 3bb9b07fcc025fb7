//! Operations on names: lookup, create, link, rename, remove.

use xact_control::abi::FOLDER;
use xact_fs::api::check_name;
use xact_fs::is_persisted_folder;
use xact_fs::{Attr, RenameHow, View};
use xact_types::{Errno, Error, Ino, Result};

use crate::ops::credentials::caller;
use crate::protocol::abi::{EntryOut, InHeader, OpenOut};
use crate::protocol::node::Node;
use crate::protocol::reply::{self, Reply, VALID_SECS};
use crate::protocol::request::Operation;
use crate::server::Server;
use crate::server::request_view::RequestView;

/// How often a lookup is repeated when the inode that it found was removed in between.
const LOOKUP_TRIES: u32 = 8;

/// Refuses (`EPERM`) to create, remove or rename `.xact` in the root of the live volume or of a
/// view, which is the server's, and `.xact-kept`, which is on the volume.
pub fn check_changed(dir: Ino, name: &[u8]) -> Result<()> {
    check_name(name)?;
    if is_reserved(dir, name) { Err(Errno::EPERM.into()) } else { Ok(()) }
}

pub fn is_reserved(dir: Ino, name: &[u8]) -> bool {
    dir == Ino::ROOT && name == FOLDER.as_bytes() || is_persisted_folder(dir, name)
}

impl Server {
    pub(crate) fn lookup(
        &self,
        request_view: &RequestView<'_>,
        dir: Ino,
        name: &[u8],
        reply: &mut Reply,
    ) -> Result<()> {
        if matches!(name, b"." | b"..") {
            return self.lookup_by_handle(request_view, dir, name == b"..", reply);
        }
        check_name(name)?;
        if is_reserved(dir, name) {
            return match request_view {
                RequestView::Live { .. } if name == FOLDER.as_bytes() => {
                    reply.put(&self.control_dir_entry(Node::ControlDir)?);
                    Ok(())
                }
                _ => Err(Errno::ENOENT.into()),
            };
        }
        for _ in 0..LOOKUP_TRIES {
            let entry_valid = self.lifetime_of_names(request_view, dir);
            let attr = match request_view.view().lookup(dir, name) {
                Ok(attr) => attr,
                Err(Error::Posix(Errno::ENOENT)) => {
                    // The kernel may cache that the name does not exist.
                    let entry_valid = if self.watchers.is_removed(dir, name) { 0 } else { entry_valid };
                    reply.put(&EntryOut { entry_valid, ..Default::default() });
                    return Ok(());
                }
                Err(e) => return Err(e),
            };
            if let Some(entry) = self.hold_checked(request_view, &attr, Some((dir, name)))? {
                reply.put(&EntryOut { entry_valid, ..entry });
                return Ok(());
            }
        }
        Err(Errno::ESTALE.into())
    }

    /// LOOKUP of `.` in any inode, and of `..` in a folder: the kernel has a file handle
    /// (`open_by_handle_at`) with this node id, of which it has forgotten the inode. It compares
    /// the generation itself.
    ///
    /// In transactions and snapshots a handle is stale then. Their node ids are reused, and a
    /// process could make up a handle of another user's transaction.
    fn lookup_by_handle(
        &self,
        request_view: &RequestView<'_>,
        ino: Ino,
        parent: bool,
        reply: &mut Reply,
    ) -> Result<()> {
        let RequestView::Live { view, .. } = request_view else { return Err(Errno::ESTALE.into()) };
        let mut attr = view.by_handle(ino)?;
        if parent {
            let mut found = None;
            view.read_dir(ino, 0, &mut |item| {
                found = (item.name == b"..").then_some(item.ino);
                item.name == b"."
            })?;
            attr = view.by_handle(found.ok_or(Errno::ESTALE)?)?;
        }
        let entry = self.hold_checked(request_view, &attr, None)?.ok_or(Errno::ESTALE)?;
        // The kernel has its root with generation 0.
        let generation = if attr.ino == Ino::ROOT { 0 } else { entry.generation };
        reply.put(&EntryOut { generation, entry_valid: 0, ..entry });
        Ok(())
    }

    /// MKNOD, MKDIR, TMPFILE, SYMLINK and LINK: all reply with the entry.
    pub(crate) fn make(
        &self,
        request_view: &RequestView<'_>,
        dir: Ino,
        header: &InHeader,
        operation: &Operation<'_>,
        reply: &mut Reply,
    ) -> Result<()> {
        request_view.check_lookup()?;
        let view = request_view.view();
        let name = match operation {
            Operation::Mknod { name, .. }
            | Operation::Mkdir { name, .. }
            | Operation::Symlink { name, .. }
            | Operation::Link { name, .. } => {
                check_changed(dir, name)?;
                *name
            }
            _ => b"",
        };
        let perm = |mode: u32| (mode & 0o7777) as u16;
        let by = |umask| caller(header, umask);
        let attr = match operation {
            Operation::Mknod { args, .. } => {
                let is_file = args.mode & libc::S_IFMT == libc::S_IFREG;
                match view.make_node(&by(args.umask), dir, name, args.mode as u16, u64::from(args.rdev)) {
                    // A commit created it after the kernel had looked. ESTALE makes the kernel look
                    // again: an open without O_EXCL then opens it, with its permissions checked,
                    // and every other call sees that it exists.
                    Err(Error::Posix(Errno::EEXIST)) if is_file => return Err(Errno::ESTALE.into()),
                    made => made?,
                }
            }
            Operation::Mkdir { args, .. } => view.make_dir(&by(args.umask), dir, name, perm(args.mode))?,
            Operation::Symlink { target, .. } => view.make_symlink(&by(0), dir, name, target)?,
            Operation::Link { old_node, .. } => {
                view.link(&by(0), self.same_view(request_view, *old_node)?, dir, name)?
            }
            Operation::Tmpfile { args } => view.make_unnamed(&by(args.umask), dir, perm(args.mode))?,
            _ => return Err(Errno::EIO.into()),
        };
        if !matches!(operation, Operation::Tmpfile { .. }) {
            view.hold(attr.ino)?;
        }
        request_view.add_lookup(&attr, (!name.is_empty()).then_some((dir, name)));
        let (entry_valid, lifetime) = match (request_view, operation) {
            (RequestView::Followed { .. }, _) => (0, 0),
            (_, Operation::Link { .. }) => (VALID_SECS, self.lifetime_of_changed(request_view)),
            _ => (VALID_SECS, VALID_SECS),
        };
        let entry =
            reply::entry_out(request_view.found(&attr).id(), request_view.st_ino(attr.ino), &attr, lifetime);
        reply.put(&EntryOut { entry_valid, ..entry });
        if matches!(operation, Operation::Tmpfile { .. }) {
            reply.put(&OpenOut { open_flags: FOPEN_KEEP_CACHE, ..Default::default() });
        }
        Ok(())
    }

    /// UNLINK and RMDIR, with the call of the view that removes the name.
    pub(crate) fn remove(
        &self,
        request_view: &RequestView<'_>,
        dir: Ino,
        name: &[u8],
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        check_changed(dir, name)?;
        remove()?;
        request_view.remove_name(dir, name);
        Ok(())
    }

    pub(crate) fn rename(
        &self,
        request_view: &RequestView<'_>,
        (dir, old): (Ino, &[u8]),
        (new_dir, new): (u64, &[u8]),
        flags: u32,
        header: &InHeader,
    ) -> Result<()> {
        let new_dir = self.same_view(request_view, new_dir)?;
        check_changed(dir, old)?;
        check_changed(new_dir, new)?;
        let how = match flags {
            0 => RenameHow::Replace,
            libc::RENAME_NOREPLACE => RenameHow::NoReplace,
            libc::RENAME_EXCHANGE => RenameHow::Exchange,
            libc::RENAME_WHITEOUT => RenameHow::Whiteout,
            _ => return Err(Errno::EINVAL.into()),
        };
        request_view.view().rename(&caller(header, 0), (dir, old), (new_dir, new), how)?;
        if let RequestView::Tx { tx, .. } = request_view {
            tx.refs.rename((dir, old), (new_dir, new), how == RenameHow::Exchange);
        }
        Ok(())
    }

    /// The inode of an operation's second node: `EXDEV` unless it is in the same view.
    pub(crate) fn same_view(&self, request_view: &RequestView<'_>, id: u64) -> Result<Ino> {
        match (Node::from_id(id), request_view.view_nr()) {
            (Some(Node::Live(ino)), None) => Ok(ino),
            (Some(Node::View(nr, ino)), Some(ours)) if nr == ours => Ok(ino),
            (Some(Node::Live(ino)), Some(_)) if matches!(request_view, RequestView::Followed { .. }) => {
                Ok(ino)
            }
            _ => Err(Errno::EXDEV.into()),
        }
    }

    /// Holds an inode that a lookup found and returns its entry for the kernel. `None`: a commit
    /// removed it between lookup and hold, and its number may belong to another inode by now.
    pub(crate) fn hold_checked(
        &self,
        request_view: &RequestView<'_>,
        found: &Attr,
        name: Option<(Ino, &[u8])>,
    ) -> Result<Option<EntryOut>> {
        request_view.check_lookup()?;
        let gone = |e: &Error| matches!(e, Error::Posix(Errno::ESTALE | Errno::ENOENT));
        let view: &dyn View = request_view.view();
        match view.hold(found.ino) {
            Ok(()) => {}
            Err(e) if gone(&e) => return Ok(None),
            Err(e) => return Err(e),
        }
        // The hold comes before the question for the lifetime, and that one before the attributes
        // are read: see `cache_fence`.
        let lifetime = self.lifetime(request_view, found.ino);
        match view.attr(found.ino) {
            Ok(attr) if attr.generation == found.generation && attr.kind == found.kind => {
                request_view.add_lookup(&attr, name);
                let (node, st_ino) = (request_view.found(&attr), request_view.st_ino(attr.ino));
                Ok(Some(reply::entry_out(node.id(), st_ino, &attr, lifetime)))
            }
            other => {
                view.release(found.ino, 1);
                match other {
                    Err(e) if !gone(&e) => Err(e),
                    _ => Ok(None),
                }
            }
        }
    }
}

/// `FOPEN_KEEP_CACHE`.
const FOPEN_KEEP_CACHE: u32 = 1 << 1;
