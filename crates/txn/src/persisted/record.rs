//! Writes the file of a persisted transaction.

use parking_lot::Mutex;
use xact_fs::{BlockContents, VersionedFs};
use xact_layout::checksum::crc32c;
use xact_types::{Error, Result};

use super::codec::{self, Body, Doom, Flags};
use super::fingerprint::{self, LOST, UNKNOWN};
use super::info::PersistedInfo;
use crate::options::{ConflictDetection, Isolation, TxOptions};
use crate::overlay::Overlay;
use crate::transaction::{Inner, Transaction};
use crate::tx_tree::{Access, TxTree};
use crate::validation::read_set::ReadSet;

/// Bytes in one write.
const STEP_BYTES: usize = 1 << 20;

/// The state to store.
pub(super) struct Record<'a> {
    pub overlay: &'a Overlay,
    pub reads: &'a ReadSet,
    /// The part that is committed together with the record: the base will have it when the record
    /// takes effect.
    pub beside: &'a Overlay,
    pub info: &'a PersistedInfo,
}

impl<B: VersionedFs> Transaction<B> {
    pub(super) fn encode(&self, inner: &Inner<B>, record: &Record<'_>) -> Result<Image> {
        let block_size = self.base.block_size();
        let TxOptions { id, isolation, detection, mounted, owner } = self.options;
        let serializable = isolation == Isolation::Serializable || record.reads.is_coarse;
        let scratch = Mutex::default();
        let access = Access::Shared(record.beside);
        let mut tree = TxTree::new(&*self.base, inner.stamp, access, &scratch);
        tree.pins = Some(&inner.pins);
        let items = fingerprint::items(record.overlay, record.reads, serializable);
        let too_old = self.base.check_stamp(inner.stamp).is_err();
        let values = items.iter().map(|item| match fingerprint::is_foreseen(item, record.beside) {
            // The values are lost with the view, and the commit is refused in any case.
            true if too_old => Ok(UNKNOWN),
            // An old view of a pinned item may have expired. The value then differs from every one.
            true => match fingerprint::value(item, &mut tree, block_size) {
                Err(Error::TooOld) => Ok(LOST),
                value => value,
            },
            false => Ok(UNKNOWN),
        });
        let fingerprint = values.collect::<Result<_>>()?;
        let doom = match inner.doom.get() {
            None if too_old => Some(Doom::TooOld),
            None => None,
            Some(Error::Conflict { path, conflicting_tx, .. }) => {
                Some(Doom::Conflict { path: path.clone().into_bytes(), conflicting_tx: *conflicting_tx })
            }
            Some(_) => Some(Doom::TooOld),
        };
        let stored = record.overlay.nodes.iter().filter(|(_, node)| codec::is_stored(node));
        let blocks: Vec<_> = stored
            .flat_map(|(ino, node)| node.file.blocks.iter().map(move |(at, block)| ((*ino, *at), block)))
            .filter_map(|(at, block)| Some((at, block.clone()?)))
            .collect();
        let sums = blocks.iter().map(|(at, block)| Ok((*at, crc32c(!0, &block.bytes()?))));
        let body = Body {
            id,
            owner,
            serializable,
            flags: Flags {
                mounted,
                eager: detection == ConflictDetection::Eager,
                half_done: inner.is_half_done,
            },
            info: record.info.clone(),
            doom,
            overlay: record.overlay.clone(),
            reads: record.reads.clone(),
            fingerprint,
            contents: sums.collect::<Result<_>>()?,
        };
        let body = body.encode();
        if body.len() as u64 > codec::BODY_MAX {
            return Err(Error::Usage("the transaction has too many changes to be persisted".into()));
        }
        let mut head = codec::header(block_size, &body).to_vec();
        head.extend(body);
        head.resize(head.len().next_multiple_of(block_size as usize), 0);
        let blocks = blocks.into_iter().map(|(_, block)| block).collect();
        Ok(Image { gid: record.info.gid, head, blocks })
    }
}

/// The contents of a file to write.
pub(super) struct Image {
    pub gid: u32,
    head: Vec<u8>,
    blocks: Vec<BlockContents>,
}

impl Image {
    pub fn write(&self, mut write: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let mut offset = 0;
        for part in self.head.chunks(STEP_BYTES) {
            write(offset, part)?;
            offset += part.len() as u64;
        }
        let mut step = Vec::new();
        let mut blocks = self.blocks.iter().peekable();
        while let Some(block) = blocks.next() {
            step.extend_from_slice(&block.bytes()?);
            if step.len() >= STEP_BYTES || blocks.peek().is_none() {
                write(offset, &step)?;
                offset += step.len() as u64;
                step.clear();
            }
        }
        Ok(())
    }
}
