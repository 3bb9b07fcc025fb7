//! File operations as calls of a view, one file for each kind.

pub mod attributes;
pub mod credentials;
pub mod io;
pub mod listing;
pub mod names;
pub mod seek;

use std::sync::Arc;

use xact_types::{Errno, Error, Ino, Result};

use crate::ops::credentials::caller;
use crate::protocol::abi::InHeader;
use crate::protocol::reply::{self, Reply};
use crate::protocol::request::Operation;
use crate::server::Server;
use crate::server::request_view::RequestView;

impl Server {
    pub(crate) fn in_view(
        self: &Arc<Self>,
        request_view: &RequestView<'_>,
        ino: Ino,
        header: &InHeader,
        operation: &Operation<'_>,
        reply: &mut Reply,
    ) -> Result<()> {
        let view = request_view.view();
        if matches!(request_view, RequestView::Snapshot { .. }) && !operation.only_looks() {
            return match operation {
                // All of it is durable.
                Operation::Fsync { .. } => Ok(()),
                // A program copies out of a snapshot by reading and writing.
                Operation::CopyFileRange { .. } => Err(Errno::EXDEV.into()),
                _ => Err(Error::ReadOnly),
            };
        }
        match operation {
            Operation::Lookup { name } => self.lookup(request_view, ino, name, reply),
            Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Tmpfile { .. }
            | Operation::Symlink { .. }
            | Operation::Link { .. } => self.make(request_view, ino, header, operation, reply),
            Operation::Unlink { name } => {
                self.remove(request_view, ino, name, || view.unlink(&caller(header, 0), ino, name))
            }
            Operation::Rmdir { name } => {
                self.remove(request_view, ino, name, || view.remove_dir(&caller(header, 0), ino, name))
            }
            Operation::Rename { new_dir, flags, old, new } => {
                self.rename(request_view, (ino, old), (*new_dir, new), *flags, header)
            }
            Operation::ReadDir { args, plus } => self.read_dir(request_view, ino, args, *plus, reply),
            Operation::GetAttr => {
                request_view.note_attributes(ino);
                let lifetime = self.lifetime(request_view, ino);
                reply.put(&reply::attr_out(request_view.st_ino(ino), &view.attr(ino)?, lifetime));
                Ok(())
            }
            Operation::Statx => {
                request_view.note_attributes(ino);
                let lifetime = self.lifetime(request_view, ino);
                reply.put(&reply::statx_out(request_view.st_ino(ino), &view.attr(ino)?, lifetime));
                Ok(())
            }
            Operation::SetAttr(args) => {
                request_view.note_attributes(ino);
                let change = attributes::change(args);
                let attr = view.set_attr(&caller(header, 0), ino, &change)?;
                reply.put(&reply::attr_out(
                    request_view.st_ino(ino),
                    &attr,
                    self.lifetime_of_changed(request_view),
                ));
                Ok(())
            }
            Operation::ReadLink => {
                reply.put_bytes(&view.read_link(ino)?);
                Ok(())
            }
            Operation::GetXattr { name, size } => attributes::get_xattr(view, ino, name, *size, reply),
            Operation::ListXattr { size } => attributes::list_xattrs(view, ino, header, *size, reply),
            Operation::SetXattr { args, name, value } => {
                attributes::set_xattr(view, ino, header, args, name, value)
            }
            Operation::RemoveXattr { name } => attributes::remove_xattr(view, ino, header, name),
            _ => self.file_io(request_view, ino, header, operation, reply),
        }
    }
}
