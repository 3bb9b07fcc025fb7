//! Reopens a persisted transaction: reads its file, compares it with the present base, and gives
//! its new inodes numbers.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use xact_fs::{BlockContents, Entry, FileKind, SpaceLimits, VersionedFs, View};
use xact_layout::checksum::crc32c;
use xact_types::{Corruption, Errno, Error, Ino, Result, Site};

use super::codec::{self, Bad, Body, Doom, HEADER_BYTES};
use super::{OnVolume, find_folder, fingerprint, note_transaction};
use crate::contention::{AbortHistory, ContentionManager};
use crate::options::{ConflictDetection, Isolation, TxOptions, TxState};
use crate::overlay::{Names, Overlay};
use crate::partial::pins::Pins;
use crate::savepoint::Savepoints;
use crate::transaction::{Inner, Memory, Transaction, enter};
use crate::tx_tree::{Access, TxTree};
use crate::validation::conflict::CONTENTS_CHANGED;
use crate::validation::offline_changes::OfflineChanges;
use crate::validation::read_set::ReadSet;

impl<B: VersionedFs> Transaction<B> {
    /// Reopens a persisted transaction with its number, its changes and its read set. `Corrupt` if
    /// the file has changed, `Unsupported` if it has a later version.
    pub fn reopen(base: &Arc<B>, id: u64, contention: &Arc<ContentionManager>) -> Result<Transaction<B>> {
        let (claim, hold) = contention.claim_priority(&AbortHistory::default(), 0, || base.open_view());
        let stamp = B::stamp(&hold);
        let mut loaded = Loaded::read(base, id)?;
        let mut offline = std::mem::take(&mut loaded.body.reads.offline);
        let block_size = base.block_size();
        let (nothing, scratch) = (Overlay::default(), Mutex::default());
        let mut tree = TxTree::new(&**base, stamp, Access::Shared(&nothing), &scratch);
        let Body { overlay, reads, fingerprint, serializable, .. } = &loaded.body;
        let items = fingerprint::items(overlay, reads, *serializable);
        if items.len() != fingerprint.len() {
            return Err(loaded.corrupt("a persisted transaction lacks its fingerprints"));
        }
        let now = items.iter().map(|item| fingerprint::value(item, &mut tree, block_size));
        fingerprint::compare(&items, fingerprint, &now.collect::<Result<Vec<_>>>()?, &mut offline);
        let Loaded { body, space, .. } = loaded;
        let doom = body.doom.map(|doom| match doom {
            Doom::TooOld => Error::TooOld,
            Doom::Conflict { path, conflicting_tx } => Error::Conflict {
                path: String::from_utf8_lossy(&path).into_owned(),
                why: CONTENTS_CHANGED,
                conflicting_tx,
            },
        });
        let (overlay, reads) = renumber(base, &space, body.overlay, body.reads, offline)?;
        let on_volume = OnVolume { info: body.info, weight: reads.weight(), outdated: false };
        let isolation = if body.serializable { Isolation::Serializable } else { Isolation::Snapshot };
        let detection = if body.flags.eager { ConflictDetection::Eager } else { ConflictDetection::Lazy };
        let options = TxOptions { id, isolation, detection, mounted: body.flags.mounted, owner: body.owner };
        let inner = Inner {
            state: TxState::Active,
            stamp,
            overlay,
            savepoints: Savepoints::default(),
            doom: doom.map_or_else(OnceLock::new, OnceLock::from),
            is_half_done: body.flags.half_done,
            entry: None,
            claim,
            on_volume: Some(on_volume),
            hold: Some(hold),
            pins: Pins::default(),
            older: Vec::new(),
        };
        Ok(Transaction {
            base: base.clone(),
            space,
            options,
            begun: Instant::now(),
            inner: enter(inner, options, contention),
            reads: Mutex::new(reads),
            contention: contention.clone(),
            lost_attempt: Mutex::default(),
            is_note: false,
            has_claim: false,
            memory: Memory::default(),
        })
    }
}

/// The contents of a file.
struct Loaded<B: VersionedFs> {
    ino: Ino,
    body: Body,
    /// The space that its contents hold again.
    space: B::Space,
}

impl<B: VersionedFs> Loaded<B> {
    fn corrupt(&self, what: Bad) -> Error {
        corrupt(self.ino, what)
    }

    fn read(base: &Arc<B>, id: u64) -> Result<Loaded<B>> {
        let view = note_transaction(base, id, 0);
        let folder = find_folder(&view)?.ok_or(Error::Posix(Errno::ENOENT))?;
        let attr = view.lookup(folder, id.to_string().as_bytes())?;
        let ino = attr.ino;
        let bad = |what: Bad| corrupt(ino, what);
        let block_size = base.block_size();
        let read = |offset: u64, len: usize| {
            let mut bytes = Vec::new();
            view.read(ino, offset, len, &mut bytes)?;
            if bytes.len() == len { Ok(bytes) } else { Err(bad("a persisted transaction ends early")) }
        };
        let (len, sum) = codec::parse_header(&read(0, HEADER_BYTES)?, block_size).map_err(bad)?;
        let past = HEADER_BYTES as u64 + len;
        if past > attr.size {
            return Err(bad("a persisted transaction ends early"));
        }
        let bytes = read(HEADER_BYTES as u64, len as usize)?;
        if crc32c(!0, &bytes) != sum {
            return Err(bad("the checksum of a persisted transaction does not match"));
        }
        let mut body = Body::decode(&bytes).map_err(bad)?;
        drop(bytes);
        if (body.id, body.owner) != (id, attr.uid) {
            return Err(bad("a persisted transaction has another's name or owner"));
        }
        let space = base.open_space(id, body.owner);
        let limit = base.private_bytes_max() / u64::from(block_size);
        let mut offset = past.next_multiple_of(block_size.into());
        for (count, ((of, at), sum)) in std::mem::take(&mut body.contents).into_iter().enumerate() {
            let bytes = read(offset, block_size as usize)?;
            if crc32c(!0, &bytes) != sum {
                return Err(bad("the checksum of a block of a persisted transaction does not match"));
            }
            offset += u64::from(block_size);
            let node = body.overlay.nodes.get_mut(&of).expect("the decoder has checked");
            node.file.blocks.insert(at, Some(BlockContents::Memory(bytes.into())));
            body.overlay.in_memory.push_back((of, at));
            if count % 256 == 255 {
                body.overlay.spill(limit as usize, &mut |place, blocks| {
                    base.spill(&space, place, blocks, SpaceLimits::Exempt)
                })?;
            }
        }
        for node in body.overlay.nodes.values() {
            let size_max = base.size_max(node.origin.flags);
            let blocks_max = size_max.div_ceil(block_size.into());
            let past = node.file.blocks.keys().next_back().is_some_and(|at| u64::from(at.0) >= blocks_max);
            let reserved = node.file.reserved.iter().last().is_some_and(|range| range.end > size_max);
            let target = node.target.as_ref().is_some_and(|target| target.len() > base.target_max());
            if node.origin.kind == FileKind::Regular && (node.file.size > size_max || past || reserved)
                || target
            {
                return Err(bad("a persisted transaction has a file that is too large"));
            }
        }
        Ok(Loaded { ino, body, space })
    }
}

fn corrupt(ino: Ino, what: Bad) -> Error {
    Error::Corrupt(Corruption { site: Site::Inode(ino), what })
}

/// Gives inodes created in the transaction new numbers. Deleted inodes get numbers that no volume
/// has, because their old numbers may be reused.
fn renumber<B: VersionedFs>(
    base: &Arc<B>,
    space: &B::Space,
    overlay: Overlay,
    mut reads: ReadSet,
    mut offline: OfflineChanges,
) -> Result<(Overlay, ReadSet)> {
    let gone = overlay.nodes.keys().filter(|ino| offline.gone.contains(ino)).copied();
    let mut numbers: BTreeMap<Ino, Ino> = gone.zip((0..=u32::MAX).rev().map(Ino)).collect();
    offline.gone.extend(numbers.values());
    let mut folder: HashMap<Ino, Ino> = HashMap::new();
    for (dir, node) in overlay.nodes.iter().filter(|(dir, node)| !node.born && !numbers.contains_key(dir)) {
        folder.extend(node.names.iter().filter_map(|(_, change)| Some((change.now?.ino, *dir))));
    }
    let mut reserved = Vec::new();
    for (ino, node) in overlay.nodes.iter().filter(|(_, node)| node.born) {
        let near = folder.get(ino).copied().unwrap_or(Ino::ROOT);
        let is_dir = node.origin.kind == FileKind::Directory;
        match base.reserve_inode(space, near, is_dir, node.first_payer(), SpaceLimits::Exempt) {
            Ok(number) => {
                reserved.push(number);
                numbers.insert(*ino, number);
            }
            Err(error) => {
                reserved.into_iter().for_each(|number| base.unreserve_inode(space, number));
                return Err(error);
            }
        }
    }
    let now = |ino: Ino| numbers.get(&ino).copied().unwrap_or(ino);
    let in_memory = overlay.in_memory.iter().map(|(ino, at)| (now(*ino), *at)).collect();
    let mut nodes = BTreeMap::new();
    for (ino, mut node) in overlay.nodes {
        node.origin.ino = now(ino);
        node.parent = node.parent.map(now);
        let mut names = Names::default();
        for (name, change) in node.names.in_order() {
            let entry = |entry: Option<Entry>| entry.map(|entry| Entry { ino: now(entry.ino), ..entry });
            names.set(name, entry(change.now), entry(change.base));
        }
        node.names = names;
        nodes.insert(now(ino), node);
    }
    let mut paths = reads.paths.clone();
    for (ino, dir, name) in reads.paths.iter() {
        paths.met(now(dir), name, now(ino));
    }
    (reads.paths, reads.offline) = (paths, offline);
    reads.renumber(now);
    reads.recount();
    let mut overlay = Overlay { nodes, in_memory, ..Overlay::default() };
    overlay.recount();
    Ok((overlay, reads))
}
