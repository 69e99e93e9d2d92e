//! How instructions stop, and how they get answers from the machine.

use crate::cpu::{Attention, Cpu, width_of};
use crate::engine::Exit;
use crate::exception::{Fault, Stop, Stopped, vector};
use crate::word::Word;

impl Cpu {
    /// Returns why the last instruction stopped.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Stops the instruction for `reason`.
    #[cold]
    pub(crate) fn stop_for(&mut self, reason: Stop) -> Stopped {
        self.stop = reason;
        Stopped
    }

    /// Stops the instruction with an exception.
    #[cold]
    pub(crate) fn fault(&mut self, fault: Fault) -> Stopped {
        self.stop_for(Stop::Fault(fault))
    }

    /// Stops the instruction with #GP.
    #[cold]
    pub(crate) fn general_protection(&mut self, error_code: u32) -> Stopped {
        self.fault(Fault::with_code(vector::GP, error_code))
    }

    /// Stops the instruction with #UD.
    #[cold]
    pub(crate) fn undefined_opcode(&mut self) -> Stopped {
        self.fault(Fault::new(vector::UD))
    }

    /// Raises #GP(0) unless the privilege level is 0.
    pub(crate) fn require_cpl0(&mut self) -> Result<(), Stopped> {
        if self.cpl == 0 { Ok(()) } else { Err(self.general_protection(0)) }
    }

    // Exits and answers -------------------------------------------------

    /// Answers the last exit of the engine, with the value read, or with any value for a write.
    pub fn answer(&mut self, value: u64) {
        self.device_access = None;
        self.answers.values.push(value);
        self.attention |= Attention::ANSWERED;
    }

    /// Returns whether an instruction has begun and will start again with its answers, so that the processor
    /// is not between two instructions.
    pub fn has_answers(&self) -> bool {
        self.attention.contains(Attention::ANSWERED)
    }

    /// Asks the machine. Returns the answer if it is already there, and otherwise stops the instruction.
    pub(crate) fn ask(&mut self, question: Exit) -> Result<u64, Stopped> {
        if let Some(answer) = self.answers.values.get(self.answers.used) {
            self.answers.used += 1;
            return Ok(*answer);
        }
        self.device_access = None;
        Err(self.stop_for(Stop::Restart(question)))
    }

    /// Begins an instruction again, which will ask its questions from the first one on.
    pub(crate) fn rewind_answers(&mut self) {
        self.answers.used = 0;
    }

    /// Drops the answers at the end of their instruction.
    pub(crate) fn forget_answers(&mut self) {
        self.answers.values.clear();
        self.answers.used = 0;
        self.attention -= Attention::ANSWERED;
    }

    /// Reads a port.
    pub(crate) fn read_port<W: Word>(&mut self, port: u16) -> Result<W, Stopped> {
        let value = self.ask(Exit::PortRead { port, width: width_of::<W>() })?;
        self.watch_port(port, W::BYTES);
        Ok(W::truncate(value))
    }

    /// Writes a port.
    pub(crate) fn write_port<W: Word>(&mut self, port: u16, value: W) -> Result<(), Stopped> {
        let value = value.zero_extend() as u32;
        self.ask(Exit::PortWrite { port, width: width_of::<W>(), value })?;
        self.watch_port(port, W::BYTES);
        Ok(())
    }

    /// Returns the time-stamp counter.
    pub(crate) fn time_stamp(&mut self) -> Result<u64, Stopped> {
        let now = match &self.clock {
            // Only while an instruction is executed alone is the count of instructions before it known.
            Some(clock) if !self.guard_code => clock.now(self.instructions).as_nanos(),
            _ => self.ask(Exit::TimeStamp)?,
        };
        Ok(now.wrapping_sub(self.msrs.time_stamp_offset))
    }

    /// Activates IGNNE#: x87 and MMX instructions ignore the pending exception. Without one this has no
    /// effect. After the exception has been cleared, the next one is reported again, as in the circuit of SDM
    /// vol. 1, D.2.1.2.
    pub fn ignore_numeric_error(&mut self) {
        self.fpu.ignore_pending_exception();
    }

    /// Returns whether the processor waits for an interrupt, in HLT or after [`Exit::NumericError`].
    pub fn is_halted(&self) -> bool {
        self.halted
    }
}
