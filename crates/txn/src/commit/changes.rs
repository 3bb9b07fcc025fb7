//! The net effect of a commit on the volume, for the volume's caches.

use xact_fs::FileKind;
use xact_types::Ino;

use crate::overlay::Overlay;

/// The net effect on existing items of the base; new inodes are reached through `names`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Inodes whose attributes or contents differ, directories with changed names included.
    pub inodes: Vec<Ino>,
    /// Regular files in `inodes` whose contents or size differ.
    pub files: Vec<Ino>,
    /// Names that were added, removed, or point at another inode.
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
