//! One small file a transaction.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use xact::{Durability, View};
use xact_control::client::Channel;

use super::own_image::{CALLER, OwnImage};
use super::{Mode, WRAPPED, channel, within};
use crate::loads::{Bench, because};
use crate::papers::{Expectation, bound};
use crate::report::Section;
use crate::volume::Result;

pub(super) const SMALL_DURABLE: &str = "small file, durable";
const SMALL_ORDERED: &str = "small file, in order, in process";

/// The duration of each of `turns` turns.
fn each_timed(turns: u64, mut turn: impl FnMut(u64) -> Result<()>) -> Result<Vec<Duration>> {
    let timed = |n| {
        let started = Instant::now();
        turn(n).map(|()| started.elapsed())
    };
    (0..turns).map(timed).collect()
}

const SMALL_CONTENT: [u8; 4096] = [2; 4096];

pub(super) fn small_file(mode: Mode, channel: Option<&Channel>, dir: &Path, n: u64) -> Result<()> {
    within(channel, dir, 0, |root| {
        let name = format!("{}{n}", mode.name());
        let mut file = File::create(root.join(name)).map_err(because("create"))?;
        file.write_all(&SMALL_CONTENT).map_err(because("write"))?;
        if mode == Mode::Plain { file.sync_all().map_err(because("sync")) } else { Ok(()) }
    })
}

pub(super) fn small_files(bench: &mut Bench<'_, '_>) -> Result<()> {
    let mode = Mode::of(bench.mount.system());
    let turns = bench.count(2000);
    bench.mount.settle()?;
    bench.phase_with_latency(SMALL_DURABLE, "op", |mount| {
        let channel = channel(mode, mount.dir())?;
        each_timed(turns, |n| small_file(mode, channel.as_ref(), mount.dir(), n))
    })?;
    if mode == Mode::Plain {
        return Ok(());
    }
    let own = OwnImage::new(bench)?;
    bench.phase_with_latency(SMALL_ORDERED, "op", |_| {
        let turn = |n: u64| -> xact::Result<()> {
            let transaction = own.volume.begin(Default::default()).into_shared();
            let file = transaction.make_node(
                &CALLER,
                xact::Ino::ROOT,
                format!("small{n}").as_bytes(),
                libc::S_IFREG as u16 | 0o644,
                0,
            )?;
            transaction.write(file.ino, 0, &SMALL_CONTENT, Default::default())?;
            transaction.commit_with(Durability::Ordered)
        };
        each_timed(turns, |n| turn(n).map_err(because("in process")))
    })?;
    own.close()
}

pub(super) fn small_claims(section: &Section) -> Vec<Expectation> {
    let ordered = section.row(SMALL_ORDERED).and_then(|row| row.latency(WRAPPED, |latency| latency.median));
    let says = "one small file, in order, in process, less than 60 us";
    bound("TX-22", says, ordered, |us| us < 60.0).into_iter().collect()
}
