//! Sets up the board as firmware does before it starts a system, for kernels that start without firmware: the
//! base addresses of PCI functions, the lines of their interrupts, the ports of the disks, address line 20, a
//! text screen, and the initial state of the keyboard and the DMA controllers.
//!
//! It uses the ports of PCI configuration, as firmware does (PCI Local Bus Specification 2.1, chapter 6). The
//! chipset's own functions, the router of interrupts and the ports of power management, are made with their
//! settings.

use ring3_core::clock::Time;
use ring3_core::device::Width;
use ring3_core::lines::IrqLines;
use ring3_core::memory::Memory;
use ring3_devices::pci::{MULTI_FUNCTION, registers};

use crate::board::Board;
use crate::linear_mode::LinearMode;

mod legacy;
mod text_mode;

/// PCI's CONFIG_ADDRESS and CONFIG_DATA.
const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;
const CONFIG_ENABLE: u32 = 1 << 31;

/// Register of the IDE function: the timings of both channels (82371SB data sheet, "IDETIM").
const IDE_TIMINGS: u8 = 0x40;
/// Register of the ISA bridge: the lines of PIRQA to PIRQD (82371SB data sheet, "PIRQRCA").
const PIRQ_ROUTES: u8 = 0x60;

const COMMAND_IO: u32 = 1 << 0;
const COMMAND_MEMORY: u32 = 1 << 1;
const COMMAND_MASTER: u32 = 1 << 2;
/// Bits of a base address register: it is for ports, or for memory that may be above 4 GiB (6.2.5.1).
const BASE_IS_IO: u32 = 1 << 0;
const BASE_KIND: u32 = 0b111;
const BASE_64_BITS: u32 = 0b100;
const BASE_ADDRESSES: u8 = 6;

/// Mass storage, IDE.
const CLASS_IDE: u32 = 0x0101;
/// A display adapter that is a VGA.
const CLASS_VGA: u32 = 0x0300;
/// IDETIM: the channel answers at its ports.
const IDE_DECODE_ENABLE: u32 = 1 << 15;

const ISA_BRIDGE: Function = Function { slot: 1, number: 0 };
const DISPLAY: Function = Function { slot: 2, number: 0 };
/// PIRQRC: the input is not routed.
const NOT_ROUTED: u32 = 0x80;
/// Edge/level control of the 8259A, both bytes.
const EDGE_LEVEL_CONTROL: u16 = 0x4d0;

/// System control port A, and its bit that holds address line 20 high.
const PORT_92: u16 = 0x92;
const ADDRESS_LINE_20: u32 = 1 << 1;

/// The registers for linear modes, by index and data port (Bochs's VBE display interface): the size, the bits of a
/// pixel, and what lets the adapter show them from its linear memory.
const DISPI_INDEX: u16 = 0x1ce;
const DISPI_DATA: u16 = 0x1cf;
const DISPI_WIDTH: u32 = 1;
const DISPI_HEIGHT: u32 = 2;
const DISPI_DEPTH: u32 = 3;
const DISPI_ENABLE: u32 = 4;
const DISPI_ENABLED: u16 = 0x41;

/// The ports for functions: the first one, and the end.
const FIRST_PORT: u32 = 0xc000;
const PORTS_END: u32 = 0x1_0000;
/// The memory for functions, in the window that the ACPI tables give to PCI.
const FIRST_MEMORY: u32 = 0xe000_0000;
const MEMORY_END: u32 = 0xfec0_0000;

/// Sets up the board. Must be called after a reset.
pub(crate) fn set_up(board: &mut Board, memory: &mut Memory, now: Time) {
    let (ports, addresses) = (FIRST_PORT, FIRST_MEMORY);
    let mut firmware = Firmware { board, memory, now, ports, addresses };
    for slot in 0..32 {
        let function = Function { slot, number: 0 };
        let header = firmware.read(function, registers::HEADER_TYPE, Width::Byte);
        let functions = if header & u32::from(MULTI_FUNCTION) == 0 { 1 } else { 8 };
        for number in 0..functions {
            firmware.set_up_function(Function { slot, number });
        }
    }
    firmware.make_routed_lines_levels();
    legacy::set_up(&mut firmware);
    firmware.board.write_port(firmware.memory, now, PORT_92, Width::Byte, ADDRESS_LINE_20);
}

/// Returns the address at which a board that was set up shows the display adapter's memory, if it has an adapter.
pub(crate) fn video_memory(board: &mut Board, memory: &mut Memory, now: Time) -> Option<u32> {
    let mut firmware = Firmware { board, memory, now, ports: 0, addresses: 0 };
    let class = firmware.read(DISPLAY, registers::REVISION, Width::Dword) >> 16;
    let base = firmware.read(DISPLAY, registers::BASE_ADDRESS, Width::Dword);
    (class == CLASS_VGA).then_some(base & !0xf)
}

/// Lets the display adapter of a board that was set up show pixels.
pub(crate) fn enter_mode(board: &mut Board, memory: &mut Memory, now: Time, mode: LinearMode) {
    let values = [
        (DISPI_WIDTH, mode.width),
        (DISPI_HEIGHT, mode.height),
        (DISPI_DEPTH, mode.bits_per_pixel.into()),
        (DISPI_ENABLE, DISPI_ENABLED),
    ];
    for (index, value) in values {
        board.write_port(memory, now, DISPI_INDEX, Width::Word, index);
        board.write_port(memory, now, DISPI_DATA, Width::Word, value.into());
    }
}

/// The place of a PCI function.
#[derive(Debug, Clone, Copy)]
struct Function {
    slot: u8,
    number: u8,
}

/// Plays the part of firmware.
struct Firmware<'a> {
    board: &'a mut Board,
    memory: &'a mut Memory,
    now: Time,
    /// The next free port.
    ports: u32,
    /// The next free address.
    addresses: u32,
}

impl Firmware<'_> {
    fn select(&mut self, Function { slot, number }: Function, offset: u8) -> u16 {
        let address = u32::from(slot) << 11 | u32::from(number) << 8 | u32::from(offset & !3);
        let address = CONFIG_ENABLE | address;
        self.board.write_port(self.memory, self.now, CONFIG_ADDRESS, Width::Dword, address);
        CONFIG_DATA + u16::from(offset & 3)
    }

    fn read(&mut self, function: Function, offset: u8, width: Width) -> u32 {
        let port = self.select(function, offset);
        self.board.read_port(self.memory, self.now, port, width)
    }

    fn write(&mut self, function: Function, offset: u8, width: Width, value: u32) {
        let port = self.select(function, offset);
        self.board.write_port(self.memory, self.now, port, width, value);
    }

    /// Writes bytes to ports, in their order.
    fn out(&mut self, writes: &[(u16, u8)]) {
        for (port, value) in writes {
            self.board.write_port(self.memory, self.now, *port, Width::Byte, (*value).into());
        }
    }

    fn set_up_function(&mut self, function: Function) {
        if self.read(function, registers::VENDOR, Width::Dword) == Width::Dword.mask() {
            return;
        }
        let mut command = 0;
        let class = self.read(function, registers::REVISION, Width::Dword) >> 16;
        if class == CLASS_IDE {
            // In compatibility mode the ports of the channels are fixed.
            command |= COMMAND_IO;
            let timings = IDE_DECODE_ENABLE << 16 | IDE_DECODE_ENABLE;
            self.write(function, IDE_TIMINGS, Width::Dword, timings);
        }
        let mut index = 0;
        while index < BASE_ADDRESSES {
            let (enable, count) = self.place(function, registers::BASE_ADDRESS + 4 * index);
            command |= enable;
            index += count;
        }
        if command != 0 {
            let before = self.read(function, registers::COMMAND, Width::Word);
            let command = before | command | COMMAND_MASTER;
            self.write(function, registers::COMMAND, Width::Word, command);
        }
        self.set_up_interrupt(function);
        if class == CLASS_VGA {
            text_mode::enter(self);
        }
    }

    /// Gives base address register `register` the range that it asks for, if the register exists and there is
    /// such a range. Returns the bits of the command register that enable it, and the number of registers
    /// that it occupies.
    fn place(&mut self, function: Function, register: u8) -> (u32, u8) {
        self.write(function, register, Width::Dword, u32::MAX);
        let found = self.read(function, register, Width::Dword);
        let is_io = found & BASE_IS_IO != 0;
        let kind = if is_io { 0b11 } else { 0b1111 };
        let len = (found & !kind).wrapping_neg();
        let count = if found & BASE_KIND == BASE_64_BITS { 2 } else { 1 };
        let (next, end, enable) = if is_io {
            (&mut self.ports, PORTS_END, COMMAND_IO)
        } else {
            (&mut self.addresses, MEMORY_END, COMMAND_MEMORY)
        };
        // The upper half of a register for ports may not exist (6.2.5.1).
        let len = if is_io { len & 0xffff } else { len };
        let start = next.checked_next_multiple_of(len.max(1));
        let fits = |start: &u32| start.checked_add(len).is_some_and(|after| after <= end);
        let start = start.filter(|start| len != 0 && fits(start));
        if let Some(start) = start {
            *next = start + len;
        }
        self.write(function, register, Width::Dword, start.unwrap_or(0));
        if count == 2 {
            self.write(function, register + 4, Width::Dword, 0);
        }
        (start.map_or(0, |_| enable), count)
    }

    /// Tells the function's driver the line of its interrupt, unless that is wired.
    fn set_up_interrupt(&mut self, function: Function) {
        let pin = self.read(function, registers::INTERRUPT_PIN, Width::Byte);
        if pin == 0 || self.read(function, registers::INTERRUPT_LINE, Width::Byte) != 0 {
            return;
        }
        // The wiring of the slots: see `IrqLines::set_pci`.
        let input = (u32::from(function.slot) + pin + 2) % u32::from(IrqLines::ROUTER_INPUTS);
        if let Some(line) = self.route(input as u8) {
            self.write(function, registers::INTERRUPT_LINE, Width::Byte, line);
        }
    }

    /// Returns the line to which the router's input `input` goes.
    fn route(&mut self, input: u8) -> Option<u32> {
        let line = self.read(ISA_BRIDGE, PIRQ_ROUTES + input, Width::Byte);
        (line & NOT_ROUTED == 0).then_some(line & 0xf)
    }

    /// Makes the routed lines level-triggered: PCI interrupts are levels, those of the ISA bus edges.
    fn make_routed_lines_levels(&mut self) {
        let (memory, now) = (&mut *self.memory, self.now);
        let mut levels = self.board.read_port(memory, now, EDGE_LEVEL_CONTROL, Width::Word);
        for input in 0..IrqLines::ROUTER_INPUTS {
            levels |= self.route(input).map_or(0, |line| 1 << line);
        }
        self.board.write_port(self.memory, now, EDGE_LEVEL_CONTROL, Width::Word, levels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::VideoParts;
    use crate::config::Config;
    use ring3_core::display::Picture;
    use ring3_devices::fw_cfg::FwCfg;
    use ring3_devices::vga::VIDEO_MEMORY_LEN;

    const POWER_MANAGEMENT: Function = Function { slot: 1, number: 3 };
    const IDE: Function = Function { slot: 1, number: 1 };

    /// Runs `test` with a machine after a reset, which is set up if it has no firmware.
    pub(super) fn after_reset(has_firmware: bool, test: impl FnOnce(&mut Firmware<'_>)) {
        let mut memory = Memory::new(1 << 20).unwrap();
        let video = VideoParts { memory: memory.add_area(VIDEO_MEMORY_LEN).unwrap(), rom: None };
        let config = Config { memory_bytes: 1 << 20, ..Config::default() };
        let rom = has_firmware.then(|| memory.add_area(1 << 16).unwrap());
        let mut board = Board::new(&config, rom, FwCfg::default(), Some(&video)).unwrap();
        board.reset(&mut memory, Time::ZERO);
        let (board, memory) = (&mut board, &mut memory);
        test(&mut Firmware { board, memory, now: Time::ZERO, ports: 0, addresses: 0 });
    }

    #[test]
    fn the_disks_answer_at_their_ports() {
        after_reset(false, |machine| {
            assert_eq!(machine.read(IDE, IDE_TIMINGS, Width::Dword), 0x8000_8000);
            assert_eq!(machine.read(IDE, registers::COMMAND, Width::Word), 0x0005);
            assert_eq!(machine.read(IDE, 0x20, Width::Dword), FIRST_PORT | 1);
            // The status of a channel without drives, and that of its bus master. Without a device these
            // ports would read as all ones.
            for port in [0x1f7, FIRST_PORT as u16 + 2] {
                let status = machine.board.read_port(machine.memory, Time::ZERO, port, Width::Byte);
                assert_eq!(status, 0, "port {port:#x}");
            }
        });
    }

    #[test]
    fn video_memory_and_registers_have_addresses_of_their_own() {
        after_reset(false, |machine| {
            let frame_buffer = machine.read(DISPLAY, 0x10, Width::Dword) & !0xf;
            let registers = machine.read(DISPLAY, 0x18, Width::Dword) & !0xf;
            assert_eq!(frame_buffer, FIRST_MEMORY);
            assert_eq!(u64::from(registers), u64::from(frame_buffer) + VIDEO_MEMORY_LEN);
            assert_eq!(machine.read(DISPLAY, registers::COMMAND, Width::Word), 0x6);
            machine.memory.write(frame_buffer.into(), &[7]);
            let mut byte = [0];
            machine.memory.read(frame_buffer.into(), &mut byte);
            assert_eq!(byte, [7]);
        });
    }

    #[test]
    fn a_kernel_can_have_pixels() {
        after_reset(false, |machine| {
            let now = machine.now;
            let video_memory = video_memory(machine.board, machine.memory, now);
            assert_eq!(video_memory, Some(FIRST_MEMORY));
            let mode = LinearMode::for_request(640, 480, 32).unwrap();
            enter_mode(machine.board, machine.memory, now, mode);
            machine.memory.write(FIRST_MEMORY.into(), &[0x11, 0x22, 0x33, 0]);
            let picture = machine.board.picture(machine.memory);
            let Some(Picture::Pixels(pixels)) = picture else { panic!("{picture:?}") };
            assert_eq!((pixels.width, pixels.height, pixels.colours[0]), (640, 480, 0x33_2211));
        });
    }

    #[test]
    fn pci_interrupts_are_levels_and_one_that_is_wired_stays() {
        after_reset(false, |machine| {
            let line = machine.read(POWER_MANAGEMENT, registers::INTERRUPT_LINE, Width::Byte);
            assert_eq!(line, 9, "the SCI");
            let port = EDGE_LEVEL_CONTROL;
            let levels = machine.board.read_port(machine.memory, Time::ZERO, port, Width::Word);
            assert_eq!(levels, 1 << 10 | 1 << 11);
        });
    }

    #[test]
    fn a_function_with_an_interrupt_has_its_line_register_set() {
        after_reset(true, |machine| {
            // Pin A of slot 1 goes to PIRQA.
            machine.write(ISA_BRIDGE, PIRQ_ROUTES, Width::Dword, 0x8080_8005);
            machine.write(POWER_MANAGEMENT, registers::INTERRUPT_LINE, Width::Byte, 0);
            set_up(machine.board, machine.memory, Time::ZERO);
            let line = machine.read(POWER_MANAGEMENT, registers::INTERRUPT_LINE, Width::Byte);
            assert_eq!(line, 5);
        });
    }
}
