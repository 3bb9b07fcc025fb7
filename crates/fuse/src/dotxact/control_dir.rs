//! The folder `MNT/.xact`, which the server itself provides:
//!
//! ```text
//!   MNT/.xact             0733 root   not listed; O_TMPFILE in it opens a control channel
//!   MNT/.xact/tx          0711 root
//!   MNT/.xact/tx/ID       0700 owner  keeps other users out, by the kernel's own check
//!   MNT/.xact/tx/ID/root              the root of the transaction's view
//! ```
//! and the snapshots (see `snapshot_dirs`).

use xact_types::{Errno, Ino, Result};

use crate::protocol::abi::{self, Attr, AttrOut, EntryOut, InHeader, OpenOut};
use crate::protocol::node::Node;
use crate::protocol::reply::{Reply, VALID_SECS};
use crate::protocol::request::Operation;
use crate::server::Server;
use crate::server::request_view::RequestView;

impl Server {
    fn control_dir_attr(&self, node: Node) -> Result<Attr> {
        let dir = libc::S_IFDIR;
        let mut size = 0;
        let (mode, nlink, uid, gid) = match node {
            Node::ControlDir => (dir | 0o733, 5, 0, 0),
            Node::SnapshotDir => (dir | 0o755, 2, 0, 0),
            Node::ImageDir => (dir | 0o700, 2, 0, 0),
            Node::Image(nr) => {
                size = self.open_snapshots.get(nr)?.snapshot.image()?.size_bytes();
                (libc::S_IFREG | 0o400, 1, 0, 0)
            }
            Node::TxList => (dir | 0o711, 2, 0, 0),
            Node::Tx(nr) => {
                let tx = self.transactions.view(nr)?;
                (dir | 0o700, 3, tx.uid, tx.gid)
            }
            Node::Control(_) => (libc::S_IFREG | 0o600, 0, 0, 0),
            Node::StandIn(_) => return Err(Errno::ESTALE.into()),
            Node::Live(_) | Node::View(..) | Node::Snapshot(..) => return Err(Errno::EIO.into()),
        };
        Ok(Attr { ino: node.id(), size, mode, nlink, uid, gid, ..Default::default() })
    }

    pub(crate) fn control_dir_entry(&self, node: Node) -> Result<EntryOut> {
        let attr = self.control_dir_attr(node)?;
        let (nodeid, entry_valid, attr_valid) = (node.id(), VALID_SECS, VALID_SECS);
        Ok(EntryOut { nodeid, entry_valid, attr_valid, attr, ..Default::default() })
    }

    pub(crate) fn in_control_dir(
        &self,
        node: Node,
        header: &InHeader,
        operation: &Operation<'_>,
        reply: &mut Reply,
    ) -> Result<()> {
        match (operation, node) {
            (Operation::Lookup { name }, _) => reply.put(&self.control_dir_lookup(node, name)?),
            (Operation::GetAttr, _) => {
                let attr = self.control_dir_attr(node)?;
                reply.put(&AttrOut { attr_valid: VALID_SECS, attr, ..Default::default() });
            }
            (Operation::Tmpfile { .. }, Node::ControlDir) => {
                let account = self.volume.accounts().of(header.uid);
                let channel = Node::Control(self.transactions.open_channel(&account)?);
                reply.put(&self.control_dir_entry(channel)?);
                reply.put(&OpenOut::default());
            }
            (Operation::ReadDir { args, plus }, Node::SnapshotDir | Node::ImageDir) => {
                return self.list_snapshots(node, args, *plus, reply);
            }
            // Not listed: a process that may enter knows the name.
            (Operation::ReadDir { .. } | Operation::Fsync { .. }, _) => {}
            (Operation::GetXattr { .. }, _) => return Err(Errno::ENODATA.into()),
            (Operation::ListXattr { size: 0 }, _) => reply.put(&abi::GetxattrOut::default()),
            (Operation::ListXattr { .. }, _) => {}
            // Without this answer the kernel would send STATX for no other file either.
            (Operation::Statx, _) => {
                let attr = self.control_dir_attr(node)?;
                reply.put(&abi::StatxOut {
                    attr_valid: VALID_SECS,
                    stat: statx(&attr),
                    ..Default::default()
                });
            }
            (_, Node::Image(nr)) => {
                return self.in_image(&*self.open_snapshots.get(nr)?.snapshot.image()?, operation, reply);
            }
            (Operation::Read(_) | Operation::Write { .. } | Operation::Lseek(_), _) => {
                return Err(Errno::EINVAL.into());
            }
            (Operation::Rename { .. } | Operation::Link { .. } | Operation::CopyFileRange { .. }, _) => {
                return Err(Errno::EXDEV.into());
            }
            _ => return Err(Errno::EPERM.into()),
        }
        Ok(())
    }

    fn control_dir_lookup(&self, node: Node, name: &[u8]) -> Result<EntryOut> {
        match node {
            Node::ControlDir if name == b"tx" => self.control_dir_entry(Node::TxList),
            // A volume without generations has no snapshots, and no folders of them.
            Node::ControlDir
                if matches!(name, b"snapshots" | b"images") && !self.volume.has_generations() =>
            {
                Err(Errno::ENOENT.into())
            }
            Node::ControlDir if name == b"snapshots" => self.control_dir_entry(Node::SnapshotDir),
            Node::ControlDir if name == b"images" => self.control_dir_entry(Node::ImageDir),
            Node::SnapshotDir | Node::ImageDir => self.lookup_snapshot(node, name),
            Node::TxList => {
                let id = std::str::from_utf8(name).ok().and_then(parse_id).ok_or(Errno::ENOENT)?;
                let tx = self.transactions.by_id(id).ok_or(Errno::ENOENT)?;
                self.control_dir_entry(Node::Tx(tx.nr))
            }
            Node::Tx(nr) if name == b"root" => {
                let tx = self.transactions.view(nr)?;
                let request_view = RequestView::Tx { _guard: tx.enter()?, tx };
                let root = request_view.view().attr(Ino::ROOT)?;
                Ok(self.hold_checked(&request_view, &root, None)?.ok_or(Errno::ESTALE)?)
            }
            _ => Err(Errno::ENOENT.into()),
        }
    }
}

/// Parses a number as `{}` prints it, and in no other form, so that a folder has one name only.
fn parse_id(text: &str) -> Option<u64> {
    text.parse().ok().filter(|id: &u64| id.to_string() == text)
}

fn statx(attr: &Attr) -> abi::Statx {
    abi::Statx {
        mask: libc::STATX_BASIC_STATS,
        blksize: 4096,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino: attr.ino,
        size: attr.size,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_has_one_name() {
        assert_eq!(parse_id("17"), Some(17));
        for text in ["017", "+17", "", "x", "-1", " 1"] {
            assert_eq!(parse_id(text), None, "{text:?}");
        }
    }
}
