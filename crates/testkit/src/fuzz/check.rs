//! Volumes of both engines with changed bytes, under sound checksums or not, some as a crash leaves
//! them: `xact check` of any bytes ends with findings or an error that says why.
//!
//! The first byte chooses the volume, the rest the changes. Requirements:
//!
//! 1. No panic and no write to the device.
//! 2. The cost follows the size of the volume, not the numbers that damage claims: the check reads
//!    each byte at most [`READS_MAX`] times on average.
//! 3. It is the same the second time.

use std::sync::{Arc, OnceLock};

use xact::Volume;
use xact::mkfs::{JournalSize, MkfsOptions, mkfs, mkfs_generations};
use xact_device::{BlockDevice, CountingDevice};

use super::reseal::Map;
use super::volume;
use crate::damage;
use crate::device::SimDevice;
use crate::image::Image;
use crate::rng::Rng;

const BLOCK: u64 = 1024;
const VOLUME_BYTES: u64 = 8 << 20;
const CHANGES_MAX: usize = 12;
/// The passes of a check, its look for copies of the superblock, and its recovery of the log.
const READS_MAX: u64 = 20;

/// A volume and the places that are worth a change.
struct SoundVolume {
    image: Image,
    /// For volumes whose metadata is at home.
    map: Option<Map>,
    blocks: Vec<u64>,
}

/// A volume with one of everything; `crashed`: without an unmount.
fn made(generations: bool, crashed: bool) -> SoundVolume {
    let sim = SimDevice::new(Image::new(VOLUME_BYTES));
    let device: Arc<dyn BlockDevice> = sim.clone();
    let options = MkfsOptions { block_size: Some(BLOCK as u32), zeroed: true, ..MkfsOptions::default() };
    if generations {
        mkfs_generations(&device, &options, None).expect("a volume");
    } else {
        mkfs(&*device, &MkfsOptions { journal: JournalSize::Bytes(1 << 20), ..options }).expect("a volume");
    }
    let empty = sim.image();
    let volume = Volume::open(device, &damage::options()).expect("a mount");
    damage::populate(&*volume.base()).expect("files");
    volume.sync().expect("a commit");
    let running = sim.image();
    volume.close().expect("an unmount");
    let image = if crashed { running } else { sim.image() };
    let map = (!generations && !crashed).then(|| Map::of(&image));
    // Blocks that mkfs or the files have written.
    let blocks = match &map {
        Some(map) => map.kinds.keys().copied().collect(),
        None => {
            let zero = Image::new(VOLUME_BYTES);
            let written = image.changed_since(&empty).chain(empty.changed_since(&zero));
            let mut blocks: Vec<u64> = written
                .flat_map(|(at, bytes)| at / BLOCK..(at + bytes.len() as u64).div_ceil(BLOCK))
                .collect();
            blocks.sort_unstable();
            blocks.dedup();
            blocks
        }
    };
    SoundVolume { image, map, blocks }
}

fn bases() -> &'static [SoundVolume] {
    static BASES: OnceLock<Vec<SoundVolume>> = OnceLock::new();
    BASES.get_or_init(|| {
        [(false, false), (false, true), (true, false), (true, true)]
            .map(|(generations, crashed)| made(generations, crashed))
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
        let block = volume::change(&base.blocks, &mut image, &mut choices);
        if let Some(map) = base.map.as_ref().filter(|_| choices.below(4) > 0) {
            map.reseal(&mut image, block);
        }
    }
    let first = checked(&image);
    assert_eq!(first, checked(&image), "the second check differs from the first");
}

/// The findings of the check, or its error.
fn checked(image: &Image) -> String {
    let sim = SimDevice::new(image.clone());
    let device = Arc::new(CountingDevice::new(sim));
    let said = match xact_check::check(device.clone(), &mut |_, _| ()) {
        Ok(report) => report.problems.iter().map(|problem| format!("{problem}\n")).collect(),
        Err(error) => error.to_string(),
    };
    let counts = device.counts();
    assert_eq!(counts.writes, 0, "a check writes");
    let most = READS_MAX * image.size_bytes();
    assert!(counts.read_bytes <= most, "a check reads {} bytes of {}", counts.read_bytes, image.size_bytes());
    said
}
