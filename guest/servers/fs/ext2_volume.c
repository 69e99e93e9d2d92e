/* ext2: the super block and the descriptors of groups. */

#include <string.h>
#include "ext2.h"
#include "outside.h"

int ext2_damaged(struct volume *volume, const char *what)
{
    if (!volume->ext2->damaged)
        report(what, volume->device);
    volume->ext2->damaged = 1;
    volume->read_only = 1;
    return -EIO;
}

int ext2_block_valid(const struct ext2 *e, uint32_t block)
{
    return block > e->first_data_block && block < e->blocks;
}

int ext2_read(struct volume *volume, uint32_t block, struct buffer **buffer)
{
    struct ext2 *e = volume->ext2;
    if (!ext2_block_valid(e, block))
        return ext2_damaged(volume, "a block's number is wrong");
    return cache_read(e->device, block, e->block_bytes, buffer);
}

int ext2_group_get(struct volume *volume, uint32_t number, struct buffer **buffer, struct ext2_group **group)
{
    struct ext2 *e = volume->ext2;
    uint32_t in_block = e->block_bytes / sizeof **group;
    int result = ext2_read(volume, e->first_data_block + 1 + number / in_block, buffer);
    if (result)
        return result;
    struct ext2_group *g = (struct ext2_group *)(*buffer)->data + number % in_block;
    uint32_t table_blocks = (e->inodes_per_group * e->inode_bytes + e->block_bytes - 1) / e->block_bytes;
    if (!ext2_block_valid(e, g->block_bitmap) || !ext2_block_valid(e, g->inode_bitmap) ||
        !ext2_block_valid(e, g->inode_table) || table_blocks > e->blocks - g->inode_table) {
        cache_release(*buffer);
        return ext2_damaged(volume, "a group's description is wrong");
    }
    *group = g;
    return 0;
}

int ext2_inode_get(struct volume *volume, uint32_t number, struct buffer **buffer, struct ext2_inode **inode)
{
    struct ext2 *e = volume->ext2;
    struct ext2_group *group;
    if (number == 0 || number > e->inodes)
        return ext2_damaged(volume, "an inode's number is wrong");
    uint32_t index = (number - 1) % e->inodes_per_group;
    int result = ext2_group_get(volume, (number - 1) / e->inodes_per_group, buffer, &group);
    if (result)
        return result;
    uint32_t offset = index * e->inode_bytes;
    uint32_t block = group->inode_table + offset / e->block_bytes;
    cache_release(*buffer);
    result = ext2_read(volume, block, buffer);
    if (result == 0)
        *inode = (struct ext2_inode *)((*buffer)->data + offset % e->block_bytes);
    return result;
}

/* The super block is at byte 1024, whatever the size of blocks. */
static int super_get(struct ext2 *e, struct buffer **buffer, struct ext2_super **super)
{
    int result = cache_read(e->device, e->block_bytes == 1024, e->block_bytes, buffer);
    if (result == 0)
        *super = (struct ext2_super *)((*buffer)->data + (e->block_bytes == 1024 ? 0 : 1024));
    return result;
}

static int super_store(struct volume *volume, uint16_t state)
{
    struct ext2 *e = volume->ext2;
    struct buffer *buffer;
    struct ext2_super *super;
    int result = super_get(e, &buffer, &super);
    if (result)
        return result;
    super->free_blocks = e->free_blocks;
    super->free_inodes = e->free_inodes;
    super->state = e->damaged ? (state & ~STATE_CLEAN) | STATE_ERRORS : state;
    super->written_at = now();
    cache_changed(buffer, BLOCK_SUPER);
    cache_release(buffer);
    return 0;
}

static int ext2_sync(struct volume *volume)
{
    int result = 0;
    if (volume->ext2->writable)
        result = super_store(volume, volume->ext2->state & ~STATE_CLEAN);
    if (result == 0)
        result = cache_flush(volume->device);
    return result ? result : device_flush(volume->device);
}

static int ext2_close(struct volume *volume)
{
    int result = 0;
    if (volume->ext2->writable)
        result = super_store(volume, volume->ext2->state);
    if (result == 0)
        result = cache_flush(volume->device);
    if (result == 0)
        result = device_flush(volume->device);
    if (result)
        return result;
    cache_forget(volume->device);
    release(volume->ext2, sizeof *volume->ext2);
    return 0;
}

static void ext2_statistics(struct volume *volume, struct statfs *to)
{
    struct ext2 *e = volume->ext2;
    to->block_bytes = e->block_bytes;
    to->blocks = e->blocks;
    to->free_blocks = e->free_blocks;
    to->inodes = e->inodes;
    to->free_inodes = e->free_inodes;
}

const struct volume_type ext2_type = {
    "ext2", ext2_load, ext2_store, ext2_discard, ext2_make, ext2_find, ext2_enter, ext2_change, ext2_remove,
    ext2_list, ext2_file_read, ext2_file_write, ext2_truncate, ext2_set_link, ext2_get_link, ext2_statistics,
    ext2_sync, ext2_close,
};

/* Takes over what the super block says, if it can be true. */
static int geometry(struct ext2 *e, const struct ext2_super *s, uint32_t sectors)
{
    if (s->magic != EXT2_MAGIC || s->block_size > 2 || s->revision > 1)
        return -EINVAL;
    e->block_bytes = 1024u << s->block_size;
    e->pointers = e->block_bytes / 4;
    e->blocks = s->blocks;
    e->first_data_block = s->first_data_block;
    e->blocks_per_group = s->blocks_per_group;
    e->inodes = s->inodes;
    e->inodes_per_group = s->inodes_per_group;
    e->inode_bytes = s->revision ? s->inode_bytes : 128;
    e->first_inode = s->revision ? s->first_inode : 11;
    e->free_blocks = s->free_blocks;
    e->free_inodes = s->free_inodes;
    e->reserved_blocks = s->reserved_blocks;
    e->state = s->state;
    e->types = s->revision && s->incompatible & INCOMPATIBLE_TYPES;
    if (e->first_data_block != (e->block_bytes == 1024) || e->blocks < 8 ||
        e->blocks > sectors / (e->block_bytes / 512))
        return -EINVAL;
    if (e->blocks_per_group < 8 || e->blocks_per_group > e->block_bytes * 8 || e->inodes_per_group < 1 ||
        e->inodes_per_group > e->block_bytes * 8)
        return -EINVAL;
    if (e->inode_bytes < 128 || e->inode_bytes > e->block_bytes || e->inode_bytes & (e->inode_bytes - 1))
        return -EINVAL;
    e->groups = (e->blocks - e->first_data_block - 1) / e->blocks_per_group + 1;
    if (e->inodes / e->inodes_per_group != e->groups || e->inodes % e->inodes_per_group ||
        e->first_inode < 11 || e->first_inode > e->inodes)
        return -EINVAL;
    if (e->free_blocks > e->blocks || e->free_inodes > e->inodes)
        return -EINVAL;
    /* Features that change what is on the disk in ways that are unknown here. */
    return s->revision && s->incompatible & ~INCOMPATIBLE_TYPES ? -EINVAL : 0;
}

static int mark_mounted(struct volume *volume)
{
    struct buffer *buffer;
    struct ext2_super *super;
    int result = super_get(volume->ext2, &buffer, &super);
    if (result)
        return result;
    volume->ext2->writable = 1;
    super->mounts++;
    super->mounted_at = now();
    super->state = volume->ext2->state & ~STATE_CLEAN;
    cache_changed(buffer, BLOCK_SUPER);
    cache_release(buffer);
    return cache_flush(volume->device);
}

static int start(struct volume *volume, uint32_t sectors, const struct ext2_super *super)
{
    int result = geometry(volume->ext2, super, sectors);
    if (result)
        return result;
    if (super->revision && super->read_only_compatible & ~(READ_ONLY_SPARSE | READ_ONLY_LARGE))
        volume->read_only = 1;
    result = node_get(volume, ROOT_INODE, &volume->root);
    if (result)
        return result;
    if (!IS_DIRECTORY(volume->root))
        result = ext2_damaged(volume, "the root is no directory");
    if (result == 0 && !volume->read_only)
        result = mark_mounted(volume);
    if (result)
        node_put(volume->root);
    return result;
}

int ext2_open(struct volume *volume, uint32_t device, uint32_t sectors, int read_only)
{
    struct ext2_super *super = allocate(sizeof *super);
    struct ext2 *e = allocate(sizeof *e);
    int result = super && e ? 0 : -ENOMEM;
    if (result == 0)
        result = sectors < 16 ? -EINVAL : device_read(device, 2, super, sizeof *super);
    if (result == 0) {
        *volume = (struct volume){.type = &ext2_type, .device = device, .read_only = read_only, .ext2 = e};
        e->device = device;
        result = start(volume, sectors, super);
        if (result) {
            cache_forget(device);
            memset(volume, 0, sizeof *volume);
        }
    }
    if (super)
        release(super, sizeof *super);
    if (result && e)
        release(e, sizeof *e);
    return result;
}
