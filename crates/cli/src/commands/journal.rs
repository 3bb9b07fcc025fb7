//! `xact journal`: the contents of a volume's journal, one transaction after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use xact::BlockNr;
use xact::check::Use;
use xact::device::{BlockDevice, OpenMode};
use xact::journal::{Checksums, Features, LogContents, LoggedCopy, LoggedState, LoggedTransaction, inspect};

use crate::args::Journal;
use crate::exit::{Failure, Result};
use crate::image;
use crate::log::timestamp;
use crate::output::{print, print_json};

#[derive(Debug, Serialize)]
struct Log {
    /// The volume's superblock says that the log must be replayed.
    needs_recovery: bool,
    /// From the journal's superblock: whether the log is empty, its tail, and the number of the
    /// transaction expected there.
    empty: bool,
    tail_block: u32,
    tail_sequence: u32,
    ring_blocks: u32,
    used_blocks: u32,
    checksums: &'static str,
    features: Vec<&'static str>,
    /// The error with which the journal was aborted; 0: not aborted.
    errno: i32,
    /// Why the owners of the blocks are unknown; `None` if they are known.
    owners_unknown: Option<String>,
    transactions: Vec<Transaction>,
}

#[derive(Debug, Serialize)]
struct Transaction {
    sequence: u32,
    state: &'static str,
    start_block: u32,
    blocks: u32,
    descriptors: u32,
    revoke_blocks: u32,
    /// Blocks of sub-block records.
    patch_blocks: u32,
    has_commit_block: bool,
    /// Seconds since 1970.
    time: Option<f64>,
    /// Copies and patched blocks by the use of the block.
    kinds: BTreeMap<&'static str, u32>,
    copies: Vec<Copy>,
    /// Blocks of which the log has only some bytes.
    patched: Vec<Patched>,
    revoked: Vec<u64>,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Copy {
    block: u64,
    log_block: u32,
    kind: &'static str,
    owner: Option<String>,
    escaped: bool,
    /// null: the copies of this log have no checksums of their own.
    checksum_ok: Option<bool>,
    /// A later transaction has a newer copy, or revokes it.
    superseded: bool,
}

#[derive(Debug, Serialize)]
struct Patched {
    block: u64,
    kind: &'static str,
    owner: Option<String>,
    bytes: usize,
}

pub fn journal(args: &Journal) -> Result<()> {
    let device = image::open(&args.image, OpenMode::ReadOnly)?;
    let contents = inspect(&device).map_err(|e| Failure::volume(&args.image, e))?;
    let (uses, owners_unknown) = uses(&device, &contents);
    let log = Log::of(&contents, &uses, owners_unknown);
    if args.json { print_json(&log) } else { print(&log.text(args.blocks)) }
}

/// The uses of the blocks in the log, as far as the volume itself shows them.
fn uses(device: &Arc<dyn BlockDevice>, contents: &LogContents) -> (BTreeMap<BlockNr, Use>, Option<String>) {
    let copies = contents.transactions.iter().flat_map(|transaction| &transaction.copies);
    let patched = contents.transactions.iter().flat_map(|transaction| transaction.patched.keys());
    let wanted: BTreeSet<BlockNr> = copies.map(|copy| copy.home).chain(patched.copied()).collect();
    if wanted.is_empty() {
        return (BTreeMap::new(), None);
    }
    match xact::check::uses(device.clone(), &wanted) {
        Ok(uses) => (uses, None),
        Err(error) => (BTreeMap::new(), Some(error.to_string())),
    }
}

impl Log {
    fn of(contents: &LogContents, uses: &BTreeMap<BlockNr, Use>, owners_unknown: Option<String>) -> Log {
        let head = &contents.superblock;
        Log {
            needs_recovery: contents.needs_recovery,
            empty: head.start == 0,
            tail_block: head.start,
            tail_sequence: head.sequence,
            ring_blocks: contents.end - contents.first,
            used_blocks: contents.used,
            checksums: match head.features.checksums() {
                Checksums::None => "none",
                Checksums::V1 => "v1",
                Checksums::V2 => "v2",
                Checksums::V3 => "v3",
            },
            features: features(&head.features),
            errno: head.errno,
            owners_unknown,
            transactions: contents.transactions.iter().map(|t| Transaction::of(t, uses)).collect(),
        }
    }

    fn text(&self, each_block: bool) -> String {
        let mut out = String::new();
        let state = match (self.empty, self.needs_recovery) {
            (true, _) => "empty",
            (false, true) => "to be replayed",
            (false, false) => "obsolete: the volume is marked clean, so the log is not replayed",
        };
        let _ = writeln!(out, "log:          {state}");
        let _ = writeln!(
            out,
            "ring:         {} blocks, {} in use from the tail (block {}, transaction {})",
            self.ring_blocks, self.used_blocks, self.tail_block, self.tail_sequence
        );
        let _ = writeln!(out, "checksums:    {}", self.checksums);
        let _ = writeln!(out, "features:     {}", self.features.join(" "));
        if self.errno != 0 {
            let _ = writeln!(out, "aborted with: error {}", self.errno);
        }
        if let Some(why) = &self.owners_unknown {
            let _ = writeln!(out, "owners:       unknown: {why}");
        }
        for transaction in &self.transactions {
            transaction.write(&mut out, each_block);
        }
        out
    }
}

fn features(features: &Features) -> Vec<&'static str> {
    let known = [
        (features.compat & Features::CHECKSUM_V1, "checksum"),
        (features.incompat & Features::REVOKE, "revoke"),
        (features.incompat & Features::WIDE_BLOCKS, "64bit"),
        (features.incompat & Features::ASYNC_COMMIT, "async_commit"),
        (features.incompat & Features::CSUM_V2, "checksum_v2"),
        (features.incompat & Features::CSUM_V3, "checksum_v3"),
        (features.incompat & Features::FAST_COMMIT, "fast_commit"),
        (features.incompat & Features::XACT_PATCHES, "xact_patches"),
    ];
    known.into_iter().filter(|(bit, _)| *bit != 0).map(|(_, name)| name).collect()
}

impl Transaction {
    fn of(logged: &LoggedTransaction, uses: &BTreeMap<BlockNr, Use>) -> Transaction {
        let copies: Vec<Copy> =
            logged.copies.iter().map(|copy| Copy::of(copy, uses.get(&copy.home))).collect();
        let patched: Vec<Patched> = logged
            .patched
            .iter()
            .map(|(block, bytes)| {
                let (kind, owner) = use_of(uses.get(block));
                Patched { block: block.0, kind, owner, bytes: *bytes }
            })
            .collect();
        let mut kinds = BTreeMap::new();
        for kind in copies.iter().map(|copy| copy.kind).chain(patched.iter().map(|patched| patched.kind)) {
            *kinds.entry(kind).or_insert(0) += 1;
        }
        Transaction {
            sequence: logged.sequence,
            state: match logged.state {
                LoggedState::Complete => "complete",
                LoggedState::Torn => "torn",
                LoggedState::Unfinished => "unfinished",
                LoggedState::Damaged => "damaged",
            },
            start_block: logged.start,
            blocks: logged.len,
            descriptors: logged.descriptors,
            revoke_blocks: logged.revoke_blocks,
            patch_blocks: logged.patch_blocks,
            has_commit_block: logged.time.is_some(),
            time: logged.time.map(|(secs, nanos)| secs as f64 + f64::from(nanos) / 1e9),
            kinds,
            copies,
            patched,
            revoked: logged.revoked.iter().map(|block| block.0).collect(),
            problems: logged.problems.clone(),
        }
    }

    fn write(&self, out: &mut String, each_block: bool) {
        let time = self.time.map_or("no commit block".to_owned(), |secs| {
            timestamp(UNIX_EPOCH + Duration::from_secs(secs as u64))
        });
        let _ = writeln!(
            out,
            "\ntransaction {}: {}, {time}; {} blocks at {}: {} descriptors, {} copies, {} patch blocks, {} revoke \
             blocks",
            self.sequence,
            self.state,
            self.blocks,
            self.start_block,
            self.descriptors,
            self.copies.len(),
            self.patch_blocks,
            self.revoke_blocks
        );
        let kinds: Vec<String> = self.kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        if !kinds.is_empty() {
            let _ = writeln!(out, "  changes: {}", kinds.join(", "));
        }
        if !self.revoked.is_empty() {
            let _ = writeln!(out, "  revokes: {} blocks", self.revoked.len());
        }
        for problem in &self.problems {
            let _ = writeln!(out, "  wrong: {problem}");
        }
        if !each_block {
            return;
        }
        for copy in &self.copies {
            let owner = copy.owner.as_ref().map_or(String::new(), |owner| format!(" of {owner}"));
            let checksum = if copy.checksum_ok == Some(false) { ", checksum wrong" } else { "" };
            let escaped = if copy.escaped { ", escaped" } else { "" };
            let superseded = if copy.superseded { ", superseded" } else { "" };
            let _ = writeln!(
                out,
                "  {:>8} -> block {}: {}{owner}{escaped}{superseded}{checksum}",
                copy.log_block, copy.block, copy.kind
            );
        }
        for Patched { block, kind, owner, bytes } in &self.patched {
            let owner = owner.as_ref().map_or(String::new(), |owner| format!(" of {owner}"));
            let _ = writeln!(out, "  {bytes:>5} B of block {block}: {kind}{owner}");
        }
        for block in &self.revoked {
            let _ = writeln!(out, "  revoked     block {block}");
        }
    }
}

/// The use of a block, and its owner.
fn use_of(found: Option<&Use>) -> (&'static str, Option<String>) {
    match found {
        None => ("unknown", None),
        Some(Use::Free) => ("free", None),
        Some(Use::Superblock) => ("superblock", None),
        Some(Use::GroupDescriptors) => ("group descriptors", None),
        Some(Use::BlockBitmap(group)) => ("block bitmap", Some(format!("group {}", group.0))),
        Some(Use::InodeBitmap(group)) => ("inode bitmap", Some(format!("group {}", group.0))),
        Some(Use::Inodes(first, last)) => ("inode table", Some(format!("inodes {} to {}", first.0, last.0))),
        Some(Use::Map(ino)) => ("map", Some(format!("inode {}", ino.0))),
        Some(Use::Directory(ino)) => ("directory", Some(format!("inode {}", ino.0))),
        Some(Use::Link(ino)) => ("link target", Some(format!("inode {}", ino.0))),
        Some(Use::Attributes(ino)) => ("attributes", Some(format!("inode {}", ino.0))),
        Some(Use::Data(ino)) => ("file data", Some(format!("inode {}", ino.0))),
    }
}

impl Copy {
    fn of(logged: &LoggedCopy, found: Option<&Use>) -> Copy {
        let (kind, owner) = use_of(found);
        Copy {
            block: logged.home.0,
            log_block: logged.at,
            kind,
            owner,
            escaped: logged.is_escaped,
            checksum_ok: logged.checksum_ok,
            superseded: logged.is_superseded,
        }
    }
}
