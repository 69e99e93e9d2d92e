//! The cost of memory accesses in signals, mappings of the host and translations, for each kind of
//! instruction, in each mode, with memory laid out in each way. In all cases the engine must come to rest: a
//! site that keeps faulting is translated in another way, or left to the interpreter. Tests of results cannot
//! see this, since the results are the same, only a thousand times slower.

#[path = "../../../x86/tests/common/mod.rs"]
mod common;
#[path = "../system/engine.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod engine;
mod instructions;
#[path = "../../../x86/tests/system/machine.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod machine;
mod scene;
#[path = "../support/mod.rs"]
mod support;

use std::fmt::Write;

use ring3_core::memory::Memory;
use ring3_x86::interpreter::Interpreter;

use common::series::Series;
use instructions::{KINDS, Kind};
use scene::{LAYOUTS, Layout, Mode, RAM, Scene};

/// Number of random layouts.
const CASES: u64 = if cfg!(debug_assertions) { 10 } else { 15 };

/// Upper bounds of the counters for one loop.
const BOUNDS: [(&str, u64); 4] =
    [("signals", 24), ("pages filled", 24), ("blocks translated", 60), ("flushes", 2)];

fn counts(scene: &Scene) -> [u64; BOUNDS.len()] {
    let counters = scene.machine.engine.counters();
    BOUNDS.map(|(name, _)| {
        let counter = counters.iter().find(|(known, _)| *known == name);
        counter.expect("it is counted").1
    })
}

/// Two machines, one on each engine.
struct Pair {
    right: Scene,
    tested: Scene,
}

impl Pair {
    /// Returns two machines, or None on hosts that cannot have a translator.
    fn new(mode: Mode, layout: &Layout, protects: bool) -> Option<Pair> {
        let (translator, memory) = support::translator(RAM)?;
        let tested = Scene::new((Box::new(translator), memory), mode, layout, protects);
        let interpreter = Box::new(Interpreter::new());
        let memory = Memory::new(RAM).unwrap();
        Some(Pair { right: Scene::new((interpreter, memory), mode, layout, protects), tested })
    }

    /// Runs a loop on both engines. Returns an error that says what is wrong with it.
    fn try_loop(&mut self, number: usize, kind: &Kind) -> Result<(), String> {
        let Pair { right, tested } = self;
        for scene in [&mut *right, &mut *tested] {
            scene.begin(number, kind);
            scene.machine.accesses.clear();
        }
        let before = counts(tested);
        let instructions = right.machine.cpu.instructions;
        let has_ended = right.run();
        let has_ended_too = tested.run();
        if !has_ended || !has_ended_too {
            let reports = self.reports();
            return Err(format!("it does not end: {has_ended} {has_ended_too}\n{reports}"));
        }
        if !right.machine.cpu.has_state_of(&tested.machine.cpu) {
            return Err(format!("the processors differ\n{}", self.reports()));
        }
        if right.machine.accesses != tested.machine.accesses {
            return Err("the accesses to devices differ".to_owned());
        }
        let instructions = right.machine.cpu.instructions - instructions;
        let after = counts(tested);
        let counted: [u64; BOUNDS.len()] =
            std::array::from_fn(|index| after[index] - before[index]);
        let is_bounded = counted.iter().zip(BOUNDS).all(|(count, (_, most))| *count <= most);
        is_bounded.then_some(()).ok_or_else(|| {
            let counts = counted.iter().zip(BOUNDS);
            let counts: Vec<_> =
                counts.map(|(count, (name, _))| format!("{count} {name}")).collect();
            format!("{} in {instructions} instructions", counts.join(", "))
        })
    }

    /// Runs the loops of all kinds of instructions. Adds a line to `text` for each that is wrong, and returns
    /// their number.
    fn try_kinds(&mut self, mode: Mode, layout: &Layout, what: &str, text: &mut String) -> u32 {
        let mut wrong = 0;
        let kinds = KINDS.iter().enumerate();
        for (number, kind) in kinds.filter(|(_, kind)| layout.is_of_use(kind, mode)) {
            if let Err(error) = self.try_loop(number, kind) {
                wrong += 1;
                let _ = writeln!(text, "{what}, {}: {error}", kind.name);
            }
        }
        if !self.has_same_memory() {
            wrong += 1;
            let _ = writeln!(text, "{what}: memory differs");
        }
        wrong
    }

    fn has_same_memory(&self) -> bool {
        self.right.machine.memory.all_contents() == self.tested.machine.memory.all_contents()
    }

    fn reports(&self) -> String {
        let [right, tested] = [&self.right, &self.tested]
            .map(|Scene { machine, .. }| machine.cpu.report(&machine.memory));
        format!("interpreter:\n{right}\ntranslator:\n{tested}")
    }
}

/// Tries all kinds of instructions with all layouts in `mode`.
fn try_all(mode: Mode) {
    let (mut tried, mut wrong, mut text) = (0, 0, String::new());
    // CR0.WP is about the supervisor's accesses to pages (SDM vol. 3, 4.6).
    let has_choice = mode != Mode::Real && !mode.is_user();
    let protections = if has_choice { &[true, false][..] } else { &[true] };
    // Code at privilege levels 1 and 2 is not translated, so a part of the layouts shows that it is left alone.
    let step = if mode == Mode::Flat(1) { 4 } else { 1 };
    for layout in LAYOUTS.iter().filter(|layout| layout.is_possible(mode)).step_by(step) {
        // Where all pages can be written, the other value is tried with random layouts only.
        let has_difference = layout.has_pages_to_be_read();
        for protects in &protections[..if has_difference { protections.len() } else { 1 }] {
            let Some(mut pair) = Pair::new(mode, layout, *protects) else { return };
            let what = format!("{mode:?}, {}, WP {protects}", layout.name);
            tried += 1;
            wrong += pair.try_kinds(mode, layout, &what, &mut text);
        }
    }
    assert!(wrong == 0, "{wrong} loops in {tried} layouts:\n{text}");
}

#[test]
fn flat_code_of_the_supervisor() {
    try_all(Mode::Flat(0));
}

#[test]
fn flat_code_of_the_user() {
    try_all(Mode::Flat(3));
}

#[test]
fn flat_code_between_them() {
    try_all(Mode::Flat(1));
}

#[test]
fn code_in_segments() {
    try_all(Mode::Segmented);
}

#[test]
fn code_of_16_bits() {
    try_all(Mode::Protected16);
}

#[test]
fn real_mode() {
    try_all(Mode::Real);
}

#[test]
fn virtual_8086_mode() {
    try_all(Mode::Virtual8086);
}

/// Memory laid out at random.
#[test]
fn any_layout() {
    const MODES: [Mode; 5] =
        [Mode::Flat(0), Mode::Flat(3), Mode::Segmented, Mode::Protected16, Mode::Virtual8086];
    let series = Series::from_environment(CASES);
    let (mut wrong, mut text) = (0, String::new());
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let mode = if random.percent(40) { Mode::Flat(0) } else { random.pick(&MODES) };
        let layout = Layout::random(&mut random, mode);
        let protects = random.percent(50);
        let Some(mut pair) = Pair::new(mode, &layout, protects) else { return };
        let seed = series.seed;
        let what = format!(
            "RING3_FUZZ_SEED={seed} RING3_FUZZ_CASE={case}: {mode:?}, {layout:x?}, WP {protects}"
        );
        wrong += pair.try_kinds(mode, &layout, &what, &mut text);
    }
    assert!(wrong == 0, "{wrong} loops:\n{text}");
}
