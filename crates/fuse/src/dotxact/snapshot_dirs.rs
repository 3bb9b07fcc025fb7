//! Snapshots below `MNT/.xact`, all of them read-only:
//!
//! ```text
//!   MNT/.xact/snapshots        0755 root   listed
//!   MNT/.xact/snapshots/NAME               the root of the snapshot's files
//!   MNT/.xact/images           0700 root   listed
//!   MNT/.xact/images/NAME      0400 root   the snapshot as an ext4 image, not a copy
//! ```
//!
//! Access to a snapshot's files is controlled by the modes and owners in the snapshot. An image
//! shows all of it.

use xact::SnapshotImage;
use xact_fs::FileKind;
use xact_types::{Errno, Error, Ino, Result};

use crate::protocol::abi::{self, EntryOut, LseekOut, ReadIn};
use crate::protocol::init::MAX_IO;
use crate::protocol::node::Node;
use crate::protocol::reply::{self, Reply, VALID_SECS};
use crate::protocol::request::Operation;
use crate::server::Server;
use crate::server::request_view::RequestView;

/// The inode number of a listed name: it has not been looked up yet (`FUSE_UNKNOWN_INO`).
const UNKNOWN_INO: u64 = 0xffff_ffff;

impl Server {
    /// Looks up a name in `snapshots` or `images`. The kernel asks each time: a name may be
    /// deleted, and come back as another snapshot's.
    pub(crate) fn lookup_snapshot(&self, folder: Node, name: &[u8]) -> Result<EntryOut> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        if !self.volume.snapshot_names()?.iter().any(|known| known == name) {
            return Err(Errno::ENOENT.into());
        }
        let found = self.open_snapshots.find(name, || self.volume.open_snapshot(name))?;
        let entry = if folder == Node::ImageDir {
            self.control_dir_entry(Node::Image(found.nr))
        } else {
            found.snapshot.view().and_then(|view| {
                let root = view.attr(Ino::ROOT)?;
                view.hold(Ino::ROOT)?;
                let request_view = RequestView::Snapshot { snapshot: found.clone(), view };
                let node = request_view.node(Ino::ROOT);
                Ok(reply::entry_out(node.id(), request_view.st_ino(Ino::ROOT), &root, VALID_SECS))
            })
        };
        if entry.is_err() {
            self.open_snapshots.forget(found.nr, 1);
        }
        Ok(EntryOut { entry_valid: 0, ..entry? })
    }

    pub(crate) fn list_snapshots(
        &self,
        folder: Node,
        args: &ReadIn,
        plus: bool,
        reply: &mut Reply,
    ) -> Result<()> {
        let kind = if folder == Node::ImageDir { FileKind::Regular } else { FileKind::Directory };
        let dots = [(".", FileKind::Directory), ("..", FileKind::Directory)];
        let names = self.volume.snapshot_names()?;
        let all = dots.into_iter().chain(names.iter().map(|name| (name.as_str(), kind)));
        let limit = (args.size as usize).min(MAX_IO);
        for (at, (name, kind)) in (1..).zip(all).skip(args.offset as usize) {
            let dirent = abi::Dirent {
                ino: UNKNOWN_INO,
                off: at,
                namelen: name.len() as u32,
                kind: u32::from(kind.mode_bits() >> 12),
            };
            let unknown = EntryOut::default();
            if !reply.put_dirent(limit, plus.then_some(&unknown), dirent, name.as_bytes()) {
                break;
            }
        }
        Ok(())
    }

    /// Operations on `MNT/.xact/images/NAME`.
    pub(crate) fn in_image(
        &self,
        image: &SnapshotImage,
        operation: &Operation<'_>,
        reply: &mut Reply,
    ) -> Result<()> {
        let size = image.size_bytes();
        match operation {
            Operation::Read(args) => {
                let len = u64::from(args.size).min(MAX_IO as u64).min(size.saturating_sub(args.offset));
                let bytes = reply.vec();
                let start = bytes.len();
                bytes.resize(start + len as usize, 0);
                image.read_at(&mut bytes[start..], args.offset)
            }
            Operation::Lseek(args) => {
                let offset = match args.whence as i32 {
                    libc::SEEK_DATA => data_from(image, args.offset),
                    libc::SEEK_HOLE if args.offset < size => Some(hole_from(image, args.offset)),
                    libc::SEEK_HOLE => None,
                    _ => return Err(Errno::EINVAL.into()),
                };
                reply.put(&LseekOut { offset: offset.ok_or(Error::Posix(Errno::ENXIO))? });
                Ok(())
            }
            Operation::Write { .. } | Operation::SetAttr(_) | Operation::Fallocate(_) => Err(Error::ReadOnly),
            _ => Err(Errno::EPERM.into()),
        }
    }
}

fn data_from(image: &SnapshotImage, offset: u64) -> Option<u64> {
    let next = image.used().partition_point(|used| used.end <= offset);
    image.used().get(next).map(|used| used.start.max(offset))
}

fn hole_from(image: &SnapshotImage, offset: u64) -> u64 {
    let next = image.used().partition_point(|used| used.end <= offset);
    image.used().get(next).map_or(offset, |used| if used.start <= offset { used.end } else { offset })
}
