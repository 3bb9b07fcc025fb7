//! The uses of blocks, each against debugfs and dumpe2fs: of every block of a volume.

#[path = "../../fs/tests/common/mod.rs"]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;

use common::{Image, tool};
use xact_check::{Use, uses};
use xact_types::{BlockNr, GroupNr, Ino};

/// A volume of 1 KiB blocks with files, a fragmented file, folders, links and attributes.
fn populated(options: &[&str]) -> Image {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("many")).unwrap();
    for n in 0..60 {
        std::fs::write(at(&format!("many/a file with a long name, number {n}")), vec![7; 1500]).unwrap();
    }
    let sparse = File::create(at("fragments")).unwrap();
    for n in 0..60 {
        sparse.write_all_at(&[n as u8; 100], n * 3 * 1024).unwrap();
    }
    std::os::unix::fs::symlink("x".repeat(200), at("slow")).unwrap();
    std::os::unix::fs::symlink("short", at("fast")).unwrap();
    let image = Image::mke2fs(
        20 << 20,
        &[options, &["-b", "1024", "-N", "600", "-d", folder.path().to_str().unwrap()]].concat(),
    );
    let value = "v".repeat(700);
    let request = format!("ea_set fragments user.large {value}");
    tool("debugfs", &["-w", "-R", &request, image.path_str()], |code| code == 0);
    image
}

/// Inodes by block, of debugfs.
fn owners(image: &Image, blocks: &BTreeSet<BlockNr>) -> BTreeMap<u64, u32> {
    let numbers: Vec<String> = blocks.iter().map(|block| block.0.to_string()).collect();
    let mut found = BTreeMap::new();
    for part in numbers.chunks(4000) {
        let request = format!("icheck {}", part.join(" "));
        let text = tool("debugfs", &["-R", &request, image.path_str()], |code| code == 0);
        for line in text.lines() {
            let mut words = line.split('\t');
            if let (Some(Ok(block)), Some(Ok(ino))) =
                (words.next().map(str::parse), words.next().map(str::parse))
            {
                found.insert(block, ino);
            }
        }
    }
    found
}

fn inode_of(image: &Image, path: &str) -> Ino {
    let text = tool("debugfs", &["-R", &format!("stat {path}"), image.path_str()], |code| code == 0);
    Ino(text
        .split_whitespace()
        .nth_back(0)
        .and(text.split("Inode: ").nth(1))
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap())
}

/// The first number behind a text in a line.
fn number_behind(text: &str, what: &str) -> u64 {
    let rest = text.split(what).nth(1).unwrap_or_else(|| panic!("{what} in {text}"));
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

fn compare(options: &[&str]) {
    let image = populated(options);
    let sb = image.superblock();
    let wanted: BTreeSet<BlockNr> = (1..sb.blocks_count()).map(BlockNr).collect();
    let found = uses(image.device(), &wanted).unwrap();
    assert_eq!(found.len(), wanted.len());
    let owners = owners(&image, &wanted);
    let (mut data, mut maps, mut attributes) = (0, 0, 0);
    for (block, of) in &found {
        let owner = match of {
            Use::Data(ino) | Use::Directory(ino) | Use::Link(ino) | Use::Map(ino) | Use::Attributes(ino) => {
                Some(ino.0)
            }
            _ => None,
        };
        // Inode 7 has the blocks that are reserved for descriptors.
        let theirs = owners.get(&block.0).copied().filter(|&ino| ino != 7);
        if !matches!(of, Use::GroupDescriptors) {
            assert_eq!(owner.filter(|&ino| ino != 7), theirs, "{options:?} {block:?} {of:?}");
        }
        data += u32::from(matches!(of, Use::Data(_)));
        maps += u32::from(matches!(of, Use::Map(_)));
        attributes += u32::from(matches!(of, Use::Attributes(_)));
    }
    assert!(data >= 60 * 2 + 60 && maps > 0 && attributes == 1, "{data} {maps} {attributes}");
    let kinds_of = |ino: Ino| -> BTreeSet<&str> {
        found
            .values()
            .filter_map(|of| match of {
                Use::Data(of) => (*of == ino).then_some("data"),
                Use::Directory(of) => (*of == ino).then_some("directory"),
                Use::Link(of) => (*of == ino).then_some("link"),
                Use::Map(of) => (*of == ino).then_some("map"),
                Use::Attributes(of) => (*of == ino).then_some("attributes"),
                _ => None,
            })
            .collect()
    };
    assert_eq!(kinds_of(inode_of(&image, "slow")), ["link"].into());
    assert_eq!(kinds_of(inode_of(&image, "many")), ["directory"].into());
    assert_eq!(kinds_of(inode_of(&image, "fast")), [].into());
    assert_eq!(kinds_of(inode_of(&image, "fragments")), ["attributes", "data", "map"].into());

    // The fixed metadata of each group.
    let text = tool("dumpe2fs", &[image.path_str()], |code| code == 0);
    for (number, group) in text.split("\nGroup ").filter(|part| part.contains(": (Blocks ")).enumerate() {
        let nr = GroupNr(number as u32);
        let of = |what: &str| found[&BlockNr(number_behind(group, what))];
        assert_eq!(of("Block bitmap at "), Use::BlockBitmap(nr));
        assert_eq!(of("Inode bitmap at "), Use::InodeBitmap(nr));
        let table = number_behind(group, "Inode table at ");
        let (blocks, per_block) = (u64::from(sb.inode_table_blocks()), sb.inodes_per_block());
        for at in 0..blocks {
            let first = number as u32 * sb.inodes_per_group() + at as u32 * per_block + 1;
            let last = (first + per_block - 1).min((number as u32 + 1) * sb.inodes_per_group());
            assert_eq!(found[&BlockNr(table + at)], Use::Inodes(Ino(first), Ino(last)), "{options:?}");
        }
        let behind = found[&BlockNr(table + blocks)];
        assert!(!matches!(behind, Use::Inodes(_, last) if last.0 <= sb.inodes_per_group()), "{behind:?}");
        let start = sb.group_start(nr).0;
        let base = u64::from(sb.base_meta_blocks(nr));
        for at in start..start + base {
            let is_first = number == 0 && at == start;
            let expected = if is_first { Use::Superblock } else { Use::GroupDescriptors };
            assert_eq!(found[&BlockNr(at)], expected, "block {at}");
        }
        assert_ne!(found[&BlockNr(start + base)], Use::GroupDescriptors);
    }
    // Blocks beyond the volume have no use; a part is as the whole.
    let beyond: BTreeSet<BlockNr> = [sb.blocks_count() + 5, 1 << 40, 1].map(BlockNr).into();
    let part = uses(image.device(), &beyond).unwrap();
    assert_eq!(part.into_values().collect::<Vec<_>>(), [Use::Superblock, Use::Free, Use::Free]);
}

#[test]
fn extents_and_flex_groups() {
    compare(&[]);
}

#[test]
fn pointers_and_plain_groups() {
    compare(&["-O", "^extents,^flex_bg,^64bit,^metadata_csum"]);
}
