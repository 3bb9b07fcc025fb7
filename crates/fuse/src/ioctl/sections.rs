//! The atomic sections that are open, by inode (see `atomic_write`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use xact::SharedTransaction;
use xact_types::{Errno, Ino};

use crate::ioctl::absent_pages::AbsentPages;
use crate::protocol::abi::WriteOut;
use crate::protocol::reply::Reply;
use crate::server::process::Process;
use crate::transport::channel::{Channel, log_refused};

/// Open sections of a mount. Each keeps at most one worker waiting, of 64.
pub const SECTIONS_MAX: usize = 16;
/// Open sections of one user, except for root and the mount's owner.
pub const SECTIONS_OF_USER: usize = 4;

/// A write that is answered when the kernel has forgotten its pages.
pub struct Pending {
    pub channel: Arc<Channel>,
    pub unique: u64,
    pub len: u32,
    /// The time by which it is answered.
    pub until: Mutex<Instant>,
    pub answered: AtomicBool,
}

impl Pending {
    /// Answers it once, from the thread that comes first.
    pub fn answer(&self, result: Result<(), Errno>) {
        if !self.answered.swap(true, Ordering::AcqRel) {
            let mut reply = Reply::new();
            if result.is_ok() {
                reply.put(&WriteOut { size: self.len, padding: 0 });
            }
            log_refused(self.channel.reply(reply.finish(self.unique, result)));
        }
    }
}

/// The time between START and COMMIT for one file.
pub struct Section {
    pub owner: Process,
    pub uid: u32,
    pub transaction: Arc<SharedTransaction>,
    /// First byte and length of each written range.
    pub ranges: Mutex<Vec<(u64, u64)>>,
    pub pending: Mutex<Option<Arc<Pending>>>,
}

/// All open sections.
#[derive(Default)]
pub struct Sections {
    pub open: Mutex<HashMap<Ino, Arc<Section>>>,
    /// Read by every write, so without a lock.
    pub count: AtomicUsize,
    /// The reaper already looks every second.
    pub watched: AtomicBool,
    /// Pages that the kernel is known not to have.
    pub absent: AbsentPages,
}

impl Sections {
    pub fn of(&self, ino: Ino) -> Option<Arc<Section>> {
        if !self.any() {
            return None;
        }
        self.open.lock().get(&ino).cloned()
    }

    /// The section, for the process that began it to end. `EINVAL`: the process has none.
    pub fn take(&self, ino: Ino, thread: u32) -> Result<Arc<Section>, Errno> {
        let section = self.of(ino).filter(|section| section.owner.is(thread)).ok_or(Errno::EINVAL)?;
        self.remove(ino, &section).then_some(section).ok_or(Errno::EINVAL)
    }

    pub fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub fn remove(&self, ino: Ino, section: &Arc<Section>) -> bool {
        let mut open = self.open.lock();
        let ours = open.get(&ino).is_some_and(|found| Arc::ptr_eq(found, section));
        if ours {
            open.remove(&ino);
            self.count.store(open.len(), Ordering::Release);
        }
        ours
    }

    pub fn all(&self) -> Vec<(Ino, Arc<Section>)> {
        self.open.lock().iter().map(|(&ino, section)| (ino, section.clone())).collect()
    }
}

/// The new contents of the live volume after stores into a mapping of pages into which the kernel
/// has copied `written` of a section. `page` has the present contents of the mapping, `before`
/// those of the live volume. `None`: no byte was stored. A store of the same byte that the section
/// has written there cannot be detected. No byte can be stored beyond the end of the live volume's
/// file.
pub fn stored(page: &[u8], written: &[u8], before: &[u8]) -> Option<Vec<u8>> {
    let mut after = before.to_vec();
    let mut is_stored = false;
    for (at, byte) in after.iter_mut().enumerate() {
        if let (Some(&new), Some(&section)) = (page.get(at), written.get(at))
            && new != section
        {
            *byte = new;
            is_stored = true;
        }
    }
    is_stored.then_some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_bytes_are_told_apart_from_those_of_the_section() {
        assert_eq!(stored(b"SSxS", b"SSSS", b"bbbb"), Some(b"bbxb".to_vec()));
        assert_eq!(stored(b"SSSS", b"SSSS", b"bbbb"), None);
        // The section has made the file longer, or shorter.
        assert_eq!(stored(b"SSxx", b"SSSS", b"bb"), None);
        assert_eq!(stored(b"xbbb", b"S", b"bbbb"), Some(b"xbbb".to_vec()));
    }
}
