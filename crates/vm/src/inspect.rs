//! The view of a machine from outside, between two instructions, without changing anything: its registers,
//! memory and cards, and the parts that it is made of.

use ring3_core::channel::ChannelStatus;
use ring3_core::device::{DeviceId, Width};
use ring3_x86::cpu::Cpu;
use ring3_x86::report::LONG_NAMES;
use ring3_x86::segment::sreg;

use crate::balloon::BalloonInfo;
use crate::board::Board;
use crate::config::{Config, Nic};
use crate::extra_memory::ExtraMemoryInfo;
use crate::machine::Vm;
use crate::networks::CardCounts;

/// Upper bound of the bytes that are read at once.
pub const READ_MAX: usize = 16 << 20;

/// The state of the processor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Processor {
    /// A description as text, with the next instruction.
    pub report: String,
    /// Names as in assemblers, and values, including the instruction pointer.
    pub registers: Vec<(&'static str, u64)>,
    /// The next instructions: address, bytes and disassembly of each.
    pub instructions: Vec<String>,
    /// Whether it waits for an interrupt.
    pub halted: bool,
}

/// Number of [`Processor::instructions`].
const INSTRUCTIONS: usize = 16;
/// Upper bound of the bytes of a guest's note for debuggers, as in QEMU.
const NOTE_MAX: u32 = 1 << 20;

impl Processor {
    fn of(cpu: &Cpu, memory: &ring3_core::memory::Memory) -> Processor {
        let names = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"];
        let low = |number| u64::from(cpu.get::<u32>(number));
        let mut registers: Vec<_> =
            (0..).zip(names).map(|(number, name)| (name, low(number))).collect();
        registers.push(("eip", cpu.ip));
        registers.push(("pc", cpu.linear_ip()));
        registers.push(("eflags", cpu.eflags().bits().into()));
        if cpu.model.has_long_mode() {
            registers.extend((0..).zip(LONG_NAMES).map(|(number, name)| (name, cpu.gpr(number))));
            registers.extend([("rip", cpu.ip), ("efer", cpu.efer())]);
            registers.push(("fs_base", cpu.segment(sreg::FS).base));
            registers.push(("gs_base", cpu.segment(sreg::GS).base));
            registers.push(("k_gs_base", cpu.msrs.long.kernel_gs_base));
        }
        for (register, name) in (sreg::ES..=sreg::GS).zip(["es", "cs", "ss", "ds", "fs", "gs"]) {
            registers.push((name, cpu.segment(register).selector.into()));
        }
        registers.push(("cr0", cpu.cr0().bits().into()));
        registers.push(("cr2", cpu.cr2));
        registers.push(("cr3", cpu.cr3()));
        registers.push(("cr4", cpu.cr4().bits().into()));
        Processor {
            report: cpu.report(memory).to_string(),
            registers,
            instructions: cpu.disassemble(memory, INSTRUCTIONS),
            halted: cpu.is_halted(),
        }
    }
}

/// A range of memory to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRange {
    /// The first byte.
    pub address: u64,
    /// Number of bytes, at most [`READ_MAX`].
    pub len: usize,
    /// Whether the address is one of the code that runs, rather than a physical one.
    pub is_linear: bool,
}

/// A function on the PCI bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciFunction {
    /// Device number.
    pub slot: u8,
    /// Function number.
    pub function: u8,
    /// The header of its configuration space (PCI Local Bus Specification 2.1, 6.1).
    pub header: [u8; 64],
}

/// A network card, and the names by which people know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicInfo {
    /// The device.
    pub device: DeviceId,
    /// The id by which people know it.
    pub id: Option<String>,
    /// The id by which people know its network.
    pub network: Option<String>,
    /// The card.
    pub nic: Nic,
    /// Counts of its packets.
    pub counts: CardCounts,
}

impl NicInfo {
    /// Returns the id by which people know the card, or its name if it has no id.
    pub fn name(&self) -> &str {
        self.id.as_deref().unwrap_or_else(|| self.device.name())
    }
}

/// A serial card, and the names by which people know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SerialInfo {
    /// The device.
    pub device: DeviceId,
    /// The id by which people know it.
    pub id: Option<String>,
    /// The name by which people know the other end of its line.
    pub character: Option<String>,
}

/// The parts of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Description {
    /// Its configuration.
    pub config: Config,
    /// The name of its engine.
    pub engine: &'static str,
    /// Its network cards, in the order of [`Config::nics`].
    pub nics: Vec<NicInfo>,
    /// Its serial cards.
    pub serial: Vec<SerialInfo>,
    /// Its memory balloon, if it has one.
    pub balloon: Option<BalloonInfo>,
    /// Its memory that comes and goes, if it has such.
    pub extra_memory: Option<ExtraMemoryInfo>,
}

impl Vm {
    /// Returns what is known of the channels, by their numbers.
    pub fn channels(&self) -> Vec<ChannelStatus> {
        self.board.channels()
    }

    /// Returns the processor.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Describes the state of the processor.
    pub fn processor(&self) -> Processor {
        Processor::of(&self.cpu, &self.memory)
    }

    /// Reads memory as the processor sees it. Memory of devices is not read, since that may change the
    /// device. Returns None if one of the pages is not mapped, or if the range is too long.
    pub fn peek(&self, range: MemoryRange) -> Option<Vec<u8>> {
        let MemoryRange { address, len, is_linear } = range;
        if len > READ_MAX {
            return None;
        }
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            let at = address.wrapping_add(done as u64);
            let count = (len - done).min(0x1000 - (at & 0xfff) as usize);
            let physical = if is_linear { self.physical(at)? } else { at };
            self.memory.read(physical, &mut bytes[done..done + count]);
            done += count;
        }
        Some(bytes)
    }

    /// Returns the physical address for a linear one, if it is mapped.
    pub fn physical(&self, linear: u64) -> Option<u64> {
        self.cpu.probe(&self.memory, linear)
    }

    /// Returns the memory in which, as the guest says, its note for debuggers is ([`Config::note`](crate::Config::note)):
    /// at most the first MiB of it.
    pub fn note(&self) -> Option<Vec<u8>> {
        let (address, len) = self.board.note()?;
        let mut note = vec![0; len.min(NOTE_MAX) as usize];
        self.memory.read(address, &mut note);
        Some(note)
    }

    /// Describes the functions on the PCI bus.
    pub fn pci_functions(&mut self) -> Vec<PciFunction> {
        let now = self.now();
        self.board.pci_functions(&mut self.memory, now)
    }

    /// Describes the parts of the machine.
    pub fn describe(&self) -> Description {
        let nics = self.config.cards().map(|(device, nic)| NicInfo {
            device,
            nic: nic.clone(),
            id: self.ids.get(&device).cloned(),
            network: self.networks.id(device).map(str::to_owned),
            counts: self.networks.counts(device),
        });
        let nics = nics.collect();
        let cards = DeviceId::PCI_SERIAL.into_iter().zip(self.config.serial_cards);
        let serial = cards.filter(|(_, is_there)| *is_there).map(|(device, _)| SerialInfo {
            device,
            id: self.ids.get(&device).cloned(),
            character: self.serial_lines.character(device).map(str::to_owned),
        });
        let serial = serial.collect();
        let (config, engine) = (self.config.clone(), self.engine.name());
        let (balloon, extra_memory) = (self.balloon(), self.extra_memory());
        Description { config, engine, nics, serial, balloon, extra_memory }
    }
}

impl Board {
    /// Describes the functions on the PCI bus by the headers of their configuration spaces, which are read
    /// without effect.
    fn pci_functions(
        &mut self,
        memory: &mut ring3_core::memory::Memory,
        now: ring3_core::clock::Time,
    ) -> Vec<PciFunction> {
        let mut found = Vec::new();
        for (slot, function) in
            (0..32).flat_map(|slot| (0..8).map(move |function| (slot, function)))
        {
            let mut header = [0; 64];
            for offset in (0..64).step_by(4) {
                let value = self.peek_config(memory, now, (slot, function), offset);
                header[usize::from(offset)..][..Width::Dword.bytes().into()]
                    .copy_from_slice(&value.to_le_bytes());
            }
            // No card has this vendor (6.2.1).
            if header[..2] != [0xff; 2] {
                found.push(PciFunction { slot, function, header });
            }
        }
        found
    }
}
