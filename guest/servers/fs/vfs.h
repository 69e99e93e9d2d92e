/* Files of all kinds of file systems. This part knows no messages, so that it also runs in tests on the host:
   what it needs from outside is declared in outside.h. */

#ifndef VFS_H
#define VFS_H

#include <stddef.h>
#include <stdint.h>
#include <tern/errno.h>
#include <tern/fs.h>

#define NAME_BYTES_MAX 255
#define PATH_BYTES_MAX 1023
#define LINKS_MAX 32000
#define FILE_BYTES_MAX 0x7fffffffu
#define SYMLINKS_MAX 8
#define NODES 640
#define VOLUMES 8

#define IS_DIRECTORY(node) (((node)->mode & S_IFMT) == S_IFDIR)
#define IS_FILE(node) (((node)->mode & S_IFMT) == S_IFREG)
#define IS_SYMLINK(node) (((node)->mode & S_IFMT) == S_IFLNK)

struct volume;
struct memory_file;
struct ext2;
struct pipe;

/* An inode that is in use. */
struct node {
    struct volume *volume;     /* NULL: the entry of the table is free */
    struct node *next;         /* of the same hash */
    uint32_t number, references;
    uint32_t mode, links, size, device, user, group;
    uint32_t accessed, modified, status_changed; /* seconds since 1970 */
    uint32_t sectors;          /* of 512 bytes that it occupies */
    int changed;               /* must be stored */
    struct volume *mounted;    /* the volume that is mounted on this directory */
    struct pipe *pipe;         /* of a FIFO that is open */
    struct memory_file *memory;
    struct {
        uint32_t block[15], flags, attributes;
        uint32_t next_block;   /* where the next allocation begins to look */
    } ext2;
};

/* What a kind of file system can do. Functions return 0 or a negative error. The links of nodes are counted
   by the callers (names.c). */
struct volume_type {
    const char *name;
    int (*load)(struct node *node);               /* fills in the node of this volume and number */
    int (*store)(struct node *node);
    int (*discard)(struct node *node);            /* nobody uses it, and it has no name: frees all it has */
    int (*make)(struct node *directory, uint32_t mode, struct node **made);  /* an inode with 0 links */
    int (*find)(struct node *directory, const char *name, uint32_t length, uint32_t *number);
    int (*enter)(struct node *directory, const char *name, uint32_t length, struct node *node);
    int (*change)(struct node *directory, const char *name, uint32_t length, struct node *node);
    int (*remove)(struct node *directory, const char *name, uint32_t length);
    int (*list)(struct node *directory, uint32_t *position, struct directory_entry *entry);
    int (*read)(struct node *node, uint32_t offset, void *to, uint32_t bytes);   /* these two return bytes */
    int (*write)(struct node *node, uint32_t offset, const void *from, uint32_t bytes);
    int (*truncate)(struct node *node, uint32_t bytes);
    int (*set_link)(struct node *node, const char *contents, uint32_t length);
    int (*get_link)(struct node *node, char *to, uint32_t bytes);                /* returns the length */
    void (*statistics)(struct volume *volume, struct statfs *to);
    int (*sync)(struct volume *volume);
    int (*close)(struct volume *volume);
};

struct volume {
    const struct volume_type *type;  /* NULL: the entry of the table is free */
    uint32_t device;
    int read_only;
    struct node *root, *covered;     /* its root directory, and the directory on which it is mounted */
    struct ext2 *ext2;
};

/* An entry of a directory with room for the longest name. list() returns 1 for an entry, 0 at the end. */
union entry_space {
    struct directory_entry entry;
    uint8_t bytes[sizeof(struct directory_entry) + NAME_BYTES_MAX + 1];
};

/* node.c: the table of nodes. */
int node_get(struct volume *volume, uint32_t number, struct node **node);
int node_new(struct volume *volume, uint32_t number, struct node **node); /* that load does not know yet */
void node_hold(struct node *node);
void node_put(struct node *node);
void node_touch(struct node *node);                /* its contents changed now */
int nodes_store(struct volume *volume);            /* NULL: of all volumes */
uint32_t nodes_used(const struct volume *volume);  /* references to its nodes */
uint8_t entry_type(uint32_t mode);

/* mount.c */
extern struct volume volumes[VOLUMES];
extern const struct volume_type memory_type, ext2_type;
struct volume *volume_free(void);
int volume_attach(struct volume *volume, struct node *directory);
int volume_detach(struct node *root);
int volumes_sync(void);
int ext2_open(struct volume *volume, uint32_t device, uint32_t sectors, int read_only);
int memory_open(struct volume *volume, uint32_t device, uint32_t pages_max);

/* archive.c: makes files of a cpio archive, whose contents stay where they are until they are written. */
int archive_unpack(struct node *root, const uint8_t *archive, uint32_t bytes);
void memory_set_contents(struct node *node, const uint8_t *contents, uint32_t bytes);

/* path.c */
#define WALK_FOLLOW 1      /* a symbolic link at the end */
#define WALK_PARENT 2      /* only to the directory of the last name */

struct last_name {
    char name[NAME_BYTES_MAX + 1];
    uint32_t length;
    int directory;         /* slashes follow it */
};

int path_walk(struct node *root, struct node *start, const char *path, uint32_t length, int how,
              struct node **found, struct last_name *last);
int path_of(struct node *root, struct node *directory, char *to, uint32_t bytes); /* returns the length */

/* names.c: changes of directories. */
int make_node(struct node *directory, const struct last_name *name, uint32_t mode, uint32_t device,
              struct node **made);
int make_directory(struct node *directory, const struct last_name *name, uint32_t mode);
int make_symlink(struct node *directory, const struct last_name *name, const char *contents, uint32_t length);
int make_link(struct node *directory, const struct last_name *name, struct node *node);
int unlink_name(struct node *directory, const struct last_name *name);
int remove_directory(struct node *directory, const struct last_name *name);
int rename_name(struct node *from, const struct last_name *old, struct node *to, const struct last_name *new);
extern uint32_t program_changes;   /* so often something happened after which a file may be another program */
int change_size(struct node *node, uint32_t bytes);
int read_node(struct node *node, uint32_t offset, void *to, uint32_t bytes);
int write_node(struct node *node, uint32_t offset, const void *from, uint32_t bytes);
void stat_node(const struct node *node, struct stat *to);

#endif
