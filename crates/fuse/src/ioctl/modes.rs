//! The volume's modes, asked for and set by ioctl on any file of the mount, and the data mode of
//! one file.

use std::sync::Arc;

use xact::{DataMode, ModeChoice};
use xact_control::abi::{self as control, FileMode, Modes};
use xact_fs::choose_file_mode;
use xact_types::{Errno, Error, Result};

use crate::ops::credentials::caller;
use crate::protocol::abi::InHeader;
use crate::protocol::node::Node;
use crate::server::Server;

impl Server {
    pub(crate) fn modes(&self, header: &InHeader, node: Node, request: &mut Modes) -> Result<()> {
        match request.action {
            control::MODES_GET => {}
            control::MODES_OPTIONS => {
                request.stored = self.volume.mode_options().numbers();
                request.effective = ModeChoice::from(self.volume.modes()).numbers();
                return Ok(());
            }
            control::MODES_SET => {
                self.owner_only(header)?;
                self.outside_only(node, "setting the volume's modes")?;
                let choice = ModeChoice::from_numbers(request.stored);
                if choice.numbers() != request.stored {
                    return Err(Error::Usage("a mode has a number that is not known".into()));
                }
                self.volume.store_modes(choice)?;
            }
            _ => return Err(Errno::EINVAL.into()),
        }
        request.stored = self.volume.stored_modes()?.numbers();
        request.effective = ModeChoice::from(self.volume.modes()).numbers();
        Ok(())
    }
}

/// The data modes of a file with their numbers in [`FileMode`].
const FILE_MODES: [(u32, DataMode); 5] = [
    (control::FILE_MODE_NONE, DataMode::Writeback),
    (control::FILE_MODE_ORDERED, DataMode::Ordered),
    (control::FILE_MODE_DATA, DataMode::Journal),
    (control::FILE_MODE_SELECTIVE, DataMode::Selective),
    (control::FILE_MODE_ADAPTIVE, DataMode::Adaptive),
];

impl Server {
    /// The data mode of a file, which is the attribute [`xact::FILE_MODE`].
    pub(crate) fn file_mode(
        self: &Arc<Self>,
        header: &InHeader,
        node: Node,
        request: &mut FileMode,
    ) -> Result<()> {
        let (request_view, ino) = self.enter(node, header)?;
        let view = request_view.view();
        let by = caller(header, 0);
        match request.action {
            control::FILE_MODE_GET => {}
            _ if matches!(node, Node::Snapshot(..)) => return Err(Error::ReadOnly),
            control::FILE_MODE_SET => {
                let mode = FILE_MODES.iter().find(|(number, _)| *number == request.own);
                let (_, mode) = *mode.ok_or(Errno::EINVAL)?;
                match choose_file_mode(view, &by, ino, Some(mode)) {
                    Err(Error::Posix(Errno::EOPNOTSUPP)) => {
                        let word = mode.file_word();
                        return Err(Error::Usage(format!("{word} needs a journal, and the volume has none")));
                    }
                    chosen => chosen?,
                }
            }
            control::FILE_MODE_CLEAR => choose_file_mode(view, &by, ino, None)?,
            _ => return Err(Errno::EINVAL.into()),
        }
        if request.action != control::FILE_MODE_GET {
            // The inode's ctime has changed, and the kernel keeps the old one.
            self.forget_attributes(request_view.node(ino));
        }
        let number =
            |mode| FILE_MODES.iter().find(|(_, known)| *known == mode).map_or(0, |(number, _)| *number);
        let own = self.volume.own_file_mode(view, ino)?;
        request.own = own.map_or(0, number);
        request.effective = number(own.unwrap_or(self.volume.modes().data));
        Ok(())
    }
}
