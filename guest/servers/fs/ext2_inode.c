/* ext2: inodes and symbolic links. */

#include <string.h>
#include "ext2.h"
#include "outside.h"

#define SHORT_LINK_BYTES 60u   /* that fit into the numbers of blocks */
#define ATTRIBUTES_MAGIC 0xea020000u

/* Files with contents in blocks; devices and short links have something else there. */
static int has_blocks(const struct node *node)
{
    uint32_t own = node->ext2.attributes ? node->volume->ext2->block_bytes / 512 : 0;
    if (IS_SYMLINK(node))
        return node->sectors > own;
    return IS_FILE(node) || IS_DIRECTORY(node);
}

static uint32_t device_of(const struct ext2_inode *inode)
{
    /* Old numbers, and Linux's newer ones with more bits. */
    if (inode->block[0])
        return inode->block[0] & 0xffff;
    return (inode->block[1] >> 8 & 0xfff) << 8 | (inode->block[1] & 0xff);
}

int ext2_load(struct node *node)
{
    struct ext2 *e = node->volume->ext2;
    struct buffer *buffer;
    struct ext2_inode *inode;
    if (node->number != ROOT_INODE && node->number < e->first_inode)
        return ext2_damaged(node->volume, "a directory has a reserved inode");
    int result = ext2_inode_get(node->volume, node->number, &buffer, &inode);
    if (result)
        return result;
    node->mode = inode->mode;
    node->links = inode->links;
    node->size = inode->size;
    node->user = inode->user | (uint32_t)inode->user_high << 16;
    node->group = inode->group | (uint32_t)inode->group_high << 16;
    node->accessed = inode->accessed;
    node->modified = inode->modified;
    node->status_changed = inode->status_changed;
    node->sectors = inode->sectors;
    memcpy(node->ext2.block, inode->block, sizeof inode->block);
    node->ext2.flags = inode->flags;
    node->ext2.attributes = inode->attributes;
    if ((node->mode & S_IFMT) == S_IFCHR || (node->mode & S_IFMT) == S_IFBLK)
        node->device = device_of(inode);
    int too_large = IS_FILE(node) && (inode->size_high || inode->size > FILE_BYTES_MAX);
    cache_release(buffer);
    if (too_large)
        return -EFBIG;
    if (node->links == 0 || entry_type(node->mode) == 0)
        return ext2_damaged(node->volume, "a directory has an inode that is free");
    if (IS_DIRECTORY(node) && (node->size == 0 || node->size % e->block_bytes ||
                               node->size / e->block_bytes > e->blocks))
        return ext2_damaged(node->volume, "a directory's size is wrong");
    if (IS_SYMLINK(node) &&
        (node->size >= e->block_bytes || (!has_blocks(node) && node->size >= SHORT_LINK_BYTES)))
        return ext2_damaged(node->volume, "a symbolic link's size is wrong");
    return 0;
}

int ext2_store(struct node *node)
{
    struct buffer *buffer;
    struct ext2_inode *inode;
    if (node->volume->read_only) {
        node->changed = 0;
        return -EROFS;
    }
    int result = ext2_inode_get(node->volume, node->number, &buffer, &inode);
    if (result)
        return result;
    inode->mode = node->mode;
    inode->links = node->links;
    inode->size = node->size;
    inode->user = node->user;
    inode->user_high = node->user >> 16;
    inode->group = node->group;
    inode->group_high = node->group >> 16;
    inode->accessed = node->accessed;
    inode->modified = node->modified;
    inode->status_changed = node->status_changed;
    inode->sectors = node->sectors;
    inode->flags = node->ext2.flags;
    inode->attributes = node->ext2.attributes;
    memcpy(inode->block, node->ext2.block, sizeof inode->block);
    if ((node->mode & S_IFMT) == S_IFCHR || (node->mode & S_IFMT) == S_IFBLK)
        inode->block[0] = node->device;
    if (node->links == 0)
        inode->deleted = now();
    cache_changed(buffer, BLOCK_INODES);
    cache_release(buffer);
    node->changed = 0;
    return 0;
}

/* Attributes that Linux gave the file are in a block, which files may share. */
static int free_attributes(struct node *node)
{
    struct buffer *buffer;
    if (node->ext2.attributes == 0)
        return 0;
    int result = ext2_read(node->volume, node->ext2.attributes, &buffer);
    if (result)
        return result;
    uint32_t *header = (uint32_t *)buffer->data;
    int shared = header[1] > 1;
    if (header[0] != ATTRIBUTES_MAGIC)
        result = ext2_damaged(node->volume, "a file's attributes are wrong");
    if (result == 0 && shared) {
        header[1]--;
        cache_changed(buffer, BLOCK_DATA);
    }
    cache_release(buffer);
    if (result == 0 && !shared)
        result = ext2_free_block(node->volume, node->ext2.attributes);
    node->ext2.attributes = 0;
    return result;
}

int ext2_discard(struct node *node)
{
    int result = node->volume->read_only ? -EROFS : 0;
    if (result == 0 && has_blocks(node))
        result = ext2_trim(node, 0);
    if (result == 0)
        result = free_attributes(node);
    if (result)
        return result;
    node->size = 0;
    node->sectors = 0;
    result = ext2_store(node);
    if (result == 0)
        result = ext2_free_inode(node->volume, node->number, IS_DIRECTORY(node));
    return result;
}

int ext2_make(struct node *directory, uint32_t mode, struct node **made)
{
    struct volume *volume = directory->volume;
    struct buffer *buffer;
    struct ext2_inode *inode;
    uint32_t number;
    int is_directory = (mode & S_IFMT) == S_IFDIR;
    int result = ext2_allocate_inode(volume, directory->number, is_directory, &number);
    if (result)
        return result;
    result = ext2_inode_get(volume, number, &buffer, &inode);
    if (result == 0) {
        memset(inode, 0, volume->ext2->inode_bytes);
        /* How many bytes behind the first 128 are in use: e2fsck wants a sane number. */
        if (volume->ext2->inode_bytes > sizeof *inode)
            ((uint16_t *)inode)[sizeof *inode / 2] = volume->ext2->inode_bytes >= 160 ? 32 : 0;
        inode->generation = number ^ now();
        cache_changed(buffer, BLOCK_INODES);
        cache_release(buffer);
        result = node_new(volume, number, made);
        if (result == -EIO)
            return ext2_damaged(volume, "a bitmap has an inode as free that is not");
    }
    if (result) {
        ext2_free_inode(volume, number, is_directory);
        return result;
    }
    (*made)->mode = mode;
    (*made)->accessed = (*made)->modified = (*made)->status_changed = now();
    (*made)->changed = 1;
    return 0;
}

int ext2_set_link(struct node *node, const char *contents, uint32_t length)
{
    if (length >= node->volume->ext2->block_bytes)
        return -ENAMETOOLONG;
    if (length >= SHORT_LINK_BYTES) {
        int written = ext2_file_write(node, 0, contents, length);
        return written == (int)length ? 0 : written < 0 ? written : -ENOSPC;
    }
    memcpy(node->ext2.block, contents, length);
    node->size = length;
    node->changed = 1;
    return 0;
}

int ext2_get_link(struct node *node, char *to, uint32_t bytes)
{
    if (bytes > node->size)
        bytes = node->size;
    if (has_blocks(node))
        return ext2_file_read(node, 0, to, bytes);
    memcpy(to, node->ext2.block, bytes);
    return bytes;
}
