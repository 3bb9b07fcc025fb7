//! A snapshot that is open for reading: as files, and as an ext4 image.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use xact_device::{BlockDevice, Overlay};
use xact_fs::{View, VolumeOptions};
use xact_types::{Error, Result};

/// Memory for what is cached of each snapshot, in bytes.
const CACHE_BYTES: u64 = 4 << 20;

/// A snapshot that is open for reading. After its deletion all calls fail with [`Error::Io`].
pub struct Snapshot {
    generation: Arc<dyn xact_consistency::SnapshotImage>,
    view: OnceLock<Arc<dyn View>>,
    image: OnceLock<Arc<SnapshotImage>>,
    /// Held while one of the two is opened.
    opening: Mutex<()>,
}

/// A snapshot as the bytes of an ext4 volume that was unmounted cleanly: files that were deleted
/// while they were open are released, in memory.
pub struct SnapshotImage {
    device: Arc<Overlay>,
    used: Vec<Range<u64>>,
}

fn options(read_only: bool) -> VolumeOptions {
    VolumeOptions { read_only, cache_bytes: CACHE_BYTES, flusher: false, ..VolumeOptions::default() }
}

impl Snapshot {
    pub(crate) fn new(generation: Arc<dyn xact_consistency::SnapshotImage>) -> Snapshot {
        let (view, image, opening) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        Snapshot { generation, view, image, opening }
    }

    /// The files as they were. Changes fail with [`Error::ReadOnly`].
    pub fn view(&self) -> Result<Arc<dyn View>> {
        open_once(&self.view, &self.opening, || Ok(xact_fs::open(self.generation.clone(), &options(true))?))
    }

    /// The snapshot as a plain ext4 image, which Linux and e2fsck read; nothing is copied.
    pub fn image(&self) -> Result<Arc<SnapshotImage>> {
        open_once(&self.image, &self.opening, || {
            let device = Arc::new(Overlay::new(self.generation.clone()));
            xact_fs::open(device.clone(), &options(false))?.close()?;
            Ok(Arc::new(SnapshotImage { device, used: self.generation.used()? }))
        })
    }
}

fn open_once<T: Clone>(
    place: &OnceLock<T>,
    opening: &Mutex<()>,
    open: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let _turn = opening.lock();
    match place.get() {
        Some(open) => Ok(open.clone()),
        None => {
            let opened = open()?;
            Ok(place.get_or_init(|| opened).clone())
        }
    }
}

impl SnapshotImage {
    /// Size of the image.
    pub fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    /// Fills `buf` from `offset`; both must lie within the image.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.device.read_at(buf, offset).map_err(|e| Error::io("reading a snapshot", e))
    }

    /// Sorted ranges of bytes that hold anything.
    pub fn used(&self) -> &[Range<u64>] {
        &self.used
    }
}
