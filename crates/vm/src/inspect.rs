//! What is seen of a machine from outside, between two instructions, without changing anything: its registers, memory and cards, and what it is
//! made of.

use ring3_core::device::Width;
use ring3_devices::nic;
use ring3_x86::cpu::Cpu;
use ring3_x86::segment::sreg;

use crate::board::Board;
use crate::config::Config;
use crate::machine::Vm;

/// Bytes that are read at once at most.
pub const READ_MAX: usize = 16 << 20;

/// The state of the processor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Processor {
    /// For a person to read, with the instruction that is next.
    pub report: String,
    /// Names as assemblers have them, and values. The instruction pointer is among them.
    pub registers: Vec<(&'static str, u64)>,
    /// The instructions that come next: address, bytes and disassembly of each.
    pub instructions: Vec<String>,
    /// It waits for an interrupt.
    pub halted: bool,
}

/// Instructions of [`Processor::instructions`].
const INSTRUCTIONS: usize = 16;

impl Processor {
    fn of(cpu: &Cpu, memory: &ring3_core::memory::Memory) -> Processor {
        let names = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"];
        let mut registers: Vec<_> =
            (0..).zip(names).map(|(number, name)| (name, cpu.gpr(number))).collect();
        registers.push(("eip", cpu.ip));
        registers.push(("pc", cpu.segment(sreg::CS).base.wrapping_add(cpu.ip) & 0xffff_ffff));
        registers.push(("eflags", cpu.eflags().bits().into()));
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

/// Memory that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRange {
    /// The first byte.
    pub address: u64,
    /// How many, at most [`READ_MAX`].
    pub len: usize,
    /// It is an address of the code that runs, and not one of physical memory.
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

/// A network card, as people know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicInfo {
    /// The name of the device.
    pub device: &'static str,
    /// What people call it.
    pub id: Option<String>,
    /// What people call what is behind it.
    pub network: Option<String>,
}

/// What a machine is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Description {
    /// Its shape.
    pub config: Config,
    /// What executes its instructions.
    pub engine: &'static str,
    /// Its network cards, in the order of [`Config::nics`].
    pub nics: Vec<NicInfo>,
}

impl Vm {
    /// The state of the processor.
    pub fn processor(&self) -> Processor {
        Processor::of(&self.cpu, &self.memory)
    }

    /// Memory as the processor sees it; device memory is not read, for that may change the device. None where a page of it is not mapped, or it
    /// is too much.
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
            let physical =
                if is_linear { self.cpu.probe(&self.memory, at & 0xffff_ffff)? } else { at };
            self.memory.read(physical, &mut bytes[done..done + count]);
            done += count;
        }
        Some(bytes)
    }

    /// The physical address of a linear one, if it is mapped.
    pub fn physical(&self, linear: u64) -> Option<u64> {
        self.cpu.probe(&self.memory, linear & 0xffff_ffff)
    }

    /// What is on the PCI bus.
    pub fn pci_functions(&mut self) -> Vec<PciFunction> {
        let now = self.now();
        self.board.pci_functions(&mut self.memory, now)
    }

    /// What it is made of.
    pub fn describe(&self) -> Description {
        let names = nic::NAMES.into_iter().take(self.config.nics.len());
        let nics = names.map(|device| NicInfo {
            device,
            id: self.ids.get(device).cloned(),
            network: self.networks.id(device).map(str::to_owned),
        });
        let nics = nics.collect();
        Description { config: self.config.clone(), engine: self.engine.name(), nics }
    }
}

impl Board {
    /// What is on the PCI bus, by the headers of configuration spaces, which are read without effect.
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
            // Nobody has made a card of this number (6.2.1).
            if header[..2] != [0xff; 2] {
                found.push(PciFunction { slot, function, header });
            }
        }
        found
    }
}
