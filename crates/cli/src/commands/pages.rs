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

/// Writes `xact.1` and a page for each command, such as `xact-run.1` and `xact-tx-diff.1`. Those of
/// the helpers, such as `mkfs.xact.8`, go to the folder `man8` beside a folder `man1`.
pub fn man(args: &Man) -> Result<()> {
    let folder = &args.folder;
    let helpers = match folder.ends_with("man1") {
        true => folder.with_file_name("man8"),
        false => folder.clone(),
    };
    let write = || {
        std::fs::create_dir_all(folder)?;
        std::fs::create_dir_all(&helpers)?;
        let commands = manual::pages(Cli::command()).into_iter().map(|page| (folder, page));
        let mut all = commands.chain(manual::helper_pages().into_iter().map(|page| (&helpers, page)));
        all.try_for_each(|(folder, (name, text))| std::fs::write(folder.join(name), text))
    };
    write().map_err(|e| Failure::system(format_args!("write man pages to {}", folder.display()), e))
}
