/*
 * The counterparts in Tern of what linux.c has. Its only trap for calls sends messages (INT 30h), so it is
 * the receiver that differs: the kernel, or a server, to which there are two switches of the address space.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <tern/device.h>
#include <tern/lib.h>
#include <tern/pm.h>
#include <tern/rs.h>
#include <unistd.h>

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

/* Requests to the process manager: its only way to a process's own number, as SYSENTER is Linux's quickest
   one. */
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

/* Messages to another process and its answers: the data store refuses at once to look for a name without
   letters. */
uint32_t message_round_trip(uint32_t count, const char *path)
{
    (void)path;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct message message = {.w = {0}};
        sum = mix(sum, call(SERVICE(DS), DS_GET, &message) == -EINVAL);
    }
    return sum;
}

/* The memory of the screen is the console driver's alone. */
void look_at_screen(const char *path, uint32_t count)
{
    (void)path;
    (void)count;
}

/* The local APIC's timer, or counter 0 of the 8254 if SOURCE is "pit". With 0 Hz there is no periodic tick at
   all. */
void set_ticks(uint32_t hz, const char *source)
{
    uint32_t timer = source != NULL && strcmp(source, "pit") == 0 ? CLOCK_PIT : CLOCK_APIC;
    struct clock_setting setting = {hz == 0 ? CLOCK_TICKLESS : timer, hz};
    int clock = open("/dev/clock", O_RDWR);
    if (clock < 0 || ioctl(clock, CLIOCSETHZ, &setting) != 0)
        fail("/dev/clock");
    close(clock);
}

uint32_t ticks_so_far(void)
{
    struct times times;
    if (sys_times(&times) != 0)
        fail("SYS_TIMES");
    return times.ticks;
}

int other_command(int argc, char *argv[])
{
    (void)argc;
    (void)argv;
    return NO_COMMAND;
}
