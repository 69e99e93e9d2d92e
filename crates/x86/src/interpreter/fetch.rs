//! Finds the decoded code at CS:EIP that the interpreter executes next.

use ring3_core::memory::{Memory, PAGE_SHIFT, Target};

use super::Interpreter;
use super::cache::{BLOCK_LENGTH, Cache, Limits, NO_PAGE, decode_block};
use crate::cpu::Cpu;
use crate::decode::{self, CodeMode, MAX_LENGTH, Op};
use crate::exception::Stopped;
use crate::paging::{Access, By};

/// The page from which the last instruction was fetched, to find the next one quickly.
#[derive(Debug)]
pub(super) struct FetchPage {
    /// The [`Cpu::fetch_key`] of its linear address.
    key: u64,
    /// The place of the page in memory.
    place: usize,
    /// Number of the page of decoded code.
    page: u32,
}

pub(super) const NOWHERE: FetchPage = FetchPage { key: u64::MAX, place: 0, page: NO_PAGE };

/// An instruction that crosses a page boundary or is not in memory, found again by its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crossing {
    bytes: [u8; MAX_LENGTH],
    mode: CodeMode,
    op: Op,
}

/// Number of crossing instructions that are kept; a power of two.
pub(super) const CROSSINGS: usize = 256;

/// The code to execute next.
pub(super) enum Next {
    /// The block whose first instruction has this number.
    Block(usize),
    /// An instruction that crosses a page boundary or is not in memory.
    Crossing(Op),
}

impl Interpreter {
    /// Finds the code at CS:EIP.
    pub(super) fn find(&mut self, cpu: &mut Cpu, memory: &mut Memory) -> Result<Next, Stopped> {
        let linear = cpu.linear_ip();
        let limit = cpu.code_limit();
        let key = cpu.fetch_key(linear & !0xfff);
        if self.fetch.key != key && !self.find_page(cpu, memory, linear, key)? {
            let inside = bytes_inside(cpu, limit)?;
            return self.decode_alone(cpu, memory, linear, None, inside);
        }
        let ops = &self.cache.ops;
        let code = &self.cache.pages[self.fetch.page as usize];
        let found = code.block_at(ops, (linear & 0xfff) as usize).filter(|first| {
            cpu.ip.saturating_add(u64::from(ops[*first].block_bytes()) - 1) <= limit
        });
        let next = match found {
            Some(first) => Next::Block(first),
            None => self.decode_at(cpu, memory, linear, limit)?,
        };
        if let Next::Block(first) = next
            && !self.cache.ops[first].stands_alone()
        {
            cpu.note_jump(linear, first);
        }
        Ok(next)
    }

    /// Finds the code at CS:EIP to execute one instruction, even if the debugger has a breakpoint there.
    pub(super) fn find_alone(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
    ) -> Result<Next, Stopped> {
        let next = self.find(cpu, memory)?;
        let linear = cpu.linear_ip();
        let offset = (linear & 0xfff) as usize;
        if matches!(next, Next::Block(_)) && cpu.debugger.is_planted(offset) {
            let inside = bytes_inside(cpu, cpu.code_limit())?;
            return self.decode_alone(cpu, memory, linear, Some(self.fetch.place + offset), inside);
        }
        Ok(next)
    }

    /// Makes `fetch` the page of `linear`. Returns false if there is neither RAM nor ROM.
    #[inline(never)]
    fn find_page(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        linear: u64,
        key: u64,
    ) -> Result<bool, Stopped> {
        let Some(place) = fetch_place(cpu, memory, linear)? else { return Ok(false) };
        let place = place & !0xfff;
        if self.cache.is_full() {
            self.cache = Cache::default();
            cpu.forget_jumps();
        }
        cpu.note_fetch(linear);
        let page = self.cache.page(place >> PAGE_SHIFT, cpu.code_mode());
        self.fetch = FetchPage { key, place, page };
        Ok(true)
    }

    /// Decodes the code at `linear`, as a block if possible.
    #[inline(never)]
    fn decode_at(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        linear: u64,
        limit: u64,
    ) -> Result<Next, Stopped> {
        let inside = bytes_inside(cpu, limit)?;
        let offset = (linear & 0xfff) as usize;
        let place = self.fetch.place + offset;
        let bytes = memory.page_from(place).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(inside)];
        let mode = cpu.code_mode();
        let ops = &mut self.cache.ops;
        let first = ops.len();
        // The other engine usually wants one instruction.
        let most = match &self.dropped {
            Some(_) => cpu.deadline.saturating_sub(cpu.instructions).clamp(1, BLOCK_LENGTH as u64),
            None => BLOCK_LENGTH as u64,
        };
        let limits = Limits { most: most as usize, is_planted: |at| cpu.debugger.is_planted(at) };
        let block_bytes = decode_block(ops, bytes, offset, mode, cpu.model, &limits);
        if block_bytes == 0 {
            return self.decode_alone(cpu, memory, linear, Some(place), inside);
        }
        self.cache.pages[self.fetch.page as usize].note(offset, first);
        self.counters.blocks_decoded += 1;
        if memory.mark_code(place, block_bytes) {
            cpu.tlb.protect(self.fetch.place);
        }
        Ok(Next::Block(first))
    }

    /// Decodes an instruction that spans two pages or is not in memory. `place` is where it begins, and
    /// `inside` of its bytes are within CS's limit.
    fn decode_alone(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        linear: u64,
        place: Option<usize>,
        inside: usize,
    ) -> Result<Next, Stopped> {
        let mut bytes = [0; MAX_LENGTH];
        let offset = (linear & 0xfff) as u16;
        let length = MAX_LENGTH.min(inside);
        let in_first = ((0x1000 - (linear & 0xfff)) as usize).min(length);
        copy_code(memory, place, &mut bytes[..in_first]);
        if in_first < length {
            let second = fetch_place(cpu, memory, cpu.linear_after(linear | 0xfff, 1))?;
            copy_code(memory, second, &mut bytes[in_first..length]);
        }
        let mode = cpu.code_mode();
        let slot = &mut self.crossings[(place.unwrap_or_default() >> 12) % CROSSINGS];
        if length == MAX_LENGTH
            && let Some(known) = slot
            && known.bytes == bytes
            && known.mode == mode
        {
            return Ok(Next::Crossing(known.op.at_offset(offset)));
        }
        self.counters.crossings_decoded += 1;
        match decode::decode(&bytes[..length], mode, cpu.model) {
            Some(op) => {
                let op = op.at_offset(offset);
                *slot = Some(Crossing { bytes, mode, op });
                Ok(Next::Crossing(op))
            }
            None => Err(cpu.general_protection(0)),
        }
    }
}

/// Returns how many bytes of code there are from EIP to the limit of CS. A fetch beyond the limit raises
/// #GP(0).
fn bytes_inside(cpu: &mut Cpu, limit: u64) -> Result<usize, Stopped> {
    match limit.checked_sub(cpu.ip) {
        Some(behind) => {
            Ok(usize::try_from(behind).map_or(usize::MAX, |bytes| bytes.saturating_add(1)))
        }
        None => Err(cpu.general_protection(0)),
    }
}

/// Returns the place of an instruction byte, or None if a device or nothing is there.
fn fetch_place(cpu: &mut Cpu, memory: &mut Memory, linear: u64) -> Result<Option<usize>, Stopped> {
    let user = cpu.is_user();
    if let Some(place) = cpu.tlb.current(linear).for_fetch(linear) {
        return Ok(Some(place));
    }
    let address = cpu.translate(memory, linear, Access::Fetch, By::code(user))?;
    Ok(match memory.read_target(address) {
        Target::Place(place) => Some(place),
        Target::Nothing | Target::Device => None,
    })
}

/// Copies instruction bytes from `place`, which do not leave its page. A fetch without memory reads ones.
/// This includes addresses of devices: their registers are not code, and reading them would change them.
fn copy_code(memory: &Memory, place: Option<usize>, bytes: &mut [u8]) {
    match place {
        Some(place) => {
            let page = memory.page_from(place).unwrap_or_default();
            bytes.copy_from_slice(&page[..bytes.len()]);
        }
        None => bytes.fill(0xff),
    }
}
