/* Rows of far transfers, interrupts, exceptions and tasks in 32-bit code. */

#include "rows.inc"

#define NOTHING_THERE 0xc0000000
/* Bits of EFLAGS. */
#define TRAP 0x100
#define VIRTUAL_8086 0x20000
#define STATE_16 0

        .bss
/* ESP of the supervisor while a row of the user runs. */
        .global kernel_stack
kernel_stack:
        .long 0

        .text

        begin far_call, 1000000
        again
        .byte 0x9a
        .long far_target
        .word CODE
        end

far_target:
        retf

        begin far_jump, 1000000
        again
        .byte 0xea
        .long 1f
        .word CODE
1:
        end

        begin far_jump_indirect, 1000000
        push CODE
        push offset 1f
        again
        jmp fword ptr [esp]
1:
        end_with 8

        begin far_return, 1000000
        again
        push CODE
        push offset 1f
        retf
1:
        end

        begin call_gate, 500000
        again
        .byte 0x9a
        .long 0
        .word GATE
        end

        .global by_gate
by_gate:
        retf

        begin int_iret, 1000000
        again
        int INTERRUPT
        end

        begin iret, 1000000
        again
        pushf
        push CODE
        push offset 1f
        iretd
1:
        end

        .global nothing
nothing:
        iretd

/* CALL to the other task, and IRET from there. */
        begin task_switch, 100000
        again
        .byte 0x9a
        .long 0
        .word SECOND_TASK
        end

        .global second_code
second_code:
        iretd
        jmp second_code

/* Self-IPI: the interrupt, and its end. */
        begin self_ipi, 500000
        sti
        again
        mov dword ptr ds:[0xfee00300], 0x40000 | APIC_SELF
        nop
        end_without_interrupts

        .global end_of_interrupt
end_of_interrupt:
        mov dword ptr ds:[0xfee000b0], 0
        iretd

/* From a timer of 1 us on, the timer's interrupt. */
        begin halt, 10000
        mov dword ptr ds:[0xfee00320], APIC_TIMER
        again
        mov dword ptr ds:[0xfee00380], 1000
        sti
        hlt
        cli
        dec ecx
        jnz 8b
9:      mov dword ptr ds:[0xfee00320], 0x10000 | APIC_TIMER
        popa
        xor eax, eax
        ret

/* What ends when the serial port has something. */
        .global serial_interrupt
serial_interrupt:
        push eax
        mov al, 0x20
        out 0x20, al
        pop eax
        iretd

/* Exceptions: each handler goes on after the instruction, which has two bytes. */
        begin divide_error, 300000
        xor ebx, ebx
        again
        div bl
        end

        begin undefined_opcode, 300000
        again
        ud2
        end

        begin general_protection, 300000
        mov ebx, 0x1000
        again
        mov fs, ebx
        end

        begin page_fault, 300000
        mov esi, NOTHING_THERE
        again
        mov [esi], al
        end

        begin breakpoint, 500000
        again
        int3
        end

        begin single_step, 300000
        again
        pushf
        or dword ptr [esp], TRAP
        popf
        nop
        end

        begin iret_single_step, 300000
        again
        pushf
        or dword ptr [esp], TRAP
        push cs
        push offset 1f
        iret
1:      nop
        end

        begin numeric_error, 200000
        /* Switches of tasks set TS. */
        clts
        fninit
        push 0x37e
        fldcw [esp]
        fldz
        again
        fld st
        fdivr st
        fwait
        fstp st
        end_with 4

        .global divide_error, breakpoint, debug, undefined, page_fault, numeric_error
divide_error:
undefined:
        add dword ptr [esp], 2
        iretd
breakpoint:
        iretd
debug:
        and dword ptr [esp + 8], ~TRAP
        iretd
page_fault:
        push eax
        mov eax, cr2
        pop eax
        add esp, 4
        add dword ptr [esp], 2
        iretd
numeric_error:
        fnclex
        iretd

/* From the supervisor to code of the user, that of the macros below, and back by the gate LEAVE. */
.macro by_user name, count, present=0
        entry \name, \count, row_\name, \present
row_\name:
        pusha
        mov edx, offset user_\name
        jmp enter_user
        .pushsection .user, "awx"
user_\name:
        xor eax, eax
        test ecx, ecx
        jz 9f
.endm

.macro end_of_user
        dec ecx
        jnz 8b
9:      int LEAVE
        .popsection
.endm

enter_user:
        mov ecx, [esp + 36]
        mov kernel_stack, esp
        /* What handlers push comes below it. */
        lea eax, [esp - 256]
        mov first_task + 4, eax
        mov eax, USER_DATA
        mov ds, eax
        mov es, eax
        mov fs, eax
        mov gs, eax
        push USER_DATA
        push offset user_stack
        push 0x2
        push USER_CODE
        push edx
        iretd

        .global leave_user
leave_user:
        mov edx, DATA
        mov ds, edx
        mov es, edx
        mov fs, edx
        mov gs, edx
        mov esp, kernel_stack
        mov [esp + 28], eax
        popa
        ret

/* The usual stack is in a page of its own, and another one in a page with code. */
        .section .user, "awx"
        .space 1024
user_stack:
        .balign 0x1000
        .space 64
stack_beside_code:
        .balign 16

        .text

        by_user user_int, 1000000
8:      int INTERRUPT
        end_of_user

        by_user user_call_gate, 500000
8:      .byte 0x9a
        .long 0
        .word GATE
        end_of_user

        by_user user_far_call, 1000000
8:      .byte 0x9a
        .long 1f
        .word USER_CODE
        jmp 2f
1:      retf
2:
        end_of_user

        by_user user_load_es, 1000000
        mov edx, USER_DATA
8:      mov es, edx
        end_of_user

        by_user user_pushf_popf, 2000000
8:      pushf
        popf
        end_of_user

        by_user user_pushf_popf_beside_code, 500000
        mov esp, offset stack_beside_code
8:      pushf
        popf
        end_of_user

        by_user user_port_allowed, 500000
8:      out 0x80, al
        end_of_user

        by_user user_port_refused, 300000
8:      out 0x81, al
        end_of_user

        by_user user_privileged, 300000
8:      cli
        nop
        end_of_user

        by_user user_cpuid, 500000
8:      push ecx
        mov eax, 1
        cpuid
        pop ecx
        end_of_user

        by_user user_rdtsc, 2000000
8:      rdtsc
        end_of_user

        by_user user_divide_error, 300000
        xor ebx, ebx
8:      div bl
        end_of_user

        by_user user_undefined_opcode, 300000
8:      ud2
        end_of_user

        by_user user_page_fault, 300000
        mov esi, NOTHING_THERE
8:      mov [esi], al
        end_of_user

        by_user user_breakpoint, 500000
8:      int3
        end_of_user

        .text
/* #GP: of the supervisor and of users it goes on after two bytes, and executes for virtual-8086 mode what
   that may not. */
        .global general_protection
general_protection:
        test dword ptr [esp + 12], VIRTUAL_8086
        jnz monitor
        add esp, 4
        add dword ptr [esp], 2
        iretd

/* Vectors that nothing raises. */
        .global unexpected
unexpected:
        hlt
        jmp unexpected

/* A monitor of virtual-8086 mode. The frame is error code, EIP, CS, EFLAGS, ESP, SS, ES, DS, FS, GS. */
monitor:
        push ebx
        push eax
        push edx
        /* The frame's EIP is at 16 now. */
        mov eax, ss
        mov ds, eax
        movzx ebx, word ptr [esp + 20]
        shl ebx, 4
        add ebx, [esp + 16]
        mov al, [ebx]
        cmp al, 0xcd
        je to_vector
        cmp al, 0xcf
        je from_vector
        cmp al, 0xf4
        je leave_virtual
        /* PUSHF and POPF would need more; INT n, IRET, ports, CLI and STI are all that is here. */
        cmp al, 0xe6
        jne 1f
        inc dword ptr [esp + 16]
1:      inc dword ptr [esp + 16]
return_to_virtual:
        pop edx
        pop eax
        pop ebx
        add esp, 4
        iretd

to_vector:
        movzx edx, byte ptr [ebx + 1]
        movzx ebx, word ptr [esp + 32]
        shl ebx, 4
        movzx eax, word ptr [esp + 28]
        lea ebx, [ebx + eax - 6]
        sub word ptr [esp + 28], 6
        mov eax, [esp + 24]
        mov [ebx + 4], ax
        mov eax, [esp + 20]
        mov [ebx + 2], ax
        mov eax, [esp + 16]
        add eax, 2
        mov [ebx], ax
        movzx eax, word ptr [edx * 4]
        mov [esp + 16], eax
        movzx eax, word ptr [edx * 4 + 2]
        mov [esp + 20], eax
        jmp return_to_virtual

from_vector:
        movzx ebx, word ptr [esp + 32]
        shl ebx, 4
        movzx eax, word ptr [esp + 28]
        add ebx, eax
        add word ptr [esp + 28], 6
        movzx eax, word ptr [ebx]
        mov [esp + 16], eax
        movzx eax, word ptr [ebx + 2]
        mov [esp + 20], eax
        mov ax, [ebx + 4]
        and eax, 0x0cd5
        and word ptr [esp + 24], ~0x0cd5
        or [esp + 24], ax
        jmp return_to_virtual

leave_virtual:
        mov eax, [esp + 4]
        jmp leave_user

        .section .note.GNU-stack, "", @progbits
