//! The end from which a machine goes.

use std::fmt::{self, Debug, Formatter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ring3_vm::control::DRIVES_MAX;
use ring3_vm::{Control, Door, Vm};

use super::channel::Channel;
use super::handing::{self, Handed, NotOpen, OpenDrives};
use super::pages::{self, PAGE};
use super::stream::{self, Frame, Head, Kind, Rest};
use super::{MoveError, Place};

/// Rounds in which the pages do not become fewer, after which the guest stands still all the same.
const VAIN: u32 = 3;
/// Upper bound of all rounds.
const ROUNDS: u32 = 30;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// How a machine moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// How long the rest of memory may take while the guest stands still.
    pub downtime: Duration,
    /// Upper bound of the bytes that are sent in a second while the guest runs, or 0.
    pub bandwidth: u64,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters { downtime: Duration::from_millis(50), bandwidth: 0 }
    }
}

/// How far a machine has moved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Stage {
    /// Nothing has begun.
    #[default]
    None,
    /// The other end is called.
    Setup,
    /// Memory is sent.
    Active,
    /// The guest stands still.
    Device,
    /// The machine has moved.
    Completed,
    /// It has not, for this reason.
    Failed(String),
    /// It has not, since a person has cancelled it.
    Cancelled,
}

/// What was sent so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes.
    pub transferred: u64,
    /// Bytes of memory.
    pub total: u64,
    /// Bytes of memory that are still to be sent.
    pub remaining: u64,
    /// Pages of zeros, of which only the numbers were sent.
    pub zero: u64,
    /// All other pages.
    pub normal: u64,
    /// How often written pages were looked for.
    pub rounds: u32,
    /// The time since the beginning, or until the end.
    pub time: Duration,
    /// The time until the other end had answered.
    pub setup: Duration,
    /// How long the guest stood still, or may have to.
    pub downtime: Duration,
    /// Bytes that were sent in a second.
    pub rate: u64,
    /// Pages that the guest has written in a second.
    pub written_rate: u64,
    /// Bytes that were sent before the guest stood still, if it does.
    pub before_standing: Option<u64>,
}

/// What happens while a machine moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News<'a> {
    /// It is at this stage.
    Stage(&'a Stage),
    /// Memory, or what was written meanwhile, is about to be sent for the time with this number, from 1.
    Round(u32),
}

type Listener = Box<dyn Fn(News<'_>) + Send + Sync>;

/// Shows how far a machine has moved, and cancels it.
#[derive(Default)]
pub struct Progress {
    state: Mutex<(Stage, Counts, Option<Instant>)>,
    is_cancelled: AtomicBool,
    listener: Option<Listener>,
    /// The disks that a machine that has not moved waits for.
    missing: Mutex<Option<Missing>>,
}

/// Disks that could not be opened again.
struct Missing {
    handed: Handed,
    /// Why the machine has not moved.
    why: String,
}

impl Missing {
    fn take_back(&self, patience: Duration) -> Result<OpenDrives, MoveError> {
        let taken = self.handed.take_back(Instant::now() + patience);
        taken.map_err(|NotOpen { disk, source }| MoveError::NotBack {
            disk,
            why: self.why.clone(),
            source,
        })
    }
}

impl Debug for Progress {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Progress").field(&self.look()).finish_non_exhaustive()
    }
}

impl Progress {
    /// Makes one that tells `listener` what happens.
    pub fn telling(listener: impl Fn(News<'_>) + Send + Sync + 'static) -> Progress {
        Progress { listener: Some(Box::new(listener)), ..Progress::default() }
    }

    fn tell(&self, news: News<'_>) {
        if let Some(listener) = &self.listener {
            listener(news);
        }
    }

    fn lock(&self) -> MutexGuard<'_, (Stage, Counts, Option<Instant>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how far it is, and what was sent.
    pub fn look(&self) -> (Stage, Counts) {
        let (stage, mut counts, began) = self.lock().clone();
        if let Some(began) = began {
            counts.time = began.elapsed();
        }
        (stage, counts)
    }

    /// Begins, unless it is under way already.
    pub fn begin(&self) -> bool {
        let mut state = self.lock();
        let is_free = !matches!(state.0, Stage::Setup | Stage::Active | Stage::Device);
        if is_free {
            *state = (Stage::Setup, Counts::default(), Some(Instant::now()));
            self.is_cancelled.store(false, Ordering::Relaxed);
        }
        drop(state);
        if is_free {
            self.tell(News::Stage(&Stage::Setup));
        }
        is_free
    }

    /// Asks for its end. The machine goes on here if it has not moved yet.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    fn enter(&self, stage: &Stage) {
        self.lock().0 = stage.clone();
        self.tell(News::Stage(stage));
    }

    fn set(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.lock().1);
    }

    fn end(&self, stage: &Stage) {
        self.set_time();
        self.enter(stage);
    }

    /// Lets time no longer pass.
    fn set_time(&self) {
        let (_, counts, began) = &mut *self.lock();
        counts.time = began.take().map_or(Duration::ZERO, |began| began.elapsed());
    }
}

/// Moves the machine behind `control` to `place`. [`Progress::begin`] must have returned true. When this returns
/// Ok, the machine is [`Status::Moved`](ring3_vm::control::Status::Moved), and goes on at the other end.
pub fn depart(
    control: &Control,
    place: &Place,
    parameters: Parameters,
    progress: &Arc<Progress>,
) -> Result<(), MoveError> {
    let departed = Source { control, parameters, progress }.depart(place);
    progress.end(&match &departed {
        Ok(()) => Stage::Completed,
        Err(MoveError::Cancelled) => Stage::Cancelled,
        Err(error) => Stage::Failed(error.to_string()),
    });
    departed
}

/// Lets a machine that is [`Status::WithoutDisks`](ring3_vm::control::Status::WithoutDisks) go on, if its disks can be
/// opened again now. `progress` is that of the move that has failed.
pub fn come_back(control: &Control, progress: &Progress) -> Result<(), MoveError> {
    let mut missing = progress.missing.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = &*missing {
        let drives = there.take_back(Duration::ZERO)?;
        control.visit(move |vm, door| {
            attach(vm, drives);
            door.come_back();
            door.resume();
        })?;
        *missing = None;
    }
    Ok(())
}

fn attach(vm: &mut Vm, drives: OpenDrives) {
    for (at, drive) in drives {
        vm.exchange_drive(at, drive);
    }
}

struct Source<'a> {
    control: &'a Control,
    parameters: Parameters,
    progress: &'a Arc<Progress>,
}

/// What a machine that stands still sends.
struct Last {
    /// Pages, with the number of those that are not zero and of all.
    pages: Vec<(Frame, usize, usize)>,
    sectors: Vec<Frame>,
    rest: Rest,
}

impl Source<'_> {
    fn depart(&self, place: &Place) -> Result<(), MoveError> {
        self.control.check_is_here()?;
        let goes_on = Arc::clone(self.progress);
        let goes_on = Box::new(move || !goes_on.is_cancelled());
        let (head, files) = self.control.visit(|vm, _| begin(vm))??;
        let mut handed = Handed::default();
        let mut stands = None;
        let moved = Channel::connect(place, goes_on).and_then(|mut channel| {
            stream::send_magic(&mut channel)?;
            stream::send_bytes(&mut channel, &stream::packed(&head)?)?;
            for file in files {
                let bytes = file.read().map_err(|error| stream::damaged(&error.to_string()))?;
                stream::send_bytes(&mut channel, &bytes)?;
            }
            let (_, Counts { time: setup, .. }) = self.progress.look();
            self.progress.set(|counts| (counts.total, counts.setup) = (head.memory_len, setup));
            self.progress.enter(&Stage::Active);
            self.send_memory(&mut channel, head.memory_len)?;
            self.send_rest(&mut channel, &mut handed, &mut stands)
        });
        moved.or_else(|why| {
            self.come_back(handed, &why, stands)?;
            Err(why)
        })
    }

    /// Sends memory while the guest runs, until the rest is little.
    fn send_memory(&self, channel: &mut Channel, len: u64) -> Result<(), MoveError> {
        let mut pages: Vec<u32> = (0..(len as usize / PAGE) as u32).collect();
        let (mut vain, mut round) = (0, 0);
        loop {
            let began = Instant::now();
            self.progress.tell(News::Round(round + 1));
            let sent = self.send_pages(channel, &pages, began)?;
            let took = began.elapsed();
            let rate = rate_of(sent, took);
            let count = self.control.visit(|vm, _| vm.memory().written_count())?;
            let downtime = time_of(count * PAGE, rate);
            round += 1;
            vain = if count < pages.len() * 3 / 4 { 0 } else { vain + 1 };
            self.progress.set(|counts| {
                counts.rounds = round;
                counts.downtime = downtime;
                counts.rate = rate;
                counts.written_rate = rate_of(count, took);
                counts.remaining = (count * PAGE) as u64;
            });
            tracing::debug!(round, count, rate, ?downtime, "memory is sent");
            if downtime <= self.parameters.downtime || vain >= VAIN || round >= ROUNDS {
                return Ok(());
            }
            pages =
                self.control.visit(|vm, _| vm.take_written_pages())?.ok_or(MoveError::Replaced)?;
            pages.sort_unstable();
        }
    }

    /// Sends `pages` as they are when each is sent. Returns the number of bytes.
    fn send_pages(
        &self,
        channel: &mut Channel,
        pages: &[u32],
        began: Instant,
    ) -> Result<usize, MoveError> {
        let pages: Arc<[u32]> = pages.into();
        let (mut at, mut sent) = (0, 0);
        while at < pages.len() {
            if self.progress.is_cancelled() {
                return Err(MoveError::Cancelled);
            }
            let all = Arc::clone(&pages);
            let (frame, full, next) = self.control.visit(move |vm, _| {
                let mut rest = &all[at..];
                let (frame, full) = pages::pack(vm.memory(), &mut rest);
                (frame, full, all.len() - rest.len())
            })?;
            sent += frame.len();
            self.count(&frame, full, next - at);
            stream::send(channel, frame)?;
            at = next;
            if self.parameters.bandwidth > 0 {
                let due = time_of(sent, self.parameters.bandwidth);
                thread::sleep(due.saturating_sub(began.elapsed()).min(Duration::from_secs(1)));
            }
        }
        Ok(sent)
    }

    fn count(&self, frame: &Frame, full: usize, pages: usize) {
        self.progress.set(|counts| {
            counts.transferred += frame.len() as u64;
            counts.normal += full as u64;
            counts.zero += (pages - full) as u64;
            counts.remaining = counts.remaining.saturating_sub((pages * PAGE) as u64);
        });
    }

    /// Lets the guest stand still, sends the rest, and waits until the other end has the machine. `stands` says
    /// from then on whether it ran before.
    fn send_rest(
        &self,
        channel: &mut Channel,
        handed: &mut Handed,
        stands: &mut Option<bool>,
    ) -> Result<(), MoveError> {
        let runs = self.control.visit(|_, door| {
            let runs = !door.is_paused();
            door.pause();
            runs
        })?;
        *stands = Some(runs);
        let stood = Instant::now();
        self.progress.enter(&Stage::Device);
        self.progress.set(|counts| counts.before_standing = Some(counts.transferred));
        if !self.control.wait_for_drives()? {
            return Err(MoveError::DrivesAreBusy);
        }
        let (taken, last) = self.control.visit(move |vm, door| {
            let mut handed = Handed::default();
            let last = stand_still(vm, door, &mut handed, runs);
            (handed, last)
        })?;
        *handed = taken;
        let Last { pages, sectors, rest } = last?;
        handed.wait()?;
        for (frame, full, all) in pages {
            self.count(&frame, full, all);
            stream::send(channel, frame)?;
        }
        for frame in sectors {
            stream::send(channel, frame)?;
        }
        stream::send(channel, Frame::new(Kind::End))?;
        stream::send_bytes(channel, &stream::packed(&rest)?)?;
        if channel.answers() {
            give(channel)?;
        } else {
            channel.finish()?;
        }
        let downtime = stood.elapsed();
        self.progress.set(|counts| (counts.downtime, counts.remaining) = (downtime, 0));
        // A switch lets the cards in at the other end when they are gone here. If the machine has ended, they
        // are.
        let _ = self.control.visit(Vm::disconnect);
        Ok(())
    }

    /// Lets the machine go on here.
    fn come_back(
        &self,
        handed: Handed,
        why: &MoveError,
        stands: Option<bool>,
    ) -> Result<(), MoveError> {
        let handed = Missing { handed, why: why.to_string() };
        let drives = match handed.take_back(DRIVES_MAX) {
            Ok(drives) => drives,
            Err(error) => {
                let mut missing =
                    self.progress.missing.lock().unwrap_or_else(PoisonError::into_inner);
                *missing = Some(handed);
                self.control.visit(|vm, door| {
                    vm.stop_watching_memory();
                    door.lack_disks();
                })?;
                return Err(error);
            }
        };
        let is_in_doubt = matches!(why, MoveError::InDoubt(_));
        self.control.visit(move |vm, door| {
            vm.stop_watching_memory();
            attach(vm, drives);
            if let Some(runs) = stands {
                door.come_back();
                if runs && !is_in_doubt {
                    door.resume();
                }
            }
        })?;
        Ok(())
    }
}

/// Gives the machine to the other end when that is ready. If this fails, the machine is still here.
fn give(channel: &mut Channel) -> Result<(), MoveError> {
    let strange = || stream::damaged("the other end does not answer as it should");
    let is_direct = match stream::receive(channel)? {
        (Kind::Ready, name) => channel.is_connected_to(&name),
        (Kind::Failed, why) => {
            return Err(MoveError::Refused(String::from_utf8_lossy(&why).into_owned()));
        }
        _ => return Err(strange()),
    };
    stream::send(channel, Frame::new(Kind::Go))?;
    // From here on only the other end knows who has the machine.
    channel.insist();
    let answer = stream::receive(channel).and_then(|(kind, _)| match kind {
        Kind::Gone => Ok(()),
        _ => Err(strange()),
    });
    // What a process has written is read before its end, so this one has not taken the machine, unless its answer
    // was lost on the way.
    answer.map_err(|why| if is_direct { why } else { MoveError::InDoubt(Box::new(why)) })
}

/// Begins to watch memory. Returns what is sent first.
fn begin(vm: &mut Vm) -> Result<(Head, Vec<ring3_vm::FileBytes>), MoveError> {
    if !vm.may_move() {
        return Err(MoveError::Logged);
    }
    handing::check(vm)?;
    let mut machine = vm.save_without_contents();
    let files = machine.take_files();
    vm.watch_memory();
    Ok((Head { machine, files: files.len() as u32, memory_len: vm.memory_len() }, files))
}

/// Takes the disks and the rest of the state from a machine that stands still, and does so from now on.
fn stand_still(
    vm: &mut Vm,
    door: &mut Door,
    handed: &mut Handed,
    runs: bool,
) -> Result<Last, MoveError> {
    let mut written = vm.take_written_pages().ok_or(MoveError::Replaced)?;
    written.sort_unstable();
    let (mut pages, mut left) = (Vec::new(), &written[..]);
    while !left.is_empty() {
        let before = left.len();
        let (frame, full) = pages::pack(vm.memory(), &mut left);
        pages.push((frame, full, before - left.len()));
    }
    let mut machine = vm.save_without_contents();
    machine.take_files();
    door.move_away();
    let mut sectors = Vec::new();
    let drives = handing::take(vm, handed, &mut sectors)?;
    Ok(Last { pages, sectors, rest: Rest { machine, drives, runs } })
}

/// Returns how many bytes a second they are if `bytes` take `time`, at least 1.
fn rate_of(bytes: usize, time: Duration) -> u64 {
    let rate = bytes as u128 * NANOS_PER_SECOND / time.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX).max(1)
}

/// Returns how long `bytes` take by `rate` bytes a second, which must not be 0.
fn time_of(bytes: usize, rate: u64) -> Duration {
    let nanos = bytes as u128 * NANOS_PER_SECOND / u128::from(rate);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
