//! The table of mounts, line by line, in a buffer of fixed size.

use crate::path::{Path, number};
use crate::refusal::{Refusal, Result};
use crate::sys::{self, Descriptor};

/// Two escaped paths of the longest kind, and options.
const BUFFER: usize = 40 << 10;

/// One line. The paths are escaped.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub id: u64,
    pub parent: u64,
    pub device: (u32, u32),
    /// The folder of the file system that is mounted.
    pub root: &'a [u8],
    pub point: &'a [u8],
    pub fs_type: &'a [u8],
}

impl Entry<'_> {
    /// Whether the server of the mount is xact. Ordinary users can give a mount of their own any
    /// such type.
    pub fn is_xact(&self) -> bool {
        matches!(self.fs_type, b"fuse.xact" | b"fuseblk.xact")
    }

    /// Whether it shows something that xact itself provides, as a view.
    pub fn is_view(&self) -> bool {
        crate::path::is_in(self.root, b"/.xact")
    }

    pub fn point(&self) -> Result<Path> {
        Path::unescape(self.point).filter(Path::is_absolute).ok_or(UNREADABLE)
    }
}

const UNREADABLE: Refusal = Refusal::new("the table of mounts has a line that it cannot read");

/// Calls `action` for each mount of this namespace. An error of it ends the walk.
pub fn each(mut action: impl FnMut(&Entry<'_>) -> Result<()>) -> Result<()> {
    let table = sys::open_proc(c"self/mountinfo")?;
    let mut buffer = [0; BUFFER];
    let mut filled = 0;
    loop {
        let read = read(&table, &mut buffer[filled..])?;
        filled += read;
        let mut begin = 0;
        while let Some(length) = buffer[begin..filled].iter().position(|&byte| byte == b'\n') {
            action(&parse(&buffer[begin..begin + length]).ok_or(UNREADABLE)?)?;
            begin += length + 1;
        }
        if read == 0 {
            // The last line ends with a newline, so nothing may be left.
            return if begin == filled { Ok(()) } else { Err(UNREADABLE) };
        }
        buffer.copy_within(begin..filled, 0);
        filled -= begin;
        if filled == buffer.len() {
            return Err(UNREADABLE);
        }
    }
}

fn read(table: &Descriptor, buffer: &mut [u8]) -> Result<usize> {
    sys::read(table, buffer).map_err(|error| Refusal::system("read the table of mounts", error))
}

fn parse(line: &[u8]) -> Option<Entry<'_>> {
    let mut words = line.split(|&byte| byte == b' ');
    let id = number(words.next()?)?;
    let parent = number(words.next()?)?;
    let device = words.next()?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    let device = (number(&device[..colon])?, number(&device[colon + 1..])?);
    let root = words.next()?;
    let point = words.next()?;
    let fs_type = words.skip_while(|word| *word != b"-").nth(1)?;
    Some(Entry { id, parent, device, root, point, fs_type })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line =
            br"221 31 0:87 /sub /mnt/my\040volume rw,nosuid shared:7 master:1 - fuse.xact /a\134b.img rw,user_id=0";
        let entry = parse(line).unwrap();
        assert_eq!((entry.id, entry.parent, entry.device), (221, 31, (0, 87)));
        assert_eq!((entry.root, entry.point), (&b"/sub"[..], &br"/mnt/my\040volume"[..]));
        assert!(entry.is_xact() && !entry.is_view());
        assert_eq!(entry.point().unwrap().as_bytes(), b"/mnt/my volume");
    }

    #[test]
    fn other_types_and_views_are_told_apart() {
        let parsed = |line: &'static [u8]| parse(line).unwrap();
        assert!(!parsed(b"1 2 0:1 / /mnt rw - fuse.xactx x rw").is_xact());
        assert!(!parsed(b"1 2 0:1 / /mnt rw - fuse xact rw").is_xact());
        assert!(parsed(b"1 2 0:1 / /mnt rw - fuseblk.xact x rw").is_xact());
        assert!(parsed(b"1 2 0:1 /.xact/tx/3/root /mnt rw - fuse.xact x rw").is_view());
        assert!(!parsed(b"1 2 0:1 /.xact2 /mnt rw - fuse.xact x rw").is_view());
    }

    #[test]
    fn broken_lines_are_refused() {
        for line in
            [&b""[..], b"12", b"x 2 0:1 / / rw - ext4 x", b"1 2 0 / / rw - fuse x", b"1 2 0:1 / / rw -"]
        {
            assert_eq!(parse(line), None);
        }
    }

    #[test]
    fn the_own_table_is_read() {
        let mut count = 0_usize;
        each(|entry| {
            count += 1;
            entry.point().map(|_| ())
        })
        .unwrap();
        let lines = std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
        assert!(count > 0 && count.abs_diff(lines) < 20, "{count} of {lines}");
        let refusal = Refusal::new("stop");
        assert_eq!(each(|_| Err(refusal)), Err(refusal));
    }
}
