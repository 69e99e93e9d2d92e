/* Ports: five ways to reach them. The first four obey the same table, `rights.ports`.

   1. By message: SENDREC to SYSTEM with DEVIO, SDEVIO or VDEVIO (tern/calls.h).
   2. By direct call: INT 31h. The kernel checks the rights, executes the access and returns, without a
      message, a change of process or the scheduler.
   3. By trap: the process executes IN or OUT, which raises #GP; the kernel checks the rights and executes it.
   4. By the TSS's I/O permission map: the process executes IN or OUT, and the processor checks.
   5. In the kernel: the process runs in ring 0, as the drivers of MINIX 2 did, and executes IN or OUT. It has
      memory of its own and sends messages as before, but nothing keeps it from anything. */

#ifndef TERN_HAL_H
#define TERN_HAL_H

#include <stdint.h>
#include <tern/calls.h>

#define IO_IN 0
#define IO_OUT 1

struct port_access {
    uint32_t direction, size, port, value;
};

/* INT 31h. EAX is one of these, EBX the port, ECX the value to write (the number of elements of strings and
   entries of vectors), ESI the address of elements or entries. Returns the value read in ECX, and 0 or a
   negative error in EAX. */
#define HAL_VECTOR 0x31
#define HAL_IN_BYTE 1
#define HAL_IN_WORD 2
#define HAL_IN_DOUBLE 3
#define HAL_OUT_BYTE 4
#define HAL_OUT_WORD 5
#define HAL_OUT_DOUBLE 6
#define HAL_IN_BYTES 7
#define HAL_IN_WORDS 8
#define HAL_IN_DOUBLES 9
#define HAL_OUT_BYTES 10
#define HAL_OUT_WORDS 11
#define HAL_OUT_DOUBLES 12
#define HAL_VECTOR_ACCESS 13 /* struct port_access[ECX] at ESI */
#define HAL_COPY 14          /* SAFECOPY: ESI is the address of a struct safe_copy; needs the right to
                                SAFECOPY */
#define HAL_UMAP 15          /* EBX: an address of the caller's; ECX returns its physical address; needs the right
                                to UMAP */
#define HAL_TSC 16           /* ECX returns the low, EDX the high half of the time-stamp counter */
#define HAL_NOTHING 17       /* for measuring */
#define HAL_IRQ_ENABLE 18    /* IRQCTL with IRQ_ENABLE: EBX is the line; needs the right to IRQCTL */

#endif
