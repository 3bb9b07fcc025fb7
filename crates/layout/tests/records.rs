//! Records of inodes, of the superblock, of directories, quotas and generations, at the byte
//! offsets that the kernel's structs and `docs/FORMAT.md` give them.

mod common;

use xact_layout::dirent::DirFormat;
use xact_layout::extent::{self, Extent};
use xact_layout::feature::{self, compat, incompat, ro_compat};
use xact_layout::generations::{Pointer, PoolShape, ROOT_BYTES, Root};
use xact_layout::inode::Inode;
use xact_layout::jbd2::{FastCommitHead, fast_commit_head};
use xact_layout::orphan;
use xact_layout::quota::{Info, LeafHeader, QuotaEntry, QuotaKind};
use xact_layout::superblock::{NotedError, Superblock};
use xact_types::{BlockNr, FileBlock, GroupNr, Ino, Run, Site, Timestamp};

fn superblock() -> Superblock {
    common::superblock(90)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn the_first_and_the_last_error_are_noted() {
    let mut sb = superblock();
    sb.set_state(1);
    assert_eq!((sb.last_error_text(), sb.last_error_block()), (&b""[..], 0));
    sb.note_error(&NotedError { time: 100, ino: 12, block: 0x1_0000_0002, what: "the first" });
    let long = "a phrase that is longer than its field has bytes";
    sb.note_error(&NotedError { time: 200, ino: 13, block: 0x3_0000_0004, what: long });
    let bytes = sb.as_bytes();
    assert_eq!((sb.state(), sb.error_count(), sb.first_error_time()), (3, 2, 100));
    // s_first_error_time, _ino, _block, _func, _line; then the same of the last one.
    assert_eq!([0x198, 0x19C, 0x1A0, 0x1A4, 0x1C8].map(|at| word(bytes, at)), [100, 12, 2, 1, 0]);
    assert_eq!(&bytes[0x1A8..0x1B2], b"the first\0");
    assert_eq!([0x1CC, 0x1D0, 0x1D4, 0x1D8, 0x1DC].map(|at| word(bytes, at)), [200, 13, 0, 4, 3]);
    assert_eq!(&bytes[0x1E0..0x200], [&long.as_bytes()[..31], b"\0"].concat());
    assert_eq!((bytes[0x27A], bytes[0x27B]), (5, 5));
    assert_eq!((sb.last_error_text(), sb.last_error_block()), (&long.as_bytes()[..31], 0x3_0000_0004));
    sb.set_error_count(u32::MAX);
    sb.note_error(&NotedError { time: 300, ino: 0, block: 0, what: "" });
    assert_eq!((sb.error_count(), sb.last_error_text()), (u32::MAX, &b""[..]));
    assert_eq!(sb.journal_uuid(), [0; 16]);
    let mut bytes = *sb.as_bytes();
    bytes[0xD0..0xE0].copy_from_slice(b"0123456789abcdef");
    assert_eq!(Superblock::decode(&bytes).unwrap().journal_uuid(), *b"0123456789abcdef");
}

#[test]
fn kinds_and_times_of_inodes() {
    for (mode, kinds) in [
        (0o040_755, [true, false, false]),
        (0o100_644, [false, true, false]),
        (0o120_777, [false, false, true]),
        (0o140_000, [false; 3]),
        (0o060_000, [false; 3]),
        (0o010_000, [false; 3]),
    ] {
        let mut inode = Inode::zeroed(256);
        inode.set_mode(mode);
        assert_eq!([inode.is_directory(), inode.is_regular(), inode.is_symlink()], kinds, "{mode:o}");
    }
    let mut inode = Inode::zeroed(256);
    inode.set_extra_isize(32);
    let time = |secs| Timestamp { secs, nanos: 7 };
    inode.set_atime(time(1));
    inode.set_ctime(time(2));
    inode.set_mtime(time(3));
    inode.set_crtime(time(4));
    assert_eq!([inode.atime(), inode.ctime(), inode.mtime()], [1, 2, 3].map(time));
    assert_eq!(inode.crtime(), Some(time(4)));
    assert_eq!([0x08, 0x0C, 0x10, 0x90, 0x84].map(|at| word(inode.as_bytes(), at)), [1, 2, 3, 4, 28]);
    let area: [u8; 60] = std::array::from_fn(|i| i as u8 + 1);
    inode.set_block_area(&area);
    assert_eq!((inode.block_area(), &inode.as_bytes()[0x28..0x64]), (&area, &area[..]));
    // The number of users of a value: where the times differ.
    let mut value = Inode::zeroed(256);
    value.set_atime(time(9));
    value.set_ctime(time(2));
    let mut bytes = value.as_bytes().to_vec();
    bytes[0x24] = 5;
    assert_eq!(Inode::new(&bytes).value_users(), Some((2 << 32) + 5));
    bytes[0x08] = 2;
    assert_eq!(Inode::new(&bytes).value_users(), None);
}

#[test]
fn entries_of_the_orphan_file() {
    assert_eq!([1024, 4096].map(orphan::entries_per_block), [254, 1022]);
    let mut block = vec![0; 1024];
    orphan::set_entry(&mut block, 3, Some(Ino(0x0102_0304)));
    assert_eq!(block[12..16], [4, 3, 2, 1]);
    assert_eq!([2, 3, 4].map(|at| orphan::entry(&block, at)), [None, Some(Ino(0x0102_0304)), None]);
    orphan::set_entry(&mut block, 3, None);
    assert!(block.iter().all(|&byte| byte == 0));
}

#[test]
fn records_of_quota_files() {
    let mut bytes = [0; 32];
    bytes[4] = 1;
    for (kind, magic) in [
        (QuotaKind::User, 0xd9c0_1f11u32),
        (QuotaKind::Group, 0xd9c0_1927),
        (QuotaKind::Project, 0xd9c0_3f14),
    ] {
        bytes[..4].copy_from_slice(&magic.to_le_bytes());
        for of in QuotaKind::ALL {
            assert_eq!(Info::decode(&bytes, of, Site::Superblock).is_ok(), of == kind);
        }
        let mut other = bytes;
        other[4] = 0;
        assert!(Info::decode(&other, kind, Site::Superblock).is_err());
    }
    bytes[..4].copy_from_slice(&0xd9c0_1f11u32.to_le_bytes());
    let mut info = Info::decode(&bytes, QuotaKind::User, Site::Superblock).unwrap();
    info.set_blocks(6);
    info.set_free_blk(7);
    info.set_free_entry(8);
    assert_eq!([20, 24, 28].map(|at| word(info.as_bytes(), at)), [6, 7, 8]);
    let header = LeafHeader { next_free: 1, previous_free: 2, entries: 3 };
    let mut leaf = [0; 16];
    header.encode(&mut leaf);
    assert_eq!(leaf, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(LeafHeader::decode(&leaf), header);
    let mut sb = superblock();
    sb.set_usr_quota_inum(3);
    sb.set_grp_quota_inum(4);
    sb.set_prj_quota_inum(50);
    assert_eq!(QuotaKind::ALL.map(|kind| kind.inode(&sb)), [3, 4, 50]);
    let mut entry = QuotaEntry::new(0);
    assert_eq!((entry.itime(), QuotaEntry::new(5).itime()), (1, 0));
    entry.set_itime(0);
    assert_eq!(entry.encode()[64], 1);
    entry.set_curspace(2);
    assert_eq!((entry.encode()[64], entry.encode()[48]), (0, 2));
}

#[test]
fn a_fast_commit_begins_with_its_head() {
    let head = [9, 0, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let found = FastCommitHead { features: 0x0403_0201, sequence: 0x0807_0605 };
    assert_eq!(fast_commit_head(&head), Some(found));
    assert_eq!(fast_commit_head(&head[..11]), None);
    for (at, byte) in [(0, 8), (1, 1), (2, 7)] {
        let mut other = head;
        other[at] = byte;
        assert_eq!(fast_commit_head(&other), None, "{at}");
    }
    let mut longer = head;
    longer[2] = 9;
    assert_eq!(fast_commit_head(&longer), Some(found));
}

#[test]
fn names_of_features() {
    let known = [(1, "one"), (4, "four")];
    assert_eq!(feature::names(0, &known), "");
    assert_eq!(feature::names(5, &known), "one, four");
    assert_eq!(feature::names(4, &known), "four");
    assert_eq!(feature::names(7, &known), "one, four, unknown feature bits 0x2");
    assert_eq!(feature::names(0x18, &known), "unknown feature bits 0x18");
}

#[test]
fn descriptors_of_many_groups() {
    let mut sb = superblock();
    assert_eq!((sb.descs_per_block(), sb.gdt_blocks(), sb.group_count()), (32, 3, 90));
    assert_eq!(sb.desc_place(GroupNr(33)), (BlockNr(3), 32));
    assert_eq!(sb.desc_place(GroupNr(89)), (BlockNr(4), 25 * 32));
    assert_eq!(sb.base_meta_blocks(GroupNr(3)), 4);
    sb.set_feature_incompat(incompat::META_BG);
    sb.set_first_meta_bg(1);
    assert_eq!(sb.desc_place(GroupNr(5)), (BlockNr(2), 5 * 32));
    assert_eq!(sb.desc_place(GroupNr(33)), (BlockNr(1 + 32 * 8192), 32));
    assert_eq!(sb.desc_place(GroupNr(65)), (BlockNr(1 + 64 * 8192), 32));
    assert_eq!(sb.base_meta_blocks(GroupNr(3)), 2);
    assert_eq!([32, 33, 34, 63].map(|group| sb.base_meta_blocks(GroupNr(group))), [1, 1, 0, 1]);
    sb.set_feature_compat(compat::SPARSE_SUPER2);
    assert_eq!([0, 1].map(|group| sb.has_backup(GroupNr(group))), [true, false]);
}

#[test]
fn extents_are_read_as_they_are_written() {
    for (start, len, unwritten, raw_len) in [
        (0x1234_5678_9ABC, 1, false, 1),
        (5, 32768, false, 32768),
        (6, 1, true, 32769),
        (7, 32767, true, 65535),
    ] {
        let extent = Extent { at: FileBlock(77), run: Run { start: BlockNr(start), len }, unwritten };
        let raw = extent.encode();
        assert_eq!(Extent::decode(&raw), extent);
        assert_eq!((word(&raw, 0), u16::from_le_bytes([raw[4], raw[5]])), (77, raw_len));
        assert_eq!(
            (word(&raw, 8), u16::from_le_bytes([raw[6], raw[7]])),
            (start as u32, (start >> 32) as u16)
        );
    }
    assert_eq!([1024, 4096].map(extent::block_capacity), [84, 340]);
    let root = extent::empty_root();
    assert_eq!((&root[..8], &root[8..]), (&[0x0A, 0xF3, 0, 0, 4, 0, 0, 0][..], &[0; 52][..]));
}

/// A folder of `.` and `..`, on volumes with and without types of entries.
#[test]
fn entries_have_types_where_the_volume_has_them() {
    let mut sb = superblock();
    for types in [false, true] {
        sb.set_feature_incompat(if types { incompat::FILETYPE } else { 0 });
        let format = DirFormat::new(&sb, Ino(12), 1);
        assert_eq!((format.has_types(), format.block_size(), format.seed()), (types, 1024, None));
        assert_eq!((format.entries_end(), format.index_depth_max()), (1024, 2));
        let block = format.first_block(Ino(12), Ino(2));
        let kind = 2 * u8::from(types);
        assert_eq!(block[..12], [12, 0, 0, 0, 12, 0, 1, kind, b'.', 0, 0, 0]);
        assert_eq!(block[12..24], [2, 0, 0, 0, 0xF4, 3, 2, kind, b'.', b'.', 0, 0]);
        let found: Vec<_> = format.entries(&block, 0, Site::Superblock).map(|e| e.unwrap().1).collect();
        assert_eq!(
            found.iter().map(|e| (e.ino, e.name)).collect::<Vec<_>>(),
            [(Ino(12), &b"."[..]), (Ino(2), &b".."[..])]
        );
        let dots = format.dots(&block, Ino(12), Site::Superblock).unwrap();
        assert_eq!((dots.parent, dots.parent_at, dots.next), (Ino(2), 12, 1024));
        assert!(format.dots(&block, Ino(13), Site::Superblock).is_err());
        // An area of an inode: as long as an entry, or shorter.
        let mut area = vec![3, 0, 0, 0, 12, 0, 1, 1, b'a', 0, 0, 0];
        let names = |area: &[u8]| -> Vec<Vec<u8>> {
            format.entries_of_area(area, Site::Superblock).map(|e| e.unwrap().name.to_vec()).collect()
        };
        assert_eq!(names(&area), [b"a"]);
        assert!(names(&area[..11]).is_empty() && names(&[]).is_empty());
        area[0] = 0;
        assert!(names(&area).is_empty());
    }
    sb.set_feature_incompat(incompat::LARGEDIR);
    assert_eq!(DirFormat::new(&sb, Ino(12), 1).index_depth_max(), 3);
    sb.set_feature_ro_compat(ro_compat::METADATA_CSUM);
    let format = DirFormat::new(&sb, Ino(12), 1);
    assert_eq!(format.entries_end(), 1012);
    let mut block = format.first_block(Ino(12), Ino(2));
    format.verify(&block, Site::Superblock).unwrap();
    for at in [0, 500, 1012, 1016, 1020] {
        block[at] ^= 1;
        assert!(format.verify(&block, Site::Superblock).is_err(), "{at}");
        block[at] ^= 1;
    }
}

#[test]
fn roots_of_generations_have_their_bytes_at_their_places() {
    let shape = PoolShape { block_size: 1024, volume_blocks: 16_384, device_blocks: 130_000 };
    let pointer = |block| Pointer { pool_block: BlockNr(block), birth: 0x0102_0304_0505, sum: 0xABCD };
    let bitmaps: Vec<(u32, usize)> =
        (0..shape.bitmap_blocks()).map(|i| (i as u32 + 100, (i % 3 == 1) as usize)).collect();
    assert!(bitmaps.len() > 9, "more bits than a byte has");
    let first = shape.first_pool_block().0;
    let root = Root {
        generation: 0x0102_0304_0506,
        uuid: *b"sixteen bytes id",
        shape,
        map_levels: 3,
        map: Some(pointer(first)),
        used: 55,
        snapshots: Some((pointer(129_990), 10)),
        has_moved_data: true,
        log: Some((BlockNr(129_000), 16)),
        bitmaps: bitmaps.clone(),
    };
    let bytes = root.encode();
    assert_eq!(bytes.len(), ROOT_BYTES);
    assert_eq!(Root::decode(&bytes, &shape, true).unwrap(), root);
    assert_eq!(&bytes[..8], b"XCXGEN2T");
    assert_eq!(&bytes[16..32], b"sixteen bytes id");
    assert_eq!(
        [32, 36, 40, 48, 56, 64, 88, 104, 108, 84, 112, 120].map(|at| word(&bytes, at)),
        [1024, 3, 16_384, 130_000, 55, first as u32, 129_990, 10, bitmaps.len() as u32, 1, 129_000, 16]
    );
    // The pointer to the map: block, birth (the high 16 bits first), sum.
    assert_eq!([68, 72, 76].map(|at| word(&bytes, at)), [0x0102_0000, 0x0304_0505, 0xABCD]);
    // Each sector ends with the generation; the second one begins with the sums of the bitmap.
    for sector in 0..8 {
        assert_eq!(bytes[sector * 512 + 504..][..8], 0x0102_0304_0506u64.to_le_bytes());
    }
    assert_eq!((word(&bytes, 512), word(&bytes, 516)), (100, 101));
    let bits = 512 + 4 * bitmaps.len();
    assert_eq!((bytes[bits], bytes[bits + 1] & 3), (0b1001_0010, 0b00));

    type Change = fn(&mut Root);
    let cases: [(&str, Change, bool); 17] = [
        ("no map", |root| root.map = None, true),
        ("a map before the pool", |root| root.map.as_mut().unwrap().pool_block.0 -= 1, false),
        ("a map in the last block", |root| root.map.as_mut().unwrap().pool_block.0 = 129_999, true),
        ("a map behind it", |root| root.map.as_mut().unwrap().pool_block.0 = 130_000, false),
        ("a map of its own age", |root| root.map.as_mut().unwrap().birth += 1, true),
        ("a younger map", |root| root.map.as_mut().unwrap().birth += 2, false),
        ("no snapshots", |root| root.snapshots = None, true),
        ("snapshots over the end", |root| root.snapshots.as_mut().unwrap().1 = 11, false),
        ("snapshots of no block", |root| root.snapshots.as_mut().unwrap().1 = 0, false),
        ("snapshots before the pool", |root| root.snapshots.as_mut().unwrap().0.pool_block.0 = 100, false),
        ("no log", |root| root.log = None, true),
        ("a log to the end", |root| root.log = Some((BlockNr(129_000), 1000)), true),
        ("a log over the end", |root| root.log = Some((BlockNr(129_000), 1001)), false),
        ("a log of no block", |root| root.log = Some((BlockNr(129_000), 0)), false),
        ("a log before the pool", |root| root.log = Some((BlockNr(7), 3)), false),
        ("a bitmap too few", |root| root.bitmaps.truncate(root.bitmaps.len() - 1), false),
        ("a pool without blocks", |root| root.shape.device_blocks = root.shape.volume_blocks, false),
    ];
    for (what, change, sound) in cases {
        let mut other = root.clone();
        change(&mut other);
        let decoded = Root::decode(&other.encode(), &shape, true);
        assert_eq!(decoded.is_ok(), sound, "{what}");
        if sound {
            assert_eq!(decoded.unwrap(), other, "{what}");
        }
    }
}

#[test]
fn bounds_of_extent_nodes() {
    let mut sb = superblock();
    sb.set_feature_incompat(incompat::EXTENTS);
    let leaf = |at: u32, start: u64, len| {
        Extent { at: FileBlock(at), run: Run { start: BlockNr(start), len }, unwritten: false }.encode()
    };
    let mut area = extent::empty_root();
    let read = |area: &[u8; 60]| {
        extent::Node::root(area, &sb, Site::Superblock)
            .map(|node| (node.len(), node.depth(), node.fills_area()))
    };
    assert_eq!(read(&area).unwrap(), (0, 0, true));
    extent::write_root(&mut area, 0, &[leaf(0, 100, 5), leaf(5, 300, 2), leaf(9, 200, 1), leaf(10, 400, 1)]);
    assert_eq!(read(&area).unwrap(), (4, 0, true));
    let node = extent::Node::root(&area, &sb, Site::Superblock).unwrap();
    assert_eq!([4, 5, 9, 0, 99].map(|at| node.count_up_to(FileBlock(at))), [1, 2, 3, 1, 4]);
    assert_eq!((node.extent(1).at, node.is_empty()), (FileBlock(5), false));
    type Change = fn(&mut [u8; 60]);
    let refused: [(&str, Change); 7] = [
        ("no magic number", |area| area[0] = 0),
        ("no place for entries", |area| area[4] = 0),
        ("more places than the area has", |area| area[4] = 5),
        ("more entries than places", |area| area[4] = 3),
        ("an index without entries", |area| (area[2], area[6]) = (0, 1)),
        ("extents that overlap", |area| area[24] = 4),
        ("a block behind the last", |area| area[12 + 11] = 1),
    ];
    for (what, change) in refused {
        let mut other = area;
        change(&mut other);
        assert!(read(&other).is_err(), "{what}");
    }
    // Fewer places are valid, but unusual.
    extent::write_root(&mut area, 0, &[leaf(0, 100, 5)]);
    for (places, fills) in [(4, true), (2, true), (1, false)] {
        area[4] = places;
        assert_eq!(read(&area).unwrap(), (1, 0, fills));
    }
    // The children of a node of indexes.
    let index = |at: u32, block: u32| {
        let mut raw = [0; 12];
        raw[..4].copy_from_slice(&at.to_le_bytes());
        raw[4..8].copy_from_slice(&block.to_le_bytes());
        raw
    };
    extent::write_root(&mut area, 2, &[index(3, 100), index(40, 101)]);
    let node = extent::Node::root(&area, &sb, Site::Superblock).unwrap();
    assert_eq!(node.depth(), 2);
    for (at, first, end) in [(0, 3, 40), (1, 40, 1000)] {
        let expected = node.expected_child(at, FileBlock(1000));
        assert_eq!((expected.depth, expected.first, expected.end), (1, FileBlock(first), FileBlock(end)));
    }
}

#[test]
fn copies_in_a_log_match_their_tags() {
    use xact_layout::jbd2::{Checksums, LogFormat, Tag, TagFlags};

    let mut format =
        LogFormat { block_size: 1024, checksums: Checksums::V3, wide: false, seed: 5, uuid: [0; 16] };
    let sum = format.copy_checksum(7, b"a copy");
    assert!(sum > 0xFFFF);
    let tag = |checksum| Tag { block: 1, flags: TagFlags(0), checksum };
    let is_valid = |format: &LogFormat, checksum| format.copy_is_valid(&tag(checksum), 7, b"a copy");
    assert!(is_valid(&format, sum) && !is_valid(&format, sum & 0xFFFF) && !is_valid(&format, sum ^ 1));
    assert!(!format.copy_is_valid(&tag(sum), 8, b"a copy"));
    format.checksums = Checksums::V2;
    assert!(
        is_valid(&format, sum & 0xFFFF) && !is_valid(&format, sum) && !is_valid(&format, sum & 0xFFFF ^ 1)
    );
    for checksums in [Checksums::V1, Checksums::None] {
        format.checksums = checksums;
        assert!(is_valid(&format, 0) && is_valid(&format, sum));
    }
}

#[test]
fn names_are_hashed_as_the_flags_say() {
    use xact_layout::dirhash::{DirHasher, HashVersion};

    let mut sb = superblock();
    sb.set_hash_seed([1, 2, 3, 4]);
    let hash = |sb: &Superblock| DirHasher::new(sb, HashVersion::HalfMd4).hash(b"caf\xE9").major;
    let of =
        |unsigned| DirHasher::from_parts(HashVersion::HalfMd4, unsigned, [1, 2, 3, 4]).hash(b"caf\xE9").major;
    assert_ne!(of(true), of(false));
    for (flags, unsigned) in [(0, true), (1, false), (2, true), (3, true), (5, false), (4, true)] {
        sb.set_flags(flags);
        assert_eq!(hash(&sb), of(unsigned), "{flags}");
    }
    for (version, found) in [(0, Some(HashVersion::Legacy)), (1, Some(HashVersion::HalfMd4)), (3, None)] {
        assert_eq!(HashVersion::from_disk(version), found);
        sb.set_def_hash_version(version);
        let of_volume = DirHasher::default_of(&sb).version();
        assert_eq!(of_volume, found.unwrap_or(HashVersion::HalfMd4));
    }
}

#[test]
fn blocks_of_the_journal_begin_with_its_magic() {
    use xact_layout::jbd2::{BlockType, Header, escape, needs_escape, unescape};

    let mut block = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2, 1, 2, 3, 4];
    let header = Header { block_type: BlockType::Commit, sequence: 0x0102_0304 };
    assert_eq!(Header::decode(&block), Some(header));
    assert_eq!(Header::decode(&block[..11]), None);
    assert!(needs_escape(&block));
    escape(&mut block);
    assert_eq!(block[..5], [0; 5]);
    assert!(!needs_escape(&block) && Header::decode(&block).is_none());
    unescape(&mut block);
    assert_eq!(Header::decode(&block), Some(header));
}

#[test]
fn bounds_of_blocks_of_patches() {
    use xact_layout::jbd2::{Checksums, LogFormat, PatchWriter, decode_patches};

    for (checksums, tail) in [(Checksums::None, 0), (Checksums::V3, 4)] {
        let format = LogFormat { block_size: 1024, checksums, wide: false, seed: 5, uuid: [0; 16] };
        let mut writer = PatchWriter::new(&format, 1);
        // Two records fill the block up to its tail.
        writer.push(7, false, &[1; 1024], 0..480);
        writer.push(9, true, &[2; 1024], 20..20 + 496 - tail);
        let blocks = writer.finish();
        assert_eq!(blocks.len(), 1, "{checksums:?}");
        let patches = decode_patches(&format, &blocks[0]).unwrap();
        let read: Vec<_> = patches.iter().map(|p| (p.block, p.zeroed, p.at, p.bytes.clone())).collect();
        assert_eq!(read, [(7, false, 0, 32..512), (9, true, 20, 528..1024 - tail)]);
        let mut writer = PatchWriter::new(&format, 1);
        writer.push(7, false, &[1; 1024], 0..480);
        writer.push(9, true, &[2; 1024], 20..20 + 497 - tail);
        assert_eq!(writer.finish().len(), 2);
        let with = |at: usize, bytes: [u8; 2]| {
            let mut other = blocks[0].clone();
            other[at..at + 2].copy_from_slice(&bytes);
            decode_patches(&format, &other).map(|patches| patches.len())
        };
        let bytes = |number: usize| (number as u16).to_be_bytes();
        assert_eq!([15, 16, 1025 - tail].map(|used| with(14, bytes(used))), [None, Some(0), None]);
        // A record that reaches over the bytes in use or over its block, or is unknown.
        assert_eq!(with(14, bytes(511)), None);
        assert_eq!(with(14, bytes(512)), Some(1));
        assert_eq!((with(24, bytes(544)), with(24, bytes(545))), (Some(2), None));
        assert_eq!(with(30, bytes(2)), None);
    }
}

#[test]
fn records_of_modes_are_of_their_version() {
    use xact_layout::checksum::crc32c;
    use xact_layout::mode_record::ModeRecord;

    let mut sb = superblock();
    sb.set_mode_record([1; 8]);
    for (at, is_ours) in [(0x3E0, false), (0x3E4, false), (0x3E5, true), (0x3F8, false)] {
        let mut bytes = *sb.as_bytes();
        bytes[at] ^= 2;
        if at < 0x3F8 {
            let sum = crc32c(!0, &bytes[0x3E0..0x3F8]);
            bytes[0x3F8..0x3FC].copy_from_slice(&sum.to_le_bytes());
        }
        let record = Superblock::decode(&bytes).unwrap().mode_record();
        assert_eq!(matches!(record, ModeRecord::Values(_)), is_ours, "{at:#x}");
        assert_eq!(record == ModeRecord::Foreign, !is_ours, "{at:#x}");
    }
}

#[test]
fn the_largest_pool_of_generations() {
    for (blocks, fits) in [(512, true), (513, false)] {
        let shape = PoolShape { block_size: 1024, volume_blocks: 64, device_blocks: 64 + blocks * 8192 };
        assert_eq!(shape.bitmap_blocks(), blocks);
        let root = Root {
            generation: 1,
            uuid: [1; 16],
            shape,
            map_levels: 1,
            map: None,
            used: 0,
            snapshots: None,
            has_moved_data: false,
            log: None,
            bitmaps: vec![(7, 1); blocks as usize],
        };
        assert_eq!(Root::decode(&root.encode(), &shape, true).is_ok(), fits);
    }
    assert!(Pointer::ZEROS.is_zeros() && !Pointer { pool_block: BlockNr(2), ..Pointer::ZEROS }.is_zeros());
    assert!(!Pointer { sum: 1, ..Pointer::ZEROS }.is_zeros());
    assert!(!Pointer { birth: 1, ..Pointer::ZEROS }.is_zeros());
}

#[test]
fn commits_of_version_1_match_their_transaction() {
    use xact_layout::jbd2::{CHECKSUM_V1_CRC32, CommitBlock};

    let commit =
        |checksum_kind, checksum| CommitBlock { sequence: 1, checksum_kind, checksum, secs: 1, nanos: 1 };
    for (kind, checksum, matches) in [
        ((0, 0), 0, true),
        ((0, 0), 5, false),
        (CHECKSUM_V1_CRC32, 5, true),
        (CHECKSUM_V1_CRC32, 0, false),
        (CHECKSUM_V1_CRC32, 6, false),
        ((2, 4), 5, false),
    ] {
        assert_eq!(commit(kind, checksum).matches_transaction(5), matches, "{kind:?} {checksum}");
    }
}
