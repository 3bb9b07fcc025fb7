//! Accounting of the process's resources by user: usage and limits.
//!
//! Every user (uid) has one [`Account`]. It is looked up once, when a resource is opened for the
//! user, and then held by an `Arc`. A [`Charge`] is a share of the account, which its drop gives
//! back. So frequent calls only add to an atomic, and mostly not even that, because memory is
//! charged in steps of [`STEP`].
//!
//! All users with limits together also have a limit, [`ALL_USERS`] times that of one user, because
//! one person may have any number of uids (in a user namespace). Root and the user who mounted the
//! volume have no limits.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use xact_types::{Errno, Result};

/// Step in which memory is charged, in bytes.
const STEP: u64 = 16 << 10;
/// Limits of all users together, as a multiple of those of one user.
const ALL_USERS: u64 = 4;
/// Minimum interval between two reports about one user, in seconds.
const REPORT_EVERY: u64 = 60;
/// Number of accounts above which unused ones are dropped.
const ACCOUNTS_MAX: usize = 256;

/// A limited resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Open control channels.
    Channels,
    /// Open transactions, running or left open.
    Transactions,
    /// Open transactions that are persisted on the volume.
    Persisted,
    /// Savepoints of open transactions.
    Savepoints,
    /// Bytes of memory for read sets and changes of transactions, lists of changes, selections.
    Memory,
    /// File descriptors of the process.
    Descriptors,
}

/// Number of resources.
pub const RESOURCES: usize = 6;

impl Resource {
    /// All resources.
    pub const ALL: [Resource; RESOURCES] = [
        Resource::Channels,
        Resource::Transactions,
        Resource::Persisted,
        Resource::Savepoints,
        Resource::Memory,
        Resource::Descriptors,
    ];

    /// The error of a call that would exceed the limit.
    pub fn errno(self) -> Errno {
        match self {
            Resource::Channels | Resource::Savepoints | Resource::Descriptors => Errno::EMFILE,
            Resource::Transactions | Resource::Persisted => Errno::EDQUOT,
            Resource::Memory => Errno::ENOMEM,
        }
    }

    /// A phrase for messages; `limit` counts bytes for memory.
    pub fn describe(self, limit: u64) -> String {
        match self {
            Resource::Channels => format!("{limit} open control channels"),
            Resource::Transactions => format!("{limit} open transactions"),
            Resource::Persisted => format!("{limit} persisted transactions"),
            Resource::Savepoints => format!("{limit} savepoints"),
            Resource::Memory => format!("{} KiB of memory", limit >> 10),
            Resource::Descriptors => format!("{limit} processes with savepoints"),
        }
    }
}

/// Limits of each resource for one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits([u64; RESOURCES]);

impl Limits {
    /// No limits.
    pub const NONE: Limits = Limits([u64::MAX; RESOURCES]);

    /// Limits from the two settings; the others follow from the number of transactions.
    pub fn new(transactions: u64, memory_bytes: u64) -> Limits {
        let times = |n: u64| transactions.saturating_mul(n);
        let mut limits = Limits::NONE;
        limits.set(Resource::Channels, times(4));
        limits.set(Resource::Transactions, transactions);
        limits.set(Resource::Persisted, transactions);
        limits.set(Resource::Savepoints, times(10));
        limits.set(Resource::Memory, memory_bytes);
        limits.set(Resource::Descriptors, transactions);
        limits
    }

    fn set(&mut self, of: Resource, limit: u64) {
        self.0[of as usize] = limit;
    }

    /// The limit of a resource.
    pub fn get(&self, of: Resource) -> u64 {
        self.0[of as usize]
    }

    /// The limits, in the order of [`Resource::ALL`].
    pub fn each(&self) -> [u64; RESOURCES] {
        self.0
    }

    /// These limits, with at most `limit` of one resource.
    pub fn at_most(mut self, of: Resource, limit: u64) -> Limits {
        self.set(of, self.get(of).min(limit));
        self
    }

    fn times(&self, n: u64) -> Limits {
        Limits(self.0.map(|limit| limit.saturating_mul(n)))
    }
}

#[derive(Debug, Default)]
struct Used([AtomicU64; RESOURCES]);

impl Used {
    /// Adds an amount; false, without a change, if that would exceed `limit`.
    fn add(&self, of: Resource, amount: u64, limit: u64) -> bool {
        let used = &self.0[of as usize];
        let before = used.fetch_add(amount, Relaxed);
        let fits = before.saturating_add(amount) <= limit;
        if !fits {
            used.fetch_sub(amount, Relaxed);
        }
        fits
    }

    fn sub(&self, of: Resource, amount: u64) {
        self.0[of as usize].fetch_sub(amount, Relaxed);
    }

    fn get(&self, of: Resource) -> u64 {
        self.0[of as usize].load(Relaxed)
    }
}

/// A report that a user has reached a limit, for the log.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    /// The user.
    pub uid: u32,
    /// The resource at its limit.
    pub resource: Resource,
    /// The limit of one user.
    pub limit: u64,
    /// The limit of all users together was reached, not that of this user.
    pub all_users: bool,
}

type Reporter = Box<dyn Fn(&Refusal) + Send + Sync>;

/// The state that all accounts share.
struct Common {
    started: Instant,
    used: Used,
    report: OnceLock<Reporter>,
}

impl Common {
    fn new() -> Common {
        Common { started: Instant::now(), used: Used::default(), report: OnceLock::new() }
    }
}

/// Usage and limits of one user.
pub struct Account {
    uid: u32,
    limits: Limits,
    used: Used,
    refused: AtomicU64,
    /// Time of the last report, in seconds since the start; 0: never.
    reported: AtomicU64,
    common: Arc<Common>,
}

impl Account {
    fn new(uid: u32, limits: Limits, common: Arc<Common>) -> Account {
        Account {
            uid,
            limits,
            used: Used::default(),
            refused: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            common,
        }
    }

    /// An account without limits and without a user.
    pub fn unlimited() -> Arc<Account> {
        Arc::new(Account::new(0, Limits::NONE, Arc::new(Common::new())))
    }

    /// The user of the account.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The limit of a resource.
    pub fn limit(&self, of: Resource) -> u64 {
        self.limits.get(of)
    }

    /// The amount of a resource that is in use.
    pub fn used(&self, of: Resource) -> u64 {
        self.used.get(of)
    }

    /// Number of calls refused because of a limit.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Charges the user; fails with the resource's errno if that exceeds a limit.
    pub fn charge(self: &Arc<Self>, of: Resource, amount: u64) -> Result<Charge> {
        let mut charge = Charge { account: self.clone(), of, amount: 0 };
        charge.grow(amount)?;
        Ok(charge)
    }

    /// Charges the user for a resource that exists already, without checking limits.
    pub fn charge_anyway(self: &Arc<Self>, of: Resource, amount: u64) -> Charge {
        self.add(of, amount, &Limits::NONE);
        Charge { account: self.clone(), of, amount }
    }

    /// An empty charge, which can grow.
    pub fn nothing(self: &Arc<Self>, of: Resource) -> Charge {
        Charge { account: self.clone(), of, amount: 0 }
    }

    /// Adds an amount. `None` on success; otherwise whether the limit of all users prevented it.
    fn add(&self, of: Resource, amount: u64, limits: &Limits) -> Option<bool> {
        if !self.used.add(of, amount, limits.get(of)) {
            return Some(false);
        }
        // Users without limits do not count against the limit of all users.
        if self.limits.get(of) == u64::MAX {
            return None;
        }
        if !self.common.used.add(of, amount, limits.times(ALL_USERS).get(of)) {
            self.used.sub(of, amount);
            return Some(true);
        }
        None
    }

    fn sub(&self, of: Resource, amount: u64) {
        self.used.sub(of, amount);
        if self.limits.get(of) != u64::MAX {
            self.common.used.sub(of, amount);
        }
    }

    fn note_refusal(&self, resource: Resource, all_users: bool) {
        self.refused.fetch_add(1, Relaxed);
        let now = self.common.started.elapsed().as_secs() + 1;
        let last = self.reported.load(Relaxed);
        let is_due = last == 0 || now >= last + REPORT_EVERY;
        if is_due && self.reported.compare_exchange(last, now, Relaxed, Relaxed).is_ok() {
            let refusal = Refusal { uid: self.uid, resource, limit: self.limits.get(resource), all_users };
            if let Some(report) = self.common.report.get() {
                report(&refusal);
            }
        }
    }

    fn is_idle(self: &Arc<Self>) -> bool {
        // One reference is the table's own.
        Arc::strong_count(self) == 1
    }
}

/// A share of an account; the drop gives it back.
pub struct Charge {
    account: Arc<Account>,
    of: Resource,
    amount: u64,
}

impl Charge {
    /// The amount that is charged.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// The account that is charged.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Adds to the charge; an error leaves it unchanged.
    pub fn grow(&mut self, by: u64) -> Result<()> {
        if let Some(all_users) = self.account.add(self.of, by, &self.account.limits) {
            self.account.note_refusal(self.of, all_users);
            return Err(self.of.errno().into());
        }
        self.amount += by;
        Ok(())
    }

    /// Makes the charge cover `amount`, in steps, so that most calls change nothing. An error
    /// leaves it unchanged.
    pub fn cover(&mut self, amount: u64) -> Result<()> {
        if amount > self.amount {
            return self.grow((amount - self.amount).next_multiple_of(STEP));
        }
        let spare = (self.amount - amount) / STEP * STEP;
        if spare > 4 * STEP {
            self.account.sub(self.of, spare);
            self.amount -= spare;
        }
        Ok(())
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({:?}, {}, uid {})", self.of, self.amount, self.account.uid)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.sub(self.of, self.amount);
    }
}

struct Table {
    limits: Limits,
    /// Users without limits.
    exempt: Vec<u32>,
    accounts: HashMap<u32, Arc<Account>>,
}

/// The accounts of all users of a volume.
pub struct Accounts {
    table: Mutex<Table>,
    common: Arc<Common>,
}

impl Default for Accounts {
    /// Accounts without limits, as for the users of a library.
    fn default() -> Accounts {
        let table = Table { limits: Limits::NONE, exempt: Vec::new(), accounts: HashMap::new() };
        Accounts { table: Mutex::new(table), common: Arc::new(Common::new()) }
    }
}

impl Accounts {
    /// Sets limits for all users except `exempt` and root; called before the first account exists.
    /// `report` is called when a call is refused, at most once a minute for each user.
    pub fn limit(&self, limits: Limits, exempt: u32, report: impl Fn(&Refusal) + Send + Sync + 'static) {
        let mut table = self.table.lock();
        table.limits = limits;
        table.exempt = vec![0, exempt];
        // Set once; a second caller passes the same function.
        let _ = self.common.report.set(Box::new(report));
    }

    /// The limits of a user who is not exempt.
    pub fn limits(&self) -> Limits {
        self.table.lock().limits
    }

    /// The account of a user.
    pub fn of(&self, uid: u32) -> Arc<Account> {
        let mut table = self.table.lock();
        if let Some(account) = table.accounts.get(&uid) {
            return account.clone();
        }
        if table.accounts.len() >= ACCOUNTS_MAX {
            table.accounts.retain(|_, account| !account.is_idle());
        }
        let limits = if table.exempt.contains(&uid) { Limits::NONE } else { table.limits };
        let account = Arc::new(Account::new(uid, limits, self.common.clone()));
        table.accounts.insert(uid, account.clone());
        account
    }

    /// All accounts, by uid.
    pub fn all(&self) -> Vec<Arc<Account>> {
        let mut all: Vec<_> = self.table.lock().accounts.values().cloned().collect();
        all.sort_by_key(|account| account.uid);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(limits: Limits) -> Accounts {
        let accounts = Accounts::default();
        accounts.limit(limits, 7, |_| ());
        accounts
    }

    #[test]
    fn what_is_dropped_can_be_had_again() {
        let accounts = accounts(Limits::new(3, 1 << 20));
        let user = accounts.of(1000);
        let held: Vec<_> = (0..3).map(|_| user.charge(Resource::Transactions, 1).unwrap()).collect();
        let refused = user.charge(Resource::Transactions, 1).err().unwrap();
        assert_eq!((refused.errno(), user.refused()), (Errno::EDQUOT, 1));
        assert_eq!(user.used(Resource::Transactions), 3);
        drop(held);
        assert_eq!(accounts.of(1000).used(Resource::Transactions), 0);
        user.charge(Resource::Transactions, 3).unwrap();
    }

    #[test]
    fn root_and_the_mounts_owner_have_no_limit() {
        let accounts = accounts(Limits::new(1, 0));
        for uid in [0, 7] {
            let user = accounts.of(uid);
            let _held = [(); 9].map(|()| user.charge(Resource::Transactions, 1).unwrap());
            let _memory = user.charge(Resource::Memory, 1 << 40).unwrap();
        }
        assert_eq!(accounts.of(8).charge(Resource::Memory, 1).err().unwrap().errno(), Errno::ENOMEM);
    }

    #[test]
    fn many_users_together_have_a_limit() {
        let accounts = accounts(Limits::new(10, 1 << 20));
        let mut held = Vec::new();
        for uid in 1000..1000 + ALL_USERS as u32 {
            held.push(accounts.of(uid).charge(Resource::Transactions, 10).unwrap());
        }
        let late = accounts.of(2000);
        assert!(late.charge(Resource::Transactions, 1).is_err());
        assert_eq!(late.used(Resource::Transactions), 0, "a refused amount is not charged");
        held.pop();
        late.charge(Resource::Transactions, 1).unwrap();
    }

    #[test]
    fn memory_is_charged_in_steps_and_given_back() {
        let accounts = accounts(Limits::new(1, 20 * STEP));
        let user = accounts.of(1000);
        let mut memory = user.nothing(Resource::Memory);
        memory.cover(1).unwrap();
        assert_eq!(user.used(Resource::Memory), STEP);
        memory.cover(20 * STEP).unwrap();
        assert!(memory.cover(20 * STEP + 1).is_err());
        assert_eq!(memory.amount(), 20 * STEP);
        memory.cover(0).unwrap();
        assert_eq!(user.used(Resource::Memory), 0);
    }

    #[test]
    fn a_refusal_is_reported_once_a_minute() {
        let accounts = Accounts::default();
        let reports = Arc::new(AtomicU64::new(0));
        let counted = reports.clone();
        accounts.limit(Limits::new(0, 0), 7, move |refusal| {
            assert_eq!((refusal.uid, refusal.resource, refusal.all_users), (9, Resource::Channels, false));
            counted.fetch_add(1, Relaxed);
        });
        for _ in 0..100 {
            assert!(accounts.of(9).charge(Resource::Channels, 1).is_err());
        }
        assert_eq!((reports.load(Relaxed), accounts.of(9).refused()), (1, 100));
    }

    #[test]
    fn accounts_that_nobody_uses_are_dropped() {
        let accounts = accounts(Limits::new(1, 0));
        let held = accounts.of(5).charge(Resource::Transactions, 1).unwrap();
        (0..10 * ACCOUNTS_MAX as u32).for_each(|uid| drop(accounts.of(1000 + uid)));
        assert!(accounts.all().len() <= ACCOUNTS_MAX);
        assert_eq!(accounts.of(5).used(Resource::Transactions), 1);
        drop(held);
    }
}
