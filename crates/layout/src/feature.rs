//! Feature bits of the superblock and what they allow: mount, mount read-only, refuse.
//!
//! ext4's rule: an unknown `compat` bit changes nothing for us, an unknown `ro_compat` bit allows
//! reading, an unknown `incompat` bit allows nothing.

macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident = $value:expr, $label:literal;)*) => {
        $($(#[$doc])* pub const $name: u32 = $value;)*
        /// Names of the bits as `dumpe2fs` prints them.
        pub const NAMES: &[(u32, &str)] = &[$(($name, $label)),*];
    };
}

pub mod compat {
    bits! {
        DIR_PREALLOC = 0x1, "dir_prealloc";
        IMAGIC_INODES = 0x2, "imagic_inodes";
        HAS_JOURNAL = 0x4, "has_journal";
        EXT_ATTR = 0x8, "ext_attr";
        RESIZE_INODE = 0x10, "resize_inode";
        DIR_INDEX = 0x20, "dir_index";
        SPARSE_SUPER2 = 0x200, "sparse_super2";
        FAST_COMMIT = 0x400, "fast_commit";
        STABLE_INODES = 0x800, "stable_inodes";
        ORPHAN_FILE = 0x1000, "orphan_file";
    }
}

pub mod ro_compat {
    bits! {
        SPARSE_SUPER = 0x1, "sparse_super";
        LARGE_FILE = 0x2, "large_file";
        BTREE_DIR = 0x4, "btree_dir";
        HUGE_FILE = 0x8, "huge_file";
        GDT_CSUM = 0x10, "uninit_bg";
        DIR_NLINK = 0x20, "dir_nlink";
        EXTRA_ISIZE = 0x40, "extra_isize";
        QUOTA = 0x100, "quota";
        BIGALLOC = 0x200, "bigalloc";
        METADATA_CSUM = 0x400, "metadata_csum";
        READONLY = 0x1000, "read-only";
        PROJECT = 0x2000, "project";
        SHARED_BLOCKS = 0x4000, "shared_blocks";
        VERITY = 0x8000, "verity";
        ORPHAN_PRESENT = 0x10000, "orphan_present";
    }
}

pub mod incompat {
    bits! {
        COMPRESSION = 0x1, "compression";
        FILETYPE = 0x2, "filetype";
        RECOVER = 0x4, "needs_recovery";
        JOURNAL_DEV = 0x8, "journal_dev";
        META_BG = 0x10, "meta_bg";
        EXTENTS = 0x40, "extents";
        SIXTY_FOUR_BIT = 0x80, "64bit";
        MMP = 0x100, "mmp";
        FLEX_BG = 0x200, "flex_bg";
        EA_INODE = 0x400, "ea_inode";
        DIRDATA = 0x1000, "dirdata";
        CSUM_SEED = 0x2000, "metadata_csum_seed";
        LARGEDIR = 0x4000, "large_dir";
        INLINE_DATA = 0x8000, "inline_data";
        ENCRYPT = 0x10000, "encrypt";
        CASEFOLD = 0x20000, "casefold";
        /// Ours: metadata is found through the map of a generation (`docs/FORMAT.md`).
        XACT_GENERATIONS = 0x4000_0000, "xact_generations";
    }
}

/// `incompat` features that xact reads and writes.
pub const INCOMPAT_SUPPORTED: u32 = incompat::FILETYPE
    | incompat::RECOVER
    | incompat::EXTENTS
    | incompat::SIXTY_FOUR_BIT
    | incompat::META_BG
    | incompat::FLEX_BG
    | incompat::MMP
    | incompat::LARGEDIR
    | incompat::INLINE_DATA
    | incompat::CSUM_SEED
    | incompat::XACT_GENERATIONS;

/// `incompat` features that xact reads and does not write.
pub const INCOMPAT_READ_ONLY: u32 = incompat::EA_INODE;

/// `ro_compat` features that xact writes; others allow a read-only mount.
pub const RO_COMPAT_SUPPORTED: u32 = ro_compat::SPARSE_SUPER
    | ro_compat::LARGE_FILE
    | ro_compat::HUGE_FILE
    | ro_compat::GDT_CSUM
    | ro_compat::DIR_NLINK
    | ro_compat::EXTRA_ISIZE
    | ro_compat::QUOTA
    | ro_compat::PROJECT
    | ro_compat::METADATA_CSUM
    | ro_compat::ORPHAN_PRESENT;

/// Names of the bits in `mask`, unknown ones as hexadecimal, for messages.
pub fn names(mask: u32, known: &[(u32, &str)]) -> String {
    let mut list: Vec<String> =
        known.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| name.to_string()).collect();
    let unknown = mask & !known.iter().fold(0, |all, (bit, _)| all | bit);
    if unknown != 0 {
        list.push(format!("unknown feature bits {unknown:#x}"));
    }
    list.join(", ")
}
