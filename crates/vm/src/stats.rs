//! What a machine counts, for `--stats`.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use ring3_core::clock::Time;
use ring3_x86::engine::Exit;

/// Counters of a run.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Instructions that the guest has executed.
    pub instructions: u64,
    /// Virtual time at the end.
    pub virtual_time: Time,
    /// Host time from start to end.
    pub host_time: Time,
    /// Host time during which the guest waited and the host did nothing, in nanoseconds.
    pub asleep_nanos: u64,
    /// How often it did.
    pub sleeps: u64,
    /// Resets that the guest asked for.
    pub resets: u64,
    /// Exits by their kind.
    pub exits: Exits,
    /// The engine's own counters.
    pub engine: Vec<(&'static str, u64)>,
}

/// Exits of the engine by their kind.
#[derive(Debug, Clone, Default)]
pub struct Exits {
    deadline: u64,
    port_reads: u64,
    port_writes: u64,
    mmio_reads: u64,
    mmio_writes: u64,
    time_stamps: u64,
    interrupts: u64,
    halts: u64,
    numeric_errors: u64,
}

impl Stats {
    /// Counts an exit.
    pub(crate) fn count(&mut self, exit: &Exit) {
        let exits = &mut self.exits;
        match exit {
            Exit::Deadline => exits.deadline += 1,
            Exit::PortRead { .. } => exits.port_reads += 1,
            Exit::PortWrite { .. } => exits.port_writes += 1,
            Exit::MmioRead { .. } => exits.mmio_reads += 1,
            Exit::MmioWrite { .. } => exits.mmio_writes += 1,
            Exit::TimeStamp => exits.time_stamps += 1,
            Exit::InterruptWindow => exits.interrupts += 1,
            Exit::Halt => exits.halts += 1,
            Exit::NumericError => exits.numeric_errors += 1,
            // The first comes once or never; the others end the run, which says so.
            Exit::ApicBase { .. } | Exit::Shutdown | Exit::Missing(_) => {}
        }
    }

    /// Host time during which the guest ran, in nanoseconds.
    fn awake_nanos(&self) -> u64 {
        self.host_time.as_nanos().saturating_sub(self.asleep_nanos)
    }
}

impl Display for Stats {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
        let nanos_awake = u128::from(self.awake_nanos().max(1));
        // In tenths of a million a second.
        let rate = u128::from(self.instructions) * 10_000 / nanos_awake;
        writeln!(f, "{:>14} instructions", self.instructions)?;
        let rate = format!("{}.{}", rate / 10, rate % 10);
        writeln!(f, "{rate:>14} million instructions a second while awake")?;
        writeln!(f, "{:>14.3} s of host time", seconds(self.host_time.as_nanos()))?;
        writeln!(f, "{:>14.3} s of it asleep", seconds(self.asleep_nanos))?;
        writeln!(f, "{:>14.3} s of virtual time", seconds(self.virtual_time.as_nanos()))?;
        writeln!(f, "{:>14} resets", self.resets)?;
        writeln!(f, "{:>14} times asleep", self.sleeps)?;
        let exits = &self.exits;
        let lines = [
            ("exits: deadline", exits.deadline),
            ("exits: port read", exits.port_reads),
            ("exits: port write", exits.port_writes),
            ("exits: memory-mapped read", exits.mmio_reads),
            ("exits: memory-mapped write", exits.mmio_writes),
            ("exits: time stamp", exits.time_stamps),
            ("exits: interrupt", exits.interrupts),
            ("exits: halt", exits.halts),
            ("exits: numeric error", exits.numeric_errors),
        ];
        let mut lines = lines.iter().chain(&self.engine).peekable();
        while let Some((name, count)) = lines.next() {
            write!(f, "{count:>14} {name}")?;
            if lines.peek().is_some() {
                writeln!(f)?;
            }
        }
        Ok(())
    }
}
