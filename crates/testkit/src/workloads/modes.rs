//! FileOps whose data goes through the journal, beside others, and files that change from one to
//! the other (`chattr +j` and `-j`).

use crate::driver::{Done, Driver, FileOps};
use crate::rng::Rng;

/// Two files, each journaled now and then, that are overwritten, truncated and synced in turn.
pub fn switch(s: &mut Driver, rng: &mut Rng) -> Done {
    changing(s, rng, |_, _| Ok(()), |s, _, path, lot| s.set_journaled(path, lot < 2))
}

/// Two files, begun with `begin`, that are overwritten, truncated and synced in turn. A third of
/// the steps is `choose`, with a lot below 4.
fn changing(
    s: &mut Driver,
    rng: &mut Rng,
    begin: impl Fn(&mut Driver, &str) -> Done,
    choose: impl Fn(&mut Driver, &mut Rng, &str, u64) -> Done,
) -> Done {
    const FILES: [&str; 2] = ["/a", "/b"];
    for path in FILES {
        s.create(path)?;
        begin(s, path)?;
        s.append(path, 12_000)?;
    }
    s.sync()?;
    for _ in 0..60 {
        let path = *rng.pick(&FILES);
        let size = s.size(path);
        match rng.below(12) {
            lot @ 0..=3 => choose(s, rng, path, lot)?,
            4 => s.append(path, 1 + rng.below(3000))?,
            5 => s.truncate(path, rng.below(14_000))?,
            6 if size > 4000 => s.punch(path, rng.below(size - 3000), 3000)?,
            _ if size > 0 => s.write(path, rng.below(size), 1 + rng.below(2000))?,
            _ => s.append(path, 9000)?,
        }
        match rng.below(4) {
            0 => s.fsync(path)?,
            1 => s.fdatasync(path)?,
            _ => {}
        }
    }
    Ok(())
}

/// Blocks move from a file of one kind to a file of the other: a replay must not restore the
/// journaled contents of the first over those of the second (JOJ-5).
pub fn reuse(s: &mut Driver, rng: &mut Rng) -> Done {
    s.mkdir("/d")?;
    for round in 0..14u64 {
        let path = format!("/d/f{round}");
        s.create(&path)?;
        if round.is_multiple_of(2) {
            s.set_journaled(&path, true)?;
        }
        s.append(&path, 3000 + rng.below(4000))?;
        s.fsync(&path)?;
        if rng.one_in(2) {
            s.write(&path, rng.below(2000), 900)?;
            s.fdatasync(&path)?;
        }
        if rng.one_in(3) {
            s.truncate(&path, 0)?;
            s.fsync(&path)?;
            s.append(&path, 2000)?;
            s.fsync(&path)?;
        } else {
            s.unlink(&path)?;
            s.fsync("/d")?;
        }
    }
    Ok(())
}

/// Two files that get a data mode of their own now and then.
fn choosing(s: &mut Driver, rng: &mut Rng, words: &[&str]) -> Done {
    let set = |s: &mut Driver, path: &str, word: &str| s.set_xattr(path, "user.xact.data", word.as_bytes());
    changing(
        s,
        rng,
        |s, path| set(s, path, words[0]),
        |s, rng, path, _| set(s, path, rng.pick::<&str>(words)),
    )
}

/// All choices.
pub fn choices(s: &mut Driver, rng: &mut Rng) -> Done {
    choosing(s, rng, &["ordered", "none", "data", "selective", "adaptive"])
}

/// Those that order the data of a file where the volume does not.
pub fn ordered_choices(s: &mut Driver, rng: &mut Rng) -> Done {
    choosing(s, rng, &["ordered", "data", "selective", "adaptive"])
}

/// Those of a volume with generations.
pub fn choices_of_generations(s: &mut Driver, rng: &mut Rng) -> Done {
    choosing(s, rng, &["ordered", "none", "adaptive"])
}
