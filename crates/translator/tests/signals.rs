//! Signals of other programs and timers at any moment, while the host's stack is the one that translated code
//! has for returns. Their handlers must find room below it, and the guest must not notice them.
#![allow(unsafe_code, reason = "a timer and a handler of the host are what this is about")]

mod support;

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, c_void, siginfo_t};
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, Cr0, Cr4, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::interpreter::Interpreter;
use ring3_x86::undefined::Vendor;
use support::translator;

/// Bytes of memory.
const MEMORY: u64 = 4 << 20;
const CODE: u32 = 0x1_0000;
const STACK: u32 = 0x30_0000;
/// Depth of nested calls, for which the stack of returns has no room.
const DEPTH: u32 = 20_000;
/// Time between two signals, in nanoseconds.
const PERIOD: i64 = 100_000;
/// Number of signals that must come, and upper bound of the runs of the program until then.
const SIGNALS: u64 = 2_000;
const MOST_RUNS: u32 = 20_000;

/// Sums up the numbers from ECX down to 1, by recursion, in EAX, ST(0) and XMM0.
#[rustfmt::skip]
const PROGRAM: &[u8] = &[
    0xd9, 0xee,                   // 00: FLDZ
    0x0f, 0x57, 0xc0,             // 02: XORPS XMM0, XMM0
    0x31, 0xc0,                   // 05: XOR EAX, EAX
    0xe8, 0x01, 0x00, 0x00, 0x00, // 07: CALL 0D
    0xf4,                         // 0C: HLT
    0x51,                         // 0D: PUSH ECX
    0x49,                         // 0E: DEC ECX
    0x74, 0x05,                   // 0F: JZ 16
    0xe8, 0xf7, 0xff, 0xff, 0xff, // 11: CALL 0D
    0xda, 0x04, 0x24,             // 16: FIADD DWORD [ESP]
    0x0f, 0x6e, 0x0c, 0x24,       // 19: MOVD MM1, [ESP]
    0x66, 0x0f, 0x6e, 0x0c, 0x24, // 1D: MOVD XMM1, [ESP]
    0x66, 0x0f, 0xfe, 0xc1,       // 22: PADDD XMM0, XMM1
    0x59,                         // 26: POP ECX
    0x01, 0xc8,                   // 27: ADD EAX, ECX
    0xc3,                         // 29: RET
];

/// Runs the program to its end, and returns the whole state of the processor.
fn run(engine: &mut dyn Engine, memory: &mut Memory) -> String {
    let mut cpu = Cpu::new();
    cpu.vendor = Vendor::of_host();
    cpu.set_flat_entry(0x08, 0x10, CODE);
    cpu.set_cr0(Cr0::PE | Cr0::NE | Cr0::MP);
    cpu.set_cr4(Cr4::OSFXSR | Cr4::OSXMMEXCPT);
    cpu.set_gpr(reg::SP, STACK.into());
    cpu.set_gpr(reg::CX, DEPTH.into());
    assert_eq!(engine.run(&mut cpu, memory, u64::MAX), Exit::Halt, "{}", cpu.report(memory));
    assert_eq!(cpu.get::<u32>(reg::AX), DEPTH * (DEPTH + 1) / 2);
    format!("{:?}", cpu.save())
}

/// Number of signals so far.
static COMES: AtomicU64 = AtomicU64::new(0);

/// Uses BYTES bytes of the stack, as handlers do, and registers that the guest uses too.
unsafe extern "C" fn on_timer<const BYTES: usize>(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let mut bytes = [0_u8; BYTES];
    black_box(&mut bytes).fill(0xaa);
    let sum: f64 = black_box(&bytes).iter().copied().map(f64::from).sum();
    black_box(sum);
    COMES.fetch_add(1, Ordering::Relaxed);
}

/// A timer that sends SIGALRM to this thread again and again while it lives.
struct Timer(libc::timer_t);

impl Timer {
    /// Returns a timer whose handler uses more of the present stack than alternate stacks have, or a little
    /// of an alternate stack of its own.
    fn new(has_own_stack: bool) -> Timer {
        let (handler, flags) = if has_own_stack {
            (on_timer::<512> as *const (), libc::SA_ONSTACK)
        } else {
            (on_timer::<{ 16 << 10 }> as *const (), 0)
        };
        // SAFETY: all bits zero are a valid value of each of the structures, which the calls only read. The
        // handler does nothing that handlers may not do. `gettid` has no conditions.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | flags;
            assert_eq!(libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()), 0);
            let mut event: libc::sigevent = MaybeUninit::zeroed().assume_init();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = ptr::null_mut();
            assert_eq!(
                libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer),
                0
            );
            let mut times: libc::itimerspec = MaybeUninit::zeroed().assume_init();
            times.it_interval.tv_nsec = PERIOD;
            times.it_value.tv_nsec = PERIOD;
            assert_eq!(libc::timer_settime(timer, 0, &raw const times, ptr::null_mut()), 0);
            Timer(timer)
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer was created and not deleted since.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Handlers run on the stack of translated code, and on a stack of their own.
#[test]
fn signals_at_any_moment() {
    let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
    memory.load_image(CODE.into(), PROGRAM).unwrap();
    let mut same_memory = Memory::new(MEMORY).unwrap();
    same_memory.load_image(CODE.into(), PROGRAM).unwrap();
    let expected = run(&mut Interpreter::new(), &mut same_memory);
    for has_own_stack in [false, true] {
        COMES.store(0, Ordering::Relaxed);
        let timer = Timer::new(has_own_stack);
        let mut runs = 0;
        while COMES.load(Ordering::Relaxed) < SIGNALS && runs < MOST_RUNS {
            assert_eq!(run(&mut translator, &mut memory), expected);
            runs += 1;
        }
        drop(timer);
        let came = COMES.load(Ordering::Relaxed);
        assert!(came >= SIGNALS, "{came} signals in {runs} runs");
        assert!(memory.contents() == same_memory.contents(), "memory differs");
    }
}
