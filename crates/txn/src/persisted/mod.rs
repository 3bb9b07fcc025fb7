//! Transactions that outlive the process: undecided, and kept in a file of the volume (TX-18).
//!
//! ```text
//!   /.xact-kept        0700 root   there as long as something is in it
//!   /.xact-kept/ID     one persisted transaction: its head (see `codec`) and its contents, block by block
//! ```
//! To the kernel and to e2fsck these are a folder and files like others. What decides whether a kept
//! transaction is there is the name `ID`, and nothing else.
//!
//! Crash argument. Each step is one ordinary transaction on the base, so that a crash leaves all or nothing of
//! it ([`crate::commit`]):
//! 1. [`Transaction::persist`] makes the file, whole and under its name, in one commit, and returns when that is
//!    durable. So it is there from then on.
//! 2. A commit removes the name in the same operation, and so in the same jbd2 transaction, in which it brings
//!    the changes into the base: [`Transaction::apply`] prepares both, then applies both. So a crash leaves
//!    the changes or the file, never both and never neither. (`Fault::PersistedRemovedApart` leaves that out.)
//! 3. A commit of a part puts a file with the rest in the place of the old one, in the same way. How the base
//!    looks after that commit is foreseen, as it can only be known when it is made; what others change at the
//!    same moment may be taken for a conflict after a crash. It is written once more, as it came out, at once.
//! 4. Dropping removes the name, and returns when that is durable.
//!
//! The process goes on with what it has in memory, and reads the file only when the volume is reopened
//! ([`Transaction::reopen`]). Inodes that were born in the transaction get other numbers then. Its view is of
//! that moment; what others have changed since its begin is found by value (`fingerprint`) and stays a conflict.

mod codec;
mod fingerprint;
mod load;

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::Mutex;
use xact_fs::{BlockContents, Caller, FileKind, InodeOps, PERSISTED_FOLDER as FOLDER, View, WriteHow};
use xact_layout::checksum::crc32c;
use xact_types::{Errno, Error, Ino, Result};

use crate::base::VersionedBase;
use crate::overlay::Overlay;
use crate::part::Selection;
use crate::read_set::ReadSet;
use crate::transaction::{Durability, Inner, Isolation, Transaction, TxOptions, TxState};
use crate::tx_tree::{Access, TxTree};
use codec::{Body, Doom};
use fingerprint::UNKNOWN;

/// Type and permissions of the folder and of the files in it.
const FOLDER_PERM: u16 = 0o700;
const FILE_MODE: u16 = 0o100_600;
/// Two that are kept at once make the folder, or one removes it meanwhile: so often it is tried again.
const TRIES: u32 = 16;
/// Bytes that are written, or read, at once.
const STEP_BYTES: usize = 1 << 20;

/// What is known of a persisted transaction besides its changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PersistedInfo {
    /// Group of the user that it belongs to.
    pub gid: u32,
    /// What people know it by.
    pub label: Vec<u8>,
    /// When it began, in seconds since 1970.
    pub begun: u64,
    /// When it is to be dropped, in seconds since 1970; `None`: never.
    pub deadline: Option<u64>,
}

/// That a transaction is in a file, too.
#[derive(Debug, Clone)]
pub(crate) struct OnVolume {
    pub info: PersistedInfo,
    /// What had been read when it was written, as [`ReadSet::weight`] has it.
    weight: usize,
    /// Whether something was changed since.
    pub outdated: bool,
}

/// The folder, if it is there. `Usage` where somebody else than root may have filled it: what is in it is committed
/// in the name of whomever it says.
fn find_folder(view: &dyn View) -> Result<Option<Ino>> {
    match view.lookup(Ino::ROOT, FOLDER.as_bytes()) {
        Ok(attr) if attr.is_dir() && attr.uid == 0 && attr.perm & 0o077 == 0 => Ok(Some(attr.ino)),
        Ok(_) => Err(Error::Usage(format!(
            "/{FOLDER} on the volume is not the folder in which transactions are kept"
        ))),
        Err(Error::Posix(Errno::ENOENT)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Kept transactions of a volume, by number.
pub fn persisted_transactions(base: &dyn View) -> Result<Vec<u64>> {
    let Some(folder) = find_folder(base)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    base.read_dir(folder, 0, &mut |item| {
        let text = std::str::from_utf8(item.name).ok();
        let number = text.and_then(|text| text.parse::<u64>().ok().filter(|id| id.to_string() == text));
        all.extend(number.filter(|_| item.kind == FileKind::Regular));
        true
    })?;
    all.sort_unstable();
    Ok(all)
}

/// Removes the folder if nothing is in it. Where that fails it stays, empty, for the next time.
fn tidy<B: VersionedBase>(base: &Arc<B>) {
    let tx = note_transaction(base, 0, 0);
    if tx.remove_dir(&Caller::ROOT, Ino::ROOT, FOLDER.as_bytes()).is_ok() {
        let _ = tx.commit_with(Durability::Ordered);
    }
}

/// A transaction that changes what is on record, in the name of `id` and on its owner's account.
fn note_transaction<B: VersionedBase>(base: &Arc<B>, id: u64, owner: u32) -> Transaction<B> {
    let options = TxOptions { id, owner, isolation: Isolation::Snapshot, mounted: false };
    let mut note = Transaction::begin(base, options);
    note.is_note = true;
    note
}

/// What is to be put on record.
pub(crate) struct Record<'a> {
    pub overlay: &'a Overlay,
    pub reads: &'a ReadSet,
    /// What the base will show by the time the record counts, over what it shows at the transaction's
    /// stamp: the part that is committed with it.
    pub beside: &'a Overlay,
    pub info: &'a PersistedInfo,
}

impl<B: VersionedBase> Transaction<B> {
    /// Keeps the transaction as it is now in a file of the volume too, from where [`Transaction::reopen`]
    /// has it after a stop or a crash, until it is committed or dropped. Returns when that is durable. To
    /// be called again when it has changed since.
    ///
    /// `NoSpace` where its contents do not fit the volume a second time, `SpaceRevoked` where others got its space, `Usage` where it has savepoints, and
    /// where something else is in the way: then it is kept no further than before.
    pub fn persist(&self, info: PersistedInfo) -> Result<()> {
        // What it has seen is there after a crash, too: else that would be a conflict.
        self.base.sync()?;
        let mut inner = self.inner.write();
        inner.check_divisible()?;
        self.put_on_record(&mut inner, info)
    }

    /// What it is kept with, if it is in a file.
    pub fn persisted_info(&self) -> Option<PersistedInfo> {
        self.inner.read().on_volume.as_ref().map(|persisted| persisted.info.clone())
    }

    /// As [`Transaction::persist`], for one that is in a file, if it has changed since.
    pub fn update_persisted(&self) -> Result<()> {
        let mut inner = self.inner.write();
        let Some(persisted) = inner.on_volume.clone() else { return Ok(()) };
        inner.check_divisible()?;
        if !persisted.outdated && persisted.weight == self.reads.lock().weight() {
            return Ok(());
        }
        self.put_on_record(&mut inner, persisted.info)
    }

    /// Drops the transaction's changes, those in its file too, durably: it ends, whatever happens. On an
    /// error it may be there again when the volume is reopened.
    pub fn abort_persisted(&self) -> Result<()> {
        let mut inner = self.inner.write();
        if inner.state != TxState::Active {
            return Ok(());
        }
        let Some(_) = inner.on_volume.take() else {
            self.end_aborted(&mut inner);
            return Ok(());
        };
        let removed = self.note(None).and_then(|note| note.commit());
        self.end_aborted(&mut inner);
        drop(inner);
        tidy(&self.base);
        removed
    }

    /// The file is gone by a commit.
    pub(crate) fn off_record(&self) {
        tidy(&self.base);
    }

    /// Takes the file of a transaction away that ends since its commit was refused. Where that fails it is
    /// open again when the volume is reopened, which does no harm.
    pub(crate) fn forget_record(&self, inner: &mut Inner<B>) {
        if inner.on_volume.take().is_some() {
            let _ = self.note(None).and_then(|note| note.commit());
            tidy(&self.base);
        }
    }

    /// Puts the transaction on record by itself.
    pub(crate) fn put_on_record(&self, inner: &mut Inner<B>, info: PersistedInfo) -> Result<()> {
        // What it had is lost in part: it stays as it was kept before.
        B::check_space(&self.space)?;
        let reads = self.reads.lock();
        let nothing = Overlay::default();
        let record = Record { overlay: &inner.overlay, reads: &reads, beside: &nothing, info: &info };
        let mut tries = 0;
        loop {
            tries += 1;
            match self.note(Some(self.encode(inner, &record)?)).and_then(|note| note.commit()) {
                Err(Error::Conflict { .. }) if tries < TRIES => {}
                done => break done?,
            }
        }
        inner.on_volume = Some(OnVolume { info, weight: reads.weight(), outdated: false });
        Ok(())
    }

    /// The change of the record that goes with a commit: the file goes, or another comes in its place.
    pub(crate) fn note_of_commit(
        &self,
        inner: &Inner<B>,
        rest: Option<Rest>,
    ) -> Result<Option<Transaction<B>>> {
        let Some(persisted) = &inner.on_volume else { return Ok(None) };
        let image = match &rest {
            None => None,
            Some(Rest { overlay, reads, part }) => {
                let record = Record { overlay, reads, beside: part, info: &persisted.info };
                Some(self.encode(inner, &record)?)
            }
        };
        self.note(image).map(Some)
    }

    /// What stays of the transaction, as it will be when `part` is in the base.
    pub(crate) fn rest_after(
        &self,
        inner: &Inner<B>,
        selected: &Selection,
        part: &Overlay,
        reads: &ReadSet,
    ) -> Option<Rest> {
        inner.on_volume.as_ref()?;
        let scratch = Mutex::default();
        let tree = RefCell::new(TxTree::new(&*self.base, inner.stamp, Access::Shared(part), &scratch));
        let attr = |ino: Ino| part.still_has(tree.borrow_mut().attr(ino)?);
        let (mut overlay, mut reads) = (inner.overlay.clone(), reads.clone());
        overlay.absorb(selected, part, attr);
        reads.rebase(attr, |dir| tree.borrow_mut().parent(dir));
        Some(Rest { overlay, reads, part: part.clone() })
    }

    /// Takes the file away, or makes it anew, in a transaction that is not committed yet.
    fn note(&self, image: Option<Image>) -> Result<Transaction<B>> {
        let TxOptions { id, owner, .. } = self.options;
        let name = id.to_string();
        let note = note_transaction(&self.base, id, owner);
        let folder = match find_folder(&note)? {
            Some(folder) => folder,
            None if image.is_some() => {
                note.make_dir(&Caller::ROOT, Ino::ROOT, FOLDER.as_bytes(), FOLDER_PERM)?.ino
            }
            // Somebody who has the volume mounted otherwise has removed it: that is a drop.
            None => return Ok(note),
        };
        match note.unlink(&Caller::ROOT, folder, name.as_bytes()) {
            Ok(()) | Err(Error::Posix(Errno::ENOENT)) => {}
            Err(error) => return Err(error),
        }
        if let Some(image) = image {
            let by = Caller { uid: owner, gid: image.gid, umask: 0 };
            let file = note.make_node(&by, folder, name.as_bytes(), FILE_MODE, 0)?.ino;
            image.write(|offset, bytes| {
                note.write(file, offset, bytes, WriteHow { by, ..WriteHow::default() })
            })?;
        }
        Ok(note)
    }

    fn encode(&self, inner: &Inner<B>, record: &Record<'_>) -> Result<Image> {
        let block_size = self.base.block_size();
        let TxOptions { id, isolation, mounted, owner } = self.options;
        let serializable = isolation == Isolation::Serializable || record.reads.is_coarse;
        let scratch = Mutex::default();
        let access = Access::Shared(record.beside);
        let mut tree = TxTree::new(&*self.base, inner.stamp, access, &scratch);
        let items = fingerprint::items(record.overlay, record.reads, serializable);
        let values = items.iter().map(|item| match fingerprint::is_foreseen(item, record.beside) {
            true => fingerprint::value(item, &mut tree, block_size),
            false => Ok(UNKNOWN),
        });
        let fingerprint = values.collect::<Result<_>>()?;
        let doom = match &inner.doom {
            None => None,
            Some(Error::Conflict { path, conflicting_tx, .. }) => {
                Some(Doom::Conflict { path: path.clone().into_bytes(), conflicting_tx: *conflicting_tx })
            }
            Some(_) => Some(Doom::TooOld),
        };
        let told = record.overlay.nodes.iter().filter(|(_, node)| codec::is_told(node));
        let blocks: Vec<_> = told
            .flat_map(|(ino, node)| node.file.blocks.iter().map(move |(at, block)| ((*ino, *at), block)))
            .filter_map(|(at, block)| Some((at, block.clone()?)))
            .collect();
        let sums = blocks.iter().map(|(at, block)| Ok((*at, crc32c(!0, &block.bytes()?))));
        let body = Body {
            id,
            owner,
            serializable,
            mounted,
            info: record.info.clone(),
            doom,
            overlay: record.overlay.clone(),
            reads: record.reads.clone(),
            fingerprint,
            contents: sums.collect::<Result<_>>()?,
        };
        let body = body.encode();
        if body.len() as u64 > codec::BODY_MAX {
            return Err(Error::Usage("the transaction changes too much to be kept over a stop".into()));
        }
        let mut head = codec::header(block_size, &body).to_vec();
        head.extend(body);
        head.resize(head.len().next_multiple_of(block_size as usize), 0);
        let blocks = blocks.into_iter().map(|(_, block)| block).collect();
        Ok(Image { gid: record.info.gid, head, blocks })
    }
}

/// What a commit of a part leaves.
pub(crate) struct Rest {
    overlay: Overlay,
    reads: ReadSet,
    part: Overlay,
}

/// A file to be written.
struct Image {
    gid: u32,
    head: Vec<u8>,
    blocks: Vec<BlockContents>,
}

impl Image {
    fn write(&self, mut write: impl FnMut(u64, &[u8]) -> Result<u64>) -> Result<()> {
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
