//! Instructions that make one access to a device and do nothing else: IN, OUT, and MOV and MOVZX between a
//! register and memory. Translation already knows what they access, so the interpreter need not execute them
//! for the engine to learn it.

use iced_x86::{Code, Instruction, MemorySize, Mnemonic, OpKind, Register};
use ring3_core::device::Width;
use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;

use crate::code::copy;
use crate::mode::Mode;

/// Bytes in a page of guest memory.
const PAGE: u32 = 0x1000;

/// The guest's general registers, as the context holds them.
pub(crate) type Registers = [u32; 8];

/// The kind of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transfer {
    /// Loads AL, AX or EAX from a port.
    In,
    /// Writes to a port.
    Out,
    /// Loads the register of this number and width from memory, with zeros above the bytes that are read.
    Load(u8, Width),
    /// Writes to memory.
    Store,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceAccess {
    transfer: Transfer,
    pub(crate) width: Width,
    /// Whether user code makes it.
    pub(crate) is_user: bool,
    place: Place,
    /// The value that is written.
    value: Value,
}

/// The place of the access, before the registers are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The port with this number, or the one whose number is in DX.
    Port(Option<u16>),
    /// A linear address: the sum of a register, another register times a power of two, and a number.
    Memory { base: Option<u8>, index: Option<u8>, scale: u32, displacement: u32 },
}

/// The value that an access writes: that of a register, or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Register(u8),
    Number(u32),
}

/// The target of an access: a port, or a linear address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    Port(u16),
    Linear(u32),
}

impl DeviceAccess {
    /// Returns the access of `instruction` in code of `mode`, or None if it is of another kind.
    pub(crate) fn of(instruction: &Instruction, mode: &Mode) -> Option<DeviceAccess> {
        if instruction.has_lock_prefix() {
            return None;
        }
        let (transfer, width, place, value) = match instruction.code() {
            Code::In_AL_imm8 | Code::In_AX_imm8 | Code::In_EAX_imm8 => {
                let port = Place::Port(Some(instruction.immediate8().into()));
                (Transfer::In, width_of(instruction.op0_register())?, port, Value::Number(0))
            }
            Code::In_AL_DX | Code::In_AX_DX | Code::In_EAX_DX => {
                let width = width_of(instruction.op0_register())?;
                (Transfer::In, width, Place::Port(None), Value::Number(0))
            }
            Code::Out_imm8_AL | Code::Out_imm8_AX | Code::Out_imm8_EAX => {
                let port = Place::Port(Some(instruction.immediate8().into()));
                (
                    Transfer::Out,
                    width_of(instruction.op1_register())?,
                    port,
                    Value::Register(reg::AX),
                )
            }
            Code::Out_DX_AL | Code::Out_DX_AX | Code::Out_DX_EAX => {
                let width = width_of(instruction.op1_register())?;
                (Transfer::Out, width, Place::Port(None), Value::Register(reg::AX))
            }
            _ => memory(instruction, mode)?,
        };
        Some(DeviceAccess { transfer, width, is_user: mode.is_user, place, value })
    }

    /// Returns the target of the access with the present registers. Returns None if it is not within one
    /// page.
    pub(crate) fn to(&self, registers: &Registers) -> Option<To> {
        match self.place {
            Place::Port(port) => {
                let in_dx = || registers[usize::from(reg::DX)] as u16;
                Some(To::Port(port.unwrap_or_else(in_dx)))
            }
            Place::Memory { base, index, scale, displacement } => {
                let register =
                    |number: Option<u8>| number.map_or(0, |number| registers[usize::from(number)]);
                let linear = register(base)
                    .wrapping_add(register(index).wrapping_mul(scale))
                    .wrapping_add(displacement);
                let is_in_page = linear % PAGE + u32::from(self.width.bytes()) <= PAGE;
                is_in_page.then_some(To::Linear(linear))
            }
        }
    }

    /// Returns the exit for this access to `port`.
    pub(crate) fn at_port(&self, registers: &Registers, port: u16) -> Exit {
        let width = self.width;
        if self.transfer == Transfer::In {
            Exit::PortRead { port, width }
        } else {
            Exit::PortWrite { port, width, value: self.written(registers) }
        }
    }

    /// Returns the exit for this access to the guest-physical address `address`.
    pub(crate) fn at_address(&self, registers: &Registers, address: u64) -> Exit {
        let width = self.width;
        if self.writes() {
            Exit::MmioWrite { address, width, value: self.written(registers) }
        } else {
            Exit::MmioRead { address, width }
        }
    }

    /// Returns whether the I/O permission bit map may forbid it: it is an access of user code to a port.
    pub(crate) fn needs_permission(&self) -> bool {
        self.is_user && self.is_to_port()
    }

    /// Returns whether translated code raises an exception for it where that is necessary.
    pub(crate) fn may_fault(&self) -> bool {
        self.is_user || !self.is_to_port()
    }

    /// Returns whether it is an access to a port.
    pub(crate) fn is_to_port(&self) -> bool {
        matches!(self.place, Place::Port(_))
    }

    /// Returns the number of the port, if the instruction contains it. Otherwise it is in DX.
    pub(crate) fn port(&self) -> Option<u16> {
        match self.place {
            Place::Port(port) => port,
            Place::Memory { .. } => None,
        }
    }

    /// Returns whether the access reads a byte of a port.
    pub(crate) fn reads_byte(&self) -> bool {
        self.transfer == Transfer::In && self.width == Width::Byte
    }

    /// Returns whether the access writes.
    pub(crate) fn writes(&self) -> bool {
        matches!(self.transfer, Transfer::Out | Transfer::Store)
    }

    fn written(&self, registers: &Registers) -> u32 {
        let value = match self.value {
            Value::Number(number) => number,
            Value::Register(number) => {
                let (register, shift) = part(number);
                registers[register] >> shift
            }
        };
        value & self.width.mask()
    }

    /// Completes the instruction after its access, which has read `value`.
    pub(crate) fn finish(&self, registers: &mut Registers, value: u32) {
        let (number, width) = match self.transfer {
            Transfer::In => (reg::AX, self.width),
            Transfer::Load(number, width) => (number, width),
            Transfer::Out | Transfer::Store => return,
        };
        let (register, shift) = part(number);
        let register = &mut registers[register];
        *register = *register & !(width.mask() << shift) | (value & self.width.mask()) << shift;
    }
}

/// Returns the access of a MOV or MOVZX with an operand in memory, in flat code.
fn memory(instruction: &Instruction, mode: &Mode) -> Option<(Transfer, Width, Place, Value)> {
    let is_base_free = !matches!(instruction.memory_segment(), Register::FS | Register::GS);
    if mode.segmented.is_some() || !is_base_free || !copy::is_translated_address(instruction) {
        return None;
    }
    let width = match instruction.memory_size() {
        MemorySize::UInt8 => Width::Byte,
        MemorySize::UInt16 => Width::Word,
        MemorySize::UInt32 => Width::Dword,
        _ => return None,
    };
    let (transfer, value) = match instruction.code() {
        Code::Mov_r8_rm8
        | Code::Mov_r16_rm16
        | Code::Mov_r32_rm32
        | Code::Mov_AL_moffs8
        | Code::Mov_AX_moffs16
        | Code::Mov_EAX_moffs32
        | Code::Movzx_r16_rm8
        | Code::Movzx_r32_rm8
        | Code::Movzx_r32_rm16 => {
            let register = instruction.op0_register();
            (Transfer::Load(number(register)?, width_of(register)?), Value::Number(0))
        }
        Code::Mov_rm8_r8
        | Code::Mov_rm16_r16
        | Code::Mov_rm32_r32
        | Code::Mov_moffs8_AL
        | Code::Mov_moffs16_AX
        | Code::Mov_moffs32_EAX => {
            (Transfer::Store, Value::Register(number(instruction.op1_register())?))
        }
        Code::Mov_rm8_imm8 | Code::Mov_rm16_imm16 | Code::Mov_rm32_imm32 => {
            (Transfer::Store, Value::Number(instruction.immediate(1) as u32))
        }
        _ => return None,
    };
    let has_memory = (0..2).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    let part =
        |register| if register == Register::None { Some(None) } else { number(register).map(Some) };
    let place = Place::Memory {
        base: part(instruction.memory_base())?,
        index: part(instruction.memory_index())?,
        scale: instruction.memory_index_scale(),
        displacement: instruction.memory_displacement32(),
    };
    has_memory.then_some((transfer, width, place, value))
}

/// Returns whether `instruction`, in flat code of the supervisor, does nothing with memory except read 32
/// bits of it. Such an instruction can be executed with the value of a device register in their place.
pub(crate) fn reads_register(instruction: &Instruction, mode: &Mode) -> bool {
    let is_flat = !mode.is_user
        && mode.segmented.is_none()
        && copy::is_translated_address(instruction)
        && !matches!(instruction.memory_segment(), Register::FS | Register::GS);
    let is_read = match instruction.mnemonic() {
        Mnemonic::Test | Mnemonic::Cmp => {
            instruction.op0_kind() == OpKind::Memory || instruction.op1_kind() == OpKind::Memory
        }
        Mnemonic::Mov
        | Mnemonic::And
        | Mnemonic::Or
        | Mnemonic::Xor
        | Mnemonic::Add
        | Mnemonic::Sub => instruction.op1_kind() == OpKind::Memory,
        _ => false,
    };
    is_flat && is_read && instruction.memory_size().size() == 4
}

/// Returns the general register of which register `number` is a part, and the lowest bit of that part.
fn part(number: u8) -> (usize, u32) {
    (usize::from(number & !reg::HIGH_BYTE), if number & reg::HIGH_BYTE == 0 { 0 } else { u8::BITS })
}

fn width_of(register: Register) -> Option<Width> {
    match register.size() {
        1 => Some(Width::Byte),
        2 => Some(Width::Word),
        4 => Some(Width::Dword),
        _ => None,
    }
}

/// Returns the number by which `Cpu` knows a general register.
fn number(register: Register) -> Option<u8> {
    match register {
        Register::AL | Register::CL | Register::DL | Register::BL => {
            Some((register as u32 - Register::AL as u32) as u8)
        }
        Register::AH | Register::CH | Register::DH | Register::BH => {
            Some((register as u32 - Register::AH as u32) as u8 + reg::HIGH_BYTE)
        }
        _ if register.is_gpr16() || register.is_gpr32() => Some(register.number() as u8),
        _ => None,
    }
}

/// Pages of linear addresses of supervisor code at which devices have answered, with their physical
/// addresses: a TLB for pages that windows cannot map. It is cleared whenever a translation may have changed.
#[derive(Debug, Default)]
pub(crate) struct DevicePages {
    known: [Option<DevicePage>; DEVICE_PAGES],
    /// The index of the entry that is replaced next.
    next: usize,
}

/// Number of pages that are known.
const DEVICE_PAGES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DevicePage {
    linear: u32,
    address: u64,
    /// Whether the entry is for writes rather than reads. Writes may go elsewhere, and have set other bits in
    /// page tables.
    writes: bool,
}

impl DevicePages {
    /// Returns the physical address to which an access to `linear` goes, if it is known.
    pub(crate) fn find(&self, linear: u32, writes: bool) -> Option<u64> {
        let (page, offset) = (linear & !(PAGE - 1), linear % PAGE);
        let is_there = |known: &&DevicePage| known.linear == page && known.writes == writes;
        let known = self.known.iter().flatten().find(is_there)?;
        Some(known.address + u64::from(offset))
    }

    /// Notes that an access to `linear` has gone to a device at the physical address `address`.
    pub(crate) fn note(&mut self, linear: u32, address: u64, writes: bool) {
        let offset = linear % PAGE;
        if address % u64::from(PAGE) == u64::from(offset) && self.find(linear, writes).is_none() {
            let page = DevicePage {
                linear: linear - offset,
                address: address - u64::from(offset),
                writes,
            };
            self.known[self.next] = Some(page);
            self.next = (self.next + 1) % DEVICE_PAGES;
        }
    }

    /// Forgets all pages.
    pub(crate) fn clear(&mut self) {
        *self = DevicePages::default();
    }
}
