/* du [-s] [PATH...]: KiB that files and all below directories occupy; -s only the sum of each path. */

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <tern/command.h>

#define PATH_BYTES 1024
#define DEPTH 64

static int only_sums, failed;

static unsigned long visit(const char *path, int depth)
{
    struct stat status;
    if (lstat(path, &status)) {
        fprintf(stderr, "du: %s: %s\n", path, strerror(errno));
        failed = 1;
        return 0;
    }
    unsigned long sectors = status.st_blocks;
    if (!S_ISDIR(status.st_mode) || depth == DEPTH)
        return sectors;
    DIR *directory = opendir(path);
    struct dirent *entry;
    int error = directory ? 0 : errno;
    while (directory && (entry = next_entry(directory, &error))) {
        char inner[PATH_BYTES];
        if (snprintf(inner, sizeof inner, "%s/%s", strcmp(path, "/") ? path : "", entry->d_name) < PATH_BYTES)
            sectors += visit(inner, depth + 1);
    }
    if (directory)
        closedir(directory);
    if (error) {
        fprintf(stderr, "du: %s: %s\n", path, strerror(error));
        failed = 1;
    }
    if (!only_sums && depth)
        printf("%lu\t%s\n", sectors / 2, path);
    return sectors;
}

int main(int argc, char **argv)
{
    only_sums = argc > 1 && strcmp(argv[1], "-s") == 0;
    if (argc == 1 + only_sums)
        printf("%lu\t.\n", visit(".", 0) / 2);
    for (int i = 1 + only_sums; i < argc; i++)
        printf("%lu\t%s\n", visit(argv[i], 0) / 2, argv[i]);
    return failed;
}
