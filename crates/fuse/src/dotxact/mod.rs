//! The folder `MNT/.xact`, which the server itself provides.

pub mod control_dir;
pub mod open_snapshots;
pub mod snapshot_dirs;
