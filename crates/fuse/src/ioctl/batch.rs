//! Writes to files that are not committed yet, and their form in requests (see `write_batch`).

use std::collections::BTreeMap;
use std::sync::Arc;

use xact::{Charge, SharedTransaction};
use xact_control::abi::{PART_BYTES, PART_TRUNCATE, WritePart};
use xact_fs::{SetAttr, View, WriteHow};
use xact_types::{Errno, Ino, Result};
use zerocopy::FromBytes;

use crate::ioctl::absent_pages::PAGE;
use crate::ops::credentials::caller;
use crate::protocol::abi::InHeader;

/// Ranges of one file that are remembered; beyond it, the kernel forgets the whole file.
const SPANS_MAX: usize = 1 << 16;

/// Writes that are not committed yet. Dropping it aborts them.
pub struct Batch {
    pub transaction: Arc<SharedTransaction>,
    /// Charges the user for the transaction.
    _open: Charge,
    /// The written ranges of each file, in whole pages; `None`: the whole file.
    pub parts: BTreeMap<Ino, Option<Vec<(u64, u64)>>>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        // Has no effect after a commit.
        self.transaction.abort();
    }
}

/// One change of a file.
#[derive(Debug, PartialEq)]
pub enum Part<'a> {
    Bytes(u64, &'a [u8]),
    Truncate(u64),
}

/// The changes in the data of a request. `EINVAL`: they are malformed.
pub fn parts_of(mut data: &[u8]) -> Result<Vec<Part<'_>>, Errno> {
    let mut parts = Vec::new();
    while !data.is_empty() {
        let (part, rest) = WritePart::read_from_prefix(data).map_err(|_| Errno::EINVAL)?;
        let len = part.len as usize;
        let bytes = rest.get(..len).ok_or(Errno::EINVAL)?;
        part.offset
            .checked_add(part.len.into())
            .filter(|&end| end <= i64::MAX as u64)
            .ok_or(Errno::EINVAL)?;
        parts.push(match part.kind {
            PART_BYTES if len > 0 => Part::Bytes(part.offset, bytes),
            PART_TRUNCATE if len == 0 => Part::Truncate(part.offset),
            _ => return Err(Errno::EINVAL),
        });
        data = rest.get(len.next_multiple_of(8)..).ok_or(Errno::EINVAL)?;
    }
    Ok(parts)
}

impl Batch {
    pub fn new(transaction: Arc<SharedTransaction>, open: Charge) -> Batch {
        Batch { transaction, _open: open, parts: BTreeMap::new() }
    }

    /// Adds changes of one file, by the caller of a request.
    pub fn add(&mut self, ino: Ino, header: &InHeader, parts: &[Part<'_>]) -> Result<()> {
        let by = caller(header, 0);
        let spans = self.parts.entry(ino).or_insert_with(|| Some(Vec::new()));
        for part in parts {
            match *part {
                Part::Bytes(offset, bytes) => {
                    let how = WriteHow { append: false, kill_suidgid: header.uid != 0, by, is_part: false };
                    if self.transaction.write(ino, offset, bytes, how)?.len < bytes.len() {
                        return Err(Errno::EFBIG.into());
                    }
                    if let Some(all) = spans {
                        let (start, end) =
                            (offset / PAGE * PAGE, (offset + bytes.len() as u64).next_multiple_of(PAGE));
                        match all.last_mut() {
                            Some((first, len)) if *first + *len == start => *len = end - *first,
                            _ => all.push((start, end - start)),
                        }
                        if all.len() > SPANS_MAX {
                            *spans = None;
                        }
                    }
                }
                Part::Truncate(size) => {
                    let change = SetAttr { size: Some(size), ..SetAttr::default() };
                    self.transaction.set_attr(&by, ino, &change)?;
                    *spans = None;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn encoded(parts: &[(u64, u32, u32, &[u8])]) -> Vec<u8> {
        let mut data = Vec::new();
        for &(offset, len, kind, bytes) in parts {
            data.extend(WritePart { offset, len, kind }.as_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(8), 0);
        }
        data
    }

    #[test]
    fn malformed_changes_are_refused() {
        let good = encoded(&[(5, 3, PART_BYTES, b"abc"), (9, 0, PART_TRUNCATE, b"")]);
        assert_eq!(parts_of(&good), Ok(vec![Part::Bytes(5, b"abc"), Part::Truncate(9)]));
        assert_eq!(parts_of(&[]), Ok(Vec::new()));
        for (offset, len, kind, bytes) in [
            (0, 9, PART_BYTES, &b"12345678"[..]),
            (0, 0, PART_BYTES, b""),
            (0, 1, PART_TRUNCATE, b"x"),
            (0, 1, 2, b"x"),
            (u64::MAX, 1, PART_BYTES, b"x"),
            (i64::MAX as u64, 1, PART_BYTES, b"x"),
        ] {
            assert_eq!(parts_of(&encoded(&[(offset, len, kind, bytes)])), Err(Errno::EINVAL), "{kind} {len}");
        }
        assert_eq!(parts_of(&good[..20]), Err(Errno::EINVAL));
    }
}
