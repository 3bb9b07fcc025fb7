//! The view that a request is for, and what the kernel learns about it from the reply.

use std::sync::Arc;

use xact_fs::{Attr, FileKind, Name, View};
use xact_types::{Ino, Result};

use crate::commit::followers::Followed;
use crate::dotxact::open_snapshots::OpenSnapshot;
use crate::protocol::node::{Node, ViewNr};
use crate::server::transactions::{Transactions, TxView, ViewGuard};

/// The view that an operation runs in, for as long as it runs.
pub enum RequestView<'a> {
    /// `thread`: the thread that made the request; 0 if it is not known.
    Live {
        view: &'a dyn View,
        thread: u32,
    },
    Tx {
        tx: Arc<TxView>,
        _guard: ViewGuard,
    },
    /// A committed view: its nodes stand for the volume's inodes.
    Followed {
        view: &'a dyn View,
        by: Arc<Followed>,
        transactions: &'a Transactions,
    },
    Snapshot {
        snapshot: Arc<OpenSnapshot>,
        view: Arc<dyn View>,
    },
}

impl RequestView<'_> {
    pub fn view(&self) -> &dyn View {
        match self {
            RequestView::Live { view, .. } | RequestView::Followed { view, .. } => *view,
            RequestView::Tx { tx, .. } => &*tx.transaction,
            RequestView::Snapshot { view, .. } => &**view,
        }
    }

    pub fn view_nr(&self) -> Option<ViewNr> {
        match self {
            RequestView::Live { .. } | RequestView::Snapshot { .. } => None,
            RequestView::Tx { tx, .. } => Some(tx.nr),
            RequestView::Followed { by, .. } => Some(by.nr),
        }
    }

    pub fn node(&self, ino: Ino) -> Node {
        match self {
            RequestView::Live { .. } => Node::Live(ino),
            RequestView::Tx { tx, .. } => Node::View(tx.nr, ino),
            RequestView::Followed { by, .. } => Node::View(by.nr, ino),
            RequestView::Snapshot { snapshot, .. } => Node::Snapshot(snapshot.nr, ino),
        }
    }

    /// The node by which the kernel knows an inode that was found in a folder.
    pub fn found(&self, attr: &Attr) -> Node {
        match self {
            RequestView::Followed { .. } if attr.kind != FileKind::Directory => Node::Live(attr.ino),
            _ => self.node(attr.ino),
        }
    }

    /// The inode number that `stat` returns. A file in a snapshot has another number than the same
    /// file on the volume: else `cp` would take the two for one. A file also has another number in
    /// a view of a program that has several views open: SQLite lets connections to files of the
    /// same number share locks, descriptors and the index of its WAL.
    pub fn st_ino(&self, ino: Ino) -> u64 {
        match self {
            RequestView::Tx { tx, .. } if tx.own_inodes => self.node(ino).id(),
            RequestView::Live { .. } | RequestView::Tx { .. } | RequestView::Followed { .. } => {
                u64::from(ino.0)
            }
            RequestView::Snapshot { .. } => self.node(ino).id(),
        }
    }

    pub fn note_contents(&self, ino: Ino) {
        match self {
            RequestView::Tx { tx, .. } => tx.refs.note_contents(ino),
            RequestView::Followed { by, transactions, .. } => {
                transactions.followers.note_contents(by.nr, ino)
            }
            RequestView::Live { .. } | RequestView::Snapshot { .. } => {}
        }
    }

    /// Called before the kernel learns of an inode. `ENOMEM`: the view's user has no memory left
    /// for it.
    pub fn check_lookup(&self) -> Result<()> {
        match self {
            RequestView::Tx { tx, .. } => tx.refs.check_lookup(),
            RequestView::Followed { by, .. } => by.refs.check_lookup(),
            RequestView::Live { .. } | RequestView::Snapshot { .. } => Ok(()),
        }
    }

    pub fn remove_name(&self, dir: Ino, name: &Name) {
        if let RequestView::Tx { tx, .. } = self {
            tx.refs.remove_name(dir, name);
        }
    }

    /// Called before attributes are read. Two replies to the kernel may overtake each other. Since
    /// one that is older than a change must not be the last, the change makes the kernel forget it.
    pub fn note_attributes(&self, ino: Ino) {
        if let RequestView::Followed { by, transactions, .. } = self {
            transactions.followers.note_contents(by.nr, ino);
        }
    }

    /// Counts a reply with this inode, by this name in this folder if it has one.
    pub fn add_lookup(&self, attr: &Attr, name: Option<(Ino, &Name)>) {
        match self {
            RequestView::Live { .. } => {}
            RequestView::Tx { tx, .. } => tx.refs.add_lookup(attr, name),
            RequestView::Followed { by, transactions, .. } if attr.kind == FileKind::Directory => {
                transactions.followers.add_hold(attr.ino);
                by.refs.add_held(attr);
            }
            RequestView::Followed { .. } => {}
            RequestView::Snapshot { snapshot, .. } => snapshot.add_lookup(),
        }
    }
}
