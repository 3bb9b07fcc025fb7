//! Reads the log in large pieces, since a recovery is one long sequential read.

use xact_types::Result;

use crate::core::volume::Volume;
use crate::journal::log::Ring;

/// Bytes read at once.
const STRETCH_BYTES: usize = 1 << 20;

pub(super) struct LogReader<'a> {
    pub volume: &'a Volume,
    pub ring: &'a Ring,
    /// The piece in memory: its first block and its contents.
    first: u32,
    bytes: Vec<u8>,
}

impl<'a> LogReader<'a> {
    pub fn new(volume: &'a Volume, ring: &'a Ring) -> LogReader<'a> {
        LogReader { volume, ring, first: 0, bytes: Vec::new() }
    }

    /// A block of the log; `at` lies in the ring.
    pub fn block(&mut self, at: u32) -> Result<&[u8]> {
        let size = self.volume.block_size;
        let held = (self.bytes.len() / size) as u32;
        if at < self.first || at - self.first >= held {
            let (place, contiguous) = self.ring.layout.place(at)?;
            let wanted = (STRETCH_BYTES / size) as u32;
            let count = wanted.min(contiguous).min(self.ring.end - at);
            self.bytes.resize(count as usize * size, 0);
            if let Err(error) = self.volume.read(place, &mut self.bytes) {
                self.bytes.clear();
                return Err(error);
            }
            self.first = at;
        }
        let from = (at - self.first) as usize * size;
        Ok(&self.bytes[from..from + size])
    }
}
