//! Extent trees and block maps of xact are valid for e2fsck and the kernel, and those of the kernel
//! are read and changed by xact.

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use common::Image;
use common::mount::Mount;
use common::volume::{Volume, debugfs, ino_of};
use xact_consistency::Handle;
use xact_fs::alloc::Purpose;
use xact_fs::extent::{Extents, Mapping, Owner, Progress};
use xact_layout::extent::END_OF_FILES;
use xact_layout::inode::Inode;
use xact_types::{BlockNr, Errno, Error, FileBlock, Ino, Run};

const OPTIONS: &[(&str, &[&str])] = &[
    ("1 KiB blocks", &["-b", "1024"]),
    ("2 KiB blocks", &["-b", "2048"]),
    ("4 KiB blocks, csum_seed", &["-b", "4096", "-O", "metadata_csum_seed"]),
    ("no checksums", &["-b", "1024", "-O", "^metadata_csum"]),
    ("no 64bit", &["-b", "1024", "-O", "^64bit"]),
];

struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32 % end
    }
}

/// One open file of a volume.
struct Opened<'v> {
    volume: &'v Volume,
    ino: Ino,
    inode: Inode,
}

impl<'v> Opened<'v> {
    fn open(volume: &'v Volume, ino: Ino) -> Opened<'v> {
        Opened { volume, ino, inode: volume.inodes.read(ino).unwrap() }
    }

    fn extents(&self) -> Extents<'v> {
        let owner = Owner { ino: self.ino, generation: self.inode.generation() };
        Extents::new(&self.volume.engine, self.volume.sb(), &self.volume.alloc, owner)
    }

    fn block_size(&self) -> usize {
        self.volume.sb().block_size() as usize
    }

    fn map(&self, at: u32) -> Mapping {
        self.extents().map(&self.inode, FileBlock(at)).unwrap()
    }

    fn depth(&self) -> u16 {
        u16::from_le_bytes(self.inode.block_area()[6..8].try_into().unwrap())
    }

    /// Takes, links and inserts blocks from `at` on; written ones get contents.
    fn insert(&mut self, at: u32, len: u32, unwritten: bool) {
        let (alloc, mut at, end) = (&self.volume.alloc, at, at + len);
        while at < end {
            let purpose = Purpose::Data { privileged: true };
            let run = alloc.take(alloc.goal_for(self.ino), end - at, purpose, None).unwrap();
            if !unwritten {
                for i in 0..run.len {
                    let data = contents(at + i, self.block_size());
                    let block = run.start.offset(i.into());
                    self.volume.engine.write_data(block, &[IoSlice::new(&data)]).unwrap();
                }
            }
            let credits = self.extents().credits_insert(&self.inode, 1, run.len) + alloc.credits_for(run.len);
            let mut handle = self.volume.begin(credits);
            alloc.link(&mut handle, run).unwrap();
            self.extents().insert(&mut handle, &mut self.inode, FileBlock(at), run, unwritten).unwrap();
            at += run.len;
        }
    }

    fn remove(&mut self, from: u32, to: u32) {
        let mut handle = self.volume.begin(self.extents().credits_remove(&self.inode));
        let free = &mut |handle: &mut Handle, run: Run| self.volume.alloc.free(handle, run, None);
        let range = FileBlock(from)..FileBlock(to);
        let progress = self.extents().remove(&mut handle, &mut self.inode, range, free).unwrap();
        assert_eq!(progress, Progress::Done);
    }

    fn set_written(&mut self, from: u32, to: u32) {
        let mut handle = self.volume.begin(self.extents().credits_set_written(&self.inode));
        let range = FileBlock(from)..FileBlock(to);
        let progress = self.extents().set_written(&mut handle, &mut self.inode, range).unwrap();
        assert_eq!(progress, Progress::Done);
    }

    /// Reads the first `len` bytes through the mappings.
    fn read(&self, len: usize) -> Vec<u8> {
        let block_size = self.block_size();
        let mut bytes = vec![0; len.next_multiple_of(block_size)];
        let blocks = (bytes.len() / block_size) as u32;
        let mut at = 0;
        while at < blocks {
            let mapping = self.map(at);
            let count = mapping.blocks().min(blocks - at);
            if let Mapping::Written { start, .. } = mapping {
                let buf = &mut bytes[at as usize * block_size..(at + count) as usize * block_size];
                self.volume.engine.read_data(start, buf).unwrap();
            }
            at += count;
        }
        bytes.truncate(len);
        bytes
    }

    fn save(&self) {
        self.volume.write_inode(self.ino, &self.inode);
    }
}

/// Contents that identify a block.
fn contents(at: u32, block_size: usize) -> Vec<u8> {
    (at + 1).to_le_bytes().repeat(block_size / 4)
}

#[test]
fn trees_of_xact_are_valid_for_e2fsck_and_the_kernel() {
    for (seed, (name, options)) in OPTIONS.iter().enumerate() {
        println!("{name}");
        let image = Image::mke2fs(64 << 20, options);
        debugfs(&image, &["write /dev/null file"]);
        let volume = Volume::open(image);
        let mut file = Opened::open(&volume, ino_of(&volume.image, "file"));
        let block_size = file.block_size();
        let mut random = Random(seed as u64);
        // For each mapped file block, whether it is written.
        let mut model: BTreeMap<u32, bool> = BTreeMap::new();
        for _ in 0..4000 {
            let from = random.below(8000);
            let to = from + 1 + random.below(3);
            match random.below(10) {
                0..6 => {
                    let unwritten = random.below(2) == 0;
                    let to = model.range(from..to).next().map_or(to, |(&used, _)| used);
                    if from < to {
                        file.insert(from, to - from, unwritten);
                        model.extend((from..to).map(|at| (at, !unwritten)));
                    }
                }
                6..8 => {
                    for at in from..to {
                        if let Some(written @ false) = model.get_mut(&at) {
                            let (Mapping::Unwritten { start, .. }, data) =
                                (file.map(at), contents(at, block_size))
                            else {
                                panic!("file block {at} is unwritten");
                            };
                            volume.engine.write_data(start, &[IoSlice::new(&data)]).unwrap();
                            *written = true;
                        }
                    }
                    file.set_written(from, to);
                }
                _ => {
                    file.remove(from, to);
                    model.retain(|at, _| !(from..to).contains(at));
                }
            }
        }
        assert!(file.depth() >= 1, "the tree has nodes outside of the inode");
        let size = 8004 * block_size;
        file.inode.set_size(size as u64);
        file.save();
        let mut expected = vec![0; size];
        for at in model.iter().filter(|(_, written)| **written).map(|(at, _)| *at) {
            let from = at as usize * block_size;
            expected[from..from + block_size].copy_from_slice(&contents(at, block_size));
        }
        assert!(file.read(size) == expected, "we read what we wrote");
        let image = volume.close();

        let mount = Mount::new(&image);
        assert!(std::fs::read(mount.path("file")).unwrap() == expected, "the kernel reads what we wrote");
        // The kernel changes the tree.
        let kernel = File::options().write(true).open(mount.path("file")).unwrap();
        for at in (0..8000).step_by(7) {
            kernel.write_all_at(&contents(at, block_size), u64::from(at) * block_size as u64).unwrap();
            let from = at as usize * block_size;
            expected[from..from + block_size].copy_from_slice(&contents(at, block_size));
        }
        drop(kernel);
        mount.unmount();
        image.assert_clean();

        let volume = Volume::open(image);
        let mut file = Opened::open(&volume, ino_of(&volume.image, "file"));
        assert!(file.read(size) == expected, "we read what the kernel wrote");
        file.remove(0, END_OF_FILES.0);
        assert_eq!(file.inode.sectors(volume.sb()), 0);
        file.inode.set_size(0);
        file.save();
        volume.close();
    }
}

/// Creates a fragmented file with the kernel, and returns its contents.
fn fragmented_by_the_kernel(image: &Image, block_size: usize, blocks: u32) -> Vec<u8> {
    let mount = Mount::new(image);
    let mut file = File::options().read(true).write(true).create_new(true).open(mount.path("file")).unwrap();
    let all: Vec<u8> = (0..blocks).flat_map(|at| contents(at, block_size)).collect();
    file.write_all(&all).unwrap();
    file.sync_all().unwrap();
    let fallocate = |mode: i32, at: u32, len: u32| {
        let (at, len) = (i64::from(at) * block_size as i64, i64::from(len) * block_size as i64);
        // SAFETY: the descriptor is open, and fallocate takes no pointers.
        let status = unsafe { libc::fallocate(file.as_raw_fd(), mode, at, len) };
        assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    };
    for at in (0..blocks).step_by(2) {
        if at % 10 != 4 {
            fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, at, 1);
        }
    }
    file.sync_all().unwrap();
    // Unwritten extents, in holes and past the end.
    for at in (0..blocks).step_by(30) {
        fallocate(0, at, 1);
    }
    fallocate(libc::FALLOC_FL_KEEP_SIZE, blocks + 10, 100);
    file.sync_all().unwrap();
    drop(file);
    std::fs::read(mount.path("file")).unwrap()
}

#[test]
fn fragmented_trees_of_the_kernel_are_read_and_removed() {
    for (options, blocks, depth) in [
        (&["-b", "1024"][..], 40_000, 2),
        (&["-b", "4096"][..], 6000, 1),
        (&["-b", "1024", "-O", "^metadata_csum"][..], 6000, 1),
    ] {
        let image = Image::mke2fs(96 << 20, options);
        let block_size = image.superblock().block_size() as usize;
        let mut expected = fragmented_by_the_kernel(&image, block_size, blocks);
        let volume = Volume::open(image);
        let mut file = Opened::open(&volume, ino_of(&volume.image, "file"));
        assert!(file.depth() >= depth, "the kernel's tree has depth {}", file.depth());
        assert!(file.read(expected.len()) == expected, "we read what the kernel wrote");
        assert!(matches!(file.map(0), Mapping::Unwritten { len: 1, .. }));
        assert!(matches!(file.map(2), Mapping::Hole { len: 1 }));
        for at in blocks + 10..blocks + 110 {
            assert!(matches!(file.map(at), Mapping::Unwritten { .. }), "{at} lies beyond the end");
        }
        assert_eq!(file.map(blocks + 110), Mapping::Hole { len: END_OF_FILES.0 - blocks - 110 });

        let mut count = 0;
        let range = FileBlock(0)..END_OF_FILES;
        file.extents()
            .iterate(&file.inode, range, &mut |e| {
                Ok({
                    count += e.run.len;
                    true
                })
            })
            .unwrap();
        let in_tree = u64::from(count) * block_size as u64 / 512;
        assert!(file.inode.sectors(volume.sb()) > in_tree, "i_blocks counts the nodes too");

        // Punch a hole in the middle, then truncate to a third.
        let (hole, cut) = (blocks / 10..blocks / 5, blocks / 3);
        file.remove(hole.start, hole.end);
        expected[hole.start as usize * block_size..hole.end as usize * block_size].fill(0);
        file.remove(cut, END_OF_FILES.0);
        expected.truncate(cut as usize * block_size);
        file.inode.set_size(expected.len() as u64);
        file.save();
        let image = volume.close();
        let mount = Mount::new(&image);
        assert!(std::fs::read(mount.path("file")).unwrap() == expected, "the kernel reads what is left");
        std::fs::remove_file(mount.path("file")).unwrap();
        mount.unmount();
        image.assert_clean();
    }
}

#[test]
fn block_maps_are_read_extended_and_removed() {
    for options in [&["-b", "1024", "-O", "^extents,^64bit"][..], &["-b", "4096", "-O", "^extents,^64bit"]] {
        let image = Image::mke2fs(160 << 20, options);
        let block_size = image.superblock().block_size() as usize;
        let per_array = block_size as u32 / 4;
        // Runs in the direct blocks and below each of the three indirect ones.
        let (double, triple) = (12 + per_array, 12 + per_array + per_array * per_array);
        let mut runs = vec![(0, 5), (10, 40), (double, 3 * per_array), (double + 7 * per_array + 9, 20)];
        if block_size == 1024 {
            runs.push((triple - 5, 300));
        }
        let mount = Mount::new(&image);
        let kernel = File::create(mount.path("file")).unwrap();
        for (at, len) in runs.iter().copied() {
            let data: Vec<u8> = (at..at + len).flat_map(|at| contents(at, block_size)).collect();
            kernel.write_all_at(&data, u64::from(at) * block_size as u64).unwrap();
        }
        drop(kernel);
        let mut expected = std::fs::read(mount.path("file")).unwrap();
        mount.unmount();

        let volume = Volume::open(image);
        let mut file = Opened::open(&volume, ino_of(&volume.image, "file"));
        assert!(file.read(expected.len()) == expected, "we read what the kernel wrote");
        assert_eq!(file.map(5), Mapping::Hole { len: 5 });
        assert!(matches!(file.map(10), Mapping::Written { .. }));
        let mut handle = volume.begin(20);
        let one = Run { start: BlockNr(5000), len: 1 };
        let refused = file.extents().insert(&mut handle, &mut file.inode, FileBlock(7), one, true);
        assert!(matches!(refused, Err(Error::Posix(Errno::EOPNOTSUPP))), "{refused:?}");
        drop(handle);
        // In the inode, below an existing array, and below new ones.
        for (at, len) in [(5, 5), (50, 100), (double + 4 * per_array - 7, 50)] {
            file.insert(at, len, false);
            let data: Vec<u8> = (at..at + len).flat_map(|at| contents(at, block_size)).collect();
            expected[at as usize * block_size..(at + len) as usize * block_size].copy_from_slice(&data);
        }

        let hole = double + 10..double + 2 * per_array + 30;
        file.remove(hole.start, hole.end);
        expected[hole.start as usize * block_size..hole.end as usize * block_size].fill(0);
        let cut = double + 7 * per_array + 12;
        file.remove(cut, END_OF_FILES.0);
        expected.truncate(cut as usize * block_size);
        file.inode.set_size(expected.len() as u64);
        file.save();
        let image = volume.close();
        let mount = Mount::new(&image);
        assert!(std::fs::read(mount.path("file")).unwrap() == expected, "the kernel reads what is left");
        mount.unmount();

        let volume = Volume::open(image);
        let mut file = Opened::open(&volume, ino_of(&volume.image, "file"));
        file.remove(0, END_OF_FILES.0);
        assert_eq!(file.inode.sectors(volume.sb()), 0);
        assert_eq!(file.inode.block_area(), &[0; 60]);
        file.inode.set_size(0);
        file.save();
        volume.close();
    }
}
