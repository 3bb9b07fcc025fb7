//! Options of ext4(5) and mount(8) that xact does not have as settings. With them, a line of
//! fstab(5) that was written for ext4 mounts here too, or fails with the reason.

use Verdict::{NoEffect, Refused};

/// An option of ext4(5) or mount(8) that is not one of xact.
#[derive(Debug)]
pub struct ForeignOption {
    /// Its spellings: `WORD`, `NAME=N` (a number), `NAME=a|b` (one of these words), `NAME=TEXT`,
    /// and `PREFIX*`.
    pub spellings: &'static [&'static str],
    pub verdict: Verdict,
    /// Why. A sentence without its full stop.
    pub reason: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Accepted: xact already does so, or has no such mechanism and keeps all promises without it.
    NoEffect,
    /// Refused: a mount without its effect would not be the one that was asked for.
    Refused,
}

const fn row(verdict: Verdict, spellings: &'static [&'static str], reason: &'static str) -> ForeignOption {
    ForeignOption { spellings, verdict, reason }
}

/// The options, first those of ext4(5) in its order, then those of mount(8). The first row with a
/// spelling that fits an option decides.
pub static FOREIGN_OPTIONS: &[ForeignOption] = &[
    row(NoEffect, &["acl"], "Access control lists always apply"),
    row(Refused, &["noacl"], "Access control lists always apply"),
    row(NoEffect, &["check=none", "nocheck"], "No mount checks the volume; 'xact check' does"),
    row(NoEffect, &["debug"], "'xact mount -v' logs more"),
    row(Refused, &["nouid32"], "Users and groups always have 32 bits"),
    row(NoEffect, &["orlov", "oldalloc"], "The allocator places folders in its own way"),
    row(
        Refused,
        &["sb=N"],
        "The volume is opened by its primary superblock; 'e2fsck -b N' restores that one from a copy",
    ),
    row(NoEffect, &["user_xattr"], "Extended attributes of users always work"),
    row(Refused, &["nouser_xattr"], "Extended attributes of users always work"),
    row(Refused, &["journal_dev=TEXT", "journal_path=TEXT"], "A journal on another device is not supported"),
    row(
        NoEffect,
        &["data_err=abort"],
        "After a device failed to write, nothing more is written, whether it was data or metadata",
    ),
    row(
        Refused,
        &["data_err=ignore"],
        "After a device failed to write, nothing more is written, whether it was data or metadata",
    ),
    row(NoEffect, &["barrier", "barrier=1"], "Commits are always made durable with flushes of the device"),
    row(
        NoEffect,
        &["nobarrier", "barrier=0"],
        "Commits are always made durable with flushes of the device, which is safer and slower",
    ),
    row(
        NoEffect,
        &["jqfmt=vfsold|vfsv0|vfsv1", "usrjquota=", "grpjquota="],
        "Quotas are kept in hidden files (feature quota), which the journal always covers",
    ),
    row(
        Refused,
        &["usrjquota=TEXT", "grpjquota=TEXT"],
        "Quotas are kept in hidden files (feature quota, 'tune2fs -O quota'); usrquota and grpquota enforce them",
    ),
    row(
        NoEffect,
        &["journal_checksum", "nojournal_checksum"],
        "Commits have the checksums that the features of the volume ask for",
    ),
    row(NoEffect, &["inode_readahead_blks=N"], "Inode tables are read ahead as operations need them"),
    row(NoEffect, &["stripe=N"], "The allocator does not align to stripes of a RAID"),
    row(NoEffect, &["delalloc"], "Blocks are always allocated at write-back"),
    row(
        NoEffect,
        &["nodelalloc"],
        "Blocks are allocated at write-back, but their space is reserved by the write, so that a full volume \
         fails the write",
    ),
    row(
        NoEffect,
        &["max_batch_time=N", "min_batch_time=N"],
        "A sync never waits for others; those that wait anyway share one commit",
    ),
    row(NoEffect, &["journal_ioprio=N"], "The priority of a commit is that of the daemon (ionice)"),
    row(
        Refused,
        &["abort"],
        "It makes a volume fail on purpose; the ioctl EXT4_IOC_SHUTDOWN does that to a mounted one",
    ),
    row(
        NoEffect,
        &["auto_da_alloc"],
        "The contents of a new file are always durable before its rename over an old one",
    ),
    row(
        NoEffect,
        &["noauto_da_alloc"],
        "The contents of a new file are durable before its rename over an old one, which is safer and slower",
    ),
    row(
        NoEffect,
        &["init_itable", "init_itable=N", "noinit_itable"],
        "Unused parts of inode tables are initialised when their first inode is made",
    ),
    row(
        NoEffect,
        &["block_validity", "noblock_validity"],
        "Blocks from an extent are always compared with the places of metadata",
    ),
    row(NoEffect, &["dioread_lock", "dioread_nolock"], "Reads past the cache take no lock of this kind"),
    row(
        Refused,
        &["max_dir_size_kb=N"],
        "The size of folders has no limit of its own; quotas limit what a user can take",
    ),
    row(
        NoEffect,
        &["i_version", "noi_version", "iversion", "noiversion"],
        "Inodes have no version of their own here; programs go by the change time",
    ),
    row(NoEffect, &["nombcache", "no_mbcache"], "Blocks of attributes are never shared between new files"),
    // Not in ext4(5), but accepted by the kernel's ext4.
    row(Refused, &["dax", "dax=always"], "FUSE gives no direct access to memory that holds a volume"),
    row(NoEffect, &["dax=inode", "dax=never"], "No file is accessed directly in memory that holds a volume"),
    row(
        NoEffect,
        &["mb_optimize_scan=0|1", "prefetch_block_bitmaps", "no_prefetch_block_bitmaps"],
        "The allocator searches in its own way",
    ),
    row(NoEffect, &["warn_on_error", "nowarn_on_error"], "Errors of the volume are logged without a trace"),
    row(NoEffect, &["bh", "nobh", "reservation", "noreservation"], "The kernel's ext4 ignores them too"),
    row(
        Refused,
        &["inlinecrypt", "test_dummy_encryption", "test_dummy_encryption=TEXT"],
        "Volumes with encryption are not supported",
    ),
    // mount(8).
    row(
        NoEffect,
        &["auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group"],
        "For mount(8) and systemd, which act by it before they call xact",
    ),
    row(
        NoEffect,
        &["x-*", "X-*", "comment=TEXT", "helper=TEXT", "uhelper=TEXT"],
        "For mount(8), systemd and other programs",
    ),
    row(
        NoEffect,
        &["loop", "loop=TEXT"],
        "mount(8) attaches the loop device; 'xact mount' attaches one on its own",
    ),
    row(
        Refused,
        &["offset=N", "sizelimit=N"],
        "A part of an image needs a loop device: 'mount -t xact -o loop,offset=N', or losetup(8)",
    ),
    row(NoEffect, &["norelatime", "nostrictatime"], "They stand for the default"),
    row(NoEffect, &["silent", "loud"], "What a mount logs depends on 'xact mount -v' and '-q'"),
    row(NoEffect, &["mand", "nomand"], "Linux has no mandatory locks since 5.15"),
    row(
        Refused,
        &["context=TEXT", "fscontext=TEXT", "defcontext=TEXT", "rootcontext=TEXT"],
        "The labels of SELinux for a FUSE mount come from the policy of the system",
    ),
    row(
        Refused,
        &["remount"],
        "A mounted volume is changed by 'mount -o remount,OPTIONS MNT', which needs the helpers in /sbin",
    ),
];

/// The verdict on an option; `None` for one that is not in the table.
///
/// Errors: the reason of a refusal, or that the option has no such value.
pub(super) fn verdict(option: &str) -> Option<Result<(), String>> {
    let found =
        FOREIGN_OPTIONS.iter().find(|row| row.spellings.iter().any(|spelling| fits(spelling, option)));
    if let Some(row) = found {
        return Some(match row.verdict {
            NoEffect => Ok(()),
            Refused => Err(row.reason.to_owned()),
        });
    }
    let name = option.split('=').next()?;
    let mut known = FOREIGN_OPTIONS.iter().flat_map(|row| row.spellings);
    let spelling = known.find(|spelling| spelling.split('=').next() == Some(name))?;
    // A setting may have other values of the same option.
    let is_setting = super::SETTINGS.iter().any(|setting| setting.name == name);
    (!is_setting).then(|| Err(format!("invalid value: expected {spelling}")))
}

fn fits(spelling: &str, option: &str) -> bool {
    if let Some(prefix) = spelling.strip_suffix('*') {
        return option.starts_with(prefix);
    }
    match (spelling.split_once('='), option.split_once('=')) {
        (None, None) => spelling == option,
        (Some((name, values)), Some((given, value))) => {
            name == given
                && match values {
                    "N" => value.parse::<u64>().is_ok(),
                    "TEXT" => !value.is_empty(),
                    words => words.split('|').any(|word| word == value),
                }
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Id, Value, parse_option};

    /// Every option of the section MOUNT OPTIONS of ext4(5), of e2fsprogs 1.47, with a value.
    const EXT4: &str = "acl noacl bsddf minixdf check=none nocheck debug errors=continue errors=remount-ro \
        errors=panic grpid bsdgroups nogrpid sysvgroups grpquota noquota quota usrquota nouid32 oldalloc \
        orlov resgid=5 resuid=5 sb=131072 user_xattr nouser_xattr journal_dev=0x803 journal_path=/dev/sdb1 \
        norecovery noload data=journal data=ordered data=writeback data_err=ignore data_err=abort barrier=0 \
        barrier=1 commit=5 jqfmt=vfsold jqfmt=vfsv0 jqfmt=vfsv1 usrjquota=aquota.user \
        grpjquota=aquota.group journal_checksum nojournal_checksum journal_async_commit barrier nobarrier \
        inode_readahead_blks=32 stripe=16 delalloc nodelalloc max_batch_time=15000 min_batch_time=0 \
        journal_ioprio=3 abort auto_da_alloc noauto_da_alloc noinit_itable init_itable=10 discard nodiscard \
        block_validity noblock_validity dioread_lock dioread_nolock max_dir_size_kb=1024 i_version \
        nombcache prjquota";
    /// Every option that mount(8) of util-linux 2.38 lists for all file systems, with a value.
    const MOUNT: &str = "async atime noatime auto noauto context=c fscontext=c defcontext=c rootcontext=c \
        defaults dev nodev diratime nodiratime dirsync exec noexec group iversion noiversion mand nomand \
        _netdev nofail relatime norelatime strictatime nostrictatime lazytime nolazytime suid nosuid silent \
        loud owner remount ro rw sync user nouser users X-mount.mkdir x-systemd.automount nosymfollow \
        loop loop=/dev/loop0 offset=4096 sizelimit=4096 comment=x";

    #[test]
    fn every_option_of_ext4_and_mount_has_a_verdict() {
        let (mut honoured, mut ignored, mut refused) = (0, 0, 0);
        for option in EXT4.split_whitespace().chain(MOUNT.split_whitespace()) {
            match (verdict(option), parse_option(option)) {
                (None, Ok((id, _))) => {
                    assert!(id != Id::Defaults || option == "defaults", "{option}");
                    honoured += 1;
                }
                (Some(Ok(())), Ok((Id::Defaults, Some(Value::Flag(true))))) => ignored += 1,
                (Some(Err(why)), Err(said)) => {
                    assert_eq!(why, said);
                    assert!(!why.starts_with("invalid value"), "{option}: {why}");
                    refused += 1;
                }
                other => panic!("{option} has no verdict: {other:?}"),
            }
        }
        assert!(honoured > 40 && ignored > 40 && refused > 10, "{honoured}, {ignored}, {refused}");
        assert!(verdict("frobnicate").is_none() && parse_option("frobnicate").is_err());
    }

    #[test]
    fn values_are_checked() {
        for wrong in ["stripe=wide", "stripe", "barrier=2", "usrjquota", "jqfmt=v9", "acl=1", "check=strict"]
        {
            let why = parse_option(wrong).unwrap_err();
            assert!(why.starts_with("invalid value: expected "), "{wrong}: {why}");
        }
        assert!(parse_option("x-systemd.requires=/a").is_ok() && parse_option("x").is_err());
        assert!(parse_option("usrjquota=").is_ok());
    }

    /// A spelling that a setting or an earlier row has too would never be reached.
    #[test]
    fn no_spelling_is_twice() {
        let all: Vec<&str> = FOREIGN_OPTIONS.iter().flat_map(|row| row.spellings.iter().copied()).collect();
        for (at, spelling) in all.iter().enumerate() {
            assert!(!all[..at].contains(spelling), "{spelling}");
            let taken = crate::settings::SETTINGS.iter().any(|s| s.option_words().contains(spelling));
            assert!(!taken, "{spelling} is a setting");
        }
        for row in FOREIGN_OPTIONS {
            assert!(!row.reason.ends_with('.') && row.reason.len() > 10);
        }
    }
}
