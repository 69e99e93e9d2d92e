/* The same for 64-bit processors: a kernel that any loader for Multiboot2 starts in protected mode, that enters
   64-bit mode and writes a line. The book's chapter for authors of kernels builds and boots it. */

        .intel_syntax noprefix

#define MAGIC 0xe85250d6        /* Multiboot2, 3.1.2; then the architecture (i386) and the header's length */
#define PRESENT_WRITABLE 0x03   /* SDM vol. 3, 5.5.4 */
#define LARGE_PAGE 0x80
#define CR4_PAE 0x20
#define IA32_EFER 0xc0000080
#define EFER_LME 0x100
#define CR0_PG 0x80000000
#define CODE64 8                /* a selector */
#define COM1 0x3f8
#define DEBUG_EXIT 0xf4
#define PM1A_CONTROL 0x604
#define SLEEP_S5 0x2000

        .text
header: .long MAGIC, 0, end - header, -(MAGIC + end - header)
        .word 0, 0              /* the last tag */
        .long 8
end:
        .code32
        .global _start
_start: mov dword ptr [pml4], offset pdpt + PRESENT_WRITABLE
        mov dword ptr [pdpt], offset directory + PRESENT_WRITABLE
        /* the page of 2 MiB that the linker's option puts all of this into */
        mov dword ptr [directory + 8], offset header + PRESENT_WRITABLE + LARGE_PAGE
        mov eax, offset pml4
        mov cr3, eax
        mov eax, cr4
        or eax, CR4_PAE
        mov cr4, eax
        mov ecx, IA32_EFER
        rdmsr
        or eax, EFER_LME
        wrmsr
        mov eax, cr0
        or eax, CR0_PG
        mov cr0, eax
        lgdt gdtr
        mov esp, offset stack
        push CODE64
        push offset in_64_bits
        retf

        .code64
in_64_bits:
        lea rsi, line[rip]
next:   mov dx, COM1 + 5
full:   in al, dx
        test al, 0x20
        jz full
        mov dx, COM1
        lodsb
        out dx, al
        cmp byte ptr [rsi], 0
        jne next

        mov dx, DEBUG_EXIT
        mov al, 5
        out dx, al
        mov dx, PM1A_CONTROL
        mov ax, SLEEP_S5
        out dx, ax
        cli
        hlt

        .section .rodata
line:   .asciz "Hello from 64-bit mode\r\n"
        .balign 8
gdt:    .quad 0, 0x00209a0000000000
gdtr:   .word . - gdt - 1
        .long gdt

        .bss
        .balign 4096
pml4:   .skip 4096
pdpt:   .skip 4096
directory:
        .skip 4096
        .skip 64
stack:

        .section .note.GNU-stack, "", @progbits
