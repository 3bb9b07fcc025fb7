//! A device's requests, in order, and the contents that a crash may leave.
//!
//! Time is a counter that every call and every return increments, here and in the histories of
//! workloads, so that "acknowledged before the crash" is a comparison of two numbers.
//!
//! The device's promises (crate `xact-device`), in terms of a recording:
//! 1. A write is durable from the return of the first honest flush that was called after the write
//!    had returned.
//! 2. Any other write issued before the crash may be present, missing, or present in part, each
//!    512-byte sector old or new.
//! 3. Of two writes to one sector the later one wins if both are present.

use std::sync::Arc;

use xact_device::SECTOR_BYTES;

use crate::image::Image;

/// A moment of a run.
pub type Time = u64;

/// The kind of an event.
#[derive(Debug, Clone)]
pub enum Action {
    Write {
        offset: u64,
        data: Arc<[u8]>,
    },
    /// The range reads as zeros if the device carried it out.
    Discard {
        offset: u64,
        len: u64,
    },
    Flush,
}

/// How an event ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The caller got an error. The write may be present all the same, and no later flush makes it
    /// durable. A failed flush loses the writes before it: later flushes do not cover them.
    Failed,
    /// A write or flush that the device acknowledged without doing anything.
    Lied,
}

/// One write, discard or flush.
#[derive(Debug, Clone)]
pub struct Event {
    pub action: Action,
    pub called: Time,
    /// `None` while the call runs.
    pub returned: Option<Time>,
    pub outcome: Outcome,
    /// The caller's tag, for the reader of a finding.
    pub tag: Option<Arc<str>>,
}

impl Event {
    /// Sectors that it changes.
    pub fn sectors(&self) -> usize {
        match &self.action {
            Action::Write { data, .. } => data.len().div_ceil(SECTOR_BYTES),
            Action::Discard { .. } => 1,
            Action::Flush => 0,
        }
    }

    pub fn is_flush(&self) -> bool {
        matches!(self.action, Action::Flush)
    }
}

/// The part of a write that a crash leaves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Part {
    None,
    All,
    /// The sectors whose bit is set (bit 0 of word 0 is the first sector).
    Sectors(Vec<u64>),
    /// The sectors whose bit is set hold noise, the others are new: a device that breaks its
    /// promise.
    Noise(Vec<u64>),
}

pub(crate) fn bit(mask: &[u64], index: usize) -> bool {
    mask.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
}

/// A finished run: the initial device, and all events.
#[derive(Clone)]
pub struct Recording {
    pub base: Image,
    pub events: Vec<Event>,
    /// The time after everything.
    pub end: Time,
}

impl Recording {
    /// The number of crash points: before each event, and after all of them.
    pub fn points(&self) -> usize {
        self.events.len() + 1
    }

    /// The time of a crash at `point`: just before its event is called.
    pub fn time_of(&self, point: usize) -> Time {
        self.events.get(point).map_or(self.end, |e| e.called)
    }

    /// A number that identifies the writes of a run (by position and length, not contents: times of
    /// day differ between runs).
    pub fn shape(&self) -> u32 {
        let mut hash = 0x811c_9dc5u32;
        let mut mix = |value: u64| {
            for byte in value.to_le_bytes() {
                hash = (hash ^ byte as u32).wrapping_mul(0x0100_0193);
            }
        };
        for event in &self.events {
            match &event.action {
                Action::Write { offset, data } => [1, *offset, data.len() as u64].map(&mut mix),
                Action::Discard { offset, len } => [2, *offset, *len].map(&mut mix),
                Action::Flush => [3, 0, 0].map(&mut mix),
            };
        }
        hash
    }
}

/// Walks a recording from point to point, keeping what is durable and what is pending.
pub struct Cursor<'a> {
    recording: &'a Recording,
    point: usize,
    /// Contents if everything pending is lost.
    durable: Image,
    /// Indices of events that may or may not be on the device, in order.
    pending: Vec<usize>,
    /// `(old, new)`: `new` is durable, `old` is still pending and must not replace it.
    shadows: Vec<(usize, usize)>,
}

impl<'a> Cursor<'a> {
    pub fn new(recording: &'a Recording) -> Cursor<'a> {
        Cursor {
            recording,
            point: 0,
            durable: recording.base.clone(),
            pending: Vec::new(),
            shadows: Vec::new(),
        }
    }

    pub fn at(recording: &'a Recording, point: usize) -> Cursor<'a> {
        let mut cursor = Cursor::new(recording);
        while cursor.point < point && cursor.advance() {}
        cursor
    }

    pub fn point(&self) -> usize {
        self.point
    }

    /// Indices of the events that a crash here may lose, oldest first.
    pub fn pending(&self) -> &[usize] {
        &self.pending
    }

    /// Advances by one event; false at the end.
    pub fn advance(&mut self) -> bool {
        let Some(event) = self.recording.events.get(self.point) else { return false };
        if !event.is_flush() && event.outcome != Outcome::Lied {
            self.pending.push(self.point);
        }
        self.point += 1;
        self.settle();
        true
    }

    /// Moves the writes into `durable` that the flushes ended by now cover.
    fn settle(&mut self) {
        let now = self.recording.time_of(self.point);
        let events = &self.recording.events;
        let mut covered_until = 0;
        let mut lost_until = 0;
        for flush in events[..self.point].iter().filter(|e| e.is_flush()) {
            if flush.returned.is_none_or(|t| t > now) {
                continue;
            }
            match flush.outcome {
                Outcome::Done => covered_until = flush.called.max(covered_until),
                Outcome::Failed => lost_until = flush.called.max(lost_until),
                Outcome::Lied => {}
            }
        }
        let mut kept: Vec<usize> = Vec::new();
        for &index in &self.pending {
            let event = &events[index];
            let covered = event.outcome == Outcome::Done
                && event.returned.is_some_and(|t| t < covered_until && !self.was_lost(t, lost_until));
            if covered {
                apply(&mut self.durable, event, &Part::All);
                let older = kept.iter().filter(|&&k| overlap(&events[k], event));
                self.shadows.extend(older.map(|&k| (k, index)));
            } else {
                kept.push(index);
            }
        }
        self.shadows.retain(|(old, _)| kept.contains(old));
        self.pending = kept;
    }

    /// Whether a write that returned at `time` belongs to a failed flush: the first flush after it
    /// failed.
    fn was_lost(&self, time: Time, lost_until: Time) -> bool {
        time < lost_until
            && self.recording.events[..self.point]
                .iter()
                .filter(|e| e.is_flush() && e.outcome != Outcome::Lied)
                .find(|e| e.called > time)
                .is_some_and(|first| first.outcome == Outcome::Failed)
    }

    /// The device after a crash here that leaves `parts[i]` of the i-th pending event.
    pub fn crash(&self, parts: &[Part]) -> Image {
        assert_eq!(parts.len(), self.pending.len(), "one part for each pending event");
        let mut image = self.durable.clone();
        for (&index, part) in self.pending.iter().zip(parts) {
            apply(&mut image, &self.recording.events[index], part);
            for (_, new) in self.shadows.iter().filter(|(old, _)| *old == index) {
                apply(&mut image, &self.recording.events[*new], &Part::All);
            }
        }
        image
    }
}

fn extent(event: &Event) -> (u64, u64) {
    match &event.action {
        Action::Write { offset, data } => (*offset, *offset + data.len() as u64),
        Action::Discard { offset, len } => (*offset, *offset + *len),
        Action::Flush => (0, 0),
    }
}

fn overlap(a: &Event, b: &Event) -> bool {
    let (a, b) = (extent(a), extent(b));
    a.0 < b.1 && b.0 < a.1
}

fn apply(image: &mut Image, event: &Event, part: &Part) {
    match (&event.action, part) {
        (Action::Flush, _) | (_, Part::None) => {}
        (Action::Write { offset, data }, Part::All) => image.write(data, *offset),
        (Action::Write { offset, data }, Part::Sectors(mask)) => {
            for (n, sector) in data.chunks(SECTOR_BYTES).enumerate() {
                if bit(mask, n) {
                    image.write(sector, offset + (n * SECTOR_BYTES) as u64);
                }
            }
        }
        (Action::Write { offset, data }, Part::Noise(mask)) => {
            for (n, sector) in data.chunks(SECTOR_BYTES).enumerate() {
                let at = offset + (n * SECTOR_BYTES) as u64;
                if bit(mask, n) {
                    let mut rng = crate::rng::Rng::of(&[at, 0x006e_6f69_7365]);
                    let noise: Vec<u8> = sector.iter().map(|_| rng.next() as u8).collect();
                    image.write(&noise, at);
                } else {
                    image.write(sector, at);
                }
            }
        }
        (Action::Discard { offset, len }, _) => {
            const STEP: u64 = 1 << 16;
            let zeros = vec![0; (*len).min(STEP) as usize];
            let mut at = *offset;
            while at < offset + len {
                let step = (offset + len - at).min(STEP);
                image.write(&zeros[..step as usize], at);
                at += step;
            }
        }
    }
}
