/* ext2: directories. Entries fill each block; each says where the next one is. */

#include <string.h>
#include "ext2.h"
#include "outside.h"

/* Where an entry is. `before` is the entry before it in its block, or NULL. */
struct found {
    struct buffer *buffer;
    struct ext2_entry *entry, *before;
};

static uint32_t block_count(const struct node *directory)
{
    return directory->size / directory->volume->ext2->block_bytes;
}

/* A block of a directory. Directories have no holes. */
static int block_get(struct node *directory, uint32_t index, struct buffer **buffer)
{
    uint32_t block;
    int result = ext2_map(directory, index, &block);
    if (result)
        return result;
    if (block == 0)
        return ext2_damaged(directory->volume, "a directory has a hole");
    return ext2_read(directory->volume, block, buffer);
}

/* The entry at an offset in a block, or NULL if it is damaged. */
static struct ext2_entry *entry_at(const struct ext2 *e, struct buffer *buffer, uint32_t offset)
{
    if (e->block_bytes - offset < 8)
        return NULL;
    struct ext2_entry *entry = (struct ext2_entry *)(buffer->data + offset);
    if (entry->bytes < 8 || entry->bytes % 4 || entry->bytes > e->block_bytes - offset ||
        entry->inode > e->inodes)
        return NULL;
    if (entry->inode && (entry->length == 0 || ENTRY_BYTES(entry->length) > entry->bytes))
        return NULL;
    return entry;
}

static int bad_entry(struct node *directory, struct buffer *buffer)
{
    cache_release(buffer);
    return ext2_damaged(directory->volume, "an entry of a directory is wrong");
}

static int search(struct node *directory, const char *name, uint32_t length, struct found *found)
{
    struct ext2 *e = directory->volume->ext2;
    for (uint32_t index = 0; index < block_count(directory); index++) {
        struct ext2_entry *before = NULL, *entry;
        int result = block_get(directory, index, &found->buffer);
        if (result)
            return result;
        for (uint32_t offset = 0; offset < e->block_bytes; offset += entry->bytes) {
            entry = entry_at(e, found->buffer, offset);
            if (!entry)
                return bad_entry(directory, found->buffer);
            if (entry->inode && entry->length == length && memcmp(entry->name, name, length) == 0) {
                found->entry = entry;
                found->before = before;
                return 0;
            }
            before = entry;
        }
        cache_release(found->buffer);
    }
    return -ENOENT;
}

int ext2_find(struct node *directory, const char *name, uint32_t length, uint32_t *number)
{
    struct found found;
    int result = search(directory, name, length, &found);
    if (result)
        return result;
    *number = found.entry->inode;
    cache_release(found.buffer);
    return 0;
}

/* The block was changed: an index of Linux's does not fit any more. */
static void block_changed(struct node *directory, struct buffer *buffer)
{
    cache_changed(buffer, BLOCK_DIRECTORY);
    directory->ext2.flags &= ~INODE_INDEXED;
    node_touch(directory);
}

static void fill_entry(const struct ext2 *e, struct ext2_entry *entry, const char *name, uint32_t length,
                       struct node *node)
{
    entry->inode = node->number;
    entry->length = length;
    entry->type = e->types ? entry_type(node->mode) : 0;
    memcpy(entry->name, name, length);
}

/* Puts an entry into a block if there is room: in an unused entry, or behind a used one. Returns 1 if it
   did. */
static int enter_into(struct node *directory, struct buffer *buffer, const char *name, uint32_t length,
                      struct node *node)
{
    struct ext2 *e = directory->volume->ext2;
    struct ext2_entry *entry;
    for (uint32_t offset = 0; offset < e->block_bytes; offset += entry->bytes) {
        entry = entry_at(e, buffer, offset);
        if (!entry)
            return ext2_damaged(directory->volume, "an entry of a directory is wrong");
        uint32_t used = entry->inode ? ENTRY_BYTES(entry->length) : 0;
        if (entry->bytes - used < ENTRY_BYTES(length))
            continue;
        if (used) {
            struct ext2_entry *next = (struct ext2_entry *)((uint8_t *)entry + used);
            next->bytes = entry->bytes - used;
            entry->bytes = used;
            entry = next;
        }
        fill_entry(e, entry, name, length, node);
        block_changed(directory, buffer);
        return 1;
    }
    return 0;
}

int ext2_enter(struct node *directory, const char *name, uint32_t length, struct node *node)
{
    struct ext2 *e = directory->volume->ext2;
    struct buffer *buffer;
    int result;
    if (directory->volume->read_only)
        return -EROFS;
    for (uint32_t index = 0; index < block_count(directory); index++) {
        result = block_get(directory, index, &buffer);
        if (result)
            return result;
        result = enter_into(directory, buffer, name, length, node);
        cache_release(buffer);
        if (result)
            return result < 0 ? result : 0;
    }
    if (directory->size > FILE_BYTES_MAX - e->block_bytes)
        return -EFBIG;
    result = ext2_map_allocate(directory, block_count(directory), BLOCK_DIRECTORY, &buffer);
    if (result)
        return result;
    struct ext2_entry *entry = (struct ext2_entry *)buffer->data;
    memset(entry, 0, e->block_bytes);
    entry->bytes = e->block_bytes;
    fill_entry(e, entry, name, length, node);
    directory->size += e->block_bytes;
    block_changed(directory, buffer);
    cache_release(buffer);
    return 0;
}

int ext2_change(struct node *directory, const char *name, uint32_t length, struct node *node)
{
    struct found found;
    if (directory->volume->read_only)
        return -EROFS;
    int result = search(directory, name, length, &found);
    if (result)
        return result;
    fill_entry(directory->volume->ext2, found.entry, name, length, node);
    block_changed(directory, found.buffer);
    cache_release(found.buffer);
    return 0;
}

int ext2_remove(struct node *directory, const char *name, uint32_t length)
{
    struct found found;
    if (directory->volume->read_only)
        return -EROFS;
    int result = search(directory, name, length, &found);
    if (result)
        return result;
    /* The entry before it takes its room; the first of a block becomes unused. */
    if (found.before)
        found.before->bytes += found.entry->bytes;
    else
        found.entry->inode = 0;
    block_changed(directory, found.buffer);
    cache_release(found.buffer);
    return 0;
}

/* The entry at or behind a position in a block, which is walked from its start: positions come from
   processes. */
static int list_block(struct node *directory, struct buffer *buffer, uint32_t from, uint32_t *next,
                      struct directory_entry *to)
{
    struct ext2 *e = directory->volume->ext2;
    struct ext2_entry *entry;
    for (uint32_t offset = 0; offset < e->block_bytes; offset += entry->bytes) {
        entry = entry_at(e, buffer, offset);
        if (!entry)
            return ext2_damaged(directory->volume, "an entry of a directory is wrong");
        if (offset < from || entry->inode == 0)
            continue;
        to->inode = entry->inode;
        to->type = e->types ? entry->type : 0;
        to->length = entry->length;
        memcpy(to->name, entry->name, entry->length);
        *next = offset + entry->bytes;
        return 1;
    }
    return 0;
}

int ext2_list(struct node *directory, uint32_t *position, struct directory_entry *to)
{
    struct ext2 *e = directory->volume->ext2;
    for (uint32_t index = *position / e->block_bytes; index < block_count(directory); index++) {
        struct buffer *buffer;
        uint32_t from = index == *position / e->block_bytes ? *position % e->block_bytes : 0, next = 0;
        int result = block_get(directory, index, &buffer);
        if (result)
            return result;
        result = list_block(directory, buffer, from, &next, to);
        cache_release(buffer);
        if (result) {
            *position = index * e->block_bytes + next;
            return result;
        }
    }
    return 0;
}
