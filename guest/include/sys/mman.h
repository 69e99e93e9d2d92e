/* Memory outside of the heap, by POSIX's names. Files are not mapped: there is MAP_PRIVATE | MAP_ANONYMOUS
   only, and all of it can be read, written and executed. */

#ifndef SYS_MMAN_H
#define SYS_MMAN_H

#include <sys/types.h>

#define PROT_NONE 0
#define PROT_READ 1
#define PROT_WRITE 2
#define PROT_EXEC 4

#define MAP_PRIVATE 2
#define MAP_ANONYMOUS 0x20
#define MAP_FAILED ((void *)-1)

void *mmap(void *wanted, size_t bytes, int access, int flags, int fd, off_t offset);
int munmap(void *memory, size_t bytes);

#endif
