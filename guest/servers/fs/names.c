/* Changes of directories, and what is common to all kinds of files. */

#include <string.h>
#include "outside.h"
#include "vfs.h"

static int is_dots(const struct last_name *name)
{
    return (name->length == 1 && name->name[0] == '.') ||
           (name->length == 2 && name->name[0] == '.' && name->name[1] == '.');
}

static int find(struct node *directory, const struct last_name *name, struct node **node)
{
    uint32_t number;
    int result = directory->volume->type->find(directory, name->name, name->length, &number);
    return result ? result : node_get(directory->volume, number, node);
}

static int enter(struct node *directory, const struct last_name *name, struct node *node)
{
    return directory->volume->type->enter(directory, name->name, name->length, node);
}

/* Whether a new name can be made. */
static int check_new(struct node *directory, const struct last_name *name)
{
    uint32_t number;
    if (is_dots(name))
        return -EEXIST;
    /* Nothing can be in a directory that was removed. */
    if (directory->links == 0)
        return -ENOENT;
    int result = directory->volume->type->find(directory, name->name, name->length, &number);
    if (result == 0)
        return -EEXIST;
    if (result != -ENOENT)
        return result;
    return directory->volume->read_only ? -EROFS : 0;
}

static void set_links(struct node *node, uint32_t links)
{
    node->links = links;
    node->status_changed = now();
    node->changed = 1;
}

/* A new node is stored before a name leads to it. */
static int name_new(struct node *directory, const struct last_name *name, struct node *node, uint32_t links)
{
    set_links(node, links);
    int result = node->volume->type->store(node);
    if (result == 0)
        result = enter(directory, name, node);
    if (result)
        set_links(node, 0);
    return result;
}

int make_node(struct node *directory, const struct last_name *name, uint32_t mode, uint32_t device,
              struct node **made)
{
    int result = check_new(directory, name);
    if (result)
        return result;
    if (name->directory)
        return -ENOENT;
    result = directory->volume->type->make(directory, mode, made);
    if (result)
        return result;
    (*made)->device = device;
    result = name_new(directory, name, *made, 1);
    if (result)
        node_put(*made);
    return result;
}

int make_directory(struct node *directory, const struct last_name *name, uint32_t mode)
{
    struct node *node;
    const struct volume_type *type = directory->volume->type;
    int result = check_new(directory, name);
    if (result)
        return result;
    if (directory->links >= LINKS_MAX)
        return -EMLINK;
    result = type->make(directory, S_IFDIR | (mode & 07777), &node);
    if (result)
        return result;
    result = type->enter(node, ".", 1, node);
    if (result == 0)
        result = type->enter(node, "..", 2, directory);
    if (result == 0)
        result = name_new(directory, name, node, 2);
    if (result == 0)
        set_links(directory, directory->links + 1);
    node_put(node);
    return result;
}

int make_symlink(struct node *directory, const struct last_name *name, const char *contents, uint32_t length)
{
    struct node *node;
    int result = check_new(directory, name);
    if (result)
        return result;
    if (length == 0)
        return -ENOENT;
    if (length > PATH_BYTES_MAX)
        return -ENAMETOOLONG;
    result = directory->volume->type->make(directory, S_IFLNK | 0777, &node);
    if (result)
        return result;
    result = directory->volume->type->set_link(node, contents, length);
    if (result == 0)
        result = name_new(directory, name, node, 1);
    node_put(node);
    return result;
}

int make_link(struct node *directory, const struct last_name *name, struct node *node)
{
    if (IS_DIRECTORY(node))
        return -EPERM;
    if (node->volume != directory->volume)
        return -EXDEV;
    if (node->links >= LINKS_MAX)
        return -EMLINK;
    int result = check_new(directory, name);
    if (result)
        return result;
    /* A file without names is about to be freed. */
    if (node->links == 0)
        return -ENOENT;
    set_links(node, node->links + 1);
    result = enter(directory, name, node);
    if (result)
        set_links(node, node->links - 1);
    return result;
}

/* A name is removed before the node loses the link. */
static int remove_name(struct node *directory, const struct last_name *name, struct node *node,
                       uint32_t links)
{
    int result = directory->volume->type->remove(directory, name->name, name->length);
    if (result == 0)
        set_links(node, links);
    return result;
}

int unlink_name(struct node *directory, const struct last_name *name)
{
    struct node *node;
    if (is_dots(name))
        return -EISDIR;
    int result = find(directory, name, &node);
    if (result)
        return result;
    if (IS_DIRECTORY(node))
        result = -EISDIR;
    else if (name->directory)
        result = -ENOTDIR;
    else if (directory->volume->read_only)
        result = -EROFS;
    else
        result = remove_name(directory, name, node, node->links - 1);
    node_put(node);
    return result;
}

static int is_empty(struct node *directory)
{
    static union entry_space space;
    uint32_t position = 0;
    int result;
    while ((result = directory->volume->type->list(directory, &position, &space.entry)) == 1) {
        const struct directory_entry *entry = &space.entry;
        if (entry->name[0] != '.' || entry->length > 2 || (entry->length == 2 && entry->name[1] != '.'))
            return -ENOTEMPTY;
    }
    return result;
}

/* Whether this can be removed or replaced as a directory. */
static int check_removable(struct node *node)
{
    if (!IS_DIRECTORY(node))
        return -ENOTDIR;
    if (node->mounted || node == node->volume->root)
        return -EBUSY;
    return is_empty(node);
}

int remove_directory(struct node *directory, const struct last_name *name)
{
    struct node *node;
    if (is_dots(name))
        return name->length == 1 ? -EINVAL : -ENOTEMPTY;
    int result = find(directory, name, &node);
    if (result)
        return result;
    result = check_removable(node);
    if (result == 0 && directory->volume->read_only)
        result = -EROFS;
    if (result == 0)
        result = remove_name(directory, name, node, 0);
    if (result == 0 && directory->links > 2)
        set_links(directory, directory->links - 1);
    node_put(node);
    return result;
}

/* Whether `directory` is `node` or below it. A damaged disk may have a circle of directories. */
static int check_outside(struct node *node, struct node *directory)
{
    int result = 0;
    node_hold(directory);
    for (int depth = 0; depth < 1024; depth++) {
        uint32_t number;
        struct node *above;
        if (directory == node)
            result = -EINVAL;
        if (result || directory == directory->volume->root)
            break;
        result = directory->volume->type->find(directory, "..", 2, &number);
        if (result == 0)
            result = node_get(directory->volume, number, &above);
        if (result)
            break;
        node_put(directory);
        directory = above;
        if (depth == 1023)
            result = -ELOOP;
    }
    node_put(directory);
    return result;
}

static int check_target(struct node *node, struct node *target)
{
    if (!IS_DIRECTORY(node))
        return IS_DIRECTORY(target) ? -EISDIR : 0;
    return check_removable(target);
}

static int move(struct node *from, const struct last_name *old, struct node *to, const struct last_name *new,
                struct node *node, struct node *target)
{
    const struct volume_type *type = from->volume->type;
    int is_directory = IS_DIRECTORY(node), result;
    if (is_directory && from != to && !target && to->links >= LINKS_MAX)
        return -EMLINK;
    result = target ? type->change(to, new->name, new->length, node) : enter(to, new, node);
    if (result)
        return result;
    if (target)
        set_links(target, is_directory ? 0 : target->links - 1);
    if (is_directory && target && to->links > 2)
        set_links(to, to->links - 1);
    result = type->remove(from, old->name, old->length);
    if (result == 0 && is_directory && from != to) {
        result = type->change(node, "..", 2, to);
        set_links(to, to->links + 1);
        if (from->links > 2)
            set_links(from, from->links - 1);
    }
    node->status_changed = now();
    node->changed = 1;
    return result;
}

int rename_name(struct node *from, const struct last_name *old, struct node *to, const struct last_name *new)
{
    struct node *node, *target = NULL;
    if (is_dots(old) || is_dots(new))
        return -EBUSY;
    if (from->volume != to->volume)
        return -EXDEV;
    if (from->volume->read_only)
        return -EROFS;
    if (to->links == 0)
        return -ENOENT;
    int result = find(from, old, &node);
    if (result)
        return result;
    if (IS_DIRECTORY(node))
        result = node->mounted ? -EBUSY : check_outside(node, to);
    else if (old->directory || new->directory)
        result = -ENOTDIR;
    if (result == 0) {
        result = find(to, new, &target);
        if (result == -ENOENT)
            result = 0;
    }
    /* Two names of one file: nothing is to be done. */
    if (result == 0 && target != node) {
        if (target)
            result = check_target(node, target);
        if (result == 0)
            result = move(from, old, to, new, node, target);
    }
    if (target)
        node_put(target);
    node_put(node);
    return result;
}

uint32_t program_changes;

static void note_change(const struct node *node)
{
    if (node->mode & 0111)
        program_changes++;
}

int change_size(struct node *node, uint32_t bytes)
{
    if (IS_DIRECTORY(node))
        return -EISDIR;
    if (!IS_FILE(node))
        return -EINVAL;
    if (node->volume->read_only)
        return -EROFS;
    if (bytes > FILE_BYTES_MAX)
        return -EFBIG;
    note_change(node);
    return node->volume->type->truncate(node, bytes);
}

int read_node(struct node *node, uint32_t offset, void *to, uint32_t bytes)
{
    if (offset >= node->size)
        return 0;
    if (bytes > node->size - offset)
        bytes = node->size - offset;
    return bytes ? node->volume->type->read(node, offset, to, bytes) : 0;
}

int write_node(struct node *node, uint32_t offset, const void *from, uint32_t bytes)
{
    if (node->volume->read_only)
        return -EROFS;
    if (bytes == 0)
        return 0;
    if (offset >= FILE_BYTES_MAX)
        return -EFBIG;
    if (bytes > FILE_BYTES_MAX - offset)
        bytes = FILE_BYTES_MAX - offset;
    note_change(node);
    return node->volume->type->write(node, offset, from, bytes);
}

void stat_node(const struct node *node, struct stat *to)
{
    to->st_dev = node->volume->device;
    to->st_ino = node->number;
    to->st_mode = node->mode;
    to->st_nlink = node->links;
    to->st_uid = node->user;
    to->st_gid = node->group;
    to->st_rdev = node->device;
    to->st_size = node->size;
    to->st_blksize = PAGE;
    to->st_blocks = node->sectors;
    to->st_atime = node->accessed;
    to->st_mtime = node->modified;
    to->st_ctime = node->status_changed;
}
