/* Open files. */

#include <string.h>
#include "outside.h"
#include "server.h"

#define ACCESS_MODE 3u
#define STATUS_FLAGS (O_APPEND | O_NONBLOCK)

static struct file files[FILES_MAX];
uint8_t chunk[CHUNK];

struct file *file_of(struct client *client, uint32_t descriptor)
{
    return descriptor < DESCRIPTORS ? client->files[descriptor] : NULL;
}

int file_new(struct node *node, uint32_t flags, struct file **made)
{
    for (struct file *file = files; file < files + FILES_MAX; file++) {
        if (file->references)
            continue;
        *file =
            (struct file){.references = 1, .node = node, .flags = flags, .device = node ? node->device : 0};
        *made = file;
        return 0;
    }
    return -ENFILE;
}

void file_put(struct file *file)
{
    if (--file->references)
        return;
    if (file->pipe)
        pipe_close(file);
    if (!file->node)
        return;
    if ((file->node->mode & S_IFMT) == S_IFCHR)
        device_close(file);
    node_put(file->node);
}

/* The driver's process is another one, which knows nothing of them. */
void files_lose_connections(const struct driver *driver)
{
    for (struct file *file = files; file < files + FILES_MAX; file++)
        if (file->references && file->connection && driver_of(file->device) == driver)
            file->device = 0;
}

/* Gives the file the lowest free descriptor from `first` on. */
int file_place(struct client *client, struct file *file, uint32_t flags, uint32_t first, uint32_t *descriptor)
{
    for (uint32_t i = first; i < DESCRIPTORS; i++) {
        if (client->files[i])
            continue;
        client->files[i] = file;
        client->close_on_exec &= ~(1u << i);
        if (flags & O_CLOEXEC)
            client->close_on_exec |= 1u << i;
        *descriptor = i;
        return 0;
    }
    return -EMFILE;
}

/* The node for an open, which may make it. */
static int open_node(struct client *client, struct message *m, struct node **node)
{
    uint32_t flags = m->w[2], mode = m->w[3];
    struct node *directory;
    struct last_name last;
    int result = walk(client, m->w[0], m->w[1], WALK_FOLLOW, node, NULL);
    if (result == 0 && flags & O_CREAT && flags & O_EXCL) {
        node_put(*node);
        return -EEXIST;
    }
    if (result != -ENOENT || !(flags & O_CREAT))
        return result;
    result = walk(client, m->w[0], m->w[1], WALK_PARENT, &directory, &last);
    if (result)
        return result;
    result = make_node(directory, &last, S_IFREG | (mode & 07777), 0, node);
    node_put(directory);
    return result;
}

/* Whether the node can be opened so; empties files if that is wanted. */
static int check_open(struct node *node, uint32_t flags)
{
    uint32_t writes = (flags & ACCESS_MODE) != O_RDONLY;
    if (IS_DIRECTORY(node))
        return writes || flags & O_TRUNC ? -EISDIR : 0;
    if (flags & O_DIRECTORY)
        return -ENOTDIR;
    if (IS_SYMLINK(node))
        return -ELOOP;
    if (writes && node->volume->read_only && IS_FILE(node))
        return -EROFS;
    if (flags & O_TRUNC && writes && IS_FILE(node) && node->size)
        return change_size(node, 0);
    return 0;
}

int do_open(struct client *client, struct message *m)
{
    struct node *node;
    struct file *file;
    uint32_t flags = m->w[2];
    int result = open_node(client, m, &node);
    if (result)
        return result;
    result = check_open(node, flags);
    if (result == 0)
        result = file_new(node, flags & (ACCESS_MODE | STATUS_FLAGS), &file);
    if (result) {
        node_put(node);
        return result;
    }
    uint32_t type = node->mode & S_IFMT;
    if (type == S_IFBLK)
        result = block_open(file->device, &file->sectors);
    if (result == 0)
        result = file_place(client, file, flags, 0, &m->w[0]);
    if (result == 0 && type == S_IFIFO) {
        result = pipe_open(client, file, m->w[0]);
        if (result < 0)
            client->files[m->w[0]] = NULL;
    }
    if (result < 0) {
        file->device = 0; /* a device that is not open needs no close */
        file_put(file);
        return result;
    }
    /* The driver decides: the descriptor is taken back if it refuses. */
    return type == S_IFCHR ? device_open(client, file) : result;
}

int do_close(struct client *client, struct message *m)
{
    struct file *file = file_of(client, m->w[0]);
    if (!file)
        return -EBADF;
    client->files[m->w[0]] = NULL;
    file_put(file);
    return 0;
}

static int read_file(struct client *client, struct file *file, struct message *m)
{
    uint32_t address = m->w[1], left = m->w[2], done = 0;
    while (left) {
        uint32_t part = left < CHUNK ? left : CHUNK;
        int got = read_node(file->node, file->position, chunk, part);
        if (got <= 0) {
            if (got < 0 && !done)
                return got;
            break;
        }
        if (sys_copy(SELF, (uint32_t)chunk, client->endpoint, address + done, got))
            return done ? 0 : -EFAULT;
        file->position += got;
        done += got;
        left -= got;
        m->w[0] = done;
    }
    m->w[0] = done;
    return 0;
}

static int write_file(struct client *client, struct file *file, struct message *m)
{
    uint32_t address = m->w[1], left = m->w[2], done = 0;
    if (file->flags & O_APPEND)
        file->position = file->node->size;
    while (left) {
        uint32_t part = left < CHUNK ? left : CHUNK;
        int result = sys_copy(client->endpoint, address + done, SELF, (uint32_t)chunk, part) ? -EFAULT : 0;
        if (result == 0)
            result = write_node(file->node, file->position, chunk, part);
        if (result <= 0) {
            if (!done)
                return result;
            break;
        }
        file->position += result;
        done += result;
        left -= result;
        if ((uint32_t)result < part)
            break;
    }
    m->w[0] = done;
    return 0;
}

static int transfer(struct client *client, struct message *m, int is_write)
{
    struct file *file = file_of(client, m->w[0]);
    if (!file || (file->flags & ACCESS_MODE) == (is_write ? O_RDONLY : O_WRONLY))
        return -EBADF;
    if (m->w[2] > FILE_BYTES_MAX)
        return -EINVAL;
    if (file->pipe)
        return pipe_transfer(client, file, m, is_write);
    switch (file->node->mode & S_IFMT) {
    case S_IFREG:
        return is_write ? write_file(client, file, m) : read_file(client, file, m);
    case S_IFDIR:
        return -EISDIR;
    case S_IFCHR:
        return device_transfer(client, file, m, is_write);
    case S_IFBLK:
        return block_transfer(client, file, m, is_write);
    default:
        return -EINVAL;
    }
}

int do_read(struct client *client, struct message *m)
{
    return transfer(client, m, 0);
}

int do_write(struct client *client, struct message *m)
{
    return transfer(client, m, 1);
}

/* Pipes and characters have no offsets. Files and disks are done before this returns. */
int do_transfer_at(struct client *client, struct message *m)
{
    struct file *file = file_of(client, m->w[0]);
    if (!file)
        return -EBADF;
    if (file->pipe || (file->node->mode & S_IFMT) == S_IFCHR)
        return -ESPIPE;
    if (m->w[3] > FILE_BYTES_MAX)
        return -EINVAL;
    uint32_t position = file->position;
    file->position = m->w[3];
    int result = transfer(client, m, m->type == FS_WRITE_AT);
    file->position = position;
    return result;
}

int do_seek(struct client *client, struct message *m)
{
    struct file *file = file_of(client, m->w[0]);
    int64_t from, to;
    uint32_t sectors;
    if (!file)
        return -EBADF;
    if (file->pipe || (file->node->mode & S_IFMT) == S_IFCHR)
        return -ESPIPE;
    if (m->w[2] == SEEK_SET)
        from = 0;
    else if (m->w[2] == SEEK_CUR)
        from = file->position;
    else if (m->w[2] != SEEK_END)
        return -EINVAL;
    else if ((file->node->mode & S_IFMT) != S_IFBLK)
        from = file->node->size;
    else if (block_open(file->device, &sectors) == 0)
        from = (int64_t)sectors * 512;
    else
        return -EIO;
    to = from + (int32_t)m->w[1];
    if (to < 0 || to > FILE_BYTES_MAX)
        return -EINVAL;
    file->position = to;
    m->w[0] = to;
    return 0;
}

int do_dup(struct client *client, struct message *m)
{
    struct file *file = file_of(client, m->w[0]);
    uint32_t to = m->w[1];
    int result = 0;
    if (!file || (to >= DESCRIPTORS && to != ~0u))
        return -EBADF;
    if (to == ~0u) {
        result = file_place(client, file, 0, 0, &m->w[0]);
    } else if (client->files[to] != file) {
        if (client->files[to])
            file_put(client->files[to]);
        client->files[to] = NULL;
        result = file_place(client, file, 0, to, &m->w[0]);
    } else {
        /* The same file: only a new descriptor counts as a reference more. */
        client->close_on_exec &= to == m->w[0] ? ~0u : ~(1u << to);
        m->w[0] = to;
        return 0;
    }
    if (result == 0)
        file->references++;
    return result;
}

int do_fcntl(struct client *client, struct message *m)
{
    struct file *file = file_of(client, m->w[0]);
    uint32_t bit = 1u << (m->w[0] & 31), argument = m->w[2];
    int result;
    if (!file)
        return -EBADF;
    switch (m->w[1]) {
    case F_DUPFD:
        result = argument < DESCRIPTORS ? file_place(client, file, 0, argument, &m->w[0]) : -EINVAL;
        if (result == 0)
            file->references++;
        return result;
    case F_GETFD:
        m->w[0] = client->close_on_exec & bit ? 1 : 0;
        return 0;
    case F_SETFD:
        client->close_on_exec = argument & 1 ? client->close_on_exec | bit : client->close_on_exec & ~bit;
        m->w[0] = 0;
        return 0;
    case F_GETFL:
        m->w[0] = file->flags;
        return 0;
    case F_SETFL:
        file->flags = (file->flags & ~STATUS_FLAGS) | (argument & STATUS_FLAGS);
        m->w[0] = 0;
        return 0;
    default:
        return -EINVAL;
    }
}

int do_fstat(struct client *client, struct message *m)
{
    struct file *file = file_of(client, m->w[0]);
    struct stat status = {.st_mode = S_IFIFO | 0600, .st_nlink = 1, .st_blksize = PAGE};
    if (!file)
        return -EBADF;
    if (file->node)
        stat_node(file->node, &status);
    return sys_copy(SELF, (uint32_t)&status, client->endpoint, m->w[1], sizeof status) ? -EFAULT : 0;
}

int do_directory(struct client *client, struct message *m)
{
    struct file *file = file_of(client, m->w[0]);
    union entry_space space;
    struct directory_entry *entry = &space.entry;
    uint32_t room = m->w[2] < CHUNK ? m->w[2] : CHUNK, used = 0;
    int result = 0;
    if (!file)
        return -EBADF;
    if (!file->node || !IS_DIRECTORY(file->node))
        return -ENOTDIR;
    for (;;) {
        uint32_t position = file->position;
        result = file->node->volume->type->list(file->node, &position, entry);
        if (result <= 0)
            break;
        uint32_t bytes = (sizeof *entry + entry->length + 3) & ~3u;
        if (bytes > room - used)
            break;
        entry->bytes = bytes;
        memset(chunk + used, 0, bytes);
        memcpy(chunk + used, entry, sizeof *entry + entry->length);
        used += bytes;
        file->position = position;
    }
    if (result < 0 && !used)
        return result;
    if (result > 0 && !used)
        return -EINVAL; /* not even one has room */
    if (used && sys_copy(SELF, (uint32_t)chunk, client->endpoint, m->w[1], used))
        return -EFAULT;
    m->w[0] = used;
    return 0;
}

int do_truncate(struct client *client, struct message *m)
{
    struct file *file = file_of(client, m->w[0]);
    if (!file || (file->flags & ACCESS_MODE) == O_RDONLY)
        return -EBADF;
    return file->node ? change_size(file->node, m->w[1]) : -EINVAL;
}
