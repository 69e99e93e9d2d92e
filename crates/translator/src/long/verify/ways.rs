//! The ways through a block's code. Where they meet, what all of them know remains. If a distance has grown where a way
//! leads back to, it is assumed to be [`IN_LOOP`](super::state::IN_LOOP), and what grows beyond that is not known.

use std::mem;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

use super::Checker;
use super::state::State;

/// Whether branches lead to an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    /// None does.
    InOrder,
    /// Some do, from before it.
    ByBranches,
    /// Some do, one of which leads back.
    ByLoop,
}

/// What is kept from one block to the next, so that no memory needs to be allocated.
#[derive(Debug, Default)]
pub(super) struct Ways {
    code: Vec<Instruction>,
    /// How each instruction is reached.
    reached: Vec<Reached>,
    /// What is known on the ways that are to be followed, by the number of the instruction that they lead to, the last
    /// one first.
    open: Vec<(usize, Box<State>)>,
    /// What is known on all ways that were followed to an instruction to which a branch leads back.
    met: Vec<(usize, Box<State>)>,
    /// States that are not in use.
    #[expect(clippy::vec_box, reason = "they move into the other lists and back")]
    spare: Vec<Box<State>>,
}

impl Ways {
    /// Begins with `code`, which is at `host`. Returns false if a branch in it leads to the middle of an instruction.
    fn begin(&mut self, code: &[u8], host: u32) -> bool {
        for (_, state) in self.open.drain(..).chain(self.met.drain(..)) {
            self.spare.push(state);
        }
        self.code.clear();
        self.code.extend(Decoder::with_ip(64, code, host.into(), DecoderOptions::NONE).iter());
        self.reached.clear();
        self.reached.resize(self.code.len(), Reached::InOrder);
        let inside = u64::from(host)..u64::from(host) + code.len() as u64;
        for number in 0..self.code.len() {
            let branch = &self.code[number];
            if branch.op0_kind() != OpKind::NearBranch64
                || !inside.contains(&branch.near_branch_target())
            {
                continue;
            }
            let Some(target) = self.place(branch.near_branch_target()) else { return false };
            let how = if target <= number { Reached::ByLoop } else { Reached::ByBranches };
            self.reached[target] = self.reached[target].max(how);
        }
        true
    }

    /// Returns the number of the instruction at the host address `ip`.
    fn place(&self, ip: u64) -> Option<usize> {
        self.code.binary_search_by_key(&ip, Instruction::ip).ok()
    }

    /// Returns a state in which nothing is known.
    fn unknown(&mut self) -> Box<State> {
        let mut state = self.spare.pop().unwrap_or_default();
        state.clear();
        state
    }

    /// Returns a copy of `state`.
    fn copy(&mut self, state: &State) -> Box<State> {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.copy(state);
        copy
    }

    /// Notes that `state` is known on a way to the instruction with this number.
    fn go(&mut self, number: usize, state: Box<State>) {
        match self.open.binary_search_by(|(known, _)| number.cmp(known)) {
            Ok(place) => {
                self.open[place].1.meet(&state, false);
                self.spare.push(state);
            }
            Err(place) => self.open.insert(place, (number, state)),
        }
    }

    /// Returns the next way: the number of the instruction that it leads to, and what is known there. Ways that lead
    /// forward meet before they go on together.
    fn next(&mut self) -> Option<(usize, Box<State>)> {
        while let Some((number, mut state)) = self.open.pop() {
            if self.reached.get(number) != Some(&Reached::ByLoop) {
                return Some((number, state));
            }
            let Some(place) = self.met.iter().position(|(known, _)| *known == number) else {
                let copy = self.copy(&state);
                self.met.push((number, copy));
                return Some((number, state));
            };
            let mut before = self.spare.pop().unwrap_or_default();
            let known = &mut self.met[place].1;
            before.copy(known);
            known.meet(&state, true);
            let has_changed = *known != before;
            state.copy(known);
            self.spare.push(before);
            if has_changed {
                return Some((number, state));
            }
            self.spare.push(state);
        }
        None
    }
}

impl Checker {
    /// Returns whether all accesses of `code`, which is at `host` and is entered at `entries`, reach memory of its space
    /// or none.
    pub(crate) fn proves(&mut self, code: &[u8], host: u32, entries: &[u32]) -> bool {
        let mut ways = mem::take(&mut self.ways);
        let are_proven = ways.begin(code, host) && self.follow(&mut ways, entries);
        self.ways = ways;
        are_proven
    }

    /// Follows all ways from `entries` on. Returns false if an instruction there may access what is not the guest's.
    fn follow(&mut self, ways: &mut Ways, entries: &[u32]) -> bool {
        for (number, entry) in entries.iter().enumerate() {
            if entries[..number].contains(entry) {
                continue;
            }
            let Some(place) = ways.place((*entry).into()) else { return false };
            let state = ways.unknown();
            ways.go(place, state);
        }
        while let Some((mut number, mut state)) = ways.next() {
            loop {
                let Some(instruction) = ways.code.get(number) else {
                    ways.spare.push(state);
                    break;
                };
                if !self.execute(&mut state, instruction) {
                    return false;
                }
                let flow = instruction.flow_control();
                if instruction.op0_kind() == OpKind::NearBranch64
                    && flow != FlowControl::Call
                    && let Some(target) = ways.place(instruction.near_branch_target())
                {
                    let copy = ways.copy(&state);
                    ways.go(target, copy);
                }
                if matches!(
                    flow,
                    FlowControl::UnconditionalBranch
                        | FlowControl::IndirectBranch
                        | FlowControl::Return
                ) {
                    ways.spare.push(state);
                    break;
                }
                number += 1;
                if ways.reached.get(number).is_some_and(|reached| *reached != Reached::InOrder) {
                    ways.go(number, state);
                    break;
                }
            }
        }
        true
    }
}
