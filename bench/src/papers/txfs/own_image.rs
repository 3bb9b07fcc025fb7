//! A volume of its own, without a mount.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use xact::{Caller, Volume, VolumeOptions};

use crate::loads::{Bench, because};
use crate::volume::{Result, run};

/// A volume of its own, without a mount.
pub(super) struct OwnImage {
    path: std::path::PathBuf,
    pub volume: Arc<Volume>,
}

pub(super) const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

impl OwnImage {
    pub fn new(bench: &Bench<'_, '_>) -> Result<OwnImage> {
        let path = bench.supplies.join("in-process.img");
        run(Command::new(bench.mount.xact()).args(["mkfs", "--force", "--size", "512M"]).arg(&path))?;
        let volume = Volume::open_path(&path, &VolumeOptions::default()).map_err(because("open"))?;
        Ok(OwnImage { path, volume })
    }

    pub fn close(self) -> Result<()> {
        self.volume.close().map_err(because("close"))?;
        fs::remove_file(&self.path).map_err(because("remove the image"))
    }
}
