//! The data mode that counts for a file: its own or the volume's.

use xact_consistency::DataInLog;
use xact_layout::inode::{Inode, flag};
use xact_types::Ino;

use crate::file_mode::FILE_MODE;
use crate::journal_modes::DataMode;
use crate::live::LiveFs;
use crate::live::inode::cached::CachedInode;

impl LiveFs {
    /// The mode in which a file's data is written: that of its flag `+j`, else its own, else the
    /// volume's. The caller has the inode's lock.
    pub(in crate::live) fn data_mode(&self, cached: &CachedInode, inode: &Inode) -> DataMode {
        let log = self.engine.data_in_log();
        if log == DataInLog::All && inode.flags() & flag::JOURNAL_DATA != 0 {
            return DataMode::Journal;
        }
        let own = cached.file_mode(|| {
            // An attribute that cannot be read is an error of the call that reads it, not of a
            // write. Linux may have stored any value.
            let word = self.xattrs(cached.ino).get(inode, FILE_MODE).ok().flatten()?;
            DataMode::from_file_word(&word).filter(|mode| mode.works_with(log))
        });
        own.unwrap_or(self.modes.data)
    }

    /// As [`Self::data_mode`], of a file that may not be in memory: then the volume's mode.
    pub(in crate::live) fn data_mode_of(&self, ino: Ino) -> DataMode {
        let Some(cached) = self.inodes.peek(ino) else { return self.modes.data };
        let state = cached.state.read();
        if state.live { self.data_mode(&cached, &state.inode) } else { self.modes.data }
    }

    /// Whether the next commit must wait for data of a file that was written in place, though the
    /// volume's commits do not. A file cannot choose the opposite: it would show what other users
    /// have deleted.
    pub(in crate::live) fn orders_for_file(&self, mode: DataMode) -> bool {
        self.modes.data == DataMode::Writeback && mode != DataMode::Writeback
    }
}
