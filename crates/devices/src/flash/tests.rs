use proptest::prelude::*;
use ring3_core::device::{Output, TestBench};
use ring3_core::memory::Target;

use super::*;
use crate::hammer::{hammer_in, memory_blows};

/// The second chip's length. The first one has [`CODE_LEN`] bytes and is read-only.
const LEN: u64 = 3 * BLOCK_LEN;
const CODE_LEN: u64 = 2 * BLOCK_LEN;
const VARIABLES: u8 = 1;

fn machine() -> (TestBench, Flash) {
    let mut bench = TestBench::default();
    let area = bench.memory.add_area(CODE_LEN + LEN).unwrap();
    bench.memory.write_area(area, LEN, &[0xea; CODE_LEN as usize]);
    bench.memory.write_area(area, 0, &[0xff; LEN as usize]);
    let medium = |len, read_only| Medium { sectors: len / SECTOR_SIZE as u64, read_only };
    let mut flash = Flash::new(area, &[medium(CODE_LEN, true), medium(LEN, false)]);
    flash.reset(&mut bench.context());
    (bench, flash)
}

/// Reads a byte as the guest does: from memory, or from the device.
fn read(bench: &mut TestBench, flash: &mut Flash, unit: u8, offset: u64) -> u8 {
    let address = flash.chips[usize::from(unit)].start + offset;
    match bench.memory.read_target(address) {
        Target::Place(place) => bench.memory.load::<1>(place)[0],
        _ => flash.read_memory(&mut bench.context(), unit, offset, Width::Byte) as u8,
    }
}

/// Writes bytes one after the other at the same offset.
fn write(bench: &mut TestBench, flash: &mut Flash, unit: u8, offset: u64, bytes: &[u8]) {
    for byte in bytes {
        flash.write_memory(&mut bench.context(), unit, offset, Width::Byte, (*byte).into());
    }
}

/// Returns what was sent to the drives since the last call: unit, first sector, and number of bytes.
fn sent(bench: &mut TestBench) -> Vec<(u8, u64, usize)> {
    let requests = bench.outputs.drain(..).map(|output| match output {
        Output::Disk { drive, request: DiskRequest { operation, .. } } => match operation {
            DiskOperation::Write { sector, data } => (drive.unit, sector, data.len()),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    });
    requests.collect()
}

#[test]
fn the_chips_end_at_4_gib_one_below_the_other() {
    let (mut bench, mut flash) = machine();
    assert_eq!(flash.chips[0].start, FOUR_GIB - CODE_LEN);
    assert_eq!(flash.chips[1].start, FOUR_GIB - CODE_LEN - LEN);
    assert_eq!(read(&mut bench, &mut flash, 0, CODE_LEN - 1), 0xea);
    assert_eq!(read(&mut bench, &mut flash, 1, LEN - 1), 0xff);
    let start = flash.chips[0].start;
    assert!(matches!(bench.memory.read_target(start), Target::Place(_)), "it can be executed");
    assert_eq!(bench.memory.write_target(start), Target::Device);
    let claims: Vec<_> = bench.claims.iter().map(|claim| claim.region).collect();
    assert_eq!(claims, [0, 1]);
}

/// As OVMF recognizes flash memory, programs variables and erases blocks.
#[test]
fn ovmf_finds_flash_memory() {
    let (mut bench, mut flash) = machine();
    write(&mut bench, &mut flash, VARIABLES, 0, &[0x50]);
    assert_eq!(read(&mut bench, &mut flash, VARIABLES, 0), 0xff);
    write(&mut bench, &mut flash, VARIABLES, 0, &[0x70]);
    assert_eq!(read(&mut bench, &mut flash, VARIABLES, 0), 0);
    write(&mut bench, &mut flash, VARIABLES, 0, &[0xff]);
    assert_eq!(read(&mut bench, &mut flash, VARIABLES, 0), 0xff);

    for (offset, byte) in (0x1fe..).zip([0x12, 0x34, 0x56]) {
        write(&mut bench, &mut flash, VARIABLES, offset, &[0x10, byte]);
        assert_eq!(read(&mut bench, &mut flash, VARIABLES, offset), 0x80);
    }
    assert_eq!(sent(&mut bench), []);
    write(&mut bench, &mut flash, VARIABLES, 0x200, &[0xff]);
    assert_eq!(sent(&mut bench), [(VARIABLES, 0, 1024)]);
    let there = [0x1fd, 0x1fe, 0x1ff, 0x200, 0x201]
        .map(|offset| read(&mut bench, &mut flash, VARIABLES, offset));
    assert_eq!(there, [0xff, 0x12, 0x34, 0x56, 0xff]);

    write(&mut bench, &mut flash, VARIABLES, 0x123, &[0x20, 0xd0]);
    assert_eq!(read(&mut bench, &mut flash, VARIABLES, 0x200), 0x80);
    bench.advance(&mut flash, DELAY);
    assert_eq!(sent(&mut bench), [(VARIABLES, 0, 4096)]);
    write(&mut bench, &mut flash, VARIABLES, 0, &[0xff]);
    assert_eq!(read(&mut bench, &mut flash, VARIABLES, 0x200), 0xff);
    assert_eq!(sent(&mut bench), []);
}

#[test]
fn programming_only_clears_bits() {
    let (mut bench, mut flash) = machine();
    write(&mut bench, &mut flash, VARIABLES, 5, &[0x40, 0xf0, 0x40, 0x3c, 0x00]);
    assert_eq!(read(&mut bench, &mut flash, VARIABLES, 5), 0x30);
}

#[test]
fn sectors_that_are_apart_are_sent_one_by_one() {
    let (mut bench, mut flash) = machine();
    write(&mut bench, &mut flash, VARIABLES, 0, &[0x40, 1]);
    write(&mut bench, &mut flash, VARIABLES, 0x400, &[0x40, 1]);
    assert_eq!(sent(&mut bench), [(VARIABLES, 0, 512)]);
    bench.advance(&mut flash, DELAY);
    assert_eq!(sent(&mut bench), [(VARIABLES, 2, 512)]);
    write(&mut bench, &mut flash, VARIABLES, 0x400, &[0x40, 0]);
    flash.reset(&mut bench.context());
    assert_eq!(sent(&mut bench), [(VARIABLES, 2, 512)]);
    assert_eq!(read(&mut bench, &mut flash, VARIABLES, 0x400), 0);
}

#[test]
fn a_slow_drive_gets_a_few_requests_at_a_time() {
    let (mut bench, mut flash) = machine();
    let program = |bench: &mut TestBench, flash: &mut Flash, times: u32| {
        for time in 0..times {
            let offset = if time % 2 == 0 { 0 } else { 2 * BLOCK_LEN };
            write(bench, flash, VARIABLES, offset + u64::from(time), &[0x40, 0]);
        }
        sent(bench)
    };
    let first = program(&mut bench, &mut flash, 400);
    assert_eq!(first.len(), MOST_REQUESTS as usize);
    flash.reset(&mut bench.context());
    assert_eq!(sent(&mut bench), [], "the drive is still busy");
    let answer = DiskAnswer { tag: VARIABLES.into(), result: Ok(Vec::new()) };
    flash.input(&mut bench.context(), DeviceInput::Disk(answer));
    assert_eq!(sent(&mut bench), [(VARIABLES, 0, 2 * BLOCK_LEN as usize + 512)]);
    for _ in 0..MOST_REQUESTS {
        let answer = DiskAnswer { tag: VARIABLES.into(), result: Ok(Vec::new()) };
        flash.input(&mut bench.context(), DeviceInput::Disk(answer));
    }
    assert_eq!(sent(&mut bench), []);
    assert_eq!(program(&mut bench, &mut flash, 400).len(), 0, "the bits are clear already");
}

#[test]
fn a_buffer_is_written_at_once() {
    let (mut bench, mut flash) = machine();
    write(&mut bench, &mut flash, VARIABLES, 0x100, &[0xe8]);
    assert_eq!(read(&mut bench, &mut flash, VARIABLES, 0x100), 0x80);
    write(&mut bench, &mut flash, VARIABLES, 0x100, &[4]);
    write(&mut bench, &mut flash, VARIABLES, 0x100, &[0xd0]);
    flash.write_memory(&mut bench.context(), VARIABLES, 0x101, Width::Dword, 0x4433_2211);
    write(&mut bench, &mut flash, VARIABLES, 0x100, &[0xd0, 0xff]);
    let there =
        [0x100, 0x101, 0x104, 0x105].map(|offset| read(&mut bench, &mut flash, VARIABLES, offset));
    assert_eq!(there, [0xd0, 0x11, 0x44, 0xff]);
    // Without the confirmation nothing is written.
    write(&mut bench, &mut flash, VARIABLES, 0x200, &[0xe8, 0, 0x55, 0xff, 0x70]);
    assert_eq!(read(&mut bench, &mut flash, VARIABLES, 0x200), 0xb0);
    write(&mut bench, &mut flash, VARIABLES, 0x200, &[0xff]);
    assert_eq!(read(&mut bench, &mut flash, VARIABLES, 0x200), 0xff);
}

#[test]
fn what_is_read_only_is_locked() {
    let (mut bench, mut flash) = machine();
    write(&mut bench, &mut flash, 0, 0, &[0x40, 0]);
    assert_eq!(read(&mut bench, &mut flash, 0, 0), 0x92);
    write(&mut bench, &mut flash, 0, 0, &[0x50, 0x20, 0xd0]);
    assert_eq!(read(&mut bench, &mut flash, 0, 0), 0xa2);
    write(&mut bench, &mut flash, 0, 0, &[0xff]);
    assert_eq!(read(&mut bench, &mut flash, 0, 0), 0xea);
    assert_eq!(sent(&mut bench), []);
}

#[test]
fn a_chip_describes_itself() {
    let (mut bench, mut flash) = machine();
    write(&mut bench, &mut flash, VARIABLES, 0, &[0x90]);
    let identity = [0, 1, 2].map(|offset| read(&mut bench, &mut flash, VARIABLES, offset));
    assert_eq!(identity, [0x89, 0x18, 0]);
    write(&mut bench, &mut flash, VARIABLES, 0, &[0x98]);
    let mut query = |offset| read(&mut bench, &mut flash, VARIABLES, offset);
    assert_eq!([0x10, 0x11, 0x12, 0x13].map(&mut query), [b'Q', b'R', b'Y', 1]);
    assert_eq!([0x27, 0x2a].map(&mut query), [14, 8], "16 KiB have room for it; 256 bytes");
    assert_eq!([0x2c, 0x2d, 0x2e, 0x2f, 0x30].map(&mut query), [1, 2, 0, 16, 0]);
    let intel = u64::from(query(0x15));
    assert_eq!([intel, intel + 1, intel + 2].map(&mut query), *b"PRI");
    assert_eq!(query(0xffff), 0);
}

proptest! {
    #[test]
    fn any_accesses_leave_a_state_that_can_be_saved(
        blows in memory_blows(&[0, 1, 0x1ff, 0x200, CODE_LEN - 1]),
    ) {
        let (mut bench, mut flash) = machine();
        let mut fresh = flash.clone();
        hammer_in(&mut bench, &mut flash, &mut fresh, blows);
    }
}
