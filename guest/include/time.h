/* Times and dates. Local time is UTC. */

#ifndef TIME_H
#define TIME_H

#include <stddef.h>
#include <sys/types.h>

#define CLOCKS_PER_SEC 1000000
#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 1

struct timespec {
    time_t tv_sec;
    long tv_nsec;
};

struct tm {
    int tm_sec, tm_min, tm_hour, tm_mday, tm_mon, tm_year, tm_wday, tm_yday, tm_isdst;
};

time_t time(time_t *seconds);
int clock_gettime(int clock, struct timespec *now);
int nanosleep(const struct timespec *length, struct timespec *left);
clock_t clock(void);

double difftime(time_t later, time_t earlier);
struct tm *gmtime(const time_t *seconds);
struct tm *gmtime_r(const time_t *seconds, struct tm *to);
struct tm *localtime(const time_t *seconds);
struct tm *localtime_r(const time_t *seconds, struct tm *to);
time_t mktime(struct tm *date);
time_t timegm(struct tm *date);
size_t strftime(char *to, size_t bytes, const char *format, const struct tm *date);
char *asctime(const struct tm *date);
char *ctime(const time_t *seconds);

#endif
