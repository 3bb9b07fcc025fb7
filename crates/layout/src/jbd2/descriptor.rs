//! Descriptor blocks: tags with the home blocks of the copies that follow.
//!
//! ```text
//!             v3 (16 bytes)            v2, v1, none
//!  0          block number, low        block number, low
//!  4          flags (32 bits)          checksum (16 bits), flags (16 bits)
//!  8          block number, high       block number, high: only with 64BIT
//!  12         crc32c of the copy       -
//! ```
//! A tag without SAME_UUID is followed by the journal's UUID. Only the first tag of a block is.

use super::{BlockType, Checksums, HEADER_BYTES, Header, LogFormat, be16, be32, put32};

/// Flags of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TagFlags(pub u16);

impl TagFlags {
    /// The copy's first four bytes were the magic and are zero in the log.
    pub const ESCAPE: TagFlags = TagFlags(1);
    /// No UUID follows.
    pub const SAME_UUID: TagFlags = TagFlags(2);
    /// Never written by jbd2.
    pub const DELETED: TagFlags = TagFlags(4);
    /// Last tag of its block.
    pub const LAST: TagFlags = TagFlags(8);

    pub fn has(self, flag: TagFlags) -> bool {
        self.0 & flag.0 != 0
    }
}

/// The home of one copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    pub block: u64,
    /// Only [`TagFlags::ESCAPE`] is the caller's; the codec sets the others.
    pub flags: TagFlags,
    /// crc32c of the copy with v3, its lower 16 bits with v2, else without meaning.
    pub checksum: u32,
}

const UUID_BYTES: usize = 16;

/// The most tags of one descriptor block.
pub fn tags_per_block(format: &LogFormat) -> usize {
    (format.block_size - HEADER_BYTES - UUID_BYTES - format.tail_bytes()) / format.tag_bytes()
}

/// A descriptor block of at most [`tags_per_block`] tags, and at least one.
pub fn encode_descriptor(format: &LogFormat, sequence: u32, tags: &[Tag]) -> Vec<u8> {
    assert!(!tags.is_empty() && tags.len() <= tags_per_block(format), "tags of one descriptor block");
    let mut out = vec![0; format.block_size];
    Header { block_type: BlockType::Descriptor, sequence }.encode(&mut out);
    let mut at = HEADER_BYTES;
    for (index, tag) in tags.iter().enumerate() {
        let mut flags = tag.flags.0 & TagFlags::ESCAPE.0;
        if index > 0 {
            flags |= TagFlags::SAME_UUID.0;
        }
        if index + 1 == tags.len() {
            flags |= TagFlags::LAST.0;
        }
        put_tag(format, &mut out[at..], tag, flags);
        at += format.tag_bytes();
        if index == 0 {
            out[at..at + UUID_BYTES].copy_from_slice(&format.uuid);
            at += UUID_BYTES;
        }
    }
    format.seal_tail(&mut out);
    out
}

fn put_tag(format: &LogFormat, out: &mut [u8], tag: &Tag, flags: u16) {
    put32(out, 0, tag.block as u32);
    match format.checksums {
        Checksums::V3 => {
            put32(out, 4, u32::from(flags));
            put32(out, 12, tag.checksum);
        }
        Checksums::V2 => put32(out, 4, tag.checksum << 16 | u32::from(flags)),
        Checksums::V1 | Checksums::None => put32(out, 4, u32::from(flags)),
    }
    if format.wide {
        put32(out, 8, (tag.block >> 32) as u32);
    }
}

/// The tags of a descriptor block, up to the last tag or as many as the block holds.
pub fn decode_tags(format: &LogFormat, block: &[u8]) -> Vec<Tag> {
    let end = block.len() - format.tail_bytes();
    let size = format.tag_bytes();
    let mut tags = Vec::new();
    let mut at = HEADER_BYTES;
    while at + size <= end {
        let flags = TagFlags(be16(block, at + 6));
        let high = if format.wide { u64::from(be32(block, at + 8)) << 32 } else { 0 };
        let checksum = match format.checksums {
            Checksums::V3 => be32(block, at + 12),
            _ => u32::from(be16(block, at + 4)),
        };
        tags.push(Tag { block: high | u64::from(be32(block, at)), flags, checksum });
        at += size;
        if !flags.has(TagFlags::SAME_UUID) {
            at += UUID_BYTES;
        }
        if flags.has(TagFlags::LAST) {
            break;
        }
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::super::tests::formats;
    use super::*;

    #[test]
    fn round_trip() {
        for format in formats() {
            for count in [1, 2, tags_per_block(&format)] {
                let tags: Vec<Tag> = (0..count as u64)
                    .map(|i| Tag {
                        block: if format.wide { i << 32 | 7 } else { i },
                        flags: TagFlags(i as u16 & 1),
                        checksum: match format.checksums {
                            Checksums::V3 => 0x8000_0000 | i as u32,
                            Checksums::V2 => 0xabcd,
                            _ => 0,
                        },
                    })
                    .collect();
                let block = encode_descriptor(&format, 9, &tags);
                assert!(format.tail_is_valid(&block));
                let read = decode_tags(&format, &block);
                assert_eq!(read.len(), count);
                for (r, t) in read.iter().zip(&tags) {
                    assert_eq!((r.block, r.checksum), (t.block, t.checksum));
                    assert_eq!(r.flags.has(TagFlags::ESCAPE), t.flags.has(TagFlags::ESCAPE));
                }
            }
        }
    }

    #[test]
    fn any_bytes_decode_within_the_block() {
        for format in formats() {
            for fill in [0x00, 0x02, 0x08, 0xff] {
                let tags = decode_tags(&format, &vec![fill; format.block_size]);
                assert!(tags.len() <= format.block_size / format.tag_bytes());
            }
        }
    }
}
