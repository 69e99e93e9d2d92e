//! Hardware task switches (SDM vol. 3, chapter 9).
//!
//! Until the old task is saved, a task switch is part of the instruction or event that causes it, and leaves
//! the state as it was if anything fails. After that the new task runs, and a fault in loading its segments
//! is an exception of the new task ([`Stop::TaskFault`]).

use ring3_core::memory::Memory;

use crate::access::NewStack;
use crate::cpu::{Attention, Cpu, Cr0, reg};
use crate::exception::{Fault, Stop, Stopped, vector};
use crate::flags::Eflags;
use crate::interrupt::Event;
use crate::paging::{Access, By};
use crate::report::Missing;
use crate::segment::{Attributes, Descriptor, Segment, Selector, sreg, system};

/// The cause of a task switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// JMP: the old task ends.
    Jump,
    /// CALL, an interrupt or an exception: the old task waits for the new one's IRET.
    Call,
    /// IRET: the new task ends, and the task that called it continues.
    Return,
}

/// The offsets of the fields of a TSS (SDM vol. 3, figures 9-2 and 9-10), by its size.
struct Layout {
    /// Size of a register's field in bytes.
    slot: u64,
    /// Offset of EIP, which EFLAGS and the general registers in their order follow.
    ip: u64,
    /// Offset of ES, CS, SS, DS and, with 32 bits, FS and GS.
    segments: u64,
    segment_count: u8,
    ldt: u64,
    /// The smallest limit that it may have.
    limit: u32,
}

const LAYOUT16: Layout =
    Layout { slot: 2, ip: 0x0e, segments: 0x22, segment_count: 4, ldt: 0x2a, limit: 0x2b };
const LAYOUT32: Layout =
    Layout { slot: 4, ip: 0x20, segments: 0x48, segment_count: 6, ldt: 0x60, limit: 0x67 };
/// Offsets of CR3 and the T flag in a 32-bit TSS.
const CR3: u64 = 0x1c;
const TRAP: u64 = 0x64;

/// The bits in the type of a TSS descriptor for a 32-bit TSS, and for a busy one.
const KIND_32_BIT: u8 = 8;
const KIND_BUSY: u8 = 2;
/// The busy flag in a descriptor.
const BUSY: u64 = (KIND_BUSY as u64) << 40;

/// The contents of a TSS.
struct Task {
    ip: u32,
    flags: u32,
    registers: [u32; 8],
    /// The selectors in the order of the segment registers.
    selectors: [u16; 6],
    ldt: u16,
    /// CR3, of a 32-bit TSS.
    cr3: Option<u32>,
    trap: bool,
}

impl Layout {
    fn of(kind: u8) -> &'static Layout {
        if kind & KIND_32_BIT != 0 { &LAYOUT32 } else { &LAYOUT16 }
    }
}

impl Cpu {
    /// Performs JMP or CALL to the TSS or task gate `selector`, whose privilege was checked.
    pub(crate) fn far_task_switch(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
        cause: Cause,
    ) -> Result<(), Stopped> {
        let descriptor = self.read_descriptor(memory, selector, vector::GP, 0)?;
        if descriptor.attributes().kind() == system::TASK_GATE {
            return self.switch_through_gate(memory, descriptor, cause, 0);
        }
        self.switch_to(memory, selector, cause, vector::GP, 0)
    }

    /// Switches to the TSS that a task gate refers to. `external` is the EXT bit of error codes.
    pub(crate) fn switch_through_gate(
        &mut self,
        memory: &mut Memory,
        gate: Descriptor,
        cause: Cause,
        external: u32,
    ) -> Result<(), Stopped> {
        let selector = Selector((gate.0 >> 16) as u16);
        self.switch_to(memory, selector, cause, vector::GP, external)
    }

    /// Delivers an interrupt or exception through a task gate in the IDT. The error code goes to the new
    /// task's stack (SDM vol. 3, 7.12.2).
    pub(crate) fn deliver_to_task(
        &mut self,
        memory: &mut Memory,
        gate: Descriptor,
        event: Event,
        external: u32,
    ) -> Result<(), Stopped> {
        self.switch_through_gate(memory, gate, Cause::Call, external)?;
        if let Some(error_code) = event.error_code {
            let size = if self.tr.attributes.kind() & KIND_32_BIT != 0 { 4 } else { 2 };
            let mut stack = NewStack::current(self, external);
            let pushed = stack.push(self, memory, error_code.into(), size);
            pushed.map_err(|_| self.fault_in_new_task())?;
            stack.commit(self);
        }
        Ok(())
    }

    /// Performs IRET with NT set, which returns to the task in the link field of the TSS.
    pub(crate) fn return_to_task(&mut self, memory: &mut Memory) -> Result<(), Stopped> {
        let link = Selector(self.read_system(memory, self.tr.base)?);
        self.switch_to(memory, link, Cause::Return, vector::TS, 0)
    }

    /// Switches to the task whose TSS `selector` refers to. An unusable selector raises exception `invalid`.
    fn switch_to(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
        cause: Cause,
        invalid: u8,
        external: u32,
    ) -> Result<(), Stopped> {
        // A task switch ends its block, so no decoded instruction follows it.
        self.guard_code = false;
        let code = selector.error_code() | external;
        if selector.is_null() || selector.is_local() {
            return Err(self.fault(Fault::with_code(invalid, code)));
        }
        let descriptor = self.read_descriptor(memory, selector, invalid, external)?;
        let attributes = descriptor.attributes();
        let kind = attributes.kind();
        let busy = cause == Cause::Return;
        let is_tss = matches!(kind & !(KIND_BUSY | KIND_32_BIT), system::TSS16_AVAILABLE);
        if attributes.is_code_or_data() || !is_tss || (kind & KIND_BUSY != 0) != busy {
            return Err(self.fault(Fault::with_code(invalid, code)));
        }
        if !attributes.present() {
            return Err(self.fault(Fault::with_code(vector::NP, code)));
        }
        if descriptor.limit() < Layout::of(kind).limit {
            return Err(self.fault(Fault::with_code(vector::TS, code)));
        }
        let old_layout = Layout::of(self.tr.attributes.kind());
        if self.tr.limit < old_layout.limit {
            let code = Selector(self.tr.selector).error_code() | external;
            return Err(self.fault(Fault::with_code(vector::TS, code)));
        }

        let task = self.read_task(memory, descriptor)?;
        self.check_switch(memory, selector, descriptor, cause)?;
        self.save_task(memory, old_layout, cause)?;
        if cause != Cause::Call {
            self.change_busy(memory, Selector(self.tr.selector), false)?;
        }
        if cause == Cause::Call {
            self.write_system(memory, descriptor.base(), self.tr.selector)?;
        }
        if cause != Cause::Return {
            self.change_busy(memory, selector, true)?;
        }
        self.tr = Descriptor(descriptor.0 | BUSY).segment(selector.0);
        self.load_task(memory, &task, cause, external).map_err(|_| self.fault_in_new_task())
    }

    /// Makes an exception that was raised after the switch one of the new task.
    pub(crate) fn fault_in_new_task(&mut self) -> Stopped {
        if let Stop::Fault(fault) | Stop::TaskFault(fault) = self.stop {
            return self.stop_for(Stop::TaskFault(fault));
        }
        self.missing(Missing("a task whose descriptors or stack are a device's memory"))
    }

    /// Reads a TSS.
    fn read_task(&mut self, memory: &mut Memory, tss: Descriptor) -> Result<Task, Stopped> {
        let kind = tss.attributes().kind();
        let layout = Layout::of(kind);
        let base = tss.base();
        let is_32_bit = kind & KIND_32_BIT != 0;
        let mut slots = [0; 10];
        for (offset, slot) in (layout.ip..).step_by(layout.slot as usize).zip(&mut slots) {
            *slot = if is_32_bit {
                self.read_system(memory, base.wrapping_add(offset))?
            } else {
                self.read_system::<u16>(memory, base.wrapping_add(offset))?.into()
            };
        }
        let mut selectors = [0; 6];
        for register in 0..layout.segment_count {
            let offset = layout.segments + u64::from(register) * layout.slot;
            selectors[usize::from(register)] =
                self.read_system(memory, base.wrapping_add(offset))?;
        }
        let ldt = self.read_system(memory, base.wrapping_add(layout.ldt))?;
        let (mut cr3, mut trap) = (None, false);
        if is_32_bit {
            cr3 = Some(self.read_system(memory, base.wrapping_add(CR3))?);
            trap = self.read_system::<u8>(memory, base.wrapping_add(TRAP))? & 1 != 0;
        }
        let [ip, flags, registers @ ..] = slots;
        // The upper halves of registers are undefined in a 16-bit task; processors set them.
        let registers = registers.map(|value| if is_32_bit { value } else { value | 0xffff_0000 });
        Ok(Task { ip, flags, registers, selectors, ldt, cr3, trap })
    }

    /// Checks that everything that the switch writes can be written, so that it does not fail from here on.
    fn check_switch(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
        descriptor: Descriptor,
        cause: Cause,
    ) -> Result<(), Stopped> {
        let old = self.tr.base;
        let last = Layout::of(self.tr.attributes.kind()).limit;
        self.check_system_writable(memory, old)?;
        self.check_system_writable(memory, old.wrapping_add(last.into()))?;
        if cause == Cause::Call {
            self.check_system_writable(memory, descriptor.base())?;
            self.check_system_writable(memory, descriptor.base().wrapping_add(1))?;
        }
        for selector in [selector, Selector(self.tr.selector)] {
            if let Some(address) = self.descriptor_address(selector) {
                self.check_system_writable(memory, address + 5)?;
            }
        }
        Ok(())
    }

    fn check_system_writable(&mut self, memory: &mut Memory, linear: u64) -> Result<(), Stopped> {
        let linear = self.table_linear(linear);
        self.translate(memory, linear, Access::Write, By::Processor).map(|_| ())
    }

    /// Saves the running task in its TSS: general registers, selectors, EFLAGS and EIP.
    fn save_task(
        &mut self,
        memory: &mut Memory,
        layout: &Layout,
        cause: Cause,
    ) -> Result<(), Stopped> {
        let base = self.tr.base;
        let mut flags = self.eflags_image();
        if cause == Cause::Return {
            flags &= !Eflags::NT.bits();
        }
        let mut slots = [self.ip as u32, flags, 0, 0, 0, 0, 0, 0, 0, 0];
        for (register, slot) in (reg::AX..=reg::DI).zip(&mut slots[2..]) {
            *slot = self.get(register);
        }
        for (offset, slot) in (layout.ip..).step_by(layout.slot as usize).zip(slots) {
            let address = base.wrapping_add(offset);
            if layout.slot == 4 {
                self.write_system(memory, address, slot)?;
            } else {
                self.write_system(memory, address, slot as u16)?;
            }
        }
        for register in 0..layout.segment_count {
            let offset = layout.segments + u64::from(register) * layout.slot;
            let selector = self.segment(register).selector;
            self.write_system(memory, base.wrapping_add(offset), selector)?;
        }
        Ok(())
    }

    /// Sets or clears the busy flag of a TSS descriptor.
    fn change_busy(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
        busy: bool,
    ) -> Result<(), Stopped> {
        let Some(address) = self.descriptor_address(selector) else {
            return Ok(());
        };
        let byte: u8 = self.read_system(memory, address + 5)?;
        let byte = if busy { byte | KIND_BUSY } else { byte & !KIND_BUSY };
        self.write_system(memory, address + 5, byte)
    }

    /// Makes `task` the running one. It loads the selectors first and then their descriptors, in the order of
    /// SDM vol. 3, table 9-1.
    fn load_task(
        &mut self,
        memory: &mut Memory,
        task: &Task,
        cause: Cause,
        external: u32,
    ) -> Result<(), Stopped> {
        self.cr0.insert(Cr0::TS);
        if let Some(cr3) = task.cr3
            && self.cr0.contains(Cr0::PG)
        {
            self.load_cr3(memory, cr3.into())?;
        }
        self.ip = task.ip.into();
        for (register, value) in (reg::AX..=reg::DI).zip(task.registers) {
            self.set(register, value);
        }
        self.set_eflags(Eflags::from_bits_truncate(task.flags));
        if cause == Cause::Call {
            self.change_eflags(Eflags::NT, Eflags::NT);
        }
        // Local breakpoints belong to the old task (SDM vol. 3, 19.2.4).
        self.disable_local_breakpoints();
        if task.trap {
            self.note_debug_conditions(crate::debug::TASK_SWITCH);
        }
        self.attention -= Attention::SHADOW | Attention::SS_LOADED;

        if self.has_flag(Eflags::VM) {
            for (register, selector) in (0..).zip(task.selectors) {
                self.set_segment(register, Segment::real(selector, 3));
            }
            self.load_task_ldt(memory, task.ldt, external)?;
            return self.check_entry_point();
        }
        let cpl = task.selectors[usize::from(sreg::CS)] & 3;
        for (register, selector) in (0..).zip(task.selectors) {
            // The segment is still unusable, but the privilege is already the new one.
            self.set_segment(register, Segment::new(selector, 0, 0, Attributes(cpl << 5)));
        }
        self.load_task_ldt(memory, task.ldt, external)?;
        self.load_task_code(memory, task, external)?;
        for register in [sreg::DS, sreg::ES, sreg::FS, sreg::GS] {
            let selector = Selector(task.selectors[usize::from(register)]);
            self.load_task_data(memory, register, selector, external)?;
        }
        self.check_entry_point()
    }

    fn load_task_ldt(
        &mut self,
        memory: &mut Memory,
        selector: u16,
        external: u32,
    ) -> Result<(), Stopped> {
        self.ldtr = Segment::null(selector);
        let selector = Selector(selector);
        if selector.is_null() {
            return Ok(());
        }
        let code = selector.error_code() | external;
        if selector.is_local() {
            return Err(self.fault(Fault::with_code(vector::TS, code)));
        }
        let descriptor = self.read_descriptor(memory, selector, vector::TS, external)?;
        let attributes = descriptor.attributes();
        let is_ldt = !attributes.is_code_or_data() && attributes.kind() == system::LDT;
        if !is_ldt || !attributes.present() {
            return Err(self.fault(Fault::with_code(vector::TS, code)));
        }
        self.ldtr = descriptor.segment(selector.0);
        Ok(())
    }

    /// Loads the code and the stack segment, whose checks depend on each other.
    fn load_task_code(
        &mut self,
        memory: &mut Memory,
        task: &Task,
        external: u32,
    ) -> Result<(), Stopped> {
        let selector = Selector(task.selectors[usize::from(sreg::CS)]);
        let cpl = selector.rpl();
        let code = selector.error_code() | external;
        let descriptor = self.task_descriptor(memory, selector, external)?;
        let attributes = descriptor.attributes();
        let allowed = attributes.is_code()
            && if attributes.is_conforming() {
                attributes.dpl() <= cpl
            } else {
                attributes.dpl() == cpl
            };
        if !allowed {
            return Err(self.fault(Fault::with_code(vector::TS, code)));
        }

        let stack = Selector(task.selectors[usize::from(sreg::SS)]);
        let stack_code = stack.error_code() | external;
        let stack_descriptor = self.task_descriptor(memory, stack, external)?;
        let stack_attributes = stack_descriptor.attributes();
        if !stack_attributes.is_writable() {
            return Err(self.fault(Fault::with_code(vector::TS, stack_code)));
        }
        if !stack_attributes.present() {
            return Err(self.fault(Fault::with_code(vector::SS, stack_code)));
        }
        if stack_attributes.dpl() != cpl || stack.rpl() != cpl {
            return Err(self.fault(Fault::with_code(vector::TS, stack_code)));
        }
        if !attributes.present() {
            return Err(self.fault(Fault::with_code(vector::NP, code)));
        }
        let stack_descriptor = self.mark_accessed(memory, stack, stack_descriptor)?;
        self.set_segment(sreg::SS, stack_descriptor.segment(stack.0));
        let descriptor = self.mark_accessed(memory, selector, descriptor)?;
        self.set_code_segment(descriptor.segment(selector.0), cpl);
        Ok(())
    }

    fn load_task_data(
        &mut self,
        memory: &mut Memory,
        register: u8,
        selector: Selector,
        external: u32,
    ) -> Result<(), Stopped> {
        if selector.is_null() {
            self.set_segment(register, Segment::null(selector.0));
            return Ok(());
        }
        let code = selector.error_code() | external;
        let descriptor = self.task_descriptor(memory, selector, external)?;
        let attributes = descriptor.attributes();
        let allowed = attributes.is_readable()
            && (attributes.is_conforming()
                || attributes.dpl() >= self.cpl() && attributes.dpl() >= selector.rpl());
        if !allowed {
            return Err(self.fault(Fault::with_code(vector::TS, code)));
        }
        if !attributes.present() {
            return Err(self.fault(Fault::with_code(vector::NP, code)));
        }
        let descriptor = self.mark_accessed(memory, selector, descriptor)?;
        self.set_segment(register, descriptor.segment(selector.0));
        Ok(())
    }

    /// Returns the descriptor of a segment of the new task. A null selector raises #TS, too.
    fn task_descriptor(
        &mut self,
        memory: &mut Memory,
        selector: Selector,
        external: u32,
    ) -> Result<Descriptor, Stopped> {
        if selector.is_null() {
            let code = selector.error_code() | external;
            return Err(self.fault(Fault::with_code(vector::TS, code)));
        }
        self.read_descriptor(memory, selector, vector::TS, external)
    }

    fn check_entry_point(&mut self) -> Result<(), Stopped> {
        if self.ip > u64::from(self.segment(sreg::CS).limit) {
            return Err(self.general_protection(0));
        }
        Ok(())
    }
}
