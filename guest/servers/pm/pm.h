/* The process manager: what its files share. */

#ifndef PM_SERVER_H
#define PM_SERVER_H

#include <stddef.h>
#include <stdint.h>
#include <tern/lib.h>
#include <tern/pm.h>
#include <tern/program.h>
#include <tern/server.h>

/* More than the kernel has slots, as those that have ended stay until their parents wait. */
#define PROCESSES (SLOTS + 64)
#define INIT_PID 1
#define PIDS 30000          /* services have those from here on (RS gives them) */

enum kind { FREE, LIVE, ZOMBIE, SERVED }; /* SERVED: a service, which RS looks after */
enum wait { NOTHING, CHILD, SIGNAL, SLEEP };

struct process {
    enum kind kind;
    int32_t pid, group;
    struct process *parent;      /* NULL: none */
    endpoint_t endpoint;
    char name[NAME_BYTES];
    uint64_t run, children_run;  /* microseconds: of one that has ended; of its children that it has waited
                                    for */
    int32_t status;              /* of one that has ended or is stopped, as PM_WAIT returns it */
    uint8_t stopped, stop_news;  /* by a signal; its parent has not heard of it */

    enum wait waits;             /* in a request to PM, which gets its reply later */
    int32_t wait_pid;
    uint32_t wait_options;

    uint32_t pending, blocked, after_suspend; /* masks of signals; the one that sigsuspend has put aside */
    uint32_t handler[SIGNALS], mask[SIGNALS], restorer;

    uint64_t alarm_at, alarm_period, sleep_until; /* microseconds since the start; 0: none */
    uint32_t heap_first, heap_end;
};

extern struct process processes[PROCESSES];

#define HANDLER_DEFAULT 0u
#define HANDLER_IGNORE 1u
#define BIT(signal) (1u << (signal))

#define WAIT_NOHANG 1u
#define WAIT_STOPPED 2u

/* table.c */
struct process *process_new(endpoint_t endpoint); /* NULL: the table is full */
struct process *process_by_endpoint(endpoint_t endpoint);
struct process *process_by_pid(int32_t pid);
int32_t new_pid(void);
void process_moved(struct process *process, endpoint_t endpoint); /* it has ended: its slot is free */

/* Answers the request in which the process waits. */
void wake(struct process *process, int32_t type, uint32_t first, uint32_t second);

/* A request to FS with up to six words; returns its type, the reply is in *m. */
int ask_fs(int32_t type, uint32_t first, uint32_t second, struct message *m);

/* life.c */
int do_fork(struct message *m);
int do_exit(struct message *m);
int do_wait(struct message *m);
void end_process(struct process *process, int32_t status);
void tell_parent(struct process *process); /* that it has ended or was stopped */

/* exec.c */
int do_exec(struct message *m);
int start_init(struct process *process);

/* images.c */
struct contents {            /* of a file: as long as all of these are the same, so is the file */
    uint32_t bytes, volume, number, changes;
};

/* Reads a part of the file with this path, which begins in the process's directory. Returns the number of bytes or an
   error. */
int image_read(const struct process *process, const char *path, uint32_t offset, void *to, uint32_t bytes,
               struct contents *contents);
/* Finds the image of a program, or makes it. */
int image_find(const struct process *process, const char *path, const struct program *program,
               const struct contents *contents, endpoint_t *image);
int images_drop(void);       /* gives memory and entries of the kernel's table back; 0: there was none */

/* signals.c */
int do_kill(struct message *m);
int do_sigaction(struct message *m);
int do_sigmask(struct message *m);
int do_sigsuspend(struct message *m);
int do_sigreturn(struct message *m);
int do_signal_group(struct message *m);
void signal_process(struct process *process, int signal);
void signals_after_exec(struct process *process);
void take_events(void);

/* timers.c */
uint64_t now(void);
int do_alarm(struct message *m);
int do_sleep(struct message *m);
int do_time(struct message *m);
int do_children_time(struct message *m);
int do_set_time(struct message *m);
void timers_rang(uint64_t microseconds);
void timers_changed(void); /* sets the kernel's alarm for the next of all timers */

/* memory.c */
int do_brk(struct message *m);
int do_map(struct message *m);
int do_unmap(struct message *m);

/* The caller of a request, who is in the table: main.c looks it up. */
extern struct process *caller;

#endif
