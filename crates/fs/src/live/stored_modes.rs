//! The modes of an open volume, and those stored on it for the next opening.

use xact_consistency::{DataInLog, Handle};
use xact_layout::inode::flag;
use xact_layout::mode_record::ModeRecord;
use xact_types::{Errno, Error, Ino, Result};

use super::LiveFs;
use crate::api::View;
use crate::file_mode::FILE_MODE;
use crate::journal_modes::{DataMode, ModeChoice, Modes, check, store, stored};
use crate::superblock;

impl LiveFs {
    /// The modes in effect.
    pub fn modes(&self) -> Modes {
        self.modes
    }

    /// The modes that the opener asked for ([`VolumeOptions::modes`](crate::VolumeOptions)).
    pub fn mode_options(&self) -> ModeChoice {
        self.mode_options
    }

    /// The data mode of a file's own in a view, or that of new files in a folder: `data` with the
    /// flag `+j`, else what its attribute chooses. `None`: the volume's.
    pub fn own_file_mode(&self, view: &dyn View, ino: Ino) -> Result<Option<DataMode>> {
        let log = self.engine().data_in_log();
        if log == DataInLog::All && view.attr(ino)?.flags & flag::JOURNAL_DATA != 0 {
            return Ok(Some(DataMode::Journal));
        }
        match view.xattr(ino, FILE_MODE) {
            Ok(word) => Ok(DataMode::from_file_word(&word).filter(|mode| mode.works_with(log))),
            Err(Error::Posix(Errno::ENODATA)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The modes stored on the volume.
    pub fn stored_modes(&self) -> Result<ModeChoice> {
        Ok(stored(&superblock::read(self.engine(), self.superblock())?))
    }

    /// Stores `modes` on the volume, in one durable commit; they take effect at the next opening.
    ///
    /// Errors: `Usage` for a setting that needs a journal, or generations, which the volume does
    /// not have; `Unsupported` if the bytes for the modes hold something else.
    pub fn store_modes(&self, modes: ModeChoice) -> Result<()> {
        if self.engine().is_read_only() {
            return Err(Error::ReadOnly);
        }
        let about_journal = modes.commit_writes.is_some() || modes.log_records.is_some();
        let about_data = modes.data.is_some() && self.engine().snapshots().is_none();
        if (about_journal || about_data) && self.engine().data_in_log() != DataInLog::All {
            return Err(Error::Usage(
                "the volume has no journal; of its modes, only inode_update and \
                timestamps mean anything, and data and fsync with generations"
                    .into(),
            ));
        }
        check(modes, self.engine())?;
        if modes.fsync.is_some() && self.engine().snapshots().is_none() {
            return Err(Error::Usage("the volume has no generations, which the mode fsync is about".into()));
        }
        let sb = superblock::read(self.engine(), self.superblock())?;
        if sb.mode_record() == ModeRecord::Foreign {
            return Err(Error::Unsupported(
                "something else than modes in the superblock's last reserved bytes".into(),
            ));
        }
        let mut handle = Handle::begin(self.engine(), 1)?;
        superblock::update(&mut handle, self.superblock(), |sb| store(sb, modes))?;
        let commit = handle.commit_id();
        drop(handle);
        self.engine().commit(commit)
    }
}
