//! Ordering rules that can be left out, so that the crash explorer can show that it finds each of
//! them.
//!
//! Without the cargo feature `faults` none of this is compiled: [`Faults::has`] is then the
//! constant `false`.

/// An ordering rule to leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "faults"), allow(dead_code))]
pub enum Fault {
    /// No flush between a transaction's blocks and its commit block.
    NoFlushBeforeCommitBlock,
    /// No flush of file data before a transaction that goes to the log in a single write.
    NoFlushOfData,
    /// A transaction that goes to the log in a single write has no checksum.
    NoTransactionChecksum,
    /// Waiters are woken before the commit block is durable.
    NoFlushAfterCommitBlock,
    /// Freed blocks are not revoked.
    NoRevoke,
    /// The log's tail moves before the checkpointed blocks are durable.
    NoFlushBeforeTail,
    /// A block is left out of a commit if it has the contents that it had before an older one.
    SameAsOlder,
    /// A block that a commit may leave out, since nothing refers to it, is left out although it is
    /// in use again.
    LeftOutForGood,
    /// Recovery takes copies whose checksum is wrong.
    AcceptBadChecksum,
    /// Copies that begin with the magic are not escaped.
    NoEscape,
    /// File data is written to its place although the log holds an older copy of it.
    DataBesideItsCopy,
    /// The log's tail passes the copy that later patches of a block need.
    TailPastBase,
    /// Freed blocks are discarded before the commit that frees them is durable.
    DiscardAtOnce,
    /// Actions that must wait for a commit (the reuse of freed blocks) run at once.
    ActionsAtOnce,
    /// Recovery marks the log empty before the replayed blocks are durable.
    NoFlushAfterReplay,
    /// Checkpoints write the newest contents instead of the committed ones.
    CheckpointUncommitted,
    /// Generations: a block is written to the pool block that the previous generation has it in.
    OverwritePlace,
    /// Generations: no flush between a generation's blocks and its root.
    NoFlushBeforeRoot,
    /// Generations: waiters are woken before the root is durable.
    NoFlushAfterRoot,
    /// Generations: all roots go to the same slot.
    OneRootSlot,
    /// Generations: a root is accepted from its slot whether it is torn or not.
    AcceptTornRoot,
    /// Generations: a torn root that a crash left is not wiped before another is written over it.
    KeepTornRoot,
    /// Generations: blocks are written home while the previous generation has them there.
    WritebackOverHome,
    /// Generations: data is written over blocks that a snapshot has in their own place.
    OverwriteSnapshotData,
    /// Generations: pool blocks of the newest snapshot are freed.
    FreeSnapshotBlocks,
    /// Generations: a snapshot that is still to be pruned to chosen paths looks like one of the
    /// volume.
    UnprunedUnmarked,
    /// The log gets longer before the journal's inode at home does.
    LongerBeforeInode,
    /// Files: the journal's inode gets shorter before the log does.
    ShorterAfterInode,
    /// Generations: waiters are woken before the record in the log is durable.
    NoFlushAfterRecord,
    /// Generations: a record of the log is accepted whether it is torn or not.
    AcceptTornRecord,
    /// Generations: a record of the log is accepted whatever generation and record it continues.
    AcceptStaleRecord,
    /// Generations: records of the log do not say which blocks were freed.
    NoFreedEntry,
    /// Generations: the first record of a block of file data builds on the contents of its own
    /// place.
    DataOnItsPlace,
    /// Generations: a change by an operation in a draining generation reaches the newest contents
    /// alone.
    DrainingInNewestOnly,
    /// Generations: a record that goes ahead of its commit lacks the blocks that inodes share.
    AheadWithoutShared,
    /// Generations: the record of a commit builds on the contents before the records that went
    /// ahead of it.
    RestOnOldBase,
    /// No journal: waiters are woken before the blocks at home are durable.
    NoFlushAfterHome,
    /// Files: an fsync goes ahead although other operations have changed the file.
    AheadDespiteOthers,
    /// Files: an fsync of a new file puts the name that it was made with into its folder, although
    /// its names have changed since.
    AheadUnderOldName,
    /// Files: an fsync catches up with a file's inode and not with its blocks.
    AheadWithoutBlocks,
    /// Files: a file is renamed over another while its data is only in memory.
    RenameBeforeData,
    /// Files: a call whose changes must be durable when it returns (`sync`, `+S`, `+D`) does not
    /// wait.
    SyncedReturnsEarly,
    /// Files: the data of a small sync is written in place.
    SmallSyncInPlace,
    /// Files: every write of an inode stores its size, whether the data up to there is written or
    /// not.
    SizeBeforeData,
    /// Files: write-back does not wait for the rest of a write that arrives in parts.
    WriteInParts,
    /// Transactions: a block that keeps its place is overwritten there before the commit.
    PlaceBeforeCommit,
    /// Transactions: contents that go to their place with a commit are written after it.
    DeferredDataLate,
    /// Transactions: the file of a persisted transaction is removed in a commit of its own, after
    /// that of the changes.
    PersistedRemovedApart,
}

#[cfg(feature = "faults")]
impl Fault {
    /// Every fault of the journal engine.
    pub const JOURNAL: [Fault; 16] = [
        Fault::SameAsOlder,
        Fault::LeftOutForGood,
        Fault::LongerBeforeInode,
        Fault::DataBesideItsCopy,
        Fault::TailPastBase,
        Fault::NoFlushBeforeCommitBlock,
        Fault::NoFlushOfData,
        Fault::NoTransactionChecksum,
        Fault::NoFlushAfterCommitBlock,
        Fault::NoRevoke,
        Fault::NoFlushBeforeTail,
        Fault::AcceptBadChecksum,
        Fault::NoEscape,
        Fault::ActionsAtOnce,
        Fault::NoFlushAfterReplay,
        Fault::CheckpointUncommitted,
    ];

    /// Every fault of the generations engine.
    pub const GENERATIONS: [Fault; 23] = [
        Fault::AheadWithoutShared,
        Fault::RestOnOldBase,
        Fault::SameAsOlder,
        Fault::LeftOutForGood,
        Fault::DrainingInNewestOnly,
        Fault::DataBesideItsCopy,
        Fault::DataOnItsPlace,
        Fault::ActionsAtOnce,
        Fault::NoFlushOfData,
        Fault::NoFlushAfterRecord,
        Fault::AcceptTornRecord,
        Fault::AcceptStaleRecord,
        Fault::NoFreedEntry,
        Fault::OverwritePlace,
        Fault::NoFlushBeforeRoot,
        Fault::NoFlushAfterRoot,
        Fault::OneRootSlot,
        Fault::AcceptTornRoot,
        Fault::WritebackOverHome,
        Fault::OverwriteSnapshotData,
        Fault::FreeSnapshotBlocks,
        Fault::UnprunedUnmarked,
        Fault::KeepTornRoot,
    ];

    /// Every fault of the engine without a journal.
    pub const NONE: [Fault; 1] = [Fault::NoFlushAfterHome];

    /// Every fault of the code above the engines.
    pub const FILES: [Fault; 13] = [
        Fault::AheadDespiteOthers,
        Fault::AheadUnderOldName,
        Fault::AheadWithoutBlocks,
        Fault::SmallSyncInPlace,
        Fault::SyncedReturnsEarly,
        Fault::PlaceBeforeCommit,
        Fault::DeferredDataLate,
        Fault::SizeBeforeData,
        Fault::WriteInParts,
        Fault::RenameBeforeData,
        Fault::DiscardAtOnce,
        Fault::ShorterAfterInode,
        Fault::PersistedRemovedApart,
    ];

    /// All faults. A fault of two engines comes twice.
    pub fn all() -> impl Iterator<Item = Fault> {
        Fault::JOURNAL.into_iter().chain(Fault::GENERATIONS).chain(Fault::NONE).chain(Fault::FILES)
    }
}

#[cfg(feature = "faults")]
thread_local! {
    /// The action of this thread when it has begun a handle, and before each change of a block
    /// within it.
    static BEFORE_STEP: std::cell::RefCell<Option<Box<dyn FnMut()>>> = const { std::cell::RefCell::new(None) };
}

/// Sets this thread's action when it has begun a handle, and before each change of a block within
/// it, for tests that stall the thread there.
#[cfg(feature = "faults")]
pub fn on_each_step(action: Option<Box<dyn FnMut()>>) {
    BEFORE_STEP.set(action);
}

#[cfg(feature = "faults")]
pub(crate) fn before_step() {
    // Taken out during the call, since the action may change blocks itself.
    if let Some(mut action) = BEFORE_STEP.take() {
        action();
        BEFORE_STEP.set(Some(action));
    }
}

/// The rules that are left out: none, without the cargo feature.
#[cfg(feature = "faults")]
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    fault: Option<Fault>,
}

#[cfg(feature = "faults")]
impl Faults {
    pub fn new(fault: Option<Fault>) -> Faults {
        Faults { fault }
    }

    pub fn has(self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

/// The rules that are left out: none, without the cargo feature.
#[cfg(not(feature = "faults"))]
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults;

#[cfg(not(feature = "faults"))]
impl Faults {
    pub const fn has(self, _fault: Fault) -> bool {
        false
    }
}
