//! Describes a stopped processor for people.

use std::fmt::{self, Display, Formatter, Write as _};

use iced_x86::{Decoder, Formatter as _, Instruction, NasmFormatter};
use ring3_core::memory::Memory;

use crate::cpu::Cpu;
use crate::decode::{self, MAX_LENGTH};
use crate::engine::Exit;
use crate::exception::{Stop, Stopped};
use crate::flags::Eflags;
use crate::segment::{Segment, sreg};

/// The names of the general registers in 64-bit mode, in the order of their numbers.
pub const LONG_NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// A processor feature that an instruction or an exception needs and that is not implemented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing(pub(crate) &'static str);

impl Display for Missing {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The registers and the instruction at EIP, as a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuReport(String);

impl Display for CpuReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Cpu {
    /// Stops the instruction, and with it the machine, because the guest needs a feature that does not exist.
    #[cold]
    pub(crate) fn missing(&mut self, missing: Missing) -> Stopped {
        self.stop_for(Stop::Restart(Exit::Missing(missing)))
    }

    /// Describes the processor in its present state.
    ///
    /// # Panics
    /// Never panics: writing to a string does not fail.
    pub fn report(&self, memory: &Memory) -> CpuReport {
        let mut text = String::new();
        self.describe(memory, &mut text).expect("writing to a string does not fail");
        CpuReport(text)
    }

    fn describe(&self, memory: &Memory, text: &mut String) -> fmt::Result {
        let (letter, width) = if self.is_in_long_mode() {
            self.describe_long_registers(text)?;
            ('r', 16)
        } else {
            let names = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"];
            for (number, name) in (0..).zip(names) {
                let end = if number % 4 == 3 { '\n' } else { ' ' };
                write!(text, "{name} {:08x}{end}", self.gpr(number))?;
            }
            ('e', 8)
        };
        let flags = self.eflags();
        let halted = if self.halted { " halted" } else { "" };
        writeln!(
            text,
            "{letter}ip {:0width$x} {letter}flags {:08x} ({}) cpl {}{halted}",
            self.ip,
            flags.bits(),
            flag_names(flags),
            self.cpl(),
        )?;
        for (register, name) in (sreg::ES..=sreg::GS).zip(["es", "cs", "ss", "ds", "fs", "gs"]) {
            describe_segment(text, name, self.segment(register), width)?;
        }
        describe_segment(text, "ldtr", &self.ldtr, width)?;
        describe_segment(text, "tr", &self.tr, width)?;
        for (name, table) in [("gdtr", self.gdtr), ("idtr", self.idtr)] {
            writeln!(text, "{name:4} base {:0width$x} limit {:04x}", table.base, table.limit)?;
        }
        writeln!(
            text,
            "cr0 {:08x} cr2 {:0width$x} cr3 {:08x} cr4 {:08x}",
            self.cr0.bits(),
            self.cr2,
            self.cr3,
            self.cr4.bits()
        )?;
        text.push_str(&self.describe_instruction(memory));
        Ok(())
    }

    /// Describes the general registers and IA32_EFER of long mode.
    fn describe_long_registers(&self, text: &mut String) -> fmt::Result {
        for (number, name) in (0..).zip(LONG_NAMES) {
            let end = if number % 4 == 3 { '\n' } else { ' ' };
            write!(text, "{name} {:016x}{end}", self.gpr(number))?;
        }
        let gs = self.msrs.long.kernel_gs_base;
        writeln!(text, "efer {:04x} kernel gs base {gs:016x}", self.efer())
    }

    /// Describes the instruction at CS:EIP by its bytes and its disassembly.
    fn describe_instruction(&self, memory: &Memory) -> String {
        match self.disassemble(memory, 1).first() {
            Some(instruction) => format!("at eip: {instruction}\n"),
            None => "the instruction at eip cannot be read\n".to_owned(),
        }
    }

    /// Returns the instruction at CS:EIP in memory, or None if no byte of it can be read.
    pub fn next_instruction(&self, memory: &Memory) -> Option<Instruction> {
        let bytes = self.probe_code(memory, MAX_LENGTH);
        (!bytes.is_empty()).then(|| self.decoder_at_ip(&bytes).decode())
    }

    /// Returns up to `len` bytes from CS:EIP on, as far as they can be read.
    fn probe_code(&self, memory: &Memory, len: usize) -> Vec<u8> {
        let start = self.linear_ip();
        let mut bytes = Vec::new();
        for offset in 0..len {
            let linear = self.linear_after(start, offset as u64);
            let Some(address) = self.probe(memory, linear) else { break };
            let mut byte = [0];
            memory.read(address, &mut byte);
            bytes.extend(byte);
        }
        bytes
    }

    /// Makes a decoder of `bytes`, which are at CS:EIP.
    fn decoder_at_ip<'a>(&self, bytes: &'a [u8]) -> Decoder<'a> {
        decode::decoder(bytes, self.code_mode().size, self.ip, self.model)
    }

    /// Disassembles up to `count` instructions from CS:EIP on: address, bytes and text of each.
    pub fn disassemble(&self, memory: &Memory, count: usize) -> Vec<String> {
        let bytes = self.probe_code(memory, MAX_LENGTH * count);
        let mut decoder = self.decoder_at_ip(&bytes);
        let mut lines = Vec::new();
        while lines.len() < count && decoder.can_decode() {
            let (ip, position) = (decoder.ip(), decoder.position());
            let instruction = decoder.decode();
            let end = position + instruction.len().max(1);
            let hex: Vec<_> =
                bytes[position..end].iter().map(|byte| format!("{byte:02x}")).collect();
            let mut disassembly = String::new();
            NasmFormatter::new().format(&instruction, &mut disassembly);
            lines.push(format!("{ip:08x}  {}  {disassembly}", hex.join(" ")));
        }
        lines
    }
}

/// Returns the names of the flags that are set.
fn flag_names(flags: Eflags) -> String {
    flags.iter_names().map(|(name, _)| name.to_lowercase()).collect::<Vec<_>>().join(" ")
}

/// Describes a segment, with `width` digits of its base.
fn describe_segment(text: &mut String, name: &str, segment: &Segment, width: usize) -> fmt::Result {
    let Segment { selector, base, limit, attributes, .. } = segment;
    let attributes = attributes.0;
    writeln!(
        text,
        "{name:4} {selector:04x} base {base:0width$x} limit {limit:08x} attributes {attributes:04x}"
    )
}
