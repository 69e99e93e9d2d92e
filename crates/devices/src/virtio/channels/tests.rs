//! A driver with the queues of two channels.

use proptest::prelude::*;
use ring3_core::device::TestBench;

use super::super::driver::{BUFFERS, Buffer, Ring};
use super::super::queue::{Areas, Queue};
use super::*;

const RING_SIZE: u16 = 16;
/// Where the driver receives.
const ROOM: u64 = 0x8_0000;

struct Machine {
    bench: TestBench,
    channels: Channels,
    queues: Vec<Queue>,
    rings: Vec<Ring>,
}

fn model(names: &[&str]) -> ChannelsModel {
    ChannelsModel { names: names.iter().map(ToString::to_string).collect() }
}

impl Machine {
    fn new() -> Machine {
        let bench = TestBench::default();
        let channels = Channels::new(model(&["one", "two"]));
        let count = channels.queue_sizes().len() as u64;
        assert_eq!(count, 8);
        let ring = |index| {
            let start = 0x1000 + 0x1000 * index;
            let (available, used) = (start + 0x400, start + 0x800);
            Ring::at(Areas { descriptors: start, available, used }, RING_SIZE)
        };
        let rings: Vec<_> = (0..count).map(ring).collect();
        let queues = rings.iter().map(|ring| ring.queue(&bench.memory, false, false)).collect();
        Machine { bench, channels, queues, rings }
    }

    /// A machine whose driver has both channels open.
    fn open() -> Machine {
        let mut machine = Machine::new();
        machine.control(0, control::DEVICE_READY, 1);
        for port in [1, 2] {
            machine.control(port, control::PORT_READY, 1);
            machine.control(port, control::PORT_OPEN, 1);
        }
        machine
    }

    fn work(&mut self, work: impl FnOnce(&mut Channels, &mut Work<'_, '_>)) {
        let (context, queues) = (&mut self.bench.context(), &mut self.queues[..]);
        let features = features::MULTIPORT;
        let mut all = Work { context, queues, features, config_changed: false };
        work(&mut self.channels, &mut all);
    }

    fn input(&mut self, channel: u8, event: ChannelEvent) {
        self.work(|channels, work| channels.input(work, DeviceInput::Channel { channel, event }));
    }

    /// Makes a chain available in a queue and notifies. True if it came back at once.
    fn send(&mut self, queue: u16, buffers: &[Buffer]) -> bool {
        self.rings[usize::from(queue)].add(&mut self.bench, buffers);
        self.work(|channels, work| channels.notify(work, queue));
        self.used(queue).is_some()
    }

    fn used(&mut self, queue: u16) -> Option<u32> {
        let ring = &mut self.rings[usize::from(queue)];
        ring.used(&self.bench.memory).map(|(_, written)| written)
    }

    fn control(&mut self, port: u32, event: u16, value: u16) {
        let mut bytes = port.to_le_bytes().to_vec();
        bytes.extend([event, value].map(u16::to_le_bytes).as_flattened());
        self.bench.memory.write(BUFFERS, &bytes);
        assert!(self.send(queues::FROM_DRIVER, &[(BUFFERS, bytes.len() as u32, false)]));
    }

    /// Offers the driver's room for one control message. Returns the message, if there is one.
    fn told(&mut self) -> Option<Vec<u8>> {
        self.rings[usize::from(queues::TO_DRIVER)].add(&mut self.bench, &[(ROOM, 64, true)]);
        self.work(|channels, work| channels.notify(work, queues::TO_DRIVER));
        let len = self.used(queues::TO_DRIVER)?;
        let mut bytes = vec![0; len as usize];
        self.bench.memory.read(ROOM, &mut bytes);
        Some(bytes)
    }

    fn outputs(&mut self) -> Vec<(u8, ChannelEvent)> {
        let outputs = std::mem::take(&mut self.bench.outputs).into_iter();
        let event = |output| match output {
            Output::Channel { channel, event } => (channel, event),
            other => panic!("{other:?}"),
        };
        outputs.map(event).collect()
    }
}

fn message(port: u32, event: u16, value: u16, rest: &str) -> Vec<u8> {
    let mut bytes = port.to_le_bytes().to_vec();
    bytes.extend([event, value].map(u16::to_le_bytes).as_flattened());
    bytes.extend(rest.bytes());
    bytes
}

#[test]
fn the_driver_learns_which_channels_there_are() {
    let mut machine = Machine::new();
    assert_eq!(machine.channels.config()[4..8], 3_u32.to_le_bytes());
    machine.control(0, control::DEVICE_READY, 1);
    assert_eq!(machine.told(), Some(message(1, control::DEVICE_ADD, 1, "")));
    assert_eq!(machine.told(), Some(message(2, control::DEVICE_ADD, 1, "")));
    machine.input(1, ChannelEvent::Opened);
    machine.control(2, control::PORT_READY, 1);
    assert_eq!(machine.told(), Some(message(2, control::PORT_NAME, 1, "two")));
    assert_eq!(machine.told(), Some(message(2, control::PORT_OPEN, 1, "")));
    assert_eq!(machine.told(), None);
    machine.input(1, ChannelEvent::Closed);
    // There was room for it already.
    assert_eq!(machine.used(queues::TO_DRIVER), Some(8));
}

#[test]
fn bytes_pass_in_both_directions_while_programs_are_there() {
    let mut machine = Machine::new();
    machine.bench.memory.write(BUFFERS, b"hello");
    let hello: &[Buffer] = &[(BUFFERS, 2, false), (BUFFERS + 2, 3, false)];
    assert!(machine.send(5, hello), "nobody is there, so it is lost");
    machine.input(0, ChannelEvent::Opened);
    assert!(machine.send(5, hello));
    let sent = [ChannelEvent::Heard, ChannelEvent::Bytes(b"hello".to_vec())];
    assert_eq!(machine.outputs(), sent.map(|event| (0, event)));

    machine.input(0, ChannelEvent::Bytes(b"good day".to_vec()));
    assert!(!machine.send(4, &[(ROOM, 3, true)]), "no program has opened it");
    machine.control(1, control::PORT_OPEN, 1);
    assert_eq!(machine.used(4), Some(3));
    assert!(machine.send(4, &[(ROOM + 3, 100, true)]));
    let mut bytes = [0; 8];
    machine.bench.memory.read(ROOM, &mut bytes);
    assert_eq!(&bytes, b"good day");
    let taken = [ChannelEvent::Opened, ChannelEvent::Taken(3), ChannelEvent::Taken(5)];
    assert_eq!(machine.outputs(), taken.map(|event| (0, event)));
    machine.work(DeviceType::reset);
    assert_eq!(machine.outputs(), [(0, ChannelEvent::Closed)]);
}

#[test]
fn more_than_the_window_waits_for_those_outside() {
    let mut machine = Machine::open();
    machine.input(0, ChannelEvent::Opened);
    machine.outputs();
    let len = 2 * WINDOW as u32 + 5;
    machine.bench.memory.write(BUFFERS, &vec![7; len as usize]);
    assert!(!machine.send(5, &[(BUFFERS, len, false)]));
    assert!(!machine.send(5, &[(BUFFERS, 1, false)]));
    let saved = machine.channels.save();
    machine.channels = Channels::new(model(&["one", "two"]));
    machine.channels.restore(&saved).unwrap();
    let mut total = 0;
    for taken in [WINDOW, 1000, WINDOW - 1000, WINDOW] {
        machine.input(0, ChannelEvent::Taken(taken as u32));
        for (channel, event) in machine.outputs() {
            let ChannelEvent::Bytes(bytes) = event else { panic!("{event:?}") };
            assert_eq!(channel, 0);
            assert!(bytes.len() <= WINDOW && bytes.iter().all(|byte| *byte == 7));
            total += bytes.len();
        }
    }
    assert_eq!(total, len as usize + 1);
    assert_eq!([machine.used(5), machine.used(5)], [Some(0), Some(0)]);
    // Whoever goes away holds nobody up.
    assert!(!machine.send(5, &[(BUFFERS, len, false)]));
    machine.input(0, ChannelEvent::Closed);
    assert_eq!(machine.used(5), Some(0));
}

#[test]
fn bad_names_are_refused() {
    assert_eq!(model(&["org.qemu.guest_agent.0", "a"]).check(), Ok(()));
    for bad in ["", "a b", "a/b", "é", &"x".repeat(NAME_MAX + 1)] {
        assert_eq!(model(&[bad]).check(), Err(BadChannels::BadName(bad.to_owned())));
    }
    assert_eq!(model(&["a", "a"]).check(), Err(BadChannels::Twice("a".to_owned())));
    let many: Vec<_> = (0..=CHANNELS_MAX).map(|number| number.to_string()).collect();
    assert_eq!(ChannelsModel { names: many }.check(), Err(BadChannels::TooMany));
}

#[test]
fn states_that_cannot_be_are_refused() {
    let mut channels = Channels::new(model(&["one"]));
    let possible = channels.state.clone();
    let with = |change: fn(&mut State)| {
        let mut state = possible.clone();
        change(&mut state);
        SavedState::new(DeviceId::CHANNELS.name(), VERSION, &state)
    };
    for damaged in [
        with(|state| state.channels.clear()),
        with(|state| state.channels[0].waiting = vec![0; WAITING_MAX + 1]),
        with(|state| state.channels[0].sent = WINDOW as u32 + 1),
        with(|state| state.controls.push_back(Control { port: 2, event: 7, value: 0 })),
        with(|state| state.controls.push_back(Control { port: 0, event: 7, value: 0 })),
    ] {
        assert!(channels.restore(&damaged).is_err());
    }
    channels.restore(&with(|_| {})).unwrap();
}

proptest! {
    /// Whatever the driver and those outside do, all stays within its bounds.
    #[test]
    fn nothing_grows_without_an_end(
        steps in proptest::collection::vec((0_u8..6, any::<u32>(), any::<u16>(), any::<u16>()), 1..60),
    ) {
        let mut machine = Machine::open();
        for (kind, number, event, value) in steps {
            let channel = (number % 3) as u8;
            match kind {
                0 => machine.control(number % 4, event % 9, value % 3),
                1 => machine.input(channel, ChannelEvent::Opened),
                2 => machine.input(channel, ChannelEvent::Closed),
                3 => machine.input(channel, ChannelEvent::Bytes(vec![1; usize::from(value)])),
                4 => machine.input(channel, ChannelEvent::Taken(number)),
                _ => {
                    let queue = event % 8;
                    let is_written = queue.is_multiple_of(2);
                    let len = u32::from(value) * 4;
                    machine.send(queue, &[(u64::from(number), len, is_written)]);
                    machine.used(queue);
                }
            }
            let state = &machine.channels.state;
            prop_assert!(state.controls.len() <= 3 * state.channels.len());
            for channel in &state.channels {
                prop_assert!(channel.waiting.len() <= WAITING_MAX && channel.sent as usize <= WINDOW);
            }
            machine.outputs();
            let saved = machine.channels.save();
            machine.channels.restore(&saved).unwrap();
        }
    }
}
