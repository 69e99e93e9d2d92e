/* Times of files. */

#ifndef UTIME_H
#define UTIME_H

#include <sys/types.h>

struct utimbuf {
    time_t actime, modtime;
};

int utime(const char *path, const struct utimbuf *times);

#endif
