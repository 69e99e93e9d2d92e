/* Requests of processes to the process manager. Addresses are in the caller's memory. */

#ifndef TERN_PM_H
#define TERN_PM_H

#include <stdint.h>
#include <tern/ipc.h>

enum pm_request {
    PM_FORK = 0x100,   /* -> pid. The child's trap returns PM_FORKED, without a message */
    PM_EXEC,           /* address and length (with 0) of the path, address and length of the argument block:
                          the image of the top of the new stack, argc, argv[], 0, envp[], 0, strings, with
                          pointers as offsets from its start */
    PM_EXIT,           /* status */
    PM_WAIT,           /* pid (-1: any child), options (1: do not wait, 2: also stopped ones) -> pid, status
                          as POSIX's wait has it */
    PM_GETPID,         /* -> pid, pid of the parent */
    PM_KILL,           /* pid (0: the group; negative: that group), signal */
    PM_SIGACTION,      /* signal, handler (0 default, 1 ignore, PM_HANDLER_KEEP), mask, address of the
                          restorer -> old handler, old mask */
    PM_SIGMASK,        /* how (0 block, 1 unblock, 2 set), mask -> old mask */
    PM_SIGSUSPEND,     /* mask */
    PM_SIGRETURN,      /* address of the handler's argument, behind which the frame is: sent by the
                          restorer */
    PM_ALARM,          /* microseconds from now or 0, period -> microseconds that were left */
    PM_BRK,            /* new end of the heap, or 0 -> end of the heap */
    PM_MAP,            /* bytes -> address of new memory */
    PM_UNMAP,          /* address, bytes */
    PM_SETPGID,        /* pid or 0, group or 0 */
    PM_GETPGID,        /* pid or 0 -> group */
    PM_REBOOT,         /* ABORT_ of tern/calls.h, value */
    PM_GETINFO,        /* address, bytes -> bytes of struct pm_info[] */
    PM_TIME,           /* -> microseconds since 1970 (low, high) */
    PM_SLEEP,          /* microseconds (low, high); returns 0, or EINTR after a signal */
    PM_CHILDREN_TIME,  /* -> microseconds (low, high) that children have run which have ended and were waited
                          for, and their own such children */

    /* From services only. */
    PM_SERVICE_UP = 0x180, /* from RS: endpoint, pid that it gets, name's 16 bytes. Pid 1: all services have
                              been started, and this is an empty process into which PM loads INIT_PATH */
    PM_SERVICE_DOWN,   /* from RS: endpoint of a service that is no more */
    PM_SET_TIME,       /* from the clock's driver: microseconds since 1970 (low, high) */
    PM_SIGNAL_GROUP    /* from a terminal's driver: group, signal */
};

#define PM_FORKED 1
#define PM_HANDLER_KEEP 0xffffffffu
#define PM_ARGUMENT_BYTES 0x10000 /* the largest argument block */
#define INIT_PATH "/sbin/init"

struct pm_info {
    int32_t pid, parent, group, status;
    endpoint_t endpoint;
    char name[16];
};

/* From PM to FS, which answers each. */
#define PM_FS_FORK 0x190   /* parent's endpoint, child's endpoint; parent NONE: the first process, in the root
                          directory and without open files */
#define PM_FS_EXEC 0x191   /* endpoint: close what is to be closed at exec */
#define PM_FS_EXIT 0x192   /* endpoint: close everything, forget requests of its that wait */
#define PM_FS_INTERRUPT 0x193 /* endpoint: answer a request that waits with EINTR */
#define PM_FS_READ_IMAGE 0x194 /* endpoint in whose directory the path begins, path (in PM's memory), length,
                                  offset in the file, address in PM's memory, bytes -> bytes read, size of the
                                  file, its volume, its number there, how often programs may have changed so
                                  far: for exec, checking the right to execute */

#define PM_FS_TIME 0x195   /* microseconds from 1970 to the start of the system (low, high) */

#define SIGHUP 1
#define SIGINT 2
#define SIGQUIT 3
#define SIGILL 4
#define SIGTRAP 5
#define SIGABRT 6
#define SIGBUS 7
#define SIGFPE 8
#define SIGKILL 9
#define SIGUSR1 10
#define SIGSEGV 11
#define SIGUSR2 12
#define SIGPIPE 13
#define SIGALRM 14
#define SIGTERM 15
#define SIGCHLD 17
#define SIGCONT 18
#define SIGSTOP 19
#define SIGTSTP 20
#define SIGNALS 32

/* Where things lie in a process of a user. */
#define IMAGE_BASE 0x00400000u
#define MAPS_BASE 0x40000000u    /* PM_MAP and SYS_MAP with address 0 */
#define STACK_TOP 0xbffff000u
#define STACK_BYTES 0x00800000u
#define USER_END 0xc0000000u

#endif
