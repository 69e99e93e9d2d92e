/* Reads archives: headers, those that extend others, contents. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include "tar.h"

#define EXTENSION_BYTES_MAX 65536

/* What the headers before that of a member say of it. */
struct extensions {
    char *name, *link;
    int has_bytes;
    uint64_t bytes;
};

static uint64_t padded(uint64_t bytes)
{
    return (bytes + BLOCK - 1) & ~(uint64_t)(BLOCK - 1);
}

int member_contents(FILE *archive, const struct member *member, FILE *to)
{
    char buffer[8 * BLOCK];
    int wrong = 0;
    if (member->bytes > UINT64_MAX - BLOCK)
        fatal(member->name, "its size is no size");
    for (uint64_t left = member->bytes, all = padded(left); all;) {
        size_t count = all < sizeof buffer ? (size_t)all : sizeof buffer;
        size_t useful = left < count ? (size_t)left : count;
        if (fread(buffer, 1, count, archive) != count)
            fatal(member->name, "unexpected end of the archive");
        if (to && !wrong && fwrite(buffer, 1, useful, to) != useful)
            wrong = 1;
        left -= useful;
        all -= count;
    }
    return wrong;
}

/* The contents of a header that extends the next one, as a string. */
static char *extension(FILE *archive, const struct member *member)
{
    size_t room = (size_t)padded(member->bytes);
    if (member->bytes > EXTENSION_BYTES_MAX)
        fatal(member->name, "a header is too long");
    char *bytes = need(NULL, room + 1);
    if (fread(bytes, 1, room, archive) != room)
        fatal(member->name, "unexpected end of the archive");
    bytes[member->bytes] = 0;
    return bytes;
}

static void replace(char **old, char *with)
{
    free(*old);
    *old = with;
}

/* Records of pax: "LENGTH KEYWORD=VALUE\n". */
static void read_records(char *records, size_t bytes, struct extensions *to)
{
    for (char *end = records + bytes; records < end;) {
        char *after, *equals;
        unsigned long length = strtoul(records, &after, 10);
        if (*after != ' ' || length > (size_t)(end - records) || length <= (size_t)(after + 1 - records) ||
            records[length - 1] != '\n')
            return;
        records[length - 1] = 0;
        equals = strchr(++after, '=');
        if (equals) {
            *equals++ = 0;
            if (strcmp(after, "path") == 0)
                replace(&to->name, strdup(equals));
            else if (strcmp(after, "linkpath") == 0)
                replace(&to->link, strdup(equals));
            else if (strcmp(after, "size") == 0) {
                to->bytes = strtoull(equals, NULL, 10);
                to->has_bytes = 1;
            }
        }
        records += length;
    }
}

/* Reads the next header. Returns whether there is one: two blocks of zeros, or the end of the file, end an
   archive. */
static int read_header(FILE *archive, struct member *member)
{
    static const struct header zero;
    static int any;
    struct header header;
    for (int zeros = 0;;) {
        size_t count = fread(&header, 1, sizeof header, archive);
        if (ferror(archive))
            fatal("the archive", strerror(errno));
        if (count == 0 && any)
            return 0;
        if (count != sizeof header)
            fatal("the archive", any ? "it ends within a header" : "it is no archive");
        if (memcmp(&header, &zero, sizeof header) == 0) {
            any = 1;
            if (++zeros == 2)
                return 0;
            continue;
        }
        if (header_read(&header, member))
            fatal("the archive", any ? "a header's checksum is wrong" : "it is no archive");
        any = 1;
        return 1;
    }
}

int member_next(FILE *archive, struct member *member)
{
    static struct member last;
    struct extensions extensions = {0};
    free(last.name);
    free(last.link);
    last = (struct member){0};
    while (read_header(archive, member)) {
        char type = member->type, *bytes;
        if (type != 'L' && type != 'K' && type != 'x' && type != 'g') {
            if (extensions.name)
                replace(&member->name, extensions.name);
            if (extensions.link)
                replace(&member->link, extensions.link);
            if (extensions.has_bytes)
                member->bytes = extensions.bytes;
            /* Other members than files have no contents, whatever the header says. */
            if (type >= '1' && type <= '6')
                member->bytes = 0;
            last = *member;
            return 1;
        }
        bytes = extension(archive, member);
        if (type == 'L')
            replace(&extensions.name, bytes);
        else if (type == 'K')
            replace(&extensions.link, bytes);
        else if (type == 'x')
            read_records(bytes, (size_t)member->bytes, &extensions);
        if (type == 'x' || type == 'g')
            free(bytes);
        free(member->name);
        free(member->link);
    }
    free(extensions.name);
    free(extensions.link);
    return 0;
}
