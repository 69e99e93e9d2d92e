//! A driver with the queues of a balloon.

use proptest::prelude::*;
use ring3_core::clock::Time;
use ring3_core::device::TestBench;
use ring3_core::memory::Backing;

use super::super::driver::{BUFFERS, Buffer, Ring};
use super::super::queue::{Areas, Queue};
use super::*;

const RING_SIZE: u16 = 64;
/// The pages from here on are not the driver's own.
const FREE: u32 = 0x40;

struct Machine {
    bench: TestBench,
    balloon: Balloon,
    queues: Vec<Queue>,
    rings: Vec<Ring>,
    features: u64,
}

impl Machine {
    fn new() -> Machine {
        let mut bench = TestBench::default();
        bench.memory.change_contents(|bytes| bytes[0x4_0000..].fill(7));
        let model = BalloonModel { deflate_on_oom: true, free_page_reporting: true };
        let balloon = Balloon::new(model);
        let rings: Vec<_> = (0..5)
            .map(|index| {
                let start = 0x1000 + 0x1000 * index;
                let (available, used) = (start + 0x400, start + 0x800);
                Ring::at(Areas { descriptors: start, available, used }, RING_SIZE)
            })
            .collect();
        let queues = rings.iter().map(|ring| ring.queue(&bench.memory, false, false)).collect();
        let features = balloon.features();
        Machine { bench, balloon, queues, rings, features }
    }

    fn work(&mut self, work: impl FnOnce(&mut Balloon, &mut Work<'_, '_>)) -> bool {
        let (context, queues) = (&mut self.bench.context(), &mut self.queues[..]);
        let mut all = Work { context, queues, features: self.features, config_changed: false };
        work(&mut self.balloon, &mut all);
        all.config_changed
    }

    fn ask(&mut self, request: BalloonRequest) -> bool {
        self.work(|balloon, work| balloon.input(work, DeviceInput::Balloon(request)))
    }

    /// Makes a chain available in a queue and notifies. True if it came back at once.
    fn send(&mut self, queue: u16, buffers: &[Buffer]) -> bool {
        let ring = &mut self.rings[usize::from(queue)];
        ring.add(&mut self.bench, buffers);
        self.work(|balloon, work| balloon.notify(work, queue));
        self.is_back(queue)
    }

    fn is_back(&mut self, queue: u16) -> bool {
        self.rings[usize::from(queue)].used(&self.bench.memory).is_some()
    }

    fn inflate(&mut self, pages: &[u32]) -> bool {
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
        self.bench.memory.write(BUFFERS, &bytes);
        self.send(queues::INFLATE, &[(BUFFERS, bytes.len() as u32, false)])
    }

    fn give_statistics(&mut self, statistics: &[(u16, u64)]) -> bool {
        let bytes = |(tag, value): &(u16, u64)| {
            tag.to_le_bytes().into_iter().chain(value.to_le_bytes()).collect::<Vec<u8>>()
        };
        let bytes: Vec<u8> = statistics.iter().flat_map(bytes).collect();
        self.bench.memory.write(BUFFERS, &bytes);
        self.send(queues::STATISTICS, &[(BUFFERS, bytes.len() as u32, false)])
    }

    /// Fires the timer if it is due.
    fn pass(&mut self, seconds: u64) {
        self.bench.now = self.bench.now.plus_nanos(seconds * NANOS_PER_SECOND);
        while let Some((_, tag)) = self.bench.timers.take_due(self.bench.now) {
            self.work(|balloon, work| balloon.timer(work, tag));
        }
    }

    fn status(&self) -> BalloonStatus {
        self.balloon.balloon().unwrap()
    }

    /// The pages of zeros among those that are not the driver's.
    fn zeros(&self) -> Vec<u32> {
        let pages = self.bench.memory.contents().chunks(4096).enumerate().skip(FREE as usize);
        let zeros = pages.filter(|(_, page)| page.iter().all(|byte| *byte == 0));
        zeros.map(|(number, _)| number as u32).collect()
    }
}

#[test]
fn pages_in_the_balloon_are_zero_and_cost_one_request_a_run() {
    let mut machine = Machine::new();
    machine.bench.memory.mark_code(0x5_1000, 4);
    assert!(machine.inflate(&[0x51, 0x50, 0x60, 0x52, 0x50]));
    assert_eq!(machine.zeros(), [0x50, 0x51, 0x52, 0x60]);
    assert_eq!((machine.status().released, machine.status().runs), (4, 2));
    assert_eq!(machine.bench.memory.take_stale_code(), [0x51]);
    // The guest may use them again, whether or not it says so.
    machine.bench.memory.write(0x5_0000, &[1; 0x1000]);
    assert!(machine.send(queues::DEFLATE, &[(BUFFERS, 12, false)]));
    assert_eq!(machine.zeros(), [0x51, 0x52, 0x60]);
}

#[test]
fn numbers_that_are_no_ram_are_ignored() {
    let mut machine = Machine::new();
    let memory = &mut machine.bench.memory;
    memory.map(0x4_1000, 0x1000, Backing::Ram, Backing::Nothing).unwrap();
    memory.map(0x4_2000, 0x1000, Backing::Device, Backing::Device).unwrap();
    assert!(machine.inflate(&[0x100, u32::MAX, 0xf_ffff, 0x10_0000, 0x41, 0x42]));
    assert!(machine.zeros().is_empty());
    assert_eq!(machine.status().released, 0);
}

#[test]
fn numbers_may_be_cut_and_a_rest_is_left_out() {
    let mut machine = Machine::new();
    machine.bench.memory.write(BUFFERS, &[0x44, 0, 0, 0, 0x45, 0, 0, 0, 0x46, 0, 0]);
    let buffers = [(BUFFERS, 3, false), (BUFFERS + 3, 8, false)];
    assert!(machine.send(queues::INFLATE, &buffers));
    assert_eq!(machine.zeros(), [0x44, 0x45]);
}

#[test]
fn a_notification_takes_a_bounded_number_of_pages() {
    let mut machine = Machine::new();
    let memory = &mut machine.bench.memory;
    memory.write(BUFFERS, &0x50_u32.to_le_bytes().repeat(0x1000));
    memory.write(BUFFERS + 0x4000, &0x51_u32.to_le_bytes());
    let ring = &mut machine.rings[0];
    for _ in 0..PAGES_MAX / 0x1000 {
        ring.add(&mut machine.bench, &[(BUFFERS, 0x4000, false)]);
    }
    assert!(machine.send(queues::INFLATE, &[(BUFFERS + 0x4000, 4, false)]));
    assert_eq!(machine.zeros(), [0x50], "one too many is left alone");
    // All came back nevertheless.
    let others = PAGES_MAX / 0x1000;
    assert_eq!((0..100).take_while(|_| machine.is_back(queues::INFLATE)).count(), others);
}

#[test]
fn reported_pages_are_zero_where_they_are_whole() {
    for queue in queues::REPORTS {
        let mut machine = Machine::new();
        let buffers = [(0x4_0800, 0x2800, true), (0x5_0000, 0x8000, true), (0x6_0000, 0xfff, true)];
        assert!(machine.send(queue, &buffers));
        let expected: Vec<u32> = [0x41, 0x42].into_iter().chain(0x50..0x58).collect();
        assert_eq!(machine.zeros(), expected);
        assert_eq!(machine.status().runs, 2);
        assert!(machine.send(queue, &[(u64::MAX - 1, 0x2000, true), (0, 0x1000, true)]));
    }
}

/// A kernel that fills its free pages with a pattern finds it there again.
#[test]
fn reported_pages_with_a_pattern_are_left_alone() {
    let mut machine = Machine::new();
    for (offset, byte) in POISON.zip([0xaa; 4]) {
        machine.work(|balloon, work| balloon.write_config(work, offset, byte));
    }
    assert_eq!(machine.balloon.config()[POISON], [0xaa; 4]);
    assert!(machine.send(3, &[(0x5_0000, 0x8000, true)]));
    assert!(machine.zeros().is_empty());
}

#[test]
fn the_driver_hears_of_the_target_and_those_outside_of_the_balloon() {
    let mut machine = Machine::new();
    assert!(machine.ask(BalloonRequest::Target { pages: 0x123 }));
    assert!(!machine.ask(BalloonRequest::Target { pages: 0x123 }));
    assert_eq!(machine.balloon.config()[..4], [0x23, 1, 0, 0]);
    for _ in 0..2 {
        for (offset, byte) in ACTUAL.zip([0x22, 1, 0, 0]) {
            machine.work(|balloon, work| balloon.write_config(work, offset, byte));
        }
    }
    assert_eq!(machine.bench.outputs, [Output::Balloon { pages: 0x122 }]);
    let status = machine.status();
    assert_eq!((status.target, status.actual), (0x123, 0x122));
    assert_eq!(status.left_of(4 << 20), (4 << 20) - 0x12_2000);
    // After a reset the guest has all memory again, and is still to give some. That is told a second after the last
    // time.
    machine.work(Balloon::reset);
    assert_eq!(machine.bench.outputs.len(), 1);
    machine.pass(1);
    assert_eq!(machine.bench.outputs[1..], [Output::Balloon { pages: 0 }]);
    assert_eq!((machine.status().target, machine.status().actual), (0x123, 0));
}

#[test]
fn statistics_come_when_asked_for_and_again_and_again() {
    let mut machine = Machine::new();
    machine.bench.now = Time::from_nanos(5);
    assert!(!machine.give_statistics(&[(4, 100), (5, 200)]), "the device keeps the chain");
    assert_eq!(machine.status().statistics, [(4, 100), (5, 200)]);
    assert_eq!(machine.status().updated, Some(Time::from_nanos(5)));
    machine.pass(100);
    assert!(!machine.is_back(queues::STATISTICS), "nobody has asked");
    machine.ask(BalloonRequest::Poll { seconds: 2 });
    assert!(machine.is_back(queues::STATISTICS));
    machine.give_statistics(&[(4, 90)]);
    assert_eq!(machine.status().statistics, [(4, 90)]);
    machine.pass(1);
    assert!(!machine.is_back(queues::STATISTICS));
    machine.pass(1);
    assert!(machine.is_back(queues::STATISTICS));
    // A driver that is late is not asked again meanwhile.
    machine.pass(10);
    machine.give_statistics(&[]);
    machine.ask(BalloonRequest::Poll { seconds: 0 });
    machine.pass(10);
    assert!(!machine.is_back(queues::STATISTICS));
    // One chain is enough for the device.
    assert!(machine.give_statistics(&[(1, 1); STATISTICS_MAX + 5]));
    assert_eq!(machine.status().statistics.len(), STATISTICS_MAX);
}

#[test]
fn features_and_queues_are_those_of_the_model() {
    let plain = Balloon::new(BalloonModel::default());
    assert_eq!(plain.features(), features::STATISTICS | features::PAGE_POISON);
    assert_eq!(plain.queue_sizes(), [SIZE; 3]);
    let all = Machine::new().balloon;
    assert_eq!(all.features() ^ plain.features(), features::DEFLATE_ON_OOM | features::REPORTING);
    assert_eq!(all.queue_sizes(), [SIZE, SIZE, SIZE, REPORT_SIZE, REPORT_SIZE]);
}

#[test]
fn a_state_survives_saving() {
    let mut machine = Machine::new();
    machine.inflate(&[0x50]);
    machine.give_statistics(&[(4, 100)]);
    machine.ask(BalloonRequest::Target { pages: 9 });
    let saved = machine.balloon.save();
    let mut other = Balloon::new(BalloonModel::default());
    other.restore(&saved).unwrap();
    assert_eq!(other.state, machine.balloon.state);
    assert_eq!(other.save(), saved);
    let too_many = State {
        status: BalloonStatus { statistics: vec![(0, 0); 33], ..BalloonStatus::default() },
        ..State::default()
    };
    let saved = SavedState::new("balloon", VERSION, &too_many);
    assert!(matches!(other.restore(&saved), Err(RestoreError::Damaged { .. })));
}

proptest! {
    /// What a driver does that does not keep to the rules changes pages to zero, and nothing else but its own rings.
    #[test]
    fn any_buffers(
        sends in proptest::collection::vec(
            (0_u16..5, proptest::collection::vec((0_u64..0x12_0000, 0_u32..0x10_0000, any::<bool>()), 1..6)),
            1..20,
        ),
        numbers in proptest::collection::vec(FREE..0x200, 0..64),
    ) {
        let mut machine = Machine::new();
        let bytes: Vec<u8> = numbers.iter().flat_map(|page| page.to_le_bytes()).collect();
        machine.bench.memory.write(BUFFERS, &bytes);
        for (queue, buffers) in sends {
            machine.send(queue, &buffers);
        }
        let status = machine.status();
        prop_assert!(status.runs <= status.released);
        let free = &machine.bench.memory.contents()[(FREE as usize) << 12..];
        for page in free.chunks(4096) {
            prop_assert!(page.iter().all(|byte| *byte == 7) || page.iter().all(|byte| *byte == 0));
        }
        let saved = machine.balloon.save();
        prop_assert!(machine.balloon.restore(&saved).is_ok());
    }
}
