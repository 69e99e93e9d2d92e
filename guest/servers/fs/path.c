/* Paths: from a name to a node, and back. */

#include <string.h>
#include "outside.h"
#include "vfs.h"

/* Gives the reference to `directory` back and takes one to what is called `name` in it, whatever is mounted
   there. */
static int step(struct node *root, struct node **directory, const char *name, uint32_t length)
{
    struct node *from = *directory, *to;
    uint32_t number;
    if (!IS_DIRECTORY(from))
        return -ENOTDIR;
    if (length == 1 && name[0] == '.')
        return 0;
    if (length == 2 && name[0] == '.' && name[1] == '.') {
        if (from == root)
            return 0;
        if (from == from->volume->root && from->volume->covered) {
            from = from->volume->covered;
            node_hold(from);
            node_put(*directory);
            *directory = from;
        }
    }
    int result = from->volume->type->find(from, name, length, &number);
    if (result == 0)
        result = node_get(from->volume, number, &to);
    if (result)
        return result;
    if (to->mounted) {
        struct node *covered = to;
        to = to->mounted->root;
        node_hold(to);
        node_put(covered);
    }
    node_put(from);
    *directory = to;
    return 0;
}

/* Puts the contents of a link before the rest of the path. */
static int expand(struct node *link, char *text, uint32_t rest, uint32_t *length)
{
    static char contents[PATH_BYTES_MAX + 1];
    int bytes = link->volume->type->get_link(link, contents, PATH_BYTES_MAX + 1);
    if (bytes < 0)
        return bytes;
    if (bytes == 0)
        return -ENOENT;
    uint32_t tail = *length - rest;
    if ((uint32_t)bytes + tail > PATH_BYTES_MAX)
        return -ENAMETOOLONG;
    memmove(text + bytes, text + rest, tail);
    memcpy(text, contents, bytes);
    *length = bytes + tail;
    return 0;
}

static int walk(struct node *root, char *text, uint32_t length, int how, struct node **node,
                struct last_name *last)
{
    uint32_t at = 0, links = 0;
    for (;;) {
        while (at < length && text[at] == '/')
            at++;
        if (at == length)
            return how & WALK_PARENT ? -EEXIST : 0;
        uint32_t start = at;
        while (at < length && text[at] != '/')
            at++;
        uint32_t end = at, rest = at;
        while (rest < length && text[rest] == '/')
            rest++;
        if (end - start > NAME_BYTES_MAX)
            return -ENAMETOOLONG;
        if (rest == length && how & WALK_PARENT) {
            if (!IS_DIRECTORY(*node))
                return -ENOTDIR;
            memcpy(last->name, text + start, end - start);
            last->name[end - start] = 0;
            last->length = end - start;
            last->directory = rest != end;
            return 0;
        }
        struct node *parent = *node;
        node_hold(parent);
        int result = step(root, node, text + start, end - start);
        /* A link at the end is followed if it must be a directory. */
        if (result == 0 && IS_SYMLINK(*node) && (end != length || how & WALK_FOLLOW)) {
            result = ++links > SYMLINKS_MAX ? -ELOOP : expand(*node, text, end, &length);
            node_put(*node);
            *node = parent;
            at = 0;
            if (result == 0 && text[0] == '/') {
                node_hold(root);
                node_put(*node);
                *node = root;
            }
        } else {
            node_put(parent);
        }
        if (result)
            return result;
        if (rest == length && end != length && at != 0 && !IS_DIRECTORY(*node))
            return -ENOTDIR;
    }
}

int path_walk(struct node *root, struct node *start, const char *path, uint32_t length, int how,
              struct node **found, struct last_name *last)
{
    static char text[PATH_BYTES_MAX + 1];
    if (length == 0)
        return -ENOENT;
    if (length > PATH_BYTES_MAX)
        return -ENAMETOOLONG;
    if (memchr(path, 0, length))
        return -EINVAL;
    memcpy(text, path, length);
    struct node *node = text[0] == '/' ? root : start;
    node_hold(node);
    int result = walk(root, text, length, how, &node, last);
    if (result)
        node_put(node);
    else
        *found = node;
    return result;
}

/* The name of a node in a directory. */
static int name_of(struct node *directory, const struct node *node, union entry_space *space)
{
    uint32_t position = 0;
    int result;
    while ((result = directory->volume->type->list(directory, &position, &space->entry)) == 1) {
        const struct directory_entry *entry = &space->entry;
        int dots = (entry->length == 1 && entry->name[0] == '.') ||
                   (entry->length == 2 && entry->name[0] == '.' && entry->name[1] == '.');
        if (entry->inode == node->number && !dots)
            return 0;
    }
    return result ? result : -ENOENT;
}

int path_of(struct node *root, struct node *directory, char *to, uint32_t bytes)
{
    static char text[PATH_BYTES_MAX + 1];
    static union entry_space space;
    uint32_t at = PATH_BYTES_MAX;
    int result = 0;
    struct node *node = directory;
    node_hold(node);
    while (node != root && result == 0) {
        struct node *below = node;
        if (node == node->volume->root && node->volume->covered)
            below = node->volume->covered;
        node_hold(below);
        result = step(root, &node, "..", 2);
        if (result == 0)
            result = node == below ? -ENOENT : name_of(node, below, &space);
        node_put(below);
        if (result == 0 && space.entry.length + 1u > at)
            result = -ERANGE;
        if (result == 0) {
            at -= space.entry.length;
            memcpy(text + at, space.entry.name, space.entry.length);
            text[--at] = '/';
        }
    }
    node_put(node);
    if (result)
        return result;
    if (at == PATH_BYTES_MAX)
        text[--at] = '/';
    if (PATH_BYTES_MAX - at > bytes)
        return -ERANGE;
    memcpy(to, text + at, PATH_BYTES_MAX - at);
    return PATH_BYTES_MAX - at;
}
