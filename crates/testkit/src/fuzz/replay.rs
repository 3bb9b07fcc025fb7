//! Logs, mostly sound: our recovery of them is compared with the kernel's.
//!
//! The first bytes choose the journal's format, and the start of the log in its ring and its
//! sequence number. The rest are steps: a descriptor with copies, a revoke block, a commit, and now
//! and then one with an error. Legal results:
//!
//! 1. A recovery that succeeds has written the blocks that the kernel would have, and no other; the
//!    next one has nothing to do.
//! 2. One that fails has written nothing, for a reason that the kernel knows too, or because the
//!    log has copies of blocks that must not have any.

use std::sync::Arc;

use xact_consistency::{EngineOptions, RecoveryReport, recover};
use xact_device::BlockDevice;
use xact_layout::extent::Node;
use xact_layout::feature::incompat;
use xact_layout::group::GroupDesc;
use xact_layout::inode::Inode;
use xact_layout::jbd2::{
    CHECKSUM_V1_CRC32, Checksums, CommitBlock, Features, JournalSuperblock, LogFormat, MAGIC, Tag, TagFlags,
    crc32_be, encode_descriptor, encode_revokes, escape, needs_escape,
};
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_types::{Error, GroupNr, Ino, Site};

use super::kernel_recovery::{Log, Verdict};
use crate::device::SimDevice;
use crate::image::Image;
use crate::rng::Rng;
use crate::tools::formatted;

const BLOCK: usize = 1024;
/// Blocks for data near the end of the volume, the homes of the copies.
const HOMES: u64 = 7000;
const STEPS_MAX: usize = 60;

pub fn run(data: &[u8]) {
    let mut choices = Rng::given(data);
    let mut scene = Scene::new(&mut choices);
    for _ in 0..STEPS_MAX {
        if choices.is_spent() {
            break;
        }
        scene.step(&mut choices);
    }
    let (image, journal, superblock) = scene.finish();
    judge(&image, &journal, &superblock);
}

/// The positions of the journal's blocks.
struct Journal(Vec<u64>);

impl Journal {
    /// For a volume of one group, whose journal is in few pieces.
    fn of(image: &Image) -> Journal {
        let block_at = |block: u64| {
            let mut bytes = vec![0; BLOCK];
            image.read(&mut bytes, block * BLOCK as u64);
            bytes
        };
        let raw = block_at(SUPERBLOCK_OFFSET / BLOCK as u64);
        let sb = Superblock::decode(raw.as_slice().try_into().expect("a block")).expect("mke2fs made it");
        let (place, at) = sb.desc_place(GroupNr(0));
        let desc = GroupDesc::new(&block_at(place.0)[at..at + usize::from(sb.desc_size())]);
        let (_, index) = sb.inode_place(Ino::JOURNAL).expect("a volume has it");
        let table = desc.inode_table().0 + u64::from(index / sb.inodes_per_block());
        let within = (index % sb.inodes_per_block()) as usize * usize::from(sb.inode_size());
        let inode = Inode::new(&block_at(table)[within..within + usize::from(sb.inode_size())]);
        let root = Node::root(inode.block_area(), &sb, Site::Inode(Ino::JOURNAL)).expect("mke2fs made it");
        assert_eq!(root.depth(), 0, "a journal in few pieces");
        let runs = (0..root.len()).map(|i| root.extent(i).run);
        Journal(runs.flat_map(|run| run.start.0..run.end().0).collect())
    }

    /// Byte at which a block of the journal begins.
    fn offset(&self, at: u32) -> u64 {
        self.0[at as usize] * BLOCK as u64
    }

    fn read(&self, image: &Image, at: u32) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        image.read(&mut block, self.offset(at));
        block
    }
}

/// A volume whose log is being written.
struct Scene {
    image: Image,
    journal: Journal,
    superblock: JournalSuperblock,
    format: LogFormat,
    /// The position of the next block of the log.
    at: u32,
    sequence: u32,
    /// Seconds of the next commit.
    time: u64,
    /// v1: sum over the transaction so far.
    crc: u32,
}

impl Scene {
    fn new(choices: &mut Rng) -> Scene {
        let options = ["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^metadata_csum_seed,^orphan_file"];
        let image = formatted(&options, "8M");
        let journal = Journal::of(&image);
        let block = journal.read(&image, 0);
        let mut superblock = JournalSuperblock::decode(&block).expect("mke2fs made it");
        superblock.set_checksums(*choices.pick(&[
            Checksums::None,
            Checksums::V1,
            Checksums::V2,
            Checksums::V3,
        ]));
        superblock.features.incompat |= Features::REVOKE;
        superblock.features.incompat &= !Features::WIDE_BLOCKS;
        let kind = choices.below(4);
        if kind & 1 != 0 {
            superblock.features.incompat |= Features::WIDE_BLOCKS;
        }
        if kind & 2 != 0 {
            superblock.features.incompat |= Features::ASYNC_COMMIT;
        }
        let ring = u64::from(superblock.log_end() - superblock.first);
        superblock.start = superblock.first + choices.below(ring) as u32;
        superblock.sequence = (choices.below(256) as u32).wrapping_sub(8);
        let (at, sequence) = (superblock.start, superblock.sequence);
        Scene { image, journal, format: superblock.format(), superblock, at, sequence, time: 1000, crc: !0 }
    }

    fn put(&mut self, block: &[u8]) {
        self.image.write(block, self.journal.offset(self.at));
        self.at = if self.at + 1 >= self.superblock.log_end() { self.superblock.first } else { self.at + 1 };
    }

    fn step(&mut self, choices: &mut Rng) {
        match choices.below(16) {
            0..=5 => self.descriptor(choices, false),
            6 => self.descriptor(choices, true),
            7 | 8 => self.revoke(choices),
            9..=12 => self.commit(choices, false),
            13 => self.commit(choices, true),
            14 => {
                let noise = vec![choices.below(256) as u8; BLOCK];
                self.put(&noise);
            }
            _ => self.patch(choices),
        }
    }

    /// A descriptor with copies of some blocks; `wrong`: a byte in the descriptor or a copy is not
    /// in the checksum.
    fn descriptor(&mut self, choices: &mut Rng, wrong: bool) {
        let count = 1 + choices.below(6) as usize;
        let mut copies = Vec::new();
        let mut tags = Vec::new();
        for _ in 0..count {
            let mut copy = vec![choices.below(256) as u8; BLOCK];
            let block = match choices.below(32) {
                0 => choices.below(1 << 32),
                1 => choices.next(),
                2 => 8192 + choices.below(3),
                _ => HOMES + choices.below(16),
            };
            if choices.one_in(8) {
                copy[..4].copy_from_slice(&MAGIC.to_be_bytes());
            }
            let mut flags = TagFlags::default();
            if needs_escape(&copy) {
                escape(&mut copy);
                flags = TagFlags::ESCAPE;
            }
            let sum = self.format.copy_checksum(self.sequence, &copy);
            let checksum = if self.format.checksums == Checksums::V3 { sum } else { sum & 0xFFFF };
            tags.push(Tag { block, flags, checksum });
            copies.push(copy);
        }
        let mut descriptor = encode_descriptor(&self.format, self.sequence, &tags);
        self.crc = crc32_be(self.crc, &descriptor);
        copies.iter().for_each(|copy| self.crc = crc32_be(self.crc, copy));
        if wrong {
            let at = choices.below((BLOCK * (1 + count)) as u64) as usize;
            let block = if at < BLOCK { &mut descriptor } else { &mut copies[at / BLOCK - 1] };
            block[at % BLOCK] ^= 1 + choices.below(255) as u8;
        }
        self.put(&descriptor);
        copies.iter().for_each(|copy| self.put(copy));
    }

    fn revoke(&mut self, choices: &mut Rng) {
        let blocks: Vec<u64> = (0..choices.below(5)).map(|_| HOMES + choices.below(16)).collect();
        let block = encode_revokes(&self.format, self.sequence, &blocks);
        self.put(&block);
    }

    fn commit(&mut self, choices: &mut Rng, wrong: bool) {
        let v1 = self.format.checksums == Checksums::V1;
        let commit = CommitBlock {
            sequence: self.sequence,
            checksum_kind: if v1 { CHECKSUM_V1_CRC32 } else { (0, 0) },
            checksum: if v1 { self.crc } else { 0 },
            secs: self.time,
            nanos: 0,
        };
        let mut block = commit.encode(&self.format);
        if wrong {
            let at = choices.below(64) as usize;
            block[at] ^= 1 + choices.below(255) as u8;
        }
        self.put(&block);
        self.sequence = self.sequence.wrapping_add(1);
        // Now and then time goes backwards, as at the start of an older log.
        self.time = (self.time + choices.below(4)).saturating_sub(1);
        self.crc = !0;
    }

    /// A byte anywhere in the existing log.
    fn patch(&mut self, choices: &mut Rng) {
        let back = choices.below(8) as u32;
        let Some(at) = self.at.checked_sub(1 + back).filter(|&at| at >= self.superblock.first) else {
            return;
        };
        let offset = self.journal.offset(at) + choices.below(BLOCK as u64);
        self.image.write(&[choices.below(256) as u8], offset);
    }

    /// The volume as a crash would have left it.
    fn finish(mut self) -> (Image, Journal, JournalSuperblock) {
        let mut block = self.journal.read(&self.image, 0);
        self.superblock.encode_into(&mut block);
        self.image.write(&block, self.journal.offset(0));
        let mut raw = [0; SUPERBLOCK_BYTES];
        self.image.read(&mut raw, SUPERBLOCK_OFFSET);
        let mut sb = Superblock::decode(&raw).expect("mke2fs made it");
        sb.set_feature_incompat(sb.feature_incompat() | incompat::RECOVER);
        sb.seal();
        self.image.write(sb.as_bytes(), SUPERBLOCK_OFFSET);
        (self.image, self.journal, self.superblock)
    }
}

fn judge(image: &Image, journal: &Journal, superblock: &JournalSuperblock) {
    let read = |at: u32| journal.read(image, at);
    let log = Log {
        format: superblock.format(),
        async_commit: superblock.features.has_incompat(Features::ASYNC_COMMIT),
        first: superblock.first,
        end: superblock.log_end(),
        start: superblock.start,
        sequence: superblock.sequence,
        read: &read,
    };
    let theirs = log.replay();
    if let Verdict::Replayed(outcome) | Verdict::Broken(outcome) = &theirs
        && outcome.blocks.contains_key(&1)
    {
        // A superblock of noise: the second recovery may report anything.
        return;
    }
    let device = SimDevice::new(image.clone());
    let shared: Arc<dyn BlockDevice> = device.clone();
    match recover(&shared, &EngineOptions::default()) {
        Ok(report) => {
            same(image, journal, &device.image(), &report, &theirs);
            match recover(&shared, &EngineOptions::default()) {
                Ok(again) => assert!(!again.replayed, "replayed twice"),
                // Metadata that was overwritten by the replay is noise.
                Err(error) => assert!(!only_data(&theirs), "a second recovery: {error}"),
            }
        }
        Err(error) => {
            assert!(
                device.recording().events.is_empty(),
                "refused with '{error}', but something was written"
            );
            assert!(is_fair(&error, &theirs), "refused with '{error}', which Linux replays");
        }
    }
}

/// Whether a log only has copies of the blocks for data.
fn only_data(theirs: &Verdict) -> bool {
    match theirs {
        Verdict::Replayed(outcome) | Verdict::Broken(outcome) => {
            outcome.blocks.keys().all(|block| (HOMES..HOMES + 16).contains(block))
        }
        Verdict::Refused => true,
    }
}

/// Whether there is a reason for our refusal.
fn is_fair(error: &Error, theirs: &Verdict) -> bool {
    let Error::Corrupt(corruption) = error else { return false };
    let of_ours = ["outside the volume", "belongs into the log itself", "longer than its ring"];
    !matches!(theirs, Verdict::Replayed(_)) || of_ours.iter().any(|what| corruption.what.contains(what))
}

/// Our replay, compared block for block.
fn same(before: &Image, journal: &Journal, after: &Image, report: &RecoveryReport, theirs: &Verdict) {
    let outcome = match theirs {
        Verdict::Replayed(outcome) if !report.dropped_torn_commit => outcome,
        Verdict::Broken(outcome) if report.dropped_torn_commit => outcome,
        _ => panic!("we replay ({report:?}), Linux would not: {theirs:?}"),
    };
    assert_eq!(report.end_sequence, outcome.end, "the log ends elsewhere");
    let block_of = |image: &Image, block: u64| {
        let mut bytes = vec![0; BLOCK];
        image.read(&mut bytes, block * BLOCK as u64);
        bytes
    };
    for block in 0..before.size_bytes() / BLOCK as u64 {
        let offset = block * BLOCK as u64;
        if offset == SUPERBLOCK_OFFSET || offset == journal.offset(0) {
            continue;
        }
        let expected = outcome.blocks.get(&block).cloned().unwrap_or_else(|| block_of(before, block));
        assert!(block_of(after, block) == expected, "block {block} is not what Linux makes of it");
    }
}
