/* Files, beyond the calls of POSIX. */

#ifndef TERN_FILES_H
#define TERN_FILES_H

#include <stddef.h>

/* Writes all of it, in as many parts as that takes. Returns 0, or -1 after an error. */
int write_all(int fd, const void *from, size_t bytes);

#endif
