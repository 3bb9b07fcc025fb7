//! Block maps agree with a model; their removal takes many handles with few credits.

use std::collections::{BTreeMap, BTreeSet};

use xact_layout::put_u32;
use xact_types::{BlockNr, Error, FileBlock, Run};

use super::super::block_map::STEP_CREDITS;
use super::super::{Mapping, Progress, mapped_blocks_max};
use super::support::{BLOCK_SIZE, DATA_FROM, Volume};
use crate::metadata_blocks::CREDITS_PER_BLOCK;

const N: u32 = BLOCK_SIZE as u32 / 4;

/// A volume whose file has direct blocks and blocks below each kind of array; and those blocks.
fn volume() -> (Volume, BTreeMap<u32, u64>) {
    let mut volume = Volume::new();
    volume.inode.set_flags(0);
    let mut next_array = 100;
    // Pointers by array and slot; array 0 is `i_block`.
    let mut places: BTreeMap<(u64, u32), u64> = BTreeMap::new();
    let mut model = BTreeMap::new();
    let files = (0..8).chain(12 + 3..12 + 60).chain(12 + N + N - 20..12 + N + N + 30).chain([
        12 + N + N * N - 1,
        12 + N + N * N,
        12 + N + N * N + 5 * N * N + 7 * N + 9,
    ]);
    for at in files {
        let block = 10 * DATA_FROM + 2 * u64::from(at / 5) + u64::from(at);
        model.insert(at, block);
        let (mut below, levels) = match at {
            0..12 => (at, 0),
            _ if at < 12 + N => (at - 12, 1),
            _ if at < 12 + N + N * N => (at - 12 - N, 2),
            _ => (at - 12 - N - N * N, 3),
        };
        let (mut array, mut slot) = (0, if levels == 0 { below } else { 11 + levels });
        for level in (0..levels).rev() {
            array = *places.entry((array, slot)).or_insert_with(|| {
                next_array += 1;
                next_array
            });
            slot = below / N.pow(level);
            below %= N.pow(level);
        }
        places.insert((array, slot), block);
    }
    let mut area = [0; 60];
    for (&(array, slot), &block) in &places {
        if array == 0 {
            put_u32(&mut area, 4 * slot as usize, block as u32);
        } else {
            let set = |bytes: &mut [u8]| put_u32(bytes, 4 * slot as usize, block as u32);
            volume.change(1, |_, handle, _| handle.update(BlockNr(array), set)).unwrap();
            volume.blocks.linked.borrow_mut().insert(BlockNr(array));
        }
    }
    volume.inode.set_block_area(&area);
    let blocks = (model.len() + volume.blocks.linked.borrow().len()) as u64;
    volume.inode.set_sectors(&volume.sb, blocks * 2);
    (volume, model)
}

fn check(volume: &Volume, model: &BTreeMap<u32, u64>) {
    let mut found = BTreeMap::new();
    let range = FileBlock(0)..FileBlock(u32::MAX);
    volume
        .extents()
        .iterate(&volume.inode, range, &mut |e| {
            found.extend((0..e.run.len).map(|i| (e.at.0 + i, e.run.start.0 + u64::from(i))));
            Ok(true)
        })
        .unwrap();
    assert_eq!(found, *model);
    let blocks = (model.len() + volume.blocks.linked.borrow().len()) as u64;
    assert_eq!(volume.inode.sectors(&volume.sb), blocks * 2, "i_blocks");
}

#[test]
fn all_kinds_of_places_are_mapped() {
    let (volume, model) = volume();
    check(&volume, &model);
    let map = |at: u32| volume.extents().map(&volume.inode, FileBlock(at)).unwrap();
    assert_eq!(map(8), Mapping::Hole { len: 4 });
    assert_eq!(map(12 + 60), Mapping::Hole { len: N - 60 });
    assert_eq!(map(12 + N), Mapping::Hole { len: N - 20 });
    // A hole ends with the slot above it.
    assert_eq!(map(12 + N + 2 * N), Mapping::Hole { len: N });
    let end = 12 + N + N * N + N * N * N;
    assert_eq!(map(end), Mapping::Hole { len: u32::MAX - end });
}

/// The number of arrays that the blocks of the model need.
fn arrays_needed(model: &BTreeMap<u32, u64>) -> usize {
    let mut arrays = BTreeSet::new();
    for &at in model.keys() {
        let beyond = u64::from(at).saturating_sub(12);
        let n = u64::from(N);
        match at {
            0..12 => {}
            _ if beyond < n => {
                arrays.insert((1, 0));
            }
            _ if beyond < n + n * n => {
                arrays.extend([(2, 0), (3, (beyond - n) / n)]);
            }
            _ => {
                let deep = beyond - n - n * n;
                arrays.extend([(4, 0), (5, deep / (n * n)), (6, deep / n)]);
            }
        }
    }
    arrays.len()
}

#[test]
fn insertions_and_removals_agree_with_the_model() {
    for seed in 1..20u64 {
        let mut volume = Volume::new();
        volume.inode.set_flags(0);
        volume.inode.set_block_area(&[0; 60]);
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |limit: u32| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as u32 % limit
        };
        // The borders between the kinds of slots, and their surroundings.
        let places = [0, 12, 12 + N, 12 + 2 * N, 12 + N + N * N, 12 + N + 2 * N * N];
        let mut next_data = 10 * DATA_FROM;
        for _ in 0..120 {
            let from = (places[below(6) as usize] + below(40)).saturating_sub(20);
            let longest = if below(4) == 0 { 3 * N } else { 30 };
            let mut to = from + 1 + below(longest);
            if below(3) > 0 {
                to = model.range(from..to).next().map_or(to, |(&used, _)| used);
                if from == to {
                    continue;
                }
                next_data += u64::from(below(3));
                let run = Run { start: BlockNr(next_data), len: to - from };
                next_data += u64::from(run.len);
                let credits = volume.extents().credits_insert(&volume.inode, 1, run.len);
                volume
                    .change(credits, |extents, handle, inode| {
                        extents.insert(handle, inode, FileBlock(from), run, false)
                    })
                    .unwrap();
                model.extend((from..to).map(|at| (at, run.start.0 + u64::from(at - from))));
            } else {
                volume.test_engine.set_max_credits(u32::MAX);
                let credits = volume.extents().credits_remove(&volume.inode);
                let progress = volume.change(credits, |extents, handle, inode| {
                    extents.remove(handle, inode, FileBlock(from)..FileBlock(to), &mut |_, _| Ok(()))
                });
                assert_eq!(progress.unwrap(), Progress::Done);
                model.retain(|at, _| !(from..to).contains(at));
            }
            assert_eq!(volume.blocks.linked.borrow().len(), arrays_needed(&model), "arrays");
        }
        check(&volume, &model);
    }
}

#[test]
fn a_full_volume_changes_nothing() {
    let mut volume = Volume::new();
    volume.inode.set_flags(0);
    volume.inode.set_block_area(&[0; 60]);
    *volume.blocks.limit.borrow_mut() = Some(2);
    let before = volume.inode.clone();
    // The run needs the single array, the double one, and one below it.
    let run = Run { start: BlockNr(10 * DATA_FROM), len: N + 30 };
    let credits = volume.extents().credits_insert(&volume.inode, 1, run.len);
    let result = volume
        .change(credits, |extents, handle, inode| extents.insert(handle, inode, FileBlock(0), run, false));
    assert!(matches!(result, Err(Error::NoSpace)));
    assert_eq!(volume.inode, before);
    assert!(volume.blocks.linked.borrow().is_empty());
    *volume.blocks.limit.borrow_mut() = Some(3);
    volume
        .change(credits, |extents, handle, inode| extents.insert(handle, inode, FileBlock(0), run, false))
        .unwrap();
    assert_eq!(volume.blocks.linked.borrow().len(), 3);
}

#[test]
fn a_removal_continues_over_many_handles() {
    let everything = 0..u32::MAX;
    for range in [everything, 5..12 + N + N, 12 + 10..12 + 20, 12 + N + N..u32::MAX] {
        let (mut volume, mut model) = volume();
        let (start, mut end) = (FileBlock(range.start), FileBlock(range.end));
        let (mut freed, mut stops) = (Vec::new(), 0);
        loop {
            // Fewer than `credits_remove`, because every extent here has one block.
            let credits = STEP_CREDITS + CREDITS_PER_BLOCK;
            assert!(credits <= volume.extents().credits_remove(&volume.inode));
            volume.test_engine.set_max_credits(credits);
            let progress = volume.change(credits, |extents, handle, inode| {
                extents.remove(handle, inode, start..end, &mut |_, run| {
                    freed.extend((0..run.len).map(|i| run.start.0 + u64::from(i)));
                    Ok(())
                })
            });
            match progress.unwrap() {
                Progress::Done => break,
                Progress::Stopped(at) => {
                    assert!(at < end, "no progress");
                    (end, stops) = (at, stops + 1);
                }
            }
        }
        assert!(stops > 0 || range.end == 12 + 20, "it did not fit into one handle");
        let mut expected: Vec<u64> = model.range(range.clone()).map(|(_, &block)| block).collect();
        freed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(freed, expected, "{range:?}");
        model.retain(|at, _| !range.contains(at));
        check(&volume, &model);
        if model.is_empty() {
            assert!(volume.blocks.linked.borrow().is_empty(), "all arrays are freed");
            assert_eq!(volume.inode.block_area(), &[0; 60]);
        }
    }
}

/// The kernel's numbers (`ext4_max_bitmap_size`): whole trees, and what 32 bits of sectors allow.
#[test]
fn largest_files_are_the_kernels() {
    let blocks =
        |block_size: u32, sectors: u64| mapped_blocks_max(block_size, sectors / u64::from(block_size / 512));
    assert_eq!(blocks(1024, u32::MAX.into()), 16_843_020);
    assert_eq!(blocks(2048, u32::MAX.into()), 134_480_396);
    assert_eq!(blocks(4096, u32::MAX.into()), 536_346_110);
    assert_eq!(blocks(65536, u32::MAX.into()), 33_552_382);
    assert_eq!(blocks(4096, (1 << 48) - 1), 1_074_791_436);
}
