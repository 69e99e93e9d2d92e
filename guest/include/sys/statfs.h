/* Sizes of file systems. */

#ifndef SYS_STATFS_H
#define SYS_STATFS_H

#include <tern/fs.h> /* struct statfs */

int statfs(const char *path, struct statfs *to);

#endif
