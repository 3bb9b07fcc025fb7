//! The log: events of all layers, as lines on standard error or in a file, or in the system's log.
//!
//! A command prints events to standard error. The daemon does so until it is ready; from then on
//! they go to its [`Target`], with time, level, mount and, if an event concerns one, transaction.
//! Lines that are written to standard error itself, such as those of a panic, go to the same place.
//!
//! `-v`, `-q` and the environment variable `XACT_LOG` choose the events.

use std::ffi::CString;
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::stdio::dup2_stderr;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};
use xact::text::printable;

use crate::args::Verbosity;
use crate::exit::{Failure, Result};

/// The environment variable with a filter, such as `debug` or `xact_fs=trace,info`.
const FILTER: &str = "XACT_LOG";
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";
const SYSLOG_SOCKET: &str = "/dev/log";

/// The destination of the daemon's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Stderr,
    Journal,
    Syslog,
    File(PathBuf),
    /// The system has neither journal nor syslog, and `--log` was not given.
    Nowhere,
}

/// The logs that this system offers.
#[derive(Debug, Clone, Copy)]
struct Offered {
    journal: bool,
    /// Standard error is connected to the journal.
    stderr_is_journal: bool,
    syslog: bool,
}

impl Offered {
    fn here() -> Offered {
        Offered {
            journal: Path::new(JOURNAL_SOCKET).exists(),
            stderr_is_journal: stderr_is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref()),
            syslog: Path::new(SYSLOG_SOCKET).exists(),
        }
    }
}

/// Whether `JOURNAL_STREAM` (device and inode, as in systemd.exec(5)) names standard error.
fn stderr_is_journal(stream: Option<&str>) -> bool {
    let stderr = || std::fs::metadata("/proc/self/fd/2").ok();
    let same = |stream: &str| Some(stream == stderr().map(|file| format!("{}:{}", file.dev(), file.ino()))?);
    stream.and_then(same).unwrap_or(false)
}

impl Target {
    /// `argument` is that of `--log`.
    pub fn choose(argument: Option<&Path>, foreground: bool) -> Result<Target> {
        Target::choose_from(argument, foreground, Offered::here())
    }

    fn choose_from(argument: Option<&Path>, foreground: bool, offered: Offered) -> Result<Target> {
        match argument {
            Some(path) if path == Path::new("stderr") => Ok(Target::Stderr),
            Some(path) if path == Path::new("journal") => Ok(Target::Journal),
            Some(path) if path == Path::new("syslog") => Ok(Target::Syslog),
            // The daemon has another current folder.
            Some(path) => std::path::absolute(path)
                .map(Target::File)
                .map_err(|e| Failure::system(format_args!("find {}", path.display()), e)),
            None if foreground && !offered.stderr_is_journal => Ok(Target::Stderr),
            None if offered.journal => Ok(Target::Journal),
            None if foreground => Ok(Target::Stderr),
            None if offered.syslog => Ok(Target::Syslog),
            None => Ok(Target::Nowhere),
        }
    }
}

/// The destination of events.
enum Sink {
    /// Standard error, as messages of a command.
    Command,
    /// Lines with time and mount.
    Lines {
        out: Out,
        mount: String,
    },
    Syslog {
        mount: String,
    },
    Journal(tracing_journald::Layer),
    Nowhere,
}

enum Out {
    Stderr,
    File(File),
}

static SINK: RwLock<Sink> = RwLock::new(Sink::Command);

/// Installs the subscriber of all events. Must be called once, before the first event.
pub fn install(verbosity: &Verbosity, is_daemon: bool) -> Result<()> {
    let filter = match std::env::var(FILTER) {
        Ok(filter) => Targets::from_str(&filter)
            .map_err(|e| Failure::usage(format!("invalid filter '{filter}' in {FILTER}: {e}")))?,
        Err(_) => Targets::new().with_default(verbosity.level(is_daemon)),
    };
    let subscriber = Registry::default().with(filter).with(ToSink);
    tracing::subscriber::set_global_default(subscriber).expect("no other subscriber is installed");
    Ok(())
}

/// Passes events to the sink.
struct ToSink;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for ToSink {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        match &*SINK.read().unwrap_or_else(PoisonError::into_inner) {
            Sink::Journal(journal) => journal.on_event(event, context),
            sink => sink.write(*event.metadata().level(), &Message::of(event)),
        }
    }
}

/// The contents of an event.
#[derive(Default)]
struct Message {
    text: String,
    transaction: Option<u64>,
}

impl Message {
    fn of(event: &Event<'_>) -> Message {
        let mut message = Message::default();
        event.record(&mut message);
        message
    }

    /// The mount and the transaction, before the text.
    fn context(&self, mount: &str) -> String {
        let transaction = self.transaction.map(|id| format!(" transaction={id}")).unwrap_or_default();
        format!("mount={mount}{transaction}")
    }
}

impl Visit for Message {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "transaction" => self.transaction = Some(value),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.text, "{value:?}"),
            // Fields of the log crate's records.
            name if name.starts_with("log.") => Ok(()),
            name => write!(self.text, " {name}={value:?}"),
        };
        written.expect("writing into memory");
    }
}

impl Sink {
    /// A log that cannot be written has no place to report that.
    fn write(&self, level: Level, message: &Message) {
        // Names and labels in it may be another user's.
        let text = printable(&message.text);
        match self {
            Sink::Command => eprintln!("xact: {text}"),
            Sink::Lines { out, mount } => {
                let time = timestamp_ms(SystemTime::now());
                let line = format!("{time} {level:5} {}: {text}\n", message.context(mount));
                let _ = match out {
                    Out::Stderr => io::stderr().write_all(line.as_bytes()),
                    Out::File(file) => (&*file).write_all(line.as_bytes()),
                };
            }
            Sink::Syslog { mount } => to_syslog(level, &format!("{}: {text}", message.context(mount))),
            Sink::Journal(_) | Sink::Nowhere => {}
        }
    }
}

fn to_syslog(level: Level, text: &str) {
    let priority = match level {
        Level::ERROR => libc::LOG_ERR,
        Level::WARN => libc::LOG_WARNING,
        Level::INFO => libc::LOG_NOTICE,
        Level::DEBUG => libc::LOG_INFO,
        Level::TRACE => libc::LOG_DEBUG,
    };
    let Ok(text) = CString::new(text.replace('\0', "?")) else { return };
    // SAFETY: both strings end with a zero byte; the format takes one string. syslog may be called
    // from any thread. Its tag is the program's name, since openlog was not called.
    unsafe { libc::syslog(libc::LOG_DAEMON | priority, c"%s".as_ptr(), text.as_ptr()) };
}

/// A sink that is open, so that a failure could still be reported; [`Prepared::start`] comes later.
pub struct Prepared(Sink);

/// Opens the target. `mount` and `image` are named in the log.
pub fn prepare(target: &Target, mount: &Path, image: &Path) -> Result<Prepared> {
    let name = printable(&mount.display().to_string()).into_owned();
    Ok(Prepared(match target {
        Target::Stderr => Sink::Lines { out: Out::Stderr, mount: name },
        Target::Syslog => Sink::Syslog { mount: name },
        Target::Nowhere => Sink::Nowhere,
        Target::Journal => {
            let journal = tracing_journald::layer()
                .map_err(|e| Failure::system(format_args!("write the journal at {JOURNAL_SOCKET}"), e))?;
            let fields = [("MOUNT", name), ("IMAGE", image.display().to_string())];
            Sink::Journal(
                journal
                    .with_syslog_identifier("xact".into())
                    .with_field_prefix(None)
                    .with_custom_fields(fields),
            )
        }
        Target::File(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let file =
                file.map_err(|e| Failure::system(format_args!("write the log {}", path.display()), e))?;
            Sink::Lines { out: Out::File(file), mount: name }
        }
    }))
}

/// A running log: a thread that reads lines written to standard error.
pub struct Log(Option<JoinHandle<()>>);

impl Prepared {
    /// Sends events to the target from now on, and the lines that are written to standard error.
    /// `uuid`: that of the volume, for entries in the journal.
    pub fn start(self, uuid: &str) -> io::Result<Log> {
        let sink = match self.0 {
            Sink::Journal(journal) => Sink::Journal(journal.with_custom_fields([("VOLUME_UUID", uuid)])),
            sink => sink,
        };
        let log = match &sink {
            Sink::Lines { out: Out::Stderr, .. } | Sink::Command => Log(None),
            Sink::Nowhere => {
                dup2_stderr(File::options().write(true).open("/dev/null")?)?;
                Log(None)
            }
            Sink::Lines { .. } | Sink::Syslog { .. } | Sink::Journal(_) => log_stderr()?,
        };
        *SINK.write().unwrap_or_else(PoisonError::into_inner) = sink;
        Ok(log)
    }
}

/// Makes standard error a pipe, whose lines become events.
fn log_stderr() -> io::Result<Log> {
    let (reader, writer) = io::pipe()?;
    dup2_stderr(&writer)?;
    let thread = std::thread::Builder::new().name("xact-log".into()).spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(io::Result::ok) {
            tracing::error!("{}", String::from_utf8_lossy(&line));
        }
    })?;
    Ok(Log(Some(thread)))
}

impl Log {
    /// Returns when all lines have been logged.
    pub fn finish(self) {
        let Some(thread) = self.0 else { return };
        // The pipe ends with its last writer, which is standard error.
        if let Ok(null) = File::options().write(true).open("/dev/null")
            && dup2_stderr(null).is_ok()
        {
            // Fails if the thread panicked, which does not concern the mount.
            let _ = thread.join();
        }
    }
}

/// `2025-11-21T22:41:07Z`.
pub fn timestamp(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Years that begin in March have the leap day at their end, and months in a pattern of five.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// `2025-11-21T22:41:07.123Z`.
fn timestamp_ms(now: SystemTime) -> String {
    let seconds = timestamp(now);
    let ms = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).subsec_millis();
    format!("{}.{ms:03}Z", seconds.trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_right_around_leap_days() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn the_target_follows_from_the_argument_and_the_system() {
        let none = Offered { journal: false, stderr_is_journal: false, syslog: false };
        let choose = |argument: Option<&str>, foreground, offered| {
            Target::choose_from(argument.map(Path::new), foreground, offered).unwrap()
        };
        assert_eq!(choose(None, true, none), Target::Stderr);
        assert_eq!(choose(None, false, none), Target::Nowhere);
        assert_eq!(choose(Some("syslog"), true, none), Target::Syslog);
        assert_eq!(choose(Some("journal"), true, none), Target::Journal);
        assert_eq!(choose(Some("/a/log"), false, none), Target::File("/a/log".into()));
        let syslog = Offered { syslog: true, ..none };
        assert_eq!(choose(None, false, syslog), Target::Syslog);
        let journal = Offered { journal: true, ..syslog };
        assert_eq!(choose(None, false, journal), Target::Journal);
        assert_eq!(choose(Some("stderr"), false, journal), Target::Stderr);
        // Redirected to a file, standard error is not the journal.
        assert_eq!(choose(None, true, journal), Target::Stderr);
        let service = Offered { stderr_is_journal: true, ..journal };
        assert_eq!(choose(None, true, service), Target::Journal);
    }

    #[test]
    fn standard_error_is_compared_with_the_journals_stream() {
        let stderr = std::fs::metadata("/proc/self/fd/2").unwrap();
        assert!(stderr_is_journal(Some(&format!("{}:{}", stderr.dev(), stderr.ino()))));
        assert!(!stderr_is_journal(Some("0:0")) && !stderr_is_journal(None));
    }

    #[test]
    fn lines_have_time_level_mount_and_transaction() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let sink = Sink::Lines { out: Out::File(file.reopen().unwrap()), mount: "/mnt".into() };
        let message = |text: &str, transaction| Message { text: text.into(), transaction };
        sink.write(Level::WARN, &message("first", None));
        sink.write(Level::INFO, &message("a\nb", Some(7)));
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| &line["2025-11-21T22:41:07.123Z".len()..]).collect();
        assert_eq!(lines, [" WARN  mount=/mnt: first", " INFO  mount=/mnt transaction=7: a\\nb"]);
    }
}
