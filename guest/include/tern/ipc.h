/* Messages between processes, and the traps by which they are sent.

   A message has a fixed length. SEND waits until the destination receives it, RECEIVE until a sender sends,
   SENDREC does both with one process. NOTIFY never waits: the kernel remembers it, one for each sender. SENDA
   sends a table of messages, each of which the kernel delivers when its destination receives; it never waits
   either.

   The kernel checks each trap and each destination against the process's rights (tern/rights.h). */

#ifndef TERN_IPC_H
#define TERN_IPC_H

#include <stdint.h>

/* A process, by its slot in the kernel's table (bits 0 to 7) and the generation of that slot, which grows
   with each process in it. So an endpoint never means another process than the one that it was made for. */
typedef uint32_t endpoint_t;

#define SLOTS 128
#define ENDPOINT(generation, slot) ((generation) << 8 | (slot))
#define SLOT_OF(endpoint) ((endpoint) & 0xff)

/* The kernel's own processes. Their generation is 0. */
#define SYSTEM 0u          /* executes kernel calls (tern/calls.h) */
#define CLOCK 1u           /* the source of notifications of alarms */
#define HARDWARE 2u        /* the source of notifications of interrupts */
#define IDLE 3u

/* Whoever has the service's number now (tern/rights.h). A service keeps its number when it is replaced. */
#define SERVICE(number) (0x80000000u | (number))

#define ANY 0xffffff00u    /* for RECEIVE: every source */
#define SELF 0xffffff01u   /* the calling process */
#define NONE 0xffffff02u   /* no process */

#define MESSAGE_WORDS 14

/* 64 bytes. In a request `type` is the number of the call, in a reply 0 or a negative error (errno.h). */
struct message {
    endpoint_t source;     /* set by the kernel */
    int32_t type;
    uint32_t w[MESSAGE_WORDS];
};

/* The type of a message that NOTIFY made. From HARDWARE, w[0] has a bit for each line that interrupted; from
   CLOCK, w[0] and w[1] are the time since the start in microseconds; from SYSTEM, an event waits for
   GETEVENT. */
#define NOTIFICATION 0x1000

/* The trap for messages: INT 30h. EAX is one of these, EBX an endpoint, ESI the address of a message (of the
   table for SENDA), ECX for SENDREC and RECEIVE the longest time to wait in microseconds, or 0 for no limit,
   and for SENDA the number of entries. Returns 0 or a negative error in EAX; changes no other register. */
#define IPC_VECTOR 0x30
#define IPC_SEND 1
#define IPC_RECEIVE 2
#define IPC_SENDREC 3
#define IPC_NOTIFY 4
#define IPC_SENDA 5

/* An entry of SENDA's table. The kernel sets `done` to 1 when it has delivered the message, and to a negative
   error if it never can. A process has one table at a time; a new one replaces it. */
struct asynchronous {
    endpoint_t to;
    volatile int32_t done;
    struct message message;
};

#define ASYNCHRONOUS_MAX 32

#endif
