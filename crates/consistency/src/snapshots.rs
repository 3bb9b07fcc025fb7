//! Snapshots, as the engine's users see them. `generations/` makes them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use xact_device::BlockDevice;
use xact_types::{BlockNr, Result};

use crate::core::block::BlockRef;

/// The calls that a volume with generations has beyond other engines.
pub trait Snapshots: Send + Sync {
    /// Number of the durable generation.
    fn generation(&self) -> u64;

    /// Keeps what the next generation will be, which is made at once, under a name. What has been
    /// written to the engine when this is called is in it.
    ///
    /// Errors: `Usage` for a name that exists or is invalid; `NoSpace`.
    fn create(&self, name: &str, time: u64) -> Result<()>;

    /// First call of two for a snapshot of chosen files and folders: keeps the volume as it is now
    /// under a name, in a commit, marked as to be pruned. The volume may be used concurrently, but
    /// another such snapshot waits until this one is finished or dropped.
    ///
    /// Errors: as [`Snapshots::create`].
    fn begin_partial(&self, name: &str, time: u64) -> Result<Box<dyn UnprunedSnapshot + '_>>;

    /// Deletes a snapshot and frees what it alone has kept. Works on a full volume too.
    ///
    /// Errors: `Usage` where there is none of this name.
    fn delete(&self, name: &str) -> Result<()>;

    /// Makes the tree what it was when the snapshot was created; what was done since and is in no
    /// snapshot is gone. The snapshot stays, and so do the volume's settings. Nobody may have read
    /// anything by this engine yet.
    ///
    /// Errors: `Usage` where there is none of this name, and for one of chosen paths, which has not
    /// what the others would become; `NoSpace`.
    fn restore(&self, name: &str) -> Result<()>;

    /// The snapshots, from the oldest to the newest. Costs what the pool holds, and commits wait
    /// for that long.
    fn list(&self) -> Result<Vec<SnapshotInfo>>;

    /// Their names and times alone, which cost nothing to find.
    fn times(&self) -> Vec<(String, u64)>;

    /// The paths of a snapshot; none for one of the volume. Errors: `Usage` where there is none of
    /// this name.
    fn paths(&self, name: &str) -> Result<Vec<Vec<u8>>>;

    /// Whether anything was committed, or waits for a commit, that the newest snapshot of the
    /// volume does not have.
    fn has_changed_since_newest(&self) -> bool;

    /// Blocks that a snapshot and another, or the durable generation, have in different places, in
    /// the order of their numbers. Costs what differs, and commits wait for that long. A block may
    /// be there and have the same contents.
    fn changed_blocks(&self, old: &str, new: Option<&str>) -> Result<Vec<BlockNr>>;

    /// A snapshot as a read-only device; without a name the durable generation with what its log
    /// has, of an engine that is read-only itself: else the next commits would change what is read.
    ///
    /// Errors: `Usage`.
    fn image(&self, snapshot: Option<&str>) -> Result<Arc<dyn SnapshotImage>>;

    /// What the pool is in use for now. Costs what the pool holds, and commits wait for that long.
    fn pool_use(&self) -> Result<PoolUse>;

    /// Whether there is so little space in the pool that nothing can be added. Costs nothing.
    fn is_pool_full(&self) -> bool;

    /// Makes the volume a plain ext4 one, and closes the engine. Nobody may have changed anything
    /// by this engine yet, and the volume must have been closed cleanly.
    ///
    /// Errors: `Usage` where there are snapshots, which only a volume with generations can keep.
    fn make_plain(&self) -> Result<()>;
}

/// A snapshot that [`Snapshots::begin_partial`] has made and that is to be pruned to chosen paths.
/// Dropped without [`UnprunedSnapshot::finish`], it is deleted; after a crash the next opening
/// deletes it.
pub trait UnprunedSnapshot {
    /// The volume as of the first call, for the selection of blocks.
    fn image(&self) -> Arc<dyn SnapshotImage>;

    /// The second call: prunes the snapshot to the blocks of `part`, in a second commit. It is in the
    /// list of snapshots from then on.
    ///
    /// Errors: `Usage` where the paths of `part` are none or too long; `NoSpace`. Then there is no
    /// snapshot.
    fn finish(self: Box<Self>, part: PartialSnapshot) -> Result<()>;
}

/// A snapshot, or the durable generation, as a device that is never written. Stays readable until
/// the snapshot is deleted.
pub trait SnapshotImage: BlockDevice {
    /// Sorted ranges of bytes that the generation uses. What lies between them holds nothing.
    ///
    /// Errors: `Io` where the snapshot was deleted; `Corrupt`.
    fn used(&self) -> Result<Vec<Range<u64>>>;

    /// Copies what the generation uses to `out`, which has at least the volume's size and reads as
    /// zeros; the rest stays zero. Gives the number of bytes copied.
    ///
    /// The image has the orphans of that moment: opening it for writing releases them.
    fn export(&self, out: &dyn BlockDevice) -> Result<u64>;
}

/// A snapshot as a user sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    pub name: String,
    pub generation: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// Bytes of the pool that deleting it alone would free: of what it alone has at once, and of
    /// what it alone keeps from its own place when that has been written back there.
    pub own_bytes: u64,
    /// The files and folders that it has, from the volume's root and without one; none: all of the
    /// volume.
    pub paths: Vec<Vec<u8>>,
}

/// Which blocks a snapshot of chosen paths has. All others are free in it.
#[derive(Debug, Default)]
pub struct PartialSnapshot {
    /// The paths from the volume's root, for lists of the snapshots.
    pub paths: Vec<Vec<u8>>,
    /// What differs from the volume as it was, and all that is needed of the fixed metadata.
    pub blocks: BTreeMap<BlockNr, BlockRef>,
    /// Blocks that hold nothing but zeros.
    pub zeros: Vec<BlockNr>,
    /// Sorted ranges of blocks that are as they were.
    pub kept: Vec<Range<u64>>,
}

/// What the pool blocks are in use for, in bytes. Those in use are the sum of `snapshots_bytes`,
/// `displaced_bytes`, `newest_bytes` and `log_bytes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolUse {
    pub size_bytes: u64,
    pub used_bytes: u64,
    /// What snapshots have and the volume does not any more, with the list of snapshots.
    pub snapshots_bytes: u64,
    /// Of the volume itself: what cannot go home since snapshots have something there.
    pub displaced_bytes: u64,
    /// The remainder: what the newest generation has moved and not yet brought home, and its map.
    pub newest_bytes: u64,
    /// The area of the intent log, in use at all times.
    pub log_bytes: u64,
    /// Not in use yet: the most that the next generation takes for the changes so far.
    pub in_flight_bytes: u64,
    /// What has to be free for anything to be added; with less, files can be deleted only.
    pub needed_bytes: u64,
}

impl PoolUse {
    /// What is in use for nothing but snapshots, with what they keep from going home.
    pub fn for_snapshots_bytes(&self) -> u64 {
        self.snapshots_bytes + self.displaced_bytes
    }

    pub fn is_full(&self) -> bool {
        self.size_bytes.saturating_sub(self.used_bytes) < self.needed_bytes
    }
}
