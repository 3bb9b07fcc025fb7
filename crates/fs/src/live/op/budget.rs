//! What an operation reserves before its first change: a volume that lacks it refuses the
//! operation, and nothing has happened.

use xact_consistency::ReserveClass;
use xact_types::{Ino, Result};

use super::Operation;
use crate::alloc::Purpose;
use crate::api::Caller;
use crate::inode_ops::AttrChange;
use crate::live::LiveFs;
use crate::live::space::make_space::SpaceCaller;
use crate::quota::{Charge, Payer, Wanted};

/// What an operation needs of the volume before it may change anything.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Metadata blocks that it changes, at most.
    pub credits: u32,
    /// Blocks that it may add for names, attributes and tree nodes: a volume without them refuses
    /// it up front. What depends on what the operation reads is added before its first change
    /// ([`Operation::reserve_growth`]); 0 for operations that only give back, which must work on a
    /// full volume.
    pub growth: u64,
    pub privileges: Privileges,
    /// What it may use of the room that the engine has left.
    pub class: ReserveClass,
    /// Who gives way where there is no space.
    pub caller: SpaceCaller,
}

/// What a caller may use that others may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privileges {
    /// The blocks reserved for root, or for those whom the superblock names.
    pub reserve: bool,
    /// More than quotas allow.
    pub beyond_quota: bool,
}

impl Privileges {
    pub const ALL: Privileges = Privileges { reserve: true, beyond_quota: true };
    pub const NONE: Privileges = Privileges { reserve: false, beyond_quota: false };
}

impl Budget {
    /// An operation that adds a name or an attribute: what it grows by follows from what it finds.
    pub(in crate::live) const ADD: Budget = Budget {
        credits: 64,
        growth: 0,
        privileges: Privileges::ALL,
        class: ReserveClass::Any,
        caller: SpaceCaller::Outside,
    };
    /// An operation that changes attributes or data in memory.
    pub(in crate::live) const CHANGE: Budget = Budget { credits: 32, ..Budget::ADD };
    /// An operation that removes a name or cuts data off.
    pub(in crate::live) const REMOVE: Budget = Budget { class: ReserveClass::Removal, ..Budget::ADD };

    pub(in crate::live) fn by(self, privileges: Privileges) -> Budget {
        Budget { privileges, ..self }
    }
}

impl LiveFs {
    /// What a caller may use (`ext4_has_free_clusters`; of groups, the caller's first one counts).
    pub(in crate::live) fn privileges(&self, caller: &Caller) -> Privileges {
        let root = caller.uid == 0;
        let named = caller.uid == u32::from(self.sb.def_resuid())
            || self.sb.def_resgid() != 0 && caller.gid == u32::from(self.sb.def_resgid());
        Privileges { reserve: root || named, beyond_quota: root }
    }
}

impl Operation<'_> {
    pub(in crate::live) fn privileges(&self) -> Privileges {
        self.budget.privileges
    }

    /// Adds to what the operation needs; before its first change.
    pub(in crate::live) fn reserve_more(&mut self, credits: u32, growth: u64) {
        assert!(self.stamp.is_none(), "an operation says what it needs before it changes anything");
        self.budget.credits = self.budget.credits.saturating_add(credits);
        self.budget.growth += growth;
    }

    /// Adds what a step of the operation takes, `most` blocks, before its first change; where there
    /// are not as many, as many as `exactly` finds it to take, which costs time: as on ext4, what
    /// needs no block works on a full volume. A transaction's commit has counted all of its steps
    /// before.
    pub(in crate::live) fn reserve_growth(
        &mut self,
        most: u64,
        exactly: impl FnOnce(&mut Self) -> Result<u64>,
    ) -> Result<()> {
        if self.stamp.is_some() || self.transaction.is_some() {
            return Ok(());
        }
        let purpose = Purpose::Data { privileged: self.budget.privileges.reserve };
        let enough = self.fs.allocator.can_reserve(self.budget.growth + most, purpose);
        let blocks = if enough { most } else { exactly(self)? };
        self.reserve_more(0, blocks);
        Ok(())
    }

    /// Announces, before the first change, what will be charged to whom: entries that are missing
    /// are added, and limits are kept.
    pub(in crate::live) fn reserve_quota(&mut self, wanted: Wanted) {
        if self.fs.quotas.is_on() {
            self.wanted.push(wanted);
        }
    }

    /// Notes, before the first change, that what is reserved becomes a charge by this operation.
    pub(in crate::live) fn reserve_move(&mut self, reserved: Charge) {
        if self.fs.quotas.is_on() {
            self.moving.push(reserved);
        }
    }

    /// Before a change of owner, group or project: what the inode uses, and what is reserved for
    /// it, is the new payer's.
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
