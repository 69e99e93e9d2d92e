//! Memory accesses: through segmentation, paging and the TLB to memory, or to a device, which leaves the
//! engine.

use ring3_core::memory::{Memory, Target};

use crate::cpu::{Cpu, Cr4, reg, width_of};
use crate::engine::Exit;
use crate::exception::{Fault, Stop, Stopped, vector};
use crate::paging::{Access, By};
use crate::segment::{Segment, sreg};
use crate::tlb::Space;
use crate::word::Word;

impl Cpu {
    /// The linear address of `size` bytes at `offset` of segment `register` for reading.
    #[inline(always)]
    pub(crate) fn linear_for_read(
        &mut self,
        register: u8,
        offset: u64,
        size: usize,
    ) -> Result<u64, Stopped> {
        let view = self.view(register);
        let linear = self.linear(view, offset);
        if view.reads_freely { Ok(linear) } else { self.check_read(register, offset, size) }
    }

    /// The linear address of `size` bytes at `offset` of segment `register` for writing.
    #[inline(always)]
    pub(crate) fn linear_for_write(
        &mut self,
        register: u8,
        offset: u64,
        size: usize,
    ) -> Result<u64, Stopped> {
        let view = self.view(register);
        let linear = self.linear(view, offset);
        if view.writes_freely { Ok(linear) } else { self.check_write(register, offset, size) }
    }

    #[inline(never)]
    fn check_read(&mut self, register: u8, offset: u64, size: usize) -> Result<u64, Stopped> {
        let allowed = self.segment(register).attributes.is_readable();
        self.check_limit(register, offset, size, allowed)
    }

    #[inline(never)]
    fn check_write(&mut self, register: u8, offset: u64, size: usize) -> Result<u64, Stopped> {
        let allowed = self.segment(register).attributes.is_writable();
        self.check_limit(register, offset, size, allowed)
    }

    /// Raises #SS(0) for the stack and #GP(0) for other segments if the bytes are beyond the limit, or in
    /// 64-bit mode at addresses that are not canonical (SDM vol. 3, 6.3).
    fn check_limit(
        &mut self,
        register: u8,
        offset: u64,
        size: usize,
        allowed: bool,
    ) -> Result<u64, Stopped> {
        let linear = self.linear(self.view(register), offset);
        let is_inside = if self.is_in_64_bit_mode() {
            are_canonical(linear, size)
        } else {
            let segment = self.segment(register);
            allowed && segment.attributes.present() && segment.contains(offset as u32, size as u32)
        };
        if is_inside {
            return Ok(linear);
        }
        let vector = if register == sreg::SS { vector::SS } else { vector::GP };
        Err(self.fault(Fault::with_code(vector, 0)))
    }

    /// Reads at `offset` of segment `register` with the rights of the running code.
    #[inline(always)]
    pub fn read<W: Word>(
        &mut self,
        memory: &mut Memory,
        register: u8,
        offset: u64,
    ) -> Result<W, Stopped> {
        let linear = self.linear_for_read(register, offset, W::BYTES)?;
        self.read_linear(memory, linear, self.is_user())
    }

    /// Writes at `offset` of segment `register` with the rights of the running code.
    #[inline(always)]
    pub fn write<W: Word>(
        &mut self,
        memory: &mut Memory,
        register: u8,
        offset: u64,
        value: W,
    ) -> Result<(), Stopped> {
        let linear = self.linear_for_write(register, offset, W::BYTES)?;
        self.write_linear(memory, linear, value, self.is_user())
    }

    /// Reads at linear address `linear` with the rights of the running code, if the TLB allows the access
    /// without further checks. Otherwise it does nothing and leaves no reason in [`Cpu::stop`].
    #[inline(always)]
    pub(crate) fn load_at_once<W: Word>(&self, memory: &Memory, linear: u64) -> Result<W, Stopped> {
        let entry = self.tlb.current(linear);
        entry.for_read(linear, W::BYTES).map(|place| W::load(memory, place)).ok_or(Stopped)
    }

    /// Returns the place to write at linear address `linear`, under the same condition as
    /// [`Cpu::load_at_once`].
    #[inline(always)]
    pub(crate) fn place_at_once<W: Word>(&self, linear: u64) -> Result<usize, Stopped> {
        let entry = self.tlb.current(linear);
        entry.for_write(linear, W::BYTES).ok_or(Stopped)
    }

    /// Reads a value at linear address `linear` that will be written back, so that the access needs the
    /// rights of a write.
    #[inline(always)]
    pub(crate) fn read_linear_for_write<W: Word>(
        &mut self,
        memory: &mut Memory,
        linear: u64,
    ) -> Result<W, Stopped> {
        let user = self.is_user();
        let entry = self.tlb.entry(Space::of(user), linear);
        if let Some(place) = entry.for_write(linear, W::BYTES) {
            return Ok(W::load(memory, place));
        }
        self.read_slowly(memory, linear, Access::Write, By::code(user))
    }

    /// Raises #GP(0) if so many bytes, 16 or 32, must be aligned and are not (SDM vol. 1, 4.1.1 and 14.9).
    #[inline(always)]
    fn require_alignment(
        &mut self,
        linear: u64,
        bytes: usize,
        aligned: bool,
    ) -> Result<(), Stopped> {
        let is_aligned = linear.is_multiple_of(bytes as u64);
        if is_aligned || !aligned { Ok(()) } else { Err(self.general_protection(0)) }
    }

    /// Reads 16 bytes at `offset` of segment `register`, which must be aligned if `aligned` is true.
    #[inline(always)]
    pub(crate) fn read_16_bytes(
        &mut self,
        memory: &mut Memory,
        register: u8,
        offset: u64,
        aligned: bool,
    ) -> Result<u128, Stopped> {
        let mut lane = [0];
        self.read_lanes(memory, register, offset, &mut lane, aligned)?;
        Ok(lane[0])
    }

    /// Fills `lanes` with the bytes at `offset` of segment `register`, which must be aligned if `aligned` is true.
    #[inline(always)]
    pub(crate) fn read_lanes(
        &mut self,
        memory: &mut Memory,
        register: u8,
        offset: u64,
        lanes: &mut [u128],
        aligned: bool,
    ) -> Result<(), Stopped> {
        let bytes = size_of_val(lanes);
        let linear = self.linear_for_read(register, offset, bytes)?;
        self.require_alignment(linear, bytes, aligned)?;
        let user = self.is_user();
        for (lane, at) in lanes.iter_mut().zip((0..).step_by(16)) {
            let low: u64 = self.read_linear(memory, self.linear_after(linear, at), user)?;
            let high: u64 = self.read_linear(memory, self.linear_after(linear, at + 8), user)?;
            *lane = u128::from(high) << 64 | u128::from(low);
        }
        Ok(())
    }

    /// Writes 16 bytes at `offset` of segment `register`, which must be aligned if `aligned` is true.
    #[inline(always)]
    pub(crate) fn write_16_bytes(
        &mut self,
        memory: &mut Memory,
        register: u8,
        offset: u64,
        value: u128,
        aligned: bool,
    ) -> Result<(), Stopped> {
        self.write_lanes(memory, register, offset, &[value], aligned)
    }

    /// Writes `lanes` at `offset` of segment `register`, which must be aligned if `aligned` is true. A fault comes before
    /// all writes.
    #[inline(always)]
    pub(crate) fn write_lanes(
        &mut self,
        memory: &mut Memory,
        register: u8,
        offset: u64,
        lanes: &[u128],
        aligned: bool,
    ) -> Result<(), Stopped> {
        let bytes = size_of_val(lanes);
        let linear = self.linear_for_write(register, offset, bytes)?;
        self.require_alignment(linear, bytes, aligned)?;
        if bytes_in_page(linear) < bytes {
            self.check_writable(memory, register, offset, bytes)?;
        }
        let user = self.is_user();
        for (lane, at) in lanes.iter().zip((0..).step_by(16)) {
            let [low, high] = [*lane as u64, (*lane >> 64) as u64];
            self.write_linear(memory, self.linear_after(linear, at), low, user)?;
            self.write_linear(memory, self.linear_after(linear, at + 8), high, user)?;
        }
        Ok(())
    }

    /// Reads at linear address `linear`.
    #[inline(always)]
    pub(crate) fn read_linear<W: Word>(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        user: bool,
    ) -> Result<W, Stopped> {
        self.read_linear_by(memory, linear, By::code(user))
    }

    #[inline(always)]
    fn read_linear_by<W: Word>(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        by: By,
    ) -> Result<W, Stopped> {
        let entry = self.tlb.entry(Space::of(by.is_user()), linear);
        if let Some(place) = entry.for_read(linear, W::BYTES) {
            return Ok(W::load(memory, place));
        }
        self.read_slowly(memory, linear, Access::Read, by)
    }

    /// Writes at linear address `linear`.
    #[inline(always)]
    pub(crate) fn write_linear<W: Word>(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        value: W,
        user: bool,
    ) -> Result<(), Stopped> {
        self.write_linear_by(memory, linear, value, By::code(user))
    }

    #[inline(always)]
    fn write_linear_by<W: Word>(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        value: W,
        by: By,
    ) -> Result<(), Stopped> {
        let entry = self.tlb.entry(Space::of(by.is_user()), linear);
        if let Some(place) = entry.for_write(linear, W::BYTES) {
            value.store(memory, place);
            return Ok(());
        }
        self.write_slowly(memory, linear, value, by)
    }

    /// Checks that `size` bytes at `offset` of segment `register` can be written, without writing them.
    pub(crate) fn check_writable(
        &mut self,
        memory: &mut Memory,
        register: u8,
        offset: u64,
        size: usize,
    ) -> Result<(), Stopped> {
        let linear = self.linear_for_write(register, offset, size)?;
        if self.tlb.current(linear).for_write(linear, size).is_some() {
            return Ok(());
        }
        let by = By::code(self.is_user());
        self.translate_both(memory, linear, size, Access::Write, by).map(|_| ())
    }

    /// Returns the place of `offset` of segment `register`, and how many bytes can be read from there on
    /// without further checks: to the end of the page, which must be in the TLB, or to the limit of the
    /// segment.
    pub(crate) fn plain_source(&self, register: u8, offset: u64) -> Option<(usize, usize)> {
        let (segment, view) = (self.segment(register), self.view(register));
        let linear = self.linear(view, offset);
        let place = self.tlb.current(linear).for_read(linear, 1)?;
        let room = if view.reads_at_once { usize::MAX } else { segment.room(offset) };
        let allowed = view.reads_at_once || segment.attributes.is_readable();
        (allowed && room > 0).then_some((place, room.min(bytes_in_page(linear))))
    }

    /// Returns the same as [`Cpu::plain_source`] where an element of `size` bytes is read next, and brings its page into
    /// the TLB if possible. If that changes CR2 or accessed bits, reading the element does so too.
    pub(crate) fn find_plain_source(
        &mut self,
        memory: &mut Memory,
        register: u8,
        offset: u64,
        size: usize,
    ) -> Option<(usize, usize)> {
        let known = self.plain_source(register, offset);
        if known.is_some() {
            return known;
        }
        let (segment, view) = (self.segment(register), self.view(register));
        let may_be_read = view.reads_at_once
            || segment.attributes.is_readable() && segment.contains(offset as u32, size as u32);
        let linear = self.linear(view, offset);
        let user = self.is_user();
        if !may_be_read || !are_canonical(linear, size) || user && self.checks_alignment {
            return None;
        }
        self.translate(memory, linear, Access::Read, By::code(user)).ok()?;
        self.plain_source(register, offset)
    }

    /// Returns the place of `offset` of segment `register`, and how many bytes can be written from there on
    /// without further checks.
    pub(crate) fn plain_target(&self, register: u8, offset: u64) -> Option<(usize, usize)> {
        let (segment, view) = (self.segment(register), self.view(register));
        let linear = self.linear(view, offset);
        let place = self.tlb.current(linear).for_write(linear, 1)?;
        let room = if view.writes_at_once { usize::MAX } else { segment.room(offset) };
        let allowed = view.writes_at_once || segment.attributes.is_writable();
        (allowed && room > 0).then_some((place, room.min(bytes_in_page(linear))))
    }

    /// Reads a processor structure (descriptor, TSS, interrupt table). This is a supervisor access at any
    /// privilege level (SDM vol. 3, 5.6).
    pub(crate) fn read_system<W: Word>(
        &mut self,
        memory: &mut Memory,
        linear: u64,
    ) -> Result<W, Stopped> {
        let linear = self.table_linear(linear);
        if self.tables_are_kept_from(linear) {
            return self.read_slowly(memory, linear, Access::Read, By::Processor);
        }
        self.read_linear_by(memory, linear, By::Processor)
    }

    /// Returns the linear address that an access to a table uses: in long mode all 64 bits, even if the
    /// running code is 32-bit code.
    #[inline(always)]
    pub(crate) fn table_linear(&self, linear: u64) -> u64 {
        if self.is_in_long_mode() { linear } else { linear & 0xffff_ffff }
    }

    /// Returns whether the TLB entry for supervisor code at `linear` may belong to a user page while CR4.SMAP
    /// is set. Accesses to tables may not reach such a page, whatever EFLAGS.AC is.
    fn tables_are_kept_from(&self, linear: u64) -> bool {
        self.cr4.contains(Cr4::SMAP) && self.tlb.may_be_users(linear)
    }

    /// Writes a processor structure.
    pub(crate) fn write_system<W: Word>(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        value: W,
    ) -> Result<(), Stopped> {
        let linear = self.table_linear(linear);
        if self.tables_are_kept_from(linear) {
            return self.write_slowly(memory, linear, value, By::Processor);
        }
        self.write_linear_by(memory, linear, value, By::Processor)
    }

    #[inline(never)]
    fn read_slowly<W: Word>(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        access: Access,
        by: By,
    ) -> Result<W, Stopped> {
        self.check_alignment::<W>(linear, by.is_user())?;
        self.note_access(linear, W::BYTES, false);
        self.watch_data(linear, W::BYTES, false)?;
        if fits_in_page::<W>(linear) {
            let address = self.translate(memory, linear, access, by)?;
            return self.read_physical(memory, address);
        }
        let (first, second) = self.translate_both(memory, linear, W::BYTES, access, by)?;
        let in_first = bytes_in_page(linear);
        let mut value = 0;
        for index in 0..W::BYTES {
            let address = if index < in_first {
                first + index as u64
            } else {
                second + (index - in_first) as u64
            };
            let byte: u8 = self.read_physical(memory, address)?;
            value |= u64::from(byte) << (8 * index);
        }
        Ok(W::truncate(value))
    }

    #[inline(never)]
    fn write_slowly<W: Word>(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        value: W,
        by: By,
    ) -> Result<(), Stopped> {
        self.check_alignment::<W>(linear, by.is_user())?;
        self.note_access(linear, W::BYTES, true);
        self.watch_data(linear, W::BYTES, true)?;
        if fits_in_page::<W>(linear) {
            let address = self.translate(memory, linear, Access::Write, by)?;
            return self.write_physical(memory, address, value);
        }
        let (first, second) = self.translate_both(memory, linear, W::BYTES, Access::Write, by)?;
        let in_first = bytes_in_page(linear);
        let byte = |index: usize| {
            let address = if index < in_first {
                first + index as u64
            } else {
                second + (index - in_first) as u64
            };
            (address, (value.zero_extend() >> (8 * index)) as u8)
        };
        // Everything that can stop the access comes first: an instruction that has read this memory must read
        // the same value when it starts again.
        let mut places = [None; 8];
        for (index, place) in places.iter_mut().enumerate().take(W::BYTES) {
            let (address, byte) = byte(index);
            *place = self.place_to_write(memory, address, byte)?;
        }
        for (index, place) in places.into_iter().enumerate() {
            if let Some(place) = place {
                byte(index).1.store(memory, place);
            }
        }
        Ok(())
    }

    /// Raises #AC for an access at privilege 3 to an address that is not a multiple of its size, while
    /// alignment is checked (SDM vol. 3, 7.15, "Interrupt 17").
    fn check_alignment<W: Word>(&mut self, linear: u64, user: bool) -> Result<(), Stopped> {
        if self.checks_alignment && user && linear & (W::BYTES as u64 - 1) != 0 {
            return Err(self.fault(Fault::with_code(vector::AC, 0)));
        }
        Ok(())
    }

    /// Translates both pages of an access that crosses a boundary, the first one first, so that nothing is
    /// written when the second one faults.
    fn translate_both(
        &mut self,
        memory: &mut Memory,
        linear: u64,
        size: usize,
        access: Access,
        by: By,
    ) -> Result<(u64, u64), Stopped> {
        let first = self.translate(memory, linear, access, by)?;
        let last = linear.wrapping_add(size as u64 - 1);
        let last = match by {
            // This is beyond the addresses of 32-bit code, so it is not that code's access.
            _ if linear >> 32 != 0 => last,
            By::Processor => self.table_linear(last),
            By::User | By::Supervisor => self.linear_after(last, 0),
        };
        let second = self.translate(memory, page_of(last), access, by)?;
        Ok((first, second))
    }

    /// Reads at a guest-physical address; the bytes are in one page.
    fn read_physical<W: Word>(&mut self, memory: &Memory, address: u64) -> Result<W, Stopped> {
        if let Target::Place(place) = memory.read_target(address) {
            return Ok(W::load(memory, place));
        }
        if W::BITS == 64 {
            let low = self.ask(Exit::MmioRead { address, width: width_of::<u32>() })?;
            let high =
                self.ask(Exit::MmioRead { address: address + 4, width: width_of::<u32>() })?;
            return Ok(W::truncate(low & 0xffff_ffff | high << 32));
        }
        self.ask(Exit::MmioRead { address, width: width_of::<W>() }).map(W::truncate)
    }

    /// Writes at a guest-physical address; the bytes are in one page.
    fn write_physical<W: Word>(
        &mut self,
        memory: &mut Memory,
        address: u64,
        value: W,
    ) -> Result<(), Stopped> {
        if let Some(place) = self.place_to_write(memory, address, value)? {
            value.store(memory, place);
        }
        Ok(())
    }

    /// Returns the place to write `value`, whose bytes are in one page, at a guest-physical address. Returns
    /// None if there is no memory and the device has already received the value.
    fn place_to_write<W: Word>(
        &mut self,
        memory: &mut Memory,
        address: u64,
        value: W,
    ) -> Result<Option<usize>, Stopped> {
        match memory.write_target(address) {
            Target::Place(place) => {
                memory.note_write(place);
                if memory.holds_code(place, W::BYTES) {
                    if self.guard_code {
                        return Err(self.stop_for(Stop::WritesCode));
                    }
                    memory.forget_code((place >> 12) as u32);
                }
                Ok(Some(place))
            }
            Target::Nothing => Ok(None),
            Target::Device => {
                let value = value.zero_extend();
                let width = width_of::<W>();
                self.ask(Exit::MmioWrite { address, width, value: value as u32 })?;
                if W::BITS == 64 {
                    let value = (value >> 32) as u32;
                    self.ask(Exit::MmioWrite { address: address + 4, width, value })?;
                }
                Ok(None)
            }
        }
    }

    // The stack ---------------------------------------------------------

    /// Pushes `value` on a flat stack, if the TLB allows the access without further checks. Otherwise it does
    /// nothing and leaves no reason in [`Cpu::stop`].
    #[inline(always)]
    pub(crate) fn push_at_once<W: Word>(
        &mut self,
        memory: &mut Memory,
        value: W,
    ) -> Result<(), Stopped> {
        let top = flat_stack_pointer::<W>(self.gpr(reg::SP).wrapping_sub(W::BYTES as u64));
        let place = self.place_at_once::<W>(top)?;
        value.store(memory, place);
        self.set_gpr(reg::SP, top);
        Ok(())
    }

    /// Returns the value on top of the stack without popping it, under the same condition as
    /// [`Cpu::push_at_once`].
    #[inline(always)]
    pub(crate) fn peek_at_once<W: Word>(&self, memory: &Memory) -> Result<W, Stopped> {
        self.load_at_once(memory, flat_stack_pointer::<W>(self.gpr(reg::SP)))
    }

    /// Takes `bytes` bytes from a flat stack on which there are values of size `W`.
    #[inline(always)]
    pub(crate) fn release_flat<W: Word>(&mut self, bytes: u64) {
        let top = flat_stack_pointer::<W>(self.gpr(reg::SP).wrapping_add(bytes));
        self.set_gpr(reg::SP, top);
    }

    /// RSP in 64-bit mode, and otherwise ESP, or SP with a 16-bit stack.
    #[inline(always)]
    pub(crate) fn stack_pointer(&self) -> u64 {
        self.gpr(reg::SP) & self.stack_mask()
    }

    /// Sets the bits of RSP that the stack's size uses.
    #[inline(always)]
    pub(crate) fn set_stack_pointer(&mut self, value: u64) {
        let mask = self.stack_mask();
        self.set_gpr(reg::SP, self.gpr(reg::SP) & !mask | value & mask);
    }

    /// Pushes `value`.
    #[inline(always)]
    pub(crate) fn push<W: Word>(&mut self, memory: &mut Memory, value: W) -> Result<(), Stopped> {
        let top = self.stack_pointer().wrapping_sub(W::BYTES as u64) & self.stack_mask();
        self.write(memory, sreg::SS, top, value)?;
        self.set_stack_pointer(top);
        Ok(())
    }

    /// Pops a value.
    #[inline(always)]
    pub(crate) fn pop<W: Word>(&mut self, memory: &mut Memory) -> Result<W, Stopped> {
        let top = self.stack_pointer();
        let value = self.read(memory, sreg::SS, top)?;
        self.set_stack_pointer(top.wrapping_add(W::BYTES as u64));
        Ok(value)
    }

    /// Returns the value `depth` words of size `W` below the top of the stack without popping it.
    pub(crate) fn peek<W: Word>(&mut self, memory: &mut Memory, depth: u64) -> Result<W, Stopped> {
        let offset = self.stack_pointer().wrapping_add(depth * W::BYTES as u64) & self.stack_mask();
        self.read(memory, sreg::SS, offset)
    }
}

/// A stack on which several values are pushed. Its pointer becomes the processor's only when all of them are
/// there.
#[derive(Debug)]
pub(crate) struct NewStack {
    segment: Segment,
    /// Whether it is used by 64-bit code, so that its segment has no base and no limit.
    is_long: bool,
    pointer: u64,
    user: bool,
    /// The error code of #SS when the stack is too small.
    error_code: u32,
}

impl NewStack {
    /// The stack at `pointer` of `segment`, for code of privilege `cpl` outside 64-bit mode.
    pub(crate) fn new(segment: Segment, pointer: u64, cpl: u8, error_code: u32) -> NewStack {
        NewStack { segment, is_long: false, pointer, user: cpl == 3, error_code }
    }

    /// The stack at the linear address `pointer`, for 64-bit code of privilege `cpl`.
    pub(crate) fn long(segment: Segment, pointer: u64, cpl: u8, error_code: u32) -> NewStack {
        NewStack { is_long: true, ..NewStack::new(segment, pointer, cpl, error_code) }
    }

    /// The running code's stack.
    pub(crate) fn current(cpu: &Cpu, error_code: u32) -> NewStack {
        let segment = *cpu.segment(sreg::SS);
        let is_long = cpu.is_in_64_bit_mode();
        NewStack { is_long, ..NewStack::new(segment, cpu.gpr(reg::SP), cpu.cpl(), error_code) }
    }

    /// Makes the pointer a multiple of 16, as the delivery of events in long mode does.
    pub(crate) fn align(&mut self) {
        self.pointer &= !15;
    }

    /// Pushes `value` as a word of `size` bytes: 2, 4 or 8.
    pub(crate) fn push(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        value: u64,
        size: usize,
    ) -> Result<(), Stopped> {
        let mask = match (self.is_long, self.segment.attributes.big()) {
            (true, _) => u64::MAX,
            (false, true) => 0xffff_ffff,
            (false, false) => 0xffff,
        };
        let top = self.pointer.wrapping_sub(size as u64) & mask;
        let is_inside = if self.is_long {
            are_canonical(top, size)
        } else {
            self.segment.writes_freely || self.segment.contains(top as u32, size as u32)
        };
        if !is_inside {
            return Err(cpu.fault(Fault::with_code(vector::SS, self.error_code)));
        }
        let base = if self.is_long { 0 } else { self.segment.base };
        let linear = base.wrapping_add(top) & (mask | 0xffff_ffff);
        match size {
            2 => cpu.write_linear(memory, linear, value as u16, self.user)?,
            4 => cpu.write_linear(memory, linear, value as u32, self.user)?,
            _ => cpu.write_linear(memory, linear, value, self.user)?,
        }
        self.pointer = self.pointer & !mask | top;
        Ok(())
    }

    /// Makes this the processor's stack.
    pub(crate) fn commit(self, cpu: &mut Cpu) {
        if *cpu.segment(sreg::SS) != self.segment {
            cpu.set_segment(sreg::SS, self.segment);
        }
        cpu.set_gpr(reg::SP, self.pointer);
        if !cpu.is_in_64_bit_mode() {
            cpu.drop_upper_half(reg::SP);
        }
    }
}

/// Returns the stack pointer with a flat stack. On it, code pushes and pops quadwords at once in 64-bit mode
/// only, and words of other sizes outside it only.
#[inline(always)]
fn flat_stack_pointer<W: Word>(pointer: u64) -> u64 {
    if W::BITS == 64 { pointer } else { pointer & 0xffff_ffff }
}

/// Returns whether bits 63 to 47 of `address` are equal (SDM vol. 1, 3.3.7.1).
#[inline(always)]
pub fn is_canonical(address: u64) -> bool {
    ((address << 16) as i64 >> 16) as u64 == address
}

/// Returns whether all of `size` bytes at `address` are at canonical addresses.
fn are_canonical(address: u64, size: usize) -> bool {
    is_canonical(address) && is_canonical(address.wrapping_add(size as u64 - 1))
}

/// Returns the page of a linear address in the form of the TLB's tags.
#[inline(always)]
fn page_of(linear: u64) -> u64 {
    linear & !0xfff
}

/// Returns whether a `W` at `linear` does not cross a page boundary.
#[inline(always)]
fn fits_in_page<W: Word>(linear: u64) -> bool {
    W::BYTES == 1 || linear & 0xfff <= 0x1000 - W::BYTES as u64
}

/// Returns how many bytes of the page follow from `linear` on.
fn bytes_in_page(linear: u64) -> usize {
    0x1000 - (linear & 0xfff) as usize
}
