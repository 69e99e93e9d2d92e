//! The ways through a block's code. Where they meet, what all of them know remains. If a distance has grown where a way
//! leads back to, it is assumed to be [`IN_LOOP`](super::state::IN_LOOP), and what grows beyond that is not known.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

use super::Checker;
use super::state::State;
use crate::map::Map;

impl Checker {
    /// Returns whether all accesses of `code`, which is at `host` and is entered at `entries`, reach memory of its space
    /// or none.
    pub(crate) fn proves(&mut self, code: &[u8], host: u32, entries: &[u32]) -> bool {
        let all: Vec<Instruction> =
            Decoder::with_ip(64, code, host.into(), DecoderOptions::NONE).iter().collect();
        let place = |ip: u64| all.binary_search_by_key(&ip, Instruction::ip).ok();
        let inside = u64::from(host)..u64::from(host) + code.len() as u64;
        // Where branches lead to, and whether one of them leads back.
        let mut targets: Map<usize, bool> = Map::default();
        for (number, branch) in all.iter().enumerate() {
            if branch.op0_kind() == OpKind::NearBranch64
                && inside.contains(&branch.near_branch_target())
            {
                let Some(target) = place(branch.near_branch_target()) else { return false };
                *targets.entry(target).or_default() |= target <= number;
            }
        }
        // What is known on the ways there that are to be followed, and on all that were.
        let mut ways = BTreeMap::new();
        let mut met: Map<usize, State> = Map::default();
        for entry in entries {
            let Some(place) = place((*entry).into()) else { return false };
            ways.insert(place, State::new());
        }
        // Ways that lead forward meet before they go on together.
        while let Some((mut number, mut state)) = ways.pop_first() {
            if let Some(known) = met.get_mut(&number) {
                let before = known.clone();
                known.meet(&state, targets.get(&number).is_some_and(|leads_back| *leads_back));
                if *known == before {
                    continue;
                }
                state = known.clone();
            } else {
                met.insert(number, state.clone());
            }
            while let Some(instruction) = all.get(number) {
                if !self.execute(&mut state, instruction) {
                    return false;
                }
                let flow = instruction.flow_control();
                if instruction.op0_kind() == OpKind::NearBranch64
                    && flow != FlowControl::Call
                    && let Some(target) = place(instruction.near_branch_target())
                {
                    go(&mut ways, target, state.clone());
                }
                if matches!(
                    flow,
                    FlowControl::UnconditionalBranch
                        | FlowControl::IndirectBranch
                        | FlowControl::Return
                ) {
                    break;
                }
                number += 1;
                if targets.contains_key(&number) {
                    go(&mut ways, number, state);
                    break;
                }
            }
        }
        true
    }
}

/// Notes that `state` is known on a way to the instruction with this number.
fn go(ways: &mut BTreeMap<usize, State>, number: usize, state: State) {
    match ways.entry(number) {
        Entry::Vacant(way) => {
            way.insert(state);
        }
        Entry::Occupied(mut way) => way.get_mut().meet(&state, false),
    }
}
