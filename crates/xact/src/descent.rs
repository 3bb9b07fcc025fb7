//! Walks through trees of folders by descriptors: a path of any length works, each step costs the
//! same at any depth, and the number of open descriptors has a limit.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, openat};

/// Levels whose descriptors stay open, apart from the top. Those above are closed, and opened again
/// through `..`.
const OPEN_LEVELS: usize = 32;

/// Device and inode number.
type Identity = (u64, u64);

enum Level<const N: usize> {
    Open([OwnedFd; N]),
    Closed([Identity; N]),
}

/// The folders from the top of a walk down to the present one, in `N` trees at once.
pub(crate) struct Descent<const N: usize> {
    levels: Vec<Level<N>>,
}

/// Opens a folder, to list it. Symbolic links are not followed.
pub(crate) fn open_folder(dir: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(dir, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn identity(folder: &OwnedFd) -> rustix::io::Result<Identity> {
    let stat = fstat(folder)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Applies an action to each of `N` items, up to the first error.
fn each<const N: usize, T, R>(
    items: &[T; N],
    mut action: impl FnMut(usize, &T) -> io::Result<R>,
) -> io::Result<[R; N]> {
    let all: Vec<R> =
        items.iter().enumerate().map(|(at, item)| action(at, item)).collect::<io::Result<_>>()?;
    Ok(all.try_into().ok().expect("one for each item"))
}

impl<const N: usize> Descent<N> {
    pub fn from(top: [OwnedFd; N]) -> Descent<N> {
        Descent { levels: vec![Level::Open(top)] }
    }

    /// The present folders.
    pub fn here(&self) -> &[OwnedFd; N] {
        match self.levels.last() {
            Some(Level::Open(folders)) => folders,
            _ => unreachable!("the last level is open"),
        }
    }

    /// Steps into folders below the present ones.
    pub fn enter(&mut self, below: [OwnedFd; N]) -> io::Result<()> {
        self.levels.push(Level::Open(below));
        // The top stays open: a walk may begin in a folder that it enters again as `.`.
        if let Some(far) = self.levels.len().checked_sub(OPEN_LEVELS + 1).filter(|far| *far > 0)
            && let Level::Open(folders) = &self.levels[far]
        {
            self.levels[far] = Level::Closed(each(folders, |_, folder| Ok(identity(folder)?))?);
        }
        Ok(())
    }

    /// Steps back into the folders above.
    ///
    /// # Errors
    /// Those of open(2); `ESTALE` if a folder was moved concurrently.
    pub fn leave(&mut self) -> io::Result<()> {
        let Some(Level::Open(below)) = self.levels.pop() else { unreachable!("the last level is open") };
        let above = self.levels.last_mut().expect("the top is never left");
        if let Level::Closed(identities) = above {
            let identities = *identities;
            *above = Level::Open(each(&below, |at, folder| {
                let folder = open_folder(folder, "..")?;
                match identity(&folder)? == identities[at] {
                    true => Ok(folder),
                    false => Err(io::Error::from_raw_os_error(libc::ESTALE)),
                }
            })?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, mkdirat};

    use super::*;

    #[test]
    fn a_way_down_is_the_way_back() {
        const DEPTH: usize = 3 * OPEN_LEVELS;
        let dir = tempfile::tempdir().unwrap();
        let open = |from: &OwnedFd, name: &str| open_folder(from, name).unwrap();
        let top = open_folder(CWD, dir.path()).unwrap();
        let mut identities = vec![identity(&top).unwrap()];
        let mut descent = Descent::from([top]);
        for _ in 0..DEPTH {
            mkdirat(&descent.here()[0], "d", Mode::RWXU).unwrap();
            let below = open(&descent.here()[0], "d");
            identities.push(identity(&below).unwrap());
            descent.enter([below]).unwrap();
        }
        let open_now = descent.levels.iter().filter(|level| matches!(level, Level::Open(_))).count();
        assert_eq!(open_now, OPEN_LEVELS + 1);
        for wanted in identities.iter().rev().skip(1) {
            descent.leave().unwrap();
            assert_eq!(identity(&descent.here()[0]).unwrap(), *wanted);
        }
    }

    #[test]
    fn a_folder_that_was_moved_is_not_taken_for_the_one_above() {
        let dir = tempfile::tempdir().unwrap();
        let top = open_folder(CWD, dir.path()).unwrap();
        let mut descent = Descent::from([top]);
        for _ in 0..2 * OPEN_LEVELS {
            mkdirat(&descent.here()[0], "d", Mode::RWXU).unwrap();
            let below = open_folder(&descent.here()[0], "d").unwrap();
            descent.enter([below]).unwrap();
        }
        let open_levels = OPEN_LEVELS - 1;
        let way = |count: usize| (0..count).fold(dir.path().to_path_buf(), |path, _| path.join("d"));
        std::fs::rename(way(OPEN_LEVELS + 1), dir.path().join("moved")).unwrap();
        (0..open_levels).for_each(|_| descent.leave().unwrap());
        assert_eq!(descent.leave().unwrap_err().raw_os_error(), Some(libc::ESTALE));
    }
}
