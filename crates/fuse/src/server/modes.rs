//! The volume's modes, asked for and set by ioctl on any file of the mount.

use xact::ModeChoice;
use xact_base::{Errno, Result};
use zerocopy::FromBytes;

use super::Server;
use crate::abi::{InHeader, IoctlOut};
use crate::control::{self, Modes, WHY_MAX};
use crate::node::Node;
use crate::reply::Reply;

impl Server {
    /// Answers with the struct also where it failed: the reason is in it.
    pub(super) fn modes_ioctl(
        &self,
        header: &InHeader,
        node: Node,
        input: &[u8],
        reply: &mut Reply,
    ) -> Result<()> {
        let (mut request, _) = Modes::read_from_prefix(input).map_err(|_| Errno::EINVAL)?;
        let done = self.modes(header, node, &mut request);
        if let Err(error) = &done {
            let why = self.sentence(error);
            let len = why.len().min(WHY_MAX);
            request.why[..len].copy_from_slice(&why.as_bytes()[..len]);
            request.why_len = len as u32;
        }
        reply.put(&IoctlOut { result: done.map_or_else(|e| -e.errno().0, |()| 0), ..Default::default() });
        reply.put(&request);
        Ok(())
    }

    fn modes(&self, header: &InHeader, node: Node, request: &mut Modes) -> Result<()> {
        match request.action {
            control::MODES_GET => {}
            control::MODES_OPTIONS => {
                request.stored = self.host.mode_options().numbers();
                request.effective = ModeChoice::from(self.host.modes()).numbers();
                return Ok(());
            }
            control::MODES_SET => {
                self.owner_only(header)?;
                self.outside_only(node, "setting the volume's modes")?;
                self.host.store_modes(ModeChoice::from_numbers(request.stored))?;
            }
            _ => return Err(Errno::EINVAL.into()),
        }
        request.stored = self.host.stored_modes()?.numbers();
        request.effective = ModeChoice::from(self.host.modes()).numbers();
        Ok(())
    }
}
