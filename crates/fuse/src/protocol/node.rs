//! Node ids: the numbers by which the kernel names the inodes of the mount.
//!
//! ```text
//!   bits 63..32               bits 31..0
//!   0                         inode number: the live volume (its root, inode 2, is node 1)
//!   1 ..= VIEW_MAX            inode number: a view of a transaction
//!   0x8000_0000 + 1 ..        inode number: a snapshot
//!   0xffff_fffb               a number: stands for a name in a call of the event caller
//!   0xffff_fffc ..            the server's own folder MNT/.xact
//! ```
//!
//! A view gets a number that was not in use before. So the kernel's caches of different views are
//! separate, and the first lookup of anything in a view reaches the server.

use xact_types::Ino;

use crate::protocol::abi::ROOT_ID;

/// The largest number of a view.
const VIEW_MAX: u32 = 0x7fff_ffff;
/// Added to a snapshot's number.
const SNAPSHOT: u32 = 0x8000_0000;
const SNAPSHOT_MAX: u32 = 0x7fff_fff0;
const PAST_FIRST: u32 = SNAPSHOT + 1;
const SNAPSHOT_NODES_MAX: u32 = SNAPSHOT + SNAPSHOT_MAX;
/// Above all numbers of snapshots.
const STAND_IN: u32 = 0xffff_fffb;
const IMAGE: u32 = 0xffff_fffc;
const FOLDER: u32 = 0xffff_fffd;
const TX_FOLDER: u32 = 0xffff_fffe;
const CONTROL: u32 = 0xffff_ffff;

/// Number of a view on the wire. It is never 0, the number of the live volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ViewNr(u32);

impl ViewNr {
    pub const FIRST: ViewNr = ViewNr(1);

    /// The next number; after the last one the first again.
    pub fn next(self) -> ViewNr {
        ViewNr(if self.0 >= VIEW_MAX { 1 } else { self.0 + 1 })
    }
}

/// Number of an open snapshot, on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SnapshotNr(u32);

impl SnapshotNr {
    pub const FIRST: SnapshotNr = SnapshotNr(1);

    /// The next number; after the last one the first again.
    pub fn next(self) -> SnapshotNr {
        SnapshotNr(if self.0 >= SNAPSHOT_MAX { 1 } else { self.0 + 1 })
    }
}

/// The meaning of a node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Node {
    /// An inode of the live volume.
    Live(Ino),
    /// An inode of a view.
    View(ViewNr, Ino),
    /// An inode of a snapshot.
    Snapshot(SnapshotNr, Ino),
    /// `MNT/.xact/snapshots`.
    SnapshotDir,
    /// `MNT/.xact/images`.
    ImageDir,
    /// `MNT/.xact/images/NAME`.
    Image(SnapshotNr),
    /// `MNT/.xact`.
    ControlDir,
    /// `MNT/.xact/tx`.
    TxList,
    /// `MNT/.xact/tx/ID` of the transaction whose view has this number.
    Tx(ViewNr),
    /// Stands for a name that exists no longer, or not yet, in a call of the event caller
    /// (`commit::watchers`). The kernel forgets it after the call.
    StandIn(u32),
    /// An open control channel.
    Control(u32),
}

impl Node {
    /// The root of the live volume.
    pub const ROOT: Node = Node::Live(Ino::ROOT);

    pub fn id(self) -> u64 {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        match self {
            Node::Live(Ino::ROOT) => ROOT_ID,
            Node::Live(ino) => u64::from(ino.0),
            Node::View(view, ino) => pair(view.0, ino.0),
            Node::Snapshot(snapshot, ino) => pair(SNAPSHOT + snapshot.0, ino.0),
            Node::SnapshotDir => pair(FOLDER, 3),
            Node::ImageDir => pair(FOLDER, 4),
            Node::Image(snapshot) => pair(IMAGE, snapshot.0),
            Node::ControlDir => pair(FOLDER, 1),
            Node::TxList => pair(FOLDER, 2),
            Node::Tx(view) => pair(TX_FOLDER, view.0),
            Node::StandIn(number) => pair(STAND_IN, number),
            Node::Control(channel) => pair(CONTROL, channel),
        }
    }

    /// `None` for a number that is never used.
    pub fn from_id(id: u64) -> Option<Node> {
        let (high, low) = ((id >> 32) as u32, id as u32);
        Some(match high {
            _ if low == 0 => return None,
            0 if id == ROOT_ID => Node::ROOT,
            0 => Node::Live(Ino(low)),
            1..=VIEW_MAX => Node::View(ViewNr(high), Ino(low)),
            PAST_FIRST..=SNAPSHOT_NODES_MAX => Node::Snapshot(SnapshotNr(high - SNAPSHOT), Ino(low)),
            IMAGE if low <= SNAPSHOT_MAX => Node::Image(SnapshotNr(low)),
            FOLDER if low == 3 => Node::SnapshotDir,
            FOLDER if low == 4 => Node::ImageDir,
            FOLDER if low == 1 => Node::ControlDir,
            FOLDER if low == 2 => Node::TxList,
            TX_FOLDER if low <= VIEW_MAX => Node::Tx(ViewNr(low)),
            STAND_IN => Node::StandIn(low),
            CONTROL => Node::Control(low),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_go_there_and_back() {
        let view = ViewNr(VIEW_MAX);
        let nodes = [
            Node::ROOT,
            Node::Live(Ino(11)),
            Node::Live(Ino(u32::MAX)),
            Node::View(ViewNr::FIRST, Ino::ROOT),
            Node::View(view, Ino(1)),
            Node::Snapshot(SnapshotNr(SNAPSHOT_MAX), Ino(11)),
            Node::SnapshotDir,
            Node::ImageDir,
            Node::Image(SnapshotNr::FIRST),
            Node::ControlDir,
            Node::TxList,
            Node::Tx(view),
            Node::StandIn(7),
            Node::Control(u32::MAX),
        ];
        for node in nodes {
            assert_eq!(Node::from_id(node.id()), Some(node));
        }
        assert_eq!(Node::ROOT.id(), 1);
        for id in [
            0,
            1 << 32,
            0xffff_fff1_0000_0002,
            0x8000_0000_0000_0002,
            0xffff_fffd_0000_0005,
            0xffff_fffe_ffff_ffff,
        ] {
            assert_eq!(Node::from_id(id), None);
        }
        assert_eq!(view.next(), ViewNr::FIRST);
        assert_eq!(SnapshotNr(SNAPSHOT_MAX).next(), SnapshotNr::FIRST);
    }
}
