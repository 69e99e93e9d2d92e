//! x87 comparisons and classification (SDM vol. 1, 8.3.6): FCOM, FUCOM, FICOM, FCOMI, FUCOMI, FTST, FXAM.
//!
//! The result is stored even if a comparison raises an unmasked exception; only the pop is omitted then.

use ring3_core::memory::Memory;

use super::{M16Int, M32Fp, M32Int, M64Fp, Source, Sti, begin, note_instruction};
use crate::cpu::Cpu;
use crate::decode::Op;
use crate::exception::Stopped;
use crate::exec::Done;
use crate::flags::{Eflags, Status};
use crate::fpu::{Fpu, status};
use crate::softfloat::{Class, Comparison, Context, F80, Operand};
use crate::table::{Rows, plain};

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [Fcom_m32fp], compare::<M32Fp, Ordered, 0>);
    plain!(rows, [Fcom_m64fp], compare::<M64Fp, Ordered, 0>);
    plain!(rows, [Ficom_m16int], compare::<M16Int, Ordered, 0>);
    plain!(rows, [Ficom_m32int], compare::<M32Int, Ordered, 0>);
    plain!(rows, [Fcomp_m32fp], compare::<M32Fp, Ordered, 1>);
    plain!(rows, [Fcomp_m64fp], compare::<M64Fp, Ordered, 1>);
    plain!(rows, [Ficomp_m16int], compare::<M16Int, Ordered, 1>);
    plain!(rows, [Ficomp_m32int], compare::<M32Int, Ordered, 1>);
    plain!(rows, [Fcom_st0_sti Fcom_st0_sti_DCD0], compare::<Sti, Ordered, 0>);
    plain!(rows, [Fcomp_st0_sti Fcomp_st0_sti_DCD8 Fcomp_st0_sti_DED0], compare::<Sti, Ordered, 1>);
    plain!(rows, [Fcompp], compare::<St1, Ordered, 2>);
    plain!(rows, [Fucom_st0_sti], compare::<Sti, Unordered, 0>);
    plain!(rows, [Fucomp_st0_sti], compare::<Sti, Unordered, 1>);
    plain!(rows, [Fucompp], compare::<St1, Unordered, 2>);
    plain!(rows, [Ftst], compare::<Zero, Ordered, 0>);

    plain!(rows, [Fcomi_st0_sti], compare_to_eflags::<Ordered, false>);
    plain!(rows, [Fcomip_st0_sti], compare_to_eflags::<Ordered, true>);
    plain!(rows, [Fucomi_st0_sti], compare_to_eflags::<Unordered, false>);
    plain!(rows, [Fucomip_st0_sti], compare_to_eflags::<Unordered, true>);

    plain!(rows, [Fxam], examine);
}

/// The treatment of quiet NaNs by a comparison.
trait Relation {
    /// Compares.
    fn apply(context: &mut Context, a: Operand, b: Operand) -> Comparison;
}

/// A quiet NaN is an invalid operand: FCOM.
struct Ordered;
/// A quiet NaN is no exception: FUCOM.
struct Unordered;

impl Relation for Ordered {
    fn apply(context: &mut Context, a: Operand, b: Operand) -> Comparison {
        context.compare(a, b)
    }
}

impl Relation for Unordered {
    fn apply(context: &mut Context, a: Operand, b: Operand) -> Comparison {
        context.compare_unordered(a, b)
    }
}

/// ST(1), which the opcode implies.
struct St1;
/// Positive zero.
struct Zero;

impl Source for St1 {
    type Value = F80;

    fn read(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Result<Option<F80>, Stopped> {
        note_instruction(cpu, op);
        Ok(cpu.fpu.st(1))
    }
}

impl Source for Zero {
    type Value = F80;

    fn read(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Result<Option<F80>, Stopped> {
        note_instruction(cpu, op);
        Ok(Some(F80::ZERO))
    }
}

fn compare<S: Source, R: Relation, const POPS: u8>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    begin(cpu)?;
    let source = S::read(cpu, memory, op)?;
    let fpu = &mut cpu.fpu;
    let codes = match relation::<R>(fpu, source) {
        Comparison::Greater => 0,
        Comparison::Less => status::C0,
        Comparison::Equal => status::C3,
        Comparison::Unordered => status::C0 | status::C2 | status::C3,
    };
    fpu.set_codes(status::CODES, codes);
    pop(fpu, POPS);
    Ok(())
}

/// Performs FCOMI and FUCOMI: the result is in ZF, PF and CF, the other status flags are cleared, and C1 does
/// not change.
fn compare_to_eflags<R: Relation, const POP: bool>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Done {
    begin(cpu)?;
    let source = Sti::read(cpu, memory, op)?;
    let fpu = &mut cpu.fpu;
    let flags = match relation::<R>(fpu, source) {
        Comparison::Greater => Eflags::empty(),
        Comparison::Less => Eflags::CF,
        Comparison::Equal => Eflags::ZF,
        Comparison::Unordered => Eflags::ZF | Eflags::PF | Eflags::CF,
    };
    pop(fpu, u8::from(POP));
    cpu.status = Status::from_eflags(flags);
    Ok(())
}

/// Compares ST(0) with `source`. An empty register causes a stack underflow and compares as unordered. C1
/// does not change, except that an underflow clears it.
fn relation<R: Relation>(fpu: &mut Fpu, source: Option<impl Into<Operand>>) -> Comparison {
    let (Some(value), Some(source)) = (fpu.st(0), source) else {
        fpu.stack_underflow();
        return Comparison::Unordered;
    };
    let mut context = fpu.context();
    let comparison = R::apply(&mut context, value.into(), source.into());
    fpu.raise(context.raised.bits());
    comparison
}

/// Pops `count` times, unless an unmasked exception is now pending.
fn pop(fpu: &mut Fpu, count: u8) {
    if !fpu.has_pending_exception() {
        for _ in 0..count {
            fpu.pop();
        }
    }
}

/// Performs FXAM (SDM vol. 2, FXAM): C1 is the sign, even of an empty register.
fn examine(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    begin(cpu)?;
    note_instruction(cpu, op);
    let fpu = &mut cpu.fpu;
    let class = match fpu.st(0).map(F80::class) {
        None => status::C3 | status::C0,
        Some(Class::Unsupported) => 0,
        Some(Class::QuietNan | Class::SignalingNan) => status::C0,
        Some(Class::Normal) => status::C2,
        Some(Class::Infinity) => status::C2 | status::C0,
        Some(Class::Zero) => status::C3,
        Some(Class::Denormal | Class::PseudoDenormal) => status::C3 | status::C2,
    };
    let sign = if fpu.content(0).is_negative() { status::C1 } else { 0 };
    fpu.set_codes(status::CODES, class | sign);
    Ok(())
}
