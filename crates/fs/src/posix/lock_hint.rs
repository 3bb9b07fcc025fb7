//! Lock hints: the inodes that an operation certainly reads. `LiveFs::run` locks them before it
//! starts the operation. Any other inode (the target of a name, the parents above a renamed
//! directory's new place) may make `LiveFs::run` restart the operation.

use xact_types::Ino;

/// The directory, for `lookup`, `read_dir`, `unlink`, `remove_dir`, and operations that add a name.
pub fn within(dir: Ino) -> [Ino; 1] {
    [dir]
}

/// The inode, for operations by number: attributes, data, extended attributes.
pub fn on(ino: Ino) -> [Ino; 1] {
    [ino]
}

pub fn link(ino: Ino, dir: Ino) -> [Ino; 2] {
    [ino, dir]
}

pub fn rename(from_dir: Ino, to_dir: Ino) -> [Ino; 2] {
    [from_dir, to_dir]
}

pub fn copy_range(from: Ino, to: Ino) -> [Ino; 2] {
    [from, to]
}
