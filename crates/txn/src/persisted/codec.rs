//! The encoding of a persisted transaction: the head of its file (`docs/FORMAT.md`).
//!
//! ```text
//!   0   "XACTKEPT"    version u32    block size u32    length of the body u64
//!       checksum of the body u32    checksum of the 28 bytes before u32
//!   32  body
//!       zeros up to a multiple of the block size, then the blocks of contents
//! ```
//! Numbers are little-endian, checksums are crc32c as in ext4. A list is its length and its
//! elements, an optional value a byte (0 or 1) and the value. Derived values (link counts, `..`)
//! are not stored. Decoders accept any bytes, and return a value or an error.

use std::collections::{BTreeMap, BTreeSet};

use xact_fs::{Attr, AttrChange, AttrSet, Entry, FileKind};
use xact_layout::checksum::crc32c;
use xact_types::{FileBlock, Ino, Timestamp};

use crate::overlay::{Names, Node, Overlay};
use crate::ranges::Ranges;
use crate::validation::offline_changes::OfflineChanges;
use crate::validation::paths::Paths;
use crate::validation::read_set::ReadSet;

use super::info::PersistedInfo;

const MAGIC: &[u8; 8] = b"XACTKEPT";
const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 32;
/// Maximum length of the body; a million new files need about half of it.
pub(super) const BODY_MAX: u64 = 1 << 30;
/// Maximum number of links that one inode may gain, limited by its bits.
const NAMES_OF_ONE_MAX: u32 = 65_535;

/// The reason why bytes are not a persisted transaction.
pub(super) type Bad = &'static str;

const ENDS_EARLY: Bad = "a persisted transaction ends early";
const NO_VALUE: Bad = "a persisted transaction has an impossible value";

/// The reason why a transaction can never commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Doom {
    /// A conflict on contents, at this path.
    Conflict {
        path: Vec<u8>,
        conflicting_tx: Option<u64>,
    },
    TooOld,
}

/// Options and states of a persisted transaction, one bit each of a byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Flags {
    pub mounted: bool,
    /// It finds conflicts with open transactions at its changes.
    pub eager: bool,
    /// A call failed with a conflict after its first change.
    pub half_done: bool,
}

/// A persisted transaction without file contents, with the inode numbers that it had.
#[derive(Debug, Default)]
pub(super) struct Body {
    pub id: u64,
    pub owner: u32,
    pub serializable: bool,
    pub flags: Flags,
    pub info: PersistedInfo,
    pub doom: Option<Doom>,
    /// The overlay without file contents, which are listed in `contents`.
    pub overlay: Overlay,
    pub reads: ReadSet,
    /// Values of the items of [`super::fingerprint`] in the base.
    pub fingerprint: Vec<u64>,
    /// Blocks of contents in the order of the file, each with its checksum.
    pub contents: Vec<((Ino, FileBlock), u32)>,
}

/// Encodes the file's header.
pub(super) fn header(block_size: u32, body: &[u8]) -> [u8; HEADER_BYTES] {
    let mut out = Vec::with_capacity(HEADER_BYTES);
    out.extend(MAGIC);
    VERSION.put(&mut out);
    block_size.put(&mut out);
    (body.len() as u64).put(&mut out);
    crc32c(!0, body).put(&mut out);
    crc32c(!0, &out).put(&mut out);
    out.try_into().expect("the fields add up")
}

/// Decodes the header: length and checksum of the body.
pub(super) fn parse_header(bytes: &[u8], block_size: u32) -> Result<(u64, u32), Bad> {
    let mut from = Decoder(bytes);
    if bytes.len() < HEADER_BYTES || from.take(8)? != MAGIC {
        return Err("a persisted transaction has an invalid header");
    }
    let (version, size, len, sum) =
        (u32::get(&mut from)?, u32::get(&mut from)?, u64::get(&mut from)?, u32::get(&mut from)?);
    if u32::get(&mut from)? != crc32c(!0, &bytes[..HEADER_BYTES - 4]) {
        return Err("the checksum of a persisted transaction's first bytes does not match");
    }
    if version != VERSION {
        return Err("a persisted transaction has a version that this xact does not know");
    }
    if size != block_size || len > BODY_MAX {
        return Err(NO_VALUE);
    }
    Ok((len, sum))
}

pub(super) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Bad> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(ENDS_EARLY)?;
        self.0 = rest;
        Ok(taken)
    }
}

pub(super) trait Code: Sized {
    fn put(&self, out: &mut Vec<u8>);
    /// Decodes a value from at least one byte, so that a short list cannot claim a large count.
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad>;
}

macro_rules! number {
    ($($kind:ty)*) => {$(
        impl Code for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
            fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
                let bytes = from.take(size_of::<Self>())?;
                Ok(Self::from_le_bytes(bytes.try_into().expect("the requested number of bytes")))
            }
        }
    )*};
}
number!(u8 u16 u32 u64 i64);

impl Code for bool {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(*self).put(out);
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(NO_VALUE),
        }
    }
}

impl<T: Code> Code for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        if bool::get(from)? { T::get(from).map(Some) } else { Ok(None) }
    }
}

impl<A: Code, B: Code> Code for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

fn put_list<'a, T: Code + 'a>(list: impl ExactSizeIterator<Item = &'a T>, out: &mut Vec<u8>) {
    (list.len() as u64).put(out);
    list.for_each(|value| value.put(out));
}

fn get_list<T: Code>(from: &mut Decoder<'_>, mut each: impl FnMut(T)) -> Result<(), Bad> {
    for _ in 0..u64::get(from)? {
        each(T::get(from)?);
    }
    Ok(())
}

impl<T: Code> Code for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self.iter(), out);
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let mut list = Vec::new();
        get_list(from, |value| list.push(value))?;
        Ok(list)
    }
}

impl<T: Code + Ord> Code for BTreeSet<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self.iter(), out);
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let mut set = BTreeSet::new();
        get_list(from, |value| _ = set.insert(value))?;
        Ok(set)
    }
}

impl<K: Code + Ord, V: Code> Code for BTreeMap<K, V> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let mut map = BTreeMap::new();
        get_list::<(K, V)>(from, |(key, value)| _ = map.insert(key, value))?;
        Ok(map)
    }
}

impl Code for Ino {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let number = u32::get(from)?;
        if number == 0 { Err(NO_VALUE) } else { Ok(Ino(number)) }
    }
}

impl Code for FileBlock {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        u32::get(from).map(FileBlock)
    }
}

impl Code for FileKind {
    fn put(&self, out: &mut Vec<u8>) {
        self.dirent_type().put(out);
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        FileKind::from_dirent_type(u8::get(from)?).ok_or(NO_VALUE)
    }
}

impl Code for Flags {
    fn put(&self, out: &mut Vec<u8>) {
        let Flags { mounted, eager, half_done } = *self;
        (u8::from(mounted) | u8::from(eager) << 1 | u8::from(half_done) << 2).put(out);
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let bits = u8::get(from)?;
        // A version that does not know a bit refuses the transaction.
        if bits > 7 {
            return Err(NO_VALUE);
        }
        Ok(Flags { mounted: bits & 1 != 0, eager: bits & 2 != 0, half_done: bits & 4 != 0 })
    }
}

impl Code for AttrSet {
    fn put(&self, out: &mut Vec<u8>) {
        self.bits().put(out);
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        u8::get(from).map(AttrSet::from_bits)
    }
}

impl Code for Ranges {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().map(|range| (range.start, range.end)).collect::<Vec<_>>().put(out);
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let mut ranges = Ranges::default();
        get_list::<(u64, u64)>(from, |(start, end)| ranges.insert(start..end))?;
        Ok(ranges)
    }
}

impl Code for Paths {
    fn put(&self, out: &mut Vec<u8>) {
        let all: BTreeMap<Ino, (Ino, Vec<u8>)> =
            self.iter().map(|(ino, dir, name)| (ino, (dir, name.to_vec()))).collect();
        all.put(out);
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let mut paths = Paths::default();
        get_list::<(Ino, (Ino, Vec<u8>))>(from, |(ino, (dir, name))| paths.met(dir, &name, ino))?;
        Ok(paths)
    }
}

macro_rules! fields {
    ($kind:ty: $($name:ident)* $(, and $($rest:tt)*)?) => {
        impl Code for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$name.put(out);)*
            }
            fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
                $(let $name = Code::get(from)?;)*
                Ok(Self { $($name,)* $($($rest)*)? })
            }
        }
    };
}
fields!(Timestamp: secs nanos);
fields!(Entry: ino kind);
fields!(Attr: ino kind perm uid gid project nlink size sectors atime mtime ctime crtime rdev flags generation);
fields!(AttrChange: perm uid gid project atime mtime ctime flags);
fields!(OfflineChanges: gone names listings contents xattrs xattr_lists);
fields!(ReadSet: attrs min_sizes blocks names listings emptied parents xattrs xattr_lists paths offline,
        and ..ReadSet::default());
fields!(PersistedInfo: gid label begun deadline);

impl Code for Doom {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Doom::TooOld => None,
            Doom::Conflict { path, conflicting_tx } => Some((path.clone(), *conflicting_tx)),
        }
        .put(out);
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let conflict: Option<(Vec<u8>, Option<u64>)> = Code::get(from)?;
        Ok(conflict.map_or(Doom::TooOld, |(path, conflicting_tx)| Doom::Conflict { path, conflicting_tx }))
    }
}

type NamesInOrder = Vec<(Vec<u8>, (Option<Entry>, Option<Entry>))>;

impl Code for Node {
    fn put(&self, out: &mut Vec<u8>) {
        self.born.put(out);
        self.origin.put(out);
        self.changed.put(out);
        let names: NamesInOrder =
            self.names.in_order().map(|(name, change)| (name.clone(), (change.now, change.base))).collect();
        names.put(out);
        self.target.put(out);
        self.xattrs.put(out);
        self.file.size.put(out);
        self.file.base_end.put(out);
        self.file.reserved.put(out);
        let holes = self.file.blocks.iter().filter(|(_, block)| block.is_none());
        holes.map(|(at, _)| *at).collect::<Vec<_>>().put(out);
    }

    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let born = bool::get(from)?;
        let mut node = Node::new(Attr::get(from)?, born);
        node.changed = Code::get(from)?;
        let kind = node.origin.kind;
        let mut names = Names::default();
        let mut usual = true;
        get_list::<(Vec<u8>, (Option<Entry>, Option<Entry>))>(from, |(name, (now, base))| {
            usual &= xact_fs::api::check_name(&name).is_ok() && !(born && base.is_some());
            names.set(&name, now, base);
        })?;
        node.names = names;
        node.target = Code::get(from)?;
        node.xattrs = Code::get(from)?;
        node.file.size = Code::get(from)?;
        node.file.base_end = Code::get(from)?;
        node.file.reserved = Code::get(from)?;
        let holes: Vec<FileBlock> = Code::get(from)?;
        usual &= kind == FileKind::Directory || node.names.is_empty();
        usual &= kind == FileKind::Regular
            || node.file.base_end.is_none() && node.file.reserved.is_empty() && holes.is_empty();
        usual &= node.target.is_none() || born && kind == FileKind::Symlink;
        node.file.blocks.insert_all(holes.into_iter().map(|at| (at, None)));
        if usual { Ok(node) } else { Err(NO_VALUE) }
    }
}

impl Code for Overlay {
    /// Leaves out inodes that will not be reachable.
    fn put(&self, out: &mut Vec<u8>) {
        let stored: Vec<_> = self.nodes.iter().filter(|(_, node)| is_stored(node)).collect();
        (stored.len() as u64).put(out);
        for (ino, node) in stored {
            ino.put(out);
            node.put(out);
        }
    }
    fn get(from: &mut Decoder<'_>) -> Result<Self, Bad> {
        let mut overlay = Overlay { nodes: Code::get(from)?, ..Overlay::default() };
        check_names(&overlay)?;
        overlay.derive_links();
        Ok(overlay)
    }
}

/// Whether a node is stored.
pub(super) fn is_stored(node: &Node) -> bool {
    !node.born || node.nlink(0, u32::MAX) > 0
}

/// Checks that each inode whose link count changes by its names has a node of the right kind.
fn check_names(overlay: &Overlay) -> Result<(), Bad> {
    let mut links: BTreeMap<Ino, (i64, FileKind)> = BTreeMap::new();
    for (ino, node) in &overlay.nodes {
        if node.origin.ino != *ino {
            return Err(NO_VALUE);
        }
        for (_, change) in node.names.iter().filter(|(_, change)| change.now != change.base) {
            for (entry, by) in [(change.now, 1), (change.base, -1)] {
                let Some(entry) = entry else { continue };
                let (sum, kind) = links.entry(entry.ino).or_insert((0, entry.kind));
                *sum += by;
                let born = overlay.nodes.get(&entry.ino).is_some_and(|node| node.born);
                if *kind != entry.kind || born && by < 0 {
                    return Err(NO_VALUE);
                }
            }
        }
    }
    for (ino, (sum, kind)) in links {
        let node = overlay.nodes.get(&ino);
        let fits = node.map_or(sum == 0, |node| node.origin.kind == kind);
        let folder_twice = kind == FileKind::Directory && sum > 1;
        if !fits || folder_twice || sum.unsigned_abs() > NAMES_OF_ONE_MAX.into() {
            return Err(NO_VALUE);
        }
    }
    Ok(())
}

fields!(Body: id owner serializable flags info doom overlay reads fingerprint contents);

impl Body {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        // Absent in most, and in those of earlier versions.
        if !self.reads.dropped.is_empty() {
            self.reads.dropped.put(&mut out);
        }
        out
    }

    /// Decodes a body from any bytes.
    pub fn decode(bytes: &[u8]) -> Result<Body, Bad> {
        let mut from = Decoder(bytes);
        let mut body = Body::get(&mut from)?;
        if !from.0.is_empty() {
            body.reads.dropped = Code::get(&mut from)?;
            // An empty set is not stored.
            if body.reads.dropped.is_empty() {
                return Err(NO_VALUE);
            }
        }
        let there = |ino: &Ino| body.overlay.nodes.get(ino);
        let fits = |(ino, _): &(Ino, FileBlock)| {
            there(ino).is_some_and(|node| node.origin.kind == FileKind::Regular)
        };
        if !from.0.is_empty() || !body.contents.iter().all(|(at, _)| fits(at)) {
            return Err(NO_VALUE);
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem_fs::MemFs;
    use crate::tests::ops::{Op, Rng, run};
    use crate::{Transaction, TxOptions};

    fn body(rng: &mut Rng) -> Body {
        let base = MemFs::new(1024);
        for _ in 0..40 {
            run(&*base, &Op::random(rng));
        }
        let tx = Transaction::begin(&base, TxOptions::default());
        for _ in 0..60 {
            run(&tx, &Op::random(rng));
        }
        let doom = Doom::Conflict { path: b"/a".to_vec(), conflicting_tx: Some(3) };
        Body {
            id: 9,
            flags: Flags { mounted: true, eager: rng.below(2) == 0, half_done: rng.below(2) == 0 },
            overlay: tx.with_overlay(Overlay::clone),
            reads: tx.reads.lock().clone(),
            doom: (rng.below(2) == 0).then_some(doom),
            fingerprint: vec![1, 2, 3],
            ..Body::default()
        }
    }

    #[test]
    fn bodies_come_back_and_any_bytes_are_taken_or_refused() {
        let (mut taken, mut refused) = (0, 0);
        for seed in 0..100 {
            let mut rng = Rng(140_000 + seed);
            let bytes = body(&mut rng).encode();
            let again = Body::decode(&bytes).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert_eq!(again.encode(), bytes, "seed {seed}");
            for _ in 0..300 {
                let mut wrong = bytes.clone();
                for _ in 0..1 + rng.below(3) {
                    let at = rng.below(wrong.len() as u64) as usize;
                    wrong[at] = rng.below(256) as u8;
                }
                wrong.truncate(wrong.len() - if rng.below(4) == 0 { rng.below(50) as usize } else { 0 });
                match Body::decode(&wrong) {
                    Ok(body) => {
                        body.encode();
                        taken += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(taken > 1000 && refused > 1000, "{taken} taken, {refused} refused");
    }

    #[test]
    fn heads_are_of_this_volume_and_version() {
        let head = header(1024, b"body");
        assert_eq!(parse_header(&head, 1024), Ok((4, crc32c(!0, b"body"))));
        assert!(parse_header(&head, 4096).is_err());
        for at in 0..head.len() {
            let mut wrong = head;
            wrong[at] ^= 1;
            assert!(parse_header(&wrong, 1024).is_err(), "at {at}");
        }
        assert!(parse_header(&head[..20], 1024).is_err());
    }
}
