//! Changes of the superblock while the volume is open, through the metadata block that contains it.

use xact_consistency::{Engine, Handle, Version};
use xact_layout::superblock::{SUPERBLOCK_BYTES, Superblock};
use xact_types::{Error, Result, Site};

/// Changes fields of the superblock within a handle (one credit) and updates its checksum. `sb`
/// gives its place; `change` is called with the newest fields, including changes of other callers.
pub fn update(h: &mut Handle, sb: &Superblock, mut change: impl FnMut(&mut Superblock)) -> Result<()> {
    let at = sb.own_offset();
    h.update_shared(sb.own_block(), |_, block| change_in(block, at, &mut change))?.both()
}

/// As [`update`], with a separate change for each version.
pub fn update_per_version(
    h: &mut Handle,
    sb: &Superblock,
    mut change: impl FnMut(Version, &mut Superblock),
) -> Result<()> {
    let at = sb.own_offset();
    let changed = h.update_per_version(sb.own_block(), |version, block| {
        change_in(block, at, &mut |sb| change(version, sb))
    })?;
    changed.both()
}

fn change_in(block: &mut [u8], at: usize, change: &mut impl FnMut(&mut Superblock)) -> Result<()> {
    let bytes: &mut [u8; SUPERBLOCK_BYTES] = (&mut block[at..at + SUPERBLOCK_BYTES])
        .try_into()
        .map_err(|_| Error::corrupt(Site::Superblock, "does not fit its block"))?;
    let mut changed = Superblock::decode(bytes)?;
    change(&mut changed);
    changed.seal();
    *bytes = *changed.as_bytes();
    Ok(())
}

/// The present superblock, with the changes of all handles.
pub fn read(engine: &Engine, sb: &Superblock) -> Result<Superblock> {
    let block = engine.read(sb.own_block())?;
    let at = sb.own_offset();
    let bytes = block.get(at..at + SUPERBLOCK_BYTES).and_then(|bytes| bytes.try_into().ok());
    Superblock::decode(bytes.ok_or(Error::corrupt(Site::Superblock, "does not fit its block"))?)
}
