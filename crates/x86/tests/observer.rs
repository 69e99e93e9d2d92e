//! An observer receives all events, and changes nothing.

use std::sync::{Arc, Mutex};

use ring3_core::memory::Memory;
use ring3_x86::cpu::Cpu;
use ring3_x86::decode::Op;
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::interpreter::Interpreter;
use ring3_x86::interrupt::Event;
use ring3_x86::observer::{MemoryAccess, Observer};

const CODE: u16 = 0x7c00;
/// The address of the handler of #UD.
const HANDLER: u16 = 0x600;

/// Records the events that it receives.
#[derive(Debug, Default, Clone)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }
}

impl Observer for Diary {
    fn block(&mut self, cpu: &Cpu) {
        self.note(format!("block {:x}", cpu.ip));
    }

    fn instruction(&mut self, cpu: &Cpu, op: &Op) {
        let code = op.form.form().map(|form| form.code);
        self.note(format!("{:x} {code:?}", cpu.ip));
    }

    fn event(&mut self, cpu: &Cpu, event: &Event) {
        self.note(format!("event {} at {:x}", event.vector, cpu.ip));
    }

    fn wants_accesses(&self) -> bool {
        true
    }

    fn access(&mut self, _: &Cpu, access: MemoryAccess) {
        let MemoryAccess { linear, bytes, writes } = access;
        self.note(format!("{} {bytes} at {linear:x}", if writes { "write" } else { "read" }));
    }
}

/// Runs inc word [1000h]; jmp short +0; ud2, whose handler halts.
fn run(engine: &mut Interpreter) -> Cpu {
    let mut memory = Memory::new(1 << 20).unwrap();
    let code = [0xff, 0x06, 0x00, 0x10, 0xeb, 0x00, 0x0f, 0x0b];
    memory.write(CODE.into(), &code);
    memory.write(6 * 4, &HANDLER.to_le_bytes());
    memory.write(HANDLER.into(), &[0xf4]);
    let mut cpu = Cpu::new();
    cpu.set_real_mode_entry(0, CODE);
    cpu.set_gpr(ring3_x86::cpu::reg::SP, 0x2000);
    assert_eq!(engine.run(&mut cpu, &mut memory, 100), Exit::Halt);
    cpu
}

#[test]
fn an_observer_sees_blocks_instructions_events_and_accesses() {
    let diary = Diary::default();
    let mut engine = Interpreter::new();
    engine.set_observer(Some(Box::new(diary.clone())));
    let observed = run(&mut engine);
    let expected = [
        "block 7c00",
        "7c00 Some(Inc_rm16)",
        "read 2 at 1000",
        "write 2 at 1000",
        "7c04 Some(Jmp_rel8_16)",
        "block 7c06",
        "7c06 Some(Ud2)",
        "event 6 at 7c06",
        "read 4 at 18",
        "write 2 at 1ffe",
        "write 2 at 1ffc",
        "write 2 at 1ffa",
        "block 600",
        "600 Some(Hlt)",
    ];
    let seen = diary.0.lock().unwrap().clone();
    assert_eq!(seen, expected, "{seen:#?}");

    engine.set_observer(None);
    assert_eq!(run(&mut engine).save(), observed.save());
    assert_eq!(diary.0.lock().unwrap().len(), expected.len(), "nobody looks any more");
}
