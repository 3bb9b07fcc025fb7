//! Every block of a small volume is overwritten in turn with zeros, ones, noise and another block's
//! content; the volume is opened, walked, written and closed. Whatever the bytes are: no panic on
//! any thread, no hang, no write outside the volume, and an error that names the damaged place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

use parking_lot::Mutex;
use xact_testkit::damage::{
    exercise, is_fair, is_of_damage, is_untouched_behind, names_the_place, populated,
};
use xact_testkit::rng::Rng;
use xact_types::{Error, Site};

/// Bytes of a block of every volume here.
const BLOCK: u64 = 1024;
/// An image that takes longer counts as a hang.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Panics on any thread, including the volume's own.
static PANICS: AtomicU64 = AtomicU64::new(0);

fn is_about(error: &Error, block: u64) -> bool {
    matches!(error, Error::Corrupt(corruption) if matches!(corruption.site, Site::Block(at) if at.0 == block))
}

fn overwrite_blocks(name: &str, mke2fs: &[&str]) {
    let (image, size) = populated(mke2fs);
    let used: Vec<u64> = (0..size / BLOCK)
        .filter(|&block| {
            let mut bytes = vec![0; BLOCK as usize];
            image.read(&mut bytes, block * BLOCK);
            bytes.iter().any(|&byte| byte != 0)
        })
        .collect();
    let mut rng = Rng::of(&[size]);
    let (mut images, mut reported, mut exactly) = (0, 0, 0);
    let line = Mutex::new(String::new());
    for (at, &block) in used.iter().enumerate() {
        let mut other = vec![0; BLOCK as usize];
        image.read(&mut other, used[(at * 7 + 11) % used.len()] * BLOCK);
        let noise: Vec<u8> = (0..BLOCK).map(|_| rng.below(256) as u8).collect();
        let patterns = [
            ("zeros", vec![0; BLOCK as usize]),
            ("ones", vec![0xFF; BLOCK as usize]),
            ("noise", noise),
            ("another block", other),
        ];
        for (pattern, bytes) in patterns {
            *line.lock() = format!("{name}: block {block}, {pattern}");
            let mut damaged = image.clone();
            damaged.write(&bytes, block * BLOCK);
            let (send, receive) = channel();
            std::thread::spawn(move || {
                let _ = send.send(catch_unwind(AssertUnwindSafe(|| exercise(damaged))));
            });
            let Ok(result) = receive.recv_timeout(TIMEOUT) else { panic!("{}: it hangs", line.lock()) };
            let (errors, after) = result.unwrap_or_else(|_| panic!("{}: it panics", line.lock()));
            assert_eq!(PANICS.load(SeqCst), 0, "{}: a thread of the volume panics", line.lock());
            assert!(is_untouched_behind(&after, size), "{}: a write behind the volume", line.lock());
            if let Some(unfair) = errors.iter().find(|error| !is_fair(error)) {
                panic!("{}: {unfair}", line.lock());
            }
            if let Some(first) = errors.iter().find(|error| is_of_damage(error)) {
                assert!(names_the_place(first), "{}: first of all it says '{first}'", line.lock());
                reported += 1;
            }
            images += 1;
            exactly += u32::from(errors.iter().any(|error| is_about(error, block)));
        }
    }
    println!("{name}: {images} images, {reported} reported, {exactly} by the number of the block");
    assert!(reported > images / 50, "{name}: hardly any damage was reported");
}

fn count_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, SeqCst);
        usual(info);
    }));
}

/// One test for all, since the panics are counted per process.
#[test]
fn damage_anywhere_is_an_error_at_most() {
    count_panics();
    overwrite_blocks("1 KiB", &["-b", "1024", "-J", "size=1"]);
    overwrite_blocks(
        "new",
        &["-b", "1024", "-J", "size=1", "-O", "orphan_file,metadata_csum_seed,large_dir"],
    );
    overwrite_blocks("no sums", &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit"]);
    overwrite_blocks(
        "ext3",
        &["-b", "1024", "-J", "size=1", "-O", "^extents,^metadata_csum,^64bit,^flex_bg"],
    );
    overwrite_blocks("no journal", &["-b", "1024", "-O", "^has_journal,^metadata_csum"]);
    overwrite_blocks("inline data", &["-b", "1024", "-J", "size=1", "-O", "inline_data"]);
    overwrite_blocks("meta_bg", &["-b", "1024", "-J", "size=1", "-O", "meta_bg,^resize_inode", "-g", "1024"]);
}
