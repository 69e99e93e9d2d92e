/* Blocks of disks, kept in memory. Changed ones are written later, kind by kind in the order of `enum
   block_kind`, so that nothing on the disk refers to a block which was not written yet, if the power fails
   meanwhile. */

#ifndef CACHE_H
#define CACHE_H

#include <stdint.h>

enum block_kind { BLOCK_DATA, BLOCK_BITMAP, BLOCK_INDIRECT, BLOCK_INODES, BLOCK_DIRECTORY, BLOCK_SUPER,
                  BLOCK_KINDS };

struct buffer {
    struct buffer *hash_next, *newer, *older;
    uint8_t *data;             /* NULL: the buffer is free */
    uint32_t device, block, bytes;
    uint8_t changed, kind, pins;
};

/* Both pin the buffer until cache_release. cache_new does not read: the block becomes zeros. */
int cache_read(uint32_t device, uint32_t block, uint32_t bytes, struct buffer **buffer);
int cache_new(uint32_t device, uint32_t block, uint32_t bytes, struct buffer **buffer);
void cache_release(struct buffer *buffer);
void cache_changed(struct buffer *buffer, enum block_kind kind);

/* Reads several blocks at once, as far as they are not there; errors show when the blocks are used. */
void cache_read_ahead(uint32_t device, uint32_t block, uint32_t bytes, uint32_t count);
int cache_has(uint32_t device, uint32_t block, uint32_t bytes);

int cache_flush(uint32_t device);      /* or ALL_DEVICES; returns the first error, and goes on after it */
void cache_forget(uint32_t device);    /* drops its blocks, written or not */
int cache_waiting(void);               /* whether there are changed blocks */

#define ALL_DEVICES 0xffffffffu

#endif
