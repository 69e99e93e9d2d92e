//! The host bridge 82441FX (PMC), PCI function 00:00.0: which addresses below 1 MiB are RAM.
//!
//! From Intel's data sheet "440FX PCIset, 82441FX PCI and Memory Controller (PMC)" (290549), whose
//! names are used here. The programmable attribute map (PAM0 to PAM6) says for each part of C0000h to
//! FFFFFh whether reads and writes go to RAM or to the buses behind, where the firmware's ROM answers: so
//! firmware copies itself into RAM and then protects it. The registers for the timing of RAM
//! and for errors hold what is written. System management RAM can be written down in SMRAM but is never there:
//! the machine has no system management mode.
//!
//! Software tells the machines of emulators from others by the subsystem IDs of this function, which the real chip
//! has not; they are those that SeaBIOS looks for.

use ring3_core::device::{Context, Device, DeviceId, Width};
use ring3_core::memory::{Area, Backing, Memory, MemoryError, PAGE_SIZE};
use ring3_core::state::{RestoreError, SavedState};
use serde::{Deserialize, Serialize};

use crate::pci::{Function, Identity, registers};

const VERSION: u32 = 1;

/// The subsystem of QEMU's PCs: vendor and device.
const SUBSYSTEM: [u16; 2] = [0x1af4, 0x1100];

/// DRAM timing and the like, 50h to 58h: PMCCFG to DRAMT, all of which may be written.
const DRAM_CONTROL: u8 = 0x50;
const PAM0: u8 = 0x59;
const PAM_COUNT: u8 = 7;
/// DRB0 to DRB7: where each row of DRAM ends, in units of 8 MiB.
const DRAM_ROW_BOUNDARY: u8 = 0x60;
const SMRAM: u8 = 0x72;
/// SMRAM at A0000h, for good ("C_BASE_SEG").
const SMRAM_AT_A0000: u8 = 0b010;
/// G_SMRAME, D_LCK, D_CLS and D_OPEN.
const SMRAM_BITS: u8 = 0x78;
const SMRAM_OPEN: u8 = 1 << 6;
const SMRAM_LOCKED: u8 = 1 << 4;
/// ERRCMD, ERRSTS (two bytes).
const ERROR_COMMAND: u8 = 0x90;

/// Attributes of a part of memory.
const READ_ENABLE: u8 = 1 << 0;
const WRITE_ENABLE: u8 = 1 << 1;

/// Always the display adapter's.
const DISPLAY: std::ops::Range<u64> = 0xa0000..0xc0000;
/// From here to 1 MiB the PAM registers decide.
const PAM_START: u64 = 0xc0000;
/// The parts from C0000h on, but for the last one, from F0000h on.
const PAM_PART: u64 = 0x4000;
const PAM_LAST: u64 = 0xf0000;
const MIB: u64 = 1 << 20;
/// The ROM's last 128 KiB answer below 1 MiB.
const ROM_LOW: u64 = 0xe0000;
const FOUR_GIB: u64 = 1 << 32;
/// They answer here too: where the processor starts after a reset while address line 20 is masked (82378ZB data
/// sheet, 4.1.2).
const ROM_WITHOUT_A20: u64 = 0xffee_0000;
const ROM_LOW_LEN: u64 = MIB - ROM_LOW;

/// The bits of the PAM registers that can be set. As firmware leaves them, all are: RAM is read and written.
const PAM_BITS: [u8; PAM_COUNT as usize] = [0x30, 0x33, 0x33, 0x33, 0x33, 0x33, 0x33];

/// The host bridge, device `i440fx`.
#[derive(Debug, Clone)]
pub struct I440fx {
    function: Function,
    rom: Option<Area>,
}

#[derive(Serialize, Deserialize)]
struct State {
    config: Vec<u8>,
}

impl I440fx {
    /// The bridge of a machine whose firmware is in `rom`, an area of which the end is the end of the
    /// firmware. Without one everything is as firmware leaves it, which means RAM up to FFFFFh.
    pub fn new(rom: Option<Area>) -> I440fx {
        let identity = Identity { vendor: 0x8086, device: 0x1237, revision: 2, class: 0x060000 };
        let function = Function::new(identity)
            // Memory access and bus mastering are wired on; parity and SERR# responses are free.
            .fixed(registers::COMMAND, &[0x06, 0x00])
            .writable(registers::COMMAND, &[0x40, 0x01])
            .status(0x0280)
            .subsystem(SUBSYSTEM[0], SUBSYSTEM[1])
            .writable(DRAM_CONTROL, &[0xff; (PAM0 - DRAM_CONTROL) as usize])
            .fixed(PAM0, if rom.is_some() { &[0; 7] } else { &PAM_BITS })
            .writable(PAM0, &PAM_BITS)
            .writable(DRAM_ROW_BOUNDARY, &[0xff; 8])
            .fixed(SMRAM, &[SMRAM_AT_A0000])
            .writable(SMRAM, &[SMRAM_BITS])
            .writable(ERROR_COMMAND, &[0xff])
            .clearable(ERROR_COMMAND + 1, &[0xff, 0xff]);
        I440fx { function, rom }
    }

    fn register(&self, offset: u8) -> u8 {
        self.function.read(offset, Width::Byte) as u8
    }

    fn pam(&self) -> [u8; PAM_COUNT as usize] {
        std::array::from_fn(|index| self.register(PAM0 + index as u8))
    }

    /// The parts of memory from C0000h on: start, length, attributes.
    fn parts(&self) -> impl Iterator<Item = (u64, u64, u8)> {
        let pam = self.pam();
        let low = (PAM_START..PAM_LAST).step_by(PAM_PART as usize).enumerate();
        let low = low.map(move |(index, start)| {
            let attributes = pam[1 + index / 2] >> (4 * (index % 2));
            (start, PAM_PART, attributes)
        });
        low.chain([(PAM_LAST, MIB - PAM_LAST, pam[0] >> 4)])
    }

    /// What answers from `start`, below 1 MiB, on when RAM does not.
    fn behind(&self, start: u64) -> (Backing, Backing) {
        let nobody = (Backing::Device, Backing::Device);
        let Some(rom) = self.rom.filter(|_| start >= ROM_LOW) else { return nobody };
        match rom.size().checked_sub(MIB - start) {
            Some(offset) => (Backing::Area(rom, offset), Backing::Nothing),
            None => nobody,
        }
    }

    /// Maps what the PAM registers decide.
    fn map_parts(&self, memory: &mut Memory) -> Result<(), MemoryError> {
        for (start, len, attributes) in self.parts() {
            let (mut reads, mut writes) = self.behind(start);
            if attributes & READ_ENABLE != 0 {
                reads = Backing::Ram;
            }
            if attributes & WRITE_ENABLE != 0 {
                writes = Backing::Ram;
            }
            memory.map(start, len, reads, writes)?;
        }
        Ok(())
    }

    /// Maps all that this chip decides.
    fn map(&self, memory: &mut Memory) -> Result<(), MemoryError> {
        let display_len = DISPLAY.end - DISPLAY.start;
        memory.map(DISPLAY.start, display_len, Backing::Device, Backing::Device)?;
        if let Some(rom) = self.rom {
            let start = FOUR_GIB - rom.size();
            memory.map(start, rom.size(), Backing::Area(rom, 0), Backing::Nothing)?;
            // A ROM that is larger than 1 MiB is there already.
            if rom.size() <= MIB {
                let len = ROM_LOW_LEN.min(rom.size());
                let end = ROM_WITHOUT_A20 + ROM_LOW_LEN;
                let reads = Backing::Area(rom, rom.size() - len);
                memory.map(end - len, len, reads, Backing::Nothing)?;
            }
        }
        self.map_parts(memory)
    }
}

/// The largest ROM in bytes: it has the last 16 MiB of the first 4 GiB, but for where APICs are.
pub const ROM_MAX: u64 = 16 << 20;
const _: () = assert!(ROM_MAX.is_multiple_of(PAGE_SIZE));

impl Device for I440fx {
    fn id(&self) -> DeviceId {
        DeviceId::I440FX
    }

    fn reset(&mut self, context: &mut Context<'_>) {
        *self = I440fx::new(self.rom);
        self.map(context.memory).expect("the machine has a MiB of RAM and the ROM at most 16 MiB");
    }

    fn read_config(&mut self, _: &mut Context<'_>, _function: u8, offset: u8, width: Width) -> u32 {
        self.function.read(offset, width)
    }

    fn write_config(
        &mut self,
        context: &mut Context<'_>,
        _function: u8,
        offset: u8,
        width: Width,
        value: u32,
    ) {
        let (pam, smram) = (self.pam(), self.register(SMRAM));
        self.function.write(context, offset, width, value);
        if smram & SMRAM_LOCKED != 0 {
            self.function.set(SMRAM, &[smram]);
        } else if self.register(SMRAM) & SMRAM_LOCKED != 0 {
            // "When D_LCK is set to a 1, then D_OPEN is set to 0."
            self.function.set(SMRAM, &[self.register(SMRAM) & !SMRAM_OPEN]);
        }
        if self.pam() != pam {
            self.map_parts(context.memory).expect("it fitted when the machine was switched on");
        }
    }

    fn save(&self) -> SavedState {
        SavedState::new(self.name(), VERSION, &State { config: self.function.save() })
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let state: State = saved.load(self.name(), VERSION)?;
        self.function = self.function.restored(saved, &state.config)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hammer::{config_blows, hammer_config};
    use ring3_core::device::TestBench;

    const ROM_SIZE: u64 = 256 << 10;

    fn machine() -> (TestBench, I440fx, Area) {
        let mut bench = TestBench::default();
        let rom = bench.memory.add_area(ROM_SIZE).unwrap();
        for page in 0..ROM_SIZE / PAGE_SIZE {
            bench.memory.write_area(rom, page * PAGE_SIZE, &[page as u8 | 0x80]);
        }
        let mut bridge = I440fx::new(Some(rom));
        bridge.reset(&mut bench.context());
        (bench, bridge, rom)
    }

    fn read(bench: &TestBench, address: u64) -> u8 {
        let mut byte = [0];
        bench.memory.read(address, &mut byte);
        byte[0]
    }

    fn write_config(bench: &mut TestBench, bridge: &mut I440fx, offset: u8, value: u8) {
        bridge.write_config(&mut bench.context(), 0, offset, Width::Byte, value.into());
    }

    #[test]
    fn the_rom_is_below_4_gib_and_its_end_below_1_mib() {
        let (bench, _, _) = machine();
        assert_eq!(read(&bench, 0xfffc_0000), 0x80);
        assert_eq!(read(&bench, 0xffff_f000), 0xbf);
        assert_eq!(read(&bench, 0xe0000), 0xa0);
        assert_eq!(read(&bench, 0xff000), 0xbf);
        assert_eq!(read(&bench, 0xdf000), 0xff, "nobody answers");
        assert_eq!(read(&bench, 0xffee_0000), 0xa0);
        assert_eq!(read(&bench, 0xffef_f000), 0xbf);
        assert_eq!(read(&bench, 0xffed_f000), 0xff, "nobody answers");
    }

    #[test]
    fn firmware_shadows_itself() {
        let (mut bench, mut bridge, _) = machine();
        // Reads from ROM, writes to RAM: copy in place.
        write_config(&mut bench, &mut bridge, PAM0, 0x20);
        let byte = read(&bench, 0xff000);
        bench.memory.write(0xff000, &[byte ^ 1]);
        assert_eq!(read(&bench, 0xff000), 0xbf);
        // RAM for reads alone.
        write_config(&mut bench, &mut bridge, PAM0, 0x10);
        assert_eq!(read(&bench, 0xff000), 0xbe);
        bench.memory.write(0xff000, &[0]);
        assert_eq!(read(&bench, 0xff000), 0xbe, "it is protected");
        assert_eq!(read(&bench, 0xffff_f000), 0xbf);
        bridge.reset(&mut bench.context());
        assert_eq!(read(&bench, 0xff000), 0xbf);
    }

    #[test]
    fn each_pam_register_has_its_parts() {
        let (mut bench, mut bridge, _) = machine();
        for (index, start) in (PAM_START..PAM_LAST).step_by(0x8000).enumerate() {
            for (attributes, part) in [(0x03, start), (0x30, start + 0x4000)] {
                bench.memory.load_image(part + 0x3000, &[0x55]).unwrap();
                let before = read(&bench, part + 0x3000);
                assert_ne!(before, 0x55);
                write_config(&mut bench, &mut bridge, PAM0 + 1 + index as u8, attributes);
                assert_eq!(read(&bench, part + 0x3000), 0x55);
                write_config(&mut bench, &mut bridge, PAM0 + 1 + index as u8, 0);
                assert_eq!(read(&bench, part + 0x3000), before);
            }
        }
    }

    #[test]
    fn without_firmware_everything_is_ram() {
        let mut bench = TestBench::default();
        let mut bridge = I440fx::new(None);
        bridge.reset(&mut bench.context());
        for address in [0xc0000, 0xe0000, 0xfffff] {
            bench.memory.write(address, &[3]);
            assert_eq!(read(&bench, address), 3);
        }
        bench.memory.write(0xa0000, &[3]);
        assert_eq!(read(&bench, 0xa0000), 0xff, "the display adapter's");
    }

    #[test]
    fn seabios_recognizes_the_bridge() {
        let (mut bench, mut bridge, _) = machine();
        let mut read = |offset| bridge.read_config(&mut bench.context(), 0, offset, Width::Dword);
        assert_eq!([read(0), read(0x2c), read(8) >> 8], [0x1237_8086, 0x1100_1af4, 0x060000]);
    }

    #[test]
    fn locked_smram_does_not_change() {
        let (mut bench, mut bridge, _) = machine();
        write_config(&mut bench, &mut bridge, SMRAM, 0x48);
        assert_eq!(bridge.register(SMRAM), 0x4a);
        write_config(&mut bench, &mut bridge, SMRAM, 0x58);
        assert_eq!(bridge.register(SMRAM), 0x1a);
        write_config(&mut bench, &mut bridge, SMRAM, 0x48);
        assert_eq!(bridge.register(SMRAM), 0x1a);
    }

    proptest! {
        #[test]
        fn any_accesses_leave_a_state_that_can_be_saved(blows in config_blows()) {
            let (mut bench, mut bridge, rom) = machine();
            hammer_config(&mut bridge, &mut bench, 0, blows);
            let state = bridge.save();
            let mut fresh = I440fx::new(Some(rom));
            fresh.restore(&state).unwrap();
            prop_assert_eq!(fresh.save(), state);
        }
    }
}
