/* Time, alarms and sleep. */

#include <errno.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <tern/lib.h>
#include <tern/pm.h>
#include <time.h>
#include <unistd.h>
#include "request.h"

#define MILLION 1000000

static uint64_t since_1970(void)
{
    struct message m = {.w = {0}};
    if (request(SERVICE(PM), PM_TIME, &m) < 0)
        return 0;
    return (uint64_t)m.w[1] << 32 | m.w[0];
}

time_t time(time_t *seconds)
{
    time_t now = since_1970() / MILLION;
    if (seconds)
        *seconds = now;
    return now;
}

int gettimeofday(struct timeval *now, void *zone)
{
    (void)zone;
    uint64_t microseconds = since_1970();
    now->tv_sec = microseconds / MILLION;
    now->tv_usec = microseconds % MILLION;
    return 0;
}

int clock_gettime(int clock, struct timespec *now)
{
    struct times times;
    uint64_t microseconds;
    if (clock == CLOCK_REALTIME) {
        microseconds = since_1970();
    } else if (clock == CLOCK_MONOTONIC) {
        if (sys_times(&times) < 0) {
            errno = EPERM;
            return -1;
        }
        microseconds = times.microseconds;
    } else {
        errno = EINVAL;
        return -1;
    }
    now->tv_sec = microseconds / MILLION;
    now->tv_nsec = microseconds % MILLION * 1000;
    return 0;
}

clock_t clock(void)
{
    struct times times;
    return sys_times(&times) < 0 ? -1 : (clock_t)times.run;
}

int getrusage(int who, struct rusage *usage)
{
    struct times times;
    struct message m = {.w = {0}};
    uint64_t run = 0;
    if (who != RUSAGE_SELF && who != RUSAGE_CHILDREN) {
        errno = EINVAL;
        return -1;
    }
    if (who == RUSAGE_SELF && sys_times(&times) == 0)
        run = times.run;
    if (who == RUSAGE_CHILDREN) {
        if (request(SERVICE(PM), PM_CHILDREN_TIME, &m) < 0)
            return -1;
        run = (uint64_t)m.w[1] << 32 | m.w[0];
    }
    usage->ru_utime.tv_sec = run / MILLION;
    usage->ru_utime.tv_usec = run % MILLION;
    usage->ru_stime.tv_sec = usage->ru_stime.tv_usec = 0;
    return 0;
}

static int sleep_for(uint64_t microseconds)
{
    return pm_call(PM_SLEEP, (uint32_t)microseconds, (uint32_t)(microseconds >> 32), 0);
}

int usleep(useconds_t microseconds)
{
    return sleep_for(microseconds);
}

int nanosleep(const struct timespec *length, struct timespec *left)
{
    if (length->tv_sec < 0 || length->tv_nsec < 0 || length->tv_nsec >= 1000 * MILLION) {
        errno = EINVAL;
        return -1;
    }
    /* Rounded up: it must not be shorter than asked for. */
    uint64_t wanted = (uint64_t)length->tv_sec * MILLION + (length->tv_nsec + 999) / 1000;
    struct timespec start = {0}, end = {0};
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (sleep_for(wanted) == 0)
        return 0;
    if (left) {
        clock_gettime(CLOCK_MONOTONIC, &end);
        uint64_t passed = (end.tv_sec - start.tv_sec) * MILLION + (end.tv_nsec - start.tv_nsec) / 1000;
        uint64_t rest = passed < wanted ? wanted - passed : 0;
        left->tv_sec = rest / MILLION;
        left->tv_nsec = rest % MILLION * 1000;
    }
    return -1;
}

unsigned sleep(unsigned seconds)
{
    struct timespec length = {.tv_sec = seconds}, left;
    return nanosleep(&length, &left) == 0 ? 0 : (unsigned)left.tv_sec;
}

static uint64_t set_alarm(uint32_t microseconds, uint32_t period)
{
    return (uint32_t)pm_value(PM_ALARM, microseconds, period, 0);
}

/* Times of alarms have 32 bits: 71 minutes at most. */
static uint32_t bounded(const struct timeval *time)
{
    if (time->tv_sec >= 4000)
        return 4000u * MILLION;
    return (uint32_t)time->tv_sec * MILLION + time->tv_usec;
}

unsigned alarm(unsigned seconds)
{
    struct timeval time = {.tv_sec = seconds};
    return (set_alarm(bounded(&time), 0) + MILLION - 1) / MILLION;
}

int setitimer(int which, const struct itimerval *timer, struct itimerval *old)
{
    if (which != ITIMER_REAL) {
        errno = EINVAL;
        return -1;
    }
    uint64_t left = set_alarm(bounded(&timer->it_value), bounded(&timer->it_interval));
    if (old) {
        old->it_value.tv_sec = left / MILLION;
        old->it_value.tv_usec = left % MILLION;
        old->it_interval.tv_sec = 0;
        old->it_interval.tv_usec = 0;
    }
    return 0;
}
