//! LSEEK: SEEK_DATA and SEEK_HOLE.
//!
//! The kernel may have pages that a program has stored into through a mapping, which the daemon has
//! not seen. They are data. So before a hole is reported, the kernel writes out what it has of this
//! hole. That is waited for on a thread of its own, without the view.

use std::ops::Range;
use std::sync::Arc;

use xact_fs::SeekTo;
use xact_types::{Errno, Error, Ino, Result};

use crate::protocol::abi::{InHeader, LseekIn, LseekOut};
use crate::protocol::node::Node;
use crate::protocol::reply::Reply;
use crate::server::jobs::Kind;
use crate::server::request_view::RequestView;
use crate::server::{Outcome, Server};
use crate::transport::channel::{Channel, log_refused};

/// The outcome of a search in a view.
struct Found {
    /// The offset that was looked for. `None`: there is no data up to the end of the file.
    at: Option<u64>,
    /// The hole that the answer relies on; empty if there is none.
    hole: Range<u64>,
}

impl Found {
    fn reply(&self, reply: &mut Reply) -> Result<()> {
        reply.put(&LseekOut { offset: self.at.ok_or(Errno::ENXIO)? });
        Ok(())
    }
}

/// The offset, or `None` where `ENXIO` is the answer.
fn or_end(found: Result<u64>) -> Result<Option<u64>> {
    match found {
        Ok(at) => Ok(Some(at)),
        Err(Error::Posix(Errno::ENXIO)) => Ok(None),
        Err(e) => Err(e),
    }
}

fn find(request_view: &RequestView<'_>, ino: Ino, offset: u64, to: SeekTo) -> Result<Found> {
    let seek = |offset, to| or_end(request_view.view().seek(ino, offset, to));
    let at = seek(offset, to)?;
    let hole = match (to, at) {
        (SeekTo::Data, Some(data)) => offset..data,
        // The rest of the file is a hole, unless it ends before.
        (SeekTo::Data, None) if seek(offset, SeekTo::Hole)?.is_none() => 0..0,
        (SeekTo::Data, None) => offset..u64::MAX,
        (SeekTo::Hole, None) => 0..0,
        // At its end, a file has no hole.
        (SeekTo::Hole, Some(hole)) if seek(hole, SeekTo::Hole)?.is_none() => 0..0,
        (SeekTo::Hole, Some(hole)) => hole..seek(hole, SeekTo::Data)?.unwrap_or(u64::MAX),
    };
    Ok(Found { at, hole })
}

impl Server {
    pub(crate) fn seek(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        header: &InHeader,
        node: Node,
        args: &LseekIn,
        reply: &mut Reply,
    ) -> Result<Outcome> {
        let to = match args.whence as i32 {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return Err(Errno::EINVAL.into()),
        };
        let offset = args.offset;
        let (request_view, ino) = self.enter(node, header)?;
        let found = find(&request_view, ino, offset, to)?;
        let may_store = matches!(request_view, RequestView::Live { .. } | RequestView::Tx { .. });
        drop(request_view);
        if found.hole.is_empty() || !may_store {
            return found.reply(reply).map(|()| Outcome::Done);
        }
        let account = self.volume.accounts().of(header.uid);
        let (channel, header) = (channel.clone(), *header);
        self.spawn_for(&account, Kind::Look, move |server| {
            let mut reply = Reply::new();
            let found = server.find_after_stores(node, &header, found, (offset, to));
            let found = found.and_then(|found| found.reply(&mut reply)).map_err(|e| e.errno());
            log_refused(channel.send(reply.finish(header.unique, found)));
        })?;
        Ok(Outcome::Later)
    }

    /// Makes the kernel write what it has of the hole, and looks again, until the answer relies on
    /// nothing else.
    fn find_after_stores(
        self: &Arc<Self>,
        node: Node,
        header: &InHeader,
        mut found: Found,
        (offset, to): (u64, SeekTo),
    ) -> Result<Found> {
        let mut written = 0..0;
        while found.hole.start < written.start || found.hole.end > written.end {
            written = found.hole;
            let len = if written.end == u64::MAX { 0 } else { written.end - written.start };
            // 0 stands for the rest of the file.
            self.forget_range(node, written.start, len);
            let (request_view, ino) = self.enter(node, header)?;
            found = find(&request_view, ino, offset, to)?;
            if found.hole.is_empty() {
                break;
            }
        }
        Ok(found)
    }
}
