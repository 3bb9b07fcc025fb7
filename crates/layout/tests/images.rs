//! The codecs on volumes made by mke2fs with several sets of features: they agree with dumpe2fs and
//! debugfs, all checksums match, and sealing again changes no byte.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use xact_layout::feature::{compat, incompat, ro_compat};
use xact_layout::group::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT, bitmap_checksum, bitmap_csum_matches};
use xact_layout::inode::{Inode, flag, inode_seed};
use xact_layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock, Support};
use xact_layout::{extent, orphan};
use xact_types::{BlockNr, GroupNr, Ino};

/// Runs a tool of e2fsprogs.
fn tool(name: &str, args: &[&str]) -> String {
    let output = Command::new(name)
        .args(args)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .output()
        .unwrap_or_else(|error| panic!("{name} is needed for this test (package e2fsprogs): {error}"));
    assert!(output.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A volume's bytes, and the file they were read from.
struct Image {
    _dir: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
    sb: Superblock,
}

impl Image {
    /// Makes a volume that holds a few files of all kinds.
    fn new(size_mib: u64, options: &[&str]) -> Image {
        let dir = tempfile::tempdir().unwrap();
        let (path, root) = (dir.path().join("image"), dir.path().join("root"));
        std::fs::create_dir_all(root.join("folder/deeper")).unwrap();
        for i in 0..200 {
            std::fs::write(root.join(format!("folder/file{i}")), vec![b'x'; i * 50]).unwrap();
        }
        std::os::unix::fs::symlink("folder/file7", root.join("short")).unwrap();
        std::os::unix::fs::symlink("x".repeat(200), root.join("long")).unwrap();
        std::fs::File::create(&path).unwrap().set_len(size_mib << 20).unwrap();
        let mut args = vec!["-q", "-F", "-t", "ext4", "-d", root.to_str().unwrap()];
        args.extend_from_slice(options);
        args.push(path.to_str().unwrap());
        tool("mke2fs", &args);
        let bytes = std::fs::read(&path).unwrap();
        let sb = superblock_at(&bytes, SUPERBLOCK_OFFSET).unwrap();
        Image { _dir: dir, path, bytes, sb }
    }

    /// After `tune2fs -U random`.
    fn with_another_uuid(self) -> Image {
        let path = self.path.to_str().unwrap();
        tool("tune2fs", &["-U", "random", path]);
        let bytes = std::fs::read(&self.path).unwrap();
        let sb = superblock_at(&bytes, SUPERBLOCK_OFFSET).unwrap();
        assert_ne!(sb.uuid(), self.sb.uuid());
        Image { bytes, sb, ..self }
    }

    fn block(&self, block: BlockNr) -> &[u8] {
        let size = self.sb.block_size() as usize;
        &self.bytes[block.0 as usize * size..][..size]
    }

    fn desc(&self, group: GroupNr) -> GroupDesc {
        let (block, at) = self.sb.desc_place(group);
        GroupDesc::new(&self.block(block)[at..at + usize::from(self.sb.desc_size())])
    }

    fn inode(&self, ino: Ino) -> Inode {
        let (group, index) = self.sb.inode_place(ino).unwrap();
        let size = usize::from(self.sb.inode_size());
        let table = self.desc(group).inode_table().0 as usize * self.sb.block_size() as usize;
        Inode::new(&self.bytes[table + index as usize * size..][..size])
    }

    fn groups(&self) -> impl Iterator<Item = GroupNr> + use<> {
        (0..self.sb.group_count()).map(GroupNr)
    }
}

fn superblock_at(bytes: &[u8], at: u64) -> xact_types::Result<Superblock> {
    Superblock::decode(bytes[at as usize..at as usize + SUPERBLOCK_BYTES].try_into().unwrap())
}

const OPTIONS: &[&[&str]] = &[
    &["-b", "4096"],
    &["-b", "1024"],
    &["-b", "2048", "-O", "metadata_csum_seed,orphan_file"],
    &["-b", "1024", "-O", "^64bit"],
    &["-b", "1024", "-O", "^metadata_csum"],
    &["-b", "1024", "-O", "^metadata_csum,uninit_bg"],
    &["-b", "1024", "-O", "^metadata_csum,^64bit,uninit_bg,^flex_bg"],
    &["-b", "4096", "-I", "128"],
    &["-b", "4096", "-I", "1024"],
    &["-b", "1024", "-O", "^flex_bg,^resize_inode"],
    &["-b", "1024", "-O", "sparse_super2,^resize_inode"],
    &["-b", "1024", "-g", "2048", "-O", "^sparse_super,^resize_inode"],
];

/// One volume of each kind, and each one with a stored seed also after a change of its UUID: then
/// the seed no longer follows from the UUID.
fn images() -> impl Iterator<Item = Image> {
    OPTIONS.iter().flat_map(|options| {
        let image = Image::new(24, options);
        let stored = image.sb.has_incompat(incompat::CSUM_SEED);
        let renamed = stored.then(|| Image::new(24, options).with_another_uuid());
        [Some(image), renamed].into_iter().flatten()
    })
}

#[test]
fn superblocks_are_read_as_dumpe2fs_prints_them() {
    for image in images() {
        let sb = &image.sb;
        let text = tool("dumpe2fs", &["-h", image.path.to_str().unwrap()]);
        let lines: HashMap<&str, &str> =
            text.lines().filter_map(|line| line.split_once(':')).map(|(k, v)| (k, v.trim())).collect();
        let number = |key: &str| lines[key].parse::<u64>().unwrap();
        assert_eq!(u64::from(sb.inodes_count()), number("Inode count"));
        assert_eq!(sb.blocks_count(), number("Block count"));
        assert_eq!(sb.reserved_blocks_count(), number("Reserved block count"));
        assert_eq!(sb.free_blocks_count(), number("Free blocks"));
        assert_eq!(u64::from(sb.free_inodes_count()), number("Free inodes"));
        assert_eq!(u64::from(sb.block_size()), number("Block size"));
        assert_eq!(u64::from(sb.inode_table_blocks()), number("Inode blocks per group"));
        assert_eq!(u64::from(sb.inode_size()), number("Inode size"));
        assert_eq!(u64::from(sb.journal_inum()), number("Journal inode"));
        let uuid: String = sb.uuid().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(uuid, lines["Filesystem UUID"].replace('-', ""));
        if let Some(seed) = lines.get("Checksum seed") {
            assert_eq!(format!("{:#010x}", sb.checksum_seed()), *seed);
        }
        assert_eq!(sb.support().unwrap(), Support::ReadWrite);

        let mut again = sb.clone();
        again.seal();
        assert_eq!(again.as_bytes(), sb.as_bytes());
        // The backups are in the groups that the features name, and are sound.
        for group in image.groups().skip(1) {
            let copy = superblock_at(&image.bytes, sb.group_start(group).0 * u64::from(sb.block_size()));
            assert_eq!(sb.has_backup(group), copy.is_ok(), "{group}");
            assert!(copy.is_err() || u32::from(copy.unwrap().block_group_nr()) == group.0);
        }
    }
}

#[test]
fn descriptors_and_bitmaps_have_the_checksums_that_we_compute() {
    for image in images() {
        let sb = &image.sb;
        let (mut free_blocks, mut free_inodes) = (0, 0);
        for group in image.groups() {
            let desc = image.desc(group);
            assert!(desc.checksum_matches(sb, group), "{group}");
            let mut again = desc.clone();
            again.seal(sb, group);
            assert_eq!(again, desc);
            if sb.has_group_csum() {
                assert!(!desc.checksum_matches(sb, GroupNr(group.0 + 1)), "a descriptor knows its group");
                again.set_used_dirs(desc.used_dirs() ^ 1);
                assert!(!again.checksum_matches(sb, group));
            }
            free_blocks += u64::from(desc.free_blocks());
            free_inodes += desc.free_inodes();
            let check = |bitmap: BlockNr, stored: u32, bits: u32, free: u32, real: u32| {
                let bytes = image.block(bitmap);
                if sb.has_metadata_csum() {
                    let computed = bitmap_checksum(sb, bytes, (bits / 8) as usize);
                    assert!(bitmap_csum_matches(sb, stored, computed), "{group}");
                }
                let zeros = (0..real).filter(|&bit| bytes[bit as usize / 8] >> (bit % 8) & 1 == 0).count();
                assert_eq!(zeros as u32, free, "{group}");
            };
            if !(sb.has_group_csum() && desc.has_flag(BLOCK_UNINIT)) {
                let (bits, real) = (sb.blocks_per_group(), sb.blocks_in_group(group));
                check(desc.block_bitmap(), desc.block_bitmap_csum(), bits, desc.free_blocks(), real);
            }
            if !(sb.has_group_csum() && desc.has_flag(INODE_UNINIT)) {
                let bits = sb.inodes_per_group();
                check(desc.inode_bitmap(), desc.inode_bitmap_csum(), bits, desc.free_inodes(), bits);
            }
        }
        assert_eq!((free_blocks, free_inodes), (sb.free_blocks_count(), sb.free_inodes_count()));
    }
}

#[test]
fn inodes_in_use_have_the_checksums_that_we_compute() {
    for image in images() {
        let sb = &image.sb;
        let mut seen = 0;
        for number in 1..=sb.inodes_count() {
            let ino = Ino(number);
            let (group, index) = sb.inode_place(ino).unwrap();
            assert_eq!(sb.inode_at(group, index), ino);
            let desc = image.desc(group);
            if sb.has_group_csum() && index >= sb.inodes_per_group() - desc.itable_unused() {
                continue;
            }
            let inode = image.inode(ino);
            if inode.mode() == 0 {
                continue;
            }
            seen += 1;
            assert!(inode.checksum_matches(sb, ino), "{ino}");
            let mut again = inode.clone();
            again.seal(sb, ino);
            assert_eq!(again.as_bytes(), inode.as_bytes());
            if sb.has_metadata_csum() {
                assert!(!inode.checksum_matches(sb, Ino(number + 1)), "an inode knows its number");
                again.set_size(inode.size() ^ 1);
                assert!(!again.checksum_matches(sb, ino));
            }
            // Every setter restores the value of its getter.
            let mut copy = inode.clone();
            copy.set_uid(inode.uid());
            copy.set_gid(inode.gid());
            copy.set_size(inode.size());
            copy.set_sectors(sb, inode.sectors(sb));
            copy.set_atime(inode.atime());
            copy.set_ctime(inode.ctime());
            copy.set_mtime(inode.mtime());
            inode.crtime().into_iter().for_each(|time| copy.set_crtime(time));
            copy.set_block_area(inode.block_area());
            assert_eq!(copy.as_bytes(), inode.as_bytes(), "{ino}");
        }
        assert!(seen > 200, "{seen} inodes");
        assert_eq!(sb.inode_place(Ino(0)), None);
        assert_eq!(sb.inode_place(Ino(sb.inodes_count() + 1)), None);
    }
}

#[test]
fn inodes_are_read_as_debugfs_prints_them() {
    for image in images() {
        for name in ["/", "/folder", "/folder/file0", "/folder/file100", "/short", "/long", "<8>"] {
            let text = tool("debugfs", &["-R", &format!("stat {name}"), image.path.to_str().unwrap()]);
            let field = |key: &str| {
                let rest = text.split(key).nth(1).unwrap_or_else(|| panic!("{key} in {text}"));
                rest.split_whitespace().next().unwrap().to_string()
            };
            let inode = image.inode(Ino(field("Inode: ").parse().unwrap()));
            assert_eq!(format!("{:04o}", inode.mode() & 0xFFF), field("Mode: "), "{text}");
            assert_eq!(inode.size().to_string(), field("Size: "), "{text}");
            assert_eq!(inode.links_count().to_string(), field("Links: "), "{text}");
            assert_eq!(inode.sectors(&image.sb).to_string(), field("Blockcount: "), "{text}");
            assert_eq!(format!("0x{:x}", inode.flags()), field("Flags: "), "{text}");
            assert_eq!(inode.is_directory(), field("Type: ") == "directory");
            assert_eq!(inode.is_symlink(), field("Type: ") == "symlink");
            assert_eq!(inode.is_regular(), field("Type: ") == "regular");
            // "mtime: 0x12345678:9abcdef0 -- …": seconds and the extra word.
            let mtime = field("mtime: ");
            let (secs, extra) = mtime.split_once(':').unwrap_or((mtime.as_str(), "0"));
            let secs = i64::from_str_radix(secs.trim_start_matches("0x"), 16).unwrap();
            let extra = u32::from_str_radix(extra, 16).unwrap();
            assert_eq!((inode.mtime().secs, inode.mtime().nanos), (secs, extra >> 2), "{text}");
        }
    }
}

#[test]
fn blocks_of_the_orphan_file_have_the_checksums_that_we_compute() {
    for options in [
        ["-b", "1024", "-O", "orphan_file"],
        ["-b", "4096", "-O", "orphan_file,metadata_csum_seed"],
        ["-b", "1024", "-O", "orphan_file,^metadata_csum"],
    ] {
        let mut image = Image::new(24, &options);
        if image.sb.has_incompat(incompat::CSUM_SEED) {
            image = image.with_another_uuid();
        }
        assert!(image.sb.has_compat(compat::ORPHAN_FILE));
        let ino = Ino(image.sb.orphan_file_inum());
        let inode = image.inode(ino);
        assert_ne!(inode.flags() & flag::EXTENTS, 0);
        let seed = inode_seed(&image.sb, ino, inode.generation());
        let site = xact_types::Site::Inode(ino);
        let root = extent::Node::root(inode.block_area(), &image.sb, site).unwrap();
        let mut blocks = 0;
        for i in 0..root.len() {
            let run = root.extent(i).run;
            for number in run.start.0..run.end().0 {
                let block = BlockNr(number);
                let bytes = image.block(block);
                orphan::verify(bytes, &image.sb, seed, block).unwrap();
                let mut again = bytes.to_vec();
                orphan::seal(&mut again, &image.sb, seed, block);
                assert_eq!(again, bytes);
                if image.sb.has_metadata_csum() {
                    orphan::set_entry(&mut again, 3, Some(Ino(12)));
                    assert!(orphan::verify(&again, &image.sb, seed, block).is_err());
                    assert!(orphan::verify(bytes, &image.sb, seed, block.offset(1)).is_err());
                }
                blocks += 1;
            }
        }
        assert_eq!(blocks * u64::from(image.sb.block_size()), inode.size());
    }
}

#[test]
fn features_decide_how_a_volume_may_be_used() {
    let support = |options: &[&str]| Image::new(64, options).sb.support();
    let read_only = |options: &[&str], name: &str| match support(options) {
        Ok(Support::ReadOnly(text)) => assert_eq!(text, name),
        other => panic!("{options:?}: {other:?}"),
    };
    read_only(&["-O", "bigalloc", "-C", "65536"], "bigalloc");
    read_only(&["-O", "verity"], "verity");
    read_only(&["-O", "ea_inode"], "ea_inode");
    read_only(&["-O", "ea_inode,verity"], "ea_inode, verity");
    for feature in ["quota", "quota,project", "meta_bg,^resize_inode", "mmp", "large_dir", "inline_data"] {
        assert_eq!(support(&["-O", feature]).unwrap(), Support::ReadWrite, "{feature}");
    }
    for (feature, name) in [("encrypt", "encrypt"), ("casefold", "casefold")] {
        let error = support(&["-O", feature]).unwrap_err().to_string();
        assert_eq!(error, format!("the volume uses {name}, which xact does not support"));
    }
    // Feature bits of the future have a number instead of a name.
    let mut sb = Image::new(24, &[]).sb;
    sb.set_feature_ro_compat(sb.feature_ro_compat() | 0x4000_0000 | ro_compat::VERITY);
    assert_eq!(sb.support().unwrap(), Support::ReadOnly("verity, unknown feature bits 0x40000000".into()));
}

#[test]
fn superblocks_that_linux_or_libext2fs_refuse_are_refused() {
    type Damage = fn(&mut Superblock);
    let damages: [(Damage, &str); 10] = [
        (|sb| sb.set_log_cluster_size(2), "cluster size is not the block size"),
        (|sb| sb.set_log_groups_per_flex(32), "groups per flex group"),
        (|sb| sb.set_reserved_gdt_blocks(257), "blocks reserved for descriptors"),
        (|sb| sb.set_desc_size_raw(32), "size of the group descriptors"),
        (|sb| sb.set_inodes_per_group(3), "inodes per group"),
        (|sb| sb.set_want_extra_isize(132), "extra size of inodes"),
        (|sb| sb.set_min_extra_isize(132), "extra size of inodes"),
        (|sb| sb.set_def_hash_version(6), "unknown hash of names"),
        (|sb| sb.set_creator_os(1), "the Hurd"),
        (|sb| sb.set_first_ino(10), "first inode"),
    ];
    let sound = Image::new(24, &["-b", "1024"]).sb;
    for (damage, expected) in damages {
        let mut sb = sound.clone();
        damage(&mut sb);
        sb.seal();
        let error = Superblock::decode(sb.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // The largest values that are allowed.
    let mut sb = sound;
    sb.set_log_groups_per_flex(31);
    sb.set_reserved_gdt_blocks(256);
    sb.set_want_extra_isize(128);
    sb.set_def_hash_version(5);
    sb.seal();
    Superblock::decode(sb.as_bytes()).unwrap();
}

#[test]
fn damaged_superblocks_are_refused_or_safe_to_compute_with() {
    let mut state = 1u64;
    let mut random = move |end: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % end
    };
    let with_sums = Image::new(24, &["-b", "1024"]);
    for at in 0..SUPERBLOCK_BYTES {
        let mut bytes = *with_sums.sb.as_bytes();
        bytes[at] ^= 1 << random(8);
        assert!(Superblock::decode(&bytes).is_err(), "byte {at}");
    }
    for options in [["-O", "^metadata_csum"], ["-O", "^metadata_csum,^64bit"]] {
        let image = Image::new(24, &options);
        let mut accepted = 0;
        for _ in 0..50_000 {
            let mut bytes = *image.sb.as_bytes();
            for _ in 0..1 + random(4) {
                let at = random(0x180);
                bytes[at] = [0, 1, 0x7F, 0x80, 0xFF, random(256) as u8][random(6)];
            }
            let Ok(sb) = Superblock::decode(&bytes) else { continue };
            accepted += 1;
            let last = GroupNr(sb.group_count() - 1);
            assert!((1..=sb.blocks_per_group()).contains(&sb.blocks_in_group(last)));
            assert_eq!(sb.group_of(BlockNr(sb.blocks_count() - 1)), last);
            assert_eq!(sb.inode_place(Ino(sb.inodes_count())).unwrap().0, last);
            assert!(sb.inode_table_blocks() > 0 && sb.inodes_per_block() > 0);
            let (_, at) = sb.desc_place(last);
            assert!(at + usize::from(sb.desc_size()) <= sb.block_size() as usize);
            assert!(sb.own_offset() + SUPERBLOCK_BYTES <= sb.block_size() as usize);
            sb.base_meta_blocks(last);
            sb.cluster_blocks();
            let _ = sb.support();
        }
        assert!(accepted > 2_000, "{accepted}");
    }
}
