//! The handlers that take the end state, their stack, and the treatment of signals that are not ours.

use std::arch::naked_asm;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_int, c_void, sigaction, siginfo_t, ucontext_t};

use super::switch::{self, CURRENT, Switch, Trap};
use super::{system, timer};
use crate::{FxImage, Unavailable};

/// The signals by which Linux reports exceptions, and that of the timer.
const OURS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, timer::SIGNAL];

/// The handlers that were installed before ours, in the order of [`OURS`].
static EARLIER: [Earlier; OURS.len()] = [const { Earlier::new() }; OURS.len()];

/// A handler to which a signal is passed on. Its fields are atomic because another thread may be in our
/// handler while this one changes them.
struct Earlier {
    handler: AtomicUsize,
    /// Whether it takes three arguments (SA_SIGINFO).
    with_info: AtomicBool,
}

impl Earlier {
    const fn new() -> Self {
        Self { handler: AtomicUsize::new(libc::SIG_DFL), with_info: AtomicBool::new(false) }
    }

    fn remember(&self, action: &sigaction) {
        self.handler.store(action.sa_sigaction, Ordering::Relaxed);
        self.with_info.store(action.sa_flags & libc::SA_SIGINFO != 0, Ordering::Relaxed);
    }

    /// Handles a signal as the process would have handled it without us.
    ///
    /// # Safety
    /// This must be called in a signal handler, with the handler's arguments.
    unsafe fn handle(&self, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let handler = self.handler.load(Ordering::Relaxed);
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            // Each of our signals ends the process by default, and exceptions cannot be ignored.
            // SAFETY: both calls are async-signal-safe.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        } else if self.with_info.load(Ordering::Relaxed) {
            type WithInfo = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            // SAFETY: the kernel would have called this address with these arguments.
            unsafe { std::mem::transmute::<usize, WithInfo>(handler)(signal, info, context) };
        } else {
            // SAFETY: as above.
            unsafe {
                std::mem::transmute::<usize, unsafe extern "C" fn(c_int)>(handler)(signal);
            }
        }
    }
}

/// Our handlers. They are installed as long as this lives.
pub(super) struct Handlers {
    /// The actions that ours have replaced so far.
    earlier: Vec<(c_int, sigaction)>,
}

impl Handlers {
    pub(super) fn install() -> Result<Self, Unavailable> {
        let mut handlers = Self { earlier: Vec::with_capacity(OURS.len()) };
        for (&signal, earlier) in OURS.iter().zip(&EARLIER) {
            let found = query(signal)?;
            // This must happen before the handler that needs it can run.
            earlier.remember(&found);
            set_action(signal, &our_action())?;
            handlers.earlier.push((signal, found));
        }
        Ok(handlers)
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        for (signal, earlier) in &self.earlier {
            if *signal == timer::SIGNAL {
                // The timer is gone, but a last tick may be pending; ignoring the signal
                // discards it.
                let mut ignore = our_action();
                ignore.sa_sigaction = libc::SIG_IGN;
                let _ = set_action(*signal, &ignore);
            }
            // This fails only for signals that do not exist.
            let _ = set_action(*signal, earlier);
        }
    }
}

/// Returns the action for each of our signals.
///
/// - SA_ONSTACK: the interrupted stack pointer is the guest's.
/// - SA_NODEFER and an empty mask: the handler leaves without restoring the mask.
/// - SA_RESTART: a tick of the timer must not disturb the system calls of the thread.
fn our_action() -> sigaction {
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: all bits zero is a valid `sigaction`, with an empty mask.
    let mut action: sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_signal_clean as *const () as usize;
    action.sa_flags = flags;
    action
}

fn set_action(signal: c_int, action: &sigaction) -> Result<(), Unavailable> {
    // SAFETY: the action is ours (see `on_signal`) or one that was installed before.
    let result = unsafe { libc::sigaction(signal, action, ptr::null_mut()) };
    system("install a signal handler", result).map(drop)
}

/// Returns the action that is installed for `signal`.
fn query(signal: c_int) -> Result<sigaction, Unavailable> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: there is room for the answer.
    let result = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    system("read a signal handler", result)?;
    // SAFETY: the call has filled it.
    Ok(unsafe { action.assume_init() })
}

/// The kernel's entry point, which clears the flags and continues in [`on_signal`].
///
/// The kernel clears DF and TF of the interrupted code, but not AC, with which compiled code
/// would raise #AC.
///
/// # Safety
/// Only the kernel may call this.
#[unsafe(naked)]
unsafe extern "C" fn on_signal_clean(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    naked_asm!(
        "push {flags}",
        "popfq",
        "jmp {on_signal}",
        flags = const crate::eflags::ALWAYS,
        on_signal = sym on_signal,
    )
}

/// Ends the run if the signal belongs to it, and otherwise passes the signal on.
///
/// # Safety
/// This must be called as a signal handler with SA_SIGINFO.
unsafe extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` and `ucontext_t`.
    let (information, frame) = unsafe { (&*info, &*context.cast::<ucontext_t>()) };
    let current = CURRENT.load(Ordering::Relaxed);
    // SAFETY: while there is a switch, it is that of a run.
    let in_guest = !current.is_null() && unsafe { is_in_guest(current, frame) };

    if timer::is_tick(signal, information) {
        if in_guest {
            // SAFETY: the run is going on in this thread, which is here.
            unsafe { tick(current, frame) };
        }
    } else if in_guest && signal != timer::SIGNAL && information.si_code > 0 {
        // The code is positive for an exception, and not for a signal sent by a process.
        // SAFETY: as above.
        unsafe { end(current, frame, Some(trap(frame))) };
    } else if let Some(which) = OURS.iter().position(|&ours| ours == signal) {
        // SAFETY: the arguments are those of this handler.
        unsafe { EARLIER[which].handle(signal, info, context) };
    }
}

/// Returns whether the interrupted code is the guest's. Its code segment can be ours, but we are in the run only
/// between `enter`, where no exception can occur before its last instruction, and [`end`].
///
/// # Safety
/// `switch` must be that of a run.
unsafe fn is_in_guest(switch: *const Switch, frame: &ucontext_t) -> bool {
    // SAFETY: the caller's promise.
    let (host_rsp, selector) = unsafe { ((*switch).host_rsp, (*switch).code_selector) };
    host_rsp != 0 && code_selector(frame) == selector
}

/// Counts a tick of the timer, and ends the run at the second one, because only then has the run lasted a
/// whole interval.
///
/// # Safety
/// As for [`end`].
unsafe fn tick(switch: *mut Switch, frame: &ucontext_t) {
    // SAFETY: the switch is that of a run, and `enter` is the only other user of it now.
    let ticks = unsafe {
        (*switch).ticks += 1;
        (*switch).ticks
    };
    if ticks >= 2 {
        // SAFETY: the caller's promise.
        unsafe { end(switch, frame, None) };
    }
}

/// Takes the end state from the signal frame and returns to the runner.
///
/// # Safety
/// This must be called in a signal handler that interrupted the run of `switch`; `frame` is the handler's.
unsafe fn end(switch: *mut Switch, frame: &ucontext_t, trap: Option<Trap>) -> ! {
    /// The registers in the order of the encoding.
    const GPR: [c_int; 16] = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    // SAFETY: the switch is that of a run, and `enter` is the only other user of it now.
    // `fpregs` points to an FXSAVE64 image, which every x86-64 kernel puts into the frame.
    let host_rsp = unsafe {
        let state = &mut (*switch).state;
        state.gpr = GPR.map(|index| register(frame, index));
        state.rip = register(frame, libc::REG_RIP);
        state.rflags = register(frame, libc::REG_EFL) as u32;
        state.fx = frame.uc_mcontext.fpregs.cast::<FxImage>().read_unaligned();
        state.upper = upper_halves(frame.uc_mcontext.fpregs.cast(), &state.fx);
        (*switch).trap = trap;
        std::mem::take(&mut (*switch).host_rsp)
    };
    // SAFETY: this is a handler that interrupted the run, and there is nothing to drop here.
    unsafe { switch::leave(host_rsp) }
}

/// Returns the upper halves of the YMM registers in a signal frame.
///
/// # Safety
/// `start` must be the address of the image in a signal frame whose copy is `fx`.
unsafe fn upper_halves(start: *const u8, fx: &FxImage) -> [u128; 16] {
    /// The description of the frame (`struct _fpx_sw_bytes`): its place, and its first word if the frame is an area of
    /// XSAVE, which holds components behind the image.
    const DESCRIPTION: usize = 464;
    const MAGIC: u32 = 0x4650_5853;
    /// The component with these halves, and its offset. All processors with AVX have it there.
    const COMPONENT: u64 = 1 << 2;
    const OFFSET: usize = 576;
    let mut words = fx.0[DESCRIPTION..].chunks_exact(4);
    let is_area = words.next().is_some_and(|word| word == MAGIC.to_le_bytes());
    if !is_area {
        return [0; 16];
    }
    // SAFETY: the header of an area of XSAVE follows the image, and this component follows the header where it is in
    // use. The frame may not be aligned for a vector.
    unsafe {
        let in_use = start.add(size_of::<FxImage>()).cast::<u64>().read_unaligned();
        if in_use & COMPONENT == 0 {
            [0; 16]
        } else {
            start.add(OFFSET).cast::<[u128; 16]>().read_unaligned()
        }
    }
}

/// A register.
fn register(frame: &ucontext_t, index: c_int) -> u64 {
    frame.uc_mcontext.gregs[index as usize] as u64
}

/// Returns the code selector. From bit 0 on the field holds CS, GS, FS and SS.
fn code_selector(frame: &ucontext_t) -> u16 {
    register(frame, libc::REG_CSGSFS) as u16
}

fn trap(frame: &ucontext_t) -> Trap {
    Trap {
        vector: register(frame, libc::REG_TRAPNO) as u8,
        error_code: register(frame, libc::REG_ERR) as u32,
        cr2: register(frame, libc::REG_CR2),
    }
}

/// The stack of the handlers, in the thread that made it, as long as this lives.
pub(super) struct AlternateStack {
    /// The stack that was installed before.
    earlier: libc::stack_t,
    /// The memory, to be freed after the kernel has been told.
    _memory: Box<[MaybeUninit<u8>]>,
}

impl AlternateStack {
    /// Room for two signal frames with AVX-512 and AMX state (12 KiB each) and for an earlier handler.
    const SIZE: usize = 128 * 1024;

    pub(super) fn install() -> Result<Self, Unavailable> {
        let mut memory = Box::new_uninit_slice(Self::SIZE);
        let stack =
            libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: Self::SIZE };
        let mut earlier = MaybeUninit::uninit();
        // SAFETY: the memory stays until the earlier stack is installed again.
        let result = unsafe { libc::sigaltstack(&raw const stack, earlier.as_mut_ptr()) };
        system("set the signal stack", result)?;
        // SAFETY: the call has filled it.
        Ok(Self { earlier: unsafe { earlier.assume_init() }, _memory: memory })
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        // SAFETY: the runner has not left its thread, so this is the stack of the same thread
        // that was there before.
        unsafe { libc::sigaltstack(&raw const self.earlier, ptr::null_mut()) };
    }
}

/// Blocks in this thread the signals whose handlers would run on the guest's stack, and unblocks ours, as
/// long as this lives.
pub(super) struct OthersBlocked {
    earlier: libc::sigset_t,
}

impl OthersBlocked {
    pub(super) fn new() -> Result<Self, Unavailable> {
        let mut blocked = MaybeUninit::uninit();
        let mut ours = MaybeUninit::uninit();
        let mut earlier = MaybeUninit::uninit();
        // SAFETY: sets are initialised before they are used, and there is room for the answer.
        let result = unsafe {
            libc::sigemptyset(blocked.as_mut_ptr());
            for signal in 1..=libc::SIGRTMAX() {
                // The actions of signals that the C library reserves for itself cannot be queried.
                if query(signal).is_ok_and(|action| runs_on_normal_stack(&action)) {
                    libc::sigaddset(blocked.as_mut_ptr(), signal);
                }
            }
            libc::sigemptyset(ours.as_mut_ptr());
            for signal in OURS {
                libc::sigaddset(ours.as_mut_ptr(), signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), earlier.as_mut_ptr()) {
                0 => libc::pthread_sigmask(libc::SIG_UNBLOCK, ours.as_ptr(), ptr::null_mut()),
                error => error,
            }
        };
        if result != 0 {
            let error = std::io::Error::from_raw_os_error(result);
            return Err(Unavailable::System { what: "set the signal mask", error });
        }
        // SAFETY: the call has filled it.
        Ok(Self { earlier: unsafe { earlier.assume_init() } })
    }
}

fn runs_on_normal_stack(action: &sigaction) -> bool {
    let caught = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
    caught && action.sa_flags & libc::SA_ONSTACK == 0
}

impl Drop for OthersBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one this thread had.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.earlier, ptr::null_mut());
        }
    }
}
