//! Every x87 instruction against the processor of the host, in random states.
//!
//! `RING3_FUZZ_CASES` says how many cases there are, `RING3_FUZZ_SEED` which. On a
//! host where no single instruction can be run the tests pass without doing anything.
//!
//! What is not compared, and why:
//!
//! | what | why |
//! | --- | --- |
//! | instruction, operand and opcode pointers | Processors differ in when they keep them; hosts only show them with an exception pending. |
//! | C1 after FFREE, FFREEP, FNOP and FNSTCW etc. | compared: they leave it alone |
//!
//! FPREM and FPREM1 may reduce by less than they could at a time, and processors of
//! different makers do: these two are only compared on AMD.

mod guest;

use guest::Guest;
use iced_x86::{Code, Decoder, DecoderOptions, Formatter, Instruction, NasmFormatter};
use ring3_hostcpu::{Cpu as HostCpu, Layout, Region, Runner, State, Stop, Vendor, eflags};
use ring3_x86::table;

const LAYOUT: Layout = Layout::FIXED;

/// Random numbers (SplitMix64, by Guy Steele and others, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True once in `n` times.
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A fraction field of 64 bits: often all zeros or ones but for a few bits.
    fn fraction(&mut self) -> u64 {
        let bits = self.next();
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << (bits & 63),
            3 => u64::MAX << (bits & 63),
            4 => u64::MAX >> (bits & 63),
            5 => bits << 40,
            _ => bits,
        }
    }

    /// A value in the registers' format: of any class, and the exponents that matter more often.
    fn f80(&mut self) -> [u8; 10] {
        let exponent = match self.below(16) {
            0 => 0,
            1 => 0x7fff,
            2 => 1 + self.below(3),
            3 => 0x7ffe - self.below(3),
            4 => 0x3fff - 0x7f + self.below(5) - 2,
            5 => 0x3fff - 0x3ff + self.below(5) - 2,
            6 => 0x3fff + 0x7f + self.below(5) - 2,
            7 => 0x3fff + 0x3ff + self.below(5) - 2,
            8 => self.next(),
            9..12 => 0x3fff + self.below(70) - 4,
            _ => 0x3fff + self.below(5) - 2,
        };
        let integer_bit = u64::from(exponent & 0x7fff != 0) << 63;
        let unusual = if self.one_in(12) { 1 << 63 } else { 0 };
        let significand = (self.fraction() >> 1 | integer_bit) ^ unusual;
        let sign = self.next() & 0x8000;
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&significand.to_le_bytes());
        bytes[8..].copy_from_slice(&((exponent & 0x7fff | sign) as u16).to_le_bytes());
        bytes
    }

    /// A value in an IEEE format with an exponent of `exponent_bits` and a fraction of
    /// `fraction_bits` bits.
    fn ieee(&mut self, exponent_bits: u32, fraction_bits: u32) -> u64 {
        let maximum = (1 << exponent_bits) - 1;
        let exponent = match self.below(8) {
            0 => 0,
            1 => maximum,
            2 => 1,
            3 => maximum - 1,
            4 => self.below(maximum + 1),
            _ => maximum / 2 + self.below(9) - 4,
        };
        let sign = self.below(2);
        let fraction = self.fraction() >> (64 - fraction_bits);
        (sign << exponent_bits | exponent) << fraction_bits | fraction
    }

    /// A memory operand in one of the formats; more bytes follow.
    fn operand(&mut self) -> [u8; 112] {
        let mut bytes = [0; 112];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
        match self.below(6) {
            0 => bytes[..4].copy_from_slice(&(self.ieee(8, 23) as u32).to_le_bytes()),
            1 => bytes[..8].copy_from_slice(&self.ieee(11, 52).to_le_bytes()),
            2 => bytes[..10].copy_from_slice(&self.f80()),
            3 => {
                let integer = self.fraction() ^ (self.next() & 1).wrapping_neg();
                bytes[..8].copy_from_slice(&integer.to_le_bytes());
            }
            4 => {
                for pair in &mut bytes[..9] {
                    *pair = (self.below(10) << 4 | self.below(10)) as u8;
                }
            }
            _ => {}
        }
        bytes
    }
}

/// All x87 encodings, each once, whose form is in the instruction table; those with a memory
/// operand have an absolute address, which is yet to be filled in.
fn encodings() -> Vec<Vec<u8>> {
    let mut encodings = vec![vec![0x9b]];
    for opcode in 0xd8..=0xdf {
        for modrm in 0xc0..=0xff {
            encodings.push(vec![opcode, modrm]);
        }
        for field in 0..8 {
            let memory = [opcode, field << 3 | 5, 0, 0, 0, 0];
            encodings.push(memory.to_vec());
            encodings.push([&[0x66], &memory[..]].concat());
        }
    }
    encodings.retain(|bytes| {
        let instruction = decode(bytes);
        !instruction.is_invalid() && table::find(instruction.code()).is_some()
    });
    encodings
}

fn decode(bytes: &[u8]) -> Instruction {
    Decoder::new(32, bytes, DecoderOptions::NONE).decode()
}

/// A random x87 state at the start of the code region.
fn start_state(random: &mut Random) -> State {
    let mut state = State::at(LAYOUT.code.start);
    state.eflags |= random.next() as u32 & eflags::STATUS;
    state.gpr[0] = random.next() as u32;
    let fx = &mut state.fx;
    for i in 0..8 {
        fx.set_st(i, random.f80());
    }
    fx.set_ftw(match random.below(4) {
        0 => random.next() as u8,
        1 => 1 << random.below(8),
        2 => !(1 << random.below(8)),
        _ => 0xff,
    });
    let masks = if random.one_in(2) { 0x3f } else { random.next() as u16 & 0x3f };
    let precision = random.pick(&[0, 2, 3, 3, 3]) << 8;
    let rounding = (random.below(4) as u16) << 10;
    let infinity = (random.below(2) as u16) << 12;
    fx.set_fcw(masks | precision | rounding | infinity | 0x40);
    let mut status = random.next() as u16 & 0x7f7f;
    if random.one_in(2) {
        status &= !0x7f;
    } else if !random.one_in(4) {
        status &= !0x3f | masks;
    }
    if status & 0x3f & !masks != 0 {
        status |= 0x8080;
    }
    if random.one_in(2) {
        // One that is at the edge of the stack.
        let full_from = status >> 11 & 7;
        fx.set_ftw(if random.one_in(2) { 0xff } else { !(1 << ((full_from + 7) & 7)) });
    }
    fx.set_fsw(status);
    state
}

/// Where the memory operand is: mostly inside the data region, else across one of its ends.
fn operand_address(random: &mut Random) -> u32 {
    let Region { start, .. } = LAYOUT.data;
    match random.below(16) {
        0 => start - random.below(120) as u32,
        1 => LAYOUT.data.end() - random.below(120) as u32,
        2 => LAYOUT.read_only.end() - random.below(120) as u32,
        3 => start + 0x1000 - random.below(120) as u32,
        _ => start + random.below(0x1000) as u32,
    }
}

/// The bytes of an environment that hold pointers, which are not compared.
fn pointer_bytes(code: Code) -> std::ops::Range<usize> {
    match code {
        Code::Fnstenv_m14byte | Code::Fnsave_m94byte => 6..14,
        Code::Fnstenv_m28byte | Code::Fnsave_m108byte => 12..28,
        _ => 0..0,
    }
}

/// Instructions whose memory operand is a whole state: processors access it in an order of their own.
fn is_image(code: Code) -> bool {
    let is_load = matches!(
        code,
        Code::Fldenv_m14byte | Code::Fldenv_m28byte | Code::Frstor_m94byte | Code::Frstor_m108byte
    );
    is_load || !pointer_bytes(code).is_empty()
}

fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

#[test]
fn random_instructions_do_the_same() {
    let mut host = match Runner::new() {
        Ok(host) => host,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    let is_amd = HostCpu::detect().is_some_and(|cpu| cpu.vendor == Vendor::Amd);
    let cases = environment("RING3_FUZZ_CASES", 1_000_000);
    let seed = environment("RING3_FUZZ_SEED", 1);
    let encodings = encodings();
    let mut guest = Guest::new();
    let mut differences = 0;
    let mut names = std::collections::BTreeMap::new();
    for case in 0..cases {
        let mut random = Random(seed.wrapping_add(case << 20));
        let mut code = random.pick(&encodings.iter().collect::<Vec<_>>()[..]).clone();
        let instruction = decode(&code);
        if !is_amd && matches!(instruction.code(), Code::Fprem | Code::Fprem1) {
            continue;
        }
        let address = operand_address(&mut random);
        if code.len() > 2 {
            let at = code.len() - 4;
            code[at..].copy_from_slice(&address.to_le_bytes());
        }
        let start = start_state(&mut random);
        let operand = random.operand();
        let data = LAYOUT.data;
        let mut image = vec![0; data.len as usize];
        for (index, byte) in operand.iter().enumerate() {
            let place = address.wrapping_sub(data.start).wrapping_add(index as u32);
            if let Some(slot) = image.get_mut(place as usize) {
                *slot = *byte;
            }
        }
        host.data_mut().copy_from_slice(&image);
        guest.fill(data, &image);

        let (host_end, mut host_stop) = host.run(&start, &code).unwrap();
        let (guest_end, mut guest_stop) = guest.run(&start, &code);

        if is_image(instruction.code()) {
            for stop in [&mut host_stop, &mut guest_stop] {
                if let Stop::Exception { cr2, .. } = stop {
                    *cr2 &= !0xfff;
                }
            }
        }
        let mut host_data = host.data().to_vec();
        for byte in pointer_bytes(instruction.code()) {
            let place = address.wrapping_sub(data.start) as usize + byte;
            if let (Some(slot), Some(ours)) = (host_data.get_mut(place), guest.data().get(place)) {
                *slot = *ours;
            }
        }
        let same_state = same(&host_end, &guest_end) && host_stop == guest_stop;
        if same_state && host_data == guest.data() {
            continue;
        }
        differences += 1;
        *names.entry(format!("{:?}", instruction.code())).or_insert(0) += 1;
        if names[&format!("{:?}", instruction.code())] > 2 {
            continue;
        }
        let mut text = String::new();
        NasmFormatter::new().format(&decode(&code), &mut text);
        println!("case {case}: {text}  {code:02x?}\n  start {}", show(&start));
        println!("  host  {} {host_stop:x?}", show(&host_end));
        println!("  guest {} {guest_stop:x?}", show(&guest_end));
        let place = address.wrapping_sub(data.start) as usize;
        println!("  operand {:02x?}", &operand[..28]);
        if host_data != guest.data() {
            let end = (place + 108).min(image.len());
            let place = place.min(end);
            println!("  host  {:02x?}", &host_data[place..end]);
            println!("  guest {:02x?}", &guest.data()[place..end]);
        }
    }
    println!("{names:?}");
    assert_eq!(differences, 0);
}

fn same(a: &State, b: &State) -> bool {
    let registers = (0..8).all(|i| a.fx.st(i) == b.fx.st(i));
    let words = a.fx.fcw() == b.fx.fcw() && a.fx.fsw() == b.fx.fsw() && a.fx.ftw() == b.fx.ftw();
    registers && words && a.gpr == b.gpr && a.eip == b.eip && a.eflags == b.eflags
}

fn show(state: &State) -> String {
    let fx = &state.fx;
    let registers: Vec<String> = (0..8)
        .map(|i| fx.st(i).iter().rev().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    format!(
        "eip {:x} eax {:x} flags {:x} fcw {:04x} fsw {:04x} top {} ftw {:08b} st {}",
        state.eip,
        state.gpr[0],
        state.eflags,
        fx.fcw(),
        fx.fsw(),
        fx.top(),
        fx.ftw(),
        registers.join(" ")
    )
}
