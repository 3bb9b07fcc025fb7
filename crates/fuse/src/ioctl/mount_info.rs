//! How the volume is mounted, and whether options are those of the mount.

use std::str;
use std::sync::atomic::Ordering::Relaxed;

use xact_control::abi::MountInfo;
use xact_types::settings::{Id, Value, parse_option};
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
            let setting = id.setting();
            let now = self.setting_now(id);
            // They change nothing once the volume is open.
            let is_over = matches!(id, Id::Defaults | Id::NoLoad);
            if !is_over && value.or(setting.default_value()) != now {
                let now = now.map_or_else(|| setting.default_text(), |value| setting.text_of(value));
                return Err(Error::Usage(format!(
                    "the option {option} cannot be changed while the volume is mounted (it is {now}): unmount it, \
                     and mount it with the new option"
                )));
            }
        }
        Ok(())
    }

    /// The value of a setting of this mount; `None` if it is left to the volume.
    fn setting_now(&self, id: Id) -> Option<Value> {
        let flag = |is_on: bool| Some(Value::Flag(is_on));
        match id {
            Id::AllowOther => flag(self.options.allows_other()),
            Id::FuseBlk => flag(self.block_device.load(Relaxed)),
            Id::Exclusive => flag(self.exclusive.load(Relaxed)),
            _ => self.options.value(id),
        }
    }
}
