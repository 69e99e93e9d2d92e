//! Hostile addresses of accesses on [facts](crate::long::facts): random sequences of accesses by a base and an
//! index, of steps between them, and loops of these. A model in this test says what they find.

use super::*;

/// Sequences in each layout, and executions of each.
const SEQUENCES: u32 = if cfg!(debug_assertions) { 20 } else { 200 };
const EXECUTIONS: u32 = 300;

/// An instruction. The base is RAX, the index RCX.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// MOV DL, [RAX + displacement], or with RCX * 8.
    Read { displacement: i32, has_index: bool },
    /// MOV [RAX + displacement], DL.
    Write { displacement: i32 },
    /// ADD RAX, number.
    Move(i32),
    /// ADD RCX, number.
    MoveIndex(i8),
    /// MOV ECX, ECX.
    ShortenIndex,
    /// LEA RAX, [RAX + RCX * 8].
    AddIndex,
    /// MOV RBX, RAX; MOV RAX, RBX.
    Copy,
}

impl Step {
    fn new(random: &mut Random) -> Step {
        let displacement = match random.below(4) {
            0 | 1 => (random.next() & 0x3f) as i32,
            2 => (random.next() & 0xfff) as i32 - 0x800,
            _ => random.next() as i32,
        };
        match random.below(12) {
            0..4 => Step::Read { displacement, has_index: false },
            4..6 => Step::Read { displacement, has_index: true },
            6 => Step::Write { displacement },
            7 | 8 => Step::Move(displacement),
            9 => Step::MoveIndex((random.next() & 7) as i8),
            10 if random.below(2) == 0 => Step::AddIndex,
            10 => Step::Copy,
            _ => Step::ShortenIndex,
        }
    }

    fn code(self) -> Vec<u8> {
        let with = |code: &[u8], number: i32| [code, &number.to_le_bytes()].concat();
        match self {
            Step::Read { displacement, has_index: false } => with(&[0x8a, 0x90], displacement),
            Step::Read { displacement, .. } => with(&[0x8a, 0x94, 0xc8], displacement),
            Step::Write { displacement } => with(&[0x88, 0x90], displacement),
            Step::Move(number) => with(&[0x48, 0x05], number),
            Step::MoveIndex(number) => vec![0x48, 0x83, 0xc1, number as u8],
            Step::ShortenIndex => vec![0x89, 0xc9],
            Step::AddIndex => vec![0x48, 0x8d, 0x04, 0xc8],
            Step::Copy => vec![0x48, 0x89, 0xc3, 0x48, 0x89, 0xd8],
        }
    }
}

/// The registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Registers {
    base: u64,
    index: u64,
    found: u8,
}

/// Executes `steps` in the model. Returns the registers after them, unless an access faults, and the places of what was
/// written, with the byte there.
fn modelled(
    space: &Space,
    steps: &[Step],
    rounds: u64,
    mut registers: Registers,
) -> (Option<Registers>, Vec<usize>) {
    let mut written = Vec::new();
    let mut bytes: std::collections::HashMap<usize, u8> = std::collections::HashMap::new();
    for step in std::iter::repeat_n(steps, rounds as usize).flatten() {
        let Registers { base, index, .. } = registers;
        match *step {
            Step::Read { displacement, .. } | Step::Write { displacement } => {
                let mut linear = base.wrapping_add(displacement as u64);
                if matches!(step, Step::Read { has_index: true, .. }) {
                    linear = linear.wrapping_add(index << 3);
                }
                let Some(page) = space.page(linear) else { return (None, written) };
                let place = page * PAGE + (linear & 0xfff) as usize;
                if let Step::Write { .. } = step {
                    written.push(place);
                    bytes.insert(place, registers.found);
                } else {
                    registers.found = bytes.get(&place).copied().unwrap_or(filling(page));
                }
            }
            Step::Move(number) => registers.base = base.wrapping_add(number as u64),
            Step::MoveIndex(number) => registers.index = index.wrapping_add(number as u64),
            Step::ShortenIndex => registers.index = u64::from(index as u32),
            Step::AddIndex => registers.base = base.wrapping_add(index << 3),
            Step::Copy => {}
        }
    }
    (Some(registers), written)
}

/// Translates `steps` as a loop if `loops`, with accesses to the units `reach`, and puts the code at the end of `cache`.
fn translated(
    steps: &[Step],
    loops: bool,
    low: &LowMemory,
    cache: &mut CodeCache,
    (is_user, reach): (bool, Reach),
) -> u32 {
    let mut bytes: Vec<u8> = steps.iter().flat_map(|step| step.code()).collect();
    if loops {
        // DEC ESI; JNE to the first instruction.
        bytes.extend([0xff, 0xce, 0x0f, 0x85]);
        let back = -(bytes.len() as i32 + 4);
        bytes.extend(back.to_le_bytes());
    } else {
        bytes.extend([0x0f, 0x0b]);
    }
    let mut far = FarSites::default();
    for instruction in &mut decode::decoder(&bytes, CodeSize::Bits64, 0x1000, Model::Qemu64) {
        if reach == Reach::Second && far.reach(&instruction, is_user) == Reach::Near {
            far.add(&instruction, is_user, reach);
        }
    }
    let (block, code, host) = put(&bytes, &far, low, cache, is_user);
    assert!(usize::from(block.instructions) >= steps.len(), "it is translated");
    let mut checker = Checker::new(low.addresses(), is_user);
    assert!(checker.proves(&code, host, &[host]), "{steps:x?} is without proof");
    host
}

#[test]
fn no_sequence_reaches_more_than_the_pages_of_its_guest() {
    const BUDGET: u64 = 1000;
    let memory = GuestMemory::default();
    let mut bytes = memory.zeroed(16 * PAGE).unwrap();
    for (number, page) in bytes.chunks_mut(PAGE).enumerate() {
        page.fill(filling(number));
    }
    let file = memory.file().unwrap();
    let mut low = LowMemory::new().unwrap();
    let mut cache = CodeCache::new(low.context_pointer().addr()).unwrap();
    shared::write(&mut cache, &mut low);
    let shared_code = cache.len();
    let budget = Budget::new().unwrap();
    let returns = Returns::new(0).unwrap();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let (mut reached, mut faulted) = (0_u64, 0_u64);
    let mut others: Vec<Space> = Vec::new();
    for _ in 0..LAYOUTS {
        let kernel = Space::new(&file, KERNEL, 0, false);
        let user = Space::new(&file, PROGRAM, KERNEL.len(), true);
        let fixed = Space::new(&file, FIXED_PROGRAM, KERNEL.len(), true);
        for (space, is_user, reach) in [
            (&kernel, false, Reach::Near),
            (&user, true, Reach::Near),
            (&fixed, true, Reach::Near),
            (&fixed, true, Reach::Second),
        ] {
            low.show(&space.units).unwrap();
            if is_user {
                low.number_distances(&kernel.units, Some(&space.units), true);
            }
            let here = 0_u64;
            let mut own = vec![
                (&raw const here).addr() as u64,
                bytes.as_ptr().addr() as u64,
                cache.start().into(),
                low.addresses().context.into(),
            ];
            for other in others.iter().chain([&kernel, &user, &fixed]) {
                for distance in other.units.all() {
                    own.extend(other.pages.iter().map(|page| page.wrapping_add(distance)));
                }
            }
            for _ in 0..SEQUENCES {
                let steps: Vec<_> =
                    (0..2 + random.below(8)).map(|_| Step::new(&mut random)).collect();
                let loops = random.below(2) == 0;
                cache.truncate(shared_code);
                let target = translated(&steps, loops, &low, &mut cache, (is_user, reach));
                for _ in 0..EXECUTIONS {
                    let rounds = if loops { 1 + random.next() % 3 } else { 1 };
                    let index = match random.below(4) {
                        0 => random.next(),
                        1 => random.next() & u64::from(u32::MAX),
                        _ => random.next() & 7,
                    };
                    let base = space.hostile(&mut random, &own);
                    let before = Registers { base, index, found: random.next() as u8 };
                    let context = low.context();
                    context.gpr = std::array::from_fn(|_| random.next());
                    context.gpr[..3].copy_from_slice(&[base, index, before.found.into()]);
                    context.gpr[6] = rounds;
                    context.flags = HOST_FLAGS.into();
                    context.distance = space.units.near().distance();
                    context.target = target.into();
                    context.returns = returns.top();
                    context.budget = budget.of(BUDGET);
                    context.set_numeric(false, false, false, false);
                    // SAFETY: the target is a translated block, the tables show only units of the space at this
                    // distance, and the cache has a handler.
                    unsafe { context::enter(low.context_pointer()) };
                    let (after, written) = modelled(space, &steps, rounds, before);
                    for place in written {
                        bytes[place] = filling(place / PAGE);
                    }
                    let context = low.context();
                    if context.exit == reason::SIGNAL {
                        faulted += 1;
                        continue;
                    }
                    let [base, index, found, ..] = context.gpr;
                    let found = Registers { base, index, found: found as u8 };
                    assert_eq!(Some(found), after, "{steps:x?} from {before:x?}, {rounds} rounds");
                    reached += 1;
                }
            }
        }
        others.extend([kernel, user]);
    }
    for (number, page) in bytes.chunks(PAGE).enumerate() {
        assert!(page.iter().all(|byte| *byte == filling(number)), "page {number} is unchanged");
    }
    assert!(reached > 1000 && faulted > 1000, "{reached} reached, {faulted} faulted");
}
