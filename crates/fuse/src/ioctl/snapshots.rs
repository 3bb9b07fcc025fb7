//! Snapshots of the volume, asked for by ioctl on any file of the mount.

use std::sync::Arc;

use xact::{SnapshotInfo, paths_from_text, paths_text};
use xact_control::abi::{self as control, SNAPSHOT_NAME_MAX, Snapshot, SnapshotDiff, SnapshotPaths};
use xact_types::{Errno, Error, Result};

use crate::ioctl::answer::WithReason;
use crate::ioctl::change_list::ChangeList;
use crate::protocol::abi::InHeader;
use crate::protocol::node::Node;
use crate::protocol::reply::Reply;
use crate::server::Server;

impl Server {
    /// Refuses users other than root and the mount's owner.
    pub(crate) fn snapshot_ioctl<T: WithReason>(
        &self,
        header: &InHeader,
        input: &[u8],
        reply: &mut Reply,
        action: impl FnOnce(&mut T) -> Result<()>,
    ) -> Result<()> {
        self.owner_only(header)?;
        self.reply_with_reason(input, reply, action)
    }

    pub(crate) fn snapshot_of_paths(&self, node: Node, request: &mut SnapshotPaths) -> Result<()> {
        let name = name_in(&request.name, request.name_len).ok_or_else(no_name)?;
        match request.action {
            control::SNAPSHOT_CREATE => {
                self.outside_only(node, "creating a snapshot")?;
                let paths = paths_from_text(request.text()).ok_or(Errno::EINVAL)?;
                self.volume.create_snapshot_of(name, &paths)
            }
            control::SNAPSHOT_GET => {
                let text = paths_text(&self.volume.snapshot_paths(name)?);
                request.paths.get_mut(..text.len()).ok_or(Errno::EIO)?.copy_from_slice(&text);
                request.paths_len = text.len() as u32;
                Ok(())
            }
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// On a control channel: makes the differences the channel's list of changes.
    pub(crate) fn snapshot_diff(&self, channel: u32, request: &SnapshotDiff) -> Result<()> {
        let name = |name, len| name_in(name, len).map(str::to_owned).ok_or(Errno::EINVAL);
        let old = name(&request.old, request.old_len)?;
        let new = name(&request.new, request.new_len)?;
        let found = self.volume.diff_snapshots(&old, (!new.is_empty()).then_some(&new))?;
        let list = ChangeList::new(0, found, &self.transactions.account_of(channel)?)?;
        self.transactions.set_diff(channel, Some(Arc::new(list)));
        Ok(())
    }

    pub(crate) fn snapshot(&self, node: Node, request: &mut Snapshot) -> Result<()> {
        let name = name_in(&request.name, request.name_len);
        match request.action {
            control::SNAPSHOT_CREATE => {
                self.outside_only(node, "creating a snapshot")?;
                self.volume.create_snapshot(name.ok_or_else(no_name)?)
            }
            control::SNAPSHOT_DELETE => {
                self.outside_only(node, "deleting a snapshot")?;
                self.volume.delete_snapshot(name.ok_or_else(no_name)?)
            }
            control::SNAPSHOT_GET => {
                let snapshots = self.volume.snapshots()?;
                let info = snapshots.get(request.index as usize).ok_or(Errno::ENOENT)?;
                put_info(request, info);
                Ok(())
            }
            _ => Err(Errno::EINVAL.into()),
        }
    }
}

fn name_in(name: &[u8], len: u32) -> Option<&str> {
    name.get(..len as usize).and_then(|name| std::str::from_utf8(name).ok())
}

fn no_name() -> Error {
    Error::Usage(format!("a snapshot's name is text of at most {SNAPSHOT_NAME_MAX} bytes"))
}

impl Server {
    /// A snapshot of this name was created or deleted. Nodes of an earlier one are no longer valid,
    /// and the kernel must list the folders again.
    pub(crate) fn snapshot_changed(self: &Arc<Self>, name: &str) {
        self.open_snapshots.close(name);
        self.forget_later(Node::SnapshotDir);
        self.forget_later(Node::ImageDir);
    }
}

fn put_info(request: &mut Snapshot, info: &SnapshotInfo) {
    let SnapshotInfo { name, generation, time, own_bytes, paths } = info;
    let len = name.len().min(SNAPSHOT_NAME_MAX);
    request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
    request.name_len = len as u32;
    (request.generation, request.time, request.own_bytes) = (*generation, *time, *own_bytes);
    request.paths_len = paths_text(paths).len() as u32;
}
