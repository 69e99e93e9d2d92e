/* The number of the last error. */

#ifndef ERRNO_H
#define ERRNO_H

#include <tern/errno.h>

extern int errno;

#endif
