//! Ordering rules that can be left out, so that the crash explorer can show that it would notice.
//!
//! Without the cargo feature `faults` nothing of this is in the program: [`Faults::has`] is then
//! the constant `false`.

/// One rule, broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "faults"), allow(dead_code))]
pub enum Fault {
    /// No flush between a transaction's blocks and its commit block.
    NoFlushBeforeCommitBlock,
    /// No flush of file data before a transaction that goes to the log in a single write.
    NoFlushOfData,
    /// A transaction that goes to the log in a single write has no checksum.
    NoTransactionChecksum,
    /// Waiters are told before the commit block is durable.
    NoFlushAfterCommitBlock,
    /// Freed blocks are not revoked.
    NoRevoke,
    /// The log's tail moves before the checkpointed blocks are durable.
    NoFlushBeforeTail,
    /// Recovery takes copies whose checksum is wrong.
    AcceptBadChecksum,
    /// Copies that begin with the magic are not escaped.
    NoEscape,
    /// File data is written to its place although the log holds an older copy of it.
    DataBesideItsCopy,
    /// The log's tail passes the copy that later patches of a block rest on.
    TailPastBase,
    /// Freed blocks are discarded before the commit that frees them is durable.
    DiscardAtOnce,
    /// What waits for a commit (the reuse of freed blocks) does not wait.
    ActionsAtOnce,
    /// Recovery marks the log empty before the replayed blocks are durable.
    NoFlushAfterReplay,
    /// Checkpoints write the newest contents instead of the committed ones.
    CheckpointUncommitted,
    /// Generations: a block is written to the place that the generation before has it in.
    OverwritePlace,
    /// Generations: no flush between a generation's blocks and its root.
    NoFlushBeforeRoot,
    /// Generations: waiters are told before the root is durable.
    NoFlushAfterRoot,
    /// Generations: all roots go to the same slot.
    OneRootSlot,
    /// Generations: a root is taken from its slot as it is, torn or not.
    AcceptTornRoot,
    /// Generations: what a crash has left of a root is not wiped before another is written over it.
    KeepTornRoot,
    /// Generations: blocks are moved home while the generation before has them there.
    SweepOverHome,
    /// Generations: data is written over what a snapshot has in its own place.
    OverwriteHeld,
    /// Generations: places are freed that the newest snapshot has.
    FreeHeld,
    /// Generations: a snapshot that is still to be cut down to chosen paths is one of the volume
    /// meanwhile.
    UncutUnmarked,
    /// The log gets longer before the journal's inode is, at home.
    LongerBeforeInode,
    /// Files: the journal's inode gets shorter before the log does.
    ShorterAfterInode,
    /// Generations: waiters are told before the record in the log is durable.
    NoFlushAfterRecord,
    /// Generations: a record of the log is taken as it is, torn or not.
    AcceptTornRecord,
    /// Generations: a record of the log is taken whatever generation and record it continues.
    AcceptStaleRecord,
    /// Generations: records of the log do not say which blocks were freed.
    NoFreedEntry,
    /// Generations: the first record of a block of file data rests on what its own place holds.
    DataOnItsPlace,
    /// Generations: what an operation does in a generation that is closed already reaches the
    /// newest contents alone.
    LateInNewestOnly,
    /// No journal: waiters are told before what is at home is durable.
    NoFlushAfterHome,
    /// Files: a file is renamed over another while its data is only in memory.
    RenameBeforeData,
    /// Files: whatever stores an inode stores its size, whether what it covers is written or not.
    SizeBeforeData,
    /// Transactions: a block that keeps its place under new contents is written there before the
    /// commit.
    PlaceBeforeCommit,
    /// Transactions: the file that keeps one goes in a commit of its own, after that of the
    /// changes.
    PersistedRemovedApart,
}

#[cfg(feature = "faults")]
impl Fault {
    /// Every fault of the journal engine, for a test that goes through them.
    pub const JOURNAL: [Fault; 14] = [
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
    pub const GENERATIONS: [Fault; 19] = [
        Fault::LateInNewestOnly,
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
        Fault::SweepOverHome,
        Fault::OverwriteHeld,
        Fault::FreeHeld,
        Fault::UncutUnmarked,
        Fault::KeepTornRoot,
    ];

    /// Every fault of the engine without a journal.
    pub const NONE: [Fault; 1] = [Fault::NoFlushAfterHome];

    /// Every fault of what is above the engines.
    pub const FILES: [Fault; 6] = [
        Fault::PlaceBeforeCommit,
        Fault::SizeBeforeData,
        Fault::RenameBeforeData,
        Fault::DiscardAtOnce,
        Fault::ShorterAfterInode,
        Fault::PersistedRemovedApart,
    ];

    /// All faults, those that two engines have twice.
    pub fn all() -> impl Iterator<Item = Fault> {
        Fault::JOURNAL.into_iter().chain(Fault::GENERATIONS).chain(Fault::NONE).chain(Fault::FILES)
    }
}

#[cfg(feature = "faults")]
thread_local! {
    /// What this thread does when it has begun a handle, and before each change of a block within
    /// it.
    static BEFORE_STEP: std::cell::RefCell<Option<Box<dyn FnMut()>>> = const { std::cell::RefCell::new(None) };
}

/// Has this thread do something when it has begun a handle, and before each change of a block
/// within it, for tests that hold it back there.
#[cfg(feature = "faults")]
pub fn on_each_step(action: Option<Box<dyn FnMut()>>) {
    BEFORE_STEP.set(action);
}

#[cfg(feature = "faults")]
pub(crate) fn before_step() {
    // Taken out meanwhile: what it does may change blocks itself.
    if let Some(mut action) = BEFORE_STEP.take() {
        action();
        BEFORE_STEP.set(Some(action));
    }
}

/// Which rules are left out: none, without the cargo feature.
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

/// Which rules are left out: none, without the cargo feature.
#[cfg(not(feature = "faults"))]
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults;

#[cfg(not(feature = "faults"))]
impl Faults {
    pub const fn has(self, _fault: Fault) -> bool {
        false
    }
}
