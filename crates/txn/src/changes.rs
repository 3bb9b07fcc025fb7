//! What a transaction's commit will change in the base, for those who cache the base; and how they are
//! told in time.

use xact_fs::FileKind;
use xact_types::Ino;

use crate::base::VersionedBase;
use crate::overlay::Overlay;
use crate::transaction::Transaction;

/// The net effect on what the base has; what is new in it is reached through `names`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Inodes whose attributes or contents differ, directories with changed names included.
    pub inodes: Vec<Ino>,
    /// Of those, the regular files whose contents or size differ.
    pub files: Vec<Ino>,
    /// Names that are new, gone, or point at something else.
    pub names: Vec<(Ino, Vec<u8>)>,
}

impl Changes {
    pub(crate) fn of(overlay: &Overlay) -> Changes {
        let mut changes = Changes::default();
        for (&ino, node) in overlay.nodes.iter().filter(|(_, node)| !node.born && node.is_changed()) {
            changes.inodes.push(ino);
            if node.origin.kind == FileKind::Regular && node.file.is_changed(node.origin.size) {
                changes.files.push(ino);
            }
            let differs = node.names.iter().filter(|(_, change)| change.base != change.now);
            changes.names.extend(differs.map(|(name, _)| (ino, name.to_vec())));
        }
        changes
    }
}

/// Those who keep copies of what the base shows, as a kernel does, and must not show some of a commit
/// beside what was before it. `()` is nobody.
///
/// A commit calls `before` and then `after`, once each, or neither where there is nothing to apply or it
/// is refused earlier.
pub trait CommitObserver {
    /// No lock of the base is held, and all that takes long is done. It may wait for operations on the
    /// base. From its return until `after`, nobody may take a copy of what is about to change.
    fn before(&mut self, _changes: &Changes) {}

    /// The base shows the changes, all of them, or the commit was refused and it is as it was. No lock is
    /// held, and nothing has waited for the device.
    fn after(&mut self) {}
}

impl CommitObserver for () {}

impl<B: VersionedBase> Transaction<B> {
    /// What a commit would change now; nothing in a transaction that has ended.
    pub fn changes(&self) -> Changes {
        self.with_overlay(Changes::of)
    }
}
