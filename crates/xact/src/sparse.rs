//! Copies of files that keep their holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;
/// Unit in which zeros are left out.
const BLOCK: [u8; 4096] = [0; 4096];

/// Copies the first `size_bytes` bytes of `from` to `to`, which must read as zeros: ranges of data
/// alone (`SEEK_DATA`), without blocks of zeros. Calls `copied` with the offset up to which the
/// copy is complete.
///
/// # Errors
/// As `lseek(2)`, `pread(2)` and `pwrite(2)`.
pub fn copy_sparse(from: &File, to: &File, size_bytes: u64, copied: &mut dyn FnMut(u64)) -> io::Result<()> {
    let mut buf = vec![0; COPY_BYTES];
    let mut at = 0;
    while at < size_bytes {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?.min(size_bytes);
        at = start;
        while at < end {
            let bytes = &mut buf[..((end - at) as usize).min(COPY_BYTES)];
            from.read_exact_at(bytes, at)?;
            for (n, part) in bytes.chunks(BLOCK.len()).enumerate() {
                if *part != BLOCK[..part.len()] {
                    to.write_all_at(part, at + (n * BLOCK.len()) as u64)?;
                }
            }
            at += bytes.len() as u64;
            copied(at);
        }
    }
    Ok(())
}
