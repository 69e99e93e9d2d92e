/* Rows in 16-bit code: real mode, virtual-8086 mode and 16-bit protected mode. All of it is copied to segment
   1000h. */

#include "rows.inc"

/* EFLAGS for virtual-8086 mode, without I/O privilege and with it. */
#define VIRTUAL 0x20002
#define VIRTUAL_PRIVILEGED 0x23002
#define SEGMENT_16 0x1000

/* Where low_begin is in segment 1000h is 0. */
#define AT(label) (label - low_begin)

        .section .low, "awx"
        .code16
        .global low_begin, low_end
low_begin:
/* The handler of INT 60h is the first thing. */
        iret
        .balign 4

        .text
        .code32

/* What the preprocessor does not replace in strings. */
segment_16 = SEGMENT_16
code_16 = CODE_16
data_16 = DATA_16
data = DATA
interrupt = INTERRUPT

/* A loop of the 16-bit code `what` under NAME, by the routine `way`. */
.macro row_16 way, name, count, before, what
        entry \way\()_\name, \count, row_\way\()_\name
        .text
        .code32
row_\way\()_\name:
        pusha
        mov ecx, [esp + 36]
        mov edx, offset AT(low_\way\()_\name)
        jmp by_\way
        .section .low
        .code16
low_\way\()_\name:
        \before
        xor eax, eax
        jecxz 9f
8:
        \what
        dec ecx
        jnz 8b
9:      jmp back_\way
        .text
        .code32
.endm

        .bss
stack_of_32:
        .long 0

        .text
/* From 32-bit code to DX in real mode. Registers stay, but for EBX. */
by_real:
        call to_real
        mov [esp + 28], eax
        popa
        ret

to_real:
        pop ebx
        mov stack_of_32, esp
        mov dword ptr ds:[LOW + AT(return_to)], ebx
        mov word ptr ds:[LOW + AT(go_to)], dx
        lidt real_idtr
        .byte 0xea
        .long AT(leave_protected)
        .word CODE_16

        .section .low
        .code16
go_to:
        .word 0
return_to:
        .long 0
/* CR0 in protected mode. */
go_back:
        .long 0
leave_protected:
        mov bx, DATA_16
        mov ds, bx
        mov es, bx
        mov fs, bx
        mov gs, bx
        mov ss, bx
        mov ebx, cr0
        mov [go_back - low_begin], ebx
        and ebx, 0x7ffffffe
        mov cr0, ebx
        .byte 0xea
        .word AT(in_real), SEGMENT_16
in_real:
        mov bx, SEGMENT_16
        mov ds, bx
        mov es, bx
        mov ss, bx
        mov sp, 0xfff0
        mov bx, offset AT(go_to)
        jmp [bx]
back_real:
        cli
        mov ebx, cs:[go_back - low_begin]
        mov cr0, ebx
        .byte 0x66, 0xea
        .long in_protected
        .word CODE

        .text
        .code32
in_protected:
        mov ebx, DATA
        mov ds, ebx
        mov es, ebx
        mov fs, ebx
        mov gs, ebx
        mov ss, ebx
        mov esp, stack_of_32
        lidt idtr
        jmp dword ptr ds:[LOW + AT(return_to)]

/* The whole way to real mode and back, from code with paging and without. */
        begin mode_switch_paged, 20000
        mov edx, offset AT(back_real)
        again
        call to_real
        end

        begin mode_switch, 100000
        mov edx, cr0
        and edx, 0x7fffffff
        mov cr0, edx
        mov edx, offset AT(back_real)
        again
        call to_real
        dec ecx
        jnz 8b
9:      mov edx, cr0
        or edx, 0x80000000
        mov cr0, edx
        popa
        xor eax, eax
        ret

row_16 real, int, 1000000, "", "int 0x60"
row_16 real, far_call, 1000000, "", ".byte 0x9a; .word far_16 - low_begin, segment_16"
row_16 real, far_jump, 1000000, "", ".byte 0xea; .word 1f - low_begin, segment_16; 1:"
row_16 real, far_jumps_away, 500000, "", ".byte 0xea; .word 1f - low_begin + 16, segment_16 - 1; 1: .byte 0xea; .word 2f - low_begin, segment_16; 2:"
row_16 real, far_return, 1000000, "", "push cs; push offset (1f - low_begin); retf; 1:"
row_16 real, iret, 1000000, "", "pushf; push cs; push offset (1f - low_begin); iret; 1:"
row_16 real, load_ds, 2000000, "mov dx, segment_16", "mov ds, dx"
row_16 real, load_ss, 1000000, "mov dx, segment_16", "mov ss, dx"
row_16 real, pushf_cli_popf, 2000000, "", "pushf; cli; popf"
row_16 real, cli_sti, 2000000, "", "sti; cli"
row_16 real, port, 1000000, "", "in al, 0x61"
row_16 real, text, 1000000, "mov dx, 0xb800; mov es, dx; mov ax, 0x0720", "mov es:[2000], ax"
row_16 real, cr0_read, 1000000, "", "mov eax, cr0"
row_16 real, cpuid, 500000, "", "mov eax, 1; push ecx; cpuid; pop ecx"

        .section .low
        .code16
far_16:
        retf

        .text
        .code32
/* To DX in virtual-8086 mode, by the stack of users. */
by_virtual:
        mov ebx, VIRTUAL
        jmp enter_virtual
by_privileged:
        mov ebx, VIRTUAL_PRIVILEGED
enter_virtual:
        mov kernel_stack, esp
        lea eax, [esp - 256]
        mov first_task + 4, eax
        mov eax, SEGMENT_16
        push eax
        push eax
        push eax
        push eax
        push eax
        push 0xfff0
        push ebx
        push eax
        push edx
        iretd

        .section .low
        .code16
back_virtual:
back_privileged:
        hlt

row_16 virtual, int, 200000, "", "int 0x60"
row_16 virtual, far_call, 1000000, "", ".byte 0x9a; .word far_16 - low_begin, segment_16"
row_16 virtual, load_ds, 2000000, "mov dx, segment_16", "mov ds, dx"
row_16 virtual, load_ss, 1000000, "mov dx, segment_16", "mov ss, dx"
row_16 virtual, cli_sti, 200000, "", "sti; cli"
row_16 virtual, port_allowed, 500000, "", "out 0x80, al"
row_16 virtual, port_refused, 200000, "", "out 0x81, al"
row_16 privileged, int, 500000, "", "int interrupt"
row_16 privileged, iret, 1000000, "", "pushf; push cs; push offset (1f - low_begin); iret; 1:"
row_16 privileged, pushf_popf, 1000000, "", "pushf; popf"
row_16 privileged, cli_sti, 1000000, "", "cli; sti"
row_16 privileged, port_allowed, 500000, "", "out 0x80, al"

        .text
        .code32
/* To DX in 16-bit protected mode, at privilege 0. */
by_short:
        mov kernel_stack, esp
        mov word ptr ds:[LOW + AT(go_to)], dx
        .byte 0xea
        .long AT(in_short)
        .word CODE_16
from_short:
        mov edx, DATA
        mov ds, edx
        mov es, edx
        mov ss, edx
        mov esp, kernel_stack
        mov [esp + 28], eax
        popa
        ret

        .section .low
        .code16
in_short:
        mov bx, DATA_16
        mov ds, bx
        mov es, bx
        mov ss, bx
        mov esp, 0xfff0
        mov bx, offset AT(go_to)
        jmp [bx]
back_short:
        .byte 0x66, 0xea
        .long from_short
        .word CODE

row_16 short, int, 1000000, "", "int interrupt"
row_16 short, far_call, 1000000, "", ".byte 0x9a; .word far_16 - low_begin, code_16"
row_16 short, far_jump, 1000000, "", ".byte 0xea; .word 1f - low_begin, code_16; 1:"
row_16 short, load_ds, 1000000, "mov dx, data_16", "mov ds, dx"
row_16 short, load_es_alternating, 1000000, "mov dx, data_16; mov bx, data", "mov es, dx; mov es, bx"
row_16 short, les, 1000000, "push data_16; push 0; mov bp, sp", "les ax, [bp]"
row_16 short, port, 1000000, "", "in al, 0x61"

        .section .low
low_end:
        .section .note.GNU-stack, "", @progbits
