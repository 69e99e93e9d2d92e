//! Measures how many blocks of 64-bit code a second are translated, each of which is executed once, and how long the
//! same blocks take once they are. They are as compilers make them, with seven instructions each.
//!
//! Criterion's `Kelem/s` are thousands of blocks a second.

use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput};
use ring3_core::memory::Memory;
use ring3_translator::Translator;
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::segment::{Attributes, Segment, sreg};
use ring3_x86::undefined::Vendor;

const MEMORY: u64 = 8 << 20;
/// Guest-physical addresses of page tables, and of what they map: a page of 2 MiB with code, and one with data.
const TABLES: u64 = 0x1000;
const CODE: u64 = 0x20_0000;
const DATA: u64 = 0x40_0000;
/// The linear address of both, as in Linux's kernel.
const LINEAR: u64 = 0xffff_ffff_8100_0000;
const DATA_LINEAR: u64 = LINEAR + 0x20_0000;
/// How often each of the blocks is there.
const COPIES: u64 = 2000;

/// Blocks. RDI is the address of the data. Behind each is a jump to the next one.
#[rustfmt::skip]
const BLOCKS: [&[&[u8]]; 5] = [
    &[
        &[0x55],                               // PUSH RBP
        &[0x48, 0x89, 0xe5],                   // MOV RBP, RSP
        &[0x53],                               // PUSH RBX
        &[0x48, 0x8b, 0x47, 0x08],             // MOV RAX, [RDI + 8]
        &[0x5b],                               // POP RBX
        &[0x5d],                               // POP RBP
    ],
    &[
        &[0x48, 0x8b, 0x47, 0x10],             // MOV RAX, [RDI + 16]
        &[0x48, 0x85, 0xc0],                   // TEST RAX, RAX
        &[0x74, 0x04],                         // JE over the next one
        &[0x48, 0x8b, 0x4f, 0x18],             // MOV RCX, [RDI + 24]
        &[0x48, 0x8d, 0x54, 0x88, 0x08],       // LEA RDX, [RAX + RCX * 4 + 8]
        &[0x48, 0x89, 0x57, 0x20],             // MOV [RDI + 32], RDX
    ],
    &[
        &[0x0f, 0xb6, 0x47, 0x05],             // MOVZX EAX, byte [RDI + 5]
        &[0x83, 0xf8, 0x2f],                   // CMP EAX, 47
        &[0x74, 0x02],                         // JE over the next one
        &[0x01, 0xc3],                         // ADD EBX, EAX
        &[0xc1, 0xe3, 0x02],                   // SHL EBX, 2
        &[0x89, 0x5f, 0x28],                   // MOV [RDI + 40], EBX
    ],
    &[
        &[0x4c, 0x8b, 0x47, 0x30],             // MOV R8, [RDI + 48]
        &[0x49, 0x83, 0xc0, 0x01],             // ADD R8, 1
        &[0x4c, 0x89, 0x47, 0x30],             // MOV [RDI + 48], R8
        &[0x48, 0x89, 0xfe],                   // MOV RSI, RDI
        &[0x48, 0x83, 0xc6, 0x40],             // ADD RSI, 64
        &[0x48, 0x83, 0x3e, 0x00],             // CMP qword [RSI], 0
    ],
    &[
        &[0x48, 0x83, 0xec, 0x18],             // SUB RSP, 24
        &[0xf3, 0x0f, 0x6f, 0x47, 0x50],       // MOVDQU XMM0, [RDI + 80]
        &[0x0f, 0x11, 0x04, 0x24],             // MOVUPS [RSP], XMM0
        &[0x48, 0x8b, 0x04, 0x24],             // MOV RAX, [RSP]
        &[0x31, 0xd2],                         // XOR EDX, EDX
        &[0x48, 0x83, 0xc4, 0x18],             // ADD RSP, 24
    ],
];

/// A processor in 64-bit mode, and what it executes.
struct Guest {
    engine: Translator,
    memory: Memory,
    cpu: Cpu,
}

impl Guest {
    /// Returns None on hosts that cannot have a translator.
    fn new() -> Option<Guest> {
        const PRESENT: u64 = 3;
        const LARGE: u64 = 0x83;
        let (engine, mut memory) = Translator::with_memory(MEMORY).ok()?;
        let mut put = |address: u64, entry: u64| memory.write(address, &entry.to_le_bytes());
        put(TABLES + 511 * 8, (TABLES + 0x1000) | PRESENT);
        put(TABLES + 0x1000 + 510 * 8, (TABLES + 0x2000) | PRESENT);
        put(TABLES + 0x2000 + 8 * 8, CODE | LARGE);
        put(TABLES + 0x2000 + 9 * 8, DATA | LARGE);
        let mut place = CODE;
        for block in BLOCKS.iter().cycle().take(BLOCKS.len() * COPIES as usize) {
            // JMP to the next instruction
            let code = [&block.concat()[..], &[0xeb, 0]].concat();
            memory.write(place, &code);
            place += code.len() as u64;
        }
        memory.write(place, &[0xec]); // IN AL, DX
        assert!(place < DATA, "the code fits in its page");

        let mut cpu = Cpu::of_model(Model::Qemu64);
        cpu.vendor = Vendor::of_host();
        cpu.msrs.long.enabled = true;
        cpu.set_cr4(Cr4::PAE | Cr4::OSFXSR);
        cpu.set_cr3(TABLES);
        cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
        let segment = |selector, access| Segment::new(selector, 0, u32::MAX, Attributes(access));
        cpu.set_segment(sreg::CS, segment(0x10, 0xa09b));
        for register in [sreg::SS, sreg::DS, sreg::ES] {
            cpu.set_segment(register, segment(0x18, 0xc093));
        }
        Some(Guest { engine, memory, cpu })
    }

    /// Executes all blocks. Returns how long that took.
    fn run(&mut self) -> Duration {
        self.cpu.ip = LINEAR;
        self.cpu.set_gpr(reg::DI, DATA_LINEAR);
        self.cpu.set_gpr(reg::SP, DATA_LINEAR + 0x1000);
        let begin = Instant::now();
        let exit = self.engine.run(&mut self.cpu, &mut self.memory, u64::MAX);
        let time = begin.elapsed();
        assert!(matches!(exit, Exit::PortRead { .. }), "the code ended with {exit:?}");
        time
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    if Guest::new().is_none() {
        println!("this host cannot have a translator");
        return;
    }
    let mut group = criterion.benchmark_group("blocks");
    group.throughput(Throughput::Elements(BLOCKS.len() as u64 * COPIES));
    group.sampling_mode(SamplingMode::Flat);
    group.bench_function("translated and executed", |bencher| {
        bencher.iter_custom(|iterations| {
            (0..iterations).map(|_| Guest::new().expect("there was one").run()).sum()
        });
    });
    group.bench_function("executed again", |bencher| {
        let mut guest = Guest::new().expect("there was one");
        guest.run();
        bencher.iter_custom(|iterations| (0..iterations).map(|_| guest.run()).sum());
    });
    group.finish();
    criterion.final_summary();
}
