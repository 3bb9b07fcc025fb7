//! Information, lists of changes and their sides: what they may show to a user.

use super::*;

impl World {
    pub(super) fn info(&mut self, by: Actor, number: usize, next: bool) -> Outcome {
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

    pub(super) fn on_own_channel(&mut self, by: Actor, command: u32, argument: &[u8]) -> Reply {
        let mount = self.mount.to_str().unwrap().to_owned();
        self.on(by, X, &mount, &Call::new(What::OpenChannel, ".xact").slot(SCRATCH));
        let reply = self.ioctl(by, SCRATCH, command, argument);
        self.on(by, X, "", &Call::on(What::Close, SCRATCH));
        reply
    }

    /// A list of changes, or the errno that ended it.
    pub(super) fn list(&mut self, who: Actor, slot: u64, id: u64, by_file: bool) -> Result<Vec<Listed>, i32> {
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

    pub(super) fn diff(
        &mut self,
        by: Actor,
        number: usize,
        by_file: bool,
        passed: bool,
        again: bool,
    ) -> Outcome {
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
        // A process with the channel has the transaction, and the list that its user has made on
        // it.
        if passed && again {
            return Ok(());
        }
        self.judge_names(by, number, &listed.unwrap_or_default())
    }

    /// Checks that the user can reach every path.
    pub(super) fn judge_names(&mut self, by: Actor, number: usize, listed: &[Listed]) -> Outcome {
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

    pub(super) fn read_sides(&mut self, by: Actor, number: usize, by_file: bool) -> Outcome {
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

    pub(super) fn read_number(
        &mut self,
        by: Actor,
        number: usize,
        path: &str,
        of_view: bool,
        new: bool,
    ) -> Outcome {
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
        // The interface: only inodes that the channel was shown.
        match reply.is_ok() {
            true => violation(format!("{by} has read {path} by its number in transaction {number}: {reply}")),
            false => Ok(()),
        }
    }

    /// The first page of a side, on a channel.
    pub(super) fn read_side(&mut self, by: Actor, slot: u64, id: u64, ino: u64, side: u32) -> Reply {
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

    /// Checks that every tag belongs to something that the user can read.
    pub(super) fn judge_contents(
        &mut self,
        by: Actor,
        number: Option<usize>,
        bytes: &[u8],
        what: &str,
    ) -> Outcome {
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
                violation(format!("{what}, {by} has obtained {}, which it cannot read", tag::text(tag)))
            }
        }
    }
}
