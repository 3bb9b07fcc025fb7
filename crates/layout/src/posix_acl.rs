//! POSIX access control lists: ext4's format on disk and the format of the system calls.
//!
//! ```text
//! on disk (ext4_acl_header, version 1)          in getxattr and setxattr (version 2)
//! u32 version                                   u32 version
//! for each entry: u16 tag, u16 perm             for each entry: u16 tag, u16 perm, u32 id
//!                 and u32 id if it has one
//! ```
//!
//! The rules for lists and their meaning are elsewhere (`posix/acl.rs` of the file system).

use crate::{get_u16, get_u32};

const DISK_VERSION: u32 = 1;
const WIRE_VERSION: u32 = 2;
const VERSION_BYTES: usize = 4;
const SHORT_ENTRY_BYTES: usize = 4;
const LONG_ENTRY_BYTES: usize = 8;
/// The id of an entry that has none (`ACL_UNDEFINED_ID`).
const NO_ID: u32 = u32::MAX;

/// Whether entries with this `e_tag` have an id; `None` for an unknown tag.
fn has_id(tag: u16) -> Option<bool> {
    match tag {
        // ACL_USER, ACL_GROUP
        0x02 | 0x08 => Some(true),
        // ACL_USER_OBJ, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER
        0x01 | 0x04 | 0x10 | 0x20 => Some(false),
        _ => None,
    }
}

/// The result of `getxattr` for a value on disk; `None` if the value is damaged.
pub fn disk_to_wire(disk: &[u8]) -> Option<Vec<u8>> {
    let mut rest = entries(disk, DISK_VERSION)?;
    let mut wire = WIRE_VERSION.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let (short, behind) = rest.split_at_checked(SHORT_ENTRY_BYTES)?;
        wire.extend_from_slice(short);
        if has_id(get_u16(short, 0))? {
            let (id, behind) = behind.split_at_checked(LONG_ENTRY_BYTES - SHORT_ENTRY_BYTES)?;
            wire.extend_from_slice(id);
            rest = behind;
        } else {
            wire.extend_from_slice(&NO_ID.to_le_bytes());
            rest = behind;
        }
    }
    Some(wire)
}

/// The value on disk for the argument of `setxattr`; `None` (`EINVAL`) if it is not a list.
pub fn wire_to_disk(wire: &[u8]) -> Option<Vec<u8>> {
    let (entries, []) = entries(wire, WIRE_VERSION)?.as_chunks::<LONG_ENTRY_BYTES>() else {
        return None;
    };
    let mut disk = DISK_VERSION.to_le_bytes().to_vec();
    for entry in entries {
        let len = if has_id(get_u16(entry, 0))? { LONG_ENTRY_BYTES } else { SHORT_ENTRY_BYTES };
        disk.extend_from_slice(&entry[..len]);
    }
    Some(disk)
}

/// The bytes after a header of this version.
fn entries(bytes: &[u8], version: u32) -> Option<&[u8]> {
    let (header, rest) = bytes.split_at_checked(VERSION_BYTES)?;
    (get_u32(header, 0) == version).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// user::rwx, user:1000:r-x, group::r--, mask::r-x, other::---
    const DISK: [u8; 28] = [
        1, 0, 0, 0, //
        1, 0, 7, 0, //
        2, 0, 5, 0, 0xE8, 3, 0, 0, //
        4, 0, 4, 0, //
        0x10, 0, 5, 0, //
        0x20, 0, 0, 0,
    ];
    const WIRE: [u8; 44] = [
        2, 0, 0, 0, //
        1, 0, 7, 0, 0xFF, 0xFF, 0xFF, 0xFF, //
        2, 0, 5, 0, 0xE8, 3, 0, 0, //
        4, 0, 4, 0, 0xFF, 0xFF, 0xFF, 0xFF, //
        0x10, 0, 5, 0, 0xFF, 0xFF, 0xFF, 0xFF, //
        0x20, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF,
    ];

    #[test]
    fn both_formats_are_those_of_the_kernel() {
        assert_eq!(disk_to_wire(&DISK).as_deref(), Some(&WIRE[..]));
        assert_eq!(wire_to_disk(&WIRE).as_deref(), Some(&DISK[..]));
    }

    #[test]
    fn invalid_lists_are_refused() {
        for len in [0, 3, 5, 7, 10, 13, 15, 27] {
            assert_eq!(disk_to_wire(&DISK[..len]), None, "{len} bytes on disk");
        }
        for len in [0, 3, 5, 11, 13, 43] {
            assert_eq!(wire_to_disk(&WIRE[..len]), None, "{len} bytes from a caller");
        }
        for (at, value) in [(0, 3), (4, 3), (5, 1)] {
            let (mut disk, mut wire) = (DISK, WIRE);
            disk[at] = value;
            wire[at] = value;
            assert_eq!((disk_to_wire(&disk), wire_to_disk(&wire)), (None, None), "{value} at {at}");
        }
    }
}
