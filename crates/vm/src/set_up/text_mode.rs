//! The display adapter in the state in which its firmware leaves it: in mode 3, an empty text screen of 80 by
//! 25 characters.
//!
//! The values are from IBM's "Personal System/2 Hardware Interface Technical Reference, Video Subsystem", and
//! are written by the ports and the memory of a VGA. The font is not IBM's, but FreeBSD's of this size.

use ring3_core::device::Width;
use vga_framebuffer::freebsd_cp850::FONT_DATA;

use super::Firmware;

/// The attribute controller. It takes address and data in turn, and an address after a read of input
/// status 1.
const ATTRIBUTE: u16 = 0x3c0;
const INPUT_STATUS_1: u16 = 0x3da;
const MISCELLANEOUS_OUTPUT: u16 = 0x3c2;
const DAC_WRITE_ADDRESS: u16 = 0x3c8;
const DAC_DATA: u16 = 0x3c9;
// The ports of indices; the register with this index is at the next port.
const SEQUENCER: u16 = 0x3c4;
const GRAPHICS: u16 = 0x3ce;
const CRTC: u16 = 0x3d4;

// The registers that are set for the font.
const MAP_MASK: u8 = 2;
const MEMORY_MODE: u8 = 4;
const GRAPHICS_MODE: u8 = 5;
const GRAPHICS_MISCELLANEOUS: u8 = 6;
/// In the CRT controller: it also decides whether registers 0 to 7 can be written.
const VERTICAL_RETRACE_END: u8 = 0x11;

// The values of the registers in mode 3 with 9 by 16 dots for a character, 720 by 400 dots at 70 Hz.
const MODE_3_MISCELLANEOUS: u8 = 0x67;
const MODE_3_SEQUENCER: [u8; 5] = [0x03, 0x00, 0x03, 0x00, 0x02];
const MODE_3_CRTC: [u8; 25] = [
    0x5f, 0x4f, 0x50, 0x82, 0x55, 0x81, 0xbf, 0x1f, 0x00, 0x4f, 0x0d, 0x0e, 0x00, 0x00, 0x00, 0x00,
    0x9c, 0x8e, 0x8f, 0x28, 0x1f, 0x96, 0xb9, 0xa3, 0xff,
];
const MODE_3_GRAPHICS: [u8; 9] = [0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x0e, 0x00, 0xff];
/// The palette comes first: the 16 colours among the 64 of the EGA.
const MODE_3_ATTRIBUTE: [u8; 21] = [
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x14, 0x07, 0x38, 0x39, 0x3a, 0x3b, 0x3c, 0x3d, 0x3e, 0x3f,
    0x0c, 0x00, 0x0f, 0x08, 0x00,
];
/// Bit of the attribute address: the screen is on.
const SCREEN_ON: u8 = 0x20;

/// The colours of the EGA.
const EGA_COLOURS: u8 = 64;

/// The address of plane 2 while it can be written as a whole.
const FONT: u64 = 0xa_0000;
/// Bytes of a character in the font, of which 16 are its lines.
const GLYPH_PLACE: u64 = 32;
const GLYPH_LINES: usize = 16;

/// The address of the characters on the screen, each with its attribute.
const TEXT: u64 = 0xb_8000;
const TEXT_LEN: u64 = 0x8000;
/// Two spaces in light grey on black.
const EMPTY: u32 = 0x0720_0720;

/// Brings the adapter into mode 3.
pub(super) fn enter(firmware: &mut Firmware<'_>) {
    let mut adapter = Adapter(firmware);
    adapter.out(MISCELLANEOUS_OUTPUT, MODE_3_MISCELLANEOUS);
    adapter.load_font();
    adapter.set_all(SEQUENCER, &MODE_3_SEQUENCER);
    adapter.set(CRTC, VERTICAL_RETRACE_END, 0);
    adapter.set_all(CRTC, &MODE_3_CRTC);
    adapter.set_all(GRAPHICS, &MODE_3_GRAPHICS);
    adapter.load_colours();
    adapter.clear();
    adapter.expect_attribute_address();
    for (index, value) in (0..).zip(MODE_3_ATTRIBUTE) {
        adapter.out(ATTRIBUTE, index);
        adapter.out(ATTRIBUTE, value);
    }
    adapter.out(ATTRIBUTE, SCREEN_ON);
}

/// Accesses the adapter.
struct Adapter<'a, 'b>(&'a mut Firmware<'b>);

impl Adapter<'_, '_> {
    fn out(&mut self, port: u16, value: u8) {
        let Firmware { board, memory, now, .. } = &mut *self.0;
        board.write_port(memory, *now, port, Width::Byte, value.into());
    }

    /// Makes the next write to the attribute controller an address.
    fn expect_attribute_address(&mut self) {
        let Firmware { board, memory, now, .. } = &mut *self.0;
        board.read_port(memory, *now, INPUT_STATUS_1, Width::Byte);
    }

    /// Sets register `index` of those behind `port`.
    fn set(&mut self, port: u16, index: u8, value: u8) {
        self.out(port, index);
        self.out(port + 1, value);
    }

    /// Sets the registers behind `port` from the first one on.
    fn set_all(&mut self, port: u16, values: &[u8]) {
        for (index, value) in (0..).zip(values) {
            self.set(port, index, *value);
        }
    }

    fn write_memory(&mut self, address: u64, width: Width, value: u32) {
        let Firmware { board, memory, now, .. } = &mut *self.0;
        board.write_memory(memory, *now, address, width, value);
    }

    /// Writes the font to plane 2.
    fn load_font(&mut self) {
        self.set(SEQUENCER, MAP_MASK, 1 << 2);
        self.set(SEQUENCER, MEMORY_MODE, 0x06);
        self.set_all(GRAPHICS, &MODE_3_GRAPHICS);
        self.set(GRAPHICS, GRAPHICS_MODE, 0x00);
        self.set(GRAPHICS, GRAPHICS_MISCELLANEOUS, 0x04);
        for (code, lines) in (0..).zip(FONT_DATA.chunks_exact(GLYPH_LINES)) {
            for (line, dots) in (0..).zip(lines) {
                let address = FONT + code * GLYPH_PLACE + line;
                self.write_memory(address, Width::Byte, (*dots).into());
            }
        }
    }

    /// Gives the DAC the colours of the EGA. Bits 2 to 0 are two thirds of red, green and blue, and bits 5 to
    /// 3 one third.
    fn load_colours(&mut self) {
        self.out(DAC_WRITE_ADDRESS, 0);
        for colour in 0..EGA_COLOURS {
            for bit in [2, 1, 0] {
                let (two_thirds, third) = (colour >> bit & 1, colour >> (bit + 3) & 1);
                self.out(DAC_DATA, 0x2a * two_thirds + 0x15 * third);
            }
        }
    }

    /// Empties the screen.
    fn clear(&mut self) {
        for address in (TEXT..TEXT + TEXT_LEN).step_by(4) {
            self.write_memory(address, Width::Dword, EMPTY);
        }
    }
}

#[cfg(test)]
mod tests {
    use ring3_core::display::Picture;

    use super::super::tests::after_reset;
    use super::*;

    /// Returns the text screen of the machine.
    fn screen(machine: &Firmware<'_>) -> ring3_core::display::TextScreen {
        match machine.board.picture(machine.memory) {
            Some(Picture::Text(screen)) => screen,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_screen_is_an_empty_text_screen() {
        after_reset(false, |machine| {
            let screen = screen(machine);
            assert_eq!((screen.columns, screen.rows, screen.cursor), (80, 25, Some((0, 0))));
            assert_eq!((screen.pixels.width, screen.pixels.height), (720, 400));
            for cell in &screen.cells {
                assert_eq!((cell.character, cell.foreground, cell.background), (b' ', 0xaaaaaa, 0));
            }
        });
    }

    #[test]
    fn written_text_has_its_colours() {
        after_reset(false, |machine| {
            // A full block in brown on blue, and an L in white on black.
            let text = 0x0f4c_16db;
            machine.board.write_memory(machine.memory, machine.now, TEXT, Width::Dword, text);
            let screen = screen(machine);
            assert_eq!(screen.cells[0].background, 0x0000aa);
            assert_eq!(screen.cells[1].foreground, 0xffffff);
            let dots = |column: usize, line: usize| {
                let start = line * screen.pixels.width + 9 * column;
                &screen.pixels.colours[start..start + 9]
            };
            // In line graphics the ninth dot repeats the eighth one.
            assert!((1..15).all(|line| dots(0, line) == [0xaa5500; 9]));
            let lit = |line| dots(1, line).iter().filter(|dot| **dot == 0xffffff).count();
            assert!(lit(4) < lit(11), "an L is wider at its foot");
            assert_eq!((lit(0), lit(15)), (0, 0));
        });
    }

    #[test]
    fn firmware_finds_the_adapter_in_its_reset_state() {
        after_reset(true, |machine| {
            let picture = machine.board.picture(machine.memory);
            assert!(!matches!(picture, Some(Picture::Text(_))), "{picture:?}");
        });
    }
}
