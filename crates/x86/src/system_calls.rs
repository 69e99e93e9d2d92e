//! System calls of user programs, as somebody outside the guest sees them.
//!
//! A [`Listener`] is told of each INT 80h, SYSENTER and SYSCALL at privilege 3, and of each return to privilege 3
//! by IRET, SYSEXIT and SYSRET. It cannot change the processor, so the guest does not notice it. Without a listener this
//! costs nothing. With one, the engines execute these instructions alone, so that the count of instructions
//! before them is known; translated code leaves them to the interpreter.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use ring3_core::memory::Memory;

use crate::cpu::{Cpu, reg};
use crate::exception::{Stop, Stopped};

/// The vector by which Linux and others are called.
pub const VECTOR: u8 = 0x80;

/// The instruction of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// INT 80h.
    Interrupt,
    /// SYSENTER.
    FastCall,
    /// SYSCALL.
    LongCall,
}

/// A program that calls the system, before the instruction has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The instruction.
    pub gate: Gate,
    /// The general registers, by their numbers.
    pub general: [u64; 16],
    /// RIP after the instruction.
    pub next: u64,
    /// CR3, by which processes are told from each other.
    pub cr3: u64,
    /// The number of instructions executed before this one.
    pub instructions: u64,
}

impl Caller {
    /// Returns the present state of a program.
    pub fn of(cpu: &Cpu, gate: Gate) -> Caller {
        Caller {
            gate,
            general: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
                .map(|number| cpu.gpr(number)),
            next: cpu.ip,
            cr3: cpu.cr3(),
            instructions: cpu.instructions,
        }
    }

    /// Returns RSP.
    pub fn stack(&self) -> u64 {
        self.general[usize::from(reg::SP)]
    }
}

/// Somebody who is told of system calls.
pub trait Listener: Debug + Send {
    /// Called after the instruction by which `caller` calls the system. `cpu` is in the system's first
    /// instruction, with the page tables of the program.
    fn called(&mut self, cpu: &Cpu, memory: &Memory, caller: &Caller);

    /// Called after a return to privilege 3, from a system call or from an interrupt.
    fn returned(&mut self, cpu: &Cpu, memory: &Memory);
}

/// The listener of a processor. Copies of the processor share it.
#[derive(Debug, Clone)]
struct Shared(Arc<Mutex<dyn Listener>>);

/// Whether there is a listener, and which.
#[derive(Debug, Clone, Default)]
pub(crate) struct SystemCalls(Option<Shared>);

impl Cpu {
    /// Tells `listener` of system calls from now on, or nobody.
    pub fn set_system_call_listener(&mut self, listener: Option<Arc<Mutex<dyn Listener>>>) {
        self.system_calls = SystemCalls(listener.map(Shared));
    }

    /// Returns whether somebody is told of system calls.
    pub fn tells_system_calls(&self) -> bool {
        self.system_calls.0.is_some()
    }

    /// Stops the instruction if it is in the middle of a block, to be executed alone.
    fn stop_in_block(&mut self) -> Result<(), Stopped> {
        if self.guard_code { Err(self.stop_for(Stop::WritesCode)) } else { Ok(()) }
    }

    /// Begins an instruction that is a system call if it completes. Returns who calls, if somebody wants to
    /// know.
    #[inline]
    pub(crate) fn begin_system_call(&mut self, gate: Gate) -> Result<Option<Caller>, Stopped> {
        if self.system_calls.0.is_none() || !self.is_user() {
            return Ok(None);
        }
        self.stop_in_block()?;
        Ok(Some(Caller::of(self, gate)))
    }

    /// Tells of the system call of `caller`, if there is one.
    #[inline]
    pub(crate) fn end_system_call(&self, memory: &Memory, caller: Option<Caller>) {
        if let (Some(caller), Some(Shared(listener))) = (caller, &self.system_calls.0) {
            let mut listener = listener.lock().unwrap_or_else(PoisonError::into_inner);
            listener.called(self, memory, &caller);
        }
    }

    /// Begins an instruction that may return to privilege 3. Returns whether somebody wants to know if it
    /// does.
    #[inline]
    pub(crate) fn begin_system_return(&mut self) -> Result<bool, Stopped> {
        if self.system_calls.0.is_none() || self.is_user() {
            return Ok(false);
        }
        self.stop_in_block()?;
        Ok(true)
    }

    /// Tells of a return to privilege 3, if `is_awaited` is true and that has taken place.
    #[inline]
    pub(crate) fn end_system_return(&self, memory: &Memory, is_awaited: bool) {
        if let (true, Some(Shared(listener))) = (is_awaited && self.is_user(), &self.system_calls.0)
        {
            let mut listener = listener.lock().unwrap_or_else(PoisonError::into_inner);
            listener.returned(self, memory);
        }
    }
}
