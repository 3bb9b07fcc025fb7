//! The volume's modes, asked for and set by ioctl on any file of the mount.

use xact::ModeChoice;
use xact_control::abi::{self as control, Modes};
use xact_types::{Errno, Result};

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
                self.volume.store_modes(ModeChoice::from_numbers(request.stored))?;
            }
            _ => return Err(Errno::EINVAL.into()),
        }
        request.stored = self.volume.stored_modes()?.numbers();
        request.effective = ModeChoice::from(self.volume.modes()).numbers();
        Ok(())
    }
}
