//! The log of a volume that was not closed: the check reads the volume as after its replay, and
//! writes nothing.

use std::sync::Arc;

use xact_consistency::EngineOptions;
use xact_device::BlockDevice;
use xact_layout::feature::incompat;
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_types::{Error, Result};

use crate::backups;
use crate::report::Report;

/// A volume ready to be checked.
pub(crate) struct Replayed {
    pub device: Arc<dyn BlockDevice>,
    /// The journal is damaged, which is reported already, and was not replayed.
    pub without_journal: bool,
}

/// The device as recovery would leave it. Where the superblock or group descriptors are unusable,
/// copies are in their places; a journal that is unusable is not replayed. Each is a problem.
///
/// Errors: `Usage` and `Corrupt` if no superblock is usable; `Unsupported`; `Io`.
pub(crate) fn replayed(device: Arc<dyn BlockDevice>, report: &mut Report) -> Result<Replayed> {
    let device = backups::with_usable_descriptors(device, report)?;
    let overlay: Arc<dyn BlockDevice> = Arc::new(xact_device::Overlay::new(device.clone()));
    let recovery = match xact_consistency::recover(&overlay, &EngineOptions::default()) {
        Ok(recovery) => recovery,
        Err(error) if backups::is_of_superblock(&error) => return Err(error),
        Err(Error::Corrupt(found)) => {
            report.problem(found.site, format!("{}; checked without a replay of the journal", found.what));
            return Ok(Replayed { device, without_journal: true });
        }
        // A log that may be needed for a right verdict, such as one with fast commits.
        Err(error @ Error::Unsupported(_)) if needs_recovery(&*device)? => return Err(error),
        // The check of the journal says what is wrong.
        Err(Error::Unsupported(_)) => return Ok(Replayed { device, without_journal: false }),
        Err(error) => return Err(error),
    };
    if !recovery.replayed {
        return Ok(Replayed { device, without_journal: false });
    }
    report.is_replayed = true;
    report.remark(format!(
        "the journal holds {} transactions that are not in their places; checked as after their replay",
        recovery.transactions
    ));
    Ok(Replayed { device: overlay, without_journal: false })
}

fn needs_recovery(device: &dyn BlockDevice) -> Result<bool> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET).map_err(|e| Error::io("reading the superblock", e))?;
    Ok(Superblock::decode(&bytes)?.has_incompat(incompat::RECOVER))
}
