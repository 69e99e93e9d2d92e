//! A driver with some queues, and a disk in memory.

use proptest::prelude::*;
use ring3_core::device::{Device, Output, TestBench, Width};
use ring3_core::disk::{DiskError, DriveId};

use super::super::driver::{BUFFERS, Buffer, INDIRECT, Ring};
use super::super::pci::{Interfaces, VirtioPci};
use super::super::queue::Areas;
use super::*;

const SECTORS: u64 = 16384;
const RING_SIZE: u16 = 64;

// Where the driver has its requests.
const HEADER: u64 = BUFFERS;
const STATUS: u64 = BUFFERS + 0x100;
const DATA: u64 = BUFFERS + 0x1000;

fn disk(read_only: bool, queues: u16) -> DiskModel {
    DiskModel { medium: Medium { sectors: SECTORS, read_only }, serial: "S123".to_owned(), queues }
}

struct Machine {
    bench: TestBench,
    block: Block,
    queues: Vec<Queue>,
    rings: Vec<Ring>,
    features: u64,
    media: Vec<u8>,
    /// What the drive was asked and has not answered.
    asked: Vec<DiskRequest>,
}

impl Machine {
    fn new(disk: DiskModel) -> Machine {
        let mut bench = TestBench::default();
        let media: Vec<u8> = (0..SECTORS * 512).map(|index| (index / 512 + index) as u8).collect();
        let block = Block::new(DeviceId::VIRTIO_BLK[0], disk);
        let rings: Vec<_> = (0..block.queue_count())
            .map(|index| {
                let start = 0x1000 + 0x2000 * u64::from(index);
                let (available, used) = (start + 0x800, start + 0x1000);
                Ring::at(Areas { descriptors: start, available, used }, RING_SIZE)
            })
            .collect();
        let queues = rings.iter().map(|ring| ring.queue(&bench.memory, true, false)).collect();
        let features = block.features();
        bench.memory.write(STATUS, &[0xff]);
        Machine { bench, block, queues, rings, features, media, asked: Vec::new() }
    }

    fn work(&mut self, work: impl FnOnce(&mut Block, &mut Work<'_, '_>)) {
        let (context, queues) = (&mut self.bench.context(), &mut self.queues[..]);
        let mut all = Work { context, queues, features: self.features, config_changed: false };
        work(&mut self.block, &mut all);
        for output in std::mem::take(&mut self.bench.outputs) {
            let Output::Disk { drive: DriveId { unit: 0, .. }, request } = output else {
                panic!("{output:?}")
            };
            self.asked.push(request);
        }
    }

    fn notify(&mut self, queue: u16) {
        self.work(|block, work| block.notify(work, queue));
    }

    fn answer(&mut self, tag: u64, result: Result<Vec<u8>, DiskError>) {
        let input = DeviceInput::Disk(DiskAnswer { tag, result });
        self.work(|block, work| block.input(work, input));
    }

    /// Lets the drive do all that it was asked.
    fn do_all(&mut self) {
        while !self.asked.is_empty() {
            let DiskRequest { tag, operation } = self.asked.remove(0);
            let bytes = self.execute(&operation);
            self.answer(tag, Ok(bytes));
        }
    }

    fn execute(&mut self, operation: &DiskOperation) -> Vec<u8> {
        let range = |sector: u64, count: u32| {
            let start = sector as usize * SECTOR_SIZE;
            start..start + count as usize * SECTOR_SIZE
        };
        match operation {
            DiskOperation::Read { sector, count } => {
                return self.media[range(*sector, *count)].to_vec();
            }
            DiskOperation::Write { sector, data } => {
                self.media[range(*sector, (data.len() / 512) as u32)].copy_from_slice(data);
            }
            DiskOperation::WriteZeroes { sector, count, .. } => {
                self.media[range(*sector, *count)].fill(0);
            }
            DiskOperation::Discard { sector, count } => {
                self.media[range(*sector, *count)].fill(0xdd);
            }
            DiskOperation::Flush => {}
            DiskOperation::Eject => panic!("a disk has no tray"),
        }
        Vec::new()
    }

    fn put_header(&mut self, kind: u32, sector: u64) {
        self.bench.memory.write(HEADER, &kind.to_le_bytes());
        self.bench.memory.write(HEADER + 8, &sector.to_le_bytes());
    }

    /// Makes a request available in queue 0 and notifies.
    fn send(&mut self, kind: u32, sector: u64, data: &[Buffer]) {
        self.put_header(kind, sector);
        let all = [&[(HEADER, 16, false)], data, &[(STATUS, 1, true)]].concat();
        self.rings[0].add(&mut self.bench, &all);
        self.notify(0);
    }

    /// The same, which is done: the status, and the length in the used ring.
    fn request(&mut self, kind: u32, sector: u64, data: &[Buffer]) -> (u8, u32) {
        self.send(kind, sector, data);
        self.do_all();
        let (_, len) = self.rings[0].used(&self.bench.memory).expect("it is answered");
        (self.byte(STATUS), len)
    }

    fn byte(&self, address: u64) -> u8 {
        self.bytes(address, 1)[0]
    }

    fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.bench.memory.read(address, &mut bytes);
        bytes
    }

    /// A range to be discarded or made zero.
    fn put_range(&mut self, sector: u64, count: u32, flags: u32) {
        self.bench.memory.write(DATA, &sector.to_le_bytes());
        self.bench.memory.write(DATA + 8, &count.to_le_bytes());
        self.bench.memory.write(DATA + 12, &flags.to_le_bytes());
    }
}

#[test]
fn sectors_are_read_and_written_in_pieces() {
    let mut machine = Machine::new(disk(false, 1));
    let pieces = [(DATA, 100, true), (DATA + 0x1000, 924, true)];
    assert_eq!(machine.request(0, 3, &pieces), (0, 1025));
    let read = [machine.bytes(DATA, 100), machine.bytes(DATA + 0x1000, 924)].concat();
    assert_eq!(read, machine.media[3 * 512..5 * 512]);
    let pieces = [(DATA + 0x1000, 924, false), (DATA, 100, false)];
    assert_eq!(machine.request(1, SECTORS - 2, &pieces), (0, 1));
    let written = [&read[100..], &read[..100]].concat();
    assert_eq!(machine.media[(SECTORS as usize - 2) * 512..], written);
}

#[test]
fn a_header_may_be_cut_anywhere_and_the_status_be_behind_the_data() {
    let mut machine = Machine::new(disk(false, 1));
    machine.put_header(1, 1);
    machine.bench.memory.write(HEADER + 16, &[7; 512]);
    let buffers = [(HEADER, 3, false), (HEADER + 3, 525, false), (STATUS, 1, true)];
    machine.rings[0].add(&mut machine.bench, &buffers);
    machine.notify(0);
    machine.do_all();
    assert_eq!(machine.media[512..1024], [7; 512]);
    machine.put_header(0, 1);
    machine.rings[0].add(&mut machine.bench, &[(HEADER, 16, false), (DATA, 513, true)]);
    machine.notify(0);
    machine.do_all();
    assert_eq!(machine.bytes(DATA, 513), [&[7; 512][..], &[0]].concat());
}

#[test]
fn each_kind_of_request_is_executed() {
    let mut machine = Machine::new(disk(false, 1));
    assert_eq!(machine.request(4, 0, &[]), (0, 1));
    assert_eq!(machine.request(8, 0, &[(DATA, 20, true)]), (0, 21));
    assert_eq!(machine.bytes(DATA, 20), *b"S123\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    machine.put_range(2, 1, 0);
    assert_eq!(machine.request(11, 0, &[(DATA, 16, false)]), (0, 1));
    assert_eq!(machine.media[2 * 512], 0xdd);
    for (flags, gives_up_room) in [(0, false), (1, true)] {
        machine.put_range(4, 2, flags);
        machine.send(13, 0, &[(DATA, 16, false)]);
        let operation = DiskOperation::WriteZeroes { sector: 4, count: 2, gives_up_room };
        assert_eq!(machine.asked[0].operation, operation);
        machine.do_all();
    }
    assert_eq!(machine.media[4 * 512..6 * 512], [0; 1024]);
    let mut machine = Machine::new(disk(false, 1));
    // SCSI commands of old, secure erase, and what there is not.
    for kind in [2, 3, 14, 16, u32::MAX] {
        assert_eq!(machine.request(kind, 0, &[(DATA, 512, true)]), (2, 1), "{kind}");
    }
    machine.put_range(0, 1, 1);
    assert_eq!(machine.request(11, 0, &[(DATA, 16, false)]), (2, 1), "a flag of write zeroes");
    machine.put_range(0, 1, 2);
    assert_eq!(machine.request(13, 0, &[(DATA, 16, false)]), (2, 1), "a flag of nobody");
}

#[test]
fn impossible_requests_fail_without_reaching_the_drive() {
    let mut machine = Machine::new(disk(false, 1));
    let beyond_memory = 1 << 20;
    for (kind, sector, address, len) in [
        (0, SECTORS, DATA, 512),
        (0, SECTORS - 1, DATA, 1024),
        (0, u64::MAX, DATA, 512),
        (0, 0, DATA, 511),
        (0, 0, beyond_memory - 511, 512),
        (0, 0, u64::MAX, 512),
        (1, SECTORS, DATA, 512),
        (1, 0, beyond_memory, 512),
        (0, 0, 0, REQUEST_MAX + 512),
    ] {
        let data = [(address, len, kind == 0)];
        machine.send(kind, sector, &data);
        assert!(machine.asked.is_empty(), "{kind} {sector} {address:#x} {len}");
        assert_eq!(machine.rings[0].used(&machine.bench.memory).map(|used| used.1), Some(1));
        assert_eq!(machine.byte(STATUS), 1);
    }
    for (kind, sector, count, len) in [
        (11, SECTORS, 1, 16),
        (13, u64::MAX, 1, 16),
        (13, 0, WRITE_ZEROES_MAX + 1, 16),
        (11, 0, 1, 32),
        (11, 0, 1, 8),
    ] {
        machine.put_range(sector, count, 0);
        assert_eq!(machine.request(kind, 0, &[(DATA, len, false)]), (1, 1));
    }
}

#[test]
fn an_error_of_the_drive_is_reported() {
    let mut machine = Machine::new(disk(false, 1));
    machine.send(0, 0, &[(DATA, 512, true)]);
    let tag = machine.asked.remove(0).tag;
    machine.answer(tag + 1, Ok(vec![0; 512]));
    assert_eq!(machine.rings[0].used(&machine.bench.memory), None, "another one");
    machine.answer(tag, Err(DiskError::Host));
    assert_eq!((machine.byte(STATUS), machine.byte(DATA)), (1, 0));
}

#[test]
fn a_disk_for_reading_is_not_written() {
    let mut machine = Machine::new(disk(true, 1));
    assert_eq!(machine.block.features() & (1 << 5 | 3 << 13), 1 << 5);
    assert_eq!(machine.request(1, 0, &[(DATA, 512, false)]), (1, 1));
    machine.put_range(0, 1, 0);
    assert_eq!(machine.request(11, 0, &[(DATA, 16, false)]), (1, 1));
    assert_eq!(machine.request(0, 0, &[(DATA, 512, true)]), (0, 513));
}

#[test]
fn requests_are_under_way_together_and_end_in_any_order() {
    let mut machine = Machine::new(disk(false, 2));
    for (queue, sector) in [(0_usize, 1), (1, 2), (0, 3)] {
        let place = HEADER + 0x200 * sector;
        machine.bench.memory.write(place, &0_u32.to_le_bytes());
        machine.bench.memory.write(place + 8, &sector.to_le_bytes());
        let data = (DATA + 0x200 * sector, 512, true);
        let buffers = [(place, 16, false), data, (place + 0x100, 1, true)];
        machine.rings[queue].add(&mut machine.bench, &buffers);
    }
    machine.notify(0);
    machine.notify(1);
    assert_eq!(machine.asked.len(), 3);
    machine.asked.reverse();
    machine.do_all();
    let used = |machine: &mut Machine, ring: usize| machine.rings[ring].used(&machine.bench.memory);
    assert_eq!(used(&mut machine, 0), Some((3, 513)));
    assert_eq!(used(&mut machine, 0), Some((0, 513)));
    assert_eq!(used(&mut machine, 1), Some((0, 513)));
    assert_eq!(machine.bytes(DATA + 0x200, 3 * 512), machine.media[512..4 * 512]);
}

#[test]
fn writes_are_kept_where_the_driver_does_not_flush() {
    let mut machine = Machine::new(disk(false, 1));
    let write = |machine: &mut Machine| {
        machine.send(1, 0, &[(DATA, 512, false)]);
        let tag = machine.asked.remove(0).tag;
        machine.answer(tag, Ok(Vec::new()));
        let flush = machine.asked.iter().any(|asked| asked.operation == DiskOperation::Flush);
        assert_eq!(machine.rings[0].used(&machine.bench.memory).is_some(), !flush);
        machine.do_all();
        assert!(!flush || machine.rings[0].used(&machine.bench.memory).is_some());
        flush
    };
    assert!(!write(&mut machine), "the cache is on at first");
    machine.work(|block, work| block.write_config(work, CONFIG_WRITEBACK, 0));
    assert!(write(&mut machine), "the driver has switched it off");
    machine.features = 0;
    assert!(write(&mut machine), "it does not know of flushes");
    machine.features = features::FLUSH;
    assert!(!write(&mut machine));
}

#[test]
fn no_more_is_taken_than_can_be_held() {
    let mut machine = Machine::new(disk(false, 1));
    machine.put_header(0, 0);
    // A chain of 2 MiB each, by tables of the same memory.
    let table = 0x8000;
    for index in 0..8 {
        let next = (DATA, 0x4_0000, 3, index + 2);
        Ring::describe(&mut machine.bench.memory, table, index + 1, next);
    }
    Ring::describe(&mut machine.bench.memory, table, 0, (HEADER, 16, 1, 1));
    Ring::describe(&mut machine.bench.memory, table, 9, (STATUS, 1, 2, 0));
    let start = machine.rings[0].areas.descriptors;
    for index in 0..10 {
        let descriptor = (table, 160, INDIRECT, 0);
        Ring::describe(&mut machine.bench.memory, start, index, descriptor);
        machine.rings[0].offer(&mut machine.bench.memory, index);
    }
    machine.notify(0);
    assert_eq!(machine.asked.len(), 4);
    assert_eq!(machine.rings[0].used_flags(&machine.bench.memory), 1, "no need to notify");
    machine.notify(0);
    assert_eq!(machine.asked.len(), 4);
    // The next operations are requested as answers arrive.
    machine.do_all();
    for index in 0..10 {
        let used = machine.rings[0].used(&machine.bench.memory).unwrap();
        assert_eq!(used, (index, (2 << 20) + 1));
    }
    assert_eq!(machine.rings[0].used_flags(&machine.bench.memory), 0);
}

#[test]
fn a_reset_forgets_requests_but_counts_them() {
    let mut machine = Machine::new(disk(false, 1));
    machine.send(0, 0, &[(DATA, 512, true)]);
    machine.work(Block::reset);
    assert_eq!(machine.block.state.under_way.len(), 1);
    machine.do_all();
    assert_eq!(machine.rings[0].used(&machine.bench.memory), None);
    assert_eq!((machine.byte(DATA), machine.byte(STATUS)), (0, 0xff));
    assert!(machine.block.state.under_way.is_empty());
}

#[test]
fn a_chain_without_room_for_a_status_breaks_the_queue() {
    for buffers in [&[(HEADER, 16, false)][..], &[(HEADER, 15, false), (STATUS, 1, true)]] {
        let mut machine = Machine::new(disk(false, 1));
        machine.rings[0].add(&mut machine.bench, buffers);
        machine.notify(0);
        assert!(machine.queues[0].is_broken());
    }
}

#[test]
fn the_configuration_is_that_of_the_disk() {
    let mut machine = Machine::new(disk(false, 4));
    let config = machine.block.config();
    assert_eq!(config.len(), 60);
    assert_eq!(config[..8], SECTORS.to_le_bytes());
    assert_eq!(config[20..24], 512_u32.to_le_bytes());
    assert_eq!((config[32], config[34]), (1, 4));
    assert!(machine.block.features() & features::MULTIPLE_QUEUES != 0);
    // The image grows.
    let medium = Some(Medium { sectors: 3 * SECTORS, read_only: false });
    machine.work(|block, work| {
        block.input(work, DeviceInput::Medium { unit: 0, medium });
        assert!(work.config_changed);
    });
    assert_eq!(machine.block.config()[..8], (3 * SECTORS).to_le_bytes());
}

/// Something that befalls a function with a disk.
#[derive(Debug, Clone)]
enum Blow {
    Config(u8, Width, u32),
    Memory(u8, u64, Width, Option<u32>),
    Port(u16, Width, Option<u32>),
    /// Bytes in guest memory, where rings and requests may be.
    Ram(u64, Vec<u8>),
    /// The drive answers one of its requests.
    Answer(bool),
    Notify(u16),
}

fn blow() -> impl Strategy<Value = Blow> {
    let width = || proptest::sample::select(&[Width::Byte, Width::Word, Width::Dword][..]);
    let value = || prop_oneof![3 => 0..0x20_u32, 1 => any::<u32>()];
    let optional = move || prop_oneof![1 => Just(None), 3 => value().prop_map(Some)];
    let byte = prop_oneof![4 => Just(0_u8), 3 => 0..0x10_u8, 1 => any::<u8>()];
    let offset = prop_oneof![6 => 0..0x40_u64, 1 => any::<u64>()];
    let page = proptest::sample::select(&[0_u64, 0x1000, 0x2000, 0x3000][..]);
    let place = (page, offset).prop_map(|(page, offset)| page.wrapping_add(offset));
    prop_oneof![
        1 => (any::<u8>(), width(), any::<u32>()).prop_map(|(o, w, v)| Blow::Config(o & !3, w, v)),
        4 => (1..5_u8, place, width(), optional())
            .prop_map(|(region, place, width, value)| Blow::Memory(region, place, width, value)),
        4 => (0..0x80_u16, width(), optional()).prop_map(|(o, w, v)| Blow::Port(o, w, v)),
        6 => (0..0x4000_u64, proptest::collection::vec(byte, 1..64)).prop_map(|(a, b)| Blow::Ram(a, b)),
        3 => any::<bool>().prop_map(Blow::Answer),
        4 => (0..3_u16).prop_map(Blow::Notify),
    ]
}

proptest! {
    /// Whatever a driver does and writes, nothing panics, and the requests in flight are bounded.
    #[test]
    fn any_driver(blows in proptest::collection::vec(blow(), 0..300), starts: bool) {
        let new = || VirtioPci::new(4, Interfaces::default(), Block::new(DeviceId::VIRTIO_BLK[0], disk(false, 2)));
        let (mut bench, mut function) = (TestBench::default(), new());
        function.write_config(&mut bench.context(), 0, 0x10, Width::Dword, 0xc000);
        if starts {
            // A legacy driver whose first queue is in page 1.
            function.write_port(&mut bench.context(), 0xc008, Width::Dword, 1);
        }
        let mut asked = Vec::new();
        for blow in blows {
            let context = &mut bench.context();
            match blow {
                // The ports stay where they are.
                Blow::Config(offset, ..) if (0x10..0x14).contains(&offset) => {}
                Blow::Config(offset, width, value) => {
                    function.write_config(context, 0, offset, width, value);
                    function.read_config(context, 0, offset, width);
                }
                Blow::Memory(region, offset, width, value) => match value {
                    Some(value) => function.write_memory(context, region, offset, width, value),
                    None => {
                        function.read_memory(context, region, offset, width);
                    }
                },
                Blow::Port(offset, width, value) => match value {
                    Some(value) => function.write_port(context, 0xc000 + offset, width, value),
                    None => {
                        function.read_port(context, 0xc000 + offset, width);
                    }
                },
                Blow::Ram(address, bytes) => context.memory.write(address, &bytes),
                Blow::Answer(succeeds) => {
                    if let Some((tag, len)) = asked.pop() {
                        let result = if succeeds { Ok(vec![1; len]) } else { Err(DiskError::Host) };
                        let answer = DeviceInput::Disk(DiskAnswer { tag, result });
                        function.input(context, answer);
                    }
                }
                Blow::Notify(queue) => {
                    function.write_port(context, 0xc010, Width::Word, queue.into());
                }
            }
            for output in bench.outputs.drain(..) {
                let Output::Disk { request, .. } = output else { panic!("{output:?}") };
                let len = match request.operation {
                    DiskOperation::Read { count, .. } => count as usize * 512,
                    _ => 0,
                };
                asked.push((request.tag, len));
            }
            prop_assert!(asked.len() <= UNDER_WAY_MAX);
            prop_assert!(asked.iter().map(|(_, len)| len).sum::<usize>() <= 13 << 20);
            prop_assert!(bench.irq.drain_messages().count() <= 64);
        }
        let saved = function.save();
        let mut other = new();
        other.restore(&saved).expect("a device takes its own state");
        prop_assert_eq!(other.save(), saved);
    }
}
