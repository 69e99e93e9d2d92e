/* The smallest kernel that tells something: it writes a line to the first serial port, ends the run by the
   debug exit (or, where there is none, by ACPI), and is loaded by any boot loader that follows the Multiboot
   Specification. The book's chapter for authors of kernels builds and boots it. */

        .intel_syntax noprefix

#define MAGIC 0x1badb002        /* Multiboot 0.6.96, 3.1 */
#define COM1 0x3f8              /* 16550: transmit buffer; line status is 5 behind, its bit 5: buffer is
                                   empty */
#define DEBUG_EXIT 0xf4
#define PM1A_CONTROL 0x604      /* of the board that QEMU and ring3 have; others say it in their FADT */
#define SLEEP_S5 0x2000         /* SLP_EN, with the SLP_TYP that this board's \_S5 has: 0 */

        .text
        .long MAGIC, 0, -MAGIC  /* within the first 8 KiB of the file */
        .global _start
_start:
        mov esi, offset line
next:   mov dx, COM1 + 5
full:   in al, dx
        test al, 0x20
        jz full
        mov dx, COM1
        lodsb
        out dx, al
        cmp byte ptr [esi], 0
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
line:   .asciz "Hello from ring 0\r\n"

        .section .note.GNU-stack, "", @progbits
