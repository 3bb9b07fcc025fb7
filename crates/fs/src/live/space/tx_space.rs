//! Space that open transactions hold before their commits: whose it is, how much it may be, and how
//! it is revoked.
//!
//! A transaction holds blocks that its contents were spilled to, and numbers of inodes that were
//! born in it. Both are taken in memory only, so a crash leaves nothing of them, and nothing here
//! is on disk.
//!
//! Crash argument of spilled contents: they are in blocks that are taken in memory only, so a crash
//! finds these free. A transaction that ends without them gives them back. Its commit makes them
//! blocks of its files where they are, without writing them again: as staged contents from then on
//! (`commit::install`), and the commit's own flush covers them as any data that was written before
//! it.
//!
//! - *Charge.* What is held counts against the quotas of the file that it is for (user, group,
//!   project), as the same call outside would. It is a reservation beside the usage
//!   ([`crate::quota`]), never in a quota file: that has what the inode table has, and e2fsck
//!   compares the two. A commit ends the reservation when it moves the charge (`op`), everything
//!   else when it gives the space back.
//! - *Limit.* All open transactions of one user other than root together may hold a share of what
//!   is free to unprivileged users, theirs included
//!   ([`LiveOptions::tx_space_percent`](crate::live::LiveOptions)). Beyond it the call in the
//!   transaction gets `EDQUOT`: the volume has space left, this user's transactions may not have
//!   it. The blocks reserved for root are no part of that.
//! - *Revocation.* When others find no space (`make_space.rs`), a transaction loses all that it
//!   holds. From then on it can neither change nor commit anything, and reads of spilled contents
//!   fail ([`Error::SpaceRevoked`]).
//!
//! Revocation needs no lock of the transaction, which may be busy for long:
//! ```text
//!        spill, reserve            begin_commit                 adopted, linked
//!  Open ───────────────▶ Open ─────────────────────▶ Pinned ────────────────────▶ (the volume's)
//!    │                                                 │ refused
//!    │ revoke                     Open ◀───────────────┘
//!    ▼
//!  Revoked: holds nothing
//! ```
//! Nothing revokes what is pinned, so what a commit links is its own. A read of a spilled block
//! holds the run's lock shared while the device works, and revocation takes that lock before the
//! blocks are free: so no transaction reads what is another's by then.
//!
//! Locks: `making` (in `make_space.rs`) → the list of spaces → a space's `held`, or a run's state →
//! a group of the allocator. None of them is held while an inode is locked by the same thread, but
//! for a run's state and `held`, under which nothing waits.

use std::collections::{BTreeMap, HashMap};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use xact_types::{BlockNr, Errno, Error, Ino, Result, Run};

use crate::alloc::Purpose;
use crate::live::LiveFs;
use crate::live::space::make_space::{Asker, Effort};
use crate::quota::{Charge, Payer};
use crate::versioned_fs::contents::{self, SpillPlace, SpilledBlock, SpilledRun as _};
use crate::versioned_fs::tx_space::{HoldsTxSpace, SpaceLimits};

/// What open transactions hold, for people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxSpaceUse {
    /// Of spilled contents.
    pub bytes: u64,
    pub inodes: u64,
    /// Transactions whose space was revoked since the volume was opened.
    pub revoked: u64,
    /// What all open transactions of one user may hold of what is free, in percent.
    pub limit_percent: u8,
}

/// All spaces of open transactions of a volume.
#[derive(Default)]
pub(in crate::live) struct TxSpaces {
    open: Mutex<BTreeMap<u64, Weak<TxSpace>>>,
    last: AtomicU64,
    users: Mutex<HashMap<u32, Weak<UserSpace>>>,
    revoked: AtomicU64,
}

/// What all open transactions of one user hold.
#[derive(Default)]
struct UserSpace {
    blocks: AtomicU64,
    inodes: AtomicU64,
}

/// What one open transaction holds.
pub struct TxSpace {
    fs: Arc<LiveFs>,
    /// The transaction's number, for the log.
    id: u64,
    owner: u32,
    /// In the list of spaces.
    number: u64,
    user: Arc<UserSpace>,
    blocks: AtomicU64,
    held: Mutex<Held>,
    revoked: AtomicBool,
    /// That its user's limit was met is logged once.
    told: AtomicBool,
}

#[derive(Default)]
struct Held {
    inodes: BTreeMap<Ino, Payer>,
    runs: BTreeMap<u64, Weak<SpilledRun>>,
    last_run: u64,
    /// Commits under way.
    pins: u32,
}

/// Keeps a transaction's space from being revoked while its commit uses it.
pub struct PinnedSpace {
    space: Arc<TxSpace>,
}

impl Drop for PinnedSpace {
    fn drop(&mut self) {
        self.space.held.lock().pins -= 1;
    }
}

/// Blocks that were spilled together.
pub(in crate::live) struct SpilledRun {
    space: Arc<TxSpace>,
    number: u64,
    run: Run,
    payer: Payer,
    state: RwLock<RunState>,
}

struct RunState {
    /// Those that have become a file's.
    linked: Vec<bool>,
    /// The rest was revoked.
    given_back: bool,
}

impl contents::SpilledRun for SpilledRun {
    fn start(&self) -> BlockNr {
        self.run.start
    }

    /// What a block of it is charged.
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

    /// A block is a file's: it is not given back any more, and its charge is the file's.
    fn set_linked(&self, index: u32) {
        let mut state = self.state.write();
        assert!(!state.given_back, "what a commit links is pinned");
        let was = std::mem::replace(&mut state.linked[index as usize], true);
        assert!(!was, "a spilled block becomes one file's, once");
        self.space.release_blocks(1);
    }
}

impl SpilledRun {
    /// Gives back what has not become a file's, with its charge.
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
        self.space.held.lock().runs.remove(&self.number);
    }
}

impl TxSpace {
    /// Whose contents may still be committed: `SpaceRevoked` where what it held is gone.
    pub fn check(&self) -> Result<()> {
        if self.revoked.load(SeqCst) { Err(Error::SpaceRevoked) } else { Ok(()) }
    }

    /// Before a commit, until the result is dropped. Errors as [`TxSpace::check`].
    pub fn begin_commit(self: &Arc<Self>) -> Result<PinnedSpace> {
        let mut held = self.held.lock();
        self.check()?;
        held.pins += 1;
        Ok(PinnedSpace { space: self.clone() })
    }

    fn release_blocks(&self, blocks: u64) {
        self.blocks.fetch_sub(blocks, Relaxed);
        self.user.blocks.fetch_sub(blocks, Relaxed);
    }

    /// Blocks, or inodes, that can be had from it.
    pub(in crate::live) fn size(&self, inodes: bool) -> u64 {
        let held = self.held.lock();
        match (held.pins, inodes) {
            (0, true) => held.inodes.len() as u64,
            (0, false) => self.blocks.load(Relaxed),
            _ => 0,
        }
    }

    /// Takes everything from the transaction; false where it is being committed.
    pub(in crate::live) fn revoke(&self) -> bool {
        let (inodes, runs) = {
            let mut held = self.held.lock();
            if held.pins > 0 {
                return false;
            }
            self.revoked.store(true, SeqCst);
            (std::mem::take(&mut held.inodes), std::mem::take(&mut held.runs))
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
        log::warn!(
            "the volume was full: transaction {id} of user {owner} lost the {blocks} blocks and {count} inodes that \
             it held, and can only be dropped"
        );
        true
    }

    fn give_back_inode(&self, ino: Ino, payer: Payer) {
        let fs = &self.fs;
        fs.quotas.release(&Charge { payer, bytes: 0, inodes: 1 });
        self.user.inodes.fetch_sub(1, Relaxed);
        // A commit that failed half-way may have made it an inode; it has stopped the volume.
        if fs.engine.health().is_ok() {
            fs.allocator.give_back_inode(ino);
        }
    }

    /// Adds to what the user holds of something, of which `free` is left to all; `EDQUOT` beyond
    /// the share.
    fn add_to_user(&self, held: &AtomicU64, more: u64, free: u64, limits: SpaceLimits) -> Result<()> {
        let percent = u64::from(self.fs.options.tx_space_percent);
        let unlimited = self.owner == 0 || limits == SpaceLimits::Exempt;
        let added = held.fetch_update(Relaxed, Relaxed, |held| {
            let most = (free.saturating_add(held)).saturating_mul(percent).div_ceil(100);
            (unlimited || held + more <= most).then_some(held + more)
        });
        if added.is_err() {
            if !self.told.swap(true, Relaxed) {
                let (id, owner) = (self.id, self.owner);
                log::warn!(
                    "transaction {id}: the open transactions of user {owner} hold {percent}% of the free space, which \
                     is all that they may (mount option tx_space)"
                );
            }
            return Err(Errno::EDQUOT.into());
        }
        Ok(())
    }
}

impl Drop for TxSpace {
    fn drop(&mut self) {
        let inodes = std::mem::take(&mut self.held.get_mut().inodes);
        for (ino, payer) in inodes {
            self.give_back_inode(ino, payer);
        }
        self.fs.space.transactions.open.lock().remove(&self.number);
    }
}

impl TxSpaces {
    fn spaces(&self) -> Vec<Arc<TxSpace>> {
        self.open.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Whether a commit is under way.
    pub fn any_pinned(&self) -> bool {
        self.spaces().iter().any(|space| space.held.lock().pins > 0)
    }

    /// Blocks that all of them hold.
    pub fn blocks(&self) -> u64 {
        self.spaces().iter().map(|space| space.blocks.load(Relaxed)).sum()
    }

    /// The one that holds most blocks, or inodes, and how many.
    pub fn largest(&self, inodes: bool) -> Option<(Arc<TxSpace>, u64)> {
        let sizes = self.spaces().into_iter().map(|space| (space.size(inodes), space));
        sizes.filter(|(size, _)| *size > 0).max_by_key(|(size, _)| *size).map(|(size, space)| (space, size))
    }
}

impl HoldsTxSpace for LiveFs {
    type Space = Arc<TxSpace>;
    type Pinned = PinnedSpace;

    /// Nothing yet, for a transaction that begins.
    fn open_space(self: &Arc<Self>, id: u64, owner: u32) -> Arc<TxSpace> {
        let spaces = &self.space.transactions;
        let user = {
            let mut users = spaces.users.lock();
            match users.get(&owner).and_then(Weak::upgrade) {
                Some(user) => user,
                None => {
                    users.retain(|_, user| user.strong_count() > 0);
                    let user = Arc::<UserSpace>::default();
                    users.insert(owner, Arc::downgrade(&user));
                    user
                }
            }
        };
        let number = spaces.last.fetch_add(1, Relaxed);
        let space = Arc::new(TxSpace {
            fs: self.clone(),
            id,
            owner,
            number,
            user,
            blocks: AtomicU64::new(0),
            held: Mutex::default(),
            revoked: AtomicBool::new(false),
            told: AtomicBool::new(false),
        });
        spaces.open.lock().insert(number, Arc::downgrade(&space));
        space
    }

    fn check_space(space: &Arc<TxSpace>) -> Result<()> {
        space.check()
    }

    fn pin_space(space: &Arc<TxSpace>) -> Result<PinnedSpace> {
        space.begin_commit()
    }

    /// Reserves an inode number in memory, for a transaction's new inode. Errors: `EDQUOT` by the
    /// quotas of `payer` and by the user's limit; `NoSpace`; `SpaceRevoked`.
    fn reserve_inode(
        &self,
        space: &Arc<TxSpace>,
        parent: Ino,
        is_dir: bool,
        payer: Payer,
        limits: SpaceLimits,
    ) -> Result<Ino> {
        space.check()?;
        space.add_to_user(&space.user.inodes, 1, self.allocator.free_inodes(), limits)?;
        let charge = Charge { payer, bytes: 0, inodes: 1 };
        let unchecked = space.owner == 0 || limits == SpaceLimits::Exempt;
        let taken = self.quotas.reserve(&charge, unchecked).and_then(|()| {
            let taken = self.take_inode_for_tx(parent, is_dir);
            taken.inspect_err(|_| self.quotas.release(&charge))
        });
        let ino = taken.inspect_err(|_| _ = space.user.inodes.fetch_sub(1, Relaxed))?;
        let mut held = space.held.lock();
        // Revoked since: this one was not on the list.
        if let Err(error) = space.check() {
            drop(held);
            space.give_back_inode(ino, payer);
            return Err(error);
        }
        held.inodes.insert(ino, payer);
        Ok(ino)
    }

    /// Gives back a number that was reserved and never used.
    fn unreserve_inode(&self, space: &Arc<TxSpace>, ino: Ino) {
        let payer = space.held.lock().inodes.remove(&ino);
        if let Some(payer) = payer {
            space.give_back_inode(ino, payer);
        }
    }

    /// A commit has made a reserved number an inode, which is charged by itself.
    fn adopted_inode(&self, space: &Arc<TxSpace>, ino: Ino) {
        if space.held.lock().inodes.remove(&ino).is_some() {
            space.user.inodes.fetch_sub(1, Relaxed);
        }
    }

    /// Writes contents of consecutive blocks of a file to free blocks. Errors: as
    /// [`HoldsTxSpace::reserve_inode`]; nothing was written then.
    fn spill(
        self: &Arc<Self>,
        space: &Arc<TxSpace>,
        place: &SpillPlace<'_>,
        blocks: &[Arc<[u8]>],
        limits: SpaceLimits,
    ) -> Result<Vec<SpilledBlock>> {
        if self.engine.is_read_only() {
            return Err(Error::ReadOnly);
        }
        space.check()?;
        let purpose = Purpose::Data { privileged: space.owner == 0 };
        let count = blocks.len() as u64;
        let free = self.allocator.reservable(Purpose::Data { privileged: false });
        space.add_to_user(&space.user.blocks, count, free, limits)?;
        space.blocks.fetch_add(count, Relaxed);
        let charge = Charge { payer: place.payer, bytes: count * self.block_bytes(), inodes: 0 };
        let unchecked = space.owner == 0 || limits == SpaceLimits::Exempt;
        let reserved = self.quotas.reserve(&charge, unchecked).and_then(|()| {
            let reserved = self.reserve_with_effort(count, purpose, Asker::Inside);
            reserved.inspect_err(|_| self.quotas.release(&charge))
        });
        let mut reservation = reserved.inspect_err(|_| space.release_blocks(count))?;
        let goal = place.after.map(|block| block.place().offset(1));
        let mut goal = goal.unwrap_or_else(|| self.allocator.goal_for(place.ino));
        let mut spilled = Vec::with_capacity(blocks.len());
        let mut rest = blocks;
        while !rest.is_empty() {
            let written = self
                .allocator
                .take(goal, rest.len() as u32, purpose, Some(&mut reservation))
                .and_then(|run| self.spill_run(space, place.payer, run, &rest[..run.len as usize]));
            // What has a run gives its share back with that.
            let run = written.inspect_err(|_| {
                let left = reservation.left();
                self.quotas.release(&Charge { bytes: left * self.block_bytes(), ..charge });
                space.release_blocks(left);
            })?;
            goal = run.run.end();
            spilled.extend((0..run.run.len).map(|index| SpilledBlock::new(run.clone(), index)));
            rest = &rest[run.run.len as usize..];
        }
        Ok(spilled)
    }

    fn private_bytes_max(&self) -> u64 {
        self.options.data_cache_bytes / 4
    }
}

impl LiveFs {
    /// What all open transactions hold together.
    pub fn tx_space_use(&self) -> TxSpaceUse {
        TxSpaceUse {
            bytes: self.space.transactions.blocks() * self.block_bytes(),
            inodes: self
                .space
                .transactions
                .spaces()
                .iter()
                .map(|space| space.held.lock().inodes.len() as u64)
                .sum(),
            revoked: self.space.transactions.revoked.load(Relaxed),
            limit_percent: self.options.tx_space_percent,
        }
    }

    fn take_inode_for_tx(&self, parent: Ino, is_dir: bool) -> Result<Ino> {
        let mut effort = Effort::default();
        loop {
            match self.allocator.take_inode(parent, is_dir) {
                Err(Error::NoSpace) if self.make_space(&mut effort, Asker::Inside)? => {}
                result => return result,
            }
        }
    }

    fn spill_run(
        &self,
        space: &Arc<TxSpace>,
        payer: Payer,
        run: Run,
        blocks: &[Arc<[u8]>],
    ) -> Result<Arc<SpilledRun>> {
        let number = {
            let mut held = space.held.lock();
            held.last_run += 1;
            held.last_run
        };
        let state = RunState { linked: vec![false; run.len as usize], given_back: false };
        let spilled =
            Arc::new(SpilledRun { space: space.clone(), number, run, payer, state: RwLock::new(state) });
        let slices: Vec<IoSlice<'_>> = blocks.iter().map(|bytes| IoSlice::new(bytes)).collect();
        self.engine.write_data(run.start, &slices)?;
        let mut held = space.held.lock();
        // Revoked since: this one was not on the list, and goes by being dropped, which takes
        // the lock.
        if let Err(error) = space.check() {
            drop(held);
            return Err(error);
        }
        held.runs.insert(number, Arc::downgrade(&spilled));
        drop(held);
        Ok(spilled)
    }
}
