//! Transactions: their calls, ends and savepoints, and the checks of a commit.

use super::*;

impl World {
    pub(super) fn channel(&self, tx: usize) -> Option<(Actor, u64)> {
        self.txs.get(&tx).and_then(|tx| Some((tx.owner, tx.channel?)))
    }

    pub(super) fn begin(&mut self, by: Actor, number: usize, snapshot: bool) -> Outcome {
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

    /// Paths that a user can reach, on the kernel's ext4 or in a view. The user knows all that it
    /// can read there from then on. Without paths: all that exist.
    pub(super) fn probe(
        &mut self,
        who: Actor,
        side: u64,
        paths: Option<(&str, Vec<String>)>,
    ) -> BTreeSet<String> {
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

    pub(super) fn end_tx(&mut self, number: usize) -> Option<Tx> {
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
    pub(super) fn left(&mut self, number: usize) {
        let Some(tx) = self.txs.get_mut(&number) else { return };
        tx.channel = None;
        // A process that received it holds the channel open.
        let (kept, passed) = (tx.kept, std::mem::take(&mut tx.passed));
        for who in passed {
            self.on(who, X, "", &Call::on(What::Close, PASSED + number as u64));
        }
        if !kept {
            self.txs.remove(&number);
        }
    }

    pub(super) fn commit(&mut self, number: usize, flags: u32) -> Outcome {
        let Some((who, slot)) = self.channel(number) else { return Ok(()) };
        let selected = self.txs[&number].selected;
        let part = flags & control::COMMIT_ONLY != 0 && selected;
        let flags = if selected { flags } else { flags & !control::COMMIT_ONLY };
        // A transaction without net effect commits, whatever others do.
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
    pub(super) fn is_moved(&self, tx: &Tx) -> bool {
        let mut paths = tx.changes().flat_map(Call::paths);
        paths.any(|path| {
            let above = |name: &String| {
                path.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            self.renamed[tx.begun_at..].iter().any(above)
        })
    }

    pub(super) fn attach(&mut self, by: Actor, number: usize) -> Outcome {
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

    pub(super) fn savepoint(&mut self, number: usize, what: Savepoint, nth: usize) -> Outcome {
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

    pub(super) fn call_savepoint(&mut self, who: Actor, slot: u64, what: Savepoint, number: u64) -> Reply {
        let command = match what {
            Savepoint::Make => control::IOC_SAVEPOINT,
            Savepoint::RollBack => control::IOC_ROLLBACK,
            Savepoint::Release => control::IOC_RELEASE,
        };
        self.ioctl(who, slot, command, control::Savepoint { number }.as_bytes())
    }

    /// Notes a savepoint call of the transaction's user.
    pub(super) fn note_savepoint(
        &mut self,
        number: usize,
        who: Actor,
        what: Savepoint,
        savepoint: u64,
        reply: &Reply,
    ) {
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

    /// Uses a view's descriptor. If another user than the transaction's own does so, nothing may
    /// change, so it is not noted.
    pub(super) fn foreign_savepoint(&mut self, by: Actor, what: Savepoint, number: u64) -> Outcome {
        let Some(&tx) = self.foreign.get(&by) else { return Ok(()) };
        let reply = self.call_savepoint(by, FOREIGN, what, number);
        self.note(|| format!("    {reply}"));
        let may = self.txs.get(&tx).is_some_and(|tx| tx.owner.user == by.user || by.user == ROOT);
        if reply.is_ok() && may {
            self.note_savepoint(tx, by, what, number, &reply);
        }
        Ok(())
    }

    pub(super) fn kill(&mut self, who: Actor) -> Outcome {
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
}
