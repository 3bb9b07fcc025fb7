//! Random histories: a tree of modes, owners, ACLs and flags, then calls of all users. Names are
//! few, so that calls collide. While a transaction is open, other users often remove a permission
//! on something that it has touched.

mod planted_tree;
mod random_call;
mod steps;

use std::collections::VecDeque;

use xact_fs::inode_ops::random::Rng;

use crate::ROOT;
use crate::step::{Actor, Step};
use crate::world::World;
use xact_control::abi as control;

/// Folders at the top: of each user, for all, of a group, of root, with setgid and sticky.
const TOPS: [&str; 8] = ["h0", "h1", "h2", "h3", "t", "g", "r", "w"];
/// `c` is unused at first.
const NAMES: [&str; 7] = ["a", "b", "d", "e", "a", "d", "c"];

pub const IMMUTABLE: u64 = 0x10;
pub const APPEND_ONLY: u64 = 0x20;

pub struct Generator {
    rng: Rng,
    pending: VecDeque<Step>,
    next_tag: u64,
    next_tx: usize,
    /// Hostile steps among twelve: those that remove permissions from an open transaction.
    hostile: u64,
    theme: Theme,
    /// Paths that exist.
    there: Vec<String>,
}

/// The kind of steps that are frequent in a history.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Theme {
    Mixed,
    Commits,
    Lists,
    Savepoints,
    Sections,
}

impl Generator {
    /// With the steps that a history begins with.
    pub fn new(seed: u64) -> (Generator, Vec<Step>) {
        let mut rng = Rng(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let themes = [Theme::Mixed, Theme::Commits, Theme::Lists, Theme::Savepoints, Theme::Sections];
        let theme = themes[rng.below(5) as usize];
        let hostile = if theme == Theme::Commits { 4 } else { rng.below(4) };
        let (pending, there) = Default::default();
        let mut generator = Generator { rng, pending, next_tag: 1, next_tx: 1, hostile, theme, there };
        let planted = generator.plant();
        (generator, planted)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.rng.below(end)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    fn user(&mut self) -> Actor {
        Actor::user(self.below(ROOT as u64) as usize)
    }

    fn anybody(&mut self) -> Actor {
        let user = self.below(ROOT as u64 + 1) as usize;
        Actor { user, mortal: user != ROOT && self.one_in(8) }
    }

    fn path(&mut self) -> String {
        if !self.there.is_empty() && !self.one_in(3) {
            let at = self.below(self.there.len() as u64) as usize;
            return self.there[at].clone();
        }
        let mut path = self.pick(&TOPS).to_owned();
        for _ in 0..self.below(3).max(self.rng.below(3)) {
            path = format!("{path}/{}", self.pick(&NAMES));
        }
        path
    }

    pub fn next(&mut self, world: &World) -> Step {
        loop {
            if let Some(step) = self.pending.pop_front() {
                return step;
            }
            self.think(world);
        }
    }

    fn think(&mut self, world: &World) {
        self.there = world.tree().keys().filter(|path| !path.is_empty()).cloned().collect();
        let open: Vec<usize> = world.open().collect();
        if open.is_empty() || open.len() < 4 && self.one_in(12) {
            let (by, snapshot) = (self.user(), !self.one_in(3));
            let by = if self.one_in(8) { Actor::mortal(by.user) } else { by };
            let tx = self.next_tx;
            self.next_tx += 1;
            self.pending.push_back(Step::Begin { by, tx, snapshot });
            return;
        }
        let tx = self.pick(&open);
        if self.below(12) < self.hostile && self.hostility(world, tx) {
            return;
        }
        if self.one_in(5) {
            match self.theme {
                Theme::Mixed => {}
                Theme::Commits => {
                    return self.pending.push_back(Step::Commit { tx, flags: control::COMMIT_ORDERED });
                }
                Theme::Lists => return self.look(world, tx),
                Theme::Savepoints => return self.savepoints(world, tx),
                Theme::Sections => return self.sections(world),
            }
        }
        match self.below(40) {
            0..14 => self.inside(world, tx),
            14..24 => {
                let (by, call) = (self.anybody(), self.random_call());
                self.pending.push_back(Step::Plain(by, call));
            }
            24..27 => {
                let flags = match self.below(8) {
                    0 => control::COMMIT_RETAIN,
                    1 => control::COMMIT_CONSOLIDATE,
                    2 => 0,
                    3 => control::COMMIT_ONLY,
                    _ => control::COMMIT_ORDERED,
                };
                self.pending.push_back(Step::Commit { tx, flags });
            }
            27 => {
                let end = if self.one_in(2) { Step::Abort { tx } } else { Step::Leave { tx } };
                self.pending.push_back(end);
            }
            28..30 => self.savepoints(world, tx),
            30..34 => self.look(world, tx),
            34..36 => self.sections(world),
            36 => self.mappings(),
            37 => self.keeping(world, tx),
            38 => {
                let (by, path) = (self.anybody(), self.path());
                let command = self.pick(&STRAY);
                let fill = self.pick(&[0, 0, 1, 3, 0xff]);
                // Commands that end transactions have no effect there. Commands that wait are not
                // tested here.
                self.pending.push_back(Step::Stray { by, path, command, fill });
            }
            _ => {
                if self.one_in(6) {
                    let user = self.below(ROOT as u64) as usize;
                    self.pending.push_back(Step::Kill { user });
                }
            }
        }
    }
}

const STRAY: [u32; 21] = [
    control::IOC_VERSION,
    control::IOC_BEGIN,
    control::IOC_COMMIT,
    control::IOC_ABORT,
    control::IOC_STATUS,
    control::IOC_SELECT,
    control::IOC_DROP,
    control::IOC_KEEP,
    control::IOC_ATTACH,
    control::IOC_INFO,
    control::IOC_DIFF,
    control::IOC_READ,
    control::IOC_SAVEPOINT,
    control::IOC_ROLLBACK,
    control::IOC_SNAPSHOT,
    control::IOC_SNAPSHOT_PATHS,
    control::IOC_SNAPSHOT_DIFF,
    control::IOC_COUNTERS,
    control::IOC_MODES,
    control::IOC_POOL,
    control::IOC_MOUNT,
];
