/* Requests with names of files. */

#include <string.h>
#include "cache.h"
#include "outside.h"
#include "server.h"

struct node *root;

static int copy_name(struct client *client, uint32_t address, uint32_t length, char *to)
{
    if (length > PATH_BYTES_MAX)
        return -ENAMETOOLONG;
    return length && sys_copy(client->endpoint, address, SELF, (uint32_t)to, length) ? -EFAULT : 0;
}

int walk(struct client *client, uint32_t address, uint32_t length, int how, struct node **node,
         struct last_name *last)
{
    static char path[PATH_BYTES_MAX + 1];
    int result = copy_name(client, address, length, path);
    return result ? result : path_walk(root, client->directory, path, length, how, node, last);
}

static int link_to(struct client *client, struct message *m)
{
    struct node *node, *directory;
    struct last_name last;
    int result = walk(client, m->w[0], m->w[1], 0, &node, NULL);
    if (result)
        return result;
    result = walk(client, m->w[2], m->w[3], WALK_PARENT, &directory, &last);
    if (result == 0) {
        result = make_link(directory, &last, node);
        node_put(directory);
    }
    node_put(node);
    return result;
}

static int symlink_to(struct client *client, struct message *m)
{
    static char contents[PATH_BYTES_MAX + 1];
    struct node *directory;
    struct last_name last;
    int result = copy_name(client, m->w[0], m->w[1], contents);
    if (result == 0)
        result = walk(client, m->w[2], m->w[3], WALK_PARENT, &directory, &last);
    if (result)
        return result;
    result = make_symlink(directory, &last, contents, m->w[1]);
    node_put(directory);
    return result;
}

static int rename_to(struct client *client, struct message *m)
{
    struct node *from, *to;
    struct last_name old, new;
    int result = walk(client, m->w[0], m->w[1], WALK_PARENT, &from, &old);
    if (result)
        return result;
    result = walk(client, m->w[2], m->w[3], WALK_PARENT, &to, &new);
    if (result == 0) {
        result = rename_name(from, &old, to, &new);
        node_put(to);
    }
    node_put(from);
    return result;
}

static int make_special(struct node *directory, const struct last_name *last, uint32_t mode, uint32_t device)
{
    struct node *node;
    uint32_t type = mode & S_IFMT;
    if (type == 0)
        mode |= S_IFREG;
    else if (type != S_IFREG && type != S_IFCHR && type != S_IFBLK && type != S_IFIFO)
        return -EINVAL;
    int result = make_node(directory, last, mode & (S_IFMT | 07777), device & 0xffff, &node);
    if (result == 0)
        node_put(node);
    return result;
}

int do_name(struct client *client, struct message *m)
{
    struct node *directory;
    struct last_name last;
    if (m->type == FS_LINK)
        return link_to(client, m);
    if (m->type == FS_SYMLINK)
        return symlink_to(client, m);
    if (m->type == FS_RENAME)
        return rename_to(client, m);
    int result = walk(client, m->w[0], m->w[1], WALK_PARENT, &directory, &last);
    if (result)
        return result;
    if (m->type == FS_UNLINK)
        result = unlink_name(directory, &last);
    else if (m->type == FS_RMDIR)
        result = remove_directory(directory, &last);
    else if (m->type == FS_MKDIR)
        result = make_directory(directory, &last, m->w[2] & 07777);
    else
        result = make_special(directory, &last, m->w[2], m->w[3]);
    node_put(directory);
    return result;
}

int do_stat(struct client *client, struct message *m)
{
    struct node *node;
    struct stat status;
    int result = walk(client, m->w[0], m->w[1], m->type == FS_STAT ? WALK_FOLLOW : 0, &node, NULL);
    if (result)
        return result;
    stat_node(node, &status);
    node_put(node);
    return sys_copy(SELF, (uint32_t)&status, client->endpoint, m->w[2], sizeof status) ? -EFAULT : 0;
}

int do_readlink(struct client *client, struct message *m)
{
    struct node *node;
    char contents[PATH_BYTES_MAX + 1];
    int result = walk(client, m->w[0], m->w[1], 0, &node, NULL);
    if (result)
        return result;
    uint32_t room = m->w[3] < sizeof contents ? m->w[3] : sizeof contents;
    result = IS_SYMLINK(node) ? node->volume->type->get_link(node, contents, room) : -EINVAL;
    node_put(node);
    if (result < 0)
        return result;
    m->w[0] = result;
    return result && sys_copy(SELF, (uint32_t)contents, client->endpoint, m->w[2], result) ? -EFAULT : 0;
}

int do_chdir(struct client *client, struct message *m)
{
    struct node *node;
    int result = walk(client, m->w[0], m->w[1], WALK_FOLLOW, &node, NULL);
    if (result)
        return result;
    if (!IS_DIRECTORY(node)) {
        node_put(node);
        return -ENOTDIR;
    }
    node_put(client->directory);
    client->directory = node;
    return 0;
}

int do_getcwd(struct client *client, struct message *m)
{
    char path[PATH_BYTES_MAX + 1];
    int length = path_of(root, client->directory, path, m->w[1] < sizeof path ? m->w[1] : sizeof path);
    if (length < 0)
        return length;
    if (sys_copy(SELF, (uint32_t)path, client->endpoint, m->w[0], length))
        return -EFAULT;
    m->w[0] = length;
    return 0;
}

/* FS_CHMOD, FS_UTIME and FS_ACCESS. There is one user, who may do all but execute what is no program. */
int do_attributes(struct client *client, struct message *m)
{
    struct node *node;
    int result = walk(client, m->w[0], m->w[1], WALK_FOLLOW, &node, NULL);
    if (result)
        return result;
    if (m->type == FS_ACCESS) {
        if (m->w[2] & 1 && !IS_DIRECTORY(node) && !(node->mode & 0111))
            result = -EACCES;
        else if (m->w[2] & 2 && node->volume->read_only)
            result = -EROFS;
    } else if (node->volume->read_only) {
        result = -EROFS;
    } else {
        if (m->type == FS_CHMOD) {
            node->mode = (node->mode & S_IFMT) | (m->w[2] & 07777);
            program_changes++;
        } else {
            node->accessed = node->modified = m->w[2];
        }
        node->status_changed = now();
        node->changed = 1;
    }
    node_put(node);
    return result;
}

int do_statfs(struct client *client, struct message *m)
{
    struct node *node;
    struct statfs status = {0};
    int result = walk(client, m->w[0], m->w[1], WALK_FOLLOW, &node, NULL);
    if (result)
        return result;
    node->volume->type->statistics(node->volume, &status);
    strncpy(status.type, node->volume->type->name, sizeof status.type - 1);
    node_put(node);
    return sys_copy(SELF, (uint32_t)&status, client->endpoint, m->w[2], sizeof status) ? -EFAULT : 0;
}

static int open_volume(struct node *directory, uint32_t device, int read_only)
{
    struct volume *volume = volume_free();
    uint32_t sectors;
    if (!volume)
        return -ENFILE;
    for (struct volume *other = volumes; other < volumes + VOLUMES; other++)
        if (other->type && other->device == device)
            return -EBUSY;
    if (directory->mounted || directory == directory->volume->root || !IS_DIRECTORY(directory))
        return IS_DIRECTORY(directory) ? -EBUSY : -ENOTDIR;
    int result = block_open(device, &sectors);
    if (result == 0)
        result = ext2_open(volume, device, sectors, read_only);
    return result ? result : volume_attach(volume, directory);
}

int do_mount(struct client *client, struct message *m)
{
    struct node *device, *directory;
    if (memcmp(&m->w[5], "ext2", 4))
        return -ENODEV;
    int result = walk(client, m->w[0], m->w[1], WALK_FOLLOW, &device, NULL);
    if (result)
        return result;
    if ((device->mode & S_IFMT) != S_IFBLK)
        result = -EINVAL;
    if (result == 0)
        result = walk(client, m->w[2], m->w[3], WALK_FOLLOW, &directory, NULL);
    if (result == 0) {
        result = open_volume(directory, device->device, m->w[4] & 1);
        node_put(directory);
    }
    node_put(device);
    return result;
}

int do_umount(struct client *client, struct message *m)
{
    struct node *directory;
    int result = walk(client, m->w[0], m->w[1], WALK_FOLLOW, &directory, NULL);
    if (result)
        return result;
    nodes_store(directory->volume);
    return volume_detach(directory);
}

int read_image(struct message *m)
{
    static char path[PATH_BYTES_MAX + 1];
    struct client *client = client_of(m->w[0]);
    uint32_t length = m->w[2], bytes = m->w[5] < CHUNK ? m->w[5] : CHUNK;
    struct node *node;
    if (!client || length > PATH_BYTES_MAX)
        return client ? -ENAMETOOLONG : -ESRCH;
    if (sys_copy(m->source, m->w[1], SELF, (uint32_t)path, length))
        return -EFAULT;
    int result = path_walk(root, client->directory, path, length, WALK_FOLLOW, &node, NULL);
    if (result)
        return result;
    if (!IS_FILE(node) || !(node->mode & 0111))
        result = -EACCES;
    else
        result = read_node(node, m->w[3], chunk, bytes);
    if (result > 0 && sys_copy(SELF, (uint32_t)chunk, m->source, m->w[4], result))
        result = -EFAULT;
    m->w[0] = result;
    m->w[1] = node->size;
    m->w[2] = node->volume->device;
    m->w[3] = node->number;
    m->w[4] = program_changes;
    node_put(node);
    return result < 0 ? result : 0;
}
