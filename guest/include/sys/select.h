/* Waiting for several files. */

#ifndef SYS_SELECT_H
#define SYS_SELECT_H

#include <sys/types.h>
#include <sys/time.h>
#include <tern/fs.h>

#define FD_SETSIZE DESCRIPTORS

typedef struct {
    uint32_t bits;
} fd_set;

#define FD_ZERO(set) ((set)->bits = 0)
#define FD_SET(fd, set) ((set)->bits |= 1u << (fd))
#define FD_CLR(fd, set) ((set)->bits &= ~(1u << (fd)))
#define FD_ISSET(fd, set) ((set)->bits >> (fd) & 1)

struct timeval;
int select(int count, fd_set *to_read, fd_set *to_write, fd_set *exceptions, struct timeval *limit);

#endif
