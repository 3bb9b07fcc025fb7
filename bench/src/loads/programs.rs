//! Real programs: tar, PostMark, dbench, and `xact run` itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::{Bench, Rated, because};
use crate::system::Server;
use crate::volume::{Result, run};

/// A tree of sources, extracted; then made durable.
pub fn untar(bench: &mut Bench<'_, '_>) -> Result<()> {
    let (archive, files) = source_archive(bench.supplies)?;
    bench.phase("untar sources", "file", files as f64, |mount| {
        run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(mount.dir()))?;
        mount.settle()
    })
}

/// An archive of some 3000 header files of this machine, made once.
fn source_archive(supplies: &Path) -> Result<(PathBuf, usize)> {
    const FILES: usize = 3000;
    let archive = supplies.join("sources.tar");
    let list = supplies.join("sources.txt");
    if !archive.exists() {
        let found = run(Command::new("find").args(["/usr/include", "-type", "f", "-size", "-256k"]))?;
        let mut names: Vec<&str> = found.lines().collect();
        names.sort_unstable();
        names.truncate(FILES);
        if names.len() < FILES / 2 {
            return Err("too few files in /usr/include to make an archive of".to_owned());
        }
        fs::write(&list, names.join("\n")).map_err(because("list of sources"))?;
        run(Command::new("tar").arg("-cPf").arg(&archive).arg("--transform=s,^/,,").arg("-T").arg(&list))?;
    }
    let files = fs::read_to_string(&list).map_err(because("list of sources"))?.lines().count();
    Ok((archive, files))
}

/// PostMark's settings.
#[derive(Debug, Clone, Copy)]
pub struct PostMark {
    pub files: u64,
    pub transactions: u64,
    pub folders: u64,
    /// Files are from 500 bytes to this.
    pub largest_bytes: u64,
}

pub fn postmark(bench: &mut Bench<'_, '_>) -> Result<()> {
    let (files, transactions) = (bench.count(5000), bench.count(20_000));
    postmark_of(bench, PostMark { files, transactions, folders: 50, largest_bytes: 10_000 })
}

pub fn postmark_of(bench: &mut Bench<'_, '_>, what: PostMark) -> Result<()> {
    postmark_named(bench, "PostMark".to_owned(), what)
}

pub fn postmark_named(bench: &mut Bench<'_, '_>, phase: String, what: PostMark) -> Result<()> {
    let config = what.configuration(bench.mount.dir(), bench.supplies)?;
    bench.phase(phase, "op", what.operations(), |_| run(Command::new("postmark").arg(&config)).map(drop))
}

impl PostMark {
    /// Files that exist at the start, and transactions.
    pub fn operations(&self) -> f64 {
        (self.files + self.transactions) as f64
    }

    /// Writes a configuration with which PostMark does this in `dir`.
    pub fn configuration(&self, dir: &Path, supplies: &Path) -> Result<PathBuf> {
        let PostMark { files, transactions, folders, largest_bytes } = self;
        let config = supplies.join("postmark.cfg");
        let location = dir.display();
        let text = format!(
            "set location {location}\nset number {files}\nset transactions {transactions}\n\
             set subdirectories {folders}\nset size 500 {largest_bytes}\nset seed 42\nrun\nquit\n"
        );
        fs::write(&config, text).map_err(because("PostMark's configuration"))?;
        Ok(config)
    }
}

/// dbench's own throughput, with 1 and with 4 clients.
pub fn dbench(bench: &mut Bench<'_, '_>) -> Result<()> {
    dbench_of(bench, &[1, 4])
}

pub fn dbench_of(bench: &mut Bench<'_, '_>, clients: &[u32]) -> Result<()> {
    let seconds = bench.count(20).max(3);
    for &clients in clients {
        bench.phase_with_rate(dbench_phase(clients), "MB", |mount| {
            dbench_for(mount.dir(), clients, seconds)
        })?;
    }
    Ok(())
}

pub fn dbench_phase(clients: u32) -> String {
    format!("dbench, {clients} client{}", if clients == 1 { "" } else { "s" })
}

/// Runs dbench, which measures for this number of seconds.
pub fn dbench_for(dir: &Path, clients: u32, seconds: u64) -> Result<Rated> {
    let mut command = Command::new("dbench");
    command.args(["-c", "/usr/share/dbench/client.txt", "-t", &seconds.to_string(), "-D"]);
    command.arg(dir).arg(clients.to_string());
    let started = Instant::now();
    let output = run(&mut command)?;
    let line = output.lines().find_map(|l| l.strip_prefix("Throughput "));
    let rate: Option<f64> = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    let rate = rate.ok_or_else(|| format!("dbench says no throughput: {output}"))?;
    // Its own clock starts when its files exist, a moment after ours.
    Ok(Rated { rate, units: rate * started.elapsed().as_secs_f64() })
}

/// One small file written by a program and durable at its end: by `xact run`, or by the program's
/// own fsync on systems without transactions.
pub fn commit(bench: &mut Bench<'_, '_>) -> Result<()> {
    let count = bench.count(200);
    bench.phase("a command, durable", "run", count as f64, |mount| {
        for n in 0..count {
            let file = mount.dir().join(format!("result-{n}"));
            let mut command;
            if mount.system().server == Server::Xact {
                let script = "echo done | dd of=\"$0\" status=none";
                command = Command::new(mount.xact());
                command.args(["run", "--at"]).arg(mount.dir()).args(["--", "sh", "-c", script]).arg(&file);
            } else {
                let script = "echo done | dd of=\"$0\" status=none conv=fsync";
                command = Command::new("sh");
                command.args(["-c", script]).arg(&file);
            }
            let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
            if !status.map_err(because("sh"))?.success() {
                return Err(format!("{command:?} failed"));
            }
        }
        Ok(())
    })
}
