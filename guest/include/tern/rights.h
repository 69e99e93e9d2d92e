/* What a process may do. The kernel holds one of these for each process, checks it at each trap, and changes
   it only by PRIVCTL, which only the reincarnation server may call. Children inherit it at a fork. */

#ifndef TERN_RIGHTS_H
#define TERN_RIGHTS_H

#include <stdint.h>

/* Services by number. Destination masks have a bit for each. RS gives the numbers above IS to services in the
   order of its configuration; all processes of users share the last one. */
#define RS 0               /* reincarnation server: starts, watches and replaces services */
#define PM 1               /* process manager */
#define FS 2               /* file system */
#define DS 3               /* data store: names and values that outlive a service */
#define IS 4               /* information server: tables of processes and rights as text */
#define FIRST_FREE_SERVICE 5
#define USERS 63
#define SERVICES 64

/* Bits of `ways`: how the process may reach ports (tern/hal.h). All but the last obey `ports`. */
#define BY_MESSAGE 1       /* kernel calls DEVIO, SDEVIO and VDEVIO */
#define BY_DIRECT_CALL 2   /* INT 31h */
#define BY_TRAP 4          /* IN and OUT, which the kernel executes after a general-protection exception */
#define BY_BITMAP 8        /* IN and OUT, which the processor allows by the TSS's permission map */
#define BY_KERNEL 16       /* IN and OUT in ring 0, where the process runs: nothing is checked */

struct port_range {
    uint16_t first, last;
};

struct memory_range {
    uint32_t base, bytes;  /* physical */
};

#define PORT_RANGES 8
#define MEMORY_RANGES 4
#define NAME_BYTES 16

struct rights {
    char name[NAME_BYTES];
    uint32_t service;      /* its number, or USERS */
    uint32_t traps;        /* a bit for each IPC_ number */
    uint64_t send_to;      /* a bit for each service */
    uint64_t calls;        /* a bit for each kernel call */
    uint32_t ways;
    uint32_t port_ranges;
    struct port_range ports[PORT_RANGES];
    uint32_t interrupts;   /* a bit for each line, 0 to 15 */
    uint32_t memory_ranges;
    struct memory_range memory[MEMORY_RANGES]; /* device memory that it may map */
    uint32_t manager;      /* the service that hears of its exceptions: PM or RS */
    uint32_t priority;     /* best priority, 0 (first) to 7; the scheduler lowers those who use up their
                              time */
};

#endif
