//! Man pages and completions, from the same definition as the commands themselves.

use clap::CommandFactory;
use clap_complete::env::Shells;

use crate::args::{Cli, Completions, Man};
use crate::complete::VARIABLE;
use crate::exit::{Failure, Result};
use crate::manual;
use crate::output::print_bytes;

pub fn completions(args: &Completions) -> Result<()> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let shell = shells.completer(&args.shell.to_string()).expect("each shell has a completer");
    shell
        .write_registration(VARIABLE, "xact", "xact", "xact", &mut script)
        .map_err(|e| Failure::system("write the completion script", e))?;
    print_bytes(&script)
}

/// Writes `xact.1` and a page for each command, such as `xact-run.1` and `xact-tx-diff.1`.
pub fn man(args: &Man) -> Result<()> {
    let folder = &args.folder;
    let write = || {
        std::fs::create_dir_all(folder)?;
        let mut pages = manual::pages(Cli::command()).into_iter();
        pages.try_for_each(|(name, text)| std::fs::write(folder.join(name), text))
    };
    write().map_err(|e| Failure::system(format_args!("write man pages to {}", folder.display()), e))
}
