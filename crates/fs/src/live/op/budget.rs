//! Reservations of an operation before its first change. A volume that cannot meet them refuses the
//! operation, and nothing has changed.

use xact_consistency::ReserveClass;
use xact_types::{Ino, Result};

use super::Operation;
use crate::alloc::Purpose;
use crate::api::Caller;
use crate::inode_ops::AttrChange;
use crate::live::LiveFs;
use crate::live::space::make_space::SpaceCaller;
use crate::quota::{Charge, Payer, Wanted};

/// The resources that an operation must have before it may change anything.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Maximum number of metadata blocks that it changes.
    pub credits: u32,
    /// Blocks that it may add for names, attributes and tree nodes; they are reserved before the
    /// first change. Amounts that depend on what the operation reads are added by
    /// [`Operation::reserve_growth`]. 0 for operations that only free blocks, which must work on a
    /// full volume.
    pub growth: u64,
    pub privileges: Privileges,
    /// The part of the engine's remaining space that it may use.
    pub class: ReserveClass,
    /// The kind of caller, which decides what gives way if no space is left.
    pub caller: SpaceCaller,
}

/// Resources that are not open to every caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privileges {
    /// May use the blocks reserved for root and for the user and group in the superblock.
    pub reserve: bool,
    /// May exceed quota limits.
    pub beyond_quota: bool,
}

impl Privileges {
    pub const ALL: Privileges = Privileges { reserve: true, beyond_quota: true };
    pub const NONE: Privileges = Privileges { reserve: false, beyond_quota: false };
}

impl Budget {
    /// An operation that adds a name or an attribute; its growth is added when it is known.
    pub(in crate::live) const ADD: Budget = Budget {
        credits: 64,
        growth: 0,
        privileges: Privileges::ALL,
        class: ReserveClass::Any,
        caller: SpaceCaller::Outside,
    };
    /// An operation that changes attributes or data in memory.
    pub(in crate::live) const CHANGE: Budget = Budget { credits: 32, ..Budget::ADD };
    /// An operation that removes a name or truncates data.
    pub(in crate::live) const REMOVE: Budget = Budget { class: ReserveClass::Removal, ..Budget::ADD };

    pub(in crate::live) fn by(self, privileges: Privileges) -> Budget {
        Budget { privileges, ..self }
    }
}

impl LiveFs {
    /// A caller's privileges (`ext4_has_free_clusters`). Of a caller's groups, only the first
    /// counts.
    pub(in crate::live) fn privileges(&self, caller: &Caller) -> Privileges {
        let root = caller.uid == 0;
        let owners = self.options.owners;
        let uid = owners.reserve_uid.unwrap_or(self.sb.def_resuid().into());
        let gid = owners.reserve_gid.unwrap_or(self.sb.def_resgid().into());
        let named = caller.uid == uid || gid != 0 && caller.gid == gid;
        Privileges { reserve: root || named, beyond_quota: root }
    }
}

impl Operation<'_> {
    pub(in crate::live) fn privileges(&self) -> Privileges {
        self.budget.privileges
    }

    /// Adds to the budget, before the first change.
    pub(in crate::live) fn reserve_more(&mut self, credits: u32, growth: u64) {
        assert!(!self.has_stamp, "an operation reserves before its first change");
        self.budget.credits = self.budget.credits.saturating_add(credits);
        self.budget.growth += growth;
    }

    /// Adds the growth of one step to the budget, before the first change: `most` blocks, or the
    /// exact number that `exactly` finds if the volume does not have as many. Finding it takes
    /// time, but steps that need no block then work on a full volume, as on ext4. A transaction's
    /// commit has already counted all of its steps.
    pub(in crate::live) fn reserve_growth(
        &mut self,
        most: u64,
        exactly: impl FnOnce(&mut Self) -> Result<u64>,
    ) -> Result<()> {
        if self.has_stamp || self.transaction.is_some() {
            return Ok(());
        }
        let purpose = Purpose::Data { privileged: self.budget.privileges.reserve };
        let enough = self.fs.allocator.can_reserve(self.budget.growth + most, purpose);
        let blocks = if enough { most } else { exactly(self)? };
        self.reserve_more(0, blocks);
        Ok(())
    }

    /// Registers a quota charge, before the first change. That change then checks the limits and
    /// adds missing entries.
    pub(in crate::live) fn reserve_quota(&mut self, wanted: Wanted) {
        if self.fs.quotas.is_on() {
            self.wanted.push(wanted);
        }
    }

    /// Registers, before the first change, a reservation that becomes a charge in this operation.
    pub(in crate::live) fn reserve_move(&mut self, reserved: Charge) {
        if self.fs.quotas.is_on() {
            self.moving.push(reserved);
        }
    }

    /// Call before a change of owner, group or project: moves the inode's charge and its
    /// reservations to the new payer.
    pub(super) fn change_payer(&mut self, ino: Ino, change: &AttrChange) -> Result<()> {
        let fs = self.fs;
        if !fs.quotas.is_on() {
            return Ok(());
        }
        let locked = self.state(ino)?;
        let now = fs.quotas.payer_of(&locked.state.inode);
        let payer = Payer {
            uid: change.uid.unwrap_or(now.uid),
            gid: change.gid.unwrap_or(now.gid),
            project: change.project.unwrap_or(now.project),
        };
        if payer == now {
            return Ok(());
        }
        let reserved = locked.cached.pages.lock().reserved * fs.block_bytes();
        let charged = locked.state.charged;
        let more = Charge { payer, bytes: charged.bytes + reserved, ..charged };
        self.reserve_quota(Wanted { now: Some(now), more });
        self.begin_block_change()?;
        let reserved = |payer: Payer| Charge { payer, bytes: reserved, inodes: 0 };
        fs.quotas.release(&reserved(now));
        fs.quotas.reserve(&reserved(payer), true)
    }
}
