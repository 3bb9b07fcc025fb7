//! Paths of a volume as a user writes them: with or without a leading `/`, counted from the root.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::{Error, Result};

/// A path from the volume's root, without the leading `/` and without `.`.
///
/// # Errors
/// [`Error::Usage`] for a path with `..`.
pub fn from_root(path: &Path) -> Result<PathBuf> {
    let mut relative = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => relative.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Error::Usage(format!("{}: a path of a volume has no '..'", path.display())));
            }
        }
    }
    Ok(relative)
}

/// The paths for a snapshot of chosen paths, as the volume stores them: sorted, none below another.
///
/// # Errors
/// [`Error::Usage`] for a path with `..`, and for the root.
pub fn outermost(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
    let mut found = paths.iter().map(|path| from_root(path)).collect::<Result<Vec<_>>>()?;
    if found.iter().any(|path| path.as_os_str().is_empty()) {
        return Err(Error::Usage("the root is the whole volume: omit the paths".into()));
    }
    found.sort();
    let mut tops: Vec<PathBuf> = Vec::new();
    for path in found {
        if tops.last().is_none_or(|top| !path.starts_with(top)) {
            tops.push(path);
        }
    }
    Ok(tops.into_iter().map(|path| path.into_os_string().into_vec()).collect())
}

/// Whether a path with a leading `/` is one of `tops` ([`from_root`]) or below one.
pub fn is_below(path: &[u8], tops: &[PathBuf]) -> bool {
    let path = Path::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
    tops.iter().any(|top| path.starts_with(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_count_from_the_root() {
        let text = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let bytes = |paths: &[&str]| paths.iter().map(|path| path.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(outermost(&text(&["/b/", "a", "b/c", "ab"])).unwrap(), bytes(&["a", "ab", "b"]));
        assert!(matches!(outermost(&text(&["a", "/"])), Err(Error::Usage(_))));
        assert_eq!(from_root(Path::new("/a/./b")).unwrap(), Path::new("a/b"));
        assert_eq!(from_root(Path::new("/")).unwrap(), Path::new(""));
        assert!(matches!(from_root(Path::new("a/../b")), Err(Error::Usage(_))));
        let tops = text(&["a/b"]);
        assert!(is_below(b"/a/b", &tops) && is_below(b"/a/b/c", &tops));
        assert!(!is_below(b"/a/bc", &tops) && !is_below(b"/a", &tops));
    }
}
