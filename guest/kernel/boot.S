/* The first instructions: from the boot loader's state (Multiboot 0.6.96, 3.2) to kernel_main with paging
   on. */

#define BASE 0xc0000000
#define MAGIC 0x1badb002
#define FLAGS 3                 /* modules on pages, and a memory map */
#define ADDRESSES 0x10000       /* the address fields are valid */
#define LARGE_PAGES 192         /* of 4 MiB: 768 MiB of physical memory */

/* The header is the first thing of the kernel, so that it is in the file's first 8 KiB. What tcc links is no
   ELF file with physical addresses, but the bytes of memory: the header then says where they belong
   (3.1.3). */
    .text
    .align 4
header:
#ifdef __TINYC__
    .long MAGIC, FLAGS | ADDRESSES, -(MAGIC + (FLAGS | ADDRESSES))
    .long header - BASE, header - BASE, 0, _end - BASE, start - BASE
#else
    .long MAGIC, FLAGS, -(MAGIC + FLAGS)
#endif

    .globl start
start:
    cli
    movl %eax, %esi
    /* Pages of 4 MiB and global pages (SDM vol. 3, 2.5: CR4.PSE and PGE). */
    movl %cr4, %eax
    orl $0x90, %eax
    movl %eax, %cr4
    /* Physical memory at BASE, and its first page at 0 too, until the jump below. */
    movl $kernel_directory, %edi
    subl $BASE, %edi
    movl $0x83, (%edi)
    leal (BASE >> 20)(%edi), %edx
    movl $0x183, %eax
    movl $LARGE_PAGES, %ecx
1:  movl %eax, (%edx)
    addl $4, %edx
    addl $0x400000, %eax
    loop 1b
    movl %edi, %cr3
    /* Paging, write protection, native reports of numeric errors (2.5: CR0.PG, WP, NE). */
    movl %cr0, %eax
    orl $0x80010020, %eax
    movl %eax, %cr0
    movl $2f, %eax
    jmp *%eax
2:  movl $kernel_stack_top, %esp
    movl $0, kernel_directory
    movl %cr3, %eax
    movl %eax, %cr3
    xorl %ebp, %ebp
    pushl %ebp
    popf
    addl $BASE, %ebx
    subl $8, %esp
    pushl %ebx
    pushl %esi
    call kernel_main

    .bss
    .align 4096
    .globl kernel_directory
kernel_directory:
    .space 4096
    .space 8192
    .globl kernel_stack_top
kernel_stack_top:
    .section .note.GNU-stack, "", @progbits
