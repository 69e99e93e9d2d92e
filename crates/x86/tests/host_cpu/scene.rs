//! A random case: an instruction, with a state and memory in which it has an effect.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use ring3_hostcpu::{CODE_SELECTOR, DATA_SELECTOR, Layout, PAGE_SIZE, Region, State, eflags, gpr};

use crate::common::comparison::{Case, Poke};
use crate::common::guest::Pace;
use crate::common::random::Random;
use crate::encode::encode;
use crate::vectors::uses_vectors;

const LAYOUT: Layout = Layout::FIXED;
/// The number of attempts to find random bytes of the form that is wanted.
const TRIES: usize = 2000;

/// A case of an integer instruction.
pub(crate) struct IntegerScene(pub(crate) Case);

impl IntegerScene {
    /// A random case of the form `code`.
    pub(crate) fn random(random: &mut Random, code: Code) -> IntegerScene {
        let eip = instruction_address(random);
        let (code, instruction) = (0..TRIES)
            .find_map(|_| encode(random, code, eip))
            .unwrap_or_else(|| panic!("{code:?} is not found by its opcode"));
        let start = State::at(eip);
        let pokes = Vec::new();
        let mut scene = IntegerScene(Case { code, instruction, start, pokes, pace: Pace::ONCE });
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
    pub(crate) fn poke(&mut self, address: u32, len: u32, value: u32) {
        let bytes = value.to_le_bytes().into_iter().cycle().take(len as usize).collect();
        self.0.pokes.push(Poke { address, bytes });
    }

    /// Makes the instruction invalid: by LOCK where that is not allowed (#UD), or by prefixes until it is too
    /// long (#GP).
    fn spoil(&mut self, random: &mut Random) {
        let code = LAYOUT.code;
        if self.0.start.eip % PAGE_SIZE > PAGE_SIZE - 32 {
            // Processors differ in how much of such an instruction they fetch.
            self.0.start.eip = code.start + random.below(PAGE_SIZE - 32);
        }
        // With LOCK, AMD's processors have MOV to and from CR8.
        let lock = !self.0.instruction.op_code().amd_lock_reg_bit() && random.percent(50);
        let (prefix, count) = if lock { (0xf0, 1) } else { (0x3e, 15) };
        self.0.code.splice(..0, std::iter::repeat_n(prefix, count));
        self.0.code.truncate(15);
        self.0.instruction =
            Decoder::with_ip(32, &self.0.code, self.0.start.eip.into(), DecoderOptions::NONE)
                .decode();
        self.0.pace = Pace::ONCE;
    }

    fn set_registers(&mut self, random: &mut Random) {
        let start = &mut self.0.start;
        start.gpr = std::array::from_fn(|_| random.number());
        start.eflags = random.bits() & (eflags::SETTABLE & !eflags::AC);
        if random.percent(10) {
            start.gpr[random.below(8) as usize] = start.gpr[random.below(8) as usize];
        }
        if random.percent(if self.0.instruction.is_stack_instruction() { 95 } else { 50 }) {
            start.gpr[gpr::ESP] = address(random);
        }
        match self.0.instruction.mnemonic() {
            Mnemonic::Enter | Mnemonic::Leave if random.percent(90) => {
                start.gpr[gpr::EBP] = address(random);
            }
            Mnemonic::Div | Mnemonic::Idiv if random.percent(60) => {
                // Chooses operands whose quotients fit.
                start.gpr[gpr::EDX] = random.pick(&[0, 0, 1, 2, 0xffff_ffff]);
                if random.percent(50) {
                    start.gpr[gpr::EAX] &= 0xffff_03ff;
                }
            }
            Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts
                if self.0.instruction.op1_kind() == OpKind::Register && random.percent(70) =>
            {
                let register = &mut start.gpr[self.0.instruction.op1_register().number()];
                *register = random.below(2048).wrapping_sub(1024);
            }
            _ => {}
        }
    }

    /// Sets counts that end, and often makes source and destination equal for a while.
    fn set_string(&mut self, random: &mut Random) {
        let start = &mut self.0.start;
        let count = match random.below(10) {
            0 => random.below(3),
            1 | 2 => random.below(600),
            _ => random.below(40),
        };
        start.gpr[gpr::ECX] = start.gpr[gpr::ECX] & 0xffff_0000 | count;
        let is_16_bit = self.0.instruction.op_kinds().any(|kind| {
            matches!(kind, OpKind::MemorySegSI | OpKind::MemorySegDI | OpKind::MemoryESDI)
        });
        if !is_16_bit {
            start.gpr[gpr::ECX] = count;
        }
        start.gpr[gpr::ESI] = address(random);
        start.gpr[gpr::EDI] = address(random);
        if random.percent(60) {
            let value = random.below(256) * 0x0101_0101;
            for address in [start.gpr[gpr::ESI], start.gpr[gpr::EDI]] {
                self.poke(address.wrapping_sub(64), 32 + random.below(128), value);
            }
            if random.percent(70) {
                self.0.start.gpr[gpr::EAX] = value;
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

    /// If the instruction reads a selector, returns its distance in bytes from the operand's address, or from
    /// the top of the stack.
    fn selector_offset(&self) -> Option<u32> {
        match self.0.instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Pop => {
                self.0.instruction.op0_register().is_segment_register().then_some(0)
            }
            Mnemonic::Lar | Mnemonic::Lsl | Mnemonic::Verr | Mnemonic::Verw => Some(0),
            Mnemonic::Les | Mnemonic::Lds | Mnemonic::Lss => {
                Some(self.0.instruction.memory_size().size() as u32 - 2)
            }
            _ => None,
        }
    }

    /// Makes the selector that the instruction reads one that is the same on both sides: null, or the user's
    /// code or data with any RPL.
    fn set_selector(&mut self, random: &mut Random) {
        let Some(offset) = self.selector_offset() else { return };
        let selector = random.pick(&[CODE_SELECTOR, DATA_SELECTOR, 0]) & !3;
        let selector = selector | if random.percent(60) { 3 } else { random.below(4) as u16 };
        let value = u32::from(selector);
        for operand in 0..self.0.instruction.op_count() {
            let register = self.0.instruction.op_register(operand);
            if self.0.instruction.op_kind(operand) == OpKind::Register && register.is_gpr() {
                let number = register.full_register32().number();
                self.0.start.gpr[number] = self.0.start.gpr[number] & 0xffff_0000 | value;
            }
        }
        let address = self.selector_address().wrapping_add(offset);
        self.poke(address, 2, value);
    }

    /// Returns the operand's address, or the top of the stack.
    fn selector_address(&self) -> u32 {
        if self.0.instruction.op_kinds().any(|kind| kind == OpKind::Memory) {
            effective_address(&self.0.instruction, &self.0.start)
        } else {
            self.0.start.gpr[gpr::ESP]
        }
    }

    /// Returns whether the instruction may read a selector that this case has not put there, and that the
    /// host's descriptor table may contain.
    pub(crate) fn reads_unknown_selector(&self) -> bool {
        let Some(offset) = self.selector_offset() else { return false };
        let first = self.selector_address().wrapping_add(offset);
        let known =
            |address: u32| !LAYOUT.code.contains(address) && !LAYOUT.read_only.contains(address);
        !known(first) || !known(first.wrapping_add(1))
    }

    /// Returns the address of the memory operand.
    pub(crate) fn memory_address(&self) -> u32 {
        effective_address(&self.0.instruction, &self.0.start)
    }

    /// Moves the operands in memory to interesting addresses, and puts values there.
    fn set_operands(&mut self, random: &mut Random) {
        if self.0.instruction.op_kinds().any(|kind| kind == OpKind::Memory) {
            let mut target = address(random);
            if uses_vectors(self.0.instruction.code()) && random.percent(80) {
                target &= !15;
            }
            self.solve_address(target);
            let at = effective_address(&self.0.instruction, &self.0.start);
            self.poke_numbers(random, at);
            self.poke_mxcsr(random, at);
        }
        let at = self.0.start.gpr[gpr::ESP];
        self.poke_numbers(random, at);
    }

    /// Makes `target` the effective address, or nearly so, if a register can achieve that.
    fn solve_address(&mut self, target: u32) {
        let instruction = &self.0.instruction;
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let scale = instruction.memory_index_scale();
        let distance = target.wrapping_sub(instruction.memory_displacement32());
        let general = |register: Register| register.is_gpr32();
        if general(base) && base == index {
            self.0.start.gpr[base.number()] = distance / (scale + 1);
        } else if general(base) {
            let index = register_value(&self.0.start, index).wrapping_mul(scale);
            self.0.start.gpr[base.number()] = distance.wrapping_sub(index);
        } else if general(index) {
            self.0.start.gpr[index.number()] = distance / scale;
        }
    }

    /// Puts numbers at `address`: edges, the contents of registers, or addresses in the code.
    fn poke_numbers(&mut self, random: &mut Random, address: u32) {
        let kind = random.below(10);
        for index in 0..4 {
            let value = match kind {
                0..=4 => random.number(),
                5 => self.0.start.gpr[[gpr::EAX, gpr::EDX, gpr::ECX, gpr::EBX][index as usize]],
                6..=8 => LAYOUT.code.start + random.below(LAYOUT.code.len),
                _ => return,
            };
            let address = address.wrapping_add(4 * index);
            self.poke(address, 4, value);
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
                | Mnemonic::Scasb
                | Mnemonic::Scasw
                | Mnemonic::Scasd
        )
}

/// Returns the address of the instruction. Sometimes it crosses the boundary between the two code pages, or
/// extends beyond them.
fn instruction_address(random: &mut Random) -> u32 {
    let code = LAYOUT.code;
    match random.below(20) {
        0 => code.start + PAGE_SIZE - 1 - random.below(14),
        1 => code.end() - 1 - random.below(14),
        _ => code.start + random.below(code.len - 16),
    }
}

/// Returns a linear address for an operand: usually in the data region, often at a boundary.
pub(crate) fn address(random: &mut Random) -> u32 {
    let inside = |random: &mut Random, region: Region| region.start + random.below(region.len);
    let around = |random: &mut Random, boundary: u32| boundary + random.below(24) - 16;
    match random.below(100) {
        0..50 => inside(random, LAYOUT.data),
        50..66 => inside(random, LAYOUT.data) & !15,
        66..76 => {
            let page = LAYOUT.data.start + PAGE_SIZE * (1 + random.below(3));
            around(random, page)
        }
        76..84 => around(random, LAYOUT.data.end()),
        84..88 => around(random, LAYOUT.data.start),
        88..91 => around(random, LAYOUT.read_only.end()),
        91..94 => inside(random, LAYOUT.read_only),
        94..96 => inside(random, LAYOUT.code),
        _ => random.number(),
    }
}

/// Returns the value of a register in an address, or 0 if there is none.
fn register_value(state: &State, register: Register) -> u32 {
    if register == Register::None {
        return 0;
    }
    let value = state.gpr[register.full_register32().number()];
    match register.size() {
        1 => value & 0xff,
        2 => value & 0xffff,
        _ => value,
    }
}

/// Returns the offset of the memory operand in its segment.
fn effective_address(instruction: &Instruction, state: &State) -> u32 {
    let index = register_value(state, instruction.memory_index());
    register_value(state, instruction.memory_base())
        .wrapping_add(index.wrapping_mul(instruction.memory_index_scale()))
        .wrapping_add(instruction.memory_displacement32())
}
