//! Keeps a state of a volume in memory under a name, compares it, and goes back to it.

use std::sync::Arc;

use xact::{
    BlockDevice, MemoryDevice, OfflineSnapshots, OpenMode, PathExt, Paths, Volume, VolumeOptions, mkfs,
};

fn main() -> xact::Result<()> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::mkfs_generations(&device, &Default::default(), None)?;
    let volume = Volume::open(device.clone(), &VolumeOptions::default())?;
    volume.create_dir_all("/notes")?;
    volume.write("/notes/today", "plant trees")?;
    volume.create_snapshot("morning")?;

    volume.write("/notes/today", "cut trees")?;
    volume.write("/notes/tomorrow", "regret it")?;
    for difference in volume.diff_snapshots("morning", None)? {
        println!("{:?} {}", difference.what, String::from_utf8_lossy(&difference.path));
    }
    let morning = Paths::of(volume.open_snapshot("morning")?.view()?);
    assert_eq!(morning.read_to_string("/notes/today")?, "plant trees");
    drop(morning);
    volume.close()?;

    // The whole volume becomes what it was, in one commit.
    let snapshots = OfflineSnapshots::open(device.clone(), OpenMode::ReadWrite)?;
    snapshots.restore("morning")?;
    snapshots.close()?;
    let volume = Volume::open(device, &VolumeOptions::default())?;
    assert_eq!(volume.read_to_string("/notes/today")?, "plant trees");
    assert!(!volume.exists("/notes/tomorrow")?);
    volume.close()
}
