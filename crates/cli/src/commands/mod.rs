//! The commands but `run`, one file each.

mod check;
mod convert;
mod file_mode;
mod file_writes;
mod info;
mod journal;
mod list;
mod metrics;
mod mkfs;
mod mode;
mod mount;
mod pages;
mod recover;
mod restore;
mod salvage;
mod snapshot;
mod stat;
mod sync;
mod umount;

pub use check::{check, damaged, problems, report_of};
pub use convert::convert;
pub use info::info;
pub use journal::journal;
pub use list::list;
pub use mkfs::mkfs;
pub use mode::mode;
pub use mount::mount;
pub use pages::{completions, man};
pub use recover::recover;
pub use snapshot::snapshot;
pub use stat::stat;
pub use sync::sync;
pub use umount::{Unmount, umount, umount_as};
