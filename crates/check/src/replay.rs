//! The log of a volume that was not closed: the check reads the volume as after its replay, and
//! writes nothing.

use std::sync::Arc;

use xact_consistency::EngineOptions;
use xact_device::BlockDevice;
use xact_types::Result;

use crate::report::Report;

/// The device as recovery would leave it.
pub(crate) fn replayed(device: Arc<dyn BlockDevice>, report: &mut Report) -> Result<Arc<dyn BlockDevice>> {
    let overlay: Arc<dyn BlockDevice> = Arc::new(xact_device::Overlay::new(device.clone()));
    let recovery = xact_consistency::recover(&overlay, &EngineOptions::default())?;
    if !recovery.replayed {
        return Ok(device);
    }
    report.is_replayed = true;
    report.remark(format!(
        "the journal holds {} transactions that are not in their places; checked as after their replay",
        recovery.transactions
    ));
    Ok(overlay)
}
