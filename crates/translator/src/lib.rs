//! The fast engine: IA-32 and 64-bit guests on x86-64 Linux hosts, in an ordinary process.
//!
//! Most guest instructions can run on the host as they are. Three things must change: where they find their
//! memory, where branches go, and what privileged instructions do. So the translator copies guest code and
//! redirects its memory operands to a *window*: 4 GiB of host addresses, into which the host's own MMU maps
//! guest memory as the guest's page tables say. An access contains no compare and no branch and changes no
//! flag. An access to a page that is not mapped faults. Then the engine maps the page, or leaves the
//! instruction to the interpreter. The interpreter is the specification; it executes everything that is rare
//! or privileged.
//!
//! Flat 32-bit code needs nothing else. 64-bit code can compute addresses outside of a window, and is translated
//! in its own way ([`long`]). All other code is *segmented* ([`segmented`]): its segments have
//! bases and limits. [`mode`] tells the two apart. Programs in compatibility mode, under a 64-bit system, are
//! translated as under a 32-bit one, with windows that are filled from the tables of 4-level paging. Whatever
//! depends on the system's tables, which are anywhere in 64 bits, is left to the interpreter: transfers to the
//! system and loads of segment registers. R8 to R15 stay in the processor's state meanwhile.
//!
//! Words that all modules use:
//!
//! | word | meaning |
//! | --- | --- |
//! | block | host code made from guest instructions that follow each other ([`code::block`]) |
//! | site | the host code of one guest instruction |
//! | window, space | see `ARCHITECTURE.md`, and [`memory::window`] and [`memory::space`] |
//! | place | an offset in guest memory, as opposed to a linear address |
//! | to leave | to return from translated code to the engine, for a [`reason`](context::reason) |
//! | deferred instruction | one that its block leaves, or may leave, to the interpreter |
//! | barred instruction | one that faulted so often that it is no longer translated ([`translator`]) |
//! | quiet instruction | one after which translated code continues although the interpreter executed it |
//! | known descriptor | a descriptor that translated code may load again ([`descriptors`]) |
//! | program, monitor | code in virtual-8086 mode; the supervisor's code that handles its interrupts |
//! | branch slot | the entry of a jump table for the direct branches to one target ([`code::branch_slots`]) |
//! | limit | an address to which the offset of an access is added to check it ([`segmented::limits`]) |
//! | budget | the instructions that translated code may still execute ([`budget`]) |
//! | numeric | of the x87, MMX and SSE ([`numeric`]) |
//!
//! The modules:
//!
//! * [`translator`] is the engine;
//! * [`code`] turns guest code into host code: [`code::block`] translates a block, with [`code::copy`] and
//!   its neighbours for groups of instructions and [`code::emitter`] to write host code; [`code::cache`]
//!   holds the host code, [`code::block_store`] and [`code::branch_slots`] find blocks; [`code::changing`]
//!   handles pages whose code is written to again and again; [`code::counters`] count executed instructions;
//! * [`memory`] has the windows and spaces, and the host's memory that is mapped there; [`memory::absent`]
//!   reads the memory of a saved machine when it is touched, and [`memory::shortage`] lets an access wait for
//!   which the host has no page;
//! * [`segmented`] translates code whose segments have bases and limits;
//! * [`long`] translates 64-bit code, with a way of its own to memory: [`memory::units`];
//! * [`context`] defines the use of the host's registers and the ways into and out of translated code;
//!   [`routines`] contains the routines that translated code calls;
//! * [`numeric`] keeps the guest's x87, MMX and SSE registers in the host's;
//! * [`descriptors`] lets translated code load segment registers and execute INT n and IRET without the
//!   interpreter;
//! * [`system`] executes system instructions without leaving translated code;
//! * [`access`] recognizes instructions that access devices, so that they need no interpreter;
//! * [`signals`] catches faults; [`patience`] bounds how often an instruction raises one;
//! * [`returns`] is the host's stack while translated code runs;
//! * [`budget`] stops translated code after an exact number of instructions.
//!
//! # Why it is fast, and what was measured on the way
//!
//! * **Signals** take some 3 µs each, so a page fault of the guest costs at most one. When the guest executes
//!   the faulting instruction again with the same registers, the engine maps its page before it runs. It maps
//!   neighbouring pages with it if their accessed bits are set. Where a program touches page after page for
//!   the first time (`Sweep`), the interpreter executes the instructions between one page fault and the next,
//!   so that no signal is needed; that takes a third of the time.
//! * **A page of zeros** that is read before it is written is not mapped at the read, since the guest mostly
//!   writes there soon and gets a page of its own. The interpreter executes the read and some instructions
//!   after it.
//! * **Cold code** of 64-bit programs is interpreted ([`long`]), since each program that starts is at addresses
//!   of its own, where its blocks must be made anew. An exec took nine times as long before.
//! * **Where branches lie** decides the speed of loops on many Intel processors: see [`code::emitter`]'s
//!   `alignment`. The check for room in [`returns`] reads an address whose low 12 bits differ from those of
//!   the last call's write, which it would otherwise alias.
//! * **Short code is fast code**: decoding limits the speed of a shell. Counts take one byte. Accesses close
//!   to a register have no prefix for 32-bit addresses: an address beyond 4 GiB meets the unmapped GiB beside
//!   the window. FS and GS have 64-bit bases, which are not canonical for a segment with a limit. All this
//!   was a tenth of a shell's time.
//! * **Ways that part and join** in a block cost what the host's branches cost: the block subtracts in advance
//!   what all ways execute, and only a part that may be skipped subtracts its own. Short conditional branches
//!   took 1.60 times the host's time when each began a block, and take 1.22. A block also continues after
//!   the loop that it is, since a jump to another block costs a cycle.
//! * **ESP is R15**, not RSP. An access by ESP needs a REX prefix, but the host's stack is valid at any time:
//!   translated code can call routines, and signals need no stack of their own. A row of pushes only changes
//!   the offsets of the accesses.
//! * **MOVZX reads the budget** into R9. A load into R9L would wait for the rest of R9 and so tie every block
//!   to the one before it. It reads zeros in large pages. With small pages, which all shared one frame, AMD's
//!   processors fetched its lines anew for each address, and sequential loads took 1.6 times as long.
//! * **Jump tables** have 16,384 entries for user code and 262,144 for supervisor code. The index mixes in
//!   high bits of the address: without them, functions at multiples of 16 evicted each other two million
//!   times a boot. [`code::branch_slots`] for direct branches saved half of a shell loop's time. Checking
//!   returns by a fault, and shorter blocks, gained nothing.
//! * **Position-independent code** begins functions with a call of `MOV EBX, [ESP]; RET`. A block contains
//!   the effect of both, and is then made from two pages.
//! * **RDTSC** is computed from the budget and the clock; Linux executes it in each system call.
//!
//! # Where it may differ from the interpreter
//!
//! The selector of the last x87 operand that raised an unmasked exception may differ: in flat code it is DS,
//! also for an operand in FS or GS, whose offset is then its linear address.
//!
//! So may the effects that the host's processor leaves behind when an instruction faults and will start
//! again: the flags of the comparisons that a repeated instruction has made so far, the accessed bit of the
//! page of the other operand, and TOP before a store of an MMX register.
//!
//! Undefined flags are the host's. The interpreter imitates processors of the host's vendor
//! (`ring3_x86::undefined`), since both engines and all replays must agree on memory. A recording that is
//! repeated on a processor of another vendor may differ there.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod access;
mod budget;
mod code;
mod context;
mod descriptors;
mod long;
mod map;
mod memory;
mod mode;
mod numeric;
mod patience;
mod returns;
mod routines;
mod segmented;
mod signals;
mod system;
mod translator;

pub use memory::host_memory::{PrivateMemory, memory_in};
pub use memory::shortage::let_accesses_wait;
pub use translator::{Translator, Unavailable};
