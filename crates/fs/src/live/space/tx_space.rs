//! Space that open transactions hold before their commits: its owner, its limit, its revocation.
//!
//! A transaction holds blocks with spilled contents, and numbers of inodes created in it. Both are
//! taken in memory only, so a crash leaves no trace of them, and nothing in this module is on disk.
//!
//! Crash argument of spilled contents: their blocks are taken in memory only, so a crash finds them
//! free. A transaction that does not commit gives them back. Its commit links them to its files
//! where they are, without another write: from then on they are like staged contents
//! (`commit::install`). The commit's own flush covers them, as it covers all data written before
//! it.
//!
//! - *Charge.* Held space counts against the quotas of the file that it is for (user, group,
//!   project), as the same call outside a transaction would. It is a reservation in addition to the
//!   usage ([`crate::quota`]) and never in a quota file: e2fsck compares that file with the inode
//!   table. A commit ends the reservation when it moves the charge (`op`); in all other cases the
//!   reservation ends when the space is given back.
//! - *Limit.* The open transactions of one user other than root together may hold a share of the
//!   space that is free to unprivileged users, including what these transactions hold
//!   ([`LiveOptions::tx_space_percent`](crate::live::LiveOptions)). Beyond it a call in the
//!   transaction gets `EDQUOT`: the volume has space, but this user's transactions may not take it.
//!   The blocks reserved for root are not part of that space.
//! - *Revocation.* When other callers find no space (`make_space`), a transaction loses all that it
//!   holds. From then on it can neither change nor commit anything, and reads of spilled contents
//!   fail ([`Error::SpaceRevoked`]).
//!
//! Revocation does not need the transaction's lock, which may be held for long:
//! ```text
//!        spill, reserve            pin                          adopted, linked
//!  Open ───────────────▶ Open ─────────────────────▶ Pinned ────────────────────▶ (the volume's)
//!    │                                                 │ refused
//!    │ revoke                     Open ◀───────────────┘
//!    ▼
//!  Revoked: holds nothing
//! ```
//! Pinned space is never revoked, so a commit links only blocks of its own transaction. A read of a
//! spilled block holds the run's lock shared while the device works, and revocation takes that lock
//! before the blocks become free: so no transaction reads blocks that were handed out again.
//!
//! Locks: `Space::giving_way` → the list of spaces → a space's `holdings`, or a run's state → a
//! group of the allocator. A thread never holds one of them together with an inode lock, except a
//! run's state and `holdings`, under which no thread waits.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use xact_types::{BlockNr, Errno, Error, Ino, Result, Run};

use crate::live::LiveFs;
use crate::quota::{Charge, Payer};
use crate::versioned_fs::contents::SpilledStorage;
use crate::versioned_fs::tx_space::SpaceLimits;

/// Statistics of the space that open transactions hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxSpaceUse {
    /// Bytes of spilled contents.
    pub bytes: u64,
    pub inodes: u64,
    /// Transactions whose space was revoked since the volume was opened.
    pub revoked: u64,
    /// Share of the free space that the open transactions of one user may hold, in percent.
    pub limit_percent: u8,
}

/// Space that one open transaction holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TxHolding {
    /// Its number.
    pub id: u64,
    /// Its user.
    pub uid: u32,
    /// Bytes of spilled contents.
    pub bytes: u64,
    /// Numbers of new files and folders.
    pub inodes: u64,
}

/// The spaces of all open transactions of a volume.
#[derive(Default)]
pub(in crate::live) struct TxSpaces {
    open: Mutex<BTreeMap<u64, Weak<TxSpace>>>,
    last_number: AtomicU64,
    users: Mutex<HashMap<u32, Weak<UserSpace>>>,
    revoked: AtomicU64,
}

/// Amounts held by all open transactions of one user.
#[derive(Default)]
pub(super) struct UserSpace {
    pub blocks: AtomicU64,
    pub inodes: AtomicU64,
}

/// The space that one open transaction holds.
pub struct TxSpace {
    fs: Arc<LiveFs>,
    /// The transaction's number, for messages.
    id: u64,
    pub(super) owner: u32,
    /// Key in the list of spaces.
    number: u64,
    pub(super) user: Arc<UserSpace>,
    pub(super) blocks: AtomicU64,
    pub(super) holdings: Mutex<Holdings>,
    revoked: AtomicBool,
    /// The message that its user's limit was reached was logged.
    limit_logged: AtomicBool,
}

#[derive(Default)]
pub(super) struct Holdings {
    pub inodes: BTreeMap<Ino, Payer>,
    pub runs: BTreeMap<u64, Weak<SpilledRun>>,
    last_run: u64,
    /// Running commits.
    pins: u32,
}

/// Keeps a transaction's space from being revoked while its commit uses it.
pub struct PinnedSpace {
    space: Arc<TxSpace>,
}

impl Drop for PinnedSpace {
    fn drop(&mut self) {
        self.space.holdings.lock().pins -= 1;
    }
}

/// Blocks that were spilled together.
pub(in crate::live) struct SpilledRun {
    space: Arc<TxSpace>,
    number: u64,
    pub run: Run,
    payer: Payer,
    state: RwLock<RunState>,
}

struct RunState {
    /// Whether each block belongs to a file.
    linked: Vec<bool>,
    /// The other blocks were revoked.
    given_back: bool,
}

impl SpilledStorage for SpilledRun {
    fn start(&self) -> BlockNr {
        self.run.start
    }

    /// The charge for one block.
    fn charge(&self) -> Charge {
        Charge { payer: self.payer, bytes: self.space.fs.block_bytes(), inodes: 0 }
    }

    fn block_bytes(&self) -> usize {
        self.space.fs.block_bytes() as usize
    }

    fn read(&self, index: u32, buf: &mut [u8]) -> Result<()> {
        let state = self.state.read();
        if state.given_back {
            return Err(Error::SpaceRevoked);
        }
        self.space.fs.engine.read_data(self.run.start.offset(index.into()), buf)
    }

    /// A block now belongs to a file, with its charge, and is not given back.
    fn set_linked(&self, index: u32) {
        let mut state = self.state.write();
        assert!(!state.given_back, "blocks that a commit links are pinned");
        let was = std::mem::replace(&mut state.linked[index as usize], true);
        assert!(!was, "a spilled block becomes one file's, once");
        self.space.release_blocks(1);
    }
}

impl SpilledRun {
    /// A new run with a number of its own; not in the space's list yet.
    pub(super) fn new(space: &Arc<TxSpace>, payer: Payer, run: Run) -> Arc<SpilledRun> {
        let number = {
            let mut holdings = space.holdings.lock();
            holdings.last_run += 1;
            holdings.last_run
        };
        let state = RunState { linked: vec![false; run.len as usize], given_back: false };
        Arc::new(SpilledRun { space: space.clone(), number, run, payer, state: RwLock::new(state) })
    }

    /// Adds the run to the space's list. `SpaceRevoked` if the space was revoked after the run was
    /// taken: the run is then given back by its drop, which takes the lock.
    pub(super) fn enlist(self: &Arc<Self>) -> Result<()> {
        let mut holdings = self.space.holdings.lock();
        self.space.check()?;
        holdings.runs.insert(self.number, Arc::downgrade(self));
        Ok(())
    }

    /// Gives back the blocks that belong to no file, with their charge.
    fn give_back(&self) {
        let mut state = self.state.write();
        if std::mem::replace(&mut state.given_back, true) {
            return;
        }
        let mut at = 0;
        for part in state.linked.chunk_by(|one, two| one == two) {
            let run = Run { start: self.run.start.offset(at), len: part.len() as u32 };
            at += u64::from(run.len);
            if !part[0] {
                let fs = &self.space.fs;
                fs.allocator.give_back(run);
                let bytes = u64::from(run.len) * fs.block_bytes();
                fs.quotas.release(&Charge { bytes, ..self.charge() });
                self.space.release_blocks(run.len.into());
            }
        }
    }
}

impl Drop for SpilledRun {
    fn drop(&mut self) {
        self.give_back();
        self.space.holdings.lock().runs.remove(&self.number);
    }
}

impl TxSpace {
    /// `SpaceRevoked` after a revocation: the transaction can no longer commit.
    pub fn check(&self) -> Result<()> {
        if self.revoked.load(SeqCst) { Err(Error::SpaceRevoked) } else { Ok(()) }
    }

    /// Pins the space for a commit, until the result is dropped. Errors: see [`TxSpace::check`].
    pub fn pin(self: &Arc<Self>) -> Result<PinnedSpace> {
        let mut holdings = self.holdings.lock();
        self.check()?;
        holdings.pins += 1;
        Ok(PinnedSpace { space: self.clone() })
    }

    pub(super) fn release_blocks(&self, blocks: u64) {
        self.blocks.fetch_sub(blocks, Relaxed);
        self.user.blocks.fetch_sub(blocks, Relaxed);
    }

    /// Number of blocks, or inodes, that a revocation would free.
    pub(in crate::live) fn size(&self, inodes: bool) -> u64 {
        let holdings = self.holdings.lock();
        match (holdings.pins, inodes) {
            (0, true) => holdings.inodes.len() as u64,
            (0, false) => self.blocks.load(Relaxed),
            _ => 0,
        }
    }

    /// Takes all space from the transaction; false if it is being committed.
    pub(in crate::live) fn revoke(&self) -> bool {
        let (inodes, runs) = {
            let mut holdings = self.holdings.lock();
            if holdings.pins > 0 {
                return false;
            }
            self.revoked.store(true, SeqCst);
            (std::mem::take(&mut holdings.inodes), std::mem::take(&mut holdings.runs))
        };
        self.fs.space.transactions.revoked.fetch_add(1, Relaxed);
        let mut blocks = 0;
        for run in runs.values().filter_map(Weak::upgrade) {
            blocks += u64::from(run.run.len);
            run.give_back();
        }
        let count = inodes.len();
        for (ino, payer) in inodes {
            self.give_back_inode(ino, payer);
        }
        let (id, owner) = (self.id, self.owner);
        tracing::warn!(
            transaction = id,
            "the volume was full: transaction {id} of user {owner} lost the {blocks} blocks and {count} inodes that \
             it held, and can only be aborted"
        );
        true
    }

    pub(super) fn give_back_inode(&self, ino: Ino, payer: Payer) {
        let fs = &self.fs;
        fs.quotas.release(&Charge { payer, bytes: 0, inodes: 1 });
        self.user.inodes.fetch_sub(1, Relaxed);
        // A commit that failed half-way may have made it an inode in use; it has poisoned the
        // volume.
        if fs.engine.health().is_ok() {
            fs.allocator.give_back_inode(ino);
        }
    }

    /// Adds to one of the user's amounts. `free` is what the volume has left; `EDQUOT` beyond the
    /// user's share.
    pub(super) fn add_to_user(
        &self,
        held: &AtomicU64,
        more: u64,
        free: u64,
        limits: SpaceLimits,
    ) -> Result<()> {
        let percent = u64::from(self.fs.options.tx_space_percent);
        let unlimited = self.owner == 0 || limits == SpaceLimits::Exempt;
        let added = held.fetch_update(Relaxed, Relaxed, |held| {
            let most = (free.saturating_add(held)).saturating_mul(percent).div_ceil(100);
            (unlimited || held + more <= most).then_some(held + more)
        });
        if added.is_err() {
            if !self.limit_logged.swap(true, Relaxed) {
                let (id, owner) = (self.id, self.owner);
                tracing::warn!(
                    transaction = id,
                    "transaction {id}: the open transactions of user {owner} hold {percent}% of the free space, \
                     the limit for one user (mount option tx_space)"
                );
            }
            return Err(Errno::EDQUOT.into());
        }
        Ok(())
    }
}

impl Drop for TxSpace {
    fn drop(&mut self) {
        let inodes = std::mem::take(&mut self.holdings.get_mut().inodes);
        for (ino, payer) in inodes {
            self.give_back_inode(ino, payer);
        }
        self.fs.space.transactions.open.lock().remove(&self.number);
    }
}

impl TxSpaces {
    /// An empty space for a transaction that begins.
    pub(super) fn open(&self, fs: Arc<LiveFs>, id: u64, owner: u32) -> Arc<TxSpace> {
        let user = self.user(owner);
        let number = self.last_number.fetch_add(1, Relaxed);
        let space = Arc::new(TxSpace {
            fs,
            id,
            owner,
            number,
            user,
            blocks: AtomicU64::new(0),
            holdings: Mutex::default(),
            revoked: AtomicBool::new(false),
            limit_logged: AtomicBool::new(false),
        });
        self.open.lock().insert(number, Arc::downgrade(&space));
        space
    }

    fn user(&self, owner: u32) -> Arc<UserSpace> {
        let mut users = self.users.lock();
        if let Some(user) = users.get(&owner).and_then(Weak::upgrade) {
            return user;
        }
        users.retain(|_, user| user.strong_count() > 0);
        let user = Arc::<UserSpace>::default();
        users.insert(owner, Arc::downgrade(&user));
        user
    }

    /// Inodes that all spaces hold.
    pub fn inodes(&self) -> u64 {
        self.spaces().iter().map(|space| space.holdings.lock().inodes.len() as u64).sum()
    }

    /// Transactions whose space was revoked since the volume was opened.
    pub fn revoked(&self) -> u64 {
        self.revoked.load(Relaxed)
    }

    fn spaces(&self) -> Vec<Arc<TxSpace>> {
        self.open.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Whether a commit is running.
    pub fn any_pinned(&self) -> bool {
        self.spaces().iter().any(|space| space.holdings.lock().pins > 0)
    }

    /// Blocks that all spaces hold.
    pub fn blocks(&self) -> u64 {
        self.spaces().iter().map(|space| space.blocks.load(Relaxed)).sum()
    }

    /// The space of each transaction.
    pub fn holdings(&self) -> Vec<TxHolding> {
        let of = |space: Arc<TxSpace>| TxHolding {
            id: space.id,
            uid: space.owner,
            bytes: space.blocks.load(Relaxed) * space.fs.block_bytes(),
            inodes: space.holdings.lock().inodes.len() as u64,
        };
        self.spaces().into_iter().map(of).collect()
    }

    /// The space that holds most blocks, or inodes, with the number.
    pub fn largest(&self, inodes: bool) -> Option<(Arc<TxSpace>, u64)> {
        let sizes = self.spaces().into_iter().map(|space| (space.size(inodes), space));
        sizes.filter(|(size, _)| *size > 0).max_by_key(|(size, _)| *size).map(|(size, space)| (space, size))
    }
}
