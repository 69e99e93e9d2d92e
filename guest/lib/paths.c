/* Names of files: temporary ones, and paths without links and dots. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ATTEMPTS 1000u

/* Makes a file or directory whose name is the pattern with other letters for its last six, which are
   XXXXXX. */
static int make_temporary(char *pattern, int (*make)(const char *name))
{
    size_t length = strlen(pattern);
    unsigned first = getpid() * ATTEMPTS;

    if (length < 6 || strcmp(pattern + length - 6, "XXXXXX")) {
        errno = EINVAL;
        return -1;
    }
    for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
        unsigned rest = first + attempt;
        int result;

        for (int i = 1; i <= 6; i++, rest /= 26)
            pattern[length - i] = 'a' + rest % 26;
        result = make(pattern);
        if (result >= 0 || errno != EEXIST)
            return result;
    }
    return -1;
}

static int make_file(const char *name)
{
    return open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
}

static int make_directory(const char *name)
{
    return mkdir(name, 0700);
}

int mkstemp(char *pattern)
{
    return make_temporary(pattern, make_file);
}

char *mkdtemp(char *pattern)
{
    return make_temporary(pattern, make_directory) < 0 ? NULL : pattern;
}

FILE *tmpfile(void)
{
    char path[] = "/tmp/tXXXXXX";
    int descriptor = mkstemp(path);

    if (descriptor < 0)
        return NULL;
    unlink(path);
    return fdopen(descriptor, "w+");
}

int remove(const char *path)
{
    if (!unlink(path))
        return 0;
    return errno == EISDIR || errno == EPERM ? rmdir(path) : -1;
}

/* Appends a part of a path; ".." takes the last one away. */
static int append(char *to, const char *part, size_t length)
{
    size_t used = strlen(to);

    if (length == 0 || (length == 1 && *part == '.'))
        return 0;
    if (length == 2 && part[0] == '.' && part[1] == '.') {
        char *slash = strrchr(to, '/');

        if (slash)
            *slash = 0;
        return 0;
    }
    if (used + length + 2 > PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    to[used] = '/';
    memcpy(to + used + 1, part, length);
    to[used + 1 + length] = 0;
    return 0;
}

char *realpath(const char *path, char *resolved)
{
    char rest[PATH_MAX], link[PATH_MAX], to[PATH_MAX] = "";
    int links = 0;

    if (strlcpy(rest, path, sizeof rest) >= sizeof rest) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    if (*rest != '/' && (!getcwd(to, sizeof to) || !strcmp(to, "/")))
        *to = 0;
    while (*rest) {
        size_t skip = strspn(rest, "/"), length = strcspn(rest + skip, "/"), before = strlen(to);
        ssize_t bytes;

        if (append(to, rest + skip, length))
            return NULL;
        memmove(rest, rest + skip + length, strlen(rest + skip + length) + 1);
        bytes = readlink(to, link, sizeof link - 1);
        if (bytes < 0) {
            if (errno == EINVAL || !*to)
                continue;
            return NULL;
        }
        if (++links > 16 || bytes + strlen(rest) >= sizeof rest) {
            errno = ELOOP;
            return NULL;
        }
        to[*link == '/' ? 0 : before] = 0;
        memmove(rest + bytes, rest, strlen(rest) + 1);
        memcpy(rest, link, bytes);
    }
    if (!*to)
        strcpy(to, "/");
    return resolved ? strcpy(resolved, to) : strdup(to);
}
