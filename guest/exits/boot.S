/* The header of the Multiboot Specification, and where a boot loader goes. */

#define MAGIC 0x1badb002

        .intel_syntax noprefix
        .section .header, "a"
        .long MAGIC, 0, -MAGIC

        .bss
        .balign 16
        .space 16384
stack:

        .text
        .global _start
_start:
        mov esp, offset stack
        call begin

        .section .note.GNU-stack, "", @progbits
