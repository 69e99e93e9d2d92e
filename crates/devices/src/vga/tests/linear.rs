//! Linear modes by the DISPI registers.

use super::*;

// Indices.
const XRES: u16 = 1;
const YRES: u16 = 2;
const BPP: u16 = 3;
const ENABLE: u16 = 4;
const BANK: u16 = 5;
const VIRTUAL_WIDTH: u16 = 6;
const VIRTUAL_HEIGHT: u16 = 7;
const X_OFFSET: u16 = 8;
const Y_OFFSET: u16 = 9;

fn linear(width: u16, height: u16, bits_per_pixel: u16) -> Machine {
    let mut machine = Machine::with(&MODE_13);
    for (index, value) in [(XRES, width), (YRES, height), (BPP, bits_per_pixel), (ENABLE, 0x41)] {
        machine.write_dispi(index, value);
    }
    machine
}

#[test]
fn software_recognizes_the_interface() {
    let mut machine = Machine::new();
    assert_eq!(machine.read_dispi(0), 0xb0c5);
    machine.write_dispi(0, 0xb0c0);
    machine.write_dispi(0, 0xb0c6);
    assert_eq!(machine.read_dispi(0), 0xb0c0);
    assert_eq!(machine.read_dispi(10), 256, "in units of 64 KiB");
    machine.write_dispi(ENABLE, 2);
    let largest = [XRES, YRES, BPP].map(|index| machine.read_dispi(index));
    assert_eq!(largest, [4096, 4096, 32]);
    // The data register is at 1D0h too.
    machine.write_dispi(ENABLE, 0);
    machine.write_word(0x1ce, XRES);
    machine.write_word(0x1d0, 800);
    assert_eq!(machine.read_dispi(XRES), 800);
}

#[test]
fn pixels_have_their_depths() {
    let bytes = [0x34, 0x12, 0xff, 0x00, 0x00, 0x80, 0x00, 0xff];
    for (depth, expected) in [
        (8, [colour(0x34), colour(0x12)]),
        (16, [0x1045a5, 0x001cff]),
        (24, [0xff1234, 0x800000]),
        (32, [0xff1234, 0x008000]),
    ] {
        let mut machine = linear(640, 480, depth);
        machine.bench.memory.write_area(machine.video, 0, &bytes);
        let pixels = machine.pixels();
        assert_eq!((pixels.width, pixels.height), (640, 480));
        assert_eq!(row(&pixels, 0)[..2], expected, "{depth}");
    }
}

#[test]
fn fifteen_bits_are_five_for_each_component() {
    let mut machine = linear(640, 480, 15);
    for (offset, pixel) in [(0, 0x7c00_u16), (2, 0x03e0), (4, 0x001f), (6, 0xffff), (8, 0x0421)] {
        machine.bench.memory.write_area(machine.video, offset, &pixel.to_le_bytes());
    }
    let expected = [0xff0000, 0x00ff00, 0x0000ff, 0xffffff, 0x080808];
    assert_eq!(row(&machine.pixels(), 0)[..5], expected);
}

#[test]
fn the_dac_can_have_eight_bits() {
    let mut machine = linear(640, 480, 8);
    machine.write_dispi(ENABLE, 0x61);
    machine.write(0x3c8, 0);
    for value in [0xff, 0x81, 0x02] {
        machine.write(0x3c9, value);
    }
    assert_eq!(machine.pixels().colours[0], 0xff8102);
    machine.write(0x3c7, 0);
    assert_eq!([0; 3].map(|_| machine.read(0x3c9)), [0xff, 0x81, 0x02]);
    machine.write_dispi(ENABLE, 0);
    machine.write(0x3c7, 0);
    assert_eq!(machine.read(0x3c9), 0x3f);
}

#[test]
fn a_mode_clears_its_memory_unless_asked_not_to() {
    let mut machine = Machine::new();
    let last = 640 * 480 * 4 - 1;
    for offset in [0, last, last + 1] {
        machine.bench.memory.write_area(machine.video, offset, &[1]);
    }
    for (index, value) in [(XRES, 640), (YRES, 480), (BPP, 32), (ENABLE, 0xc1)] {
        machine.write_dispi(index, value);
    }
    let byte = |machine: &Machine, at: u64| machine.bench.memory.area(machine.video)[at as usize];
    assert_eq!((byte(&machine, 0), byte(&machine, last)), (1, 1));
    machine.write_dispi(ENABLE, 0x41);
    assert_eq!(byte(&machine, 0), 1, "it was on before");
    machine.write_dispi(ENABLE, 0);
    machine.write_dispi(ENABLE, 0x41);
    assert_eq!([0, last, last + 1].map(|at| byte(&machine, at)), [0, 0, 1]);
}

#[test]
fn the_picture_is_a_part_of_a_larger_one() {
    let mut machine = linear(640, 480, 32);
    assert_eq!(machine.read_dispi(VIRTUAL_WIDTH), 640);
    machine.write_dispi(VIRTUAL_WIDTH, 1024);
    assert_eq!(machine.read_dispi(VIRTUAL_HEIGHT), 4096);
    machine.write_dispi(X_OFFSET, 100);
    machine.write_dispi(Y_OFFSET, 500);
    let at = (500 * 1024 + 100) * 4;
    machine.bench.memory.write_area(machine.video, at, &[1, 2, 3, 4]);
    machine.bench.memory.write_area(machine.video, at + 4 * 1024, &[5, 6, 7, 8]);
    let pixels = machine.pixels();
    assert_eq!((row(&pixels, 0)[0], row(&pixels, 1)[0]), (0x030201, 0x070605));
}

#[test]
fn modes_stay_in_video_memory() {
    let mut machine = linear(4096, 4096, 32);
    assert_eq!((machine.read_dispi(XRES), machine.read_dispi(YRES)), (4096, 1024));
    machine.write_dispi(X_OFFSET, 0xffff);
    machine.write_dispi(Y_OFFSET, 0xffff);
    assert_eq!((machine.read_dispi(X_OFFSET), machine.read_dispi(Y_OFFSET)), (0, 0));
    machine.write_dispi(VIRTUAL_WIDTH, 0xffff);
    machine.write_dispi(YRES, 2000);
    let lines = machine.read_dispi(VIRTUAL_HEIGHT);
    assert_eq!((lines, machine.read_dispi(YRES)), (128, 128));
    let pixels = machine.pixels();
    assert_eq!(pixels.colours.len(), 4096 * 128);
    machine.write_dispi(XRES, 5000);
    machine.write_dispi(BPP, 17);
    assert_eq!((machine.read_dispi(XRES), machine.read_dispi(BPP)), (4096, 32));
    let mut machine = linear(0, 0, 8);
    assert_eq!((machine.read_dispi(XRES), machine.read_dispi(YRES)), (1, 1));
    assert_eq!(machine.pixels().colours.len(), 1);
}

#[test]
fn banks_move_the_window() {
    let mut machine = linear(640, 480, 8);
    machine.write_dispi(BANK, 3);
    machine.poke(0xa0005, 0x77);
    assert_eq!(machine.bench.memory.area(machine.video)[0x3_0005], 0x77);
    assert_eq!(machine.peek(0xa0005), 0x77);
    assert_eq!(machine.peek(0xb8000), 0xff);
    // The adapter gives the same answer as the mapping that the processor uses.
    let context = &mut machine.bench.context();
    assert_eq!(machine.vga.read_memory(context, WINDOW, 5, Width::Byte), 0x77);
    machine.write_dispi(BANK, 0x103);
    assert_eq!(machine.read_dispi(BANK), 3);
    machine.write_dispi(ENABLE, 0);
    assert_eq!(machine.peek(0xa0005), 0, "mode 13h again");
}

#[test]
fn four_bits_are_planes() {
    let mut machine = Machine::with(&MODE_12);
    for (index, value) in [(XRES, 1024), (YRES, 768), (BPP, 4), (ENABLE, 0x01)] {
        machine.write_dispi(index, value);
    }
    // Line 767 begins at 128 * 767, in the second bank.
    machine.write_dispi(BANK, 1);
    machine.write_sequencer(2, 0b0101);
    machine.poke(0xa0000 + 128 * 767 - 0x1_0000, 0x80);
    assert_eq!(machine.planes(128 * 767), [0x80, 0, 0x80, 0]);
    let pixels = machine.pixels();
    assert_eq!((pixels.width, pixels.height), (1024, 768));
    assert_eq!(row(&pixels, 767)[..2], [5, 0].map(colour));
}

#[test]
fn a_linear_mode_can_be_dark() {
    let mut machine = linear(640, 480, 32);
    machine.bench.memory.write_area(machine.video, 0, &[1, 2, 3, 4]);
    assert_eq!(machine.pixels().colours[0], 0x030201);
    machine.read(0x3da);
    machine.write(0x3c0, 0);
    let pixels = machine.pixels();
    assert_eq!((pixels.width, pixels.height, pixels.colours[0]), (640, 480, 0));
}

#[test]
fn registers_are_in_memory_too() {
    let mut machine = Machine::new();
    let Machine { bench, vga, video } = &mut machine;
    let mut write = |offset: u64, width, value| {
        vga.write_memory(&mut bench.context(), MMIO, offset, width, value);
    };
    // Width, height (258h) and depth; the last two at once.
    write(0x502, Width::Word, 800);
    write(0x504, Width::Dword, 0x0010_0258);
    write(0x508, Width::Word, 0x41);
    write(0x42a, Width::Byte, 0);
    write(0x400, Width::Byte, 0x20);
    bench.memory.write_area(*video, 0, &[0xff, 0xff]);
    let mut read = |offset: u64, width| vga.read_memory(&mut bench.context(), MMIO, offset, width);
    assert_eq!(read(0x500, Width::Dword), 800 << 16 | 0xb0c5);
    assert_eq!(read(0x505, Width::Byte), 600 >> 8);
    assert_eq!(read(0x40c, Width::Byte), 0x67);
    assert_eq!((read(0x600, Width::Dword), read(0x604, Width::Dword)), (8, 0x1e1e_1e1e));
    assert_eq!(read(0, Width::Dword), 0, "there is no EDID");
    let pixels = machine.pixels();
    assert_eq!((pixels.width, pixels.height, pixels.colours[0]), (800, 600, 0xffffff));
}
