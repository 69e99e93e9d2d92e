//! Accesses to devices that are finished without the engine.

use ring3_core::memory::{Backing, Memory};
use ring3_x86::cpu::{Cpu, Cr0, reg};
use ring3_x86::device_access::PortString;
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::segment::{Attributes, Segment, sreg};

const PORT: u16 = 0x1f0;
/// The address of a device in memory.
const DEVICE: u32 = 0xa_0000;

/// The results of a run.
struct Run {
    cpu: Cpu,
    memory: Memory,
    exit: Exit,
    /// The values written to ports.
    written: Vec<u32>,
    /// Number of accesses that were finished without the engine.
    finished: u32,
    /// Number of elements that were moved together with others.
    moved: u64,
}

impl PartialEq for Run {
    fn eq(&self, other: &Run) -> bool {
        let of = |run: &Run| (run.exit.clone(), run.cpu.save(), run.written.clone());
        of(self) == of(other) && self.memory.contents() == other.memory.contents()
    }
}

/// Runs `code` until the HLT after it, or until another event ends it. It finishes accesses without the
/// engine if that is possible and `quick` is true.
fn run(code: &[u8], prepare: impl Fn(&mut Cpu), quick: bool) -> Run {
    run_moving(code, prepare, quick, 0)
}

/// Runs like [`run`], with a device that moves up to `many` elements at once.
fn run_moving(code: &[u8], prepare: impl Fn(&mut Cpu), quick: bool, many: usize) -> Run {
    let mut memory = Memory::new(1 << 20).unwrap();
    memory.load_image(0x7c00, code).unwrap();
    let data: Vec<_> = (0..0x1_0000_u32).map(|n| n.wrapping_mul(0x9d) as u8).collect();
    memory.load_image(0x2_0000, &data).unwrap();
    memory.map(DEVICE.into(), 0x2_0000, Backing::Device, Backing::Device).unwrap();
    let mut cpu = Cpu::new();
    cpu.set_real_mode_entry(0, 0x7c00);
    cpu.set_gpr(reg::DX, PORT.into());
    let segment =
        |selector: u16| Segment::new(selector, u64::from(selector) << 4, 0xffff, Attributes(0x93));
    cpu.set_segment(sreg::ES, segment(0x1000));
    cpu.set_segment(sreg::DS, segment(0x2000));
    prepare(&mut cpu);
    let mut engine = Interpreter::new();
    let (mut next, mut finished, mut written) = (0x1234_5678_u32, 0, Vec::new());
    let mut moved = 0;
    let after = |value: u32| value.wrapping_mul(0x9e37_79b1).rotate_left(7);
    loop {
        let budget = many as u64 + 1;
        moved += cpu.move_port_string(&mut memory, budget, |port, width, string| {
            assert_eq!(port, PORT);
            let size = usize::from(width.bytes());
            match string {
                PortString::Read(bytes) => {
                    let elements = bytes.chunks_exact_mut(size).take(many);
                    elements
                        .map(|element| {
                            next = after(next);
                            element.copy_from_slice(&next.to_le_bytes()[..size]);
                        })
                        .count()
                }
                PortString::Write(bytes) => {
                    let elements = bytes.chunks_exact(size).take(many);
                    let values = elements.map(|element| {
                        element.iter().rfold(0, |value, byte| value << 8 | u32::from(*byte))
                    });
                    let before = written.len();
                    written.extend(values);
                    written.len() - before
                }
            }
        });
        let exit = match cpu.next_access(&mut memory, 1) {
            Some(exit) => exit,
            None => engine.run(&mut cpu, &mut memory, 1),
        };
        match exit {
            Exit::PortRead { port: PORT, .. } => {
                next = after(next);
            }
            Exit::MmioRead { address, .. } => {
                next = after(next ^ address as u32);
            }
            Exit::PortWrite { port: PORT, value, .. } => written.push(value),
            Exit::MmioWrite { address, value, .. } => {
                written.extend([address as u32, value]);
            }
            // An exception leads to zeros.
            Exit::Deadline if cpu.instructions < 100 => continue,
            exit => return Run { cpu, memory, exit, written, finished, moved },
        }
        if quick && cpu.finish_access(&mut memory, next, false) {
            finished += 1;
        } else {
            cpu.answer(next.into());
        }
    }
}

#[test]
fn iterations_agree_with_the_engine() {
    // INSB, INSW, and with prefixes INSD and 32-bit addresses; the same for OUTS; then HLT.
    let codes: [&[u8]; 8] = [
        &[0xf3, 0x6c, 0xf4],
        &[0xf3, 0x6d, 0xf4],
        &[0xf3, 0x66, 0x6d, 0xf4],
        &[0xf3, 0x67, 0x6d, 0xf4],
        &[0xf3, 0x6e, 0xf4],
        &[0xf3, 0x6f, 0xf4],
        &[0xf3, 0x66, 0x6f, 0xf4],
        &[0xf3, 0x67, 0x26, 0x6f, 0xf4],
    ];
    for code in codes {
        for (index, backward) in [(0x4000, false), (0xfff0, false), (0x0006, true), (0x1ffd, false)]
        {
            let prepare = |cpu: &mut Cpu| {
                cpu.set_gpr(reg::CX, 40);
                cpu.set_gpr(reg::DI, index);
                cpu.set_gpr(reg::SI, index);
                cpu.set_eflags(if backward { Eflags::DF } else { Eflags::empty() });
            };
            let ours = run(code, prepare, true);
            let right = run(code, prepare, false);
            assert!(ours == right, "{code:x?} {index:x}");
            assert!(ours.finished > 0 && right.finished == 0, "{code:x?} {index:x}");
            for many in [1, 7, 1000] {
                let ours = run_moving(code, prepare, true, many);
                assert!(ours == right, "{code:x?} {index:x} {many}");
                assert_eq!(ours.moved > 0, !backward, "{code:x?} {index:x} {many}");
            }
        }
    }
}

/// The TSS, its bit map, and the byte of the map for [`PORT`], which is the last one.
const TSS: u64 = 0x8000;
const BIT_MAP: u16 = 0x68;
const PERMISSION: u64 = TSS + BIT_MAP as u64 + PORT as u64 / 8;

/// Puts the processor into protected mode at privilege level 3, with a TSS that has a map of ports to
/// [`PORT`].
fn as_user(cpu: &mut Cpu) {
    cpu.set_cr0(cpu.cr0() | Cr0::PE);
    let segment =
        |selector, attributes| Segment::new(selector, 0, 0xffff_ffff, Attributes(attributes));
    cpu.set_segment(sreg::CS, segment(0x1b, 0xc0fb));
    for register in [sreg::SS, sreg::DS, sreg::ES] {
        cpu.set_segment(register, segment(0x23, 0xc0f3));
    }
    cpu.tr = Segment::new(0x28, TSS, (PERMISSION - TSS) as u32 + 1, Attributes(0x8b));
    cpu.set_gpr(reg::CX, 40);
}

#[test]
fn rights_to_ports_are_asked_for_as_by_the_engine() {
    // MOV WORD PTR [TSS + 66h], BIT_MAP; INSB or OUTSB; then HLT, which is refused.
    let code = |string: u8| {
        let mut code = vec![0x66, 0xc7, 0x05];
        code.extend((TSS as u32 + 0x66).to_le_bytes());
        code.extend(BIT_MAP.to_le_bytes());
        code.extend([0xf3, string, 0xf4]);
        code
    };
    // Elements elsewhere, and over the map.
    for (string, index, moves) in
        [(0x6c, 0x1_4000, true), (0x6c, PERMISSION - 16, false), (0x6e, 0x2_4000, true)]
    {
        let code = code(string);
        let prepare = |cpu: &mut Cpu| {
            as_user(cpu);
            cpu.set_gpr(reg::DI, index);
            cpu.set_gpr(reg::SI, index);
        };
        let right = run(&code, prepare, false);
        for many in [0, 1, 7, 1000] {
            let ours = run_moving(&code, prepare, true, many);
            assert!(ours == right, "{string:x} {index:x} {many}");
            assert!(ours.finished > 0, "{string:x} {index:x} {many}");
            assert_eq!(ours.moved > 0, moves && many > 0, "{string:x} {index:x} {many}");
        }
        // The map allows all elements, or those before the one that follows a byte with its bit.
        assert!((right.cpu.gpr(reg::CX) == 0) == moves, "{string:x} {index:x}");
    }
}

#[test]
fn plain_accesses_agree_with_the_engine() {
    // IN and OUT of each size, by DX; INC AX in between; HLT.
    let code = [0xec, 0x40, 0xed, 0x40, 0x66, 0xed, 0xee, 0x40, 0xef, 0x66, 0xef, 0xf4];
    let prepare = |cpu: &mut Cpu| cpu.set_gpr(reg::AX, 0x1122_3344);
    let ours = run(&code, prepare, true);
    assert!(ours == run(&code, prepare, false));
    assert_eq!((ours.finished, ours.written.len(), &ours.exit), (6, 3, &Exit::Halt));
}

/// Points DS and ES to the device.
fn at_device(cpu: &mut Cpu) {
    let segment = Segment::new(0xa000, DEVICE.into(), 0xffff, Attributes(0x93));
    cpu.set_segment(sreg::DS, segment);
    cpu.set_segment(sreg::ES, segment);
}

#[test]
fn moves_to_and_from_devices_agree_with_the_engine() {
    // MOV [BX], AL; MOV AL, [BX]; MOV [BX], AX; MOV AX, [BX]; with prefixes the same with EAX; MOV [BX],
    // numbers of each size; MOVZX of AX and EAX from a byte, and of EAX from a word; HLT.
    let code = [
        0x88, 0x07, 0x8a, 0x07, 0x89, 0x07, 0x8b, 0x07, 0x66, 0x89, 0x07, 0x66, 0x8b, 0x07, 0xc6,
        0x07, 0x12, 0xc7, 0x07, 0x34, 0x12, 0x66, 0xc7, 0x07, 0x78, 0x56, 0x34, 0x12, 0x0f, 0xb6,
        0x07, 0x66, 0x0f, 0xb6, 0x07, 0x66, 0x0f, 0xb7, 0x07, 0xf4,
    ];
    // The access is in one page, and across two.
    for (offset, finished) in [(0x123, 12), (0xfff, 5)] {
        let prepare = |cpu: &mut Cpu| {
            at_device(cpu);
            cpu.set_gpr(reg::AX, 0x1122_3344);
            cpu.set_gpr(reg::BX, offset);
        };
        let ours = run(&code, prepare, true);
        assert!(ours == run(&code, prepare, false), "{offset:x}");
        assert_eq!((ours.finished, &ours.exit), (finished, &Exit::Halt), "{offset:x}");
    }
}

#[test]
fn repeated_writes_to_a_device_agree_with_the_engine() {
    // STOSB, STOSW, and with prefixes STOSD and 32-bit addresses; then HLT.
    let codes: [&[u8]; 4] = [
        &[0xf3, 0xaa, 0xf4],
        &[0xf3, 0xab, 0xf4],
        &[0xf3, 0x66, 0xab, 0xf4],
        &[0xf3, 0x67, 0xab, 0xf4],
    ];
    for code in codes {
        // Elements within a page, from one page to the next, and beyond the end of the segment.
        for (index, backward) in
            [(0x4000, false), (0x0fe1, false), (0x1010, true), (0x0006, true), (0xffe0, false)]
        {
            let prepare = |cpu: &mut Cpu| {
                at_device(cpu);
                cpu.set_gpr(reg::AX, 0x1122_3344);
                cpu.set_gpr(reg::CX, 40);
                cpu.set_gpr(reg::DI, index);
                cpu.set_eflags(if backward { Eflags::DF } else { Eflags::empty() });
            };
            let ours = run(code, prepare, true);
            let right = run(code, prepare, false);
            assert!(ours == right, "{code:x?} {index:x}");
            assert!(ours.finished > 0 && right.finished == 0, "{code:x?} {index:x}");
        }
    }
}

#[test]
fn a_repeated_access_is_not_gone_on_with_after_a_pause() {
    let mut memory = Memory::new(1 << 20).unwrap();
    memory.load_image(0x7c00, &[0xf3, 0x6c, 0xf4]).unwrap();
    let mut engine = Interpreter::new();
    for (left, goes_on) in [(1, true), (0, false)] {
        let mut cpu = Cpu::new();
        cpu.set_real_mode_entry(0, 0x7c00);
        cpu.set_gpr(reg::DX, PORT.into());
        cpu.set_gpr(reg::CX, 40);
        cpu.set_gpr(reg::DI, 0x4000);
        // The first iteration brings the place in memory of the second one into the TLB.
        let exit = engine.run(&mut cpu, &mut memory, 1);
        assert!(matches!(exit, Exit::PortRead { port: PORT, .. }));
        cpu.answer(7);
        assert_eq!(engine.run(&mut cpu, &mut memory, 1), Exit::Deadline);
        let exit = engine.run(&mut cpu, &mut memory, 1);
        assert!(matches!(exit, Exit::PortRead { port: PORT, .. }));
        assert!(cpu.finish_access(&mut memory, 7, false));
        assert_eq!(cpu.next_access(&mut memory, left).is_some(), goes_on);
        assert_eq!(cpu.next_access(&mut memory, 1).is_some(), goes_on);
    }
}

#[test]
fn conditions_around_an_instruction_are_left_to_the_engine() {
    // STI; IN: interrupts are held back until after the IN.
    let ours = run(&[0xfb, 0xec, 0xf4], |_| {}, true);
    assert_eq!((ours.finished, ours.exit), (0, Exit::Halt));
    // A single step, whose exception comes after the IN.
    let steps = |cpu: &mut Cpu| cpu.set_eflags(Eflags::TF);
    let ours = run(&[0xec, 0xf4], steps, true);
    assert_eq!(ours.finished, 0);
    assert!(ours == run(&[0xec, 0xf4], steps, false));
}
