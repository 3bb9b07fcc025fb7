//! Volumes with generations: the report of a sound one, and damage anywhere in the pool, which is
//! reported.

use std::sync::Arc;

use xact_check::Report;
use xact_consistency::{EngineOptions, open_generations};
use xact_device::{BlockDevice, MemoryDevice};
use xact_fs::mkfs::{MkfsOptions, mkfs_generations};
use xact_fs::{Caller, View, VolumeOptions, WriteHow};
use xact_layout::generations::{
    Pointer, PoolShape, ROOT_BYTES, Root, SnapshotOf, Target, decode_snapshots, encode_snapshots,
};
use xact_types::{Error, Ino};

const BLOCK: usize = 1024;

fn check(bytes: Vec<u8>) -> Result<Report, Error> {
    xact_check::check(Arc::new(MemoryDevice::from_bytes(bytes)), &mut |_, _| ())
}

/// Whether the check reports no problem; damage that prevents the check counts as a problem.
fn is_sound(bytes: Vec<u8>) -> bool {
    match check(bytes) {
        Ok(report) => report.is_sound(),
        Err(Error::Corrupt(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

/// A volume with three snapshots, as a crash leaves it. One snapshot has a file that was deleted
/// while it was open, one is of chosen paths.
fn populated() -> Vec<u8> {
    let memory = Arc::new(MemoryDevice::new(12 << 20));
    let device: Arc<dyn BlockDevice> = memory.clone();
    let options = MkfsOptions { block_size: Some(BLOCK as u32), zeroed: true, ..MkfsOptions::default() };
    mkfs_generations(&device, &options, Some(2 << 20)).unwrap();
    let options = VolumeOptions { flusher: false, ..VolumeOptions::default() };
    let volume = xact_fs::open(device, &options).unwrap();
    for (n, name) in ["first", "second"].into_iter().enumerate() {
        let dir = volume.make_dir(&Caller::ROOT, Ino::ROOT, name.as_bytes(), 0o755).unwrap().ino;
        for file in 0..20u8 {
            let ino = volume.make_node(&Caller::ROOT, dir, &[b'a' + file], 0o100_644, 0).unwrap().ino;
            volume.write(ino, 0, &vec![file; 700 * usize::from(file)], WriteHow::default()).unwrap();
        }
        if n == 1 {
            let open = volume.lookup(dir, b"e").unwrap().ino;
            volume.hold(open).unwrap();
            volume.unlink(&Caller::ROOT, dir, b"e").unwrap();
        }
        volume.sync_all().unwrap();
        volume.engine().snapshots().expect("was made so").create(name, 1).unwrap();
    }
    let snapshots = volume.engine().snapshots().expect("was made so");
    let unpruned = snapshots.begin_partial("part", 1).unwrap();
    let part = xact_fs::prune::prune(unpruned.image(), &[b"first/t".to_vec(), b"second/c".to_vec()]);
    unpruned.finish(part.unwrap()).unwrap();
    volume.make_dir(&Caller::ROOT, Ino::ROOT, b"newest", 0o755).unwrap();
    volume.sync_all().unwrap();
    drop(volume);
    let mut bytes = vec![0; memory.size_bytes() as usize];
    memory.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn shape(bytes: &[u8]) -> PoolShape {
    let device = Arc::new(MemoryDevice::from_bytes(bytes.to_vec()));
    let engine =
        open_generations(device, EngineOptions { read_only: true, ..EngineOptions::default() }).unwrap();
    PoolShape {
        block_size: BLOCK as u32,
        volume_blocks: engine.volume_bytes() / BLOCK as u64,
        device_blocks: (bytes.len() / BLOCK) as u64,
    }
}

/// The newest root.
fn root(bytes: &[u8], shape: &PoolShape) -> (usize, Root) {
    let decoded = (0..2).filter_map(|slot| {
        let at = shape.root_offset(slot) as usize;
        Some((slot, Root::decode(&bytes[at..at + ROOT_BYTES], shape, true).ok()?))
    });
    decoded.max_by_key(|(_, root)| root.generation).unwrap()
}

#[test]
fn a_sound_one_with_all_its_generations() {
    let report = check(populated()).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    assert_eq!(report.generations, 4);
    assert!(
        report
            .remarks
            .iter()
            .any(|r| r == "snapshot 'second': one inode waits for its deletion or truncation")
    );
    // Three that were created, and those of a new volume.
    assert_eq!((report.totals.directories, report.totals.files), (5, 39));
}

#[test]
fn damage_anywhere_in_the_pool_is_reported() {
    let good = populated();
    let shape = shape(&good);
    let (slot, root) = root(&good, &shape);
    let bitmap = shape.bitmap_block(0, root.bitmaps[0].1).0 as usize * BLOCK;
    let bit = |place: u64| {
        let index = (place - shape.volume_blocks) as usize;
        (bitmap + index / 8, 1u8 << (index % 8))
    };
    let (mut used, mut free) = (0, 0);
    for place in shape.first_pool_block().0..shape.device_blocks {
        let (at, mask) = bit(place);
        let in_use = good[at] & mask != 0;
        let mut bad = good.clone();
        // The last byte of a block with padding is covered by a checksum as well.
        let byte = place as usize * BLOCK + (place as usize * 37) % BLOCK;
        bad[byte] ^= 0x40;
        // The log is empty: old records in its area do not count.
        let in_log =
            root.log.is_some_and(|(first, blocks)| (first.0..first.0 + u64::from(blocks)).contains(&place));
        if in_log {
            assert!(in_use && is_sound(bad), "place {place} is of the empty log");
        } else if in_use {
            used += 1;
            assert!(!is_sound(bad), "a byte of place {place} was damaged");
        } else if free < 20 {
            free += 1;
            assert!(is_sound(bad), "place {place} is free");
        }
    }
    assert!(used > 30 && free == 20, "{used} {free}");
    let newest = shape.root_offset(slot) as usize;
    let mut old = good.clone();
    old[newest + 600] ^= 1;
    // The other slot's generation is older, and its pool blocks may have new owners.
    let _ = check(old);
    let mut none = good.clone();
    none[newest + 600] ^= 1;
    none[shape.root_offset(1 - slot) as usize + 600] ^= 1;
    assert!(matches!(check(none), Err(Error::Corrupt(_))));
}

/// A snapshot of the volume that claims to be one of chosen paths has its tables at home, where
/// nothing holds them. A snapshot that is still to be pruned is not a problem.
#[test]
fn fixed_metadata_that_a_part_does_not_hold_is_reported() {
    let good = populated();
    let shape = shape(&good);
    let (slot, root) = root(&good, &shape);
    let relabelled = |of: SnapshotOf| {
        let mut bytes = good.clone();
        let (mut first, blocks) = root.snapshots.unwrap();
        let list =
            first.pool_block.0 as usize * BLOCK..(first.pool_block.0 + u64::from(blocks)) as usize * BLOCK;
        let mut records = decode_snapshots(&bytes[list.clone()], &shape).unwrap();
        records[0].of = of;
        let encoded = encode_snapshots(&records, BLOCK);
        bytes[list].copy_from_slice(&encoded);
        first = Pointer::new(first.pool_block, first.birth, Target::List, &encoded);
        let root = Root { snapshots: Some((first, blocks)), ..root.clone() };
        let slot = shape.root_offset(slot) as usize;
        bytes[slot..slot + ROOT_BYTES].copy_from_slice(&root.encode());
        check(bytes).unwrap()
    };
    let untouched = relabelled(SnapshotOf::Volume);
    assert!(untouched.is_sound(), "{:?}", untouched.problems);
    let part = relabelled(SnapshotOf::Paths(vec![b"first".to_vec()]));
    assert!(part.problems.iter().any(|p| p.what.contains("where nothing keeps it")), "{:?}", part.problems);
    let uncut = relabelled(SnapshotOf::ToBePruned);
    assert!(uncut.is_sound(), "{:?}", uncut.problems);
    assert!(uncut.remarks.iter().any(|r| r.contains("'first' was being made")), "{:?}", uncut.remarks);
}

/// Wrong bits in the bitmap, with right checksums.
#[test]
fn lost_and_doubly_used_pool_blocks_are_reported() {
    let good = populated();
    let shape = shape(&good);
    let (slot, root) = root(&good, &shape);
    let (index, copy) = (0, root.bitmaps[0].1);
    let at = shape.bitmap_block(index, copy).0 as usize * BLOCK;
    let resealed = |change: &dyn Fn(&mut [u8]) -> i64| {
        let mut bytes = good.clone();
        let change = change(&mut bytes[at..at + BLOCK]);
        let mut root = root.clone();
        root.bitmaps[0].0 = xact_layout::checksum::crc32c(!0, &bytes[at..at + BLOCK]);
        root.used = root.used.wrapping_add_signed(change);
        let slot = shape.root_offset(slot) as usize;
        bytes[slot..slot + ROOT_BYTES].copy_from_slice(&root.encode());
        check(bytes).unwrap()
    };
    let untouched = resealed(&|_| 0);
    assert!(untouched.is_sound(), "{:?}", untouched.problems);
    let last = (shape.device_blocks - shape.volume_blocks - 1) as usize;
    let first = (shape.first_pool_block().0 - shape.volume_blocks) as usize;
    let lost = resealed(&|bits| {
        bits[last / 8] |= 1 << (last % 8);
        1
    });
    assert!(lost.problems.iter().any(|p| p.what.contains("used by nothing")), "{:?}", lost.problems);
    let taken = (first..).find(|n| good[at + n / 8] & 1 << (n % 8) != 0).unwrap();
    let missing = resealed(&|bits| {
        bits[taken / 8] &= !(1 << (taken % 8));
        -1
    });
    assert!(missing.problems.iter().any(|p| p.what.contains("marked as free")), "{:?}", missing.problems);
    let miscounted = resealed(&|_| 1);
    assert!(
        miscounted.problems.iter().any(|p| p.what.contains("places in use")),
        "{:?}",
        miscounted.problems
    );
}
