//! Calls that are durable when they return: the option `sync`, and the flags `+S` and `+D`.

use xact_layout::inode::flag;

use super::random;
use crate::driver::{Done, Driver, FileOps};
use crate::rng::Rng;

/// With the option `sync`, every call.
pub fn by_option(s: &mut Driver, rng: &mut Rng) -> Done {
    s.expect_synced();
    random::mix(s, rng)
}

/// Folders with the flag `+D` and files with `+S`: changes of names, and writes. New folders and
/// files inherit the flags.
pub fn by_flags(s: &mut Driver, rng: &mut Rng) -> Done {
    s.mkdir("/names")?;
    s.set_flags("/names", flag::DIRSYNC)?;
    s.mkdir("/data")?;
    s.set_flags("/data", flag::SYNC)?;
    for round in 0..12 {
        let file = format!("/data/{round}");
        s.create(&file)?;
        s.note_durable()?;
        s.write(&file, rng.below(3000), 1 + rng.below(3000))?;
        s.note_durable()?;
        let folder = format!("/names/{round}");
        s.mkdir(&folder)?;
        s.note_durable()?;
        // The flag was inherited.
        s.symlink("where/it/points", &format!("{folder}/link"))?;
        s.note_durable()?;
        s.link(&file, &format!("{folder}/file"))?;
        s.note_durable()?;
        s.rename(&format!("{folder}/file"), "/names/newest")?;
        s.note_durable()?;
        s.truncate(&file, rng.below(2000))?;
        s.note_durable()?;
        if rng.one_in(2) {
            s.unlink(&format!("{folder}/link"))?;
            s.note_durable()?;
            s.rmdir(&folder)?;
            s.note_durable()?;
        }
    }
    Ok(())
}
