//! Far calls and INT n that push over the descriptor of the code segment that they load. The processor reads
//! the descriptor before it pushes (SDM vol. 2, CALL and INT n).

use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::segment::{Attributes, Segment, sreg};

use crate::machine::*;
use crate::pair::{Pair, continue_handler_at};

const TARGET: u32 = CODE + 0x1000;
const VECTOR: u8 = 0x40;
/// Rounds of the program. The interpreter executes the transfer in the first ones.
const ROUNDS: u32 = 12;
const LIMIT: u64 = 2000;

/// Begins a round: sets ESP to EDX, and goes to [`TARGET`] by `transfer`.
fn program(transfer: &[u8]) -> Vec<u8> {
    [&[0x89, 0xd4][..], transfer].concat() // MOV ESP, EDX
}

/// Logs the descriptor, repairs it, and begins the next of EBP rounds.
fn target() -> Vec<u8> {
    let descriptor = GDT + u32::from(KERNEL_CODE);
    let value = flat(CODE_SEGMENT);
    let mut code = Vec::new();
    for (at, value) in [(descriptor, value as u32), (descriptor + 4, (value >> 32) as u32)] {
        code.extend([&[0x26, 0xa1][..], &at.to_le_bytes(), &[0xab]].concat()); // MOV EAX, ES:[at]; STOSD
        code.extend([&[0x26, 0xc7, 0x05][..], &at.to_le_bytes(), &value.to_le_bytes()].concat());
    }
    code.extend([0x4d, 0x74, 5, 0xe9]); // DEC EBP; JZ to HLT; JMP to the program
    code.extend(CODE.wrapping_sub(TARGET + code.len() as u32 + 4).to_le_bytes());
    code.push(0xf4);
    code
}

/// `is_flat` says that DS is a flat segment. Otherwise it has a limit, and the code is segmented.
fn begin(machine: &mut Machine, transfer: &[u8], is_flat: bool, pointer: u32) {
    machine.reset_processor();
    machine.set_descriptor(KERNEL_CODE, flat(CODE_SEGMENT));
    machine.set_descriptor(KERNEL_DATA, flat(DATA_SEGMENT));
    machine.set_descriptor(FREE, limited(DATA_SEGMENT, 0xffff));
    machine.set_gate(VECTOR, KERNEL_CODE, INTERRUPT_GATE);
    machine.put(CODE, &program(transfer));
    machine.put(TARGET, &target());
    continue_handler_at(machine, VECTOR, TARGET);
    if !is_flat {
        let limit = Segment::new(FREE, 0, 0xffff, Attributes(DATA_SEGMENT.into()));
        machine.cpu.set_segment(sreg::DS, limit);
    }
    machine.cpu.set_gpr(reg::BP, ROUNDS.into());
    machine.cpu.set_gpr(reg::DX, pointer.into());
    machine.cpu.set_gpr(reg::DI, DATA.into());
}

#[test]
fn the_descriptor_is_read_before_the_pushes() {
    let call = [&[0x9a][..], &TARGET.to_le_bytes(), &KERNEL_CODE.to_le_bytes()].concat();
    let interrupt = vec![0xcd, VECTOR];
    for (transfer, is_flat) in
        [&call, &interrupt].into_iter().flat_map(|transfer| [(transfer, true), (transfer, false)])
    {
        let Some(mut pair) = Pair::new() else { return };
        // The pushes end before, in and after the descriptor.
        for pointer in (GDT + 4..GDT + 0x20).step_by(2) {
            pair.each(|machine| begin(machine, transfer, is_flat, pointer));
            assert_eq!(pair.each(|machine| machine.run_for(LIMIT)), Exit::Halt);
            pair.compare();
            assert_eq!(pair.right.get(reg::BP), 0, "{}", pair.reports());
        }
    }
}
