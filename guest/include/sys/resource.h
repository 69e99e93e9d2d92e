/* What a process has used. */

#ifndef SYS_RESOURCE_H
#define SYS_RESOURCE_H

#include <sys/time.h>

#define RUSAGE_SELF 0
#define RUSAGE_CHILDREN (-1)

/* Servers work in the names of programs, and their time is their own: so the time in the system is none. */
struct rusage {
    struct timeval ru_utime, ru_stime;
};

int getrusage(int who, struct rusage *usage);

#endif
