//! Loads on SQLite, by the driver in Python.

use std::process::Command;

use super::{Mode, REWRITTEN, by_way};
use crate::counts::{Counts, STAT_SECTOR_BYTES};
use crate::loads::{Bench, Rated, Sample, counted};
use crate::papers::{Expectation, bound};
use crate::report::Section;
use crate::volume::{Mount, Result, run};

/// A load of the driver.
#[derive(Clone, Copy)]
pub(super) struct DriverLoad {
    name: &'static str,
    pub phase: &'static str,
    /// Units at full size.
    full: u64,
}

pub(super) const SQLITE: DriverLoad =
    DriverLoad { name: "update", phase: "SQLite, a row a transaction", full: 1000 };
pub(super) const TPCC: DriverLoad = DriverLoad { name: "tpcc", phase: "TPC-C", full: 1000 };
pub(super) const MAIL: DriverLoad = DriverLoad { name: "mail", phase: "mail with an attachment", full: 500 };

const DRIVER: &str = include_str!("driver.py");

/// Runs the driver, which finds the C library beside the measured program. Returns a line of
/// numbers for each way.
fn drive(mount: &Mount<'_>, arguments: &[&str]) -> Result<Vec<Vec<f64>>> {
    let mut command = Command::new("python3");
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");
    command.env("LIBXACT", mount.xact().with_file_name("libxact_c.so")).env("PYTHONPATH", package);
    command.env("PYTHONDONTWRITEBYTECODE", "1").args(["-c", DRIVER]).args(arguments);
    let output = run(&mut command)?;
    let numbers = |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect();
    let lines: Option<Vec<Vec<f64>>> = output.lines().map(numbers).collect();
    lines.filter(|lines| !lines.is_empty()).ok_or_else(|| format!("the driver says {output:?}"))
}

impl DriverLoad {
    fn count(self, bench: &Bench<'_, '_>) -> String {
        bench.count(self.full).max(20).to_string()
    }
}

pub(super) fn database(bench: &mut Bench<'_, '_>, load: DriverLoad) -> Result<()> {
    let mode = Mode::of(bench.mount.system());
    let count = load.count(bench);
    bench.phase_with_rate(load.phase, "tx", |mount| {
        let folder = mount.dir().display().to_string();
        match drive(mount, &[load.name, mode.name(), &folder, &count])?[..] {
            [ref numbers] if numbers.len() == 2 => Ok(Rated { rate: numbers[0], units: numbers[1] }),
            ref lines => Err(format!("the driver says {lines:?}")),
        }
    })
}

pub(super) fn database_in_turns(bench: &mut Bench<'_, '_>, load: DriverLoad) -> Result<()> {
    let folder = bench.mount.dir().join(load.name).display().to_string();
    let ways = Mode::ALL.map(Mode::name).join(",");
    let statistics = bench.device.statistics()?;
    let lines = drive(bench.mount, &[load.name, &ways, &folder, &load.count(bench), &statistics])?;
    for (mode, numbers) in Mode::ALL.into_iter().zip(lines) {
        let [rate, units, writes, sectors, flushes] = numbers[..] else {
            return Err(format!("the driver says {numbers:?}"));
        };
        let counts = Counts {
            writes: writes as u64,
            written_bytes: sectors as u64 * STAT_SECTOR_BYTES,
            flushes: flushes as u64,
            ..Counts::default()
        };
        let (phase, unit) = (by_way(load.phase, mode), "tx".to_owned());
        let counts = counted(bench.mount.system(), counts);
        bench.samples.push(Sample { phase, rate, unit, units, latency: None, counts });
    }
    bench.mount.settle()
}

pub(super) fn against_the_kernel(section: &Section, load: DriverLoad) -> Vec<Expectation> {
    let ratio = section.row(load.phase).and_then(|row| row.ratio(REWRITTEN, "kernel"));
    let says = format!("{}, rewritten, against kernel ext4, 1 time", load.phase);
    bound("TX-22", &says, ratio, |times| times >= 1.0).into_iter().collect()
}
