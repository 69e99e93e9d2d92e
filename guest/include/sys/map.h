/* Memory outside of the heap. */

#ifndef SYS_MAP_H
#define SYS_MAP_H

#include <stddef.h>

/* New memory of zeros, or NULL. */
void *map_memory(size_t bytes);
int unmap_memory(void *memory, size_t bytes);

#endif
