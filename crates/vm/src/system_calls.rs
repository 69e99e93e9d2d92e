//! The guest's system calls, a line of text for each: those of Linux on i386, by INT 80h and SYSENTER, and on x86-64,
//! by SYSCALL.
//!
//! ```text
//!    912345678      0.912345678 01f3a000 openat(-100, "/etc/passwd", 0x8000, 000) = 3 <0.000004012>
//! ```
//!
//! The first column is the number of instructions executed when the call returns, the second is virtual time
//! in seconds, the third CR3, by which processes are told from each other. The last one is the time in
//! between. Arguments are those in the registers; strings and written bytes are read from memory as far as
//! they are there. Calls that do not return to where they were made (`exit`, `execve`, `rt_sigreturn`) get a
//! line when they are made. Two traces of the same deterministic run are equal, byte for byte.
//!
//! A call has returned when its program continues behind it: with the CR3 and the ESP of the call. So each
//! thread has its own calls, the handler of a signal may make others meanwhile, and a call that the kernel
//! starts again ends when it is done.

mod names;

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter, Write as _};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring3_core::clock::Time;
use ring3_core::memory::Memory;
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::system_calls::{Caller, Gate, Listener};

use crate::event_log::Seconds;
use crate::machine::Vm;
use names::{Argument, Names};

/// Bytes of a string or of written data that are shown.
const SHOWN_BYTES: usize = 64;
/// Upper bound of the calls that have not returned; the oldest is forgotten.
const CALLS_MAX: usize = 1024;
/// How far behind SYSENTER a program continues at most (Linux, arch/x86/entry/vdso/vdso32/system_call.S).
const LANDING_MAX: u64 = 16;

/// The trace of a machine's system calls, which is being written. Its copies write to the same place.
#[derive(Debug, Clone)]
pub struct SystemCallTrace(Arc<Mutex<Tracer>>);

impl SystemCallTrace {
    /// Makes a trace that writes up to `most` lines to `out`.
    pub fn new(out: impl Write + Send + 'static, most: u64) -> SystemCallTrace {
        SystemCallTrace(Arc::new(Mutex::new(Tracer {
            out: Box::new(out),
            left: most,
            error: None,
            names: [Names::of_i386(), Names::of_x86_64()],
            calls: BTreeMap::new(),
        })))
    }

    fn tracer(&self) -> MutexGuard<'_, Tracer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the first error, after which nothing more is written.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.tracer().error.take()
    }

    /// Writes the calls that have not returned, and what is still buffered.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.tracer().finish()
    }
}

impl Vm {
    /// Writes the guest's system calls to `trace` from now on.
    pub fn trace_system_calls(&mut self, trace: SystemCallTrace) {
        self.cpu.set_system_call_listener(Some(trace.0.clone()));
        self.system_calls = Some(trace);
    }
}

/// What a call is known by while it has not returned: CR3, RSP, and RIP behind its instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    cr3: u64,
    stack: u64,
    next: u64,
}

/// A call that has not returned.
#[derive(Debug)]
struct Call {
    gate: Gate,
    number: u64,
    /// Name and arguments.
    text: String,
    instructions: u64,
    time: Time,
}

struct Tracer {
    out: Box<dyn Write + Send>,
    /// How many more lines are written.
    left: u64,
    error: Option<io::Error>,
    /// The names for 32-bit programs, and those for 64-bit ones.
    names: [Names; 2],
    calls: BTreeMap<Key, Call>,
}

impl Debug for Tracer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("calls", &self.calls).finish_non_exhaustive()
    }
}

/// The registers with arguments, of 32-bit and of 64-bit programs: RDI, RSI, RDX, R10, R8, R9.
const ARGUMENTS: [u8; 6] = [reg::BX, reg::CX, reg::DX, reg::SI, reg::DI, reg::BP];
const LONG_ARGUMENTS: [u8; 6] = [reg::DI, reg::SI, reg::DX, 10, 8, 9];

/// Returns what a register of `caller` holds: 32 bits in a 32-bit program.
fn word(caller: &Caller, register: u8) -> u64 {
    let value = caller.general[usize::from(register)];
    if caller.gate == Gate::LongCall { value } else { value & 0xffff_ffff }
}

/// Returns a number with its sign. Those of 32 bits, such as AT_FDCWD, have zeros above them.
fn signed(value: u64) -> i64 {
    match u32::try_from(value) {
        Ok(value) => value.cast_signed().into(),
        Err(_) => value.cast_signed(),
    }
}

/// Returns virtual time after `instructions` instructions.
fn time(cpu: &Cpu, instructions: u64) -> Time {
    cpu.clock.as_ref().map_or(Time::ZERO, |clock| clock.now(instructions))
}

impl Tracer {
    /// Writes a line.
    fn tell(&mut self, instructions: u64, time: Time, what: impl fmt::Display) {
        if self.left == 0 || self.error.is_some() {
            return;
        }
        self.left -= 1;
        let time = Seconds(time).to_string();
        let written = writeln!(self.out, "{instructions:>12} {time:>16} {what}");
        let written = match self.left {
            0 => written
                .and_then(|()| writeln!(self.out, "the trace is at its limit, and ends here"))
                .and_then(|()| self.out.flush()),
            _ => written,
        };
        self.error = written.err();
    }

    fn finish(&mut self) -> io::Result<()> {
        let mut calls: Vec<_> = std::mem::take(&mut self.calls).into_iter().collect();
        calls.retain(|(_, call)| !self.names(call.gate).goes_elsewhere(call.number));
        calls.sort_by_key(|(_, call)| call.instructions);
        for (Key { cr3, .. }, call) in calls {
            let line = format!("{cr3:08x} {} has not returned", call.text);
            self.tell(call.instructions, call.time, line);
        }
        match self.error.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    /// Returns the names of the system that is called in this way.
    fn names(&self, gate: Gate) -> &Names {
        &self.names[usize::from(gate == Gate::LongCall)]
    }

    /// Describes a call by its name and its arguments.
    fn describe(&self, cpu: &Cpu, memory: &Memory, caller: &Caller) -> String {
        let registers = match caller.gate {
            Gate::LongCall => LONG_ARGUMENTS,
            Gate::Interrupt | Gate::FastCall => ARGUMENTS,
        };
        let mut values = registers.map(|register| word(caller, register));
        let number = word(caller, reg::AX);
        let Some(call) = self.names(caller.gate).call(number) else {
            return format!("call_{number}({:#x})", values[0]);
        };
        if caller.gate == Gate::FastCall {
            // EBP is needed for the stack, where its own value is.
            let bytes = read(cpu, memory, caller.stack(), 4);
            values[5] = bytes.try_into().map_or(0, u32::from_le_bytes).into();
        }
        let mut text = format!("{}(", call.name);
        for (place, (kind, value)) in call.arguments.iter().zip(values).enumerate() {
            if place > 0 {
                text.push_str(", ");
            }
            // Writing to a string cannot fail.
            let _ = match kind {
                Argument::Number => write!(text, "{}", signed(value)),
                Argument::Word => write!(text, "{value:#x}"),
                Argument::Permissions => write!(text, "{value:03o}"),
                Argument::String => write!(text, "{}", string(cpu, memory, value)),
                Argument::Bytes => {
                    let len = values.get(place + 1).copied().unwrap_or(0);
                    write!(text, "{}", bytes(cpu, memory, value, len))
                }
            };
        }
        text.push(')');
        text
    }

    /// Takes the call that returns to where the program is now, if it is one.
    fn take_returned(&mut self, cpu: &Cpu, memory: &Memory) -> Option<(Key, Call)> {
        let (cr3, stack, ip) = (cpu.cr3(), cpu.gpr(reg::SP), cpu.ip);
        let all = Key { cr3, stack, next: 0 }..=Key { cr3, stack, next: u64::MAX };
        let (key, is_started_again) = self.calls.range(all).find_map(|(key, call)| {
            match call.gate {
                Gate::Interrupt | Gate::LongCall if ip == key.next => Some((*key, false)),
                // Both instructions have two bytes.
                Gate::Interrupt | Gate::LongCall if ip == key.next.wrapping_sub(2) => {
                    Some((*key, true))
                }
                Gate::Interrupt | Gate::LongCall => None,
                // Behind SYSENTER is INT 80h, or (in old kernels) a jump to the beginning: there a call
                // continues that is made again.
                Gate::FastCall => match ip.wrapping_sub(key.next) {
                    0 => Some((*key, true)),
                    1..=LANDING_MAX => {
                        Some((*key, read(cpu, memory, ip, 1).first() == Some(&0xeb)))
                    }
                    _ => None,
                },
            }
        })?;
        let call = self.calls.remove(&key)?;
        (!is_started_again).then_some((key, call))
    }
}

impl Listener for Tracer {
    fn called(&mut self, cpu: &Cpu, memory: &Memory, caller: &Caller) {
        if self.left == 0 {
            return;
        }
        let Caller { gate, next, cr3, instructions, .. } = *caller;
        let number = word(caller, reg::AX);
        let text = self.describe(cpu, memory, caller);
        let time = time(cpu, instructions);
        if self.names(gate).goes_elsewhere(number) {
            self.tell(instructions, time, format_args!("{cr3:08x} {text}"));
        }
        if self.names(gate).never_returns(number) {
            return;
        }
        if self.calls.len() >= CALLS_MAX {
            let oldest = self.calls.iter().min_by_key(|(_, call)| call.instructions);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.calls.remove(&oldest);
            }
        }
        let key = Key { cr3, stack: caller.stack(), next };
        self.calls.insert(key, Call { gate, number, text, instructions, time });
    }

    fn returned(&mut self, cpu: &Cpu, memory: &Memory) {
        let Some((key, call)) = self.take_returned(cpu, memory) else { return };
        let result = match call.gate {
            Gate::LongCall => cpu.gpr(reg::AX).cast_signed(),
            Gate::Interrupt | Gate::FastCall => cpu.get::<u32>(reg::AX).cast_signed().into(),
        };
        let (instructions, now) = (cpu.instructions, time(cpu, cpu.instructions));
        let text = format!(
            "{:08x} {} = {} <{}>",
            key.cr3,
            call.text,
            self.names(call.gate).result(call.number, result),
            Seconds(Time::from_nanos(now.nanos_since(call.time))),
        );
        self.tell(instructions, now, text);
        // The child may return first, on the stack of its parent.
        if result == 0 && self.names(call.gate).makes_processes(call.number) {
            self.calls.insert(key, call);
        }
    }
}

/// Reads up to `len` bytes of the program's memory, as far as it is there.
fn read(cpu: &Cpu, memory: &Memory, linear: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        let at = linear.wrapping_add(done as u64);
        let exists = cpu.is_in_long_mode() || at >> 32 == 0;
        let count = (len - done).min(0x1000 - (at & 0xfff) as usize);
        let place = if exists { cpu.probe(memory, at) } else { None };
        let Some(physical) = place else { break };
        memory.read(physical, &mut bytes[done..done + count]);
        done += count;
    }
    bytes.truncate(done);
    bytes
}

/// Shows the string at `linear`, or its address if it is not there.
fn string(cpu: &Cpu, memory: &Memory, linear: u64) -> String {
    let bytes = read(cpu, memory, linear, SHOWN_BYTES + 1);
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => format!("\"{}\"", bytes[..end].escape_ascii()),
        None if bytes.len() > SHOWN_BYTES => {
            format!("\"{}\"...", bytes[..SHOWN_BYTES].escape_ascii())
        }
        None => format!("{linear:#x}"),
    }
}

/// Shows the `len` bytes at `linear`, or the address if they are not there.
fn bytes(cpu: &Cpu, memory: &Memory, linear: u64, len: u64) -> String {
    let shown = len.min(SHOWN_BYTES as u64) as usize;
    let bytes = read(cpu, memory, linear, shown);
    if bytes.len() < shown {
        return format!("{linear:#x}");
    }
    let more = if len > shown as u64 { "..." } else { "" };
    format!("\"{}\"{more}", bytes.escape_ascii())
}

#[cfg(test)]
mod tests;
