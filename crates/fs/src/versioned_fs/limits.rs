//! Limits that the format of a volume sets for inodes.

use crate::journal_modes::DataMode;

/// Limits of the volume for each of its inodes.
pub trait InodeLimits {
    fn block_size(&self) -> u32;
    fn size_max(&self, flags: u32) -> u64;
    fn has_extents(&self) -> bool;
    fn has_projects(&self) -> bool;
    fn gives_group_of_folder(&self) -> bool;
    fn takes_file_mode(&self, mode: DataMode) -> bool;
    fn link_max(&self) -> u32;
    fn dir_nlink(&self) -> bool;
    fn target_max(&self) -> usize;
}
