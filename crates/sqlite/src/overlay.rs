//! The changes of a database file that are not committed yet, over the file as it is.
//!
//! Invariants:
//! 1. A chunk in the overlay is whole: its bytes are those of the changed file, up to the file's
//!    size, and zeros after it.
//! 2. Bytes of the file at and above `cut` are not part of the changed file: it was truncated to
//!    there. Outside of chunks they read as zeros, up to `size`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Bytes that the overlay keeps as a unit: a page of most databases.
pub const CHUNK: usize = 4096;

/// Changes of a file. Made at the first one, with the file's size.
pub struct Overlay {
    chunks: BTreeMap<u64, Box<[u8; CHUNK]>>,
    /// Size of the changed file.
    size: u64,
    /// The smallest size that the file had since the overlay was made.
    cut: u64,
    /// Size of the file below.
    base_size: u64,
}

/// A change for the file below.
pub enum Change<'a> {
    Bytes(u64, &'a [u8]),
    Truncate(u64),
}

impl Overlay {
    pub fn new(base_size: u64) -> Overlay {
        Overlay { chunks: BTreeMap::new(), size: base_size, cut: base_size, base_size }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// `read` fills a buffer from an offset of the file below, with zeros behind its end.
    pub fn write<E>(
        &mut self,
        offset: u64,
        bytes: &[u8],
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = offset + bytes.len() as u64;
        for number in offset / CHUNK as u64..end.div_ceil(CHUNK as u64) {
            let start = number * CHUNK as u64;
            let (from, to) = (offset.max(start), end.min(start + CHUNK as u64));
            let part = &bytes[(from - offset) as usize..(to - offset) as usize];
            let chunk = match self.chunks.entry(number) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(free) => {
                    let mut chunk = Box::new([0; CHUNK]);
                    if part.len() < CHUNK && start < self.cut {
                        let len = CHUNK.min((self.cut - start) as usize);
                        read(start, &mut chunk[..len])?;
                    }
                    free.insert(chunk)
                }
            };
            chunk[(from - start) as usize..(to - start) as usize].copy_from_slice(part);
        }
        self.size = self.size.max(end);
        Ok(())
    }

    /// Fills `out` from an offset of the changed file; returns the number of bytes before its end.
    pub fn read<E>(
        &self,
        offset: u64,
        out: &mut [u8],
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        out.fill(0);
        let end = (offset + out.len() as u64).min(self.size);
        let mut at = offset;
        while at < end {
            let number = at / CHUNK as u64;
            let start = number * CHUNK as u64;
            let to = end.min(start + CHUNK as u64);
            let part = &mut out[(at - offset) as usize..(to - offset) as usize];
            if let Some(chunk) = self.chunks.get(&number) {
                part.copy_from_slice(&chunk[(at - start) as usize..(to - start) as usize]);
            } else if at < self.cut {
                let len = part.len().min((self.cut - at) as usize);
                read(at, &mut part[..len])?;
            }
            at = to;
        }
        Ok(end.saturating_sub(offset) as usize)
    }

    pub fn truncate(&mut self, size: u64) {
        self.size = size;
        self.cut = self.cut.min(size);
        self.chunks.split_off(&size.div_ceil(CHUNK as u64));
        let within = (size % CHUNK as u64) as usize;
        if within > 0
            && let Some(last) = self.chunks.get_mut(&(size / CHUNK as u64))
        {
            last[within..].fill(0);
        }
    }

    /// Whether these bytes are in the overlay.
    pub fn holds(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut found = vec![0; bytes.len()];
        let missing = |_: u64, _: &mut [u8]| Err(());
        self.read(offset, &mut found, missing).is_ok_and(|len| len == bytes.len()) && found == bytes
    }

    /// Whether the changed file has the size of the file below, and nothing was cut off.
    pub fn keeps_size(&self) -> bool {
        self.size == self.base_size
    }

    /// Calls `each` with all changes, in an order that makes the file below the changed file.
    /// Adjacent chunks are one change, of at most `max` bytes.
    pub fn changes<E>(&self, max: usize, mut each: impl FnMut(Change<'_>) -> Result<(), E>) -> Result<(), E> {
        if self.cut < self.base_size {
            each(Change::Truncate(self.cut))?;
        }
        let mut run: (u64, Vec<u8>) = (0, Vec::new());
        for (number, chunk) in &self.chunks {
            let start = number * CHUNK as u64;
            let bytes = &chunk[..CHUNK.min(self.size.saturating_sub(start) as usize)];
            if run.0 + run.1.len() as u64 != start || run.1.len() + bytes.len() > max {
                if !run.1.is_empty() {
                    each(Change::Bytes(run.0, &run.1))?;
                }
                (run.0, run.1) = (start, Vec::new());
            }
            run.1.extend(bytes);
        }
        if !run.1.is_empty() {
            each(Change::Bytes(run.0, &run.1))?;
        }
        if self.size > self.cut.max(run.0 + run.1.len() as u64) {
            each(Change::Truncate(self.size))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(base: &[u8]) -> impl FnMut(u64, &mut [u8]) -> Result<(), ()> + '_ {
        |offset, out| {
            out.fill(0);
            let from = (offset as usize).min(base.len());
            let len = out.len().min(base.len() - from);
            out[..len].copy_from_slice(&base[from..from + len]);
            Ok(())
        }
    }

    fn apply(base: &mut Vec<u8>, overlay: &Overlay) {
        let mut apply = |change: Change<'_>| {
            match change {
                Change::Truncate(size) => base.resize(size as usize, 0),
                Change::Bytes(offset, bytes) => {
                    assert!(bytes.len() <= 3 * CHUNK);
                    let end = offset as usize + bytes.len();
                    base.resize(base.len().max(end), 0);
                    base[offset as usize..end].copy_from_slice(bytes);
                }
            }
            Ok::<(), ()>(())
        };
        overlay.changes(3 * CHUNK, &mut apply).unwrap();
    }

    /// Random writes and truncations, beside a plain file.
    #[test]
    fn an_overlay_is_the_changed_file() {
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for round in 0..300 {
            let mut base: Vec<u8> = (0..random(30_000)).map(|n| n as u8).collect();
            let mut model = base.clone();
            let mut overlay = Overlay::new(base.len() as u64);
            for step in 0..random(20) {
                if random(4) == 0 {
                    let size = random(40_000);
                    overlay.truncate(size);
                    model.resize(size as usize, 0);
                } else {
                    let (offset, len) = (random(30_000), random(9000) + 1);
                    let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + step + round) as u8).collect();
                    overlay.write(offset, &bytes, reader(&base)).unwrap();
                    let end = (offset + len) as usize;
                    model.resize(model.len().max(end), 0);
                    model[offset as usize..end].copy_from_slice(&bytes);
                    assert!(overlay.holds(offset, &bytes));
                }
                assert_eq!(overlay.size(), model.len() as u64);
                let (offset, mut out) = (random(35_000), vec![1; random(9000) as usize + 1]);
                let len = overlay.read(offset, &mut out, reader(&base)).unwrap();
                let rest = &model[(offset as usize).min(model.len())..];
                assert_eq!(len, out.len().min(rest.len()));
                assert_eq!(out[..len], rest[..len]);
                assert!(out[len..].iter().all(|&byte| byte == 0));
            }
            apply(&mut base, &overlay);
            assert_eq!(base, model, "round {round}");
        }
    }

    #[test]
    fn whole_chunks_are_written_without_a_read_and_together() {
        let mut overlay = Overlay::new(100 * CHUNK as u64);
        let no_read = |_: u64, _: &mut [u8]| Err(());
        for page in [5, 6, 7, 8, 20] {
            overlay.write(page * CHUNK as u64, &[page as u8; CHUNK], no_read).unwrap();
        }
        let mut found = Vec::new();
        let each = |change: Change<'_>| match change {
            Change::Bytes(offset, bytes) => {
                found.push((offset / CHUNK as u64, bytes.len() / CHUNK));
                Ok(())
            }
            Change::Truncate(_) => Err(()),
        };
        overlay.changes(3 * CHUNK, each).unwrap();
        assert_eq!(found, [(5, 3), (8, 1), (20, 1)]);
        assert!(overlay.write(1, b"x", no_read).is_err());
        assert!(overlay.keeps_size() && !overlay.holds(0, b"x"));
    }
}
