//! The allocator on volumes of mke2fs never gives a block or inode to two owners, agrees with a
//! model, and leaves volumes that e2fsck accepts.

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use common::Image;
use common::volume::{Volume, debugfs};
use xact_consistency::Handle;
use xact_fs::alloc::{Allocator, Hold, Purpose};
use xact_fs::inode_table::InodeTable;
use xact_layout::inode::{Inode, mode};
use xact_types::{BlockNr, Error, GroupNr, Ino, Run};

fn take(volume: &Volume, goal: u64, max: u32) -> Run {
    volume.alloc.take(BlockNr(goal), max, Purpose::Metadata, None).unwrap()
}

const OPTIONS: &[(&str, u64, &[&str])] = &[
    ("default", 64 << 20, &[]),
    ("1 KiB blocks", 40 << 20, &["-b", "1024"]),
    ("2 KiB blocks, small groups", 40 << 20, &["-b", "2048", "-g", "2048"]),
    ("no flex_bg", 40 << 20, &["-b", "1024", "-O", "^flex_bg"]),
    ("no checksums", 40 << 20, &["-b", "1024", "-O", "^metadata_csum"]),
    ("uninit_bg", 40 << 20, &["-b", "1024", "-O", "^metadata_csum,uninit_bg"]),
    ("uninit_bg, no 64bit", 40 << 20, &["-b", "1024", "-O", "^metadata_csum,^64bit,uninit_bg,^flex_bg"]),
    ("32-byte descriptors with checksums", 40 << 20, &["-b", "1024", "-O", "^64bit"]),
    ("csum_seed", 40 << 20, &["-b", "4096", "-O", "metadata_csum_seed"]),
    ("128-byte inodes", 40 << 20, &["-b", "1024", "-I", "128"]),
    ("many groups", 1 << 30, &["-b", "1024"]),
];

fn image(options: &(&str, u64, &[&str])) -> Image {
    Image::mke2fs(options.1, options.2)
}

#[test]
fn every_free_block_can_be_taken_once_and_given_back() {
    for options in OPTIONS {
        let volume = Volume::open(image(options));
        let space = volume.alloc.space().unwrap();
        let mut seen = HashSet::new();
        let mut runs = Vec::new();
        while let Ok(run) = volume.alloc.take(BlockNr(0), 5000, Purpose::Metadata, None) {
            for block in run.start.0..run.end().0 {
                assert!(seen.insert(block), "{}: block {block} was handed out twice", options.0);
            }
            runs.push(run);
        }
        assert_eq!(seen.len() as u64, space.free_blocks, "{}", options.0);
        assert_eq!(volume.alloc.space().unwrap().free_blocks, 0);
        runs.into_iter().for_each(|run| volume.alloc.give_back(run));
        assert_eq!(volume.alloc.space().unwrap(), space, "{}", options.0);
        assert!(volume.alloc.damage().is_none());
        volume.close();
    }
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

/// Turns a linked inode into a regular file of these runs; the test later gives it a name with
/// debugfs.
fn make_file(volume: &Volume, h: &mut Handle, ino: Ino, runs: &[Run]) {
    let sb = volume.alloc.superblock();
    let mut inode = Inode::zeroed(sb.inode_size());
    inode.set_mode(mode::REGULAR | 0o644);
    inode.set_links_count(1);
    inode.set_extra_isize(32.min(sb.inode_size() - 128));
    let mut area = [0; 60];
    area[..8].copy_from_slice(&[0x0A, 0xF3, runs.len() as u8, 0, 4, 0, 0, 0]);
    let mut blocks = 0;
    for (i, run) in runs.iter().enumerate() {
        let entry = &mut area[12 + 12 * i..24 + 12 * i];
        entry[..4].copy_from_slice(&(blocks as u32).to_le_bytes());
        entry[4..6].copy_from_slice(&(run.len as u16).to_le_bytes());
        entry[8..].copy_from_slice(&(run.start.0 as u32).to_le_bytes());
        blocks += u64::from(run.len);
    }
    inode.set_flags(0x80000);
    inode.set_block_area(&area);
    inode.set_size(blocks * u64::from(sb.block_size()));
    inode.set_sectors(sb, blocks * u64::from(sb.block_size() / 512));
    InodeTable::new(&volume.alloc).create(h, ino, &inode).unwrap();
}

#[test]
fn random_operations_agree_with_a_model_and_with_e2fsck() {
    for (seed, options) in OPTIONS.iter().enumerate() {
        let volume = Volume::open(image(options));
        let table = InodeTable::new(&volume.alloc);
        let mut random = Random(seed as u64);
        let blocks = volume.alloc.superblock().blocks_count();
        let before = volume.alloc.space().unwrap();
        let (mut taken, mut linked, mut dying): (Vec<Run>, Vec<Run>, Vec<Run>) = Default::default();
        let (mut inodes_taken, mut inodes_linked): (Vec<Ino>, Vec<Ino>) = Default::default();
        let mut in_use: HashSet<u64> = HashSet::new();
        let mut inodes_in_use: HashSet<Ino> = HashSet::new();
        for _ in 0..3000 {
            match random.below(10) {
                0..=3 => {
                    let max =
                        1 + if random.below(4) == 0 { random.below(700) } else { random.below(8) } as u32;
                    if let Ok(run) =
                        volume.alloc.take(BlockNr(random.below(blocks)), max, Purpose::Metadata, None)
                    {
                        assert!(run.len >= 1 && run.len <= max);
                        assert!((run.start.0..run.end().0).all(|block| in_use.insert(block)));
                        taken.push(run);
                    }
                }
                4 if !taken.is_empty() => {
                    let run = taken.swap_remove(random.below(taken.len() as u64) as usize);
                    volume.alloc.give_back(run);
                    (run.start.0..run.end().0).for_each(|block| assert!(in_use.remove(&block)));
                }
                5 if !taken.is_empty() => {
                    let run = taken.swap_remove(random.below(taken.len() as u64) as usize);
                    let mut h = volume.begin(volume.alloc.credits_for(run.len));
                    volume.alloc.link(&mut h, run).unwrap();
                    linked.push(run);
                }
                6 if !linked.is_empty() => {
                    let run = linked.swap_remove(random.below(linked.len() as u64) as usize);
                    let mut h = volume.begin(volume.alloc.credits_for(run.len));
                    volume.alloc.free(&mut h, run, None).unwrap();
                    dying.push(run);
                }
                7 => {
                    let ino = volume.alloc.take_inode(Ino::ROOT, random.below(2) == 0).unwrap();
                    assert!(inodes_in_use.insert(ino) && ino.0 > 10, "{ino} was handed out twice");
                    inodes_taken.push(ino);
                }
                8 if !inodes_taken.is_empty() => {
                    let ino = inodes_taken.swap_remove(random.below(inodes_taken.len() as u64) as usize);
                    if random.below(4) == 0 {
                        volume.alloc.give_back_inode(ino);
                        inodes_in_use.remove(&ino);
                    } else {
                        let mut h = volume.begin(Allocator::LINK_INODE_CREDITS);
                        volume.alloc.link_inode(&mut h, ino, false).unwrap();
                        make_file(&volume, &mut h, ino, &[]);
                        inodes_linked.push(ino);
                    }
                }
                9 if random.below(10) == 0 => {
                    volume.engine.sync().unwrap();
                    for run in dying.drain(..) {
                        (run.start.0..run.end().0).for_each(|block| assert!(in_use.remove(&block)));
                    }
                }
                _ => {}
            }
        }
        // debugfs does not extend a directory automatically.
        let mut names = vec!["expand_dir /".to_string(); 12];
        for (i, ino) in inodes_linked.iter().enumerate() {
            if i % 3 == 0 {
                let mut h = volume.begin(20);
                volume.alloc.free_inode(&mut h, *ino, false).unwrap();
                let freed = volume.alloc.free_inode(&mut h, *ino, false);
                assert!(matches!(freed, Err(Error::Corrupt(_))), "freed twice: {freed:?}");
                table
                    .update(&mut h, *ino, |inode| {
                        inode.set_links_count(0);
                        inode.set_dtime(1_700_000_000);
                    })
                    .unwrap();
            } else {
                let count = linked.len().min(4);
                let mut runs = linked.split_off(linked.len() - count);
                runs.sort_by_key(|run| run.start);
                make_file(&volume, &mut volume.begin(20), *ino, &runs);
                names.push(format!("link <{}> file{i}", ino.0));
            }
        }
        for run in linked {
            let mut h = volume.begin(20);
            volume.alloc.free(&mut h, run, None).unwrap();
            let again = volume.alloc.free(&mut h, run, None);
            assert!(matches!(again, Err(Error::Corrupt(_))), "freed twice: {again:?}");
        }
        taken.into_iter().for_each(|run| volume.alloc.give_back(run));
        inodes_taken.into_iter().for_each(|ino| volume.alloc.give_back_inode(ino));
        volume.engine.sync().unwrap();
        let after = volume.alloc.space().unwrap();
        assert!(after.free_blocks <= before.free_blocks && after.free_inodes < before.free_inodes);

        volume.alloc.write_counts(&mut volume.begin(1)).unwrap();
        let image = volume.close_unchecked();
        drop(table);
        debugfs(&image, &names.iter().map(String::as_str).collect::<Vec<_>>());
        image.assert_clean();

        // After another opening, the allocator agrees with the disk.
        let volume = Volume::open(image);
        let reopened = volume.alloc.space().unwrap();
        assert_eq!(reopened.free_inodes, after.free_inodes, "{}", options.0);
        let mut total = 0;
        while let Ok(run) = volume.alloc.take(BlockNr(0), 9999, Purpose::Metadata, None) {
            total += u64::from(run.len);
        }
        assert_eq!(total, reopened.free_blocks);
        assert!(volume.alloc.damage().is_none());
    }
}

#[test]
fn freed_blocks_wait_for_the_commit_and_for_holds() {
    let volume = Volume::open(image(&OPTIONS[0]));
    let run = take(&volume, 5000, 10);
    volume.alloc.link(&mut volume.begin(20), run).unwrap();
    let free = volume.alloc.space().unwrap().free_blocks;
    let hold = Hold::new();
    volume.alloc.free(&mut volume.begin(20), run, Some(hold.clone())).unwrap();
    assert_eq!(volume.alloc.space().unwrap().free_blocks, free + 10, "a user sees the space at once");
    assert_eq!(volume.alloc.reclaimable(), 10);
    let goal = run.start.0;
    let taken_at = |want: &str| {
        let got = take(&volume, goal, 1);
        volume.alloc.give_back(got);
        assert_eq!(got.start == run.start, want == "same", "{want}");
    };
    taken_at("other");
    volume.engine.sync().unwrap();
    taken_at("other");
    let view = hold.clone();
    drop(hold);
    taken_at("other");
    drop(view);
    taken_at("same");
    assert_eq!(volume.alloc.reclaimable(), 0);

    let run = take(&volume, goal, 10);
    volume.alloc.link(&mut volume.begin(20), run).unwrap();
    volume.alloc.free(&mut volume.begin(20), run, None).unwrap();
    taken_at("other");
    assert!(volume.alloc.reclaim().unwrap());
    taken_at("same");
    volume.close();
}

#[test]
fn reservations_and_reserves_keep_space_from_others() {
    let volume = Volume::open(Image::mke2fs(16 << 20, &["-b", "1024", "-m", "5"]));
    let alloc = &volume.alloc;
    let data = Purpose::Data { privileged: false };
    let root = Purpose::Data { privileged: true };
    let space = alloc.space().unwrap();
    let mut all = alloc.reserve(space.available_blocks, data).unwrap();
    assert!(matches!(alloc.reserve(1, data), Err(Error::NoSpace)));
    assert!(matches!(alloc.take(BlockNr(0), 1, data, None), Err(Error::NoSpace)));
    let reserved = alloc.superblock().reserved_blocks_count();
    let roots = alloc.reserve(reserved, root).unwrap();
    assert!(matches!(alloc.reserve(1, root), Err(Error::NoSpace)));
    let last = alloc.take(BlockNr(0), 1, Purpose::Metadata, None).unwrap();
    // All reserved blocks can be taken.
    let mut runs = vec![last];
    let mut part = all.split(100);
    assert_eq!(part.left(), 100);
    while part.left() > 0 {
        runs.push(alloc.take(BlockNr(9000), 1000, data, Some(&mut part)).unwrap());
    }
    all.absorb(part);
    while all.left() > 0 {
        runs.push(alloc.take(BlockNr(0), 1000, data, Some(&mut all)).unwrap());
    }
    let got: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
    assert_eq!(got, space.available_blocks + 1);
    drop((roots, all));
    runs.into_iter().for_each(|run| alloc.give_back(run));
    assert_eq!(alloc.space().unwrap(), space);
    volume.close();
}

#[test]
fn fixed_metadata_and_foreign_blocks_are_never_freed() {
    let volume = Volume::open(image(&OPTIONS[1]));
    let sb = volume.alloc.superblock().clone();
    let mut h = volume.begin(20);
    let mut refused = |start: u64, len: u32, what: &str| {
        let result = volume.alloc.free(&mut h, Run { start: BlockNr(start), len }, None);
        assert!(matches!(result, Err(Error::Corrupt(_))), "{what}: {result:?}");
        assert!(!volume.alloc.is_usable(Run { start: BlockNr(start), len }).unwrap(), "{what}");
    };
    refused(0, 1, "boot block");
    refused(1, 1, "superblock");
    refused(2, 1, "descriptors");
    refused(2, u32::MAX, "everything");
    refused(sb.blocks_count(), 1, "after the end");
    refused(sb.blocks_count() - 1, 2, "across the end");
    refused(u64::MAX, 1, "nowhere");
    let (block, at) = sb.desc_place(GroupNr(0));
    let desc = xact_layout::group::GroupDesc::new(&volume.engine.read(block).unwrap()[at..at + 64]);
    refused(desc.block_bitmap().0, 1, "block bitmap");
    refused(desc.inode_table().0 + 5, 1, "inode table");
    refused(sb.group_start(GroupNr(1)).0, 1, "backup superblock");
    for ino in [0, 1, 2, 8, 10, sb.inodes_count() + 1, u32::MAX] {
        let result = volume.alloc.free_inode(&mut h, Ino(ino), false);
        assert!(matches!(result, Err(Error::Corrupt(_))), "inode {ino}: {result:?}");
    }
}

/// For each block, the allocator knows whether it is fixed metadata, both before and after it has
/// read all groups.
#[test]
fn fixed_metadata_is_known_before_all_groups_are() {
    let packed = ("packed", 80 << 20, ["-b", "1024", "-G", "2", "-E", "packed_meta_blocks=1"].as_slice());
    let narrow = ("narrow", 80 << 20, ["-b", "1024", "-G", "2"].as_slice());
    for options in OPTIONS.iter().chain([&packed, &narrow]).filter(|options| options.1 < 1 << 30) {
        let image = image(options);
        // The first line repeats the command.
        let journal: Vec<u64> = debugfs(&image, &["blocks <8>"])
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        assert!(journal.len() > 1000, "{}", options.0);
        let volume = Volume::open(image);
        let sb = volume.sb();
        let fresh = xact_fs::fixed_blocks::open_allocator(volume.engine.clone(), sb.clone()).unwrap();
        let usable = |start: u64, len: u32| {
            [&fresh, &volume.alloc].map(|alloc| alloc.is_usable(Run { start: BlockNr(start), len }).unwrap())
        };
        volume.alloc.read_groups().unwrap();
        for block in 0..sb.blocks_count() {
            let [before, after] = usable(block, 1);
            assert_eq!(before, after, "{}: block {block}", options.0);
        }
        for block in journal {
            assert_eq!(usable(block, 1), [false; 2], "{}: block {block} of the journal", options.0);
        }
        for group in (1..sb.group_count()).map(|group| sb.group_start(GroupNr(group)).0) {
            let [before, after] = usable(group - 300, 301);
            assert_eq!(before, after, "{}: blocks before {group}", options.0);
        }
        let table = InodeTable::new(&fresh);
        for ino in (0..=sb.inodes_count() + 1).map(Ino) {
            let [before, after] = [&table, &volume.inodes].map(|table| table.block_of(ino).ok());
            assert_eq!(before, after, "{}: inode {}", options.0, ino.0);
        }
        volume.close_unchecked();
    }
}

/// A corrupt descriptor of an unused group does not prevent reads; calls that need the count of
/// free space return the error.
#[test]
fn a_damaged_descriptor_is_reported_when_it_is_needed() {
    let image = Image::mke2fs(80 << 20, &["-b", "1024", "-G", "2", "-O", "^has_journal,^resize_inode"]);
    let sb = image.superblock();
    let group = GroupNr(sb.group_count() - 3);
    let (block, at) = sb.desc_place(group);
    image.device().write_at(&[0xa5; 8], block.0 * 1024 + at as u64).unwrap();
    let volume = Volume::open(image);
    volume.inodes.read(Ino::ROOT).unwrap();
    assert!(
        volume
            .alloc
            .is_usable(Run { start: BlockNr(sb.group_start(group).0 - 3 * 8192 + 500), len: 1 })
            .is_ok()
    );
    let reports_corruption = |result: xact_types::Result<()>| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(&format!("group {}", group.0)) && error.contains("checksum"), "{error}");
    };
    reports_corruption(volume.alloc.is_usable(Run { start: sb.group_start(group), len: 1 }).map(|_| ()));
    reports_corruption(volume.inodes.read(sb.inode_at(group, 0)).map(|_| ()));
    reports_corruption(volume.alloc.space().map(|_| ()));
    reports_corruption(volume.alloc.reserve(1, Purpose::Metadata).map(|_| ()));
    reports_corruption(volume.alloc.take(BlockNr(0), 1, Purpose::Metadata, None).map(|_| ()));
    reports_corruption(volume.alloc.take_inode(Ino::ROOT, false).map(|_| ()));
    assert!(!volume.alloc.can_reserve(1, Purpose::Metadata));
    volume.close_unchecked();
}

#[test]
fn a_damaged_group_is_named_and_not_used() {
    let image = image(&OPTIONS[1]);
    let sb = image.superblock();
    // The last group always has a bitmap of its own.
    let last = GroupNr(sb.group_count() - 1);
    let (block, at) = sb.desc_place(last);
    let device = image.device();
    let mut bytes = vec![0; 1024];
    device.read_at(&mut bytes, block.0 * 1024).unwrap();
    let desc = xact_layout::group::GroupDesc::new(&bytes[at..at + 64]);
    // Mark every block of it free.
    device.write_at(&[0; 1024], desc.block_bitmap().0 * 1024).unwrap();
    drop(device);
    let volume = Volume::open(image);
    let start = sb.group_start(last);
    let run = volume.alloc.take(start, 1, Purpose::Metadata, None).unwrap();
    assert_ne!(sb.group_of(run.start), last);
    assert_eq!(
        volume.alloc.damage().unwrap().to_string(),
        format!(
            "the volume is damaged: {}: checksum of the block bitmap does not match (run 'xact check' on it)",
            desc.block_bitmap()
        )
    );
}

#[test]
fn numbers_held_by_a_transaction_leave_no_old_bytes_in_the_table() {
    // A volume whose unwritten inode tables have junk, like those of a reused disk.
    let image = Image::empty(64 << 20);
    image.device().write_at(&vec![0xA5; 64 << 20], 0).unwrap();
    common::tool(
        "mke2fs",
        &["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1,nodiscard", image.path_str()],
        |code| code == 0,
    );
    let volume = Volume::open(image);
    let numbers: Vec<Ino> = (0..100).map(|_| volume.alloc.take_inode(Ino::ROOT, false).unwrap()).collect();
    let table = InodeTable::new(&volume.alloc);
    assert!(table.read(numbers[80]).is_err(), "never used");
    let mut h = volume.begin(20);
    volume.alloc.link_inode(&mut h, numbers[80], false).unwrap();
    make_file(&volume, &mut h, numbers[80], &[]);
    drop(h);
    for ino in &numbers[..80] {
        assert_eq!(table.read(*ino).unwrap().mode(), 0, "{ino} reads as zeros");
    }
    volume.engine.sync().unwrap();
    let mut h = volume.begin(20);
    volume.alloc.free_inode(&mut h, numbers[80], false).unwrap();
    table.update(&mut h, numbers[80], |inode| inode.set_links_count(0)).unwrap();
    table.update(&mut h, numbers[80], |inode| inode.set_dtime(1_700_000_000)).unwrap();
    drop(h);
    volume.close();
}

#[test]
fn files_stay_near_their_folder_and_top_level_folders_spread() {
    let volume = Volume::open(image(OPTIONS.last().unwrap()));
    let sb = volume.alloc.superblock().clone();
    let group = |ino: Ino| sb.inode_place(ino).unwrap().0;
    let folders: Vec<Ino> = (0..6).map(|_| volume.alloc.take_inode(Ino::ROOT, true).unwrap()).collect();
    let groups: HashSet<GroupNr> = folders.iter().map(|ino| group(*ino)).collect();
    assert!(groups.len() >= 5, "top-level folders in {groups:?}");
    for folder in folders {
        let file = volume.alloc.take_inode(folder, false).unwrap();
        assert_eq!(group(file), group(folder));
        let goal = volume.alloc.goal_for(file);
        let run = take(&volume, goal.0, 100);
        assert_eq!(sb.group_of(run.start), group(file));
        assert_eq!(run.len, 100);
        let next = take(&volume, run.end().0, 50);
        assert_eq!(next.start, run.end(), "an appended run continues where the last one ended");
    }
}

#[test]
fn threads_never_share_a_block_or_an_inode() {
    let volume = Volume::open(Image::mke2fs(48 << 20, &["-b", "1024", "-g", "1024"]));
    let before = volume.alloc.space().unwrap();
    let owners: Vec<AtomicBool> = (0..volume.sb().blocks_count()).map(|_| AtomicBool::new(false)).collect();
    let inode_owners: Vec<AtomicBool> =
        (0..=volume.sb().inodes_count()).map(|_| AtomicBool::new(false)).collect();
    let own = |run: Run| {
        for block in run.start.0..run.end().0 {
            assert!(!owners[block as usize].swap(true, SeqCst), "block {block} has two owners");
        }
    };
    let disown = |run: Run| {
        (run.start.0..run.end().0).for_each(|block| owners[block as usize].store(false, SeqCst));
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (volume, own, disown, inode_owners) = (&volume, &own, &disown, &inode_owners);
            scope.spawn(move || {
                let alloc = &volume.alloc;
                let mut random = Random(thread);
                let mut kept = Vec::new();
                for step in 0..400 {
                    let mut reservation = alloc.reserve(60, Purpose::Metadata).unwrap();
                    let mut runs = Vec::new();
                    while reservation.left() > 0 {
                        let goal = BlockNr(random.below(volume.sb().blocks_count()));
                        let max = 1 + random.below(40) as u32;
                        let run = alloc.take(goal, max, Purpose::Metadata, Some(&mut reservation)).unwrap();
                        own(run);
                        runs.push(run);
                    }
                    let ino = alloc.take_inode(Ino(11), step % 2 == 0).unwrap();
                    assert!(!inode_owners[ino.0 as usize].swap(true, SeqCst), "{ino} has two owners");
                    kept.push(ino);
                    for run in runs {
                        if random.below(3) == 0 {
                            disown(run);
                            alloc.give_back(run);
                            continue;
                        }
                        alloc.link(&mut volume.begin(alloc.credits_for(run.len)), run).unwrap();
                        // Clear the owner before the commit that makes the run available to others.
                        let mut h = volume.begin(alloc.credits_for(run.len));
                        disown(run);
                        alloc.free(&mut h, run, None).unwrap();
                    }
                    if step % 50 == 0 {
                        volume.engine.sync().unwrap();
                    }
                }
                for ino in kept {
                    inode_owners[ino.0 as usize].store(false, SeqCst);
                    alloc.give_back_inode(ino);
                }
            });
        }
    });
    volume.engine.sync().unwrap();
    assert_eq!(volume.alloc.space().unwrap(), before);
    assert_eq!(volume.alloc.reclaimable(), 0);
    assert!(volume.alloc.damage().is_none());
    volume.close();
}
