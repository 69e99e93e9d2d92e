/* The traps of tern/ipc.h and tern/hal.h, and the end of signal handlers. */

    .text

/* int ipc_trap(operation, endpoint, message, value): EAX, EBX, ESI, ECX of INT 30h. */
    .globl ipc_trap
ipc_trap:
    pushl %ebx
    pushl %esi
    movl 12(%esp), %eax
    movl 16(%esp), %ebx
    movl 20(%esp), %esi
    movl 24(%esp), %ecx
    int $0x30
    popl %esi
    popl %ebx
    ret

/* int hal_call(function, port, value's address, address): EAX, EBX, ECX, ESI of INT 31h. */
    .globl hal_call
hal_call:
    pushl %ebx
    pushl %esi
    pushl %edi
    movl 16(%esp), %eax
    movl 20(%esp), %ebx
    movl 24(%esp), %edi
    movl (%edi), %ecx
    movl 28(%esp), %esi
    int $0x31
    movl %ecx, (%edi)
    popl %edi
    popl %esi
    popl %ebx
    ret

/* Where a signal handler returns to: the argument of the handler is at ESP, the frame that SIGSEND made at
   its own place, which end_signal finds from it. */
    .globl signal_restorer
signal_restorer:
    movl %esp, %eax
    andl $-16, %esp
    subl $12, %esp
    pushl %eax
    call end_signal
    hlt
