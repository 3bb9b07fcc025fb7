//! Quotas: the usage of each user, group and project, in the volume's own files (features `quota`
//! and `project`), and their limits.
//!
//! Layer: above the allocator and the inode table, below the live file system. An inode has a
//! *charge*: its space (`i_blocks`) and itself, charged to its owner, group and project. The live
//! file system remembers the charge of each inode in memory. Whenever it stores an inode in the
//! table, this module moves the difference within the same handle. So operations need not handle
//! quotas.
//!
//! Crash argument:
//! 1. The charge of an inode is a function of its bytes in the table, and is moved in the handle
//!    that writes those bytes: each commit has both, so usage is always the sum over the table.
//! 2. An inode without a name is charged until the handle that frees it, which removes its charge.
//!    So recovery removes the charges of the inodes that it frees.
//! 3. Space that is not in the table yet (dirty pages, space held by open transactions) is reserved
//!    in memory: a crash leaves no trace of it.
//! 4. A new entry for an id has no usage. It may be durable before the first charge, and has no
//!    effect until then.
//!
//! Entries are added before an operation changes anything (it registers its ids, see
//! `Operation::reserve_quota`), because that may fail for lack of space. They are never removed.

mod file;

use std::collections::HashMap;

use parking_lot::Mutex;
use xact_consistency::Handle;
use xact_layout::feature::ro_compat;
use xact_layout::inode::{Inode, flag};
use xact_layout::quota::{LIMIT_UNIT, QuotaEntry, QuotaKind};
use xact_layout::superblock::Superblock;
use xact_types::{Errno, Ino, Result, unix_seconds};

use crate::alloc::Allocator;
use crate::inode_table::InodeTable;
use file::QuotaFile;

/// The limits that are enforced (mount options `usrquota`, `grpquota`, `prjquota`). Usage is always
/// counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    pub user: bool,
    pub group: bool,
    pub project: bool,
}

impl QuotaLimits {
    fn of(self, kind: QuotaKind) -> bool {
        match kind {
            QuotaKind::User => self.user,
            QuotaKind::Group => self.group,
            QuotaKind::Project => self.project,
        }
    }
}

/// The ids that a charge counts for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Payer {
    pub uid: u32,
    pub gid: u32,
    pub project: u32,
}

impl Payer {
    fn id(&self, kind: QuotaKind) -> u32 {
        match kind {
            QuotaKind::User => self.uid,
            QuotaKind::Group => self.gid,
            QuotaKind::Project => self.project,
        }
    }
}

/// An amount charged to a payer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    pub payer: Payer,
    pub bytes: u64,
    pub inodes: u64,
}

/// A charge that an operation will make.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The present payer, if the charge only moves.
    pub now: Option<Payer>,
    pub more: Charge,
}

/// The amounts reserved for one id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reserved {
    bytes: u64,
    inodes: u64,
}

/// Runs the change of an id's entry in one file; false ends the move.
type MoveEntry<'a> = dyn FnMut(&QuotaFile, u32, &mut dyn FnMut(&mut QuotaEntry)) -> Result<bool> + 'a;

/// The quota files of a volume; none without the feature.
pub struct Quotas {
    sb: Superblock,
    files: Vec<QuotaFile>,
    limits: QuotaLimits,
    /// Reservations for pages without a block, and for space that open transactions hold, if limits
    /// are enforced. In memory only: the files have the sum over the inode table.
    reserved: Mutex<HashMap<(QuotaKind, u32), Reserved>>,
}

impl Quotas {
    /// Reads the quota files. `Corrupt` if one is invalid: e2fsck recreates them.
    pub fn open(allocator: &Allocator, table: &InodeTable, limits: QuotaLimits) -> Result<Quotas> {
        let sb = allocator.superblock().clone();
        let mut files = Vec::new();
        if sb.has_ro_compat(ro_compat::QUOTA) {
            for kind in QuotaKind::ALL {
                let ino = kind.inode(&sb);
                if ino != 0 {
                    files.push(QuotaFile::open(allocator, table, kind, Ino(ino))?);
                }
            }
        }
        Ok(Quotas { sb, files, limits, reserved: Mutex::default() })
    }

    /// Credits of changing a charge without changing its payer.
    pub fn credits(&self) -> u32 {
        self.files.len() as u32
    }

    /// Number of blocks of all quota files: the maximum that any number of moves changes.
    pub fn blocks(&self) -> u64 {
        self.files.iter().map(QuotaFile::blocks).sum()
    }

    /// The charge of an inode in use, from its bytes.
    pub fn charge_of(&self, ino: Ino, inode: &Inode) -> Charge {
        let counted = ino == Ino::ROOT || ino >= self.sb.first_inode();
        if self.files.is_empty()
            || !counted
            || inode.flags() & flag::EA_INODE != 0
            || QuotaKind::ALL.iter().any(|kind| kind.inode(&self.sb) == ino.0)
        {
            return Charge::default();
        }
        Charge { payer: self.payer_of(inode), bytes: inode.sectors(&self.sb) * 512, inodes: 1 }
    }

    /// The payer of an inode.
    pub fn payer_of(&self, inode: &Inode) -> Payer {
        Payer { uid: inode.uid(), gid: inode.gid(), project: project_of(&self.sb, inode) }
    }

    /// Moves a charge within the handle that writes the inode. The blocks of the entries join the
    /// commit even without a change, so that there is space for them however full it gets.
    pub fn transfer(&self, handle: &mut Handle, from: &Charge, to: &Charge) -> Result<()> {
        self.moves(from, to, &mut |file, id, change| file.change(handle, id, change).map(|()| true))?;
        Ok(())
    }

    /// As [`Self::transfer`], ahead of the handle's commit, which has the move already. False: not
    /// ahead of it.
    pub fn catch_up(&self, handle: &mut Handle, from: &Charge, to: &Charge) -> Result<bool> {
        if from == to {
            return Ok(true);
        }
        self.moves(from, to, &mut |file, id, change| file.catch_up(handle, id, change))
    }

    /// Calls `each` with the entries that a move changes, and their changes, until it returns
    /// false; whether it never did.
    fn moves(&self, from: &Charge, to: &Charge, each: &mut MoveEntry<'_>) -> Result<bool> {
        for file in &self.files {
            let (old, new) = (from.payer.id(file.kind), to.payer.id(file.kind));
            if from.inodes > 0 && to.inodes > 0 && old == new {
                let goes_on = self.change(file, new, each, |entry| {
                    entry.set_curspace(entry.curspace().saturating_sub(from.bytes) + to.bytes);
                })?;
                if !goes_on {
                    return Ok(false);
                }
                continue;
            }
            for (charge, id, sign) in [(from, old, -1i64), (to, new, 1)] {
                if charge.inodes == 0 {
                    continue;
                }
                let moved = |count: u64, by: u64| count.saturating_add_signed(sign * by as i64);
                let goes_on = self.change(file, id, each, |entry| {
                    entry.set_curspace(moved(entry.curspace(), charge.bytes));
                    entry.set_curinodes(moved(entry.curinodes(), charge.inodes));
                })?;
                if !goes_on {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Changes usage, and the grace times of soft limits (`dquot_add_space`, `dquot_decr_space`).
    fn change(
        &self,
        file: &QuotaFile,
        id: u32,
        each: &mut MoveEntry<'_>,
        mut change: impl FnMut(&mut QuotaEntry),
    ) -> Result<bool> {
        let grace = if self.limits.of(file.kind) { Some(file.grace()?) } else { None };
        each(file, id, &mut |entry| {
            change(entry);
            let Some((bgrace, igrace)) = grace else { return };
            let now = unix_seconds().max(1) as u64;
            let until = |above: bool, old: u64, grace: u64| match (above, old) {
                (false, _) => 0,
                (true, 0) => now + grace,
                (true, old) => old,
            };
            entry.set_btime(until(above_soft_space(entry, 0), entry.btime(), bgrace));
            entry.set_itime(until(above_soft_inodes(entry, 0), entry.itime(), igrace));
        })
    }

    /// Reads a payer's entries into memory, so that a handle does not wait for them.
    pub fn read_ahead(&self, payer: &Payer) {
        for file in &self.files {
            // The change itself returns errors.
            let _ = file.entry(payer.id(file.kind));
        }
    }

    /// Adds a payer's missing entries, in commits of their own. The caller has no handle.
    pub fn add_entries(&self, payer: &Payer) -> Result<()> {
        for file in &self.files {
            let id = payer.id(file.kind);
            if !file.has(id) {
                let mut handle = Handle::begin(file.engine(), QuotaFile::ADD_CREDITS)?;
                file.change(&mut handle, id, |_| {})?;
            }
        }
        Ok(())
    }

    /// `EDQUOT` if a payer would exceed a limit. `moving`: reservations that end with `wanted`.
    pub fn check(&self, wanted: &[Wanted], moving: &[Charge]) -> Result<()> {
        let reserved = self.reserved.lock();
        for file in self.enforced() {
            let mut sums: HashMap<u32, (u64, u64)> = HashMap::new();
            for Wanted { now, more } in wanted {
                let id = more.payer.id(file.kind);
                if now.is_none_or(|now| now.id(file.kind) != id) {
                    let (bytes, inodes) = sums.entry(id).or_default();
                    *bytes += more.bytes;
                    *inodes += more.inodes;
                }
            }
            for (id, (bytes, inodes)) in sums {
                let mut reserved = reserved.get(&(file.kind, id)).copied().unwrap_or_default();
                for charge in moving.iter().filter(|charge| charge.payer.id(file.kind) == id) {
                    reserved.bytes = reserved.bytes.saturating_sub(charge.bytes);
                    reserved.inodes = reserved.inodes.saturating_sub(charge.inodes);
                }
                file.check(id, reserved, bytes, inodes)?;
            }
        }
        Ok(())
    }

    /// Reserves bytes and inodes for a payer, which become a charge once they are on the volume.
    /// `EDQUOT` if the payer would exceed a limit, unless the caller is privileged.
    pub fn reserve(&self, more: &Charge, privileged: bool) -> Result<()> {
        let mut reserved = self.reserved.lock();
        if !privileged {
            for file in self.enforced() {
                let id = more.payer.id(file.kind);
                let reserved = reserved.get(&(file.kind, id)).copied().unwrap_or_default();
                file.check(id, reserved, more.bytes, more.inodes)?;
            }
        }
        for file in self.enforced() {
            let of_id = reserved.entry((file.kind, more.payer.id(file.kind))).or_default();
            of_id.bytes += more.bytes;
            of_id.inodes += more.inodes;
        }
        Ok(())
    }

    /// Ends a reservation: it is given back, or has become a charge.
    pub fn release(&self, less: &Charge) {
        for file in self.enforced() {
            let key = (file.kind, less.payer.id(file.kind));
            let mut reserved = self.reserved.lock();
            let of_id = reserved.entry(key).or_default();
            of_id.bytes = of_id.bytes.saturating_sub(less.bytes);
            of_id.inodes = of_id.inodes.saturating_sub(less.inodes);
            if *of_id == Reserved::default() {
                reserved.remove(&key);
            }
        }
    }

    /// The files whose limits are enforced.
    fn enforced(&self) -> impl Iterator<Item = &QuotaFile> {
        self.files.iter().filter(|file| self.limits.of(file.kind))
    }

    pub fn is_on(&self) -> bool {
        !self.files.is_empty()
    }

    /// Sets hard limits, as `setquota` does.
    #[cfg(test)]
    pub fn limit(&self, kind: QuotaKind, id: u32, bytes: u64, inodes: u64) -> Result<()> {
        self.edit(kind, id, |entry| {
            entry.set_bhardlimit(bytes / LIMIT_UNIT);
            entry.set_ihardlimit(inodes);
        })
    }

    /// Changes the entry of an id, and adds it if it does not exist.
    #[cfg(test)]
    pub fn edit(&self, kind: QuotaKind, id: u32, change: impl FnMut(&mut QuotaEntry)) -> Result<()> {
        let file = self.files.iter().find(|file| file.kind == kind).expect("a file of this kind");
        let mut handle = Handle::begin(file.engine(), QuotaFile::ADD_CREDITS)?;
        file.change(&mut handle, id, change)
    }

    /// The entry of an id.
    #[cfg(test)]
    pub fn entry(&self, kind: QuotaKind, id: u32) -> Option<QuotaEntry> {
        self.files.iter().find(|file| file.kind == kind)?.entry(id).unwrap()
    }

    /// The number of ids for which something is reserved.
    #[cfg(test)]
    pub fn reservations(&self) -> usize {
        self.reserved.lock().len()
    }
}

/// The project of an inode: 0 on volumes without the feature.
pub fn project_of(sb: &Superblock, inode: &Inode) -> u32 {
    if sb.has_ro_compat(ro_compat::PROJECT) { inode.project() } else { 0 }
}

impl QuotaFile {
    /// `EDQUOT` if an id would exceed a limit, counting its reservations.
    fn check(&self, id: u32, reserved: Reserved, bytes: u64, inodes: u64) -> Result<()> {
        let Some(entry) = self.entry(id)? else { return Ok(()) };
        let now = unix_seconds() as u64;
        let beyond = |limit: u64, used: u64| limit > 0 && used > limit;
        let too_long = |until: u64| until != 0 && now >= until;
        let more_space = reserved.bytes.saturating_add(bytes);
        let more_inodes = reserved.inodes.saturating_add(inodes);
        let space_refused = bytes > 0
            && (beyond(
                entry.bhardlimit().saturating_mul(LIMIT_UNIT),
                entry.curspace().saturating_add(more_space),
            ) || above_soft_space(&entry, more_space) && too_long(entry.btime()));
        let inodes_refused = inodes > 0
            && (beyond(entry.ihardlimit(), entry.curinodes().saturating_add(more_inodes))
                || above_soft_inodes(&entry, more_inodes) && too_long(entry.itime()));
        if space_refused || inodes_refused { Err(Errno::EDQUOT.into()) } else { Ok(()) }
    }
}

fn above_soft_space(entry: &QuotaEntry, more: u64) -> bool {
    let limit = entry.bsoftlimit().saturating_mul(LIMIT_UNIT);
    limit > 0 && entry.curspace().saturating_add(more) > limit
}

fn above_soft_inodes(entry: &QuotaEntry, more: u64) -> bool {
    entry.isoftlimit() > 0 && entry.curinodes().saturating_add(more) > entry.isoftlimit()
}
