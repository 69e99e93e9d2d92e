/* archive DIRECTORY DEVICES: writes a cpio archive (format "newc") of a list of devices and empty
   directories, and of everything below the directory, to standard output. The files come in the order of
   their names, belong to root and have no time, so the same files make the same archive, wherever it is
   made. */

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 512
#define NAMES_MAX 1024

static unsigned inodes;
static unsigned long written;

static void fail(const char *path)
{
    perror(path);
    exit(1);
}

static void put(const void *bytes, unsigned long count)
{
    if (fwrite(bytes, 1, count, stdout) != count)
        fail("standard output");
    written += count;
}

static void pad(void)
{
    put("\0\0\0", (4 - written % 4) % 4);
}

static void put_header(const char *name, unsigned mode, unsigned long bytes, unsigned major, unsigned minor)
{
    char header[128];
    unsigned links = (mode & S_IFMT) == S_IFDIR ? 2 : 1;

    sprintf(header, "070701%08X%08X%08X%08X%08X%08X%08lX%08X%08X%08X%08X%08X%08X", ++inodes, mode, 0, 0,
            links, 0, bytes, 0, 0, major, minor, (unsigned)strlen(name) + 1, 0);
    put(header, 110);
    put(name, strlen(name) + 1);
    pad();
}

static void put_file(const char *path, const char *name, const struct stat *status)
{
    static char buffer[65536];
    unsigned long bytes = 0, count;
    FILE *file = fopen(path, "rb");

    if (file == NULL)
        fail(path);
    put_header(name, S_IFREG | (status->st_mode & 0111 ? 0755 : 0644), (unsigned long)status->st_size, 0, 0);
    while ((count = fread(buffer, 1, sizeof buffer, file)) > 0) {
        put(buffer, count);
        bytes += count;
    }
    fclose(file);
    if (bytes != (unsigned long)status->st_size) {
        fprintf(stderr, "%s: it changes while it is read\n", path);
        exit(1);
    }
    pad();
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Writes what is in the directory `path`, whose name in the archive is `prefix`. */
static void put_directory(const char *path, const char *prefix)
{
    char *names[NAMES_MAX];
    int count = 0;
    struct dirent *entry;
    DIR *directory = opendir(path);

    if (directory == NULL)
        fail(path);
    while ((errno = 0, entry = readdir(directory)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (count == NAMES_MAX || (names[count++] = strdup(entry->d_name)) == NULL) {
            fprintf(stderr, "%s: too many files\n", path);
            exit(1);
        }
    }
    if (errno)
        fail(path);
    closedir(directory);
    qsort(names, (unsigned)count, sizeof names[0], compare);
    for (int i = 0; i < count; i++) {
        char from[PATH_BYTES], name[PATH_BYTES], target[PATH_BYTES];
        struct stat status;
        if (snprintf(from, sizeof from, "%s/%s", path, names[i]) >= PATH_BYTES
            || snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "/" : "", names[i]) >= PATH_BYTES) {
            fprintf(stderr, "%s: the path is too long\n", path);
            exit(1);
        }
        if (lstat(from, &status) != 0)
            fail(from);
        if (S_ISDIR(status.st_mode)) {
            put_header(name, S_IFDIR | 0755, 0, 0, 0);
            put_directory(from, name);
        } else if (S_ISLNK(status.st_mode)) {
            long length = readlink(from, target, sizeof target - 1);
            if (length < 0)
                fail(from);
            put_header(name, S_IFLNK | 0777, (unsigned long)length, 0, 0);
            put(target, (unsigned long)length);
            pad();
        } else {
            put_file(from, name, &status);
        }
        free(names[i]);
    }
}

/* Lines of the list: NAME MODE [MAJOR MINOR], the mode in octal with the type of the file. */
static void put_devices(const char *path)
{
    char line[256], name[200];
    FILE *file = fopen(path, "r");

    if (file == NULL)
        fail(path);
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned mode, major = 0, minor = 0;
        if (line[0] == '#' || line[0] == '\n')
            continue;
        if (sscanf(line, "%199s %o %u %u", name, &mode, &major, &minor) < 2) {
            fprintf(stderr, "%s: no device: %s", path, line);
            exit(1);
        }
        put_header(name, mode, 0, major, minor);
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: archive DIRECTORY DEVICES >FILE\n");
        return 2;
    }
    put_devices(argv[2]);
    put_directory(argv[1], "");
    put_header("TRAILER!!!", 0, 0, 0, 0);
    if (fflush(stdout) != 0)
        fail("standard output");
    return 0;
}
