/* cp [-r] FROM TO, cp [-r] FROM... DIRECTORY: copies files. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <tern/command.h>
#include <unistd.h>

#define PATH_BYTES 1024
#define DEPTH 64

static char buffer[65536];
static int recursive;

static int complain(const char *path)
{
    fprintf(stderr, "cp: %s: %s\n", path, strerror(errno));
    return 1;
}

static int copy_contents(int from, int to, const char *source, const char *target)
{
    ssize_t got;
    while ((got = read(from, buffer, sizeof buffer)) > 0) {
        for (ssize_t done = 0, part; done < got; done += part) {
            part = write(to, buffer + done, got - done);
            if (part <= 0)
                return complain(target);
        }
    }
    return got < 0 ? complain(source) : 0;
}

static int copy_file(const char *source, const char *target, const struct stat *status)
{
    int from = open(source, O_RDONLY);
    if (from < 0)
        return complain(source);
    int to = open(target, O_WRONLY | O_CREAT | O_TRUNC, status->st_mode & 0777);
    int failed = to < 0 ? complain(target) : copy_contents(from, to, source, target);
    close(from);
    if (to >= 0 && close(to))
        failed = complain(target);
    return failed;
}

static int copy(const char *source, const char *target, int depth);

static int copy_directory(const char *source, const char *target, const struct stat *status, int depth)
{
    DIR *directory = opendir(source);
    struct dirent *entry;
    int failed = 0, error = 0;
    if (!directory || depth > DEPTH)
        return complain(source);
    if (mkdir(target, status->st_mode & 0777) && errno != EEXIST)
        failed = complain(target);
    while (!failed && (entry = next_entry(directory, &error))) {
        char from[PATH_BYTES], to[PATH_BYTES];
        snprintf(from, sizeof from, "%s/%s", source, entry->d_name);
        snprintf(to, sizeof to, "%s/%s", target, entry->d_name);
        failed |= copy(from, to, depth + 1);
    }
    closedir(directory);
    if (error) {
        errno = error;
        failed = complain(source);
    }
    return failed;
}

static int copy(const char *source, const char *target, int depth)
{
    struct stat from, to;
    if ((recursive ? lstat : stat)(source, &from))
        return complain(source);
    if (stat(target, &to) == 0 && to.st_dev == from.st_dev && to.st_ino == from.st_ino) {
        fprintf(stderr, "cp: %s and %s are the same file\n", source, target);
        return 1;
    }
    if (S_ISDIR(from.st_mode)) {
        if (recursive)
            return copy_directory(source, target, &from, depth);
        fprintf(stderr, "cp: %s is a directory\n", source);
        return 1;
    }
    if (S_ISLNK(from.st_mode)) {
        char contents[PATH_BYTES];
        ssize_t length = readlink(source, contents, sizeof contents - 1);
        contents[length > 0 ? length : 0] = 0;
        return symlink(contents, target) ? complain(target) : 0;
    }
    if (recursive && !S_ISREG(from.st_mode))
        return mknod(target, from.st_mode, from.st_rdev) ? complain(target) : 0;
    return copy_file(source, target, &from);
}

int main(int argc, char **argv)
{
    struct stat status;
    int option, failed = 0;
    while ((option = getopt(argc, argv, "rR")) != -1) {
        if (option == '?')
            return 2;
        recursive = 1;
    }
    if (argc - optind < 2) {
        fprintf(stderr, "usage: cp [-r] FROM... TO\n");
        return 2;
    }
    const char *target = argv[argc - 1];
    int into = stat(target, &status) == 0 && S_ISDIR(status.st_mode);
    if (argc - optind > 2 && !into) {
        fprintf(stderr, "cp: %s is no directory\n", target);
        return 1;
    }
    for (int i = optind; i < argc - 1; i++) {
        const char *slash = strrchr(argv[i], '/');
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", target, slash && slash[1] ? slash + 1 : argv[i]);
        failed |= copy(argv[i], into ? path : target, 0);
    }
    return failed;
}
