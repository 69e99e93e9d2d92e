//! A driver with the queue of memory that comes and goes.

use proptest::prelude::*;
use ring3_core::device::TestBench;
use ring3_core::memory::{PAGE_SIZE, Target};

use super::super::driver::{BUFFERS, Ring};
use super::super::queue::Queue;
use super::*;

const START: u64 = 4 << 30;
const BLOCKS: u64 = 8;
/// Where answers are written.
const ANSWER: u64 = BUFFERS + 0x1000;

struct Machine {
    bench: TestBench,
    device: ExtraMemory,
    queues: Vec<Queue>,
    ring: Ring,
}

impl Machine {
    fn new(requested: u64) -> Machine {
        let mut bench = TestBench::default();
        let model = ExtraMemoryModel { region: BLOCKS * BLOCK, requested: requested * BLOCK };
        assert!(model.is_possible());
        bench.memory.add_later_ram(START, model.region).unwrap();
        let ring = Ring::new(16);
        let queues = vec![ring.queue(&bench.memory, false, false)];
        Machine { bench, device: ExtraMemory::new(model, START), queues, ring }
    }

    fn work(&mut self, work: impl FnOnce(&mut ExtraMemory, &mut Work<'_, '_>)) -> bool {
        let (context, queues) = (&mut self.bench.context(), &mut self.queues[..]);
        let mut all = Work { context, queues, features: 0, config_changed: false };
        work(&mut self.device, &mut all);
        all.config_changed
    }

    /// Sends a request, and returns the answer.
    fn ask(&mut self, kind: u16, address: u64, count: u16) -> Answer {
        let mut request = [0; requests::LEN];
        request[..2].copy_from_slice(&kind.to_le_bytes());
        request[8..16].copy_from_slice(&address.to_le_bytes());
        request[16..18].copy_from_slice(&count.to_le_bytes());
        self.bench.memory.write(BUFFERS, &request);
        let buffers = [(BUFFERS, requests::LEN as u32, false), (ANSWER, answers::LEN as u32, true)];
        self.ring.add(&mut self.bench, &buffers);
        self.work(|device, work| device.notify(work, REQUESTS));
        assert_eq!(self.ring.used(&self.bench.memory).map(|used| used.1), Some(10));
        let mut answer = [0; answers::LEN];
        self.bench.memory.read(ANSWER, &mut answer);
        (u16::from_le_bytes([answer[0], answer[1]]), u16::from_le_bytes([answer[8], answer[9]]))
    }

    fn want(&mut self, blocks: u64) -> bool {
        let bytes = blocks * BLOCK;
        self.work(|device, work| device.input(work, DeviceInput::ExtraMemory { bytes }))
    }

    fn is_there(&self, block: u64) -> bool {
        self.bench.memory.holds(START + block * BLOCK, BLOCK)
    }

    fn plugged(&self) -> u64 {
        self.device.extra_memory().unwrap().plugged / BLOCK
    }
}

const ACK: Answer = (answers::ACK, 0);
const NACK: Answer = (answers::NACK, 0);
const ERROR: Answer = (answers::ERROR, 0);

fn at(block: u64) -> u64 {
    START + block * BLOCK
}

#[test]
fn the_driver_learns_what_there_is() {
    let mut machine = Machine::new(0);
    assert!(machine.want(3) && !machine.want(3));
    let config = machine.device.config();
    let words: Vec<_> =
        config.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    let region = BLOCKS * BLOCK;
    assert_eq!(words, [BLOCK, 0, START, region, region, 0, 3 * BLOCK]);
    // What cannot be is not taken.
    assert!(!machine.want(BLOCKS + 1));
    let odd = DeviceInput::ExtraMemory { bytes: BLOCK + 4096 };
    assert!(!machine.work(|device, work| device.input(work, odd)));
    assert_eq!(machine.device.extra_memory().unwrap().requested, 3 * BLOCK);
}

#[test]
fn blocks_come_and_go_and_are_zero_when_they_come_again() {
    let mut machine = Machine::new(4);
    machine.bench.memory.write(at(1), &[7]);
    assert_eq!(machine.ask(requests::PLUG, at(1), 2), ACK);
    assert!(machine.is_there(1) && machine.is_there(2) && !machine.is_there(0));
    machine.bench.memory.write(at(1), &[1; 5000]);
    machine.bench.memory.write(at(2), &[2]);
    assert_eq!(machine.ask(requests::STATE, at(1), 2), (answers::ACK, states::PLUGGED));
    assert_eq!(machine.ask(requests::STATE, at(0), 2), (answers::ACK, states::MIXED));
    assert_eq!(machine.ask(requests::STATE, at(3), 5), (answers::ACK, states::UNPLUGGED));
    assert_eq!(machine.ask(requests::UNPLUG, at(1), 1), ACK);
    assert_eq!(machine.bench.memory.read_target(at(1)), Target::Device);
    assert_eq!(machine.bench.memory.read_aligned::<1>(at(1)), [0xff]);
    assert_eq!(machine.ask(requests::PLUG, at(0), 2), ACK);
    assert_eq!(machine.bench.memory.read_aligned::<4>(at(1) + PAGE_SIZE), [0; 4]);
    assert_eq!(machine.bench.memory.read_aligned::<1>(at(2)), [2]);
    assert_eq!(machine.plugged(), 3);
}

#[test]
fn what_must_not_be_is_refused() {
    let mut machine = Machine::new(2);
    for (kind, address, count) in [
        (requests::PLUG, at(0), 0),
        (requests::PLUG, at(BLOCKS), 1),
        (requests::PLUG, at(BLOCKS - 1), 2),
        (requests::PLUG, at(0) + 4096, 1),
        (requests::PLUG, 0, 1),
        (requests::PLUG, u64::MAX, u16::MAX),
        (requests::UNPLUG, at(0), 1),
        (requests::STATE, at(BLOCKS), 1),
        (4, at(0), 1),
    ] {
        assert_eq!(machine.ask(kind, address, count), ERROR, "{kind} {address:#x} {count}");
    }
    assert_eq!(machine.ask(requests::PLUG, at(0), 3), NACK, "more than was asked for");
    assert_eq!(machine.ask(requests::PLUG, at(4), 2), ACK);
    assert_eq!(machine.ask(requests::PLUG, at(0), 1), NACK);
    assert_eq!(machine.ask(requests::PLUG, at(5), 2), ERROR, "one is there");
    assert_eq!(machine.ask(requests::UNPLUG, at(5), 2), ERROR, "one is not there");
    assert_eq!(machine.plugged(), 2);
    // A request that is too short, and one for whose answer there is no room.
    machine.ring.add(&mut machine.bench, &[(BUFFERS, 23, false), (ANSWER, 10, true)]);
    machine.ring.add(&mut machine.bench, &[(BUFFERS, 24, false)]);
    machine.work(|device, work| device.notify(work, REQUESTS));
    let used = [(); 2].map(|()| machine.ring.used(&machine.bench.memory).unwrap().1);
    assert_eq!(used, [10, 0]);
}

#[test]
fn memory_outlives_the_driver_but_not_the_system() {
    let mut machine = Machine::new(8);
    machine.ask(requests::PLUG, at(0), 2);
    machine.ask(requests::PLUG, at(5), 1);
    machine.work(DeviceType::reset);
    assert!(machine.is_there(5));
    assert_eq!(machine.ask(requests::UNPLUG_ALL, 0, 0), ACK);
    assert_eq!(machine.plugged(), 0);
    machine.ask(requests::PLUG, at(5), 1);
    machine.bench.memory.write(at(5), &[1]);
    // The machine has forgotten the map by then.
    machine.bench.memory.reset_map();
    machine.work(DeviceType::power_on);
    assert_eq!((machine.plugged(), machine.is_there(5)), (0, false));
    machine.ask(requests::PLUG, at(5), 1);
    assert_eq!(machine.bench.memory.read_aligned::<1>(at(5)), [0]);
}

#[test]
fn those_outside_are_told_at_once_and_then_once_a_second() {
    let mut machine = Machine::new(8);
    machine.ask(requests::PLUG, at(0), 1);
    machine.ask(requests::PLUG, at(1), 2);
    let told = |bytes| Output::ExtraMemory { bytes };
    assert_eq!(machine.bench.outputs, [told(BLOCK)]);
    machine.bench.now = machine.bench.now.plus_nanos(1_000_000_000);
    machine.work(|device, work| device.timer(work, TELL));
    assert_eq!(machine.bench.outputs, [told(BLOCK), told(3 * BLOCK)]);
}

#[test]
fn a_state_of_another_region_is_refused() {
    let mut machine = Machine::new(8);
    machine.ask(requests::PLUG, at(0), 2);
    let saved = machine.device.save();
    let mut other = Machine::new(0);
    other.device.restore(&saved).unwrap();
    assert_eq!(other.device.save(), saved);
    let model = ExtraMemoryModel { region: BLOCK, requested: 0 };
    let mut smaller = ExtraMemory::new(model, START);
    assert!(smaller.restore(&saved).is_err());
}

proptest! {
    /// Whatever a driver asks for, as much is there as it was told, and never more than was wanted.
    #[test]
    fn what_is_there_is_what_is_said(
        requests in proptest::collection::vec((0..5_u16, 0..10_u64, 0..10_u16, 0..9_u64), 0..40)
    ) {
        let mut machine = Machine::new(4);
        let mut most = 4;
        for (kind, block, count, wanted) in requests {
            machine.ask(kind, at(block), count);
            let there = (0..BLOCKS).filter(|block| machine.is_there(*block)).count() as u64;
            prop_assert_eq!(there, machine.plugged());
            prop_assert!(there <= most);
            machine.want(wanted.min(BLOCKS));
            most = there.max(wanted.min(BLOCKS));
        }
    }
}
