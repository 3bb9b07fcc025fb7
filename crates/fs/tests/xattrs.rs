//! Extended attributes of xact are valid for e2fsck and the kernel, and those of the kernel are
//! read and changed by xact.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::mount::Mount;
use common::volume::{Volume, debugfs, ino_of};
use common::{Image, tool};
use xact_fs::xattr::Xattrs;
use xact_layout::get_u32;
use xact_layout::inode::Inode;
use xact_types::{Errno, Error, Ino, Result};

const OPTIONS: &[(&str, &[&str])] = &[
    ("1 KiB blocks", &["-b", "1024"]),
    ("4 KiB blocks, csum_seed", &["-b", "4096", "-O", "metadata_csum_seed"]),
    ("no checksums", &["-b", "2048", "-O", "^metadata_csum"]),
    ("128-byte inodes", &["-b", "1024", "-I", "128"]),
    ("1 KiB inodes", &["-b", "4096", "-I", "1024"]),
];

/// user::rw-, user:1000:r--, group::r--, mask::rw-, other::---, in the format of system calls.
const ACL: [u8; 44] = [
    2, 0, 0, 0, //
    1, 0, 6, 0, 0xFF, 0xFF, 0xFF, 0xFF, //
    2, 0, 4, 0, 0xE8, 3, 0, 0, //
    4, 0, 4, 0, 0xFF, 0xFF, 0xFF, 0xFF, //
    0x10, 0, 6, 0, 0xFF, 0xFF, 0xFF, 0xFF, //
    0x20, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF,
];

struct Opened<'v> {
    volume: &'v Volume,
    ino: Ino,
    inode: Inode,
}

impl<'v> Opened<'v> {
    fn open(volume: &'v Volume, name: &str) -> Opened<'v> {
        let ino = ino_of(&volume.image, name);
        Opened { volume, ino, inode: volume.inodes.read(ino).unwrap() }
    }

    fn xattrs(&self) -> Xattrs<'v> {
        Xattrs::new(&self.volume.engine, self.volume.sb(), &self.volume.alloc, &self.volume.inodes, self.ino)
    }

    fn get(&self, name: &str) -> Option<Vec<u8>> {
        self.xattrs().get(&self.inode, name.as_bytes()).unwrap()
    }

    fn set(&mut self, name: &str, value: Option<&[u8]>) -> Result<()> {
        let mut handle = self.volume.begin(Xattrs::SET_CREDITS);
        self.xattrs().set(&mut handle, &mut self.inode, name.as_bytes(), value)
    }

    fn all(&self) -> BTreeMap<String, Vec<u8>> {
        let names = self.xattrs().list(&self.inode).unwrap();
        let all: BTreeMap<_, _> = names
            .iter()
            .map(|name| String::from_utf8(name.clone()).unwrap())
            .map(|name| (name.clone(), self.get(&name).unwrap()))
            .collect();
        assert_eq!(all.len(), names.len(), "no name is listed twice");
        all
    }

    fn save(&self) {
        self.volume.write_inode(self.ino, &self.inode);
    }

    /// Number of users of the attribute block.
    fn users(&self) -> u32 {
        get_u32(&self.volume.engine.read(xact_types::BlockNr(self.inode.xattr_block())).unwrap(), 4)
    }
}

/// All attributes of a file on a mounted volume, from getfattr.
fn by_getfattr(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let path = path.to_str().unwrap();
    let args = ["--absolute-names", "-d", "-m", "-", "-e", "hex", "-h", path];
    let text = tool("getfattr", &args, |code| code == 0);
    let unhex = |hex: &str| -> Vec<u8> {
        let digits = hex.strip_prefix("0x").unwrap();
        (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
    };
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split_once('=') {
            Some((name, hex)) => (name.to_string(), unhex(hex)),
            None => (line.to_string(), Vec::new()),
        })
        .collect()
}

fn setfattr(path: &Path, name: &str, value: &[u8]) {
    let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = path.to_str().unwrap();
    tool("setfattr", &["-n", name, "-v", &format!("0x{hex}"), path], |code| code == 0);
}

/// Text that depends on its length and seed.
fn value(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (seed.wrapping_mul(31) ^ i.wrapping_mul(7)) as u8).collect()
}

#[test]
fn attributes_of_xact_are_valid_for_e2fsck_and_the_kernel() {
    for (name, options) in OPTIONS {
        println!("{name}");
        let image = Image::mke2fs(32 << 20, options);
        debugfs(&image, &["write /dev/null file", "write /dev/null other", "mkdir folder"]);
        let volume = Volume::open(image);
        let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut file = Opened::open(&volume, "file");
        file.set("system.posix_acl_access", Some(&ACL)).unwrap();
        model.insert("system.posix_acl_access".into(), ACL.to_vec());
        let mut state = 12345u32;
        let mut full = 0;
        for step in 0..600 {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            let pick = state >> 16;
            let prefix = ["user.", "trusted.", "security."][pick as usize % 3];
            let name = format!("{prefix}{}", "n".repeat(1 + (pick as usize >> 2) % 12));
            let len = match pick % 7 {
                0 => 0,
                1 => 300,
                _ => (pick as usize >> 3) % 60,
            };
            let new = (pick % 5 != 0).then(|| value(step, len));
            let before = file.inode.clone();
            match (file.set(&name, new.as_deref()), new) {
                (Ok(()), Some(new)) => _ = model.insert(name, new),
                (Ok(()), None) => _ = model.remove(&name),
                (Err(Error::DoesNotFit(_)), Some(_)) => {
                    full += 1;
                    assert!(file.inode == before, "what does not fit changes nothing");
                }
                (result, _) => panic!("{result:?}"),
            }
            if step % 20 == 0 {
                assert_eq!(file.all(), model);
            }
        }
        // Leave space for the attributes that the kernel adds below.
        for name in (1..=6).map(|len| format!("user.{}", "n".repeat(len))) {
            file.set(&name, None).unwrap();
            model.remove(&name);
        }
        assert!(full > 0 || volume.sb().block_size() > 1024, "the small block was full at times");
        file.inode.set_mode(0o100660);
        assert_eq!(file.all(), model);
        file.save();

        let mut folder = Opened::open(&volume, "folder");
        folder.set("system.posix_acl_default", Some(&ACL)).unwrap();
        folder.save();
        // A block that is added and removed again.
        let mut other = Opened::open(&volume, "other");
        other.set("user.large", Some(&value(1, 900))).unwrap();
        assert_eq!(other.get("user.large"), Some(value(1, 900)));
        other.set("user.large", None).unwrap();
        assert_eq!((other.inode.xattr_block(), other.inode.sectors(volume.sb())), (0, 0));
        other.save();

        let image = volume.close();
        let mount = Mount::new(&image);
        assert_eq!(by_getfattr(&mount.path("file")), model);
        let acl = tool("getfacl", &["-cpn", mount.path("file").to_str().unwrap()], |code| code == 0);
        assert_eq!(acl.trim(), "user::rw-\nuser:1000:r--\ngroup::r--\nmask::rw-\nother::---");
        let acl = tool("getfacl", &["-cpnd", mount.path("folder").to_str().unwrap()], |code| code == 0);
        assert_eq!(acl.trim(), "user::rw-\nuser:1000:r--\ngroup::r--\nmask::rw-\nother::---");
        // The kernel changes them.
        setfattr(&mount.path("file"), "user.n", b"kernel");
        setfattr(&mount.path("file"), "trusted.kernel", b"");
        model.insert("user.n".into(), b"kernel".into());
        model.insert("trusted.kernel".into(), vec![]);
        mount.unmount();
        image.assert_clean();
        let volume = Volume::open(image);
        let mut file = Opened::open(&volume, "file");
        assert_eq!(file.all(), model);
        let data = file.inode.sectors(volume.sb());
        let had_block = file.inode.xattr_block() != 0;
        let mut handle = volume.begin(Xattrs::DROP_CREDITS);
        file.xattrs().drop_all(&mut handle, &mut file.inode).unwrap();
        drop(handle);
        assert_eq!(file.inode.xattr_block(), 0);
        assert!(!had_block || file.inode.sectors(volume.sb()) < data);
        file.save();
        volume.close();
    }
}

#[test]
fn attributes_of_the_kernel_are_read_and_changed() {
    for (name, options) in OPTIONS {
        println!("{name}");
        let image = Image::mke2fs(32 << 20, options);
        let mount = Mount::new(&image);
        let mut expected = Vec::new();
        for i in 0..20u32 {
            let path = mount.path(&format!("file{i}"));
            std::fs::write(&path, b"contents").unwrap();
            setfattr(&path, "user.comment", &value(i, i as usize * 4));
            setfattr(&path, "trusted.t", &value(i, 3));
            setfattr(&path, "security.s", b"");
            if i % 3 == 0 {
                setfattr(&path, "user.large", &value(i, 400));
            }
            if i % 2 == 0 {
                let acl = format!("u:{}:rwx,g:{}:r,m::rw", 1000 + i, 50 + i);
                tool("setfacl", &["-m", &acl, path.to_str().unwrap()], |code| code == 0);
            }
            expected.push(by_getfattr(&path));
        }
        mount.unmount();
        let volume = Volume::open(image);
        for (i, expected) in expected.iter_mut().enumerate() {
            let mut file = Opened::open(&volume, &format!("file{i}"));
            assert_eq!(file.all(), *expected, "file {i}");
            assert_eq!(file.get("user.none"), None);
            file.set("user.ours", Some(b"new")).unwrap();
            file.set("trusted.t", None).unwrap();
            expected.insert("user.ours".into(), b"new".into());
            expected.remove("trusted.t");
            if i % 3 == 0 {
                file.set("user.large", None).unwrap();
                expected.remove("user.large");
            }
            assert_eq!(file.all(), *expected, "file {i}");
            file.save();
        }
        let image = volume.close();
        let mount = Mount::new(&image);
        for (i, expected) in expected.iter().enumerate() {
            assert_eq!(by_getfattr(&mount.path(&format!("file{i}"))), *expected, "file {i}");
        }
        mount.unmount();
    }
}

#[test]
fn only_the_last_user_changes_a_shared_block() {
    let image = Image::mke2fs(32 << 20, &["-b", "1024"]);
    let mount = Mount::new(&image);
    for name in ["a", "b", "c"] {
        std::fs::write(mount.path(name), b"").unwrap();
        setfattr(&mount.path(name), "user.same", &value(1, 500));
    }
    mount.unmount();
    let volume = Volume::open(image);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| Opened::open(&volume, name));
    let shared = a.inode.xattr_block();
    assert_eq!([b.inode.xattr_block(), c.inode.xattr_block(), 3], [shared, shared, a.users().into()]);

    a.set("user.small", Some(&value(2, 90))).unwrap();
    assert_ne!(a.inode.xattr_block(), shared);
    assert_eq!((a.users(), b.users()), (1, 2));
    assert_eq!(b.all(), BTreeMap::from([("user.same".into(), value(1, 500))]), "others see no change");
    b.set("user.same", None).unwrap();
    assert_eq!((b.inode.xattr_block(), c.users()), (0, 1));
    c.set("user.same", Some(&value(3, 500))).unwrap();
    assert_eq!(c.inode.xattr_block(), shared, "the last user keeps it");
    [&a, &b, &c].iter().for_each(|file| file.save());

    let image = volume.close();
    let mount = Mount::new(&image);
    assert_eq!(by_getfattr(&mount.path("a"))["user.same"], value(1, 500));
    assert_eq!(by_getfattr(&mount.path("b")), BTreeMap::new());
    assert_eq!(by_getfattr(&mount.path("c")), BTreeMap::from([("user.same".into(), value(3, 500))]));
}

#[test]
fn impossible_names_and_values_are_refused() {
    let image = Image::mke2fs(32 << 20, &["-b", "1024"]);
    debugfs(&image, &["write /dev/null file"]);
    let volume = Volume::open(image);
    let mut file = Opened::open(&volume, "file");
    let long = |len: usize| format!("user.{}", "x".repeat(len));
    for (name, value, errno) in [
        ("user.", &b"v"[..], Errno::EOPNOTSUPP),
        ("nowhere.x", b"v", Errno::EOPNOTSUPP),
        (&long(256), b"v", Errno::ERANGE),
        ("user.x", &vec![0; 65537], Errno::E2BIG),
        ("user.x", &vec![0; 65536], Errno::ENOSPC),
        ("user.x", &vec![0; 1000], Errno::ENOSPC),
        ("system.posix_acl_access", b"no list", Errno::EINVAL),
    ] {
        let refused = file.set(name, Some(value)).unwrap_err();
        assert_eq!(refused.errno(), errno, "{name} {}", value.len());
    }
    file.set(&long(255), Some(b"longest name")).unwrap();
    assert_eq!(file.get(&long(255)).unwrap(), b"longest name");
    file.set("user.absent", None).unwrap();
    file.save();
    volume.close();
}

#[test]
fn damaged_attributes_are_named_and_not_written() {
    let image = Image::mke2fs(32 << 20, &["-b", "1024"]);
    debugfs(&image, &["write /dev/null file"]);
    let volume = Volume::open(image);
    let mut file = Opened::open(&volume, "file");
    file.set("user.large", Some(&value(1, 600))).unwrap();
    let block = xact_types::BlockNr(file.inode.xattr_block());
    volume.begin(1).update(block, |bytes| bytes[40] ^= 1).unwrap();
    let error = file.xattrs().get(&file.inode, b"user.large").unwrap_err();
    assert!(matches!(error, Error::Corrupt(c) if c.site == xact_types::Site::Block(block)), "{error}");
    assert!(matches!(file.set("user.other", Some(&value(1, 200))), Err(Error::Corrupt(_))));
    // Points into the inode table.
    file.inode.set_xattr_block(volume.sb().first_data_block().into());
    assert!(matches!(file.xattrs().list(&file.inode), Err(Error::Corrupt(_))));
    let mut handle = volume.begin(Xattrs::DROP_CREDITS);
    assert!(matches!(file.xattrs().drop_all(&mut handle, &mut file.inode), Err(Error::Corrupt(_))));
}
