//! Notices that another program has written to the volume while this process has it open.
//!
//! Every program that mounts, checks or tunes an ext4 volume writes its superblock. The engine
//! writes its own superblock through [`super::volume::Volume`] alone, so the bytes in its place are
//! known. They are compared before every write that a flush follows (each commit), before each
//! write of the superblock, and otherwise at most once in a millisecond. If they differ, nothing is
//! written any more: two writers with caches of their own destroy a volume. What the other one
//! wrote until then may be damage already.
//!
//! This detects; it prevents nothing. A program that writes anything else (dd, debugfs on one
//! inode) is not noticed.

use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{RwLock, RwLockWriteGuard};
use xact_device::BlockDevice;
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET};

/// The reason for poisoning the volume.
pub(crate) const CHANGED: &str = "another program has written to the volume while it was mounted (its superblock has \
     changed): what that program wrote may have damaged the volume; check it before its next use";

type Bytes = [u8; SUPERBLOCK_BYTES];

pub(crate) struct SuperblockWatch {
    /// The superblock as this engine has last written or found it; `None`: it is not watched.
    own: RwLock<Option<Box<Bytes>>>,
    begun: Instant,
    /// Milliseconds from `begun` to the last comparison.
    compared_ms: AtomicU64,
}

impl Default for SuperblockWatch {
    fn default() -> SuperblockWatch {
        SuperblockWatch { own: RwLock::default(), begun: Instant::now(), compared_ms: AtomicU64::new(0) }
    }
}

impl SuperblockWatch {
    /// Watches from now on.
    pub fn start(&self, device: &dyn BlockDevice) {
        let mut own = self.own.write();
        *own = read(device);
    }

    /// Whether the superblock is as this engine has left it. One that cannot be read is: the
    /// device's errors are reported where its contents are needed.
    pub fn is_unchanged(&self, device: &dyn BlockDevice) -> bool {
        let own = self.own.read();
        self.note();
        is_own(&own, device)
    }

    /// As [`Self::is_unchanged`], unless that was found a moment ago.
    pub fn is_unchanged_lately(&self, device: &dyn BlockDevice) -> bool {
        self.compared_ms.load(Ordering::Relaxed) >= self.now_ms() || self.is_unchanged(device)
    }

    /// Held while the superblock is written.
    pub fn write(&self) -> RwLockWriteGuard<'_, Option<Box<Bytes>>> {
        self.own.write()
    }

    fn note(&self) {
        self.compared_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }
}

fn read(device: &dyn BlockDevice) -> Option<Box<Bytes>> {
    let mut bytes = Box::new([0; SUPERBLOCK_BYTES]);
    device.read_at(&mut *bytes, SUPERBLOCK_OFFSET).ok()?;
    Some(bytes)
}

/// Whether the superblock still is `own`.
pub(crate) fn is_own(own: &Option<Box<Bytes>>, device: &dyn BlockDevice) -> bool {
    own.as_ref().is_none_or(|own| read(device).is_none_or(|now| now == *own))
}

/// Whether a write touches the superblock.
pub(crate) fn covers(offset: u64, len: usize) -> bool {
    offset < SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64 && SUPERBLOCK_OFFSET < offset + len as u64
}

/// Puts what a write to `offset` changes of the superblock into `own`.
pub(crate) fn take_over(own: &mut Bytes, bufs: &[IoSlice<'_>], offset: u64) {
    let mut at = offset;
    for buf in bufs {
        let (start, end) = (at.max(SUPERBLOCK_OFFSET), at + buf.len() as u64);
        let end = end.min(SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64);
        if start < end {
            let from = (start - at) as usize..(end - at) as usize;
            let to = (start - SUPERBLOCK_OFFSET) as usize..(end - SUPERBLOCK_OFFSET) as usize;
            own[to].copy_from_slice(&buf[from]);
        }
        at += buf.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_writes_are_taken_over() {
        let mut own = [0; SUPERBLOCK_BYTES];
        let (a, b) = ([1; 1500], [2; 1000]);
        assert!(covers(0, 1025) && covers(2047, 1) && !covers(0, 1024) && !covers(2048, 4096));
        take_over(&mut own, &[IoSlice::new(&a), IoSlice::new(&b)], 0);
        assert_eq!((own[0], own[475], own[476], own[1023]), (1, 1, 2, 2));
        take_over(&mut own, &[IoSlice::new(&[3; 24])], 1024);
        assert_eq!((own[23], own[24]), (3, 1));
    }
}
