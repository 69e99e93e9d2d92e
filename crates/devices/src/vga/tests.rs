//! Register-level tests, with the register values of the BIOS's modes, and random treatment.

mod linear;
mod memory;
mod modes;
mod registers;

use proptest::prelude::*;
use ring3_core::device::{Device, TestBench, Width};
use ring3_core::display::{Picture, Pixels, TextScreen};

use super::*;

/// The registers of a mode of the BIOS (the Reference, "BIOS modes").
struct Mode {
    miscellaneous: u8,
    sequencer: [u8; 5],
    crtc: [u8; 25],
    graphics: [u8; 9],
    /// Attribute registers from 10h on; the palette of the tests is that each attribute is its own colour.
    attribute: [u8; 5],
}

/// 80 by 25 characters of 9 by 16 dots.
const TEXT: Mode = Mode {
    miscellaneous: 0x67,
    sequencer: [0x03, 0x00, 0x03, 0x00, 0x02],
    crtc: [
        0x5f, 0x4f, 0x50, 0x82, 0x55, 0x81, 0xbf, 0x1f, 0x00, 0x4f, 0x0d, 0x0e, 0x00, 0x00, 0x00,
        0x00, 0x9c, 0x8e, 0x8f, 0x28, 0x1f, 0x96, 0xb9, 0xa3, 0xff,
    ],
    graphics: [0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x0e, 0x00, 0xff],
    attribute: [0x0c, 0x00, 0x0f, 0x08, 0x00],
};

/// 640 by 480 with 16 colours.
const MODE_12: Mode = Mode {
    miscellaneous: 0xe3,
    sequencer: [0x03, 0x01, 0x0f, 0x00, 0x06],
    crtc: [
        0x5f, 0x4f, 0x50, 0x82, 0x54, 0x80, 0x0b, 0x3e, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0xea, 0x8c, 0xdf, 0x28, 0x00, 0xe7, 0x04, 0xe3, 0xff,
    ],
    graphics: [0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05, 0x0f, 0xff],
    attribute: [0x01, 0x00, 0x0f, 0x00, 0x00],
};

/// 320 by 200 with 256 colours.
const MODE_13: Mode = Mode {
    miscellaneous: 0x63,
    sequencer: [0x03, 0x01, 0x0f, 0x00, 0x0e],
    crtc: [
        0x5f, 0x4f, 0x50, 0x82, 0x54, 0x80, 0xbf, 0x1f, 0x00, 0x41, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x9c, 0x8e, 0x8f, 0x28, 0x40, 0x96, 0xb9, 0xa3, 0xff,
    ],
    graphics: [0x00, 0x00, 0x00, 0x00, 0x00, 0x40, 0x05, 0x0f, 0xff],
    attribute: [0x41, 0x00, 0x0f, 0x00, 0x00],
};

/// 320 by 200 with 4 colours, as on the CGA.
const MODE_4: Mode = Mode {
    miscellaneous: 0x63,
    sequencer: [0x03, 0x09, 0x03, 0x00, 0x02],
    crtc: [
        0x2d, 0x27, 0x28, 0x90, 0x2b, 0x80, 0xbf, 0x1f, 0x00, 0xc1, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x9c, 0x8e, 0x8f, 0x14, 0x00, 0x96, 0xb9, 0xa2, 0xff,
    ],
    graphics: [0x00, 0x00, 0x00, 0x00, 0x00, 0x30, 0x0f, 0x00, 0xff],
    attribute: [0x01, 0x00, 0x03, 0x00, 0x00],
};

/// 640 by 200 with 2 colours, as on the CGA.
const MODE_6: Mode = Mode {
    miscellaneous: 0x63,
    sequencer: [0x03, 0x01, 0x01, 0x00, 0x06],
    crtc: [
        0x5f, 0x4f, 0x50, 0x82, 0x54, 0x80, 0xbf, 0x1f, 0x00, 0xc1, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x9c, 0x8e, 0x8f, 0x28, 0x00, 0x96, 0xb9, 0xc2, 0xff,
    ],
    graphics: [0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0d, 0x00, 0xff],
    attribute: [0x01, 0x00, 0x01, 0x00, 0x00],
};

/// The adapter with memory around it. The colour of pixel value n is `colour(n)`.
struct Machine {
    bench: TestBench,
    vga: Vga,
    video: Area,
}

/// What the machine's DAC makes of pixel value `pixel`: its bits as they are in red.
fn colour(pixel: u8) -> u32 {
    let red = pixel & 0x3f;
    u32::from(red << 2 | red >> 4) << 16
}

impl Machine {
    fn new() -> Machine {
        let mut bench = TestBench::default();
        let video = bench.memory.add_area(VIDEO_MEMORY_LEN).unwrap();
        let rom = bench.memory.add_area(0x9000).unwrap();
        bench.memory.write_area(rom, 0, &[0x55, 0xaa]);
        let mut vga = Vga::new(video, Some(rom));
        vga.reset(&mut bench.context());
        let mut machine = Machine { bench, vga, video };
        machine.write(0x3c2, 0x67);
        machine.write(0x3c8, 0);
        for pixel in 0..=255 {
            for component in [pixel & 0x3f, 0, 0] {
                machine.write(0x3c9, component);
            }
        }
        for index in 0..16 {
            machine.write_attribute(index, index);
        }
        machine
    }

    fn with(mode: &Mode) -> Machine {
        let mut machine = Machine::new();
        machine.set(mode);
        machine
    }

    fn set(&mut self, mode: &Mode) {
        self.write(0x3c2, mode.miscellaneous);
        for (index, value) in (0..).zip(mode.sequencer) {
            self.write_sequencer(index, value);
        }
        self.write_crtc(0x11, 0);
        for (index, value) in (0..).zip(mode.crtc) {
            self.write_crtc(index, value);
        }
        for (index, value) in (0..).zip(mode.graphics) {
            self.write_graphics(index, value);
        }
        for (index, value) in (0x10..).zip(mode.attribute) {
            self.write_attribute(index, value);
        }
        self.write(0x3c0, 0x20);
    }

    fn read(&mut self, port: u16) -> u8 {
        self.bench.read(&mut self.vga, port)
    }

    fn write(&mut self, port: u16, value: u8) {
        self.bench.write(&mut self.vga, port, value);
    }

    fn write_word(&mut self, port: u16, value: u16) {
        self.vga.write_port(&mut self.bench.context(), port, Width::Word, value.into());
    }

    fn write_sequencer(&mut self, index: u8, value: u8) {
        self.write_word(0x3c4, u16::from_le_bytes([index, value]));
    }

    fn write_graphics(&mut self, index: u8, value: u8) {
        self.write_word(0x3ce, u16::from_le_bytes([index, value]));
    }

    fn write_crtc(&mut self, index: u8, value: u8) {
        self.write_word(0x3d4, u16::from_le_bytes([index, value]));
    }

    fn read_crtc(&mut self, index: u8) -> u8 {
        self.write(0x3d4, index);
        self.read(0x3d5)
    }

    fn write_attribute(&mut self, index: u8, value: u8) {
        self.read(0x3da);
        self.write(0x3c0, index | 0x20);
        self.write(0x3c0, value);
    }

    fn write_dispi(&mut self, index: u16, value: u16) {
        self.write_word(0x1ce, index);
        self.write_word(0x1cf, value);
    }

    fn read_dispi(&mut self, index: u16) -> u16 {
        self.write_word(0x1ce, index);
        self.vga.read_port(&mut self.bench.context(), 0x1cf, Width::Word) as u16
    }

    fn read_config(&mut self, offset: u8) -> u32 {
        self.vga.read_config(&mut self.bench.context(), 0, offset, Width::Dword)
    }

    fn write_config(&mut self, offset: u8, value: u32) {
        self.vga.write_config(&mut self.bench.context(), 0, offset, Width::Dword, value);
    }

    /// The processor reads a byte at a guest-physical address of the window, directly where that is mapped.
    fn peek(&mut self, address: u64) -> u8 {
        if let ring3_core::memory::Target::Place(place) = self.bench.memory.read_target(address) {
            return self.bench.memory.load::<1>(place)[0];
        }
        let offset = address - WINDOW_START;
        self.vga.read_memory(&mut self.bench.context(), WINDOW, offset, Width::Byte) as u8
    }

    fn poke(&mut self, address: u64, value: u8) {
        if let ring3_core::memory::Target::Place(place) = self.bench.memory.write_target(address) {
            return self.bench.memory.store(place, [value]);
        }
        let (context, offset) = (&mut self.bench.context(), address - WINDOW_START);
        self.vga.write_memory(context, WINDOW, offset, Width::Byte, value.into());
    }

    /// The four planes at a plane offset.
    fn planes(&self, offset: u32) -> [u8; 4] {
        self.vga.planes(&self.bench.memory).at(offset)
    }

    fn set_planes(&mut self, offset: u32, planes: [u8; 4]) {
        self.vga.set_planes(&mut self.bench.memory, offset, planes);
    }

    fn text(&self) -> TextScreen {
        match self.vga.picture(&self.bench.memory) {
            Some(Picture::Text(screen)) => screen,
            other => panic!("{other:?}"),
        }
    }

    fn pixels(&self) -> Pixels {
        match self.vga.picture(&self.bench.memory) {
            Some(Picture::Pixels(pixels)) => pixels,
            other => panic!("{other:?}"),
        }
    }
}

/// A row of a picture.
fn row(pixels: &Pixels, y: usize) -> &[u32] {
    &pixels.colours[y * pixels.width..][..pixels.width]
}

/// One thing that happens to the adapter.
#[derive(Debug, Clone)]
enum Blow {
    ReadPort(u16, Width),
    WritePort(u16, Width, u32),
    /// A register behind an index port.
    WriteIndexed(u16, u8, u8),
    /// A DISPI register.
    WriteDispi(u16, u16),
    ReadMemory(u8, u64, Width),
    WriteMemory(u8, u64, Width, u32),
    ReadConfig(u8, Width),
    WriteConfig(u8, Width, u32),
    Pass(u64),
}

fn blow() -> impl Strategy<Value = Blow> {
    let port = prop_oneof![0x3b0_u16..0x3bc, 0x3c0_u16..0x3e0, 0x1ce_u16..0x1d2];
    let width = prop::sample::select(&[Width::Byte, Width::Word, Width::Dword][..]);
    let index_port = prop::sample::select(&[0x3c4_u16, 0x3ce, 0x3d4][..]);
    let dispi_value = prop_oneof![
        any::<u16>(),
        0_u16..1200,
        prop::sample::select(&[4_u16, 8, 15, 16, 24, 32, 0x01, 0x41, 0xc1, 0xe3][..])
    ];
    let region = 0_u8..3;
    let offset = prop_oneof![0_u64..0x2_0002, 0x3f0_u64..0x610, any::<u64>()];
    let register = prop_oneof![any::<u8>(), prop::sample::select(&[0x04_u8, 0x10, 0x18, 0x30][..])];
    prop_oneof![
        2 => (port.clone(), width.clone()).prop_map(|(p, w)| Blow::ReadPort(p, w)),
        2 => (port, width.clone(), any::<u32>()).prop_map(|(p, w, v)| Blow::WritePort(p, w, v)),
        4 => (index_port, 0_u8..0x20, any::<u8>()).prop_map(|(p, i, v)| Blow::WriteIndexed(p, i, v)),
        4 => (0_u16..12, dispi_value).prop_map(|(i, v)| Blow::WriteDispi(i, v)),
        2 => (region.clone(), offset.clone(), width.clone())
            .prop_map(|(r, o, w)| Blow::ReadMemory(r, o, w)),
        3 => (region, offset, width.clone(), any::<u32>())
            .prop_map(|(r, o, w, v)| Blow::WriteMemory(r, o, w, v)),
        1 => (register.clone(), width.clone()).prop_map(|(o, w)| Blow::ReadConfig(o, w)),
        1 => (register, width, any::<u32>()).prop_map(|(o, w, v)| Blow::WriteConfig(o, w, v)),
        1 => (0_u64..20_000_000).prop_map(Blow::Pass),
    ]
}

/// The adapter's size in the test below: small, so that pictures of it are.
const SMALL: u64 = 1 << 20;

proptest! {
    // Pictures of what random registers say are large, and take most of the time.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_treatment_leaves_a_picture_and_a_state_that_can_be_saved(
        mode in prop::sample::select(vec![0, 1, 2, 3, 4, 5]),
        blows in prop::collection::vec(blow(), 0..200),
    ) {
        let mut machine = Machine::new();
        let video = machine.bench.memory.add_area(SMALL).unwrap();
        machine.vga = Vga::new(video, None);
        machine.vga.reset(&mut machine.bench.context());
        if let Some(mode) = [TEXT, MODE_12, MODE_13, MODE_4, MODE_6].get(mode) {
            machine.set(mode);
        }
        for blow in blows {
            let (vga, context) = (&mut machine.vga, &mut machine.bench.context());
            match blow {
                Blow::ReadPort(port, width) => {
                    vga.read_port(context, port, width);
                }
                Blow::WritePort(port, width, value) => {
                    vga.write_port(context, port, width, value & width.mask());
                }
                Blow::WriteIndexed(port, index, value) => {
                    let value = u16::from_le_bytes([index, value]);
                    vga.write_port(context, port, Width::Word, value.into());
                }
                Blow::WriteDispi(index, value) => {
                    vga.write_port(context, 0x1ce, Width::Word, index.into());
                    vga.write_port(context, 0x1cf, Width::Word, value.into());
                }
                Blow::ReadMemory(region, offset, width) => {
                    vga.read_memory(context, region, offset, width);
                }
                Blow::WriteMemory(region, offset, width, value) => {
                    vga.write_memory(context, region, offset, width, value & width.mask());
                }
                Blow::ReadConfig(offset, width) => {
                    vga.read_config(context, 0, offset, width);
                }
                Blow::WriteConfig(offset, width, value) => {
                    vga.write_config(context, 0, offset, width, value & width.mask());
                }
                Blow::Pass(nanos) => machine.bench.now = machine.bench.now.plus_nanos(nanos),
            }
        }
        let pixels = match machine.vga.picture(&machine.bench.memory) {
            Some(Picture::Pixels(pixels)) => pixels,
            Some(Picture::Text(screen)) => {
                prop_assert_eq!(screen.cells.len(), screen.columns * screen.rows);
                screen.pixels
            }
            None => panic!("a display adapter has a picture"),
        };
        prop_assert_eq!(pixels.colours.len(), pixels.width * pixels.height);
        let state = machine.vga.save();
        let mut fresh = Vga::new(video, None);
        fresh.restore(&state).expect("a device takes its own state");
        prop_assert_eq!(fresh.save(), state);
    }
}
