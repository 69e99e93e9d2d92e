//! System instructions (SDM vol. 3, 2.8): control and debug registers, descriptor tables, MSRs, time, CPUID,
//! HLT, SYSENTER and SYSEXIT, and the instructions that examine selectors.

use iced_x86::{Code, CpuidFeature};
use ring3_core::device::Width;
use ring3_core::memory::Memory;

use crate::access::is_canonical;
use crate::cpu::{Cpu, Cr0, Cr4, reg};
use crate::cpuid::{ABOUT_LONG_MODE, EXTENDED_STATES, Features, Model};
use crate::decode::Op;
use crate::engine::Exit;
use crate::exception::{Fault, Stop, Stopped, vector};
use crate::exec::{Done, Mem, Place, Reg};
use crate::flags::Eflags;
use crate::guest_tools;
use crate::long_mode::{FlatCode, flat_stack};
use crate::segment::{Attributes, Descriptor, Segment, Selector, TableRegister, sreg, system};
use crate::system_calls::Gate;
use crate::table::{Rows, ending, exec, plain, rm, rm_wide};
use crate::word::Word;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    plain!(rows, [Hlt], hlt);
    plain!(rows, [Cpuid], cpuid);
    plain!(rows, [Rdtsc], rdtsc);
    plain!(rows, [Rdtscp], rdtscp);
    plain!(rows, [Mov_r32_cr], read_control::<u32>);
    plain!(rows, [Mov_r64_cr], read_control::<u64>);
    plain!(rows, [Mov_cr_r32], write_control::<u32>);
    plain!(rows, [Mov_cr_r64], write_control::<u64>);
    plain!(rows, [Mov_r32_dr], read_debug::<u32>);
    plain!(rows, [Mov_r64_dr], read_debug::<u64>);
    plain!(rows, [Mov_dr_r32], write_debug::<u32>);
    plain!(rows, [Mov_dr_r64], write_debug::<u64>);
    plain!(rows, [Clts], clts);
    rm!(rows, u16, [Lmsw_rm16 Lmsw_r32m16 Lmsw_r64m16], lmsw);
    rm!(rows, u16, [Smsw_rm16], smsw);
    rows.add(Code::Smsw_r32m16, exec!(smsw::<Mem, u16>), exec!(smsw::<Reg, u32>));
    rows.add(Code::Smsw_r64m16, exec!(smsw::<Mem, u16>), exec!(smsw::<Reg, u64>));
    plain!(rows, [Invlpg_m], invlpg);
    plain!(rows, [Wbinvd Invd], flush_caches);
    plain!(rows, [Lgdt_m1632_16], lgdt::<u16>);
    plain!(rows, [Lgdt_m1632], lgdt::<u32>);
    plain!(rows, [Lgdt_m1664], lgdt::<u64>);
    plain!(rows, [Lidt_m1632_16], lidt::<u16>);
    plain!(rows, [Lidt_m1632], lidt::<u32>);
    plain!(rows, [Lidt_m1664], lidt::<u64>);
    plain!(rows, [Sgdt_m1632_16 Sgdt_m1632], sgdt::<u32>);
    plain!(rows, [Sgdt_m1664], sgdt::<u64>);
    plain!(rows, [Sidt_m1632_16 Sidt_m1632], sidt::<u32>);
    plain!(rows, [Sidt_m1664], sidt::<u64>);
    rm!(rows, u16, [Lldt_rm16 Lldt_r32m16 Lldt_r64m16], lldt);
    rm!(rows, u16, [Ltr_rm16 Ltr_r32m16 Ltr_r64m16], ltr);
    rm!(rows, u16, [Sldt_rm16], sldt);
    rows.add(Code::Sldt_r32m16, exec!(sldt::<Mem, u16>), exec!(sldt::<Reg, u32>));
    rows.add(Code::Sldt_r64m16, exec!(sldt::<Mem, u16>), exec!(sldt::<Reg, u64>));
    rm!(rows, u16, [Str_rm16], str);
    rows.add(Code::Str_r32m16, exec!(str::<Mem, u16>), exec!(str::<Reg, u32>));
    rows.add(Code::Str_r64m16, exec!(str::<Mem, u16>), exec!(str::<Reg, u64>));
    for code in [Code::Verr_rm16, Code::Verr_r32m16, Code::Verr_r64m16] {
        rows.add(code, exec!(verr::<Mem>), exec!(verr::<Reg>));
    }
    for code in [Code::Verw_rm16, Code::Verw_r32m16, Code::Verw_r64m16] {
        rows.add(code, exec!(verw::<Mem>), exec!(verw::<Reg>));
    }
    rm_wide!(rows, [Lar_r16_rm16 Lar_r32_r32m16 Lar_r64_r64m16], lar);
    rm_wide!(rows, [Lsl_r16_rm16 Lsl_r32_r32m16 Lsl_r64_r64m16], lsl);
    for code in [Code::Arpl_rm16_r16, Code::Arpl_r32m16_r32] {
        rows.add(code, exec!(arpl::<Mem>), exec!(arpl::<Reg>));
    }
    plain!(rows, [Sysenter], sysenter);
    plain!(rows, [Sysexitd], sysexit::<u32>);
    plain!(rows, [Sysexitq], sysexit::<u64>);
    ending!(rows, [Hlt Mov_cr_r32 Mov_cr_r64 Mov_dr_r32 Mov_dr_r64 Clts]);
    ending!(rows, [Lmsw_rm16 Lmsw_r32m16 Lmsw_r64m16 Invlpg_m Wbinvd Invd]);
    ending!(rows, [Sysenter Sysexitd Sysexitq]);
}

fn hlt(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.require_cpl0()?;
    cpu.halted = true;
    Err(cpu.stop_for(Stop::Completed(Exit::Halt)))
}

fn cpuid(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    if let Some(call) = guest_tools::call(cpu) {
        return guest_tools::execute(cpu, call);
    }
    if ABOUT_LONG_MODE.contains(&cpu.get(reg::AX)) {
        cpu.long_mode_sought = Some(cpu.instructions);
    }
    let mut leaf = cpu.model.leaf(cpu.get(reg::AX), cpu.msrs.apic_is_enabled());
    if cpu.get::<u32>(reg::AX) == *ABOUT_LONG_MODE.end() && !cpu.is_in_64_bit_mode() {
        leaf[3] &= !SYSCALL_BIT;
    }
    if cpu.get::<u32>(reg::AX) == 1 && cpu.cr4.contains(Cr4::OSXSAVE) {
        leaf[2] |= OSXSAVE_BIT;
    }
    if cpu.get::<u32>(reg::AX) == EXTENDED_STATES && cpu.model.has_sub_leaf(EXTENDED_STATES) {
        leaf[1] = Model::state_size(cpu.msrs.xcr0);
    }
    if cpu.model.has_sub_leaf(cpu.get(reg::AX)) && cpu.get::<u32>(reg::CX) != 0 {
        leaf = cpu.model.sub_leaf(cpu.get(reg::AX), cpu.get(reg::CX));
    }
    for (register, value) in [reg::AX, reg::BX, reg::CX, reg::DX].into_iter().zip(leaf) {
        cpu.set(register, value);
    }
    Ok(())
}

/// The bit in ECX of leaf 1 that shows CR4.OSXSAVE.
const OSXSAVE_BIT: u32 = 1 << 27;

/// The bit for SYSCALL in EDX of leaf 80000001h, which only 64-bit code sees (SDM vol. 2, CPUID).
const SYSCALL_BIT: u32 = 1 << 11;

fn rdtsc(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    if cpu.cr4.contains(Cr4::TSD) {
        cpu.require_cpl0()?;
    }
    let time = cpu.time_stamp()?;
    cpu.set(reg::AX, time as u32);
    cpu.set(reg::DX, (time >> 32) as u32);
    Ok(())
}

/// Performs RDTSCP. Nothing is executed out of order, so there is nothing to wait for.
fn rdtscp(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    rdtsc(cpu, memory, op)?;
    cpu.set(reg::CX, cpu.msrs.tsc_aux);
    Ok(())
}

// Control and debug registers -------------------------------------------

fn read_control<W: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    let value = match op.reg {
        0 => cpu.cr0.bits().into(),
        2 => cpu.cr2,
        3 => cpu.cr3,
        4 if cpu.model.has_cr4() => cpu.cr4.bits().into(),
        8 => task_priority(cpu)?,
        _ => return Err(cpu.undefined_opcode()),
    };
    cpu.set(op.rm, W::truncate(value));
    Ok(())
}

fn write_control<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    let value = cpu.get::<W>(op.rm).zero_extend();
    match op.reg {
        0 => {
            // Reserved bits of the lower half are ignored, as on all 32-bit processors.
            let new = Cr0::from_bits_truncate(value as u32);
            if new.contains(Cr0::PG) && !new.contains(Cr0::PE)
                || new.contains(Cr0::NW) && !new.contains(Cr0::CD)
                || value >> 32 != 0
            {
                return Err(cpu.general_protection(0));
            }
            cpu.check_paging_change(new)?;
            // SDM vol. 3, 5.4.1.
            if (new ^ cpu.cr0).intersects(Cr0::PG | Cr0::CD | Cr0::NW) {
                cpu.load_pdptes(memory, new, cpu.cr3, cpu.cr4)?;
            }
            cpu.set_cr0(new);
        }
        2 => cpu.cr2 = value,
        3 => cpu.load_cr3(memory, value)?,
        4 if cpu.model.has_cr4() => {
            let supported = supported_cr4(cpu.model);
            let new = u32::try_from(value).ok().and_then(Cr4::from_bits);
            let Some(new) = new.filter(|new| supported.contains(*new)) else {
                return Err(cpu.general_protection(0));
            };
            if cpu.is_in_long_mode() && !new.contains(Cr4::PAE) {
                return Err(cpu.general_protection(0));
            }
            if (new ^ cpu.cr4).intersects(Cr4::PAE | Cr4::PGE | Cr4::PSE) {
                cpu.load_pdptes(memory, cpu.cr0, cpu.cr3, new)?;
            }
            cpu.set_cr4(new);
        }
        8 => set_task_priority(cpu, value)?,
        _ => return Err(cpu.undefined_opcode()),
    }
    Ok(())
}

/// Offset of the local APIC's task-priority register (SDM vol. 3, table 12-1).
const TASK_PRIORITY: u64 = 0x80;

/// Returns CR8: the upper four bits of the task priority (SDM vol. 3, 12.8.6). While there is no local APIC it
/// reads 0.
fn task_priority(cpu: &mut Cpu) -> Result<u64, Stopped> {
    if !cpu.msrs.apic_is_enabled() {
        return Ok(0);
    }
    let address = cpu.msrs.apic_address() + TASK_PRIORITY;
    Ok(cpu.ask(Exit::MmioRead { address, width: Width::Dword })? >> 4 & 0xf)
}

fn set_task_priority(cpu: &mut Cpu, value: u64) -> Done {
    if value > 0xf {
        return Err(cpu.general_protection(0));
    }
    if cpu.msrs.apic_is_enabled() {
        let address = cpu.msrs.apic_address() + TASK_PRIORITY;
        cpu.ask(Exit::MmioWrite { address, width: Width::Dword, value: (value as u32) << 4 })?;
    }
    Ok(())
}

/// Returns the bits of CR4 that may be set on a processor of model `model`.
fn supported_cr4(model: Model) -> Cr4 {
    let bits = [
        (Cr4::VME | Cr4::PVI, Features::VME),
        (Cr4::TSD, Features::TSC),
        (Cr4::DE, Features::DE),
        (Cr4::PSE, Features::PSE),
        (Cr4::PAE, Features::PAE),
        (Cr4::MCE, Features::MCE),
        (Cr4::PGE, Features::PGE),
        (Cr4::OSFXSR, Features::FXSR),
        (Cr4::OSXMMEXCPT, Features::SSE),
        (Cr4::UMIP, Features::UMIP),
        (Cr4::SMEP, Features::SMEP),
        (Cr4::SMAP, Features::SMAP),
        (Cr4::FSGSBASE, Features::FSGSBASE),
        (Cr4::OSXSAVE, Features::XSAVE),
    ];
    let features = model.features();
    let mut supported: Cr4 = bits
        .iter()
        .filter(|(_, feature)| features.contains(*feature))
        .map(|(bit, _)| *bit)
        .collect();
    supported.set(Cr4::PCE, model.has(CpuidFeature::RDPMC));
    supported
}

fn read_debug<W: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    let value = cpu.read_debug_register(op.reg)?;
    cpu.set(op.rm, W::truncate(value));
    Ok(())
}

fn write_debug<W: Word>(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    cpu.write_debug_register(op.reg, cpu.get::<W>(op.rm).zero_extend())
}

fn clts(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.require_cpl0()?;
    cpu.cr0.remove(Cr0::TS);
    Ok(())
}

/// Performs LMSW, which can set PE but not clear it.
fn lmsw<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    let value = P::read::<W>(cpu, memory, op)?.zero_extend() as u32;
    let changed = Cr0::PE | Cr0::MP | Cr0::EM | Cr0::TS;
    let new = Cr0::from_bits_truncate(value) & changed | cpu.cr0 & Cr0::PE;
    cpu.set_cr0((cpu.cr0 - changed) | new);
    Ok(())
}

fn smsw<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_umip_off_or_cpl0(cpu)?;
    P::write(cpu, memory, op, W::truncate(cpu.cr0.bits().into()))
}

fn invlpg(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    let linear = cpu.linear(cpu.view(op.segment), op.effective_address(cpu));
    // An address that is not canonical has no translation, and raises no exception (SDM vol. 2, INVLPG).
    if is_canonical(linear) {
        cpu.invalidate_page(linear);
    }
    Ok(())
}

/// Performs INVD and WBINVD. There are no caches to write back or to invalidate.
fn flush_caches(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.require_cpl0()
}

// Descriptor tables -----------------------------------------------------

/// Reads a pseudo-descriptor in memory: limit and base. With a 16-bit operand size the base has 24 bits, and in
/// 64-bit mode it has 64, which must be canonical (SDM vol. 2, LGDT).
fn read_table<W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Result<TableRegister, Stopped> {
    let limit = Mem::read::<u16>(cpu, memory, op)?;
    let behind = op.displaced(cpu, 2);
    let base = match W::BITS {
        16 => u64::from(Mem::read::<u32>(cpu, memory, &behind)? & 0xff_ffff),
        32 => Mem::read::<u32>(cpu, memory, &behind)?.into(),
        _ => Mem::read::<u64>(cpu, memory, &behind)?,
    };
    cpu.require_canonical(base)?;
    Ok(TableRegister { base, limit })
}

/// Performs SGDT and SIDT, which store all 32 bits of the base at any operand size, or 64 in 64-bit mode.
fn write_table<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op, table: TableRegister) -> Done {
    Mem::write(cpu, memory, op, table.limit)?;
    let behind = op.displaced(cpu, 2);
    Mem::write(cpu, memory, &behind, W::truncate(table.base))
}

fn lgdt<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    cpu.gdtr = read_table::<W>(cpu, memory, op)?;
    Ok(())
}

fn lidt<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    cpu.idtr = read_table::<W>(cpu, memory, op)?;
    Ok(())
}

fn sgdt<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_umip_off_or_cpl0(cpu)?;
    write_table::<W>(cpu, memory, op, cpu.gdtr)
}

fn sidt<W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_umip_off_or_cpl0(cpu)?;
    write_table::<W>(cpu, memory, op, cpu.idtr)
}

/// Raises #GP for the instructions that reveal system registers to users, if the system prevents it (SDM vol.
/// 3, 2.5, CR4.UMIP).
fn require_umip_off_or_cpl0(cpu: &mut Cpu) -> Done {
    if cpu.cr4.contains(Cr4::UMIP) { cpu.require_cpl0() } else { Ok(()) }
}

/// Raises #UD in real and virtual-8086 mode, where instructions on selectors do not exist.
fn require_protected_mode(cpu: &mut Cpu) -> Done {
    if cpu.in_protected_mode() { Ok(()) } else { Err(cpu.undefined_opcode()) }
}

fn lldt<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_protected_mode(cpu)?;
    cpu.require_cpl0()?;
    let selector = Selector(P::read::<W>(cpu, memory, op)?.zero_extend() as u16);
    if selector.is_null() {
        cpu.ldtr = Segment::null(selector.0);
        return Ok(());
    }
    let (_, table) = global_descriptor(cpu, memory, selector, &[system::LDT])?;
    cpu.ldtr = table;
    Ok(())
}

fn ltr<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_protected_mode(cpu)?;
    cpu.require_cpl0()?;
    let selector = Selector(P::read::<W>(cpu, memory, op)?.zero_extend() as u16);
    if selector.is_null() {
        return Err(cpu.general_protection(0));
    }
    let available = [system::TSS32_AVAILABLE, system::TSS16_AVAILABLE];
    let available = if cpu.is_in_long_mode() { &available[..1] } else { &available };
    let (descriptor, task) = global_descriptor(cpu, memory, selector, available)?;
    let busy = Descriptor(descriptor.0 | 2 << 40);
    if let Some(address) = cpu.descriptor_address(selector) {
        cpu.write_system(memory, address + 5, (busy.0 >> 40) as u8)?;
    }
    cpu.tr = Segment::new(selector.0, task.base, task.limit, busy.attributes());
    Ok(())
}

/// Returns a present system descriptor of one of `kinds` in the GDT, and the segment that it describes. In long
/// mode it has 16 bytes, with a base address of 64 bits.
fn global_descriptor(
    cpu: &mut Cpu,
    memory: &mut Memory,
    selector: Selector,
    kinds: &[u8],
) -> Result<(Descriptor, Segment), Stopped> {
    if selector.is_local() {
        return Err(cpu.general_protection(selector.error_code()));
    }
    let descriptor = cpu.read_descriptor(memory, selector, vector::GP, 0)?;
    let attributes = descriptor.attributes();
    if attributes.is_code_or_data() || !kinds.contains(&attributes.kind()) {
        return Err(cpu.general_protection(selector.error_code()));
    }
    if !attributes.present() {
        return Err(cpu.fault(Fault::with_code(vector::NP, selector.error_code())));
    }
    let mut segment = descriptor.segment(selector.0);
    if cpu.is_in_long_mode() {
        segment.base |= cpu.read_upper_half(memory, selector)? << 32;
        cpu.require_canonical(segment.base)?;
    }
    Ok((descriptor, segment))
}

fn sldt<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_protected_mode(cpu)?;
    require_umip_off_or_cpl0(cpu)?;
    P::write(cpu, memory, op, W::truncate(cpu.ldtr.selector.into()))
}

fn str<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_protected_mode(cpu)?;
    require_umip_off_or_cpl0(cpu)?;
    P::write(cpu, memory, op, W::truncate(cpu.tr.selector.into()))
}

// Examining selectors ---------------------------------------------------

/// Returns the descriptor of a selector that LAR, LSL, VERR or VERW examines, if the running code may see it.
/// A null selector, or one outside the table, causes no fault here.
fn visible_descriptor(
    cpu: &mut Cpu,
    memory: &mut Memory,
    selector: Selector,
) -> Result<Option<Descriptor>, Stopped> {
    if selector.is_null() || cpu.descriptor_address(selector).is_none() {
        return Ok(None);
    }
    let descriptor = cpu.read_descriptor(memory, selector, vector::GP, 0)?;
    let attributes = descriptor.attributes();
    let visible = attributes.is_conforming()
        || attributes.dpl() >= cpu.cpl() && attributes.dpl() >= selector.rpl();
    Ok(visible.then_some(descriptor))
}

/// Sets ZF to the result of examining a selector.
fn set_found(cpu: &mut Cpu, found: bool) {
    cpu.status = cpu.status.with_zero(found);
}

fn selector_operand<P: Place>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Result<Selector, Stopped> {
    require_protected_mode(cpu)?;
    P::read::<u16>(cpu, memory, op).map(Selector)
}

fn verr<P: Place>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    verify::<P>(cpu, memory, op, Attributes::is_readable)
}

fn verw<P: Place>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    verify::<P>(cpu, memory, op, Attributes::is_writable)
}

fn verify<P: Place>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    test: fn(Attributes) -> bool,
) -> Done {
    let selector = selector_operand::<P>(cpu, memory, op)?;
    let descriptor = visible_descriptor(cpu, memory, selector)?;
    set_found(cpu, descriptor.is_some_and(|descriptor| test(descriptor.attributes())));
    Ok(())
}

/// The types of system descriptors that LAR accepts (SDM vol. 2, LAR), and those that LSL accepts.
const LAR_KINDS: u16 = 1 << system::TSS16_AVAILABLE
    | 1 << system::LDT
    | 1 << system::TSS16_BUSY
    | 1 << system::CALL_GATE16
    | 1 << system::TASK_GATE
    | 1 << system::TSS32_AVAILABLE
    | 1 << system::TSS32_BUSY
    | 1 << system::CALL_GATE32;
const LSL_KINDS: u16 = 1 << system::TSS16_AVAILABLE
    | 1 << system::LDT
    | 1 << system::TSS16_BUSY
    | 1 << system::TSS32_AVAILABLE
    | 1 << system::TSS32_BUSY;

/// The types that exist in long mode.
const LONG_KINDS: u16 = 1 << system::LDT
    | 1 << system::TSS32_AVAILABLE
    | 1 << system::TSS32_BUSY
    | 1 << system::CALL_GATE32;

/// Performs LAR. Bits 19 to 16 of its result are undefined (SDM vol. 2, LAR); AMD documents them as those of
/// the descriptor.
fn lar<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let kinds = if cpu.is_in_long_mode() { LAR_KINDS & LONG_KINDS } else { LAR_KINDS };
    look::<P, W>(cpu, memory, op, kinds, |descriptor| descriptor.0 >> 32 & 0x00ff_ff00)
}

fn lsl<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    let kinds = if cpu.is_in_long_mode() { LSL_KINDS & LONG_KINDS } else { LSL_KINDS };
    look::<P, W>(cpu, memory, op, kinds, |descriptor| descriptor.limit().into())
}

fn look<P: Place, W: Word>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
    kinds: u16,
    what: fn(Descriptor) -> u64,
) -> Done {
    let selector = selector_operand::<P>(cpu, memory, op)?;
    let descriptor = visible_descriptor(cpu, memory, selector)?.filter(|descriptor| {
        let attributes = descriptor.attributes();
        attributes.is_code_or_data() || kinds >> attributes.kind() & 1 != 0
    });
    if let Some(descriptor) = descriptor {
        cpu.set(op.reg, W::truncate(what(descriptor)));
    }
    set_found(cpu, descriptor.is_some());
    Ok(())
}

/// Performs ARPL, which raises the RPL of a selector to that of another one. If it is already as high,
/// nothing is written.
fn arpl<P: Place>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_protected_mode(cpu)?;
    let floor = cpu.get::<u16>(op.reg) & 3;
    let selector = P::read::<u16>(cpu, memory, op)?;
    let raised = selector & 3 < floor;
    if raised {
        P::write(cpu, memory, op, selector & !3 | floor)?;
    }
    cpu.status = cpu.status.with_zero(raised);
    Ok(())
}

// Fast system calls -----------------------------------------------------

impl Cpu {
    /// Returns whether SYSENTER does not raise #GP, nor does SYSEXIT at privilege 0 (SDM vol. 2).
    pub fn has_fast_calls(&self) -> bool {
        self.cr0.contains(Cr0::PE) && self.msrs.sysenter_cs & !3 & 0xffff != 0
    }

    /// Returns the selectors of CS and SS after SYSEXIT to 32-bit code (`is_user`) or after SYSENTER.
    pub fn fast_call_selectors(&self, is_user: bool) -> (u16, u16) {
        let first = self.msrs.sysenter_cs as u16 & !3;
        if is_user {
            (first.wrapping_add(16) | 3, first.wrapping_add(24) | 3)
        } else {
            (first, first.wrapping_add(8))
        }
    }

    /// Performs SYSENTER, if [`Cpu::has_fast_calls`] is true.
    pub fn sysenter(&mut self) {
        let (code, stack) = self.fast_call_selectors(false);
        self.change_eflags(Eflags::empty(), Eflags::VM | Eflags::IF | Eflags::RF);
        let flat = if self.is_in_long_mode() { FlatCode::Bits64 } else { FlatCode::Bits32 };
        self.set_code_segment(flat.segment(code, 0), 0);
        self.set_segment(sreg::SS, flat_stack(stack, 0));
        let bits = if flat == FlatCode::Bits64 { u64::MAX } else { 0xffff_ffff };
        self.set_gpr(reg::SP, self.msrs.sysenter_esp & bits);
        self.ip = self.msrs.sysenter_eip & bits;
    }

    /// Performs SYSEXIT to 32-bit code at privilege 0, if [`Cpu::has_fast_calls`] is true.
    pub fn sysexit(&mut self) {
        let (code, stack) = self.fast_call_selectors(true);
        let (pointer, ip) = (self.get::<u32>(reg::CX), self.get::<u32>(reg::DX));
        self.set_code_segment(FlatCode::Bits32.segment(code, 3), 3);
        self.set_segment(sreg::SS, flat_stack(stack, 3));
        self.set(reg::SP, pointer);
        self.ip = ip.into();
    }

    /// Performs SYSEXIT to 64-bit code, under the same conditions. Raises #GP(0) for a stack pointer or target
    /// that is not canonical.
    fn sysexit_to_64_bit(&mut self) -> Done {
        let (pointer, ip) = (self.gpr(reg::CX), self.gpr(reg::DX));
        self.require_canonical(pointer)?;
        self.require_canonical(ip)?;
        let first = self.msrs.sysenter_cs as u16 & !3;
        self.set_code_segment(FlatCode::Bits64.segment(first.wrapping_add(32) | 3, 3), 3);
        self.set_segment(sreg::SS, flat_stack(first.wrapping_add(40) | 3, 3));
        self.set_gpr(reg::SP, pointer);
        self.ip = ip;
        Ok(())
    }
}

fn sysenter(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    if !cpu.has_fast_calls() {
        return Err(cpu.general_protection(0));
    }
    let caller = cpu.begin_system_call(Gate::FastCall)?;
    cpu.sysenter();
    cpu.end_system_call(memory, caller);
    Ok(())
}

fn sysexit<W: Word>(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    if !cpu.has_fast_calls() {
        return Err(cpu.general_protection(0));
    }
    cpu.require_cpl0()?;
    let is_awaited = cpu.begin_system_return()?;
    if W::BITS == 64 {
        cpu.sysexit_to_64_bit()?;
    } else {
        cpu.sysexit();
    }
    cpu.end_system_return(memory, is_awaited);
    Ok(())
}
