//! The operations that sequences are made of, each with its preconditions.

use xact_fs::RenameHow;

use crate::model::{Content, Op, State, stamp};

/// A precondition of an operation.
#[derive(Debug, Clone)]
enum Need {
    /// A file with some contents exists.
    File(&'static str),
    Folder(&'static str),
    Attribute(&'static str),
    /// The name does not exist.
    Gone(&'static str),
}

/// An operation and its preconditions.
#[derive(Debug, Clone)]
pub struct Letter {
    pub op: Op,
    needs: Vec<Need>,
}

/// FileOps that operations change, and names that they create.
const FILES: [&str; 2] = ["/foo", "/A/foo"];
const NAMES: [&str; 2] = ["/bar", "/A/bar"];
/// Size of a file of a precondition: not a whole number of blocks.
pub const FILE_BYTES: u64 = 3000;
const ATTRIBUTE: &str = "user.x";

/// All operations: CrashMonkey's, and those that only this file system has (exchange, data through
/// the journal, transactions). CrashMonkey's writes past the page cache and through mappings are
/// plain writes here.
pub fn letters() -> Vec<Letter> {
    let mut all = Alphabet(Vec::new());
    all.names();
    for path in FILES {
        all.inside(path);
    }
    all.transactions();
    all.0
}

struct Alphabet(Vec<Letter>);

impl Alphabet {
    fn add(&mut self, op: Op, needs: &[Need]) {
        self.0.push(Letter { op, needs: needs.to_vec() });
    }

    fn names(&mut self) {
        use Need::{File, Folder, Gone};
        for path in FILES {
            self.add(Op::Create { path: path.into(), perm: 0o644 }, &[Gone(path)]);
            self.add(Op::Unlink { path: path.into() }, &[File(path)]);
        }
        for path in ["/B", "/A/C"] {
            self.add(Op::Mkdir { path: path.into(), perm: 0o755 }, &[Gone(path)]);
            self.add(Op::Rmdir { path: path.into() }, &[Folder(path)]);
        }
        for name in NAMES {
            self.add(Op::Symlink { path: name.into(), target: "foo".into() }, &[Gone(name)]);
            for file in FILES {
                self.add(Op::Link { from: file.into(), to: name.into() }, &[File(file), Gone(name)]);
                let rename = |how| Op::Rename { from: file.into(), to: name.into(), how };
                self.add(rename(RenameHow::NoReplace), &[File(file), Gone(name)]);
                self.add(rename(RenameHow::Replace), &[File(file), File(name)]);
            }
        }
        let rename = |from: &str, to: &str, how| Op::Rename { from: from.into(), to: to.into(), how };
        self.add(rename("/foo", "/A/bar", RenameHow::Exchange), &[File("/foo"), File("/A/bar")]);
        self.add(rename("/A", "/B", RenameHow::NoReplace), &[File("/A/foo"), Gone("/B")]);
        self.add(rename("/A", "/B", RenameHow::Replace), &[File("/A/foo"), Folder("/B")]);
    }

    fn inside(&mut self, file: &'static str) {
        use Need::{Attribute, File};
        let path = || file.to_owned();
        // Append, within a block, whole blocks, across the end, behind a hole.
        for (offset, len) in
            [(FILE_BYTES, 900), (100, 500), (1024, 1024), (FILE_BYTES - 500, 1500), (FILE_BYTES + 4000, 1000)]
        {
            self.add(Op::Write { path: path(), offset, len, generation: 0 }, &[File(file)]);
        }
        for size in [0, 1024, 1500, FILE_BYTES + 2000] {
            self.add(Op::Truncate { path: path(), size }, &[File(file)]);
        }
        for (offset, len) in [(500, 400), (700, 1500)] {
            self.add(Op::Punch { path: path(), offset, len }, &[File(file)]);
        }
        for keep_size in [false, true] {
            let (offset, len) = (FILE_BYTES - 200, 3000);
            self.add(Op::Reserve { path: path(), offset, len, keep_size }, &[File(file)]);
            self.add(Op::ZeroRange { path: path(), offset: 700, len: 4000, keep_size }, &[File(file)]);
        }
        for len in [8, 400] {
            let value = stamp::bytes(0, len as u32, 0, len);
            self.add(Op::SetXattr { path: path(), name: ATTRIBUTE.into(), value }, &[File(file)]);
        }
        self.add(Op::RemoveXattr { path: path(), name: ATTRIBUTE.into() }, &[File(file), Attribute(file)]);
        self.add(Op::Journal { path: path(), on: true }, &[File(file)]);
    }

    /// Transactions that change both data and names.
    fn transactions(&mut self) {
        for durable in [true, false] {
            let write =
                |path: &str, offset| Op::Write { path: path.into(), offset, len: 1500, generation: 0 };
            let rename = Op::Rename { from: "/foo".into(), to: "/A/bar".into(), how: RenameHow::Replace };
            let ops = vec![write("/foo", 500), write("/A/foo", FILE_BYTES), rename];
            self.add(Op::Commit { ops, durable }, &[Need::File("/foo"), Need::File("/A/foo")]);
        }
    }
}

/// Builds a sequence, with the operations that establish the preconditions.
pub struct Writer {
    state: State,
    generation: u32,
    pub ops: Vec<Op>,
}

impl Writer {
    pub fn new(state: State) -> Writer {
        Writer { state, generation: 0, ops: Vec::new() }
    }

    /// Adds an operation; false if it cannot be done.
    pub fn push(&mut self, mut op: Op) -> bool {
        self.number_writes(&mut op);
        if self.state.apply(&op).is_err() {
            return false;
        }
        self.ops.push(op);
        true
    }

    /// Each write has a number of its own, which identifies its bytes.
    fn number_writes(&mut self, op: &mut Op) {
        match op {
            Op::Write { generation, .. } => {
                self.generation += 1;
                *generation = self.generation;
            }
            Op::Commit { ops, .. } => ops.iter_mut().for_each(|op| self.number_writes(op)),
            _ => {}
        }
    }

    /// Establishes the preconditions of `letter`; false if a name exists that must not.
    pub fn prepare(&mut self, letter: &Letter) -> bool {
        letter.needs.iter().all(|need| match *need {
            Need::Gone(path) => self.state.resolve(path).is_err() && self.folder(parent(path)),
            Need::Folder(path) => self.folder(path),
            Need::File(path) => self.file(path),
            Need::Attribute(path) => {
                let op = Op::SetXattr { path: path.into(), name: ATTRIBUTE.into(), value: vec![1; 8] };
                self.push(op)
            }
        })
    }

    fn folder(&mut self, path: &str) -> bool {
        path.is_empty()
            || self.state.resolve(path).is_ok()
            || (self.folder(parent(path)) && self.push(Op::Mkdir { path: path.into(), perm: 0o755 }))
    }

    fn file(&mut self, path: &str) -> bool {
        if self.state.resolve(path).is_ok() {
            return true;
        }
        let write = Op::Write { path: path.into(), offset: 0, len: FILE_BYTES, generation: 0 };
        self.folder(parent(path))
            && self.push(Op::Create { path: path.into(), perm: 0o644 })
            && self.push(write)
    }

    /// The ways to make the changes of `op`, the last operation, durable: sync, and fsync and
    /// fdatasync of every file that it names and of their folders.
    pub fn syncs(&self, op: &Op) -> Vec<Op> {
        let mut paths = Vec::new();
        collect_paths(op, &mut paths);
        let parents: Vec<String> = paths.iter().map(|path| parent(path).to_owned()).collect();
        paths.extend(parents);
        paths.sort();
        paths.dedup();
        let mut out = vec![Op::Sync];
        for path in paths {
            let shown = if path.is_empty() { "/".to_owned() } else { path.clone() };
            let Ok(id) = self.state.resolve(&path) else { continue };
            match self.state.node(id).map(|node| &node.content) {
                Some(Content::File(_)) => {
                    out.push(Op::Fsync { path: shown.clone() });
                    out.push(Op::Fdatasync { path: shown });
                }
                Some(Content::Dir(_)) => out.push(Op::Fsync { path: shown }),
                _ => {}
            }
        }
        out
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn collect_paths(op: &Op, out: &mut Vec<String>) {
    match op {
        Op::Link { from, to } | Op::Rename { from, to, .. } => out.extend([from.clone(), to.clone()]),
        Op::Commit { ops, .. } => ops.iter().for_each(|op| collect_paths(op, out)),
        op => out.extend(op.path().map(str::to_owned)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_can_be_done_on_an_empty_volume() {
        for letter in letters() {
            let mut writer = Writer::new(State::new(2));
            assert!(writer.prepare(&letter) && writer.push(letter.op.clone()), "{}", letter.op);
            assert!(writer.syncs(&letter.op).len() > 1, "{}", letter.op);
        }
    }
}
