//! Man pages and completions, from the same definition as the commands themselves.

use clap::CommandFactory;

use crate::args::{Cli, Completions, Man};
use crate::exit::{Failure, Result};
use crate::output::print;

pub fn completions(args: &Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "xact", &mut script);
    print(&String::from_utf8(script).expect("completion scripts are text"))
}

/// Writes `xact.1` and a page for each command, `xact-run.1`.
pub fn man(args: &Man) -> Result<()> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .map_err(|e| Failure::system(format_args!("write man pages to {}", folder.display()), e))
}
