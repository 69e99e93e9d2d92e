/* Processes and their memory. */

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/map.h>
#include <sys/mman.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <tern/lib.h>
#include <tern/pm.h>
#include <tern/rs.h>
#include <unistd.h>
#include "request.h"

pid_t fork(void)
{
    struct message m = {.w = {0}};
    int result = call(SERVICE(PM), PM_FORK, &m);
    /* No message comes to the child: the trap itself returns this value to it (PM resumes it so). */
    if (result == PM_FORKED)
        return 0;
    if (result < 0) {
        errno = -result;
        return -1;
    }
    return m.w[0];
}

pid_t vfork(void)
{
    return fork();
}

void _exit(int status)
{
    struct message m = {.w = {status}};
    call(SERVICE(PM), PM_EXIT, &m);
    /* PM knows no services: they end with RS. */
    for (;;) {
        m.w[0] = status;
        call(SERVICE(RS), RS_EXIT, &m);
    }
}

pid_t wait(int *status)
{
    return waitpid(-1, status, 0);
}

pid_t waitpid(pid_t pid, int *status, int options)
{
    struct message m = {.w = {pid, options}};
    if (request(SERVICE(PM), PM_WAIT, &m) < 0)
        return -1;
    if (status)
        *status = m.w[1];
    return m.w[0];
}

pid_t getpid(void)
{
    return pm_value(PM_GETPID, 0, 0, 0);
}

pid_t getppid(void)
{
    struct message m = {.w = {0}};
    return request(SERVICE(PM), PM_GETPID, &m) < 0 ? -1 : (pid_t)m.w[1];
}

int setpgid(pid_t pid, pid_t group)
{
    return pm_call(PM_SETPGID, pid, group, 0);
}

pid_t getpgid(pid_t pid)
{
    return pm_value(PM_GETPGID, pid, 0, 0);
}

pid_t getpgrp(void)
{
    return getpgid(0);
}

/* There are no sessions: a session is as good as its group. */
pid_t setsid(void)
{
    return setpgid(0, 0) < 0 ? -1 : getpid();
}

/* There is one user. */
uid_t getuid(void)
{
    return 0;
}

uid_t geteuid(void)
{
    return 0;
}

gid_t getgid(void)
{
    return 0;
}

gid_t getegid(void)
{
    return 0;
}

static uint32_t heap_end;

int brk(void *end)
{
    int result = pm_value(PM_BRK, WORD(end), 0, 0);
    if (result == -1)
        return -1;
    heap_end = result;
    return 0;
}

void *sbrk(intptr_t bytes)
{
    if (heap_end == 0 && brk(NULL) < 0)
        return (void *)-1;
    uint32_t old = heap_end;
    if ((bytes > 0 && old + bytes < old) || (bytes < 0 && old + bytes > old)) {
        errno = ENOMEM;
        return (void *)-1;
    }
    if (bytes != 0 && brk((void *)(old + bytes)) < 0)
        return (void *)-1;
    return (void *)old;
}

void *map_memory(size_t bytes)
{
    int address = pm_value(PM_MAP, bytes, 0, 0);
    return address == -1 ? NULL : (void *)address;
}

int unmap_memory(void *memory, size_t bytes)
{
    return pm_call(PM_UNMAP, WORD(memory), bytes, 0);
}

/* The address that is wanted is a hint (POSIX), which is not taken. */
void *mmap(void *wanted, size_t bytes, int access, int flags, int fd, off_t offset)
{
    (void)wanted;
    (void)access;
    (void)fd;
    (void)offset;
    if (flags != (MAP_PRIVATE | MAP_ANONYMOUS)) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    void *memory = map_memory(bytes);
    return memory ? memory : MAP_FAILED;
}

int munmap(void *memory, size_t bytes)
{
    return unmap_memory(memory, bytes);
}

int reboot(int how, unsigned value)
{
    return pm_call(PM_REBOOT, how, value, 0);
}

int gethostname(char *name, size_t bytes)
{
    strncpy(name, "tern", bytes);
    return 0;
}
