//! The inodes of a new volume, and their contents.

use xact_layout::dirent::{DirEntry, DirFormat, Packer};
use xact_layout::extent::{self, Extent, RawEntry};
use xact_layout::inode::{BLOCK_AREA_AT, EXTRA_ISIZE, Inode, flag, inode_seed, mode};
use xact_layout::jbd2::{BlockType, Features, JOURNAL_SUPERBLOCK_BYTES, JournalSuperblock};
use xact_layout::{get_u32, orphan, put_u32};
use xact_types::{BlockNr, FileBlock, GroupNr, Ino, Result, Run, Timestamp};

use super::plan::{LOST_FOUND, ORPHAN_FILE, VolumePlan};
use super::write::Writer;

/// `EXT4_FT_DIR`.
const TYPE_DIRECTORY: u8 = 2;
/// Index of the doubly indirect block in `i_block`.
const DOUBLY_INDIRECT: usize = 13;

/// Writes all files and passes their inodes to the writer.
pub(super) fn write(writer: &mut Writer<'_>, now: Timestamp) -> Result<()> {
    write_root(writer, now)?;
    write_lost_found(writer, now)?;
    write_resize(writer, now)?;
    write_journal(writer, now)?;
    write_orphan_file(writer, now)
}

fn new_inode(plan: &VolumePlan, mode: u16, links: u16, now: Timestamp) -> Inode {
    let mut inode = Inode::zeroed(plan.sb.inode_size());
    inode.set_mode(mode);
    inode.set_links_count(links);
    if plan.sb.inode_size() > 128 {
        inode.set_extra_isize(EXTRA_ISIZE);
    }
    inode.set_atime(now);
    inode.set_ctime(now);
    inode.set_mtime(now);
    inode.set_crtime(now);
    inode
}

/// Maps an inode's contents to the runs, through `node` if they do not fit into the inode.
fn set_contents(
    writer: &mut Writer<'_>,
    ino: Ino,
    inode: &mut Inode,
    runs: &[Run],
    node: Option<BlockNr>,
) -> Result<()> {
    let sb = &writer.plan.sb;
    let mut at = FileBlock(0);
    let mut entries: Vec<RawEntry> = Vec::new();
    for run in runs {
        entries.push(Extent { at, run: *run, unwritten: false }.encode());
        at = at.offset(run.len);
    }
    let mut area = extent::empty_root();
    match node {
        None => extent::write_root(&mut area, 0, &entries),
        Some(child) => {
            extent::write_root(&mut area, 1, &[extent::Index { at: FileBlock(0), child }.encode()]);
            let mut bytes = vec![0; sb.block_size() as usize];
            extent::write_block(&mut bytes, sb, inode_seed(sb, ino, 0), 0, &entries);
            writer.write(child, &bytes)?;
        }
    }
    let blocks = u64::from(at.0) + u64::from(node.is_some());
    inode.set_flags(flag::EXTENTS);
    inode.set_block_area(&area);
    inode.set_size(u64::from(at.0) * u64::from(sb.block_size()));
    inode.set_sectors(sb, blocks * u64::from(sb.block_size() / 512));
    Ok(())
}

fn write_root(writer: &mut Writer<'_>, now: Timestamp) -> Result<()> {
    let format = DirFormat::new(&writer.plan.sb, Ino::ROOT, 0);
    let mut packer = Packer::new(&format, &[]);
    for (ino, name) in [(Ino::ROOT, &b"."[..]), (Ino::ROOT, &b".."[..]), (LOST_FOUND, &b"lost+found"[..])] {
        packer.push(&DirEntry { ino, file_type: TYPE_DIRECTORY, name });
    }
    let block = writer.place.root;
    writer.write(block, &packer.finish())?;
    let mut inode = new_inode(writer.plan, mode::DIRECTORY | 0o755, 3, now);
    inode.set_uid(writer.plan.root_owner.0);
    inode.set_gid(writer.plan.root_owner.1);
    set_contents(writer, Ino::ROOT, &mut inode, &[Run { start: block, len: 1 }], None)?;
    writer.set_inode(Ino::ROOT, inode);
    Ok(())
}

/// Writes lost+found with all its blocks: e2fsck adds names there when it cannot allocate blocks.
fn write_lost_found(writer: &mut Writer<'_>, now: Timestamp) -> Result<()> {
    let format = DirFormat::new(&writer.plan.sb, LOST_FOUND, 0);
    let run = writer.place.lost_found;
    let mut contents = format.first_block(LOST_FOUND, Ino::ROOT);
    for block in run.start.0..run.end().0 {
        writer.write(BlockNr(block), &contents)?;
        contents = Packer::new(&format, &[]).finish();
    }
    let mut inode = new_inode(writer.plan, mode::DIRECTORY | 0o700, 2, now);
    set_contents(writer, LOST_FOUND, &mut inode, &[run], None)?;
    writer.set_inode(LOST_FOUND, inode);
    Ok(())
}

/// Writes the resize inode, which owns the blocks reserved for more descriptors: its doubly
/// indirect block points at those of group 0, and each of these points at its copies in the backup
/// groups.
fn write_resize(writer: &mut Writer<'_>, now: Timestamp) -> Result<()> {
    let Some(doubly) = writer.place.resize else { return Ok(()) };
    let sb = &writer.plan.sb;
    let block_size = sb.block_size() as usize;
    let per_block = block_size / 4;
    let backups: Vec<GroupNr> =
        (1..sb.group_count()).map(GroupNr).filter(|group| sb.has_backup(*group)).collect();
    let reserved = usize::from(sb.reserved_gdt_blocks());
    let descriptors = sb.gdt_blocks() as usize;
    let first = sb.first_data_block() as usize + 1 + descriptors;

    let mut table = vec![0; block_size];
    for i in 0..reserved {
        put_u32(&mut table, 4 * ((descriptors + i) % per_block), (first + i) as u32);
        let mut copies = vec![0; block_size];
        for (slot, group) in backups.iter().enumerate() {
            let copy = (first + i) as u64 + u64::from(group.0) * u64::from(sb.blocks_per_group());
            put_u32(&mut copies, 4 * slot, copy as u32);
        }
        writer.write(BlockNr((first + i) as u64), &copies)?;
    }
    writer.write(doubly, &table)?;

    let mut inode = new_inode(writer.plan, mode::REGULAR | 0o600, 1, now);
    let per_block = per_block as u64;
    inode.set_size((12 + per_block + per_block * per_block) * block_size as u64);
    inode.set_sectors(sb, (1 + reserved * (1 + backups.len())) as u64 * (block_size / 512) as u64);
    let mut area = *inode.block_area();
    put_u32(&mut area, 4 * DOUBLY_INDIRECT, doubly.0 as u32);
    inode.set_block_area(&area);
    writer.set_inode(Ino::RESIZE, inode);
    Ok(())
}

fn write_journal(writer: &mut Writer<'_>, now: Timestamp) -> Result<()> {
    let Some(first) = writer.place.journal.first().copied() else { return Ok(()) };
    let runs = writer.place.journal.clone();
    if !writer.plan.zeroed {
        // Recovery must not mistake blocks of an old log for transactions.
        runs.iter().try_for_each(|run| writer.zero(*run))?;
    }
    let journal = JournalSuperblock {
        version: BlockType::SuperblockV2,
        block_size: writer.plan.sb.block_size(),
        maxlen: writer.plan.journal_blocks,
        first: 1,
        sequence: 1,
        start: 0,
        errno: 0,
        features: Features::default(),
        uuid: writer.plan.sb.uuid(),
        users: 1,
        dynsuper: 0,
        max_transaction: 0,
        max_trans_data: 0,
        checksum_type: 0,
        fast_commit_blocks: 0,
        made_with: 0,
        head: 0,
    };
    let mut bytes = vec![0; writer.plan.sb.block_size() as usize];
    journal.encode_into(&mut bytes[..JOURNAL_SUPERBLOCK_BYTES]);
    writer.write(first.start, &bytes)?;

    let mut inode = new_inode(writer.plan, mode::REGULAR | 0o600, 1, now);
    set_contents(writer, Ino::JOURNAL, &mut inode, &runs, writer.place.journal_node)?;
    // The superblock has a copy of the journal's map, in case the inode is lost.
    let mut backup = [0; 17];
    for (i, word) in backup[..15].iter_mut().enumerate() {
        *word = get_u32(inode.as_bytes(), BLOCK_AREA_AT + 4 * i);
    }
    backup[15] = inode.size_hi();
    backup[16] = inode.size_lo();
    writer.set_journal_backup(backup);
    writer.set_inode(Ino::JOURNAL, inode);
    Ok(())
}

fn write_orphan_file(writer: &mut Writer<'_>, now: Timestamp) -> Result<()> {
    let Some(run) = writer.place.orphan_file else { return Ok(()) };
    let sb = &writer.plan.sb;
    let seed = inode_seed(sb, ORPHAN_FILE, 0);
    for block in (run.start.0..run.end().0).map(BlockNr) {
        let mut bytes = vec![0; sb.block_size() as usize];
        orphan::seal(&mut bytes, sb, seed, block);
        writer.write(block, &bytes)?;
    }
    let mut inode = new_inode(writer.plan, mode::REGULAR | 0o600, 1, now);
    set_contents(writer, ORPHAN_FILE, &mut inode, &[run], None)?;
    writer.set_inode(ORPHAN_FILE, inode);
    Ok(())
}
