//! Real volumes for the tests: made by mke2fs, mounted by the kernel, changed by debugfs, checked
//! by e2fsck.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use xact_consistency::test_engine::TestEngine;
use xact_consistency::{Engine, Handle};
use xact_device::{BlockDevice, FileDevice, MemoryDevice, OpenMode};
use xact_layout::extent::END_OF_FILES;
use xact_layout::group::GroupDesc;
use xact_layout::inode::{Inode, flag};
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_types::{BlockNr, FileBlock, GroupNr, Ino, Result, Run};

use super::support::{Sample, TestBlocks};
use crate::extent::{Extents, Owner};
use crate::metadata_blocks::MetadataBlocks;

/// Blocks that a rehearsed change may append.
const REHEARSAL_BLOCKS: u64 = 5000;

/// Runs a program; the test fails if it fails.
fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {args:?}: {output:#?}");
    output
}

/// Retries an action for a while. A process that another test's thread starts has our descriptors
/// open until its exec, which keeps mounts busy and images locked.
fn patiently<R>(action: impl Fn() -> Option<R>) -> Option<R> {
    (0..100).find_map(|_| {
        let result = action();
        if result.is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
        result
    })
}

/// An image file; the drop deletes it.
pub struct Image {
    folder: TempDir,
    path: PathBuf,
}

/// A mounted image; unmounts when dropped, in a panic too.
struct Mounted<'a> {
    point: &'a Path,
    image: &'a str,
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let succeeds = |output: &Output| output.status.success();
        let unmounted = patiently(|| Command::new("umount").arg(self.point).output().ok().filter(succeeds));
        // A mount namespace that a process has created in between keeps the mount, and the image,
        // for longer.
        let detached = patiently(|| {
            let devices = Command::new("losetup").args(["-j", self.image]).output().ok()?;
            devices.stdout.is_empty().then_some(())
        });
        let done = unmounted.is_some() && detached.is_some();
        assert!(done || std::thread::panicking(), "umount {:?}", self.point);
    }
}

/// A source of blocks for reading extents, which takes none.
struct NoBlocks;

impl MetadataBlocks for NoBlocks {
    fn take(&self, _goal: BlockNr) -> Result<BlockNr> {
        unreachable!("extents are only read")
    }
    fn give_back(&self, _block: BlockNr) {}
    fn link(&self, _handle: &mut Handle, _block: BlockNr) -> Result<()> {
        unreachable!("extents are only read")
    }
    fn is_usable(&self, _run: Run) -> Result<bool> {
        Ok(true)
    }
    fn free(&self, _handle: &mut Handle, _block: BlockNr) -> Result<()> {
        unreachable!("extents are only read")
    }
}

impl Image {
    pub fn make(size_mib: u64, mke2fs: &[&str]) -> Image {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("image");
        let file = std::fs::File::create(&path).expect("image file");
        file.set_len(size_mib << 20).expect("size of the image");
        std::fs::create_dir(folder.path().join("mount")).expect("mount point");
        let image = Image { folder, path };
        run("mke2fs", &[&["-q", "-t", "ext4"], mke2fs, &[image.path()]].concat());
        image
    }

    fn path(&self) -> &str {
        self.path.to_str().expect("temporary paths are UTF-8")
    }

    pub fn tune2fs(&self, args: &[&str]) {
        run("tune2fs", &[args, &[self.path()]].concat());
    }

    /// Runs debugfs requests that change the image.
    pub fn debugfs(&self, requests: &[String]) {
        let script = self.folder.path().join("requests");
        std::fs::write(&script, requests.join("\n")).expect("requests");
        let output = run("debugfs", &["-w", "-f", script.to_str().expect("UTF-8"), self.path()]);
        // debugfs prints errors and continues.
        let errors: Vec<String> = String::from_utf8_lossy(&output.stderr)
            .lines()
            .filter(|line| !line.starts_with("debugfs 1."))
            .map(str::to_string)
            .collect();
        assert!(errors.is_empty(), "debugfs: {errors:?}");
    }

    pub fn fsck(&self) {
        run("e2fsck", &["-fn", self.path()]);
    }

    /// Runs `work` while the kernel has the volume mounted.
    pub fn mounted<R>(&self, work: impl FnOnce(&Path) -> R) -> R {
        let point = self.folder.path().join("mount");
        run("mount", &["-o", "loop", self.path(), point.to_str().expect("UTF-8")]);
        let mounted = Mounted { point: &point, image: self.path() };
        let result = work(mounted.point);
        drop(mounted);
        result
    }

    /// Opens the directory `ino` on the image itself.
    pub fn open(&self, ino: Ino) -> Sample {
        let device = patiently(|| FileDevice::open(&self.path, OpenMode::ReadWrite).ok()).expect("image");
        open(Arc::new(device), ino)
    }

    /// Looks up a name in the root directory.
    pub fn find(&self, name: &str) -> Ino {
        self.open(Ino::ROOT).lookup(name.as_bytes()).expect("lookup").expect("name in the root").ino
    }

    /// Changes the directory with `work`. These tests have no allocator: a rehearsal on a copy
    /// finds the number of appended blocks, and debugfs provides them.
    pub fn change(&self, ino: Ino, work: impl Fn(&mut Sample)) {
        let bytes = std::fs::read(&self.path).expect("image");
        let block_size = self.open(ino).sb.block_size() as usize;
        let end = (bytes.len() / block_size) as u64;
        let copy = [bytes, vec![0; REHEARSAL_BLOCKS as usize * block_size]].concat();
        let mut rehearsal = open(Arc::new(MemoryDevice::from_bytes(copy)), ino);
        let before = rehearsal.blocks.map.len();
        rehearsal.blocks.spare = (end..end + REHEARSAL_BLOCKS).map(BlockNr).collect();
        work(&mut rehearsal);
        let appended = rehearsal.blocks.map.len() - before;
        drop(rehearsal);

        self.debugfs(&vec![format!("expand_dir <{}>", ino.0); appended]);
        let mut sample = self.open(ino);
        sample.blocks.spare = sample.blocks.map.split_off(before);
        assert_eq!(sample.blocks.spare.len(), appended, "debugfs expanded the directory");
        sample.blocks.spare.reverse();
        work(&mut sample);
        assert!(sample.blocks.spare.is_empty(), "as in the rehearsal");
        let indexed = sample.blocks.indexed;
        let was = inode_flags(&sample);
        drop(sample);
        let flags = if indexed { was | flag::INDEX } else { was & !flag::INDEX };
        self.debugfs(&[format!("sif <{}> flags {flags:#x}", ino.0)]);
    }
}

fn open(device: Arc<dyn BlockDevice>, ino: Ino) -> Sample {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(&mut bytes, SUPERBLOCK_OFFSET).expect("superblock");
    let sb = Superblock::decode(&bytes).expect("superblock");
    let engine: Arc<Engine> = TestEngine::new(device, sb.block_size() as usize).engine;
    let inode = inode(&engine, &sb, ino);
    assert!(inode.is_directory());
    let owner = Owner { ino, generation: inode.generation() };
    let mut map = Vec::new();
    Extents::new(&engine, &sb, &NoBlocks, owner)
        .iterate(&inode, FileBlock(0)..END_OF_FILES, &mut |extent| {
            assert_eq!(extent.at.0 as usize, map.len(), "directories have no holes");
            map.extend((0..u64::from(extent.run.len)).map(|i| extent.run.start.offset(i)));
            Ok(true)
        })
        .expect("extents");
    assert_eq!(inode.size(), map.len() as u64 * u64::from(sb.block_size()));
    let indexed = inode.flags() & flag::INDEX != 0;
    let blocks = TestBlocks { map, spare: Vec::new(), indexed, looked_up: Cell::new(0) };
    Sample { sb, engine, ino, generation: inode.generation(), blocks }
}

fn inode_flags(sample: &Sample) -> u32 {
    inode(&sample.engine, &sample.sb, sample.ino).flags()
}

fn inode(engine: &Arc<Engine>, sb: &Superblock, ino: Ino) -> Inode {
    let block_size = u64::from(sb.block_size());
    let (group, index) = ((ino.0 - 1) / sb.inodes_per_group(), (ino.0 - 1) % sb.inodes_per_group());
    let desc_at = u64::from(group) * u64::from(sb.desc_size());
    let table = engine.read(sb.own_block().offset(1 + desc_at / block_size)).expect("descriptors");
    let desc = GroupDesc::new(&table[(desc_at % block_size) as usize..][..sb.desc_size().into()]);
    assert!(desc.checksum_matches(sb, GroupNr(group)));
    let inode_at = u64::from(index) * u64::from(sb.inode_size());
    let block = engine.read(desc.inode_table().offset(inode_at / block_size)).expect("inodes");
    let inode = Inode::new(&block[(inode_at % block_size) as usize..][..sb.inode_size().into()]);
    assert!(inode.checksum_matches(sb, ino));
    inode
}
