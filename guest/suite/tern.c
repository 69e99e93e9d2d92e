/*
 * The counterparts in Tern of what linux.c has. Its only trap for calls sends messages (INT 30h), so it is the
 * receiver that differs: the kernel, or a server, to which there are two switches of the address space.
 */
#include <tern/lib.h>
#include <tern/pm.h>

#include "suite.h"

const char *const own_program = "/bin/suite";

/* Requests to the kernel, where the least is to be done: the clock's frequency is read. */
uint32_t flow_syscall(uint32_t count, const char *path)
{
    (void)path;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct message message;
        sum = mix(sum, call(SYSTEM, SYS_GETCLOCK, &message) == 0);
    }
    return sum;
}

/* Requests to the process manager: its only way to a process's own number, as SYSENTER is Linux's quickest one. */
uint32_t getpid_quickest(uint32_t count, const char *path)
{
    (void)path;
    struct message message;
    if (call(SERVICE(PM), PM_GETPID, &message) != 0)
        fail("PM_GETPID");
    uint32_t self = message.w[0], sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        int32_t result = call(SERVICE(PM), PM_GETPID, &message);
        sum = mix(sum, result == 0 && message.w[0] == self);
    }
    return sum;
}

/* The memory of the screen is the console driver's alone. */
void look_at_screen(const char *path, uint32_t count)
{
    (void)path;
    (void)count;
}

int other_command(int argc, char *argv[])
{
    (void)argc;
    (void)argv;
    return NO_COMMAND;
}
