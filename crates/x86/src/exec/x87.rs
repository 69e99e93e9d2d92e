//! The x87 FPU's instructions (SDM vol. 1, 8.3).
//!
//! A handler follows the order of the processor. First it checks whether the FPU may be used (#NM) and
//! whether an earlier instruction left an unmasked exception. Then come memory faults, then the operation,
//! whose own exceptions go to the status word. An unmasked exception there is not a fault of the instruction:
//! the next waiting instruction reports it, by #MF, or with CR0.NE clear by FERR#, from which a PC makes IRQ
//! 13 (SDM vol. 1, 8.7).

mod arithmetic;
mod compare;
mod control;
mod transcendental;
mod transfer;

use ring3_core::memory::{Memory, PAGE_SIZE};

use crate::cpu::{Cpu, Cr0};
use crate::decode::Op;
use crate::engine::Exit;
use crate::exception::{Fault, Stop, Stopped, vector};
use crate::exec::{Done, Mem, Place};
use crate::fpu::Pointer;
use crate::paging::{Access, By};
use crate::segment::sreg;
use crate::softfloat::{F80, Operand};
use crate::table::Rows;
use crate::word::Word;

/// Adds the forms of this chapter to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    transfer::forms(rows);
    arithmetic::forms(rows);
    compare::forms(rows);
    control::forms(rows);
    transcendental::forms(rows);
}

/// Raises #NM if the operating system has switched the FPU off (SDM vol. 3, table 2-2).
fn require_fpu(cpu: &mut Cpu) -> Done {
    if cpu.cr0().intersects(Cr0::EM | Cr0::TS) {
        return Err(cpu.fault(Fault::new(vector::NM)));
    }
    Ok(())
}

/// Reports an unmasked exception if one is pending.
#[inline(always)]
pub(super) fn require_no_exception(cpu: &mut Cpu) -> Done {
    if cpu.fpu.has_pending_exception() { report_exception(cpu) } else { Ok(()) }
}

/// Reports an exception by #MF in the native mode. In the MS-DOS compatibility sub-mode the processor stops
/// until an interrupt comes, unless IGNNE# says that the handler is running (SDM vol. 1, D.2.1.1).
#[cold]
fn report_exception(cpu: &mut Cpu) -> Done {
    if cpu.cr0().contains(Cr0::NE) {
        return Err(cpu.fault(Fault::new(vector::MF)));
    }
    if cpu.fpu.ignores_exception() {
        return Ok(());
    }
    Err(cpu.stop_for(Stop::Waits(Exit::NumericError)))
}

/// Makes the checks with which every waiting instruction begins.
#[inline(always)]
fn begin(cpu: &mut Cpu) -> Done {
    require_fpu(cpu)?;
    require_no_exception(cpu)
}

/// Notes the addresses of an instruction without a memory operand, which cannot fail afterwards.
#[inline(always)]
fn note_instruction(cpu: &mut Cpu, op: &Op) {
    note(cpu, op, None);
}

/// Notes the addresses of an instruction with a memory operand.
#[inline(always)]
fn note_memory_instruction(cpu: &mut Cpu, op: &Op) {
    let selector = cpu.segment(op.segment).selector;
    note(cpu, op, Some(Pointer { selector, offset: op.effective_address(cpu) }));
}

#[inline(always)]
fn note(cpu: &mut Cpu, op: &Op, operand: Option<Pointer>) {
    if cpu.vendor.is_amd() {
        cpu.fpu.forget_instruction();
    }
    let selector = cpu.segment(sreg::CS).selector;
    let instruction = Pointer { selector, offset: cpu.instruction_address(op) };
    cpu.fpu.note_instruction(instruction, operand);
}

/// The source operand of an instruction.
trait Source {
    /// The type of its value: an [`F80`], or an [`Operand`] if memory holds another format.
    type Value: Into<Operand>;

    /// Reads the operand, or `None` for an empty register, and notes the instruction's addresses.
    fn read(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Result<Option<Self::Value>, Stopped>;
}

/// ST(i).
struct Sti;
/// A `float` in memory.
struct M32Fp;
/// A `double` in memory.
struct M64Fp;
/// A number in the registers' format in memory.
struct M80Fp;
/// A word integer in memory.
struct M16Int;
/// A doubleword integer in memory.
struct M32Int;
/// A quadword integer in memory.
struct M64Int;
/// A packed decimal integer in memory.
struct M80Bcd;

impl Source for Sti {
    type Value = F80;

    #[inline(always)]
    fn read(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Result<Option<F80>, Stopped> {
        note_instruction(cpu, op);
        Ok(cpu.fpu.st(op.rm))
    }
}

/// Defines a source in memory by the expressions that read it and convert it to a value.
macro_rules! memory_source {
    ($source:ident, $read:expr, $convert:expr => $value:ty) => {
        impl Source for $source {
            type Value = $value;

            #[inline(always)]
            fn read(
                cpu: &mut Cpu,
                memory: &mut Memory,
                op: &Op,
            ) -> Result<Option<$value>, Stopped> {
                let bits = $read(cpu, memory, op)?;
                note_memory_instruction(cpu, op);
                Ok(Some($convert(bits)))
            }
        }
    };
}

memory_source!(M32Fp, Mem::read, Operand::from_f32 => Operand);
memory_source!(M64Fp, Mem::read, Operand::from_f64 => Operand);
memory_source!(M80Fp, read_bytes, F80::from_bytes => F80);
memory_source!(M16Int, Mem::read::<u16>, integer => F80);
memory_source!(M32Int, Mem::read::<u32>, integer => F80);
memory_source!(M64Int, Mem::read::<u64>, integer => F80);
memory_source!(M80Bcd, read_bytes, F80::from_bcd => F80);

fn integer<W: Word>(bits: W) -> F80 {
    F80::from(bits.sign_extend() as i64)
}

/// Reads a memory operand that is larger than a word of the processor; the size is even.
pub(super) fn read_bytes<const N: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Result<[u8; N], Stopped> {
    read_bytes_at(cpu, memory, op.segment, op.effective_address(cpu))
}

/// Does the same at `offset` of segment `register`.
pub(super) fn read_bytes_at<const N: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    register: u8,
    offset: u64,
) -> Result<[u8; N], Stopped> {
    let linear = cpu.linear_for_read(register, offset, N)?;
    let mut bytes = [0; N];
    if let Some(place) = cpu.tlb.current(linear).for_read(linear, N) {
        return Ok(memory.load(place));
    }
    let user = cpu.is_user();
    for (chunk, at) in bytes.chunks_mut(2).zip((0..).step_by(2)) {
        let word: u16 = cpu.read_linear(memory, cpu.linear_after(linear, at), user)?;
        chunk.copy_from_slice(&word.to_le_bytes());
        // The first access mostly brings the page into the TLB.
        if at == 0
            && let Some(place) = cpu.tlb.current(linear).for_read(linear, N)
        {
            return Ok(memory.load(place));
        }
    }
    Ok(bytes)
}

/// Raises the faults of a write of `size` bytes to the memory operand, without writing.
fn check_write(cpu: &mut Cpu, memory: &mut Memory, op: &Op, size: usize) -> Done {
    let first = cpu.linear_for_write(op.segment, op.effective_address(cpu), size)?;
    if cpu.tlb.current(first).for_write(first, size).is_some() {
        return Ok(());
    }
    let last_page = cpu.linear_after(first, size as u64 - 1) & !(PAGE_SIZE - 1);
    let by = By::code(cpu.is_user());
    cpu.translate(memory, first, Access::Write, by)?;
    if last_page != first & !(PAGE_SIZE - 1) {
        cpu.translate(memory, last_page, Access::Write, by)?;
    }
    Ok(())
}

/// Writes a memory operand that is larger than a word of the processor; the size is even. Nothing is written
/// if any part of it faults.
pub(super) fn write_bytes<const N: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    bytes: [u8; N],
) -> Done {
    let linear = cpu.linear_for_write(op.segment, op.effective_address(cpu), N)?;
    if let Some(place) = cpu.tlb.current(linear).for_write(linear, N) {
        memory.store(place, bytes);
        return Ok(());
    }
    if linear & (PAGE_SIZE - 1) > PAGE_SIZE - N as u64 {
        check_write(cpu, memory, op, N)?;
    }
    let user = cpu.is_user();
    for (chunk, at) in bytes.chunks(2).zip((0..).step_by(2)) {
        let word = u16::from_le_bytes([chunk[0], chunk[1]]);
        cpu.write_linear(memory, cpu.linear_after(linear, at), word, user)?;
    }
    Ok(())
}
