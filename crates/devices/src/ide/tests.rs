//! A machine with an IDE function and media in memory, and what befalls the function as a whole.

use std::sync::LazyLock;

use proptest::prelude::*;
use ring3_core::bus::Decoded;
use ring3_core::device::{Output, TestBench};
use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, DiskRequest, DriveId, SECTOR_SIZE};

use super::*;
use crate::hammer::{blows, hammer};
use crate::pci::base_register;

mod cd_rom;
mod disk;

// Ports of the primary channel.
const DATA_PORT: u16 = 0x1f0;
const ERROR: u16 = 0x1f1;
const FEATURES: u16 = 0x1f1;
const COUNT: u16 = 0x1f2;
const LBA_LOW: u16 = 0x1f3;
const LBA_MID: u16 = 0x1f4;
const LBA_HIGH: u16 = 0x1f5;
const DEVICE: u16 = 0x1f6;
const STATUS: u16 = 0x1f7;
const COMMAND: u16 = 0x1f7;
const CONTROL: u16 = 0x3f6;
/// The base address register of the bus master.
const BUS_MASTER_BASE: u8 = base_register(BUS_MASTER_REGION);
/// Where the tests put the bus master.
const MASTER: u16 = 0xc000;
/// Where they put its table.
const TABLE: u32 = 0x1000;

const DISK_SECTORS: u64 = 2048;

fn model(kind: DriveKind) -> DriveModel {
    DriveModel { kind, model: "TEST DRIVE".to_owned(), serial: "SN1".to_owned(), trims: true }
}

fn disk(sectors: u64) -> DriveModel {
    model(DriveKind::Disk(Medium { sectors, read_only: false }))
}

fn cd_rom(sectors: u64) -> DriveModel {
    model(DriveKind::CdRom(Some(Medium { sectors, read_only: true })))
}

/// Byte `index` of a medium before any write.
fn pattern(index: u64) -> u8 {
    (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A whole medium of it.
static PATTERN: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..DISK_SECTORS * SECTOR_SIZE as u64).map(pattern).collect());

struct Machine {
    bench: TestBench,
    ide: Ide,
    /// What is on the drives; an empty one fails.
    media: [Vec<u8>; 4],
    /// What drives were asked, as long as [`Machine::answers`] is false.
    asked: Vec<(u8, DiskRequest)>,
    answers: bool,
    flushes: u32,
    discarded: Vec<(u64, u32)>,
}

impl Machine {
    fn new(drives: &[Option<DriveModel>; 4]) -> Machine {
        let media = drives.each_ref().map(|drive| {
            let sectors = match drive.as_ref().map(|drive| drive.kind) {
                Some(DriveKind::Disk(medium) | DriveKind::CdRom(Some(medium))) => medium.sectors,
                _ => 0,
            };
            PATTERN[..sectors.min(DISK_SECTORS) as usize * SECTOR_SIZE].to_vec()
        });
        let mut machine = Machine {
            bench: TestBench::default(),
            ide: Ide::new(drives),
            media,
            asked: Vec::new(),
            answers: true,
            flushes: 0,
            discarded: Vec::new(),
        };
        machine.write_config(BUS_MASTER_BASE, u32::from(MASTER));
        machine.write_config(IDETIM, 0x8000_8000);
        machine.write_config(registers::COMMAND, command::IO | command::MASTER);
        machine
    }

    fn write_config(&mut self, offset: u8, value: u32) {
        self.ide.write_config(&mut self.bench.context(), 1, offset, Width::Dword, value);
    }

    fn read(&mut self, port: u16) -> u8 {
        self.read_wide(port, Width::Byte) as u8
    }

    fn read_wide(&mut self, port: u16, width: Width) -> u32 {
        let value = self.ide.read_port(&mut self.bench.context(), port, width) & width.mask();
        self.pump();
        value
    }

    fn write(&mut self, port: u16, value: u8) {
        self.write_wide(port, Width::Byte, value.into());
    }

    fn write_wide(&mut self, port: u16, width: Width, value: u32) {
        self.ide.write_port(&mut self.bench.context(), port, width, value);
        self.pump();
    }

    /// Lets the drives do what they were asked.
    fn pump(&mut self) {
        while !self.bench.outputs.is_empty() {
            for output in std::mem::take(&mut self.bench.outputs) {
                let Output::Disk { drive: DriveId { unit, .. }, request } = output else {
                    panic!("{output:?}")
                };
                if self.answers {
                    let result = self.execute(unit, &request.operation);
                    self.answer(request.tag, result);
                } else {
                    self.asked.push((unit, request));
                }
            }
        }
    }

    fn answer(&mut self, tag: u64, result: Result<Vec<u8>, DiskError>) {
        let input = DeviceInput::Disk(DiskAnswer { tag, result });
        self.ide.input(&mut self.bench.context(), input);
    }

    fn execute(&mut self, unit: u8, operation: &DiskOperation) -> Result<Vec<u8>, DiskError> {
        let medium = &mut self.media[usize::from(unit)];
        let bytes = |sector: u64, len: usize| {
            let start = sector as usize * SECTOR_SIZE;
            start..start + len
        };
        match operation {
            DiskOperation::Read { sector, count } => {
                assert!(*count <= 256, "buffers are bounded");
                let wanted = medium.get(bytes(*sector, *count as usize * SECTOR_SIZE));
                wanted.map(<[u8]>::to_vec).ok_or(DiskError::Host)
            }
            DiskOperation::Write { sector, data } => {
                assert!(data.len() <= 256 * SECTOR_SIZE, "buffers are bounded");
                let place = medium.get_mut(bytes(*sector, data.len())).ok_or(DiskError::Host)?;
                place.copy_from_slice(data);
                Ok(Vec::new())
            }
            DiskOperation::Flush => {
                self.flushes += 1;
                Ok(Vec::new())
            }
            DiskOperation::Eject => Ok(Vec::new()),
            DiskOperation::Discard { sector, count } => {
                assert!(sector + u64::from(*count) <= DISK_SECTORS, "ranges are checked");
                self.discarded.push((*sector, *count));
                Ok(Vec::new())
            }
            DiskOperation::WriteZeroes { .. } => panic!("no drive here asks for {operation:?}"),
        }
    }

    /// The level of the primary channel's line, and whether it has risen since the last call.
    fn interrupt(&mut self) -> (bool, bool) {
        let rose = self.bench.irq.drain_changes().any(|change| change == (14, true));
        (self.bench.irq.is_high(14), rose)
    }

    /// A command with a 28-bit address to the primary master.
    fn command28(&mut self, command: u8, lba: u32, count: u8) {
        let [low, mid, high, top] = lba.to_le_bytes();
        self.write(DEVICE, 0x40 | top);
        self.write(COUNT, count);
        self.write(LBA_LOW, low);
        self.write(LBA_MID, mid);
        self.write(LBA_HIGH, high);
        self.write(COMMAND, command);
    }

    /// A command with a 48-bit address to the primary master.
    fn command48(&mut self, command: u8, lba: u64, count: u16) {
        let address = lba.to_le_bytes();
        self.write(DEVICE, 0x40);
        self.write(COUNT, (count >> 8) as u8);
        self.write(COUNT, count as u8);
        for (port, (high, low)) in [
            (LBA_LOW, (address[3], address[0])),
            (LBA_MID, (address[4], address[1])),
            (LBA_HIGH, (address[5], address[2])),
        ] {
            self.write(port, high);
            self.write(port, low);
        }
        self.write(COMMAND, command);
    }

    /// Reads `len` bytes of the data register as words.
    fn read_data(&mut self, len: usize) -> Vec<u8> {
        let words = (0..len.div_ceil(2)).map(|_| self.read_wide(DATA_PORT, Width::Word) as u16);
        words.flat_map(u16::to_le_bytes).take(len).collect()
    }

    /// Writes the data register, as double words.
    fn write_data(&mut self, data: &[u8]) {
        for bytes in data.chunks_exact(4) {
            let value = u32::from_le_bytes(bytes.try_into().unwrap());
            self.write_wide(DATA_PORT, Width::Dword, value);
        }
    }

    /// Gives the bus master a table of regions, the last of which ends it.
    fn table(&mut self, regions: &[(u32, u32)]) {
        for (index, (address, len)) in regions.iter().enumerate() {
            let last = if index + 1 == regions.len() { 0x8000_0000 } else { 0 };
            let at = u64::from(TABLE) + 8 * index as u64;
            self.bench.memory.write(at, &address.to_le_bytes());
            self.bench.memory.write(at + 4, &(len & 0xffff | last).to_le_bytes());
        }
        self.write_wide(MASTER + 4, Width::Dword, TABLE);
    }

    fn memory(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.bench.memory.read(address, &mut bytes);
        bytes
    }
}

#[test]
fn ports_follow_the_configuration() {
    let mut machine = Machine::new(&[Some(disk(DISK_SECTORS)), None, None, None]);
    let mut last = std::collections::BTreeMap::new();
    let mut claimed = |machine: &mut Machine| {
        for claim in machine.bench.claims.drain(..) {
            last.insert(claim.region, claim.decoded);
        }
        last.clone().into_values().collect::<Vec<_>>()
    };
    let ports = |first, count| Decoded::Ports(PortRange::new(first, count));
    let expected =
        [ports(0x1f0, 8), ports(0x3f6, 1), ports(0x170, 8), ports(0x376, 1), ports(MASTER, 16)];
    assert_eq!(claimed(&mut machine), expected);
    machine.write_config(IDETIM, 0x0000_8000);
    assert_eq!(claimed(&mut machine)[1..4], [ports(0x3f6, 1), Decoded::Nothing, Decoded::Nothing]);
    machine.write_config(BUS_MASTER_BASE, 0xffff_ffff);
    let context = &mut machine.bench.context();
    assert_eq!(machine.ide.read_config(context, 1, BUS_MASTER_BASE, Width::Dword), 0xffff_fff1);
    assert_eq!(machine.ide.read_config(context, 1, 0, Width::Dword), 0x7010_8086);
    assert_eq!(machine.ide.read_config(context, 1, 8, Width::Dword), 0x0101_8000);
    assert_eq!(claimed(&mut machine)[4], Decoded::Nothing, "that is no port");
    machine.ide.reset(&mut machine.bench.context());
    assert_eq!(claimed(&mut machine), [Decoded::Nothing; 5]);
}

#[test]
fn the_second_channel_has_its_own_ports_and_line() {
    let mut machine = Machine::new(&[None, None, None, Some(disk(DISK_SECTORS))]);
    machine.write(0x176, 0x50);
    machine.write(0x177, 0xec);
    assert!(machine.bench.irq.is_high(15) && !machine.bench.irq.is_high(14));
    assert_eq!(machine.read(0x376), 0x58);
    assert!(machine.bench.irq.is_high(15), "the alternate status leaves the interrupt alone");
    assert_eq!(machine.read(0x177), 0x58);
    assert!(!machine.bench.irq.is_high(15));
    assert_eq!(machine.read_wide(0x170, Width::Dword), 2 << 16 | 0x40);
    machine.write(0x176, 0x40);
    assert_eq!(machine.read(0x177), 0x58, "a drive that transfers data keeps the cable");
}

#[test]
fn a_transfer_continues_in_a_restored_machine() {
    let drives = || [Some(disk(DISK_SECTORS)), Some(cd_rom(400)), None, None];
    let mut machine = Machine::new(&drives());
    machine.command28(0x20, 100, 3);
    let first = machine.read_data(700);
    let saved = machine.ide.save();
    machine.ide = Ide::new(&drives());
    machine.ide.restore(&saved).unwrap();
    let data = [first, machine.read_data(3 * 512 - 700)].concat();
    assert_eq!(data, machine.media[0][100 * 512..103 * 512]);
    let others =
        Ide::new(&[Some(disk(DISK_SECTORS)), None, Some(cd_rom(400)), None]).restore(&saved);
    assert!(matches!(others, Err(RestoreError::Damaged { .. })));
    let smaller = Ide::new(&[Some(disk(101)), Some(cd_rom(400)), None, None]).restore(&saved);
    assert!(matches!(smaller, Err(RestoreError::Damaged { .. })));
}

/// Something that happens to the function besides accesses at ports.
#[derive(Debug, Clone)]
enum Event {
    /// An access at a port: a read, or a write of that value.
    Port(u16, Width, Option<u32>),
    Command {
        slave: bool,
        registers: [u8; 5],
        command: u8,
    },
    Packet(Vec<u8>),
    Dma {
        to_memory: bool,
        table: u32,
    },
    Config(u8, u32),
    Answer {
        good: bool,
    },
    Medium(u8, Option<u64>),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let commands = [
        0x08, 0x20, 0x24, 0x25, 0x29, 0x30, 0x35, 0x39, 0x40, 0x42, 0x90, 0x91, 0xa0, 0xa0, 0xa1,
        0xc4, 0xc5, 0xc6, 0xc8, 0xca, 0xe5, 0xe6, 0xe7, 0xec, 0xef, 0xf8,
    ];
    let command = prop_oneof![prop::sample::select(commands.to_vec()), any::<u8>()];
    let small = || prop_oneof![0..4_u8, any::<u8>()];
    let registers = (small(), small(), small(), 0..2_u8, 0..2_u8);
    let operations =
        [0, 3, 0x12, 0x1a, 0x1b, 0x1e, 0x25, 0x28, 0x28, 0x42, 0x43, 0x46, 0x4a, 0x51, 0x5a, 0xbe];
    let operation = prop_oneof![prop::sample::select(operations.to_vec()), any::<u8>()];
    let packet = (operation, prop::collection::vec(small(), 11));
    let ports: &'static [u16] = &[
        DATA_PORT, ERROR, COUNT, LBA_LOW, LBA_MID, LBA_HIGH, DEVICE, STATUS, CONTROL, 0x170, 0x177,
        0x376, MASTER, 0xc002, 0xc004, 0xc008, 0xc00f,
    ];
    let width = prop::sample::select(&[Width::Byte, Width::Word, Width::Dword][..]);
    let event = prop_oneof![
        6 => (prop::sample::select(ports), width, any::<Option<u32>>())
            .prop_map(|(port, width, value)| vec![Event::Port(port, width, value)]),
        4 => (any::<bool>(), registers, command).prop_map(|(slave, (a, b, c, d, e), command)| {
            vec![Event::Command { slave, registers: [a, b, c, d, e], command }]
        }),
        3 => packet.prop_map(|(operation, rest)| {
            let registers = [operation & 1, 0, 0, 0, 4];
            let packet = [vec![operation], rest].concat();
            vec![Event::Command { slave: true, registers, command: 0xa0 }, Event::Packet(packet)]
        }),
        4 => (any::<bool>(), 0..0x20_0000_u32).prop_map(|(to_memory, table)| {
            vec![Event::Dma { to_memory, table }]
        }),
        1 => (any::<u8>(), any::<u32>()).prop_map(|(offset, value)| {
            vec![Event::Config(offset & 0xfc, value)]
        }),
        6 => prop::bool::weighted(0.9).prop_map(|good| vec![Event::Answer { good }]),
        1 => (0..5_u8, prop::option::of(0..5000_u64)).prop_map(|(unit, sectors)| {
            vec![Event::Medium(unit, sectors)]
        }),
    ];
    prop::collection::vec(event, 0..80).prop_map(|events| events.concat())
}

proptest! {
    #[test]
    fn any_accesses_leave_a_state_that_can_be_saved(
        blows in blows(&[
            DATA_PORT, ERROR, COUNT, LBA_LOW, LBA_MID, LBA_HIGH, DEVICE, STATUS, CONTROL, 0x170,
            0x172, 0x176, 0x177, 0x376, 0xc000,
        ]),
    ) {
        let ide = || Ide::new(&[Some(disk(DISK_SECTORS)), Some(cd_rom(400)), Some(cd_rom(0)), None]);
        hammer(&mut ide(), &mut ide(), blows);
    }

    #[test]
    fn any_guest_and_any_answers_leave_a_state_that_can_be_saved(events in events()) {
        let drives = || [Some(disk(DISK_SECTORS)), Some(cd_rom(400)), Some(cd_rom(0)), None];
        let mut machine = Machine::new(&drives());
        machine.answers = false;
        for event in events {
            match event {
                Event::Port(port, width, None) => {
                    machine.read_wide(port, width);
                }
                Event::Port(port, width, Some(value)) => {
                    machine.write_wide(port, width, value & width.mask());
                }
                Event::Command { slave, registers, command } => {
                    machine.write(DEVICE, if slave { 0x50 } else { 0x40 });
                    for (port, value) in (FEATURES..).zip(registers) {
                        machine.write(port, value);
                    }
                    machine.write(COMMAND, command);
                }
                Event::Packet(packet) => machine.write_data(&packet),
                Event::Dma { to_memory, table } => {
                    machine.write(MASTER, 0);
                    machine.write_wide(MASTER + 4, Width::Dword, table);
                    machine.write(MASTER, 1 | u8::from(to_memory) << 3);
                }
                Event::Config(offset, value) => machine.write_config(offset, value),
                Event::Answer { good } => {
                    for (unit, request) in std::mem::take(&mut machine.asked) {
                        let result = machine.execute(unit, &request.operation);
                        let result = if good { result } else { Err(DiskError::Host) };
                        machine.answer(request.tag, result);
                        machine.pump();
                    }
                }
                Event::Medium(unit, sectors) => {
                    let medium = sectors.map(|sectors| Medium { sectors, read_only: true });
                    let input = DeviceInput::Medium { unit, medium };
                    machine.ide.input(&mut machine.bench.context(), input);
                }
            }
        }
        let state = machine.ide.save();
        let mut fresh = Ide::new(&drives());
        prop_assert_eq!(fresh.restore(&state), Ok(()));
        prop_assert_eq!(fresh.save(), state);
    }
}
