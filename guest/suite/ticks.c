/*
 * The cost of a clock's ticks, as van der Kouwe measures it (2009, section 5.1): a loop reads the time-stamp
 * counter until so many cycles have gone by. Each tick takes some iterations away.
 *
 *   suite --ticks CYCLES HZ [SOURCE]
 *
 * makes the system's clock tick HZ times a second (0: as seldom as it can), and prints HZ, the iterations,
 * the cycles from the begin of the loop to its end, the microseconds that these were by the system's clock,
 * and the ticks meanwhile. Where a system has several timers, SOURCE is one.
 */
#include <stdio.h>
#include <stdlib.h>

#include "suite.h"

/* Iterations until END. Each has the same five instructions on every system. */
static uint32_t iterations(uint64_t end)
{
    uint32_t count = 0, low, high;
    __asm__ volatile("1: addl $1, %0\n\t"
                     "rdtsc\n\t"
                     "cmpl %3, %%eax\n\t"
                     "sbbl %4, %%edx\n\t"
                     "jb 1b"
                     : "+r"(count), "=&a"(low), "=&d"(high)
                     : "r"((uint32_t)end), "r"((uint32_t)(end >> 32))
                     : "cc");
    return count;
}

int measure_ticks(const char *cycles, const char *hz, const char *source)
{
    uint32_t wanted = strtoul(hz, NULL, 10);
    set_ticks(wanted, source);
    uint32_t before = ticks_so_far();
    uint64_t time = nanoseconds(), begin = __builtin_ia32_rdtsc();
    uint32_t count = iterations(begin + strtoull(cycles, NULL, 10));
    uint64_t taken = __builtin_ia32_rdtsc() - begin;
    time = nanoseconds() - time;
    uint32_t ticks = ticks_so_far() - before;
    set_ticks(0, source);
    printf("ticks %u %u %llu %llu %u\n", wanted, count, (unsigned long long)taken,
           (unsigned long long)(time / 1000), ticks);
    return 0;
}
