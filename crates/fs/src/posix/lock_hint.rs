//! Which inodes an operation will surely meet, which `LiveFs::run` locks before it starts.
//! What else an operation turns out to need (the inode behind a name, the parents that a
//! renamed directory's new place lies under) makes `LiveFs::run` restart it.

use xact_types::Ino;

/// `lookup`, `read_dir`, `unlink`, `remove_dir`, and all that make a name: the directory.
pub fn within(dir: Ino) -> [Ino; 1] {
    [dir]
}

/// Operations on one inode by number: attributes, data, extended attributes.
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
