//! String instructions (SDM vol. 1, 7.3.9): MOVS, CMPS, SCAS, LODS, STOS, and INS and OUTS.
//!
//! A repeated instruction counts as many instructions as it has iterations: each one completes, with the
//! registers changed, before the next one begins.

use ring3_core::memory::Memory;

use crate::cpu::{Attention, Cpu, reg, width_of};
use crate::decode::{Op, Repeat};
use crate::exception::{Stop, Stopped};
use crate::exec::Done;
use crate::exec::port::check_port;
use crate::flags::{Eflags, Status};
use crate::segment::sreg;
use crate::table::{Rows, sizes};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    sizes!(rows, [Movsb_m8_m8 Movsw_m16_m16 Movsd_m32_m32 Movsq_m64_m64], move_string);
    sizes!(rows, [Cmpsb_m8_m8 Cmpsw_m16_m16 Cmpsd_m32_m32 Cmpsq_m64_m64], compare_strings);
    sizes!(rows, [Scasb_AL_m8 Scasw_AX_m16 Scasd_EAX_m32 Scasq_RAX_m64], scan_string);
    sizes!(rows, [Lodsb_AL_m8 Lodsw_AX_m16 Lodsd_EAX_m32 Lodsq_RAX_m64], load_string);
    sizes!(rows, [Stosb_m8_AL Stosw_m16_AX Stosd_m32_EAX Stosq_m64_RAX], store_string);
    sizes!(rows, [Insb_m8_DX Insw_m16_DX Insd_m32_DX], input_string);
    sizes!(rows, [Outsb_DX_m8 Outsw_DX_m16 Outsd_DX_m32], output_string);
}

/// The effect of an iteration on the repetition.
#[derive(PartialEq, Eq)]
enum Iteration {
    /// It changes no flags.
    Plain,
    /// It has compared, so REPE and REPNE check ZF.
    Compared,
}

/// Returns the bits of an index or count register that the address size selects.
#[inline(always)]
fn masked(cpu: &Cpu, op: &Op, register: u8) -> u64 {
    cpu.gpr(register) & op.address_mask()
}

/// Sets the bits of an index or count register that the address size selects.
#[inline(always)]
fn set_masked(cpu: &mut Cpu, op: &Op, register: u8, value: u64) {
    match op.address_mask() {
        0xffff => cpu.set(register, value as u16),
        mask => cpu.set_gpr(register, value & mask),
    }
}

/// Advances an index register by `count` elements of size `W` in the direction of DF.
#[inline(always)]
fn step<W: Word>(cpu: &mut Cpu, op: &Op, register: u8, count: u64) {
    let distance = count.wrapping_mul(W::BYTES as u64);
    let old = masked(cpu, op, register);
    let new = if cpu.has_flag(Eflags::DF) {
        old.wrapping_sub(distance)
    } else {
        old.wrapping_add(distance)
    };
    set_masked(cpu, op, register, new);
}

/// Executes `iteration` once, or as often as the repeat prefix says.
#[inline(always)]
fn repeat(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    iteration: impl FnMut(&mut Cpu, &mut Memory) -> Result<Iteration, Stopped>,
) -> Done {
    repeat_in_batches(cpu, memory, op, |_, _| false, iteration)
}

/// Repeats like [`repeat`], where `many` can do some of the iterations at once, except for the last one.
#[inline(always)]
fn repeat_in_batches(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    mut many: impl FnMut(&mut Cpu, &mut Memory) -> bool,
    mut iteration: impl FnMut(&mut Cpu, &mut Memory) -> Result<Iteration, Stopped>,
) -> Done {
    if op.repeat == Repeat::None {
        return iteration(cpu, memory).map(|_| ());
    }
    // Without iterations not even the accessed bits of pages change.
    if masked(cpu, op, reg::CX) == 0 {
        return Ok(());
    }
    loop {
        while many(cpu, memory) {
            pause(cpu, memory)?;
        }
        let count = masked(cpu, op, reg::CX);
        let kind = iteration(cpu, memory)?;
        set_masked(cpu, op, reg::CX, count - 1);
        if cpu.attention.contains(Attention::ANSWERED) {
            cpu.forget_answers();
        }
        let goes_on =
            kind == Iteration::Plain || cpu.status.zero() == (op.repeat == Repeat::WhileEqual);
        if count == 1 || !goes_on {
            return Ok(());
        }
        // The engine counts the last iteration like any instruction.
        cpu.count(op.form, cpu.is_user());
        pause(cpu, memory)?;
    }
}

/// Leaves the instruction between two iterations if the engine must check for events. The engine may find
/// that the instruction has overwritten itself.
#[inline(always)]
fn pause(cpu: &mut Cpu, memory: &Memory) -> Done {
    if cpu.instructions >= cpu.deadline || !cpu.attention.is_empty() || memory.has_stale_code() {
        return Err(cpu.stop_for(Stop::Unfinished));
    }
    Ok(())
}

fn move_string<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let many = |cpu: &mut Cpu, memory: &mut Memory| move_many::<W>(cpu, memory, op);
    repeat_in_batches(cpu, memory, op, many, |cpu, memory| {
        let value = cpu.read::<W>(memory, op.segment, masked(cpu, op, reg::SI))?;
        cpu.write(memory, sreg::ES, masked(cpu, op, reg::DI), value)?;
        step::<W>(cpu, op, reg::SI, 1);
        step::<W>(cpu, op, reg::DI, 1);
        Ok(Iteration::Plain)
    })
}

fn store_string<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let many = |cpu: &mut Cpu, memory: &mut Memory| store_many::<W>(cpu, memory, op);
    repeat_in_batches(cpu, memory, op, many, |cpu, memory| {
        let value = cpu.get::<W>(reg::AX);
        cpu.write(memory, sreg::ES, masked(cpu, op, reg::DI), value)
            .inspect_err(|_| cpu.note_fill::<W>(op))?;
        step::<W>(cpu, op, reg::DI, 1);
        Ok(Iteration::Plain)
    })
}

/// Fewer iterations than this are done one by one.
const WORTH_A_BATCH: u64 = 4;

/// Returns how many iterations can be done at once. `indices` are their index registers, with the number of
/// bytes from there on that can be accessed without further checks. The batch ends with those bytes, with the
/// offsets within the address size, or at the deadline, and one iteration before the count, so that the
/// instruction ends in the ordinary way.
fn batch<W: Word>(cpu: &Cpu, op: &Op, indices: &[(u8, usize)]) -> Option<u64> {
    if cpu.has_flag(Eflags::DF) || !cpu.attention.is_empty() {
        return None;
    }
    let budget = cpu.deadline.saturating_sub(cpu.instructions);
    let most = masked(cpu, op, reg::CX).saturating_sub(1).min(budget);
    let count = indices.iter().fold(most, |most, (register, bytes)| {
        let behind = op.address_mask() - masked(cpu, op, *register);
        let room = (*bytes as u64).min(behind.saturating_add(1));
        most.min(room / W::BYTES as u64)
    });
    (count >= WORTH_A_BATCH).then_some(count)
}

/// Does many iterations of MOVS within one page of source and target, if possible.
fn move_many<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> bool {
    let Some((to, room)) = cpu.plain_target(sreg::ES, masked(cpu, op, reg::DI)) else {
        return false;
    };
    // The two pages may have the same entry of the TLB, which now holds the target's page because it was
    // written last.
    let offset = masked(cpu, op, reg::SI);
    let Some((from, readable)) = cpu.find_plain_source(memory, op.segment, offset, W::BYTES) else {
        return false;
    };
    let Some(count) = batch::<W>(cpu, op, &[(reg::SI, readable), (reg::DI, room)]) else {
        return false;
    };
    if !memory.copy_within_page(from, to, count as usize * W::BYTES) {
        return false;
    }
    step::<W>(cpu, op, reg::SI, count);
    finish_batch::<W>(cpu, op, count);
    true
}

/// Does many iterations of STOS within one page, if possible.
fn store_many<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> bool {
    let Some((to, room)) = cpu.plain_target(sreg::ES, masked(cpu, op, reg::DI)) else {
        return false;
    };
    let Some(count) = batch::<W>(cpu, op, &[(reg::DI, room)]) else {
        return false;
    };
    let Some(page) = memory.plain_page_from(to) else {
        return false;
    };
    let value = cpu.get::<W>(reg::AX).zero_extend().to_le_bytes();
    for element in page[..count as usize * W::BYTES].chunks_exact_mut(W::BYTES) {
        element.copy_from_slice(&value[..W::BYTES]);
    }
    finish_batch::<W>(cpu, op, count);
    true
}

/// Updates the registers and counts for `count` iterations that wrote at ES:EDI.
fn finish_batch<W: Word>(cpu: &mut Cpu, op: &Op, count: u64) {
    step::<W>(cpu, op, reg::DI, count);
    set_masked(cpu, op, reg::CX, masked(cpu, op, reg::CX) - count);
    cpu.count_several(op.form, cpu.is_user(), count);
}

fn load_string<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    repeat(cpu, memory, op, |cpu, memory| {
        let value = cpu.read::<W>(memory, op.segment, masked(cpu, op, reg::SI))?;
        cpu.set(reg::AX, value);
        step::<W>(cpu, op, reg::SI, 1);
        Ok(Iteration::Plain)
    })
}

fn compare_strings<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    repeat(cpu, memory, op, |cpu, memory| {
        let first = cpu.read::<W>(memory, op.segment, masked(cpu, op, reg::SI))?;
        let second = cpu.read::<W>(memory, sreg::ES, masked(cpu, op, reg::DI))?;
        compare(cpu, first, second);
        step::<W>(cpu, op, reg::SI, 1);
        step::<W>(cpu, op, reg::DI, 1);
        Ok(Iteration::Compared)
    })
}

fn scan_string<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    repeat(cpu, memory, op, |cpu, memory| {
        let value = cpu.read::<W>(memory, sreg::ES, masked(cpu, op, reg::DI))?;
        compare(cpu, cpu.get::<W>(reg::AX), value);
        step::<W>(cpu, op, reg::DI, 1);
        Ok(Iteration::Compared)
    })
}

fn compare<W: Word>(cpu: &mut Cpu, a: W, b: W) {
    let difference = W::truncate(a.zero_extend().wrapping_sub(b.zero_extend()));
    cpu.status = Status::sub(a, b, difference);
}

/// Checks the permission to use the port, which happens even if the count is zero.
fn check_idle_port<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    if op.repeat != Repeat::None && masked(cpu, op, reg::CX) == 0 {
        check_port(cpu, memory, cpu.get(reg::DX), W::BYTES)?;
    }
    Ok(())
}

fn input_string<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    check_idle_port::<W>(cpu, memory, op)?;
    repeat(cpu, memory, op, |cpu, memory| {
        let port = cpu.get(reg::DX);
        check_port(cpu, memory, port, W::BYTES)?;
        let target = masked(cpu, op, reg::DI);
        // A value that is read from a device cannot be read again, so the target is checked first.
        cpu.check_writable(memory, sreg::ES, target, W::BYTES)?;
        let value = cpu
            .read_port::<W>(port)
            .inspect_err(|_| cpu.note_string_access(op, width_of::<W>(), true))?;
        cpu.write(memory, sreg::ES, target, value)?;
        step::<W>(cpu, op, reg::DI, 1);
        Ok(Iteration::Plain)
    })
}

fn output_string<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    check_idle_port::<W>(cpu, memory, op)?;
    repeat(cpu, memory, op, |cpu, memory| {
        let port = cpu.get(reg::DX);
        check_port(cpu, memory, port, W::BYTES)?;
        let value = cpu.read::<W>(memory, op.segment, masked(cpu, op, reg::SI))?;
        cpu.write_port(port, value)
            .inspect_err(|_| cpu.note_string_access(op, width_of::<W>(), false))?;
        step::<W>(cpu, op, reg::SI, 1);
        Ok(Iteration::Plain)
    })
}
