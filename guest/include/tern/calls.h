/* Kernel calls: requests to SYSTEM by SENDREC. `type` is one of these; the reply's type is 0 or a negative
   error. Arguments and results are in w[], in the order given; an address is one in the caller's memory
   unless said otherwise. Each call needs its bit in the caller's `rights.calls`. */

#ifndef TERN_CALLS_H
#define TERN_CALLS_H

#include <stdint.h>
#include <tern/ipc.h>
#include <tern/rights.h>

enum kernel_call {
    /* Processes. */
    SYS_CREATE = 1,   /* name's address -> endpoint: a stopped process without memory and rights */
    SYS_FORK,         /* endpoint of the parent -> endpoint of the child, stopped: memory shared until
                         written */
    SYS_START,        /* endpoint, EIP, ESP: sets the registers (all others 0) and lets it run */
    SYS_RESUME,       /* endpoint, value: lets a forked process run; its pending trap returns value in EAX */
    SYS_STOP,         /* endpoint: lets it run no more until RESUME (with value 0: nothing returned) */
    SYS_DESTROY,      /* endpoint -> microseconds that it has run (low, high): frees everything; whoever waits
                         for it gets EDEADEND */
    SYS_PRIVCTL,      /* endpoint, address of struct rights */
    SYS_PRIORITY,     /* endpoint, priority */

    /* Memory: one's own, and with the right to COPY that of others. Addresses and lengths are multiples of
       4096. */
    SYS_MAP,          /* endpoint, address (0: the kernel chooses), bytes, MAP_ flags -> address, physical
                         address for MAP_CONTIGUOUS: pages of zeros, allocated when touched unless
                         contiguous */
    SYS_MAPPHYSICAL,  /* endpoint, address or 0, bytes, flags, physical address -> address: within the
                         caller's memory ranges, or the boot archive for those who may call GETINFO on it */
    SYS_UNMAP,        /* endpoint, address, bytes */
    SYS_SHARE,        /* from, to: the second gives up all its memory and shares that of the first until one of
                         them writes, for an exec */
    SYS_UMAP,         /* endpoint, address, bytes -> physical address, bytes that are contiguous there */
    SYS_COPY,         /* from, address, to, address, bytes: between any two processes (SELF for one's own) */
    SYS_SETGRANTS,    /* address of the table, entries */
    SYS_SAFECOPY,     /* granter, grant, offset, own address, bytes, direction (GRANT_READ: into one's own
                         memory) */
    SYS_VCOPY,        /* address of struct safe_copy[], entries (at most 16): several SAFECOPYs */

    /* Devices. Those for ports follow tern/hal.h's sizes. */
    SYS_DEVIO,        /* IO_IN or IO_OUT, size (1, 2, 4), port, value -> value */
    SYS_SDEVIO,       /* IO_IN or IO_OUT, size, port, own address, elements */
    SYS_VDEVIO,       /* address of struct port_access[], entries (at most 64) */
    SYS_IRQCTL,       /* IRQ_SET, IRQ_ENABLE, IRQ_DISABLE or IRQ_REMOVE, line. A line is masked when it
                         interrupts, until IRQ_ENABLE */

    /* Time. */
    SYS_ALARM,        /* microseconds from now (0: none), period or 0: NOTIFY from CLOCK */
    SYS_TIMES,        /* -> microseconds since the start (low, high), time-stamp counter (low, high), its kHz,
                         microseconds that the caller has run (low, high), ticks so far */
    SYS_SETCLOCK,     /* source (CLOCK_PIT, CLOCK_APIC, CLOCK_TICKLESS), Hz (1 to 10000) */
    SYS_GETCLOCK,     /* -> source, Hz */

    /* Signals and exceptions. */
    SYS_GETEVENT,     /* -> endpoint (NONE: no more), what (EVENT_), vector or signal, address, EIP, error
                         code: the next event about a process whose manager the caller is */
    SYS_SIGSEND,      /* endpoint, address of struct signal_frame: makes it execute its handler. On its stack
                         are then the restorer's address (where the handler returns to), the signal (its
                         argument), the frame, and what SIGRETURN needs. If it waits in a trap, that returns
                         EINTR */
    SYS_SIGRETURN,    /* endpoint, address (in that process) of the frame, right behind the argument: it goes
                         on as before the signal, whatever it waits for now */

    /* The system. */
    SYS_GETINFO,      /* INFO_, own address, bytes -> bytes copied */
    SYS_ABORT,        /* ABORT_, value: ends or restarts the machine */
    SYS_LOG,          /* own address, bytes (at most 256): a line of the kernel's log */
    KERNEL_CALLS
};

#define MAP_WRITE 1
#define MAP_CONTIGUOUS 2  /* for DMA */
#define MAP_UNCACHED 4

#define GRANT_READ 1
#define GRANT_WRITE 2

/* An entry of a process's table of grants: memory that another process may read or write. It is the
   granter's own, or, if the granter has the right to COPY, that of any process. */
struct grant {
    endpoint_t to;         /* NONE: the entry is free */
    uint32_t access;       /* GRANT_READ, GRANT_WRITE */
    uint32_t address, bytes;
    endpoint_t of;         /* whose memory it is; 0: the granter's own */
};

#define GRANTS_MAX 256

struct safe_copy {
    endpoint_t granter;
    uint32_t grant, offset, address, bytes, direction;
};

#define IRQ_SET 1
#define IRQ_ENABLE 2
#define IRQ_DISABLE 3
#define IRQ_REMOVE 4

#define CLOCK_PIT 1
#define CLOCK_APIC 2
#define CLOCK_TICKLESS 3

#define EVENT_EXCEPTION 1  /* `vector` of an exception that the kernel cannot mend; the process is stopped */
#define EVENT_DENIED 2     /* it asked for what it has no right to; `vector` is the error. It goes on. */

struct signal_frame {
    uint32_t handler, restorer, signal, mask;
};

#define INFO_BOOT 1        /* struct boot_info */
#define INFO_PROCESSES 2   /* struct process_info[SLOTS] */
#define INFO_LOG 3         /* the kernel's log, the newest bytes */
#define INFO_RIGHTS 4      /* struct rights[SLOTS] */
#define INFO_MEMORY 5      /* struct memory_info */

struct boot_info {
    uint32_t archive, archive_bytes; /* physical */
    uint32_t screen_columns, screen_rows; /* of the VGA text screen */
    char command_line[256];
};

struct process_info {
    endpoint_t endpoint;   /* NONE: the slot is free */
    char name[NAME_BYTES];
    uint32_t state;        /* STATE_ */
    endpoint_t waits_for;
    uint32_t service, priority, pages;
    uint32_t microseconds_low, microseconds_high; /* that it has run */
    uint32_t sent, received;
};

#define STATE_READY 0
#define STATE_SENDING 1
#define STATE_RECEIVING 2
#define STATE_STOPPED 4

struct memory_info {
    uint32_t pages, free_pages;
};

#define ABORT_OFF 1        /* switch off by ACPI, or halt */
#define ABORT_RESET 2
#define ABORT_DEBUG_EXIT 3 /* value to the debug exit device at port F4h, if it is there, then as ABORT_OFF */

#endif
