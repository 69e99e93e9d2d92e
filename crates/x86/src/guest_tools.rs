//! Guest tools: functions of the machine that software calls by CPUID, with registers that mean nothing to a
//! processor.
//!
//! The interface is that of a version of QEMU for MINIX 3 (E. van der Kouwe, *Porting the QEMU virtualization
//! software to MINIX 3*, 2009, 3.4): EAX holds the word "QEMU", EDX the tool, ECX and EBX its operands. CPUID
//! itself changes no flag, but an answer of a tool clears CF. So software that sets CF before learns whether
//! there is such a tool.
//!
//! The paper does not state the order of the letters in a word. The first letter may be in the lowest byte, as
//! in the vendor's name that CPUID spells, or in the highest, as in a constant of several characters in C. All
//! words of a call have the same order.

use serde::{Deserialize, Serialize};

use crate::cpu::{Cpu, reg};
use crate::engine::Exit;
use crate::exec::Done;

/// The guest tools of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuestTools {
    /// Whether software can read the host's clocks.
    pub host_time: bool,
    /// Whether software can count executed instructions.
    pub histogram: bool,
}

impl GuestTools {
    /// Returns whether CPUID with `leaf` in EAX may be a call of a tool, so that its result depends on other
    /// registers too, and on more than the model of the processor.
    pub fn may_hear(self, leaf: u32) -> bool {
        self != GuestTools::default() && order_of(leaf).is_some()
    }
}

/// A call of a guest tool. The answer has the values of EAX, EBX, ECX and EDX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Software reads the host's clocks. EDX and EAX get the time-stamp counter; ECX and EBX the seconds since
    /// 1970 and the microseconds in this second, or zeros if the host does not know them.
    HostTime,
    /// Software begins to count executed [instructions](crate::histogram), from zero. EBX and ECX get 0.
    StartHistogram,
    /// Software ends that. EBX gets the number of counters, ECX the size of a buffer in bytes. In the buffer
    /// are the counters, 64 bits each, and then their names, with a zero byte after each.
    StopHistogram,
    /// Software reads 16 bytes of that buffer. EAX, EBX, ECX and EDX get them in this order.
    FetchHistogram {
        /// The offset in the buffer.
        index: u32,
    },
}

/// The order of the letters in a word.
#[derive(Clone, Copy)]
enum Order {
    /// The first letter is in the lowest byte.
    LowestFirst,
    /// The first letter is in the highest byte.
    HighestFirst,
}

impl Order {
    const fn word(self, letters: [u8; 4]) -> u32 {
        match self {
            Order::LowestFirst => u32::from_le_bytes(letters),
            Order::HighestFirst => u32::from_be_bytes(letters),
        }
    }
}

/// Returns the order of the letters in the call that has `leaf` in EAX, if that is a call.
fn order_of(leaf: u32) -> Option<Order> {
    [Order::LowestFirst, Order::HighestFirst].into_iter().find(|order| order.word(*b"QEMU") == leaf)
}

/// Returns the tool that CPUID calls with these registers.
pub(crate) fn call(cpu: &Cpu) -> Option<Call> {
    let [leaf, operand, function, tool] =
        [reg::AX, reg::BX, reg::CX, reg::DX].map(|register| cpu.get::<u32>(register));
    if !cpu.guest_tools.may_hear(leaf) {
        return None;
    }
    let order = order_of(leaf)?;
    let is = |word: u32, letters| word == order.word(letters);
    if cpu.guest_tools.host_time && is(tool, *b"time") {
        return ((function, operand) == (0, 0)).then_some(Call::HostTime);
    }
    if !cpu.guest_tools.histogram || !is(tool, *b"hist") {
        return None;
    }
    match operand {
        index if is(function, *b"fetc") => Some(Call::FetchHistogram { index }),
        u32::MAX if is(function, *b"star") => Some(Call::StartHistogram),
        u32::MAX if is(function, *b"stop") => Some(Call::StopHistogram),
        _ => None,
    }
}

/// Executes CPUID as a call of a tool.
pub(crate) fn execute(cpu: &mut Cpu, call: Call) -> Done {
    let low_pair = cpu.ask(Exit::GuestTool(call))?;
    let high_pair = cpu.ask(Exit::GuestTool(call))?;
    for (pair, low, high) in [(low_pair, reg::AX, reg::BX), (high_pair, reg::CX, reg::DX)] {
        cpu.set(low, pair as u32);
        cpu.set(high, (pair >> 32) as u32);
    }
    cpu.status = cpu.status.with_carry(false);
    Ok(())
}

impl Cpu {
    /// Answers [`Exit::GuestTool`] with the values of EAX, EBX, ECX and EDX.
    pub fn answer_guest_tool(&mut self, registers: [u32; 4]) {
        let [eax, ebx, ecx, edx] = registers.map(u64::from);
        self.answer(ebx << 32 | eax);
        self.answer(edx << 32 | ecx);
    }
}
