//! Output: messages on standard error, coloured only on a terminal; results on standard output.
//!
//! `anstream` removes the colours if standard error is not a terminal or `NO_COLOR` is set.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use anstyle::{AnsiColor, Style};
use xact::text::printable_lines;

use crate::exit::{Failure, Result};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const NOTE: Style = AnsiColor::Yellow.on_default();

/// Prints `xact run: error: what happened`, with the hint on a line of its own.
pub fn error(command: &str, failure: &Failure) {
    anstream::eprintln!("{command}: {ERROR}error:{ERROR:#} {failure}");
}

/// Whether notes are omitted.
static QUIET: AtomicBool = AtomicBool::new(false);

pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Relaxed);
}

/// Prints a note, which is not an error, unless `-q` was given.
pub fn note(command: &str, text: &str) {
    if QUIET.load(Relaxed) {
        return;
    }
    let text = printable_lines(text);
    anstream::eprintln!("{command}: {NOTE}{text}{NOTE:#}");
}

/// Prints the result of a command on standard output. A reader that stops early (`| head`) is not
/// an error. Control characters are escaped.
pub fn print(text: &str) -> Result<()> {
    print_bytes(printable_lines(text).as_bytes())
}

/// As [`print`], for bytes that may not be text.
pub fn print_bytes(bytes: &[u8]) -> Result<()> {
    match io::stdout().write_all(bytes) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::system("write the output", e)),
        _ => Ok(()),
    }
}

/// A structure as JSON on standard output.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).expect("what is printed has plain fields");
    print_bytes(json_printable(&text).as_bytes())?;
    print("\n")
}

/// Escapes the characters that [`printable_lines`] escapes. They occur in strings only and have
/// four hexadecimal digits; JSON itself escapes those below U+0020.
fn json_printable(json: &str) -> String {
    let one = |c: char| match printable_lines(c.encode_utf8(&mut [0; 4])) {
        Cow::Borrowed(_) => c.to_string(),
        Cow::Owned(_) => format!("\\u{:04x}", u32::from(c)),
    };
    json.chars().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_json_and_commands_no_terminal() {
        let text = "a\u{9b}31m\u{202e}\u{7f}\n\u{1b} ü";
        let shown = json_printable(&serde_json::to_string_pretty(&vec![text]).unwrap());
        assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&shown).unwrap(), [text]);
    }
}
