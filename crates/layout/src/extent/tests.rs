use xact_types::Ino;

use super::*;

fn superblock(metadata_csum: bool) -> Superblock {
    let mut sb = Superblock::zeroed();
    sb.set_blocks_count(100_000);
    sb.set_first_data_block(1);
    if metadata_csum {
        sb.set_feature_ro_compat(crate::feature::ro_compat::METADATA_CSUM);
    }
    sb
}

fn extent(at: u32, start: u64, len: u32, unwritten: bool) -> Extent {
    Extent { at: FileBlock(at), run: Run { start: BlockNr(start), len }, unwritten }
}

const SITE: Site = Site::Inode(Ino(12));
const ANY: Expected = Expected { depth: 0, first: FileBlock(0), end: END_OF_FILES };

fn leaf(sb: &Superblock, extents: &[Extent]) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    let raw: Vec<RawEntry> = extents.iter().map(Extent::encode).collect();
    write_block(&mut bytes, sb, 7, 0, &raw);
    bytes
}

fn refusal(bytes: &[u8], sb: &Superblock, expected: Expected) -> &'static str {
    match Node::in_block(bytes, sb, 7, expected, SITE) {
        Err(Error::Corrupt(c)) => c.what,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn an_extent_survives_its_bytes() {
    for e in [
        extent(0, 5, 1, false),
        extent(7, (1 << 48) - 1, MAX_WRITTEN_LEN, false),
        extent(u32::MAX - 1, 1 << 33, 1, true),
        extent(9, 99, MAX_UNWRITTEN_LEN, true),
    ] {
        assert_eq!(Extent::decode(&e.encode()), e);
    }
    let i = Index { at: FileBlock(77), child: BlockNr(0x1234_5678_9ABC) };
    assert_eq!(Index::decode(&i.encode()), i);
}

#[test]
fn the_bytes_are_those_of_ext4() {
    // 40 unwritten blocks from file block 0x01020304 at block 0x5_0000_0006.
    let raw = extent(0x0102_0304, 0x5_0000_0006, 40, true).encode();
    assert_eq!(raw, [4, 3, 2, 1, 40, 0x80, 5, 0, 6, 0, 0, 0]);
    assert_eq!(&empty_root()[..12], &[0x0A, 0xF3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn merging_keeps_to_the_length_limits() {
    let long = extent(0, 10, MAX_WRITTEN_LEN - 1, false);
    let next = extent(MAX_WRITTEN_LEN - 1, 10 + u64::from(MAX_WRITTEN_LEN) - 1, 1, false);
    assert_eq!(long.merged(&next), Some(extent(0, 10, MAX_WRITTEN_LEN, false)));
    let (long, next) = (Extent { unwritten: true, ..long }, Extent { unwritten: true, ..next });
    assert_eq!(long.merged(&next), None);
    let small = extent(0, 10, 2, false);
    assert_eq!(small.merged(&extent(2, 12, 2, true)), None, "contents differ");
    assert_eq!(small.merged(&extent(2, 13, 2, false)), None, "apart on the volume");
    assert_eq!(small.merged(&extent(3, 12, 2, false)), None, "apart in the file");
}

#[test]
fn a_good_leaf_is_read() {
    for csum in [false, true] {
        let sb = superblock(csum);
        let all = [extent(0, 50, 4, false), extent(4, 60, 4, true), extent(100, 70, 1, false)];
        let bytes = leaf(&sb, &all);
        let node = Node::in_block(&bytes, &sb, 7, ANY, SITE).unwrap();
        assert_eq!((0..node.len()).map(|i| node.extent(i)).collect::<Vec<_>>(), all);
        assert_eq!([0, 3, 4, 99, 100, 101].map(|at| node.count_up_to(FileBlock(at))), [1, 1, 2, 2, 3, 3]);
    }
}

#[test]
fn damaged_leaves_are_refused() {
    let sb = superblock(false);
    let good = leaf(&sb, &[extent(0, 50, 4, false), extent(8, 60, 4, false)]);
    let damaged = |at: usize, value: u16| {
        let mut bytes = good.clone();
        put_u16(&mut bytes, at, value);
        bytes
    };
    for (at, value, what) in [
        (0, 0, "extent node has no magic number"),
        (2, 85, "extent node has more entries than room"),
        (4, 0, "extent node has an impossible capacity"),
        (4, 85, "extent node has an impossible capacity"),
        (6, 1, "depth of the extent node does not fit its parent"),
        (12, 1, "extent node does not start where its parent says"),
        (16, 0, "extent of no blocks"),
        (16, 9, "extents overlap or are out of order"),
        (18, 1, "extent lies outside of the volume"),
        (20, 1, "extent lies outside of the volume"),
        (24, 3, "extents overlap or are out of order"),
    ] {
        assert_eq!(refusal(&damaged(at, value), &sb, ANY), what, "{value:#x} at {at}");
    }
    assert_eq!(
        refusal(&good, &sb, Expected { end: FileBlock(11), ..ANY }),
        "extents overlap those of the next node"
    );
    let wraps = leaf(&sb, &[extent(0, 50, 4, false), extent(u32::MAX, 60, 1, false)]);
    assert_eq!(refusal(&wraps, &sb, ANY), "extent beyond the end of files");
}

#[test]
fn every_bit_of_a_node_is_under_its_checksum() {
    let sb = superblock(true);
    let good = leaf(&sb, &[extent(0, 50, 4, false)]);
    for byte in 0..1024 {
        let mut bytes = good.clone();
        bytes[byte] ^= 0x10;
        assert!(Node::in_block(&bytes, &sb, 7, ANY, SITE).is_err(), "byte {byte}");
    }
    assert!(Node::in_block(&good, &sb, 8, ANY, SITE).is_err(), "another inode's node");
}

#[test]
fn damaged_roots_are_refused() {
    let sb = superblock(false);
    let mut area = empty_root();
    assert!(Node::root(&area, &sb, SITE).unwrap().is_empty());
    put_u16(&mut area, 6, 1);
    assert!(Node::root(&area, &sb, SITE).is_err(), "empty index");
    let index = Index { at: FileBlock(3), child: BlockNr(99) }.encode();
    write_root(&mut area, MAX_DEPTH, &[index]);
    assert_eq!(Node::root(&area, &sb, SITE).unwrap().depth(), MAX_DEPTH);
    put_u16(&mut area, 6, MAX_DEPTH + 1);
    assert!(Node::root(&area, &sb, SITE).is_err(), "too deep");
    write_root(&mut area, 1, &[index, index]);
    assert!(Node::root(&area, &sb, SITE).is_err(), "the same key twice");
    write_root(&mut area, 1, &[Index { at: FileBlock(0), child: BlockNr(1) }.encode()]);
    assert!(Node::root(&area, &sb, SITE).is_err(), "points at the superblock");
}
