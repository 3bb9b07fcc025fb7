//! Tags: the pieces of which contents of files consist. Each is written once, so a process that has
//! seen a tag has seen that write.
//!
//! A tag is `<`, nine digits and `>`; in an atomic write, `[`, nine letters and `]`. The two have
//! no byte in common: a byte that is stored through a mapping over the same byte of an open atomic
//! write is part of the latter (docs/SECURITY.md).

const LEN: usize = 11;

pub fn text(number: u64) -> String {
    format!("<{number:09}>")
}

/// `len` bytes of one tag.
pub fn contents(number: u64, len: usize) -> Vec<u8> {
    text(number).bytes().cycle().take(len).collect()
}

/// `len` bytes of one tag of an atomic write.
pub fn atomic_contents(number: u64, len: usize) -> Vec<u8> {
    let letter = |byte: u8| match byte {
        b'<' => b'[',
        b'>' => b']',
        digit => digit - b'0' + b'a',
    };
    text(number).bytes().map(letter).cycle().take(len).collect()
}

/// The tags in some bytes.
pub fn all(bytes: &[u8]) -> std::collections::BTreeSet<u64> {
    let parse = |piece: &[u8]| {
        let (zero, inner) = match piece {
            [b'<', inner @ .., b'>'] => (b'0', inner),
            [b'[', inner @ .., b']'] => (b'a', inner),
            _ => return None,
        };
        inner.iter().try_fold(0, |number, byte| {
            let digit = byte.checked_sub(zero).filter(|digit| *digit < 10)?;
            Some(number * 10 + u64::from(digit))
        })
    };
    bytes.windows(LEN).filter_map(parse).collect()
}
