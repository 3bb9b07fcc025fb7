//! What is written for a person: messages on standard error, coloured only on a terminal.
//!
//! `anstream` drops the colours where standard error is no terminal or `NO_COLOR` is set.

use std::io::{self, ErrorKind, Write};

use anstyle::{AnsiColor, Style};

use crate::exit::{Failure, Result};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const NOTE: Style = AnsiColor::Yellow.on_default();

/// `xact run: error: what happened`, with the hint on a line of its own.
pub fn error(command: &str, failure: &Failure) {
    anstream::eprintln!("{command}: {ERROR}error:{ERROR:#} {failure}");
}

/// Something worth knowing that is no failure of xact.
pub fn note(command: &str, text: &str) {
    anstream::eprintln!("{command}: {NOTE}{text}{NOTE:#}");
}

/// Prints the result of a command on standard output. A reader that has seen enough (`| head`) is
/// no failure.
pub fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// As [`print`], of bytes that may be no text.
pub fn print_bytes(bytes: &[u8]) -> Result<()> {
    match io::stdout().write_all(bytes) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::system("write the output", e)),
        _ => Ok(()),
    }
}

/// A structure as JSON on standard output.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).expect("what is printed has plain fields");
    print(&(text + "\n"))
}
