/* Traps, kernel calls and requests to servers as functions. Each returns 0 (or what its comment says) or a
   negative error of tern/errno.h; none of them touches errno. The meaning of each is in tern/ipc.h, calls.h,
   hal.h, rs.h and pm.h. */

#ifndef TERN_LIB_H
#define TERN_LIB_H

#include <stddef.h>
#include <stdint.h>
#include <tern/calls.h>
#include <tern/errno.h>
#include <tern/ipc.h>
#include <tern/rights.h>

/* Messages. Times are in microseconds, 0 is no limit. */
int ipc_send(endpoint_t to, struct message *message);
int ipc_receive(endpoint_t from, struct message *message, uint32_t microseconds);
int ipc_sendrec(endpoint_t to, struct message *message, uint32_t microseconds);
int ipc_notify(endpoint_t to);
int ipc_senda(struct asynchronous *table, uint32_t entries);

/* SENDREC of a request of this type; returns the reply's type or the trap's error. */
int call(endpoint_t to, int32_t type, struct message *message);

/* Direct calls (INT 31h). `value` is ECX on entry and on return. */
int hal_call(uint32_t function, uint32_t port, uint32_t *value, void *address);

/* Processes. */
int sys_create(const char *name, endpoint_t *process);
int sys_fork(endpoint_t parent, endpoint_t *child);
int sys_start(endpoint_t process, uint32_t eip, uint32_t esp);
int sys_resume(endpoint_t process, uint32_t value);
int sys_stop(endpoint_t process);
int sys_destroy(endpoint_t process, uint64_t *run); /* `run`, microseconds that it has run, may be NULL */
int sys_privctl(endpoint_t process, const struct rights *rights);
int sys_priority(endpoint_t process, uint32_t priority);

/* Memory. `*address` is the address wanted, or 0, on entry, and the one given on return; `physical` may be
   NULL. */
int sys_map(endpoint_t process, uint32_t *address, uint32_t bytes, uint32_t flags, uint32_t *physical);
int sys_mapphysical(endpoint_t process, uint32_t *address, uint32_t bytes, uint32_t flags, uint32_t physical);
int sys_unmap(endpoint_t process, uint32_t address, uint32_t bytes);
int sys_share(endpoint_t from, endpoint_t to);
int sys_umap(endpoint_t process, uint32_t address, uint32_t bytes, uint32_t *physical, uint32_t *contiguous);
int sys_copy(endpoint_t from, uint32_t source, endpoint_t to, uint32_t target, uint32_t bytes);
int sys_setgrants(struct grant *table, uint32_t entries);
int sys_safecopy(endpoint_t granter, uint32_t grant, uint32_t offset, void *address, uint32_t bytes,
                 uint32_t direction);
int sys_vcopy(struct safe_copy *copies, uint32_t entries);

/* Devices. sys_in returns the value in *value. */
struct port_access;
int sys_in(uint32_t size, uint32_t port, uint32_t *value);
int sys_out(uint32_t size, uint32_t port, uint32_t value);
int sys_sdevio(uint32_t direction, uint32_t size, uint32_t port, void *address, uint32_t elements);
int sys_vdevio(struct port_access *accesses, uint32_t entries);
int sys_irqctl(uint32_t what, uint32_t line);

/* Time. */
struct times {
    uint64_t microseconds; /* since the start */
    uint64_t tsc;
    uint32_t tsc_khz;
    uint64_t run;          /* microseconds that the caller has run */
    uint32_t ticks;
};

int sys_alarm(uint32_t microseconds, uint32_t period);
int sys_times(struct times *times);
int sys_setclock(uint32_t source, uint32_t hz);
int sys_getclock(uint32_t *source, uint32_t *hz);

/* Signals and exceptions. */
struct event {
    endpoint_t process;    /* NONE: no more */
    uint32_t what, vector, address, eip, error;
};

int sys_getevent(struct event *event);
int sys_sigsend(endpoint_t process, const struct signal_frame *frame);
int sys_sigreturn(endpoint_t process, uint32_t frame);

/* The system. sys_getinfo returns the number of bytes copied. */
int sys_getinfo(uint32_t what, void *address, uint32_t bytes);
int sys_abort(uint32_t how, uint32_t value);
int sys_log(const char *text, uint32_t bytes);

/* A line in the kernel's log, formatted as by printf. */
void log_line(const char *format, ...);

/* The data store; ds_get returns the number of bytes. */
int ds_put(const char *name, const void *value, uint32_t bytes);
int ds_get(const char *name, void *value, uint32_t bytes);
int ds_delete(const char *name);

/* The reincarnation server: a request about the service of this name, and what only it can say. */
int rs_call(int request, const char *name, uint32_t argument, uint32_t second);
struct service_info;
int rs_list(struct service_info *services, uint32_t bytes);

#endif
