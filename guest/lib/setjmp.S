/* setjmp and longjmp. */

    .text
    .globl setjmp
setjmp:
    movl 4(%esp), %eax
    movl %ebx, 0(%eax)
    movl %esi, 4(%eax)
    movl %edi, 8(%eax)
    movl %ebp, 12(%eax)
    leal 4(%esp), %ecx          /* ESP after the return */
    movl %ecx, 16(%eax)
    movl 0(%esp), %ecx
    movl %ecx, 20(%eax)
    xorl %eax, %eax
    ret

    .globl longjmp
longjmp:
    movl 4(%esp), %ecx
    movl 8(%esp), %eax
    testl %eax, %eax
    jnz 1f
    incl %eax                   /* setjmp never returns 0 a second time */
1:  movl 0(%ecx), %ebx
    movl 4(%ecx), %esi
    movl 8(%ecx), %edi
    movl 12(%ecx), %ebp
    movl 16(%ecx), %esp
    jmp *20(%ecx)

    .section .note.GNU-stack, "", @progbits
