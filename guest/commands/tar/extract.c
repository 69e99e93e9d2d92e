/* Extracts members. Nothing leaves the current directory, whatever an archive says: names that go up are
   refused, names from the root begin here, and no member goes through a symbolic link. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <tern/command.h>
#include <unistd.h>
#include <utime.h>
#include "tar.h"

/* Directories get their times and modes at the end: what comes into them changes the first and needs the
   others. */
static struct directory {
    char *path;
    unsigned mode;
    time_t time;
} *directories;
static size_t directory_count;

/* The name without slashes in front; NULL if a part of it goes up, or it is too long or empty. */
static const char *inside(const char *name)
{
    while (*name == '/')
        name++;
    if (strlen(name) >= NAME_BYTES_MAX)
        return NULL;
    for (const char *part = name; *part;) {
        size_t length = strcspn(part, "/");
        if (length == 2 && memcmp(part, "..", 2) == 0)
            return NULL;
        part += length + (part[length] == '/');
    }
    return *name ? name : ".";
}

/* Makes the directories above the file. Returns whether that failed; a symbolic link is no directory. */
static int make_above(const char *path, int makes)
{
    struct stat status;
    char *part = strdup(path);
    int wrong = part == NULL;
    for (char *slash = part; !wrong && (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        if (lstat(part, &status) == 0) {
            errno = S_ISLNK(status.st_mode) ? ELOOP : ENOTDIR;
            wrong = !S_ISDIR(status.st_mode);
        } else {
            wrong = !makes || mkdir(part, 0777) != 0;
        }
        *slash = '/';
    }
    free(part);
    return wrong;
}

static int extract_file(FILE *archive, const struct member *member, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    FILE *to = fd >= 0 ? fdopen(fd, "w") : NULL;
    int error = errno;
    if (member_contents(archive, member, to) && to)
        error = errno, complain_errno(member->name);
    if (to && fclose(to))
        complain_errno(member->name);
    if (!to)
        complain(member->name, strerror(error));
    return !to;
}

static int extract_directory(const struct member *member, const char *path)
{
    struct stat status;
    int is_there = lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
    if (!is_there && mkdir(path, 0777)) {
        complain_errno(member->name);
        return 1;
    }
    directories = need(directories, (directory_count + 1) * sizeof *directories);
    directories[directory_count++] = (struct directory){strdup(path), member->mode, (time_t)member->time};
    return 0;
}

/* Another name of a file that is inside, too. */
static int extract_link(const struct member *member, const char *path)
{
    const char *to = inside(member->link);
    if (!to || make_above(to, 0)) {
        complain(member->name, "it is a link to what is not inside; it is left out");
        return 1;
    }
    if (link(to, path)) {
        complain_errno(member->name);
        return 1;
    }
    return 0;
}

static int extract_other(const struct member *member, const char *path)
{
    static const unsigned types[] = {['3' - '0'] = S_IFCHR, ['4' - '0'] = S_IFBLK, ['6' - '0'] = S_IFIFO};
    int wrong;
    if (member->type == '2')
        wrong = symlink(member->link, path);
    else
        wrong = mknod(path, types[member->type - '0'] | 0600, member->type == '6' ? 0 : member->device);
    if (wrong)
        complain_errno(member->name);
    return wrong;
}

static void set_time(const char *path, int64_t time)
{
    struct utimbuf times = {(time_t)time, (time_t)time};
    utime(path, &times);
}

/* What is there makes room, unless both are directories. */
static void make_room(const struct member *member, const char *path)
{
    struct stat status;
    if (lstat(path, &status))
        return;
    if (!S_ISDIR(status.st_mode))
        unlink(path);
    else if (member->type != '5')
        rmdir(path); /* unless something is in it, of which the creation that fails will tell */
}

void extract_member(FILE *archive, const struct member *member)
{
    const char *path = inside(member->name);
    char type = member->type == '7' ? '0' : member->type; /* a contiguous file is a file, too */
    if (!strchr("0123456", type)) {
        complain(member->name, "it is of a kind that is not known; it is left out");
        path = NULL;
    } else if (!path) {
        complain(member->name, "its name leads out of the directory; it is left out");
    } else if (make_above(path, 1)) {
        complain(member->name, errno == ELOOP ? "it would go through a symbolic link; it is left out"
                                              : strerror(errno));
        path = NULL;
    }
    if (!path) {
        member_contents(archive, member, NULL);
        return;
    }
    char *trimmed = strdup(path);
    for (size_t length = strlen(trimmed); length > 1 && trimmed[length - 1] == '/';)
        trimmed[--length] = 0;
    if (verbose)
        printf("%s\n", member->name);
    make_room(member, trimmed);
    int wrong = type == '0' ? extract_file(archive, member, trimmed)
        : type == '1' ? extract_link(member, trimmed)
        : type == '5' ? extract_directory(member, trimmed)
        : extract_other(member, trimmed);
    if (!wrong && strchr("0346", type)) {
        chmod(trimmed, member->mode & 0777);
        set_time(trimmed, member->time);
    }
    free(trimmed);
}

void extract_end(void)
{
    struct stat status;
    while (directory_count) {
        struct directory *one = &directories[--directory_count];
        /* It may have made room for another member. */
        if (lstat(one->path, &status) == 0 && S_ISDIR(status.st_mode)) {
            chmod(one->path, one->mode & 0777);
            set_time(one->path, one->time);
        }
        free(one->path);
    }
}
