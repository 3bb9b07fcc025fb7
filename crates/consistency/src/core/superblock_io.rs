//! The ext4 superblock in its own place, as far as the engines change it: the flags for a clean
//! unmount and for generations.
//!
//! The checksum is in another sector than the flags, so a crash can tear the write of a superblock.
//! A superblock with a wrong checksum is therefore checked again with each combination of the flags
//! that we write. If one of them makes the checksum right, the superblock consists of an old and a
//! new sector of one of our writes, and its geometry can be trusted. Any other superblock must come
//! out of the log.

use xact_device::BlockDevice;
use xact_layout::feature::{compat, incompat};
use xact_layout::superblock::{STATE_CLEAN, STATE_ERRORS, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_layout::{checksum, get_u16, get_u32, put_u16, put_u32};
use xact_types::{BlockNr, Error, Result, Site};

use super::volume::Volume;

const STATE_AT: usize = 0x3A;
const INCOMPAT_AT: usize = 0x60;
const RO_COMPAT_AT: usize = 0x64;
const METADATA_CSUM: u32 = xact_layout::feature::ro_compat::METADATA_CSUM;
const CHECKSUM_AT: usize = 0x3FC;

/// The state in which the superblock was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Sound,
    /// Two sectors of different age, both known. Writing it with a new checksum repairs it.
    TornFlags,
    /// The checksum is wrong. Only a replay that writes the superblock makes it right.
    Unsound,
}

pub(crate) struct HomeSuperblock {
    pub superblock: Superblock,
    pub health: Health,
}

fn read_bytes(device: &dyn BlockDevice) -> Result<[u8; SUPERBLOCK_BYTES]> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    if device.size_bytes() < SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64 {
        return Err(Error::Usage("not an ext4 volume (too small)".into()));
    }
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET).map_err(|e| Error::io("reading the superblock", e))?;
    Ok(bytes)
}

fn stored_checksum_is_right(bytes: &[u8; SUPERBLOCK_BYTES]) -> bool {
    get_u32(bytes, RO_COMPAT_AT) & METADATA_CSUM == 0
        || checksum::crc32c(!0, &bytes[..CHECKSUM_AT]) == get_u32(bytes, CHECKSUM_AT)
}

/// Whether the superblock in its own place is that of a generations volume.
pub(crate) fn has_generations(superblock: &Superblock) -> bool {
    superblock.has_incompat(incompat::XACT_GENERATIONS)
}

/// Whether the volume has a journal of its own. One on another device is refused.
pub(crate) fn has_journal(superblock: &Superblock) -> Result<bool> {
    if superblock.has_incompat(incompat::JOURNAL_DEV) {
        return Err(Error::Unsupported("a volume that is only a journal".into()));
    }
    if !superblock.has_compat(compat::HAS_JOURNAL) {
        return Ok(false);
    }
    if superblock.journal_dev() != 0 || superblock.journal_inum() == 0 {
        return Err(Error::Unsupported("a journal on another device".into()));
    }
    Ok(true)
}

/// Reads the superblock, torn or not.
pub(crate) fn read(device: &dyn BlockDevice) -> Result<HomeSuperblock> {
    let mut bytes = read_bytes(device)?;
    if stored_checksum_is_right(&bytes) {
        return Ok(HomeSuperblock { superblock: Superblock::decode(&bytes)?, health: Health::Sound });
    }
    let health = if flags_are_torn(&bytes) { Health::TornFlags } else { Health::Unsound };
    seal(&mut bytes);
    match Superblock::decode(&bytes) {
        Ok(superblock) => Ok(HomeSuperblock { superblock, health }),
        // A block of noise that has the checksum's feature bit by chance is not a damaged volume.
        Err(foreign @ Error::Usage(_)) => Err(foreign),
        Err(_) => Err(Error::corrupt(Site::Superblock, "checksum does not match")),
    }
}

/// Whether another combination of the flags that the engines change makes the checksum right.
fn flags_are_torn(bytes: &[u8; SUPERBLOCK_BYTES]) -> bool {
    (1u32..16).any(|choice| {
        let mut other = *bytes;
        let recover = if choice & 1 != 0 { incompat::RECOVER } else { 0 };
        let generations = if choice & 8 != 0 { incompat::XACT_GENERATIONS } else { 0 };
        put_u32(&mut other, INCOMPAT_AT, get_u32(bytes, INCOMPAT_AT) ^ recover ^ generations);
        let state = get_u16(bytes, STATE_AT);
        let clean = if choice & 2 != 0 { STATE_CLEAN } else { 0 };
        let errors = if choice & 4 != 0 { STATE_ERRORS } else { 0 };
        put_u16(&mut other, STATE_AT, state ^ clean ^ errors);
        stored_checksum_is_right(&other)
    })
}

fn seal(bytes: &mut [u8]) {
    if get_u32(bytes, RO_COMPAT_AT) & METADATA_CSUM != 0 {
        let sum = checksum::crc32c(!0, &bytes[..CHECKSUM_AT]);
        put_u32(bytes, CHECKSUM_AT, sum);
    }
}

/// A change of the flags.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flags {
    /// `needs_recovery`: the log may hold changes that exist nowhere else.
    pub recover: Option<bool>,
    /// `EXT4_VALID_FS`: a volume without a journal was unmounted cleanly.
    pub clean: Option<bool>,
    /// `EXT4_ERROR_FS`: e2fsck should look at the volume.
    pub errors: bool,
    /// Our `xact_generations`.
    pub generations: Option<bool>,
}

impl Flags {
    /// Changes the superblock's 1024 bytes and seals them.
    pub fn apply(self, bytes: &mut [u8]) {
        if let Some(on) = self.recover {
            let word = get_u32(bytes, INCOMPAT_AT);
            let bit = incompat::RECOVER;
            put_u32(bytes, INCOMPAT_AT, if on { word | bit } else { word & !bit });
        }
        if let Some(on) = self.generations {
            let word = get_u32(bytes, INCOMPAT_AT);
            let bit = incompat::XACT_GENERATIONS;
            put_u32(bytes, INCOMPAT_AT, if on { word | bit } else { word & !bit });
        }
        let mut state = get_u16(bytes, STATE_AT);
        if let Some(on) = self.clean {
            state = if on { state | STATE_CLEAN } else { state & !STATE_CLEAN };
        }
        if self.errors {
            state |= STATE_ERRORS;
        }
        put_u16(bytes, STATE_AT, state);
        seal(bytes);
    }
}

/// The position of the superblock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuperblockPlace {
    pub block: BlockNr,
    pub offset: usize,
}

impl SuperblockPlace {
    pub fn of(superblock: &Superblock) -> SuperblockPlace {
        SuperblockPlace { block: superblock.own_block(), offset: superblock.own_offset() }
    }

    /// The superblock's bytes within the block that holds it.
    pub fn within(self, block: &mut [u8]) -> &mut [u8] {
        &mut block[self.offset..self.offset + SUPERBLOCK_BYTES]
    }

    /// Changes the flags in the superblock's own place. The caller flushes.
    pub fn write_home(self, volume: &Volume, flags: Flags) -> Result<()> {
        let mut block = vec![0; volume.block_size];
        volume.read(self.block, &mut block)?;
        flags.apply(self.within(&mut block));
        volume.write(self.block, &[std::io::IoSlice::new(&block)])
    }
}

/// The state of the superblock on the volume now.
pub(crate) fn read_health(volume: &Volume, place: SuperblockPlace) -> Result<Health> {
    let mut block = vec![0; volume.block_size];
    volume.read(place.block, &mut block)?;
    let bytes: &[u8; SUPERBLOCK_BYTES] =
        (&*place.within(&mut block)).try_into().expect("the place has the superblock's size");
    Ok(if stored_checksum_is_right(bytes) {
        Health::Sound
    } else if flags_are_torn(bytes) {
        Health::TornFlags
    } else {
        Health::Unsound
    })
}
