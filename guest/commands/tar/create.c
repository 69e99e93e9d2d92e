/* Makes archives: the files in the order of their names. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>
#include "tar.h"

#define DEPTH 64
#define LINKED_MAX 4096

static uint64_t written;
static struct stat self; /* the archive, which does not contain itself */

/* Files with several names that the archive has under the first of them. */
static struct linked {
    uint32_t device, inode;
    char *name;
} *linked;
static size_t linked_count;

static void put(FILE *archive, const void *bytes, size_t count)
{
    if (fwrite(bytes, 1, count, archive) != count)
        fatal("the archive", strerror(errno));
    written += count;
}

static void pad(FILE *archive, unsigned unit)
{
    static const char zeros[BLOCK];
    while (written % unit)
        put(archive, zeros, unit - written % unit < BLOCK ? unit - written % unit : BLOCK);
}

static const char *earlier_name(const struct stat *status)
{
    for (size_t i = 0; i < linked_count; i++)
        if (linked[i].inode == status->st_ino && linked[i].device == status->st_dev)
            return linked[i].name;
    return NULL;
}

static void note_name(const struct stat *status, const char *name)
{
    if (linked_count == LINKED_MAX)
        return;
    linked = need(linked, (linked_count + 1) * sizeof *linked);
    linked[linked_count++] = (struct linked){status->st_dev, status->st_ino, strdup(name)};
}

/* A file that is shorter than it was is filled up: its header is in the archive already. */
static void put_contents(FILE *archive, FILE *from, const char *path, uint32_t bytes)
{
    char buffer[16 * BLOCK];
    uint32_t left = bytes;
    while (left) {
        size_t wanted = left < sizeof buffer ? left : sizeof buffer, count = fread(buffer, 1, wanted, from);
        if (count < wanted) {
            complain(path, ferror(from) ? "it cannot be read" : "it became shorter while it was read");
            memset(buffer + count, 0, wanted - count);
            clearerr(from);
        }
        put(archive, buffer, wanted);
        left -= wanted;
    }
    pad(archive, BLOCK);
}

static void add(FILE *archive, const char *path, FILE *log, int depth);

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void add_all_of(FILE *archive, const char *path, FILE *log, int depth)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    char **names = NULL;
    size_t count = 0;
    int error;
    if (!directory || depth == DEPTH) {
        complain(path, directory ? "directories are nested too deeply" : strerror(errno));
        return;
    }
    while ((entry = next_entry(directory, &error))) {
        names = need(names, (count + 1) * sizeof *names);
        names[count++] = strdup(entry->d_name);
    }
    if (error)
        complain(path, strerror(error));
    closedir(directory);
    if (count)
        qsort(names, count, sizeof *names, compare);
    for (size_t i = 0; i < count; i++) {
        int slash = path[strlen(path) - 1] == '/';
        char *inner = need(NULL, strlen(path) + strlen(names[i]) + 2);
        sprintf(inner, "%s%s%s", path, slash ? "" : "/", names[i]);
        add(archive, inner, log, depth + 1);
        free(inner);
        free(names[i]);
    }
    free(names);
}

/* The name in the archive: without slashes in front, and with one at the end of a directory's. */
static char *member_name(const char *path, int directory)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    while (*path == '/' && length)
        path++, length--;
    char *name = need(NULL, length + 3);
    memcpy(name, length ? path : ".", length ? length : 1);
    length = length ? length : 1;
    strcpy(name + length, directory ? "/" : "");
    return name;
}

static void add_one(FILE *archive, const char *path, const char *name, const struct stat *status, FILE *log)
{
    struct header header;
    char target[NAME_BYTES_MAX];
    const char *link = NULL;
    FILE *from = NULL;
    if (S_ISLNK(status->st_mode)) {
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length < 0) {
            complain_errno(path);
            return;
        }
        target[length] = 0;
        link = target;
    } else if (!S_ISDIR(status->st_mode) && status->st_nlink > 1) {
        link = earlier_name(status);
        if (!link)
            note_name(status, name);
    }
    if (S_ISREG(status->st_mode) && !link && !(from = fopen(path, "r"))) {
        complain_errno(path);
        return;
    }
    if (header_write(&header, name, status, link)) {
        complain(path, "its name is too long, or where it leads to; it is left out");
    } else {
        put(archive, &header, sizeof header);
        if (verbose)
            fprintf(log, "%s\n", name);
        if (from)
            put_contents(archive, from, path, status->st_size);
    }
    if (from)
        fclose(from);
}

static void add(FILE *archive, const char *path, FILE *log, int depth)
{
    struct stat status;
    if (lstat(path, &status)) {
        complain_errno(path);
        return;
    }
    if (S_ISREG(status.st_mode) && status.st_ino == self.st_ino && status.st_dev == self.st_dev) {
        complain(path, "it is the archive; it is left out");
        return;
    }
    char *name = member_name(path, S_ISDIR(status.st_mode));
    add_one(archive, path, name, &status, log);
    free(name);
    if (S_ISDIR(status.st_mode))
        add_all_of(archive, path, log, depth);
}

void create(FILE *archive, int count, char *const names[], FILE *log)
{
    static const char zeros[2 * BLOCK];
    fstat(fileno(archive), &self);
    for (int i = 0; i < count; i++)
        add(archive, names[i], log, 0);
    put(archive, zeros, sizeof zeros);
    pad(archive, RECORD);
    if (fflush(archive))
        fatal("the archive", strerror(errno));
}
