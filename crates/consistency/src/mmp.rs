//! Multi-mount protection (feature `mmp`), for volumes on devices that several machines reach: the
//! kernel's `fs/ext4/mmp.c`.
//!
//! The owner of the volume keeps changing a number in the MMP block. To acquire the volume, a
//! machine reads the number. If it does not say that the volume is free, the machine checks whether
//! it changes within the interval that the block gives. Then it writes a number of its own and
//! reads the block once more, since two machines may have tried at the same time.
//!
//! The block belongs to no commit and is not journaled, since it describes only the present. A
//! crash leaves a number that changes no more, and the next mount waits for that interval.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use xact_device::BlockDevice;
use xact_layout::feature::incompat;
use xact_layout::mmp::{MMP_BYTES, MmpBlock, SEQUENCE_CHECKING, SEQUENCE_CLEAN, SEQUENCE_MAX};
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, Result, Site, unix_seconds};

use crate::core::superblock_io;
use crate::engine::Engine;

/// `EXT4_MMP_MIN_CHECK_INTERVAL` and `EXT4_MMP_MAX_CHECK_INTERVAL`, in seconds.
const CHECK_INTERVAL_MIN_S: u16 = 5;
const CHECK_INTERVAL_MAX_S: u16 = 300;
/// The device name that xact writes to the block.
const DEVICE_NAME: &[u8] = b"xact";

/// The volume is ours while this lives. If it is dropped without [`Mmp::release`], the block stays
/// as after a crash.
pub struct Mmp {
    place: Arc<Place>,
    beat: Arc<Beat>,
    thread: Option<JoinHandle<()>>,
}

struct Place {
    device: Arc<dyn BlockDevice>,
    sb: Superblock,
    block: BlockNr,
}

#[derive(Default)]
struct Beat {
    state: Mutex<BeatState>,
    wake: Condvar,
}

#[derive(Default)]
struct BeatState {
    stopping: bool,
    /// Poisoned if another machine uses the volume too.
    engine: Option<Arc<Engine>>,
}

impl Mmp {
    /// Claims the volume on `device`; `None` if it has no such protection. May wait, as the kernel
    /// does, if another machine seems to have it (about twice the interval in the block, at least
    /// 11 seconds).
    ///
    /// Errors: `Usage` if another machine, or e2fsck, has it; `Corrupt` for the block.
    pub fn acquire(device: &Arc<dyn BlockDevice>) -> Result<Option<Mmp>> {
        let sb = superblock_io::read(&**device)?.superblock;
        if !sb.has_incompat(incompat::MMP) {
            return Ok(None);
        }
        let block = BlockNr(sb.mmp_block());
        if block.0 <= sb.own_block().0 || !sb.contains(block, 1) {
            return Err(Error::corrupt(Site::Superblock, "the mmp block lies outside the volume"));
        }
        let place = Arc::new(Place { device: device.clone(), sb, block });
        let found = place.read()?;
        let update_s = place.sb.mmp_update_interval().max(1);
        let check_s =
            update_s.max(CHECK_INTERVAL_MIN_S).max(found.check_interval()).min(CHECK_INTERVAL_MAX_S);
        let mut patience = Duration::ZERO;
        match found.sequence() {
            SEQUENCE_CLEAN => {}
            SEQUENCE_CHECKING => return Err(in_use(&found, "is being checked")),
            _ => {
                patience = Duration::from_secs(u64::from((check_s * 2 + 1).min(check_s + 60)));
                tracing::info!(
                    "waiting {} s to see whether another machine has the volume",
                    patience.as_secs()
                );
                place.must_stay(&found, patience)?;
            }
        }
        let mut own = found;
        own.set_sequence(new_sequence());
        own.set_holder(node_name().as_bytes(), DEVICE_NAME);
        own.set_check_interval((2 * update_s).clamp(CHECK_INTERVAL_MIN_S, CHECK_INTERVAL_MAX_S));
        place.write(&mut own)?;
        place.must_stay(&own, patience)?;
        let beat = Arc::new(Beat::default());
        let (thread_place, thread_beat) = (place.clone(), beat.clone());
        let thread = std::thread::Builder::new()
            .name("xact-mmp".into())
            .spawn(move || thread_beat.run(&thread_place, own, Duration::from_secs(update_s.into())))
            .map_err(|e| Error::io("starting a thread", e))?;
        Ok(Some(Mmp { place, beat, thread: Some(thread) }))
    }

    /// Sets the engine to poison if another machine uses the volume too.
    pub fn guard(&self, engine: Arc<Engine>) {
        self.beat.state.lock().engine = Some(engine);
    }

    /// Marks the volume as free, after the last write to it.
    pub fn release(mut self) -> Result<()> {
        self.stop();
        let mut block = self.place.read()?;
        block.set_sequence(SEQUENCE_CLEAN);
        // As mke2fs sets it. With a longer one the next user would be warned of a longer wait.
        block.set_check_interval(self.place.sb.mmp_update_interval());
        self.place.write(&mut block)
    }

    fn stop(&mut self) {
        let mut state = self.beat.state.lock();
        state.stopping = true;
        state.engine = None;
        drop(state);
        self.beat.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread only refreshes the block; if it panicked, the reason is in the log.
            let _ = thread.join();
        }
    }
}

impl Drop for Mmp {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Place {
    fn offset(&self) -> u64 {
        self.block.0 * u64::from(self.sb.block_size())
    }

    fn read(&self) -> Result<MmpBlock> {
        let mut bytes = [0; MMP_BYTES];
        self.device
            .read_fresh_at(&mut bytes, self.offset())
            .map_err(|e| Error::io("reading the mmp block", e))?;
        MmpBlock::decode(&bytes, &self.sb, self.block)
    }

    /// Writes with the present time; durable, so that other machines see it.
    fn write(&self, block: &mut MmpBlock) -> Result<()> {
        block.set_time(unix_seconds() as u64);
        let failed = |e| Error::io("writing the mmp block", e);
        self.device.write_at(&block.sealed(&self.sb), self.offset()).map_err(failed)?;
        self.device.flush().map_err(failed)
    }

    /// Waits, and checks that the number is still the same.
    fn must_stay(&self, expected: &MmpBlock, patience: Duration) -> Result<()> {
        std::thread::sleep(patience);
        let now = self.read()?;
        if now.sequence() == expected.sequence() { Ok(()) } else { Err(in_use(&now, "is mounted")) }
    }
}

impl Beat {
    fn run(&self, place: &Place, mut own: MmpBlock, every: Duration) {
        let mut last = Instant::now();
        let mut state = self.state.lock();
        loop {
            self.wake.wait_for(&mut state, every);
            if state.stopping {
                return;
            }
            let late = last.elapsed() > Duration::from_secs(own.check_interval().into());
            let result = if late { place.must_stay(&own, Duration::ZERO) } else { Ok(()) };
            own.set_sequence(if own.sequence() >= SEQUENCE_MAX { 1 } else { own.sequence() + 1 });
            if let Err(error) = result.and_then(|()| place.write(&mut own)) {
                if let Some(engine) = &state.engine {
                    engine.poison(&format!("multi-mount protection: {error}"));
                }
                return;
            }
            last = Instant::now();
        }
    }
}

fn in_use(block: &MmpBlock, how: &str) -> Error {
    let node = String::from_utf8_lossy(block.node_name()).into_owned();
    Error::InUse(format!("it {how} on the machine '{node}' (multi-mount protection)"))
}

fn node_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// A number that another machine will not happen to choose.
fn new_sequence() -> u32 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    (RandomState::new().build_hasher().finish() % u64::from(SEQUENCE_MAX)) as u32 + 1
}
