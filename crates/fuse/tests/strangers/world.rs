//! The two file systems, the processes of the users, and what must hold after each step.
//!
//! 1. A call outside of transactions gives the same reply on both.
//! 2. When a transaction has committed, its calls are made again by the same user on the kernel's ext4, as it is at
//!    that moment. With serializable isolation all replies are the same, with the isolation of snapshots those
//!    that change something are allowed. Then both trees are the same, as after a commit that is refused.
//! 3. What a control call returns is something that its caller gets at by plain calls: contents by their tags, names
//!    by looking them up, or listing their folder, in the view or outside, now or at the begin.
//! 4. What other users do with descriptors that were passed to them changes neither (then 2 fails).

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

/// Something that must not be.
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
    /// Number, calls before it, and whose it is.
    savepoints: Vec<(u64, usize, Actor)>,
    /// Paths that its user got at when it began.
    visible: BTreeSet<String>,
    /// Names that had been changed outside by then.
    begun_at: usize,
    kept: bool,
    selected: bool,
    /// A part of it has gone, so its calls are not what it does any more.
    torn: bool,
    /// Users that have its channel.
    passed: BTreeSet<Actor>,
}

impl Tx {
    fn changes(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|(call, reply)| !call.looks() && reply.is_ok()).map(|(call, _)| call)
    }
}

/// A change as a list has it.
struct Listed {
    /// Its path, and where it was.
    paths: Vec<String>,
    /// Inodes before and after, 0 for none.
    sides: [u64; 2],
}

struct Section {
    path: String,
    writes: Vec<(u64, Vec<u8>)>,
}

/// A list of what happened, for the summary.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    pub calls: u64,
    pub commits: u64,
    pub refused: u64,
    pub sections: u64,
    pub reads: u64,
    pub lists: u64,
    /// Commits that only the comparison of trees judged: others had given paths another meaning.
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
    /// Processes that have closed the file of an open atomic write, which stays open until they end.
    lingering: BTreeSet<Actor>,
    mapped: BTreeSet<Actor>,
    foreign: HashMap<Actor, usize>,
    /// Names that were changed outside, in order.
    renamed: Vec<String>,
    known: [BTreeSet<u64>; ROOT],
    /// As it was when it was last compared.
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

    /// A new folder for a new history.
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

    /// Ends what is open and removes the folder.
    pub fn end_epoch(&mut self) {
        self.reset();
        for id in std::mem::take(&mut self.txs).into_values().filter(|tx| tx.kept).map(|tx| tx.id) {
            let channel = xact_control::client::Channel::open(&self.mount).unwrap();
            // Its channel is closed, which the daemon hears of soon; or it has ended otherwise.
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
        for who in self.sections.keys().copied().collect::<Vec<_>>() {
            self.ioctl(who, SECTION, crate::ABORT_ATOMIC, &[]);
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

    /// Paths that a transaction has changed something at.
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

    /// A user knows the tags that were read.
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

    /// Both sides must give the same reply.
    fn same(&mut self, who: Actor, call: &Call, reply: &[Reply; 2]) -> Outcome {
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
        violation(format!("{who}: {call}: got {ours}, and from the kernel's ext4 {kernels}"))
    }

    /// Makes the kernel's tree as ours is.
    fn adjust(&mut self) {
        // Descriptors would be of files that are gone.
        for who in self.sections.keys().copied().collect::<Vec<_>>() {
            self.ioctl(who, SECTION, crate::ABORT_ATOMIC, &[]);
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

    // Transactions.

    fn channel(&self, tx: usize) -> Option<(Actor, u64)> {
        self.txs.get(&tx).and_then(|tx| Some((tx.owner, tx.channel?)))
    }

    fn begin(&mut self, by: Actor, number: usize, snapshot: bool) -> Outcome {
        if self.txs.contains_key(&number) {
            return Ok(());
        }
        let slot = CHANNEL + number as u64;
        let mount = self.mount.to_str().unwrap().to_owned();
        let opened = self.on(by, X, &mount, &Call::new(What::OpenChannel, ".xact").slot(slot));
        assert!(opened.is_ok(), "{opened}");
        let flags = if snapshot { control::BEGIN_SNAPSHOT } else { 0 };
        let begin = Begin { flags, ..Begin::default() };
        let reply = self.ioctl(by, slot, control::IOC_BEGIN, begin.as_bytes());
        if !reply.is_ok() {
            return violation(format!("a begin was refused: {reply}"));
        }
        let id = Begin::read_from_bytes(&reply.bytes).unwrap().id;
        let visible = self.probe(by, K, None);
        let tx = Tx {
            owner: by,
            channel: Some(slot),
            id,
            snapshot,
            calls: Vec::new(),
            savepoints: Vec::new(),
            visible,
            begun_at: self.renamed.len(),
            kept: false,
            selected: false,
            torn: false,
            passed: BTreeSet::new(),
        };
        self.txs.insert(number, tx);
        Ok(())
    }

    /// Paths that a user gets at, on the kernel's ext4 or in a view; what he can read there he knows from then
    /// on. Without paths: all that there are.
    fn probe(&mut self, who: Actor, side: u64, paths: Option<(&str, Vec<String>)>) -> BTreeSet<String> {
        let (root, paths) = match paths {
            Some((root, paths)) => (root.to_owned(), paths),
            None => (self.roots[1].clone(), tree::paths(Path::new(&self.roots[1]))),
        };
        let call = Call::new(What::Probe, "").bytes(paths.join("\0").into_bytes());
        let reply = self.process(who).call(&[(side, &root)], &[&call]).remove(0).remove(0);
        let mut visible = BTreeSet::new();
        for line in String::from_utf8(reply.bytes).unwrap().lines() {
            match line.split_at(2) {
                ("p ", path) => _ = visible.insert(path.to_owned()),
                (_, tag) if who.user != ROOT => _ = self.known[who.user].insert(tag.parse().unwrap()),
                _ => {}
            }
        }
        visible
    }

    fn end_tx(&mut self, number: usize) -> Option<Tx> {
        let tx = self.txs.remove(&number)?;
        if let Some(slot) = tx.channel {
            self.on(tx.owner, X, "", &Call::on(What::Close, slot));
        }
        for &who in &tx.passed {
            self.on(who, X, "", &Call::on(What::Close, PASSED + number as u64));
        }
        Some(tx)
    }

    /// The channel of a transaction is closed.
    fn left(&mut self, number: usize) {
        let Some(tx) = self.txs.get_mut(&number) else { return };
        tx.channel = None;
        // A process that it was passed to holds the channel open.
        let (kept, passed) = (tx.kept, std::mem::take(&mut tx.passed));
        for who in passed {
            self.on(who, X, "", &Call::on(What::Close, PASSED + number as u64));
        }
        if !kept {
            self.txs.remove(&number);
        }
    }

    fn commit(&mut self, number: usize, flags: u32) -> Outcome {
        let Some((who, slot)) = self.channel(number) else { return Ok(()) };
        let selected = self.txs[&number].selected;
        let part = flags & control::COMMIT_ONLY != 0 && selected;
        let flags = if selected { flags } else { flags & !control::COMMIT_ONLY };
        // What has no net effect commits whatever others do.
        let empty = match self.list(who, slot, self.txs[&number].id, false) {
            Ok(changes) => changes.is_empty(),
            Err(_) => false,
        };
        let mut commit = Commit::new_zeroed();
        commit.flags = flags;
        let reply = self.ioctl(who, slot, control::IOC_COMMIT, commit.as_bytes());
        self.note(|| format!("    {}", said_of(&reply)));
        if !reply.is_ok() {
            self.counts.refused += 1;
            if flags & control::COMMIT_RETAIN == 0 && !part {
                self.end_tx(number);
            } else {
                self.txs.get_mut(&number).expect("it is open").selected = false;
            }
            return self.compare("after a commit that was refused");
        }
        self.counts.commits += 1;
        if part {
            let tx = self.txs.get_mut(&number).expect("it is open");
            (tx.selected, tx.torn) = (false, true);
            let calls: Vec<Call> = tx.changes().cloned().collect();
            calls.iter().for_each(|call| self.note_names(call));
            self.counts.by_tree += 1;
            self.adjust();
            return Ok(());
        }
        let tx = self.end_tx(number).expect("it is open");
        if empty {
            return self.compare("after a commit without effect");
        }
        let moved = tx.snapshot && self.is_moved(&tx);
        for call in tx.changes() {
            self.note_names(call);
        }
        if moved || tx.torn {
            self.counts.by_tree += 1;
            self.adjust();
            return Ok(());
        }
        let root = self.roots[1].clone();
        for (call, reply) in &tx.calls {
            let changes = !call.looks() && reply.is_ok();
            if reply.errno == SKIPPED || tx.snapshot && !changes {
                continue;
            }
            let again = self.on(tx.owner, K, &root, call);
            if again == *reply || crate::differences::known(call, reply, &again).is_some() {
                continue;
            }
            let isolation = if tx.snapshot { "snapshot" } else { "serializable" };
            let which = format!("transaction {number} ({isolation}) of {}", tx.owner);
            return violation(format!(
                "{which} committed; of its calls, {call} got {reply}, and at the commit, from the kernel's ext4, {again}"
            ));
        }
        self.compare("after a commit")
    }

    /// Whether others have given paths of a transaction another meaning since its begin.
    fn is_moved(&self, tx: &Tx) -> bool {
        let mut paths = tx.changes().flat_map(Call::paths);
        paths.any(|path| {
            let above = |name: &String| {
                path.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            self.renamed[tx.begun_at..].iter().any(above)
        })
    }

    fn attach(&mut self, by: Actor, number: usize) -> Outcome {
        let Some(tx) = self.txs.get(&number) else { return Ok(()) };
        let (id, owner, free) = (tx.id, tx.owner, tx.kept && tx.channel.is_none());
        let theirs = owner.user != by.user && by.user != ROOT;
        if !theirs && (owner != by || !free) {
            return Ok(());
        }
        let slot = if theirs { SCRATCH } else { CHANNEL + number as u64 };
        let mount = self.mount.to_str().unwrap().to_owned();
        self.on(by, X, &mount, &Call::new(What::OpenChannel, ".xact").slot(slot));
        let attach = Begin { id, ..Begin::default() };
        let reply = self.ioctl(by, slot, control::IOC_ATTACH, attach.as_bytes());
        self.note(|| format!("    {reply}"));
        if theirs {
            self.on(by, X, "", &Call::on(What::Close, SCRATCH));
            if reply.is_ok() {
                return violation(format!("{by} has attached a transaction of {owner}"));
            }
        } else if reply.is_ok() {
            self.txs.get_mut(&number).expect("it is open").channel = Some(slot);
        } else {
            self.on(by, X, "", &Call::on(What::Close, slot));
        }
        Ok(())
    }

    fn savepoint(&mut self, number: usize, what: Savepoint, nth: usize) -> Outcome {
        let Some((who, slot)) = self.channel(number) else { return Ok(()) };
        let tx = &self.txs[&number];
        let open = tx.savepoints.len();
        if what != Savepoint::Make && open == 0 {
            return Ok(());
        }
        let nth = if open == 0 { 0 } else { nth % open };
        let savepoint = tx.savepoints.get(nth).map_or(0, |(number, ..)| *number);
        let reply = self.call_savepoint(who, slot, what, savepoint);
        self.note(|| format!("    {reply}"));
        if !reply.is_ok() {
            return Ok(());
        }
        self.note_savepoint(number, who, what, savepoint, &reply);
        Ok(())
    }

    fn call_savepoint(&mut self, who: Actor, slot: u64, what: Savepoint, number: u64) -> Reply {
        let command = match what {
            Savepoint::Make => control::IOC_SAVEPOINT,
            Savepoint::RollBack => control::IOC_ROLLBACK,
            Savepoint::Release => control::IOC_RELEASE,
        };
        self.ioctl(who, slot, command, control::Savepoint { number }.as_bytes())
    }

    /// Follows a savepoint call of the transaction's user.
    fn note_savepoint(&mut self, number: usize, who: Actor, what: Savepoint, savepoint: u64, reply: &Reply) {
        let tx = self.txs.get_mut(&number).expect("it is open");
        if what == Savepoint::Make {
            let made = control::Savepoint::read_from_bytes(&reply.bytes).unwrap().number;
            tx.savepoints.push((made, tx.calls.len(), who));
            return;
        }
        if let Some(at) = tx.savepoints.iter().position(|(number, ..)| *number >= savepoint) {
            if what == Savepoint::RollBack {
                tx.calls.truncate(tx.savepoints[at].1);
            }
            tx.savepoints.truncate(at);
        }
    }

    /// With a view's descriptor. What another user than the transaction's own does so is not to change it, so it
    /// is not noted.
    fn foreign_savepoint(&mut self, by: Actor, what: Savepoint, number: u64) -> Outcome {
        let Some(&tx) = self.foreign.get(&by) else { return Ok(()) };
        let reply = self.call_savepoint(by, FOREIGN, what, number);
        self.note(|| format!("    {reply}"));
        let may = self.txs.get(&tx).is_some_and(|tx| tx.owner.user == by.user || by.user == ROOT);
        if reply.is_ok() && may {
            self.note_savepoint(tx, by, what, number, &reply);
        }
        Ok(())
    }

    fn kill(&mut self, who: Actor) -> Outcome {
        let Some(process) = self.processes.remove(&who) else { return Ok(()) };
        process.kill();
        self.lingering.remove(&who);
        self.counts.killed += 1;
        self.sections.remove(&who);
        self.mapped.remove(&who);
        self.foreign.remove(&who);
        for number in self.txs.keys().copied().collect::<Vec<_>>() {
            let tx = self.txs.get_mut(&number).expect("it is open");
            tx.passed.remove(&who);
            if let Some(at) = tx.savepoints.iter().position(|(.., owner)| *owner == who) {
                tx.calls.truncate(tx.savepoints[at].1);
                tx.savepoints.truncate(at);
            }
            if tx.owner == who {
                self.left(number);
            }
        }
        Ok(())
    }

    // Information and lists.

    fn info(&mut self, by: Actor, number: usize, next: bool) -> Outcome {
        let Some(tx) = self.txs.get(&number) else { return Ok(()) };
        let (id, owner) = (tx.id, tx.owner);
        let mut info = Info::new_zeroed();
        info.id = if next { id - 1 } else { id };
        info.flags = if next { control::INFO_NEXT } else { 0 };
        let reply = self.on_own_channel(by, control::IOC_INFO, info.as_bytes());
        if reply.is_ok() && by.user != ROOT {
            let info = Info::read_from_bytes(&reply.bytes).unwrap();
            if info.uid != USERS[by.user].uid {
                return violation(format!("{by} was shown transaction {} of {owner}", info.id));
            }
        }
        Ok(())
    }

    fn on_own_channel(&mut self, by: Actor, command: u32, argument: &[u8]) -> Reply {
        let mount = self.mount.to_str().unwrap().to_owned();
        self.on(by, X, &mount, &Call::new(What::OpenChannel, ".xact").slot(SCRATCH));
        let reply = self.ioctl(by, SCRATCH, command, argument);
        self.on(by, X, "", &Call::on(What::Close, SCRATCH));
        reply
    }

    /// A list of changes, or the errno that ended it.
    fn list(&mut self, who: Actor, slot: u64, id: u64, by_file: bool) -> Result<Vec<Listed>, i32> {
        let command = if by_file { control::IOC_DIFF_BY_FILE } else { control::IOC_DIFF };
        let mut diff = Diff::new_zeroed();
        diff.id = id;
        let mut listed = Vec::new();
        loop {
            let reply = self.ioctl(who, slot, command, diff.as_bytes());
            if !reply.is_ok() {
                return Err(reply.errno);
            }
            diff = Diff::read_from_bytes(&reply.bytes).unwrap();
            let mut data = &diff.data[..diff.len as usize];
            while !data.is_empty() {
                let (change, rest) = Change::read_from_prefix(data).unwrap();
                let (path, rest) = rest.split_at(change.path_len as usize);
                let from = &rest[..change.from_len as usize];
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let paths = [path, from].into_iter().filter(|path| !path.is_empty()).map(text).collect();
                listed.push(Listed { paths, sides: [change.old.ino, change.new.ino] });
                let len = size_of::<Change>() + path.len() + from.len();
                data = &data[len.next_multiple_of(8).min(data.len())..];
            }
            if diff.done != 0 {
                return Ok(listed);
            }
        }
    }

    fn diff(&mut self, by: Actor, number: usize, by_file: bool, passed: bool, again: bool) -> Outcome {
        let Some(tx) = self.txs.get(&number) else { return Ok(()) };
        if passed && !tx.passed.contains(&by) || !passed && by == tx.owner && tx.channel.is_none() {
            return Ok(());
        }
        let (owner, id) = (tx.owner, tx.id);
        let slot = match passed {
            true => PASSED + number as u64,
            false if by == owner => tx.channel.expect("looked at above"),
            false => SCRATCH,
        };
        if slot == SCRATCH {
            let mount = self.mount.to_str().unwrap().to_owned();
            self.on(by, X, &mount, &Call::new(What::OpenChannel, ".xact").slot(SCRATCH));
        }
        let listed = self.list(by, slot, if again { 0 } else { id }, by_file);
        if slot == SCRATCH {
            self.on(by, X, "", &Call::on(What::Close, SCRATCH));
        }
        let said =
            listed.as_ref().map(|listed| listed.iter().map(|c| c.paths.join(" from ")).collect::<Vec<_>>());
        self.note(|| format!("    {said:?}"));
        // A process with the channel has the transaction, and the list that its user has made on it.
        if passed && again {
            return Ok(());
        }
        self.judge_names(by, number, &listed.unwrap_or_default())
    }

    /// Every path is one that the user gets at.
    fn judge_names(&mut self, by: Actor, number: usize, listed: &[Listed]) -> Outcome {
        self.counts.lists += u64::from(!listed.is_empty());
        if by.user == ROOT {
            return Ok(());
        }
        let prefix = format!("/{}/", self.name);
        let mut asked: BTreeSet<String> = BTreeSet::new();
        for path in listed.iter().flat_map(|change| &change.paths) {
            let Some(path) = path.strip_prefix(&prefix) else {
                // The folder itself, whose times have changed.
                if *path == prefix[..prefix.len() - 1] || path == "/" {
                    continue;
                }
                return violation(format!("{by} was shown {path}, where the transaction never was"));
            };
            asked.insert(path.to_owned());
        }
        let tx = &self.txs[&number];
        if tx.owner.user == by.user {
            let made: BTreeSet<&str> = tx.changes().flat_map(Call::paths).collect();
            asked.retain(|path| !tx.visible.contains(path) && !made.contains(path.as_str()));
        }
        if asked.is_empty() {
            return Ok(());
        }
        let with_folders = |asked: &BTreeSet<String>| {
            let folders =
                asked.iter().filter_map(|path| path.rsplit_once('/')).map(|(dir, _)| dir.to_owned());
            folders.chain(asked.iter().cloned()).collect::<Vec<_>>()
        };
        let (id, owner) = (tx.id, tx.owner);
        let kernel = self.roots[1].clone();
        let outside = self.probe(by, K, Some((&kernel, with_folders(&asked))));
        asked.retain(|path| !outside.contains(path));
        if !asked.is_empty() && owner.user == by.user {
            let view = self.view(id);
            let inside = self.probe(by, X, Some((&view, with_folders(&asked))));
            asked.retain(|path| !inside.contains(path));
        }
        match asked.first() {
            None => Ok(()),
            Some(path) => violation(format!("{by} was shown {path}, which it cannot look up nor list")),
        }
    }

    fn read_sides(&mut self, by: Actor, number: usize, by_file: bool) -> Outcome {
        let Some(tx) = self.txs.get(&number) else { return Ok(()) };
        let (id, owner) = (tx.id, tx.owner);
        let mount = self.mount.to_str().unwrap().to_owned();
        self.on(by, X, &mount, &Call::new(What::OpenChannel, ".xact").slot(SCRATCH));
        let listed = self.list(by, SCRATCH, id, by_file).unwrap_or_default();
        let mut sides = Vec::new();
        for change in &listed {
            for (new, ino) in (0..).zip(change.sides).filter(|(_, ino)| *ino != 0) {
                let reply = self.read_side(by, SCRATCH, id, ino, new);
                sides.push((change.paths.join(" from "), reply));
            }
        }
        self.on(by, X, "", &Call::on(What::Close, SCRATCH));
        self.judge_names(by, number, &listed)?;
        for (path, reply) in sides {
            self.note(|| format!("    {path}: {reply}"));
            let what = format!("reading a side of {path} in transaction {number} of {owner}");
            self.judge_contents(by, Some(number), &reply.bytes, &what)?;
        }
        Ok(())
    }

    fn read_number(&mut self, by: Actor, number: usize, path: &str, of_view: bool, new: bool) -> Outcome {
        use std::os::unix::fs::MetadataExt;
        let Some(tx) = self.txs.get(&number) else { return Ok(()) };
        let id = tx.id;
        let root = if of_view { self.view(id) } else { self.roots[0].clone() };
        let Ok(meta) = std::fs::symlink_metadata(format!("{root}/{path}")) else { return Ok(()) };
        let mount = self.mount.to_str().unwrap().to_owned();
        self.on(by, X, &mount, &Call::new(What::OpenChannel, ".xact").slot(SCRATCH));
        let reply = self.read_side(by, SCRATCH, id, meta.ino(), new.into());
        self.on(by, X, "", &Call::on(What::Close, SCRATCH));
        self.note(|| format!("    {reply}"));
        // Only of what the channel was shown, says the interface.
        match reply.is_ok() {
            true => violation(format!("{by} has read {path} by its number in transaction {number}: {reply}")),
            false => Ok(()),
        }
    }

    /// The first page of a side, on a channel.
    fn read_side(&mut self, by: Actor, slot: u64, id: u64, ino: u64, side: u32) -> Reply {
        let mut read = ReadSide::new_zeroed();
        (read.id, read.ino, read.side) = (id, ino, side);
        let reply = self.ioctl(by, slot, control::IOC_READ, read.as_bytes());
        if !reply.is_ok() {
            return Reply { bytes: Vec::new(), ..reply };
        }
        self.counts.reads += 1;
        let read = ReadSide::read_from_bytes(&reply.bytes).unwrap();
        Reply { errno: 0, bytes: read.data[..read.len as usize].to_vec() }
    }

    /// Every tag is of something that the user can read.
    fn judge_contents(&mut self, by: Actor, number: Option<usize>, bytes: &[u8], what: &str) -> Outcome {
        if by.user == ROOT {
            return Ok(());
        }
        let tags = tag::all(bytes);
        let unknown = |world: &World| tags.iter().find(|tag| !world.known[by.user].contains(tag)).copied();
        if unknown(self).is_none() {
            return Ok(());
        }
        self.probe(by, K, None);
        if unknown(self).is_some()
            && let Some(tx) = number.and_then(|number| self.txs.get(&number))
            && tx.owner.user == by.user
        {
            let made = tx.changes().flat_map(Call::paths).map(str::to_owned);
            let mut paths: BTreeSet<String> = tx.visible.iter().cloned().chain(made).collect();
            paths.extend(tree::paths(Path::new(&self.roots[1])));
            let view = self.view(tx.id);
            self.probe(by, X, Some((&view, paths.into_iter().collect())));
        }
        match unknown(self) {
            None => Ok(()),
            Some(tag) => {
                violation(format!("{what}, {by} has obtained {}, which he cannot read", tag::text(tag)))
            }
        }
    }

    /// Whether something was written.
    fn write_in_section(&mut self, by: Actor, page: u64, tag: u64) -> bool {
        if !self.sections.contains_key(&by) {
            return false;
        }
        let (offset, bytes) = (page * 4096, tag::atomic_contents(tag, 4096));
        let write = Call::on(What::WriteAt, SECTION).number(offset).bytes(bytes.clone());
        let reply = self.on(by, X, "", &write);
        self.note(|| format!("    {reply}"));
        if by.user != ROOT {
            self.known[by.user].insert(tag);
        }
        if reply.is_ok() {
            self.sections.get_mut(&by).expect("it is open").writes.push((offset, bytes));
        }
        reply.is_ok()
    }

    /// The store may be lost (docs/SECURITY.md), as the kernel copies what is written over it. But what is not
    /// committed is not seen.
    fn store_under(&mut self, by: Actor, offset: u64, tag: u64, section: Actor, written: u64) -> Outcome {
        if by == section || !self.mapped.contains(&by) || !self.sections.contains_key(&section) {
            return Ok(());
        }
        let store = Call::on(What::Store, MAPPED).numbers([offset, 1, 0]).bytes(tag::text(tag).into_bytes());
        let reply = self.on_both(by, &store);
        self.same(by, &store, &reply)?;
        if by.user != ROOT {
            self.known[by.user].insert(tag);
        }
        let wrote = self.write_in_section(section, offset / 4096, written);
        // What is dirty goes to the daemon.
        let sync = Call::on(What::Store, MAPPED).numbers([0, 0, 0]);
        let reply = self.on_both(by, &sync);
        self.same(by, &sync, &reply)?;
        if !wrote {
            // The kernel has copied what is refused to the page, which the store made dirty (docs/SECURITY.md).
            self.adjust();
            return Ok(());
        }
        let ours = tree::read(Path::new(&self.roots[0])).unwrap();
        if let Some(path) = tree::path_with(&ours, written) {
            return violation(format!(
                "what {section} has written atomically, and not committed, is seen by all in {path}"
            ));
        }
        self.adjust();
        Ok(())
    }

    fn end_section(&mut self, by: Actor, commit: bool) -> Outcome {
        let Some(section) = self.sections.remove(&by) else { return Ok(()) };
        let command = if commit { crate::COMMIT_ATOMIC } else { crate::ABORT_ATOMIC };
        let reply = self.ioctl(by, SECTION, command, &[]);
        self.note(|| format!("    {reply}"));
        if commit && reply.is_ok() {
            for (offset, bytes) in &section.writes {
                let write = Call::on(What::WriteAt, SECTION).number(*offset).bytes(bytes.clone());
                let again = self.on(by, K, "", &write);
                if !again.is_ok() {
                    return violation(format!(
                        "{by} has committed an atomic write of {}, which the kernel's ext4 refuses: {again}",
                        section.path
                    ));
                }
            }
        }
        self.on_both(by, &Call::on(What::Close, SECTION));
        self.compare("after an atomic write")
    }
}

/// The reply to a commit, as people read it.
fn said_of(reply: &Reply) -> String {
    let commit = Commit::read_from_bytes(&reply.bytes).unwrap_or_else(|_| Commit::new_zeroed());
    let text = |bytes: &[u8], len: u32| String::from_utf8_lossy(&bytes[..len as usize]).into_owned();
    let errno = Reply { bytes: Vec::new(), ..reply.clone() };
    format!("{errno} {} {}", text(&commit.path, commit.path_len), text(&commit.why, commit.why_len))
}
