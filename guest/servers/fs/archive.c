/* The boot archive: cpio, format newc (cpio(5)). Its entries become files of the file system in memory. */

#include <string.h>
#include "outside.h"
#include "vfs.h"

#define HEADER_BYTES 110u

/* Numbers of the header, by their order after the 6 bytes of magic. */
enum field { INODE, MODE, USER, GROUP, LINKS, MODIFIED, BYTES, MAJOR, MINOR, DEVICE_MAJOR, DEVICE_MINOR,
             NAME_BYTES_WITH_0 };

static int hexadecimal(const uint8_t *header, enum field field, uint32_t *value)
{
    *value = 0;
    for (int i = 0; i < 8; i++) {
        uint8_t c = header[6 + field * 8 + i];
        uint32_t digit = c >= '0' && c <= '9'                 ? c - '0'
                         : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                              : 16;
        if (digit == 16)
            return -EINVAL;
        *value = *value << 4 | digit;
    }
    return 0;
}

/* Makes the directories above a name that the archive does not have. */
static int parent_of(struct node *root, const char *path, uint32_t length, struct node **directory,
                     struct last_name *last)
{
    for (uint32_t end = 1; end < length; end++) {
        if (path[end] != '/')
            continue;
        int result = path_walk(root, root, path, end, WALK_PARENT, directory, last);
        if (result == -EEXIST)
            continue;
        if (result)
            return result;
        result = make_directory(*directory, last, 0755);
        node_put(*directory);
        if (result && result != -EEXIST)
            return result;
    }
    return path_walk(root, root, path, length, WALK_PARENT, directory, last);
}

static int unpack_entry(struct node *root, const uint8_t *header, const char *path, uint32_t length,
                        const uint8_t *contents, uint32_t bytes)
{
    struct node *directory, *node;
    struct last_name last;
    uint32_t mode, modified, major, minor;
    if (hexadecimal(header, MODE, &mode) || hexadecimal(header, MODIFIED, &modified) ||
        hexadecimal(header, DEVICE_MAJOR, &major) || hexadecimal(header, DEVICE_MINOR, &minor))
        return -EINVAL;
    int result = parent_of(root, path, length, &directory, &last);
    if (result)
        return result;
    if ((mode & S_IFMT) == S_IFDIR) {
        result = make_directory(directory, &last, mode & 07777);
    } else if ((mode & S_IFMT) == S_IFLNK) {
        result = make_symlink(directory, &last, (const char *)contents, bytes);
    } else {
        result = make_node(directory, &last, mode, major << 8 | minor, &node);
        if (result == 0) {
            if (IS_FILE(node))
                memory_set_contents(node, contents, bytes);
            node->modified = modified;
            node_put(node);
        }
    }
    node_put(directory);
    return result == -EEXIST ? 0 : result;
}

int archive_unpack(struct node *root, const uint8_t *archive, uint32_t bytes)
{
    uint32_t at = 0, name_bytes, size;
    while (at <= bytes && bytes - at >= HEADER_BYTES) {
        const uint8_t *header = archive + at;
        if (memcmp(header, "070701", 6) || hexadecimal(header, NAME_BYTES_WITH_0, &name_bytes) ||
            hexadecimal(header, BYTES, &size))
            return -EINVAL;
        const char *path = (const char *)header + HEADER_BYTES;
        if (name_bytes < 2 || name_bytes > PATH_BYTES_MAX || name_bytes > bytes - at - HEADER_BYTES)
            return -EINVAL;
        if (name_bytes == 11 && memcmp(path, "TRAILER!!!", 10) == 0)
            return 0;
        uint32_t start = (at + HEADER_BYTES + name_bytes + 3) & ~3u;
        if (start > bytes || size > bytes - start)
            return -EINVAL;
        int dot = name_bytes == 2 && path[0] == '.';
        int result = dot ? 0 : unpack_entry(root, header, path, name_bytes - 1, archive + start, size);
        if (result)
            return result;
        at = (start + size + 3) & ~3u;
    }
    return -EINVAL;
}
