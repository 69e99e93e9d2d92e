use proptest::prelude::*;

use super::*;
use crate::hammer::{blows_and_inputs, hammer};
use ring3_core::device::{DeviceId, Output, TestBench};
use ring3_core::disk::{DiskAnswer, DiskError, DiskOperation, DiskRequest, DriveId, SECTOR_SIZE};

const HD: Medium = Medium { sectors: 2880, read_only: false };

/// A controller with a diskette in drive A, out of reset and with its head on track 0.
struct Machine {
    bench: TestBench,
    floppy: Floppy,
    image: Vec<u8>,
    /// What the DMA channel is set up for: the bytes to move until terminal count.
    dma_bytes: Vec<u8>,
    dma_position: usize,
}

impl Machine {
    fn with(medium: Option<Medium>) -> Machine {
        let kind = medium.map_or(DriveKind::Mb1_44, |m| DriveKind::for_image(m.sectors).unwrap());
        let floppy = Floppy::new([Some(kind), None], [medium, None]);
        let bytes = medium.map_or(0, |medium| medium.sectors as usize * SECTOR_SIZE);
        let mut image = vec![0; bytes];
        for (number, sector) in image.chunks_mut(SECTOR_SIZE).enumerate() {
            // A byte of its own.
            sector.fill((number % 251) as u8);
        }
        let mut machine = Machine {
            bench: TestBench::default(),
            floppy,
            image,
            dma_bytes: Vec::new(),
            dma_position: 0,
        };
        machine.write(DIGITAL_OUTPUT, DOR_RUN | DOR_GATE | DOR_MOTOR_0);
        machine.pass(RESET_NANOS);
        for drive in 0..4 {
            assert_eq!(machine.command(&[0x08]), [0xc0 | drive, 0]);
        }
        machine.write(DIGITAL_INPUT, 0);
        assert_eq!(machine.command(&[0x03, 0xdf, 0x02]), []);
        machine
    }

    fn new() -> Machine {
        Machine::with(Some(HD))
    }

    fn write(&mut self, port: u16, value: u8) {
        self.bench.write(&mut self.floppy, port, value);
        self.settle();
    }

    fn read(&mut self, port: u16) -> u8 {
        let value = self.bench.read(&mut self.floppy, port);
        self.settle();
        value
    }

    fn pass(&mut self, nanos: u64) {
        for _ in 0..nanos.div_ceil(50_000) {
            self.bench.advance(&mut self.floppy, 50_000);
            self.settle();
        }
    }

    /// Does what the board, the DMA controller and the drive do after a call.
    fn settle(&mut self) {
        loop {
            let requests = std::mem::take(&mut self.bench.outputs);
            if requests.is_empty() && self.serve_dma() == 0 {
                return;
            }
            for output in requests {
                let Output::Disk { drive: DriveId { device: TestBench::DEVICE, unit: 0 }, request } =
                    output
                else {
                    panic!("{output:?}");
                };
                let answer = self.drive(request);
                self.floppy.input(&mut self.bench.context(), DeviceInput::Disk(answer));
            }
        }
    }

    fn drive(&mut self, DiskRequest { tag, operation }: DiskRequest) -> DiskAnswer {
        let result = match operation {
            DiskOperation::Read { sector, count } => {
                let start = sector as usize * SECTOR_SIZE;
                Ok(self.image[start..start + count as usize * SECTOR_SIZE].to_vec())
            }
            DiskOperation::Write { sector, data } => {
                let start = sector as usize * SECTOR_SIZE;
                self.image[start..start + data.len()].copy_from_slice(&data);
                Ok(Vec::new())
            }
            other => panic!("{other:?}"),
        };
        DiskAnswer { tag, result }
    }

    fn serve_dma(&mut self) -> usize {
        let rest = &mut self.dma_bytes[self.dma_position..];
        if self.bench.dma.driver(DMA_CHANNEL).is_none() || rest.is_empty() {
            return 0;
        }
        let from_host = self.floppy.state.execution.as_ref().unwrap().is_from_host();
        let bytes = if from_host { DmaBytes::ToDevice(rest) } else { DmaBytes::FromDevice(rest) };
        let moved = self.floppy.dma(&mut self.bench.context(), DMA_CHANNEL, bytes);
        self.dma_position += moved;
        moved
    }

    fn set_up_dma(&mut self, bytes: Vec<u8>) {
        self.dma_bytes = bytes;
        self.dma_position = 0;
    }

    fn interrupts(&self) -> bool {
        self.bench.irq.is_high(IRQ)
    }

    /// Writes a command and reads its result if that is there at once.
    fn command(&mut self, bytes: &[u8]) -> Vec<u8> {
        for byte in bytes {
            assert_eq!(self.read(MAIN_STATUS) & 0xc0, MSR_REQUEST, "ready for a byte");
            self.write(DATA, *byte);
        }
        self.result()
    }

    fn result(&mut self) -> Vec<u8> {
        let mut result = Vec::new();
        while self.read(MAIN_STATUS) & 0xe0 == MSR_REQUEST | MSR_TO_HOST {
            result.push(self.read(DATA));
        }
        result
    }

    /// The same for a command with an execution phase: it ends with an interrupt, which reading the result takes back.
    fn execute(&mut self, bytes: &[u8]) -> Vec<u8> {
        assert_eq!(self.command(bytes), []);
        assert!(!self.interrupts());
        assert_eq!(self.read(MAIN_STATUS) & 0x9f, MSR_BUSY);
        self.pass(10_000_000);
        assert!(self.interrupts());
        let result = self.result();
        assert!(!self.interrupts());
        result
    }

    fn seek(&mut self, cylinder: u8) {
        assert_eq!(self.command(&[0x0f, 0, cylinder]), []);
        assert_eq!(self.read(MAIN_STATUS), MSR_REQUEST | 1, "drive 0 is busy");
        self.pass(SETTLE_NANOS + 80 * STEP_NANOS);
        assert!(self.interrupts());
        assert_eq!(self.command(&[0x08]), [0x20, cylinder]);
        assert!(!self.interrupts());
        assert_eq!(self.read(MAIN_STATUS), MSR_REQUEST);
    }
}

#[test]
fn a_reset_interrupts_and_reports_four_drives() {
    let mut machine = Machine { bench: TestBench::default(), ..Machine::new() };
    machine.write(DIGITAL_OUTPUT, 0);
    assert_eq!(machine.read(MAIN_STATUS), 0);
    machine.write(DIGITAL_OUTPUT, DOR_RUN | DOR_GATE);
    assert!(!machine.interrupts(), "not at once");
    machine.pass(RESET_NANOS);
    assert!(machine.interrupts());
    for drive in 0..4 {
        assert_eq!(machine.command(&[0x08]), [0xc0 | drive, 0]);
        assert!(!machine.interrupts());
    }
    assert_eq!(machine.command(&[0x08]), [0x80], "nothing is left");
    machine.write(MAIN_STATUS, DSR_RESET | 2);
    assert_eq!(machine.read(MAIN_STATUS), 0);
    machine.pass(RESET_NANOS);
    assert!(machine.interrupts());
    machine.write(DIGITAL_OUTPUT, DOR_RUN);
    assert!(!machine.interrupts(), "the gate is closed");
}

#[test]
fn seeks_move_the_head_and_take_a_change_back() {
    let mut machine = Machine::new();
    assert_eq!(machine.read(DIGITAL_INPUT), DIR_CHANGED);
    assert_eq!(machine.command(&[0x04, 0x04]), [ST3_ONES | ST3_TRACK_0 | 0x04]);
    machine.seek(7);
    assert_eq!(machine.read(DIGITAL_INPUT), 0);
    assert_eq!(machine.command(&[0x04, 0x00]), [ST3_ONES]);
    assert_eq!(machine.command(&[0xcf, 0, 3]), []);
    machine.pass(1_000_000);
    assert_eq!(machine.command(&[0x08]), [0x20, 10]);
    assert_eq!(machine.command(&[0x8f, 0, 1]), []);
    machine.pass(1_000_000);
    assert_eq!(machine.command(&[0x08]), [0x20, 9]);
    assert_eq!(machine.command(&[0x07, 0]), []);
    machine.pass(3_000_000);
    assert_eq!(machine.command(&[0x08]), [0x20, 0]);
    assert_eq!(machine.command(&[0x04, 0x00]), [ST3_ONES | ST3_TRACK_0]);
}

#[test]
fn a_drive_that_is_not_there_has_no_track_0() {
    let mut machine = Machine::new();
    assert_eq!(machine.command(&[0x07, 1]), []);
    machine.pass(3_000_000);
    assert_eq!(machine.command(&[0x08]), [0x71, 0]);
    machine.write(DIGITAL_OUTPUT, 0x2d);
    assert_eq!(machine.read(DIGITAL_INPUT), 0);
}

#[test]
fn sectors_are_read_by_dma_until_terminal_count() {
    let mut machine = Machine::new();
    machine.seek(3);
    machine.set_up_dma(vec![0; 1024]);
    let result = machine.execute(&[0xe6, 0x04, 3, 1, 17, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [0x04, 0, 0, 4, 0, 1, 2], "the next is on the next cylinder");
    let sector = (3 * 2 + 1) * 18 + 16;
    assert_eq!(machine.dma_bytes[..512], [sector as u8; 512]);
    assert_eq!(machine.dma_bytes[512..], [sector as u8 + 1; 512]);
}

#[test]
fn a_multi_track_read_continues_on_the_other_side() {
    let mut machine = Machine::new();
    machine.set_up_dma(vec![0; 36 * 512]);
    let result = machine.execute(&[0xe6, 0x00, 0, 0, 1, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [0x04, 0, 0, 1, 0, 1, 2]);
    assert!(machine.dma_bytes == machine.image[..36 * 512]);
    machine.set_up_dma(vec![0; 4096]);
    let result = machine.execute(&[0x46, 0x00, 0, 0, 17, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [0x40, 0x80, 0, 1, 0, 1, 2], "without it, the cylinder ends");
    assert_eq!(machine.dma_position, 1024);
}

#[test]
fn sectors_are_written_and_the_last_one_filled_up() {
    let mut machine = Machine::new();
    machine.set_up_dma(vec![0xa5; 700]);
    let result = machine.execute(&[0xc5, 0x00, 0, 0, 5, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [0x00, 0, 0, 0, 0, 7, 2]);
    let written = &machine.image[4 * 512..6 * 512];
    assert!(written[..700].iter().all(|byte| *byte == 0xa5));
    assert!(written[700..].iter().all(|byte| *byte == 0));
    assert_eq!(machine.image[6 * 512], 6);
}

#[test]
fn without_dma_each_byte_goes_through_the_data_register() {
    let mut machine = Machine::new();
    machine.command(&[0x03, 0xdf, 0x03]);
    machine.command(&[0x46, 0x00, 0, 0, 2, 2, 2, 0x1b, 0xff]);
    machine.pass(1_000_000);
    assert!(machine.interrupts());
    for _ in 0..512 {
        assert_eq!(machine.read(MAIN_STATUS), 0xf0);
        assert_eq!(machine.read(DATA), 1);
    }
    assert_eq!(machine.result(), [0x40, 0x80, 0, 1, 0, 1, 2], "nobody ends it in time");
    machine.command(&[0x45, 0x00, 0, 0, 2, 2, 2, 0x1b, 0xff]);
    machine.pass(1_000_000);
    for byte in 0..512 {
        assert_eq!(machine.read(MAIN_STATUS), 0xb0);
        machine.write(DATA, byte as u8);
    }
    assert_eq!(machine.result(), [0x40, 0x80, 0, 1, 0, 1, 2]);
    assert_eq!(machine.image[512..516], [0, 1, 2, 3]);
}

#[test]
fn errors_of_a_search_state_the_reason() {
    let mut machine = Machine::new();
    machine.set_up_dma(vec![0; 512]);
    let read = |c: u8, h: u8, r: u8, n: u8| [0x46, h << 2, c, h, r, n, 18, 0x1b, 0xff];
    assert_eq!(machine.execute(&read(0, 0, 19, 2))[..3], [0x40, 0x04, 0]);
    assert_eq!(machine.execute(&read(0, 0, 0, 2))[..3], [0x40, 0x04, 0]);
    assert_eq!(machine.execute(&read(5, 0, 1, 2))[..3], [0x40, 0x04, 0x10], "another cylinder");
    assert_eq!(machine.execute(&read(0xff, 0, 1, 2))[..3], [0x40, 0x04, 0x12]);
    assert_eq!(machine.execute(&read(0, 0, 1, 3))[..3], [0x40, 0x04, 0]);
    let single_density = [0x06, 0, 0, 0, 1, 2, 18, 0x1b, 0xff];
    assert_eq!(machine.execute(&single_density)[..3], [0x40, 0x01, 0]);
    machine.write(DIGITAL_INPUT, 2);
    assert_eq!(machine.execute(&read(0, 1, 1, 2))[..3], [0x44, 0x01, 0], "the wrong data rate");
    machine.write(DIGITAL_INPUT, 0);
    machine.write(DIGITAL_OUTPUT, DOR_RUN | DOR_GATE);
    assert_eq!(machine.execute(&read(0, 0, 1, 2))[..3], [0x40, 0x01, 0], "the motor is off");
    let mut empty = Machine::with(None);
    assert_eq!(empty.execute(&read(0, 0, 1, 2))[..3], [0x40, 0x01, 0]);
}

#[test]
fn a_protected_diskette_is_not_written() {
    let mut machine = Machine::with(Some(Medium { read_only: true, ..HD }));
    assert_eq!(machine.command(&[0x04, 0])[0] & ST3_PROTECTED, ST3_PROTECTED);
    machine.set_up_dma(vec![0xff; 512]);
    let result = machine.execute(&[0x45, 0x00, 0, 0, 1, 2, 18, 0x1b, 0xff]);
    assert_eq!(result[..3], [0x40, 0x02, 0]);
    assert_eq!(machine.dma_position, 0);
    assert_eq!(machine.execute(&[0x4d, 0x00, 2, 18, 0x54, 0xf6])[..3], [0x40, 0x02, 0]);
}

#[test]
fn formatting_fills_the_sectors_that_are_named() {
    let mut machine = Machine::new();
    machine.seek(1);
    let ids = (1..=18).flat_map(|sector| [1, 1, sector, 2]).collect();
    machine.set_up_dma(ids);
    let result = machine.execute(&[0x4d, 0x04, 2, 18, 0x54, 0xf6]);
    assert_eq!(result[..3], [0x04, 0, 0]);
    let track = 3 * 18 * 512..4 * 18 * 512;
    assert!(machine.image[track.clone()].iter().all(|byte| *byte == 0xf6));
    assert_eq!(machine.image[track.start - 1], 53);
    assert_eq!(machine.image[track.end], 72);
    machine.set_up_dma(vec![1, 1, 19, 2]);
    assert_eq!(machine.execute(&[0x4d, 0x04, 2, 19, 0x54, 0xf6])[..3], [0x44, 0x02, 0]);
}

#[test]
fn verify_read_track_and_deleted_data() {
    let mut machine = Machine::new();
    let verified = machine.execute(&[0xd6, 0x00, 0, 0, 1, 2, 18, 0x1b, 0xff]);
    assert_eq!(verified, [0x04, 0, 0, 1, 0, 1, 2]);
    let counted = machine.execute(&[0x56, 0x80, 0, 0, 4, 2, 18, 0x1b, 3]);
    assert_eq!(counted, [0x00, 0, 0, 0, 0, 7, 2]);
    machine.set_up_dma(vec![0; 8192]);
    let track = machine.execute(&[0x42, 0x00, 9, 0, 9, 2, 4, 0x1b, 0xff]);
    assert_eq!((track[..3].to_vec(), machine.dma_position), (vec![0, 0, 0], 4 * 512));
    machine.set_up_dma(vec![0; 8192]);
    let deleted = machine.execute(&[0x4c, 0x00, 0, 0, 3, 2, 18, 0x1b, 0xff]);
    assert_eq!(deleted, [0x00, 0, 0x40, 0, 0, 3, 2]);
    assert_eq!(machine.dma_position, 512);
    let skipped = machine.execute(&[0x6c, 0x00, 0, 0, 3, 2, 18, 0x1b, 0xff]);
    assert_eq!(skipped[..3], [0x40, 0x80, 0]);
    assert_eq!(machine.dma_position, 512);
}

#[test]
fn read_id_reports_the_position_of_the_head() {
    let mut machine = Machine::new();
    machine.seek(12);
    let result = machine.execute(&[0x4a, 0x04]);
    assert_eq!(result[..5], [0x04, 0, 0, 12, 1]);
    assert!((1..=18).contains(&result[5]));
    assert_eq!(result[6], 2);
    machine.write(DIGITAL_INPUT, 3);
    assert_eq!(machine.execute(&[0x4a, 0x04])[..3], [0x44, 0x01, 0]);
}

#[test]
fn an_implied_seek_goes_to_the_cylinder_first() {
    let mut machine = Machine::new();
    machine.command(&[0x13, 0, 0x57, 0]);
    machine.set_up_dma(vec![0; 512]);
    let result = machine.execute(&[0x46, 0x00, 2, 0, 1, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [0, 0, 0, 2, 0, 2, 2]);
    assert_eq!(machine.dma_bytes[0], 72);
}

#[test]
fn lock_keeps_the_settings_at_a_reset() {
    let mut machine = Machine::new();
    assert_eq!(machine.command(&[0x10]), [0x90]);
    assert_eq!(machine.command(&[0x18]), [0x80], "PART ID is a later chip's");
    assert_eq!(machine.command(&[0x1f]), [0x80]);
    assert_eq!(machine.command(&[0x13, 0, 0x5a, 0x30]), []);
    assert_eq!(machine.command(&[0x12, 0x84 | 3]), []);
    assert_eq!(machine.command(&[0x94]), [0x10]);
    let registers = machine.command(&[0x0e]);
    assert_eq!(registers, [0, 0, 0, 0, 0xdf, 0x02, 0, 0x87, 0x5a, 0x30]);
    machine.write(MAIN_STATUS, DSR_RESET);
    machine.pass(RESET_NANOS);
    assert_eq!(machine.command(&[0x0e])[7..], [0x84, 0x0a, 0x30], "what is locked stays");
    assert_eq!(machine.command(&[0x14]), [0x00]);
    machine.write(MAIN_STATUS, DSR_RESET);
    machine.pass(RESET_NANOS);
    assert_eq!(machine.command(&[0x0e])[7..], [0x04, 0x20, 0x00]);
}

#[test]
fn a_new_diskette_shows_and_may_have_another_format() {
    let mut machine = Machine::new();
    machine.seek(1);
    let medium = Some(Medium { sectors: 1440, read_only: false });
    machine.floppy.input(&mut machine.bench.context(), DeviceInput::Medium { unit: 0, medium });
    assert_eq!(machine.read(DIGITAL_INPUT), DIR_CHANGED);
    machine.seek(2);
    assert_eq!(machine.read(DIGITAL_INPUT), 0);
    machine.write(DIGITAL_INPUT, 2);
    machine.set_up_dma(vec![0; 512]);
    assert_eq!(machine.execute(&[0x46, 0, 2, 0, 9, 2, 9, 0x1b, 0xff])[..3], [0, 0, 0]);
    assert_eq!(machine.dma_bytes[0], 2 * 18 + 8);
}

#[test]
fn a_reset_breaks_a_command_off_and_its_answer_is_ignored() {
    let mut machine = Machine::new();
    for byte in [0x46, 0x00, 0, 0, 1, 2, 18, 0x1b, 0xff] {
        machine.bench.write(&mut machine.floppy, DATA, byte);
    }
    machine.bench.advance(&mut machine.floppy, 1_000_000);
    let request = machine.bench.outputs.pop();
    let Some(Output::Disk { request: DiskRequest { tag, .. }, .. }) = request else {
        panic!("{request:?}");
    };
    machine.write(MAIN_STATUS, DSR_RESET);
    machine.pass(RESET_NANOS);
    let answer = DiskAnswer { tag, result: Err(DiskError::Host) };
    machine.floppy.input(&mut machine.bench.context(), DeviceInput::Disk(answer));
    assert_eq!(machine.command(&[0x08]), [0xc0, 0]);
    machine.set_up_dma(vec![0; 512]);
    let read = [0x46, 0x00, 0, 0, 1, 2, 18, 0x1b, 0xff];
    assert_eq!(machine.execute(&read)[..3], [0, 0, 0]);
}

#[test]
fn failures_of_the_host_are_errors_of_the_diskette() {
    for (error, status) in [
        (DiskError::Host, [0x40, 0x20, 0x20]),
        (DiskError::NoMedium, [0x40, 0x01, 0]),
        (DiskError::ReadOnly, [0x40, 0x02, 0]),
    ] {
        let mut machine = Machine::new();
        for byte in [0x46, 0x00, 0, 0, 1, 2, 18, 0x1b, 0xff] {
            machine.bench.write(&mut machine.floppy, DATA, byte);
        }
        machine.bench.advance(&mut machine.floppy, 1_000_000);
        let Some(Output::Disk { request, .. }) = machine.bench.outputs.pop() else { panic!() };
        let answer = DiskAnswer { tag: request.tag, result: Err(error) };
        machine.floppy.input(&mut machine.bench.context(), DeviceInput::Disk(answer));
        assert_eq!(machine.result()[..3], status);
    }
}

#[test]
fn a_saved_controller_continues_in_the_middle_of_a_sector() {
    let mut machine = Machine::new();
    machine.set_up_dma(vec![0; 100]);
    machine.command(&[0x03, 0xdf, 0x03]);
    machine.command(&[0x46, 0x00, 0, 0, 2, 2, 2, 0x1b, 0xff]);
    machine.pass(1_000_000);
    for _ in 0..100 {
        machine.read(DATA);
    }
    let saved = machine.floppy.save();
    machine.floppy = Floppy::new([Some(DriveKind::Mb1_44), None], [None, None]);
    machine.floppy.restore(&saved).unwrap();
    assert_eq!(machine.floppy.save(), saved);
    for _ in 0..412 {
        assert_eq!(machine.read(DATA), 1);
    }
    assert_eq!(machine.result().len(), 7);
}

#[test]
fn impossible_states_are_refused() {
    let mut floppy = Machine::new().floppy;
    let mut state = floppy.state.clone();
    state.command = vec![0; LONGEST_COMMAND];
    let saved = SavedState::new(DeviceId::FLOPPY.name(), VERSION, &state);
    assert!(matches!(floppy.restore(&saved), Err(RestoreError::Damaged { .. })));
}

/// Answers of drives, to requests that may have been made, and diskettes that are changed.
fn inputs() -> impl Strategy<Value = DeviceInput> {
    let errors = [DiskError::OutOfRange, DiskError::ReadOnly, DiskError::NoMedium, DiskError::Host];
    let result = prop_oneof![
        4 => Just(Ok(vec![0x5a; SECTOR_SIZE])),
        1 => (0..2000_usize).prop_map(|len| Ok(vec![0; len])),
        1 => prop::sample::select(errors.to_vec()).prop_map(Err),
    ];
    let answer =
        (0..8_u64, result).prop_map(|(tag, result)| DeviceInput::Disk(DiskAnswer { tag, result }));
    let medium = prop::option::of((any::<u64>(), 0..6000_u64, any::<bool>(), any::<bool>()));
    let medium = (any::<u8>(), medium).prop_map(|(unit, medium)| DeviceInput::Medium {
        unit: unit % 3,
        medium: medium.map(|(wild, sectors, is_wild, read_only)| Medium {
            sectors: if is_wild { wild } else { sectors },
            read_only,
        }),
    });
    prop_oneof![3 => answer, 1 => medium]
}

/// The beginnings of commands, so that the random bytes that follow are their options.
const COMMANDS: [u8; 18] = [
    0x42, 0x45, 0xc5, 0x46, 0xe6, 0x4a, 0x4c, 0x6c, 0x4d, 0xd6, 0x03, 0x07, 0x08, 0x0f, 0x8f, 0x12,
    0x13, 0x0e,
];

proptest! {
    #[test]
    fn any_accesses_leave_a_state_that_can_be_saved(
        commands in prop::collection::vec(
            (prop::sample::select(&COMMANDS[..]), any::<[u8; 8]>(), any::<u16>()),
            0..12,
        ),
        non_dma in any::<bool>(),
        blows in blows_and_inputs(&[0x3f0, 0x3f2, 0x3f4, 0x3f5, 0x3f5, 0x3f5, 0x3f7], inputs()),
    ) {
        let mut machine = Machine::new();
        machine.command(&[0x03, 0, u8::from(non_dma)]);
        for (command, options, nanos) in commands {
            machine.set_up_dma(vec![0; usize::from(options[7]) * 8]);
            machine.write(DATA, command);
            for option in options {
                // Small values, so that sectors are found.
                machine.write(DATA, option % 20);
            }
            machine.pass(u64::from(nanos) * 10);
            machine.read(DATA);
        }
        let mut fresh = Floppy::new([Some(DriveKind::Mb1_44), None], [None, None]);
        hammer(&mut machine.floppy, &mut fresh, blows);
    }
}
