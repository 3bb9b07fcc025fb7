//! Mount options that are the volume's business, by ext4's names where ext4 has them.

use xact::{AccessTimes, CommitWrites, OnError, QuotaLimits, VolumeOptions};

/// Takes one option as `-o` has it; false where it is not one of these.
pub fn set(volume: &mut VolumeOptions, option: &str) -> Result<bool, String> {
    match option.split_once('=') {
        Some(("commit", seconds)) => {
            // As ext4: 0 is the default.
            volume.commit_interval = match seconds {
                "0" => VolumeOptions::default().commit_interval,
                _ => crate::values::parse_interval(seconds)?,
            };
        }
        Some(("dirty_blocks", count)) => {
            let count: u32 = count.parse().map_err(|_| format!("'{count}' is no number of blocks"))?;
            // As with commit=: 0 is the default.
            volume.dirty_blocks = (count > 0).then_some(count);
        }
        Some(("tx_space", percent)) => {
            let number = percent.strip_suffix('%').unwrap_or(percent).parse().ok();
            volume.tx_space_percent = number
                .filter(|percent| (1..=100).contains(percent))
                .ok_or_else(|| format!("'{percent}' is no percentage from 1 to 100"))?;
        }
        None if option == "journal_async_commit" => volume.modes.commit_writes = Some(CommitWrites::Single),
        None if option == "nojournal_async_commit" => {
            volume.modes.commit_writes = Some(CommitWrites::TwoStep);
        }
        Some(("errors", what)) => {
            volume.on_error = Some(match what {
                "continue" => OnError::Continue,
                "remount-ro" => OnError::ReadOnly,
                "panic" => OnError::Panic,
                _ => return Err("there are continue, remount-ro and panic".into()),
            });
        }
        Some((setting, value)) => return volume.modes.set(setting, value),
        None if option == "noatime" => volume.access.times = AccessTimes::NoAtime,
        None if option == "relatime" => volume.access.times = AccessTimes::Relatime,
        None if matches!(option, "strictatime" | "atime") => volume.access.times = AccessTimes::StrictAtime,
        None if option == "nodiratime" => volume.access.skip_directories = true,
        None if option == "diratime" => volume.access.skip_directories = false,
        None if option == "lazytime" => volume.access.lazy = true,
        None if option == "nolazytime" => volume.access.lazy = false,
        None if option == "discard" => volume.discard = true,
        None if option == "nodiscard" => volume.discard = false,
        None if option == "usrquota" || option == "quota" => volume.quota_limits.user = true,
        None if option == "grpquota" => volume.quota_limits.group = true,
        None if option == "prjquota" => volume.quota_limits.project = true,
        None if option == "noquota" => volume.quota_limits = QuotaLimits::default(),
        _ => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use xact::{DataMode, Fsync, InodeUpdate};

    use super::*;

    #[test]
    fn names_of_ext4_and_of_modes() {
        let mut volume = VolumeOptions::default();
        assert_eq!(set(&mut volume, "commit=7"), Ok(true));
        assert_eq!(volume.commit_interval, Duration::from_secs(7));
        assert_eq!(set(&mut volume, "commit=0"), Ok(true));
        assert_eq!(volume.commit_interval, Duration::from_secs(5));
        assert!(set(&mut volume, "commit=soon").is_err());
        assert_eq!(set(&mut volume, "dirty_blocks=500"), Ok(true));
        assert_eq!(volume.dirty_blocks, Some(500));
        assert!(set(&mut volume, "dirty_blocks=many").is_err());
        assert_eq!(set(&mut volume, "tx_space=25%"), Ok(true));
        assert_eq!(volume.tx_space_percent, 25);
        assert!(set(&mut volume, "tx_space=0").is_err());
        assert!(set(&mut volume, "tx_space=half").is_err());
        assert_eq!(set(&mut volume, "fsync=generation"), Ok(true));
        assert_eq!(volume.modes.fsync, Some(Fsync::Generation));
        assert_eq!(set(&mut volume, "journal_async_commit"), Ok(true));
        assert_eq!(volume.modes.commit_writes, Some(CommitWrites::Single));
        assert_eq!(set(&mut volume, "nojournal_async_commit"), Ok(true));
        assert_eq!(volume.modes.commit_writes, Some(CommitWrites::TwoStep));
        assert_eq!(set(&mut volume, "data=selective"), Ok(true));
        assert_eq!(volume.modes.data, Some(DataMode::Selective));
        let why = set(&mut volume, "data=fast").unwrap_err();
        assert!(why.contains("writeback, ordered, journal, selective, adaptive"), "{why}");
        assert_eq!(set(&mut volume, "inode_update=immediate"), Ok(true));
        assert_eq!(set(&mut volume, "timestamps=delayed"), Ok(true));
        assert_eq!(volume.modes.inode_update, Some(InodeUpdate::Immediate));
        assert_eq!(volume.modes.timestamps, Some(InodeUpdate::Delayed));
        assert!(set(&mut volume, "inode_update=never").is_err());
        assert_eq!(set(&mut volume, "errors=remount-ro"), Ok(true));
        assert_eq!(volume.on_error, Some(OnError::ReadOnly));
        assert!(set(&mut volume, "errors=none").is_err());
        assert_eq!(set(&mut volume, "relatime"), Ok(true));
        assert_eq!(volume.access.times, AccessTimes::Relatime);
        assert_eq!(set(&mut volume, "lazytime"), Ok(true));
        assert!(volume.access.lazy);
        assert_eq!(set(&mut volume, "discard"), Ok(true));
        assert!(volume.discard);
        assert_eq!(set(&mut volume, "prjquota"), Ok(true));
        let expected = QuotaLimits { project: true, ..QuotaLimits::default() };
        assert_eq!(volume.quota_limits, expected);
        assert_eq!(set(&mut volume, "allow_other"), Ok(false));
        assert_eq!(set(&mut volume, "commit"), Ok(false));
    }
}
