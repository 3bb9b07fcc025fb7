//! A stalled device, and the calls that wait for it.
//!
//! DESIGN rule 4: no global lock on the path of an operation. While the device stalls the read of
//! one file's data, calls on other files continue. A flush, on the other hand, is waited for by
//! every call whose data it makes durable.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use xact_device::BlockDevice;
use xact_fs::{Caller, DataMode, ReadAsOf, RenameHow, SetAttr, View, VolumeOptions, WriteHow};
use xact_testkit::device::SimDevice;
use xact_testkit::tools;
use xact_types::Ino;

const ROOT: Caller = Caller::ROOT;
/// Far longer than the work takes; only a lock that is never released reaches it.
const TIMEOUT: Duration = Duration::from_secs(20);

fn find(image: &xact_testkit::image::Image, pattern: &[u8]) -> u64 {
    let mut block = vec![0; 4096];
    (0..image.size_bytes() / 4096)
        .map(|n| n * 4096)
        .find(|&at| {
            image.read(&mut block, at);
            block.starts_with(pattern)
        })
        .expect("the file's data is on the device")
}

#[test]
fn a_stalled_read_of_one_file_delays_no_other() {
    let image = tools::formatted(&["-b", "4096"], "64M");
    let device = SimDevice::new(image);
    let pattern = b"these bytes are read when the test lets them";
    {
        let base = xact_fs::open(device.clone() as Arc<dyn BlockDevice>, &VolumeOptions::default()).unwrap();
        let slow = base.make_node(&ROOT, Ino::ROOT, b"slow", 0o100644, 0).unwrap().ino;
        base.write(slow, 0, pattern, WriteHow::default()).unwrap();
        for i in 0..20 {
            let ino = base.make_node(&ROOT, Ino::ROOT, format!("f{i}").as_bytes(), 0o100644, 0).unwrap().ino;
            base.write(ino, 0, &[i; 5000], WriteHow::default()).unwrap();
        }
        base.close().unwrap();
    }
    let at = find(&device.image(), pattern);
    let base = xact_fs::open(device.clone() as Arc<dyn BlockDevice>, &VolumeOptions::default()).unwrap();
    let slow = base.lookup(Ino::ROOT, b"slow").unwrap().ino;
    let stall = device.stall_reads(at..at + 4096);

    let reader = {
        let base = base.clone();
        std::thread::spawn(move || {
            let mut out = Vec::new();
            base.read(slow, 0, 4096, &mut out).map(|()| out)
        })
    };
    while device.waiting_reads() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }

    let (done, all_done) = mpsc::channel();
    for thread in 0..4u8 {
        let (base, done) = (base.clone(), done.clone());
        std::thread::spawn(move || {
            for i in (thread..20).step_by(4) {
                let name = format!("f{i}");
                let ino = base.lookup(Ino::ROOT, name.as_bytes()).unwrap().ino;
                let mut out = Vec::new();
                base.read(ino, 0, 8192, &mut out).unwrap();
                assert_eq!(out, [i; 5000]);
                base.write(ino, 100, b"x", WriteHow::default()).unwrap();
                base.sync_file(ino, false).unwrap();
                let dir = base.make_dir(&ROOT, Ino::ROOT, format!("d{i}").as_bytes(), 0o755).unwrap().ino;
                base.rename(&ROOT, (Ino::ROOT, name.as_bytes()), (dir, b"moved"), RenameHow::Replace)
                    .unwrap();
                base.set_attr(&ROOT, ino, &SetAttr { size: Some(10), ..SetAttr::default() }).unwrap();
                base.unlink(&ROOT, dir, b"moved").unwrap();
                // Name and attributes of the file are in memory, only its data is not.
                assert_eq!(base.lookup(Ino::ROOT, b"slow").unwrap().size, 44);
                // A transaction may begin and end as well.
                drop(base.open_view());
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..4 {
        all_done.recv_timeout(TIMEOUT).expect("an operation waits for a file that it has nothing to do with");
    }
    assert!(!reader.is_finished(), "the read was to be held back");
    drop(stall);
    assert_eq!(reader.join().unwrap().unwrap(), pattern);
    base.close().unwrap();
}

/// Data is overwritten in place, with two fsyncs: the second finds that nothing is left to write,
/// and waits for the flush of the first.
#[test]
fn an_fsync_waits_for_the_flush_of_another() {
    let device = SimDevice::new(tools::formatted(&["-b", "4096"], "64M"));
    let mut options = VolumeOptions::default();
    options.modes.data = Some(DataMode::Ordered);
    let base = xact_fs::open(device.clone() as Arc<dyn BlockDevice>, &options).unwrap();
    let ino = base.make_node(&ROOT, Ino::ROOT, b"file", 0o100644, 0).unwrap().ino;
    base.write(ino, 0, &[1; 65536], WriteHow::default()).unwrap();
    base.sync_file(ino, false).unwrap();
    base.write(ino, 0, &[2; 65536], WriteHow::default()).unwrap();

    let stall = device.stall_flushes();
    let (done, is_done) = mpsc::channel();
    let sync = || {
        let (base, done) = (base.clone(), done.clone());
        std::thread::spawn(move || {
            base.sync_file(ino, true).unwrap();
            done.send(()).unwrap();
        })
    };
    sync();
    while device.waiting_flushes() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    sync();
    let early = is_done.recv_timeout(Duration::from_millis(200));
    assert!(early.is_err(), "an fsync returned while what it is for was not durable");
    drop(stall);
    for _ in 0..2 {
        is_done.recv_timeout(TIMEOUT).expect("the flush is over, and so are both");
    }
    base.close().unwrap();
}
