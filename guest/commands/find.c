/* find [PATH...] [-name PATTERN] [-type f|d|l|c|b|p]: lists files and all below directories. */

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <tern/command.h>

#define PATH_BYTES 1024
#define DEPTH 64

static const char *name_wanted;
static char type_wanted;
static int failed;

static char type_of(mode_t mode)
{
    return "?pc?d?b?f?l?s???"[mode >> 12 & 15];
}

static void visit(const char *path, int depth)
{
    struct stat status;
    const char *slash = strrchr(path, '/');
    if (lstat(path, &status)) {
        fprintf(stderr, "find: %s: %s\n", path, strerror(errno));
        failed = 1;
        return;
    }
    if ((!name_wanted || fnmatch(name_wanted, slash && slash[1] ? slash + 1 : path, 0) == 0) &&
        (!type_wanted || type_of(status.st_mode) == type_wanted))
        puts(path);
    if (!S_ISDIR(status.st_mode) || depth == DEPTH)
        return;
    DIR *directory = opendir(path);
    struct dirent *entry;
    int error = directory ? 0 : errno;
    while (directory && (entry = next_entry(directory, &error))) {
        char inner[PATH_BYTES];
        if (snprintf(inner, sizeof inner, "%s/%s", strcmp(path, "/") ? path : "", entry->d_name) < PATH_BYTES)
            visit(inner, depth + 1);
    }
    if (directory)
        closedir(directory);
    if (error) {
        fprintf(stderr, "find: %s: %s\n", path, strerror(error));
        failed = 1;
    }
}

int main(int argc, char **argv)
{
    int paths = 1;
    while (paths < argc && argv[paths][0] != '-')
        paths++;
    for (int i = paths; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "-name") == 0)
            name_wanted = argv[i + 1];
        else if (strcmp(argv[i], "-type") == 0)
            type_wanted = argv[i + 1][0];
    }
    if (paths == 1)
        visit(".", 0);
    for (int i = 1; i < paths; i++)
        visit(argv[i], 0);
    return failed;
}
