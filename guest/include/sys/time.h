/* Time of day and timers. */

#ifndef SYS_TIME_H
#define SYS_TIME_H

#include <sys/types.h>
#include <time.h>

struct timeval {
    time_t tv_sec;
    suseconds_t tv_usec;
};

struct timezone {
    int tz_minuteswest, tz_dsttime;
};

#define ITIMER_REAL 0

struct itimerval {
    struct timeval it_interval, it_value;
};

int gettimeofday(struct timeval *now, void *zone);
int setitimer(int which, const struct itimerval *timer, struct itimerval *old);
int utimes(const char *path, const struct timeval times[2]);

#include <sys/select.h>

#endif
