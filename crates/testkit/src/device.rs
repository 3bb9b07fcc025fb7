//! A simulated block device: it records its requests, fails on demand, and stalls reads and
//! flushes.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use xact_device::{BlockDevice, SECTOR_BYTES};

use crate::image::Image;
use crate::recording::{Action, Event, Outcome, Recording, Time};
use crate::rng::Rng;

/// The calls that a fault counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Read,
    Write,
    Flush,
}

/// The effect of a faulty call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// The caller gets EIO.
    Error,
    /// The call is acknowledged and does nothing (a read returns zeros): a lying device.
    Lie,
    /// A read returns the contents at the start of the recording.
    Stale,
    /// The call is acknowledged and takes place this number of bytes further on (or, at the
    /// device's end, before).
    Astray(u64),
    /// Its last sector is noise.
    Noise,
}

/// Calls that go wrong.
#[derive(Debug, Clone)]
pub struct Fault {
    pub call: Call,
    /// Only calls that touch this range of bytes count; `None`: all calls, and every flush.
    pub range: Option<Range<u64>>,
    /// The first counted call to fail, from 0, since the fault was set.
    pub nth: u64,
    /// Whether all later ones fail too.
    pub for_good: bool,
    pub harm: Harm,
}

/// Calls that a stall blocks.
enum StalledKind {
    Read(Range<u64>),
    Flush,
}

struct Injected {
    fault: Fault,
    /// Only calls with such bytes count: the written ones, or those that an honest read would
    /// return.
    holding: fn(&[u8]) -> bool,
    counted: u64,
}

struct State {
    image: Image,
    base: Image,
    events: Vec<Event>,
    clock: Time,
    tag: Option<Arc<str>>,
    faults: Vec<Injected>,
    stalls: Vec<(u64, StalledKind)>,
    next_stall: u64,
    waiting: usize,
    waiting_flushes: usize,
    strikes: u64,
}

/// The device. Share it by `Arc`.
pub struct SimDevice {
    state: Mutex<State>,
    opened: Condvar,
    size_bytes: u64,
}

impl SimDevice {
    pub fn new(image: Image) -> Arc<SimDevice> {
        SimDevice::remembering(image.clone(), image)
    }

    /// A device that held `base` before, which stale reads return.
    pub fn remembering(image: Image, base: Image) -> Arc<SimDevice> {
        let size_bytes = image.size_bytes();
        Arc::new(SimDevice {
            state: Mutex::new(State {
                base,
                image,
                events: Vec::new(),
                clock: 0,
                tag: None,
                faults: Vec::new(),
                stalls: Vec::new(),
                next_stall: 0,
                waiting: 0,
                waiting_flushes: 0,
                strikes: 0,
            }),
            opened: Condvar::new(),
            size_bytes,
        })
    }

    /// Advances the clock and returns it: a moment that no call shares.
    pub fn tick(&self) -> Time {
        self.state.lock().tick()
    }

    /// Tags the writes from now on.
    pub fn tag(&self, tag: Option<&str>) {
        self.state.lock().tag = tag.map(Arc::from);
    }

    /// The contents that a reader sees now.
    pub fn image(&self) -> Image {
        self.state.lock().image.clone()
    }

    /// Everything recorded so far. Running calls have no return time in it.
    pub fn recording(&self) -> Recording {
        let mut state = self.state.lock();
        let end = state.tick();
        Recording { base: state.base.clone(), events: state.events.clone(), end }
    }

    /// Starts a new recording: the present contents become its base.
    pub fn restart_recording(&self) {
        let mut state = self.state.lock();
        state.base = state.image.clone();
        state.events.clear();
    }

    pub fn inject(&self, fault: Fault) {
        self.inject_where(fault, |_| true);
    }

    /// As `inject`, but counts only reads and writes of bytes for which `holding` is true.
    pub fn inject_where(&self, fault: Fault, holding: fn(&[u8]) -> bool) {
        self.state.lock().faults.push(Injected { fault, holding, counted: 0 });
    }

    /// How often a fault has occurred.
    pub fn strikes(&self) -> u64 {
        self.state.lock().strikes
    }

    pub fn clear_faults(&self) {
        self.state.lock().faults.clear();
    }

    /// Stalls every read that touches `range`, until the result is dropped.
    pub fn stall_reads(self: &Arc<Self>, range: Range<u64>) -> StalledCalls {
        self.stall(StalledKind::Read(range))
    }

    /// Stalls every flush, until the result is dropped.
    pub fn stall_flushes(self: &Arc<Self>) -> StalledCalls {
        self.stall(StalledKind::Flush)
    }

    fn stall(self: &Arc<Self>, kind: StalledKind) -> StalledCalls {
        let mut state = self.state.lock();
        let id = state.next_stall;
        state.next_stall += 1;
        state.stalls.push((id, kind));
        StalledCalls { device: self.clone(), id }
    }

    /// Reads that are stalled now.
    pub fn waiting_reads(&self) -> usize {
        self.state.lock().waiting
    }

    /// Flushes that are stalled now.
    pub fn waiting_flushes(&self) -> usize {
        self.state.lock().waiting_flushes
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "range lies outside the device")),
        }
    }
}

impl State {
    fn tick(&mut self) -> Time {
        self.clock += 1;
        self.clock
    }

    fn harm(&mut self, call: Call, range: Option<Range<u64>>, bytes: &[u8]) -> Option<Harm> {
        let mut harm = None;
        for Injected { fault, holding, counted } in &mut self.faults {
            let touched = match (&fault.range, &range) {
                (Some(a), Some(b)) => a.start < b.end && b.start < a.end,
                (Some(_), None) => false,
                (None, _) => true,
            };
            if fault.call != call || !touched || !holding(bytes) {
                continue;
            }
            if *counted == fault.nth || (fault.for_good && *counted > fault.nth) {
                harm = harm.or(Some(fault.harm));
            }
            *counted += 1;
        }
        self.strikes += u64::from(harm.is_some());
        harm
    }

    /// The wrong offset of a call to `offset`.
    fn astray(&self, offset: u64, len: u64, by: u64) -> u64 {
        if offset + by + len <= self.image.size_bytes() { offset + by } else { offset.saturating_sub(by) }
    }

    /// Records the start of a call and returns its index.
    fn begin(&mut self, action: Action) -> usize {
        let called = self.tick();
        let tag = self.tag.clone();
        self.events.push(Event { action, called, returned: None, outcome: Outcome::Done, tag });
        self.events.len() - 1
    }
}

fn spoil_last_sector(bytes: &mut [u8], offset: u64) {
    let from = bytes.len().saturating_sub(SECTOR_BYTES);
    let mut rng = Rng::of(&[offset, 0x006c_6965]);
    bytes[from..].iter_mut().for_each(|byte| *byte = rng.next() as u8);
}

fn injected() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl BlockDevice for SimDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        self.check(offset, buf.len() as u64)?;
        let mut state = self.state.lock();
        let holds = |held: &StalledKind| matches!(held, StalledKind::Read(g) if g.start < range.end && range.start < g.end);
        while state.stalls.iter().any(|(_, held)| holds(held)) {
            state.waiting += 1;
            self.opened.wait(&mut state);
            state.waiting -= 1;
        }
        state.image.read(buf, offset);
        match state.harm(Call::Read, Some(range), buf) {
            Some(Harm::Error) => return Err(injected()),
            Some(Harm::Lie) => buf.fill(0),
            Some(Harm::Stale) => state.base.read(buf, offset),
            Some(Harm::Astray(by)) => {
                let elsewhere = state.astray(offset, buf.len() as u64, by);
                state.image.read(buf, elsewhere);
            }
            Some(Harm::Noise) => spoil_last_sector(buf, offset),
            None => {}
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        let mut state = self.state.lock();
        let harm = state.harm(Call::Write, Some(offset..offset + buf.len() as u64), buf);
        // The recording has the bytes that reach the medium.
        let (mut offset, mut data) = (offset, Arc::<[u8]>::from(buf));
        match harm {
            Some(Harm::Astray(by)) => offset = state.astray(offset, buf.len() as u64, by),
            Some(Harm::Noise) => spoil_last_sector(Arc::make_mut(&mut data), offset),
            _ => {}
        }
        let index = state.begin(Action::Write { offset, data: data.clone() });
        state.events[index].outcome = match harm {
            Some(Harm::Error) => Outcome::Failed,
            Some(Harm::Lie | Harm::Stale) => Outcome::Lied,
            Some(Harm::Astray(_) | Harm::Noise) | None => {
                state.image.write(&data, offset);
                Outcome::Done
            }
        };
        let returned = state.tick();
        state.events[index].returned = Some(returned);
        if harm == Some(Harm::Error) { Err(injected()) } else { Ok(()) }
    }

    fn flush(&self) -> io::Result<()> {
        // The call and its end are separate: a write by another thread between them is not covered.
        let index = self.state.lock().begin(Action::Flush);
        let mut state = self.state.lock();
        while state.stalls.iter().any(|(_, held)| matches!(held, StalledKind::Flush)) {
            state.waiting_flushes += 1;
            self.opened.wait(&mut state);
            state.waiting_flushes -= 1;
        }
        let harm = state.harm(Call::Flush, None, &[]);
        state.events[index].outcome = match harm {
            Some(Harm::Error) => Outcome::Failed,
            Some(_) => Outcome::Lied,
            None => Outcome::Done,
        };
        let returned = state.tick();
        state.events[index].returned = Some(returned);
        if harm == Some(Harm::Error) { Err(injected()) } else { Ok(()) }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len)?;
        let mut state = self.state.lock();
        let index = state.begin(Action::Discard { offset, len });
        let zeros = vec![0; len as usize];
        state.image.write(&zeros, offset);
        let returned = state.tick();
        state.events[index].returned = Some(returned);
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

/// Stalls reads of a range, or flushes, while it lives.
pub struct StalledCalls {
    device: Arc<SimDevice>,
    id: u64,
}

impl Drop for StalledCalls {
    fn drop(&mut self) {
        self.device.state.lock().stalls.retain(|(id, _)| *id != self.id);
        self.device.opened.notify_all();
    }
}
