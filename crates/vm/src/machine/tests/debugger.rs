//! A debugger outside the guest: where it stops, what it costs, and that nobody notices it.

use std::collections::BTreeMap;
use std::sync::mpsc;

use super::*;
use crate::control::Control;
use crate::debug::{DebugError, Interrupts, Registers, Run, Stop, Waiter, Watched, Watchpoint};
use crate::door::Sender;
use crate::inspect::MemoryRange;

/// A guest that counts in a loop, at [`INNER`] 4096 times as often as at [`OUTER`]. It also counts its timer's
/// interrupts, some thousand a second, its NMIs, and the traps of its own breakpoint on writes to [`OUTER`].
#[rustfmt::skip]
pub(super) const COUNTING: &[u8] = &[
    0xbc, 0x00, 0x00, 0x18, 0x00, //                   100000: MOV ESP, 180000h
    0x0f, 0x01, 0x1d, 0x80, 0x00, 0x10, 0x00, //       100005: LIDT [100080h]
    0xb0, 0x11, 0xe6, 0x20, //                         10000C: ICW1 to the first 8259A
    0xb0, 0x00, 0xe6, 0x21, //                         100010: ICW2: vectors from 0
    0xb0, 0x04, 0xe6, 0x21, //                         100014: ICW3
    0xb0, 0x03, 0xe6, 0x21, //                         100018: ICW4: automatic end of interrupt
    0xb0, 0xfe, 0xe6, 0x21, //                         10001C: IRQ 0 alone
    0xb0, 0x34, 0xe6, 0x43, //                         100020: counter 0, mode 2
    0xb0, 0xa9, 0xe6, 0x40, //                         100024: 1193 ticks
    0xb0, 0x04, 0xe6, 0x40, //                         100028
    0xb8, 0x00, 0x00, 0x11, 0x00, 0x0f, 0x23, 0xc0, // 10002C: MOV EAX, 110000h; MOV DR0, EAX
    0xb8, 0x01, 0x04, 0x0d, 0x00, 0x0f, 0x23, 0xf8, // 100034: MOV EAX, 0D0401h; MOV DR7, EAX
    0xfb, //                                           10003C: STI
    0xb9, 0x00, 0x10, 0x00, 0x00, //                   10003D: MOV ECX, 1000h
    0xff, 0x05, 0x00, 0x20, 0x11, 0x00, //             100042: INC [112000h]
    0xe2, 0xf8, //                                     100048: LOOP 100042
    0xff, 0x05, 0x00, 0x00, 0x11, 0x00, //             10004A: INC [110000h]
    0xeb, 0xeb, //                                     100050: JMP 10003D
    0xff, 0x05, 0x00, 0x10, 0x11, 0x00, 0xcf, //       100052: INC [111000h]; IRETD
    0xff, 0x05, 0x00, 0x30, 0x11, 0x00, 0xcf, //       100059: INC [113000h]; IRETD
    0xff, 0x05, 0x00, 0x40, 0x11, 0x00, 0xcf, //       100060: INC [114000h]; IRETD
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0x17, 0x00, 0x88, 0x00, 0x10, 0x00, 0x00, 0x00, // 100080: IDT: limit and base
    0x52, 0x00, 0x10, 0x00, 0x00, 0x8e, 0x10, 0x00, // 100088: interrupt gate to 100052: the timer's
    0x59, 0x00, 0x10, 0x00, 0x00, 0x8e, 0x10, 0x00, // 100090: #DB
    0x60, 0x00, 0x10, 0x00, 0x00, 0x8e, 0x10, 0x00, // 100098: NMI
];

pub(super) const INNER: u32 = 0x11_2000;
pub(super) const OUTER: u32 = 0x11_0000;
pub(super) const TICKS: u32 = 0x11_1000;
const TRAPS: u32 = 0x11_3000;
const NMIS: u32 = 0x11_4000;

pub(super) const INC_INNER: u32 = 0x10_0042;
pub(super) const INC_OUTER: u32 = 0x10_004a;
pub(super) const JMP: u32 = 0x10_0050;
pub(super) const TIMER_HANDLER: u32 = 0x10_0052;
const TRAP_HANDLER: u32 = 0x10_0059;
const NMI_HANDLER: u32 = 0x10_0060;

pub(super) fn config() -> Config {
    Config { memory_bytes: 64 << 20, ..Config::default() }
}

pub(super) fn machine(config: Config, engine: EngineChoice) -> Vm {
    let kernel = Kernel { image: kernel_of(COUNTING).into(), ..Kernel::default() };
    Vm::with_engine(config, Software::Kernel(kernel), engine).unwrap()
}

/// Ends the machine when the debugger has ended, even by a failed assertion.
pub(super) struct Quits(pub(super) Sender);

impl Drop for Quits {
    fn drop(&mut self) {
        self.0.send(Input::Quit);
    }
}

/// A debugger, for short.
pub(super) struct Debugger(pub(super) Control);

impl Debugger {
    pub(super) fn start(&self, run: Run) -> mpsc::Receiver<Stop> {
        let (sender, stops) = mpsc::channel();
        let waiter = Waiter::new(move |stop| sender.send(stop).unwrap());
        self.0.debug(run, waiter).unwrap();
        stops
    }

    /// Continues until a breakpoint or a watchpoint. Returns why the guest has stopped, and EIP.
    pub(super) fn until(&self, breakpoints: &[u32], watchpoints: &[Watchpoint]) -> (Stop, u32) {
        let breakpoints = breakpoints.iter().copied().map(u64::from).collect();
        let run = Run::Until { breakpoints, watchpoints: watchpoints.to_vec() };
        let stop = self.start(run).recv().unwrap();
        (stop, self.registers().ip as u32)
    }

    /// Executes one instruction, and returns EIP.
    pub(super) fn step(&self, interrupts: Interrupts) -> u32 {
        assert_eq!(self.start(Run::Step(interrupts)).recv(), Ok(Stop::Step));
        self.registers().ip as u32
    }

    pub(super) fn registers(&self) -> Registers {
        self.0.registers().unwrap()
    }

    pub(super) fn dword(&self, linear: u32) -> u32 {
        let range = MemoryRange { address: linear.into(), len: 4, is_linear: true };
        let bytes = self.0.read_memory(range).unwrap().unwrap();
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.0.stats().unwrap().engine.into_iter().collect()
    }
}

/// Runs `vm`, which stands still at first, until `debugger` has ended.
fn debug(vm: &mut Vm, debugger: impl FnOnce(&Debugger) + Send) {
    let (sender, mut door) = door();
    door.pause();
    thread::scope(|scope| {
        scope.spawn(move || {
            let quits = Quits(sender);
            debugger(&Debugger(quits.0.control()));
        });
        assert_eq!(vm.run(&mut door, &mut Sent::default()).unwrap(), Ending::Quit);
    });
}

/// Calls `debugger` with a normal and a deterministic machine on each engine.
fn on_all_machines(debugger: impl Fn(&Debugger) + Copy + Send) {
    for engine in [EngineChoice::Interpreter, EngineChoice::Auto] {
        for deterministic in [false, true] {
            debug(&mut machine(Config { deterministic, ..config() }, engine), debugger);
        }
    }
}

pub(super) fn watch(linear: u32, watched: Watched) -> Watchpoint {
    Watchpoint { linear: linear.into(), len: 4, watched }
}

#[test]
fn breakpoints_stop_before_their_instructions() {
    on_all_machines(|debugger| {
        for rounds in 0..50 {
            assert_eq!(debugger.until(&[INC_OUTER], &[]), (Stop::Breakpoint, INC_OUTER));
            assert_eq!(
                (debugger.dword(OUTER), debugger.dword(INNER)),
                (rounds, (rounds + 1) << 12)
            );
        }
        // Others take their place, in the middle of the same code.
        let inner = debugger.dword(INNER);
        for rounds in 1..50 {
            assert_eq!(debugger.until(&[INC_INNER], &[]), (Stop::Breakpoint, INC_INNER));
            assert_eq!(debugger.dword(INNER) + 1, inner + rounds);
        }
        assert_eq!(debugger.until(&[NMI_HANDLER, JMP], &[]), (Stop::Breakpoint, JMP));
    });
}

#[test]
fn watchpoints_stop_after_accesses() {
    on_all_machines(|debugger| {
        for watched in [Watched::Writes, Watched::Reads, Watched::Accesses] {
            let point = watch(OUTER + 2, watched);
            for _ in 0..10 {
                let before = debugger.dword(OUTER);
                let (stop, eip) = debugger.until(&[], &[point]);
                assert_eq!(stop, Stop::Watchpoint(point));
                // The trap of the guest's own breakpoint comes next, or has come.
                assert!([JMP, TRAP_HANDLER].contains(&eip), "{eip:x}");
                assert_eq!(debugger.dword(OUTER), before + 1);
            }
        }
        // What lies beside watched memory does not count.
        let beside = [watch(OUTER + 4, Watched::Accesses), watch(OUTER - 4, Watched::Accesses)];
        assert_eq!(debugger.until(&[JMP], &beside), (Stop::Breakpoint, JMP));
        // The guest's own debug registers worked all the while.
        assert_eq!(debugger.dword(TRAPS), debugger.dword(OUTER));
    });
}

#[test]
fn a_pause_ends_a_run() {
    on_all_machines(|debugger| {
        let stops = debugger.start(Run::Until { breakpoints: Vec::new(), watchpoints: Vec::new() });
        debugger.0.pause().unwrap();
        assert_eq!(stops.recv(), Ok(Stop::Paused));
        let before = debugger.registers();
        assert_eq!(debugger.registers(), before);
    });
}

#[test]
fn steps_hold_interrupts_back() {
    for engine in [EngineChoice::Interpreter, EngineChoice::Auto] {
        debug(&mut machine(config(), engine), |debugger| {
            debugger.until(&[INC_INNER], &[]);
            debugger.0.sender().send(Input::Nmi);
            let (ticks, inner) = (debugger.dword(TICKS), debugger.dword(INNER));
            for rounds in 1..500 {
                assert_eq!(debugger.step(Interrupts::HeldBack), INC_INNER + 6);
                assert_eq!(debugger.dword(INNER), inner + rounds);
                assert_eq!(debugger.step(Interrupts::HeldBack), INC_INNER);
            }
            assert_eq!(debugger.dword(TICKS), ticks);
            assert_eq!(debugger.dword(NMIS), 0);
            // Interrupts wait, and are taken as soon as they may be.
            assert_eq!(debugger.step(Interrupts::Taken), NMI_HANDLER + 6);
            assert_eq!(debugger.dword(NMIS), 1);
            assert_eq!(debugger.until(&[TIMER_HANDLER], &[]), (Stop::Breakpoint, TIMER_HANDLER));
        });
    }
}

#[test]
fn steps_go_into_handlers_if_interrupts_are_taken() {
    on_all_machines(|debugger| {
        debugger.until(&[JMP], &[]);
        debugger.0.sender().send(Input::Nmi);
        let mut steps = (0..1000).map(|_| debugger.step(Interrupts::Taken));
        assert!(steps.any(|eip| eip == NMI_HANDLER + 6));
    });
}

/// Runs a debugger that goes from one breakpoint or watchpoint to the next on the translator. Returns what
/// that took of each of its counters, in 4 million instructions.
fn cost(breakpoints: &[u32], watchpoints: &[Watchpoint]) -> Option<BTreeMap<&'static str, u64>> {
    let mut vm = machine(config(), EngineChoice::Auto);
    if vm.engine() == "interpreter" {
        ring3_skipped::host("this host does not allow the translator");
        return None;
    }
    let mut counters = BTreeMap::new();
    let is_debugger = !(breakpoints.is_empty() && watchpoints.is_empty());
    debug(&mut vm, |debugger| {
        let go = || {
            if is_debugger {
                debugger.until(breakpoints, watchpoints);
            }
        };
        (0..20).for_each(|_| go());
        let before = debugger.counters();
        (0..500).for_each(|_| go());
        counters = debugger.counters();
        for (name, count) in &mut counters {
            *count -= before[name];
        }
    });
    Some(counters)
}

/// Everything but the instruction at the breakpoint runs at full speed. The guest's own breakpoint takes some
/// instructions a round, too.
#[test]
fn breakpoints_leave_the_rest_in_translated_code() {
    let Some(counters) = cost(&[INC_OUTER], &[]) else { return };
    assert!(counters["instructions left to the interpreter"] < 10_000, "{counters:?}");
    assert!(counters["signals"] < 1000, "{counters:?}");
    assert!(counters["blocks translated"] < 20, "{counters:?}");
}

/// Only accesses to the watched page are slow: two million others are not.
#[test]
fn watchpoints_leave_other_pages_alone() {
    let Some(counters) = cost(&[], &[watch(OUTER, Watched::Writes)]) else { return };
    assert!(counters["instructions left to the interpreter"] < 10_000, "{counters:?}");
    assert!(counters["signals"] < 1000, "{counters:?}");
    assert!(counters["flushes"] < 10, "{counters:?}");
}

#[test]
fn memory_and_registers_are_changed() {
    on_all_machines(|debugger| {
        debugger.until(&[INC_OUTER], &[]);
        let range = MemoryRange { address: OUTER.into(), len: 4, is_linear: false };
        debugger.0.write_memory(range, vec![0xff, 0, 0, 1]).unwrap();
        debugger.until(&[JMP], &[]);
        assert_eq!(debugger.dword(OUTER), 0x0100_0100);
        // Code changes at once.
        let range = MemoryRange { address: JMP.into(), ..range };
        debugger.0.write_memory(range, vec![0x40, 0x90]).unwrap();
        let mut registers = debugger.registers();
        registers.general[0] = 7;
        registers.st[0][0] ^= 1;
        registers.xmm[7] = 5;
        debugger.0.set_registers(registers.clone()).unwrap();
        assert_eq!(debugger.registers(), registers);
        assert_eq!(debugger.until(&[JMP + 1], &[]), (Stop::Breakpoint, JMP + 1));
        assert_eq!(debugger.registers().general[0], 8);
        registers.control[0] ^= 1;
        assert_eq!(debugger.0.set_registers(registers), Err(DebugError::Register));
    });
}

/// What a recorded run computes is repeated without the debugger, on both engines. Changes are refused.
#[test]
fn recordings_repeat_without_the_debugger() {
    for engine in [EngineChoice::Interpreter, EngineChoice::Auto] {
        let mut live = machine(config(), engine);
        live.record();
        debug(&mut live, |debugger| {
            for _ in 0..20 {
                debugger.until(&[INC_OUTER], &[]);
                debugger.until(&[TIMER_HANDLER], &[watch(OUTER, Watched::Accesses)]);
                for _ in 0..5 {
                    // The points stay, so this may stop there.
                    debugger.start(Run::Step(Interrupts::HeldBack)).recv().unwrap();
                }
            }
            debugger.0.sender().send(Input::Nmi);
            debugger.until(&[NMI_HANDLER], &[]);
            let registers = debugger.registers();
            assert_eq!(debugger.0.set_registers(registers), Err(DebugError::Recorded));
            let range = MemoryRange { address: 0, len: 1, is_linear: false };
            assert_eq!(debugger.0.write_memory(range, vec![1]), Err(DebugError::Recorded));
            // Before the handler's first instruction, the replay has not delivered the NMI yet.
            debugger.step(Interrupts::Taken);
        });
        for engine in [EngineChoice::Interpreter, EngineChoice::Auto] {
            let mut again = machine(config(), engine);
            let ending = again.replay(live.recording(), &mut Sent::default()).unwrap();
            assert_eq!(ending, Ending::Quit);
            assert_eq!(again.now(), live.now());
            assert_eq!(again.cpu.save(), live.cpu.save());
            assert_eq!(again.board.save(), live.board.save());
            assert!(again.memory.contents() == live.memory.contents());
        }
    }
}
