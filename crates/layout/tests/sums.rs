//! Checksums and hashes of each structure against the polynomial, computed bit by bit from the
//! bytes that the kernel's sources name; and limits, to the last value on either side.

mod common;

use xact_layout::feature::{compat, incompat, ro_compat};
use xact_layout::generations::{Pointer, Target};
use xact_layout::group::{GroupDesc, bitmap_checksum, bitmap_csum_matches};
use xact_layout::jbd2::{self, Checksums, Features, JournalSuperblock};
use xact_layout::mmp::MmpBlock;
use xact_layout::mode_record::ModeRecord;
use xact_layout::superblock::{Superblock, Support};
use xact_layout::{orphan, xattr};
use xact_types::{BlockNr, GroupNr};

/// CRC-32C without the final inversion, continued from `seed` over the parts.
fn crc(seed: u32, parts: &[&[u8]]) -> u32 {
    parts.concat().iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 != 0 { 0x82F6_3B78 } else { 0 })
    })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn word_be(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A volume of 20 groups without features.
fn superblock() -> Superblock {
    let mut sb = common::superblock(20);
    sb.set_feature_ro_compat(0);
    sb
}

fn with_sums() -> Superblock {
    let mut sb = superblock();
    sb.set_uuid(*b"sixteen bytes id");
    sb.set_checksum_type(1);
    sb.set_feature_ro_compat(ro_compat::METADATA_CSUM);
    sb
}

#[test]
fn sums_of_contents_cover_what_they_are_and_each_byte() {
    let contents = b"contents of a block";
    for number in [0, 7, 0x0123_4567_89AB_CDEF] {
        let first = BlockNr(number);
        let targets = [
            (0, Target::Block(first)),
            (1, Target::Node { level: 0, first }),
            (3, Target::Node { level: 2, first }),
        ];
        for (kind, target) in targets {
            let pointer = Pointer::new(BlockNr(9), 0x0102_0304_0506, target, contents);
            let covered =
                [&u32::to_le_bytes(kind)[..], &number.to_le_bytes(), &0x0102_0304_0506u64.to_le_bytes()];
            assert_eq!(pointer.sum, crc(!0, &[&covered.concat(), contents]));
            assert!(pointer.matches(target, contents) && !pointer.matches(Target::List, contents));
        }
    }
    let list = Pointer::new(BlockNr(9), 1, Target::List, contents);
    let covered = [&u32::MAX.to_le_bytes()[..], &0u64.to_le_bytes(), &1u64.to_le_bytes()];
    assert_eq!(list.sum, crc(!0, &[&covered.concat(), contents]));
}

#[test]
fn orphan_blocks_end_in_magic_and_sum() {
    let block = BlockNr(0x1_0000_0042);
    for sums in [false, true] {
        let sb = if sums { with_sums() } else { superblock() };
        let mut bytes = vec![0xA5; 1024];
        orphan::seal(&mut bytes, &sb, 77, block);
        assert_eq!(word(&bytes, 1016), 0x0B10_CA04);
        let sum = crc(77, &[&block.0.to_le_bytes(), &bytes[..1016]]);
        assert_eq!(word(&bytes, 1020), if sums { sum } else { 0xA5A5_A5A5 });
        assert!(bytes[..1016].iter().all(|&byte| byte == 0xA5));
        assert!(orphan::verify(&bytes, &sb, 77, block).is_ok());
        assert_eq!(orphan::verify(&bytes, &sb, 78, block).is_err(), sums);
        assert_eq!(orphan::verify(&bytes, &sb, 77, BlockNr(0x42)).is_err(), sums);
        bytes[1020] ^= 1;
        assert_eq!(orphan::verify(&bytes, &sb, 77, block).is_err(), sums);
        bytes[1016] ^= 1;
        assert!(orphan::verify(&bytes, &sb, 77, block).is_err());
    }
}

#[test]
fn attribute_blocks_have_the_kernels_hashes() {
    let (sb, block) = (with_sums(), BlockNr(99));
    let list = |name: &[u8], value: &[u8]| {
        vec![
            xattr::Attribute { index: 1, name: b"a".to_vec(), value: Vec::new() },
            xattr::Attribute { index: 7, name: name.to_vec(), value: value.to_vec() },
        ]
    };
    let mut bytes = vec![0; 1024];
    xattr::write_block(&mut bytes, &sb, block, 3, &mut list(b"a longer name\xFF", b"a value's bytes"));
    // `ext4_xattr_hash_entry`: 5 bits for each byte of the name, 16 for each word of the value.
    let mut hash = 0u32;
    for &byte in b"a longer name\xFF" {
        hash = hash.rotate_left(5) ^ u32::from(byte);
    }
    for value in b"a value's bytes\0".chunks(4) {
        hash = hash.rotate_left(16) ^ word(value, 0);
    }
    let second = 32 + 16 + 4;
    assert_eq!((word(&bytes, 32 + 12), word(&bytes, second + 12)), (u32::from(b'a'), hash));
    // `ext4_xattr_rehash`, from the first entry to the last.
    assert_eq!(word(&bytes, 12), u32::from(b'a') << 16 ^ hash);
    assert_eq!((word(&bytes, 0), word(&bytes, 4), word(&bytes, 8)), (0xEA02_0000, 3, 1));
    let seed = crc(!0, &[b"sixteen bytes id"]);
    let sum = crc(seed, &[&99u64.to_le_bytes(), &bytes[..16], &[0; 4], &bytes[20..]]);
    assert_eq!(word(&bytes, 16), sum);
    // A name whose bytes some machines took for signed ones has another hash that counts too.
    let entries: Vec<_> = xattr::entries_in_block(&bytes, &sb, block).unwrap().map(Result::unwrap).collect();
    let signed = hash_of_signed(b"a longer name\xFF", b"a value's bytes\0");
    assert_ne!(signed, hash);
    for (claimed, matches) in [(hash, true), (signed, true), (hash ^ 1, false), (0, false)] {
        let entry = xattr::Entry { hash: claimed, ..entries[1] };
        assert_eq!(xattr::hash_matches(&entry, &bytes, None), matches, "{claimed:#x}");
    }
    // A value in an inode of its own counts by its hash.
    let value = xattr::Value::InInode { ino: 12, size_bytes: 5 };
    let hash = (u32::from(b'n') << 16) ^ 0x1234_5678;
    let entry = xattr::Entry { index: 1, name: b"n", value, value_at: 0, hash };
    assert!(xattr::hash_matches(&entry, &bytes, Some(0x1234_5678)));
    assert!(!xattr::hash_matches(&entry, &bytes, Some(0x1234_5679)));
    assert!(!xattr::hash_matches(&entry, &bytes, None));
    xattr::set_refcount(&mut bytes, &sb, block, 1024);
    assert_eq!(xattr::refcount(&bytes), 1024);
    assert!(xattr::entries_in_block(&bytes, &sb, block).is_ok());
    for refused in [0, 1025] {
        xattr::set_refcount(&mut bytes, &sb, block, refused);
        assert!(xattr::entries_in_block(&bytes, &sb, block).is_err());
    }
}

fn hash_of_signed(name: &[u8], value: &[u8]) -> u32 {
    let hash = name.iter().fold(0u32, |hash, &byte| hash.rotate_left(5) ^ byte as i8 as u32);
    value.chunks(4).fold(hash, |hash, four| hash.rotate_left(16) ^ word(four, 0))
}

#[test]
fn superblocks_are_sealed_over_all_bytes_before_the_sum() {
    let mut sb = with_sums();
    sb.seal();
    let bytes = *sb.as_bytes();
    assert_eq!(word(&bytes, 0x3FC), crc(!0, &[&bytes[..0x3FC]]));
    assert!(Superblock::decode(&bytes).is_ok());
    for at in [0x10, 0x200, 0x3FB, 0x3FC, 0x3FF] {
        let mut bytes = bytes;
        bytes[at] ^= 1;
        assert!(Superblock::decode(&bytes).is_err(), "{at:#x}");
    }
    sb.set_checksum_type(0);
    sb.seal();
    assert!(Superblock::decode(sb.as_bytes()).is_err(), "checksums of no type");
    let mut plain = superblock();
    plain.seal();
    assert_eq!(word(plain.as_bytes(), 0x3FC), 0);
    // The seed is that of the superblock where the feature says so, and that of its UUID otherwise.
    sb.set_checksum_seed_raw(42);
    assert_eq!(sb.checksum_seed(), crc(!0, &[b"sixteen bytes id"]));
    sb.set_feature_incompat(incompat::CSUM_SEED);
    assert_eq!(sb.checksum_seed(), 42);
}

#[test]
fn default_modes_are_kept_in_the_superblock() {
    let mut sb = superblock();
    assert_eq!(sb.mode_record(), ModeRecord::Empty);
    let values = [5, 1, 0, 2, 0, 0, 0, 9];
    sb.set_mode_record(values);
    assert_eq!(sb.mode_record(), ModeRecord::Values(values));
    let bytes = sb.as_bytes();
    assert_eq!(&bytes[0x3E0..0x3E5], b"xmod\x01");
    assert_eq!((&bytes[0x3E5..0x3ED], word(bytes, 0x3F8)), (&values[..], crc(!0, &[&bytes[0x3E0..0x3F8]])));
    assert!(bytes[0x3ED..0x3F8].iter().all(|&byte| byte == 0));

    sb.set_volume_name(b"name");
    sb.set_errors(3);
    sb.set_default_mount_opts(0x60);
    let mut other = superblock();
    other.take_settings(&sb);
    assert_eq!(other.as_bytes(), sb.as_bytes());
    other.set_mode_record([0; 8]);
    assert_eq!(other.mode_record(), ModeRecord::Empty);
}

type Change = fn(&mut Superblock);

#[test]
fn limits_of_the_superblock_to_the_last_value() {
    let wide: Change = |sb| {
        sb.set_feature_incompat(incompat::SIXTY_FOUR_BIT);
        sb.set_desc_size_raw(64);
    };
    let clusters: Change = |sb| {
        sb.set_feature_ro_compat(ro_compat::BIGALLOC);
        sb.set_feature_incompat(incompat::EXTENTS);
        sb.set_first_data_block(0);
        sb.set_log_cluster_size(4);
        sb.set_blocks_count(20 * 16 * 8192);
        sb.set_blocks_per_group(16 * 8192);
    };
    let extra: Change = |sb| sb.set_feature_ro_compat(ro_compat::EXTRA_ISIZE);
    let plain: Change = |_| {};
    let cases: [(&str, Change, Change, bool); 36] = [
        ("clusters of 16 blocks", clusters, |_| {}, true),
        (
            "clusters that are blocks",
            clusters,
            |sb| {
                sb.set_log_cluster_size(0);
                sb.set_blocks_per_group(8192);
                sb.set_blocks_count(20 * 8192);
            },
            true,
        ),
        (
            "clusters smaller than blocks",
            clusters,
            |sb| {
                sb.set_log_block_size(1);
                sb.set_log_cluster_size(0);
            },
            false,
        ),
        ("clusters of 2^17 blocks", clusters, |sb| sb.set_log_cluster_size(17), false),
        ("clusters without extents", clusters, |sb| sb.set_feature_incompat(0), false),
        ("clusters behind a boot block", clusters, |sb| sb.set_first_data_block(1), false),
        (
            "one cluster more than bits",
            clusters,
            |sb| {
                sb.set_blocks_per_group(16 * 8200);
                sb.set_clusters_per_group(8200);
                sb.set_blocks_count(20 * 16 * 8200);
            },
            false,
        ),
        (
            "groups that end within eight clusters",
            clusters,
            |sb| {
                sb.set_blocks_per_group(16 * 8188);
                sb.set_clusters_per_group(8188);
                sb.set_blocks_count(20 * 16 * 8188);
            },
            false,
        ),
        ("large clusters without the feature", plain, |sb| sb.set_log_cluster_size(1), false),
        (
            "inodes of a group fill a block",
            plain,
            |sb| {
                sb.set_inodes_per_group(4);
                sb.set_inodes_count(80);
            },
            true,
        ),
        (
            "inodes of a group fill no block",
            plain,
            |sb| {
                sb.set_inodes_per_group(3);
                sb.set_inodes_count(60);
            },
            false,
        ),
        ("descriptors of 64 bytes", wide, |_| {}, true),
        ("descriptors of 1024 bytes", wide, |sb| sb.set_desc_size_raw(1024), true),
        ("narrow descriptors where 64 bits need wide ones", wide, |sb| sb.set_desc_size_raw(32), false),
        (
            "descriptors of 2048 bytes",
            wide,
            |sb| {
                sb.set_log_block_size(2);
                sb.set_log_cluster_size(2);
                sb.set_first_data_block(0);
                sb.set_blocks_count(20 * 8192);
                sb.set_desc_size_raw(2048);
            },
            false,
        ),
        ("a block of 64 bits", wide, |sb| sb.set_blocks_count(1 << 48), false),
        (
            "meta groups from the table's end",
            plain,
            |sb| {
                sb.set_feature_incompat(incompat::META_BG);
                sb.set_first_meta_bg(1);
            },
            true,
        ),
        (
            "meta groups beyond the table's end",
            plain,
            |sb| {
                sb.set_feature_incompat(incompat::META_BG);
                sb.set_first_meta_bg(2);
            },
            false,
        ),
        ("the word of meta groups without them", plain, |sb| sb.set_first_meta_bg(2), true),
        ("the last inode as the first", plain, |sb| sb.set_first_ino(20 * 1024), true),
        ("flex groups of 2^31", plain, |sb| sb.set_log_groups_per_flex(31), true),
        ("flex groups of 2^32", plain, |sb| sb.set_log_groups_per_flex(32), false),
        ("a block of reserved descriptor blocks", plain, |sb| sb.set_reserved_gdt_blocks(256), true),
        ("one more of them", plain, |sb| sb.set_reserved_gdt_blocks(257), false),
        ("extra fields that fill the inode", extra, |sb| sb.set_want_extra_isize(128), true),
        ("wanted extra fields beyond the inode", extra, |sb| sb.set_want_extra_isize(129), false),
        ("least extra fields beyond the inode", extra, |sb| sb.set_min_extra_isize(129), false),
        ("their words without the feature", plain, |sb| sb.set_min_extra_isize(129), true),
        (
            "their words in inodes without room",
            extra,
            |sb| {
                sb.set_inode_size_raw(128);
                sb.set_want_extra_isize(32);
            },
            true,
        ),
        ("hash 5 of names", plain, |sb| sb.set_def_hash_version(5), true),
        ("hash 6 of names", plain, |sb| sb.set_def_hash_version(6), false),
        ("the Hurd", plain, |sb| sb.set_creator_os(1), true),
        ("the Hurd with 64 bits", wide, |sb| sb.set_creator_os(1), false),
        (
            "the Hurd with inodes of values",
            plain,
            |sb| {
                sb.set_creator_os(1);
                sb.set_feature_incompat(incompat::EA_INODE);
            },
            false,
        ),
        ("Linux with inodes of values", plain, |sb| sb.set_feature_incompat(incompat::EA_INODE), true),
        ("FreeBSD with 64 bits", wide, |sb| sb.set_creator_os(3), true),
    ];
    for (what, base, change, sound) in cases {
        let mut sb = superblock();
        base(&mut sb);
        change(&mut sb);
        let decoded = Superblock::decode(sb.as_bytes());
        assert_eq!(decoded.is_ok(), sound, "{what}: {:?}", decoded.err());
    }
}

#[test]
fn features_decide_on_the_kind_of_mount() {
    let mut sb = superblock();
    assert_eq!(sb.support().unwrap(), Support::ReadWrite);
    sb.set_feature_compat(compat::SPARSE_SUPER2);
    sb.set_feature_incompat(incompat::EXTENTS);
    assert_eq!(sb.support().unwrap(), Support::ReadWrite);
    sb.set_feature_incompat(1 << 31);
    assert!(sb.support().is_err());
    sb.set_feature_incompat(incompat::EXTENTS);
    sb.set_feature_ro_compat(1 << 31);
    assert!(matches!(sb.support().unwrap(), Support::ReadOnly(names) if !names.is_empty()));
}

fn journal() -> JournalSuperblock {
    let mut bytes = vec![0; 1024];
    // Magic, block type 4 (version 2), block size, length, first block.
    for (at, word) in [(0, 0xC03B_3998u32), (4, 4), (12, 1024), (16, 4096), (20, 1), (24, 7), (64, 1)] {
        bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    JournalSuperblock::decode(&bytes).unwrap()
}

fn encoded(sb: &JournalSuperblock) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    sb.encode_into(&mut bytes);
    bytes
}

#[test]
fn limits_of_the_journal_to_the_last_value() {
    type Change = fn(&mut JournalSuperblock);
    let cases: [(&str, Change, bool); 26] = [
        ("as it is", |_| {}, true),
        ("blocks of 64 KiB", |sb| sb.block_size = 65536, true),
        ("blocks of 512 bytes", |sb| sb.block_size = 512, false),
        ("blocks of 128 KiB", |sb| sb.block_size = 1 << 17, false),
        ("no first block", |sb| sb.first = 0, false),
        ("the last block first", |sb| sb.first = 4095, true),
        ("a first block behind the last", |sb| sb.first = 4096, false),
        ("a log that begins at its first block", |sb| sb.start = 1, true),
        ("a log that begins before it", |sb| (sb.first, sb.start) = (2, 1), false),
        ("a log that begins at its last block", |sb| sb.start = 4095, true),
        ("a log that begins at its end", |sb| sb.start = 4096, false),
        ("made with two blocks", |sb| sb.made_with = 2, true),
        ("made with one block", |sb| sb.made_with = 1, false),
        ("made with its own length", |sb| sb.made_with = 4096, true),
        ("made with one block more", |sb| sb.made_with = 4097, false),
        ("no user", |sb| sb.users = 0, true),
        ("two users", |sb| sb.users = 2, false),
        ("blocks of patches", |sb| sb.features.incompat |= Features::XACT_PATCHES, true),
        ("an unknown feature", |sb| sb.features.incompat |= 0x40, false),
        ("an unknown feature for reading only", |sb| sb.features.ro_compat = 1, false),
        ("checksums of version 2", |sb| sb.set_checksums(Checksums::V2), true),
        (
            "checksums of version 2 and no kind",
            |sb| {
                sb.set_checksums(Checksums::V2);
                sb.checksum_type = 0;
            },
            false,
        ),
        ("no kind, without checksums", |sb| sb.checksum_type = 1, true),
        (
            "checksums of versions 1 and 3",
            |sb| {
                sb.set_checksums(Checksums::V3);
                sb.features.compat |= Features::CHECKSUM_V1;
            },
            false,
        ),
        (
            "checksums of versions 1 and 2",
            |sb| {
                sb.set_checksums(Checksums::V2);
                sb.features.compat |= Features::CHECKSUM_V1;
            },
            false,
        ),
        (
            "checksums of versions 2 and 3",
            |sb| {
                sb.set_checksums(Checksums::V2);
                sb.features.incompat |= Features::CSUM_V3;
            },
            false,
        ),
    ];
    for (what, change, sound) in cases {
        let mut sb = journal();
        change(&mut sb);
        assert_eq!(JournalSuperblock::decode(&encoded(&sb)).is_ok(), sound, "{what}");
    }
    assert!(JournalSuperblock::decode(&encoded(&journal())[..1023]).is_err());
    // A descriptor block has the magic number too.
    let mut bytes = encoded(&journal());
    bytes[7] = 1;
    assert!(JournalSuperblock::decode(&bytes).is_err());
}

#[test]
fn journal_superblocks_have_their_fields_and_sum() {
    let mut sb = journal();
    sb.errno = -5;
    sb.features.compat = 0;
    sb.uuid = *b"sixteen bytes id";
    (sb.dynsuper, sb.max_transaction, sb.max_trans_data) = (11, 12, 13);
    (sb.head, sb.fast_commit_blocks) = (21, 300);
    sb.set_checksums(Checksums::V3);
    let bytes = encoded(&sb);
    let fields = [12, 16, 20, 24, 28, 32, 40, 64, 68, 72, 76, 84, 88].map(|at| word_be(&bytes, at));
    assert_eq!(fields, [1024, 4096, 1, 7, 0, -5i32 as u32, 0x10, 1, 11, 12, 13, 300, 21]);
    assert_eq!((&bytes[48..64], bytes[80]), (&b"sixteen bytes id"[..], 4));
    assert_eq!(word_be(&bytes, 252), crc(!0, &[&bytes[..252], &[0; 4], &bytes[256..1024]]));
    assert_eq!(JournalSuperblock::decode(&bytes).unwrap(), sb);
    assert_eq!(sb.format().seed, crc(!0, &[b"sixteen bytes id"]));
    assert!(!sb.format().wide);
    sb.features.incompat |= Features::WIDE_BLOCKS;
    assert!(sb.format().wide);

    // Each kind of checksum takes the marks of the others away, and leaves the rest.
    let rest = Features::REVOKE | Features::WIDE_BLOCKS;
    for (kind, compat, incompat, number) in [
        (Checksums::V1, Features::CHECKSUM_V1, 0, 0),
        (Checksums::V2, 0, Features::CSUM_V2, 4),
        (Checksums::V3, 0, Features::CSUM_V3, 4),
        (Checksums::None, 0, 0, 0),
    ] {
        sb.features = Features {
            compat: 0x10 | Features::CHECKSUM_V1,
            incompat: rest | Features::CSUM_V2 | Features::CSUM_V3 | Features::ASYNC_COMMIT,
            ro_compat: 0,
        };
        sb.set_checksums(kind);
        let features = (sb.features.compat, sb.features.incompat, sb.checksum_type);
        assert_eq!(features, (0x10 | compat, rest | incompat, number));
        assert_eq!(sb.features.checksums(), kind);
    }
}

#[test]
fn journals_of_version_1_have_no_later_fields() {
    let mut bytes = encoded(&journal());
    bytes[7] = 3;
    for byte in &mut bytes[36..252] {
        *byte = 0xEE;
    }
    let mut sb = JournalSuperblock::decode(&bytes).unwrap();
    assert_eq!((sb.users, sb.features, sb.uuid, sb.head), (0, Features::default(), [0; 16], 0));
    let mut again = bytes.clone();
    sb.encode_into(&mut again);
    assert!(again == bytes, "what version 1 does not have stays");
    sb.upgrade();
    assert_eq!(sb.users, 1);
    sb.encode_into(&mut again);
    assert_eq!((again[7], word_be(&again, 36), word_be(&again, 64)), (4, 0, 1));
    // A journal that is of version 2 keeps its number of users.
    sb.users = 0;
    sb.upgrade();
    assert_eq!(sb.users, 0);
}

#[test]
fn fast_commits_leave_the_least_journal() {
    let mut sb = journal();
    sb.features.incompat = Features::FAST_COMMIT;
    for (maxlen, blocks, end, area) in [
        (1024 + 256, 0, 1024, Some(1025)),
        (1024 + 255, 0, 1279, None),
        (1024 + 300, 300, 1024, Some(1025)),
        (1024 + 299, 300, 1323, None),
        (200, 300, 200, None),
    ] {
        (sb.maxlen, sb.fast_commit_blocks) = (maxlen, blocks);
        assert_eq!((sb.log_end(), sb.fast_commit_start()), (end, area), "{maxlen} {blocks}");
    }
}

#[test]
fn close_differences_are_one_record() {
    let old = vec![0u8; 1024];
    let ranges = |changed: &[usize]| {
        let mut new = old.clone();
        changed.iter().for_each(|&at| new[at] = 1);
        let found = jbd2::differences(&old, &new)?;
        Some(found.iter().map(|range| (range.start, range.end)).collect::<Vec<_>>())
    };
    // Sixteen unchanged bytes are copied, seventeen are cheaper left out.
    assert_eq!(ranges(&[7, 24]).unwrap(), [(7, 25)]);
    assert_eq!(ranges(&[7, 25]).unwrap(), [(7, 8), (25, 26)]);
    assert_eq!(ranges(&[0, 3]).unwrap(), [(0, 4)]);
    // At most half of a block, less the heads of the block and of a record: 480 bytes.
    let run = |len: usize| ranges(&(0..len).collect::<Vec<_>>());
    assert_eq!(run(464).unwrap(), [(0, 464)]);
    assert_eq!(run(465), None);
    // Two records of 17 bytes each take the 34 of a run, and bytes that close a gap count too.
    let two = |len: usize| ranges(&(0..len).chain([700]).collect::<Vec<_>>());
    assert_eq!(two(447).unwrap(), [(0, 447), (700, 701)]);
    assert_eq!(two(448), None);
    let gap = |len: usize| ranges(&(0..len).chain([len + 8]).collect::<Vec<_>>());
    assert_eq!(gap(455).unwrap(), [(0, 464)]);
    assert_eq!(gap(456), None);
}

#[test]
fn blocks_of_mount_protection_have_magic_names_and_sum() {
    for sums in [false, true] {
        let sb = if sums { with_sums() } else { superblock() };
        let mut bytes = [0; 1024];
        assert!(MmpBlock::decode(&bytes, &sb, BlockNr(9)).is_err());
        bytes[..4].copy_from_slice(&0x004D_4D50u32.to_le_bytes());
        let sum = crc(crc(!0, &[b"sixteen bytes id"]), &[&bytes[..1020]]);
        assert_eq!(MmpBlock::decode(&bytes, &sb, BlockNr(9)).is_err(), sums);
        bytes[1020..].copy_from_slice(&sum.to_le_bytes());
        let mut mmp = MmpBlock::decode(&bytes, &sb, BlockNr(9)).unwrap();
        mmp.set_sequence(0x0102_0304);
        mmp.set_time(77);
        mmp.set_check_interval(5);
        mmp.set_holder(&[b'n'; 70], &[b'd'; 40]);
        assert_eq!(mmp.node_name(), [b'n'; 63]);
        mmp.set_holder(b"node", &[b'd'; 40]);
        assert_eq!(mmp.node_name(), b"node");
        let sealed = mmp.sealed(&sb);
        assert_eq!((word(&sealed, 0), word(&sealed, 4), word(&sealed, 8)), (0x004D_4D50, 0x0102_0304, 77));
        assert_eq!((&sealed[16..21], sealed[20..80].iter().all(|&byte| byte == 0)), (&b"node\0"[..], true));
        assert_eq!((&sealed[80..111], sealed[111], sealed[112]), (&[b'd'; 31][..], 0, 5));
        let expected = crc(crc(!0, &[b"sixteen bytes id"]), &[&sealed[..1020]]);
        assert_eq!(word(&sealed, 1020), if sums { expected } else { sum });
        assert!(MmpBlock::decode(&sealed, &sb, BlockNr(9)).is_ok_and(|again| again.node_name() == b"node"));
    }
    let mut bytes = [b'x'; 1024];
    bytes[..4].copy_from_slice(&0x004D_4D50u32.to_le_bytes());
    let full = MmpBlock::decode(&bytes, &superblock(), BlockNr(9)).unwrap();
    assert_eq!(full.node_name(), [b'x'; 64], "a name that fills its field has no end");
}

/// CRC-16 of the kernel, bit by bit.
fn crc16(seed: u16, parts: &[&[u8]]) -> u16 {
    parts.concat().iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| crc >> 1 ^ if crc & 1 != 0 { 0xA001 } else { 0 })
    })
}

#[test]
fn group_descriptors_have_their_halves_and_sums() {
    let uuid = b"sixteen bytes id";
    let number = 5u32.to_le_bytes();
    for len in [32, 64] {
        let mut desc = GroupDesc::new(&vec![0; len]);
        desc.set_block_bitmap(BlockNr(0x1_2345_6789));
        desc.set_inode_table(BlockNr(0x2_0000_0007));
        desc.set_free_blocks(0x3_4567);
        desc.set_used_dirs(0x1_0002);
        desc.set_itable_unused(0x2_0003);
        desc.set_inode_bitmap_csum(0xAABB_CCDD);
        desc.set_flags(5);
        assert!(desc.has_flag(4) && desc.has_flag(1) && !desc.has_flag(2));
        let wide = len == 64;
        let bytes = desc.as_bytes();
        let low = |value: u64, bits: u32| if wide { value } else { value & ((1 << bits) - 1) };
        assert_eq!(desc.block_bitmap().0, low(0x1_2345_6789, 32));
        assert_eq!(desc.inode_table().0, low(0x2_0000_0007, 32));
        assert_eq!(u64::from(desc.free_blocks()), low(0x3_4567, 16));
        assert_eq!(u64::from(desc.used_dirs()), low(0x1_0002, 16));
        assert_eq!(u64::from(desc.itable_unused()), low(0x2_0003, 16));
        assert_eq!(u64::from(desc.inode_bitmap_csum()), low(0xAABB_CCDD, 16));
        assert_eq!((word(bytes, 0), bytes[0x0C], bytes[0x0D]), (0x2345_6789, 0x67, 0x45));
        if wide {
            assert_eq!((word(bytes, 0x20), bytes[0x2C], bytes[0x32], bytes[0x3B]), (1, 3, 2, 0xAA));
        }
        // Each kind of checksum, over the bytes around its field.
        let mut sb = with_sums();
        let seed = crc(!0, &[uuid]);
        desc.seal(&sb, GroupNr(5));
        let bytes = desc.as_bytes().to_vec();
        let stored = u16::from_le_bytes([bytes[0x1E], bytes[0x1F]]);
        assert_eq!(stored, crc(seed, &[&number, &bytes[..0x1E], &[0, 0], &bytes[0x20..]]) as u16);
        assert!(desc.checksum_matches(&sb, GroupNr(5)) && !desc.checksum_matches(&sb, GroupNr(6)));
        sb.set_feature_ro_compat(ro_compat::GDT_CSUM);
        for is_64_bit in [false, true] {
            sb.set_feature_incompat(if is_64_bit { incompat::SIXTY_FOUR_BIT } else { 0 });
            desc.seal(&sb, GroupNr(5));
            let bytes = desc.as_bytes().to_vec();
            let stored = u16::from_le_bytes([bytes[0x1E], bytes[0x1F]]);
            let rest = if is_64_bit { &bytes[0x20..] } else { &[] };
            assert_eq!(stored, crc16(!0, &[uuid, &number, &bytes[..0x1E], rest]));
            assert!(desc.checksum_matches(&sb, GroupNr(5)) && !desc.checksum_matches(&sb, GroupNr(4)));
        }
        sb.set_feature_ro_compat(0);
        desc.seal(&sb, GroupNr(5));
        assert_eq!(desc.as_bytes()[0x1E..0x20], [0, 0]);
        assert!(desc.checksum_matches(&sb, GroupNr(6)), "without checksums each matches");
    }
    let mut sb = with_sums();
    let sum = crc(crc(!0, &[uuid]), &[b"bitm"]);
    assert_eq!(bitmap_checksum(&sb, b"bitmap", 4), sum);
    assert!(bitmap_csum_matches(&sb, sum & 0xFFFF, sum) && !bitmap_csum_matches(&sb, sum, sum));
    assert!(!bitmap_csum_matches(&sb, sum & 0xFFFF ^ 1, sum));
    sb.set_feature_incompat(incompat::SIXTY_FOUR_BIT);
    sb.set_desc_size_raw(64);
    assert!(bitmap_csum_matches(&sb, sum, sum) && !bitmap_csum_matches(&sb, sum & 0xFFFF, sum));
}

#[test]
fn the_superblock_knows_its_own_place() {
    let mut sb = superblock();
    for (log, block, offset) in [(0, 1, 0), (1, 0, 1024), (2, 0, 1024), (6, 0, 1024)] {
        sb.set_log_block_size(log);
        assert_eq!((sb.own_block(), sb.own_offset()), (BlockNr(block), offset), "{log}");
    }
}
