//! x87 control (SDM vol. 1, 8.3.11): FNINIT, FNCLEX, FLDCW, FNSTCW, FNSTSW, FNSTENV, FLDENV, FNSAVE, FRSTOR,
//! FINCSTP, FDECSTP, FFREE, FNOP, WAIT.
//!
//! FSTCW, FSAVE and similar instructions are a WAIT followed by the instruction without waiting.

use ring3_core::memory::Memory;

use super::{begin, note_instruction, read_bytes, require_fpu, require_no_exception, write_bytes};
use crate::cpu::{Cpu, Cr0, reg};
use crate::decode::Op;
use crate::exception::{Fault, vector};
use crate::exec::{Done, Mem, Place};
use crate::fpu::{Environment, Fpu, status};
use crate::softfloat::F80;
use crate::table::{Rows, plain};

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [Wait], wait);
    plain!(rows, [Fnop], no_operation);
    // Instructions that the 8087 and 287 needed and that their successors ignore (SDM vol. 1, 8.3.13).
    plain!(rows, [Fneni Fndisi Fnsetpm], ignore);
    plain!(rows, [Fninit], |cpu, _, _| without_waiting(cpu, Fpu::init));
    plain!(rows, [Fnclex], |cpu, _, _| without_waiting(cpu, Fpu::clear_exceptions));
    plain!(rows, [Fldcw_m2byte], load_control);
    plain!(rows, [Fnstcw_m2byte], store_control);
    plain!(rows, [Fnstsw_m2byte], store_status);
    plain!(rows, [Fnstsw_AX], store_status_in_ax);

    plain!(rows, [Fldenv_m14byte], load_environment::<Words, 14>);
    plain!(rows, [Fldenv_m28byte], load_environment::<Doublewords, 28>);
    plain!(rows, [Fnstenv_m14byte], store_environment::<Words, 14>);
    plain!(rows, [Fnstenv_m28byte], store_environment::<Doublewords, 28>);
    plain!(rows, [Frstor_m94byte], restore::<Words, 94>);
    plain!(rows, [Frstor_m108byte], restore::<Doublewords, 108>);
    plain!(rows, [Fnsave_m94byte], save::<Words, 94>);
    plain!(rows, [Fnsave_m108byte], save::<Doublewords, 108>);

    plain!(rows, [Fincstp], |cpu, _, op| turn_stack(cpu, op, 1));
    plain!(rows, [Fdecstp], |cpu, _, op| turn_stack(cpu, op, 7));
    plain!(rows, [Ffree_sti], free::<false>);
    plain!(rows, [Ffreep_sti], free::<true>);
}

/// Performs WAIT, which is not for the FPU alone: #NM needs MP as well as TS (SDM vol. 3, table 2-2).
fn wait(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    if cpu.cr0().contains(Cr0::MP | Cr0::TS) {
        return Err(cpu.fault(Fault::new(vector::NM)));
    }
    require_no_exception(cpu)
}

fn no_operation(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    Ok(())
}

fn ignore(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    require_fpu(cpu)
}

/// Changes the FPU's state, even if an exception is pending.
fn without_waiting(cpu: &mut Cpu, change: fn(&mut Fpu)) -> Done {
    require_fpu(cpu)?;
    change(&mut cpu.fpu);
    Ok(())
}

fn load_control(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let word = Mem::read(cpu, memory, op)?;
    cpu.fpu.set_control(word);
    if cpu.vendor.is_amd() {
        cpu.fpu.forget_instruction();
    }
    Ok(())
}

fn store_control(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_fpu(cpu)?;
    Mem::write(cpu, memory, op, cpu.fpu.control())
}

fn store_status(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_fpu(cpu)?;
    Mem::write(cpu, memory, op, cpu.fpu.status())
}

fn store_status_in_ax(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    require_fpu(cpu)?;
    cpu.set(reg::AX, cpu.fpu.status());
    Ok(())
}

/// Performs FINCSTP and FDECSTP, which change only TOP.
fn turn_stack(cpu: &mut Cpu, op: &Op, by: u8) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    cpu.fpu.set_top(cpu.fpu.top().wrapping_add(by));
    cpu.fpu.set_codes(status::C1, 0);
    Ok(())
}

/// Performs FFREE, and FFREEP, which every processor has and only AMD's manual describes.
fn free<const POP: bool>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    cpu.fpu.free(op.rm);
    cpu.fpu.set_codes(status::C1, 0);
    if POP {
        cpu.fpu.pop();
    }
    Ok(())
}

/// The size of the environment's fields: the operand size.
trait FieldSize {
    /// The size of a field in bytes.
    const BYTES: usize;
    /// The size of the environment in bytes.
    const ENVIRONMENT_BYTES: usize = 7 * Self::BYTES;
}

/// 16-bit operand size.
struct Words;
/// 32-bit operand size.
struct Doublewords;

impl FieldSize for Words {
    const BYTES: usize = 2;
}

impl FieldSize for Doublewords {
    const BYTES: usize = 4;
}

/// Puts the environment at the start of `image`.
fn put_environment<S: FieldSize>(environment: Environment, image: &mut [u8]) {
    for (place, field) in image.chunks_mut(S::BYTES).zip(environment) {
        place.copy_from_slice(&field.to_le_bytes()[..S::BYTES]);
    }
}

/// Reads the environment at the start of `image`.
fn take_environment<S: FieldSize>(image: &[u8]) -> Environment {
    let mut environment = Environment::default();
    for (place, field) in image.chunks(S::BYTES).zip(&mut environment) {
        let mut bytes = [0; 4];
        bytes[..S::BYTES].copy_from_slice(place);
        *field = u32::from_le_bytes(bytes);
    }
    environment
}

fn store_environment<S: FieldSize, const N: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    require_fpu(cpu)?;
    let mut image = [0; N];
    put_environment::<S>(cpu.stored_fpu().environment(cpu.in_protected_mode()), &mut image);
    write_bytes(cpu, memory, op, image)?;
    cpu.fpu.mask_exceptions();
    Ok(())
}

fn load_environment<S: FieldSize, const N: usize>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    begin(cpu)?;
    let image: [u8; N] = read_bytes(cpu, memory, op)?;
    let protected_mode = cpu.in_protected_mode();
    cpu.fpu.set_environment(take_environment::<S>(&image), protected_mode);
    Ok(())
}

/// Performs FNSAVE: stores the environment and the registers from ST(0) on, and then performs FNINIT.
fn save<S: FieldSize, const N: usize>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_fpu(cpu)?;
    let mut image = [0; N];
    let (environment, registers) = image.split_at_mut(S::ENVIRONMENT_BYTES);
    put_environment::<S>(cpu.stored_fpu().environment(cpu.in_protected_mode()), environment);
    for (place, i) in registers.chunks_mut(10).zip(0..) {
        place.copy_from_slice(&cpu.fpu.content(i).to_bytes());
    }
    write_bytes(cpu, memory, op, image)?;
    cpu.fpu.init();
    Ok(())
}

fn restore<S: FieldSize, const N: usize>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    let image: [u8; N] = read_bytes(cpu, memory, op)?;
    let (environment, registers) = image.split_at(S::ENVIRONMENT_BYTES);
    let environment = take_environment::<S>(environment);
    let protected_mode = cpu.in_protected_mode();
    cpu.fpu.set_environment(environment, protected_mode);
    let tags = cpu.fpu.tag_word();
    for (place, i) in registers.chunks(10).zip(0..) {
        let mut bytes = [0; 10];
        bytes.copy_from_slice(place);
        cpu.fpu.set_st(i, F80::from_bytes(bytes));
    }
    // Setting a register marks it as not empty, so the tags are set last.
    cpu.fpu.set_tag_word(tags);
    Ok(())
}
