//! ATAPI CD-ROM drives, by SFF-8020i and MMC.

use super::*;

const DRDY_DSC: u8 = 0x50;
const DRQ: u8 = 0x58;
const CHECK: u8 = 0x51;

/// A disc of 300 blocks.
const SECTORS: u64 = 1200;

fn machine() -> Machine {
    Machine::new(&[Some(cd_rom(SECTORS)), None, None, None])
}

fn empty() -> Machine {
    Machine::new(&[Some(model(DriveKind::CdRom(None))), None, None, None])
}

/// Sends a packet with a limit of `byte_count` bytes a data request, or by DMA.
fn send(machine: &mut Machine, packet: &[u8], byte_count: u16, dma: bool) {
    let [low, high] = byte_count.to_le_bytes();
    machine.write(FEATURES, dma.into());
    machine.write(LBA_MID, low);
    machine.write(LBA_HIGH, high);
    machine.write(COMMAND, 0xa0);
    assert_eq!((machine.read(STATUS), machine.read(COUNT)), (DRQ, 1), "the drive takes a packet");
    let mut padded = packet.to_vec();
    padded.resize(12, 0);
    machine.write_data(&padded);
}

/// Sends a packet and takes all of its data in chunks of up to `byte_count` bytes: the data, and how many bytes each chunk had.
fn packet(
    machine: &mut Machine,
    packet: &[u8],
    byte_count: u16,
) -> Result<(Vec<u8>, Vec<usize>), u8> {
    send(machine, packet, byte_count, false);
    let (mut data, mut chunks) = (Vec::new(), Vec::new());
    loop {
        assert_eq!(machine.interrupt(), (true, true));
        let (status, reason) = (machine.read(STATUS), machine.read(COUNT));
        match (status, reason) {
            (DRQ, 2) => {
                let [low, high] = [LBA_MID, LBA_HIGH].map(|port| machine.read(port));
                chunks.push(u16::from_le_bytes([low, high]).into());
                data.extend(machine.read_data(*chunks.last().unwrap()));
            }
            (DRDY_DSC, 3) => return Ok((data, chunks)),
            (CHECK, 3) => return Err(machine.read(ERROR)),
            other => panic!("status and reason {other:x?}"),
        }
    }
}

fn data(machine: &mut Machine, bytes: &[u8]) -> Vec<u8> {
    packet(machine, bytes, 0xfffe).expect("it succeeds").0
}

/// The sense of the last packet: key, code, qualifier.
fn sense(machine: &mut Machine) -> [u8; 3] {
    let data = data(machine, &[0x03, 0, 0, 0, 18]);
    [data[2], data[12], data[13]]
}

#[test]
fn ata_software_finds_a_packet_device() {
    let mut machine = machine();
    for command in [0xec, 0x20] {
        machine.write(COMMAND, command);
        assert_eq!((machine.read(STATUS), machine.read(ERROR)), (CHECK, 0x04));
        assert_eq!((machine.read(LBA_MID), machine.read(LBA_HIGH)), (0x14, 0xeb));
    }
    machine.write(COMMAND, 0xa1);
    assert_eq!(machine.interrupt(), (true, true));
    assert_eq!(machine.read(STATUS), DRQ);
    let data = machine.read_data(512);
    assert_eq!(data[..2], [0xc0, 0x85]);
    assert_eq!(machine.read(STATUS), DRDY_DSC);
    machine.write(COMMAND, 0xa0);
    machine.write(COMMAND, 0x08);
    assert_eq!((machine.read(STATUS), machine.read(LBA_HIGH)), (0, 0xeb), "DEVICE RESET");
}

#[test]
fn the_byte_count_limits_each_data_request() {
    let mut machine = machine();
    let (inquiry, chunks) = packet(&mut machine, &[0x12, 0, 0, 0, 36], 10).unwrap();
    assert_eq!(chunks, [10, 10, 10, 6]);
    assert_eq!(inquiry[..2], [0x05, 0x80]);
    assert_eq!(&inquiry[8..36], b"RING3   TEST DRIVE      1   ");
    let (short, chunks) = packet(&mut machine, &[0x12, 0, 0, 0, 5], 3).unwrap();
    assert_eq!((short, chunks), (inquiry[..5].to_vec(), vec![2, 2, 1]));
    send(&mut machine, &[0x12, 0, 0, 0, 36], 0, false);
    assert_eq!((machine.read(STATUS), machine.read(ERROR)), (CHECK, 0x04), "no data would go");
    let (none, _) = packet(&mut machine, &[0x12, 0, 0, 0, 0], 2).unwrap();
    assert_eq!(none, []);
}

#[test]
fn blocks_are_read_through_the_data_register() {
    let mut machine = machine();
    let (read, chunks) = packet(&mut machine, &[0x28, 0, 0, 0, 0, 16, 0, 0, 3], 2048).unwrap();
    assert_eq!(read, machine.media[0][16 * 2048..19 * 2048]);
    assert_eq!(chunks, [2048; 3]);
    let all = data(&mut machine, &[0xa8, 0, 0, 0, 0, 0, 0, 0, 1, 44]);
    assert_eq!(all, machine.media[0]);
    let cd = data(&mut machine, &[0xbe, 0, 0, 0, 0, 1, 0, 0, 2, 0x10]);
    assert_eq!(cd, machine.media[0][2048..3 * 2048]);
}

#[test]
fn blocks_are_read_by_dma() {
    let mut machine = machine();
    machine.table(&[(0x2_0000, 0), (0x3_0000, 0), (0x4_0000, 0x7000)]);
    machine.write(MASTER, 0x09);
    send(&mut machine, &[0x28, 0, 0, 0, 0, 10, 0, 0, 78], 0, true);
    assert_eq!(machine.interrupt(), (true, true));
    assert_eq!((machine.read(MASTER + 2) & 7, machine.read(STATUS)), (0x04, DRDY_DSC));
    assert_eq!(machine.read(COUNT), 3);
    assert_eq!(machine.memory(0x2_0000, 78 * 2048), machine.media[0][10 * 2048..88 * 2048]);
}

#[test]
fn errors_are_reported_as_sense_data() {
    let mut machine = machine();
    assert_eq!(packet(&mut machine, &[0x28, 0, 0, 0, 1, 44, 0, 0, 1], 2048), Err(0x50));
    assert_eq!(sense(&mut machine), [5, 0x21, 0]);
    assert_eq!(sense(&mut machine), [0, 0, 0], "it is told once");
    assert_eq!(
        packet(&mut machine, &[0x28, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff], 2),
        Err(0x50)
    );
    assert_eq!(packet(&mut machine, &[0xf1], 2), Err(0x50));
    assert_eq!(sense(&mut machine), [5, 0x20, 0]);
    machine.media[0].clear();
    assert_eq!(packet(&mut machine, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1], 2048), Err(0x30));
    assert_eq!(sense(&mut machine), [3, 0x11, 0]);
}

#[test]
fn a_disc_has_one_track_in_its_table_of_contents() {
    let mut machine = machine();
    assert_eq!(data(&mut machine, &[0x25]), [0, 0, 1, 43, 0, 0, 8, 0]);
    let toc = |machine: &mut Machine, msf: u8, format: u8, first: u8| {
        data(machine, &[0x43, msf, format, 0, 0, 0, first, 0, 100])
    };
    let track = [0, 18, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0, 0, 0x14, 0xaa, 0, 0, 0, 1, 44];
    assert_eq!(toc(&mut machine, 0, 0, 0), track);
    assert_eq!(toc(&mut machine, 2, 0, 0xaa), [0, 10, 1, 1, 0, 0x14, 0xaa, 0, 0, 0, 6, 0]);
    assert_eq!(toc(&mut machine, 0, 1, 0), [0, 10, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0]);
    assert_eq!(data(&mut machine, &[0x43, 0, 0, 0, 0, 0, 0, 0, 4, 0x40]), [0, 10, 1, 1]);
    let raw = toc(&mut machine, 0, 2, 0);
    assert_eq!((raw.len(), raw[1]), (48, 46));
    assert_eq!(raw[37..48], [1, 0x14, 0, 1, 0, 0, 0, 0, 0, 2, 0]);
    assert_eq!(packet(&mut machine, &[0x43, 0, 0, 0, 0, 0, 2, 0, 100], 100), Err(0x50));
    assert_eq!(sense(&mut machine), [5, 0x24, 0]);
}

#[test]
fn a_changed_medium_is_reported_once() {
    let mut machine = empty();
    assert_eq!(packet(&mut machine, &[0x00], 2), Err(0x20));
    assert_eq!(sense(&mut machine), [2, 0x3a, 1]);
    let events = [0x4a, 1, 0, 0, 0x10, 0, 0, 0, 8];
    assert_eq!(data(&mut machine, &events), [0, 6, 4, 0x10, 0, 0, 0, 0]);
    let medium = Some(Medium { sectors: SECTORS, read_only: true });
    let input = DeviceInput::Medium { unit: 0, medium };
    machine.ide.input(&mut machine.bench.context(), input);
    assert_eq!(data(&mut machine, &events), [0, 6, 4, 0x10, 2, 2, 0, 0]);
    assert_eq!(data(&mut machine, &events), [0, 6, 4, 0x10, 0, 2, 0, 0]);
    assert_eq!(data(&mut machine, &[0x12, 0, 0, 0, 36]).len(), 36, "INQUIRY always works");
    assert_eq!(packet(&mut machine, &[0x25], 8), Err(0x60));
    assert_eq!(sense(&mut machine), [6, 0x28, 0]);
    assert_eq!(data(&mut machine, &[0x00]), []);
    let input = DeviceInput::Medium { unit: 0, medium: None };
    machine.ide.input(&mut machine.bench.context(), input);
    assert_eq!(data(&mut machine, &events), [0, 6, 4, 0x10, 3, 0, 0, 0]);
    assert_eq!(data(&mut machine, &[0x4a, 1, 0, 0, 0x02, 0, 0, 0, 8]), [0, 2, 0x80, 0x10]);
}

#[test]
fn a_locked_medium_stays_in() {
    let mut machine = machine();
    machine.answers = false;
    assert_eq!(data(&mut machine, &[0x1e, 0, 0, 0, 1]), []);
    assert_eq!(packet(&mut machine, &[0x1b, 0, 0, 0, 2], 2), Err(0x50));
    assert_eq!(sense(&mut machine), [5, 0x53, 2]);
    assert_eq!(data(&mut machine, &[0x1e, 0, 0, 0, 0]), []);
    send(&mut machine, &[0x1b, 0, 0, 0, 2], 0, false);
    let (unit, request) = machine.asked.pop().unwrap();
    assert_eq!((unit, request.operation), (0, DiskOperation::Eject));
    machine.answer(request.tag, Ok(Vec::new()));
    assert_eq!(machine.read(STATUS), DRDY_DSC);
    machine.interrupt();
    assert_eq!(packet(&mut machine, &[0x00], 2), Err(0x20));
    assert_eq!(sense(&mut machine), [2, 0x3a, 2], "the tray is open");
    assert_eq!(data(&mut machine, &[0xbd, 0, 0, 0, 0, 0, 0, 0, 0, 8])[1], 0x10);
    assert_eq!(data(&mut machine, &[0x1b, 0, 0, 0, 3]), []);
    assert_eq!(data(&mut machine, &[0xbd, 0, 0, 0, 0, 0, 0, 0, 0, 8])[1], 0x00);
}

#[test]
fn the_eject_button_of_a_locked_drive_asks_software() {
    let mut machine = machine();
    let events = [0x4a, 1, 0, 0, 0x10, 0, 0, 0, 8];
    assert!(!machine.ide.holds_medium(0));
    assert_eq!(data(&mut machine, &[0x1e, 0, 0, 0, 1]), []);
    assert!(machine.ide.holds_medium(0));
    for unit in [1, 2, 200] {
        assert!(!machine.ide.holds_medium(unit), "there is no drive {unit}");
        machine.ide.input(&mut machine.bench.context(), DeviceInput::EjectRequest { unit });
    }
    assert_eq!(data(&mut machine, &events)[4], 0);
    machine.ide.input(&mut machine.bench.context(), DeviceInput::EjectRequest { unit: 0 });
    assert_eq!(data(&mut machine, &events), [0, 6, 4, 0x10, 1, 2, 0, 0]);
    assert_eq!(data(&mut machine, &events), [0, 6, 4, 0x10, 0, 2, 0, 0]);
    // By force.
    let input = DeviceInput::Medium { unit: 0, medium: None };
    machine.ide.input(&mut machine.bench.context(), input);
    assert!(!machine.ide.holds_medium(0));
    assert_eq!(data(&mut machine, &events), [0, 6, 4, 0x10, 3, 0, 0, 0]);
}

#[test]
fn features_and_capabilities_are_reported() {
    let mut machine = machine();
    let all = data(&mut machine, &[0x46, 0, 0, 0, 0, 0, 0, 0, 200]);
    assert_eq!(all[..8], [0, 0, 0, all.len() as u8 - 4, 0, 0, 0, 8]);
    let read = data(&mut machine, &[0x46, 2, 0, 0x1e, 0, 0, 0, 0, 200]);
    assert_eq!(read[8..], [0, 0x1e, 1, 4, 0, 0, 0, 0]);
    let long = data(&mut machine, &[0x5a, 0, 0x2a, 0, 0, 0, 0, 0, 200]);
    assert_eq!((long.len(), long[1], long[8], long[9]), (28, 26, 0x2a, 18));
    let short = data(&mut machine, &[0x1a, 0, 0x3f, 0, 200]);
    assert_eq!((short.len(), short[0]), (32, 31));
    assert_eq!(packet(&mut machine, &[0x5a, 0, 0x0e, 0, 0, 0, 0, 0, 200], 200), Err(0x50));
    let disc = data(&mut machine, &[0x51, 0, 0, 0, 0, 0, 0, 0, 200]);
    assert_eq!(disc[..3], [0, 32, 0x0e]);
    let position = data(&mut machine, &[0x42, 0, 0x40, 1, 0, 0, 0, 0, 16]);
    assert_eq!(position[..6], [0, 0, 0, 12, 1, 0x14]);
    let dvd = Machine::new(&[Some(cd_rom(4 << 21)), None, None, None]);
    let header = data(&mut { dvd }, &[0x46, 0, 0, 0, 0, 0, 0, 0, 8]);
    assert_eq!(header[6..], [0, 0x10]);
}
