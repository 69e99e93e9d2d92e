/*
 * Fixed times by the system's own clock, which show how that goes; they count milliseconds.
 */
#include <time.h>

#include "suite.h"

uint64_t nanoseconds(void)
{
    struct timespec time;
    if (clock_gettime(CLOCK_MONOTONIC, &time) != 0)
        fail("clock_gettime");
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Waits busily: takes as much of the processor as of time. */
uint32_t calibrate_busy(uint32_t count, const char *path)
{
    (void)path;
    uint64_t end = nanoseconds() + (uint64_t)count * 1000000;
    while (nanoseconds() < end)
        ;
    return count;
}

/* Sleeps: what it takes of the processor is what an idle system takes. */
uint32_t calibrate_idle(uint32_t count, const char *path)
{
    (void)path;
    struct timespec time = {count / 1000, count % 1000 * 1000000};
    if (nanosleep(&time, NULL) != 0)
        fail("nanosleep");
    return count;
}
