//! The two slots of the root: reading the newest whole one, writing the other.

use std::io::IoSlice;

use xact_device::BlockDevice;
use xact_layout::generations::{PoolShape, ROOT_BYTES, Root};
use xact_types::{BlockNr, Error, Result, Site};

use crate::core::volume::Volume;
use crate::fault::{Fault, Faults};

/// The newest whole root, and its slot.
pub(super) struct Roots {
    pub slot: usize,
    pub root: Root,
    /// The other slot is neither whole nor empty.
    pub has_torn: bool,
}

pub(super) fn read_roots(
    device: &dyn BlockDevice,
    shape: &PoolShape,
    uuid: [u8; 16],
    faults: Faults,
) -> Result<Roots> {
    let check = !faults.has(Fault::AcceptTornRoot);
    let mut newest: Option<(usize, Root)> = None;
    let mut has_torn = false;
    if shape.device_blocks <= shape.volume_blocks || shape.pool_blocks() == 0 {
        return Err(Error::corrupt(Site::Root, "the device ends where the pool should be"));
    }
    for slot in 0..2 {
        let mut bytes = vec![0; ROOT_BYTES];
        device
            .read_at(&mut bytes, shape.root_offset(slot))
            .map_err(|e| Error::io("reading a root of the generations", e))?;
        match Root::decode(&bytes, shape, check) {
            Ok(root) if root.uuid != uuid => {}
            Ok(root) if newest.as_ref().is_some_and(|(_, found)| found.generation > root.generation) => {}
            Ok(root) => newest = Some((slot, root)),
            // Torn by a crash. One of the two slots may be torn at any time.
            Err(Error::Corrupt(_)) => has_torn |= bytes.iter().any(|&byte| byte != 0),
            Err(error) => return Err(error),
        }
    }
    let newest = newest.map(|(slot, root)| Roots { slot, root, has_torn });
    newest.ok_or_else(|| Error::corrupt(Site::Root, "neither of the two slots holds a whole one"))
}

/// Writes a root to a slot. The caller flushes.
pub(super) fn write_root(volume: &Volume, root: &Root, slot: usize) -> Result<()> {
    write_slot(volume, &root.shape, slot, &root.encode())
}

/// Writes the bytes of a slot, together with the rest of the blocks that it lies in.
pub(super) fn write_slot(volume: &Volume, shape: &PoolShape, slot: usize, bytes: &[u8]) -> Result<()> {
    let at = shape.root_offset(slot);
    let block = BlockNr(at / u64::from(shape.block_size));
    volume.write(block, &[IoSlice::new(bytes)])
}

const _: () = assert!(ROOT_BYTES.is_multiple_of(4096));
