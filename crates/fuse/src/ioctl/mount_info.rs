//! How the volume is mounted, and whether options are those of the mount.

use std::str;

use xact_control::abi::MountInfo;
use xact_types::settings::parse_option;
use xact_types::{Errno, Error, Result};

use crate::server::Server;

impl Server {
    /// `Usage` if an option differs from the mount's: each of them takes effect when the volume is
    /// opened.
    pub(crate) fn mount_info(&self, request: &mut MountInfo) -> Result<()> {
        request.flags = self.mount_flags();
        let options = str::from_utf8(request.options()).map_err(|_| Errno::EINVAL)?;
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (id, value) = parse_option(option).map_err(Error::Usage)?;
            let now = self.options.value(id);
            let setting = id.setting();
            if value.or(setting.default_value()) != now {
                let now = now.map_or("its default".into(), |value| setting.text_of(value));
                return Err(Error::Usage(format!(
                    "the option {option} cannot be changed while the volume is mounted (it is {now}): unmount it, \
                     and mount it with the new option"
                )));
            }
        }
        Ok(())
    }
}
