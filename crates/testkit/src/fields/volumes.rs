//! The eight kinds of volume, with one of everything; and one for the block of multi-mount
//! protection.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use xact_layout::inode::Inode;
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use xact_types::{GroupNr, Ino};

use super::structures::{Structure, debugfs};
use crate::fuzz::reseal::{Kind as BlockKind, Map};
use crate::image::Image;
use crate::tools;

/// A kind of volume.
pub struct Kind {
    pub name: &'static str,
    /// As on the command line of mke2fs.
    options: &'static [&'static str],
    size: &'static str,
}

pub const KINDS: [Kind; 9] = [
    Kind {
        name: "1k",
        options: &["-b", "1024", "-J", "size=1", "-O", "metadata_csum,64bit,orphan_file,metadata_csum_seed"],
        size: "12M",
    },
    Kind {
        name: "4k",
        options: &[
            "-b",
            "4096",
            "-g",
            "1024",
            "-J",
            "size=4",
            "-O",
            "metadata_csum,64bit,ea_inode,^orphan_file,^metadata_csum_seed",
        ],
        size: "16M",
    },
    Kind {
        name: "no-sums",
        options: &[
            "-b",
            "1024",
            "-g",
            "2048",
            "-J",
            "size=1",
            "-O",
            "^metadata_csum,uninit_bg,^64bit,^orphan_file",
        ],
        size: "8M",
    },
    Kind {
        name: "inline",
        options: &["-b", "1024", "-J", "size=1", "-O", "inline_data,^orphan_file"],
        size: "12M",
    },
    Kind {
        name: "bigalloc",
        options: &["-b", "1024", "-C", "4096", "-J", "size=4", "-O", "bigalloc,^orphan_file"],
        size: "16M",
    },
    Kind {
        name: "quota",
        options: &[
            "-b",
            "1024",
            "-J",
            "size=1",
            "-I",
            "256",
            "-O",
            "quota,project,^orphan_file",
            "-E",
            "quotatype=usrquota:grpquota:prjquota",
        ],
        size: "12M",
    },
    Kind {
        name: "no-journal",
        options: &[
            "-b",
            "4096",
            "-g",
            "512",
            "-O",
            "^has_journal,meta_bg,^resize_inode,^orphan_file,sparse_super2",
        ],
        size: "12M",
    },
    Kind {
        name: "ext3",
        options: &[
            "-b",
            "1024",
            "-J",
            "size=1",
            "-I",
            "128",
            "-O",
            "^extents,^metadata_csum,^64bit,^flex_bg,^huge_file,^dir_nlink,^extra_isize,^orphan_file",
        ],
        size: "12M",
    },
    Kind { name: MMP, options: &["-b", "1024", "-J", "size=1", "-O", "mmp,metadata_csum"], size: "12M" },
];

/// On a volume of this kind debugfs waits eleven seconds before it writes. So only words of its own
/// block are set.
const MMP: &str = "mmp";

/// A volume that both programs call sound, and the structures whose fields are set.
pub(super) struct SoundVolume {
    pub kind: &'static str,
    pub image: Image,
    pub sb: Superblock,
    pub structures: Vec<Structure>,
    pub map: Map,
}

impl SoundVolume {
    pub fn make(kind: &Kind) -> Result<SoundVolume, String> {
        let folder = tools::scratch();
        let path = folder.path().join("volume");
        let files = folder.path().join("files");
        put_files(&files).map_err(|e| format!("{}: {e}", files.display()))?;
        let text = |path: &Path| path.to_str().expect("paths of tests are text").to_owned();
        let files = text(&files);
        let options = [kind.options, &["-N", "512", "-d", &files]].concat();
        tools::mke2fs(&path, &options, kind.size);
        if kind.name != MMP {
            finish(&path).map_err(|why| format!("{}: {why}", kind.name))?;
        }
        tools::e2fsck_finds(&path).map_err(|why| format!("{}: {why}", kind.name))?;
        let image = fs::File::open(&path).and_then(|file| Image::from_file(&file));
        let image = image.map_err(|e| format!("{}: {e}", path.display()))?;
        let mut bytes = [0; SUPERBLOCK_BYTES];
        image.read(&mut bytes, SUPERBLOCK_OFFSET);
        let sb = Superblock::decode(&bytes).map_err(|e| e.to_string())?;
        let map = Map::of(&image);
        let mut volume = SoundVolume { kind: kind.name, image, sb, structures: Vec::new(), map };
        if kind.name == MMP {
            volume.structures.push(Structure::Block(MMP, volume.sb.mmp_block()));
        } else {
            volume.find_structures(&path)?;
        }
        Ok(volume)
    }

    fn find_structures(&mut self, path: &Path) -> Result<(), String> {
        let last = self.sb.group_count() - 1;
        let groups = if last == 0 { vec![0] } else { vec![0, last] };
        self.structures.push(Structure::Superblock);
        self.structures.extend(groups.into_iter().map(Structure::Group));
        let numbers = [
            ("bad-blocks", 1),
            ("root", 2),
            ("undelete", 6),
            ("resize", 7),
            ("journal", 8),
            ("orphans", self.sb.orphan_file_inum()),
            ("user-quota", self.sb.usr_quota_inum()),
        ];
        for (name, number) in numbers.into_iter().filter(|&(_, number)| number != 0) {
            self.structures.push(Structure::Inode(name, Ino(number)));
        }
        for name in
            ["file", "fragments", "attributes", "linear", "indexed", "fast-link", "slow-link", "fifo", "null"]
        {
            let text = debugfs(path, &[format!("stat {name}")])?;
            let number = text.split("Inode: ").nth(1).and_then(|rest| rest.split_whitespace().next());
            let number = number.and_then(|n| n.parse().ok()).ok_or_else(|| format!("{name}: {text}"))?;
            self.structures.push(Structure::Inode(name, Ino(number)));
        }
        // The inode before those of the files is the one that was deleted.
        let deleted = (11..self.sb.inodes_count())
            .map(Ino)
            .find(|&ino| self.inode(ino).dtime() != 0)
            .ok_or("no inode was deleted")?;
        self.structures.push(Structure::Inode("deleted", deleted));
        let label = |kind: &BlockKind| match kind {
            BlockKind::BlockBitmap(_) => Some("block-bitmap"),
            BlockKind::InodeBitmap(_) => Some("inode-bitmap"),
            BlockKind::ExtentNode(_) => Some("extents"),
            BlockKind::Directory(..) => Some("directory"),
            BlockKind::Attributes => Some("attributes"),
            BlockKind::Orphans(_) => Some("orphan-entries"),
            BlockKind::Plain => Some("pointers"),
            BlockKind::Superblock | BlockKind::Descriptors(_) | BlockKind::Inodes(_) | BlockKind::Mmp => None,
        };
        // Two of a kind; of directories also the root and an inner block of the index.
        let mut met = std::collections::BTreeMap::new();
        let indexed = self.structures.iter().find_map(|s| match s {
            Structure::Inode("indexed", ino) => Some(*ino),
            _ => None,
        });
        for (&block, kind) in &self.map.kinds {
            let Some(name) = label(kind) else { continue };
            let name = match kind {
                BlockKind::Directory(ino, _) if Some(*ino) == indexed => "index",
                _ => name,
            };
            let count = met.entry(name).or_insert(0);
            *count += 1;
            if *count <= 2 {
                self.structures.push(Structure::Block(name, block));
            }
        }
        if self.sb.journal_inum() != 0 {
            let text = debugfs(path, &["bmap <8> 0".to_owned()])?;
            let block = text.lines().filter_map(|line| line.trim().parse().ok()).next_back();
            self.structures.push(Structure::Block("journal-superblock", block.ok_or(text)?));
        }
        Ok(())
    }

    /// The byte at which an inode begins.
    pub fn inode_at(&self, ino: Ino) -> u64 {
        let (group, index) = self.sb.inode_place(ino).expect("an inode of the volume");
        let size = u64::from(self.sb.block_size());
        let (block, at) = self.sb.desc_place(group);
        let mut desc = vec![0; usize::from(self.sb.desc_size())];
        self.image.read(&mut desc, block.0 * size + at as u64);
        let table = xact_layout::group::GroupDesc::new(&desc).inode_table();
        table.0 * size + u64::from(index) * u64::from(self.sb.inode_size())
    }

    fn inode(&self, ino: Ino) -> Inode {
        let mut bytes = vec![0; usize::from(self.sb.inode_size())];
        self.image.read(&mut bytes, self.inode_at(ino));
        Inode::new(&bytes)
    }

    /// The byte at which a structure begins.
    pub fn place(&self, structure: &Structure) -> u64 {
        let size = u64::from(self.sb.block_size());
        match structure {
            Structure::Superblock => SUPERBLOCK_OFFSET,
            Structure::Group(number) => {
                let (block, at) = self.sb.desc_place(GroupNr(*number));
                block.0 * size + at as u64
            }
            Structure::Inode(_, ino) => self.inode_at(*ino),
            Structure::Block(_, block) => block * size,
        }
    }
}

/// Adds what mke2fs does not copy: attributes, a deleted file, the hash index of a large folder.
fn finish(path: &Path) -> Result<(), String> {
    let requests = [
        format!("ea_set attributes user.large {}", "v".repeat(300)),
        "ea_set file user.small value".to_owned(),
        "rm gone".to_owned(),
    ];
    debugfs(path, &requests)?;
    let indexed = tools::run("e2fsck", &["-fyD", path.to_str().expect("paths of tests are text")]);
    match indexed.status.code() {
        Some(0 | 1) => Ok(()),
        _ => Err(format!("e2fsck -fyD: {}", String::from_utf8_lossy(&indexed.stdout))),
    }
}

/// The files that mke2fs copies to a volume.
fn put_files(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    for name in ["", "linear", "indexed", "a", "a/b"] {
        fs::create_dir(folder.join(name))?;
    }
    fs::write(folder.join("gone"), vec![b'g'; 3000])?;
    fs::write(folder.join("file"), vec![b'f'; 10_000])?;
    fs::write(folder.join("attributes"), vec![b'a'; 100])?;
    fs::write(folder.join("a/b/empty"), [])?;
    for n in 0..8 {
        fs::write(folder.join(format!("linear/file-{n}")), vec![b'l'; 40 * n])?;
    }
    let first = folder.join("indexed/0");
    fs::write(&first, b"contents")?;
    for n in 1..150 {
        fs::hard_link(&first, folder.join(format!("indexed/{n}-a-name-of-some-length-to-fill-blocks")))?;
    }
    let sparse = fs::File::create(folder.join("fragments"))?;
    for n in 0..40u64 {
        sparse.write_all_at(&[n as u8 + 1; 4096], n * 3 * 4096)?;
    }
    symlink("short", folder.join("fast-link"))?;
    symlink("x".repeat(200), folder.join("slow-link"))?;
    let at = |name: &str| folder.join(name).to_str().expect("paths of tests are text").to_owned();
    tools::must_run("mkfifo", &[&at("fifo")]);
    tools::must_run("mknod", &[&at("null"), "c", "1", "3"]);
    Ok(())
}
