//! Whole machines in memory, taken on the way of a replay, to which it can return.
//!
//! A checkpoint costs what has changed since the one before: memory is compared with it, and equal pages are
//! shared ([`MemoryCopy`]). There is a bounded number of them, and they take a bounded amount of memory. Where
//! one too many is taken, the one goes that is missed least: the farther away the present is, the farther
//! apart they may be.
//!
//! Going back changes the machine in place. What differs in memory is written there, so that the translator
//! keeps the code that is the same; processor, devices and virtual time are made anew.

use std::num::NonZero;

use ring3_core::clock::Clock;
use ring3_core::memory::MemoryCopy;
use ring3_core::state::SavedState;

use crate::board::Board;
use crate::config::Config;
use crate::facts;
use crate::machine::replay::{InputPlace, Replay};
use crate::machine::{Vm, VmError};

/// The largest number of checkpoints.
const MOST: usize = 256;

/// The machine between two instructions.
#[derive(Debug)]
pub(super) struct Checkpoint {
    instructions: u64,
    config: Config,
    cpu: SavedState,
    long_mode_sought: Option<u64>,
    board: SavedState,
    clock: Clock,
    memory: MemoryCopy,
    resets: u64,
    is_off: bool,
    inputs: InputPlace,
    sent: Sent,
}

/// Numbers of bytes that the guest has sent: on each serial port, and to the debug console.
pub(super) type Sent = [u64; 5];

/// Checkpoints in the order of time.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// The first one is the beginning, and always stays.
    all: Vec<Checkpoint>,
    /// Instructions between two that are taken by themselves.
    interval: NonZero<u64>,
    /// Bytes of memory that all of them hold, and the most that they may hold.
    bytes: u64,
    most_bytes: u64,
}

impl Checkpoints {
    /// Makes an empty set. Checkpoints are due every `interval` instructions, and hold at most `most_bytes` of
    /// memory.
    pub(super) fn new(interval: NonZero<u64>, most_bytes: u64) -> Checkpoints {
        Checkpoints { all: Vec::new(), interval, bytes: 0, most_bytes }
    }

    /// Returns the count of instructions at which the next one is due.
    pub(super) fn due_after(&self, instructions: u64) -> u64 {
        let interval = self.interval.get();
        (instructions / interval).saturating_add(1).saturating_mul(interval)
    }

    /// Returns the number of those with at most `instructions` instructions.
    fn count_up_to(&self, instructions: u64) -> usize {
        self.all.partition_point(|checkpoint| checkpoint.instructions <= instructions)
    }

    /// Returns the last one with at most `instructions` instructions, or else the first one of all.
    fn last_up_to(&self, instructions: u64) -> Option<&Checkpoint> {
        self.all.get(self.count_up_to(instructions).saturating_sub(1))
    }

    /// Returns the count of instructions of the first one.
    pub(super) fn beginning(&self) -> u64 {
        self.all.first().map_or(0, |checkpoint| checkpoint.instructions)
    }

    /// Returns the count of instructions of the last one with at most `instructions` instructions.
    pub(super) fn before(&self, instructions: u64) -> u64 {
        self.last_up_to(instructions).map_or(0, |checkpoint| checkpoint.instructions)
    }

    /// Adds `checkpoint`, and drops others if there are too many.
    fn add(&mut self, checkpoint: Checkpoint) {
        let present = checkpoint.instructions;
        self.bytes += checkpoint.memory.bytes_alone();
        self.all.insert(self.count_up_to(present), checkpoint);
        while self.all.len() > 2 && (self.all.len() > MOST || self.bytes > self.most_bytes) {
            let dropped = self.all.remove(self.missed_least(present));
            self.bytes -= dropped.memory.bytes_alone();
        }
    }

    /// Returns the index of the one whose absence costs least: it leaves a gap that is short in relation to its
    /// distance from the present.
    fn missed_least(&self, present: u64) -> usize {
        let cost = |index: usize| {
            let at = |index: usize| self.all.get(index).map(|checkpoint| checkpoint.instructions);
            let here = self.all[index].instructions;
            let gap = at(index + 1).unwrap_or(here.max(present)) - at(index - 1).unwrap_or(0);
            (gap, here.abs_diff(present).saturating_add(self.interval.get()))
        };
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        let others = (1..self.all.len()).filter(|index| self.all[*index].instructions != present);
        let least = others.min_by(|a, b| {
            let ((gap_a, far_a), (gap_b, far_b)) = (cost(*a), cost(*b));
            product(gap_a, far_b).cmp(&product(gap_b, far_a))
        });
        least.unwrap_or(self.all.len() - 1)
    }
}

impl Vm {
    /// Takes a checkpoint here, where the guest has sent `sent`, unless there is one.
    pub(super) fn take_checkpoint(&mut self, checkpoints: &mut Checkpoints, sent: Sent) {
        let instructions = self.cpu.instructions;
        let before = checkpoints.last_up_to(instructions);
        if before.is_some_and(|before| before.instructions == instructions) {
            return;
        }
        let Some(inputs) = self.replay.as_ref().map(Replay::place) else { return };
        let memory = self.memory.copy(before.map(|checkpoint| &checkpoint.memory));
        self.stats.travel.checkpoints += 1;
        checkpoints.add(Checkpoint {
            instructions,
            config: self.config.clone(),
            cpu: self.save_processor(),
            long_mode_sought: self.cpu.long_mode_sought,
            board: self.board.save(),
            clock: self.clock.clone(),
            memory,
            resets: self.stats.resets,
            is_off: self.is_off,
            inputs,
            sent,
        });
    }

    /// Goes back, or on, to the last checkpoint with at most `instructions` instructions, or to the beginning.
    /// Returns what the guest had sent there.
    pub(super) fn return_to_checkpoint(
        &mut self,
        checkpoints: &Checkpoints,
        instructions: u64,
    ) -> Result<Sent, VmError> {
        let Some(checkpoint) = checkpoints.last_up_to(instructions) else {
            return Ok(Sent::default());
        };
        self.stats.travel.returns += 1;
        self.config = checkpoint.config.clone();
        let fw_cfg = facts::describe(&self.config, &self.software)?;
        self.board = Board::new(&self.config, self.rom, fw_cfg, self.video.as_ref())?;
        self.board.restore(&checkpoint.board)?;
        // What the engine has counted belongs to the present.
        self.engine.complete_counts(&mut self.cpu);
        self.cpu.restore(&checkpoint.cpu)?;
        self.cpu.long_mode_sought = checkpoint.long_mode_sought;
        self.memory.put_back(&checkpoint.memory)?;
        self.clock = checkpoint.clock.clone();
        self.show_clock();
        self.stats.resets = checkpoint.resets;
        self.is_off = checkpoint.is_off;
        self.leaving.clear();
        self.debugging.forget_stop();
        if let Some(replay) = &mut self.replay {
            replay.go_to(&checkpoint.inputs)?;
        }
        Ok(checkpoint.sent)
    }
}

#[cfg(test)]
mod tests {
    use ring3_core::memory::Memory;

    use super::*;

    /// Takes checkpoints at these counts of instructions, before each of which a page was written.
    fn taken(counts: impl Iterator<Item = u64>, interval: u64, most_bytes: u64) -> Checkpoints {
        let mut memory = Memory::new(1 << 20).unwrap();
        let mut all = Checkpoints::new(NonZero::new(interval).unwrap(), most_bytes);
        for (number, instructions) in (1..).zip(counts) {
            memory.write(number % 256 * 0x1000, &[number as u8 | 1, (number >> 8) as u8]);
            let before = all.last_up_to(instructions).map(|before| &before.memory);
            let nothing = SavedState::new("nothing", 1, &());
            let checkpoint = Checkpoint {
                instructions,
                config: Config::default(),
                cpu: nothing.clone(),
                long_mode_sought: None,
                board: nothing,
                clock: Clock::new(1000),
                memory: memory.copy(before),
                resets: 0,
                is_off: false,
                inputs: InputPlace::default(),
                sent: Sent::default(),
            };
            all.add(checkpoint);
        }
        all
    }

    fn counts(all: &Checkpoints) -> Vec<u64> {
        all.all.iter().map(|checkpoint| checkpoint.instructions).collect()
    }

    #[test]
    fn the_last_one_before_is_found() {
        let all = taken([0, 10, 20].into_iter(), 10, u64::MAX);
        assert_eq!([0, 9, 10, 25].map(|instructions| all.before(instructions)), [0, 0, 10, 20]);
        assert_eq!([0, 9, 10].map(|instructions| all.due_after(instructions)), [10, 10, 20]);
        assert_eq!(all.due_after(u64::MAX), u64::MAX);
    }

    #[test]
    fn their_number_is_bounded_and_they_are_dense_where_the_present_is() {
        let all = taken((0..1000).map(|number| number * 10), 10, u64::MAX);
        let counts = counts(&all);
        assert_eq!(counts.len(), MOST);
        assert_eq!((counts[0], counts[MOST - 1]), (0, 9990));
        // Near the present all are there, and no gap is long in relation to its distance.
        assert_eq!(counts[MOST - 11..], (989..1000).map(|number| number * 10).collect::<Vec<_>>());
        for pair in counts.windows(2) {
            let (gap, distance) = (pair[1] - pair[0], 9990 - pair[0]);
            assert!(gap <= 20 + distance / 20, "{pair:?}");
        }
    }

    #[test]
    fn their_memory_is_bounded() {
        let all = taken((0..500).map(|number| number * 10), 10, 100 << 12);
        assert!(all.bytes <= 100 << 12 || all.all.len() == 2, "{} bytes", all.bytes);
        let held: std::collections::HashSet<u64> = counts(&all).into_iter().collect();
        assert_eq!(held.len(), all.all.len());
        assert!(held.contains(&0) && held.contains(&4990), "{held:?}");
    }
}
