//! The input door as the host sees it: threads send inputs, and the machine takes them between two
//! instructions. Some inputs the machine [fetches](Source) itself.

mod source;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::hint;
use std::iter::{self, Peekable};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring3_core::clock::Time;
use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, Input};
use ring3_host::polling::Polling;

use crate::control::{Event, NotHere, Request, Status, Subscriber};
use source::Bell;
pub use source::{Fetched, Source};

/// Upper bound of the inputs for one device that wait at the door; senders then wait or give up.
const CAPACITY: usize = 64;

/// How long a waiting machine polls, at most, before it sleeps: about as long as waking it up takes.
const LOOKS_FOR: Duration = Duration::from_micros(200);

/// A machine polls instead of a shorter sleep, in nanoseconds: falling asleep and waking up takes the host's
/// processor as long.
const SHORTEST_SLEEP_NANOS: u64 = 10_000;

/// How often a machine polls that cannot sleep until there is something.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Other sources of work for which a machine waits, and which it takes elsewhere.
pub(crate) trait OtherSources {
    /// Returns whether there may be something.
    fn have_news(&self) -> bool;

    /// Prepares for the machine to sleep. Returns the descriptors that can be read when there may be
    /// something, or None if there may be already.
    fn arm(&self) -> Option<Vec<BorrowedFd<'_>>>;
}

struct NoOtherSources;

impl OtherSources for NoOtherSources {
    fn have_news(&self) -> bool {
        false
    }

    fn arm(&self) -> Option<Vec<BorrowedFd<'_>>> {
        Some(Vec::new())
    }
}

/// Makes a door and a sender for it. Host time counts from now.
pub fn door() -> (Sender, Door) {
    let shared = Arc::new(Shared::default());
    let door = Door {
        shared: shared.clone(),
        opened: Instant::now(),
        before: Time::ZERO,
        paused: None,
        holds: 0,
        off: false,
        away: None,
        script: Script::new(iter::empty()),
        sources: Vec::new(),
        polling: Polling::up_to(LOOKS_FOR),
    };
    (Sender { shared }, door)
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    inputs: VecDeque<Input>,
    /// Whether [`Input::Quit`] was sent; it does not wait behind the others.
    quit: bool,
    /// Whether it was sent because of a signal to this process.
    by_signal: bool,
    /// Whether [`Input::Reset`] was sent. It does not wait either: people reset a guest because it takes
    /// nothing any more.
    reset: bool,
    /// Sources from which the machine will fetch, too.
    attached: Vec<(DeviceId, Box<dyn Source>)>,
    /// Wakes the machine while it sleeps by descriptors. It exists from the first source on.
    bell: Option<Bell>,
    sleeps: bool,
    /// Number of threads that wait for [`Shared::changed`].
    sleepers: usize,
    /// Requests to be answered.
    requests: Vec<Request>,
    /// Those who are told of events.
    subscribers: Vec<Subscriber>,
    /// The state of the machine. Once it is [`Status::Ended`], nobody will take anything any more.
    status: Status,
}

impl Waiting {
    /// Returns whether `input`, which is neither [`Input::Quit`] nor [`Input::Reset`], must wait outside.
    /// Answers of drives need not: there are no more of them than the guest has asked for, and the machine
    /// may itself wait for the thread that brings them. Nor need reports of congestion, of which there is one
    /// for each congestion that the machine was told of: the thread that brings them also sends the guest's
    /// packets.
    fn is_full_for(&self, input: &Input) -> bool {
        if let Input::Device { input: DeviceInput::Disk(_) | DeviceInput::Congestion(_), .. } =
            input
        {
            return false;
        }
        self.room_for(device_of(input)) == 0
    }

    /// Returns how many more inputs for `device` may wait here.
    fn room_for(&self, device: Option<DeviceId>) -> usize {
        let of_the_same = self.inputs.iter().filter(|other| device_of(other) == device);
        CAPACITY.saturating_sub(of_the_same.count())
    }

    /// Returns whether there is something for the machine to do, if `accepts` says which inputs it can take
    /// now.
    fn wakes(&self, accepts: impl Fn(&Input) -> bool) -> bool {
        self.quit || self.reset || !self.requests.is_empty() || self.inputs.iter().any(accepts)
    }

    /// Lets `input` in ahead of the others, if it is one of those that do not wait.
    fn takes_at_once(&mut self, input: &Input) -> bool {
        match input {
            Input::Quit => self.quit = true,
            Input::Reset => self.reset = true,
            Input::Device { .. }
            | Input::HostTime { .. }
            | Input::HostClocks(_)
            | Input::Plug { .. }
            | Input::Checkpoint
            | Input::Nmi => return false,
        }
        true
    }
}

/// Returns the device for which `input` is.
fn device_of(input: &Input) -> Option<DeviceId> {
    match input {
        Input::Device { device, .. } => Some(*device),
        Input::HostTime { .. }
        | Input::HostClocks(_)
        | Input::Plug { .. }
        | Input::Reset
        | Input::Nmi
        | Input::Checkpoint
        | Input::Quit => None,
    }
}

impl Shared {
    /// Locks the queue. A thread that panicked has left it consistent.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until something changes, at most for `duration`.
    fn sleep<'a>(
        &self,
        mut waiting: MutexGuard<'a, Waiting>,
        duration: Option<Duration>,
    ) -> MutexGuard<'a, Waiting> {
        waiting.sleepers += 1;
        let mut waiting = match duration {
            None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            Some(duration) => {
                let woken = self.changed.wait_timeout(waiting, duration);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        waiting.sleepers -= 1;
        waiting
    }

    /// Notes a change. Without sleeping threads this takes no system call.
    fn notify(&self, waiting: &Waiting) {
        if waiting.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Notes that something has come, and wakes the machine if it sleeps.
    fn wake(&self, waiting: &Waiting) {
        self.notify(waiting);
        if let Some(bell) = &waiting.bell
            && waiting.sleeps
        {
            bell.ring();
        }
    }
}

/// Sends inputs to a machine, from any thread.
#[derive(Debug, Clone)]
pub struct Sender {
    shared: Arc<Shared>,
}

impl Sender {
    /// Sends `input`, and waits while too many are queued for its device. [`Input::Quit`], [`Input::Reset`]
    /// and the answers of drives never wait. Inputs to a machine that has ended are lost.
    pub fn send(&self, input: Input) {
        let mut waiting = self.shared.lock();
        if !waiting.takes_at_once(&input) {
            while waiting.is_full_for(&input) && waiting.status != Status::Ended {
                waiting = self.shared.sleep(waiting, None);
            }
            waiting.inputs.push_back(input);
        }
        self.shared.wake(&waiting);
    }

    /// Sends `input` if there is room for it at once, and returns whether there was. This is for what a
    /// person types, who would rather lose a key than be locked out.
    pub fn offer(&self, input: Input) -> bool {
        let mut waiting = self.shared.lock();
        if !waiting.takes_at_once(&input) {
            if waiting.is_full_for(&input) {
                return false;
            }
            waiting.inputs.push_back(input);
        }
        self.shared.wake(&waiting);
        true
    }

    /// Makes the machine itself fetch inputs for `device` from `source`. Returns the source if the machine has
    /// ended, or if the host has no descriptor for it.
    pub fn attach(&self, device: DeviceId, source: Box<dyn Source>) -> Result<(), Box<dyn Source>> {
        let mut waiting = self.shared.lock();
        if waiting.bell.is_none() {
            waiting.bell = Bell::new().ok();
        }
        if waiting.bell.is_none() || waiting.status == Status::Ended {
            return Err(source);
        }
        waiting.attached.push((device, source));
        self.shared.wake(&waiting);
        Ok(())
    }

    /// Sends [`Input::Quit`] for a signal that has come to this process.
    pub(crate) fn quit_by_signal(&self) {
        self.shared.lock().by_signal = true;
        self.send(Input::Quit);
    }

    /// Returns whether [`Sender::quit_by_signal`] was called.
    pub(crate) fn was_signalled(&self) -> bool {
        self.shared.lock().by_signal
    }

    /// Returns whether [`Input::Quit`] waits to be taken.
    pub(crate) fn is_to_quit(&self) -> bool {
        self.shared.lock().quit
    }

    /// Returns the state of the machine.
    pub(crate) fn status(&self) -> Status {
        self.shared.lock().status
    }

    /// Passes `request` to the machine. One that has ended drops it.
    pub(crate) fn request(&self, request: Request) {
        let mut waiting = self.shared.lock();
        if waiting.status != Status::Ended {
            waiting.requests.push(request);
            self.shared.wake(&waiting);
        }
    }

    /// Passes `subscriber` to the machine, which tells it of events. One that has ended drops it.
    pub(crate) fn subscribe(&self, subscriber: Subscriber) {
        let mut waiting = self.shared.lock();
        if waiting.status != Status::Ended {
            waiting.subscribers.push(subscriber);
        }
    }
}

/// The machine's side of the door.
#[derive(Debug)]
pub struct Door {
    shared: Arc<Shared>,
    /// When the door was made, plus the time that was spent in pauses.
    opened: Instant,
    /// Host time at that moment.
    before: Time,
    /// When the present pause began.
    paused: Option<Instant>,
    /// For how many of those who call [`Door::hold`] the pause is.
    holds: u32,
    /// Whether only a reset of the machine ends this pause.
    off: bool,
    /// Why the machine is not whole here, so that nothing ends this pause.
    away: Option<NotHere>,
    script: Script,
    sources: Vec<(DeviceId, Box<dyn Source>)>,
    polling: Polling,
}

/// See [`Door::put_script`].
struct Script(Peekable<Box<dyn Iterator<Item = Input> + Send>>);

impl Script {
    fn new(inputs: impl Iterator<Item = Input> + Send + 'static) -> Script {
        let inputs: Box<dyn Iterator<Item = Input> + Send> = Box::new(inputs);
        Script(inputs.peekable())
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Script").finish_non_exhaustive()
    }
}

impl Door {
    /// Returns another sender for this door.
    pub(crate) fn sender(&self) -> Sender {
        Sender { shared: self.shared.clone() }
    }

    /// Returns host time since the door was made, without pauses.
    pub fn host_time(&self) -> Time {
        let now = self.paused.unwrap_or_else(Instant::now);
        let nanos = now.duration_since(self.opened).as_nanos();
        self.before.plus_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Sets host time to `time` if it was earlier, as if the door had been made with a machine that has run
    /// until then.
    pub fn advance_to(&mut self, time: Time) {
        let behind = time.nanos_since(self.host_time());
        self.before = self.before.plus_nanos(behind);
    }

    /// Sets host time to `time`, as if the door had been made with a machine that has run until then.
    pub(crate) fn go_back_to(&mut self, time: Time) {
        self.opened = self.paused.unwrap_or_else(Instant::now);
        self.before = time;
    }

    /// Returns whether the machine is between [`Door::pause`] and [`Door::resume`].
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Stops host time, as far as the machine sees it, and tells the subscribers.
    pub fn pause(&mut self) {
        self.holds = 0;
        if !self.is_paused() {
            self.stand_still(Status::Paused);
        }
    }

    /// Pauses a machine that runs until [`Door::release`] is called as often, for something that is soon done.
    /// Whoever pauses it meanwhile finds it paused afterwards.
    pub(crate) fn hold(&mut self) {
        if self.holds > 0 {
            self.holds += 1;
        } else if !self.is_paused() {
            self.stand_still(Status::Paused);
            self.holds = 1;
        }
    }

    /// Ends a pause of [`Door::hold`], and no other.
    pub(crate) fn release(&mut self) {
        match self.holds {
            0 => {}
            1 => self.resume(),
            _ => self.holds -= 1,
        }
    }

    /// Does the same as [`Door::pause`] for the reason that `status` gives, also to a machine that is paused.
    pub fn stop(&mut self, status: Status) {
        self.stand_still(status);
    }

    /// Tells the subscribers that `event` has happened, for which the machine stands still as in [`Door::stop`].
    pub fn stop_at(&mut self, event: &Event, status: Status) {
        // The status must change first: a subscriber may ask for it at once.
        self.shared.lock().status = status;
        self.tell(event);
        self.stop(status);
    }

    fn stand_still(&mut self, status: Status) {
        self.holds = 0;
        // The status must change first: a subscriber may ask for it at once.
        self.shared.lock().status = match (self.away, self.off) {
            (Some(NotHere::Moved), _) => Status::Moved,
            (Some(NotHere::WithoutDisks), _) => Status::WithoutDisks,
            (None, true) => Status::Off,
            (None, false) => status,
        };
        if self.paused.is_none() {
            self.paused = Some(Instant::now());
            self.tell(&Event::Paused);
        }
    }

    /// Pauses a machine that the guest has switched off. Only [`Door::switch_on`] ends this pause.
    pub fn switch_off(&mut self) {
        self.off = true;
        // The status must change first: a subscriber may ask for it at once.
        self.shared.lock().status = Status::Off;
        self.tell(&Event::Off);
        self.pause();
    }

    /// Notes that the machine was reset: from now on it is merely paused.
    pub fn switch_on(&mut self) {
        self.off = false;
        self.stand_still(Status::Paused);
    }

    /// Returns whether the machine is between [`Door::switch_off`] and [`Door::switch_on`].
    pub fn is_off(&self) -> bool {
        self.off
    }

    /// Notes that the machine is still to come from another process. It is paused then.
    pub fn expect_arrival(&mut self) {
        self.paused = Some(Instant::now());
        self.shared.lock().status = Status::Arriving;
    }

    /// Notes that the machine has arrived. It is still paused.
    pub fn arrive(&mut self) {
        self.shared.lock().status = Status::Paused;
        self.tell(&Event::Arrived);
    }

    /// Notes that the machine, which is paused, goes on in another process.
    pub fn move_away(&mut self) {
        self.away = Some(NotHere::Moved);
        self.stand_still(Status::Moved);
    }

    /// Notes that the machine has not moved, and waits for its disks.
    pub fn lack_disks(&mut self) {
        self.away = Some(NotHere::WithoutDisks);
        self.stand_still(Status::WithoutDisks);
    }

    /// Notes that the machine has not moved, and has its disks. It is paused, or off, as before.
    pub fn come_back(&mut self) {
        self.away = None;
        self.stand_still(Status::Paused);
    }

    /// Checks that the machine is whole here.
    pub(crate) fn check_is_here(&self) -> Result<(), NotHere> {
        self.away.map_or(Ok(()), Err)
    }

    /// Drops the sources for `device`, which is gone.
    pub(crate) fn drop_sources_of(&mut self, device: DeviceId) {
        self.shared.lock().attached.retain(|(of, _)| *of != device);
        self.sources.retain(|(of, _)| *of != device);
    }

    /// Drops all sources: nothing comes from them any more.
    pub(crate) fn drop_sources(&mut self) {
        self.shared.lock().attached.clear();
        self.sources.clear();
    }

    /// Lets host time continue, and tells the subscribers. Does nothing while the machine is off, or not whole
    /// here.
    pub fn resume(&mut self) {
        if self.off || self.away.is_some() {
            return;
        }
        self.holds = 0;
        if let Some(since) = self.paused.take() {
            self.opened += since.elapsed();
            self.shared.lock().status = Status::Running;
            self.tell(&Event::Resumed);
        }
    }

    /// Tells the subscribers that `event` has happened.
    pub fn tell(&mut self, event: &Event) {
        self.shared.lock().subscribers.retain(|subscriber| subscriber.tell(event));
    }

    /// Notes that the machine has ended, as `event` says: its requests fail, and nobody waits for it any
    /// more.
    pub fn end(&mut self, event: &Event) {
        self.tell(event);
        self.close();
    }

    fn close(&self) {
        let mut waiting = self.shared.lock();
        waiting.status = Status::Ended;
        waiting.requests.clear();
        waiting.subscribers.clear();
        waiting.attached.clear();
        self.shared.notify(&waiting);
    }

    /// Takes the requests to be answered. While a reset waits to be taken they wait too, so that whoever has
    /// sent it sees the machine after it.
    pub fn take_requests(&mut self) -> Vec<Request> {
        let mut waiting = self.shared.lock();
        if waiting.reset { Vec::new() } else { std::mem::take(&mut waiting.requests) }
    }

    /// Returns whether [`Door::take_requests`] would return any.
    pub fn has_requests(&self) -> bool {
        !self.shared.lock().requests.is_empty()
    }

    /// Lets in what has come at the sources, as far as there is room. [`Door::wait`] does so, too.
    pub fn fetch(&mut self) {
        self.sources.append(&mut self.shared.lock().attached);
        let shared = &self.shared;
        self.sources.retain_mut(|(device, source)| {
            let room = shared.lock().room_for(Some(*device));
            for _ in 0..room {
                match source.fetch() {
                    Fetched::Input(input) => {
                        let input = Input::Device { device: *device, input };
                        shared.lock().inputs.push_back(input);
                    }
                    Fetched::Nothing => break,
                    Fetched::Ended => return false,
                }
            }
            true
        });
    }

    /// Takes the next input that `accepts` says can be taken now, which depends only on its device. Inputs
    /// for one device stay in their order; those for another device do not wait for them.
    pub fn take(&mut self, accepts: impl Fn(&Input) -> bool) -> Option<Input> {
        let mut waiting = self.shared.lock();
        if std::mem::take(&mut waiting.quit) {
            return Some(Input::Quit);
        }
        if std::mem::take(&mut waiting.reset) {
            return Some(Input::Reset);
        }
        let next = waiting.inputs.iter().position(accepts)?;
        self.shared.notify(&waiting);
        waiting.inputs.remove(next)
    }

    /// Waits for an input that `accepts`, and takes it. The input must be certain to come.
    pub(crate) fn wait_for(&mut self, accepts: impl Fn(&Input) -> bool) -> Input {
        let mut waiting = self.shared.lock();
        loop {
            let next = waiting.inputs.iter().position(&accepts);
            if let Some(input) = next.and_then(|next| waiting.inputs.remove(next)) {
                self.shared.notify(&waiting);
                return input;
            }
            waiting = self.shared.sleep(waiting, None);
        }
    }

    /// Puts inputs at the door before the machine runs. In a deterministic run the machine takes each as soon
    /// as its device can, however the host's threads run.
    pub fn put_script(&mut self, inputs: impl Iterator<Item = Input> + Send + 'static) {
        self.script = Script::new(inputs);
    }

    /// Takes the next input of [`Door::put_script`], if `accepts` says that it can be taken now.
    pub fn take_scripted(&mut self, accepts: impl FnOnce(&Input) -> bool) -> Option<Input> {
        self.script.0.next_if(accepts)
    }

    /// Returns whether [`Door::take_scripted`] would return an input.
    pub fn has_scripted(&mut self, accepts: impl FnOnce(&Input) -> bool) -> bool {
        self.script.0.peek().is_some_and(accepts)
    }

    /// Returns whether [`Door::take`] would return an input.
    pub fn has_input(&self, accepts: impl Fn(&Input) -> bool) -> bool {
        let waiting = self.shared.lock();
        waiting.quit || waiting.reset || waiting.inputs.iter().any(accepts)
    }

    /// Sleeps until [`Door::take`] or [`Door::take_requests`] would return something, or until host time
    /// `until`, if it is given.
    pub fn wait(&mut self, until: Option<Time>, accepts: impl Fn(&Input) -> bool) {
        self.wait_with(until, &NoOtherSources, accepts);
    }

    /// Sleeps as [`Door::wait`] does, but also until `others` have something.
    pub(crate) fn wait_with(
        &mut self,
        until: Option<Time>,
        others: &dyn OtherSources,
        accepts: impl Fn(&Input) -> bool,
    ) {
        let left = until.map(|until| until.nanos_since(self.host_time()));
        if left.is_some_and(|left| left < SHORTEST_SLEEP_NANOS) {
            while !self.has_news(until, others, &accepts) {
                hint::spin_loop();
            }
            return;
        }
        if self.look(until, others, &accepts) {
            return;
        }
        let slept = Instant::now();
        if self.sleep(until, others, accepts) {
            self.polling.slept(slept.elapsed());
        } else {
            self.polling.slept_in_vain();
        }
    }

    /// Polls for as long as it pays. Returns whether there is something.
    fn look(
        &mut self,
        until: Option<Time>,
        others: &dyn OtherSources,
        accepts: impl Fn(&Input) -> bool,
    ) -> bool {
        let mut polling = self.polling;
        let found = polling.wait(|| self.has_news(until, others, &accepts));
        self.polling = polling;
        found
    }

    /// Returns whether there is something, or `until` has come.
    fn has_news(
        &mut self,
        until: Option<Time>,
        others: &dyn OtherSources,
        accepts: &impl Fn(&Input) -> bool,
    ) -> bool {
        self.fetch();
        others.have_news()
            || self.shared.lock().wakes(accepts)
            || until.is_some_and(|until| until <= self.host_time())
    }

    /// See [`Door::wait`]. Returns whether it has slept until there was something.
    fn sleep(
        &mut self,
        until: Option<Time>,
        others: &dyn OtherSources,
        accepts: impl Fn(&Input) -> bool,
    ) -> bool {
        loop {
            // Only a source that has returned nothing can be waited for.
            self.fetch();
            let Some(mut descriptors) = others.arm() else { return true };
            let mut waiting = self.shared.lock();
            if waiting.wakes(&accepts) {
                return true;
            }
            let mut left =
                until.map(|until| Duration::from_nanos(until.nanos_since(self.host_time())));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            let sources = self.sources.iter();
            let sources = sources.filter(|(device, _)| waiting.room_for(Some(*device)) > 0);
            descriptors.extend(sources.map(|(_, source)| source.descriptor()));
            if !waiting.attached.is_empty() {
                continue;
            }
            let has_others = !descriptors.is_empty();
            if has_others && waiting.bell.is_none() {
                waiting.bell = Bell::new().ok();
            }
            match waiting.bell.clone() {
                Some(bell) if has_others => {
                    waiting.sleeps = true;
                    drop(waiting);
                    bell.sleep(&descriptors, left);
                    self.shared.lock().sleeps = false;
                }
                _ => {
                    if has_others {
                        // The host has no descriptor for it.
                        left = Some(left.unwrap_or(Duration::MAX).min(BETWEEN_LOOKS));
                    }
                    drop(self.shared.sleep(waiting, left));
                }
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close();
    }
}
