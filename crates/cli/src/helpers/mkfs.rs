//! `mkfs.xact`, which mkfs(8) and systemd call: `xact mkfs` with the short options that mke2fs(8)
//! has for the same, and with a size after the device.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};

use crate::args::{Mkfs, Verbosity};
use crate::exit::{Exit, Failure, Result};
use crate::{commands, log, output, progress, usage, values};

const NAME: &str = "mkfs.xact";
/// Short options of mke2fs(8), and the same in `xact mkfs`.
const SHORT: [(char, &str); 5] =
    [('F', "force"), ('b', "block_size"), ('i', "inode_ratio"), ('m', "reserved_percent"), ('U', "uuid")];

/// Make an ext4 volume, for mkfs(8)
///
/// As 'xact mkfs', with the options of mke2fs(8) that have the same meaning. 'mkfs -t xact' calls
/// it, and so does systemd for x-systemd.makefs in fstab(5).
#[derive(Debug, Parser)]
#[command(name = NAME, version, disable_version_flag = true, max_term_width = 100)]
pub struct MkfsOfSize {
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    mkfs: Mkfs,
    /// Size of the volume, as --size. Without a unit: a number of blocks, of 1 KiB unless
    /// --block-size is given.
    #[arg(value_name = "FS-SIZE", conflicts_with = "size")]
    blocks: Option<String>,
}

impl MkfsOfSize {
    /// The definition, with the short options.
    pub fn definition() -> clap::Command {
        let command = SHORT
            .into_iter()
            .fold(MkfsOfSize::command(), |command, (short, id)| command.mut_arg(id, |arg| arg.short(short)));
        command.mut_arg("verbose", |arg| arg.visible_short_alias('V'))
    }
}

/// The exit status of mkfs(8): 0, or 1 for any failure.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let line = std::iter::once(NAME.into()).chain(args);
    let parsed = MkfsOfSize::definition()
        .try_get_matches_from(line)
        .and_then(|matches| MkfsOfSize::from_arg_matches(&matches));
    let request = match parsed {
        Ok(request) => request,
        Err(error) => return ExitCode::from(usage::print_for(NAME, &error)),
    };
    match make(request) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::error(NAME, &failure);
            ExitCode::FAILURE
        }
    }
}

fn make(request: MkfsOfSize) -> Result<()> {
    let MkfsOfSize { verbosity, mut mkfs, blocks } = request;
    output::set_quiet(verbosity.quiet);
    progress::configure(mkfs.progress.progress, verbosity.quiet);
    log::install(&verbosity, false)?;
    if let Some(blocks) = blocks {
        mkfs.size = Some(size_of(&blocks, mkfs.block_size.unwrap_or(1024))?);
    }
    commands::mkfs(&mkfs)
}

fn size_of(text: &str, block_size: u32) -> Result<u64> {
    let wrong = |why| Failure::new(Exit::Usage, why);
    match text.parse::<u64>() {
        Ok(blocks) => blocks
            .checked_mul(block_size.into())
            .ok_or_else(|| wrong(format!("{blocks} blocks are too many"))),
        Err(_) => values::parse_size(text).map_err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> MkfsOfSize {
        let matches = MkfsOfSize::definition().try_get_matches_from(line.split(' ')).unwrap();
        MkfsOfSize::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn options_of_mke2fs_are_those_of_xact_mkfs() {
        MkfsOfSize::definition().debug_assert();
        let request = parse("mkfs.xact -V -F -b 4096 -i 16384 -m 1 -L data /dev/sdx 25600");
        let mkfs = &request.mkfs;
        assert!(mkfs.force && mkfs.label == "data" && mkfs.reserved_percent == 1);
        assert_eq!((mkfs.block_size, mkfs.inode_ratio), (Some(4096), Some(16384)));
        assert_eq!(size_of(&request.blocks.unwrap(), 4096).unwrap(), 100 << 20);
        assert_eq!(size_of("100M", 4096).unwrap(), 100 << 20);
        assert!(size_of("many", 1024).is_err() && size_of("99999999999999999999", 1024).is_err());
        assert!(parse("mkfs.xact /dev/sdx").blocks.is_none());
    }
}
