/*
 * System calls and processes.
 */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "suite.h"

uint32_t status_of(pid_t child)
{
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
        fail("waitpid");
    return WEXITSTATUS(status);
}

/* Starts a child by vfork that ends at once with STATUS. A function of its own: the child runs on its
   frame. */
static pid_t child_in_our_memory(int status)
{
    pid_t child = vfork();
    if (child < 0)
        fail("vfork");
    if (child == 0)
        _exit(status);
    return child;
}

/*
 * Waiting for a child process, which shares the memory of its parent (vfork): to the child and back, without
 * what copying an address space costs, which is `fork`.
 */
uint32_t flow_taskswitch(uint32_t count, const char *path)
{
    (void)path;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum = mix(sum, status_of(child_in_our_memory(i & 0x7f)));
    return sum;
}

/* Creates and ends processes: fork, wait and exit. */
uint32_t fork_wait(uint32_t count, const char *path)
{
    (void)path;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0)
            _exit(i & 0x7f);
        sum = mix(sum, status_of(child));
    }
    return sum;
}

/* Starts another program: this one, that ends at once. */
uint32_t exec_self(uint32_t count, const char *path)
{
    (void)path;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        char status[4];
        snprintf(status, sizeof status, "%u", i & 0x3f);
        char *arguments[] = {EXIT_COMMAND, status, NULL};
        sum = mix(sum, start_self(arguments));
    }
    return sum;
}

/* Passes a byte on, COUNT times, adding one to it; gives a checksum of what came. */
static uint32_t pass_on(int from, int to, uint32_t count)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t byte;
        if (read(from, &byte, 1) != 1)
            fail("read");
        sum = mix(sum, byte++);
        if (write(to, &byte, 1) != 1)
            fail("write");
    }
    return sum;
}

/* A pipe within one process: a byte is written and read. Nobody waits, so that no process is switched to. */
uint32_t pipe_within(uint32_t count, const char *path)
{
    (void)path;
    int ends[2];
    if (pipe(ends) != 0)
        fail("pipe");
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t byte = i;
        if (write(ends[1], &byte, 1) != 1)
            fail("write");
        if (read(ends[0], &byte, 1) != 1)
            fail("read");
        sum = mix(sum, byte);
    }
    return sum;
}

/* Two processes and two pipes: in a step a byte goes there and back, two switches and four system calls. */
uint32_t pipesw(uint32_t count, const char *path)
{
    (void)path;
    int there[2], back[2];
    if (pipe(there) != 0 || pipe(back) != 0)
        fail("pipe");
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        pass_on(there[0], back[1], count);
        _exit(0);
    }
    if (write(there[1], "", 1) != 1)
        fail("write");
    uint32_t sum = pass_on(back[0], there[1], count);
    return mix(sum, status_of(child));
}
