//! Makes text from other sources safe for a terminal and a log.
//!
//! Names, labels and paths of a volume may hold any byte. Printed unchanged, a newline forges a
//! line of a log, an escape sequence takes over a terminal, and a bidirectional override shows a
//! name in another order.

use std::borrow::Cow;

/// The text on one line: control characters, line separators and bidirectional controls are escaped
/// (`\n`, `\u{1b}`), all others stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, is_unsafe)
}

/// As [`printable`], for bytes in any encoding; invalid UTF-8 becomes U+FFFD.
pub fn printable_bytes(bytes: &[u8]) -> String {
    printable(&String::from_utf8_lossy(bytes)).into_owned()
}

/// As [`printable`], for a text whose own lines and tabs stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_unsafe(c) && !matches!(c, '\n' | '\t'))
}

fn is_unsafe(c: char) -> bool {
    let reorders = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || reorders || matches!(c, '\u{2028}' | '\u{2029}')
}

fn escape(text: &str, is_unsafe: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            safe.extend(c.escape_debug());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_controls_and_line_breaks_are_escaped() {
        assert_eq!(printable("a\nxact: forged \x1b[31m"), r"a\nxact: forged \u{1b}[31m");
        assert_eq!(printable("\u{202e}txt.exe"), r"\u{202e}txt.exe");
        assert_eq!(printable("\u{9b}31m\u{2028}\r\0"), r"\u{9b}31m\u{2028}\r\0");
        assert_eq!(printable_bytes(b"\xff\x07"), "\u{fffd}\\u{7}");
        assert!(matches!(printable("Grüße, 日本 \"quoted\" \\n"), Cow::Borrowed(_)));
        assert_eq!(printable_lines("one\n\ttwo\x1b"), "one\n\ttwo\\u{1b}");
    }
}
