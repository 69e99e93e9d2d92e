//! A random case: an instruction, with a state and memory in which it has an effect.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use ring3_hostcpu::{
    CODE_SELECTOR, DATA_SELECTOR, LONG_CODE_SELECTOR, Layout, LongState, PAGE_SIZE, Region, eflags,
    gpr,
};

use crate::common::comparison::{Case, Poke, mask};
use crate::common::guest::Pace;
use crate::common::random::Random;
use crate::encode::encode;
use crate::vectors::{is_extended, is_gather, uses_vectors};

const LAYOUT: Layout = Layout::FIXED;
/// The number of attempts to find random bytes of the form that is wanted.
const TRIES: usize = 4000;

/// A word that is often in memory, and in the registers with which CMPXCHG8B and CMPXCHG16B compare it.
const SAME: u64 = 7;

/// A case of an integer instruction.
pub(crate) struct IntegerScene(pub(crate) Case);

impl IntegerScene {
    /// A random case of the form `code` in code of `bits` bits.
    pub(crate) fn random(random: &mut Random, code: Code, bits: u32) -> IntegerScene {
        let ip = instruction_address(random);
        let (code, instruction) = (0..TRIES)
            .find_map(|_| encode(random, code, ip, bits))
            .unwrap_or_else(|| panic!("{code:?} is not found by its opcode"));
        let (start, pokes) = (LongState::at(ip), Vec::new());
        let case = Case { bits, code, instruction, start, pokes, pace: Pace::ONCE };
        let mut scene = IntegerScene(case);
        scene.set_registers(random);
        if instruction.is_string_instruction() {
            scene.set_string(random);
        }
        if uses_vectors(scene.0.instruction.code()) {
            scene.set_vectors(random);
        }
        scene.set_operands(random);
        scene.set_selector(random);
        if random.percent(1) {
            scene.spoil(random);
        }
        scene
    }

    /// Puts `value` at linear address `address`, repeated over `len` bytes.
    pub(crate) fn poke(&mut self, address: u64, len: u64, value: u64) {
        let bytes = value.to_le_bytes().into_iter().cycle().take(len as usize).collect();
        self.0.pokes.push(Poke { address, bytes });
    }

    /// Makes the instruction invalid: by LOCK where that is not allowed (#UD), or by prefixes until it is too
    /// long (#GP).
    fn spoil(&mut self, random: &mut Random) {
        let code = LAYOUT.code;
        if self.0.start.rip % u64::from(PAGE_SIZE) > u64::from(PAGE_SIZE) - 32 {
            // Processors differ in how much of such an instruction they fetch.
            self.0.start.rip = u64::from(code.start + random.below(PAGE_SIZE - 32));
        }
        // With LOCK, AMD's processors have MOV to and from CR8.
        let lock = !self.0.instruction.op_code().amd_lock_reg_bit() && random.percent(50);
        let (prefix, count) = if lock { (0xf0, 1) } else { (0x3e, 15) };
        self.0.code.splice(..0, std::iter::repeat_n(prefix, count));
        self.0.code.truncate(15);
        let Case { bits, ref code, ref start, .. } = self.0;
        self.0.instruction = Decoder::with_ip(bits, code, start.rip, DecoderOptions::NONE).decode();
        self.0.pace = Pace::ONCE;
    }

    fn set_registers(&mut self, random: &mut Random) {
        let (bits, mask) = (self.0.bits, self.0.mask());
        let start = &mut self.0.start;
        let registers = if bits == 64 { 16 } else { 8 };
        for register in &mut start.gpr[..registers] {
            *register = number(random, bits);
        }
        start.rflags = random.bits() & (eflags::SETTABLE & !eflags::AC);
        if random.percent(10) {
            let [to, from] = [(); 2].map(|()| random.below(registers as u32) as usize);
            start.gpr[to] = start.gpr[from];
        }
        if random.percent(if self.0.instruction.is_stack_instruction() { 95 } else { 50 }) {
            start.gpr[gpr::ESP] = address(random, bits);
        }
        let double = self.0.instruction.op0_kind() == OpKind::Register
            && self.0.instruction.op0_register().size() == 8;
        match self.0.instruction.mnemonic() {
            Mnemonic::Enter | Mnemonic::Leave if random.percent(90) => {
                start.gpr[gpr::EBP] = address(random, bits);
            }
            Mnemonic::Div | Mnemonic::Idiv if random.percent(60) => {
                // Chooses operands whose quotients fit.
                start.gpr[gpr::EDX] = random.pick(&[0, 0, 1, 2, mask]);
                if random.percent(50) {
                    start.gpr[gpr::EAX] &= if double { !0 } else { 0xffff_03ff };
                }
            }
            Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts
                if self.0.instruction.op1_kind() == OpKind::Register && random.percent(70) =>
            {
                let register = &mut start.gpr[self.0.instruction.op1_register().number()];
                *register = i64::from(random.below(2048) as i32 - 1024) as u64 & mask;
            }
            Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b if random.percent(60) => {
                // The words that are poked into memory later.
                (start.gpr[gpr::EAX], start.gpr[gpr::EDX]) = (SAME, SAME);
            }
            _ => {}
        }
    }

    /// Sets counts that end, and often makes source and destination equal for a while.
    fn set_string(&mut self, random: &mut Random) {
        let count = match random.below(10) {
            0 => random.below(3),
            1 | 2 => random.below(600),
            _ => random.below(40),
        };
        let (bits, mask) = (self.0.bits, self.0.mask());
        let address_mask = self.string_mask();
        let start = &mut self.0.start;
        start.gpr[gpr::ECX] = count.into();
        if random.percent(50) {
            // The address size of the instruction may be less than that of the code.
            start.gpr[gpr::ECX] |= random.next() & mask & !address_mask;
        }
        start.gpr[gpr::ESI] = address(random, bits);
        start.gpr[gpr::EDI] = address(random, bits);
        if random.percent(60) {
            let value = u64::from(random.below(256)) * 0x0101_0101_0101_0101;
            for address in [start.gpr[gpr::ESI], start.gpr[gpr::EDI]] {
                self.poke(
                    address.wrapping_sub(64) & mask,
                    u64::from(32 + random.below(128)),
                    value,
                );
            }
            if random.percent(70) {
                self.0.start.gpr[gpr::EAX] = value & mask;
            }
        }
        if self.0.instruction.has_rep_prefix() || self.0.instruction.has_repne_prefix() {
            self.0.pace.iterations = u64::from(count.max(1));
            // A comparison may end early, and nothing after it may be executed.
            if !compares_strings(&self.0.instruction) {
                self.0.pace.stride = u64::from(1 + random.below(count.max(1)));
            }
        }
    }

    /// Returns the mask of the addresses of a string instruction, or of MASKMOVQ or MASKMOVDQU.
    pub(crate) fn string_mask(&self) -> u64 {
        let bits = self.0.instruction.op_kinds().find_map(|kind| match kind {
            OpKind::MemorySegSI | OpKind::MemorySegDI | OpKind::MemoryESDI => Some(16),
            OpKind::MemorySegESI | OpKind::MemorySegEDI | OpKind::MemoryESEDI => Some(32),
            _ => None,
        });
        mask(bits.unwrap_or(self.0.bits))
    }

    /// If the instruction reads a selector, returns its distance in bytes from the operand's address, or from
    /// the top of the stack.
    fn selector_offset(&self) -> Option<u64> {
        match self.0.instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Pop => {
                self.0.instruction.op0_register().is_segment_register().then_some(0)
            }
            Mnemonic::Lar | Mnemonic::Lsl | Mnemonic::Verr | Mnemonic::Verw => Some(0),
            Mnemonic::Les | Mnemonic::Lds | Mnemonic::Lss => {
                Some(self.0.instruction.memory_size().size() as u64 - 2)
            }
            _ => None,
        }
    }

    /// Makes the selector that the instruction reads one that is the same on both sides: null, or the user's
    /// code or data with any RPL.
    fn set_selector(&mut self, random: &mut Random) {
        let Some(offset) = self.selector_offset() else { return };
        let selectors = [CODE_SELECTOR, DATA_SELECTOR, 0, LONG_CODE_SELECTOR];
        let known = if self.0.bits == 64 { 4 } else { 3 };
        let selector = random.pick(&selectors[..known]) & !3;
        let selector = selector | if random.percent(60) { 3 } else { random.below(4) as u16 };
        let value = u64::from(selector);
        for operand in 0..self.0.instruction.op_count() {
            let register = self.0.instruction.op_register(operand);
            if self.0.instruction.op_kind(operand) == OpKind::Register && register.is_gpr() {
                let number = register.full_register().number();
                self.0.start.gpr[number] = self.0.start.gpr[number] & !0xffff | value;
            }
        }
        let address = self.selector_address().wrapping_add(offset) & self.0.mask();
        self.poke(address, 2, value);
    }

    /// Returns the operand's address, or the top of the stack.
    fn selector_address(&self) -> u64 {
        if self.0.instruction.op_kinds().any(|kind| kind == OpKind::Memory) {
            self.memory_address()
        } else {
            self.0.start.gpr[gpr::ESP]
        }
    }

    /// Returns whether the instruction may read a selector that this case has not put there, and that the
    /// host's descriptor table may contain.
    pub(crate) fn reads_unknown_selector(&self) -> bool {
        let Some(offset) = self.selector_offset() else { return false };
        let first = self.selector_address().wrapping_add(offset);
        let known = |address: u64| {
            u32::try_from(address & self.0.mask()).map_or(true, |address| {
                !LAYOUT.code.contains(address) && !LAYOUT.read_only.contains(address)
            })
        };
        !known(first) || !known(first.wrapping_add(1))
    }

    /// Returns the address of the memory operand.
    pub(crate) fn memory_address(&self) -> u64 {
        effective_address(&self.0)
    }

    /// Moves the operands in memory to interesting addresses, and puts values there.
    fn set_operands(&mut self, random: &mut Random) {
        if self.0.instruction.op_kinds().any(|kind| kind == OpKind::Memory) {
            let mut target = address(random, self.0.bits);
            let wants_alignment = uses_vectors(self.0.instruction.code())
                || self.0.instruction.mnemonic() == Mnemonic::Cmpxchg16b;
            if wants_alignment && random.percent(80) {
                let size = self.0.instruction.memory_size().size() as u64;
                target &= if size == 32 { !31 } else { !15 };
            }
            if is_extended(self.0.instruction.mnemonic()) && random.percent(90) {
                target &= !63;
            }
            self.solve_address(target);
            let at = self.memory_address();
            self.poke_numbers(random, at);
            self.poke_mxcsr(random, at);
            self.poke_header(random, at);
        }
        let at = self.0.start.gpr[gpr::ESP];
        self.poke_numbers(random, at);
    }

    /// Makes `target` the effective address, or nearly so, if a register can achieve that.
    fn solve_address(&mut self, target: u64) {
        let instruction = &self.0.instruction;
        let (base, mut index) = (instruction.memory_base(), instruction.memory_index());
        if is_gather(instruction) {
            // Its elements are added to the address later.
            index = Register::None;
        }
        let scale = u64::from(instruction.memory_index_scale());
        let mask = self.0.mask();
        let distance = target.wrapping_sub(instruction.memory_displacement64()) & mask;
        let general = |register: Register| register.is_gpr32() || register.is_gpr64();
        if general(base) && base == index {
            self.0.start.gpr[base.number()] = distance / (scale + 1);
        } else if general(base) {
            let index = register_value(&self.0.start, index).wrapping_mul(scale);
            self.0.start.gpr[base.number()] = distance.wrapping_sub(index) & mask;
        } else if general(index) {
            self.0.start.gpr[index.number()] = distance / scale;
        }
    }

    /// Puts numbers at `address`: edges, the contents of registers, or addresses in the code.
    fn poke_numbers(&mut self, random: &mut Random, address: u64) {
        let kind = random.below(11);
        let word = self.0.word();
        for index in 0..4 {
            let value = match kind {
                0..=3 => number(random, self.0.bits),
                4 => SAME,
                5 => self.0.start.gpr[[gpr::EAX, gpr::EDX, gpr::ECX, gpr::EBX][index as usize]],
                6..=8 => u64::from(LAYOUT.code.start + random.below(LAYOUT.code.len)),
                _ => return,
            };
            let address = address.wrapping_add(word * index) & self.0.mask();
            self.poke(address, word, value);
        }
    }
}

/// Returns whether the instruction is CMPS or SCAS.
pub(crate) fn compares_strings(instruction: &Instruction) -> bool {
    instruction.is_string_instruction()
        && matches!(
            instruction.mnemonic(),
            Mnemonic::Cmpsb
                | Mnemonic::Cmpsw
                | Mnemonic::Cmpsd
                | Mnemonic::Cmpsq
                | Mnemonic::Scasb
                | Mnemonic::Scasw
                | Mnemonic::Scasd
                | Mnemonic::Scasq
        )
}

/// Returns the address of the instruction. Sometimes it crosses the boundary between the two code pages, or
/// extends beyond them.
fn instruction_address(random: &mut Random) -> u64 {
    let code = LAYOUT.code;
    u64::from(match random.below(20) {
        0 => code.start + PAGE_SIZE - 1 - random.below(14),
        1 => code.end() - 1 - random.below(14),
        _ => code.start + random.below(code.len - 16),
    })
}

/// A number with which instructions of `bits` bits often go wrong. None of 64 bits is likely to be an address at
/// which the host's process has something.
pub(crate) fn number(random: &mut Random, bits: u32) -> u64 {
    let low = u64::from(random.number());
    match random.below(8) {
        kind if bits == 32 || kind == 0 => low,
        1 => low as u32 as i32 as i64 as u64,
        2 => low | 0xffff_ffff_0000_0000,
        3 => low | 0x8000_0000_0000_0000,
        4 => low << 32 | u64::from(random.bits()),
        5 => 1 << random.below(64),
        6 => u64::from(random.below(130)),
        _ => random.next(),
    }
}

/// Returns a linear address for an operand of code of `bits` bits: usually in the data region, often at a
/// boundary.
pub(crate) fn address(random: &mut Random, bits: u32) -> u64 {
    let inside = |random: &mut Random, region: Region| region.start + random.below(region.len);
    let around = |random: &mut Random, boundary: u32| boundary + random.below(24) - 16;
    let inner = match random.below(100) {
        0..50 => inside(random, LAYOUT.data),
        50..66 => inside(random, LAYOUT.data) & !15,
        66..76 => {
            let page = LAYOUT.data.start + PAGE_SIZE * (1 + random.below(3));
            around(random, page)
        }
        76..84 => around(random, LAYOUT.data.end()),
        84..88 => around(random, LAYOUT.data.start),
        88..91 => around(random, LAYOUT.read_only.end()),
        91..93 => inside(random, LAYOUT.read_only),
        93..95 => inside(random, LAYOUT.code),
        // The ends of the two canonical halves.
        95 if bits == 64 => return 0x0000_8000_0000_0000 - u64::from(random.below(24)) + 8,
        96 if bits == 64 => return 0xffff_8000_0000_0000 - u64::from(random.below(24)) + 8,
        _ => return number(random, bits),
    };
    inner.into()
}

/// Returns the value of a register in an address, or 0 if there is none.
fn register_value(state: &LongState, register: Register) -> u64 {
    if matches!(register, Register::None | Register::RIP | Register::EIP) {
        return 0;
    }
    let value = state.gpr[register.full_register().number()];
    value & mask(8 * register.size() as u32)
}

/// Returns the offset of the memory operand of `case` in its segment.
fn effective_address(case: &Case) -> u64 {
    let Case { instruction, start, .. } = case;
    let has_index = !is_gather(instruction);
    let index = if has_index { register_value(start, instruction.memory_index()) } else { 0 };
    let sum = register_value(start, instruction.memory_base())
        .wrapping_add(index.wrapping_mul(instruction.memory_index_scale().into()))
        .wrapping_add(instruction.memory_displacement64());
    let registers = [instruction.memory_base(), instruction.memory_index()];
    let is_32_bit =
        registers.into_iter().any(|register| register.is_gpr32() || register == Register::EIP);
    sum & if is_32_bit { mask(32) } else { case.mask() }
}
