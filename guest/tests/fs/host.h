/* The tests of the file systems on the host. */

#ifndef HOST_H
#define HOST_H

#include "../../servers/fs/cache.h"
#include "../../servers/fs/outside.h"
#include "../../servers/fs/vfs.h"

extern uint8_t *disk;
extern uint32_t disk_sectors, disk_writes, disk_reads, writes_until_cut;
extern int quiet;

void disk_load(const char *name);
void disk_save(const char *name);

void random_seed(uint64_t seed);
uint32_t random_below(uint32_t limit);

#define fail(...) (printf("FAILED (line %d): ", __LINE__), printf(__VA_ARGS__), printf("\n"), exit(1))

/* operations.c: one random operation, done in each of the volumes; their results and contents must agree. */
void operations_start(struct node *const *roots, uint32_t count, uint32_t bytes_max);
void operations_step(void);
void operations_end(void);
void compare_trees(struct node *const *roots, uint32_t depth);

#endif
