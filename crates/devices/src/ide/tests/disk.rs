//! ATA disks, by ATA/ATAPI-6.

use super::*;

const DRDY_DSC: u8 = 0x50;
const DRQ: u8 = 0x58;
const BSY: u8 = 0x80;
const FAILED: u8 = 0x51;

fn machine() -> Machine {
    Machine::new(&[Some(disk(DISK_SECTORS)), None, None, None])
}

#[test]
fn a_reset_leaves_the_signature() {
    let mut machine = Machine::new(&[Some(disk(DISK_SECTORS)), Some(cd_rom(400)), None, None]);
    for start in [0, 1] {
        if start == 1 {
            machine.command28(0x20, 0x123456, 9);
            machine.write(CONTROL, 0x04);
            assert_eq!(machine.read(STATUS), BSY);
            machine.write(COMMAND, 0xec);
            machine.write(CONTROL, 0x00);
        }
        let read = |machine: &mut Machine| {
            [ERROR, COUNT, LBA_LOW, LBA_MID, LBA_HIGH, STATUS].map(|port| machine.read(port))
        };
        assert_eq!(read(&mut machine), [1, 1, 1, 0, 0, DRDY_DSC]);
        machine.write(DEVICE, 0x10);
        assert_eq!(read(&mut machine), [1, 1, 1, 0x14, 0xeb, 0]);
    }
}

#[test]
fn where_no_drive_is_nothing_answers() {
    let mut machine = machine();
    machine.write(DEVICE, 0x10);
    machine.write(COUNT, 0x55);
    machine.write(COMMAND, 0xec);
    assert_eq!([COUNT, STATUS, CONTROL].map(|port| machine.read(port)), [0; 3]);
    machine.write(DEVICE, 0x00);
    assert_eq!((machine.read(STATUS), machine.read(COUNT)), (DRDY_DSC, 0x55));
    machine.write(0x177, 0xec);
    assert_eq!((machine.read(0x177), machine.read_wide(0x170, Width::Word)), (0, 0));
}

#[test]
fn the_diagnostic_passes_and_interrupts() {
    let mut machine =
        Machine::new(&[Some(disk(DISK_SECTORS)), Some(disk(DISK_SECTORS)), None, None]);
    machine.write(DEVICE, 0x10);
    machine.write(COMMAND, 0x90);
    assert_eq!(machine.interrupt(), (true, true));
    assert_eq!((machine.read(DEVICE), machine.read(ERROR)), (0xa0, 1));
    assert_eq!(machine.read(STATUS), DRDY_DSC);
    assert_eq!(machine.interrupt(), (false, false));
}

#[test]
fn a_disk_identifies_itself() {
    let mut machine = machine();
    machine.write(COMMAND, 0xec);
    assert_eq!(machine.interrupt(), (true, true));
    assert_eq!(machine.read(STATUS), DRQ);
    let data = machine.read_data(512);
    assert_eq!(machine.read(STATUS), DRDY_DSC);
    assert_eq!(machine.interrupt(), (false, false), "the end of PIO to the host is no event");
    let word = |index: usize| u16::from_le_bytes([data[2 * index], data[2 * index + 1]]);
    assert_eq!([word(1), word(3), word(6)], [2, 16, 63]);
    assert_eq!(&data[54..64], b"ETTSD IREV", "two characters a word, swapped");
    assert_eq!(&data[20..24], b"NS 1");
    assert_eq!((word(60), word(61), word(100), word(102)), (2048, 0, 2048, 0));
    assert_eq!(word(63), 0x0407, "multiword DMA mode 2 is chosen");
    assert_eq!(word(83) & 0xc400, 0x4400, "48-bit addresses");
    assert_eq!(machine.read_wide(DATA_PORT, Width::Word), 0xffff, "no data, no more words");
}

#[test]
fn identification_reports_the_settings() {
    let mut machine = machine();
    machine.command28(0xc6, 0, 8);
    assert_eq!(machine.read(STATUS), DRDY_DSC);
    let set_features = |machine: &mut Machine, feature: u8, count: u8| {
        machine.write(FEATURES, feature);
        machine.command28(0xef, 0, count);
        machine.read(STATUS)
    };
    assert_eq!(set_features(&mut machine, 0x03, 0x42), DRDY_DSC);
    assert_eq!(set_features(&mut machine, 0x82, 0), DRDY_DSC);
    assert_eq!(machine.flushes, 1, "the cache is emptied when it is disabled");
    assert_eq!(set_features(&mut machine, 0x03, 0x47), FAILED);
    assert_eq!(machine.read(ERROR), 0x04);
    assert_eq!(set_features(&mut machine, 0xcc, 0), DRDY_DSC);
    // INITIALIZE DEVICE PARAMETERS: 4 heads of 32 sectors.
    machine.write(COUNT, 32);
    machine.write(DEVICE, 0x03);
    machine.write(COMMAND, 0x91);
    let words = |machine: &mut Machine, indices: [usize; 6]| {
        machine.write(COMMAND, 0xec);
        let data = machine.read_data(512);
        indices.map(|index| u16::from_le_bytes([data[2 * index], data[2 * index + 1]]))
    };
    let indices = [54, 55, 57, 59, 85, 88];
    assert_eq!(words(&mut machine, indices), [16, 4, 2048, 0x108, 0x4048, 0x0407]);
    machine.write(CONTROL, 0x04);
    machine.write(CONTROL, 0x00);
    assert_eq!(words(&mut machine, indices), [2, 16, 2016, 0, 0x4068, 0x0007], "they revert");
}

#[test]
fn sectors_are_read_with_an_interrupt_each() {
    let mut machine = machine();
    machine.command28(0x20, 1000, 3);
    for sector in 1000..1003 {
        assert_eq!(machine.interrupt(), (true, true));
        assert_eq!(machine.read(STATUS), DRQ);
        let data = machine.read_data(512);
        assert_eq!(data, machine.media[0][sector * 512..][..512]);
    }
    assert_eq!(machine.interrupt(), (false, false));
    assert_eq!(machine.read(STATUS), DRDY_DSC);
}

#[test]
fn written_sectors_are_on_the_medium_when_the_command_ends() {
    let mut machine = machine();
    let data: Vec<u8> = (0..512 * 300).map(|index| (index / 7) as u8).collect();
    machine.command48(0x34, 5, 300);
    assert_eq!(machine.interrupt(), (false, false), "the first block needs no interrupt");
    for sector in data.chunks(512) {
        assert_eq!(machine.read(STATUS), DRQ);
        machine.write_data(sector);
        assert_eq!(machine.interrupt(), (true, true));
    }
    assert_eq!(machine.read(STATUS), DRDY_DSC);
    assert_eq!(machine.media[0][5 * 512..][..data.len()], data);
    assert_eq!(machine.flushes, 0);
    machine.write(COMMAND, 0xe7);
    assert_eq!((machine.flushes, machine.read(STATUS)), (1, DRDY_DSC));
}

#[test]
fn a_data_request_of_a_multiple_command_covers_a_block() {
    let mut machine = machine();
    machine.command28(0xc4, 0, 5);
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x04), "it is off");
    machine.command28(0xc6, 0, 3);
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x04), "no power of two");
    machine.command28(0xc6, 0, 4);
    machine.command48(0x29, 10, 261);
    let mut data = Vec::new();
    let mut interrupts = 0;
    while machine.read(CONTROL) == DRQ {
        let (_, rose) = machine.interrupt();
        interrupts += u32::from(rose);
        machine.read(STATUS);
        data.extend(machine.read_data(512));
    }
    assert_eq!((interrupts, machine.read(STATUS)), (66, DRDY_DSC));
    assert_eq!(data, machine.media[0][10 * 512..271 * 512]);
    machine.command28(0xc5, 100, 6);
    machine.write_data(&[0xaa; 2048]);
    assert_eq!(machine.interrupt(), (true, true));
    assert_eq!(machine.media[0][100 * 512], pattern(100 * 512), "the drive waits for all of it");
    machine.write_data(&[0xbb; 1024]);
    assert_eq!(
        machine.media[0][100 * 512..106 * 512],
        [[0xaa; 2048].as_slice(), &[0xbb; 1024]].concat()
    );
}

#[test]
fn an_old_address_is_a_cylinder_a_head_and_a_sector() {
    let mut machine = machine();
    for (port, value) in [(DEVICE, 0x02), (COUNT, 1), (LBA_LOW, 4), (LBA_MID, 1), (LBA_HIGH, 0)] {
        machine.write(port, value);
    }
    machine.write(COMMAND, 0x20);
    let sector = (16 + 2) * 63 + 3;
    assert_eq!(machine.read_data(512), machine.media[0][sector * 512..][..512]);
    machine.write(LBA_LOW, 0);
    machine.write(COMMAND, 0x20);
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x10), "there is no sector 0");
}

#[test]
fn addresses_of_48_bits_reach_far() {
    let mut machine = Machine::new(&[Some(disk(1 << 40)), None, None, None]);
    machine.answers = false;
    machine.command48(0x42, 0xab_1234_5678, 0);
    assert_eq!(machine.read(STATUS) & BSY, BSY);
    let (unit, request) = machine.asked.pop().unwrap();
    let operation = DiskOperation::Read { sector: 0xab_1234_5678, count: 256 };
    assert_eq!((unit, &request.operation), (0, &operation));
    machine.answer(request.tag, Ok(vec![0; 256 * 512]));
    machine.pump();
    let (_, request) = machine.asked.pop().unwrap();
    machine.answer(request.tag, Err(DiskError::Host));
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x40));
    let low = [LBA_LOW, LBA_MID, LBA_HIGH].map(|port| machine.read(port));
    machine.write(CONTROL, 0x80);
    let high = [LBA_LOW, LBA_MID, LBA_HIGH].map(|port| machine.read(port));
    assert_eq!((low, high), ([0x78, 0x57, 0x34], [0x12, 0xab, 0x00]), "one part further");
    machine.write(CONTROL, 0);
    machine.write(COMMAND, 0x27);
    assert_eq!([LBA_LOW, LBA_MID, LBA_HIGH].map(|port| machine.read(port)), [0xff; 3]);
    machine.write(DEVICE, 0x40);
    machine.write(COMMAND, 0xf8);
    assert_eq!(machine.read(DEVICE), 0xef);
}

#[test]
fn sectors_beyond_the_end_are_not_found() {
    let mut machine = machine();
    machine.command28(0x20, 2047, 2);
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x10));
    machine.command28(0xca, 2048, 1);
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x10));
    machine.command48(0x24, u64::MAX, 1);
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x10));
    machine.command28(0x70, 2048, 0);
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x10));
    machine.command28(0x70, 2047, 0);
    assert_eq!(machine.read(STATUS), DRDY_DSC);
}

#[test]
fn operations_that_the_medium_cannot_do_fail() {
    let kind = DriveKind::Disk(Medium { sectors: DISK_SECTORS, read_only: true });
    let mut machine = Machine::new(&[Some(model(kind)), None, None, None]);
    machine.command28(0x30, 0, 1);
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x04));
    machine.media[0].truncate(256 * 512);
    machine.command48(0x24, 0, 257);
    for _ in 0..256 {
        assert_eq!(machine.read(STATUS), DRQ);
        machine.read_data(512);
    }
    assert_eq!(machine.interrupt(), (true, true));
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x40));
    let mut machine = self::machine();
    machine.answers = false;
    machine.command28(0x20, 0, 1);
    let (_, request) = machine.asked.pop().unwrap();
    machine.answer(request.tag, Ok(vec![0; 100]));
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x40), "not all of it");
}

#[test]
fn a_reset_cancels_and_late_answers_are_dropped() {
    let mut machine = machine();
    machine.answers = false;
    machine.command28(0x20, 0, 1);
    assert_eq!(machine.read(STATUS) & BSY, BSY);
    machine.write(COUNT, 7);
    machine.write(COMMAND, 0xec);
    assert_eq!((machine.asked.len(), machine.read(COUNT)), (1, 1), "a busy drive hears nothing");
    machine.write(CONTROL, 0x04);
    machine.write(CONTROL, 0x00);
    let (_, late) = machine.asked.pop().unwrap();
    machine.command28(0x20, 1, 1);
    machine.answer(late.tag, Ok(vec![1; 512]));
    assert_eq!(machine.read(STATUS) & BSY, BSY);
    let (_, request) = machine.asked.pop().unwrap();
    machine.answer(request.tag, Ok(vec![2; 512]));
    assert_eq!(machine.read_data(512), [2; 512]);
}

#[test]
fn interrupts_can_be_disabled() {
    let mut machine = machine();
    machine.write(CONTROL, 0x02);
    machine.command28(0x20, 0, 1);
    assert_eq!(machine.interrupt(), (false, false));
    machine.write(CONTROL, 0x00);
    assert_eq!(machine.interrupt(), (true, true));
    machine.write(CONTROL, 0x02);
    assert_eq!(machine.interrupt(), (false, false));
}

#[test]
fn power_modes_are_reported_and_sleep_lasts_until_a_reset() {
    let mut machine = machine();
    let mode = |machine: &mut Machine| {
        machine.write(COMMAND, 0xe5);
        machine.read(COUNT)
    };
    assert_eq!(mode(&mut machine), 0xff);
    machine.write(COMMAND, 0xe0);
    assert_eq!(mode(&mut machine), 0x00);
    machine.write(COMMAND, 0xe1);
    assert_eq!(mode(&mut machine), 0x80);
    machine.command28(0x40, 0, 0);
    assert_eq!(mode(&mut machine), 0xff, "the medium was needed");
    machine.write(COMMAND, 0xe6);
    machine.write(COMMAND, 0xec);
    assert_eq!(machine.read(STATUS), DRDY_DSC);
    machine.write(CONTROL, 0x04);
    machine.write(CONTROL, 0x00);
    assert_eq!(mode(&mut machine), 0xff);
}

#[test]
fn unknown_commands_are_aborted() {
    let mut machine = machine();
    for command in [0x00, 0x08, 0xa0, 0xa1, 0xb0, 0xf1, 0xf5, 0xff] {
        machine.write(COMMAND, command);
        assert_eq!(machine.interrupt(), (true, true));
        assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x04));
        machine.interrupt();
    }
}

#[test]
fn dma_fills_the_regions_of_the_table() {
    let mut machine = machine();
    let regions = [(0x1_0000, 0x1_0000), (0x2_0002, 0x100), (0x4_0000, 0xff00), (0x6_0000, 0x8600)];
    machine.table(&regions);
    let sectors: u16 = 300;
    machine.command48(0x25, 7, sectors);
    assert_eq!(machine.interrupt(), (false, false), "the bus master has not been started");
    machine.write(MASTER, 0x09);
    let expected = machine.media[0][7 * 512..][..usize::from(sectors) * 512].to_vec();
    let memory = regions.map(|(at, len)| machine.memory(at.into(), len as usize)).concat();
    assert_eq!(memory[..expected.len()], expected);
    assert_eq!(machine.interrupt(), (true, true));
    assert_eq!(machine.read(MASTER + 2) & 7, 0x05, "an interrupt, and the table has more");
    assert_eq!(machine.read(STATUS), DRDY_DSC);
    machine.write(MASTER, 0x00);
    machine.write(MASTER + 2, 0x04);
    assert_eq!(machine.read(MASTER + 2) & 7, 0);
}

#[test]
fn dma_writes_the_contents_of_memory() {
    let mut machine = machine();
    let data: Vec<u8> = (0..0x3_0000_u32).map(|index| (index / 5) as u8).collect();
    machine.bench.memory.write(0x2_0000, &data);
    machine.table(&[(0x2_0000, 0), (0x3_0000, 0), (0x4_0000, 0)]);
    machine.write(MASTER, 0x01);
    machine.command48(0x35, 64, 384);
    assert_eq!(machine.interrupt(), (true, true));
    assert_eq!(machine.read(MASTER + 2) & 7, 0x04, "the table was as long as the data");
    assert_eq!(machine.read(STATUS), DRDY_DSC);
    assert_eq!(machine.media[0][64 * 512..][..data.len()], data);
}

/// DATA SET MANAGEMENT with these ranges, in the first of so many blocks.
fn trim(machine: &mut Machine, ranges: &[(u64, u16)], blocks: u16) {
    let entries = ranges.iter().map(|(first, count)| first | u64::from(*count) << 48);
    let mut data: Vec<u8> = entries.flat_map(u64::to_le_bytes).collect();
    data.resize(usize::from(blocks) * 512, 0);
    machine.bench.memory.write(0x2_0000, &data);
    machine.table(&[(0x2_0000, u32::from(blocks) * 512)]);
    machine.write(MASTER, 0x00);
    machine.write(MASTER, 0x01);
    machine.write(FEATURES, 0x01);
    machine.command48(0x06, 0, blocks);
}

#[test]
fn ranges_that_are_not_needed_are_trimmed() {
    let mut machine = machine();
    machine.command28(0xec, 0, 0);
    let identity = machine.read_data(512);
    let word = |index: usize| u16::from_le_bytes([identity[2 * index], identity[2 * index + 1]]);
    assert_eq!((word(80), word(105), word(169)), (0x01f0, 8, 1));
    trim(&mut machine, &[(100, 8), (108, 8), (0, 0), (200, 1), (50, 2)], 2);
    assert_eq!(machine.interrupt(), (true, true));
    assert_eq!(machine.read(STATUS), DRDY_DSC);
    assert_eq!(machine.discarded, [(100, 16), (200, 1), (50, 2)]);

    let last = DISK_SECTORS - 1;
    for (ranges, blocks) in [(&[(0, 1), (last, 2)][..], 1), (&[(0xffff_ffff_ffff, 0xffff)], 1)] {
        machine.discarded.clear();
        trim(&mut machine, ranges, blocks);
        assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x10));
        assert_eq!(machine.discarded, []);
    }
    trim(&mut machine, &[(0, 1)], 9);
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x04));
    let plain = DriveModel { trims: false, ..disk(DISK_SECTORS) };
    let mut machine = Machine::new(&[Some(plain), None, None, None]);
    trim(&mut machine, &[(0, 1)], 1);
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (FAILED, 0x04));
}

#[test]
fn dma_waits_for_direction_table_and_bus() {
    let mut machine = machine();
    machine.table(&[(0x2_0000, 0x200)]);
    machine.command28(0xc8, 0, 2);
    machine.write(MASTER, 0x01);
    assert_eq!(machine.read(MASTER + 2) & 7, 0x01, "it was started the wrong way");
    machine.write(MASTER, 0x00);
    machine.write_config(registers::COMMAND, command::IO);
    machine.write(MASTER, 0x09);
    assert_eq!(machine.read(MASTER + 2) & 7, 0x01, "it is not let on the bus");
    machine.write_config(registers::COMMAND, command::IO | command::MASTER);
    assert_eq!(machine.read(MASTER + 2) & 7, 0x00, "the table has ended before the data");
    assert_eq!((machine.interrupt(), machine.read(STATUS)), ((false, false), DRQ));
    assert_eq!(machine.memory(0x2_0000, 512), machine.media[0][..512]);
}

#[test]
fn strings_are_single_accesses() {
    for width in [Width::Byte, Width::Word, Width::Dword] {
        let size = usize::from(width.bytes());
        for (command, writes) in [(0x20, false), (0x30, true)] {
            let [mut one, mut many] = [machine(), machine()];
            for machine in [&mut one, &mut many] {
                machine.command28(command, 100, 2);
            }
            let mut strings = 0;
            for offset in (0..).step_by(7) {
                // A string, and one access alone.
                let mut bytes: Vec<_> =
                    (0..300 * size).map(|n| pattern((offset + n) as u64)).collect();
                let moved = if writes {
                    many.ide.write_port_string(DATA_PORT, width, &bytes[size..])
                } else {
                    many.ide.read_port_string(DATA_PORT, width, &mut bytes[size..])
                };
                strings += moved;
                let value = |element: &[u8]| {
                    element.iter().rfold(0, |value, byte| value << 8 | u32::from(*byte))
                };
                for element in bytes.chunks_exact(size).skip(1).take(moved) {
                    if writes {
                        one.write_wide(DATA_PORT, width, value(element));
                    } else {
                        assert_eq!(one.read_wide(DATA_PORT, width), value(element));
                    }
                }
                let alone = value(&bytes[..size]);
                for machine in [&mut one, &mut many] {
                    if writes {
                        machine.write_wide(DATA_PORT, width, alone);
                    } else {
                        machine.read_wide(DATA_PORT, width);
                    }
                }
                assert_eq!(one.ide.save(), many.ide.save(), "{width:?} {command:x} {offset}");
                let status = [&mut one, &mut many].map(|machine| machine.read(STATUS));
                if status != [DRQ; 2] {
                    assert_eq!(status, [DRDY_DSC; 2]);
                    break;
                }
            }
            assert!(strings > 1024 / size - 20, "{strings}");
            assert_eq!(one.media, many.media);
        }
    }
}
