//! A memory balloon (virtio 1.2, 5.5).
//!
//! The driver takes pages from its system and names them (inflates), or reports runs of pages that its system does not use. Those
//! pages are [released](ring3_core::memory::Memory::release): the guest finds zeros there, whenever it uses them again, which it may
//! without telling. So the machine does the same whether or not the host could take them, and a replay needs no host.
//!
//! As QEMU's device it has no `VIRTIO_BALLOON_F_MUST_TELL_HOST`, and gives hints of free pages (5.5.6.6) to nobody.

use std::ops::Range;

use ring3_core::balloon::{BalloonRequest, BalloonStatus};
use ring3_core::clock::Tag;
use ring3_core::device::{DeviceId, Output};
use ring3_core::input::DeviceInput;
use ring3_core::memory::{Memory, PAGE_SHIFT, PAGE_SIZE};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use super::queue::{Chain, Segment};
use super::segments::gather;
use super::telling::Telling;
use super::{DeviceType, Work};

/// Device ID (5.5.1).
const ID: u16 = 5;
/// A device of no class, as QEMU's.
const CLASS: u32 = 0x00ff00;

/// Descriptors of a queue.
const SIZE: u16 = 128;
/// The same of those for reports: as many runs as Linux reports at once.
const REPORT_SIZE: u16 = 32;

/// Numbers of the queues (5.5.2).
mod queues {
    pub(super) const INFLATE: u16 = 0;
    pub(super) const DEFLATE: u16 = 1;
    pub(super) const STATISTICS: u16 = 2;
    /// Where there is no queue for hints, Linux before 6.11 and QEMU have that for reports here and not behind it.
    pub(super) const REPORTS: [u16; 2] = [3, 4];
}

/// Features (5.5.3).
mod features {
    pub(super) const STATISTICS: u64 = 1 << 1;
    pub(super) const DEFLATE_ON_OOM: u64 = 1 << 2;
    pub(super) const PAGE_POISON: u64 = 1 << 4;
    pub(super) const REPORTING: u64 = 1 << 5;
}

/// Where the fields that the driver writes are in the device configuration (5.5.4).
const ACTUAL: Range<usize> = 4..8;
const POISON: Range<usize> = 12..16;

/// Upper bound of the pages that are taken from the driver in a notification. Linux sends 256. What comes beyond is
/// given back as if it had been done, and stays in the host's memory.
const PAGES_MAX: usize = 1 << 16;
/// Bytes of the number of a page, and of a statistic: a tag and a value (5.5.6.3).
const PAGE_NUMBER_LEN: usize = 4;
const STATISTIC_LEN: usize = 10;
/// Upper bound of the statistics that are kept, more than there are kinds.
const STATISTICS_MAX: usize = 32;

const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// The timers: for statistics, and to tell those outside.
const POLL: Tag = 0;
const TELL: Tag = 1;

const VERSION: u32 = 1;

/// A memory balloon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalloonModel {
    /// Whether a guest without memory may take pages back by itself.
    pub deflate_on_oom: bool,
    /// Whether a guest may report pages that it does not use.
    pub free_page_reporting: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    status: BalloonStatus,
    #[serde(flatten)]
    telling: Telling<u32>,
    /// What the driver expects in free pages.
    poison: u32,
    /// The chain into which the driver has written statistics, until it should write others.
    held: Option<u16>,
}

/// The device type of a memory balloon.
#[derive(Debug)]
pub struct Balloon {
    model: BalloonModel,
    state: State,
}

impl Balloon {
    /// The device type of `model`.
    pub fn new(model: BalloonModel) -> Balloon {
        Balloon { model, state: State::default() }
    }

    /// The driver names pages that its system does without (5.5.6).
    fn inflate(&mut self, work: &mut Work<'_, '_>) {
        let (mut pages, mut heads) = (Vec::new(), Vec::new());
        let queue = &mut work.queues[usize::from(queues::INFLATE)];
        // A driver cannot have more than that in it: without an end what is written there could feed it.
        for _ in 0..queue.size() {
            let Some(chain) = queue.pop(work.context.memory) else { break };
            let room = PAGES_MAX - pages.len();
            pages.extend(page_numbers(work.context.memory, &chain, room));
            heads.push(chain.head);
        }
        let runs = pages.into_iter().map(|page| u64::from(page)..u64::from(page) + 1).collect();
        self.release(work, runs);
        give_back(work, queues::INFLATE, heads);
    }

    /// The driver reports pages that its system does not use (5.5.6.7).
    fn hear_reports(&mut self, work: &mut Work<'_, '_>, index: u16) {
        let (mut runs, mut heads) = (Vec::new(), Vec::new());
        let queue = &mut work.queues[usize::from(index)];
        for _ in 0..queue.size() {
            let Some(chain) = queue.pop(work.context.memory) else { break };
            runs.extend(chain.writable.iter().filter_map(whole_pages));
            heads.push(chain.head);
        }
        // Pages are to keep what the driver expects there.
        if self.state.poison == 0 {
            self.release(work, runs);
        }
        give_back(work, index, heads);
    }

    fn release(&mut self, work: &mut Work<'_, '_>, runs: Vec<Range<u64>>) {
        let released = work.context.memory.release(merged(runs));
        self.state.status.released += released.pages;
        self.state.status.runs += released.runs;
    }

    /// The driver takes pages back. They are its own already.
    fn deflate(work: &mut Work<'_, '_>) {
        let queue = &mut work.queues[usize::from(queues::DEFLATE)];
        for _ in 0..queue.size() {
            let Some(chain) = queue.pop(work.context.memory) else { break };
            queue.push(work.context.memory, chain.head, 0);
        }
    }

    /// The driver gives statistics (5.5.6.3). They may be the first ones, for which nobody has asked.
    fn hear_statistics(&mut self, work: &mut Work<'_, '_>) {
        let queue = &mut work.queues[usize::from(queues::STATISTICS)];
        let mut last = None;
        for _ in 0..queue.size() {
            let Some(chain) = queue.pop(work.context.memory) else { break };
            // One is enough.
            if let Some(head) = self.state.held.replace(chain.head) {
                queue.push(work.context.memory, head, 0);
            }
            last = Some(chain);
        }
        let Some(chain) = last else { return };
        let bytes = front(work.context.memory, &chain.readable, STATISTICS_MAX * STATISTIC_LEN);
        let statistics = bytes.chunks_exact(STATISTIC_LEN).filter_map(|statistic| {
            let (tag, value) = statistic.split_first_chunk()?;
            Some((u16::from_le_bytes(*tag), u64::from_le_bytes(*value.first_chunk()?)))
        });
        let status = &mut self.state.status;
        status.statistics = statistics.collect();
        status.updated = Some(work.context.now);
        if status.poll_seconds > 0 {
            let period = u64::from(status.poll_seconds).saturating_mul(NANOS_PER_SECOND);
            let next = work.context.now.plus_nanos(period);
            work.context.set_timer(POLL, next);
        }
    }

    /// Asks the driver for statistics, if it has given some that it could replace.
    fn poll(&mut self, work: &mut Work<'_, '_>) {
        if let Some(head) = self.state.held.take() {
            work.queues[usize::from(queues::STATISTICS)].push(work.context.memory, head, 0);
        }
    }

    fn tell(&mut self, work: &mut Work<'_, '_>) {
        let pages = self.state.status.actual;
        if self.state.telling.is_due(work.context, TELL, pages) {
            work.context.output(Output::Balloon { pages });
        }
    }
}

/// Gives chains of queue `index` back.
fn give_back(work: &mut Work<'_, '_>, index: u16, heads: Vec<u16>) {
    for head in heads {
        work.queues[usize::from(index)].push(work.context.memory, head, 0);
    }
}

/// The first bytes of `segments`, `max` at most.
fn front(memory: &Memory, segments: &[Segment], max: usize) -> Vec<u8> {
    let mut left = max as u32;
    let segments = segments.iter().map(|segment| {
        let len = segment.len.min(left);
        left -= len;
        Segment { len, ..*segment }
    });
    gather(memory, &segments.collect::<Vec<_>>())
}

/// The numbers of pages in `chain`, `max` at most.
fn page_numbers(memory: &Memory, chain: &Chain, max: usize) -> Vec<u32> {
    let bytes = front(memory, &chain.readable, max * PAGE_NUMBER_LEN);
    let (numbers, _) = bytes.as_chunks::<PAGE_NUMBER_LEN>();
    numbers.iter().map(|number| u32::from_le_bytes(*number)).collect()
}

/// The numbers of the pages that are wholly in `segment`.
fn whole_pages(segment: &Segment) -> Option<Range<u64>> {
    let end = segment.address.checked_add(segment.len.into())?;
    let pages = segment.address.div_ceil(PAGE_SIZE)..end >> PAGE_SHIFT;
    (!pages.is_empty()).then_some(pages)
}

/// The same pages in ascending order, each once, in as few ranges as possible.
fn merged(mut runs: Vec<Range<u64>>) -> Vec<Range<u64>> {
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, run| {
        let is_next = next.start <= run.end;
        if is_next {
            run.end = run.end.max(next.end);
        }
        is_next
    });
    runs
}

impl DeviceType for Balloon {
    fn device(&self) -> DeviceId {
        DeviceId::BALLOON
    }

    fn id(&self) -> u16 {
        ID
    }

    fn class(&self) -> u32 {
        CLASS
    }

    fn features(&self) -> u64 {
        let BalloonModel { deflate_on_oom, free_page_reporting } = self.model;
        features::STATISTICS
            | features::PAGE_POISON
            | if deflate_on_oom { features::DEFLATE_ON_OOM } else { 0 }
            | if free_page_reporting { features::REPORTING } else { 0 }
    }

    fn queue_sizes(&self) -> Vec<u16> {
        let mut all = vec![SIZE; 3];
        if self.model.free_page_reporting {
            all.extend([REPORT_SIZE; queues::REPORTS.len()]);
        }
        all
    }

    /// `struct virtio_balloon_config` (5.5.4): `num_pages`, `actual`, `free_page_hint_cmd_id`, `poison_val`.
    fn config(&self) -> Vec<u8> {
        let BalloonStatus { target, actual, .. } = self.state.status;
        [target, actual, 0, self.state.poison].map(u32::to_le_bytes).as_flattened().to_vec()
    }

    fn write_config(&mut self, work: &mut Work<'_, '_>, offset: usize, value: u8) {
        let set = |word: &mut u32, place: usize| {
            let mut bytes = word.to_le_bytes();
            bytes[place] = value;
            *word = u32::from_le_bytes(bytes);
        };
        if ACTUAL.contains(&offset) {
            set(&mut self.state.status.actual, offset - ACTUAL.start);
            // Whoever writes it begins with the first byte.
            if offset + 1 == ACTUAL.end {
                self.tell(work);
            }
        } else if POISON.contains(&offset) && work.features & features::PAGE_POISON != 0 {
            set(&mut self.state.poison, offset - POISON.start);
        }
    }

    fn notify(&mut self, work: &mut Work<'_, '_>, queue: u16) {
        match queue {
            queues::INFLATE => self.inflate(work),
            queues::DEFLATE => Balloon::deflate(work),
            queues::STATISTICS => self.hear_statistics(work),
            _ => self.hear_reports(work, queue),
        }
    }

    fn input(&mut self, work: &mut Work<'_, '_>, input: DeviceInput) {
        let DeviceInput::Balloon(request) = input else { return };
        match request {
            BalloonRequest::Target { pages } => {
                work.config_changed = self.state.status.target != pages;
                self.state.status.target = pages;
            }
            BalloonRequest::Poll { seconds } => {
                self.state.status.poll_seconds = seconds;
                if seconds == 0 {
                    work.context.cancel_timer(POLL);
                } else {
                    self.poll(work);
                }
            }
        }
    }

    fn timer(&mut self, work: &mut Work<'_, '_>, tag: Tag) {
        match tag {
            POLL => self.poll(work),
            _ => self.tell(work),
        }
    }

    /// All pages are the guest's own again. What those outside want stays as it is.
    fn reset(&mut self, work: &mut Work<'_, '_>) {
        let BalloonStatus { target, poll_seconds, released, runs, .. } = self.state.status;
        let status =
            BalloonStatus { target, poll_seconds, released, runs, ..BalloonStatus::default() };
        let telling = std::mem::take(&mut self.state.telling);
        self.state = State { status, telling, ..State::default() };
        work.context.cancel_timer(POLL);
        self.tell(work);
    }

    fn balloon(&self) -> Option<BalloonStatus> {
        Some(self.state.status.clone())
    }

    fn save(&self) -> SavedState {
        SavedState::new(DeviceId::BALLOON.name(), VERSION, &self.state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(DeviceId::BALLOON.name(), VERSION)?;
        if state.status.statistics.len() > STATISTICS_MAX {
            return Err(saved.damaged("a balloon has not so many statistics"));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
