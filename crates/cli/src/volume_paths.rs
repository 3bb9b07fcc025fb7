//! Paths on the command line, as paths from the volume's root.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::exit::{Failure, Result};

/// Each path from the volume's root. A path on the mount may be absolute or relative to the current
/// folder; any other path is taken from the volume's root, as in a diff. Nothing is looked up: the
/// path may exist in the transaction only.
pub fn on_volume(paths: &[PathBuf], mount_point: &Path) -> Result<Vec<Vec<u8>>> {
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    paths.iter().map(|path| from_root(path, mount_point, &here)).collect()
}

/// As [`on_volume`], for paths of the state of the volume that the folder `tree` shows. An absolute
/// path that exists there is one from the root, even if it also leads to the mount.
pub fn on_volume_in(tree: &Path, paths: &[PathBuf], mount_point: &Path) -> Result<Vec<PathBuf>> {
    let find = |path: &PathBuf| match path.strip_prefix("/") {
        Ok(inside) if tree.join(inside).symlink_metadata().is_ok() => Ok(path.clone()),
        _ => {
            let found = on_volume(std::slice::from_ref(path), mount_point)?;
            Ok(found.into_iter().map(|path| OsString::from_vec(path).into()).next().unwrap_or_default())
        }
    };
    paths.iter().map(find).collect()
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

    #[test]
    fn an_absolute_path_of_the_tree_is_one_from_the_root() {
        let (tree, point) = (Path::new("/proc"), Path::new("/self"));
        let paths = ["/self/status", "/self/none", "/other"].map(PathBuf::from);
        let found = on_volume_in(tree, &paths, point).unwrap();
        assert_eq!(found, ["/self/status", "/none", "/other"].map(PathBuf::from));
    }
}
