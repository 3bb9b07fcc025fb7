//! Files that are synced one by one, while changes of others wait (SNAP-12).

use crate::driver::{Done, Driver, FileOps};
use crate::rng::Rng;

const OLD: [&str; 4] = ["/a", "/d/b", "/d/c", "/e/d"];
const FOLDERS: [&str; 3] = ["/", "/d/", "/e/"];

/// Old files whose data is synced again and again. In between: new files beside them, names and
/// attributes of these, writes to other old files, and now and then a change after which the sync
/// of a file is one of everything.
pub fn beside_others(s: &mut Driver, rng: &mut Rng) -> Done {
    s.mkdir("/d")?;
    s.mkdir("/e")?;
    for path in OLD {
        s.create(path)?;
        s.append(path, 500 + rng.below(4000))?;
    }
    s.sync()?;
    for round in 0..60 {
        for part in 0..rng.below(4) {
            other_change(s, rng, round, part)?;
        }
        let path = *rng.pick(&OLD);
        let size = s.size(path);
        match rng.below(20) {
            0..=8 => s.append(path, 1 + rng.below(3000))?,
            9 => s.append(path, 20_000 + rng.below(20_000))?,
            10..=16 => s.write(path, rng.below(size), 1 + rng.below(2500))?,
            17 => s.chmod(path, 0o600 + rng.below(0o100) as u16)?,
            18 => s.truncate(path, size - rng.below(size))?,
            _ => s.write(path, size + rng.below(30_000), 1 + rng.below(2000))?,
        }
        match rng.below(12) {
            0 => {}
            1..=3 => s.fdatasync(path)?,
            4 => s.fsync("/d")?,
            5 if rng.one_in(3) => s.sync()?,
            _ => s.fsync(path)?,
        }
    }
    Ok(())
}

fn other_change(s: &mut Driver, rng: &mut Rng, round: u64, part: u64) -> Done {
    let folder = *rng.pick(&FOLDERS);
    let path = format!("{folder}n{round}-{part}");
    let earlier = format!("{folder}n{}-{}", rng.below(round + 1), rng.below(3));
    match rng.below(13) {
        0..=3 => s.create(&path),
        4 => {
            s.create(&path)?;
            s.append(&path, 1 + rng.below(6000))
        }
        5 => s.mkdir(&path),
        6 => s.symlink("somewhere", &path),
        7 => s.unlink(&earlier),
        8 => s.rename(&earlier, &path),
        9 => s.chmod(&earlier, 0o600 + rng.below(0o100) as u16),
        10 => {
            let old = *rng.pick(&OLD);
            s.append(old, 1 + rng.below(2000))
        }
        11 => {
            let old = *rng.pick(&OLD);
            s.punch(old, rng.below(s.size(old)), 1 + rng.below(3000))
        }
        _ => s.append(&earlier, 1 + rng.below(4000)),
    }
}
