//! A random case: an instruction of 64-bit code, with a state and memory in which it has an effect.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use ring3_hostcpu::{
    CODE_SELECTOR, DATA_SELECTOR, LONG_CODE_SELECTOR, Layout, LongState, PAGE_SIZE, Region, eflags,
    gpr,
};

use crate::common::guest::Pace;
use crate::common::random::Random;
use crate::encode::encode;

const LAYOUT: Layout = Layout::FIXED;
/// The number of attempts to find random bytes of the form that is wanted.
const TRIES: usize = 4000;

/// Bytes from a linear address on.
#[derive(Debug, Clone)]
pub(crate) struct Poke {
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Poke {
    /// Changes `data`, the contents of the data region. Bytes outside the region are left out.
    pub(crate) fn apply(&self, data: &mut [u8]) {
        for (address, byte) in (0..).map(|n| self.address.wrapping_add(n)).zip(&self.bytes) {
            if let Some(place) = data_offset(address) {
                data[place] = *byte;
            }
        }
    }
}

/// Returns the offset of a linear address in the data region.
pub(crate) fn data_offset(address: u64) -> Option<usize> {
    let offset = address.wrapping_sub(LAYOUT.data.start.into());
    (offset < LAYOUT.data.len.into()).then_some(offset as usize)
}

/// A case of an instruction.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) code: Vec<u8>,
    pub(crate) instruction: Instruction,
    pub(crate) start: LongState,
    pub(crate) pokes: Vec<Poke>,
    pub(crate) pace: Pace,
}

impl Scene {
    /// A random case of the form `code`.
    pub(crate) fn random(random: &mut Random, code: Code) -> Scene {
        let rip = instruction_address(random);
        let (code, instruction) = (0..TRIES)
            .find_map(|_| encode(random, code, rip))
            .unwrap_or_else(|| panic!("{code:?} is not found by its opcode"));
        let start = LongState::at(rip);
        let pokes = Vec::new();
        let mut scene = Scene { code, instruction, start, pokes, pace: Pace::ONCE };
        scene.set_registers(random);
        if instruction.is_string_instruction() {
            scene.set_string(random);
        }
        if uses_vectors(instruction.code()) {
            scene.set_vectors(random);
        }
        scene.set_operands(random);
        scene.set_selector(random);
        if random.percent(1) {
            scene.spoil(random);
        }
        scene
    }

    fn poke(&mut self, address: u64, len: u64, value: u64) {
        let bytes = value.to_le_bytes().into_iter().cycle().take(len as usize).collect();
        self.pokes.push(Poke { address, bytes });
    }

    /// Makes the instruction invalid: by LOCK where that is not allowed (#UD), or by prefixes until it is too
    /// long (#GP).
    fn spoil(&mut self, random: &mut Random) {
        let code = LAYOUT.code;
        if self.start.rip % u64::from(PAGE_SIZE) > u64::from(PAGE_SIZE) - 32 {
            // Processors differ in how much of such an instruction they fetch.
            self.start.rip = u64::from(code.start + random.below(PAGE_SIZE - 32));
        }
        // With LOCK, AMD's processors have MOV to and from CR8.
        let lock = !self.instruction.op_code().amd_lock_reg_bit() && random.percent(50);
        let (prefix, count) = if lock { (0xf0, 1) } else { (0x3e, 15) };
        self.code.splice(..0, std::iter::repeat_n(prefix, count));
        self.code.truncate(15);
        self.instruction =
            Decoder::with_ip(64, &self.code, self.start.rip, DecoderOptions::NONE).decode();
        self.pace = Pace::ONCE;
    }

    fn set_registers(&mut self, random: &mut Random) {
        let start = &mut self.start;
        start.gpr = std::array::from_fn(|_| number(random));
        start.rflags = random.bits() & (eflags::SETTABLE & !eflags::AC);
        if random.percent(10) {
            start.gpr[random.below(16) as usize] = start.gpr[random.below(16) as usize];
        }
        if random.percent(if self.instruction.is_stack_instruction() { 95 } else { 50 }) {
            start.gpr[gpr::ESP] = address(random);
        }
        let double = self.instruction.op0_kind() == OpKind::Register
            && self.instruction.op0_register().size() == 8;
        match self.instruction.mnemonic() {
            Mnemonic::Enter | Mnemonic::Leave if random.percent(90) => {
                start.gpr[gpr::EBP] = address(random);
            }
            Mnemonic::Div | Mnemonic::Idiv if random.percent(60) => {
                // Chooses operands whose quotients fit.
                start.gpr[gpr::EDX] = random.pick(&[0, 0, 1, 2, u64::MAX]);
                if random.percent(50) {
                    start.gpr[gpr::EAX] &= if double { !0 } else { 0xffff_03ff };
                }
            }
            Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts
                if self.instruction.op1_kind() == OpKind::Register && random.percent(70) =>
            {
                let register = &mut start.gpr[self.instruction.op1_register().number()];
                *register = i64::from(random.below(2048) as i32 - 1024) as u64;
            }
            Mnemonic::Cmpxchg16b if random.percent(60) => {
                // The words that are poked into memory later.
                (start.gpr[gpr::EAX], start.gpr[gpr::EDX]) = (7, 7);
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
        self.start.gpr[gpr::ECX] = count.into();
        if self.has_32_bit_addresses() && random.percent(50) {
            self.start.gpr[gpr::ECX] |= u64::from(random.bits()) << 32;
        }
        self.start.gpr[gpr::ESI] = address(random);
        self.start.gpr[gpr::EDI] = address(random);
        if random.percent(60) {
            let value = u64::from(random.below(256)) * 0x0101_0101_0101_0101;
            for address in [self.start.gpr[gpr::ESI], self.start.gpr[gpr::EDI]] {
                self.poke(address.wrapping_sub(64), u64::from(32 + random.below(128)), value);
            }
            if random.percent(70) {
                self.start.gpr[gpr::EAX] = value;
            }
        }
        if self.instruction.has_rep_prefix() || self.instruction.has_repne_prefix() {
            self.pace.iterations = u64::from(count.max(1));
            // A comparison may end early, and nothing after it may be executed.
            if !compares_strings(&self.instruction) {
                self.pace.stride = u64::from(1 + random.below(count.max(1)));
            }
        }
    }

    /// Returns whether the address size of a string instruction is 32 bits.
    pub(crate) fn has_32_bit_addresses(&self) -> bool {
        self.instruction.op_kinds().any(|kind| {
            matches!(kind, OpKind::MemorySegESI | OpKind::MemorySegEDI | OpKind::MemoryESEDI)
        })
    }

    /// Sets numbers in the vectors, and any state of the x87.
    fn set_vectors(&mut self, random: &mut Random) {
        const SUMMARY_AND_EXCEPTIONS: u16 = 0x80bf;
        let fx = &mut self.start.fx;
        fx.set_fsw(random.bits() as u16 & !SUMMARY_AND_EXCEPTIONS);
        fx.set_ftw(random.bits() as u8);
        fx.set_mxcsr(random.bits() & 0xffff);
        let is_text = random.percent(20);
        for i in 0..16 {
            let mut bytes = [0; 16];
            for dword in bytes.chunks_mut(4) {
                let letters = std::array::from_fn(|_| random.pick(&[0, 1, 1, 2, 2, 2, 3, 0x81]));
                dword.copy_from_slice(&if is_text {
                    letters
                } else {
                    random.number().to_le_bytes()
                });
            }
            fx.set_xmm(i, u128::from_le_bytes(bytes));
            if i < 8 {
                bytes.rotate_left(4);
                fx.set_st(i, std::array::from_fn(|byte| bytes[byte]));
            }
        }
        if matches!(self.instruction.mnemonic(), Mnemonic::Maskmovq | Mnemonic::Maskmovdqu) {
            self.start.gpr[gpr::EDI] = address(random);
        }
    }

    /// If the instruction reads a selector, returns its distance in bytes from the operand's address, or from
    /// the top of the stack.
    fn selector_offset(&self) -> Option<u64> {
        match self.instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Pop => {
                self.instruction.op0_register().is_segment_register().then_some(0)
            }
            Mnemonic::Lar | Mnemonic::Lsl | Mnemonic::Verr | Mnemonic::Verw => Some(0),
            Mnemonic::Lss => Some(self.instruction.memory_size().size() as u64 - 2),
            _ => None,
        }
    }

    /// Makes the selector that the instruction reads one that is the same on both sides.
    fn set_selector(&mut self, random: &mut Random) {
        let Some(offset) = self.selector_offset() else { return };
        let selectors = [CODE_SELECTOR, DATA_SELECTOR, LONG_CODE_SELECTOR, 0];
        let selector = random.pick(&selectors) & !3;
        let selector = selector | if random.percent(60) { 3 } else { random.below(4) as u16 };
        let value = u64::from(selector);
        for operand in 0..self.instruction.op_count() {
            let register = self.instruction.op_register(operand);
            if self.instruction.op_kind(operand) == OpKind::Register && register.is_gpr() {
                let number = register.full_register().number();
                self.start.gpr[number] = self.start.gpr[number] & !0xffff | value;
            }
        }
        let address = self.selector_address().wrapping_add(offset);
        self.poke(address, 2, value);
    }

    fn selector_address(&self) -> u64 {
        if self.has_memory_operand() { self.memory_address() } else { self.start.gpr[gpr::ESP] }
    }

    /// Returns whether the instruction may read a selector that this case has not put there, and that the
    /// host's descriptor table may contain.
    pub(crate) fn reads_unknown_selector(&self) -> bool {
        let Some(offset) = self.selector_offset() else { return false };
        let first = self.selector_address().wrapping_add(offset);
        let known = |address: u64| {
            u32::try_from(address).map_or(true, |address| {
                !LAYOUT.code.contains(address) && !LAYOUT.read_only.contains(address)
            })
        };
        !known(first) || !known(first.wrapping_add(1))
    }

    /// Returns whether this is MASKMOVQ or MASKMOVDQU with a mask in which no effective bit is set.
    pub(crate) fn masks_all_bytes(&self) -> bool {
        let fx = &self.start.fx;
        let register = self.instruction.op2_register().number();
        let mask = match self.instruction.mnemonic() {
            Mnemonic::Maskmovq => fx.mm(register).into(),
            Mnemonic::Maskmovdqu => fx.xmm(register),
            _ => return false,
        };
        mask.to_le_bytes().iter().all(|byte| byte & 0x80 == 0)
    }

    fn has_memory_operand(&self) -> bool {
        self.instruction.op_kinds().any(|kind| kind == OpKind::Memory)
    }

    /// Returns the address of the memory operand.
    pub(crate) fn memory_address(&self) -> u64 {
        effective_address(&self.instruction, &self.start)
    }

    /// Moves the operands in memory to interesting addresses, and puts values there.
    fn set_operands(&mut self, random: &mut Random) {
        if self.has_memory_operand() {
            let mut target = address(random);
            let wants_alignment = uses_vectors(self.instruction.code())
                || self.instruction.mnemonic() == Mnemonic::Cmpxchg16b;
            if wants_alignment && random.percent(80) {
                target &= !15;
            }
            self.solve_address(target);
            let at = self.memory_address();
            self.poke_numbers(random, at);
            self.poke_mxcsr(random, at);
        }
        let at = self.start.gpr[gpr::ESP];
        self.poke_numbers(random, at);
    }

    /// Makes `target` the effective address, or nearly so, if a register can achieve that.
    fn solve_address(&mut self, target: u64) {
        let instruction = &self.instruction;
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let scale = u64::from(instruction.memory_index_scale());
        let distance = target.wrapping_sub(instruction.memory_displacement64());
        let general = |register: Register| register.is_gpr32() || register.is_gpr64();
        if general(base) && base == index {
            self.start.gpr[base.number()] = distance / (scale + 1);
        } else if general(base) {
            let index = register_value(&self.start, index).wrapping_mul(scale);
            self.start.gpr[base.number()] = distance.wrapping_sub(index);
        } else if general(index) {
            self.start.gpr[index.number()] = distance / scale;
        }
    }

    /// Puts numbers at `address`: edges, the contents of registers, or addresses in the code.
    fn poke_numbers(&mut self, random: &mut Random, address: u64) {
        let kind = random.below(11);
        for index in 0..4 {
            let value = match kind {
                0..=3 => number(random),
                4 => 7,
                5 => self.start.gpr[[gpr::EAX, gpr::EDX, gpr::ECX, gpr::EBX][index as usize]],
                6..=8 => u64::from(LAYOUT.code.start + random.below(LAYOUT.code.len)),
                _ => return,
            };
            self.poke(address.wrapping_add(8 * index), 8, value);
        }
    }

    /// If the memory operand at `at` contains an MXCSR, makes it a valid one, or one that is invalid on all
    /// processors.
    fn poke_mxcsr(&mut self, random: &mut Random, at: u64) {
        let offset = match self.instruction.mnemonic() {
            Mnemonic::Ldmxcsr => 0,
            Mnemonic::Fxrstor | Mnemonic::Fxrstor64 => 24,
            _ => return,
        };
        let reserved = if random.percent(20) { 1 << 16 } else { 0 };
        self.poke(at.wrapping_add(offset), 4, (random.bits() & 0xffff | reserved).into());
    }
}

/// Returns whether the instruction belongs to MMX or SSE, or concerns their state.
fn uses_vectors(code: Code) -> bool {
    use iced_x86::CpuidFeature as F;
    const FEATURES: [F; 8] =
        [F::MMX, F::FXSR, F::SSE, F::SSE2, F::SSE3, F::SSSE3, F::SSE4_1, F::SSE4_2];
    code.cpuid_features().iter().any(|feature| FEATURES.contains(feature))
}

/// Returns whether the instruction is CMPS or SCAS.
pub(crate) fn compares_strings(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    instruction.is_string_instruction()
        && matches!(
            instruction.mnemonic(),
            M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq | M::Scasb | M::Scasw | M::Scasd | M::Scasq
        )
}

/// A number with which instructions often go wrong. None is likely to be an address at which the host's process
/// has something.
pub(crate) fn number(random: &mut Random) -> u64 {
    let low = u64::from(random.number());
    match random.below(8) {
        0 => low,
        1 => low as u32 as i32 as i64 as u64,
        2 => low | 0xffff_ffff_0000_0000,
        3 => low | 0x8000_0000_0000_0000,
        4 => low << 32 | u64::from(random.bits()),
        5 => 1 << random.below(64),
        6 => u64::from(random.below(130)),
        _ => random.next(),
    }
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

/// Returns a linear address for an operand: usually in the data region, often at a boundary.
pub(crate) fn address(random: &mut Random) -> u64 {
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
        95 => return 0x0000_8000_0000_0000 - u64::from(random.below(24)) + 8,
        96 => return 0xffff_8000_0000_0000 - u64::from(random.below(24)) + 8,
        _ => return number(random),
    };
    inner.into()
}

/// Returns the value of a register in an address, or 0 if there is none.
fn register_value(state: &LongState, register: Register) -> u64 {
    if matches!(register, Register::None | Register::RIP | Register::EIP) {
        return 0;
    }
    let value = state.gpr[register.full_register().number()];
    match register.size() {
        1 => value & 0xff,
        4 => value & 0xffff_ffff,
        _ => value,
    }
}

/// Returns the offset of the memory operand in its segment.
fn effective_address(instruction: &Instruction, state: &LongState) -> u64 {
    let index = register_value(state, instruction.memory_index());
    let sum = register_value(state, instruction.memory_base())
        .wrapping_add(index.wrapping_mul(instruction.memory_index_scale().into()))
        .wrapping_add(instruction.memory_displacement64());
    let registers = [instruction.memory_base(), instruction.memory_index()];
    let is_32_bit =
        registers.into_iter().any(|register| register.is_gpr32() || register == Register::EIP);
    if is_32_bit { sum & 0xffff_ffff } else { sum }
}
