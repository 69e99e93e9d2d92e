/* rm [-rf] FILE...: removes files, with -r directories and all that is in them. */

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <tern/command.h>
#include <unistd.h>

#define PATH_BYTES 1024

static int recursive, force;

static int complain(const char *path)
{
    if (force && errno == ENOENT)
        return 0;
    fprintf(stderr, "rm: %s: %s\n", path, strerror(errno));
    return 1;
}

static int remove_file(const char *path);

/* Starts again from the first name each time: names move when others go. */
static int empty(const char *path)
{
    int failed = 0;
    for (int removed = 1; removed && !failed;) {
        DIR *directory = opendir(path);
        struct dirent *entry;
        int error = 0;
        removed = 0;
        if (!directory)
            return complain(path);
        while (!failed && (entry = next_entry(directory, &error))) {
            char inner[PATH_BYTES];
            if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= PATH_BYTES) {
                errno = ENAMETOOLONG;
                failed = complain(path);
                continue;
            }
            failed |= remove_file(inner);
            removed = 1;
        }
        closedir(directory);
        errno = error;
        if (error)
            failed = complain(path);
    }
    return failed;
}

static int remove_file(const char *path)
{
    struct stat status;
    if (lstat(path, &status))
        return complain(path);
    if (!S_ISDIR(status.st_mode))
        return unlink(path) ? complain(path) : 0;
    if (!recursive) {
        errno = EISDIR;
        return complain(path);
    }
    return empty(path) || (rmdir(path) && complain(path));
}

int main(int argc, char **argv)
{
    int option, failed = 0;
    while ((option = getopt(argc, argv, "rRf")) != -1) {
        recursive |= option == 'r' || option == 'R';
        force |= option == 'f';
        if (option == '?')
            return 2;
    }
    for (int i = optind; i < argc; i++)
        failed |= remove_file(argv[i]);
    return failed;
}
