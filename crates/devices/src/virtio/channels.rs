//! Channels: the ports of a console device (virtio 1.2, 5.3), as QEMU's `virtserialport`s.
//!
//! Port 0 is left to consoles, which there are none of here, so that a driver of one port only finds nothing; channel 0 is port 1.
//! The driver and the device tell each other by control messages (5.3.6.2) which ports there are, and at which ends of them a program is.
//! Both directions have a [`WINDOW`]: of a chain that is longer than that the rest is read later.

use std::collections::VecDeque;

use ring3_core::channel::{CHANNELS_MAX, ChannelEvent, ChannelStatus, NAME_MAX, WINDOW};
use ring3_core::device::{DeviceId, Output};
use ring3_core::input::DeviceInput;
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::queue::{Chain, Segment};
use super::segments::{len, scatter, take_front};
use super::{DeviceType, Work};

/// Device ID (5.3.1).
const ID: u16 = 3;
/// A communication device of another kind, as QEMU's.
const CLASS: u32 = 0x07_8000;

/// Descriptors of a queue.
const SIZE: u16 = 128;

/// Features (5.3.3).
mod features {
    pub(super) const MULTIPORT: u64 = 1 << 1;
}

/// Numbers of the queues (5.3.2). The driver receives from even ones.
mod queues {
    pub(super) const TO_DRIVER: u16 = 2;
    pub(super) const FROM_DRIVER: u16 = 3;
    pub(super) const FIRST_CHANNEL: u16 = 4;
}

/// The events of control messages (5.3.6.2).
mod control {
    pub(super) const DEVICE_READY: u16 = 0;
    pub(super) const DEVICE_ADD: u16 = 1;
    pub(super) const PORT_READY: u16 = 3;
    pub(super) const PORT_OPEN: u16 = 6;
    pub(super) const PORT_NAME: u16 = 7;
    /// Bytes of `struct virtio_console_control`: port, event and value.
    pub(super) const LEN: usize = 8;
}

/// Upper bound of the bytes that wait for the driver.
const WAITING_MAX: usize = 2 * WINDOW;

const VERSION: u32 = 1;

/// The names of a machine's channels, by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelsModel {
    /// The names, up to [`CHANNELS_MAX`] different ones.
    pub names: Vec<String>,
}

/// Why channels cannot have these names.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadChannels {
    /// There are too many.
    #[error("a machine has at most {CHANNELS_MAX} channels")]
    TooMany,
    /// A name is empty, too long, or has characters that no name of a file has.
    #[error(
        "a channel's name has 1 to {NAME_MAX} letters, digits and characters of \"._-+:@\", unlike {0:?}"
    )]
    BadName(String),
    /// Two have the same name.
    #[error("two channels have the name {0}")]
    Twice(String),
}

impl ChannelsModel {
    /// Fails where the device cannot be so.
    pub fn check(&self) -> Result<(), BadChannels> {
        if self.names.len() > CHANNELS_MAX {
            return Err(BadChannels::TooMany);
        }
        for (index, name) in self.names.iter().enumerate() {
            let is_known = |c: char| c.is_ascii_alphanumeric() || "._-+:@".contains(c);
            if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_known) {
                return Err(BadChannels::BadName(name.clone()));
            }
            if self.names[..index].contains(name) {
                return Err(BadChannels::Twice(name.clone()));
            }
        }
        Ok(())
    }
}

/// A chain of which not all was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    head: u16,
    /// What is left of it.
    rest: Vec<Segment>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Channel {
    /// A program in the guest has it open.
    is_open: bool,
    /// A program outside is there.
    is_connected: bool,
    /// Bytes from outside that the driver had no room for.
    #[serde(with = "serde_bytes")]
    waiting: Vec<u8>,
    /// How many bytes were sent that those outside have not taken.
    sent: u32,
    held: Option<Held>,
}

/// A control message to the driver, but for the bytes behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Control {
    port: u32,
    event: u16,
    value: u16,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    channels: Vec<Channel>,
    /// Control messages that the driver had no room for: one for each event and port at most.
    controls: VecDeque<Control>,
}

/// The device type of all channels of a machine.
#[derive(Debug)]
pub struct Channels {
    model: ChannelsModel,
    state: State,
}

/// The queue by which the driver receives from a channel; behind it is that by which it sends.
fn queue_of(channel: usize) -> u16 {
    queues::FIRST_CHANNEL + 2 * channel as u16
}

fn output(work: &mut Work<'_, '_>, channel: usize, event: ChannelEvent) {
    work.context.output(Output::Channel { channel: channel as u8, event });
}

impl Channels {
    /// The device type of `model`, which must be [right](ChannelsModel::check).
    pub fn new(model: ChannelsModel) -> Channels {
        let channels = vec![Channel::default(); model.names.len()];
        Channels { model, state: State { channels, ..State::default() } }
    }

    /// Sends the driver a control message, now or when it has room.
    fn tell(&mut self, channel: usize, event: u16, value: u16) {
        let message = Control { port: channel as u32 + 1, event, value };
        // A newer one says what is true now.
        let is_older = |other: &Control| (other.port, other.event) == (message.port, event);
        self.state.controls.retain(|other| !is_older(other));
        self.state.controls.push_back(message);
    }

    fn send_controls(&mut self, work: &mut Work<'_, '_>) {
        if work.features & features::MULTIPORT == 0 {
            self.state.controls.clear();
        }
        while let Some(Control { port, event, value }) = self.state.controls.front().copied() {
            let queue = &mut work.queues[usize::from(queues::TO_DRIVER)];
            let Some(chain) = queue.pop(work.context.memory) else { return };
            self.state.controls.pop_front();
            let mut bytes = port.to_le_bytes().to_vec();
            bytes.extend([event, value].map(u16::to_le_bytes).as_flattened());
            if event == control::PORT_NAME {
                bytes.extend(self.model.names[port as usize - 1].bytes());
            }
            let written = scatter(work.context.memory, &chain.writable, &bytes);
            queue.push(work.context.memory, chain.head, written);
        }
    }

    /// The driver sends control messages.
    fn hear_controls(&mut self, work: &mut Work<'_, '_>) {
        let size = work.queues[usize::from(queues::FROM_DRIVER)].size();
        // A driver cannot have more than that in it: without an end what is written there could feed it.
        for _ in 0..size {
            let queue = &mut work.queues[usize::from(queues::FROM_DRIVER)];
            let Some(Chain { head, mut readable, .. }) = queue.pop(work.context.memory) else {
                break;
            };
            let mut bytes = [0; control::LEN];
            let is_whole = take_front(work.context.memory, &mut readable, &mut bytes);
            queue.push(work.context.memory, head, 0);
            if is_whole && work.features & features::MULTIPORT != 0 {
                let [p0, p1, p2, p3, e0, e1, v0, v1] = bytes;
                let port = u32::from_le_bytes([p0, p1, p2, p3]);
                let (event, value) = (u16::from_le_bytes([e0, e1]), u16::from_le_bytes([v0, v1]));
                self.hear(work, Control { port, event, value });
            }
        }
        self.send_controls(work);
    }

    fn hear(&mut self, work: &mut Work<'_, '_>, message: Control) {
        let Control { port, event, value } = message;
        if event == control::DEVICE_READY {
            for channel in 0..self.state.channels.len() {
                if value == 1 {
                    self.tell(channel, control::DEVICE_ADD, 1);
                }
            }
            return;
        }
        let index = (port as usize).wrapping_sub(1);
        let Some(channel) = self.state.channels.get_mut(index) else { return };
        match event {
            control::PORT_READY if value == 1 => {
                let is_connected = channel.is_connected;
                self.tell(index, control::PORT_NAME, 1);
                self.tell(index, control::PORT_OPEN, is_connected.into());
            }
            control::PORT_OPEN => {
                let is_open = value != 0;
                if std::mem::replace(&mut channel.is_open, is_open) != is_open {
                    let event = if is_open { ChannelEvent::Opened } else { ChannelEvent::Closed };
                    output(work, index, event);
                }
                self.deliver(work, index);
            }
            _ => {}
        }
    }

    /// Gives the driver what has come from outside, as far as it has room, while a program is there.
    fn deliver(&mut self, work: &mut Work<'_, '_>, index: usize) {
        let channel = &mut self.state.channels[index];
        let queue = &mut work.queues[usize::from(queue_of(index))];
        let mut taken = 0;
        for _ in 0..queue.size() {
            if !channel.is_open || taken == channel.waiting.len() {
                break;
            }
            let Some(chain) = queue.pop(work.context.memory) else { break };
            let bytes = &channel.waiting[taken..];
            let written = scatter(work.context.memory, &chain.writable, bytes);
            queue.push(work.context.memory, chain.head, written);
            taken += written as usize;
        }
        if taken > 0 {
            channel.waiting.drain(..taken);
            output(work, index, ChannelEvent::Taken(taken as u32));
        }
    }

    /// Takes what the driver sends, as far as those outside have room. It is lost if nobody is there.
    fn send(&mut self, work: &mut Work<'_, '_>, index: usize) {
        let Channel { is_connected, sent, held, .. } = &mut self.state.channels[index];
        let number = usize::from(queue_of(index) + 1);
        for _ in 0..work.queues[number].size() {
            let room = WINDOW - *sent as usize;
            if *is_connected && room == 0 {
                break;
            }
            let queue = &mut work.queues[number];
            let next = held.take().or_else(|| {
                let Chain { head, readable, .. } = queue.pop(work.context.memory)?;
                Some(Held { head, rest: readable })
            });
            let Some(Held { head, mut rest }) = next else { break };
            if *is_connected {
                let count = len(&rest).min(room as u64) as usize;
                let mut bytes = vec![0; count];
                take_front(work.context.memory, &mut rest, &mut bytes);
                if count > 0 {
                    *sent += count as u32;
                    output(work, index, ChannelEvent::Bytes(bytes));
                }
                if !rest.is_empty() {
                    *held = Some(Held { head, rest });
                    break;
                }
            }
            work.queues[number].push(work.context.memory, head, 0);
        }
    }
}

impl DeviceType for Channels {
    fn device(&self) -> DeviceId {
        DeviceId::CHANNELS
    }

    fn id(&self) -> u16 {
        ID
    }

    fn class(&self) -> u32 {
        CLASS
    }

    fn features(&self) -> u64 {
        features::MULTIPORT
    }

    fn queue_sizes(&self) -> Vec<u16> {
        vec![SIZE; usize::from(queue_of(self.model.names.len()))]
    }

    /// `struct virtio_console_config` (5.3.4): `cols`, `rows`, `max_nr_ports`, `emerg_wr`.
    fn config(&self) -> Vec<u8> {
        [0, self.model.names.len() as u32 + 1, 0].map(u32::to_le_bytes).as_flattened().to_vec()
    }

    fn notify(&mut self, work: &mut Work<'_, '_>, queue: u16) {
        match queue {
            queues::TO_DRIVER => self.send_controls(work),
            queues::FROM_DRIVER => self.hear_controls(work),
            queues::FIRST_CHANNEL.. => {
                let index = usize::from((queue - queues::FIRST_CHANNEL) / 2);
                if queue.is_multiple_of(2) {
                    self.deliver(work, index);
                } else {
                    self.send(work, index);
                }
            }
            // There is no port 0.
            _ => {}
        }
    }

    fn input(&mut self, work: &mut Work<'_, '_>, input: DeviceInput) {
        let DeviceInput::Channel { channel, event } = input else { return };
        let index = usize::from(channel);
        let Some(channel) = self.state.channels.get_mut(index) else { return };
        match event {
            ChannelEvent::Opened | ChannelEvent::Closed => {
                channel.is_connected = event == ChannelEvent::Opened;
                let value = channel.is_connected.into();
                if event == ChannelEvent::Opened {
                    output(work, index, ChannelEvent::Heard);
                }
                self.tell(index, control::PORT_OPEN, value);
                self.send_controls(work);
                self.send(work, index);
            }
            ChannelEvent::Bytes(bytes) => {
                // Whoever sends keeps to the window, which is a new one where a saved machine has taken the place of this.
                let room = WAITING_MAX - channel.waiting.len();
                channel.waiting.extend(bytes.into_iter().take(room));
                self.deliver(work, index);
            }
            ChannelEvent::Taken(count) => {
                channel.sent = channel.sent.saturating_sub(count);
                self.send(work, index);
            }
            // Only the guest's end says that.
            ChannelEvent::Heard => {}
        }
    }

    /// No program in the guest has a channel open. What others do outside stays.
    fn reset(&mut self, work: &mut Work<'_, '_>) {
        self.state.controls.clear();
        for (index, channel) in self.state.channels.iter_mut().enumerate() {
            channel.held = None;
            if std::mem::take(&mut channel.is_open) {
                output(work, index, ChannelEvent::Closed);
            }
        }
    }

    fn channels(&self) -> Vec<ChannelStatus> {
        let named = self.model.names.iter().zip(&self.state.channels);
        let status = |(name, channel): (&String, &Channel)| ChannelStatus {
            name: name.clone(),
            is_open: channel.is_open,
            is_connected: channel.is_connected,
            waiting: channel.waiting.len(),
            sent: channel.sent,
        };
        named.map(status).collect()
    }

    fn save(&self) -> SavedState {
        SavedState::new(DeviceId::CHANNELS.name(), VERSION, &self.state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(DeviceId::CHANNELS.name(), VERSION)?;
        let count = self.model.names.len();
        let is_possible = |channel: &Channel| {
            channel.waiting.len() <= WAITING_MAX && channel.sent as usize <= WINDOW
        };
        let is_known = |message: &Control| (1..=count).contains(&(message.port as usize));
        if state.channels.len() != count
            || !state.channels.iter().all(is_possible)
            || !state.controls.iter().all(is_known)
        {
            return Err(saved.damaged("a channel cannot be in this state"));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
