use super::*;
use crate::feature::ro_compat;

fn superblock() -> Superblock {
    let mut sb = Superblock::zeroed();
    sb.set_feature_ro_compat(ro_compat::METADATA_CSUM);
    sb
}

fn attribute(index: u8, name: &str, value: &[u8]) -> Attribute {
    Attribute { index, name: name.into(), value: value.to_vec() }
}

fn owned(entries: Result<Entries<'_>, &'static str>) -> Result<Vec<Attribute>, &'static str> {
    entries?
        .map(|entry| {
            let Entry { index, name, value: Value::Here(value), .. } = entry? else {
                return Err("value in an inode");
            };
            Ok(Attribute { index, name: name.to_vec(), value: value.to_vec() })
        })
        .collect()
}

const BLOCK: BlockNr = BlockNr(99);

fn example() -> Vec<Attribute> {
    vec![
        attribute(index::USER, "b", b"value of b"),
        attribute(index::SECURITY, "selinux", b"label"),
        attribute(index::USER, "aa", b""),
        attribute(index::USER, "a", b"1234"),
    ]
}

#[test]
fn names_are_split_and_joined() {
    for (full, split) in [
        ("user.x", Some((index::USER, "x"))),
        ("user.", None),
        ("user", None),
        ("security.a.b", Some((index::SECURITY, "a.b"))),
        ("trusted.overlay.opaque", Some((index::TRUSTED, "overlay.opaque"))),
        ("system.posix_acl_access", Some((index::POSIX_ACL_ACCESS, ""))),
        ("system.posix_acl_default", Some((index::POSIX_ACL_DEFAULT, ""))),
        ("system.data", Some((index::SYSTEM, "data"))),
        ("os2.x", None),
        ("", None),
    ] {
        let found = split_name(full.as_bytes());
        assert_eq!(found, split.map(|(index, rest)| (index, rest.as_bytes())), "{full}");
        if let Some((index, rest)) = found {
            assert_eq!(full_name(index, rest).unwrap(), full.as_bytes());
        }
    }
    assert_eq!(full_name(99, b"x"), None);
}

#[test]
fn lists_go_through_their_bytes() {
    let mut area = [0xFF; 96];
    assert!(fits_body(&example(), 96 + 40));
    assert!(!fits_body(&example(), 96), "too small for all four");
    let three = &example()[..3];
    write_body(&mut area, three);
    assert_eq!(owned(entries_in_body(&area)).unwrap(), three);
    write_body(&mut area, &[]);
    assert_eq!(area, [0; 96]);
    assert_eq!(owned(entries_in_body(&area)).unwrap(), []);

    let sb = superblock();
    let mut bytes = [0xFF; 1024];
    write_block(&mut bytes, &sb, BLOCK, 3, &mut example());
    assert_eq!(refcount(&bytes), 3);
    let names: Vec<_> =
        owned(entries_in_block(&bytes, &sb, BLOCK)).unwrap().into_iter().map(|a| a.name).collect();
    assert_eq!(names, [&b"a"[..], b"b", b"aa", b"selinux"], "by index, length, name");
    set_refcount(&mut bytes, &sb, BLOCK, 2);
    assert_eq!(refcount(&bytes), 2);
    assert!(entries_in_block(&bytes, &sb, BLOCK).is_ok());
    assert!(entries_in_block(&bytes, &sb, BlockNr(98)).is_err(), "in another place");
}

#[test]
fn a_list_fits_to_the_last_byte() {
    let entry = entry_bytes(1);
    let full = |value: usize| vec![attribute(index::USER, "x", &vec![7; value])];
    let room = 1024 - BLOCK_HEADER_BYTES - TERMINATOR_BYTES - entry;
    assert!(fits_block(&full(room), 1024));
    assert!(!fits_block(&full(room + 1), 1024));
    let mut bytes = [0; 1024];
    write_block(&mut bytes, &superblock(), BLOCK, 1, &mut full(room));
    assert_eq!(owned(entries_in_block(&bytes, &superblock(), BLOCK)).unwrap(), full(room));
}

#[test]
fn damaged_areas_are_refused() {
    let mut good = [0; 160];
    write_body(&mut good, &example());
    let refusal = |at: usize, value: u8| {
        let mut area = good;
        area[at] = value;
        owned(entries_in_body(&area)).unwrap_err()
    };
    assert_eq!(refusal(4, 255), "attribute's name lies outside of its area");
    assert_eq!(refusal(4, 138), "attributes have no end");
    assert_eq!(refusal(6, 4), "attribute's value overlaps the entries");
    assert_eq!(refusal(6, 153), "attribute's value lies outside of its area");
    assert_eq!(refusal(15, 255), "attribute's value lies outside of its area");
    assert_eq!(owned(entries_in_body(&good[..159])).unwrap_err(), "attributes in the inode are not aligned");
    // Any damage gives an error or another list, and no panic.
    for at in 0..good.len() {
        for value in [0, 1, 3, 0x7F, 0x80, 0xFF] {
            let mut area = good;
            area[at] = value;
            let _ = owned(entries_in_body(&area));
        }
    }
}

#[test]
fn every_bit_of_a_block_is_under_its_checksum() {
    let sb = superblock();
    let mut good = [0; 1024];
    write_block(&mut good, &sb, BLOCK, 1, &mut example());
    for at in 0..good.len() {
        let mut bytes = good;
        bytes[at] ^= 0x20;
        assert!(entries_in_block(&bytes, &sb, BLOCK).is_err(), "byte {at}");
    }
}

/// The hash that is written, and that of machines whose names are of signed bytes.
#[test]
fn hashes_of_entries_match() {
    let sb = superblock();
    let mut list = vec![attribute(index::USER, "é", b"12345"), attribute(index::USER, "empty", b"")];
    let mut block = vec![0; 1024];
    write_block(&mut block, &sb, BLOCK, 1, &mut list);
    let entries = || entries_in_block(&block, &sb, BLOCK).unwrap().map(Result::unwrap);
    assert!(entries().all(|entry| hash_matches(&entry, &block, None)));
    let first = entries().find(|entry| entry.name == "é".as_bytes()).unwrap();
    let fold = |hash: u32, bits: u32, word: u32| hash.rotate_left(bits) ^ word;
    // 0xC3 and 0xA9, the bytes of the name, with their signs.
    let name = fold(fold(0, 5, 0xFFFF_FFC3), 5, 0xFFFF_FFA9);
    let signed = fold(fold(name, 16, 0x3433_3231), 16, 0x35);
    assert_ne!(first.hash, signed);
    assert!(hash_matches(&Entry { hash: signed, ..first }, &block, None));
    assert!(!hash_matches(&Entry { hash: first.hash ^ 1, ..first }, &block, None));
    let of_value = Entry { value: Value::InInode { ino: 12, size_bytes: 5 }, ..first };
    let hash = fold(fold(fold(0, 5, 0xC3), 5, 0xA9), 16, 77);
    assert!(hash_matches(&Entry { hash, ..of_value }, &block, Some(77)));
    assert!(!hash_matches(&Entry { hash, ..of_value }, &block, Some(78)));
}

#[test]
fn overlaps_of_values_are_found() {
    let sb = Superblock::zeroed();
    let mut list = vec![attribute(index::USER, "a", b"12345"), attribute(index::USER, "b", b"678")];
    let mut block = vec![0; 1024];
    write_block(&mut block, &sb, BLOCK, 1, &mut list);
    let overlap = |block: &[u8]| entries_in_block(block, &sb, BLOCK).unwrap().overlap();
    assert!(!overlap(&block));
    // The first value takes the last 8 bytes, the second the 4 bytes before them.
    for (offset, is_wrong) in [(1016, true), (1013, true), (1012, false), (1008, false), (76, false)] {
        let mut changed = block.clone();
        put_u16(&mut changed, BLOCK_HEADER_BYTES + 20 + 2, offset);
        assert_eq!(overlap(&changed), is_wrong, "second value at {offset}");
    }
    // The first value in the second entry.
    put_u16(&mut block, BLOCK_HEADER_BYTES + 2, 60);
    assert!(overlap(&block));
    // The padding of the first value must be in the block as well.
    put_u16(&mut block, BLOCK_HEADER_BYTES + 2, 1017);
    assert!(overlap(&block));
}
