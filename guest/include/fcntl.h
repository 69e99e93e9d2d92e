/* Opening of files. */

#ifndef FCNTL_H
#define FCNTL_H

#include <sys/types.h>
#include <tern/fs.h> /* O_, F_ */

#define FD_CLOEXEC 1
#define O_ACCMODE 3

int open(const char *path, int flags, ...);
int creat(const char *path, mode_t mode);
int fcntl(int fd, int command, ...);

#endif
