//! Volumes with generations: the pool after the ext4 volume, and each generation as a device.
//!
//! No line of the engine is used: the structures are read by the codecs alone (`docs/FORMAT.md`).
//! 1. Roots: one of the two slots is whole; the newer one counts.
//! 2. From the root, every node of every map, every moved block, every block of the list of
//!    snapshots: checksums, positions, and that no pool block has two uses. For snapshots of chosen
//!    paths: that all of their fixed metadata is in their maps.
//! 3. The pool's bitmap has exactly these pool blocks.
//! 4. The intent log, as far as it is whole: its records are valid, and are part of the newest
//!    generation.
//! 5. Copies of the superblock are in the pool, and those in their own places have the mark that
//!    makes Linux and e2fsck refuse the volume.
//!
//! Each generation is then checked as the ext4 volume that it is (`crate::check_volume`).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use xact_device::BlockDevice;
use xact_layout::checksum::crc32c;
use xact_layout::feature::incompat;
use xact_layout::generations::{
    LogChecks, LogContents, MapNode, Pointer, PoolShape, ROOT_BYTES, Root, SnapshotOf, SnapshotRecord,
    Target, decode_snapshots, fanout, read_log,
};
use xact_layout::group::{BLOCK_UNINIT, INODE_UNINIT};
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_types::{BlockNr, Error, GroupNr, Result, Site};

use crate::report::Report;
use crate::volume::Volume;

/// A generation, with its name.
pub(crate) struct Generation {
    /// `None` for the newest.
    pub snapshot: Option<String>,
    pub image: Arc<dyn BlockDevice>,
}

/// The use of a pool block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Target { target: Target, birth: u64, sum: u32 },
    Log,
}

impl Use {
    fn of(pointer: Pointer, target: Target) -> Use {
        Use::Target { target, birth: pointer.birth, sum: pointer.sum }
    }
}

struct Walk<'a> {
    device: &'a Arc<dyn BlockDevice>,
    shape: PoolShape,
    report: &'a mut Report,
    used: HashMap<u64, Use>,
    nodes: HashMap<u64, MapNode>,
    generation: u64,
}

/// Checks the blocks of `device` after its ext4 volume, and returns its generations, the newest
/// first. `Corrupt` if no root is whole.
pub(crate) fn generations(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    report: &mut Report,
) -> Result<Vec<Generation>> {
    let block_size = sb.block_size();
    let device_blocks = device.size_bytes() / u64::from(block_size);
    let whole = PoolShape { block_size, volume_blocks: sb.blocks_count(), device_blocks };
    let root = newest_root(&**device, &whole, sb.uuid(), report)?;
    let shape = root.shape;
    let mut walk = Walk {
        device,
        shape,
        used: HashMap::new(),
        nodes: HashMap::new(),
        generation: root.generation,
        report,
    };
    if root.map_levels != levels(&shape) {
        return Err(Error::corrupt(Site::Root, "the map's levels do not fit the volume"));
    }
    let list = walk.snapshots(&root)?;
    let maps: Vec<(Option<SnapshotRecord>, Option<Pointer>)> = std::iter::once((None, root.map))
        .chain(list.into_iter().map(|record| (Some(record.clone()), record.map)))
        .collect();
    for (_, map) in &maps {
        walk.map(*map, root.map_levels - 1, 0)?;
    }
    walk.log_area(&root);
    walk.bitmap(&root)?;
    walk.marks(sb)?;
    let nodes = Arc::new(std::mem::take(&mut walk.nodes));
    let mut found = Vec::new();
    for (snapshot, map) in maps {
        let mut image = GenerationDevice {
            device: device.clone(),
            nodes: nodes.clone(),
            map,
            logged: BTreeMap::new(),
            shape,
            levels: root.map_levels,
        };
        for group in (0..sb.group_count()).map(GroupNr).filter(|&group| group.0 == 0 || sb.has_backup(group))
        {
            let block = if group.0 == 0 { sb.own_block() } else { sb.group_start(group) };
            if image.locate(block.0).is_none() {
                report.problem(Site::Block(block), "a copy of the superblock is not in the pool");
            }
        }
        if snapshot.is_none()
            && let Some(logged) = report.note(logged_blocks(&image, &root))?
        {
            image.logged = logged;
        }
        let image = Arc::new(image);
        let of = snapshot.as_ref().map_or(&SnapshotOf::Volume, |record| &record.of);
        if let SnapshotOf::Paths(_) = of {
            let checked = all_in_the_map(&image, report);
            report.note(checked)?;
        }
        let snapshot = snapshot.map(|record| record.name);
        found.push(Generation { snapshot, image });
    }
    Ok(found)
}

fn newest_root(
    device: &dyn BlockDevice,
    shape: &PoolShape,
    uuid: [u8; 16],
    report: &mut Report,
) -> Result<Root> {
    if shape.device_blocks <= shape.volume_blocks || shape.pool_blocks() == 0 {
        return Err(Error::corrupt(Site::Root, "the device ends where the pool should be"));
    }
    let mut roots = Vec::new();
    for slot in 0..2 {
        let mut bytes = vec![0; ROOT_BYTES];
        read(device, &mut bytes, shape.root_offset(slot))?;
        match Root::decode(&bytes, shape, true) {
            Ok(root) if root.uuid == uuid => roots.push(root),
            Ok(_) => {}
            Err(Error::Corrupt(_)) if bytes.iter().all(|&byte| byte == 0) => {}
            Err(Error::Corrupt(found)) => {
                report.remark(format!("slot {slot} {}, as a crash may leave it", found.what));
            }
            Err(error) => return Err(error),
        }
    }
    if let [a, b] = &roots[..]
        && a.generation.abs_diff(b.generation) != 1
    {
        let what = format!("the slots hold generations {} and {}", a.generation, b.generation);
        report.problem(Site::Root, what);
    }
    let newest = roots.into_iter().max_by_key(|root| root.generation);
    newest.ok_or_else(|| Error::corrupt(Site::Root, "neither of the two slots holds a whole one"))
}

fn levels(shape: &PoolShape) -> u32 {
    let fanout = fanout(shape.block_size as usize) as u64;
    let (mut levels, mut span) = (1, fanout);
    while span < shape.volume_blocks {
        (levels, span) = (levels + 1, span.saturating_mul(fanout));
    }
    levels
}

/// Blocks below each pointer of a node.
fn span(shape: &PoolShape, level: u32) -> u64 {
    (fanout(shape.block_size as usize) as u64).saturating_pow(level)
}

fn read(device: &dyn BlockDevice, buf: &mut [u8], offset: u64) -> Result<()> {
    device.read_at(buf, offset).map_err(|e| Error::io("reading the volume", e))
}

/// A snapshot of chosen paths holds none of the fixed metadata in its own place, so all of it that
/// counts is in its map.
fn all_in_the_map(image: &Arc<GenerationDevice>, report: &mut Report) -> Result<()> {
    let volume = Volume::open(image.clone())?;
    let sb = &volume.sb;
    for (desc, group) in volume.descs.iter().zip((0..).map(GroupNr)) {
        let mut blocks = vec![sb.desc_place(group).0];
        if !desc.has_flag(BLOCK_UNINIT) {
            blocks.push(desc.block_bitmap());
        }
        if !desc.has_flag(INODE_UNINIT) {
            blocks.push(desc.inode_bitmap());
            let used = sb.inodes_per_group().saturating_sub(desc.itable_unused());
            let table = 0..u64::from(used.div_ceil(sb.inodes_per_block()));
            blocks.extend(table.map(|index| desc.inode_table().offset(index)));
        }
        if let Some(&block) =
            blocks.iter().find(|&&block| sb.contains(block, 1) && image.locate(block.0).is_none())
        {
            let what =
                format!("metadata of {group} is where nothing keeps it for a snapshot of chosen paths");
            report.problem(Site::Block(block), what);
        }
    }
    Ok(())
}

/// The blocks that the log behind the root changes in the newest generation.
fn logged_blocks(image: &GenerationDevice, root: &Root) -> Result<BTreeMap<BlockNr, Option<LogContents>>> {
    let block_size = root.shape.block_size as usize;
    let mut read_area =
        |block: BlockNr, buf: &mut [u8]| read(&*image.device, buf, block.0 * block_size as u64);
    read_log(root, LogChecks::default(), &mut read_area)?.contents(block_size, |block| {
        let mut bytes = vec![0; block_size];
        read(image, &mut bytes, block.0 * block_size as u64)?;
        Ok(bytes)
    })
}

impl Walk<'_> {
    fn block(&self, pool_block: BlockNr) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.shape.block_size as usize];
        read(&**self.device, &mut bytes, pool_block.0 * u64::from(self.shape.block_size))?;
        Ok(bytes)
    }

    /// Notes the use of a pool block; false if it was known before.
    fn claim(&mut self, pool_block: BlockNr, this: Use) -> bool {
        let before = self.used.insert(pool_block.0, this);
        if before.is_some_and(|before| before != this) {
            self.report.problem(Site::Block(pool_block), "a place of the pool is used for two things");
        }
        before.is_none()
    }

    fn snapshots(&mut self, root: &Root) -> Result<Vec<SnapshotRecord>> {
        let Some((first, blocks)) = root.snapshots else { return Ok(Vec::new()) };
        let mut bytes = Vec::new();
        for n in 0..u64::from(blocks) {
            let pool_block = first.pool_block.offset(n);
            self.claim(pool_block, Use::of(first, Target::List));
            bytes.extend(self.block(pool_block)?);
        }
        if !first.matches(Target::List, &bytes) {
            return Err(Error::corrupt(Site::Root, "checksum of the list of snapshots does not match"));
        }
        let list = decode_snapshots(&bytes, &self.shape)?;
        for (n, record) in list.iter().enumerate() {
            if list[..n].iter().any(|other| other.name == record.name) {
                self.report.problem(Site::Root, format!("two snapshots have the name '{}'", record.name));
            }
            if record.of == SnapshotOf::ToBePruned {
                let name = &record.name;
                self.report.remark(format!(
                    "snapshot '{name}' was being made: the next mount deletes what there is of it"
                ));
            }
            if record.generation > root.generation {
                let what = format!("snapshot '{}' is of a generation that is to come", record.name);
                self.report.problem(Site::Root, what);
            }
        }
        Ok(list)
    }

    fn log_area(&mut self, root: &Root) {
        let Some((first, blocks)) = root.log else { return };
        for n in 0..u64::from(blocks) {
            self.claim(first.offset(n), Use::Log);
        }
    }

    fn map(&mut self, node: Option<Pointer>, level: u32, first: u64) -> Result<()> {
        let Some(at) = node else { return Ok(()) };
        let target = Target::Node { level, first: BlockNr(first) };
        if !self.claim(at.pool_block, Use::of(at, target)) {
            return Ok(());
        }
        let bytes = self.block(at.pool_block)?;
        if !at.matches(target, &bytes) {
            self.report.problem(Site::Block(at.pool_block), "checksum of a node of the map does not match");
            return Ok(());
        }
        let decoded = MapNode::decode(&bytes, at, level, &self.shape);
        let Some(node) = self.report.note(decoded)? else { return Ok(()) };
        if at.birth > self.generation {
            self.report
                .problem(Site::Block(at.pool_block), "a node of the map is of a generation that is to come");
        }
        let span = span(&self.shape, level);
        for (index, pointer) in node.pointers.iter().enumerate() {
            let Some(pointer) = *pointer else { continue };
            let number = first + index as u64 * span;
            if number >= self.shape.volume_blocks {
                self.report
                    .problem(Site::Block(at.pool_block), "a node of the map has blocks outside the volume");
                continue;
            }
            if level > 0 {
                self.map(Some(pointer), level - 1, number)?;
                continue;
            }
            if pointer.is_zeros() {
                // Takes no pool block.
                continue;
            }
            let target = Target::Block(BlockNr(number));
            if self.claim(pointer.pool_block, Use::of(pointer, target))
                && !pointer.matches(target, &self.block(pointer.pool_block)?)
            {
                let what = format!("checksum of what is there for block {number} does not match");
                self.report.problem(Site::Block(pointer.pool_block), what);
            }
        }
        self.nodes.insert(at.pool_block.0, node);
        Ok(())
    }

    fn bitmap(&mut self, root: &Root) -> Result<()> {
        let mut bits = Vec::new();
        for (index, &(sum, copy)) in root.bitmaps.iter().enumerate() {
            let pool_block = self.shape.bitmap_block(index as u64, copy);
            let bytes = self.block(pool_block)?;
            if crc32c(!0, &bytes) != sum {
                self.report.problem(Site::Block(pool_block), "checksum of the pool's bitmap does not match");
            }
            bits.extend(bytes);
        }
        let (mut counted, mut lost, mut missing) = (0, Vec::new(), Vec::new());
        for index in 0..8 * bits.len() as u64 {
            let set = bits[(index / 8) as usize] >> (index % 8) & 1 != 0;
            let pool_block = self.shape.volume_blocks + index;
            counted += u64::from(set);
            match (set, self.used.contains_key(&pool_block)) {
                (true, false) => lost.push(pool_block),
                (false, true) => missing.push(pool_block),
                _ => {}
            }
        }
        for (pool_blocks, what) in
            [(lost, "marked as in use and used by nothing"), (missing, "used and marked as free")]
        {
            if let Some(&first) = pool_blocks.first() {
                let what = format!("{} places of the pool are {what}, this is the first", pool_blocks.len());
                self.report.problem(Site::Block(BlockNr(first)), what);
            }
        }
        if counted != root.used {
            let what = format!("counts {} places in use, and the bitmap has {counted}", root.used);
            self.report.problem(Site::Root, what);
        }
        Ok(())
    }

    /// The copies of the superblock in their own places, which Linux and e2fsck would read.
    fn marks(&mut self, sb: &Superblock) -> Result<()> {
        for group in (1..sb.group_count()).map(GroupNr).filter(|&group| sb.has_backup(group)) {
            let block = sb.group_start(group);
            let mut bytes = [0; SUPERBLOCK_BYTES];
            read(&**self.device, &mut bytes, block.0 * u64::from(self.shape.block_size))?;
            let marked = Superblock::decode(&bytes)
                .is_ok_and(|copy| copy.has_incompat(incompat::XACT_GENERATIONS) && copy.uuid() == sb.uuid());
            if !marked {
                let what = "the copy of the superblock has no mark that keeps Linux and e2fsck off";
                self.report.problem(Site::Block(block), what);
            }
        }
        Ok(())
    }
}

/// The blocks of a generation, by the nodes that were found to be sound.
struct GenerationDevice {
    device: Arc<dyn BlockDevice>,
    nodes: Arc<HashMap<u64, MapNode>>,
    map: Option<Pointer>,
    /// The blocks of the newest generation that the log changes.
    logged: BTreeMap<BlockNr, Option<LogContents>>,
    shape: PoolShape,
    levels: u32,
}

impl GenerationDevice {
    /// The pool block of a block that is not at home.
    fn locate(&self, block: u64) -> Option<BlockNr> {
        let mut at = self.map?.pool_block;
        for level in (0..self.levels).rev() {
            let node = self.nodes.get(&at.0)?;
            let index = block % span(&self.shape, level + 1) / span(&self.shape, level);
            at = node.pointers[index as usize]?.pool_block;
        }
        Some(at)
    }
}

impl BlockDevice for GenerationDevice {
    fn size_bytes(&self) -> u64 {
        self.shape.volume_blocks * u64::from(self.shape.block_size)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size_bytes()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "read outside the volume"));
        }
        let block_size = u64::from(self.shape.block_size);
        let (mut done, len) = (0, buf.len());
        while done < len {
            let at = offset + done as u64;
            let within = at % block_size;
            let part = (block_size - within).min((len - done) as u64);
            let out = &mut buf[done..done + part as usize];
            let home = at / block_size;
            match self.logged.get(&BlockNr(home)) {
                Some(Some(logged)) => out.copy_from_slice(&logged.bytes[within as usize..][..part as usize]),
                // Freed: a file that has it now has it in its own place.
                Some(None) => self.device.read_at(out, at)?,
                None => match self.locate(home) {
                    Some(pool_block) if pool_block == Pointer::ZEROS.pool_block => out.fill(0),
                    pool_block => {
                        let pool_block = pool_block.map_or(home, |pool_block| pool_block.0);
                        self.device.read_at(out, pool_block * block_size + within)?;
                    }
                },
            }
            done += part as usize;
        }
        Ok(())
    }

    fn write_at(&self, _buf: &[u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

/// The superblock of the device if it is a volume with generations.
pub(crate) fn superblock(device: &dyn BlockDevice) -> Result<Option<Superblock>> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    if device.size_bytes() < SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64 {
        return Ok(None);
    }
    read(device, &mut bytes, SUPERBLOCK_OFFSET)?;
    // A missing superblock is reported by the check itself.
    let sb = Superblock::decode(&bytes).ok();
    Ok(sb.filter(|sb| sb.has_incompat(incompat::XACT_GENERATIONS)))
}
