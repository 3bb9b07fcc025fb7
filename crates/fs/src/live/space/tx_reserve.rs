//! Reserves inode numbers and spills contents for open transactions.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use xact_types::{Error, Ino, Result, Run};

use super::make_space::{Effort, SpaceCaller};
use super::tx_space::{PinnedSpace, SpilledRun, TxHolding, TxSpace, TxSpaceUse};
use crate::alloc::Purpose;
use crate::live::LiveFs;
use crate::quota::{Charge, Payer};
use crate::versioned_fs::contents::{SpillPlace, SpilledBlock};
use crate::versioned_fs::tx_space::{HoldsTxSpace, SpaceLimits};

impl HoldsTxSpace for LiveFs {
    type Space = Arc<TxSpace>;
    type Pinned = PinnedSpace;

    fn open_space(self: &Arc<Self>, id: u64, owner: u32) -> Arc<TxSpace> {
        self.space.transactions.open(self.clone(), id, owner)
    }

    fn check_space(space: &Arc<TxSpace>) -> Result<()> {
        space.check()
    }

    fn pin_space(space: &Arc<TxSpace>) -> Result<PinnedSpace> {
        space.pin()
    }

    /// Errors: `EDQUOT` by the quotas of `payer` and by the user's limit; `NoSpace`;
    /// `SpaceRevoked`.
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
        let mut holdings = space.holdings.lock();
        // The space may have been revoked, when this number was not on its list.
        if let Err(error) = space.check() {
            drop(holdings);
            space.give_back_inode(ino, payer);
            return Err(error);
        }
        holdings.inodes.insert(ino, payer);
        Ok(ino)
    }

    fn unreserve_inode(&self, space: &Arc<TxSpace>, ino: Ino) {
        let payer = space.holdings.lock().inodes.remove(&ino);
        if let Some(payer) = payer {
            space.give_back_inode(ino, payer);
        }
    }

    /// The commit has charged the inode itself.
    fn adopted_inode(&self, space: &Arc<TxSpace>, ino: Ino) {
        if space.holdings.lock().inodes.remove(&ino).is_some() {
            space.user.inodes.fetch_sub(1, Relaxed);
        }
    }

    /// Errors: see [`HoldsTxSpace::reserve_inode`].
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
            let reserved = self.reserve_with_effort(count, purpose, SpaceCaller::Inside);
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
            // The parts that have a run give their share back with it.
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
    /// The space that each open transaction holds.
    pub fn tx_holdings(&self) -> Vec<TxHolding> {
        self.space.transactions.holdings()
    }

    /// Statistics of the space that all open transactions hold.
    pub fn tx_space_use(&self) -> TxSpaceUse {
        TxSpaceUse {
            bytes: self.space.transactions.blocks() * self.block_bytes(),
            inodes: self.space.transactions.inodes(),
            revoked: self.space.transactions.revoked(),
            limit_percent: self.options.tx_space_percent,
        }
    }

    fn take_inode_for_tx(&self, parent: Ino, is_dir: bool) -> Result<Ino> {
        let mut effort = Effort::default();
        loop {
            match self.take_inode(parent, is_dir) {
                Err(error) if error.is_no_space() && self.make_space(&mut effort, SpaceCaller::Inside)? => {}
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
        let spilled = SpilledRun::new(space, payer, run);
        let slices: Vec<IoSlice<'_>> = blocks.iter().map(|bytes| IoSlice::new(bytes)).collect();
        self.engine.write_data(run.start, &slices)?;
        spilled.enlist()?;
        Ok(spilled)
    }
}
