/* The start of each program. At ESP: argc, argv[], 0, envp[], 0 (tern/pm.h, PM_EXEC). */

    .text
    .globl _start
_start:
    xorl %ebp, %ebp
    movl (%esp), %eax
    leal 4(%esp), %ebx
    leal 4(%ebx,%eax,4), %ecx
    movl %ecx, environ
    /* The ABI wants ESP to be a multiple of 16 at a call. */
    andl $-16, %esp
    subl $4, %esp
    pushl %ecx
    pushl %ebx
    pushl %eax
    call main
    subl $12, %esp
    pushl %eax
    call exit
    hlt
