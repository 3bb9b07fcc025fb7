//! Changes to the superblock while the volume is open: through the metadata block that holds it.

use xact_base::{Error, Result, Site};
use xact_consistency::{Engine, Handle};
use xact_layout::superblock::{SUPERBLOCK_BYTES, Superblock};

/// Changes fields of the superblock within a handle (one credit) and seals it. `sb` tells where
/// it lies; `change` sees the newest fields, others' changes included.
pub fn update<R>(h: &mut Handle, sb: &Superblock, change: impl FnOnce(&mut Superblock) -> R) -> Result<R> {
    let at = sb.own_offset();
    h.update(sb.own_block(), |block| {
        let bytes: &mut [u8; SUPERBLOCK_BYTES] = (&mut block[at..at + SUPERBLOCK_BYTES])
            .try_into()
            .map_err(|_| Error::corrupt(Site::Superblock, "does not fit its block"))?;
        let mut newest = Superblock::decode(bytes)?;
        let result = change(&mut newest);
        newest.seal();
        *bytes = *newest.as_bytes();
        Ok(result)
    })?
}

/// The superblock as it is now, with the changes of all handles.
pub fn read(engine: &dyn Engine, sb: &Superblock) -> Result<Superblock> {
    let block = engine.read(sb.own_block())?;
    let at = sb.own_offset();
    let bytes = block.get(at..at + SUPERBLOCK_BYTES).and_then(|bytes| bytes.try_into().ok());
    Superblock::decode(bytes.ok_or(Error::corrupt(Site::Superblock, "does not fit its block"))?)
}
