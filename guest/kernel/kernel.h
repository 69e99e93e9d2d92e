/* The kernel's own declarations. Each group names the file that has them. */

#ifndef KERNEL_H
#define KERNEL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tern/calls.h>
#include <tern/errno.h>
#include <tern/hal.h>
#include <tern/ipc.h>
#include <tern/pm.h>
#include <tern/rights.h>

#define KERNEL_BASE 0xc0000000u
#define DIRECT_BYTES 0x30000000u   /* physical memory that the kernel maps: 768 MiB at KERNEL_BASE */
#define PAGE 4096u
#define FIRST_SLOT 4               /* of processes that are not the kernel's */

/* Selectors (gdt.c). */
#define KERNEL_CODE 0x08
#define KERNEL_DATA 0x10
#define USER_CODE 0x1b
#define USER_DATA 0x23

#define INTERRUPTS_ON 0x202u       /* EFLAGS with IF */

/* The registers of a process that does not run, as traps.S pushes them. ESP and SS are there for ring 3
   only. */
struct frame {
    uint32_t es, ds, edi, esi, ebp, unused, ebx, edx, ecx, eax, vector, error, eip, cs, eflags, esp, ss;
};

/* An event that waits for the process's manager: see SYS_GETEVENT. */
struct event {
    uint32_t what, vector, address, eip, error;
};

struct process {
    struct frame frame;            /* of a process that has memory of its own */
    struct frame *context;         /* its registers: `frame`, or on its stack */
    endpoint_t endpoint;           /* NONE: the entry is free */
    uint32_t generation;
    char name[NAME_BYTES];
    uint32_t state;                /* STATE_; it can run if this is 0 */
    uint32_t directory;            /* physical address of its page directory */
    uint32_t pages, next_map;
    struct rights rights;

    /* ipc.c */
    uint32_t message;              /* the address for the message that it waits for */
    struct message outgoing;       /* the one that it sends */
    struct process *to;            /* whom it sends to */
    endpoint_t from;               /* whom it receives from */
    int wants_reply;               /* it is in SENDREC */
    struct process *senders, *next_sender;
    uint32_t notified[SLOTS / 32]; /* by whom, by slot */
    uint32_t offered[SLOTS / 32];  /* who has asynchronous messages for it */
    uint32_t lines;                /* interrupts that it has not heard of */
    uint32_t offers, offer_count;  /* its table of asynchronous messages */
    uint64_t deadline;             /* when its wait ends; 0: never */
    uint32_t sent, received;

    uint64_t alarm;                /* when, in microseconds; 0: none */
    uint32_t alarm_period;
    uint32_t grants, grant_count;  /* its table of grants */
    struct event event;            /* `what` is 0: none */

    /* scheduler.c */
    struct process *next_ready;
    int is_queued;
    uint32_t priority;             /* the present one, from rights.priority (best) to LAST_PRIORITY */
    uint64_t left;                 /* time-stamp counts of its quantum that are left */
    uint64_t run;                  /* counts that it has run */

    int has_numbers;               /* `numbers` is valid */
    uint8_t numbers[512] __attribute__((aligned(16)));
};

#define LAST_PRIORITY 7

extern struct process processes[SLOTS];
extern struct process *current;

/* process.c */
void processes_start(void);
struct process *process_at(endpoint_t endpoint);     /* NULL: there is none */
struct process *process_of(struct process *caller, endpoint_t endpoint); /* SELF too */
struct process *process_create(const char *name);    /* NULL: no slot or no memory */
void process_destroy(struct process *process);
int process_set_rights(struct process *process, const struct rights *rights);
int process_start(struct process *process, uint32_t eip, uint32_t esp);
struct process *service(uint32_t number);            /* NULL: nobody has the number */
struct frame *frame_of(struct process *process, struct frame *registers);
struct frame *frame_to_leave_by(struct process *process);

/* scheduler.c */
void make_ready(struct process *process);            /* if its state is 0 */
void make_unready(struct process *process);
void set_priority(struct process *process, uint32_t priority);
struct frame *run_next(void);                        /* chooses a process; returns its context */
/* of `current`, in counts; 0: nobody else wants to run */
uint64_t quantum_end(void);

/* ipc.c */
int ipc(struct process *caller, uint32_t operation, endpoint_t endpoint, uint32_t message, uint32_t value);
void notify(uint32_t source, struct process *to);
void end_wait(struct process *process, int result);  /* of SEND, RECEIVE and SENDREC */
void forget(struct process *process);                /* it is about to be destroyed */
/* offers.c */
int offer(struct process *sender, uint32_t table, uint32_t entries);
int take_offer(struct process *receiver);            /* 1: one was delivered */
void withdraw_offers(struct process *sender);
/* between both */
int can_deliver(const struct process *sender, const struct process *receiver);
int deliver(struct process *receiver, endpoint_t source, const struct message *message);

/* rights.c */
extern int checks_destinations;
int check_destination(struct process *caller, const struct process *to);
int check_port(struct process *caller, uint32_t way, uint32_t port, uint32_t size);
int denied(struct process *process, int error, uint32_t what); /* logs it; returns -error */
int denied_grant(const struct process *process, uint32_t grant); /* the same; no event for the manager */
void raise_event(struct process *process, uint32_t what, uint32_t vector, uint32_t address);

/* system.c and system_*.c: kernel calls */
void system_main(void);
typedef int kernel_function(struct process *caller, struct message *message);
kernel_function call_create, call_fork, call_start, call_resume, call_stop, call_destroy, call_privctl,
    call_priority, call_sigsend, call_sigreturn, call_getevent;
kernel_function call_map, call_mapphysical, call_unmap, call_share, call_umap, call_copy, call_setgrants,
    call_safecopy, call_vcopy;
kernel_function call_devio, call_sdevio, call_vdevio, call_irqctl;
kernel_function call_alarm, call_times, call_setclock, call_getclock, call_getinfo, call_abort, call_log;

/* hal.c */
int hal(struct process *caller);
uint32_t port_in(uint32_t size, uint32_t port);
void port_out(uint32_t size, uint32_t port, uint32_t value);
int port_string(struct process *caller, uint32_t direction, uint32_t size, uint32_t port, uint32_t address,
                uint32_t elements);
int port_vector(struct process *caller, uint32_t way, uint32_t address, uint32_t entries);
/* trapped.c */
int trapped(struct process *process);                /* 1: the instruction was executed */

/* memory.c: pages of physical memory, by their physical addresses */
#define NO_PAGE 1u
void memory_start(const uint32_t *boot);
uint32_t page_allocate(void);                        /* zeros; NO_PAGE: there is none */
uint32_t pages_for_dma(const struct process *process, uint32_t count); /* contiguous, never released */
void page_share(uint32_t page);
void page_release(uint32_t page);
uint32_t page_users(uint32_t page);
extern uint32_t pages_total, pages_free;
static inline void *at_physical(uint32_t address) { return (void *)(address + KERNEL_BASE); }

/* space.c: the memory of a process */
int space_create(struct process *process);
void space_clear(struct process *process);
void space_destroy(struct process *process);
int space_fork(struct process *from, struct process *to);
int space_map(struct process *process, uint32_t *address, uint32_t bytes, uint32_t flags, uint32_t *physical);
int space_map_device(struct process *process, uint32_t *address, uint32_t bytes, uint32_t flags,
                     uint32_t physical);
int space_unmap(struct process *process, uint32_t address, uint32_t bytes);
/* Returns the kernel's address of a byte of the process's memory, or NULL; resolves what a fault would. */
uint8_t *space_byte(struct process *process, uint32_t address, int writes);

/* copy.c: 0 or -EFAULT */
int copy_in(struct process *from, void *to, uint32_t address, uint32_t bytes);
int copy_out(struct process *to, uint32_t address, const void *from, uint32_t bytes);
int copy_between(struct process *from, uint32_t source, struct process *to, uint32_t target, uint32_t bytes);
int copy_granted(struct process *caller, const struct safe_copy *copy);

/* clock.c: times in microseconds since the start */
void clock_start(void);
uint64_t now(void);
void clock_interrupt(void);
void clock_plan(void);                               /* sets the timer for what comes next */
void clock_expect(uint64_t when);                    /* something is due then */
int clock_set(uint32_t source, uint32_t hz);
extern uint32_t clock_source, clock_hz, clock_ticks, tsc_khz;

/* interrupts.c */
void interrupts_start(void);
void interrupt(uint32_t line);
int line_set(struct process *process, uint32_t line);
int line_enable(struct process *process, uint32_t line, int is_enabled);
/* of system_device.c: IRQCTL, with its check */
int line_control(struct process *process, uint32_t what, uint32_t line);
void lines_remove(struct process *process, uint32_t lines);
void line_mask(uint32_t line, int is_masked);

/* gdt.c */
void descriptors_start(void);
void use_stack_of(struct process *process);          /* for traps from ring 3; its permission map too */
void forget_map_of(const struct process *process);

/* numeric.c */
void numbers_start(void);
void numbers_use(void);                              /* #NM */
void numbers_save(struct process *process);          /* into its entry */
void numbers_forget(const struct process *process);
void numbers_switch(void);                           /* `current` is another process now */

/* main.c, archive.c, log.c, power.c */
extern struct boot_info boot;
int has_word(const char *word);                      /* on the command line */
const uint8_t *archive_find(const char *path, uint32_t *bytes);
int program_load(struct process *process, const uint8_t *file, uint32_t bytes, uint32_t *eip);
void log_start(void);
void log_text(const char *format, ...);              /* %s %d %u %x */
uint32_t log_copy(char *to, uint32_t bytes);         /* the newest */
void panic(const char *format, ...) __attribute__((noreturn));
void power_end(uint32_t how, uint32_t value) __attribute__((noreturn));

/* traps.S */
void leave(struct frame *context) __attribute__((noreturn));
void idle(void);
int system_trap(uint32_t operation, endpoint_t endpoint, struct message *message);

/* The processor. */
static inline void out8(uint16_t port, uint8_t value)
{
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}
static inline void out16(uint16_t port, uint16_t value)
{
    __asm__ volatile("outw %0, %1" : : "a"(value), "Nd"(port));
}
static inline void out32(uint16_t port, uint32_t value)
{
    __asm__ volatile("outl %0, %1" : : "a"(value), "Nd"(port));
}
static inline uint8_t in8(uint16_t port)
{
    uint8_t v;
    __asm__ volatile("inb %1, %0" : "=a"(v) : "Nd"(port));
    return v;
}
static inline uint16_t in16(uint16_t port)
{
    uint16_t v;
    __asm__ volatile("inw %1, %0" : "=a"(v) : "Nd"(port));
    return v;
}
static inline uint32_t in32(uint16_t port)
{
    uint32_t v;
    __asm__ volatile("inl %1, %0" : "=a"(v) : "Nd"(port));
    return v;
}
static inline uint64_t tsc(void)
{
    uint32_t l, h;
    __asm__ volatile("rdtsc" : "=a"(l), "=d"(h));
    return (uint64_t)h << 32 | l;
}
static inline uint32_t lowest_bit(uint32_t v)
{
    uint32_t n;
    __asm__("bsfl %1, %0" : "=r"(n) : "r"(v));
    return n;
}
static inline uint32_t fault_address(void)
{
    uint32_t v;
    __asm__ volatile("movl %%cr2, %0" : "=r"(v));
    return v;
}
static inline void load_directory(uint32_t v) { __asm__ volatile("movl %0, %%cr3" : : "r"(v) : "memory"); }
static inline uint32_t loaded_directory(void)
{
    uint32_t v;
    __asm__ volatile("movl %%cr3, %0" : "=r"(v));
    return v;
}
static inline void forget_page(uint32_t a) { __asm__ volatile("invlpg (%0)" : : "r"(a) : "memory"); }

#endif
