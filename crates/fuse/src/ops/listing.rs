//! READDIR and READDIRPLUS.

use std::ops::Range;

use xact_fs::FileKind;
use xact_types::{Error, Ino, Result};

use crate::ops::names::is_reserved;
use crate::protocol::abi::{Dirent, EntryOut, ReadIn};
use crate::protocol::init::MAX_IO;
use crate::protocol::reply::Reply;
use crate::server::Server;
use crate::server::request_view::RequestView;

/// An entry that was listed and whose attributes were not read yet.
struct Listed {
    name: Range<usize>,
    ino: Ino,
    kind: FileKind,
    next_cookie: u64,
}

fn dirent(st_ino: u64, kind: FileKind, next_cookie: u64, name: &[u8]) -> Dirent {
    // d_type is the type's bits of the mode, shifted as in the kernel's S_DT.
    let kind = u32::from(kind.mode_bits() >> 12);
    Dirent { ino: st_ino, off: next_cookie, namelen: name.len() as u32, kind }
}

/// The outcome of a page. Entries before damage are returned. The next page, which has none,
/// returns the error, so that a listing ends with it.
fn after_entries(listed: Result<()>, any: bool) -> Result<()> {
    match listed {
        Err(Error::Corrupt(_)) if any => Ok(()),
        result => result,
    }
}

impl Server {
    pub(crate) fn read_dir(
        &self,
        request_view: &RequestView<'_>,
        dir: Ino,
        args: &ReadIn,
        plus: bool,
        reply: &mut Reply,
    ) -> Result<()> {
        let limit = (args.size as usize).min(MAX_IO);
        if matches!(request_view, RequestView::Followed { .. }) {
            request_view.note_contents(dir);
        }
        if plus {
            return self.read_dir_plus(request_view, dir, args.offset, limit, reply);
        }
        let mut any = false;
        let listed = request_view.view().read_dir(dir, args.offset, &mut |item| {
            if is_reserved(dir, item.name) {
                return true;
            }
            let dirent = dirent(request_view.st_ino(item.ino), item.kind, item.next_cookie, item.name);
            let fits = reply.put_dirent(limit, None, dirent, item.name);
            any |= fits;
            fits
        });
        after_entries(listed, any)
    }

    /// Lists the names first and reads the attributes after that, since the view may hold the
    /// directory's lock while it lists.
    fn read_dir_plus(
        &self,
        request_view: &RequestView<'_>,
        dir: Ino,
        cookie: u64,
        limit: usize,
        reply: &mut Reply,
    ) -> Result<()> {
        let view = request_view.view();
        let entry_valid = self.lifetime_of_names(request_view, dir);
        let mut names = Vec::new();
        let mut listed = Vec::new();
        let mut len = 0;
        let found = view.read_dir(dir, cookie, &mut |item| {
            if is_reserved(dir, item.name) {
                return true;
            }
            len += size_of::<EntryOut>() + (size_of::<Dirent>() + item.name.len()).next_multiple_of(8);
            if len > limit {
                return false;
            }
            let start = names.len();
            names.extend_from_slice(item.name);
            let name = start..names.len();
            listed.push(Listed { name, ino: item.ino, kind: item.kind, next_cookie: item.next_cookie });
            true
        });
        after_entries(found, !listed.is_empty())?;
        for item in listed {
            let name = &names[item.name];
            // With node id 0 the kernel learns the name, and looks it up when it needs more. It is
            // also used for an entry whose lookup fails, so that the listing continues.
            let known = match name {
                b"." | b".." => None,
                _ if matches!(request_view, RequestView::Followed { .. }) => None,
                _ => {
                    let held = view
                        .attr(item.ino)
                        .and_then(|attr| self.hold_checked(request_view, &attr, Some((dir, name))));
                    held.unwrap_or(None)
                }
            };
            let known = known.map(|known| EntryOut { entry_valid, ..known });
            let dirent = dirent(request_view.st_ino(item.ino), item.kind, item.next_cookie, name);
            let fits = reply.put_dirent(limit, Some(&known.unwrap_or_default()), dirent, name);
            debug_assert!(fits, "the sizes were added up before");
        }
        Ok(())
    }
}
