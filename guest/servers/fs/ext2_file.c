/* ext2: the contents of files. */

#include <string.h>
#include "ext2.h"
#include "outside.h"

#define AHEAD_BYTES 32768u

/* Reads the blocks from `index` on that follow each other on the disk, as many as are wanted and some
   more. */
static void read_run(struct node *node, uint32_t index, uint32_t block, uint32_t wanted)
{
    struct ext2 *e = node->volume->ext2;
    uint32_t last = (node->size - 1) / e->block_bytes, next;
    uint32_t most = TRANSFER_BYTES / e->block_bytes, run = 1;
    if (wanted + AHEAD_BYTES / e->block_bytes < most)
        most = wanted + AHEAD_BYTES / e->block_bytes;
    while (run < most && index + run <= last && ext2_map(node, index + run, &next) == 0 &&
           next == block + run && !cache_has(e->device, next, e->block_bytes))
        run++;
    cache_read_ahead(e->device, block, e->block_bytes, run);
}

int ext2_file_read(struct node *node, uint32_t offset, void *to, uint32_t bytes)
{
    struct ext2 *e = node->volume->ext2;
    uint8_t *at = to;
    for (uint32_t left = bytes; left;) {
        uint32_t index = offset / e->block_bytes, inside = offset % e->block_bytes;
        uint32_t part = e->block_bytes - inside, block;
        if (part > left)
            part = left;
        int result = ext2_map(node, index, &block);
        if (result)
            return result;
        if (block) {
            struct buffer *buffer;
            if (!cache_has(e->device, block, e->block_bytes))
                read_run(node, index, block, (left + inside + e->block_bytes - 1) / e->block_bytes);
            result = ext2_read(node->volume, block, &buffer);
            if (result)
                return result;
            memcpy(at, buffer->data + inside, part);
            cache_release(buffer);
        } else {
            memset(at, 0, part);
        }
        at += part;
        offset += part;
        left -= part;
    }
    return bytes;
}

/* The buffer of a block that is to be written. One that is overwritten as a whole need not be read before. */
static int block_to_write(struct node *node, uint32_t index, int whole, struct buffer **buffer)
{
    struct ext2 *e = node->volume->ext2;
    uint32_t block;
    int result = whole ? ext2_map(node, index, &block) : 0;
    if (result)
        return result;
    if (whole && block)
        return cache_new(e->device, block, e->block_bytes, buffer);
    return ext2_map_allocate(node, index, BLOCK_DATA, buffer);
}

int ext2_file_write(struct node *node, uint32_t offset, const void *from, uint32_t bytes)
{
    struct ext2 *e = node->volume->ext2;
    const uint8_t *at = from;
    uint32_t left = bytes;
    int result = 0;
    while (left) {
        uint32_t inside = offset % e->block_bytes, part = e->block_bytes - inside;
        struct buffer *buffer;
        if (part > left)
            part = left;
        result = block_to_write(node, offset / e->block_bytes, part == e->block_bytes, &buffer);
        if (result)
            break;
        memcpy(buffer->data + inside, at, part);
        cache_changed(buffer, BLOCK_DATA);
        cache_release(buffer);
        at += part;
        offset += part;
        left -= part;
        if (offset > node->size)
            node->size = offset;
    }
    if (left < bytes)
        node_touch(node);
    return left < bytes ? (int)(bytes - left) : result;
}

int ext2_truncate(struct node *node, uint32_t bytes)
{
    struct ext2 *e = node->volume->ext2;
    uint32_t old = node->size, inside = bytes % e->block_bytes, block;
    int result = 0;
    if (bytes < old && inside) {
        /* Bytes behind the end must be zeros, if the file grows again. */
        struct buffer *buffer;
        result = ext2_map(node, bytes / e->block_bytes, &block);
        if (result == 0 && block)
            result = ext2_read(node->volume, block, &buffer);
        if (result)
            return result;
        if (block) {
            memset(buffer->data + inside, 0, e->block_bytes - inside);
            cache_changed(buffer, BLOCK_DATA);
            cache_release(buffer);
        }
    }
    node->size = bytes;
    node_touch(node);
    if (bytes < old)
        result = ext2_trim(node, (bytes + e->block_bytes - 1) / e->block_bytes);
    return result;
}
