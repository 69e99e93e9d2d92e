/* Headers of members. */

#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include "tar.h"

/* Octal digits that fill a field but for its last byte, a 0. Returns whether the number is too large. */
static int put_number(char *field, size_t bytes, uint64_t number)
{
    field[--bytes] = 0;
    while (bytes) {
        field[--bytes] = (char)('0' + (number & 7));
        number >>= 3;
    }
    return number != 0;
}

/* The last slash at which a name that is too long for its field can be divided; NULL if there is none. */
static const char *division(const char *name)
{
    const struct header *header = NULL;
    const char *last = NULL;
    size_t length = strlen(name);
    for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/'))
        if (slash > name && (size_t)(slash - name) <= sizeof header->prefix && slash[1] &&
            length - (slash + 1 - name) <= sizeof header->name)
            last = slash;
    return last;
}

static int put_name(struct header *header, const char *name)
{
    if (strlen(name) <= sizeof header->name) {
        memcpy(header->name, name, strlen(name));
        return 0;
    }
    const char *slash = division(name);
    if (!slash)
        return 1;
    memcpy(header->prefix, name, slash - name);
    memcpy(header->name, slash + 1, strlen(slash + 1));
    return 0;
}

static char type_of(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFLNK:
        return '2';
    case S_IFCHR:
        return '3';
    case S_IFBLK:
        return '4';
    case S_IFDIR:
        return '5';
    case S_IFIFO:
        return '6';
    default:
        return '0';
    }
}

/* The sum of all bytes, those of the sum itself counted as blanks. */
static unsigned sum(const struct header *header)
{
    const unsigned char *bytes = (const unsigned char *)header;
    unsigned sum = 8 * ' ';
    for (size_t i = 0; i < sizeof *header; i++)
        sum += bytes[i];
    for (size_t i = 0; i < sizeof header->checksum; i++)
        sum -= (unsigned char)header->checksum[i];
    return sum;
}

int header_write(struct header *header, const char *name, const struct stat *status, const char *link)
{
    uint64_t bytes = S_ISREG(status->st_mode) && !link ? (uint64_t)status->st_size : 0;
    int device = S_ISCHR(status->st_mode) || S_ISBLK(status->st_mode);
    memset(header, 0, sizeof *header);
    if (put_name(header, name) || (link && strlen(link) > sizeof header->link))
        return 1;
    put_number(header->mode, sizeof header->mode, status->st_mode & 07777);
    /* There are no other users in Tern. */
    put_number(header->uid, sizeof header->uid, 0);
    put_number(header->gid, sizeof header->gid, 0);
    put_number(header->size, sizeof header->size, bytes);
    put_number(header->time, sizeof header->time, (uint64_t)status->st_mtime);
    header->type = link && !S_ISLNK(status->st_mode) ? '1' : type_of(status->st_mode);
    if (link)
        memcpy(header->link, link, strlen(link));
    memcpy(header->magic, "ustar", 6);
    memcpy(header->version, "00", 2);
    strcpy(header->user, "root");
    strcpy(header->group, "root");
    put_number(header->major, sizeof header->major, device ? status->st_rdev >> 8 : 0);
    put_number(header->minor, sizeof header->minor, device ? status->st_rdev & 255 : 0);
    put_number(header->checksum, 7, sum(header));
    header->checksum[7] = ' ';
    return 0;
}

/* The number in a field: octal digits, or, as GNU tar does with large ones, bits behind a first one. */
static uint64_t number(const char *field, size_t bytes)
{
    uint64_t value = 0;
    if (*field & 0x80) {
        value = *field & 0x3f;
        while (--bytes)
            value = value << 8 | (unsigned char)*++field;
        return value;
    }
    while (bytes && *field == ' ')
        field++, bytes--;
    for (; bytes && *field >= '0' && *field <= '7'; field++, bytes--)
        value = value << 3 | (unsigned)(*field - '0');
    return value;
}

/* A text that fills its field, or ends before. */
static char *text(const char *field, size_t bytes)
{
    size_t length = strnlen(field, bytes);
    char *copy = need(NULL, length + 1);
    memcpy(copy, field, length);
    copy[length] = 0;
    return copy;
}

int header_read(const struct header *header, struct member *member)
{
    if (number(header->checksum, sizeof header->checksum) != sum(header))
        return 1;
    char *name = text(header->name, sizeof header->name);
    if (memcmp(header->magic, "ustar", 6) == 0 && header->prefix[0]) {
        char *prefix = text(header->prefix, sizeof header->prefix);
        prefix = need(prefix, strlen(prefix) + strlen(name) + 2);
        strcat(prefix, "/");
        strcat(prefix, name);
        free(name);
        name = prefix;
    }
    *member = (struct member){
        .name = name, .link = text(header->link, sizeof header->link),
        .type = header->type ? header->type : '0',
        .mode = (unsigned)number(header->mode, sizeof header->mode) & 07777,
        .device = (unsigned)(number(header->major, sizeof header->major) << 8 |
                             (number(header->minor, sizeof header->minor) & 255)),
        .bytes = number(header->size, sizeof header->size),
        .time = (int64_t)number(header->time, sizeof header->time),
    };
    memcpy(member->user, header->user, sizeof header->user);
    memcpy(member->group, header->group, sizeof header->group);
    /* Before POSIX a directory was a file whose name ends with a slash. */
    if (member->type == '0' && *name && name[strlen(name) - 1] == '/')
        member->type = '5';
    return 0;
}
