//! What the layers below log goes to standard error, which a daemon's log takes over (see `log`).

use ::log::{LevelFilter, Log, Metadata, Record};
use xact_types::printable;

struct ToStderr;

static LOGGER: ToStderr = ToStderr;

impl Log for ToStderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        eprintln!("xact: {}", printable(&record.args().to_string()));
    }

    fn flush(&self) {}
}

/// To be called once, first of all.
pub fn install() {
    ::log::set_logger(&LOGGER).expect("nobody else sets a logger");
    ::log::set_max_level(LevelFilter::Warn);
}
