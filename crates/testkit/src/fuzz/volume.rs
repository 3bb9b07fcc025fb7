//! Volumes with changed bytes under sound checksums, opened, walked, changed and checked.
//!
//! The first byte chooses the volume, the rest the changes of its metadata. Requirements:
//!
//! 1. No panic, no hang, no write after the volume, and no errors except those that name damage.
//! 2. If `xact check` finds no problem before, all calls on the volume succeed, and the check finds
//!    no problem afterwards.

use std::sync::OnceLock;

use xact_types::Error;

use crate::damage::{exercise, is_fair, is_of_damage, is_untouched_behind, names_the_place, populated};
use crate::device::SimDevice;
use crate::image::Image;
use crate::rng::Rng;

use super::reseal::Map;

const BLOCK: u64 = 1024;
const CHANGES_MAX: usize = 12;

struct SoundVolume {
    image: Image,
    /// Bytes of the volume; the bytes after it do not belong to it.
    size: u64,
    map: Map,
    blocks: Vec<u64>,
}

fn bases() -> &'static [SoundVolume] {
    static BASES: OnceLock<Vec<SoundVolume>> = OnceLock::new();
    BASES.get_or_init(|| {
        [
            "^metadata_csum_seed,^orphan_file",
            "orphan_file,metadata_csum_seed,large_dir",
            "^metadata_csum,^64bit,uninit_bg",
            "^extents,^metadata_csum,^64bit,^flex_bg",
            "^has_journal",
        ]
        .map(|features| {
            let mut options = vec!["-b", "1024", "-O", features];
            if features != "^has_journal" {
                options.extend(["-J", "size=1"]);
            }
            let (image, size) = populated(&options);
            let map = Map::of(&image);
            let blocks = map.kinds.keys().copied().collect();
            SoundVolume { image, size, map, blocks }
        })
        .into()
    })
}

pub fn run(data: &[u8]) {
    let mut choices = Rng::given(data);
    let base = choices.pick(bases());
    let mut image = base.image.clone();
    for _ in 0..CHANGES_MAX {
        if choices.is_spent() {
            break;
        }
        let block = change(&base.blocks, &mut image, &mut choices);
        base.map.reseal(&mut image, block);
    }
    judge(base, image);
}

/// Changes a bit of one of the blocks, and returns which.
pub(super) fn change(blocks: &[u64], image: &mut Image, choices: &mut Rng) -> u64 {
    let block = *choices.pick(blocks);
    let at = block * BLOCK;
    let within = choices.below(BLOCK);
    let number =
        |bytes: u64, value: u64| (within / bytes * bytes, value.to_le_bytes()[..bytes as usize].to_vec());
    let (offset, bytes) = match choices.below(8) {
        0 => number(1, choices.next()),
        1 => number(2, choices.below(1 << 16)),
        2 => number(4, choices.below(1 << 32)),
        3 => {
            let other = *choices.pick(blocks);
            let numbers = [0, 1, 2, 8, 11, 12, 0x7FFF_FFFF, 0x8000_0000, u64::MAX, 8191, 8192, 8193, other];
            number(4, *choices.pick(&numbers))
        }
        4 => {
            let mut byte = [0];
            image.read(&mut byte, at + within);
            number(1, u64::from(byte[0] ^ 1 << choices.below(8)))
        }
        5 => {
            let from = *choices.pick(blocks) * BLOCK + choices.below(BLOCK / 4) * 4;
            let mut bytes = vec![0; (BLOCK - within).min(4 + choices.below(64)) as usize];
            image.read(&mut bytes, from);
            (within, bytes)
        }
        6 => {
            let mut bytes = vec![0; BLOCK as usize];
            image.read(&mut bytes, *choices.pick(blocks) * BLOCK);
            (0, bytes)
        }
        _ => {
            let len = (BLOCK - within).min(1 + choices.below(256));
            (within, vec![choices.below(256) as u8; len as usize])
        }
    };
    image.write(&bytes, at + offset);
    block
}

/// The first problem that `xact check` finds.
fn first_problem(image: &Image) -> Option<String> {
    match xact_check::check(SimDevice::new(image.clone()), &mut |_, _| ()) {
        Ok(report) => report.problems.first().map(ToString::to_string),
        Err(error) => Some(error.to_string()),
    }
}

/// A volume of the future is not damaged.
fn is_of_a_feature(error: &Error) -> bool {
    matches!(error, Error::Unsupported(_))
}

fn judge(base: &SoundVolume, image: Image) {
    let problem = first_problem(&image);
    let (errors, after) = exercise(image);
    assert!(is_untouched_behind(&after, base.size), "a write behind the volume");
    if let Some(unfair) = errors.iter().find(|error| !is_fair(error)) {
        panic!("damage may not cause this error: {unfair}");
    }
    let of_damage = errors.iter().find(|error| is_of_damage(error) && !is_of_a_feature(error));
    if let Some(first) = of_damage {
        assert!(names_the_place(first), "first of all it says '{first}'");
    }
    if problem.is_some() {
        return;
    }
    if let Some(error) = of_damage {
        panic!("the check finds nothing wrong, but: {error}");
    }
    if let Some(problem) = first_problem(&after) {
        panic!("sound before, and after some operations: {problem}");
    }
}
