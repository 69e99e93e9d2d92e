//! The programs: short pieces of 32-bit code, each typical of work that guests often do.
//!
//! Code is written as a list of instructions, each followed by its disassembly.

use ring3_hostcpu::{Layout, State};

/// The address of the programs' data.
const DATA: u32 = Layout::FIXED.data.start;
/// The initial stack pointer; the stack grows down.
const STACK: u32 = Layout::FIXED.data.end();
/// An address without a page.
const UNMAPPED: u32 = 0xc000_0000;

/// A program at privilege 3, which ends by reaching HLT.
pub(crate) struct Program {
    /// The name of the results.
    pub(crate) name: &'static str,
    /// The instructions, which are put at EIP of `start`.
    code: &'static [&'static [u8]],
    /// The state in which it starts.
    pub(crate) start: State,
    /// Whether it can run on the host's processor as well, because it makes no system calls, raises no
    /// exceptions and does not write to its code.
    pub(crate) runs_natively: bool,
}

impl Program {
    /// The bytes of all instructions.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.code.concat()
    }

    /// The initial contents of the data region: the two numbers of [`X87_LOOP`], then noise.
    pub(crate) fn data() -> Vec<u8> {
        let noise = (1_u64..).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        [0.5_f64.to_bits(), 1.9_f64.to_bits()]
            .into_iter()
            .chain(noise)
            .flat_map(u64::to_le_bytes)
            .take(Layout::FIXED.data.len as usize)
            .collect()
    }
}

/// All programs. Their loop counts make a run take some milliseconds.
pub(crate) fn all() -> [Program; 8] {
    use ring3_hostcpu::gpr::*;
    let program = |name, code, registers: &[(usize, u32)]| {
        let mut start = State::at(Layout::FIXED.code.start);
        start.gpr[ESP] = STACK;
        for &(register, value) in registers {
            start.gpr[register] = value;
        }
        Program { name, code, start, runs_natively: true }
    };
    let not_natively = |program| Program { runs_natively: false, ..program };
    [
        program("integer loop", INTEGER_LOOP, &[(ECX, 500_000)]),
        program("memory loop", MEMORY_LOOP, &[(EDX, 300), (ESI, DATA), (EDI, 4096)]),
        program("mixed trace", MIXED_TRACE, &[(ECX, 500), (EDI, DATA)]),
        program(
            "block copy",
            BLOCK_COPY,
            &[(EAX, 2000), (EBP, 2048), (EBX, DATA), (EDX, DATA + 0x2000)],
        ),
        program("x87 loop", X87_LOOP, &[(ECX, 100_000), (ESI, DATA)]),
        not_natively(program("system call", SYSTEM_CALL, &[(ECX, 50_000)])),
        not_natively(program("page fault", PAGE_FAULT, &[(ECX, 50_000), (EBX, UNMAPPED)])),
        not_natively(program(
            "self-modifying store",
            SELF_MODIFYING_STORE,
            &[(ECX, 10_000), (EBX, Layout::FIXED.code.start)],
        )),
    ]
}

/// The handler of [`SYSTEM_CALL`]'s interrupt.
pub(crate) const RETURN: &[&[u8]] = &[
    &[0xcf], // iretd
];

/// The handler of [`PAGE_FAULT`]'s exception, which continues after the two bytes of the instruction that
/// raised it.
pub(crate) const SKIP: &[&[u8]] = &[
    &[0x83, 0xc4, 0x04],       // add esp, 4           ; the error code
    &[0x83, 0x04, 0x24, 0x02], // add dword [esp], 2   ; EIP
    &[0xcf],                   // iretd
];

/// Arithmetic in registers: the price of the instructions themselves.
const INTEGER_LOOP: &[&[u8]] = &[
    // again:
    &[0x01, 0xc8],       // add eax, ecx
    &[0x31, 0xc2],       // xor edx, eax
    &[0xc1, 0xc2, 0x05], // rol edx, 5
    &[0x29, 0xd3],       // sub ebx, edx
    &[0xc1, 0xe8, 0x03], // shr eax, 3
    &[0x49],             // dec ecx
    &[0x75, 0xf1],       // jnz again
];

/// The sum of an array: the price of a load.
const MEMORY_LOOP: &[&[u8]] = &[
    // array:
    &[0x89, 0xf9], // mov ecx, edi
    // element:
    &[0x03, 0x44, 0x8e, 0xfc], // add eax, [esi+ecx*4-4]
    &[0x49],                   // dec ecx
    &[0x75, 0xf9],             // jnz element
    &[0x4a],                   // dec edx
    &[0x75, 0xf4],             // jnz array
];

/// REP MOVSD over half of the data, where each iteration counts as an instruction.
const BLOCK_COPY: &[&[u8]] = &[
    // block:
    &[0x89, 0xde], // mov esi, ebx
    &[0x89, 0xd7], // mov edi, edx
    &[0x89, 0xe9], // mov ecx, ebp
    &[0xf3, 0xa5], // rep movsd
    &[0x48],       // dec eax
    &[0x75, 0xf5], // jnz block
];

/// x = x * x - 1.9 in double precision: it wanders between -2 and 2 and never settles.
const X87_LOOP: &[&[u8]] = &[
    &[0xdb, 0xe3], // fninit
    // step:
    &[0xdd, 0x06],       // fld qword [esi]
    &[0xd8, 0xc8],       // fmul st, st
    &[0xdc, 0x66, 0x08], // fsub qword [esi+8]
    &[0xdd, 0x1e],       // fstp qword [esi]
    &[0x49],             // dec ecx
    &[0x75, 0xf4],       // jnz step
];

/// Enters the supervisor and returns, through gate, TSS and IRET, like the system calls of old operating
/// systems.
const SYSTEM_CALL: &[&[u8]] = &[
    // call:
    &[0xcd, 0x80], // int 0x80
    &[0x49],       // dec ecx
    &[0x75, 0xfb], // jnz call
];

/// A load from a page that is not present, which the supervisor skips.
const PAGE_FAULT: &[&[u8]] = &[
    // load:
    &[0x8b, 0x03], // mov eax, [ebx]
    &[0x49],       // dec ecx
    &[0x75, 0xfb], // jnz load
];

/// Changes the immediate operand of its next instruction in each round, which is the worst case for decoded
/// code.
const SELF_MODIFYING_STORE: &[&[u8]] = &[
    // change:
    &[0xfe, 0x43, 0x05], // inc byte [ebx+5]
    &[0x83, 0xc0, 0x00], // add eax, 0
    &[0x49],             // dec ecx
    &[0x75, 0xf7],       // jnz change
];

/// Code like that of compilers: calls with frames and arguments on the stack, recursion, unpredictable
/// branches, loads, stores, multiplications and string instructions.
///
/// A round fills 64 numbers from a linear congruential generator, sorts them (quicksort), and
/// enters every fourth, spelt as a string of letters, into a hash table (FNV-1a, open
/// addressing). At EDI there are 64 entries of the table, the 64 numbers and the string.
const MIXED_TRACE: &[&[u8]] = &[
    // main:
    &[0x51],                         // push ecx
    &[0xbb, 0x01, 0x00, 0x00, 0x00], // mov ebx, 1
    &[0x31, 0xed],                   // xor ebp, ebp
    // round:
    &[0x8d, 0xb7, 0x00, 0x01, 0x00, 0x00], // lea esi, [edi+0x100]
    &[0x8d, 0x97, 0x00, 0x02, 0x00, 0x00], // lea edx, [edi+0x200]
    // fill:
    &[0x69, 0xdb, 0x0d, 0x66, 0x19, 0x00], // imul ebx, ebx, 1664525
    &[0x81, 0xc3, 0x5f, 0xf3, 0x6e, 0x3c], // add ebx, 1013904223
    &[0x89, 0x1e],                         // mov [esi], ebx
    &[0x83, 0xc6, 0x04],                   // add esi, 4
    &[0x39, 0xd6],                         // cmp esi, edx
    &[0x72, 0xeb],                         // jb fill
    &[0x83, 0xee, 0x04],                   // sub esi, 4
    &[0x56],                               // push esi
    &[0x8d, 0x87, 0x00, 0x01, 0x00, 0x00], // lea eax, [edi+0x100]
    &[0x50],                               // push eax
    &[0xe8, 0x4f, 0x00, 0x00, 0x00],       // call sort
    &[0x83, 0xc4, 0x08],                   // add esp, 8
    &[0x57],                               // push edi
    &[0x31, 0xc0],                         // xor eax, eax
    &[0xb9, 0x40, 0x00, 0x00, 0x00],       // mov ecx, 64
    &[0xf3, 0xab],                         // rep stosd
    &[0x5f],                               // pop edi
    &[0x8d, 0xb7, 0x00, 0x01, 0x00, 0x00], // lea esi, [edi+0x100]
    // each:
    &[0x8d, 0x87, 0x00, 0x02, 0x00, 0x00], // lea eax, [edi+0x200]
    &[0x50],                               // push eax
    &[0xff, 0x36],                         // push dword [esi]
    &[0xe8, 0x85, 0x00, 0x00, 0x00],       // call spell
    &[0x59],                               // pop ecx
    &[0xe8, 0x9b, 0x00, 0x00, 0x00],       // call hash
    &[0x89, 0x04, 0x24],                   // mov [esp], eax
    &[0x57],                               // push edi
    &[0xe8, 0xbb, 0x00, 0x00, 0x00],       // call insert
    &[0x83, 0xc4, 0x08],                   // add esp, 8
    &[0x01, 0xc5],                         // add ebp, eax
    &[0xc1, 0xc5, 0x03],                   // rol ebp, 3
    &[0x83, 0xc6, 0x10],                   // add esi, 16
    &[0x8d, 0x87, 0x00, 0x02, 0x00, 0x00], // lea eax, [edi+0x200]
    &[0x39, 0xc6],                         // cmp esi, eax
    &[0x75, 0xce],                         // jne each
    &[0xff, 0x0c, 0x24],                   // dec dword [esp]
    &[0x75, 0x84],                         // jnz round
    &[0x59],                               // pop ecx
    &[0x89, 0xe8],                         // mov eax, ebp
    &[0xf4],                               // hlt
    // sort:
    &[0x55],             // push ebp
    &[0x89, 0xe5],       // mov ebp, esp
    &[0x57],             // push edi
    &[0x56],             // push esi
    &[0x53],             // push ebx
    &[0x8b, 0x5d, 0x08], // mov ebx, [ebp+8]
    // part:
    &[0x3b, 0x5d, 0x0c], // cmp ebx, [ebp+12]
    &[0x73, 0x45],       // jae sorted
    &[0x8b, 0x7d, 0x0c], // mov edi, [ebp+12]
    &[0x89, 0xf8],       // mov eax, edi
    &[0x29, 0xd8],       // sub eax, ebx
    &[0xc1, 0xf8, 0x03], // sar eax, 3
    &[0x8b, 0x14, 0x83], // mov edx, [ebx+eax*4]
    &[0x89, 0xde],       // mov esi, ebx
    // up:
    &[0x8b, 0x06],       // mov eax, [esi]
    &[0x39, 0xd0],       // cmp eax, edx
    &[0x73, 0x05],       // jae down
    &[0x83, 0xc6, 0x04], // add esi, 4
    &[0xeb, 0xf5],       // jmp up
    // down:
    &[0x8b, 0x0f],       // mov ecx, [edi]
    &[0x39, 0xd1],       // cmp ecx, edx
    &[0x76, 0x05],       // jbe swap
    &[0x83, 0xef, 0x04], // sub edi, 4
    &[0xeb, 0xf5],       // jmp down
    // swap:
    &[0x39, 0xfe],       // cmp esi, edi
    &[0x77, 0x0e],       // ja split
    &[0x89, 0x0e],       // mov [esi], ecx
    &[0x89, 0x07],       // mov [edi], eax
    &[0x83, 0xc6, 0x04], // add esi, 4
    &[0x83, 0xef, 0x04], // sub edi, 4
    &[0x39, 0xfe],       // cmp esi, edi
    &[0x76, 0xd8],       // jbe up
    // split:
    &[0x57],                         // push edi
    &[0x53],                         // push ebx
    &[0xe8, 0xb4, 0xff, 0xff, 0xff], // call sort
    &[0x83, 0xc4, 0x08],             // add esp, 8
    &[0x89, 0xf3],                   // mov ebx, esi
    &[0xeb, 0xb6],                   // jmp part
    // sorted:
    &[0x5b], // pop ebx
    &[0x5e], // pop esi
    &[0x5f], // pop edi
    &[0x5d], // pop ebp
    &[0xc3], // ret
    // spell:
    &[0x8b, 0x44, 0x24, 0x04], // mov eax, [esp+4]
    &[0x8b, 0x54, 0x24, 0x08], // mov edx, [esp+8]
    // letter:
    &[0x89, 0xc1],       // mov ecx, eax
    &[0x83, 0xe1, 0x0f], // and ecx, 15
    &[0x80, 0xc1, 0x61], // add cl, 'a'
    &[0x88, 0x0a],       // mov [edx], cl
    &[0x42],             // inc edx
    &[0xc1, 0xe8, 0x04], // shr eax, 4
    &[0x75, 0xf0],       // jnz letter
    &[0xc6, 0x02, 0x00], // mov byte [edx], 0
    &[0xc3],             // ret
    // hash:
    &[0x57],                         // push edi
    &[0x8b, 0x54, 0x24, 0x08],       // mov edx, [esp+8]
    &[0x89, 0xd7],                   // mov edi, edx
    &[0x31, 0xc0],                   // xor eax, eax
    &[0xb9, 0xff, 0xff, 0xff, 0xff], // mov ecx, -1
    &[0xf2, 0xae],                   // repne scasb
    &[0x29, 0xd7],                   // sub edi, edx
    &[0x4f],                         // dec edi
    &[0xb8, 0xc5, 0x9d, 0x1c, 0x81], // mov eax, 0x811c9dc5
    // mix:
    &[0x0f, 0xb6, 0x0a],                   // movzx ecx, byte [edx]
    &[0x31, 0xc8],                         // xor eax, ecx
    &[0x69, 0xc0, 0x93, 0x01, 0x00, 0x01], // imul eax, eax, 0x01000193
    &[0x42],                               // inc edx
    &[0x4f],                               // dec edi
    &[0x75, 0xf1],                         // jnz mix
    &[0x5f],                               // pop edi
    &[0xc3],                               // ret
    // insert:
    &[0x53],                   // push ebx
    &[0x8b, 0x4c, 0x24, 0x08], // mov ecx, [esp+8]
    &[0x8b, 0x54, 0x24, 0x0c], // mov edx, [esp+12]
    &[0x89, 0xd0],             // mov eax, edx
    &[0xc1, 0xe8, 0x1a],       // shr eax, 26
    // probe:
    &[0x8b, 0x1c, 0x81], // mov ebx, [ecx+eax*4]
    &[0x85, 0xdb],       // test ebx, ebx
    &[0x74, 0x0a],       // je take
    &[0x39, 0xd3],       // cmp ebx, edx
    &[0x74, 0x06],       // je take
    &[0x40],             // inc eax
    &[0x83, 0xe0, 0x3f], // and eax, 63
    &[0xeb, 0xef],       // jmp probe
    // take:
    &[0x89, 0x14, 0x81], // mov [ecx+eax*4], edx
    &[0x5b],             // pop ebx
    &[0xc3],             // ret
];
