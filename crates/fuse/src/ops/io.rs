//! Operations on the contents of files.

use std::sync::Arc;

use xact_fs::{Allocate, Caller, WriteHow};
use xact_types::{Errno, Ino, Result};

use crate::ops::credentials::caller;
use crate::protocol::abi::{self, CopyFileRangeOut, InHeader, WriteOut};
use crate::protocol::init::MAX_IO;
use crate::protocol::reply::Reply;
use crate::protocol::request::Operation;
use crate::server::Server;
use crate::server::request_view::RequestView;

impl Server {
    pub(crate) fn file_io(
        self: &Arc<Self>,
        request_view: &RequestView<'_>,
        ino: Ino,
        header: &InHeader,
        operation: &Operation<'_>,
        reply: &mut Reply,
    ) -> Result<()> {
        // The kernel does not say whether the caller of these two may keep suid and sgid.
        let unprivileged = header.uid != 0;
        let view = request_view.view();
        match operation {
            Operation::Read(args) => {
                request_view.note_contents(ino);
                let len = (args.size as usize).min(MAX_IO);
                self.note_cached(request_view, ino, args.offset, len as u64);
                view.read(ino, args.offset, len, reply.vec())?;
                self.tails.note_read(request_view.node(ino), args.offset, len as u64, reply.len() < len);
                Ok(())
            }
            Operation::Write { args, data } => self.write(request_view, ino, header, args, data, reply),
            Operation::Fallocate(args) => {
                let kills = unprivileged && has_privileges(request_view, ino)?;
                view.allocate(&caller(header, 0), ino, args.offset, args.length, allocate_how(args.mode)?)?;
                if kills {
                    self.forget_attributes(request_view.node(ino));
                }
                Ok(())
            }
            Operation::CopyFileRange { args, wide } => {
                if args.flags != 0 {
                    return Err(Errno::EINVAL.into());
                }
                let to = self.same_view(request_view, args.nodeid_out)?;
                // The kernel counts the copied bytes in 32 bits unless the reply is wide.
                let len = if *wide { args.len } else { args.len.min(1 << 30) };
                let how = WriteHow {
                    append: false,
                    kill_suidgid: unprivileged,
                    by: caller(header, 0),
                    is_part: false,
                };
                let kills = unprivileged && has_privileges(request_view, to)?;
                let copied = view.copy_range((ino, args.off_in), (to, args.off_out), len, how)?;
                if kills {
                    self.forget_attributes(request_view.node(to));
                }
                if *wide {
                    reply.put(&CopyFileRangeOut { bytes_copied: copied });
                } else {
                    reply.put(&WriteOut { size: copied as u32, padding: 0 });
                }
                Ok(())
            }
            Operation::Fsync { data_only } => view.sync_file(ino, *data_only),
            _ => Err(Errno::EIO.into()),
        }
    }

    /// The kernel gets contents of these pages of a file, or has them.
    fn note_cached(&self, request_view: &RequestView<'_>, ino: Ino, offset: u64, len: u64) {
        if matches!(request_view, RequestView::Live { .. }) {
            self.sections.absent.remove(ino, offset, len);
        }
    }

    fn write(
        self: &Arc<Self>,
        request_view: &RequestView<'_>,
        ino: Ino,
        header: &InHeader,
        args: &abi::WriteIn,
        data: &[u8],
        reply: &mut Reply,
    ) -> Result<()> {
        request_view.note_contents(ino);
        self.note_cached(request_view, ino, args.offset, data.len() as u64);
        // Pages of a mapping have a fixed offset, whatever flags the descriptor has that the kernel
        // guessed.
        let mapped = args.write_flags & abi::WRITE_CACHE != 0;
        if mapped && matches!(request_view, RequestView::Followed { .. }) {
            // The whole page was sent. Around the stored bytes it may have bytes that others have
            // replaced since.
            return Err(Errno::ESTALE.into());
        }
        let how = WriteHow {
            append: !mapped && args.flags & libc::O_APPEND as u32 != 0,
            kill_suidgid: args.write_flags & abi::WRITE_KILL_SUIDGID != 0,
            // The process that stored into a mapping is not known when its pages are written.
            by: if mapped { Caller::ROOT } else { caller(header, 0) },
            is_part: match request_view {
                RequestView::Live { .. } => self.parts.note_write(header, ino, args, data.len()),
                _ => false,
            },
        };
        let kills = how.kill_suidgid && has_privileges(request_view, ino)?;
        let data =
            if mapped { self.tails.masked(request_view.node(ino), args.offset, data) } else { data.into() };
        let written = request_view.view().write(ino, args.offset, &data, how);
        if let (Err(error), true, RequestView::Live { .. }) = (&written, mapped, request_view) {
            // In a transaction, the commit fails.
            self.note_failed_stores(ino, args.offset..args.offset + data.len() as u64, error);
        }
        let written = written?;
        if kills {
            self.forget_attributes(request_view.node(ino));
        }
        if written.offset != args.offset {
            // The file has grown since the kernel looked: its page has the data at the old end.
            self.forget_later(request_view.node(ino));
        }
        reply.put(&WriteOut { size: written.len as u32, padding: 0 });
        Ok(())
    }
}

/// Whether a change by an unprivileged caller clears bits of the mode. The kernel does not expect
/// that of a write. Unless it is notified, it executes the file with these bits.
fn has_privileges(request_view: &RequestView<'_>, ino: Ino) -> Result<bool> {
    Ok(request_view.view().attr(ino)?.perm & (libc::S_ISUID | libc::S_ISGID) as u16 != 0)
}

/// The kernel does not send COLLAPSE and INSERT.
fn allocate_how(mode: u32) -> Result<Allocate> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE as u32 != 0;
    match mode as i32 & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok(Allocate::Reserve { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(Allocate::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(Allocate::ZeroRange { keep_size }),
        _ => Err(Errno::EOPNOTSUPP.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fallocate_modes() {
        assert_eq!(allocate_how(0).unwrap(), Allocate::Reserve { keep_size: false });
        assert_eq!(allocate_how(1).unwrap(), Allocate::Reserve { keep_size: true });
        assert_eq!(allocate_how(3).unwrap(), Allocate::PunchHole);
        assert_eq!(allocate_how(0x10).unwrap(), Allocate::ZeroRange { keep_size: false });
        for mode in [2, 8, 0x20, 0x12] {
            assert_eq!(allocate_how(mode).unwrap_err().errno(), Errno::EOPNOTSUPP);
        }
    }
}
