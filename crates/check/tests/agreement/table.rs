//! The rows: a volume, a change, and the verdict.

use Change::{Attributes, Body, Contents, Field, Set};
use Verdict::{OnlyXact, Problem, Sound};
use Volume::*;

/// The volumes that rows change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Volume {
    /// mke2fs's defaults.
    Defaults,
    /// Without checksums, so that changed bytes are seen for what they are.
    NoSums,
    /// ext3: block maps.
    Mapped,
    /// ext2 without any later feature.
    Old,
    InlineData,
    SmallInodes,
    Quotas,
    OrphanFile,
    BadBlocks,
    ValuesInInodes,
    Verity,
}

impl Volume {
    /// Options of mke2fs.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Defaults => &["-O", "metadata_csum,^orphan_file"],
            NoSums => &["-O", "^metadata_csum,^64bit,^orphan_file"],
            Mapped => &["-O", "^extents,^metadata_csum,^64bit,^flex_bg,^huge_file,^orphan_file"],
            Old => &["-O", "none,sparse_super", "-I", "128"],
            InlineData => &["-O", "inline_data,^orphan_file"],
            SmallInodes => &["-I", "128", "-O", "^orphan_file"],
            Quotas => &["-O", "quota,project,^orphan_file", "-E", "quotatype=usrquota:grpquota:prjquota"],
            OrphanFile => &["-O", "orphan_file"],
            BadBlocks => &["-O", "^metadata_csum,^64bit,^orphan_file"],
            ValuesInInodes => &["-O", "ea_inode,^metadata_csum,^64bit,^orphan_file"],
            Verity => &["-O", "verity,^orphan_file"],
        }
    }
}

#[derive(Debug)]
pub enum Change {
    /// Requests of debugfs.
    Set(&'static [&'static str]),
    /// Bytes of an inode: its path, an offset, the bytes.
    Field(&'static str, usize, &'static [u8]),
    /// Bytes of the attributes in an inode's body.
    Body(&'static str, usize, &'static [u8]),
    /// Bytes of an attribute block.
    Attributes(&'static str, usize, &'static [u8]),
    /// Bytes of a file's or folder's first block.
    Contents(&'static str, usize, &'static [u8]),
}

pub enum Verdict {
    Sound,
    /// Both report a problem, xact in these words.
    Problem(&'static str),
    /// Only xact does, in these words, for a reason.
    OnlyXact(&'static str, &'static str),
}

pub struct Row(pub Volume, pub Change, pub Verdict);

pub const ROWS: &[Row] = &[
    // The list of bad blocks.
    Row(BadBlocks, Set(&[]), Sound),
    Row(BadBlocks, Set(&["sif <1> block[0] 999999"]), Problem("which cannot be")),
    Row(BadBlocks, Set(&["sif <1> block[0] 1"]), Problem("in the list of bad blocks and in use")),
    Row(BadBlocks, Set(&["sif <1> block[0] 2"]), Problem("in the list of bad blocks and in use")),
    Row(BadBlocks, Set(&["sif <1> mode 0100644"]), Problem("is the list of bad blocks")),
    Row(BadBlocks, Set(&["sif <1> uid 7"]), Problem("is the list of bad blocks")),
    Row(BadBlocks, Set(&["sif <1> gid 7"]), Problem("is the list of bad blocks")),
    Row(BadBlocks, Set(&["sif <1> links_count 1"]), Problem("is the list of bad blocks")),
    Row(BadBlocks, Set(&["sif <1> file_acl 7"]), Problem("is the list of bad blocks")),
    Row(BadBlocks, Set(&["sif <1> size 700000"]), Sound),
    Row(BadBlocks, Set(&["sif <1> blocks 7"]), Sound),
    Row(BadBlocks, Set(&["clri <1>"]), Problem("block bitmap")),
    Row(Defaults, Set(&["sif <1> links_count 1"]), Problem("is the list of bad blocks")),
    // Reserved inodes.
    Row(Defaults, Set(&["sif <3> links_count 1"]), Problem("is reserved for a quota file")),
    Row(Defaults, Set(&["sif <3> mode 0100644"]), Sound),
    Row(Defaults, Set(&["sif <4> blocks 2"]), Problem("is reserved for a quota file")),
    Row(Defaults, Set(&["sif <4> block[0] 3000"]), Problem("is reserved for a quota file")),
    Row(Defaults, Set(&["sif <5> mode 0040755"]), Problem("does not fit its number")),
    Row(Defaults, Set(&["sif <5> mode 0100644"]), Sound),
    Row(Defaults, Set(&["sif <6> mode 0100644"]), Problem("does not fit its number")),
    Row(Defaults, Set(&["sif <9> mode 0020644"]), Problem("does not fit its number")),
    Row(Defaults, Set(&["sif <10> mode 0120644"]), Problem("does not fit its number")),
    Row(Defaults, Set(&["sif <6> blocks 8"]), Problem("counts 8 sectors")),
    Row(Defaults, Set(&["sif <9> size 7"]), Sound),
    Row(Defaults, Set(&["sif <9> links_count 1"]), Sound),
    Row(Defaults, Set(&["sif <9> block[0] 3000"]), Sound),
    Row(Defaults, Set(&["sif <7> mode 0040755"]), Problem("does not fit its number")),
    Row(Defaults, Set(&["sif <7> blocks 8"]), Problem("counts 8 sectors")),
    Row(Defaults, Set(&["sif <7> links_count 0"]), Problem("the resize inode is damaged")),
    Row(Defaults, Set(&["sif <7> links_count 2"]), Sound),
    Row(Defaults, Set(&["sif <7> block[0] 3000"]), Problem("the resize inode is damaged")),
    Row(Old, Set(&["sif <7> block[0] 3000"]), Problem("has blocks on a volume without resize_inode")),
    Row(Old, Set(&["sif <8> links_count 1"]), Problem("is reserved for a journal")),
    Row(Old, Set(&["sif <8> mode 0100600"]), Sound),
    Row(Defaults, Set(&["sif <8> mode 0040755"]), Problem("the journal's inode is not a file")),
    Row(Defaults, Set(&["sif <8> blocks 8"]), Problem("counts 8 sectors")),
    Row(Defaults, Set(&["sif <8> flags 0x80800"]), Problem("does not fit its number")),
    Row(
        Defaults,
        Set(&["sif <8> size 0x100000000"]),
        OnlyXact("the journal has holes", "e2fsck takes the size for a signed number of 32 bits"),
    ),
    Row(Quotas, Set(&["sif <3> mode 0040755"]), Problem("does not fit its number")),
    Row(Quotas, Set(&["sif <4> blocks 8"]), Problem("counts 8 sectors")),
    Row(Quotas, Set(&["clri <4>"]), Problem("does not fit its number")),
    // Fields of reserved inodes that have a meaning, and those that have none.
    Row(NoSums, Set(&["sif <1> dtime @200"]), Problem("is part of an orphan list")),
    Row(NoSums, Set(&["sif <1> flags 0x80000"]), Sound),
    Row(NoSums, Set(&["sif <1> flags 0x40000000"]), Problem("folds case")),
    Row(NoSums, Set(&["sif <3> mode 0040755"]), Sound),
    Row(NoSums, Set(&["sif <3> flags 0x10080000"]), Problem("has extents and inline data")),
    Row(NoSums, Set(&["sif <5> mode 0120777"]), Sound),
    Row(NoSums, Set(&["sif <5> flags 0x2800"]), Sound),
    Row(NoSums, Set(&["sif <5> file_acl 0xffffffff"]), Sound),
    Row(NoSums, Set(&["sif <5> extra_isize 3"]), Sound),
    Row(NoSums, Set(&["sif <9> size 0x40000000000"]), Problem("is beyond any file's")),
    Row(NoSums, Set(&["sif <7> flags 0x80000"]), Problem("the resize inode is damaged")),
    Row(NoSums, Set(&["sif <7> flags 0x10000000"]), Problem("the resize inode is damaged")),
    Row(NoSums, Set(&["sif <7> size 0xffffffffffff"]), Problem("is beyond any file's")),
    // Numbers and fields of any inode.
    Row(NoSums, Set(&["sif /file faddr 7"]), Problem("has a fragment")),
    Row(NoSums, Set(&["sif <2> faddr 7"]), Problem("has a fragment")),
    Row(Defaults, Set(&["sif /pipe faddr 7"]), Problem("has a fragment")),
    Row(NoSums, Set(&["sif /file mode 0"]), Problem("unknown file type")),
    Row(NoSums, Set(&["sif /file mode 0030644"]), Problem("unknown file type")),
    Row(NoSums, Set(&["sif /tiny mode 0010644"]), Problem("is a device, FIFO or socket")),
    Row(NoSums, Set(&["sif /dir mode 0010755"]), Problem("is a device, FIFO or socket")),
    Row(NoSums, Set(&["sif /file dtime @1700000000"]), Problem("has a time of deletion")),
    Row(NoSums, Set(&["sif /file dtime @7"]), Problem("is part of an orphan list")),
    Row(NoSums, Set(&["sif <2> dtime @1700000000"]), Problem("has a time of deletion")),
    Row(NoSums, Set(&["sif /file links_count 0"]), Problem("has no time of deletion")),
    Row(NoSums, Set(&["sif /file links_count 7"]), Problem("counts 7 links and has 2")),
    Row(NoSums, Set(&["sif /dir links_count 1"]), Problem("counts 1 links and has 3")),
    Row(NoSums, Set(&["sif /indexed links_count 1"]), Sound),
    Row(NoSums, Set(&["sif /file block[1] 1"]), Problem("holds fewer entries")),
    Row(NoSums, Set(&["sif /file blocks 0"]), Problem("counts 0 sectors")),
    Row(NoSums, Set(&["sif /pipe blocks 8"]), Problem("counts 8 sectors")),
    Row(NoSums, Set(&["sif /null blocks 8"]), Problem("counts 8 sectors")),
    Row(Mapped, Field("/file", 0x74, &[7]), Problem("high half of its count of sectors")),
    Row(NoSums, Field("/file", 0x74, &[7]), Problem("sectors and has")),
    Row(NoSums, Field("/tiny", 0x76, &[7]), Problem("high half of its attribute block's number")),
    Row(Defaults, Set(&["sif /tiny file_acl 0x10000000000"]), Problem("outside the volume")),
    Row(Old, Set(&["sif /tiny file_acl 3000"]), Problem("attribute block on a volume without ext_attr")),
    Row(NoSums, Set(&["sif /tiny file_acl 999999"]), Problem("outside the volume")),
    Row(NoSums, Field("/dir", 0x6C, &[1]), Problem("without large_dir")),
    Row(NoSums, Set(&["sif /dir size 2048"]), Problem("does not fit its 1 blocks")),
    Row(NoSums, Set(&["sif /dir size 1000"]), Problem("does not fit its 1 blocks")),
    Row(NoSums, Set(&["sif /file size 1"]), Problem("has blocks behind its size")),
    Row(NoSums, Set(&["sif /file size 0x7fffffffffff"]), Problem("is beyond any file's")),
    Row(NoSums, Set(&["sif /file size 0x3ffffffffff"]), Sound),
    Row(NoSums, Set(&["sif /file size 0x40000000000"]), Problem("is beyond any file's")),
    Row(Mapped, Set(&["sif /file size 0x3ffffffff"]), Sound),
    Row(Mapped, Set(&["sif /file size 0x7ffffffff"]), Problem("is beyond any file's")),
    Row(Old, Set(&["sif /file size 0x7fffffff"]), Sound),
    Row(Old, Set(&["sif /file size 0x80000000"]), Problem("without large_file")),
    Row(NoSums, Set(&["feature -large_file"]), Sound),
    Row(NoSums, Set(&["sif /file extra_isize 1000"]), Problem("impossible size of its extra fields")),
    Row(NoSums, Set(&["sif /tiny extra_isize 2"]), Problem("impossible size of its extra fields")),
    Row(NoSums, Set(&["sif /tiny extra_isize 30"]), Problem("impossible size of its extra fields")),
    Row(NoSums, Set(&["sif /tiny extra_isize 0"]), Sound),
    Row(NoSums, Field("/tiny", 0x10, &[0, 0, 0, 0xFF]), Sound),
    Row(NoSums, Set(&["sif /tiny mtime_extra 3"]), Sound),
    Row(
        Mapped,
        Set(&["sif /tiny mtime @0xff000000", "sif /tiny mtime_extra 3"]),
        Problem("between 2310 and 2378"),
    ),
    // Flags.
    Row(NoSums, Set(&["sif /file flags 0x82000"]), Problem("AFS")),
    Row(NoSums, Set(&["sif /file flags 0x81000"]), Problem("has a hash index and is not a directory")),
    Row(NoSums, Set(&["sif /file flags 0x80800"]), Problem("is encrypted on a volume without")),
    Row(NoSums, Set(&["sif /file flags 0x40080000"]), Problem("folds case")),
    Row(NoSums, Set(&["sif /dir flags 0x40080000"]), Problem("folds case on a volume without")),
    Row(NoSums, Set(&["sif /file flags 0x180000"]), Sound),
    Row(NoSums, Set(&["sif /file flags 0x280000"]), Sound),
    Row(NoSums, Set(&["sif /file flags 0xC0000"]), Problem("sectors and has")),
    Row(Mapped, Set(&["sif /file flags 0x40000"]), Sound),
    Row(Mapped, Set(&["sif /file flags 0x80000"]), Problem("has extents on a volume without")),
    Row(NoSums, Set(&["sif /tiny flags 0x10080000"]), Problem("has inline data on a volume without")),
    Row(InlineData, Set(&["sif /big flags 0x10080000"]), Problem("has extents and inline data")),
    Row(InlineData, Set(&["sif /big flags 0x10000000"]), Problem("no attribute for them")),
    Row(NoSums, Set(&["sif /file flags 0"]), Problem("has an extent tree and not the flag of one")),
    Row(NoSums, Set(&["sif /empty flags 0"]), Problem("has an extent tree and not the flag of one")),
    Row(NoSums, Set(&["sif /dir flags 0"]), Problem("has an extent tree and not the flag of one")),
    Row(NoSums, Set(&["sif /indexed flags 0x80000"]), Sound),
    Row(Mapped, Set(&["sif /indexed flags 0"]), Sound),
    Row(Old, Set(&["sif /dir flags 0x1000"]), Problem("without dir_index")),
    // Devices and FIFOs.
    Row(NoSums, Set(&["sif /pipe size 7"]), Problem("has a size of 7 bytes")),
    Row(NoSums, Set(&["sif /null size 7"]), Problem("has a size of 7 bytes")),
    Row(NoSums, Set(&["sif /disk size 0x100000000"]), Problem("has a size of 4294967296 bytes")),
    Row(NoSums, Set(&["sif /pipe flags 0x80000"]), Problem("has contents or an index")),
    Row(NoSums, Set(&["sif /null flags 0x1000"]), Problem("has contents or an index")),
    Row(InlineData, Set(&["sif /pipe flags 0x10000000"]), Problem("has contents or an index")),
    Row(NoSums, Set(&["sif /pipe flags 0x10"]), Problem("immutable or append-only")),
    Row(NoSums, Set(&["sif /disk flags 0x20"]), Problem("immutable or append-only")),
    Row(NoSums, Set(&["sif /pipe flags 0x8"]), Sound),
    Row(NoSums, Set(&["sif /null block[5] 77"]), Sound),
    // Symbolic links.
    Row(NoSums, Set(&["sif /fast size 3"]), Problem("target does not fit its size")),
    Row(NoSums, Set(&["sif /fast size 0"]), Problem("target does not fit its size")),
    Row(NoSums, Set(&["sif /fast size 100"]), Problem("target does not fit its size")),
    Row(NoSums, Set(&["sif /fast flags 0x80000"]), Problem("")),
    Row(NoSums, Set(&["sif /fast flags 0x10"]), Problem("immutable or append-only")),
    Row(NoSums, Set(&["sif /slow flags 0x80020"]), Problem("immutable or append-only")),
    Row(NoSums, Set(&["sif /fast flags 0x1000"]), Problem("has a hash index")),
    Row(NoSums, Set(&["sif /slow size 100"]), Problem("target does not fit its size")),
    Row(NoSums, Set(&["sif /slow size 40"]), Problem("does not have one block")),
    Row(NoSums, Set(&["sif /slow blocks 0"]), Problem("")),
    Row(NoSums, Contents("/slow", 60, &[0]), Problem("target does not fit its size")),
    Row(Mapped, Set(&["sif /slow block[1] 3000"]), Problem("does not have one block")),
    Row(NoSums, Field("/fast", 0x6C, &[1]), Problem("target does not fit its size")),
    // Verity.
    Row(Verity, Set(&["sif /big size 20000", "sif /big flags 0x180000"]), Sound),
    Row(Verity, Set(&["sif /big size 20000"]), Problem("has blocks behind its size")),
    // Attributes.
    Row(NoSums, Body("/file", 2, &[0]), Sound),
    Row(NoSums, Body("/file", 16, &[1, 2, 3, 4]), Problem("hash of an attribute")),
    Row(NoSums, Body("/file", 16, &[0; 4]), Sound),
    Row(NoSums, Attributes("/file", 0, &[7]), Problem("no magic number")),
    Row(NoSums, Attributes("/file", 4, &[7]), Problem("counts 7 users")),
    Row(NoSums, Attributes("/file", 8, &[7]), Problem("more than one block")),
    Row(NoSums, Attributes("/file", 12, &[7; 4]), Sound),
    Row(NoSums, Attributes("/file", 33, &[0]), Problem("attribute has no prefix")),
    Row(NoSums, Attributes("/file", 34, &[0xFF, 0xFF]), Problem("outside of its area")),
    Row(NoSums, Attributes("/file", 34, &[40, 0]), Problem("overlap")),
    Row(NoSums, Attributes("/file", 44, &[7; 4]), Problem("hash of an attribute")),
    Row(NoSums, Attributes("/file", 44, &[0; 4]), Problem("hash of an attribute")),
    Row(NoSums, Attributes("/file", 48, b"x"), Problem("hash of an attribute")),
    Row(NoSums, Attributes("/file", 1000, b"x"), Problem("hash of an attribute")),
    Row(Defaults, Attributes("/file", 1000, b"x"), Problem("checksum of the attribute block")),
    Row(SmallInodes, Set(&["sif /file file_acl 0"]), Problem("sectors and has")),
    // Folders.
    Row(NoSums, Contents("/dir", 7, &[1]), Problem("'.' or '..' has another type")),
    Row(NoSums, Contents("/dir", 19, &[1]), Problem("'.' or '..' has another type")),
    Row(Old, Contents("/dir", 7, &[2]), Problem("'.' or '..' has another type")),
    Row(NoSums, Contents("/dir", 9, &[1]), Problem("does not end with a zero")),
    Row(NoSums, Contents("/indexed", 9, &[1]), Problem("does not end with a zero")),
    Row(NoSums, Contents("/dir", 31, &[7]), Problem("has another type")),
    Row(Old, Contents("/dir", 31, &[1]), Problem("without types of entries")),
    Row(NoSums, Contents("/dir", 24, &[3]), Problem("which no name may lead to")),
    Row(NoSums, Contents("/dir", 24, &[0xF0]), Problem("which no name may lead to")),
    Row(NoSums, Contents("/dir", 12, &[11]), Problem("its '..' is inode 11")),
    Row(NoSums, Contents("/dir", 32, b"/"), Problem("invalid name")),
    Row(NoSums, Set(&["unlink /dir/one"]), Problem("has no name")),
    Row(NoSums, Set(&["unlink /dir"]), Problem("has no name")),
    Row(NoSums, Set(&["unlink /lost+found"]), Problem("has no name")),
    Row(Mapped, Set(&["sif /dir block[1] 0"]), Sound),
    Row(Mapped, Set(&["sif /indexed block[1] 0"]), Problem("is a folder with a hole at file block 1")),
    Row(Mapped, Set(&["sif /big block[1] 0"]), Problem("sectors")),
    Row(Mapped, Set(&["sif /big block[IND] 999999"]), Problem("outside the volume")),
    Row(Mapped, Set(&["sif /big block[1] 2"]), Problem("used otherwise")),
    Row(Mapped, Set(&["sif /dir block[DIND] 3000"]), Problem("sectors")),
    Row(Quotas, Set(&["sif /file uid 5"]), Problem("of id 5")),
    // Inline data.
    Row(InlineData, Set(&["sif /tiny size 5000"]), Sound),
    Row(InlineData, Set(&["sif /tiny size 10"]), Sound),
    Row(InlineData, Set(&["sif /dir size 1024"]), Problem("does not fit its inode")),
    Row(InlineData, Set(&["sif /tiny blocks 8"]), Problem("counts 8 sectors")),
    // Values in inodes, the orphan file.
    Row(ValuesInInodes, Body("/file", 16, &[1, 2, 3, 4]), Problem("hash of an attribute")),
    Row(ValuesInInodes, Set(&["sif <85> links_count 2"]), Problem("counts 2 links and has 1")),
    Row(
        ValuesInInodes,
        Set(&["sif <85> faddr 7"]),
        OnlyXact("has a fragment", "e2fsck looks at this field of inodes with a name only"),
    ),
    Row(OrphanFile, Set(&["sif <12> mode 0040755"]), Problem("does not fit its number")),
    Row(OrphanFile, Set(&["sif <12> links_count 0"]), Problem("does not fit its number")),
    Row(OrphanFile, Set(&["sif <12> blocks 8"]), Problem("counts 8 sectors")),
    Row(Defaults, Contents("/file", 0, b"x"), Sound),
];
