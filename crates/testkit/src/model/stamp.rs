//! Data that names its position: each 16 bytes of a write have the file, the write and the offset,
//! so that a byte in the wrong place is recognised.

const RECORD_BYTES: u64 = 16;
const MAGIC: u32 = 0x7861_6374;

/// The contents of a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The model's number of the file.
    pub file: u32,
    /// The number of the write.
    pub generation: u32,
    /// Byte offset in the file.
    pub offset: u64,
}

fn record(file: u32, generation: u32, index: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4..8].copy_from_slice(&file.to_le_bytes());
    out[8..12].copy_from_slice(&generation.to_le_bytes());
    out[12..].copy_from_slice(&(index as u32).to_le_bytes());
    out
}

/// The bytes of write `generation` at `offset..offset+len` of `file`.
pub fn bytes(file: u32, generation: u32, offset: u64, len: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(len as usize + 32);
    let first = offset / RECORD_BYTES;
    for index in first..(offset + len).div_ceil(RECORD_BYTES) {
        out.extend_from_slice(&record(file, generation, index));
    }
    let skip = (offset - first * RECORD_BYTES) as usize;
    out.drain(..skip);
    out.truncate(len as usize);
    out
}

/// Reads the stamp in 16 bytes, if they are one.
pub fn read(bytes: &[u8]) -> Option<Stamp> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if word(0)? != MAGIC {
        return None;
    }
    Some(Stamp { file: word(4)?, generation: word(8)?, offset: word(12)? as u64 * RECORD_BYTES })
}

/// The apparent contents of a part of a file, for findings.
pub fn describe(bytes: &[u8]) -> String {
    if bytes.iter().all(|&b| b == 0) {
        return "zeros".to_owned();
    }
    for at in (0..bytes.len().saturating_sub(15)).step_by(RECORD_BYTES as usize) {
        if let Some(stamp) = read(&bytes[at..]) {
            return format!(
                "what write {} put at offset {} of file {}",
                stamp.generation, stamp.offset, stamp.file
            );
        }
    }
    format!("{:02x?}…", &bytes[..bytes.len().min(16)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_write_knows_its_place() {
        let whole = bytes(3, 9, 0, 4096);
        assert_eq!(bytes(3, 9, 1000, 77), whole[1000..1077]);
        assert_eq!(read(&whole[1600..]), Some(Stamp { file: 3, generation: 9, offset: 1600 }));
        assert_eq!(read(&[0; 16]), None);
        assert!(describe(&whole[512..1024]).contains("write 9"));
    }
}
