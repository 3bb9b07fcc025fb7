//! The xact volumes that are mounted on this machine, and their state, for `xact list` and
//! `xact stat --prometheus`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{StatVfs, statvfs};
use xact::{LatencySnapshot, SnapshotInfo};
use xact_control::TxInfo;
use xact_control::abi::{
    Counters, MOUNT_GENERATIONS, MOUNT_JOURNAL, MOUNT_READ_ONLY, MOUNT_UNJOURNALED, Pool, UserUse,
};
use xact_control::client;

use crate::control;
use crate::exit::{Failure, Result};
use crate::mounts::{self, Mount};

/// How long all daemons together may take to answer. One that is stopped never does.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A mount of a whole volume.
#[derive(Debug, Clone)]
pub struct Mounted {
    pub mount: Mount,
    /// The user who mounted it.
    pub uid: Option<u32>,
    /// A process that has the mount in its mount namespace, where it is not in that of the caller.
    pub process: Option<u32>,
}

/// A mount, and what its daemon has answered.
pub struct Found {
    pub mounted: Mounted,
    pub state: State,
}

pub enum State {
    Serves(Box<Facts>),
    /// The daemon has died.
    Dead,
    /// The caller may not use the mount.
    NoPermission,
    /// It is in another mount namespace. Its daemon is not asked: an open file keeps a mount busy,
    /// and an unmount there would fail.
    Elsewhere,
    /// The daemon did not answer in time.
    Silent,
    /// A request failed.
    Failed(Failure),
}

/// The state of a volume at one moment.
pub struct Facts {
    /// `MOUNT_…` of the control interface.
    pub flags: u32,
    /// The version of the daemon's control interface.
    pub interface: u32,
    pub space: StatVfs,
    pub counters: Counters,
    pub fsync: LatencySnapshot,
    pub commit: LatencySnapshot,
    /// For a volume with generations.
    pub pool: Option<Pool>,
    pub snapshots: Option<Vec<SnapshotInfo>>,
    /// The open transactions that the caller may see; `None`: they cannot be listed.
    pub transactions: Option<Vec<TxInfo>>,
    pub users: Vec<UserUse>,
}

impl Facts {
    fn of(point: &Path) -> Result<Facts> {
        let wrong = |e| control::failure(point, "query the volume", e);
        let flags = control::mount_flags(point)?;
        let latencies = control::latencies(point)?;
        let pool = control::pool(point)?;
        // A volume that is mounted read-only has none, and no channel.
        let transactions = match flags & MOUNT_READ_ONLY {
            0 => control::channel(point).ok().and_then(|channel| channel.list().ok()),
            _ => Some(Vec::new()),
        };
        Ok(Facts {
            flags,
            interface: client::version(point).map_err(wrong)?,
            space: statvfs(point).map_err(|e| wrong(e.into()))?,
            counters: control::counters(point)?,
            fsync: (&latencies.fsync).into(),
            commit: (&latencies.commit).into(),
            snapshots: pool.and_then(|_| control::snapshots(point).ok()),
            pool,
            transactions,
            users: control::users(point)?.0,
        })
    }

    /// As `xact mkfs --engine` names it; `None` if the daemon is too old to say.
    pub fn engine(&self) -> Option<&'static str> {
        let names =
            [(MOUNT_JOURNAL, "journal"), (MOUNT_GENERATIONS, "generations"), (MOUNT_UNJOURNALED, "none")];
        names.into_iter().find(|(flag, _)| self.flags & flag != 0).map(|(_, name)| name)
    }

    pub fn is_read_only(&self) -> bool {
        self.space.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY)
    }

    pub fn size_bytes(&self) -> u64 {
        self.space.f_blocks.saturating_mul(self.space.f_frsize)
    }

    pub fn free_bytes(&self) -> u64 {
        self.space.f_bfree.saturating_mul(self.space.f_frsize)
    }

    pub fn available_bytes(&self) -> u64 {
        self.space.f_bavail.saturating_mul(self.space.f_frsize)
    }
}

/// All mounts that may be of volumes and that the caller can see, in the order of their mount
/// points: those of its own mount namespace, and, of volumes that are not mounted there, those of
/// other processes that it may look at.
pub fn mounted() -> Result<Vec<Mounted>> {
    let mut mounted = in_namespace(Path::new("/proc/thread-self"), None)
        .map_err(|e| Failure::system("read the table of mounts", e))?;
    let mut known: HashSet<(u32, u32)> = mounted.iter().map(|one| one.mount.device).collect();
    for (process, id) in other_namespaces() {
        // The process may have ended.
        let others = in_namespace(&process, Some(id)).unwrap_or_default();
        let new: Vec<Mounted> = others.into_iter().filter(|one| !known.contains(&one.mount.device)).collect();
        known.extend(new.iter().map(|one| one.mount.device));
        mounted.extend(new);
    }
    mounted.sort_by(|one, other| one.mount.point.cmp(&other.mount.point));
    Ok(mounted)
}

/// The mounts of one mount namespace that may be of xact.
fn in_namespace(process: &Path, id: Option<u32>) -> io::Result<Vec<Mounted>> {
    let owners: HashMap<u64, u32> = mounts::owners(process)?;
    let whole = |mount: &Mount| mount.is_fuse() && mount.root == Path::new("/");
    let mounts = mounts::of_process(process)?.into_iter().filter(whole);
    Ok(mounts.map(|mount| Mounted { uid: owners.get(&mount.id).copied(), mount, process: id }).collect())
}

/// A process of each other mount namespace.
fn other_namespaces() -> Vec<(PathBuf, u32)> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let mut seen: BTreeSet<PathBuf> = namespace(Path::new("/proc/thread-self")).into_iter().collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    let processes = numbers.into_iter().map(|id| (PathBuf::from(format!("/proc/{id}")), id));
    processes.filter(|(process, _)| namespace(process).is_some_and(|one| seen.insert(one))).collect()
}

/// Asks all daemons at the same time. Mounts of other FUSE servers are left out.
pub fn ask(mounted: Vec<Mounted>) -> Vec<Found> {
    let until = Instant::now() + ANSWER_MAX;
    let asked: Vec<_> = mounted
        .into_iter()
        .map(|mounted| {
            let (sender, answer) = mpsc::channel();
            let (at, is_here) = (mounted.mount.point.clone(), mounted.process.is_none());
            let state = move || if is_here { state_at(&at) } else { Some(State::Elsewhere) };
            // A thread that waits for a daemon ends with the process.
            let started = thread::Builder::new().spawn(move || sender.send(state()));
            (mounted, started.is_ok().then_some(answer))
        })
        .collect();
    let state_of = |answer: Option<mpsc::Receiver<Option<State>>>| {
        let left = until.saturating_duration_since(Instant::now());
        answer.map_or(Some(State::Silent), |answer| answer.recv_timeout(left).unwrap_or(Some(State::Silent)))
    };
    let found = asked.into_iter().filter_map(|(mounted, answer)| {
        let state = state_of(answer)?;
        // Only the type says that it is ours where no daemon of ours has answered.
        let is_ours = matches!(state, State::Serves(_) | State::Failed(_)) || mounted.mount.has_our_type();
        is_ours.then_some(Found { mounted, state })
    });
    found.collect()
}

/// `None`: another FUSE server serves the mount.
fn state_at(at: &Path) -> Option<State> {
    match control::serves(at) {
        Ok(false) => None,
        Ok(true) => Some(match Facts::of(at) {
            Ok(facts) => State::Serves(Box::new(facts)),
            Err(failure) => State::Failed(failure),
        }),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => Some(State::Dead),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Some(State::NoPermission),
        Err(e) => Some(State::Failed(Failure::system(format_args!("query {}", at.display()), e))),
    }
}
