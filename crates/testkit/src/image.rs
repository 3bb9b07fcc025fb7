//! The bytes of a device as a persistent tree of pages: copying one costs a few hundred counters,
//! changing one copies only the changed pages. Thousands of crash states share their common pages.

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

/// Bytes that are shared or copied together.
pub const PAGE_BYTES: usize = 4096;
/// Pages below one inner node.
const FANOUT: usize = 64;

#[derive(Clone)]
struct Page {
    bytes: [u8; PAGE_BYTES],
    /// Computed on first use; a changed page starts without.
    digest: OnceLock<[u64; 2]>,
}

#[derive(Clone)]
struct Node {
    /// `None` is a page of zeros.
    pages: [Option<Arc<Page>>; FANOUT],
    /// The contribution of its pages to the image's digest, at their position.
    digest: OnceLock<[u64; 2]>,
}

impl Node {
    /// The digest of a node whose first page is page `first`.
    fn digest_at(&self, first: usize) -> [u64; 2] {
        let mut sum = [0u64; 2];
        for (p, page) in self.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            let digest = page.digest.get_or_init(|| digest_page(&page.bytes));
            if *digest == [0, 0] {
                continue;
            }
            for (part, total) in sum.iter_mut().enumerate() {
                let mut hasher = DefaultHasher::new();
                hasher.write_u64((first + p) as u64);
                hasher.write_u64(digest[part]);
                *total = total.wrapping_add(hasher.finish());
            }
        }
        sum
    }
}

/// A device's contents. `clone` is cheap; the copies are independent.
#[derive(Clone)]
pub struct Image {
    size_bytes: u64,
    nodes: Vec<Arc<Node>>,
}

impl Image {
    /// `size_bytes` zeros.
    pub fn new(size_bytes: u64) -> Image {
        let nodes = (size_bytes as usize).div_ceil(PAGE_BYTES * FANOUT);
        let empty = Arc::new(Node { pages: [const { None }; FANOUT], digest: OnceLock::new() });
        Image { size_bytes, nodes: vec![empty; nodes] }
    }

    /// Reads a file; pages of zeros take no memory.
    pub fn from_file(file: &std::fs::File) -> io::Result<Image> {
        Image::new(file.metadata()?.len()).as_changed_in(file)
    }

    /// The contents of `file`, which has the same size; equal pages are shared.
    pub fn as_changed_in(&self, file: &std::fs::File) -> io::Result<Image> {
        const STEP: usize = 32 * PAGE_BYTES;
        let mut image = self.clone();
        let mut buf = vec![0; STEP];
        let mut offset = 0;
        while offset < self.size_bytes {
            let len = (self.size_bytes - offset).min(STEP as u64) as usize;
            file.read_exact_at(&mut buf[..len], offset)?;
            for bytes in buf[..len].chunks(PAGE_BYTES) {
                let known = self.page(offset as usize / PAGE_BYTES).map_or(&ZEROS, |page| &page.bytes);
                if bytes != &known[..bytes.len()] {
                    image.write(bytes, offset);
                }
                offset += bytes.len() as u64;
            }
        }
        Ok(image)
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Fills `buf` from `offset`; the range lies within the image.
    pub fn read(&self, buf: &mut [u8], offset: u64) {
        assert!(offset + buf.len() as u64 <= self.size_bytes, "read outside the image");
        for_pages(offset, buf.len(), |page, within, range| {
            let part = &mut buf[range];
            match self.page(page) {
                Some(p) => part.copy_from_slice(&p.bytes[within..within + part.len()]),
                None => part.fill(0),
            }
        });
    }

    /// Writes `data` at `offset`; the range lies within the image.
    pub fn write(&mut self, data: &[u8], offset: u64) {
        assert!(offset + data.len() as u64 <= self.size_bytes, "write outside the image");
        for_pages(offset, data.len(), |page, within, range| {
            let part = &data[range];
            let node = Arc::make_mut(&mut self.nodes[page / FANOUT]);
            node.digest = OnceLock::new();
            let slot = node.pages[page % FANOUT]
                .get_or_insert_with(|| Arc::new(Page { bytes: [0; PAGE_BYTES], digest: OnceLock::new() }));
            let slot = Arc::make_mut(slot);
            slot.digest = OnceLock::new();
            slot.bytes[within..within + part.len()].copy_from_slice(part);
        });
    }

    /// Two images have the same digest only if they hold the same bytes (with sufficient
    /// probability).
    pub fn digest(&self) -> u128 {
        let mut sum = [self.size_bytes, 0];
        for (n, node) in self.nodes.iter().enumerate() {
            let digest = node.digest.get_or_init(|| node.digest_at(n * FANOUT));
            // A sum takes the pages in any order, which makes the comparison cheap.
            sum = [0, 1].map(|part| sum[part].wrapping_add(digest[part]));
        }
        (sum[0] as u128) << 64 | sum[1] as u128
    }

    /// Pages that may differ from `other`'s, with their contents here.
    pub fn changed_since<'a>(&'a self, other: &'a Image) -> impl Iterator<Item = (u64, &'a [u8])> {
        assert_eq!(self.size_bytes, other.size_bytes, "images of different devices");
        let size = self.size_bytes;
        self.nodes.iter().zip(&other.nodes).enumerate().filter(|(_, (a, b))| !Arc::ptr_eq(a, b)).flat_map(
            move |(n, (a, b))| {
                (0..FANOUT).filter_map(move |p| {
                    let same = match (&a.pages[p], &b.pages[p]) {
                        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                        (None, None) => true,
                        _ => false,
                    };
                    let offset = ((n * FANOUT + p) * PAGE_BYTES) as u64;
                    if same || offset >= size {
                        return None;
                    }
                    let len = (size - offset).min(PAGE_BYTES as u64) as usize;
                    let bytes: &[u8] = a.pages[p].as_ref().map_or(&ZEROS, |page| &page.bytes);
                    Some((offset, &bytes[..len]))
                })
            },
        )
    }

    /// Writes the whole image to `file`, leaving holes where it is zero.
    pub fn write_to(&self, file: &std::fs::File) -> io::Result<()> {
        file.set_len(0)?;
        file.set_len(self.size_bytes)?;
        for (offset, bytes) in self.changed_since(&Image::new(self.size_bytes)) {
            file.write_all_at(bytes, offset)?;
        }
        Ok(())
    }

    fn page(&self, index: usize) -> Option<&Page> {
        self.nodes[index / FANOUT].pages[index % FANOUT].as_deref()
    }
}

static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// `[0, 0]` stands for zeros, so that a page written with zeros equals one never written.
fn digest_page(bytes: &[u8]) -> [u64; 2] {
    if bytes.iter().all(|&b| b == 0) {
        return [0, 0];
    }
    [1u64, 2].map(|salt| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(salt);
        hasher.write(bytes);
        hasher.finish().max(1)
    })
}

/// Splits a byte range at page boundaries: page, offset within it, range of the buffer.
fn for_pages(offset: u64, len: usize, mut each: impl FnMut(usize, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = offset as usize + done;
        let within = at % PAGE_BYTES;
        let part = (PAGE_BYTES - within).min(len - done);
        each(at / PAGE_BYTES, within, done..done + part);
        done += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_independent() {
        let mut a = Image::new(1 << 20);
        a.write(b"hello", 4094);
        let b = a.clone();
        a.write(b"J", 4094);
        let mut buf = [0; 5];
        a.read(&mut buf, 4094);
        assert_eq!(&buf, b"Jello");
        b.read(&mut buf, 4094);
        assert_eq!(&buf, b"hello");
        assert_eq!(a.changed_since(&b).count(), 1);
    }

    #[test]
    fn digest_tells_contents_not_history() {
        let mut a = Image::new(1 << 20);
        let mut b = a.clone();
        a.write(b"x", 5000);
        a.write(b"y", 70000);
        b.write(b"y", 70000);
        assert_ne!(a.digest(), b.digest());
        b.write(b"x", 5000);
        b.write(&[0; 100], 900_000);
        assert_eq!(a.digest(), b.digest());
        let mut moved = Image::new(1 << 20);
        moved.write(b"y", 5000);
        moved.write(b"x", 70000);
        assert_ne!(a.digest(), moved.digest());
    }

    #[test]
    fn files_and_images_agree() {
        let mut a = Image::new(10_240);
        a.write(b"end", 10_237);
        let file = tempfile::tempfile().unwrap();
        a.write_to(&file).unwrap();
        assert_eq!(Image::from_file(&file).unwrap().digest(), a.digest());
        let mut b = a.clone();
        b.write(&[0; 3], 10_237);
        b.write(b"begin", 0);
        let read = b.as_changed_in(&file).unwrap();
        assert_eq!(read.digest(), a.digest());
        assert_eq!(read.changed_since(&b).count(), 2);
    }
}
