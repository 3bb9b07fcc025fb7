//! Random operations over few names, so that they collide.

use xact_fs::RenameHow;

use crate::driver::{Done, Driver, FileOps};
use crate::model::Op;
use crate::rng::Rng;

const NAMES: [&str; 9] = ["/a", "/b", "/c", "/d", "/d/a", "/d/b", "/e", "/e/a", "/e/f"];
const FILES: [&str; 3] = ["/a", "/b", "/d/a"];
const ATTRIBUTES: [&str; 2] = ["user.one", "user.two"];

/// Names and attributes: create, mkdir, link, symlink, rename, unlink, rmdir, chmod, xattrs.
pub fn names(s: &mut Driver, rng: &mut Rng) -> Done {
    for _ in 0..90 {
        name_operation(s, rng)?;
        sync_sometimes(s, rng, &NAMES)?;
    }
    Ok(())
}

/// The inside of a few files: append, overwrite, truncate, punch.
pub fn data(s: &mut Driver, rng: &mut Rng) -> Done {
    s.mkdir("/d")?;
    for path in FILES {
        s.create(path)?;
    }
    for _ in 0..70 {
        data_operation(s, rng)?;
        sync_sometimes(s, rng, &FILES)?;
    }
    Ok(())
}

pub fn mix(s: &mut Driver, rng: &mut Rng) -> Done {
    for _ in 0..110 {
        if rng.one_in(2) {
            name_operation(s, rng)?;
        } else {
            data_operation(s, rng)?;
        }
        sync_sometimes(s, rng, &NAMES)?;
    }
    Ok(())
}

/// One operation on names; many of them fail, and must fail for the model's reason.
pub fn name_operation(s: &mut impl FileOps, rng: &mut Rng) -> Done {
    let path = *rng.pick(&NAMES);
    let other = *rng.pick(&NAMES);
    match rng.below(16) {
        0..=3 => s.create(path),
        4 | 5 => s.mkdir(path),
        6 => s.symlink("where/it/points", path),
        7 => s.link(path, other),
        8 => s.unlink(path),
        9 => s.rmdir(path),
        10 | 11 => s.rename(path, other),
        12 if rng.one_in(2) => s.exchange(path, other),
        12 => s.run(Op::Rename { from: path.into(), to: other.into(), how: RenameHow::NoReplace }),
        13 => s.chmod(path, 0o600 + rng.below(0o100) as u16),
        14 => {
            let len = *rng.pick(&[4u64, 40, 300]);
            let value = crate::model::stamp::bytes(0, s.generation(), 0, len);
            {
                let name = *rng.pick(&ATTRIBUTES);
                s.set_xattr(path, name, &value)
            }
        }
        _ => s.run(Op::Chown { path: path.into(), uid: rng.below(1000) as u32, gid: rng.below(1000) as u32 }),
    }
}

/// One operation on the inside of a file.
pub fn data_operation(s: &mut impl FileOps, rng: &mut Rng) -> Done {
    let path = *rng.pick(&FILES);
    let size = s.size(path);
    let offset = rng.below(size + 1);
    match rng.below(10) {
        0..=2 => s.append(path, 1 + rng.below(5000)),
        3..=5 => s.write(path, offset, 1 + rng.below(3000)),
        6 => s.write(path, offset / 1024 * 1024, 1024),
        7 => s.truncate(path, offset),
        8 => s.truncate(path, rng.below(20_000)),
        _ if size > 0 => s.punch(path, offset, 1 + rng.below(4000)),
        _ => Ok(()),
    }
}

fn sync_sometimes(s: &mut Driver, rng: &mut Rng, names: &[&str]) -> Done {
    match rng.below(20) {
        0 => s.sync(),
        1 | 2 => {
            let name = *rng.pick(names);
            s.fsync(name)
        }
        3 => {
            let name = *rng.pick(names);
            s.fdatasync(name)
        }
        _ => Ok(()),
    }
}
