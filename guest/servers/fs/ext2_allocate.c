/* ext2: blocks and inodes that are free, and those that are not. */

#include <string.h>
#include "ext2.h"
#include "outside.h"

static int bit_get(const uint8_t *bits, uint32_t at)
{
    return bits[at / 8] >> at % 8 & 1;
}

/* The first bit that is 0, from `at` on, or `count`. */
static uint32_t bit_find(const uint8_t *bits, uint32_t at, uint32_t count)
{
    while (at < count && bit_get(bits, at))
        at = at % 8 == 0 && bits[at / 8] == 0xff ? at + 8 : at + 1;
    return at < count ? at : count;
}

static uint32_t group_blocks(const struct ext2 *e, uint32_t group)
{
    uint32_t before = e->first_data_block + group * e->blocks_per_group;
    uint32_t left = e->blocks - before;
    return left < e->blocks_per_group ? left : e->blocks_per_group;
}

/* Takes a free bit of a bitmap, from `from` on if there is one; ENOSPC if there is none. */
static int take_bit(struct volume *volume, uint32_t bitmap, uint32_t from, uint32_t lowest, uint32_t count,
                    uint32_t *bit)
{
    struct buffer *buffer;
    int result = ext2_read(volume, bitmap, &buffer);
    if (result)
        return result;
    uint32_t at = bit_find(buffer->data, from < lowest ? lowest : from, count);
    if (at == count)
        at = bit_find(buffer->data, lowest, count);
    if (at < count) {
        buffer->data[at / 8] |= 1 << at % 8;
        cache_changed(buffer, BLOCK_BITMAP);
        *bit = at;
    } else {
        result = -ENOSPC;
    }
    cache_release(buffer);
    return result;
}

/* Gives a bit back that must be taken. */
static int give_bit(struct volume *volume, uint32_t bitmap, uint32_t bit)
{
    struct buffer *buffer;
    int result = ext2_read(volume, bitmap, &buffer);
    if (result)
        return result;
    if (bit_get(buffer->data, bit)) {
        buffer->data[bit / 8] &= ~(1 << bit % 8);
        cache_changed(buffer, BLOCK_BITMAP);
    } else {
        result = ext2_damaged(volume, "something free is freed");
    }
    cache_release(buffer);
    return result;
}

/* Blocks of a group that hold its own description. They are never given away, whatever the bitmap says. */
static int is_own_block(const struct ext2 *e, const struct ext2_group *g, uint32_t block)
{
    uint32_t table_blocks = (e->inodes_per_group * e->inode_bytes + e->block_bytes - 1) / e->block_bytes;
    return block == g->block_bitmap || block == g->inode_bitmap ||
           (block >= g->inode_table && block - g->inode_table < table_blocks);
}

int ext2_allocate_block(struct volume *volume, uint32_t goal, uint32_t *block)
{
    struct ext2 *e = volume->ext2;
    if (volume->read_only)
        return -EROFS;
    if (e->free_blocks == 0)
        return -ENOSPC;
    if (!ext2_block_valid(e, goal))
        goal = e->first_data_block + 1;
    uint32_t first = (goal - e->first_data_block) / e->blocks_per_group;
    for (uint32_t i = 0; i < e->groups; i++) {
        uint32_t number = (first + i) % e->groups, bit;
        uint32_t from = i == 0 ? (goal - e->first_data_block) % e->blocks_per_group : 0;
        struct buffer *buffer;
        struct ext2_group *group;
        int result = ext2_group_get(volume, number, &buffer, &group);
        if (result)
            return result;
        result = -ENOSPC;
        if (group->free_blocks)
            result = take_bit(volume, group->block_bitmap, from, 0, group_blocks(e, number), &bit);
        if (result == 0) {
            *block = e->first_data_block + number * e->blocks_per_group + bit;
            if (!ext2_block_valid(e, *block) || is_own_block(e, group, *block)) {
                result = ext2_damaged(volume, "a bitmap has a block as free that is not");
            } else {
                group->free_blocks--;
                e->free_blocks--;
                cache_changed(buffer, BLOCK_BITMAP);
            }
        }
        cache_release(buffer);
        if (result != -ENOSPC)
            return result;
    }
    return -ENOSPC;
}

/* Gets the group of a block, to be released by its buffer, and the block's bit in the group's bitmap. */
static int group_of_block(struct volume *volume, uint32_t block, struct buffer **buffer,
                          struct ext2_group **group, uint32_t *bit)
{
    struct ext2 *e = volume->ext2;
    if (!ext2_block_valid(e, block))
        return ext2_damaged(volume, "a block's number is wrong");
    uint32_t index = block - e->first_data_block;
    *bit = index % e->blocks_per_group;
    return ext2_group_get(volume, index / e->blocks_per_group, buffer, group);
}

int ext2_free_block(struct volume *volume, uint32_t block)
{
    struct ext2 *e = volume->ext2;
    struct buffer *buffer;
    struct ext2_group *group;
    uint32_t bit;
    int result = group_of_block(volume, block, &buffer, &group, &bit);
    if (result)
        return result;
    if (is_own_block(e, group, block))
        result = ext2_damaged(volume, "a file has a block of its group's description");
    if (result == 0)
        result = give_bit(volume, group->block_bitmap, bit);
    if (result == 0) {
        group->free_blocks++;
        e->free_blocks++;
        cache_changed(buffer, BLOCK_BITMAP);
    }
    cache_release(buffer);
    return result;
}

int ext2_block_used(struct volume *volume, uint32_t block)
{
    struct buffer *buffer;
    struct ext2_group *group;
    uint32_t bit;
    int result = group_of_block(volume, block, &buffer, &group, &bit);
    if (result)
        return result;
    uint32_t bitmap = group->block_bitmap;
    cache_release(buffer);
    result = ext2_read(volume, bitmap, &buffer);
    if (result)
        return result;
    result = bit_get(buffer->data, bit);
    cache_release(buffer);
    return result;
}

/* A directory goes where there is most room, so that its files can be near it. */
static uint32_t group_for_directory(struct volume *volume, uint32_t otherwise)
{
    uint32_t best = otherwise, most = 0;
    for (uint32_t number = 0; number < volume->ext2->groups; number++) {
        struct buffer *buffer;
        struct ext2_group *group;
        if (ext2_group_get(volume, number, &buffer, &group))
            break;
        if (group->free_inodes && group->free_blocks > most) {
            most = group->free_blocks;
            best = number;
        }
        cache_release(buffer);
    }
    return best;
}

int ext2_allocate_inode(struct volume *volume, uint32_t near, int directory, uint32_t *inode)
{
    struct ext2 *e = volume->ext2;
    if (volume->read_only)
        return -EROFS;
    uint32_t first = (near - 1) / e->inodes_per_group;
    if (directory)
        first = group_for_directory(volume, first);
    for (uint32_t i = 0; i < e->groups; i++) {
        uint32_t number = (first + i) % e->groups, bit;
        uint32_t before = number * e->inodes_per_group;
        /* The first inodes are reserved. */
        uint32_t lowest = before < e->first_inode - 1 ? e->first_inode - 1 - before : 0;
        struct buffer *buffer;
        struct ext2_group *group;
        int result = ext2_group_get(volume, number, &buffer, &group);
        if (result)
            return result;
        result = -ENOSPC;
        if (group->free_inodes && lowest < e->inodes_per_group)
            result = take_bit(volume, group->inode_bitmap, 0, lowest, e->inodes_per_group, &bit);
        if (result == 0) {
            *inode = before + bit + 1;
            group->free_inodes--;
            if (e->free_inodes)
                e->free_inodes--;
            if (directory)
                group->directories++;
            cache_changed(buffer, BLOCK_BITMAP);
        }
        cache_release(buffer);
        if (result != -ENOSPC)
            return result;
    }
    return -ENOSPC;
}

int ext2_free_inode(struct volume *volume, uint32_t inode, int directory)
{
    struct ext2 *e = volume->ext2;
    struct buffer *buffer;
    struct ext2_group *group;
    if (inode < e->first_inode || inode > e->inodes)
        return ext2_damaged(volume, "a reserved inode is freed");
    int result = ext2_group_get(volume, (inode - 1) / e->inodes_per_group, &buffer, &group);
    if (result)
        return result;
    result = give_bit(volume, group->inode_bitmap, (inode - 1) % e->inodes_per_group);
    if (result == 0) {
        group->free_inodes++;
        e->free_inodes++;
        if (directory && group->directories)
            group->directories--;
        cache_changed(buffer, BLOCK_BITMAP);
    }
    cache_release(buffer);
    return result;
}
