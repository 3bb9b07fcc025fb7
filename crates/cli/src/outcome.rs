//! How a daemon ended: whether everything was saved when its volume was unmounted.
//!
//! ```text
//!   daemon                                     command that unmounts
//!   listens on a socket with a random name
//!                              <--- ioctl ---  asks for the name (Ending::of)
//!                              <-- connect --  while the volume is mounted
//!                                              unmounts, waits for the lock on the image
//!   accepts (a thread)
//!   closes the volume
//!   sends the report           ------------->  reads until the end (Ending::finish)
//!   ends
//! ```
//! If the daemon dies, the kernel closes the connection, so a missing report is noticed. The socket
//! is in the abstract namespace: nothing is left behind on disk. Only root, the user who runs the
//! daemon, and a command of the daemon's user are answered, since the report names files.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::pipe::PipeFlags;
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use xact::text::printable_bytes;
use xact::{Error, Volume};
use xact_control::client;

use crate::exit::{Exit, Failure, Result};
use crate::output;

/// Files that a report names.
const PATHS_MAX: usize = 20;
/// The longest wait for a report. It has arrived if the command has waited for the image; an
/// image that was deleted or replaced cannot be waited for.
const REPORT_TIMEOUT: Duration = Duration::from_secs(120);
/// Processes that are answered.
const ASKING_MAX: usize = 64;
/// Connections that are accepted without a look at the end: more than the socket's queue has
/// (`somaxconn`, 4096 by default).
const QUEUE_MAX: usize = 8192;
/// Longest report; a longer one is not a daemon's.
const REPORT_MAX: u64 = 1 << 20;

/// The losses of a volume that could not be closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    pub why: String,
    code: u8,
    /// Paths of files on the volume whose last changes are lost, in printable form.
    paths: Vec<String>,
    others: u64,
}

impl Loss {
    /// The loss of a volume that could not be closed.
    pub fn of(volume: &Volume, error: &Error) -> Loss {
        let unsaved = volume.unsaved(PATHS_MAX);
        Loss {
            why: error.to_string(),
            code: Failure::unnamed(error.clone()).code(),
            paths: unsaved.paths.iter().map(|path| printable_bytes(path).to_string()).collect(),
            others: unsaved.others,
        }
    }

    /// The error of a command; `image` is the volume that has lost something.
    pub fn failure(&self, image: &Path) -> Failure {
        let text = format!(
            "{}: not everything was saved: {}. Changes since the last successful sync are lost{}",
            image.display(),
            self.why,
            self.files()
        );
        Failure::new(Exit::from_code(self.code), text).hint(
            "Make sure that the device works, then check the volume with 'xact check' before its next use.",
        )
    }

    fn files(&self) -> String {
        let others = match (self.paths.is_empty(), self.others) {
            (_, 0) => String::new(),
            (true, others) => format!("{others} files"),
            (false, others) => format!(" and of {others} more files"),
        };
        match (self.paths.as_slice(), others) {
            ([], others) if others.is_empty() => String::new(),
            ([], others) => format!(", among them those of {others}"),
            (paths, others) => format!(", among them those of {}{others}", paths.join(", ")),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Report {
    lost: Option<Loss>,
    /// The file system below the image was full when more space was last needed.
    host_full: bool,
}

/// The daemon's end. A thread accepts at once, and drops the connections of processes that may not
/// ask: so no process fills the socket's queue, and the report waits for none of them.
pub struct Reporter {
    name: Vec<u8>,
    thread: JoinHandle<Vec<UnixStream>>,
    /// Ends the thread.
    stop: OwnedFd,
}

impl Reporter {
    pub fn new() -> io::Result<Reporter> {
        let mut random = [0; 16];
        getrandom(&mut random[..], GetRandomFlags::empty())?;
        let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("xact-{digits}").into_bytes();
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        let (stopped, stop) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let thread = thread::Builder::new()
            .name("xact-outcome".into())
            .spawn(move || accept_until(&listener, &stopped))?;
        Ok(Reporter { name, thread, stop })
    }

    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Answers all processes that wait. Must be called before the lock on the image is released.
    pub fn report(self, lost: Option<Loss>, host_full: bool) {
        let text = serde_json::to_vec(&Report { lost, host_full }).expect("a report has plain fields");
        drop(self.stop);
        for mut stream in self.thread.join().unwrap_or_default() {
            // A process that has left, or does not read, does not concern the daemon.
            let _ = stream.write_all(&text);
        }
    }
}

/// Accepts connections until the other end of `stopped` is closed. Returns those of processes that
/// may ask, at most [`ASKING_MAX`].
fn accept_until(listener: &UnixListener, stopped: &OwnedFd) -> Vec<UnixStream> {
    let mut asking = Vec::new();
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return asking,
        }
        let ends = !ready[1].revents().is_empty();
        // Processes that connected before the end are answered, and no process can make it last.
        for _ in 0..QUEUE_MAX {
            let Ok((stream, _)) = listener.accept() else { break };
            let by = socket_peercred(&stream).map(|peer| peer.uid);
            let may_ask = by.is_ok_and(|uid| uid.is_root() || uid == geteuid());
            if asking.len() == ASKING_MAX {
                asking.retain(is_connected);
            }
            if may_ask && stream.set_nonblocking(true).is_ok() && asking.len() < ASKING_MAX {
                asking.push(stream);
            }
        }
        if ends {
            return asking;
        }
    }
}

/// Whether the process at the other end still has the connection.
fn is_connected(stream: &UnixStream) -> bool {
    let mut state = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut state, Some(&Timespec::default())).is_ok() && !state[0].revents().contains(PollFlags::HUP)
}

/// The end of a daemon, for the command that unmounts its volume.
#[derive(Debug)]
pub enum Ending {
    /// The daemon will report on this connection.
    Asked(UnixStream),
    /// The daemon had died before.
    Dead,
    /// The daemon cannot be asked: it is of an older version, or in another network namespace.
    Unknown,
}

impl Ending {
    /// Connects to the daemon of the volume mounted at `point`, which is unmounted later. Leaves no
    /// file on the mount open.
    pub fn of(point: &Path) -> Ending {
        match client::outcome_socket(point) {
            Ok(Some(name)) => connect(&name).map_or(Ending::Unknown, Ending::Asked),
            Ok(None) => Ending::Unknown,
            Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => Ending::Dead,
            Err(_) => Ending::Unknown,
        }
    }

    /// Waits for the report, when the volume is unmounted. The report comes before the lock on the
    /// image is released. Fails if something was lost.
    pub fn finish(self, command: &str, path: &Path) -> Result<()> {
        let image = path.display();
        let stream = match self {
            Ending::Asked(stream) => stream,
            Ending::Dead => {
                output::note(
                    command,
                    &format!(
                        "the daemon of {image} had died: changes that were not synced may be lost; the next mount \
                         recovers the volume"
                    ),
                );
                return Ok(());
            }
            Ending::Unknown => {
                output::note(
                    command,
                    &format!("whether everything on {image} was saved is not known; see the daemon's log"),
                );
                return Ok(());
            }
        };
        match read_report(stream, REPORT_TIMEOUT) {
            Some(Report { lost: Some(loss), .. }) => Err(loss.failure(path)),
            Some(Report { lost: None, host_full }) => {
                if host_full {
                    output::note(
                        command,
                        &format!(
                            "the file system of {image} is full: everything that calls accepted was saved, but calls \
                             that needed more space have failed"
                        ),
                    );
                }
                Ok(())
            }
            None => Err(Failure::new(
                Exit::Io,
                format!(
                    "{image}: the daemon died before everything was saved: changes since the last successful sync are \
                     lost"
                ),
            )
            .hint("The next mount recovers the volume.")),
        }
    }
}

/// Connects, without waiting for a full queue. `None` if the listener is not a daemon that may
/// report to this user.
fn connect(name: &[u8]) -> Option<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name).ok()?).ok()?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).ok()?;
    let listens = socket_peercred(&stream).ok()?.uid;
    let own = geteuid();
    (listens.is_root() || listens == own || own.is_root()).then_some(stream)
}

/// The report; `None` if the stream ends without one.
fn read_report(stream: UnixStream, timeout: Duration) -> Option<Report> {
    stream.set_read_timeout(Some(timeout)).ok()?;
    let mut text = Vec::new();
    // An end by a reset comes after what was sent.
    let _ = stream.take(REPORT_MAX).read_to_end(&mut text);
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss() -> Loss {
        Loss { why: "it broke".into(), code: 74, paths: vec!["/a".into(), "/b".into()], others: 3 }
    }

    #[test]
    fn a_report_reaches_all_who_asked_before() {
        let reporter = Reporter::new().unwrap();
        let asked = [connect(reporter.name()).unwrap(), connect(reporter.name()).unwrap()];
        drop(connect(reporter.name()).unwrap());
        let name = reporter.name().to_vec();
        reporter.report(Some(loss()), false);
        for stream in asked {
            assert_eq!(read_report(stream, REPORT_TIMEOUT).unwrap().lost, Some(loss()));
        }
        assert!(connect(&name).is_none(), "the daemon has ended");
    }

    #[test]
    fn a_daemon_that_dies_reports_nothing() {
        let listener =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(b"xact-dies").unwrap()).unwrap();
        let stream = connect(b"xact-dies").unwrap();
        drop(listener);
        assert!(read_report(stream, REPORT_TIMEOUT).is_none());
    }

    /// However many processes connect and leave, one that asks is answered, and the report ends.
    #[test]
    fn connections_that_end_do_not_delay_the_report() {
        let reporter = Reporter::new().unwrap();
        for _ in 0..10_000 {
            drop(connect(reporter.name()));
        }
        let name = reporter.name().to_vec();
        let asks = (0..1000).find_map(|_| connect(&name)).unwrap();
        reporter.report(None, false);
        assert!(read_report(asks, REPORT_TIMEOUT).is_some());
    }

    #[test]
    fn a_loss_names_files() {
        let text = loss().failure(Path::new("disk.img")).to_string();
        assert!(text.contains("among them those of /a, /b and of 3 more files"), "{text}");
        let none = Loss { paths: Vec::new(), others: 0, ..loss() };
        assert!(none.failure(Path::new("disk.img")).to_string().contains("sync are lost\n"));
        let counted = Loss { paths: Vec::new(), others: 2, ..loss() };
        assert!(counted.failure(Path::new("x")).to_string().contains("among them those of 2 files"));
    }
}
