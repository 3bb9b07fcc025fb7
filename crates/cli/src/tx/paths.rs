//! Paths on the command line, as paths from the volume's root.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::exit::{Failure, Result};
use crate::mounts::Mount;

/// Each path from the volume's root. A path on the mount may be absolute or relative to the current
/// folder; any other path is taken from the volume's root, as in a diff. Nothing is looked up: the
/// path may exist in the transaction only.
pub fn on_volume(paths: &[PathBuf], mount: &Mount) -> Result<Vec<Vec<u8>>> {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    paths.iter().map(|path| from_root(path, &mount.point, &here)).collect()
}

fn from_root(path: &Path, point: &Path, here: &Path) -> Result<Vec<u8>> {
    let full = plain(&here.join(path));
    let inside = match full.strip_prefix(point) {
        Ok(inside) => inside.to_path_buf(),
        Err(_) => plain(&Path::new("/").join(path)),
    };
    let bytes = inside.as_os_str().as_bytes();
    let bytes = bytes.strip_prefix(b"/").unwrap_or(bytes);
    if bytes.contains(&0) {
        return Err(Failure::usage(format!("invalid path {}: contains a zero byte", path.display())));
    }
    Ok([b"/", bytes].concat())
}

/// Without `.` and `..`.
fn plain(full: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in full.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_on_the_mount_or_from_the_root() {
        let root = |path: &str, here: Option<&str>| {
            let here = Path::new(here.unwrap_or("/home"));
            let found = from_root(Path::new(path), Path::new("/mnt/v"), here).unwrap();
            String::from_utf8(found).unwrap()
        };
        assert_eq!(root("/mnt/v/a/b", None), "/a/b");
        assert_eq!(root("/a/b/", None), "/a/b");
        assert_eq!(root("a/./b", None), "/a/b");
        assert_eq!(root("b", Some("/mnt/v/a")), "/a/b");
        assert_eq!(root("../b", Some("/mnt/v/a")), "/b");
        assert_eq!(root("v/b", Some("/mnt")), "/b");
        assert_eq!(root("/mnt/v", None), "/");
        assert_eq!(root(".", Some("/mnt/v")), "/");
        assert_eq!(root("/mnt/value", None), "/mnt/value");
    }
}
