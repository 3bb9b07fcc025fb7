//! The two file systems, the processes of the users, and the properties that must hold after each
//! step.
//!
//! 1. A call outside of transactions gives the same reply on both.
//! 2. When a transaction has committed, the same user makes its calls again on the kernel's ext4,
//!    as it is at that moment. With serializable isolation all replies are the same; with snapshot
//!    isolation those that change something are allowed. Then both trees are the same, as after a
//!    refused commit.
//! 3. A control call returns only data that its caller can reach by plain calls: contents by their
//!    tags, names by looking them up or listing their folder, in the view or outside, now or at the
//!    begin.
//! 4. Calls of other users with descriptors that were passed to them change neither (then 2 fails).

mod atomic_writes;
mod lists;
mod transactions;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use xact_control::abi::{self as control, Begin, Change, Commit, Diff, Info, Keep, ReadSide, Select};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::call::{Call, Reply, SKIPPED, What};
use crate::process::{Process, User};
use crate::step::{Actor, Savepoint, Step};
use crate::tree::Tree;
use crate::{ROOT, tag, tree};

/// The users, and root. Some share groups.
pub const USERS: [User; ROOT + 1] = [
    User { uid: 1001, groups: &[2001, 2100] },
    User { uid: 1002, groups: &[2002, 2100, 2200] },
    User { uid: 1003, groups: &[2003, 2200] },
    User { uid: 1004, groups: &[2004] },
    User { uid: 0, groups: &[0] },
];

const X: u64 = 0;
const K: u64 = 1;

// Descriptors of a process.
const SECTION: u64 = 1;
const MAPPED: u64 = 2;
const FOREIGN: u64 = 3;
const SCRATCH: u64 = 4;
const VIEW: u64 = 5;
/// The channels of transactions, and those that were passed.
const CHANNEL: u64 = 100;
const PASSED: u64 = 10_000;

/// A broken property.
#[derive(Debug, Clone)]
pub struct Violation(pub String);

type Outcome = Result<(), Violation>;

fn violation<T>(why: String) -> Result<T, Violation> {
    Err(Violation(why))
}

/// An open transaction.
struct Tx {
    owner: Actor,
    /// The slot of its channel; none while it is persisted and not attached.
    channel: Option<u64>,
    id: u64,
    snapshot: bool,
    calls: Vec<(Call, Reply)>,
    /// Number, preceding calls, and owner.
    savepoints: Vec<(u64, usize, Actor)>,
    /// Paths that its user could reach when it began.
    visible: BTreeSet<String>,
    /// Number of names that had been changed outside by then.
    begun_at: usize,
    kept: bool,
    selected: bool,
    /// A part of it was undone, so its recorded calls are no longer its effect.
    torn: bool,
    /// Users that have its channel.
    passed: BTreeSet<Actor>,
}

impl Tx {
    fn changes(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|(call, reply)| !call.looks() && reply.is_ok()).map(|(call, _)| call)
    }
}

/// A change in a list.
struct Listed {
    /// Its path, and the path that it had before.
    paths: Vec<String>,
    /// Inodes before and after, 0 for none.
    sides: [u64; 2],
}

struct Section {
    path: String,
    writes: Vec<(u64, Vec<u8>)>,
}

/// Numbers of events, for the summary.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    pub calls: u64,
    pub commits: u64,
    pub refused: u64,
    pub sections: u64,
    pub reads: u64,
    pub lists: u64,
    /// Commits that were judged only by the comparison of trees: others had given paths another
    /// meaning.
    pub by_tree: u64,
    pub killed: u64,
    pub differences: BTreeMap<String, u64>,
}

pub struct World {
    mount: PathBuf,
    kernel: PathBuf,
    processes: HashMap<Actor, Process>,
    pub counts: Counts,
    epochs: u64,
    // State of this epoch.
    name: String,
    roots: [String; 2],
    txs: BTreeMap<usize, Tx>,
    sections: HashMap<Actor, Section>,
    /// Processes that have closed the file of an open atomic write, which stays open until they
    /// end.
    lingering: BTreeSet<Actor>,
    mapped: BTreeSet<Actor>,
    foreign: HashMap<Actor, usize>,
    /// Names that were changed outside, in order.
    renamed: Vec<String>,
    known: [BTreeSet<u64>; ROOT],
    /// The tree at the last comparison.
    tree: Tree,
    pub history: Option<Vec<String>>,
}

impl World {
    pub fn new(mount: &Path, kernel: &Path) -> World {
        World {
            mount: mount.to_owned(),
            kernel: kernel.to_owned(),
            processes: HashMap::new(),
            counts: Counts::default(),
            epochs: 0,
            name: String::new(),
            roots: Default::default(),
            txs: BTreeMap::new(),
            sections: HashMap::new(),
            lingering: BTreeSet::new(),
            mapped: BTreeSet::new(),
            foreign: HashMap::new(),
            renamed: Vec::new(),
            known: Default::default(),
            tree: Tree::new(),
            history: None,
        }
    }

    /// Begins a history in a new folder.
    pub fn begin_epoch(&mut self) {
        self.epochs += 1;
        self.name = format!("e{}", self.epochs);
        for (at, mount) in [&self.mount, &self.kernel].into_iter().enumerate() {
            let root = mount.join(&self.name);
            std::fs::create_dir(&root).unwrap();
            self.roots[at] = root.to_str().unwrap().to_owned();
        }
    }

    /// Makes calls that come before all others, by root on both.
    pub fn plant(&mut self, calls: &[&Call]) -> Outcome {
        let (root, roots) = (Actor::user(ROOT), self.roots.clone());
        let reply = self.process(root).call(&[(X, &roots[0]), (K, &roots[1])], calls);
        for (call, reply) in calls.iter().zip(reply) {
            self.note(|| format!("{root}: {call}"));
            self.same(root, call, &reply.try_into().unwrap())?;
        }
        self.compare("at the begin")
    }

    /// Ends everything that is open and removes the folder.
    pub fn end_epoch(&mut self) {
        self.reset();
        for id in std::mem::take(&mut self.txs).into_values().filter(|tx| tx.kept).map(|tx| tx.id) {
            let channel = xact_control::client::Channel::open(&self.mount).unwrap();
            // Its channel is closed, which the daemon soon notices; or it has ended otherwise.
            while channel.attach(id).is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY)) {
                std::thread::yield_now();
            }
            let _ = channel.abort();
        }
        self.renamed.clear();
        self.known = Default::default();
        for root in &self.roots {
            tree::clear(Path::new(root)).unwrap();
            std::fs::remove_dir(root).unwrap();
        }
    }

    /// Closes all descriptors of all processes.
    fn reset(&mut self) {
        for actor in self.sections.keys().copied().collect::<Vec<_>>() {
            self.ioctl(actor, SECTION, crate::ABORT_ATOMIC, &[]);
        }
        for process in self.processes.values_mut() {
            process.call(&[(X, "/")], &[&Call::new(What::Reset, "")]);
        }
        for actor in std::mem::take(&mut self.lingering) {
            self.processes.remove(&actor).into_iter().for_each(Process::kill);
        }
        self.sections.clear();
        self.mapped.clear();
        self.foreign.clear();
    }

    fn process(&mut self, who: Actor) -> &mut Process {
        self.processes.entry(who).or_insert_with(|| Process::start(USERS[who.user]))
    }

    fn on(&mut self, who: Actor, side: u64, root: &str, call: &Call) -> Reply {
        self.counts.calls += 1;
        self.process(who).call(&[(side, root)], &[call]).remove(0).remove(0)
    }

    fn on_both(&mut self, who: Actor, call: &Call) -> [Reply; 2] {
        self.counts.calls += 1;
        let roots = self.roots.clone();
        let reply = self.process(who).call(&[(X, &roots[0]), (K, &roots[1])], &[call]).remove(0);
        reply.try_into().unwrap()
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(history) = &mut self.history {
            history.push(line());
        }
    }

    fn view(&self, id: u64) -> String {
        format!("{}/.xact/tx/{id}/root/{}", self.mount.display(), self.name)
    }

    pub fn open(&self) -> impl Iterator<Item = usize> {
        self.txs.keys().copied()
    }

    pub fn owner(&self, tx: usize) -> Option<Actor> {
        self.txs.get(&tx).map(|tx| tx.owner)
    }

    pub fn has_section(&self, who: Actor) -> bool {
        self.sections.contains_key(&who)
    }

    /// The tree as of the last comparison.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn foreign(&self) -> impl Iterator<Item = Actor> {
        self.foreign.keys().copied()
    }

    /// Paths at which a transaction has changed something.
    pub fn touched(&self, tx: usize) -> Vec<String> {
        let of = |tx: &Tx| tx.changes().flat_map(Call::paths).map(str::to_owned).collect();
        self.txs.get(&tx).map(of).unwrap_or_default()
    }

    pub fn step(&mut self, step: &Step) -> Outcome {
        self.note(|| step.to_string());
        match step {
            Step::Plain(who, call) => self.plain(*who, call),
            Step::Begin { by, tx, snapshot } => self.begin(*by, *tx, *snapshot),
            Step::In { tx, call } => {
                let Some(Tx { id, owner, kept: false, .. }) = self.txs.get(tx) else { return Ok(()) };
                let (owner, root) = (*owner, self.view(*id));
                let reply = self.on(owner, X, &root, call);
                self.note(|| format!("    {reply}"));
                self.learn(owner, call, &reply);
                self.txs.get_mut(tx).expect("it is open").calls.push((call.clone(), reply));
                Ok(())
            }
            Step::Commit { tx, flags } => self.commit(*tx, *flags),
            Step::Abort { tx } => {
                let Some((who, slot)) = self.channel(*tx) else { return Ok(()) };
                let reply = self.ioctl(who, slot, control::IOC_ABORT, &[]);
                self.note(|| format!("    {reply}"));
                self.end_tx(*tx);
                self.compare("after an abort")
            }
            Step::Leave { tx } => {
                let Some((who, slot)) = self.channel(*tx) else { return Ok(()) };
                self.on(who, X, "", &Call::on(What::Close, slot));
                self.left(*tx);
                Ok(())
            }
            Step::Select { tx, path } => {
                let Some((who, slot)) = self.channel(*tx) else { return Ok(()) };
                let mut select = Select::new_zeroed();
                let path = format!("/{}/{path}", self.name);
                select.path[..path.len()].copy_from_slice(path.as_bytes());
                select.len = path.len() as u32;
                self.ioctl(who, slot, control::IOC_SELECT, select.as_bytes());
                self.txs.get_mut(tx).expect("it is open").selected = true;
                Ok(())
            }
            Step::DropSelected { tx } => {
                let Some((who, slot)) = self.channel(*tx) else { return Ok(()) };
                let reply = self.ioctl(who, slot, control::IOC_DROP, Commit::new_zeroed().as_bytes());
                self.note(|| format!("    {reply}"));
                let tx = self.txs.get_mut(tx).expect("it is open");
                tx.selected = false;
                tx.torn |= reply.is_ok();
                Ok(())
            }
            Step::Keep { tx } => {
                let Some((who, slot)) = self.channel(*tx) else { return Ok(()) };
                let mut keep = Keep::new_zeroed();
                (keep.timeout_s, keep.label_len) = (60, 1);
                keep.label[0] = b'k';
                let reply = self.ioctl(who, slot, control::IOC_KEEP, keep.as_bytes());
                self.note(|| format!("    {reply}"));
                self.txs.get_mut(tx).expect("it is open").kept |= reply.is_ok();
                Ok(())
            }
            Step::Attach { by, tx } => self.attach(*by, *tx),
            Step::Savepoint { tx, what, nth } => self.savepoint(*tx, *what, *nth),
            Step::Info { by, tx, next } => self.info(*by, *tx, *next),
            Step::Diff { by, tx, by_file, passed, again } => self.diff(*by, *tx, *by_file, *passed, *again),
            Step::ReadSides { by, tx, by_file } => self.read_sides(*by, *tx, *by_file),
            Step::ReadNumber { by, tx, path, of_view, new } => {
                self.read_number(*by, *tx, path, *of_view, *new)
            }
            Step::PassView { tx, path, to } => {
                let Some(Tx { id, owner, .. }) = self.txs.get(tx) else { return Ok(()) };
                let (owner, root) = (*owner, self.view(*id));
                let open = Call::new(What::Open, path).slot(VIEW);
                if owner != *to && self.on(owner, X, &root, &open).is_ok() {
                    self.pass(owner, VIEW, *to, FOREIGN);
                    self.on(owner, X, "", &Call::on(What::Close, VIEW));
                    self.foreign.insert(*to, *tx);
                }
                Ok(())
            }
            Step::PassChannel { tx, to } => {
                let Some((owner, slot)) = self.channel(*tx) else { return Ok(()) };
                if owner != *to {
                    self.pass(owner, slot, *to, PASSED + *tx as u64);
                    self.txs.get_mut(tx).expect("it is open").passed.insert(*to);
                }
                Ok(())
            }
            Step::Foreign { by, what, number } => self.foreign_savepoint(*by, *what, *number),
            Step::Start { by, path, flags } => {
                if self.sections.contains_key(by) {
                    return Ok(());
                }
                let opened = self.open_both(*by, path, *flags, SECTION)?;
                if opened && self.ioctl(*by, SECTION, crate::START, &[]).is_ok() {
                    self.note(|| "    started".into());
                    let file = std::fs::metadata(format!("{}/{path}", self.roots[1])).unwrap();
                    let (uid, owner) = (USERS[by.user].uid, std::os::unix::fs::MetadataExt::uid(&file));
                    if uid != 0 && uid != owner {
                        return violation(format!(
                            "{by} writes atomically to {path}, which F2FS lets its owner do"
                        ));
                    }
                    self.counts.sections += 1;
                    self.sections.insert(*by, Section { path: path.clone(), writes: Vec::new() });
                } else {
                    self.on_both(*by, &Call::on(What::Close, SECTION));
                }
                Ok(())
            }
            Step::Section { by, page, tag } => {
                self.write_in_section(*by, *page, *tag);
                Ok(())
            }
            Step::StoreUnder { by, offset, tag, section, written } => {
                self.store_under(*by, *offset, *tag, *section, *written)
            }
            Step::EndSection { by, commit } => self.end_section(*by, *commit),
            Step::LetGo { by } => {
                if self.sections.remove(by).is_some() {
                    self.on_both(*by, &Call::on(What::Close, SECTION));
                    self.lingering.insert(*by);
                }
                Ok(())
            }
            Step::Map { by, path } => {
                if self.mapped.contains(by) || !self.open_both(*by, path, libc::O_RDWR as u64, MAPPED)? {
                    return Ok(());
                }
                let reply = self.on_both(*by, &Call::on(What::Map, MAPPED));
                self.same(*by, &Call::on(What::Map, MAPPED), &reply)?;
                if reply[0].is_ok() {
                    self.mapped.insert(*by);
                } else {
                    self.on_both(*by, &Call::on(What::Close, MAPPED));
                }
                Ok(())
            }
            Step::Store { by, offset, tag } => {
                if !self.mapped.contains(by) {
                    return Ok(());
                }
                let bytes = tag::text(*tag).into_bytes();
                if by.user != ROOT {
                    self.known[by.user].insert(*tag);
                }
                let store = Call::on(What::Store, MAPPED).number(*offset).bytes(bytes);
                let reply = self.on_both(*by, &store);
                self.note(|| format!("    {}", reply[0]));
                self.same(*by, &store, &reply)
            }
            Step::Unmap { by } => {
                if self.mapped.remove(by) {
                    self.on_both(*by, &Call::on(What::Close, MAPPED));
                }
                Ok(())
            }
            Step::Stray { by, path, command, fill } => {
                let root = self.roots[0].clone();
                if self.on(*by, X, &root, &Call::new(What::Open, path).slot(SCRATCH)).is_ok() {
                    let len = (command >> 16 & 0x3fff) as usize;
                    let reply = self.ioctl(*by, SCRATCH, *command, &vec![*fill; len]);
                    self.on(*by, X, "", &Call::on(What::Close, SCRATCH));
                    self.note(|| format!("    {reply}"));
                    return self.judge_contents(*by, None, &reply.bytes, "a stray control call");
                }
                Ok(())
            }
            Step::Kill { user } => self.kill(Actor::mortal(*user)),
            Step::Compare => self.compare("in between"),
        }
    }

    fn ioctl(&mut self, who: Actor, slot: u64, command: u32, argument: &[u8]) -> Reply {
        let call = Call::on(What::Ioctl, slot).number(command.into()).bytes(argument.to_vec());
        self.on(who, X, "", &call)
    }

    fn pass(&mut self, from: Actor, slot: u64, to: Actor, as_slot: u64) {
        self.on(from, X, "", &Call::on(What::Send, slot));
        let descriptor = self.process(from).take();
        self.process(to).give(&descriptor);
        self.on(to, X, "", &Call::on(What::Receive, as_slot));
    }

    /// Opens a file on both; false where both refuse.
    fn open_both(&mut self, who: Actor, path: &str, flags: u64, slot: u64) -> Result<bool, Violation> {
        let call = Call::new(What::Open, path).number(flags).slot(slot);
        let reply = self.on_both(who, &call);
        self.same(who, &call, &reply)?;
        if reply.iter().all(Reply::is_ok) {
            return Ok(true);
        }
        self.on_both(who, &Call::on(What::Close, slot));
        Ok(false)
    }

    fn plain(&mut self, who: Actor, call: &Call) -> Outcome {
        let reply = self.on_both(who, call);
        self.note(|| format!("    {}", reply[0]));
        self.learn(who, call, &reply[1]);
        if reply.iter().any(Reply::is_ok) {
            self.note_names(call);
        }
        self.same(who, call, &reply)
    }

    /// Notes the paths that a call outside gave another meaning.
    fn note_names(&mut self, call: &Call) {
        use What::*;
        if matches!(call.what, Create | MakeDir | Symlink | MakeFifo | Unlink | RemoveDir | Write) {
            self.renamed.push(call.path.clone());
        } else if matches!(call.what, Link | Unnamed) {
            self.renamed.push(call.other.clone());
        } else if call.what == Rename {
            self.renamed.extend([call.path.clone(), call.other.clone()]);
        }
    }

    /// Notes the tags that a user has read.
    fn learn(&mut self, who: Actor, call: &Call, reply: &Reply) {
        if who.user == ROOT {
            return;
        }
        if matches!(call.what, What::Read | What::ReadLink) {
            self.known[who.user].extend(tag::all(&reply.bytes));
        }
        self.known[who.user].extend(tag::all(&call.bytes));
        self.known[who.user].extend(tag::all(call.other.as_bytes()));
    }

    /// Checks that both sides gave the same reply.
    fn same(&mut self, by: Actor, call: &Call, reply: &[Reply; 2]) -> Outcome {
        let [ours, kernels] = reply;
        if ours == kernels {
            return Ok(());
        }
        if let Some(why) = crate::differences::known(call, ours, kernels) {
            *self.counts.differences.entry(why.to_owned()).or_default() += 1;
            if why == crate::differences::NOTHING_TO_REMOVE {
                return self.compare("after removing nothing");
            }
            if !call.looks() {
                self.adjust();
            }
            return Ok(());
        }
        violation(format!("{by}: {call}: got {ours}, and from the kernel's ext4 {kernels}"))
    }

    /// Makes the kernel's tree equal to ours.
    fn adjust(&mut self) {
        // Their descriptors would refer to deleted files.
        for actor in self.sections.keys().copied().collect::<Vec<_>>() {
            self.ioctl(actor, SECTION, crate::ABORT_ATOMIC, &[]);
        }
        for who in self.processes.keys().copied().collect::<Vec<_>>() {
            for slot in [SECTION, MAPPED] {
                self.on_both(who, &Call::on(What::Close, slot));
            }
        }
        self.sections.clear();
        self.mapped.clear();
        let ours = tree::read(Path::new(&self.roots[0])).unwrap();
        tree::write(&ours, Path::new(&self.roots[1])).unwrap();
    }

    fn compare(&mut self, when: &str) -> Outcome {
        let [ours, kernels] = [0, 1].map(|at| tree::read(Path::new(&self.roots[at])).unwrap());
        let difference = tree::difference(&ours, &kernels);
        self.tree = kernels;
        difference.map_or(Ok(()), |what| violation(format!("{when}: {what}")))
    }
}

/// The reply to a commit, formatted for people.
fn said_of(reply: &Reply) -> String {
    let commit = Commit::read_from_bytes(&reply.bytes).unwrap_or_else(|_| Commit::new_zeroed());
    let text = |bytes: &[u8], len: u32| String::from_utf8_lossy(&bytes[..len as usize]).into_owned();
    let errno = Reply { bytes: Vec::new(), ..reply.clone() };
    format!("{errno} {} {}", text(&commit.path, commit.path_len), text(&commit.errmsg, commit.errmsg_len))
}
