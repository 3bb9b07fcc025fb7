//! The daemon's log. All layers write lines to standard error; here these lines get to where they
//! are kept.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::stdio::dup2_stderr;

use crate::exit::{Failure, Result};

/// Where the log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Stderr,
    Syslog,
    File(PathBuf),
    /// There is no syslog, and nothing was asked for.
    Nowhere,
}

impl Target {
    /// `asked` is the argument of `--log`.
    pub fn choose(asked: Option<&Path>, foreground: bool) -> Result<Target> {
        match asked {
            Some(path) if path == Path::new("stderr") => Ok(Target::Stderr),
            Some(path) if path == Path::new("syslog") => Ok(Target::Syslog),
            // The daemon's current folder is another one.
            Some(path) => std::path::absolute(path)
                .map(Target::File)
                .map_err(|e| Failure::system(format_args!("find {}", path.display()), e)),
            None if foreground => Ok(Target::Stderr),
            None if Path::new("/dev/log").exists() => Ok(Target::Syslog),
            None => Ok(Target::Nowhere),
        }
    }
}

/// A running log: a thread that takes what is written to standard error.
pub struct Log(Option<JoinHandle<()>>);

/// Opens the log's target now, so that a failure can still be reported; `Prepared::start` comes
/// later.
pub struct Prepared(Sink);

enum Sink {
    Stderr,
    Syslog(String),
    File(File),
    Nowhere,
}

/// `about` is what the lines are about, where others' are in the same log: the image.
pub fn prepare(target: &Target, about: &Path) -> Result<Prepared> {
    Ok(Prepared(match target {
        Target::Stderr => Sink::Stderr,
        Target::Syslog => Sink::Syslog(about.display().to_string()),
        Target::Nowhere => Sink::Nowhere,
        Target::File(path) => Sink::File(
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .map_err(|e| Failure::system(format_args!("write the log {}", path.display()), e))?,
        ),
    }))
}

impl Prepared {
    /// From now on standard error is the log.
    pub fn start(self) -> io::Result<Log> {
        match self.0 {
            Sink::Stderr => Ok(Log(None)),
            Sink::Nowhere => {
                dup2_stderr(File::options().write(true).open("/dev/null")?)?;
                Ok(Log(None))
            }
            Sink::Syslog(about) => pump(move |line| to_syslog(&about, line)),
            Sink::File(mut file) => pump(move |line| {
                let text = format!("{} {line}\n", timestamp(SystemTime::now()));
                // A log that cannot be written has nowhere to say so.
                let _ = file.write_all(text.as_bytes());
            }),
        }
    }
}

fn pump(mut write: impl FnMut(&str) + Send + 'static) -> io::Result<Log> {
    let (reader, writer) = io::pipe()?;
    dup2_stderr(&writer)?;
    let thread = std::thread::Builder::new().name("xact-log".into()).spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(io::Result::ok) {
            write(&String::from_utf8_lossy(&line));
        }
    })?;
    Ok(Log(Some(thread)))
}

impl Log {
    /// Returns when all that was written is where it belongs.
    pub fn finish(self) {
        let Some(thread) = self.0 else { return };
        // The pipe ends with its last writer, which is standard error.
        if let Ok(null) = File::options().write(true).open("/dev/null")
            && dup2_stderr(null).is_ok()
        {
            // A panic of the log's thread is no news for anybody.
            let _ = thread.join();
        }
    }
}

fn to_syslog(about: &str, line: &str) {
    let line = line.strip_prefix("xact: ").unwrap_or(line);
    let Ok(text) = CString::new(format!("{about}: {line}").replace('\0', "?")) else { return };
    // SAFETY: both strings end with NUL; the format takes one string. syslog may be called from
    // any thread. Its tag is the program's name, since openlog was not called.
    unsafe { libc::syslog(libc::LOG_DAEMON | libc::LOG_NOTICE, c"%s".as_ptr(), text.as_ptr()) };
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
    fn the_target_is_what_was_asked_for() {
        assert_eq!(Target::choose(None, true).ok(), Some(Target::Stderr));
        assert_eq!(Target::choose(Some(Path::new("syslog")), true).ok(), Some(Target::Syslog));
        assert_eq!(
            Target::choose(Some(Path::new("/a/log")), false).ok(),
            Some(Target::File("/a/log".into()))
        );
    }
}
