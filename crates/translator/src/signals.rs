//! Signals that translated code raises: page faults of the host, division errors, numeric errors, and
//! instructions that the guest's processor has and the host's does not.
//!
//! The handler does little: it notes the fault and the guest's registers in the [`Context`], and continues
//! where translated code is left. It does not return to the kernel, which would load all registers again only
//! for the engine to save them. Ordinary code does everything else, outside of the handler.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{c_int, c_void, sigaction, siginfo_t, ucontext_t};

use crate::code::cache;
use crate::context::{self, Context, HostFault, IMAGE, reason};
use crate::long::context::LongContext;
use crate::memory::{absent, shortage};

/// The signals that translated code may raise.
const OURS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// The number of the page-fault exception, as the kernel gives it in the frame of a signal.
const PAGE_FAULT: i64 = 14;

/// Upper bound of the caches of translated code in one process.
const MAX_CACHES: usize = 64;

/// A cache of translated code.
struct Watched {
    /// The address of its first byte; 0 for none. All caches have the same size, so that a handler on another thread
    /// never meets the start of one and the end of the next that takes this entry.
    start: AtomicUsize,
    /// The address of the context of 64-bit code; 0 for other code, which has it in R14.
    long_context: AtomicUsize,
}

/// All caches.
static CACHES: [Watched; MAX_CACHES] =
    [const { Watched { start: AtomicUsize::new(0), long_context: AtomicUsize::new(0) } };
        MAX_CACHES];

/// The handlers that were installed before, in the order of [`OURS`].
static EARLIER: [(AtomicUsize, AtomicBool); OURS.len()] =
    [const { (AtomicUsize::new(libc::SIG_DFL), AtomicBool::new(false)) }; OURS.len()];

/// A cache of translated code whose signals the handler takes, for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Watch(usize);

impl Watch {
    /// Watches the cache of translated code that begins at address `start`. If it is 64-bit code, `long_context` is the
    /// address of its [`LongContext`], and otherwise 0. The addresses must be the cache's until the value is dropped.
    pub(crate) fn new(start: usize, long_context: usize) -> io::Result<Watch> {
        static CHOICE: Mutex<()> = Mutex::new(());
        install()?;
        // Under the lock nobody else takes the same entry.
        let _choice = CHOICE.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, watched) in CACHES.iter().enumerate() {
            if watched.start.load(Ordering::Relaxed) == 0 {
                watched.long_context.store(long_context, Ordering::Relaxed);
                watched.start.store(start, Ordering::Release);
                return Ok(Watch(index));
            }
        }
        Err(io::Error::other("too many translators in one process"))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        CACHES[self.0].start.store(0, Ordering::Release);
    }
}

/// Installs the handler, once for the process.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        install_anew()?;
        *installed = true;
    }
    Ok(())
}

fn install_anew() -> io::Result<()> {
    for (signal, earlier) in OURS.into_iter().zip(&EARLIER) {
        // SAFETY: all bits zero are a valid `sigaction`, and the kernel replaces them with the present
        // action.
        let mut action: sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: as above.
        check(unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) })?;
        earlier.1.store(action.sa_flags & libc::SA_SIGINFO != 0, Ordering::Relaxed);
        earlier.0.store(action.sa_sigaction, Ordering::Relaxed);
        action.sa_sigaction = on_signal as *const () as usize;
        // The handler runs on an alternate stack if the thread has one, since the handler of the standard
        // library needs one.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // The alternate stack is small, so other handlers must not run on top of this one.
        // SAFETY: these functions only fill the set that they are given, and take signals out of it.
        unsafe {
            libc::sigfillset(&raw mut action.sa_mask);
            for ours in OURS {
                libc::sigdelset(&raw mut action.sa_mask, ours);
            }
        }
        // SAFETY: the handler has these arguments, and calls only functions that a handler may call.
        check(unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) })?;
    }
    Ok(())
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Handles a signal of [`OURS`].
///
/// # Safety
/// Only the kernel may call it, as the handler of a signal of [`OURS`].
unsafe extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both pointers, and nobody else has them.
    let (frame, address) = unsafe { (&mut *context.cast::<ucontext_t>(), (*info).si_addr()) };
    let registers = &mut frame.uc_mcontext.gregs;
    let rip = registers[libc::REG_RIP as usize] as usize;
    let ours = CACHES.iter().find(|watched| {
        let start = watched.start.load(Ordering::Acquire);
        start != 0 && (start..start + cache::SIZE).contains(&rip)
    });
    if let Some(watched) = ours {
        let fault = HostFault {
            // SAFETY: the mask is a set of bits, of which the first 64 are the kernel's.
            mask: unsafe { ptr::from_ref(&frame.uc_sigmask).cast::<u64>().read_unaligned() },
            address: address.addr() as u64,
            rip: rip as u64,
            // Other faults leave the bits of a page fault as they happen to be.
            code: match registers[libc::REG_TRAPNO as usize] {
                PAGE_FAULT => registers[libc::REG_ERR as usize] as u64,
                _ => 0,
            },
            signal: signal as u64,
        };
        let numeric = frame.uc_mcontext.fpregs.cast_const().cast::<[u8; IMAGE]>();
        // SAFETY: if the kernel passes an address, it has saved all numeric registers there, as FXSAVE does
        // in 64-bit mode (SDM vol. 1, 13.4.1).
        let numeric = unsafe { numeric.as_ref() };
        let (host_stack, mask) = match watched.long_context.load(Ordering::Relaxed) {
            0 => {
                let context = registers[libc::REG_R14 as usize] as usize as *mut Context;
                // SAFETY: in such code R14 is the address of the context, and no reference into it exists
                // meanwhile.
                let context = unsafe { &mut *context };
                (context.reason, context.fault) = (reason::SIGNAL, fault);
                context.take_registers(registers, numeric);
                (context.host_stack, &raw const context.fault.mask)
            }
            context => {
                // SAFETY: while code of this cache runs its context is at this address, and no reference into
                // it exists.
                let context = unsafe { &mut *(context as *mut LongContext) };
                context.fault = fault;
                // SAFETY: the kernel has saved them in this frame.
                let upper = || unsafe { upper_halves(frame.uc_mcontext.fpregs.cast()) };
                context.take_registers(registers, numeric, upper);
                (context.host_stack, &raw const context.fault.mask)
            }
        };
        // SAFETY: this function has nothing to drop, and the mask of signals is restored.
        unsafe { context::leave_signal(host_stack, mask) };
    }
    if signal == libc::SIGSEGV && absent::fetch_at(address.addr()) {
        return;
    }
    let address = address.addr();
    // What cannot be read from the file of a saved machine does not come by waiting.
    if signal == libc::SIGBUS && !absent::is_absent(address) && shortage::wait_at(address) {
        return;
    }
    // SAFETY: these are the arguments that the kernel passed.
    unsafe { do_as_before(signal, info, context) };
}

/// Returns the upper halves of the YMM registers in a signal frame.
///
/// # Safety
/// `start` must be where the kernel has saved the numeric registers in a signal frame, or null.
unsafe fn upper_halves(start: *const u8) -> [u128; 16] {
    /// The description of the frame (`struct _fpx_sw_bytes`): its place in the image, and its first bytes if the frame
    /// is an area of XSAVE, which holds more components than the image.
    const DESCRIPTION: usize = 464;
    const MAGIC: u32 = 0x4650_5853;
    /// The component with these halves, and its offset, the same on all processors.
    const COMPONENT: u64 = 1 << 2;
    const OFFSET: usize = 576;
    if start.is_null() {
        return [0; 16];
    }
    // SAFETY: an image has the description. The header of an area follows it, and this component follows the header if
    // it is in use.
    unsafe {
        if start.add(DESCRIPTION).cast::<u32>().read_unaligned() != MAGIC {
            return [0; 16];
        }
        if start.add(IMAGE).cast::<u64>().read_unaligned() & COMPONENT == 0 {
            return [0; 16];
        }
        start.add(OFFSET).cast::<[u128; 16]>().read_unaligned()
    }
}

/// Does what would have been done if this handler were not installed.
///
/// # Safety
/// As for [`on_signal`].
unsafe fn do_as_before(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(index) = OURS.iter().position(|ours| *ours == signal) else { return };
    let (handler, with_info) = &EARLIER[index];
    let handler = handler.load(Ordering::Relaxed);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // The instruction then executes again, and its signal ends the process.
        // SAFETY: a handler may call it.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    } else if with_info.load(Ordering::Relaxed) {
        type WithInfo = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
        // SAFETY: the kernel would have called this address with these arguments.
        unsafe { std::mem::transmute::<usize, WithInfo>(handler)(signal, info, context) };
    } else {
        // SAFETY: as above, for a handler with one argument.
        unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(c_int)>(handler)(signal) };
    }
}
