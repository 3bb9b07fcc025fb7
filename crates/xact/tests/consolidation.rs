//! TX-10: contents that are replaced before a durable commit are not written, in every mode and at
//! every size.

use std::sync::Arc;

use xact::mkfs::{MkfsOptions, mkfs, mkfs_generations};
use xact::{
    BlockDevice, Caller, DataMode, Durability, Ino, MemoryDevice, ModeChoice, TxOptions, View, Volume,
    VolumeOptions,
};
use xact_fs::WriteHow;

const KIB: usize = 1024;
const VOLUME_BYTES: u64 = 384 << 20;
/// Metadata that the commits may write, in the log and at home.
const METADATA_BYTES: u64 = 100 << 10;
/// Transactions before the durable one.
const REPLACED: u8 = 20;

/// The kind of volume: with a journal and a data mode, or with generations.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Journal(DataMode),
    Generations,
}

const KINDS: [Kind; 6] = [
    Kind::Journal(DataMode::Writeback),
    Kind::Journal(DataMode::Ordered),
    Kind::Journal(DataMode::Journal),
    Kind::Journal(DataMode::Selective),
    Kind::Journal(DataMode::Adaptive),
    Kind::Generations,
];

fn new_volume(kind: Kind) -> (Arc<dyn BlockDevice>, Arc<Volume>) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let format = MkfsOptions { block_size: Some(4096), ..MkfsOptions::default() };
    let data = match kind {
        Kind::Journal(data) => {
            mkfs(&*device, &format).unwrap();
            Some(data)
        }
        Kind::Generations => {
            mkfs_generations(&device, &format, Some(32 << 20)).unwrap();
            None
        }
    };
    let modes = ModeChoice { data, ..ModeChoice::default() };
    let options = VolumeOptions { modes, flusher: false, ..VolumeOptions::default() };
    let volume = Volume::open(device.clone(), &options).unwrap();
    (device, volume)
}

fn file(volume: &Volume, len: usize) -> Ino {
    let base = volume.base();
    let ino = base.make_node(&Caller::ROOT, Ino::ROOT, b"file", 0o100_644, 0).unwrap().ino;
    base.write(ino, 0, &vec![255; len], WriteHow::default()).unwrap();
    base.sync_file(ino, false).unwrap();
    ino
}

fn replace(volume: &Arc<Volume>, ino: Ino, fill: u8, len: usize, durability: Durability) {
    let transaction = volume.begin(TxOptions::default()).into_shared();
    transaction.write(ino, 0, &vec![fill; len], WriteHow::default()).unwrap();
    transaction.commit_with(durability).unwrap();
}

fn assert_all(view: &dyn View, ino: Ino, fill: u8, len: usize, what: &str) {
    let mut read = Vec::new();
    view.read(ino, 0, len, &mut read).unwrap();
    assert!(read.len() == len && read.iter().all(|&byte| byte == fill), "{what}: not all is {fill}");
}

#[test]
fn replaced_contents_are_not_written() {
    for kind in KINDS {
        for len in [16 * KIB, 1024 * KIB, 8192 * KIB] {
            for durability in [Durability::Ordered, Durability::Consolidated] {
                let what = format!("{kind:?}, {} KiB, {durability:?}", len / KIB);
                let (_, volume) = new_volume(kind);
                let ino = file(&volume, len);
                let before = volume.stats().device.written_bytes;
                for fill in 0..REPLACED {
                    replace(&volume, ino, fill, len, durability);
                    assert_all(&*volume.base(), ino, fill, len, &what);
                }
                let waiting = volume.stats().device.written_bytes - before;
                replace(&volume, ino, REPLACED, len, Durability::Durable);
                let durable = volume.stats().device.written_bytes - before;
                assert_all(&*volume.base(), ino, REPLACED, len, &what);
                // The contents of the log go home.
                volume.close().unwrap();
                let all = volume.stats().device.written_bytes - before;
                println!(
                    "{what}: {waiting}, {durable}, {all} bytes, {:.2} of the file",
                    all as f64 / len as f64
                );
                assert!(all <= 2 * len as u64 + METADATA_BYTES, "{what}: {all} bytes");
            }
        }
    }
}

/// Views of each instant see its contents, whether they were ever written or not. Writes outside go
/// over contents that wait, and the volume has the newest of all when it is opened again.
#[test]
fn contents_that_wait_are_read_and_written_over() {
    const LEN: usize = 300 * KIB;
    const PART: usize = 100 * KIB;
    for kind in KINDS {
        let (device, volume) = new_volume(kind);
        let ino = file(&volume, LEN);
        let views: Vec<_> = (0..4)
            .map(|fill| {
                replace(&volume, ino, fill, LEN, Durability::Ordered);
                volume.begin(TxOptions::default()).into_shared()
            })
            .collect();
        for (fill, view) in (0..).zip(&views) {
            assert_all(&**view, ino, fill, LEN, &format!("{kind:?}, a view"));
        }
        let base = volume.base();
        base.write(ino, 0, &[9; PART], WriteHow::default()).unwrap();
        base.sync_file(ino, true).unwrap();
        drop(views);
        volume.close().unwrap();
        drop((base, volume));
        let volume = Volume::open(device, &VolumeOptions::default()).unwrap();
        let mut read = Vec::new();
        volume.base().read(ino, 0, LEN, &mut read).unwrap();
        assert!(read[..PART].iter().all(|&byte| byte == 9), "{kind:?}");
        assert!(read[PART..].iter().all(|&byte| byte == 3), "{kind:?}");
    }
}
