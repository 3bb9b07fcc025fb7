//! POSIX access control lists in the format of their extended attributes.
//!
//! The format is that of Linux (`struct posix_acl_xattr_header` and `_entry`): a little-endian
//! version 2, then entries of tag (16 bits), permissions (16) and user or group number (32). The
//! permission bits of an inode must agree with its access ACL, so each change of one changes the
//! other. `inherit` applies a folder's default ACL to new inodes.

use xact_types::{Errno, Result};

use super::fail;
use super::permission::{Access, Credentials};

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id of entries without a user or group.
const NO_ID: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    Group = 0x04,
    NamedGroup = 0x08,
    Mask = 0x10,
    Other = 0x20,
}

impl Tag {
    fn from_bits(bits: u16) -> Option<Tag> {
        Some(match bits {
            0x01 => Tag::Owner,
            0x02 => Tag::User,
            0x04 => Tag::Group,
            0x08 => Tag::NamedGroup,
            0x10 => Tag::Mask,
            0x20 => Tag::Other,
            _ => return None,
        })
    }

    fn has_id(self) -> bool {
        matches!(self, Tag::User | Tag::NamedGroup)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AclEntry {
    tag: Tag,
    /// Three bits: read, write, execute.
    perm: u16,
    id: u32,
}

/// A valid list: owner, group and other once each, and a mask if there are named users or groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// `EINVAL` for an invalid list (`posix_acl_from_xattr`, `posix_acl_valid`), `EOPNOTSUPP` for
    /// another version.
    pub fn decode(value: &[u8]) -> Result<Acl> {
        let Some((header, rest)) = value.split_first_chunk::<HEADER_BYTES>() else {
            return fail(Errno::EINVAL);
        };
        if u32::from_le_bytes(*header) != VERSION {
            return fail(Errno::EOPNOTSUPP);
        }
        let (chunks, tail) = rest.as_chunks::<ENTRY_BYTES>();
        if !tail.is_empty() {
            return fail(Errno::EINVAL);
        }
        let mut entries = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let [t0, t1, p0, p1, id @ ..] = *chunk;
            let perm = u16::from_le_bytes([p0, p1]);
            match Tag::from_bits(u16::from_le_bytes([t0, t1])) {
                Some(tag) if perm <= 7 => {
                    let id = if tag.has_id() { u32::from_le_bytes(id) } else { NO_ID };
                    entries.push(AclEntry { tag, perm, id });
                }
                _ => return fail(Errno::EINVAL),
            }
        }
        let acl = Acl { entries };
        if acl.is_valid() { Ok(acl) } else { fail(Errno::EINVAL) }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            value.extend((entry.tag as u16).to_le_bytes());
            value.extend(entry.perm.to_le_bytes());
            value.extend(entry.id.to_le_bytes());
        }
        value
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|e| e.tag == tag).count();
        let ordered = self.entries.is_sorted_by_key(|e| e.tag);
        let named = self.entries.iter().any(|e| e.tag.has_id());
        let masks = count(Tag::Mask);
        let ids_given = self.entries.iter().all(|e| !e.tag.has_id() || e.id != NO_ID);
        ordered
            && ids_given
            && count(Tag::Owner) == 1
            && count(Tag::Group) == 1
            && count(Tag::Other) == 1
            && (masks == 1 || masks == 0 && !named)
    }

    /// Whether the list grants this access to a caller that does not own the inode
    /// (`posix_acl_permission`).
    pub fn permits(&self, who: &Credentials, group: u32, access: Access) -> bool {
        let gives = |entry: &AclEntry| entry.perm & access.0 == access.0;
        let mask = self.entries.iter().find(|entry| entry.tag == Tag::Mask);
        let passes_mask = mask.is_none_or(gives);
        if let Some(user) = self.entries.iter().find(|e| e.tag == Tag::User && e.id == who.uid) {
            return gives(user) && passes_mask;
        }
        let is_of = |entry: &&AclEntry| match entry.tag {
            Tag::Group => who.in_group(group),
            Tag::NamedGroup => who.in_group(entry.id),
            _ => false,
        };
        let mut groups = self.entries.iter().filter(is_of).peekable();
        if groups.peek().is_some() {
            return groups.any(gives) && passes_mask;
        }
        self.entries.iter().any(|entry| entry.tag == Tag::Other && gives(entry))
    }

    /// Whether the list is equivalent to permission bits.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The nine permission bits for this list: the group's bits are the mask, if there is one.
    pub fn mode(&self) -> u16 {
        let perm = |tag| self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm);
        let group = perm(Tag::Mask).or(perm(Tag::Group)).unwrap_or(0);
        perm(Tag::Owner).unwrap_or(0) << 6 | group << 3 | perm(Tag::Other).unwrap_or(0)
    }

    /// The list after a chmod (`__posix_acl_chmod_masq`).
    pub fn with_mode(&self, mode: u16) -> Acl {
        self.map_mode(|_, bits| bits, mode)
    }

    /// The access list of a new inode with this mode in a folder with this default list
    /// (`posix_acl_create_masq`), and the inode's nine permission bits.
    pub fn for_new(&self, mode: u16) -> (Acl, u16) {
        let acl = self.map_mode(|perm, bits| perm & bits, mode);
        let mode = acl.mode();
        (acl, mode)
    }

    fn map_mode(&self, combine: impl Fn(u16, u16) -> u16, mode: u16) -> Acl {
        let masked = self.entries.iter().any(|e| e.tag == Tag::Mask);
        let mut acl = self.clone();
        for entry in &mut acl.entries {
            match entry.tag {
                Tag::Owner => entry.perm = combine(entry.perm, mode >> 6 & 7),
                Tag::Mask => entry.perm = combine(entry.perm, mode >> 3 & 7),
                Tag::Group if !masked => entry.perm = combine(entry.perm, mode >> 3 & 7),
                Tag::Other => entry.perm = combine(entry.perm, mode & 7),
                _ => {}
            }
        }
        acl
    }
}

#[cfg(test)]
pub(super) fn encode_for_test(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}
