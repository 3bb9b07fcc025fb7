//! A process's mappings of files on the volume.
//!
//! They can't be moved into a view. The kernel returns the relevant ones one by one
//! (`PROCMAP_QUERY`, Linux 6.11). On earlier kernels the whole table is read. For a program with
//! many libraries that takes longer than the preparation of a small commit.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;

use crate::mount::Mount;
use crate::{Error, Result};

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 0xc000_6611 | (size_of::<Query>() as libc::c_ulong) << 16;
const WRITABLE: u64 = 0x02;
const SHARED: u64 = 0x08;
/// The mapping at the address, or the next one of this kind.
const COVERING_OR_NEXT: u64 = 0x10;
const FILE_BACKED: u64 = 0x20;

/// A shared and writable mapping of a file.
#[derive(PartialEq)]
pub struct Mapping {
    range: (u64, u64),
    device: (u32, u32),
    inode: u64,
    path: String,
}

/// Refuses if the process has mappings through which it could change files of the volume outside of
/// the transaction.
pub fn check(mount: &Mount) -> Result<()> {
    all(mount)?.first().map_or(Ok(()), |mapping| Err(mapping.refuse()))
}

/// The mappings through which the process could change files of the volume. Mappings of files in
/// views do not count: they are part of a transaction of their own, or end with it.
pub fn all(mount: &Mount) -> Result<Vec<Mapping>> {
    let wrong = |e| Error::system("read the table of mappings", e);
    let table = File::open("/proc/thread-self/maps").map_err(wrong)?;
    let found = match asked(&table, mount.device) {
        // An earlier kernel, or a path that is too long for it.
        Err(_) => read(table, mount.device),
        found => found,
    };
    let mut found = found.map_err(wrong)?;
    found.retain(|mapping| mapping.inode <= u64::from(u32::MAX));
    Ok(found)
}

impl Mapping {
    pub fn refuse(&self) -> Error {
        let (start, end) = self.range;
        Error::Busy {
            what: format!("a writable mapping of a file on the volume ({}, at {start:x}-{end:x})", self.path),
            hint: "Stores into it would not be part of the transaction: unmap it first.".into(),
        }
    }
}

/// The mappings of files on a device, by queries.
fn asked(table: &File, device: (u32, u32)) -> io::Result<Vec<Mapping>> {
    let mut found = Vec::new();
    let mut from = 0;
    loop {
        let mut name = [0; libc::PATH_MAX as usize];
        let mut query = Query {
            size: size_of::<Query>() as u64,
            query_flags: WRITABLE | SHARED | COVERING_OR_NEXT | FILE_BACKED,
            query_addr: from,
            vma_name_size: name.len() as u32,
            vma_name_addr: name.as_mut_ptr() as u64,
            ..Query::default()
        };
        // SAFETY: the kernel reads and writes a struct whose size is in it, and at most the number
        // of name bytes that is in it; both outlive the call.
        if unsafe { libc::ioctl(table.as_raw_fd(), PROCMAP_QUERY, &mut query) } < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ENOENT) { Ok(found) } else { Err(error) };
        }
        if (query.dev_major, query.dev_minor) == device {
            let len = (query.vma_name_size as usize).saturating_sub(1).min(name.len());
            let path = String::from_utf8_lossy(&name[..len]).into_owned();
            let range = (query.vma_start, query.vma_end);
            found.push(Mapping { range, device, inode: query.inode, path });
        }
        from = query.vma_end;
    }
}

/// The same, from the text of the table.
fn read(mut table: File, device: (u32, u32)) -> io::Result<Vec<Mapping>> {
    let mut text = Vec::with_capacity(64 << 10);
    table.read_to_end(&mut text)?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse).filter(|mapping| mapping.device == device).collect())
}

/// Parses a line; `None` unless it describes a shared and writable mapping.
fn parse(line: &[u8]) -> Option<Mapping> {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split_ascii_whitespace();
    let number = |word: &str| u64::from_str_radix(word, 16).ok();
    let (start, end) = words.next()?.split_once('-')?;
    let access = words.next()?.as_bytes();
    let _offset = words.next()?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode = words.next()?.parse().ok()?;
    let shared_and_writable = access.get(1) == Some(&b'w') && access.get(3) == Some(&b's');
    shared_and_writable.then_some(Mapping {
        range: (number(start)?, number(end)?),
        device: (number(major)? as u32, number(minor)? as u32),
        inode,
        path: words.collect::<Vec<_>>().join(" "),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::ptr;

    use super::*;

    /// Both ways find a shared, writable mapping and no other.
    #[test]
    fn writable_shared_mappings_are_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let number = file.as_file().metadata().unwrap().dev();
        let device = (libc::major(number), libc::minor(number));
        let map = |access, sharing| {
            // SAFETY: a new mapping at an address that the kernel chooses.
            let at =
                unsafe { libc::mmap(ptr::null_mut(), 4096, access, sharing, file.as_file().as_raw_fd(), 0) };
            assert_ne!(at, libc::MAP_FAILED);
            at
        };
        let unmap = |at| {
            // SAFETY: no reference to the mapping exists.
            assert_eq!(unsafe { libc::munmap(at, 4096) }, 0);
        };
        let table = || File::open("/proc/thread-self/maps").unwrap();
        let by_text = || read(table(), device).unwrap();
        let by_question = || match asked(&table(), device) {
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => {
                println!("this kernel has no PROCMAP_QUERY");
                by_text()
            }
            found => found.unwrap(),
        };
        let harmless = [
            map(libc::PROT_READ, libc::MAP_SHARED),
            map(libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE),
        ];
        assert!(by_text().is_empty() && by_question().is_empty());
        let shared = map(libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        for found in [by_text(), by_question()] {
            let [found] = &found[..] else { panic!("one mapping") };
            assert_eq!(found.range, (shared as u64, shared as u64 + 4096));
            assert_eq!(found.path, file.path().to_str().unwrap());
        }
        unmap(shared);
        assert!(by_text().is_empty() && by_question().is_empty());
        harmless.into_iter().for_each(unmap);
    }
}
