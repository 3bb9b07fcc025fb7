//! Paths and numbers from the caller and from the kernel's tables, without an allocation.

use std::ffi::CStr;
use std::fmt;

/// A path of at most `PATH_MAX - 1` bytes, without a zero byte.
#[derive(Clone, Copy)]
pub struct Path {
    /// Ends with a zero byte.
    bytes: [u8; libc::PATH_MAX as usize],
    len: usize,
}

impl Path {
    /// `None`: it is empty, too long, or has a zero byte.
    pub fn new(text: &[u8]) -> Option<Path> {
        let mut path = Path { bytes: [0; libc::PATH_MAX as usize], len: 0 };
        text.iter().try_for_each(|&byte| path.push(byte))?;
        (path.len > 0).then_some(path)
    }

    /// A path of mountinfo: space, tab, newline, `#` and backslash are octal escapes.
    pub fn unescape(text: &[u8]) -> Option<Path> {
        let mut path = Path { bytes: [0; libc::PATH_MAX as usize], len: 0 };
        let mut rest = text;
        while let [first, tail @ ..] = rest {
            match (first, tail) {
                (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                    path.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))?;
                    rest = after;
                }
                (b'\\', _) => return None,
                _ => {
                    path.push(*first)?;
                    rest = tail;
                }
            }
        }
        (path.len > 0).then_some(path)
    }

    fn push(&mut self, byte: u8) -> Option<()> {
        if byte == 0 || self.len + 1 >= self.bytes.len() {
            return None;
        }
        self.bytes[self.len] = byte;
        self.len += 1;
        Some(())
    }

    /// `.xact/tx/ID/NAME`, from the root of a volume; without a name, the folder above.
    pub fn of_transaction(id: u64, name: &str) -> Option<Path> {
        let mut path = Path::new(b".xact/tx/")?;
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = id;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        digits[at..].iter().chain(name.as_bytes()).try_for_each(|&byte| path.push(byte))?;
        Some(path)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("the last byte is zero")
    }

    pub fn is_absolute(&self) -> bool {
        self.as_bytes().first() == Some(&b'/')
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(self.as_bytes()), f)
    }
}

/// Whether `path` is `folder`, or below it. Both are absolute and have no `.`, `..` or empty parts.
pub fn is_in(path: &[u8], folder: &[u8]) -> bool {
    match path.strip_prefix(folder) {
        Some(rest) => folder == b"/" || matches!(rest, [] | [b'/', ..]),
        None => false,
    }
}

/// A decimal number of digits only.
pub fn number<N: TryFrom<u64>>(text: &[u8]) -> Option<N> {
    if text.is_empty() {
        return None;
    }
    let number = text.iter().try_fold(0u64, |number, byte| match byte {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    });
    N::try_from(number?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: Option<Path>) -> Option<String> {
        path.map(|path| String::from_utf8(path.as_bytes().to_vec()).unwrap())
    }

    #[test]
    fn numbers_are_digits_only() {
        assert_eq!(number::<u64>(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(number::<i32>(b"007"), Some(7));
        for text in [&b""[..], b"-1", b"+1", b" 1", b"1 ", b"0x1", b"18446744073709551616"] {
            assert_eq!(number::<u64>(text), None);
        }
        assert_eq!(number::<i32>(b"2147483648"), None);
    }

    #[test]
    fn escapes_are_those_of_mountinfo() {
        assert_eq!(shown(Path::unescape(br"/a\040b\134c\012d")).as_deref(), Some("/a b\\c\nd"));
        for text in [&br"/a\"[..], br"/a\04", br"/a\400", br"/a\000", b"", b"/a\0b"] {
            assert_eq!(shown(Path::unescape(text)), None, "{text:?}");
        }
    }

    #[test]
    fn long_paths_are_refused_and_not_cut() {
        let longest = vec![b'/'; libc::PATH_MAX as usize - 1];
        assert_eq!(Path::new(&longest).unwrap().as_c_str().to_bytes(), longest);
        assert!(Path::unescape(&longest).is_some());
        let longer = vec![b'/'; libc::PATH_MAX as usize];
        assert!(Path::new(&longer).is_none() && Path::unescape(&longer).is_none());
    }

    #[test]
    fn paths_of_transactions() {
        assert_eq!(shown(Path::of_transaction(0, "/root")).as_deref(), Some(".xact/tx/0/root"));
        assert_eq!(
            shown(Path::of_transaction(u64::MAX, "")).as_deref(),
            Some(".xact/tx/18446744073709551615")
        );
    }

    #[test]
    fn folders_contain_what_is_below_them() {
        for (path, folder, inside) in [
            ("/etc", "/etc", true),
            ("/etc/x", "/etc", true),
            ("/etcetera", "/etc", false),
            ("/", "/etc", false),
            ("/mnt", "/", true),
            ("/", "/", true),
        ] {
            assert_eq!(is_in(path.as_bytes(), folder.as_bytes()), inside, "{path} in {folder}");
        }
    }
}
