/* ext2: which block of the disk holds which block of a file. An inode has 12 numbers of blocks, and those of
   three blocks that hold numbers, numbers of blocks with numbers, and so on. */

#include <string.h>
#include "ext2.h"
#include "outside.h"

struct place {
    int levels;                /* of blocks with numbers; 0: the number is in the inode */
    uint32_t slot;             /* in the inode */
    uint32_t index[3];         /* in the block of each level */
};

static int find_place(const struct ext2 *e, uint32_t index, struct place *place)
{
    uint32_t p = e->pointers;
    if (index < DIRECT) {
        *place = (struct place){0, index, {0}};
        return 0;
    }
    index -= DIRECT;
    if (index < p) {
        *place = (struct place){1, DIRECT, {index}};
        return 0;
    }
    index -= p;
    if (index < p * p) {
        *place = (struct place){2, DIRECT + 1, {index / p, index % p}};
        return 0;
    }
    index -= p * p;
    if (index / p / p >= p)
        return -EFBIG;
    *place = (struct place){3, DIRECT + 2, {index / p / p, index / p % p, index % p}};
    return 0;
}

int ext2_map(struct node *node, uint32_t index, uint32_t *block)
{
    struct ext2 *e = node->volume->ext2;
    struct place place;
    int result = find_place(e, index, &place);
    if (result)
        return result;
    uint32_t number = node->ext2.block[place.slot];
    for (int level = 0; level < place.levels && number; level++) {
        struct buffer *buffer;
        result = ext2_read(node->volume, number, &buffer);
        if (result)
            return result;
        number = ((uint32_t *)buffer->data)[place.index[level]];
        cache_release(buffer);
    }
    if (number && !ext2_block_valid(e, number))
        return ext2_damaged(node->volume, "a block's number is wrong");
    *block = number;
    return 0;
}

/* Allocates a block of zeros for the file. */
static int new_block(struct node *node, enum block_kind kind, uint32_t *number, struct buffer **buffer)
{
    struct ext2 *e = node->volume->ext2;
    uint32_t goal = node->ext2.next_block;
    if (goal == 0)
        goal = e->first_data_block + (node->number - 1) / e->inodes_per_group * e->blocks_per_group;
    int result = ext2_allocate_block(node->volume, goal, number);
    if (result)
        return result;
    result = cache_new(e->device, *number, e->block_bytes, buffer);
    if (result) {
        ext2_free_block(node->volume, *number);
        return result;
    }
    cache_changed(*buffer, kind);
    node->ext2.next_block = *number + 1;
    node->sectors += e->block_bytes / 512;
    node->changed = 1;
    return 0;
}

/* Gives the buffer of a block of the file, which is allocated if it is a hole. */
int ext2_map_allocate(struct node *node, uint32_t index, enum block_kind kind, struct buffer **found)
{
    struct place place;
    struct buffer *above = NULL, *buffer;
    int result = find_place(node->volume->ext2, index, &place);
    if (result)
        return result;
    uint32_t *number = &node->ext2.block[place.slot];
    for (int level = 0;; level++) {
        enum block_kind this = level == place.levels ? kind : BLOCK_INDIRECT;
        if (*number == 0) {
            result = new_block(node, this, number, &buffer);
            if (result == 0 && above)
                cache_changed(above, BLOCK_INDIRECT);
        } else {
            result = ext2_read(node->volume, *number, &buffer);
        }
        if (above)
            cache_release(above);
        if (result)
            return result;
        if (level == place.levels)
            break;
        number = (uint32_t *)buffer->data + place.index[level];
        above = buffer;
    }
    *found = buffer;
    return 0;
}

static int free_counted(struct node *node, uint32_t block)
{
    uint32_t sectors = node->volume->ext2->block_bytes / 512;
    int result = ext2_free_block(node->volume, block);
    if (result == 0)
        node->sectors -= node->sectors < sectors ? node->sectors : sectors;
    return result;
}

/* Frees what *number leads to, but for its first `keep` blocks of the file. A block with numbers must be in
   use itself, and each block is freed once only, so that no circle of numbers keeps this going. */
static int trim_tree(struct node *node, uint32_t *number, int levels, uint32_t keep)
{
    struct ext2 *e = node->volume->ext2;
    struct buffer *buffer;
    uint32_t span = 1;
    int result = 0, changed = 0;
    if (*number == 0)
        return 0;
    if (levels > 0) {
        result = ext2_block_used(node->volume, *number);
        if (result == 0)
            return ext2_damaged(node->volume, "a file has a free block");
        if (result == 1)
            result = ext2_read(node->volume, *number, &buffer);
        if (result)
            return result;
        for (int i = 1; i < levels; i++)
            span *= e->pointers;
        uint32_t *numbers = (uint32_t *)buffer->data;
        for (uint32_t i = keep / span; i < e->pointers && result == 0; i++) {
            uint32_t before = numbers[i], first = i * span;
            result = trim_tree(node, &numbers[i], levels - 1, keep > first ? keep - first : 0);
            changed |= numbers[i] != before;
        }
        if (changed && keep)
            cache_changed(buffer, BLOCK_INDIRECT);
        cache_release(buffer);
    }
    if (result == 0 && keep == 0) {
        result = free_counted(node, *number);
        if (result == 0)
            *number = 0;
    }
    return result;
}

/* Frees all blocks of a file but the first ones. */
int ext2_trim(struct node *node, uint32_t blocks)
{
    struct ext2 *e = node->volume->ext2;
    uint32_t first = DIRECT, span = e->pointers;
    int result = 0;
    node->changed = 1;
    for (uint32_t i = blocks; i < DIRECT && result == 0; i++)
        result = trim_tree(node, &node->ext2.block[i], 0, 0);
    for (int levels = 1; levels <= 3 && result == 0; levels++) {
        uint32_t keep = blocks > first ? blocks - first : 0;
        if (levels == 3 || keep < span)
            result = trim_tree(node, &node->ext2.block[DIRECT + levels - 1], levels, keep);
        first += span;
        span *= e->pointers;
    }
    node->ext2.next_block = 0;
    return result;
}
