//! The control queue: what the driver has a card do (virtio 1.2, 5.1.6.5).

use ring3_core::net::MacAddress;

use super::super::Work;
use super::super::queue::Queue;
use super::super::segments::{self, gather, scatter};
use super::{Net, features};

/// Bytes of a command at most: two tables of more addresses than a card remembers.
const COMMAND_MAX: u64 = 64 << 10;

// Commands, by class and number.
const RECEIVE: u8 = 0;
const RECEIVE_PROMISCUOUS: u8 = 0;
const RECEIVE_ALL_GROUPS: u8 = 1;
const RECEIVE_ALL_CARDS: u8 = 2;
const RECEIVE_NO_GROUPS: u8 = 3;
const RECEIVE_NO_CARDS: u8 = 4;
const RECEIVE_NO_BROADCAST: u8 = 5;
const MAC: u8 = 1;
const MAC_TABLES: u8 = 0;
const MAC_ADDRESS: u8 = 1;
const QUEUES: u8 = 4;
const QUEUES_PAIRS: u8 = 0;
const GUEST_OFFLOADS: u8 = 5;
const GUEST_OFFLOADS_SET: u8 = 0;

/// What the device answers.
const ACCEPTED: u8 = 0;
const REFUSED: u8 = 1;

impl Net {
    /// Does what is in the control queue, which is queue `index`.
    pub(super) fn control(&mut self, work: &mut Work<'_, '_>, index: u16) {
        let Some(size) = work.queues.get(usize::from(index)).map(Queue::size) else { return };
        for _ in 0..size {
            let queue = &mut work.queues[usize::from(index)];
            let Some(chain) = queue.pop(work.context.memory) else { return };
            let is_done = segments::len(&chain.readable) <= COMMAND_MAX && {
                let command = gather(work.context.memory, &chain.readable);
                self.execute(work.features, &command)
            };
            let answer = if is_done { ACCEPTED } else { REFUSED };
            let written = scatter(work.context.memory, &chain.writable, &[answer]);
            work.queues[usize::from(index)].push(work.context.memory, chain.head, written);
        }
    }

    /// Does what a command says; false where it cannot be.
    fn execute(&mut self, features: u64, command: &[u8]) -> bool {
        let [class, number, parameters @ ..] = command else { return false };
        match (*class, *number, parameters) {
            (RECEIVE, number, [value]) => self.set_mode(number, *value != 0),
            (MAC, MAC_ADDRESS, &[a, b, c, d, e, f]) => {
                self.state.filter.set_address(MacAddress([a, b, c, d, e, f]));
                true
            }
            (MAC, MAC_TABLES, tables) => self.set_tables(tables).is_some(),
            (QUEUES, QUEUES_PAIRS, &[low, high]) => {
                let pairs = u16::from_le_bytes([low, high]);
                let is_possible = features & features::MULTIPLE_QUEUES != 0
                    && (1..=self.pair_count()).contains(&pairs);
                if is_possible {
                    self.state.pairs = pairs;
                }
                is_possible
            }
            (GUEST_OFFLOADS, GUEST_OFFLOADS_SET, offloads) => {
                let Ok(offloads) = offloads.try_into().map(u64::from_le_bytes) else {
                    return false;
                };
                let is_possible = offloads & !(features & features::GUEST_OFFLOADS) == 0;
                if is_possible {
                    self.state.guest_offloads = offloads;
                }
                is_possible
            }
            _ => false,
        }
    }

    fn set_mode(&mut self, number: u8, value: bool) -> bool {
        let modes = &mut self.state.filter.modes;
        let mode = match number {
            RECEIVE_PROMISCUOUS => &mut modes.promiscuous,
            RECEIVE_ALL_GROUPS => &mut modes.all_groups,
            RECEIVE_ALL_CARDS => &mut modes.all_cards,
            RECEIVE_NO_GROUPS => &mut modes.no_groups,
            RECEIVE_NO_CARDS => &mut modes.no_cards,
            RECEIVE_NO_BROADCAST => &mut modes.no_broadcast,
            _ => return false,
        };
        *mode = value;
        true
    }

    /// Takes the two tables over: a number of addresses, and these, for each.
    fn set_tables(&mut self, tables: &[u8]) -> Option<()> {
        let (cards, rest) = take_table(tables)?;
        let (groups, rest) = take_table(rest)?;
        if !rest.is_empty() {
            return None;
        }
        self.state.filter.set_tables(cards, groups);
        Some(())
    }
}

/// The table at the beginning of `bytes`, and what comes after it.
fn take_table(bytes: &[u8]) -> Option<(&[[u8; 6]], &[u8])> {
    let (count, rest) = bytes.split_first_chunk()?;
    let len = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(6)?;
    let (table, rest) = rest.split_at_checked(len)?;
    Some((table.as_chunks().0, rest))
}
