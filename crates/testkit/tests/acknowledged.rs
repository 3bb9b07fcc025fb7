//! A durable commit may have become so by flushes that had begun before data was written. A caller
//! that then asks for it is promised that data, too. Anything may happen between reading the
//! durable commit's number and the call. Here the commit is durable beforehand, which is the same
//! to an engine.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use xact_consistency::{Engine, EngineOptions, Handle, open_generations, open_journal, open_unjournaled};
use xact_testkit::device::SimDevice;
use xact_testkit::files::Format;
use xact_testkit::recording::Cursor;
use xact_types::BlockNr;

const BLOCK_BYTES: usize = 1024;
/// Blocks that formatting leaves free.
const FREE: u64 = 12_000;

/// An engine that commits only when it is asked to, and its device.
fn engine(kind: &str) -> (Arc<SimDevice>, Arc<Engine>) {
    let (options, pool_bytes): (&[&str], _) = match kind {
        "journal" => (&["-b", "1024", "-J", "size=1"], None),
        "none" => (&["-b", "1024", "-O", "^has_journal"], None),
        _ => (&["-b", "1024", "-O", "^has_journal"], Some(4 << 20)),
    };
    let device = SimDevice::new(Format { options, size: "16M", pool_bytes }.make());
    let options = EngineOptions { commit_interval: Duration::from_secs(3600), ..EngineOptions::default() };
    let engine: Arc<Engine> = match kind {
        "journal" => open_journal(device.clone(), options).unwrap(),
        "none" => open_unjournaled(device.clone(), options).unwrap(),
        _ => open_generations(device.clone(), options).unwrap(),
    };
    (device, engine)
}

#[test]
fn data_is_durable_with_an_earlier_commit() {
    for kind in ["journal", "none", "generations"] {
        let (device, engine) = engine(kind);
        let mut handle = Handle::begin(&engine, 1).unwrap();
        handle.update(BlockNr(FREE), |bytes| bytes.fill(1)).unwrap();
        let commit = handle.commit_id();
        drop(handle);
        engine.commit(commit).unwrap();
        assert!(engine.durable() >= commit, "{kind}");
        device.restart_recording();
        engine.write_data(BlockNr(FREE + 100), &[IoSlice::new(&[7; BLOCK_BYTES])]).unwrap();
        engine.commit(commit).unwrap();
        let recording = device.recording();
        let mut cursor = Cursor::new(&recording);
        while cursor.advance() {}
        assert!(cursor.pending().is_empty(), "{kind}: what was written is not flushed");
        engine.close().unwrap();
    }
}
