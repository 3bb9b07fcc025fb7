//! Extended attributes (`struct ext4_xattr_ibody_header`, `ext4_xattr_header`, `ext4_xattr_entry`).
//!
//! They are stored behind an inode's last field, and in one block in addition. Entries grow from
//! the start, values from the end; four bytes of zero end the entries:
//!
//! ```text
//! inode:  magic | entry entry ... 0000      value value     offsets count from the first entry
//! block:  header of 32 bytes | entry entry ... 0000  value  offsets count from the block's start
//! ```
//!
//! In a block, entries are sorted by name index, length of the name, name. Each has a hash of its
//! name and value, and the header has a hash of these. In an inode there are no hashes.

use std::ops::Range;

use xact_types::BlockNr;

use crate::checksum::crc32c;
use crate::superblock::Superblock;
use crate::{get_u16, get_u32, put_u16, put_u32};

/// `h_magic` in inodes and in blocks.
pub const MAGIC: u32 = 0xEA02_0000;
/// The longest name without its prefix, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Inodes that may share a block (`EXT4_XATTR_REFCOUNT_MAX`).
pub const MAX_REFCOUNT: u32 = 1024;

const BODY_HEADER_BYTES: usize = 4;
const BLOCK_HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 16;
const TERMINATOR_BYTES: usize = 4;

/// The name indexes that stand for a prefix, or for a whole name (`EXT4_XATTR_INDEX_*`).
pub mod index {
    pub const USER: u8 = 1;
    pub const POSIX_ACL_ACCESS: u8 = 2;
    pub const POSIX_ACL_DEFAULT: u8 = 3;
    pub const TRUSTED: u8 = 4;
    pub const SECURITY: u8 = 6;
    pub const SYSTEM: u8 = 7;
}

/// Prefixes. If two of them fit, the longer one comes first.
const PREFIXES: [(u8, &[u8]); 6] = [
    (index::POSIX_ACL_ACCESS, b"system.posix_acl_access"),
    (index::POSIX_ACL_DEFAULT, b"system.posix_acl_default"),
    (index::USER, b"user."),
    (index::TRUSTED, b"trusted."),
    (index::SECURITY, b"security."),
    (index::SYSTEM, b"system."),
];

/// Index and rest of a full name such as `user.comment`; `None` for a prefix that ext4 does not
/// have.
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|&(index, prefix)| {
        let rest = full.strip_prefix(prefix)?;
        // The two names of ACLs have no rest, prefixes always have one.
        (rest.is_empty() != prefix.ends_with(b".")).then_some((index, rest))
    })
}

/// The name that users see; `None` for an index that is not for users.
pub fn full_name(index: u8, rest: &[u8]) -> Option<Vec<u8>> {
    let (_, prefix) = PREFIXES.iter().find(|(i, _)| *i == index)?;
    Some([prefix, rest].concat())
}

/// An attribute on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    pub index: u8,
    /// Without the prefix that `index` stands for.
    pub name: &'a [u8],
    pub value: Value<'a>,
    /// Offset of the value in the area or block; 0 if it is empty or in an inode of its own.
    pub value_at: usize,
    /// `e_hash`; 0 in most inodes.
    pub hash: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    Here(&'a [u8]),
    /// In an inode of its own (feature `ea_inode`).
    InInode {
        ino: u32,
        size_bytes: u32,
    },
}

/// Checks each entry before it returns it; after an error it returns no more.
#[derive(Clone)]
pub struct Entries<'a> {
    bytes: &'a [u8],
    /// Offset of the next entry in `bytes`.
    at: usize,
    /// The start of value offsets.
    base: usize,
}

impl<'a> Entries<'a> {
    fn none() -> Entries<'a> {
        Entries { bytes: &[0; TERMINATOR_BYTES], at: 0, base: 0 }
    }

    fn decode(&mut self) -> Result<Option<Entry<'a>>, &'static str> {
        let bytes = self.bytes;
        let rest = &bytes[self.at..];
        if rest.len() < TERMINATOR_BYTES {
            return Err("attributes have no end");
        }
        if get_u32(rest, 0) == 0 {
            return Ok(None);
        }
        if rest.len() < ENTRY_BYTES {
            return Err("attribute's entry lies outside of its area");
        }
        let name_len = usize::from(rest[0]);
        let name = rest
            .get(ENTRY_BYTES..ENTRY_BYTES + name_len)
            .ok_or("attribute's name lies outside of its area")?;
        let next = self.at + entry_bytes(name_len);
        if next + TERMINATOR_BYTES > bytes.len() {
            return Err("attributes have no end");
        }
        let size = get_u32(rest, 8) as usize;
        let (value, value_at) = match get_u32(rest, 4) {
            0 if size == 0 => (Value::Here(&[]), 0),
            0 => {
                let start = self.base + usize::from(get_u16(rest, 2));
                if start < next + TERMINATOR_BYTES {
                    return Err("attribute's value overlaps the entries");
                }
                let value = start.checked_add(size).and_then(|end| bytes.get(start..end));
                (Value::Here(value.ok_or("attribute's value lies outside of its area")?), start)
            }
            ino => (Value::InInode { ino, size_bytes: size as u32 }, 0),
        };
        self.at = next;
        Ok(Some(Entry { index: rest[1], name, value, value_at, hash: get_u32(rest, 12) }))
    }

    /// Whether values share bytes with each other or with the entries, or reach out of their area
    /// with their padding. Readers do not depend on it.
    pub fn overlap(&self) -> bool {
        let mut rest = self.clone();
        let mut parts = Vec::new();
        while let Some(Ok(entry)) = rest.next() {
            if let Value::Here(value) = entry.value
                && !value.is_empty()
            {
                parts.push(entry.value_at..entry.value_at + padded(value.len()));
            }
        }
        parts.push(0..rest.at + TERMINATOR_BYTES);
        parts.sort_by_key(|part| part.start);
        let shared = parts.windows(2).any(|two| two[0].end > two[1].start);
        shared || parts.iter().any(|part| part.end > rest.bytes.len())
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.decode();
        if entry.is_err() {
            *self = Entries::none();
        }
        entry.transpose()
    }
}

/// The attributes in [`crate::inode::Inode::xattr_area`].
pub fn entries_in_body(area: &[u8]) -> Result<Entries<'_>, &'static str> {
    if !area.len().is_multiple_of(4) {
        return Err("attributes in the inode are not aligned");
    }
    if area.len() < BODY_HEADER_BYTES + TERMINATOR_BYTES || get_u32(area, 0) != MAGIC {
        return Ok(Entries::none());
    }
    Ok(Entries { bytes: area, at: BODY_HEADER_BYTES, base: BODY_HEADER_BYTES })
}

/// The attributes in an attribute block.
pub fn entries_in_block<'a>(
    bytes: &'a [u8],
    sb: &Superblock,
    block: BlockNr,
) -> Result<Entries<'a>, &'static str> {
    if get_u32(bytes, 0) != MAGIC {
        return Err("attribute block has no magic number");
    }
    if get_u32(bytes, 8) != 1 {
        return Err("attributes take more than one block");
    }
    if !(1..=MAX_REFCOUNT).contains(&refcount(bytes)) {
        return Err("attribute block has an impossible number of users");
    }
    if sb.has_metadata_csum() && get_u32(bytes, CHECKSUM_AT) != block_checksum(bytes, sb, block) {
        return Err("checksum of the attribute block does not match");
    }
    Ok(Entries { bytes, at: BLOCK_HEADER_BYTES, base: 0 })
}

/// `h_refcount`: the number of inodes that use an attribute block.
pub fn refcount(block: &[u8]) -> u32 {
    get_u32(block, 4)
}

/// Sets `h_refcount`, and the checksum.
pub fn set_refcount(bytes: &mut [u8], sb: &Superblock, block: BlockNr, count: u32) {
    put_u32(bytes, 4, count);
    seal_block(bytes, sb, block);
}

/// An attribute to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    pub index: u8,
    /// Without the prefix that `index` stands for.
    pub name: Vec<u8>,
    pub value: Vec<u8>,
}

impl Attribute {
    fn bytes(&self) -> usize {
        entry_bytes(self.name.len()) + padded(self.value.len())
    }
}

fn entry_bytes(name_len: usize) -> usize {
    padded(ENTRY_BYTES + name_len)
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// Whether the list fits the inode's area of `area_len` bytes.
pub fn fits_body(list: &[Attribute], area_len: usize) -> bool {
    fits(list, BODY_HEADER_BYTES, area_len)
}

/// Whether the list fits a block.
pub fn fits_block(list: &[Attribute], block_size: usize) -> bool {
    fits(list, BLOCK_HEADER_BYTES, block_size)
}

fn fits(list: &[Attribute], header: usize, len: usize) -> bool {
    header + TERMINATOR_BYTES + list.iter().map(Attribute::bytes).sum::<usize>() <= len
}

/// Writes all attributes of an inode's area, or an empty list. They must fit.
pub fn write_body(area: &mut [u8], list: &[Attribute]) {
    area.fill(0);
    if list.is_empty() {
        return;
    }
    assert!(fits_body(list, area.len()), "attributes fit the inode");
    put_u32(area, 0, MAGIC);
    write_entries(area, list, BODY_HEADER_BYTES, BODY_HEADER_BYTES);
}

/// Writes an attribute block with `refcount` users, and sorts the list as blocks require. It must
/// fit.
pub fn write_block(bytes: &mut [u8], sb: &Superblock, block: BlockNr, refcount: u32, list: &mut [Attribute]) {
    assert!(fits_block(list, bytes.len()), "attributes fit the block");
    list.sort_by(|a, b| (a.index, a.name.len(), &a.name[..]).cmp(&(b.index, b.name.len(), &b.name[..])));
    bytes.fill(0);
    put_u32(bytes, 0, MAGIC);
    put_u32(bytes, 4, refcount);
    put_u32(bytes, 8, 1);
    let mut block_hash = 0u32;
    for (entry, value) in write_entries(bytes, list, BLOCK_HEADER_BYTES, 0) {
        let name_len = usize::from(bytes[entry]);
        let name = &bytes[entry + ENTRY_BYTES..entry + ENTRY_BYTES + name_len];
        let hash = entry_hash(name.iter().map(|&byte| u32::from(byte)), &bytes[value]);
        put_u32(bytes, entry + 12, hash);
        block_hash = block_hash.rotate_left(16) ^ hash;
    }
    put_u32(bytes, 12, block_hash);
    seal_block(bytes, sb, block);
}

/// Writes the entries from `first` on and the values from the end down. Returns the position of
/// each entry and each padded value.
fn write_entries(
    bytes: &mut [u8],
    list: &[Attribute],
    first: usize,
    base: usize,
) -> Vec<(usize, Range<usize>)> {
    let (mut at, mut end) = (first, bytes.len());
    let mut places = Vec::with_capacity(list.len());
    for attribute in list {
        let (name, value) = (&attribute.name, &attribute.value);
        assert!(name.len() <= MAX_NAME_BYTES, "name of an attribute fits its length field");
        let start = end - padded(value.len());
        bytes[at] = name.len() as u8;
        bytes[at + 1] = attribute.index;
        // An entry that begins with four zeros ends the list. An entry without prefix and name,
        // which only other software makes, must not look like that.
        let is_nameless = name.is_empty() && attribute.index == 0;
        let offset = if value.is_empty() && !is_nameless { 0 } else { start - base };
        put_u16(bytes, at + 2, offset as u16);
        put_u32(bytes, at + 8, value.len() as u32);
        bytes[at + ENTRY_BYTES..at + ENTRY_BYTES + name.len()].copy_from_slice(name);
        bytes[start..start + value.len()].copy_from_slice(value);
        places.push((at, start..end));
        at += entry_bytes(name.len());
        end = start;
    }
    places
}

/// `e_hash`: over the name's bytes and the padded value's words.
fn entry_hash(name: impl Iterator<Item = u32>, value: &[u8]) -> u32 {
    let hash = name.fold(0u32, |hash, byte| hash.rotate_left(5) ^ byte);
    let (words, _) = value.as_chunks::<4>();
    words.iter().fold(hash, |hash, &word| hash.rotate_left(16) ^ u32::from_le_bytes(word))
}

/// Whether an entry's hash is that of its name and value. `area` holds the entry; `value_hash` is
/// the hash of a value in an inode of its own. Some machines took the bytes of names for signed.
pub fn hash_matches(entry: &Entry<'_>, area: &[u8], value_hash: Option<u32>) -> bool {
    let value = match (entry.value, value_hash) {
        (Value::Here(value), _) => {
            let end = area.len().min(entry.value_at + padded(value.len()));
            area[entry.value_at..end].to_vec()
        }
        (Value::InInode { .. }, hash) => hash.unwrap_or(0).to_le_bytes().to_vec(),
    };
    let unsigned = entry.name.iter().map(|&byte| u32::from(byte));
    let signed = entry.name.iter().map(|&byte| byte as i8 as u32);
    entry.hash == entry_hash(unsigned, &value) || entry.hash == entry_hash(signed, &value)
}

const CHECKSUM_AT: usize = 16;

fn seal_block(bytes: &mut [u8], sb: &Superblock, block: BlockNr) {
    if sb.has_metadata_csum() {
        let sum = block_checksum(bytes, sb, block);
        put_u32(bytes, CHECKSUM_AT, sum);
    }
}

fn block_checksum(bytes: &[u8], sb: &Superblock, block: BlockNr) -> u32 {
    let crc = crc32c(sb.checksum_seed(), &block.0.to_le_bytes());
    let crc = crc32c(crc, &bytes[..CHECKSUM_AT]);
    let crc = crc32c(crc, &[0; 4]);
    crc32c(crc, &bytes[CHECKSUM_AT + 4..])
}

#[cfg(test)]
mod tests;
