//! Agreement with e2fsck on single fields: each row of the table changes one thing on a small
//! volume, with debugfs or as bytes at a known place, and says what xact reports. e2fsck must come
//! to the same verdict, or the row says why it does not.

#[path = "../../../fs/tests/common/mod.rs"]
mod common;
mod table;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::{Image, tool};
use table::{Change, ROWS, Row, Verdict, Volume};
use xact_device::{FileDevice, OpenMode};
use xact_types::Error;

/// A volume with one of everything, which debugfs filled.
fn make(volume: Volume) -> Image {
    let image = Image::empty(4 << 20);
    let tree = image.dir.path().join("tree");
    populate(&tree);
    let bad_blocks = image.dir.path().join("bad blocks");
    std::fs::write(&bad_blocks, "3000\n3001\n3500\n").unwrap();
    let mut args = vec!["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "256"];
    args.extend_from_slice(&["-E", "lazy_itable_init=0,lazy_journal_init=0", "-d", tree.to_str().unwrap()]);
    args.extend_from_slice(volume.options());
    if volume != Volume::Old {
        args.extend_from_slice(&["-J", "size=1"]);
    }
    if volume == Volume::BadBlocks {
        args.extend_from_slice(&["-l", bad_blocks.to_str().unwrap()]);
    }
    args.push(image.path_str());
    tool("mke2fs", &args, |code| code == 0);
    if volume != Volume::Old {
        let value = image.dir.path().join("value");
        let large = if volume == Volume::ValuesInInodes { 5000 } else { 400 };
        std::fs::write(&value, vec![b'v'; large]).unwrap();
        debugfs(&image, &["ea_set /file user.small value", "ea_set /file user.other other"]);
        let set = format!("ea_set -f {} /file user.large", value.display());
        debugfs(&image, &[&set]);
    }
    // Makes the hash indexes.
    tool("e2fsck", &["-fyD", image.path_str()], |code| code <= 1);
    std::fs::remove_dir_all(tree).unwrap();
    image
}

fn populate(tree: &Path) {
    let at = |name: &str| tree.join(name);
    for dir in ["dir/sub", "indexed"] {
        std::fs::create_dir_all(at(dir)).unwrap();
    }
    for (name, len) in [("file", 5000), ("big", 60_000), ("empty", 0), ("tiny", 20), ("dir/one", 9)] {
        std::fs::write(at(name), vec![b'c'; len]).unwrap();
    }
    std::fs::hard_link(at("file"), at("dir/other")).unwrap();
    for n in 0..60 {
        std::fs::write(at(&format!("indexed/{n}-a-name-of-some-length-to-fill-blocks")), []).unwrap();
    }
    symlink("target", at("fast")).unwrap();
    symlink("x".repeat(200), at("slow")).unwrap();
    tool("mkfifo", &[at("pipe").to_str().unwrap()], |code| code == 0);
    for (name, kind, minor) in [("null", "c", "3"), ("disk", "b", "9")] {
        tool("mknod", &[at(name).to_str().unwrap(), kind, "7", minor], |code| code == 0);
    }
}

fn debugfs(image: &Image, requests: &[&str]) -> String {
    let commands = image.dir.path().join("requests");
    let mut file = File::create(&commands).unwrap();
    requests.iter().for_each(|request| writeln!(file, "{request}").unwrap());
    tool("debugfs", &["-w", "-f", commands.to_str().unwrap(), image.path_str()], |code| code == 0)
}

/// The number behind `label` in what debugfs prints for a request.
fn number(image: &Image, request: &str, label: &str) -> u64 {
    let text = tool("debugfs", &["-R", request, image.path_str()], |code| code == 0);
    let at = text.find(label).unwrap_or_else(|| panic!("{request}: no '{label}' in {text}"));
    let word = text[at + label.len()..].split_whitespace().next().unwrap_or_default().trim_end_matches(',');
    let hex = word.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
    hex.unwrap_or_else(|| word.parse()).unwrap_or_else(|_| panic!("{request}: no number in {text}"))
}

fn block_size(image: &Image) -> u64 {
    image.superblock().block_size().into()
}

/// The byte at which an inode begins.
fn inode_at(image: &Image, path: &str) -> u64 {
    let request = format!("imap {path}");
    number(image, &request, "located at block ") * block_size(image) + number(image, &request, "offset ")
}

fn put(image: &Image, at: u64, bytes: &[u8]) {
    File::options().write(true).open(&image.path).unwrap().write_all_at(bytes, at).unwrap();
}

fn apply(image: &Image, change: &Change) {
    match change {
        Change::Set(requests) => {
            // debugfs ends with 0 whatever its requests did.
            for line in debugfs(image, requests).lines() {
                let is_echo = line.starts_with("debugfs") || line.starts_with("Filesystem features: ");
                assert!(is_echo || line.trim().is_empty(), "{requests:?}: {line}");
            }
        }
        Change::Field(path, at, bytes) => put(image, inode_at(image, path) + *at as u64, bytes),
        Change::Body(path, at, bytes) => {
            let mut extra = [0; 2];
            let inode = inode_at(image, path);
            File::open(&image.path).unwrap().read_exact_at(&mut extra, inode + 128).unwrap();
            put(image, inode + 128 + u64::from(u16::from_le_bytes(extra)) + *at as u64, bytes);
        }
        Change::Attributes(path, at, bytes) => {
            let block = number(image, &format!("stat {path}"), "File ACL: ");
            put(image, block * block_size(image) + *at as u64, bytes);
        }
        Change::Contents(path, at, bytes) => {
            let block = number(image, &format!("bmap {path} 0"), "");
            put(image, block * block_size(image) + *at as u64, bytes);
        }
    }
}

/// xact's problems, or the error that ended the check.
fn xact_says(image: &Image) -> Vec<String> {
    let device = Arc::new(FileDevice::open(&image.path, OpenMode::ReadOnly).unwrap());
    match xact_check::check(device, &mut |_, _| ()) {
        Ok(report) => report.problems.iter().map(ToString::to_string).collect(),
        Err(Error::Corrupt(found)) => vec![format!("ends: {}: {}", found.site, found.what)],
        Err(other) => panic!("{other}"),
    }
}

/// The complaints of e2fsck.
fn e2fsck_says(image: &Image) -> Vec<String> {
    let output = Command::new("e2fsck")
        .args(["-fn", "-E", "no_optimize_extents", image.path_str()])
        .env("LC_ALL", "C")
        .output()
        .expect("e2fsck is needed for this test");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_complaint = |line: &&str| {
        let header = line.starts_with("Pass ") || line.contains(" files (") || line.trim().is_empty();
        !header
    };
    let mut said: Vec<String> = text.lines().filter(is_complaint).map(str::to_owned).collect();
    let code = output.status.code();
    if code != Some(0) {
        said.push(format!("status {code:?}"));
    }
    said
}

/// The words of both programs if a row is wrong; `None` if both programs say what it expects.
fn differs(image: &Image, verdict: &Verdict) -> Option<String> {
    let (ours, theirs) = (xact_says(image), e2fsck_says(image));
    let named = |words: &str| ours.iter().any(|problem| problem.contains(words));
    let fits = match verdict {
        Verdict::Sound => ours.is_empty() && theirs.is_empty(),
        Verdict::Problem(words) => named(words) && !theirs.is_empty(),
        Verdict::OnlyXact(words, _) => named(words) && theirs.is_empty(),
    };
    (!fits).then(|| format!("xact says {ours:?}, e2fsck says {theirs:?}"))
}

#[test]
fn each_field() {
    let mut volumes = BTreeMap::new();
    for Row(volume, ..) in ROWS {
        volumes.entry(*volume).or_insert_with(|| {
            let image = make(*volume);
            let wrong = differs(&image, &Verdict::Sound);
            assert_eq!(wrong, None, "{volume:?} as it was made");
            (std::fs::read(&image.path).unwrap(), image)
        });
    }
    let mut wrong = Vec::new();
    for Row(volume, change, verdict) in ROWS {
        let (bytes, image) = &volumes[volume];
        std::fs::write(&image.path, bytes).unwrap();
        apply(image, change);
        if let Verdict::OnlyXact(_, reason) = verdict {
            println!("only xact reports {volume:?}, {change:?}: {reason}");
        }
        wrong.extend(differs(image, verdict).map(|what| format!("{volume:?}, {change:?}: {what}")));
    }
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), ROWS.len(), wrong.join("\n"));
}

/// The cost of a folder follows its blocks, not the last number that it gives one. Here a second
/// extent has the file block 2^32 - 16.
#[test]
fn a_block_far_behind_the_end_of_a_folder() {
    let image = make(Volume::NoSums);
    let sound = std::fs::read(&image.path).unwrap();
    for folder in ["/dir", "/indexed"] {
        std::fs::write(&image.path, &sound).unwrap();
        let extent = [0xF0, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0, 0x80, 0x0C, 0, 0];
        let count_at = inode_at(&image, folder) + 0x28 + 2;
        put(&image, count_at, &[2, 0]);
        put(&image, count_at + 22, &extent);
        let start = std::time::Instant::now();
        let ours = xact_says(&image);
        let took = start.elapsed();
        assert!(ours.iter().any(|problem| problem.contains("is a folder with a hole")), "{ours:?}");
        assert!(ours.iter().any(|problem| problem.contains("behind the largest size")), "{ours:?}");
        assert!(took.as_secs() < 5 && ours.len() < 100, "{took:?}, {} problems", ours.len());
        assert!(!e2fsck_says(&image).is_empty());
    }
}
