//! Two machines with the same contents, one on each engine.

use ring3_core::memory::Memory;
use ring3_x86::cpu::reg;
use ring3_x86::engine::Exit;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::segment::{Attributes, Segment, sreg};

use crate::COUNTS_FORMS;
use crate::common::coverage::interpreter;
use crate::machine::{
    KERNEL_CODE, KERNEL_DATA, MEMORY, Machine, STACK, USER_CS, USER_DS, USER_STACK, handler,
};
use crate::support::translator;

/// The memory of most machines. To compare it takes longer than most programs that are tested.
pub(crate) const LITTLE: u64 = 6 << 20;

/// See the module.
pub(crate) struct Pair {
    /// The machine on the interpreter.
    pub(crate) right: Machine,
    /// The machine on the translator.
    pub(crate) tested: Machine,
}

impl Pair {
    /// Returns two machines as [`Machine::new`] makes them, with [`LITTLE`] bytes of memory. Returns None, and
    /// reports a skipped test, on hosts that cannot have a translator.
    pub(crate) fn new() -> Option<Pair> {
        Pair::beside(interpreter(), LITTLE)
    }

    /// Returns two machines with [`MEMORY`] bytes.
    pub(crate) fn with_more_memory() -> Option<Pair> {
        Pair::beside(interpreter(), MEMORY)
    }

    /// Returns two machines with so many bytes of memory, one of them on `interpreter`.
    pub(crate) fn beside(interpreter: Interpreter, bytes: u64) -> Option<Pair> {
        let (translator, memory) = translator(bytes)?;
        let mut tested = Machine::on((Box::new(translator), memory));
        let mut right = Machine::on((Box::new(interpreter), Memory::new(bytes).unwrap()));
        for machine in [&mut tested, &mut right] {
            machine.cpu.observe_forms(COUNTS_FORMS);
        }
        Some(Pair { right, tested })
    }

    /// Applies `action` to both machines, which must return the same.
    pub(crate) fn each<T: PartialEq>(&mut self, action: impl Fn(&mut Machine) -> T) -> T {
        let value = action(&mut self.right);
        assert!(action(&mut self.tested) == value, "the engines differ");
        value
    }

    /// Prepares both machines to execute the code at `eip`, in flat segments of users or of the supervisor
    /// and with these registers.
    pub(crate) fn enter(&mut self, eip: u32, is_user: bool, registers: &[(u8, u32)]) {
        self.each(|machine| {
            let cpu = &mut machine.cpu;
            let (code, data, dpl) =
                if is_user { (USER_CS, USER_DS, 0x60_u16) } else { (KERNEL_CODE, KERNEL_DATA, 0) };
            let segment =
                |selector, access| Segment::new(selector, 0, u32::MAX, Attributes(access | dpl));
            cpu.set_segment(sreg::CS, segment(code, 0xc09b));
            for register in [sreg::SS, sreg::DS, sreg::ES] {
                cpu.set_segment(register, segment(data, 0xc093));
            }
            cpu.set_gpr(reg::SP, if is_user { USER_STACK } else { STACK }.into());
            for (register, value) in registers {
                cpu.set_gpr(*register, (*value).into());
            }
            cpu.ip = eip.into();
        });
    }

    /// Runs both machines for at most `instructions` instructions, and compares everything.
    #[track_caller]
    pub(crate) fn run_for(&mut self, instructions: u64) -> Exit {
        let exit = self.right.run_for(instructions);
        assert_eq!(self.tested.run_for(instructions), exit, "{}", self.reports());
        self.compare_users();
        self.compare();
        exit
    }

    /// Runs both machines, `slice` instructions at a time, until they stop for another reason than the end of a
    /// slice, and compares everything. They must do so within `limit` instructions.
    #[track_caller]
    pub(crate) fn run_in_slices(&mut self, slice: u64, limit: u64) -> Exit {
        let begun = self.right.cpu.instructions;
        loop {
            let exit = self.each(|machine| machine.run_for(slice));
            self.compare_processors();
            self.compare_users();
            if exit != Exit::Deadline {
                self.compare();
                return exit;
            }
            assert!(self.right.cpu.instructions - begun < limit, "{}", self.reports());
        }
    }

    /// Runs both machines until the guest halts, which it must do, and compares everything.
    #[track_caller]
    pub(crate) fn run_to_halt(&mut self) {
        let exit = self.run_for(10_000_000);
        assert_eq!(exit, Exit::Halt, "{}", self.reports());
    }

    /// Panics if the two machines differ.
    #[track_caller]
    pub(crate) fn compare(&mut self) {
        self.compare_processors();
        self.compare_histograms();
        let Pair { right, tested } = &*self;
        assert_eq!(tested.accesses, right.accesses, "{}", self.reports());
        let (contents, expected) = (tested.memory.contents(), right.memory.contents());
        if contents != expected {
            let place = (0..contents.len()).find(|place| contents[*place] != expected[*place]);
            let place = place.expect("they differ somewhere");
            let (expected, ours) = (expected[place], contents[place]);
            panic!("at {place:#x}: {expected:02x}, ours {ours:02x}\n{}", self.reports());
        }
    }

    /// Panics if code of users has run since the last call on one machine only.
    #[track_caller]
    fn compare_users(&mut self) {
        let Pair { right, tested } = self;
        let (expected, ours) = (right.cpu.take_users(), tested.cpu.take_users());
        assert_eq!(ours, expected, "{}", self.reports());
    }

    /// Panics if the two machines have counted different instructions, or not all of them.
    #[track_caller]
    fn compare_histograms(&mut self) {
        if !COUNTS_FORMS {
            return;
        }
        for machine in [&mut self.right, &mut self.tested] {
            machine.engine.complete_counts(&mut machine.cpu);
        }
        let Pair { right, tested } = &*self;
        let [expected, ours] = [right, tested].map(|machine| machine.cpu.histogram().unwrap());
        let differing: Vec<_> =
            expected.rows().zip(ours.rows()).filter(|(right, ours)| right != ours).collect();
        assert!(differing.is_empty(), "interpreter, translator: {differing:#?}");
        assert_eq!(ours.total(), self.tested.cpu.instructions, "{}", self.reports());
    }

    /// Panics if the two machines differ, apart from memory and accesses to devices.
    #[track_caller]
    pub(crate) fn compare_processors(&self) {
        let Pair { right, tested } = self;
        assert_eq!(tested.cpu.instructions, right.cpu.instructions, "{}", self.reports());
        assert!(tested.cpu.has_state_of(&right.cpu), "{}", self.reports());
    }

    /// Returns a counter of the translator.
    pub(crate) fn counted(&self, name: &str) -> u64 {
        let counters = self.tested.engine.counters();
        counters.into_iter().find(|(known, _)| *known == name).expect("it is counted").1
    }

    /// Returns the states of both processors as text.
    pub(crate) fn reports(&self) -> String {
        let report = |machine: &Machine| machine.cpu.report(&machine.memory).to_string();
        let Pair { right, tested } = self;
        format!("interpreter:\n{}\ntranslator:\n{}", report(right), report(tested))
    }
}

/// The translator's counters of what translated code is left for.
pub(crate) const LEAVINGS: [&str; 3] =
    ["entries to translated code", "instructions left to the interpreter", "signals"];

/// Puts a jump to `at` at the beginning of the handler of `vector`.
pub(crate) fn continue_handler_at(machine: &mut Machine, vector: u8, at: u32) {
    let distance = at.wrapping_sub(handler(vector) + 5);
    machine.put(handler(vector), &[&[0xe9][..], &distance.to_le_bytes()].concat());
}
