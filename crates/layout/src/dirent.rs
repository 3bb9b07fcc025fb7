//! Directory blocks: chains of entries (`struct ext4_dir_entry_2`) that fill the block exactly.
//!
//! ```text
//! 0  inode      u32   0: the entry is unused
//! 4  rec_len    u16   bytes to the next entry, a multiple of 4
//! 6  name_len   u8
//! 7  file_type  u8    0 on volumes without `filetype`
//! 8  name
//! ```
//!
//! An entry may own more bytes than it needs: those of removed entries behind it. With
//! `metadata_csum` the last 12 bytes look like an unused entry of type 0xDE and hold the checksum.
//! A directory's first block starts with `.` and `..`.
//!
//! Blocks come from the volume, so reading functions check every entry that they pass. Functions
//! that change a block expect a block that such a function has checked before.

use xact_types::{Error, Ino, Result, Site};

use crate::checksum::crc32c;
use crate::feature::incompat;
use crate::htree::{MAX_DEPTH, MAX_DEPTH_SMALL};
use crate::inode::inode_seed;
use crate::superblock::Superblock;
use crate::{get_u16, get_u32, put_u16, put_u32};

/// The longest name (`EXT4_NAME_LEN`).
pub const NAME_MAX_BYTES: usize = 255;
/// Bytes of an entry before its name.
pub const HEADER_BYTES: usize = 8;
/// The shortest entry, with a name of up to 4 bytes (`ext4_dir_rec_len(1)`).
pub const ENTRY_MIN_BYTES: usize = 12;
/// The checksum at the end of a block (`struct ext4_dir_entry_tail`).
const TAIL_BYTES: usize = 12;
/// `det_reserved_ft`: marks the tail.
const TAIL_TYPE: u8 = 0xDE;
/// `EXT4_FT_DIR`.
const TYPE_DIRECTORY: u8 = 2;

/// Bytes that an entry with a name of this length needs (`ext4_dir_rec_len`).
pub fn entry_bytes(name_len: usize) -> usize {
    (HEADER_BYTES + name_len).next_multiple_of(4)
}

/// The format of one directory's blocks, by the volume's features.
#[derive(Debug, Clone, Copy)]
pub struct DirFormat {
    block_size: usize,
    /// Seed of the directory's checksums; `None` if the volume has no checksums.
    seed: Option<u32>,
    has_types: bool,
    inodes_count: u32,
    index_depth_max: usize,
}

/// An entry in use. `file_type` is `EXT4_FT_*`, 0 if unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    pub ino: Ino,
    pub file_type: u8,
    pub name: &'a [u8],
}

/// The position of an entry in its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Byte offset.
    pub at: usize,
    /// Byte offset of the entry before it, used or not.
    pub previous: Option<usize>,
    pub ino: Ino,
    pub file_type: u8,
}

/// The space in a block for another entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirentSpace {
    /// The entry at this offset has enough spare bytes, or is unused and large enough.
    At(usize),
    /// There is enough space once the entries are moved together.
    Scattered,
    Full,
}

/// `.` and `..` of a first block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dots {
    pub parent: Ino,
    /// Byte offset of `..`.
    pub parent_at: usize,
    /// Byte offset of the next entry.
    pub next: usize,
}

/// Any entry on the volume, checked.
#[derive(Debug, Clone, Copy)]
struct Raw<'a> {
    at: usize,
    next: usize,
    entry: DirEntry<'a>,
}

impl Raw<'_> {
    fn is_used(&self) -> bool {
        self.entry.ino.0 != 0
    }

    /// Bytes that the entry needs.
    fn needs(&self) -> usize {
        if self.is_used() { entry_bytes(self.entry.name.len()) } else { 0 }
    }
}

impl DirFormat {
    /// The format of the directory that is inode `ino` in its `generation`.
    pub fn new(sb: &Superblock, ino: Ino, generation: u32) -> DirFormat {
        DirFormat {
            block_size: sb.block_size() as usize,
            seed: sb.has_metadata_csum().then(|| inode_seed(sb, ino, generation)),
            has_types: sb.has_incompat(incompat::FILETYPE),
            inodes_count: sb.inodes_count(),
            index_depth_max: if sb.has_incompat(incompat::LARGEDIR) { MAX_DEPTH } else { MAX_DEPTH_SMALL },
        }
    }

    /// The most index blocks on the way to a leaf.
    pub fn index_depth_max(&self) -> usize {
        self.index_depth_max
    }

    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Seed of the directory's checksums; `None` if the volume has no checksums.
    pub fn seed(&self) -> Option<u32> {
        self.seed
    }

    pub fn has_types(&self) -> bool {
        self.has_types
    }

    /// End of the entries: the tail, or the end of the block.
    pub fn entries_end(&self) -> usize {
        self.block_size - if self.seed.is_some() { TAIL_BYTES } else { 0 }
    }

    /// `rec_len` of the entry at `at` (`ext4_rec_len_from_disk`): in blocks of 64 KiB, lengths that
    /// 16 bits cannot hold have bits 16 and 17 in the two lowest.
    pub(crate) fn rec_len(&self, bytes: &[u8], at: usize) -> usize {
        let stored = get_u16(bytes, at + 4);
        if self.block_size < 1 << 16 {
            return usize::from(stored);
        }
        match stored {
            0 | 0xFFFF => self.block_size,
            _ => usize::from(stored & 0xFFFC) | usize::from(stored & 3) << 16,
        }
    }

    /// Stores `rec_len` (`ext4_rec_len_to_disk`).
    pub(crate) fn set_rec_len(&self, bytes: &mut [u8], at: usize, len: usize) {
        assert!(len <= self.block_size && len % 4 == 0, "length of a directory entry");
        put_u16(bytes, at + 4, if len == 1 << 16 { 0xFFFF } else { len as u16 });
    }

    /// Reads the entry at `at` of a chain that ends at `end`.
    fn raw<'a>(&self, bytes: &'a [u8], at: usize, end: usize, site: Site) -> Result<Raw<'a>> {
        let corrupt = |what| Err(Error::corrupt(site, what));
        // `at` is 0 or follows an entry that left space for another.
        let rec_len = self.rec_len(bytes, at);
        let name_len = usize::from(bytes[at + 6]);
        if rec_len < ENTRY_MIN_BYTES || rec_len % 4 != 0 {
            return corrupt("length of a directory entry is invalid");
        }
        if rec_len < entry_bytes(name_len) {
            return corrupt("directory entry is too short for its name");
        }
        let next = at + rec_len;
        if next > end || (next != end && next > end - ENTRY_MIN_BYTES) {
            return corrupt("directory entry reaches over the end of its block");
        }
        let ino = get_u32(bytes, at);
        if ino > self.inodes_count {
            return corrupt("directory entry names an inode that does not exist");
        }
        if ino != 0 && name_len == 0 {
            return corrupt("directory entry without a name");
        }
        let file_type = if self.has_types { bytes[at + 7] } else { 0 };
        let name = &bytes[at + HEADER_BYTES..at + HEADER_BYTES + name_len];
        Ok(Raw { at, next, entry: DirEntry { ino: Ino(ino), file_type, name } })
    }

    /// Compares the checksum of a block of entries, and its length with the volume's.
    pub fn verify(&self, bytes: &[u8], site: Site) -> Result<()> {
        assert_eq!(bytes.len(), self.block_size, "a directory block has the volume's block size");
        let Some(seed) = self.seed else { return Ok(()) };
        let tail = self.entries_end();
        let is_tail = get_u32(bytes, tail) == 0
            && usize::from(get_u16(bytes, tail + 4)) == TAIL_BYTES
            && bytes[tail + 6] == 0
            && bytes[tail + 7] == TAIL_TYPE;
        if !is_tail {
            return Err(Error::corrupt(site, "directory block has no checksum"));
        }
        if get_u32(bytes, tail + 8) != crc32c(seed, &bytes[..tail]) {
            return Err(Error::corrupt(site, "checksum of the directory block does not match"));
        }
        Ok(())
    }

    /// Stores the checksum; to be called after the last change.
    pub fn seal(&self, bytes: &mut [u8]) {
        let Some(seed) = self.seed else { return };
        let tail = self.entries_end();
        bytes[tail..].fill(0);
        put_u16(bytes, tail + 4, TAIL_BYTES as u16);
        bytes[tail + 7] = TAIL_TYPE;
        let sum = crc32c(seed, &bytes[..tail]);
        put_u32(bytes, tail + 8, sum);
    }

    /// Reads `.` and `..`. They come first and in this order; `.` names `own`.
    pub fn dots(&self, bytes: &[u8], own: Ino, site: Site) -> Result<Dots> {
        self.dots_before(bytes, own, self.entries_end(), site)
    }

    /// As `dots`, in a chain that ends at `end`: the chain of an index root has no tail.
    pub(crate) fn dots_before(&self, bytes: &[u8], own: Ino, end: usize, site: Site) -> Result<Dots> {
        let dot = self.raw(bytes, 0, end, site)?;
        if dot.entry.name != b"." || dot.entry.ino != own || dot.next == end {
            return Err(Error::corrupt(site, "directory does not start with an entry for itself"));
        }
        let dotdot = self.raw(bytes, dot.next, end, site)?;
        if dotdot.entry.name != b".." || !dotdot.is_used() {
            return Err(Error::corrupt(site, "directory has no entry for its parent"));
        }
        Ok(Dots { parent: dotdot.entry.ino, parent_at: dotdot.at, next: dotdot.next })
    }

    /// Writes `.` and `..` to the start of a block; `..` reaches to `end`.
    pub(crate) fn put_dots(&self, bytes: &mut [u8], own: Ino, parent: Ino, end: usize) {
        let entry = |ino, name| DirEntry { ino, file_type: TYPE_DIRECTORY, name };
        self.put(bytes, 0, ENTRY_MIN_BYTES, &entry(own, b"."));
        self.put(bytes, ENTRY_MIN_BYTES, end - ENTRY_MIN_BYTES, &entry(parent, b".."));
    }

    /// The first block of a new directory.
    pub fn first_block(&self, own: Ino, parent: Ino) -> Vec<u8> {
        let mut bytes = vec![0; self.block_size];
        self.put_dots(&mut bytes, own, parent, self.entries_end());
        self.seal(&mut bytes);
        bytes
    }

    /// The entries in use from byte offset `from` on, each with its offset.
    pub fn entries<'a>(&self, bytes: &'a [u8], from: usize, site: Site) -> Entries<'a> {
        Entries { format: *self, bytes, at: from, end: self.entries_end(), site }
    }

    /// The entries in use of an area that is smaller than a block: the two of an inode with inline
    /// data.
    pub fn entries_of_area<'a>(
        &self,
        area: &'a [u8],
        site: Site,
    ) -> impl Iterator<Item = Result<DirEntry<'a>>> + use<'a> {
        // A shorter area holds no entry.
        let end = if area.len() < ENTRY_MIN_BYTES { 0 } else { area.len() };
        Entries { format: *self, bytes: area, at: 0, end, site }.map(|item| item.map(|(_, entry)| entry))
    }

    /// Searches for a name from byte offset `from` on.
    pub fn find(&self, bytes: &[u8], from: usize, name: &[u8], site: Site) -> Result<Option<Found>> {
        let end = self.entries_end();
        let (mut at, mut previous) = (from, None);
        while at < end {
            let raw = self.raw(bytes, at, end, site)?;
            if raw.entry.name == name && raw.is_used() {
                let DirEntry { ino, file_type, .. } = raw.entry;
                return Ok(Some(Found { at, previous, ino, file_type }));
            }
            previous = Some(at);
            at = raw.next;
        }
        Ok(None)
    }

    /// Searches for `need` bytes from byte offset `from` on; checks every entry of the block.
    pub fn find_space(&self, bytes: &[u8], from: usize, need: usize, site: Site) -> Result<DirentSpace> {
        let end = self.entries_end();
        let (mut at, mut free, mut fit) = (from, 0, None);
        while at < end {
            let raw = self.raw(bytes, at, end, site)?;
            let spare = raw.next - raw.at - raw.needs();
            if spare >= need && fit.is_none() {
                fit = Some(at);
            }
            free += spare;
            at = raw.next;
        }
        Ok(match fit {
            Some(at) => DirentSpace::At(at),
            None if free >= need => DirentSpace::Scattered,
            None => DirentSpace::Full,
        })
    }

    /// Adds an entry at the offset of a [`DirentSpace::At`].
    pub fn insert(&self, bytes: &mut [u8], at: usize, entry: &DirEntry<'_>) {
        let len = self.rec_len(bytes, at);
        if get_u32(bytes, at) == 0 {
            self.put(bytes, at, len, entry);
            return;
        }
        let used = entry_bytes(usize::from(bytes[at + 6]));
        self.set_rec_len(bytes, at, used);
        self.put(bytes, at + used, len - used, entry);
    }

    /// Removes the entry that `find` found: its bytes go to the entry before it.
    pub fn remove(&self, bytes: &mut [u8], found: &Found) {
        let len = self.rec_len(bytes, found.at);
        match found.previous {
            Some(previous) => {
                let merged = self.rec_len(bytes, previous) + len;
                self.set_rec_len(bytes, previous, merged);
                bytes[found.at..found.at + len].fill(0);
            }
            None => {
                bytes[found.at..found.at + len].fill(0);
                self.set_rec_len(bytes, found.at, len);
            }
        }
    }

    /// Points the entry at offset `at` at another inode.
    pub fn set(&self, bytes: &mut [u8], at: usize, ino: Ino, file_type: u8) {
        put_u32(bytes, at, ino.0);
        bytes[at + 7] = if self.has_types { file_type } else { 0 };
    }

    fn put(&self, bytes: &mut [u8], at: usize, len: usize, entry: &DirEntry<'_>) {
        assert!(len >= entry_bytes(entry.name.len()), "room for a directory entry");
        self.set(bytes, at, entry.ino, entry.file_type);
        self.set_rec_len(bytes, at, len);
        bytes[at + 6] = entry.name.len() as u8;
        bytes[at + HEADER_BYTES..at + HEADER_BYTES + entry.name.len()].copy_from_slice(entry.name);
    }
}

/// Iterator over the entries in use. It ends with the first error.
pub struct Entries<'a> {
    format: DirFormat,
    bytes: &'a [u8],
    at: usize,
    end: usize,
    site: Site,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<(usize, DirEntry<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let end = self.end;
        while self.at < end {
            match self.format.raw(self.bytes, self.at, end, self.site) {
                Ok(raw) => {
                    self.at = raw.next;
                    if raw.is_used() {
                        return Some(Ok((raw.at, raw.entry)));
                    }
                }
                Err(error) => {
                    self.at = end;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// Builds a block with adjacent entries.
pub struct Packer {
    format: DirFormat,
    bytes: Vec<u8>,
    /// Offset of the newest entry.
    last: Option<usize>,
    /// End of the newest entry.
    used: usize,
}

impl Packer {
    /// Begins with `prefix`, which stays unchanged in front of the entries.
    pub fn new(format: &DirFormat, prefix: &[u8]) -> Packer {
        let mut bytes = vec![0; format.block_size];
        bytes[..prefix.len()].copy_from_slice(prefix);
        Packer { format: *format, bytes, last: None, used: prefix.len() }
    }

    /// Appends an entry, which must fit.
    pub fn push(&mut self, entry: &DirEntry<'_>) {
        let len = entry_bytes(entry.name.len());
        assert!(self.used + len <= self.format.entries_end(), "packed entries fit their block");
        self.format.put(&mut self.bytes, self.used, len, entry);
        self.last = Some(self.used);
        self.used += len;
    }

    /// The sealed block: the last entry reaches to the end.
    pub fn finish(mut self) -> Vec<u8> {
        let last = self.last.unwrap_or(self.used);
        self.format.set_rec_len(&mut self.bytes, last, self.format.entries_end() - last);
        self.format.seal(&mut self.bytes);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: Site = Site::Inode(Ino(12));

    fn format(block_size: usize, csum: bool) -> DirFormat {
        DirFormat {
            block_size,
            seed: csum.then_some(7),
            has_types: true,
            inodes_count: 100,
            index_depth_max: MAX_DEPTH_SMALL,
        }
    }

    fn entry(name: &[u8]) -> DirEntry<'_> {
        DirEntry { ino: Ino(20), file_type: 1, name }
    }

    fn names(format: &DirFormat, bytes: &[u8]) -> Vec<Vec<u8>> {
        let list: Result<Vec<_>> =
            format.entries(bytes, 0, SITE).map(|item| item.map(|(_, e)| e.name.to_vec())).collect();
        list.expect("block is sound")
    }

    fn add(format: &DirFormat, bytes: &mut [u8], name: &[u8]) {
        match format.find_space(bytes, 0, entry_bytes(name.len()), SITE).expect("block is sound") {
            DirentSpace::At(at) => format.insert(bytes, at, &entry(name)),
            other => panic!("no room: {other:?}"),
        }
        format.seal(bytes);
        format.verify(bytes, SITE).expect("just sealed");
    }

    fn what(result: Result<impl std::fmt::Debug>) -> &'static str {
        match result.expect_err("damage is seen") {
            Error::Corrupt(corruption) => corruption.what,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn entries_come_and_go() {
        for (block_size, csum) in [(1024, true), (4096, false), (4096, true), (65536, false), (65536, true)] {
            let format = format(block_size, csum);
            let mut bytes = format.first_block(Ino(12), Ino(2));
            let dots = format.dots(&bytes, Ino(12), SITE).expect("dots");
            assert_eq!((dots.parent, dots.parent_at, dots.next), (Ino(2), 12, format.entries_end()));
            for name in [&b"a"[..], b"twelve bytes", b"xyz"] {
                add(&format, &mut bytes, name);
            }
            assert_eq!(names(&format, &bytes), [&b"."[..], b"..", b"a", b"twelve bytes", b"xyz"]);
            let found = format.find(&bytes, 0, b"twelve bytes", SITE).expect("sound").expect("there");
            format.remove(&mut bytes, &found);
            assert_eq!(names(&format, &bytes), [&b"."[..], b"..", b"a", b"xyz"]);
            assert!(!bytes.windows(6).any(|window| window == b"twelve"), "nothing is left of the name");
            add(&format, &mut bytes, b"elevenbytes");
            assert_eq!(names(&format, &bytes), [&b"."[..], b"..", b"a", b"elevenbytes", b"xyz"]);
        }
    }

    #[test]
    fn first_entry_of_a_block_is_emptied_in_place() {
        let format = format(1024, true);
        let mut packer = Packer::new(&format, &[]);
        packer.push(&entry(b"first"));
        packer.push(&entry(b"second"));
        let mut bytes = packer.finish();
        for name in [&b"first"[..], b"second"] {
            let found = format.find(&bytes, 0, name, SITE).expect("sound").expect("there");
            format.remove(&mut bytes, &found);
        }
        assert_eq!(names(&format, &bytes), Vec::<Vec<u8>>::new());
        assert_eq!(
            format.find_space(&bytes, 0, format.entries_end(), SITE).expect("sound"),
            DirentSpace::At(0)
        );
        add(&format, &mut bytes, b"third");
        assert_eq!(names(&format, &bytes), [b"third"]);
    }

    #[test]
    fn scattered_room_is_told_from_none() {
        let format = format(1024, false);
        let mut packer = Packer::new(&format, &[]);
        let list: Vec<Vec<u8>> = (0..32).map(|i| format!("name-{i:04}-of-24-bytes").into_bytes()).collect();
        for name in &list {
            packer.push(&entry(name));
        }
        let mut bytes = packer.finish();
        assert_eq!(format.find_space(&bytes, 0, 12, SITE).expect("sound"), DirentSpace::Full);
        for name in list.iter().skip(1).step_by(2) {
            let found = format.find(&bytes, 0, name, SITE).expect("sound").expect("there");
            format.remove(&mut bytes, &found);
        }
        assert_eq!(format.find_space(&bytes, 0, 32, SITE).expect("sound"), DirentSpace::At(0));
        assert_eq!(format.find_space(&bytes, 0, 36, SITE).expect("sound"), DirentSpace::Scattered);
        assert_eq!(format.find_space(&bytes, 0, 16 * 32, SITE).expect("sound"), DirentSpace::Scattered);
        assert_eq!(format.find_space(&bytes, 0, 16 * 32 + 4, SITE).expect("sound"), DirentSpace::Full);
    }

    #[test]
    fn lengths_in_64_kib_blocks() {
        let format = format(1 << 16, false);
        let mut bytes = vec![0; 1 << 16];
        for (len, stored) in [(12, 12), (0xFFFC, 0xFFFC), (1 << 16, 0xFFFF)] {
            format.set_rec_len(&mut bytes, 0, len);
            assert_eq!((get_u16(&bytes, 4), format.rec_len(&bytes, 0)), (stored, len));
        }
        put_u16(&mut bytes, 4, 0);
        assert_eq!(format.rec_len(&bytes, 0), 1 << 16);
    }

    #[test]
    fn damage_is_named() {
        let format = format(1024, true);
        let good = {
            let mut bytes = format.first_block(Ino(12), Ino(2));
            add(&format, &mut bytes, b"name");
            bytes
        };
        let damaged = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        let walk = |bytes: &[u8]| what(format.find_space(bytes, 0, 1024, SITE));
        assert_eq!(walk(&damaged(4, 0)), "length of a directory entry is invalid");
        assert_eq!(walk(&damaged(4, 13)), "length of a directory entry is invalid");
        assert_eq!(walk(&damaged(6, 9)), "directory entry is too short for its name");
        assert_eq!(walk(&damaged(29, 9)), "directory entry reaches over the end of its block");
        assert_eq!(walk(&damaged(28, 0xD4)), "directory entry reaches over the end of its block");
        assert_eq!(walk(&damaged(24, 101)), "directory entry names an inode that does not exist");
        assert_eq!(walk(&damaged(30, 0)), "directory entry without a name");
        assert_eq!(
            what(format.verify(&damaged(40, 1), SITE)),
            "checksum of the directory block does not match"
        );
        assert_eq!(what(format.verify(&damaged(1019, 0), SITE)), "directory block has no checksum");
        assert_eq!(
            what(format.dots(&damaged(0, 13), Ino(12), SITE)),
            "directory does not start with an entry for itself"
        );
        assert_eq!(
            what(format.dots(&damaged(20, b'x'), Ino(12), SITE)),
            "directory has no entry for its parent"
        );
    }

    /// Random bytes give an answer or an error, in bounded time, and never a panic.
    #[test]
    fn random_bytes_never_panic() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        };
        for round in 0..3000 {
            let format = format(1024, round % 2 == 0);
            let mut bytes = format.first_block(Ino(12), Ino(2));
            for _ in 0..1 + round % 40 {
                let at = usize::from(random()) + usize::from(random() % 4) * 256;
                bytes[at] = random();
            }
            let _ = format.dots(&bytes, Ino(12), SITE);
            let _ = format.find(&bytes, 0, b"missing", SITE);
            let _ = format.find_space(&bytes, 0, 100, SITE);
            let _ = format.entries(&bytes, 0, SITE).count();
            let _ = format.verify(&bytes, SITE);
        }
    }
}
