/* The ways into the kernel and out of it. A trap pushes the registers where the processor has pushed its own
   part: in the entry of the process, for one of ring 3 (the TSS's ESP0 is there), and on its own stack, for
   one of ring 0. The kernel runs on its only stack, with interrupts off, and leaves by the context of the
   next process. */

    .text

/* Macros of the preprocessor, as tcc's assembler has none of its own. */
#define WITHOUT_CODE(vector) .globl vector_##vector; vector_##vector: pushl $0; pushl $vector; jmp enter
#define WITH_CODE(vector) .globl vector_##vector; vector_##vector: pushl $vector; jmp enter

    WITHOUT_CODE(0)
    WITHOUT_CODE(1)
    WITHOUT_CODE(2)
    WITHOUT_CODE(3)
    WITHOUT_CODE(4)
    WITHOUT_CODE(5)
    WITHOUT_CODE(6)
    WITHOUT_CODE(7)
    WITH_CODE(8)
    WITHOUT_CODE(9)
    WITH_CODE(10)
    WITH_CODE(11)
    WITH_CODE(12)
    WITH_CODE(13)
    WITH_CODE(14)
    WITHOUT_CODE(16)
    WITH_CODE(17)
    WITHOUT_CODE(18)
    WITHOUT_CODE(19)
    WITHOUT_CODE(48)
    WITHOUT_CODE(49)
    WITHOUT_CODE(80)
    WITHOUT_CODE(81)
    WITHOUT_CODE(82)
    WITHOUT_CODE(83)
    WITHOUT_CODE(84)
    WITHOUT_CODE(85)
    WITHOUT_CODE(86)
    WITHOUT_CODE(87)
    WITHOUT_CODE(88)
    WITHOUT_CODE(89)
    WITHOUT_CODE(90)
    WITHOUT_CODE(91)
    WITHOUT_CODE(92)
    WITHOUT_CODE(93)
    WITHOUT_CODE(94)
    WITHOUT_CODE(95)
    WITHOUT_CODE(96)
    WITHOUT_CODE(255)

enter:
    cld
    pusha
    pushl %ds
    pushl %es
    movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %esp, %eax
    movl $kernel_stack_top, %esp
    subl $12, %esp
    pushl %eax
    call trap

    /* void leave(struct frame *context): continues a process. */
    movl %eax, %esp
    jmp 1f
    .globl leave
leave:
    movl 4(%esp), %esp
1:  popl %es
    popl %ds
    popa
    addl $8, %esp
    iret

    /* The process that runs when no other can. */
    .globl idle
idle:
    sti
    hlt
    jmp idle

    /* int system_trap(operation, endpoint, message): a trap of a process of ring 0. */
    .globl system_trap
system_trap:
    pushl %ebx
    pushl %esi
    movl 12(%esp), %eax
    movl 16(%esp), %ebx
    movl 20(%esp), %esi
    xorl %ecx, %ecx
    int $0x30
    popl %esi
    popl %ebx
    ret

    .section .note.GNU-stack, "", @progbits
