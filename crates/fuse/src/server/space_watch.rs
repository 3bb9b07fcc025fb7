//! Warnings about space, for the log: a volume that is nearly full, and calls that found no space.
//! Each says what holds the space, so that an administrator can free some.
//!
//! A look at the free space follows calls that may take some, at most one in a second. A program
//! that fills a volume and empties it again and again, or calls without end on a full one, causes
//! one warning of each kind in [`LOG_AGAIN`].

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xact::text::printable_bytes;
use xact::{SnapshotInfo, TxHolding};
use xact_fs::VolumeSpace;
use xact_types::Error;

use crate::protocol::request::Operation;
use crate::server::Server;

/// Interval of looks at the free space.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two warnings of one kind.
const LOG_AGAIN: Duration = Duration::from_secs(600);
/// A volume is nearly full when less than one of this number of parts is free.
const NEARLY_FULL_PARTS: u64 = 20;
/// Names of each kind of holder in a warning.
const NAMED: usize = 3;

pub(crate) struct SpaceWatch {
    begun: Instant,
    /// Time of the next look, in milliseconds since the beginning.
    next_look_ms: AtomicU64,
    warnings: Mutex<Warnings>,
}

#[derive(Default)]
struct Warnings {
    /// The volume was nearly full at the last look.
    is_nearly_full: bool,
    nearly_full: Option<Instant>,
    no_space: Option<Instant>,
}

impl Default for SpaceWatch {
    fn default() -> SpaceWatch {
        SpaceWatch { begun: Instant::now(), next_look_ms: AtomicU64::new(0), warnings: Mutex::default() }
    }
}

impl SpaceWatch {
    fn is_due(&self) -> bool {
        let now = self.begun.elapsed().as_millis() as u64;
        let next = self.next_look_ms.load(Relaxed);
        let after = now + LOOK.as_millis() as u64;
        now >= next && self.next_look_ms.compare_exchange(next, after, Relaxed, Relaxed).is_ok()
    }

    /// Whether a warning is due, now that the volume is nearly full, or is not.
    fn note_look(&self, is_nearly_full: bool) -> bool {
        let mut warnings = self.warnings.lock();
        let is_new = is_nearly_full && !std::mem::replace(&mut warnings.is_nearly_full, is_nearly_full);
        warnings.is_nearly_full = is_nearly_full;
        is_new && take_turn(&mut warnings.nearly_full)
    }

    fn note_no_space(&self) -> bool {
        take_turn(&mut self.warnings.lock().no_space)
    }
}

fn take_turn(last: &mut Option<Instant>) -> bool {
    if last.is_some_and(|last| last.elapsed() < LOG_AGAIN) {
        return false;
    }
    *last = Some(Instant::now());
    true
}

fn is_nearly_full(space: &VolumeSpace) -> bool {
    // As df shows it: without the blocks that are reserved for root.
    let reserved = space.free_blocks.saturating_sub(space.available_blocks);
    let blocks = space.blocks.saturating_sub(reserved);
    space.available_blocks < blocks / NEARLY_FULL_PARTS
        || space.free_inodes < space.inodes / NEARLY_FULL_PARTS
}

/// Whether an operation may take space.
fn may_grow(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::Write { .. }
            | Operation::Tmpfile { .. }
            | Operation::Mkdir { .. }
            | Operation::Mknod { .. }
            | Operation::Symlink { .. }
            | Operation::Fallocate(_)
            | Operation::CopyFileRange { .. }
    )
}

impl Server {
    /// Warns if an operation has made the volume nearly full.
    pub(crate) fn look_at_space(self: &Arc<Self>, operation: &Operation<'_>) {
        if may_grow(operation) {
            self.look_at_space_now();
        }
    }

    pub(crate) fn look_at_space_now(self: &Arc<Self>) {
        if !self.space_watch.is_due() {
            return;
        }
        // An error is reported to the caller of statfs(2).
        let Ok(space) = self.live.space() else { return };
        if self.space_watch.note_look(is_nearly_full(&space) || self.volume.is_pool_full()) {
            self.warn_of_space("the volume is nearly full");
        }
    }

    /// Warns that a caller got an error for lack of space.
    pub(crate) fn note_no_space(self: &Arc<Self>, error: &Error) {
        let is_ours = matches!(error, Error::NoSpace | Error::DoesNotFit(_) | Error::SpaceRevoked);
        if is_ours && self.space_watch.note_no_space() {
            self.warn_of_space("a call found no space");
        }
    }

    /// Logs what holds the space. The search takes a while, and the caller waits for its answer.
    fn warn_of_space(self: &Arc<Self>, what: &'static str) {
        let warn = move |server: &Arc<Server>| {
            tracing::warn!("{what}: {}", server.space_text());
        };
        // Without a thread, the next occasion is as good.
        if self.spawn(warn).is_err() {
            *self.space_watch.warnings.lock() = Warnings::default();
        }
    }

    fn space_text(&self) -> String {
        let mut text = String::new();
        if let Ok(space) = self.live.space() {
            let size = |blocks: u64| size_text(blocks * u64::from(space.block_size));
            let _ = write!(
                text,
                "{} of {} are free, {} of them for users other than root, and {} of {} inodes.",
                size(space.free_blocks),
                size(space.blocks),
                size(space.available_blocks),
                space.free_inodes,
                space.inodes
            );
        }
        let holders = self.volume.space_holders(NAMED);
        let transactions = holders.transactions.iter().map(|holding| self.holding_text(holding)).collect();
        add(&mut text, "Open transactions hold", transactions, "'xact tx list'");
        let persisted =
            holders.persisted.iter().map(|(id, bytes)| format!("transaction {id} {}", size_text(*bytes)));
        add(&mut text, "Stored transactions hold", persisted.collect(), "'xact tx list'");
        if self.volume.has_generations() {
            let snapshots = self.volume.snapshots().unwrap_or_default();
            let of_pool = if self.volume.is_pool_full() {
                "In the pool, which is full, snapshots hold"
            } else {
                "In the pool snapshots hold"
            };
            add(&mut text, of_pool, snapshots_text(snapshots), "'xact snapshot list', 'prune'");
        }
        let (count, bytes) = holders.deleted;
        if bytes > 0 {
            let what = format!("Deleted files that are still open, {count} in number, hold");
            add(&mut text, &what, vec![size_text(bytes)], "'lsof +L1'");
        }
        let files = holders.files.iter();
        let files = files.map(|(path, bytes)| format!("{} {}", printable_bytes(path), size_text(*bytes)));
        let which = if holders.is_complete {
            "The largest files:"
        } else {
            "The largest of the files that a short search met:"
        };
        add(&mut text, which, files.collect(), "");
        text
    }

    fn holding_text(&self, holding: &TxHolding) -> String {
        let TxHolding { id, uid, bytes, inodes, .. } = holding;
        let mut text = format!("transaction {id} of user {uid}");
        if let Some(left_open) = self.transactions.left_open(*id).filter(|open| !open.label.is_empty()) {
            let _ = write!(text, " ({})", printable_bytes(&left_open.label));
        }
        let size = (*bytes > 0).then(|| size_text(*bytes));
        let count = (*inodes > 0).then(|| format!("{inodes} inodes"));
        let held: Vec<String> = size.into_iter().chain(count).collect();
        format!("{text} {}", held.join(" and "))
    }
}

/// Adds a sentence with the first names of a list, and the command that shows more.
fn add(text: &mut String, what: &str, names: Vec<String>, command: &str) {
    if names.is_empty() {
        return;
    }
    let _ = write!(text, " {what} {}", names[..names.len().min(NAMED)].join(", "));
    if names.len() > NAMED {
        let _ = write!(text, ", and {} more", names.len() - NAMED);
    }
    text.push_str(&if command.is_empty() { ".".to_owned() } else { format!(" ({command}).") });
}

fn snapshots_text(mut snapshots: Vec<SnapshotInfo>) -> Vec<String> {
    snapshots.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.own_bytes));
    let text = |snapshot: &SnapshotInfo| {
        format!("{} {}", xact_types::printable(&snapshot.name), size_text(snapshot.own_bytes))
    };
    snapshots.iter().map(text).collect()
}

fn size_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = UNITS.into_iter().find(|(shift, _)| bytes >> shift > 0);
    unit.map_or(format!("{bytes} bytes"), |(shift, name)| {
        format!("{:.1} {name}", bytes as f64 / (1_u64 << shift) as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_logged_once_in_a_while() {
        let watch = SpaceWatch::default();
        assert!(watch.is_due() && !watch.is_due());
        assert!(!watch.note_look(false));
        assert!(watch.note_look(true) && !watch.note_look(true));
        // Space that comes and goes causes no further warning.
        assert!(!watch.note_look(false) && !watch.note_look(true));
        assert!(watch.note_no_space() && !watch.note_no_space());
    }

    #[test]
    fn another_warning_is_due_after_a_while() {
        let watch = SpaceWatch::default();
        let before = |time: Duration| Instant::now().checked_sub(time);
        // A machine that was started since has no such time.
        let Some(long_ago) = before(LOG_AGAIN) else { return };
        for (last, is_due) in [(long_ago, true), (before(LOG_AGAIN / 2).unwrap(), false)] {
            watch.warnings.lock().no_space = Some(last);
            assert_eq!(watch.note_no_space(), is_due);
            *watch.warnings.lock() = Warnings { nearly_full: Some(last), ..Warnings::default() };
            assert_eq!(watch.note_look(true), is_due);
        }
        let next = watch.next_look_ms.load(Relaxed);
        assert_eq!(next, 0);
        assert!(watch.is_due());
        let next = watch.next_look_ms.load(Relaxed);
        assert!((1000..60_000).contains(&next), "{next}");
        watch.next_look_ms.store(watch.begun.elapsed().as_millis() as u64, Relaxed);
        assert!(watch.is_due(), "at the time itself");
    }

    #[test]
    fn operations_that_add_something_may_take_space() {
        use zerocopy::FromZeros;

        let name = &b"n"[..];
        let growing = [
            Operation::Write { args: FromZeros::new_zeroed(), data: &[] },
            Operation::Tmpfile { args: FromZeros::new_zeroed() },
            Operation::Mkdir { args: FromZeros::new_zeroed(), name },
            Operation::Mknod { args: FromZeros::new_zeroed(), name },
            Operation::Symlink { name, target: name },
            Operation::Fallocate(FromZeros::new_zeroed()),
            Operation::CopyFileRange { args: FromZeros::new_zeroed(), wide: false },
        ];
        assert!(growing.iter().all(may_grow));
        let others = [
            Operation::Read(FromZeros::new_zeroed()),
            Operation::GetAttr,
            Operation::Unlink { name },
            Operation::Fsync { data_only: true },
            Operation::Lookup { name },
        ];
        assert!(!others.iter().any(may_grow));
    }

    #[test]
    fn nearly_full_is_a_twentieth_for_users() {
        let space = VolumeSpace {
            block_size: 1024,
            blocks: 1050,
            free_blocks: 100,
            available_blocks: 50,
            inodes: 100,
            free_inodes: 5,
        };
        assert!(!is_nearly_full(&space));
        assert!(is_nearly_full(&VolumeSpace { free_blocks: 99, available_blocks: 49, ..space }));
        assert!(is_nearly_full(&VolumeSpace { free_inodes: 4, ..space }));
    }

    #[test]
    fn long_lists_are_cut() {
        let mut text = String::new();
        add(&mut text, "None", Vec::new(), "");
        add(&mut text, "Files:", ["a", "b", "c", "d", "e"].map(String::from).to_vec(), "'ls'");
        assert_eq!(text, " Files: a, b, c, and 2 more ('ls').");
        let mut text = String::new();
        add(&mut text, "Files:", ["a", "b", "c"].map(String::from).to_vec(), "");
        assert_eq!(text, " Files: a, b, c.");
        text.clear();
        add(&mut text, "Files:", ["a", "b", "c", "d"].map(String::from).to_vec(), "");
        assert_eq!(text, " Files: a, b, c, and 1 more.");
        assert_eq!([512, 1536, 5 << 30].map(size_text), ["512 bytes", "1.5 KiB", "5.0 GiB"]);
        assert_eq!(
            [1023, 1024, 3 << 20, 1 << 40].map(size_text),
            ["1023 bytes", "1.0 KiB", "3.0 MiB", "1.0 TiB"]
        );
        let snapshot = |name: &str, own_bytes| SnapshotInfo {
            name: name.into(),
            generation: 1,
            time: 1,
            own_bytes,
            paths: Vec::new(),
        };
        let snapshots = vec![snapshot("small", 1024), snapshot("large", 4096), snapshot("empty", 0)];
        assert_eq!(snapshots_text(snapshots), ["large 4.0 KiB", "small 1.0 KiB", "empty 0 bytes"]);
    }
}
