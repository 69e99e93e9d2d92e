/*
 * Exceptions, and signals.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "suite.h"

static volatile uint32_t caught, divisor;

static void catch(int number, void (*handler)(int))
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    if (sigaction(number, &action, NULL) != 0)
        fail("sigaction");
}

/* The division is executed again when this returns. */
static void mend_divisor(int number)
{
    caught = mix(caught, number == SIGFPE);
    divisor = 1;
}

/* Divisions by zero, each of which comes as a signal. */
uint32_t flow_exception(uint32_t count, const char *path)
{
    (void)path;
    catch(SIGFPE, mend_divisor);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t low = i, high = 0;
        divisor = 0;
        __asm__ volatile("divl %2" : "+a"(low), "+d"(high) : "m"(divisor) : "cc", "memory");
    }
    return caught;
}

static void note(int number)
{
    caught = mix(caught, number == SIGUSR1);
}

/* Signals from a process to itself. */
uint32_t signal_self(uint32_t count, const char *path)
{
    (void)path;
    catch(SIGUSR1, note);
    pid_t self = getpid();
    for (uint32_t i = 0; i < count; i++)
        if (kill(self, SIGUSR1) != 0)
            fail("kill");
    return caught;
}

/* Page faults: 64 pages that are touched for the first time, and given back, each time. */
uint32_t page_fault(uint32_t count, const char *path)
{
    (void)path;
    const size_t page = 4096, bytes = 64 * page;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        volatile uint8_t *pages =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED)
            fail("mmap");
        for (size_t at = 0; at < bytes; at += page) {
            pages[at] += i + at / page;
            sum = mix(sum, pages[at]);
        }
        if (munmap((void *)pages, bytes) != 0)
            fail("munmap");
    }
    return sum;
}
