//! Commits of Git.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Mode;
use crate::loads::{Bench, because};
use crate::volume::{Result, run};

/// A phase, the files that Git syncs in it, and how `xact run` commits: with the same durability on
/// both sides.
pub(super) const GIT_PHASES: [(&str, &str, &[&str]); 2] =
    [("git commit", "core.fsync=none", &["--ordered"]), ("git commit, durable", "core.fsync=all", &[])];

/// A Git repository on a mount.
pub(super) struct Repository {
    path: PathBuf,
    shown: String,
}

impl Repository {
    pub fn new(path: PathBuf) -> Result<Repository> {
        run(Command::new("git").args(["init", "-q"]).arg(&path))?;
        let shown = path.display().to_string();
        Ok(Repository { path, shown })
    }

    fn git(&self, syncs: &str, arguments: &[&str]) -> Command {
        let settings = ["safe.directory=*", "user.name=xact", "user.email=xact@example.org", syncs];
        let mut command = Command::new("git");
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").args(settings.iter().flat_map(|set| ["-c", set]));
        command.args(["-C", &self.shown]).args(arguments);
        command
    }

    pub fn change_and_commit(
        &self,
        mode: Mode,
        (xact, dir): (&Path, &Path),
        (phase, syncs, how): (&str, &str, &[&str]),
        n: u64,
    ) -> Result<()> {
        fs::write(self.path.join("file"), format!("{phase} {n}")).map_err(because("write"))?;
        run(&mut self.git(syncs, &["add", "file"]))?;
        let mut commit = self.git(syncs, &["commit", "-q", "-m", "commit"]);
        if mode == Mode::Plain {
            return run(&mut commit).map(drop);
        }
        let mut wrapped = Command::new(xact);
        wrapped.args(["run", "--at"]).arg(dir).args(how).arg("--");
        wrapped.arg(commit.get_program()).args(commit.get_args());
        run(wrapped.env("GIT_CONFIG_GLOBAL", "/dev/null")).map(drop)
    }
}

pub(super) fn git(bench: &mut Bench<'_, '_>) -> Result<()> {
    let mode = Mode::of(bench.mount.system());
    let commits = bench.count(50);
    let repository = Repository::new(bench.mount.dir().join("repository"))?;
    for case in GIT_PHASES {
        bench.phase(case.0, "op", commits as f64, |mount| {
            let at = (mount.xact(), mount.dir());
            (0..commits).try_for_each(|n| repository.change_and_commit(mode, at, case, n))
        })?;
    }
    Ok(())
}
