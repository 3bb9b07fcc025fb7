//! The block map of one generation: the place of each metadata block that is not at home.
//!
//! The map is a radix tree over the volume's block numbers with a fixed number of levels. In memory
//! it is a persistent tree: a copy costs nothing, copies share equal nodes, and a change copies the
//! path to it. So the map that is being committed, the committed map, the maps of snapshots and
//! those that readers use exist side by side without locks.
//!
//! Nodes are read on first use. A link whose `at` is `None` leads to a node that was changed since
//! it was written, or that was never written.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use xact_layout::generations::{MapNode, Pointer, PoolShape, Target, fanout};
use xact_types::{BlockNr, Error, Result, Site};

use crate::core::block::BlockRef;
use crate::core::volume::Volume;

#[derive(Clone)]
pub(crate) struct Map {
    levels: u32,
    /// Shared by copies, so that all of them see a node that one has read.
    root: Arc<Link>,
}

#[derive(Clone, Default)]
struct Link {
    at: Option<Pointer>,
    node: OnceLock<Arc<Node>>,
}

#[derive(Clone)]
enum Node {
    Leaf(Box<[Option<Pointer>]>),
    Inner(Box<[Link]>),
}

/// Reads and checks nodes of maps, and knows the size of the tree.
pub(crate) struct MapReader {
    pub volume: Arc<Volume>,
    pub shape: PoolShape,
}

/// The most nodes that a change of `blocks` blocks rewrites in a map over `volume_blocks`.
pub(super) fn most_nodes(volume_blocks: u64, block_size: usize, blocks: u64) -> u64 {
    let (mut nodes, mut span) = (0, 1u64);
    loop {
        span = span.saturating_mul(fanout(block_size) as u64);
        let of_level = volume_blocks.div_ceil(span);
        nodes += of_level.min(blocks);
        if of_level <= 1 {
            return nodes;
        }
    }
}

impl MapReader {
    fn fanout(&self) -> usize {
        fanout(self.volume.block_size)
    }

    /// Levels of a map over the whole volume.
    pub fn levels(&self) -> u32 {
        let mut levels = 1;
        while self.span(levels) < self.shape.volume_blocks {
            levels += 1;
        }
        levels
    }

    /// Blocks below a node whose level is `levels - 1`.
    fn span(&self, levels: u32) -> u64 {
        (self.fanout() as u64).saturating_pow(levels)
    }

    /// The most nodes that a change of `blocks` blocks rewrites.
    pub fn most_nodes(&self, blocks: u64) -> u64 {
        most_nodes(self.shape.volume_blocks, self.volume.block_size, blocks)
    }

    /// The contents of a block behind a pointer, verified.
    pub fn read(&self, block: BlockNr, pointer: Pointer) -> Result<BlockRef> {
        if pointer.is_zeros() {
            return Ok(vec![0; self.volume.block_size].into());
        }
        self.read_target(Target::Block(block), pointer)
    }

    fn read_target(&self, target: Target, pointer: Pointer) -> Result<BlockRef> {
        let contents = self.volume.read_block(pointer.pool_block)?;
        if !pointer.matches(target, &contents) {
            return Err(Error::corrupt(
                Site::Block(pointer.pool_block),
                "checksum of a moved metadata block does not match",
            ));
        }
        Ok(contents)
    }

    fn load<'a>(&self, link: &'a Link, level: u32, first: u64) -> Result<Option<&'a Arc<Node>>> {
        if let Some(node) = link.node.get() {
            return Ok(Some(node));
        }
        let Some(at) = link.at else { return Ok(None) };
        let bytes = self.read_target(Target::Node { level, first: BlockNr(first) }, at)?;
        let node = MapNode::decode(&bytes, at, level, &self.shape)?;
        let node = if level == 0 {
            Node::Leaf(node.pointers.into())
        } else {
            let link = |at| Link { at, node: OnceLock::new() };
            Node::Inner(node.pointers.into_iter().map(link).collect())
        };
        Ok(Some(link.node.get_or_init(|| Arc::new(node))))
    }

    fn empty(&self, level: u32) -> Node {
        if level == 0 {
            Node::Leaf(vec![None; self.fanout()].into())
        } else {
            Node::Inner(vec![Link::default(); self.fanout()].into())
        }
    }
}

impl Node {
    fn pointer(&self, index: usize) -> Option<Pointer> {
        match self {
            Node::Leaf(pointers) => pointers[index],
            Node::Inner(_) => None,
        }
    }

    fn below(&self, index: usize) -> Option<&Link> {
        match self {
            Node::Inner(links) => Some(&links[index]),
            Node::Leaf(_) => None,
        }
    }
}

impl Link {
    fn is_none(&self) -> bool {
        self.at.is_none() && self.node.get().is_none()
    }
}

impl Map {
    pub fn new(levels: u32, root: Option<Pointer>) -> Map {
        Map { levels, root: Arc::new(Link { at: root, node: OnceLock::new() }) }
    }

    /// The pointer to the root; `None` for an empty map. The map must be written.
    pub fn root(&self) -> Option<Pointer> {
        self.root.at
    }

    /// The place of a block; `None`: at home.
    pub fn get(&self, reader: &MapReader, block: BlockNr) -> Result<Option<Pointer>> {
        let mut link = &*self.root;
        for level in (0..self.levels).rev() {
            let span = reader.span(level);
            let first = block.0 - block.0 % (span * reader.fanout() as u64);
            let Some(node) = reader.load(link, level, first)? else { return Ok(None) };
            let index = ((block.0 - first) / span) as usize;
            match &**node {
                Node::Leaf(pointers) => return Ok(pointers[index]),
                Node::Inner(links) => link = &links[index],
            }
        }
        Ok(None)
    }

    /// Moves a block; `None`: it is at home from now on, or no longer metadata.
    pub fn set(&mut self, reader: &MapReader, block: BlockNr, to: Option<Pointer>) -> Result<()> {
        if to.is_none() && self.get(reader, block)?.is_none() {
            return Ok(());
        }
        set(reader, Arc::make_mut(&mut self.root), self.levels - 1, 0, block, to)
    }

    /// Gives every changed node a pool block, children first, and adds its bytes to `out`.
    pub fn write(
        &mut self,
        reader: &MapReader,
        generation: u64,
        take: &mut dyn FnMut() -> Result<BlockNr>,
        out: &mut Vec<(BlockNr, BlockRef)>,
    ) -> Result<()> {
        write(reader, Arc::make_mut(&mut self.root), self.levels - 1, 0, generation, take, out)
    }

    /// Up to `count` blocks that are not at home, in the order of their numbers, from `from` on.
    pub fn moved(&self, reader: &MapReader, from: BlockNr, count: usize) -> Result<Vec<(BlockNr, Pointer)>> {
        let mut found = Vec::new();
        let mut visit = |block, pointer| {
            found.push((block, pointer));
            found.len() < count
        };
        walk(reader, &self.root, self.levels - 1, 0, from.0, &mut visit)?;
        Ok(found)
    }

    /// All blocks that are not at home, past damage: `damaged` gets the ranges of blocks below
    /// nodes that cannot be read.
    pub fn moved_past_damage(
        &self,
        reader: &MapReader,
        damaged: &mut dyn FnMut(Range<u64>),
    ) -> Vec<(BlockNr, Pointer)> {
        let mut found = Vec::new();
        walk_past_damage(reader, &self.root, self.levels - 1, 0, &mut found, damaged);
        found
    }

    /// Calls `differs` for each block whose place differs between the two maps, in order; skips
    /// shared nodes. Both maps must be written.
    pub fn differences(
        &self,
        reader: &MapReader,
        other: &Map,
        differs: &mut dyn FnMut(BlockNr),
    ) -> Result<()> {
        differences(reader, (Some(&*self.root), Some(&*other.root)), self.levels - 1, 0, differs)
    }

    /// Calls `only` for each pool block that this map uses, for a moved block or a node, and none
    /// of `others` does. The cost grows with the differences, not with the size. All maps must be
    /// written.
    pub fn only_here(
        &self,
        reader: &MapReader,
        others: &[&Map],
        only: &mut dyn FnMut(BlockNr),
    ) -> Result<()> {
        let others: Vec<&Link> = others.iter().map(|map| &*map.root).collect();
        only_here(reader, &self.root, &others, self.levels - 1, 0, only)
    }
}

fn differences(
    reader: &MapReader,
    (a, b): (Option<&Link>, Option<&Link>),
    level: u32,
    first: u64,
    differs: &mut dyn FnMut(BlockNr),
) -> Result<()> {
    if a.and_then(|link| link.at) == b.and_then(|link| link.at) {
        return Ok(());
    }
    let a = a.map_or(Ok(None), |link| reader.load(link, level, first))?;
    let b = b.map_or(Ok(None), |link| reader.load(link, level, first))?;
    let span = reader.span(level);
    for index in 0..reader.fanout() {
        let at = first + index as u64 * span;
        if level == 0 {
            let pointer = |node: Option<&Arc<Node>>| node.and_then(|node| node.pointer(index));
            if pointer(a) != pointer(b) {
                differs(BlockNr(at));
            }
        } else {
            let below = (a.and_then(|node| node.below(index)), b.and_then(|node| node.below(index)));
            differences(reader, below, level - 1, at, differs)?;
        }
    }
    Ok(())
}

fn set(
    reader: &MapReader,
    link: &mut Link,
    level: u32,
    first: u64,
    block: BlockNr,
    to: Option<Pointer>,
) -> Result<()> {
    if reader.load(link, level, first)?.is_none() {
        link.node = OnceLock::from(Arc::new(reader.empty(level)));
    }
    link.at = None;
    let span = reader.span(level);
    let index = ((block.0 - first) / span) as usize;
    let node = Arc::make_mut(link.node.get_mut().expect("was loaded or made above"));
    let empty = match node {
        Node::Leaf(pointers) => {
            pointers[index] = to;
            pointers.iter().all(Option::is_none)
        }
        Node::Inner(links) => {
            set(reader, &mut links[index], level - 1, first + index as u64 * span, block, to)?;
            links.iter().all(Link::is_none)
        }
    };
    if empty {
        *link = Link::default();
    }
    Ok(())
}

fn write(
    reader: &MapReader,
    link: &mut Link,
    level: u32,
    first: u64,
    generation: u64,
    take: &mut dyn FnMut() -> Result<BlockNr>,
    out: &mut Vec<(BlockNr, BlockRef)>,
) -> Result<()> {
    if link.at.is_some() {
        return Ok(());
    }
    let Some(node) = link.node.get_mut() else { return Ok(()) };
    let pointers = match Arc::make_mut(node) {
        Node::Leaf(pointers) => pointers.to_vec(),
        Node::Inner(links) => {
            let span = reader.span(level);
            for (index, below) in links.iter_mut().enumerate() {
                write(reader, below, level - 1, first + index as u64 * span, generation, take, out)?;
            }
            links.iter().map(|below| below.at).collect()
        }
    };
    let bytes = MapNode { pointers }.encode(reader.volume.block_size);
    let pool_block = take()?;
    let target = Target::Node { level, first: BlockNr(first) };
    link.at = Some(Pointer::new(pool_block, generation, target, &bytes));
    out.push((pool_block, bytes.into()));
    Ok(())
}

/// Visits the moved blocks with numbers from `from` on, until `visit` returns false. Returns false
/// then too.
fn walk(
    reader: &MapReader,
    link: &Link,
    level: u32,
    first: u64,
    from: u64,
    visit: &mut dyn FnMut(BlockNr, Pointer) -> bool,
) -> Result<bool> {
    let Some(node) = reader.load(link, level, first)? else { return Ok(true) };
    let span = reader.span(level);
    let start = (from.saturating_sub(first) / span) as usize;
    match &**node {
        Node::Leaf(pointers) => {
            let moved = pointers.iter().enumerate().skip(start).filter_map(|(i, p)| p.map(|p| (i, p)));
            for (index, pointer) in moved {
                if !visit(BlockNr(first + index as u64), pointer) {
                    return Ok(false);
                }
            }
        }
        Node::Inner(links) => {
            for (index, below) in links.iter().enumerate().skip(start) {
                if !walk(reader, below, level - 1, first + index as u64 * span, from, visit)? {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

fn walk_past_damage(
    reader: &MapReader,
    link: &Link,
    level: u32,
    first: u64,
    found: &mut Vec<(BlockNr, Pointer)>,
    damaged: &mut dyn FnMut(Range<u64>),
) {
    let span = reader.span(level);
    let node = match reader.load(link, level, first) {
        Ok(Some(node)) => node,
        Ok(None) => return,
        Err(_) => {
            let end = first.saturating_add(span.saturating_mul(reader.fanout() as u64));
            return damaged(first..end.min(reader.shape.volume_blocks));
        }
    };
    match &**node {
        Node::Leaf(pointers) => {
            let numbered = pointers.iter().zip(first..reader.shape.volume_blocks);
            found.extend(numbered.filter_map(|(pointer, block)| Some((BlockNr(block), (*pointer)?))));
        }
        Node::Inner(links) => {
            for (index, below) in links.iter().enumerate() {
                walk_past_damage(reader, below, level - 1, first + index as u64 * span, found, damaged);
            }
        }
    }
}

fn only_here(
    reader: &MapReader,
    link: &Link,
    others: &[&Link],
    level: u32,
    first: u64,
    only: &mut dyn FnMut(BlockNr),
) -> Result<()> {
    let Some(at) = link.at else { return Ok(()) };
    if others.iter().any(|other| other.at == Some(at)) {
        return Ok(());
    }
    only(at.pool_block);
    let node = reader.load(link, level, first)?.expect("a link with a pointer has a node").clone();
    let mut theirs = Vec::new();
    for other in others {
        theirs.extend(reader.load(other, level, first)?.cloned());
    }
    match &*node {
        Node::Leaf(pointers) => {
            for (index, pointer) in pointers.iter().enumerate() {
                let Some(pointer) = pointer else { continue };
                if pointer.is_zeros() {
                    continue;
                }
                let shared = theirs.iter().any(|other| match &**other {
                    Node::Leaf(others) => others[index].is_some_and(|p| p.pool_block == pointer.pool_block),
                    Node::Inner(_) => false,
                });
                if !shared {
                    only(pointer.pool_block);
                }
            }
        }
        Node::Inner(links) => {
            let span = reader.span(level);
            for (index, below) in links.iter().enumerate() {
                let others: Vec<&Link> = theirs
                    .iter()
                    .filter_map(|other| match &**other {
                        Node::Inner(others) => Some(&others[index]),
                        Node::Leaf(_) => None,
                    })
                    .collect();
                only_here(reader, below, &others, level - 1, first + index as u64 * span, only)?;
            }
        }
    }
    Ok(())
}
