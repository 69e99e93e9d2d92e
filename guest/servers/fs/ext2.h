/* ext2 on disks, as "The Second Extended File System" (Dave Poirier) describes it. All numbers on disk are
   little-endian, as the processor's are. Every number of the disk is checked where it is used: a damaged or
   hostile disk gives EIO, and its volume becomes read-only. */

#ifndef EXT2_H
#define EXT2_H

#include "cache.h"
#include "vfs.h"

struct ext2_super {
    uint32_t inodes, blocks, reserved_blocks, free_blocks, free_inodes, first_data_block;
    uint32_t block_size;       /* 1024 << this */
    uint32_t fragment_size, blocks_per_group, fragments_per_group, inodes_per_group;
    uint32_t mounted_at, written_at;
    uint16_t mounts, mounts_max, magic, state, errors, minor_revision;
    uint32_t checked_at, check_interval, creator, revision;
    uint16_t reserved_user, reserved_group;
    uint32_t first_inode;      /* from here on since revision 1 */
    uint16_t inode_bytes, group;
    uint32_t compatible, incompatible, read_only_compatible;
    uint8_t others[1024 - 104];
};

#define EXT2_MAGIC 0xef53
#define STATE_CLEAN 1
#define STATE_ERRORS 2
#define INCOMPATIBLE_TYPES 2          /* directories say the types of files */
#define READ_ONLY_SPARSE 1            /* not each group has a copy of the super block */
#define READ_ONLY_LARGE 2             /* files may be larger than 2 GiB */

struct ext2_group {
    uint32_t block_bitmap, inode_bitmap, inode_table;
    uint16_t free_blocks, free_inodes, directories, padding;
    uint32_t reserved[3];
};

struct ext2_inode {
    uint16_t mode, user;
    uint32_t size, accessed, status_changed, modified, deleted;
    uint16_t group, links;
    uint32_t sectors, flags, os;
    uint32_t block[15];
    uint32_t generation, attributes, size_high, fragment;
    uint16_t fragment_number, user_high, group_high, reserved;
    uint32_t padding;
};

#define INODE_INDEXED 0x1000          /* a directory with an index, which is lost when it is changed */

struct ext2_entry {
    uint32_t inode;
    uint16_t bytes;
    uint8_t length, type;
    char name[];
};

#define ENTRY_BYTES(length) ((8u + (length) + 3) & ~3u)
#define ROOT_INODE 2
#define DIRECT 12

/* What is known of a volume. */
struct ext2 {
    uint32_t device, block_bytes, blocks, first_data_block, groups, blocks_per_group;
    uint32_t inodes, inodes_per_group, inode_bytes, first_inode;
    uint32_t free_blocks, free_inodes, reserved_blocks;
    uint32_t pointers;                /* in a block */
    int types;                        /* INCOMPATIBLE_TYPES */
    int damaged, writable;            /* found so; mounted so */
    uint16_t state;                   /* before it was mounted */
};

/* ext2_volume.c */
int ext2_damaged(struct volume *volume, const char *what); /* returns EIO, negated */
int ext2_block_valid(const struct ext2 *e, uint32_t block);
int ext2_group_get(struct volume *volume, uint32_t number, struct buffer **buffer, struct ext2_group **group);
int ext2_inode_get(struct volume *volume, uint32_t number, struct buffer **buffer, struct ext2_inode **inode);
int ext2_read(struct volume *volume, uint32_t block, struct buffer **buffer); /* a block of the valid ones */

/* ext2_allocate.c */
int ext2_allocate_block(struct volume *volume, uint32_t goal, uint32_t *block);
int ext2_free_block(struct volume *volume, uint32_t block);
int ext2_block_used(struct volume *volume, uint32_t block); /* 1, 0 or an error */
int ext2_allocate_inode(struct volume *volume, uint32_t near, int directory, uint32_t *number);
int ext2_free_inode(struct volume *volume, uint32_t number, int directory);

/* ext2_map.c: *block is 0 for a hole. */
int ext2_map(struct node *node, uint32_t index, uint32_t *block);
int ext2_map_allocate(struct node *node, uint32_t index, enum block_kind kind, struct buffer **buffer);
int ext2_trim(struct node *node, uint32_t blocks);

/* ext2_inode.c */
int ext2_load(struct node *node);
int ext2_store(struct node *node);
int ext2_discard(struct node *node);
int ext2_make(struct node *directory, uint32_t mode, struct node **made);
int ext2_set_link(struct node *node, const char *contents, uint32_t length);
int ext2_get_link(struct node *node, char *to, uint32_t bytes);

/* ext2_file.c */
int ext2_file_read(struct node *node, uint32_t offset, void *to, uint32_t bytes);
int ext2_file_write(struct node *node, uint32_t offset, const void *from, uint32_t bytes);
int ext2_truncate(struct node *node, uint32_t bytes);

/* ext2_directory.c */
int ext2_find(struct node *directory, const char *name, uint32_t length, uint32_t *number);
int ext2_enter(struct node *directory, const char *name, uint32_t length, struct node *node);
int ext2_change(struct node *directory, const char *name, uint32_t length, struct node *node);
int ext2_remove(struct node *directory, const char *name, uint32_t length);
int ext2_list(struct node *directory, uint32_t *position, struct directory_entry *entry);

#endif
