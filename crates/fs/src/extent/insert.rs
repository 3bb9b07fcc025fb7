//! Adds blocks to a file.

use xact_consistency::Handle;
use xact_layout::extent::{END_OF_FILES, Extent, max_len};
use xact_layout::inode::Inode;
use xact_types::{Errno, FileBlock, Result, Run};

use super::{Extents, has_extents};

impl Extents<'_> {
    /// Maps the file blocks from `at` on, which must be a hole, to the blocks of `run`. Joins the
    /// extents before and after if they are contiguous.
    ///
    /// The caller changes the run's bitmap. `EOPNOTSUPP` for unwritten blocks in a file without
    /// extents. `NoSpace` if no block is free for a new node; it changes nothing, unless `run` is
    /// longer than one extent can be.
    pub fn insert(
        &self,
        handle: &mut Handle,
        inode: &mut Inode,
        at: FileBlock,
        run: Run,
        unwritten: bool,
    ) -> Result<()> {
        if !has_extents(inode) {
            if unwritten {
                return Err(Errno::EOPNOTSUPP.into());
            }
            return self.insert_blocks(handle, inode, at, run);
        }
        let end = at.0.checked_add(run.len).expect("file block beyond the end of files");
        let mut rest = Extent { at, run, unwritten };
        loop {
            let cut = FileBlock(end.min(rest.at.0.saturating_add(max_len(unwritten))));
            self.insert_extent(handle, inode, rest.part(rest.at, cut))?;
            if cut.0 == end {
                return Ok(());
            }
            rest = rest.part(cut, FileBlock(end));
        }
    }

    fn insert_extent(&self, handle: &mut Handle, inode: &mut Inode, new: Extent) -> Result<()> {
        assert!(new.end() <= END_OF_FILES && new.run.len > 0, "impossible range of file blocks");
        let path = self.path(inode, new.at)?;
        let leaf = path.leaf();
        let mut merged = new;
        // The position between the neighbouring entries; grows over those that are joined.
        let place = leaf.entries.partition_point(|raw| Extent::decode(raw).at <= new.at);
        let mut range = place..place;
        if let Some(before) = place.checked_sub(1).map(|i| Extent::decode(&leaf.entries[i])) {
            assert!(before.end() <= new.at, "blocks are inserted into a hole");
            if let Some(both) = before.merged(&merged) {
                merged = both;
                range.start -= 1;
            }
        }
        if let Some(behind) = leaf.entries.get(place).map(Extent::decode) {
            assert!(new.end() <= behind.at, "blocks are inserted into a hole");
            if let Some(both) = merged.merged(&behind) {
                merged = both;
                range.end += 1;
            }
        }
        assert!(new.end() <= leaf.end, "blocks are inserted into a hole");
        let change = self.plan(&path, range, &[merged.encode()])?;
        change.apply(handle, inode, u64::from(new.run.len), 0)
    }
}
