//! Gives generations to ext4 volumes, and exports generations as images for e2fsck.

use std::sync::Arc;

use xact::{Volume, VolumeOptions};
use xact_consistency::{Engine, EngineOptions, Snapshots, format_generations, open_generations};
use xact_device::BlockDevice;

use crate::device::SimDevice;
use crate::image::Image;
use crate::tools::{e2fsck, with_file};
use crate::tree::Tree;

/// The beginning of file names that say which snapshots must exist.
pub const SNAPSHOT_MARK: &str = "has-snapshot-";

/// The volume with a pool of `pool_bytes` and its first generation.
pub fn give(volume: &Image, pool_bytes: u64) -> Image {
    let larger = resized(volume, volume.size_bytes() + pool_bytes);
    let device = SimDevice::new(larger);
    format_generations(device.clone(), device.size_bytes()).expect("giving a new volume generations");
    device.image()
}

fn open(image: &Image) -> Result<Arc<Engine>, String> {
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    open_generations(SimDevice::new(image.clone()), options).map_err(|e| e.to_string())
}

fn snapshots(engine: &Engine) -> &dyn Snapshots {
    engine.snapshots().expect("was opened as one with generations")
}

/// A snapshot, or the newest generation, as an ext4 image.
pub fn export(image: &Image, snapshot: Option<&str>) -> Result<Image, String> {
    let engine = open(image)?;
    let out = SimDevice::new(Image::new(engine.volume_bytes()));
    snapshots(&engine)
        .image(snapshot)
        .and_then(|image| image.export(&*out))
        .map_err(|e| format!("export: {e}"))?;
    Ok(out.image())
}

/// e2fsck accepts the newest generation and every snapshot, each snapshot has the tree that it was
/// made from (its name has the digest), and all required snapshots exist.
pub fn inspect(image: &Image) -> Result<(), String> {
    let (newest, _) = checked(&export(image, None)?)?;
    let snapshots = snapshots(&*open(image)?).list().map_err(|e| e.to_string())?;
    for snapshot in &snapshots {
        let name = &snapshot.name;
        let wrong = |why: String| format!("snapshot {name}: {why}");
        let (tree, digest) = checked(&export(image, Some(name)).map_err(wrong)?).map_err(wrong)?;
        if !name.ends_with(&format!("-{digest:016x}")) {
            let files: Vec<_> = tree.entries.keys().map(|path| String::from_utf8_lossy(path)).collect();
            return Err(wrong(format!("has not the tree that it was made of, but {}", files.join(" "))));
        }
    }
    for path in newest.entries.keys() {
        let path = String::from_utf8_lossy(path);
        if let Some(name) = path.strip_prefix('/').and_then(|path| path.strip_prefix(SNAPSHOT_MARK))
            && !snapshots.iter().any(|snapshot| snapshot.name == name)
        {
            return Err(format!("snapshot {name} was created and is not there"));
        }
    }
    Ok(())
}

/// e2fsck accepts the ext4 volume of this size at the start of a device.
pub fn inspect_plain(image: &Image, volume_bytes: u64) -> Result<(), String> {
    with_file(&resized(image, volume_bytes), |file| e2fsck(file.path()))
}

/// The tree of an exported image, which e2fsck has checked after xact has released its orphans.
fn checked(image: &Image) -> Result<(Tree, u64), String> {
    let device = SimDevice::new(image.clone());
    let options = VolumeOptions { flusher: false, cache_bytes: 16 << 20, ..VolumeOptions::default() };
    let volume = Volume::open(device.clone(), &options).map_err(|e| e.to_string())?;
    let tree = Tree::of_view(&*volume.base())?;
    volume.close().map_err(|e| e.to_string())?;
    with_file(&device.image(), |file| e2fsck(file.path()))?;
    let digest = tree.digest();
    Ok((tree, digest))
}

/// The same bytes on a device of another size.
pub fn resized(image: &Image, size_bytes: u64) -> Image {
    let mut other = Image::new(size_bytes);
    for (offset, bytes) in image.changed_since(&Image::new(image.size_bytes())) {
        if offset < size_bytes {
            let len = bytes.len().min((size_bytes - offset) as usize);
            other.write(&bytes[..len], offset);
        }
    }
    other
}
