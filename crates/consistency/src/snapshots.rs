//! Snapshots, as seen by users of the engine. `generations/` makes them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use xact_device::BlockDevice;
use xact_types::{BlockNr, Result};

use crate::core::block::BlockRef;

/// The additional features of a volume with generations.
pub trait Snapshots: Send + Sync {
    /// Number of the durable generation.
    fn generation(&self) -> u64;

    /// Keeps the state of the next generation, which is made at once, under a name. The snapshot
    /// includes everything written to the engine before the call.
    ///
    /// Errors: `Usage` for a name that exists or is invalid; `NoSpace`.
    fn create(&self, name: &str, time: u64) -> Result<()>;

    /// First call of two for a snapshot of chosen files and folders: keeps the volume as it is now
    /// under a name, in a commit, marked as to be pruned. The volume may be used concurrently, but
    /// another such snapshot waits until this one is finished or dropped.
    ///
    /// Errors: as [`Snapshots::create`].
    fn begin_partial(&self, name: &str, time: u64) -> Result<Box<dyn UnprunedSnapshot + '_>>;

    /// Deletes a snapshot and frees the blocks that it alone has kept. Works on a full volume too.
    ///
    /// Errors: `Usage` for an unknown name.
    fn delete(&self, name: &str) -> Result<()>;

    /// Restores the tree of the moment when the snapshot was created, and discards later changes
    /// that no snapshot has. The snapshot stays, and so do the volume's settings. Nothing may have
    /// been read through this engine yet.
    ///
    /// Errors: `Usage` for an unknown name, and for a snapshot of chosen paths, which lacks the
    /// rest of the tree; `NoSpace`.
    fn restore(&self, name: &str) -> Result<()>;

    /// The snapshots, from the oldest to the newest. Takes time in proportion to the pool's
    /// contents, and commits wait for that long.
    fn list(&self) -> Result<Vec<SnapshotInfo>>;

    /// Their names and times alone, which are always in memory.
    fn times(&self) -> Vec<(String, u64)>;

    /// The paths of a snapshot; none for one of the volume. Errors: `Usage` for an unknown name.
    fn paths(&self, name: &str) -> Result<Vec<Vec<u8>>>;

    /// Whether a change was committed, or waits for a commit, that the newest snapshot of the
    /// volume does not have.
    fn has_changed_since_newest(&self) -> bool;

    /// Blocks that a snapshot and another, or the durable generation, have in different places, in
    /// the order of their numbers. Takes time in proportion to the differences, and commits wait
    /// for that long. A block may be listed and have the same contents in both.
    fn changed_blocks(&self, old: &str, new: Option<&str>) -> Result<Vec<BlockNr>>;

    /// A snapshot as a read-only device. Without a name: the durable generation with its log, of an
    /// engine that is read-only itself, since otherwise the next commits would change the blocks
    /// that are read.
    ///
    /// Errors: `Usage`.
    fn image(&self, snapshot: Option<&str>) -> Result<Arc<dyn SnapshotImage>>;

    /// The present use of the pool. Takes time in proportion to the pool's contents, and commits
    /// wait for that long.
    fn pool_use(&self) -> Result<PoolUse>;

    /// Whether the pool has so little space that nothing can be added. Takes no time.
    fn is_pool_full(&self) -> bool;

    /// Converts the volume to plain ext4, and closes the engine. Nothing may have been changed
    /// through this engine yet, and the volume must have been closed cleanly.
    ///
    /// Errors: `Usage` if there are snapshots, which only a volume with generations can keep.
    fn make_plain(&self) -> Result<()>;
}

/// A snapshot that [`Snapshots::begin_partial`] has made and that is to be pruned to chosen paths.
/// Dropped without [`UnprunedSnapshot::finish`], it is deleted; after a crash the next opening
/// deletes it.
pub trait UnprunedSnapshot {
    /// The volume as of the first call, for the selection of blocks.
    fn image(&self) -> Arc<dyn SnapshotImage>;

    /// The second call: prunes the snapshot to the blocks of `part`, in a second commit. It is in
    /// the list of snapshots from then on.
    ///
    /// Errors: `Usage` if `part` has no paths, or too long ones; `NoSpace`. Then there is no
    /// snapshot.
    fn finish(self: Box<Self>, part: PartialSnapshot) -> Result<()>;
}

/// A snapshot, or the durable generation, as a device that is never written. Stays readable until
/// the snapshot is deleted.
pub trait SnapshotImage: BlockDevice {
    /// Sorted ranges of bytes that the generation uses. The bytes between them hold nothing.
    ///
    /// Errors: `Io` if the snapshot was deleted; `Corrupt`.
    fn used(&self) -> Result<Vec<Range<u64>>>;

    /// Copies the used blocks of the generation to `out`, which has at least the volume's size and
    /// reads as zeros; the rest stays zero. Returns the number of bytes copied.
    ///
    /// The image has the orphans of that moment: opening it for writing releases them.
    fn export(&self, out: &dyn BlockDevice) -> Result<u64>;
}

/// A snapshot as a user sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// Number of the generation that it keeps.
    pub generation: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// Bytes of the pool that deleting it alone would free: its own pool blocks at once, and those
    /// of blocks that it alone keeps from their own places when they have been written home.
    pub own_bytes: u64,
    /// The files and folders that it has, relative to the volume's root; none for a snapshot of the
    /// whole volume.
    pub paths: Vec<Vec<u8>>,
}

/// The blocks of a snapshot of chosen paths. All others are free in it.
#[derive(Debug, Default)]
pub struct PartialSnapshot {
    /// The paths from the volume's root, for lists of the snapshots.
    pub paths: Vec<Vec<u8>>,
    /// Blocks that differ from those of the volume at that time, and the needed blocks of the fixed
    /// metadata.
    pub blocks: BTreeMap<BlockNr, BlockRef>,
    /// Blocks that hold nothing but zeros.
    pub zeros: Vec<BlockNr>,
    /// Sorted ranges of unchanged blocks.
    pub kept: Vec<Range<u64>>,
}

/// The use of the pool's blocks, in bytes. The blocks in use are the sum of `snapshots_bytes`,
/// `displaced_bytes`, `newest_bytes` and `log_bytes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolUse {
    /// Size of the pool.
    pub size_bytes: u64,
    /// Bytes in use: the sum of the next four.
    pub used_bytes: u64,
    /// Blocks that snapshots have and the volume no longer has, with the list of snapshots.
    pub snapshots_bytes: u64,
    /// Blocks of the volume itself that cannot go home since snapshots have their places.
    pub displaced_bytes: u64,
    /// The remainder: blocks that the newest generation has moved and not yet written home, and its
    /// map.
    pub newest_bytes: u64,
    /// The area of the intent log, in use at all times.
    pub log_bytes: u64,
    /// Not in use yet: the most that the next generation takes for the changes so far.
    pub in_flight_bytes: u64,
    /// The free space needed to add anything; with less, files can only be deleted.
    pub needed_bytes: u64,
}

impl PoolUse {
    /// The space that only snapshots use, with the blocks that they keep from going home.
    pub fn for_snapshots_bytes(&self) -> u64 {
        self.snapshots_bytes + self.displaced_bytes
    }

    pub fn is_full(&self) -> bool {
        self.size_bytes.saturating_sub(self.used_bytes) < self.needed_bytes
    }
}
