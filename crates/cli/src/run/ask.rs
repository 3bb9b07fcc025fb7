//! `xact run --ask`: shows the changes and asks on the terminal whether to commit them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::control::Transaction;
use crate::exit::{Exit, Failure, Result};
use crate::run::signals::Blocked;
use crate::tx::show;

/// The decision on a transaction whose command has succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Commit,
    Abort,
    LeaveOpen,
    /// The transaction was open before the command.
    StayOpen,
}

/// The controlling terminal, independent of standard input and output.
pub struct Terminal(File);

impl Terminal {
    pub fn open() -> Result<Terminal> {
        File::options().read(true).write(true).open("/dev/tty").map(Terminal).map_err(|e| {
            Failure::system("ask on the terminal", e)
                .exit(Exit::Usage)
                .hint("Without a terminal, use --leave-open, then 'xact tx commit' or 'xact tx abort'.")
        })
    }

    pub fn ask(&self, transaction: &Transaction) -> Result<Answer> {
        let wrong = |e| Failure::system("ask on the terminal", e);
        let (channel, id) = (transaction.channel(), transaction.id());
        let changes = channel.diff(id).map_err(|e| Failure::system("list the changes", e))?;
        (&self.0).write_all(show::names(&changes).as_bytes()).map_err(wrong)?;
        if changes.is_empty() {
            writeln!(&self.0, "The command has changed nothing on the volume.").map_err(wrong)?;
            return Ok(Answer::Commit);
        }
        // Blocked since the command began, so that they do not interrupt a commit.
        let signals = Blocked::block().map_err(wrong)?;
        let mut lines = BufReader::new(&self.0);
        loop {
            write!(
                &self.0,
                "Commit? y: commit, n: abort, k: leave the transaction open, d: show the diff [y/n/k/d] "
            )
            .map_err(wrong)?;
            if lines.buffer().is_empty() && self.is_interrupted(&signals).map_err(wrong)? {
                writeln!(&self.0).map_err(wrong)?;
                return Ok(Answer::Abort);
            }
            let mut line = String::new();
            // The end of the terminal's input does not count as yes.
            if lines.read_line(&mut line).map_err(wrong)? == 0 {
                return Ok(Answer::Abort);
            }
            match line.trim().to_ascii_lowercase().as_str() {
                "y" | "yes" => return Ok(Answer::Commit),
                "n" | "no" => return Ok(Answer::Abort),
                "k" | "keep" => return Ok(Answer::LeaveOpen),
                "d" | "diff" => {
                    let patch = show::patch(channel, id, &[])?;
                    (&self.0).write_all(&patch).map_err(wrong)?;
                }
                _ => writeln!(&self.0, "Answer y, n, k or d.").map_err(wrong)?,
            }
        }
    }

    /// Waits for a line. True if a signal came first, such as that of Ctrl-C.
    fn is_interrupted(&self, signals: &Blocked) -> io::Result<bool> {
        let mut ready =
            [PollFd::new(&self.0, PollFlags::IN), PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        loop {
            match poll(&mut ready, None) {
                Ok(_) if ready[1].revents().is_empty() => return Ok(false),
                Ok(_) => return signals.take().map(|_| true),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}
