//! The journal superblock in memory, and its writing.

use std::io::IoSlice;

use parking_lot::{Mutex, MutexGuard};
use xact_layout::jbd2::{JOURNAL_SUPERBLOCK_BYTES, JournalSuperblock};
use xact_types::{BlockNr, Result};

use crate::core::volume::Volume;
use crate::journal::location::JournalLayout;

/// The journal superblock as it stands on the volume, or is about to.
pub(crate) struct JournalHead {
    place: BlockNr,
    /// Its whole block: bytes outside of the struct are written back unchanged.
    block: Vec<u8>,
    pub fields: JournalSuperblock,
}

impl JournalHead {
    pub fn read(volume: &Volume, layout: &JournalLayout) -> Result<JournalHead> {
        let (place, _) = layout.place(0)?;
        let mut block = vec![0; volume.block_size];
        volume.read(place, &mut block)?;
        let fields = JournalSuperblock::decode(&block[..JOURNAL_SUPERBLOCK_BYTES])?;
        if fields.block_size as usize != volume.block_size {
            return Err(xact_types::Error::corrupt(
                xact_types::Site::JournalSuperblock,
                "has another block size than the volume",
            ));
        }
        Ok(JournalHead { place, block, fields })
    }

    /// Writes it; the caller flushes. All fields that change and the checksum lie within one
    /// sector, so a crash leaves the old one or the new one.
    pub fn write(&mut self, volume: &Volume) -> Result<()> {
        self.fields.encode_into(&mut self.block);
        volume.write(self.place, &[IoSlice::new(&self.block)])
    }
}

/// [`JournalHead`] while the engine runs: the first commit, checkpoints and the close write it.
pub(crate) struct SharedHead(Mutex<JournalHead>);

impl SharedHead {
    pub fn new(head: JournalHead) -> SharedHead {
        SharedHead(Mutex::new(head))
    }

    pub fn lock(&self) -> MutexGuard<'_, JournalHead> {
        self.0.lock()
    }
}
