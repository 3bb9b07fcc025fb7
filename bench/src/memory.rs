//! Limits the kernel's cache memory of a load: a control group around the load.

use std::fs;
use std::path::{Path, PathBuf};

use crate::loads::because;
use crate::volume::Result;

/// This process and what it starts are in a control group of limited memory until this is dropped.
pub struct MemoryLimit {
    group: PathBuf,
    /// The group that the process was in.
    before: PathBuf,
}

const IN_VERSION_1: &str = "memory.limit_in_bytes";

/// The memory controller and its file for the limit, in either version of control groups.
fn controller() -> Result<(PathBuf, &'static str)> {
    let (v1, v2) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
    if v1.join(IN_VERSION_1).exists() {
        return Ok((v1.to_owned(), IN_VERSION_1));
    }
    let controllers = fs::read_to_string(v2.join("cgroup.subtree_control")).unwrap_or_default();
    if controllers.split_whitespace().any(|c| c == "memory") {
        return Ok((v2.to_owned(), "memory.max"));
    }
    Err("no control groups that limit memory: the kernel's file systems can't be measured so".to_owned())
}

fn current(root: &Path) -> Result<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").map_err(because("/proc/self/cgroup"))?;
    let of = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let controllers = fields.nth(1)?;
        let path = fields.next()?.trim_start_matches('/').to_owned();
        (controllers.is_empty() || controllers.split(',').any(|c| c == "memory"))
            .then_some((controllers.len(), path))
    };
    // Version 2 has one line without controllers, which counts only if there is no other.
    let found = text.lines().filter_map(of).max_by_key(|(named, _)| *named);
    found.map(|(_, path)| root.join(path)).ok_or_else(|| "this process is in no control group".to_owned())
}

fn enter(group: &Path) -> Result<()> {
    let procs = group.join("cgroup.procs");
    fs::write(&procs, std::process::id().to_string()).map_err(because(&procs.display().to_string()))
}

impl MemoryLimit {
    pub fn new(bytes: u64) -> Result<MemoryLimit> {
        let (root, file) = controller()?;
        let before = current(&root)?;
        let group = root.join("xact-bench");
        let shown = group.display().to_string();
        fs::create_dir_all(&group).map_err(because(&shown))?;
        fs::write(group.join(file), bytes.to_string()).map_err(because(&shown))?;
        if file == IN_VERSION_1 {
            // Inodes that wait to be written can't be evicted: the load's allocations then fail
            // instead of killing it.
            fs::write(group.join("memory.oom_control"), "1").map_err(because(&shown))?;
        }
        enter(&group)?;
        Ok(MemoryLimit { group, before })
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        if let Err(why) = enter(&self.before) {
            eprintln!("xact-bench stays in {}: {why}", self.group.display());
        }
        // The group cannot be removed while it owns pages.
        let _ = fs::remove_dir(&self.group);
    }
}
