//! Every decoder of `xact-layout` on any bytes: no panic, and a structure that was read and written
//! again reads the same.
//!
//! The first bytes choose a superblock (by features), the decoder, and its arguments; the rest is
//! its input, filled up to a block with zeros.

use xact_layout::dirent::{DirFormat, Packer, entry_bytes};
use xact_layout::dirhash::{DirHasher, HashVersion};
use xact_layout::extent::{self, Expected, Node};
use xact_layout::feature::{incompat, ro_compat};
use xact_layout::generations::{
    LogChecks, MapNode, Pointer, PoolShape, ROOT_BYTES, Root, decode_snapshots, encode_snapshots, read_log,
};
use xact_layout::group::GroupDesc;
use xact_layout::inode::Inode;
use xact_layout::jbd2::{
    Checksums, CommitBlock, Header, JournalSuperblock, LogFormat, crc32_be, decode_revokes, decode_tags,
    encode_descriptor, encode_revokes, fast_commit_head, revokes_per_block, tags_per_block,
};
use xact_layout::mmp::MmpBlock;
use xact_layout::superblock::{SUPERBLOCK_BYTES, Superblock};
use xact_layout::{htree, orphan, posix_acl, xattr};
use xact_types::{BlockNr, FileBlock, GroupNr, Ino, Site};

use crate::rng::Rng;

const BLOCK: usize = 1024;
const HERE: Site = Site::Block(BlockNr(77));

pub fn run(data: &[u8]) {
    let head = data.len().min(6);
    let mut choices = Rng::given(&data[..head]);
    let sb = superblock(&mut choices);
    let which = choices.below(14);
    let bytes = &data[head..];
    let mut block = bytes[..bytes.len().min(BLOCK)].to_vec();
    block.resize(BLOCK, 0);
    match which {
        0 => superblocks(bytes),
        1 => groups(&sb, &block, &mut choices),
        2 => inodes(&sb, &block),
        3 => extents(&sb, &block, &mut choices),
        4 | 5 => directories(&sb, &mut block, &mut choices),
        6 => indexes(&sb, &block),
        7 => attributes(&sb, &block, bytes),
        8 => lists(bytes),
        9 => journal_blocks(&block, &mut choices),
        10 => journal_superblocks(&block),
        11 => small_ones(&sb, &block, bytes),
        12 => pools(bytes, &mut choices),
        _ => hashes(&sb, bytes),
    }
}

/// The superblock of a volume of 64 MiB with blocks of [`BLOCK`] bytes.
fn superblock(choices: &mut Rng) -> Superblock {
    let mut sb = Superblock::zeroed();
    sb.set_magic(0xEF53);
    sb.set_rev_level(1);
    sb.set_inode_size_raw(256);
    sb.set_first_ino(11);
    sb.set_first_data_block(1);
    sb.set_blocks_per_group(8192);
    sb.set_clusters_per_group(8192);
    sb.set_inodes_per_group(1024);
    sb.set_checksum_type(1);
    let features = choices.below(16);
    let bit = |n: u32, value: u32| if features & 1 << n == 0 { 0 } else { value };
    sb.set_feature_ro_compat(bit(0, ro_compat::METADATA_CSUM));
    let always = incompat::EXTENTS;
    let chosen = bit(1, incompat::FILETYPE) | bit(2, incompat::SIXTY_FOUR_BIT) | bit(3, incompat::LARGEDIR);
    sb.set_feature_incompat(always | chosen);
    sb.set_desc_size_raw(if features & 4 == 0 { 32 } else { 64 });
    sb.set_blocks_count(65536);
    sb.set_inodes_count(8 * 1024);
    sb
}

fn superblocks(bytes: &[u8]) {
    let mut raw = [0; SUPERBLOCK_BYTES];
    let len = bytes.len().min(raw.len());
    raw[..len].copy_from_slice(&bytes[..len]);
    // So that the decoder reads more than the magic number.
    raw[0x38..0x3A].copy_from_slice(&0xEF53u16.to_le_bytes());
    let Ok(mut sb) = Superblock::decode(&raw) else { return };
    let _ = sb.support();
    sb.seal();
    assert_eq!(Superblock::decode(sb.as_bytes()).expect("sealed and accepted before"), sb);
    let last = GroupNr(sb.group_count() - 1);
    for group in [GroupNr(0), GroupNr(last.0 / 2), last] {
        let (_, at) = sb.desc_place(group);
        assert!(at + usize::from(sb.desc_size()) <= sb.block_size() as usize);
        assert!(sb.group_of(sb.group_start(group)) == group);
        assert!(sb.blocks_in_group(group) <= sb.blocks_per_group());
        sb.base_meta_blocks(group);
    }
    assert_eq!(sb.inode_place(Ino(sb.inodes_count())).map(|(group, _)| group), Some(last));
    assert_eq!(sb.inode_place(Ino(sb.inodes_count().wrapping_add(1))), None);
}

fn groups(sb: &Superblock, block: &[u8], choices: &mut Rng) {
    let mut desc = GroupDesc::new(&block[..usize::from(sb.desc_size())]);
    let group = GroupNr(choices.below(8) as u32);
    let (free, table) = (desc.free_blocks(), desc.inode_table());
    desc.set_free_blocks(free);
    desc.set_inode_table(table);
    assert_eq!((desc.free_blocks(), desc.inode_table()), (free, table));
    desc.seal(sb, group);
    assert!(desc.checksum_matches(sb, group));
}

fn inodes(sb: &Superblock, block: &[u8]) {
    for size in [128, 256, BLOCK] {
        let mut inode = Inode::new(&block[..size]);
        let (atime, mtime, ctime) = (inode.atime(), inode.mtime(), inode.ctime());
        inode.set_atime(atime);
        inode.set_mtime(mtime);
        inode.set_ctime(ctime);
        assert_eq!((inode.atime(), inode.mtime(), inode.ctime()), (atime, mtime, ctime));
        let _ = (inode.crtime(), inode.project(), inode.sectors(sb), inode.size());
        if let Ok(entries) = xattr::entries_in_body(inode.xattr_area()) {
            entries.for_each(drop);
        }
        inode.seal(sb, Ino(12));
        assert!(inode.checksum_matches(sb, Ino(12)));
    }
}

fn extents(sb: &Superblock, block: &[u8], choices: &mut Rng) {
    let root: &[u8; 60] = block[..60].try_into().expect("60 bytes");
    if let Ok(node) = Node::root(root, sb, HERE) {
        look_at(&node, FileBlock(u32::MAX));
    }
    let mut unsealed = sb.clone();
    unsealed.set_feature_ro_compat(0);
    let first = FileBlock(u32::from_le_bytes(block[12..16].try_into().expect("4 bytes")));
    let expected = Expected { depth: choices.below(5) as u16, first, end: FileBlock(u32::MAX) };
    let Ok(node) = Node::in_block(block, &unsealed, 1, expected, HERE) else { return };
    look_at(&node, expected.end);
    let entries = node.raw_entries().to_vec();
    let mut written = vec![0; BLOCK];
    extent::write_block(&mut written, sb, 9, node.depth(), &entries);
    let again = Node::in_block(&written, sb, 9, expected, HERE).expect("was accepted before");
    assert_eq!(again.raw_entries(), entries);
}

fn look_at(node: &Node<'_>, end: FileBlock) {
    for i in 0..node.len() {
        if node.depth() == 0 {
            let extent = node.extent(i);
            assert_eq!(xact_layout::extent::Extent::decode(&extent.encode()), extent);
            assert!(extent.end() <= end);
        } else {
            node.index(i);
            node.expected_child(i, end);
        }
        assert!(node.count_up_to(node.key(i)) > i);
    }
}

fn directories(sb: &Superblock, block: &mut [u8], choices: &mut Rng) {
    let format = DirFormat::new(sb, Ino(2), 0);
    if choices.one_in(2) {
        format.seal(block);
    }
    let _ = format.verify(block, HERE);
    let _ = format.dots(block, Ino(2), HERE);
    let Ok(entries) = format.entries(block, 0, HERE).collect::<Result<Vec<_>, _>>() else { return };
    let names: Vec<Vec<u8>> = entries.iter().map(|(_, entry)| entry.name.to_vec()).collect();
    // Repacked, they are the same.
    let mut packer = Packer::new(&format, &[]);
    for (_, entry) in &entries {
        packer.push(entry);
    }
    let packed = packer.finish();
    let again: Vec<Vec<u8>> =
        format.entries(&packed, 0, HERE).map(|e| e.expect("packed by us").1.name.to_vec()).collect();
    assert_eq!(again, names);
    let new = b"a new name";
    let space = format.find_space(block, 0, entry_bytes(new.len()), HERE).expect("its entries are sound");
    if let xact_layout::dirent::DirentSpace::At(at) = space {
        let entry = xact_layout::dirent::DirEntry { ino: Ino(12), file_type: 1, name: new };
        format.insert(block, at, &entry);
        let found = format.find(block, 0, new, HERE).expect("sound").expect("just inserted");
        assert!(found.ino == Ino(12) || names.iter().any(|name| name == new));
        format.remove(block, &found);
        let left = format.entries(block, 0, HERE).filter_map(Result::ok).count();
        assert_eq!(left, names.len());
    }
}

fn indexes(sb: &Superblock, block: &[u8]) {
    let mut unsealed = sb.clone();
    unsealed.set_feature_ro_compat(0);
    let format = DirFormat::new(&unsealed, Ino(2), 0);
    for index in [
        htree::Index::root(&format, block, Ino(2), HERE).map(|(_, index)| index),
        htree::Index::node(&format, block, HERE),
    ]
    .into_iter()
    .flatten()
    {
        assert_eq!(index.branches(block).count(), index.count());
        for hash in [0, 1 << 16, u32::MAX] {
            assert!(index.find(block, hash) < index.count());
        }
    }
}

fn attributes(sb: &Superblock, block: &[u8], bytes: &[u8]) {
    let _ = xattr::split_name(bytes).map(|(index, rest)| xattr::full_name(index, rest));
    let mut unsealed = sb.clone();
    unsealed.set_feature_ro_compat(0);
    let Ok(entries) = xattr::entries_in_block(block, &unsealed, BlockNr(9)) else { return };
    let mut list = Vec::new();
    for entry in entries {
        let Ok(entry) = entry else { return };
        let xattr::Value::Here(value) = entry.value else { return };
        list.push(xattr::Attribute { index: entry.index, name: entry.name.to_vec(), value: value.to_vec() });
    }
    // Values that overlap on disk may not fit when they are written separately.
    if !xattr::fits_block(&list, BLOCK) {
        return;
    }
    let mut written = vec![0; BLOCK];
    xattr::write_block(&mut written, sb, BlockNr(9), 1, &mut list);
    let again: Vec<_> = xattr::entries_in_block(&written, sb, BlockNr(9))
        .expect("written by us")
        .map(|entry| entry.expect("written by us"))
        .map(|entry| (entry.index, entry.name.to_vec()))
        .collect();
    let names: Vec<_> = list.iter().map(|a| (a.index, a.name.clone())).collect();
    assert_eq!(again, names);
}

fn lists(bytes: &[u8]) {
    if let Some(wire) = posix_acl::disk_to_wire(bytes) {
        let disk = posix_acl::wire_to_disk(&wire).expect("a list of ours");
        assert_eq!(disk, bytes);
    }
    if let Some(disk) = posix_acl::wire_to_disk(bytes) {
        let wire = posix_acl::disk_to_wire(&disk).expect("a list of ours");
        assert_eq!(posix_acl::wire_to_disk(&wire), Some(disk));
    }
}

/// A format of log blocks.
fn log_format(choices: &mut Rng) -> LogFormat {
    let checksums = *choices.pick(&[Checksums::None, Checksums::V1, Checksums::V2, Checksums::V3]);
    LogFormat { block_size: BLOCK, checksums, wide: choices.one_in(2), seed: 0x1234, uuid: [7; 16] }
}

fn journal_blocks(block: &[u8], choices: &mut Rng) {
    let format = log_format(choices);
    let _ = (Header::decode(block), fast_commit_head(block), format.tail_is_valid(block));
    let commit = CommitBlock::decode(block);
    let encoded = commit.encode(&format);
    assert!(CommitBlock::is_valid(&format, &encoded));
    assert_eq!(CommitBlock::decode(&encoded).secs, commit.secs);
    let tags = decode_tags(&format, block);
    if (1..=tags_per_block(&format)).contains(&tags.len()) {
        let again = decode_tags(&format, &encode_descriptor(&format, 5, &tags));
        let blocks = |tags: &[xact_layout::jbd2::Tag]| tags.iter().map(|t| t.block).collect::<Vec<_>>();
        assert_eq!(blocks(&again), blocks(&tags));
    }
    if let Some(revokes) = decode_revokes(&format, block) {
        assert!(revokes.len() <= revokes_per_block(&format));
        assert_eq!(decode_revokes(&format, &encode_revokes(&format, 5, &revokes)), Some(revokes));
    }
    crc32_be(!0, block);
}

fn journal_superblocks(block: &[u8]) {
    let mut raw = block.to_vec();
    raw[..4].copy_from_slice(&xact_layout::jbd2::MAGIC.to_be_bytes());
    let Ok(sb) = JournalSuperblock::decode(&raw) else { return };
    assert!(sb.first < sb.maxlen && sb.log_end() <= sb.maxlen);
    let mut written = raw.clone();
    sb.encode_into(&mut written);
    assert_eq!(JournalSuperblock::decode(&written).expect("written by us"), sb);
}

fn small_ones(sb: &Superblock, block: &[u8], bytes: &[u8]) {
    let block: &[u8; BLOCK] = block.try_into().expect("a block");
    if let Ok(mmp) = MmpBlock::decode(block, sb, BlockNr(9)) {
        let sealed = mmp.sealed(sb);
        assert!(MmpBlock::decode(&sealed, sb, BlockNr(9)).is_ok());
        assert!(mmp.node_name().len() <= 64);
    }
    let mut orphans = block.to_vec();
    orphan::seal(&mut orphans, sb, 3, BlockNr(9));
    assert!(orphan::verify(&orphans, sb, 3, BlockNr(9)).is_ok());
    for index in 0..orphan::entries_per_block(BLOCK) {
        let found = orphan::entry(&orphans, index);
        orphan::set_entry(&mut orphans, index, found);
        assert_eq!(orphan::entry(&orphans, index), found);
    }
    let format = DirFormat::new(sb, Ino(2), 0);
    format.entries_of_area(&bytes[..bytes.len().min(200)], HERE).for_each(drop);
}

fn pools(bytes: &[u8], choices: &mut Rng) {
    let shape = PoolShape { block_size: 1024, volume_blocks: 8192, device_blocks: 12_000 };
    let mut raw = bytes[..bytes.len().min(ROOT_BYTES)].to_vec();
    raw.resize(ROOT_BYTES, 0);
    if let Ok(root) = Root::decode(&raw, &shape, false) {
        let again = Root::decode(&root.encode(), &shape, true).expect("encoded by us");
        assert_eq!(again, root);
    }
    let node = &raw[..BLOCK];
    let at = Pointer { pool_block: BlockNr(9000), birth: choices.below(1 << 50), sum: 0 };
    let level = choices.below(3) as u32;
    if let Ok(node) = MapNode::decode(node, at, level, &shape) {
        let again = MapNode::decode(&node.encode(BLOCK), at, level, &shape);
        assert_eq!(again.expect("encoded by us"), node);
    }
    if let Ok(records) = decode_snapshots(&raw, &shape) {
        let again = decode_snapshots(&encode_snapshots(&records, BLOCK), &shape).expect("encoded by us");
        assert_eq!(again, records);
    }
    // The bytes as the area of a log, without the checks that checksums would make.
    let root = Root {
        generation: 3,
        uuid: [1; 16],
        shape,
        map_levels: 2,
        map: None,
        used: 4,
        snapshots: None,
        has_moved_data: false,
        log: Some((shape.first_pool_block(), (ROOT_BYTES / BLOCK) as u32)),
        bitmaps: vec![(0, 0); shape.bitmap_blocks() as usize],
    };
    raw[..4].copy_from_slice(b"XGLG");
    let mut area = |block: BlockNr, buf: &mut [u8]| {
        let at = (block.0 - shape.first_pool_block().0) as usize * BLOCK;
        buf.copy_from_slice(&raw[at..at + buf.len()]);
        Ok(())
    };
    let checks = LogChecks { sums: false, positions: false };
    if let Ok(log) = read_log(&root, checks, &mut area) {
        let contents = log.contents(BLOCK, |_| Ok(vec![7; BLOCK])).expect("nothing is read that fails");
        assert!(contents.iter().all(|(block, contents)| {
            block.0 < shape.volume_blocks
                && contents.as_ref().is_none_or(|contents| contents.bytes.len() == BLOCK)
        }));
    }
}

fn hashes(sb: &Superblock, bytes: &[u8]) {
    let name = &bytes[..bytes.len().min(255)];
    for version in 0..8 {
        let Some(version) = HashVersion::from_disk(version) else { continue };
        let hasher = DirHasher::new(sb, version);
        assert_eq!(hasher.hash(name), hasher.hash(name));
        hasher.hash_for_listing(name);
    }
}
