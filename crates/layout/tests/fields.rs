//! Values of several fields, limits of the superblock, and places of groups, each against numbers
//! that follow from the kernel's structs.

mod common;

use xact_layout::feature::{compat, incompat, ro_compat};
use xact_layout::inode::{Inode, flag};
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, GroupNr, Ino, Timestamp};

fn superblock() -> Superblock {
    common::superblock(20)
}

fn decodes(sb: &Superblock) -> bool {
    Superblock::decode(sb.as_bytes()).is_ok()
}

#[test]
fn halves_of_numbers_are_at_their_places() {
    let mut inode = Inode::zeroed(256);
    inode.set_uid(0xABCD_1234);
    inode.set_gid(0x8765_4321);
    inode.set_size(0x0123_4567_89AB_CDEF);
    inode.set_xattr_block(0xBEEF_1122_3344);
    let bytes = inode.as_bytes();
    assert_eq!((&bytes[2..4], &bytes[0x78..0x7A]), (&[0x34, 0x12][..], &[0xCD, 0xAB][..]));
    assert_eq!((&bytes[0x18..0x1A], &bytes[0x7A..0x7C]), (&[0x21, 0x43][..], &[0x65, 0x87][..]));
    assert_eq!((&bytes[0x04..0x08], bytes[0x6F]), (&[0xEF, 0xCD, 0xAB, 0x89][..], 0x01));
    assert_eq!((&bytes[0x68..0x6C], &bytes[0x76..0x78]), (&[0x44, 0x33, 0x22, 0x11][..], &[0xEF, 0xBE][..]));
    assert_eq!((inode.uid(), inode.gid()), (0xABCD_1234, 0x8765_4321));
    assert_eq!((inode.size(), inode.xattr_block()), (0x0123_4567_89AB_CDEF, 0xBEEF_1122_3344));
}

#[test]
fn sectors_become_blocks_beyond_48_bits() {
    let mut sb = superblock();
    sb.set_log_block_size(2);
    sb.set_feature_ro_compat(ro_compat::HUGE_FILE);
    let mut inode = Inode::zeroed(256);
    inode.set_flags(flag::EXTENTS);
    for sectors in [0, 8, (1 << 32) - 8, 1 << 32, (1 << 48) - 8, 1 << 48, (1 << 48) + 8 * 0x1234, 1 << 50] {
        inode.set_sectors(&sb, sectors);
        assert_eq!(inode.sectors(&sb), sectors);
        let is_huge = inode.flags() & flag::HUGE_FILE != 0;
        assert_eq!(is_huge, sectors >= 1 << 48, "{sectors}");
        assert_eq!(inode.flags() & !flag::HUGE_FILE, flag::EXTENTS, "{sectors}");
    }
    // Without the feature, neither the upper half nor the flag counts.
    inode.set_sectors(&sb, (1 << 48) + 8 * 0x1234);
    sb.set_feature_ro_compat(0);
    assert_eq!(inode.sectors(&sb), 0x1234);
}

#[test]
fn times_reach_from_1901_to_2446() {
    let (first, last) = (i64::from(i32::MIN), i64::from(i32::MAX) + (3 << 32));
    let narrow_last = i64::from(i32::MAX);
    let mut inode = Inode::zeroed(256);
    inode.set_extra_isize(32);
    let mut small = Inode::zeroed(128);
    let seconds = [first, -1, 0, 1, narrow_last, narrow_last + 1, 1 << 32, (1 << 32) + 5, 5 << 31, last];
    for secs in seconds {
        let time = Timestamp { secs, nanos: 999_999_999 };
        inode.set_mtime(time);
        inode.set_crtime(time);
        assert_eq!((inode.mtime(), inode.crtime()), (time, Some(time)));
        small.set_mtime(time);
        assert_eq!(small.mtime(), Timestamp { secs: secs.min(narrow_last), nanos: 0 });
    }
    assert_eq!(small.crtime(), None);
    for (secs, cut) in [(first - 1, first), (i64::MIN, first), (last + 1, last), (i64::MAX, last)] {
        inode.set_atime(Timestamp { secs, nanos: 0 });
        assert_eq!(inode.atime().secs, cut);
    }
    // Two bits of epoch below thirty of nanoseconds, at 0x84 for the time of change.
    inode.set_ctime(Timestamp { secs: (2 << 32) + 7, nanos: 3 });
    assert_eq!(inode.as_bytes()[0x84..0x88], [(3 << 2) | 2, 0, 0, 0]);
    assert_eq!(inode.as_bytes()[0x0C..0x10], [7, 0, 0, 0]);
}

#[test]
fn extra_fields_are_those_that_fit() {
    let mut inode = Inode::zeroed(256);
    assert_eq!((inode.extra_isize(), inode.xattr_area().len(), inode.has_project()), (0, 0, false));
    inode.set_extra_isize(28);
    assert_eq!((inode.xattr_area().len(), inode.has_project()), (100, false));
    inode.set_project(5);
    assert_eq!(inode.project(), 0);
    inode.set_extra_isize(32);
    inode.set_project(5);
    assert_eq!((inode.xattr_area().len(), inode.project(), inode.as_bytes()[0x9C]), (96, 5, 5));
    inode.xattr_area_mut()[0] = 9;
    assert_eq!((inode.xattr_area()[0], inode.as_bytes()[0xA0]), (9, 9));
    inode.set_extra_isize(200);
    assert_eq!((inode.extra_isize(), inode.xattr_area().len()), (128, 0));
    let mut small = Inode::zeroed(128);
    small.set_extra_isize(32);
    assert_eq!((small.extra_isize(), small.xattr_area().len(), small.xattr_area_mut().len()), (0, 0, 0));
}

#[test]
fn each_bit_of_an_inode_is_in_its_checksum() {
    let mut sb = superblock();
    for (size, extra) in [(128, 0), (256, 0), (256, 2), (256, 32)] {
        let mut inode = Inode::zeroed(size);
        inode.set_extra_isize(extra);
        inode.set_generation(77);
        sb.set_feature_ro_compat(ro_compat::METADATA_CSUM);
        inode.seal(&sb, Ino(12));
        assert!(inode.checksum_matches(&sb, Ino(12)) && !inode.checksum_matches(&sb, Ino(13)));
        for at in 0..usize::from(size) {
            // `i_extra_isize` decides on the upper half of the sum.
            if (0x80..0x82).contains(&at) {
                continue;
            }
            let mut bytes = inode.as_bytes().to_vec();
            bytes[at] ^= 1;
            // The upper half is plain bytes where the inode has no field for it.
            assert!(!Inode::new(&bytes).checksum_matches(&sb, Ino(12)), "{size} {extra} {at:#x}");
            sb.set_feature_ro_compat(0);
            assert!(Inode::new(&bytes).checksum_matches(&sb, Ino(12)));
            sb.set_feature_ro_compat(ro_compat::METADATA_CSUM);
        }
    }
}

#[test]
fn superblocks_are_refused_beyond_their_limits() {
    let good = superblock();
    assert!(decodes(&good));
    type Change = fn(&mut Superblock);
    let within: [(&str, Change); 8] = [
        ("groups of 256 blocks", |sb| {
            sb.set_blocks_per_group(256);
            sb.set_clusters_per_group(256);
            sb.set_blocks_count(1 + 20 * 256);
        }),
        ("inodes of a block", |sb| sb.set_inode_size_raw(1024)),
        ("inodes of 128 bytes", |sb| sb.set_inode_size_raw(128)),
        ("as many inodes as bits", |sb| {
            sb.set_inodes_per_group(8192);
            sb.set_inodes_count(20 * 8192);
        }),
        ("a last group that is short", |sb| sb.set_blocks_count(1 + 19 * 8192 + 1)),
        ("blocks of 64 KiB", |sb| {
            sb.set_log_block_size(6);
            sb.set_first_data_block(0);
            sb.set_log_cluster_size(6);
            sb.set_blocks_count(20 * 8192);
        }),
        ("descriptors of 64 bytes", |sb| {
            sb.set_feature_incompat(incompat::SIXTY_FOUR_BIT);
            sb.set_desc_size_raw(64);
        }),
        ("revision 0", |sb| {
            sb.set_rev_level(0);
            sb.set_inode_size_raw(0);
            sb.set_first_ino(0);
        }),
    ];
    for (what, change) in within {
        let mut sb = good.clone();
        change(&mut sb);
        assert!(decodes(&sb), "{what}");
    }
    let beyond: [(&str, Change); 19] = [
        ("no magic number", |sb| sb.set_magic(0xEF52)),
        ("revision 2", |sb| sb.set_rev_level(2)),
        ("blocks of 128 KiB", |sb| {
            sb.set_log_block_size(7);
            sb.set_first_data_block(0);
        }),
        ("a group before the boot block", |sb| sb.set_first_data_block(0)),
        ("a gap before the first group", |sb| sb.set_first_data_block(2)),
        ("groups of 248 blocks", |sb| {
            sb.set_blocks_per_group(248);
            sb.set_clusters_per_group(248);
            sb.set_blocks_count(1 + 20 * 248);
        }),
        ("more blocks than bits", |sb| {
            sb.set_blocks_per_group(8200);
            sb.set_clusters_per_group(8200);
            sb.set_blocks_count(1 + 20 * 8200);
        }),
        ("an odd number of blocks", |sb| {
            sb.set_blocks_per_group(8188);
            sb.set_clusters_per_group(8188);
            sb.set_blocks_count(1 + 20 * 8188);
        }),
        ("other clusters than blocks", |sb| sb.set_clusters_per_group(4096)),
        ("inodes of 64 bytes", |sb| sb.set_inode_size_raw(64)),
        ("inodes larger than blocks", |sb| sb.set_inode_size_raw(2048)),
        ("inodes of 384 bytes", |sb| sb.set_inode_size_raw(384)),
        ("no inodes", |sb| {
            sb.set_inodes_per_group(0);
            sb.set_inodes_count(0);
        }),
        ("more inodes than bits", |sb| {
            sb.set_inodes_per_group(8200);
            sb.set_inodes_count(20 * 8200);
        }),
        ("one inode too few", |sb| sb.set_inodes_count(20 * 1024 - 1)),
        ("no block in a group", |sb| sb.set_blocks_count(1)),
        ("descriptors of 96 bytes", |sb| {
            sb.set_feature_incompat(incompat::SIXTY_FOUR_BIT);
            sb.set_desc_size_raw(96);
        }),
        ("a first inode among the reserved", |sb| sb.set_first_ino(10)),
        ("a first inode beyond the last", |sb| sb.set_first_ino(20 * 1024 + 1)),
    ];
    for (what, change) in beyond {
        let mut sb = good.clone();
        change(&mut sb);
        assert!(!decodes(&sb), "{what}");
    }
}

#[test]
fn words_of_the_superblock_are_at_their_places() {
    let mut sb = superblock();
    sb.set_feature_incompat(incompat::SIXTY_FOUR_BIT);
    sb.set_desc_size_raw(64);
    assert_eq!((sb.desc_size(), sb.descs_per_block()), (64, 16));
    sb.set_blocks_count(0x12_3456_789A);
    sb.set_reserved_blocks_count(0x01_0000_0002);
    sb.set_free_blocks_count(0x03_0000_0004);
    assert_eq!((sb.blocks_count(), sb.blocks_count_hi()), (0x12_3456_789A, 0x12));
    assert_eq!((sb.reserved_blocks_count(), sb.free_blocks_count()), (0x01_0000_0002, 0x03_0000_0004));
    // Without the feature, the upper halves do not count.
    sb.set_feature_incompat(0);
    assert_eq!((sb.blocks_count(), sb.free_blocks_count(), sb.desc_size()), (0x3456_789A, 4, 32));
    sb.set_volume_name(b"a name of seventeen");
    assert_eq!(sb.volume_name(), b"a name of sevent");
    sb.set_volume_name(b"short");
    assert_eq!((sb.volume_name(), &sb.as_bytes()[0x78..0x7F]), (&b"short"[..], &b"short\0\0"[..]));
    sb.set_journal_backup(std::array::from_fn(|i| i as u32 + 1));
    for i in 0..17 {
        assert_eq!(sb.as_bytes()[0x10C + 4 * i..][..4], (i as u32 + 1).to_le_bytes());
    }
    sb.set_hash_seed([1, 2, 3, 4]);
    assert_eq!((sb.hash_seed(), sb.as_bytes()[0xEC], sb.as_bytes()[0xF8]), ([1, 2, 3, 4], 1, 4));
    sb.set_last_mounted(&[b'/'; 80]);
    assert_eq!(sb.as_bytes()[0x88..0xC8], [&[b'/'; 63][..], &[0]].concat());
}

#[test]
fn groups_are_where_the_kernel_looks() {
    let mut sb = superblock();
    assert_eq!((sb.group_count(), sb.gdt_blocks(), sb.inode_table_blocks()), (20, 1, 256));
    assert_eq!(sb.group_start(GroupNr(3)), BlockNr(1 + 3 * 8192));
    assert_eq!((sb.group_of(BlockNr(8192)), sb.group_of(BlockNr(8193))), (GroupNr(0), GroupNr(1)));
    sb.set_blocks_count(1 + 19 * 8192 + 100);
    assert_eq!((sb.blocks_in_group(GroupNr(18)), sb.blocks_in_group(GroupNr(19))), (8192, 100));
    assert!(sb.contains(BlockNr(1), 19 * 8192 + 100) && !sb.contains(BlockNr(1), 19 * 8192 + 101));
    assert!(!sb.contains(BlockNr(0), 1) && !sb.contains(BlockNr(2), u64::MAX));
    let backups: Vec<u32> = (0..90).filter(|&group| sb.has_backup(GroupNr(group))).collect();
    assert_eq!(backups, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81]);
    sb.set_reserved_gdt_blocks(7);
    assert_eq!([0, 1, 2, 3].map(|group| sb.base_meta_blocks(GroupNr(group))), [9, 9, 0, 9]);
    // In meta block groups of 32, the first, second and last have the block of descriptors.
    sb.set_feature_incompat(incompat::META_BG);
    let blocks = [0, 1, 2, 31, 32, 33, 34, 63].map(|group| sb.base_meta_blocks(GroupNr(group)));
    assert_eq!(blocks, [2, 2, 0, 1, 1, 1, 0, 1]);
    assert_eq!(sb.desc_place(GroupNr(0)), (BlockNr(2), 0));
    assert_eq!(sb.desc_place(GroupNr(33)), (BlockNr(1 + 32 * 8192), 32));
    sb.set_feature_compat(compat::SPARSE_SUPER2);
    assert_eq!([0, 1, 3].map(|group| sb.has_backup(GroupNr(group))), [true, false, false]);
    assert_eq!((sb.inode_place(Ino(0)), sb.inode_place(Ino(20 * 1024 + 1))), (None, None));
    assert_eq!(sb.inode_place(Ino(1024)), Some((GroupNr(0), 1023)));
    assert_eq!(sb.inode_place(Ino(1025)), Some((GroupNr(1), 0)));
    assert_eq!(sb.inode_at(GroupNr(1), 0), Ino(1025));
    assert_eq!(sb.cluster_blocks(), 1);
    sb.set_feature_ro_compat(ro_compat::BIGALLOC);
    sb.set_log_cluster_size(4);
    assert_eq!(sb.cluster_blocks(), 16);
    for (features, sums) in
        [(ro_compat::GDT_CSUM, true), (ro_compat::METADATA_CSUM, true), (ro_compat::QUOTA, false)]
    {
        sb.set_feature_ro_compat(features);
        assert_eq!(sb.has_group_csum(), sums);
    }
}
