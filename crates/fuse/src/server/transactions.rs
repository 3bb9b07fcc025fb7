//! The open views of transactions, and the channels that have them.
//!
//! ```text
//!   channel opened ──► idle ──BEGIN──► active ──COMMIT, ABORT──► idle
//!                       ▲ │              │ │
//!                       │ │              │ └── last descriptor closed ──► aborted
//!                       │ │            KEEP
//!                  DETACH │ ATTACH       ▼
//!        (closed)       │ └──────────► kept and attached ──COMMIT, ABORT──► idle
//!                       └── kept ◄───────┘
//!                             └── its time runs out ──► aborted
//! ```
//! Invariant: a view is in the map from BEGIN until it is frozen. An operation in it holds the read
//! side of its gate. Freezing takes the write side, so it waits for the operations that run, and
//! later ones find the gate closed (`ESTALE`). A transaction that is left open (KEEP) has one view
//! at a time. Attaching it again gives it a new view, and with it new node ids.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{ArcRwLockReadGuard, Mutex, RawRwLock, RwLock};
use xact::{AbortHistory, Account, Charge, LostAttempt, Resource, SharedTransaction, TxState};
use xact_control::TxInfo;
use xact_control::abi::TxStatus;
use xact_fs::View;
use xact_types::{AccessCheck, Errno, Result};

use crate::commit::followers::Followers;
use crate::ioctl::batch::Batch;
use crate::ioctl::change_list::ChangeList;
use crate::protocol::node::ViewNr;
use crate::server::kernel_refs::KernelRefs;
use crate::server::process::SharedProcess;

/// Number of ended transactions to remember, of those that were left open.
const REMEMBERED: usize = 256;

/// Whether operations may enter a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    Open,
    Closed,
}

/// Held by an operation while it runs in a view.
pub type ViewGuard = ArcRwLockReadGuard<RawRwLock, Gate>;

/// Memory of a selected path without its bytes.
const PATH_BYTES: usize = 64;

/// The view of a transaction, as the kernel knows it.
pub struct TxView {
    pub nr: ViewNr,
    pub uid: u32,
    pub gid: u32,
    pub transaction: Arc<SharedTransaction>,
    pub begun: Instant,
    /// Its user's account.
    pub account: Arc<Account>,
    /// Charges the user for it, until it has ended.
    open: Mutex<Option<Arc<Charge>>>,
    gate: Arc<RwLock<Gate>>,
    pub refs: Arc<KernelRefs>,
    /// Whether `stat` returns inode numbers that no other view has.
    pub own_inodes: bool,
    /// Open savepoints in rising order, with the processes whose death ends them.
    parts: Mutex<Vec<(u64, Arc<SharedProcess>)>>,
    /// Read by every operation, so without a lock.
    has_parts: AtomicBool,
}

impl TxView {
    fn new(
        nr: ViewNr,
        gid: u32,
        transaction: Arc<SharedTransaction>,
        open: Arc<Charge>,
        begun: Instant,
    ) -> TxView {
        let account = open.account().clone();
        TxView {
            nr,
            uid: account.uid(),
            gid,
            transaction,
            begun,
            refs: Arc::new(KernelRefs::new(&account)),
            account,
            open: Mutex::new(Some(open)),
            gate: Arc::new(RwLock::new(Gate::Open)),
            own_inodes: false,
            parts: Mutex::default(),
            has_parts: AtomicBool::new(false),
        }
    }

    /// The transaction's number, unique while the volume is mounted.
    pub fn id(&self) -> u64 {
        self.transaction.options().id
    }

    /// Whether the transaction has not been committed or aborted.
    pub fn is_open(&self) -> bool {
        self.transaction.state() == TxState::Active
    }

    /// Adds a savepoint that ends with a process.
    pub fn add_part(&self, savepoint: u64, owner: Arc<SharedProcess>) {
        let mut parts = self.parts.lock();
        parts.push((savepoint, owner));
        self.has_parts.store(true, Ordering::Release);
    }

    /// A savepoint has ended, and with it all later ones.
    pub fn end_parts(&self, savepoint: u64) {
        let mut parts = self.parts.lock();
        parts.retain(|(number, _)| *number < savepoint);
        self.has_parts.store(!parts.is_empty(), Ordering::Release);
    }

    pub fn has_parts(&self) -> bool {
        self.has_parts.load(Ordering::Acquire)
    }

    /// Runs `undo` with the first savepoint whose process is dead, which has then ended. Threads
    /// that come in between wait, so that no operation runs until the changes are undone.
    pub fn end_dead_part<R>(&self, undo: impl FnOnce(u64) -> R) -> Option<R> {
        let mut parts = self.parts.lock();
        let first = parts.iter().position(|(_, owner)| owner.is_dead())?;
        let done = undo(parts[first].0);
        parts.truncate(first);
        self.has_parts.store(!parts.is_empty(), Ordering::Release);
        Some(done)
    }

    /// Admits an operation; `ESTALE` when the transaction has ended.
    pub fn enter(&self) -> Result<ViewGuard, Errno> {
        let pass = RwLock::read_arc(&self.gate);
        if *pass == Gate::Open { Ok(pass) } else { Err(Errno::ESTALE) }
    }

    /// Waits for the operations inside and admits no more.
    pub fn close(&self) {
        *self.gate.write() = Gate::Closed;
    }

    /// Called after a commit that was refused: the transaction continues.
    pub fn reopen(&self) {
        *self.gate.write() = Gate::Open;
    }

    /// Releases everything that the kernel held through a closed view.
    fn release_all(&self) {
        for (ino, lookups) in self.refs.drain() {
            self.transaction.release(ino, lookups);
        }
    }
}

/// A transaction that is left open: it outlives its channel.
#[derive(Clone)]
pub struct LeftOpen {
    pub view: Arc<TxView>,
    pub label: Vec<u8>,
    pub deadline: Option<Instant>,
    /// Charges the user for storing it on the volume, if it is persisted.
    pub persistent: Option<Arc<Charge>>,
    /// The channel that has it now.
    attached: Option<u32>,
}

impl LeftOpen {
    /// Whether a channel has it.
    pub fn is_attached(&self) -> bool {
        self.attached.is_some()
    }
}

/// An open control channel.
struct ChannelState {
    /// Charges the user for the channel.
    open: Charge,
    tx: Option<Arc<TxView>>,
    /// Paths for a commit or an abort of a part.
    selection: BTreeSet<Vec<u8>>,
    /// Attempts that were lost to conflicts since the last one that was not.
    losses: AbortHistory,
    /// Memory of the selection.
    selection_bytes: usize,
    /// Charges the user for the selection and the history.
    memory: Charge,
    /// The list of changes that the channel reads, page by page.
    diff: Option<Arc<ChangeList>>,
    /// The channel's key, once it was asked for.
    key: Option<u64>,
    /// Writes to files that are not committed yet.
    batch: Option<Batch>,
}

impl ChannelState {
    fn bytes(&self) -> u64 {
        (self.selection_bytes + self.losses.bytes()) as u64
    }
}

#[derive(Default)]
struct Tables {
    views: HashMap<ViewNr, Arc<TxView>>,
    last_view: Option<ViewNr>,
    channels: HashMap<u32, ChannelState>,
    /// Channels by their keys.
    keys: HashMap<u64, u32>,
    last_channel: u32,
    left_open: BTreeMap<u64, LeftOpen>,
    ended: VecDeque<TxInfo>,
}

impl Tables {
    fn next_view(&mut self, followers: &Followers) -> ViewNr {
        let mut nr = self.last_view.map_or(ViewNr::FIRST, ViewNr::next);
        while self.views.contains_key(&nr) || followers.has(nr) {
            nr = nr.next();
        }
        self.last_view = Some(nr);
        nr
    }

    fn info(&self, view: &TxView) -> TxInfo {
        let id = view.id();
        let kept = self.left_open.get(&id);
        TxInfo {
            id,
            status: if kept.is_some() { TxStatus::LeftOpen } else { TxStatus::Running },
            uid: view.uid,
            label: kept.map(|kept| kept.label.clone()).unwrap_or_default(),
            age: view.begun.elapsed(),
            left: kept.and_then(|kept| kept.deadline).map(|at| at.saturating_duration_since(Instant::now())),
            persistent: kept.is_some_and(|kept| kept.persistent.is_some()),
        }
    }
}

#[derive(Default)]
pub struct Transactions {
    tables: RwLock<Tables>,
    /// Committed views whose numbers are in use.
    pub followers: Followers,
}

impl Transactions {
    pub fn view(&self, nr: ViewNr) -> Result<Arc<TxView>, Errno> {
        self.tables.read().views.get(&nr).cloned().ok_or(Errno::ESTALE)
    }

    /// The kernel's references to a view that is open, or committed and followed.
    pub fn refs(&self, nr: ViewNr) -> Option<Arc<KernelRefs>> {
        // The order matters: a view becomes a followed one before it is frozen.
        let open = self.tables.read().views.get(&nr).map(|view| view.refs.clone());
        open.or_else(|| self.followers.get(nr).map(|view| view.refs.clone()))
    }

    /// The view of the transaction with this number.
    pub fn by_id(&self, id: u64) -> Option<Arc<TxView>> {
        self.tables.read().views.values().find(|v| v.id() == id).cloned()
    }

    /// Opens a channel for a user. `EMFILE`: the user has too many.
    pub fn open_channel(&self, account: &Arc<Account>) -> Result<u32> {
        let open = account.charge(Resource::Channels, 1)?;
        let mut tables = self.tables.write();
        loop {
            tables.last_channel = tables.last_channel.wrapping_add(1).max(1);
            let channel = tables.last_channel;
            if let std::collections::hash_map::Entry::Vacant(free) = tables.channels.entry(channel) {
                free.insert(ChannelState {
                    open,
                    tx: None,
                    selection: BTreeSet::new(),
                    losses: AbortHistory::default(),
                    selection_bytes: 0,
                    memory: account.nothing(Resource::Memory),
                    diff: None,
                    key: None,
                    batch: None,
                });
                return Ok(channel);
            }
        }
    }

    /// The channel's last descriptor is closed; returns the transaction that ends with it.
    pub fn close_channel(&self, channel: u32) -> Option<Arc<TxView>> {
        let mut tables = self.tables.write();
        let state = tables.channels.remove(&channel)?;
        if let Some(key) = state.key {
            tables.keys.remove(&key);
        }
        let tx = state.tx?;
        match tables.left_open.get_mut(&tx.id()) {
            Some(kept) => {
                kept.attached = None;
                None
            }
            None => Some(tx),
        }
    }

    /// The key of a channel, by which calls on files name it.
    pub fn channel_key(&self, channel: u32) -> Result<u64> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|_| Errno::EIO)?;
        let mut tables = self.tables.write();
        let Tables { channels, keys, .. } = &mut *tables;
        let state = channels.get_mut(&channel).ok_or(Errno::EBADF)?;
        let key = *state.key.get_or_insert(u64::from_ne_bytes(random));
        keys.insert(key, channel);
        Ok(key)
    }

    /// The channel of a user with this key.
    pub fn channel_of_key(&self, key: u64, uid: u32) -> Result<u32, Errno> {
        let tables = self.tables.read();
        let channel = tables.keys.get(&key).ok_or(Errno::EPERM)?;
        let state = tables.channels.get(channel).ok_or(Errno::EPERM)?;
        if state.open.account().uid() == uid { Ok(*channel) } else { Err(Errno::EPERM) }
    }

    pub fn take_batch(&self, channel: u32) -> Option<Batch> {
        self.tables.write().channels.get_mut(&channel)?.batch.take()
    }

    /// If the channel was closed since, the batch is dropped, which aborts it.
    pub fn put_batch(&self, channel: u32, batch: Batch) {
        if let Some(state) = self.tables.write().channels.get_mut(&channel) {
            state.batch = Some(batch);
        }
    }

    /// Drops all batches, at the end of the session.
    pub fn drop_batches(&self) {
        self.tables.write().channels.values_mut().for_each(|state| state.batch = None);
    }

    /// Makes `transaction` the channel's; `EBUSY` if it has one. `open` charges its user.
    pub fn add(
        &self,
        channel: u32,
        transaction: Arc<SharedTransaction>,
        open: Charge,
        gid: u32,
        own_inodes: bool,
    ) -> Result<Arc<TxView>, Errno> {
        let mut tables = self.tables.write();
        match tables.channels.get(&channel) {
            None => return Err(Errno::EBADF),
            Some(ChannelState { tx: Some(_), .. }) => return Err(Errno::EBUSY),
            Some(_) => {}
        }
        let nr = tables.next_view(&self.followers);
        let view = TxView::new(nr, gid, transaction, Arc::new(open), Instant::now());
        let view = Arc::new(TxView { own_inodes, ..view });
        tables.views.insert(nr, view.clone());
        let state = tables.channels.get_mut(&channel).expect("looked up above");
        state.tx = Some(view.clone());
        Ok(view)
    }

    /// The channel's transaction, `None` while it is idle.
    pub fn of_channel(&self, channel: u32) -> Option<Arc<TxView>> {
        self.tables.read().channels.get(&channel).and_then(|state| state.tx.clone())
    }

    /// Takes the channel's transaction, to end it or to do something that no other request may
    /// disturb.
    pub fn take(&self, channel: u32) -> Option<Arc<TxView>> {
        self.tables.write().channels.get_mut(&channel).and_then(|state| state.tx.take())
    }

    /// The attempts that the channel has lost in a row.
    pub fn losses(&self, channel: u32) -> AbortHistory {
        self.tables.read().channels.get(&channel).map(|state| state.losses.clone()).unwrap_or_default()
    }

    /// A transaction of the channel has ended. `lost`: it was lost to a conflict.
    pub fn note_end(&self, channel: u32, lost: Option<LostAttempt>) {
        if let Some(state) = self.tables.write().channels.get_mut(&channel) {
            match lost {
                Some(lost) => state.losses.add(lost),
                None => state.losses = AbortHistory::default(),
            }
            // Without the memory to remember them, the next attempt counts as the first.
            if state.memory.cover(state.bytes()).is_err() {
                state.losses = AbortHistory::default();
            }
        }
    }

    /// Gives back a transaction that was taken. Returns it if its channel was closed since then and
    /// it is not left open.
    pub fn give_back(&self, channel: u32, view: Arc<TxView>) -> Option<Arc<TxView>> {
        let mut tables = self.tables.write();
        if let Some(state) = tables.channels.get_mut(&channel) {
            state.tx = Some(view);
            return None;
        }
        match tables.left_open.get_mut(&view.id()) {
            Some(kept) => {
                kept.attached = None;
                None
            }
            None => Some(view),
        }
    }

    /// Freezes a view: no operation is inside, and none enters it any more.
    pub fn freeze(&self, view: &TxView) {
        view.close();
        self.tables.write().views.remove(&view.nr);
    }

    /// Puts a new view of a transaction in the place of a frozen one.
    pub fn renew(&self, old: &TxView) -> Arc<TxView> {
        old.release_all();
        let mut tables = self.tables.write();
        let nr = tables.next_view(&self.followers);
        let open = old.open.lock().clone().expect("it has not ended");
        let view = TxView::new(nr, old.gid, old.transaction.clone(), open, old.begun);
        let view = Arc::new(TxView { own_inodes: old.own_inodes, ..view });
        tables.views.insert(nr, view.clone());
        if let Some(kept) = tables.left_open.get_mut(&view.id()) {
            kept.view = view.clone();
        }
        view
    }

    /// Leaves the transaction open when its channel closes, for `timeout` (without limit if
    /// `None`).
    pub fn keep(&self, channel: u32, view: Arc<TxView>, label: Vec<u8>, timeout: Option<Duration>) {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut tables = self.tables.write();
        let id = view.id();
        let persistent = tables.left_open.get(&id).and_then(|kept| kept.persistent.clone());
        let kept = LeftOpen { label, deadline, persistent, attached: Some(channel), view };
        tables.left_open.insert(id, kept);
    }

    /// Notes that the transaction is on the volume now.
    pub fn note_persistent(&self, id: u64, charge: Charge) {
        if let Some(kept) = self.tables.write().left_open.get_mut(&id) {
            kept.persistent.get_or_insert(Arc::new(charge));
        }
    }

    /// Adds a transaction that was persisted before the volume was mounted, `age` old.
    pub fn add_left_open(
        &self,
        transaction: Arc<SharedTransaction>,
        account: &Arc<Account>,
        age: Duration,
        left: Option<Duration>,
    ) {
        let now = Instant::now();
        // No such instant exists if the machine was started after it.
        let begun = now.checked_sub(age).unwrap_or(now);
        let info = transaction.persisted_info().unwrap_or_default();
        let charge = |resource| Arc::new(account.charge_anyway(resource, 1));
        let (open, persistent) = (charge(Resource::Transactions), Some(charge(Resource::Persisted)));
        let mut tables = self.tables.write();
        let (id, nr) = (transaction.options().id, tables.next_view(&self.followers));
        let view = Arc::new(TxView::new(nr, info.gid, transaction, open, begun));
        tables.views.insert(nr, view.clone());
        let deadline = left.map(|left| now + left);
        let kept = LeftOpen { view, label: info.label, deadline, persistent, attached: None };
        tables.left_open.insert(id, kept);
    }

    /// The state of a transaction that is left open.
    pub fn left_open(&self, id: u64) -> Option<LeftOpen> {
        self.tables.read().left_open.get(&id).cloned()
    }

    /// Makes a transaction that is left open the channel's.
    pub fn attach(&self, channel: u32, id: u64, uid: u32) -> Result<(), Errno> {
        let mut tables = self.tables.write();
        let Tables { channels, left_open, .. } = &mut *tables;
        let state = channels.get_mut(&channel).ok_or(Errno::EBADF)?;
        let kept = left_open.get_mut(&id).ok_or(Errno::ENOENT)?;
        if uid != 0 && kept.view.uid != uid && AccessCheck::AttachOwner.is_made() {
            return Err(Errno::EPERM);
        }
        if kept.attached.is_some() || state.tx.is_some() {
            return Err(Errno::EBUSY);
        }
        kept.attached = Some(channel);
        state.tx = Some(kept.view.clone());
        Ok(())
    }

    /// A transaction has ended. Its end is remembered if it was left open.
    pub fn ended(&self, view: &TxView, status: TxStatus) {
        let mut tables = self.tables.write();
        let info = TxInfo { status, left: None, ..tables.info(view) };
        if tables.left_open.remove(&view.id()).is_some() {
            tables.ended.push_back(info);
            if tables.ended.len() > REMEMBERED {
                tables.ended.pop_front();
            }
        }
        // The caller learns of the end before the last reference to the view is dropped, and may
        // begin the next one at once.
        view.open.lock().take();
    }

    /// Takes the transactions that are left open and whose time has run out. Also returns when to
    /// look again. An attached one stays until it is detached.
    pub fn take_expired(&self) -> (Vec<Arc<TxView>>, Option<Instant>) {
        let mut tables = self.tables.write();
        let now = Instant::now();
        let (mut expired, mut next) = (Vec::new(), None::<Instant>);
        for kept in tables.left_open.values_mut() {
            match kept.deadline {
                Some(at) if at <= now && kept.attached.is_none() => {
                    // No channel can attach it any more.
                    kept.attached = Some(0);
                    expired.push(kept.view.clone());
                }
                Some(at) if kept.attached != Some(0) => {
                    // An attached one is looked at again a little later.
                    let at = at.max(now + Duration::from_millis(100));
                    next = Some(next.map_or(at, |next| next.min(at)));
                }
                _ => {}
            }
        }
        (expired, next)
    }

    /// `ENOMEM`: the user has no memory for another path.
    pub fn select(&self, channel: u32, path: Vec<u8>) -> Result<()> {
        let mut tables = self.tables.write();
        let state = tables.channels.get_mut(&channel).ok_or(Errno::EBADF)?;
        let bytes = path.len() + PATH_BYTES;
        if !state.selection.contains(&path) {
            state.memory.cover(state.bytes() + bytes as u64)?;
            state.selection.insert(path);
            state.selection_bytes += bytes;
        }
        Ok(())
    }

    pub fn take_selection(&self, channel: u32) -> Vec<Vec<u8>> {
        let mut tables = self.tables.write();
        tables
            .channels
            .get_mut(&channel)
            .map(|state| {
                let selection = std::mem::take(&mut state.selection).into_iter().collect();
                state.selection_bytes = 0;
                // A smaller amount is never refused.
                let _ = state.memory.cover(state.bytes());
                selection
            })
            .unwrap_or_default()
    }

    /// The account of the channel's user.
    pub fn account_of(&self, channel: u32) -> Result<Arc<Account>> {
        let tables = self.tables.read();
        Ok(tables.channels.get(&channel).ok_or(Errno::EBADF)?.open.account().clone())
    }

    pub fn set_diff(&self, channel: u32, diff: Option<Arc<ChangeList>>) {
        if let Some(state) = self.tables.write().channels.get_mut(&channel) {
            state.diff = diff;
        }
    }

    pub fn diff(&self, channel: u32) -> Option<Arc<ChangeList>> {
        self.tables.read().channels.get(&channel).and_then(|state| state.diff.clone())
    }

    /// The transaction with this number, if it is open, or was left open and has ended. `ENOENT`,
    /// `EPERM`.
    pub fn info(&self, id: u64, uid: u32) -> Result<TxInfo, Errno> {
        let tables = self.tables.read();
        let info = match tables.views.values().find(|view| view.id() == id) {
            Some(view) => tables.info(view),
            None => {
                let ended = tables.ended.iter().rev().find(|info| info.id == id).ok_or(Errno::ENOENT)?;
                TxInfo { label: ended.label.clone(), ..*ended }
            }
        };
        if uid != 0 && info.uid != uid { Err(Errno::EPERM) } else { Ok(info) }
    }

    /// The next open transaction above `id` that the user may look at.
    pub fn next_info(&self, id: u64, uid: u32) -> Result<TxInfo, Errno> {
        let tables = self.tables.read();
        let above = tables.views.values().filter(|view| view.id() > id);
        let may = above.filter(|view| uid == 0 || view.uid == uid);
        may.min_by_key(|view| view.id()).map(|view| tables.info(view)).ok_or(Errno::ENOENT)
    }

    /// Whether no transaction is open.
    pub fn is_empty(&self) -> bool {
        self.tables.read().views.is_empty()
    }

    /// All views, at the end of the session.
    pub fn all(&self) -> Vec<Arc<TxView>> {
        self.tables.read().views.values().cloned().collect()
    }
}
