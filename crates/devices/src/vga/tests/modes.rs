//! Pictures of the BIOS's modes and of what programs make of them.

use super::*;

/// Writes characters with an attribute into the screen of the text mode.
fn put(machine: &mut Machine, cell: u64, text: &[u8], attribute: u8) {
    for (cell, code) in (cell..).zip(text) {
        machine.poke(0xb8000 + 2 * cell, *code);
        machine.poke(0xb8001 + 2 * cell, attribute);
    }
}

/// Gives row scan `row` of character `code` in the font at `font` these dots.
fn set_glyph(machine: &mut Machine, font: u32, code: u8, row: u32, dots: u8) {
    let offset = font + u32::from(code) * 32 + row;
    let [character, attribute, _, last] = machine.planes(offset);
    machine.set_planes(offset, [character, attribute, dots, last]);
}

#[test]
fn the_text_screen_has_cells_cursor_and_dots() {
    let mut machine = Machine::with(&TEXT);
    put(&mut machine, 81, b"Hi", 0x9e);
    set_glyph(&mut machine, 0, b'H', 2, 0b1010_0001);
    machine.write_crtc(0x0f, 83);
    let screen = machine.text();
    assert_eq!((screen.columns, screen.rows, screen.cells.len()), (80, 25, 2000));
    assert_eq!(screen.cursor, Some((3, 1)));
    assert_eq!(screen.text().lines().nth(1), Some(" Hi"));
    let cell = screen.cells[81];
    assert_eq!((cell.character, cell.foreground), (b'H', colour(0x0e)));
    assert_eq!((cell.background, cell.blinks), (colour(1), true));
    assert_eq!((screen.pixels.width, screen.pixels.height), (720, 400));
    let (on, off) = (colour(0x0e), colour(1));
    let line = row(&screen.pixels, 16 + 2);
    assert_eq!(line[9..18], [on, off, on, off, off, off, off, on, off]);
    assert_eq!((line[8], line[27]), (colour(0), colour(0)));
    // The cursor is in row scans 13 and 14, in the colour of the character, which is black here.
    put(&mut machine, 83, b" ", 0x07);
    let screen = machine.text();
    for (line, dot) in [(28, 0), (29, 7), (30, 7), (31, 0)] {
        assert_eq!(row(&screen.pixels, line)[27..36], [colour(dot); 9], "{line}");
    }
}

#[test]
fn the_cursor_can_be_off() {
    let mut machine = Machine::with(&TEXT);
    assert_eq!(machine.text().cursor, Some((0, 0)));
    for (start, end) in [(0x2d, 0x0e), (0x0e, 0x0d), (0x10, 0x1f)] {
        machine.write_crtc(0x0a, start);
        machine.write_crtc(0x0b, end);
        assert_eq!(machine.text().cursor, None);
    }
    machine.set(&TEXT);
    machine.write_crtc(0x0e, 0x10);
    assert_eq!(machine.text().cursor, None, "elsewhere");
}

#[test]
fn without_blinking_there_are_16_backgrounds() {
    let mut machine = Machine::with(&TEXT);
    put(&mut machine, 0, b"x", 0xf0);
    machine.write_attribute(0x10, 0x04);
    let cell = machine.text().cells[0];
    assert_eq!((cell.background, cell.blinks), (colour(15), false));
}

#[test]
fn line_graphics_join_by_the_ninth_dot() {
    let mut machine = Machine::with(&TEXT);
    put(&mut machine, 0, &[0xc4, 0xb0], 0x07);
    for code in [0xc4, 0xb0] {
        set_glyph(&mut machine, 0, code, 0, 0xff);
    }
    let screen = machine.text();
    assert_eq!((row(&screen.pixels, 0)[8], row(&screen.pixels, 0)[17]), (colour(7), colour(0)));
    machine.write_attribute(0x10, 0x08);
    assert_eq!(row(&machine.text().pixels, 0)[8], colour(0));
    machine.write_sequencer(1, 0x01);
    assert_eq!(machine.text().pixels.width, 640);
}

#[test]
fn attribute_bit_3_can_select_a_second_font() {
    let mut machine = Machine::with(&TEXT);
    put(&mut machine, 0, b"A", 0x07);
    put(&mut machine, 1, b"A", 0x0f);
    // Map B is the first one, map A the eighth, at 56 KiB.
    machine.write_sequencer(3, 0x2c);
    set_glyph(&mut machine, 0, b'A', 0, 0x80);
    set_glyph(&mut machine, 0xe000, b'A', 0, 0x40);
    let screen = machine.text();
    let line = row(&screen.pixels, 0);
    assert_eq!(line[..2], [colour(7), colour(0)]);
    assert_eq!(line[9..11], [colour(0), colour(15)]);
}

#[test]
fn monochrome_text_is_underlined() {
    let mut machine = Machine::with(&TEXT);
    put(&mut machine, 0, b" ", 0x01);
    assert_eq!(row(&machine.text().pixels, 13)[0], colour(1), "the cursor is there");
    machine.write_crtc(0x0a, 0x20);
    assert!(machine.text().pixels.colours.iter().all(|pixel| *pixel == 0));
    machine.write_crtc(0x14, 0x0f);
    let screen = machine.text();
    assert_eq!(row(&screen.pixels, 15)[..10], [[colour(1); 9].as_slice(), &[0]].concat());
    assert_eq!(row(&screen.pixels, 14)[0], 0);
}

#[test]
fn text_has_other_sizes() {
    let mut machine = Machine::with(&TEXT);
    // 50 rows of 8 lines.
    machine.write_crtc(0x09, 0x47);
    let screen = machine.text();
    assert_eq!((screen.columns, screen.rows), (80, 50));
    // 40 columns with the dot clock halved.
    machine.set(&TEXT);
    machine.write_sequencer(1, 0x08);
    machine.write_crtc(0x11, 0);
    machine.write_crtc(0x01, 39);
    machine.write_crtc(0x13, 20);
    put(&mut machine, 41, b"A", 0x07);
    set_glyph(&mut machine, 0, b'A', 0, 0x80);
    let screen = machine.text();
    assert_eq!((screen.columns, screen.rows, screen.pixels.width), (40, 25, 720));
    assert_eq!(screen.cells[41].character, b'A');
    assert_eq!(row(&screen.pixels, 16)[17..21], [0, colour(7), colour(7), 0]);
}

#[test]
fn text_scrolls_by_the_start_address_and_row_scan() {
    let mut machine = Machine::with(&TEXT);
    put(&mut machine, 160, b"A", 0x07);
    set_glyph(&mut machine, 0, b'A', 3, 0x80);
    machine.write_crtc(0x0d, 160);
    let screen = machine.text();
    assert_eq!(screen.cells[0].character, b'A');
    assert_eq!(row(&screen.pixels, 3)[0], colour(7));
    machine.write_crtc(0x08, 0x02);
    let screen = machine.text();
    assert_eq!((screen.rows, row(&screen.pixels, 1)[0]), (26, colour(7)));
    // Byte panning counts characters, pel panning dots; 8 is none with nine dots.
    machine.write_crtc(0x08, 0x20);
    assert_eq!(machine.text().cells[0].character, 0);
    machine.write_crtc(0x08, 0x00);
    machine.write_crtc(0x0d, 159);
    machine.write_attribute(0x13, 7);
    assert_eq!(row(&machine.text().pixels, 3)[1], colour(7));
}

#[test]
fn a_screen_that_is_off_is_black() {
    let mut machine = Machine::with(&TEXT);
    put(&mut machine, 0, b"x", 0x77);
    machine.write_sequencer(1, 0x20);
    let pixels = machine.pixels();
    assert_eq!((pixels.width, pixels.height), (720, 400));
    assert!(pixels.colours.iter().all(|pixel| *pixel == 0));
    machine.write_sequencer(1, 0x00);
    machine.read(0x3da);
    machine.write(0x3c0, 0x00);
    assert!(machine.pixels().colours.iter().all(|pixel| *pixel == 0));
    machine.write(0x3c0, 0x00);
    machine.write(0x3c0, 0x20);
    assert_eq!(machine.text().cells[0].background, colour(7));
}

#[test]
fn there_is_a_picture_before_there_is_a_mode() {
    let mut machine = Machine::new();
    machine.write(0x3c0, 0x20);
    let pixels = machine.pixels();
    assert_eq!((pixels.width, pixels.height), (640, 400));
}

#[test]
fn sixteen_colours_come_from_four_planes() {
    let mut machine = Machine::with(&MODE_12);
    machine.set_planes(80, [0b1000_0001, 0b0100_0001, 0b0010_0001, 0b0001_0001]);
    let pixels = machine.pixels();
    assert_eq!((pixels.width, pixels.height), (640, 480));
    let expected = [1, 2, 4, 8, 0, 0, 0, 15].map(colour);
    assert_eq!(row(&pixels, 1)[..8], expected);
    // Planes can be switched off for the display, and the palette extended by the colour select.
    machine.write_attribute(0x12, 0x03);
    assert_eq!(row(&machine.pixels(), 1)[..4], [1, 2, 0, 0].map(colour));
    machine.write_attribute(0x10, 0x81);
    machine.write_attribute(0x14, 0x03);
    assert_eq!(row(&machine.pixels(), 1)[..4], [0x31, 0x32, 0x30, 0x30].map(colour));
}

#[test]
fn mode_13h_has_square_dots_of_bytes() {
    let mut machine = Machine::with(&MODE_13);
    machine.poke(0xa0000 + 320 * 199 + 319, 0x2a);
    machine.poke(0xa0001, 0x15);
    let pixels = machine.pixels();
    assert_eq!((pixels.width, pixels.height), (640, 400));
    assert_eq!(row(&pixels, 0)[..6], [0, 0, 0x15, 0x15, 0, 0].map(colour));
    assert_eq!(row(&pixels, 0), row(&pixels, 1));
    assert_eq!(row(&pixels, 399)[637..], [0, 0x2a, 0x2a].map(colour));
    assert_eq!(row(&pixels, 398), row(&pixels, 399));
    assert_eq!(row(&pixels, 397)[639], 0);
}

/// Mode X: 256 colours without chain 4, so that there are four pages.
#[test]
fn unchained_256_colours_flip_pages_and_pan() {
    let mut machine = Machine::with(&MODE_13);
    machine.write_sequencer(4, 0x06);
    machine.write_crtc(0x14, 0x00);
    machine.write_crtc(0x17, 0xe3);
    machine.write_sequencer(2, 0x04);
    machine.poke(0xa4000 + 80, 0x11);
    machine.write_crtc(0x0c, 0x40);
    let pixels = machine.pixels();
    assert_eq!(row(&pixels, 2)[3..7], [0, 0x11, 0x11, 0].map(colour));
    machine.write_attribute(0x13, 2);
    assert_eq!(row(&machine.pixels(), 2)[1..5], [0, 0x11, 0x11, 0].map(colour));
    machine.write_crtc(0x0c, 0x00);
    assert_eq!(row(&machine.pixels(), 2)[4], 0);
}

#[test]
fn the_split_screen_shows_address_0_and_can_stand_still() {
    let mut machine = Machine::with(&MODE_12);
    machine.set_planes(0, [0xff, 0, 0, 0]);
    machine.set_planes(0x1000, [0, 0xff, 0, 0]);
    machine.write_crtc(0x0c, 0x10);
    // Line compare 99: line 100 is the first one of the split.
    machine.write_crtc(0x18, 99);
    machine.write_crtc(0x07, 0x2e);
    machine.write_crtc(0x09, 0x00);
    machine.write_attribute(0x13, 3);
    let pixels = machine.pixels();
    assert_eq!(row(&pixels, 0)[4..6], [2, 0].map(colour));
    assert_eq!(row(&pixels, 99)[0], colour(0));
    assert_eq!(row(&pixels, 100)[4..6], [1, 0].map(colour));
    machine.write_attribute(0x10, 0x21);
    assert_eq!(row(&machine.pixels(), 100)[7..9], [1, 0].map(colour));
}

#[test]
fn cga_colours_are_in_two_bits() {
    let mut machine = Machine::with(&MODE_4);
    for (address, value) in [(0xb8000, 0b0001_1011), (0xb8001, 0b1110_0100), (0xba000, 0xff)] {
        machine.poke(address, value);
    }
    machine.poke(0xb8000 + 80, 0b0100_0000);
    let pixels = machine.pixels();
    assert_eq!((pixels.width, pixels.height), (640, 400));
    let first = [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1, 0, 0].map(colour);
    assert_eq!(row(&pixels, 0)[..16], first);
    assert_eq!(row(&pixels, 1), row(&pixels, 0));
    // Odd lines are 8 KiB further on.
    assert_eq!(row(&pixels, 2)[..9], [3, 3, 3, 3, 3, 3, 3, 3, 0].map(colour));
    assert_eq!(row(&pixels, 4)[..3], [1, 1, 0].map(colour));
}

#[test]
fn cga_has_two_colours_in_640_dots() {
    let mut machine = Machine::with(&MODE_6);
    machine.poke(0xb8000, 0xa0);
    machine.poke(0xba000 + 79, 0x01);
    let pixels = machine.pixels();
    assert_eq!(row(&pixels, 0)[..4], [1, 0, 1, 0].map(colour));
    assert_eq!(row(&pixels, 2)[638..], [0, 1].map(colour));
    assert_eq!(row(&pixels, 3)[639], colour(1));
    assert_eq!(row(&pixels, 4)[639], colour(0));
}
