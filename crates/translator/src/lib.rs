//! The fast engine: IA-32 guests on x86-64 Linux hosts, in an ordinary process.
//!
//! Most instructions of a guest can run as they are; what changes is where they find their memory, where control goes,
//! and what privileged instructions do. So guest code is copied ([`block`], [`copy`], [`strings`], [`flags`], [`segments`], [`frames`]) with its memory
//! operands in a *window* ([`window`]), 4 GiB of host addresses into which the host's own MMU maps guest memory
//! as the guest's page tables say ([`space`], [`spaces`]). There is no compare, no branch and no flag in an access: what is not there
//! faults, and is then filled in, or left to the interpreter, which is the specification and executes all that is
//! rare or privileged.
//!
//! Flat 32-bit code is that and no more. All other code ([`segmented`]) has segments with bases and limits; [`mode`] tells one from the
//! other.
//!
//! * [`context`] has the registers, and the way into translated code and out of it; [`routines`] are what it calls;
//! * [`numeric`] has the host's x87, MMX and SSE registers be the guest's;
//! * [`descriptors`] has segment registers be loaded, and INT n and IRET find their way, without the interpreter;
//! * [`system`] has system instructions be executed without leaving translated code;
//! * [`signals`] catches faults;
//! * [`access`] has devices be accessed without the interpreter;
//! * [`changing`] is about pages whose code is written to again and again;
//! * [`slots`] lets direct branches go into other pages;
//! * [`targets`] has the jump tables of segmented code, and [`limits`] checks offsets;
//! * [`returns`] is the host's stack meanwhile;
//! * [`budget`] stops translated code after an exact number of instructions;
//! * [`code_cache`] and [`emitter`] hold and write host code;
//! * [`blocks`] knows what is translated;
//! * [`translator`] is the engine.
//!
//! # Why it is fast, and what was measured on the way
//!
//! * **Signals** take some 3 µs each, so a page fault of the guest costs one at most: when the instruction
//!   comes again with the same registers, its page is filled before it runs. Filling takes neighbours along whose accessed
//!   bits are set. Where a program touches page after page for the first time (`Sweep`), the interpreter
//!   goes from one page fault to the next and no signal is needed, which takes a third of the time.
//! * **A page of zeros** that is read before it is written is not mapped at the read, since a write to a page of its own mostly
//!   follows. The interpreter executes the read and some instructions after it.
//! * **Where branches lie** decides the speed of loops on many of Intel's processors: [`emitter`]'s `alignment`. The check for room
//!   in [`returns`] reads an address whose low 12 bits differ from those of the last call's write, which would alias.
//! * **Short code is fast code**: decoding bounds a shell. Counts take a byte; accesses near a register have no prefix for 32-bit
//!   addresses (an address beyond 4 GiB meets the unmapped GiB beside the window); FS and GS have 64-bit bases,
//!   not canonical for a segment with a limit. This was a tenth of a shell's time.
//! * **ESP is R15**, not RSP. A REX prefix an access buys a valid host stack at any time: translated code can call
//!   routines, and signals need no stack of their own. Pushes in a row change their offsets only.
//! * **The budget is read by MOVZX** into R9: a load into R9L waits for the rest of R9, which tied every block to the one before.
//!   It reads zeros in large pages; small pages shared one frame, whose lines AMD's processors fetched
//!   anew for each address (sequential loads took 1.6 times as long).
//! * **Jump tables** have 16,384 entries for user code and 262,144 for supervisor code; the index mixes in high bits,
//!   since functions at multiples of 16 evicted each other two million times a boot. [`slots`] for direct
//!   branches saved half of a shell loop's time. A check of returns by a fault, and shorter blocks, gained nothing.
//! * **Position-independent code** begins functions with a call of `MOV EBX, [ESP]; RET`: translated as its effect, by a
//!   block that is made from two pages.
//! * **RDTSC** is computed from budget and clock; Linux reads it in each system call.
//!
//! # Where it may differ from the interpreter
//!
//! The selector of the last x87 operand that raised an unmasked exception (DS in flat code, and its offset there
//! if it was in FS or GS); and the effects that the host's processor leaves when an instruction faults that will start again: flags of comparisons
//! repeated so far, the accessed bit of the other operand's page, TOP before a store of an MMX register.
//! Undefined flags are the host's. The interpreter imitates processors of the host's maker
//! (`ring3_x86::undefined`), since both engines and all replays must agree on memory; a recording that
//! is repeated on a processor of another maker may differ there.
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod access;
mod block;
mod blocks;
mod budget;
mod changing;
mod code_cache;
mod context;
mod copy;
mod descriptors;
mod emitter;
mod flags;
mod frames;
mod host_memory;
mod limits;
mod map;
mod mode;
mod numeric;
mod returns;
mod routines;
mod segmented;
mod segments;
mod signals;
mod slots;
mod space;
mod spaces;
mod strings;
mod system;
mod targets;
mod translator;
mod window;

pub use translator::{Translator, Unavailable};
