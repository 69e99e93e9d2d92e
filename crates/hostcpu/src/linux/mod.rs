//! The runner of x86-64 Linux.
//!
//! | module | contents |
//! | --- | --- |
//! | `arena` | the guest's memory |
//! | `switch` | the way into the guest's code and back, in assembly |
//! | `signals` | the handlers that take the end state, their stack, other signals |
//! | `timer` | the clock that ends endless loops |

mod arena;
mod signals;
mod switch;
mod timer;

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::layout::{CODE_SELECTOR, FILLER, LONG_CODE_SELECTOR, Layout};
use crate::{LongState, LongStop, Refused, State, Stop, Unavailable, eflags, refuse};
use arena::Arena;
use signals::{AlternateStack, Handlers, OthersBlocked};
use switch::Switch;
use timer::Timer;

/// The lock that the one [`Runner`] of the process holds, since the arena's addresses and the signal handlers
/// exist only once.
static ONLY_ONE: Mutex<()> = Mutex::new(());

/// Runs instructions on the host's processor.
///
/// While it lives, it owns these things of the process: the handlers of SIGSEGV, SIGBUS, SIGFPE, SIGILL,
/// SIGTRAP and SIGVTALRM (signals that are not its own go to the earlier handlers), and the addresses of
/// [`Layout::arena`]. In its thread it owns the alternate signal stack and a timer. It blocks signals in its
/// thread whose handlers use the normal stack, since the stack pointer may be the guest's. For these reasons
/// it stays on the thread that made it.
//
// The fields are dropped in this order: first those that can cause a signal, then those that handle it.
pub struct Runner {
    _timer: Timer,
    _others: OthersBlocked,
    _handlers: Handlers,
    _stack: AlternateStack,
    arena: Arena,
    mxcsr_mask: u32,
    _only_one: MutexGuard<'static, ()>,
}

/// Sets the base of GS, which translated code changes, and which nothing else in a process uses, to 0.
fn clear_gs_base() {
    // arch_prctl(2)
    const ARCH_SET_GS: libc::c_int = 0x1001;
    // SAFETY: the call changes only this base.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, 0_usize) };
}

impl Runner {
    /// Becomes the one runner of the process, and waits while another thread has it. A thread that already
    /// has a runner must drop it first, or it waits for itself.
    pub fn new() -> Result<Self, Unavailable> {
        let only_one = ONLY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
        if !switch::has_code_segments() {
            return Err(Unavailable::NoCodeSegment);
        }
        let arena = Arena::new()?;
        let stack = AlternateStack::install()?;
        let handlers = Handlers::install()?;
        let others = OthersBlocked::new()?;
        let timer = Timer::start()?;
        let mut runner = Self {
            _timer: timer,
            _others: others,
            _handlers: handlers,
            _stack: stack,
            arena,
            mxcsr_mask: switch::present_fx().mxcsr_mask(),
            _only_one: only_one,
        };
        runner.trial()?;
        Ok(runner)
    }

    /// Runs a NOP, which may fail on a kernel that only resembles Linux.
    fn trial(&mut self) -> Result<(), Unavailable> {
        let start = State::at(Layout::FIXED.code.start);
        let (end, stop) = self.go(&start, &[0x90]);
        if stop == Stop::Reached && end.gpr == start.gpr && end.eip == start.eip + 1 {
            Ok(())
        } else {
            Err(Unavailable::Trial { stop, eip: end.eip })
        }
    }

    /// Returns where the regions lie.
    #[allow(clippy::unused_self, reason = "a runner at hand shows that the regions exist")]
    pub fn layout(&self) -> &'static Layout {
        &Layout::FIXED
    }

    /// Returns the contents of the data region. They are zero at first and persist from run to run.
    pub fn data(&self) -> &[u8] {
        self.arena.bytes(Layout::FIXED.data)
    }

    /// Returns the contents of the data region, for changes.
    pub fn data_mut(&mut self) -> &mut [u8] {
        self.arena.bytes_mut(Layout::FIXED.data)
    }

    /// Returns the contents of the read-only region.
    pub fn read_only(&self) -> &[u8] {
        self.arena.bytes(Layout::FIXED.read_only)
    }

    /// Returns the contents of the read-only region, for changes, which only the guest cannot make.
    pub fn read_only_mut(&mut self) -> &mut [u8] {
        self.arena.bytes_mut(Layout::FIXED.read_only)
    }

    /// Runs the one instruction `code` (1 to 15 bytes) at `start.eip` in the code region, from the state
    /// `start`. Returns the state after it and how it ended.
    ///
    /// The code region around it is filled with [`FILLER`]. Where `code` reaches beyond the region, its bytes
    /// are not present. The caller must pass one complete instruction that does not branch into its own
    /// bytes.
    pub fn run(&mut self, start: &State, code: &[u8]) -> Result<(State, Stop), Refused> {
        refuse::check(start.eip, code)?;
        Ok(self.go(start, code))
    }

    /// Runs the program `code` from `start.eip` in the code region until it reaches HLT, leaves the code
    /// region, or raises an exception. A program may run for 50 ms.
    ///
    /// # Safety
    /// The instructions of [`Refused`] are recognised only at the program's start. The program must not reach
    /// any of them later: a system call, for example, would act on this process.
    pub unsafe fn run_program(
        &mut self,
        start: &State,
        code: &[u8],
    ) -> Result<(State, Stop), Refused> {
        refuse::check_program(start.eip, code)?;
        Ok(self.go(start, code))
    }

    /// Runs the one instruction `code` at `start.rip`, in the code region, as 64-bit code, like [`Self::run`]. The
    /// base of GS is 0.
    ///
    /// # Safety
    /// With 64-bit addresses the instruction can reach all memory of this process. It must reach none outside
    /// the [`Layout`] and what is not mapped, and it must not change the base of FS.
    pub unsafe fn run_long(
        &mut self,
        start: &LongState,
        code: &[u8],
    ) -> Result<(LongState, LongStop), Refused> {
        let eip = u32::try_from(start.rip).map_err(|_| Refused::Place(start.rip as u32))?;
        refuse::check_long(eip, code)?;
        clear_gs_base();
        Ok(self.go_to(start, code, LONG_CODE_SELECTOR))
    }

    /// Does the work of [`Self::run`] and [`Self::run_program`] for code that has been checked.
    fn go(&mut self, start: &State, code: &[u8]) -> (State, Stop) {
        let (end, stop) = self.go_to(&start.into(), code, CODE_SELECTOR);
        (end.into(), stop.into())
    }

    /// Does the work for code of any size, at an address in the code region.
    fn go_to(&mut self, start: &LongState, code: &[u8], selector: u16) -> (LongState, LongStop) {
        let region = Layout::FIXED.code;
        let offset = (start.rip - u64::from(region.start)) as usize;
        let present = code.len().min(region.len as usize - offset);
        let place = offset..offset + present;
        self.arena.bytes_mut(region)[place.clone()].copy_from_slice(&code[..present]);

        let mut state = start.clone();
        state.rflags = start.rflags & eflags::SETTABLE | eflags::ALWAYS;
        // FXRSTOR raises #GP for bits of MXCSR that do not exist.
        state.fx.set_mxcsr(start.fx.mxcsr() & self.mxcsr_mask);
        self.arena.touch_read_only();
        let mut switch = Switch::new(state, selector);
        switch.run();

        let stop = self.classify(&switch, start.rip);
        self.arena.bytes_mut(region)[place].fill(FILLER);
        let mut state = switch.state;
        state.rflags &= !eflags::RF;
        state.fx.keep_unused_of(&start.fx);
        (state, stop)
    }

    /// Distinguishes the end of the instruction from an exception that it raised.
    fn classify(&self, switch: &Switch, start: u64) -> LongStop {
        const GENERAL_PROTECTION: u8 = 13;
        const PAGE_FAULT: u8 = 14;
        /// The bit of the error code for an instruction fetch (SDM vol. 3A, 5.7).
        const FETCH: u32 = 1 << 4;

        let Some(trap) = switch.trap else { return LongStop::Timeout };
        let rip = switch.state.rip;
        let at_end = rip != start
            && match trap.vector {
                GENERAL_PROTECTION => trap.error_code == 0 && self.is_filler(rip),
                PAGE_FAULT => trap.error_code & FETCH != 0 && trap.cr2 == rip,
                _ => false,
            };
        if at_end {
            return LongStop::Reached;
        }
        // The kernel's CR2 is that of the last page fault, which may have been an earlier one.
        let cr2 = if trap.vector == PAGE_FAULT { trap.cr2 } else { 0 };
        LongStop::Exception { vector: trap.vector, error_code: trap.error_code, cr2 }
    }

    /// Returns whether there is HLT at `rip`.
    fn is_filler(&self, rip: u64) -> bool {
        let region = Layout::FIXED.code;
        u32::try_from(rip).is_ok_and(|eip| {
            region.contains(eip)
                && self.arena.bytes(region)[(eip - region.start) as usize] == FILLER
        })
    }
}

/// Returns the result of a system call that returns -1 for an error.
fn system(what: &'static str, result: libc::c_int) -> Result<libc::c_int, Unavailable> {
    if result == -1 {
        return Err(Unavailable::System { what, error: std::io::Error::last_os_error() });
    }
    Ok(result)
}
