//! Ports, the DAC, input status, PCI and saved states.

use super::*;
use ring3_core::bus::Decoded;
use ring3_core::clock::Time;
use ring3_core::memory::Target;

#[test]
fn registers_keep_the_bits_that_they_have() {
    let mut machine = Machine::new();
    machine.write_sequencer(4, 0xff);
    assert_eq!(machine.read(0x3c5), 0x0e);
    machine.write_graphics(5, 0xff);
    assert_eq!(machine.read(0x3cf), 0x7b);
    machine.write_crtc(0x0c, 0xa5);
    assert_eq!(machine.read_crtc(0x0c), 0xa5);
    assert_eq!((machine.read_crtc(0x19), machine.read_crtc(0xff)), (0, 0));
    machine.write_sequencer(5, 0xff);
    assert_eq!(machine.read(0x3c5), 0);
}

#[test]
fn crtc_and_status_are_at_one_of_two_addresses() {
    let mut machine = Machine::with(&TEXT);
    machine.write(0x3d4, 0x0c);
    machine.write(0x3d5, 0x12);
    assert_eq!((machine.read(0x3b5), machine.read(0x3ba)), (0xff, 0xff));
    machine.write(0x3c2, 0x66);
    assert_eq!((machine.read(0x3b5), machine.read(0x3d5), machine.read(0x3da)), (0x12, 0xff, 0xff));
    assert_eq!(machine.read(0x3cc), 0x66);
}

#[test]
fn the_attribute_controller_takes_address_and_data_in_turn() {
    let mut machine = Machine::new();
    machine.read(0x3da);
    for value in [0x31, 0x2a, 0x32, 0x3f] {
        machine.write(0x3c0, value);
    }
    assert_eq!((machine.read(0x3c0), machine.read(0x3c1)), (0x32, 0x3f));
    machine.write(0x3c0, 0x31);
    machine.read(0x3da);
    machine.write(0x3c0, 0x31);
    assert_eq!(machine.read(0x3c1), 0x2a);
    // Data for the address 31h, and nothing is there to hold it at 3Fh.
    machine.write(0x3c0, 0x15);
    machine.write(0x3c0, 0x3f);
    machine.write(0x3c0, 0xff);
    assert_eq!(machine.read(0x3c1), 0);
}

#[test]
fn the_first_crtc_registers_can_be_protected() {
    let mut machine = Machine::with(&TEXT);
    machine.write_crtc(0x00, 0);
    machine.write_crtc(0x07, 0);
    // Bit 4 of the overflow register, the line compare's, is not protected.
    assert_eq!((machine.read_crtc(0x00), machine.read_crtc(0x07)), (0x5f, 0x0f));
    machine.write_crtc(0x11, 0x0e);
    machine.write_crtc(0x00, 1);
    assert_eq!(machine.read_crtc(0x00), 1);
}

#[test]
fn the_dac_counts_components_and_colours() {
    let mut machine = Machine::new();
    machine.write(0x3c8, 0xff);
    for value in [1, 2, 0xff, 4, 5, 6] {
        machine.write(0x3c9, value);
    }
    assert_eq!((machine.read(0x3c7), machine.read(0x3c8)), (0, 1));
    machine.write(0x3c7, 0xff);
    assert_eq!(machine.read(0x3c7), 3);
    let colours: Vec<u8> = (0..6).map(|_| machine.read(0x3c9)).collect();
    assert_eq!(colours, [1, 2, 0x3f, 4, 5, 6]);
    // A colour changes with its third component.
    machine.write(0x3c8, 0);
    machine.write(0x3c9, 9);
    machine.write(0x3c7, 0);
    assert_eq!(machine.read(0x3c9), 4);
}

#[test]
fn the_dac_mask_is_for_the_display() {
    let mut machine = Machine::with(&MODE_13);
    machine.set_planes(0, [0x3f, 0x21, 0, 0]);
    machine.write(0x3c6, 0x0f);
    let pixels = machine.pixels();
    assert_eq!(row(&pixels, 0)[..4], [colour(0x0f), colour(0x0f), colour(1), colour(1)]);
}

/// In the text mode of the BIOS: 28.322 MHz, 900 dots a line and 449 lines a frame. Lines are shown
/// up to 399, the retrace is in lines 412 and 413.
#[test]
fn the_beam_follows_virtual_time() {
    let mut machine = Machine::with(&TEXT);
    let line = |line: u64, dot: u64| Time::of_tick(line * 900 + dot, 28_322_000);
    for (time, status) in [
        (line(0, 0), 0x00),
        (line(0, 719), 0x00),
        (line(0, 720), 0x01),
        (line(399, 10), 0x00),
        (line(400, 10), 0x01),
        (line(411, 899), 0x01),
        (line(412, 0), 0x09),
        (line(413, 899), 0x09),
        (line(414, 0), 0x01),
        (line(448, 899), 0x01),
        (line(449, 0), 0x00),
        (line(449 * 1000 + 412, 0), 0x09),
    ] {
        machine.bench.now = time;
        assert_eq!(machine.read(0x3da), status, "{time:?}");
    }
}

#[test]
fn the_beam_is_exact_while_it_is_watched() {
    let mut machine = Machine::with(&TEXT);
    let mut displayed_dots = 720;
    for nanos in 0..100_000 {
        if nanos == 50_000 {
            // 40 characters of 9 dots are displayed.
            displayed_dots = 360;
            machine.write_crtc(0x11, 0);
            machine.write_crtc(0x01, 39);
        }
        machine.bench.now = Time::from_nanos(nanos);
        let dot = machine.bench.now.ticks(28_322_000) % 900;
        assert_eq!(machine.read(0x3da), u8::from(dot >= displayed_dots), "{nanos} ns");
    }
}

#[test]
fn there_is_a_retrace_with_any_registers() {
    let mut machine = Machine::new();
    for _ in 0..2 {
        let (mut seen, mut bench_now) = ([false; 2], machine.bench.now);
        for _ in 0..2000 {
            bench_now = bench_now.plus_nanos(20_000);
            machine.bench.now = bench_now;
            seen[usize::from(machine.read(0x3da) >> 3 & 1)] = true;
        }
        assert_eq!(seen, [true; 2]);
        // A retrace that starts after the last line.
        machine.set(&TEXT);
        machine.write_crtc(0x11, 0);
        machine.write_crtc(0x10, 0xff);
        machine.write_crtc(0x07, 0xff);
    }
}

#[test]
fn pci_software_finds_the_adapter_and_the_sizes_of_its_regions() {
    let mut machine = Machine::new();
    assert_eq!(machine.read_config(0), 0x1111_1234);
    assert_eq!(machine.read_config(8) >> 8, 0x03_0000);
    for (register, size) in
        [(0x10, 0xff00_0008), (0x14, 0), (0x18, 0xffff_f000), (0x30, 0xffff_0001)]
    {
        machine.write_config(register, 0xffff_ffff);
        assert_eq!(machine.read_config(register), size, "{register:#x}");
    }
}

#[test]
fn base_address_registers_put_memory_and_registers_where_they_say() {
    let mut machine = Machine::new();
    machine.write_config(0x10, 0xe000_0000);
    machine.write_config(0x18, 0xfebf_0000);
    machine.write_config(0x30, 0xfebe_0001);
    assert_eq!(machine.bench.memory.read_target(0xe000_0000), Target::Device);
    machine.write_config(0x04, 2);
    machine.bench.memory.write(0xe0ff_ffff, &[7]);
    assert_eq!(machine.bench.memory.area(machine.video)[0xff_ffff], 7);
    let mut signature = [0; 2];
    machine.bench.memory.write(0xfebe_0000, &[1, 2]);
    machine.bench.memory.read(0xfebe_0000, &mut signature);
    assert_eq!(signature, [0x55, 0xaa]);
    let claim = machine.bench.claims.last().unwrap();
    let decoded = Decoded::Memory { start: 0xfebf_0000, len: 4096 };
    assert_eq!((claim.region, claim.decoded), (MMIO, decoded));
    machine.write_config(0x30, 0xfebe_0000);
    machine.write_config(0x10, 0xd000_0000);
    assert_eq!(machine.bench.memory.read_target(0xfebe_0000), Target::Device);
    assert_eq!(machine.bench.memory.read_target(0xe000_0000), Target::Device);
    assert_ne!(machine.bench.memory.read_target(0xd000_0000), Target::Device);
    machine.write_config(0x04, 0);
    assert_eq!(machine.bench.memory.read_target(0xd000_0000), Target::Device);
    assert_eq!(machine.bench.claims.last().unwrap().decoded, Decoded::Nothing);
}

#[test]
fn looking_for_sizes_hides_nothing() {
    let mut machine = Machine::new();
    let firmware = machine.bench.memory.add_area(0x1000).unwrap();
    let backing = Backing::Area(firmware, 0);
    machine.bench.memory.map(0xffff_f000, 0x1000, backing, Backing::Nothing).unwrap();
    let before = machine.bench.memory.read_target(0xffff_f000);
    machine.write_config(0x04, 2);
    machine.write_config(0x10, 0xffff_ffff);
    assert_eq!(machine.bench.memory.read_target(0xffff_f000), before);
    machine.write_config(0x10, 0);
    assert_eq!(machine.bench.memory.read_target(0xffff_f000), before);
    // RAM stays, too.
    machine.write_config(0x30, 1);
    assert_eq!(machine.bench.memory.read_target(0), Target::Place(0));
}

#[test]
fn states_that_cannot_be_are_refused() {
    let machine = Machine::with(&TEXT);
    let good = machine.vga.state.clone();
    let config = machine.vga.function.save();
    let mut bad_dac = good.clone();
    bad_dac.registers.dac = serde_dac(255);
    let mut bad_window = good.clone();
    bad_window.window = Some(VIDEO_MEMORY_LEN);
    let mut bad_mapping = good.clone();
    bad_mapping.mapped = serde_mapped(0x1000);
    for (config, state) in [
        (config.clone(), bad_dac),
        (config.clone(), bad_window),
        (config.clone(), bad_mapping),
        (vec![0; 256], good.clone()),
    ] {
        let mut vga = Vga::new(machine.video, machine.vga.rom);
        let before = vga.save();
        let saved = SavedState::new(DeviceId::VGA.name(), VERSION, &Saved { config, state });
        assert!(matches!(vga.restore(&saved), Err(RestoreError::Damaged { .. })));
        assert_eq!(vga.save(), before);
    }
    let saved = SavedState::new(DeviceId::VGA.name(), VERSION, &Saved { config, state: good });
    Vga::new(machine.video, machine.vga.rom).restore(&saved).unwrap();
}

/// A DAC with another number of colours, as a damaged state has it.
fn serde_dac(colours: usize) -> dac::Dac {
    #[derive(Serialize)]
    struct Body {
        mask: u8,
        address: u8,
        is_reading: bool,
        component: u8,
        written: [u8; 3],
        eight_bits: bool,
        colours: Vec<[u8; 3]>,
    }
    let body = Body {
        mask: 0,
        address: 0,
        is_reading: false,
        component: 0,
        written: [0; 3],
        eight_bits: false,
        colours: vec![[0; 3]; colours],
    };
    SavedState::new("dac", 1, &body).load("dac", 1).unwrap()
}

/// Video memory mapped at an address that no register has.
fn serde_mapped(address: u32) -> pci::Mapped {
    #[derive(Serialize)]
    struct Body {
        frame_buffer: Option<u32>,
        rom: Option<u32>,
    }
    let body = Body { frame_buffer: Some(address), rom: None };
    SavedState::new("mapped", 1, &body).load("mapped", 1).unwrap()
}
