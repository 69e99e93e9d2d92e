//! Whatever 64-bit address a guest computes, its accesses reach its own pages or fault: instructions of all kinds
//! of operands are translated, and executed with addresses at borders, with single bits changed, and such that an
//! access without a check would reach what is this process's own.

use ring3_core::memory::HostPages;
use ring3_x86::cpuid::Model;
use ring3_x86::decode::{self, CodeSize};
use ring3_x86::flags::Eflags;

use super::block::{self, Block, Source};
use super::block_store::Slots;
use super::context::{self, reason};
use super::distances::{Distances, NOWHERE};
use super::far_sites::{FarSites, Reach};
use super::low::LowMemory;
use super::shared;
use super::verify::Checker;
use crate::budget::Budget;
use crate::code::cache::CodeCache;
use crate::context::HOST_FLAGS;
use crate::map::Set;
use crate::memory::host_memory::{GuestFile, GuestMemory, PAGE, Range};
use crate::memory::units::{Owning, unit_of};
use crate::returns::Returns;

mod sequences;

/// Accesses in each layout, times each kind of operand.
const ACCESSES: u32 = if cfg!(debug_assertions) { 300 } else { 3000 };
/// Layouts: how many other address spaces there are.
const LAYOUTS: usize = 6;

/// Pages of a kernel and of a program.
const KERNEL: &[u64] = &[
    0xffff_8881_0000_0000,
    0xffff_888f_ffff_f000,
    0xffff_c900_0000_1000,
    0xffff_ea00_0040_0000,
    0xffff_ffff_8100_0000,
    0xffff_ffff_ffff_f000,
];
const PROGRAM: &[u64] =
    &[0x5555_5555_4000, 0x555f_ffff_f000, 0x7f1a_f7c0_0000, 0x7fff_ffff_e000, 0x7fff_ffff_f000];
/// Pages of a program whose units do not fit one distance.
const FIXED_PROGRAM: &[u64] = &[0x7fff_ffff_e000, 0x40_0000, 0x60_1000, 0x3fff_ffff_f000];

/// Xorshift (Marsaglia, "Xorshift RNGs", 2003).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// An instruction that reads or writes at an address, with the registers that give it.
struct Form {
    /// Up to the displacement of 32 bits, if it has one.
    code: &'static [u8],
    has_displacement: bool,
    /// The numbers of the base register and of the index register, which is scaled by 8.
    base: usize,
    index: Option<usize>,
    /// Whether the base of GS is added.
    in_gs: bool,
    writes: bool,
    /// Whether it is a bit test, to whose address the register RCX adds.
    tests_bit: bool,
    /// Whether it is a string instruction, of AL, and whether RCX counts its iterations.
    is_string: bool,
    is_repeated: bool,
}

const READ: Form = Form {
    code: &[],
    has_displacement: true,
    base: 0,
    index: None,
    in_gs: false,
    writes: false,
    tests_bit: false,
    is_string: false,
    is_repeated: false,
};
/// A string instruction.
const STRING: Form = Form { is_string: true, has_displacement: false, ..READ };

#[rustfmt::skip]
const FORMS: &[Form] = &[
    Form { code: &[0x8a, 0x90], ..READ },                                                // MOV DL, [RAX+d]
    Form { code: &[0x8a, 0x94, 0xc8], index: Some(1), ..READ },                          // [RAX+RCX*8+d]
    Form { code: &[0x65, 0x8a, 0x90], in_gs: true, ..READ },                             // GS:[RAX+d]
    Form { code: &[0x65, 0x8a, 0x94, 0xc8], in_gs: true, index: Some(1), ..READ },       // GS:[RAX+RCX*8+d]
    Form { code: &[0x41, 0x8a, 0x90], base: 8, ..READ },                                 // [R8+d]
    Form { code: &[0x43, 0x8a, 0x94, 0xda], base: 10, index: Some(11), ..READ },         // [R10+R11*8+d]
    Form { code: &[0x8a, 0x94, 0x24], base: 4, ..READ },                                 // [RSP+d]
    Form { code: &[0x5a], base: 4, has_displacement: false, ..READ },                    // POP RDX
    Form { code: &[0x48, 0x0f, 0xa3, 0x88], tests_bit: true, ..READ },                   // BT [RAX+d], RCX
    Form { code: &[0x88, 0x90], writes: true, ..READ },                                  // MOV [RAX+d], DL
    Form { code: &[0x41, 0x88, 0x90], base: 8, writes: true, ..READ },                   // MOV [R8+d], DL
    Form { code: &[0xac], base: 6, ..STRING },                                           // LODSB
    Form { code: &[0xaa], base: 7, writes: true, ..STRING },                             // STOSB
    Form { code: &[0xf3, 0xac], base: 6, is_repeated: true, ..STRING },                  // REP LODSB
];

/// An address space with pages, each of which is full of its number.
struct Space {
    units: Distances,
    pages: &'static [u64],
    /// The number of its first page.
    first: usize,
}

/// Returns the byte that fills page `number`.
fn filling(number: usize) -> u8 {
    0xa1 + number as u8
}

impl Space {
    fn new(file: &GuestFile, pages: &'static [u64], first: usize, is_user: bool) -> Space {
        let mut units = Distances::new(is_user);
        // The last one to move decides where all are.
        for _ in 0..2 {
            for page in pages {
                assert!(matches!(
                    units.own(unit_of(*page), false, |_| {}),
                    Owning::Done | Owning::Moved
                ));
            }
        }
        for (number, page) in pages.iter().enumerate() {
            units.map(*page, PAGE, file, (first + number) * PAGE, true).unwrap();
        }
        Space { units, pages, first }
    }

    /// Returns the number of the page of `linear`.
    fn page(&self, linear: u64) -> Option<usize> {
        let page = self.pages.iter().position(|page| linear & !0xfff == *page);
        page.map(|page| self.first + page)
    }

    /// Returns an address that may reach what it should not, `own` being addresses of this process.
    fn hostile(&self, random: &mut Random, own: &[u64]) -> u64 {
        let page = self.pages[random.below(self.pages.len())];
        let near = (random.next() & 0x1fff).wrapping_sub(0x1000);
        let distances = [&self.units.all()[..], &[NOWHERE, 0]].concat();
        let distance = distances[random.below(distances.len())];
        let alias = own[random.below(own.len())].wrapping_sub(distance);
        match random.below(8) {
            0 => random.next(),
            1 | 2 => page.wrapping_add(near),
            3 => (random.next() << 36).wrapping_add(near),
            4 => alias,
            5 => alias ^ 1 << random.below(64),
            6 => page ^ 1 << random.below(64),
            _ => alias.wrapping_add((random.next() & 3) << 36).wrapping_add(near),
        }
    }
}

/// Translates `form` with `displacement` and an instruction for the interpreter behind it, and puts the code at
/// the end of `cache`.
fn translated(
    form: &Form,
    displacement: i32,
    low: &LowMemory,
    cache: &mut CodeCache,
    is_user: bool,
    reach: Reach,
) -> u32 {
    let mut bytes = form.code.to_vec();
    if form.has_displacement {
        bytes.extend(displacement.to_le_bytes());
    }
    bytes.extend([0x0f, 0x0b]);
    let mut far = FarSites::default();
    let instruction = decode::decoder(&bytes, CodeSize::Bits64, 0x1000, Model::Qemu64).decode();
    if reach != Reach::Near {
        far.add(&instruction, is_user, reach);
    }
    assert_eq!(far.reach(&instruction, is_user), reach);
    let (block, _, host) = put(&bytes, &far, low, cache, is_user);
    assert_eq!(block.instructions, 1, "it is translated");
    host
}

/// Translates the block of `bytes`, and puts its code at the end of `cache`. Returns the block, its code, and
/// where that is.
fn put(
    bytes: &[u8],
    far: &FarSites,
    low: &LowMemory,
    cache: &mut CodeCache,
    is_user: bool,
) -> (Block, Vec<u8>, u32) {
    let source = Source {
        bytes,
        linear: 0x1000,
        place: 0x1000,
        crosses_to: None,
        is_user,
        model: Model::Qemu64,
        barred: &Set::default(),
        breakpoints: &[],
        far,
        checks_before_loop: true,
        first_exit: 0,
        changing: None,
    };
    let host = cache.end();
    let made = block::translate(&source, host, low.addresses(), &mut Slots::default(), |_| None);
    let (block, code, _) = made.expect("it crosses no page");
    assert!(cache.add(&code));
    (block, code, host)
}

#[test]
fn no_address_reaches_more_than_the_pages_of_its_guest() {
    const BUDGET: u64 = 0x3000;
    let memory = GuestMemory::default();
    let mut bytes = memory.zeroed(16 * PAGE).unwrap();
    for (number, page) in bytes.chunks_mut(PAGE).enumerate() {
        page.fill(filling(number));
    }
    let file = memory.file().unwrap();
    let mut low = LowMemory::new().unwrap();
    // What lies behind the tables can be read.
    let behind = Range::reserve_at(low.end(), 64 << 20).expect("nothing is there yet");
    behind.map_zeros(0, 64 << 20, libc::PROT_READ).unwrap();
    let mut cache = CodeCache::new(low.context_pointer().addr()).unwrap();
    shared::write(&mut cache, &mut low);
    let shared_code = cache.len();
    let budget = Budget::new().unwrap();
    let returns = Returns::new(0).unwrap();
    let mut random = Random(88_172_645_463_325_252);
    let (mut reached, mut faulted) = (0_u64, 0_u64);
    let mut others: Vec<Space> = Vec::new();
    for layout in 0..LAYOUTS {
        let kernel = Space::new(&file, KERNEL, 0, false);
        let pages = if layout % 2 == 0 { PROGRAM } else { FIXED_PROGRAM };
        let user = Space::new(&file, pages, KERNEL.len(), true);
        low.show(&kernel.units).unwrap();
        low.show(&user.units).unwrap();
        // The code is that of users or of the supervisor, at far sites or others, and the supervisor may access
        // memory of users or not.
        for (is_user, reach, open) in [
            (false, Reach::Near, true),
            (true, Reach::Near, true),
            (true, Reach::Second, true),
            (true, Reach::All, false),
            (false, Reach::All, true),
            (false, Reach::All, false),
        ] {
            low.number_distances(&kernel.units, Some(&user.units), open);
            let space = if is_user { &user } else { &kernel };
            let here = 0_u64;
            let addresses = low.addresses();
            let mut own = vec![
                (&raw const here).addr() as u64,
                bytes.as_ptr().addr() as u64,
                budget.of(0),
                cache.start().into(),
                addresses.context.into(),
                translated as *const () as u64,
                libc::malloc as *const () as u64,
            ];
            own.extend(addresses.tables.into_iter().chain(addresses.far_tables).map(u64::from));
            for other in others.iter().chain([&kernel, &user]) {
                let distances = other.units.all();
                let add = |page| distances.map(|distance| u64::wrapping_add(page, distance));
                own.extend(other.pages.iter().copied().flat_map(add));
            }
            for form in FORMS {
                let displacement = match random.below(3) {
                    0 => 0,
                    1 => (random.next() & 0xff) as i32,
                    _ => random.next() as i32,
                };
                cache.truncate(shared_code);
                let target = translated(form, displacement, &low, &mut cache, is_user, reach);
                for _ in 0..ACCESSES {
                    let from = if random.below(2) == 0 { &user } else { space };
                    let context = low.context();
                    context.gpr = std::array::from_fn(|_| random.next());
                    context.bases = [random.next(), random.next()];
                    if random.below(2) == 0 {
                        context.bases[1] = from.hostile(&mut random, &own);
                        context.gpr[form.base] = random.next() & 0xffff;
                    } else {
                        context.gpr[form.base] = from.hostile(&mut random, &own);
                    }
                    if random.below(4) > 0 && form.base != 1 {
                        context.gpr[1] &= 0xff;
                    }
                    if let Some(index) = form.index.filter(|_| random.below(4) > 0) {
                        context.gpr[index] &= 0xff;
                    }
                    let register = if form.is_string { 0 } else { 2 };
                    let written = context.gpr[register] as u8;
                    let goes_down = form.is_string && random.below(2) == 0;
                    if form.is_repeated {
                        context.gpr[1] = 1 + (random.next() & 0x1fff);
                    }
                    let mut linear = context.gpr[form.base];
                    if form.has_displacement {
                        linear = linear.wrapping_add(displacement as u64);
                    }
                    if let Some(index) = form.index {
                        linear = linear.wrapping_add(context.gpr[index] << 3);
                    }
                    if form.in_gs {
                        linear = linear.wrapping_add(context.bases[1]);
                    }
                    if form.tests_bit {
                        let word = context.gpr[1] as i64 >> 6 << 3;
                        linear = linear.wrapping_add(word as u64);
                    }
                    if form.is_repeated {
                        // The last element.
                        let steps = context.gpr[1] - 1;
                        linear = linear.wrapping_add(if goes_down {
                            steps.wrapping_neg()
                        } else {
                            steps
                        });
                    }
                    let bit = context.gpr[1] & 7;
                    context.flags = HOST_FLAGS.into();
                    if goes_down {
                        context.flags |= u64::from(Eflags::DF.bits());
                    }
                    context.distance = space.units.near().distance();
                    context.target = target.into();
                    context.returns = returns.top();
                    context.budget = budget.of(BUDGET);
                    context.after_repeating = budget.end(true);
                    context.set_numeric(false, false, false, false);
                    // SAFETY: the target is a translated block, the tables show only units of the space at
                    // this distance, and the cache has a handler.
                    unsafe { context::enter(low.context_pointer()) };
                    let context = low.context();
                    if context.exit == reason::SIGNAL {
                        faulted += 1;
                        continue;
                    }
                    assert!(context.exit >= reason::EXITS);
                    reached += 1;
                    let finds_distance = reach == Reach::All || form.is_string;
                    let of_user =
                        || user.page(linear).filter(|_| finds_distance && open && !is_user);
                    let page = space.page(linear).or_else(of_user).unwrap_or_else(|| {
                        panic!("{:02x?} has reached {linear:#x}, which is not mapped", form.code)
                    });
                    if form.writes {
                        let at = page * PAGE + (linear & 0xfff) as usize;
                        assert_eq!(std::mem::replace(&mut bytes[at], filling(page)), written);
                    } else if form.tests_bit {
                        let carry = u64::from(filling(page) >> bit & 1);
                        assert_eq!(context.flags & 1, carry, "at {linear:#x}");
                    } else {
                        let found = context.gpr[register] as u8;
                        assert_eq!(found, filling(page), "at {linear:#x}");
                    }
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
