//! Lists a directory in the order of its names' hashes, from any position in that order.
//!
//! The position of a name is a 63-bit key made of its hash: 31 bits that order the index, and 32
//! bits that distinguish names. A cookie is the smallest key that was not listed yet. It depends
//! only on names, so it stays valid when names are added or removed, leaves are split, or an index
//! is built: a name that exists throughout the listing is listed exactly once.
//!
//! Two names may have the same key (made by an attacker, or once in 10^9 directories with 100,000
//! names each). They are listed one after the other, and the cookie after the first leads to the
//! first again. So if a listing is interrupted between them, the first is listed twice. No name is
//! left out.

use std::ops::RangeInclusive;

use xact_consistency::BlockRef;
use xact_layout::dirhash::{DirHasher, NameHash};
use xact_types::{Error, FileBlock, Ino, Result, Site};

use super::{Dir, DirBlocks};
use crate::api::{FileKind, Name};

/// The smallest key. Lower cookies are for the start, `.` and `..`, which the caller handles.
pub const LISTING_START: u64 = 3;

/// Size of the first sorted portion: keys are sorted in portions, because a listing seldom reads
/// all.
const FIRST_PORTION: usize = 256;

/// One name of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListItem<'a> {
    pub name: &'a Name,
    pub ino: Ino,
    /// As in [`super::DirEntry::kind`].
    pub kind: Option<FileKind>,
    /// The key of this name: its position in the listing.
    pub key: u64,
    /// The cookie with which a listing continues after this entry: at least 3, top bit clear.
    pub next_cookie: u64,
}

/// An entry of a batch of blocks.
#[derive(Debug, Clone, Copy)]
struct Spot {
    key: u64,
    /// Index into the batch's blocks.
    block: u32,
    /// Byte offset in the block.
    at: u32,
}

/// Blocks whose entries are listed together, and their entries that were not listed yet.
struct Batch {
    hasher: DirHasher,
    cookie: u64,
    blocks: Vec<(Site, BlockRef)>,
    spots: Vec<Spot>,
}

impl Batch {
    fn new(hasher: DirHasher, cookie: u64) -> Batch {
        Batch { hasher, cookie, blocks: Vec::new(), spots: Vec::new() }
    }
}

/// A name's position in the listings of a directory with this hash function.
fn key(hasher: &DirHasher, name: &Name) -> u64 {
    key_of(hasher.hash_for_listing(name), name.len())
}

fn key_of(hash: NameHash, name_len: usize) -> u64 {
    // This distinguishes names of different length whose hashes were padded to the same words.
    let minor = hash.minor.wrapping_add(name_len as u32);
    let key = u64::from(hash.major >> 1) << 32 | u64::from(minor);
    key.max(LISTING_START)
}

/// The hash at which a listing from this cookie enters the index.
fn major_of(cookie: u64) -> u32 {
    if cookie <= LISTING_START { 0 } else { (cookie >> 32 << 1) as u32 }
}

impl Dir<'_> {
    /// The position of a name in this directory's listings, whether it exists or not.
    pub fn key(&self, blocks: &dyn DirBlocks, name: &Name) -> Result<u64> {
        Ok(key(&self.hasher_past_damage(blocks)?, name))
    }

    /// Without the root of its index, a directory has the volume's hash function.
    fn hasher_past_damage(&self, blocks: &dyn DirBlocks) -> Result<DirHasher> {
        match self.hasher(blocks) {
            Err(Error::Corrupt(_)) if self.indexed => Ok(DirHasher::default_of(self.sb)),
            hasher => hasher,
        }
    }

    /// Lists the names from `cookie` on until `each` returns false; the entry for which it returned
    /// false is not consumed. `.` and `..` are not listed.
    ///
    /// Damage hides no other names: the listing leaves out what cannot be read, and its end returns
    /// the error, as in ext4. `damage` is the first damage met; the caller keeps it for the
    /// directory's next listings, because a listing that continues behind a damaged leaf does not
    /// meet it again.
    pub fn list(
        &self,
        blocks: &dyn DirBlocks,
        cookie: u64,
        damage: &mut Option<Error>,
        each: &mut dyn FnMut(ListItem<'_>) -> bool,
    ) -> Result<()> {
        if cookie >> 63 != 0 {
            return Ok(());
        }
        let mut reached = cookie;
        if self.indexed && damage.is_none() {
            let listed = self.list_indexed(blocks, cookie, &mut |item| {
                let next = item.next_cookie;
                let goes_on = each(item);
                if goes_on {
                    reached = next;
                }
                goes_on
            });
            match listed {
                Err(Error::Corrupt(corruption)) => *damage = Some(Error::Corrupt(corruption)),
                result => return result,
            }
        }
        self.list_linear(blocks, reached, damage, each)
    }

    /// Lists by reading all blocks. The nodes of an index have no entries.
    fn list_linear(
        &self,
        blocks: &dyn DirBlocks,
        cookie: u64,
        damage: &mut Option<Error>,
        each: &mut dyn FnMut(ListItem<'_>) -> bool,
    ) -> Result<()> {
        let mut batch = Batch::new(self.hasher_past_damage(blocks)?, cookie);
        for at in 0..self.block_count(blocks)? {
            match self.gather_block(blocks, FileBlock(at), &mut batch) {
                Err(Error::Corrupt(corruption)) => _ = damage.get_or_insert(Error::Corrupt(corruption)),
                result => result?,
            }
        }
        if !self.emit(&mut batch, each)? {
            return Ok(());
        }
        damage.clone().map_or(Ok(()), Err)
    }

    /// Adds the entries of one block to the batch. With an error, those before the damage are
    /// added.
    fn gather_block(&self, blocks: &dyn DirBlocks, at: FileBlock, batch: &mut Batch) -> Result<()> {
        let (block, bytes) = self.read_entries(blocks, at)?;
        let site = Site::Block(block);
        let from = if at.0 == 0 { self.format.dots(&bytes, self.ino, site)?.next } else { 0 };
        self.gather(batch, bytes, from, site, 0..=u32::MAX)
    }

    fn list_indexed(
        &self,
        blocks: &dyn DirBlocks,
        cookie: u64,
        each: &mut dyn FnMut(ListItem<'_>) -> bool,
    ) -> Result<()> {
        let (_, mut path) = self.probe(blocks, |_| major_of(cookie))?;
        let mut batch = Batch::new(path.hasher, cookie);
        for _ in 0..blocks.count() {
            let next = path.next_hash();
            let last_hash = match next {
                None => u32::MAX,
                Some(next) if next & 1 != 0 => next & !1,
                Some(next) => next.saturating_sub(1),
            };
            let (block, bytes) = self.read_leaf(blocks, &path)?;
            let first_hash = path.hash() & !1;
            self.gather(&mut batch, bytes, 0, Site::Block(block), first_hash..=last_hash)?;
            // Names with one hash are listed together, and may continue in the next leaf.
            if next.is_none_or(|next| next & 1 == 0) && !self.emit(&mut batch, each)? {
                return Ok(());
            }
            let Some(next) = next else { return Ok(()) };
            if next & !1 < first_hash {
                return Err(self.out_of_order(path.last().block));
            }
            self.advance(blocks, &mut path)?;
        }
        Err(self.too_many_leaves())
    }

    /// Adds the entries of a block after byte offset `from` to the batch. All hashes must be in
    /// `range`. With an error, the entries that can be read are added.
    fn gather(
        &self,
        batch: &mut Batch,
        bytes: BlockRef,
        from: usize,
        site: Site,
        range: RangeInclusive<u32>,
    ) -> Result<()> {
        let block = batch.blocks.len() as u32;
        let mut result = Ok(());
        for item in self.format.entries(&bytes, from, site) {
            let (at, entry) = match item {
                Ok(item) => item,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            let name = entry.name;
            if name == b"." || name == b".." || name.iter().any(|&byte| byte == b'/' || byte == 0) {
                result = Err(Error::corrupt(site, "directory entry with an invalid name"));
                continue;
            }
            let key = key(&batch.hasher, name);
            if !range.contains(&((key >> 32 << 1) as u32)) {
                result = Err(Error::corrupt(site, "directory entry is in the wrong leaf of the hash index"));
                continue;
            }
            if key >= batch.cookie {
                batch.spots.push(Spot { key, block, at: at as u32 });
            }
        }
        batch.blocks.push((site, bytes));
        result
    }

    /// Passes the batch to `each` in order and empties it; false if `each` returned false.
    fn emit(&self, batch: &mut Batch, each: &mut dyn FnMut(ListItem<'_>) -> bool) -> Result<bool> {
        let mut rest = &mut batch.spots[..];
        let mut portion_len = FIRST_PORTION;
        while !rest.is_empty() {
            let portion;
            (portion, rest) = smallest(rest, portion_len);
            portion_len = portion_len.saturating_mul(2);
            for (i, spot) in portion.iter().enumerate() {
                let (site, bytes) = &batch.blocks[spot.block as usize];
                let (_, entry) = self
                    .format
                    .entries(bytes, spot.at as usize, *site)
                    .next()
                    .expect("the entry was read before")?;
                let is_twin = portion.get(i + 1).is_some_and(|next| next.key == spot.key);
                let item = ListItem {
                    name: entry.name,
                    ino: entry.ino,
                    kind: FileKind::from_dirent_type(entry.file_type),
                    key: spot.key,
                    next_cookie: if is_twin { spot.key } else { spot.key + 1 },
                };
                if !each(item) {
                    return Ok(false);
                }
            }
        }
        batch.spots.clear();
        batch.blocks.clear();
        Ok(true)
    }
}

/// Splits off the `len` spots with the smallest keys, in order, and all others with the last of
/// these keys.
fn smallest(spots: &mut [Spot], len: usize) -> (&mut [Spot], &mut [Spot]) {
    let mut end = spots.len();
    if len < end {
        spots.select_nth_unstable_by_key(len - 1, |spot| spot.key);
        let last = spots[len - 1].key;
        end = len;
        for at in len..spots.len() {
            if spots[at].key == last {
                spots.swap(at, end);
                end += 1;
            }
        }
    }
    let (portion, rest) = spots.split_at_mut(end);
    portion.sort_unstable_by_key(|spot| (spot.key, spot.block, spot.at));
    (portion, rest)
}

#[cfg(test)]
mod tests {
    use xact_layout::dirent::Packer;

    use super::super::tests::{DEFAULT, OWN, Sample};
    use super::*;

    #[test]
    fn keys_are_within_bounds() {
        let key = |major, minor, len| key_of(NameHash { major, minor }, len);
        assert_eq!(key(0, 0, 1), LISTING_START);
        assert_eq!(key(0, 0, 7), 7);
        assert_eq!(key(0, u32::MAX, 1), LISTING_START);
        assert_eq!(key(2, 5, 1), 1 << 32 | 6);
        assert_eq!(key(0xFFFF_FFFC, 0, 9), 0x7FFF_FFFE << 32 | 9);
        for major in [0, 2, 0x1234_5678, 0xFFFF_FFFC] {
            assert_eq!(major_of(key(major, 77, 1)), major);
            assert_eq!(major_of(key(major, u32::MAX, 255)), major);
        }
        assert_eq!((major_of(0), major_of(LISTING_START)), (0, 0));
    }

    #[test]
    fn portions_are_sorted_and_keep_one_key_together() {
        let spot = |key, at| Spot { key, block: 0, at };
        let mut spots: Vec<Spot> = (0..100).map(|i| spot(u64::from(i * 37 % 100 / 4), i)).collect();
        let mut rest = &mut spots[..];
        let mut keys = Vec::new();
        let mut lens = Vec::new();
        while !rest.is_empty() {
            let portion;
            (portion, rest) = smallest(rest, 10);
            assert!(keys.last().is_none_or(|&last| last < portion[0].key));
            keys.extend(portion.iter().map(|spot| spot.key));
            lens.push(portion.len());
        }
        assert_eq!(lens, [12; 8].into_iter().chain([4]).collect::<Vec<_>>());
        assert!(keys.is_sorted() && keys.len() == 100);
    }

    /// Names that share a key are listed with a break after each: no name is left out, and the
    /// cookie of the last one leads on.
    #[test]
    fn names_with_one_key_are_never_left_out() {
        let sample = Sample::new(DEFAULT, 1);
        let dir = sample.dir();
        let mut packer = Packer::new(&dir.format, &[]);
        let entry = |name| xact_layout::dirent::DirEntry { ino: OWN, file_type: 1, name };
        [&b"before"[..], b"twin", b"other", b"after"].map(entry).iter().for_each(|e| packer.push(e));
        let bytes = BlockRef::from(packer.finish());
        let offsets: Vec<u32> =
            dir.format.entries(&bytes, 0, Site::Inode(OWN)).map(|item| item.unwrap().0 as u32).collect();
        let listed = |limit: usize| {
            let mut batch = Batch::new(DirHasher::default_of(&sample.sb), 0);
            batch.blocks.push((Site::Inode(OWN), bytes.clone()));
            let keys = [70, 80, 80, 90];
            batch.spots =
                keys.into_iter().zip(&offsets).map(|(key, &at)| Spot { key, block: 0, at }).collect();
            let mut list = Vec::new();
            let go_on = dir.emit(&mut batch, &mut |item| {
                if list.len() == limit {
                    return false;
                }
                list.push((item.name.to_vec(), item.next_cookie));
                true
            });
            (list, go_on.unwrap())
        };
        let all = [
            (b"before".to_vec(), 71),
            (b"twin".to_vec(), 80),
            (b"other".to_vec(), 81),
            (b"after".to_vec(), 91),
        ];
        assert_eq!(listed(9), (all.to_vec(), true));
        assert_eq!(listed(2), (all[..2].to_vec(), false));
    }
}
