//! System instructions (SDM vol. 3, 2.8): control and debug registers, descriptor tables, MSRs, time, CPUID,
//! HLT, SYSENTER and SYSEXIT, and the instructions that examine selectors.

use iced_x86::{Code, CpuidFeature};
use ring3_core::memory::Memory;

use crate::cpu::{Cpu, Cr0, Cr4, reg};
use crate::cpuid::{ABOUT_LONG_MODE, Features, Model};
use crate::decode::Op;
use crate::engine::Exit;
use crate::exception::{Fault, Stop, Stopped, vector};
use crate::exec::{Done, Mem, Place, Reg};
use crate::flags::Eflags;
use crate::guest_tools;
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
    plain!(rows, [Mov_r32_cr], read_control);
    plain!(rows, [Mov_cr_r32], write_control);
    plain!(rows, [Mov_r32_dr], read_debug);
    plain!(rows, [Mov_dr_r32], write_debug);
    plain!(rows, [Clts], clts);
    rm!(rows, u16, [Lmsw_rm16 Lmsw_r32m16], lmsw);
    rm!(rows, u16, [Smsw_rm16], smsw);
    rows.add(Code::Smsw_r32m16, exec!(smsw::<Mem, u16>), exec!(smsw::<Reg, u32>));
    plain!(rows, [Invlpg_m], invlpg);
    plain!(rows, [Wbinvd Invd], flush_caches);
    plain!(rows, [Lgdt_m1632_16], lgdt::<true>);
    plain!(rows, [Lgdt_m1632], lgdt::<false>);
    plain!(rows, [Lidt_m1632_16], lidt::<true>);
    plain!(rows, [Lidt_m1632], lidt::<false>);
    plain!(rows, [Sgdt_m1632_16 Sgdt_m1632], sgdt);
    plain!(rows, [Sidt_m1632_16 Sidt_m1632], sidt);
    rm!(rows, u16, [Lldt_rm16 Lldt_r32m16], lldt);
    rm!(rows, u16, [Ltr_rm16 Ltr_r32m16], ltr);
    rm!(rows, u16, [Sldt_rm16], sldt);
    rows.add(Code::Sldt_r32m16, exec!(sldt::<Mem, u16>), exec!(sldt::<Reg, u32>));
    rm!(rows, u16, [Str_rm16], str);
    rows.add(Code::Str_r32m16, exec!(str::<Mem, u16>), exec!(str::<Reg, u32>));
    for code in [Code::Verr_rm16, Code::Verr_r32m16] {
        rows.add(code, exec!(verr::<Mem>), exec!(verr::<Reg>));
    }
    for code in [Code::Verw_rm16, Code::Verw_r32m16] {
        rows.add(code, exec!(verw::<Mem>), exec!(verw::<Reg>));
    }
    rm_wide!(rows, [Lar_r16_rm16 Lar_r32_r32m16], lar);
    rm_wide!(rows, [Lsl_r16_rm16 Lsl_r32_r32m16], lsl);
    for code in [Code::Arpl_rm16_r16, Code::Arpl_r32m16_r32] {
        rows.add(code, exec!(arpl::<Mem>), exec!(arpl::<Reg>));
    }
    plain!(rows, [Sysenter], sysenter);
    plain!(rows, [Sysexitd], sysexit);
    ending!(rows, [Hlt Mov_cr_r32 Mov_dr_r32 Clts Lmsw_rm16 Lmsw_r32m16 Invlpg_m Wbinvd Invd]);
    ending!(rows, [Sysenter Sysexitd]);
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
    if cpu.model.has_sub_leaf(cpu.get(reg::AX)) && cpu.get::<u32>(reg::CX) != 0 {
        leaf = [0; 4];
    }
    for (register, value) in [reg::AX, reg::BX, reg::CX, reg::DX].into_iter().zip(leaf) {
        cpu.set(register, value);
    }
    Ok(())
}

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

fn read_control(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    let value = match op.reg {
        0 => cpu.cr0.bits(),
        2 => cpu.cr2 as u32,
        3 => cpu.cr3 as u32,
        4 if cpu.model.has_cr4() => cpu.cr4.bits(),
        _ => return Err(cpu.undefined_opcode()),
    };
    cpu.set(op.rm, value);
    Ok(())
}

fn write_control(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    let value = cpu.get::<u32>(op.rm);
    match op.reg {
        0 => {
            // Reserved bits are ignored, as on all 32-bit processors.
            let new = Cr0::from_bits_truncate(value);
            if new.contains(Cr0::PG) && !new.contains(Cr0::PE)
                || new.contains(Cr0::NW) && !new.contains(Cr0::CD)
            {
                return Err(cpu.general_protection(0));
            }
            // SDM vol. 3, 5.4.1.
            if (new ^ cpu.cr0).intersects(Cr0::PG | Cr0::CD | Cr0::NW) {
                cpu.load_pdptes(memory, new, cpu.cr3, cpu.cr4)?;
            }
            cpu.set_cr0(new);
        }
        2 => cpu.cr2 = value.into(),
        3 => cpu.load_cr3(memory, value.into())?,
        4 if cpu.model.has_cr4() => {
            let supported = supported_cr4(cpu.model);
            let Some(new) = Cr4::from_bits(value).filter(|new| supported.contains(*new)) else {
                return Err(cpu.general_protection(0));
            };
            if (new ^ cpu.cr4).intersects(Cr4::PAE | Cr4::PGE | Cr4::PSE) {
                cpu.load_pdptes(memory, cpu.cr0, cpu.cr3, new)?;
            }
            cpu.set_cr4(new);
        }
        _ => return Err(cpu.undefined_opcode()),
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

fn read_debug(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    let value = cpu.read_debug_register(op.reg)?;
    cpu.set(op.rm, value);
    Ok(())
}

fn write_debug(cpu: &mut Cpu, _: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    cpu.write_debug_register(op.reg, cpu.get(op.rm))
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
    let linear = cpu.segment(op.segment).base.wrapping_add(op.effective_address(cpu));
    cpu.invalidate_page(linear & 0xffff_ffff);
    Ok(())
}

/// Performs INVD and WBINVD. There are no caches to write back or to invalidate.
fn flush_caches(cpu: &mut Cpu, _: &mut Memory, _: &Op) -> Done {
    cpu.require_cpl0()
}

// Descriptor tables -----------------------------------------------------

/// Reads a pseudo-descriptor in memory: limit and base. With a 16-bit operand size the base has 24 bits (SDM
/// vol. 2, LGDT).
fn read_table<const IS_16_BIT: bool>(
    cpu: &mut Cpu,
    memory: &mut Memory,
    op: &Op,
) -> Result<TableRegister, Stopped> {
    let limit = Mem::read::<u16>(cpu, memory, op)?;
    let behind = op.displaced(2);
    let base = Mem::read::<u32>(cpu, memory, &behind)?;
    let base = if IS_16_BIT { base & 0xff_ffff } else { base };
    Ok(TableRegister { base: base.into(), limit })
}

/// Performs SGDT and SIDT, which store all 32 bits of the base at any operand size.
fn write_table(cpu: &mut Cpu, memory: &mut Memory, op: &Op, table: TableRegister) -> Done {
    let behind = op.displaced(2);
    Mem::write(cpu, memory, op, table.limit)?;
    Mem::write(cpu, memory, &behind, table.base as u32)
}

fn lgdt<const IS_16_BIT: bool>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    cpu.gdtr = read_table::<IS_16_BIT>(cpu, memory, op)?;
    Ok(())
}

fn lidt<const IS_16_BIT: bool>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    cpu.require_cpl0()?;
    cpu.idtr = read_table::<IS_16_BIT>(cpu, memory, op)?;
    Ok(())
}

fn sgdt(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_umip_off_or_cpl0(cpu)?;
    write_table(cpu, memory, op, cpu.gdtr)
}

fn sidt(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_umip_off_or_cpl0(cpu)?;
    write_table(cpu, memory, op, cpu.idtr)
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
    let descriptor = global_descriptor(cpu, memory, selector, &[system::LDT])?;
    cpu.ldtr = descriptor.segment(selector.0);
    Ok(())
}

fn ltr<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    require_protected_mode(cpu)?;
    cpu.require_cpl0()?;
    let selector = Selector(P::read::<W>(cpu, memory, op)?.zero_extend() as u16);
    if selector.is_null() {
        return Err(cpu.general_protection(0));
    }
    let available = [system::TSS16_AVAILABLE, system::TSS32_AVAILABLE];
    let descriptor = global_descriptor(cpu, memory, selector, &available)?;
    let busy = Descriptor(descriptor.0 | 2 << 40);
    if let Some(address) = cpu.descriptor_address(selector) {
        cpu.write_system(memory, address + 5, (busy.0 >> 40) as u8)?;
    }
    cpu.tr = busy.segment(selector.0);
    Ok(())
}

/// Returns a present system descriptor of one of `kinds` in the GDT.
fn global_descriptor(
    cpu: &mut Cpu,
    memory: &mut Memory,
    selector: Selector,
    kinds: &[u8],
) -> Result<Descriptor, Stopped> {
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
    Ok(descriptor)
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

/// Performs LAR. Bits 19 to 16 of its result are undefined (SDM vol. 2, LAR); AMD documents them as those of
/// the descriptor.
fn lar<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    look::<P, W>(cpu, memory, op, LAR_KINDS, |descriptor| descriptor.0 >> 32 & 0x00ff_ff00)
}

fn lsl<P: Place, W: Word>(cpu: &mut Cpu, memory: &mut Memory, op: &Op) -> Done {
    look::<P, W>(cpu, memory, op, LSL_KINDS, |descriptor| descriptor.limit().into())
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

/// Makes a flat segment at privilege level `cpl`.
fn flat(selector: u16, kind: u16, cpl: u8) -> Segment {
    Segment::new(selector, 0, u32::MAX, Attributes(0xc090 | kind | u16::from(cpl) << 5))
}

const CODE: u16 = 0xb;
const DATA: u16 = 0x3;

impl Cpu {
    /// Returns whether SYSENTER does not raise #GP, nor does SYSEXIT at privilege 0 (SDM vol. 2).
    pub fn has_fast_calls(&self) -> bool {
        self.cr0.contains(Cr0::PE) && self.msrs.sysenter_cs & !3 & 0xffff != 0
    }

    /// Returns the selectors of CS and SS after SYSEXIT (`is_user`) or after SYSENTER.
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
        self.set_code_segment(flat(code, CODE, 0), 0);
        self.set_segment(sreg::SS, flat(stack, DATA, 0));
        self.set(reg::SP, self.msrs.sysenter_esp);
        self.ip = self.msrs.sysenter_eip.into();
    }

    /// Performs SYSEXIT at privilege 0, if [`Cpu::has_fast_calls`] is true.
    pub fn sysexit(&mut self) {
        let (code, stack) = self.fast_call_selectors(true);
        self.set_code_segment(flat(code, CODE, 3), 3);
        self.set_segment(sreg::SS, flat(stack, DATA, 3));
        self.set(reg::SP, self.get::<u32>(reg::CX));
        self.ip = self.get::<u32>(reg::DX).into();
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

fn sysexit(cpu: &mut Cpu, memory: &mut Memory, _: &Op) -> Done {
    if !cpu.has_fast_calls() {
        return Err(cpu.general_protection(0));
    }
    cpu.require_cpl0()?;
    let is_awaited = cpu.begin_system_return()?;
    cpu.sysexit();
    cpu.end_system_return(memory, is_awaited);
    Ok(())
}
