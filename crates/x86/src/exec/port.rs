//! Port I/O (SDM vol. 1, chapter 19): IN and OUT, and the permission to use a port.

use ring3_core::device::Width;
use ring3_core::memory::{Memory, PAGE_SIZE};

use crate::cpu::{Cpu, Cr0, reg, width_of};
use crate::decode::Op;
use crate::exception::{Fault, Stop, vector};
use crate::exec::Done;
use crate::table::{Rows, plain, sizes};
use crate::tlb::Space;
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [In_AL_imm8], input_immediate::<u8>);
    plain!(rows, [In_AX_imm8], input_immediate::<u16>);
    plain!(rows, [In_EAX_imm8], input_immediate::<u32>);
    plain!(rows, [Out_imm8_AL], output_immediate::<u8>);
    plain!(rows, [Out_imm8_AX], output_immediate::<u16>);
    plain!(rows, [Out_imm8_EAX], output_immediate::<u32>);
    sizes!(rows, [In_AL_DX In_AX_DX In_EAX_DX], input);
    sizes!(rows, [Out_DX_AL Out_DX_AX Out_DX_EAX], output);
}

/// Offset in a 32-bit TSS of the field with the offset of its I/O permission bit map (SDM vol. 3, figure
/// 9-2).
const BIT_MAP_OFFSET: u64 = 0x66;

impl Cpu {
    /// Returns whether the running code may use the ports of an access of this width: by its privilege, or by
    /// the I/O permission bit map of the TSS. If not, the instruction raises #GP(0). Returns None if the map
    /// cannot be read, so that the instruction raises another exception.
    pub fn may_use_port(&mut self, memory: &mut Memory, port: u16, width: Width) -> Option<bool> {
        if check_port(self, memory, port, width.bytes().into()).is_ok() {
            return Some(true);
        }
        let is_refused = *self.stop() == Stop::Fault(Fault::with_code(vector::GP, 0));
        is_refused.then_some(false)
    }

    /// Returns whether writes to the page of `place` cannot change what [`Cpu::may_use_port`] has
    /// just said of
    /// `port`: it is none of the pages that were read for it, or none was.
    pub(crate) fn keeps_port_rights(
        &mut self,
        memory: &mut Memory,
        port: u16,
        place: usize,
    ) -> bool {
        if !asks_bit_map(self) {
            return true;
        }
        let pointer = self.tr.base.wrapping_add(BIT_MAP_OFFSET);
        let Ok(bit_map) = self.read_system::<u16>(memory, pointer) else { return false };
        let bits = self.tr.base.wrapping_add(u64::from(bit_map) + u64::from(port / 8));
        // Either word may lie on two pages.
        [pointer, pointer.wrapping_add(1), bits, bits.wrapping_add(1)].iter().all(|linear| {
            let linear = self.table_linear(*linear);
            let read = self.tlb.entry(Space::of(false), linear).for_read(linear, 1);
            read.is_some_and(|read| read as u64 / PAGE_SIZE != place as u64 / PAGE_SIZE)
        })
    }
}

/// Returns whether the running code needs the permission of the TSS's bit map for its accesses to ports.
fn asks_bit_map(cpu: &Cpu) -> bool {
    cpu.cr0.contains(Cr0::PE) && (cpu.in_virtual_8086_mode() || cpu.cpl() > cpu.iopl())
}

/// Raises #GP(0) unless the running code may use `size` ports from `port` on, because of its privilege or the
/// I/O permission bit map of the TSS (SDM vol. 1, 19.5).
pub(super) fn check_port(cpu: &mut Cpu, memory: &mut Memory, port: u16, size: usize) -> Done {
    if !asks_bit_map(cpu) {
        return Ok(());
    }
    let tss = cpu.tr;
    let is_32_bit_tss = tss.attributes.kind() & 8 != 0;
    if !is_32_bit_tss || u64::from(tss.limit) < BIT_MAP_OFFSET + 1 {
        return Err(cpu.general_protection(0));
    }
    let bit_map: u16 = cpu.read_system(memory, tss.base.wrapping_add(BIT_MAP_OFFSET))?;
    let offset = u64::from(bit_map) + u64::from(port / 8);
    // Two bytes are read for any port, so both must be inside the limit.
    if offset + 1 > u64::from(tss.limit) {
        return Err(cpu.general_protection(0));
    }
    let bits: u16 = cpu.read_system(memory, tss.base.wrapping_add(offset))?;
    let mask = (1u16 << size) - 1;
    if bits >> (port & 7) & mask != 0 {
        return Err(cpu.general_protection(0));
    }
    Ok(())
}

fn input_from<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op, port: u16) -> Done {
    check_port(cpu, memory, port, W::BYTES)?;
    let value = cpu.read_port::<W>(port).inspect_err(|_| cpu.note_input(op, width_of::<W>()))?;
    cpu.set(reg::AX, value);
    Ok(())
}

fn output_to<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op, port: u16) -> Done {
    check_port(cpu, memory, port, W::BYTES)?;
    let value = cpu.get::<W>(reg::AX);
    cpu.write_port(port, value).inspect_err(|_| cpu.note_output(op, width_of::<W>()))
}

fn input<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    input_from::<W>(cpu, memory, op, cpu.get(reg::DX))
}

fn output<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    output_to::<W>(cpu, memory, op, cpu.get(reg::DX))
}

fn input_immediate<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    input_from::<W>(cpu, memory, op, u16::from(op.immediate::<u8>()))
}

fn output_immediate<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    output_to::<W>(cpu, memory, op, u16::from(op.immediate::<u8>()))
}
