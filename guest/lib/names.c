/* Names of files, and file systems. */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/time.h>
#include <unistd.h>
#include <utime.h>
#include "request.h"

static int done(int result)
{
    return result < 0 ? -1 : 0;
}

int stat(const char *path, struct stat *to)
{
    return path_call(FS_STAT, path, WORD(to), 0);
}

int lstat(const char *path, struct stat *to)
{
    return path_call(FS_LSTAT, path, WORD(to), 0);
}

int statfs(const char *path, struct statfs *to)
{
    return path_call(FS_STATFS, path, WORD(to), 0);
}

int access(const char *path, int mode)
{
    return path_call(FS_ACCESS, path, mode, 0);
}

int chmod(const char *path, mode_t mode)
{
    return path_call(FS_CHMOD, path, mode, 0);
}

/* The mask without changing it. */
static mode_t current_mask(void)
{
    mode_t mask = umask(0);
    umask(mask);
    return mask;
}

int mkdir(const char *path, mode_t mode)
{
    return path_call(FS_MKDIR, path, mode & ~current_mask(), 0);
}

int mknod(const char *path, mode_t mode, dev_t device)
{
    return path_call(FS_MKNOD, path, mode & ~current_mask(), device);
}

int mkfifo(const char *path, mode_t mode)
{
    return mknod(path, (mode & 07777) | S_IFIFO, 0);
}

int unlink(const char *path)
{
    return path_call(FS_UNLINK, path, 0, 0);
}

int rmdir(const char *path)
{
    return path_call(FS_RMDIR, path, 0, 0);
}

int chdir(const char *path)
{
    return path_call(FS_CHDIR, path, 0, 0);
}

int link(const char *path, const char *another)
{
    return path_call(FS_LINK, path, WORD(another), strlen(another));
}

int symlink(const char *contents, const char *path)
{
    return path_call(FS_SYMLINK, contents, WORD(path), strlen(path));
}

int rename(const char *path, const char *new)
{
    return path_call(FS_RENAME, path, WORD(new), strlen(new));
}

ssize_t readlink(const char *path, char *to, size_t bytes)
{
    return path_value(FS_READLINK, path, WORD(to), bytes);
}

char *getcwd(char *to, size_t bytes)
{
    if (!to || bytes == 0) {
        errno = EINVAL;
        return NULL;
    }
    int length = fs_value(FS_GETCWD, WORD(to), bytes - 1, 0);
    if (length < 0)
        return NULL;
    to[length] = 0;
    return to;
}

int truncate(const char *path, off_t bytes)
{
    int fd = open(path, O_WRONLY);
    if (fd < 0)
        return -1;
    int result = ftruncate(fd, bytes);
    close(fd);
    return result;
}

int mount(const char *device, const char *directory, const char *type, unsigned long flags, const void *data)
{
    (void)data;
    struct message m = {.w = {WORD(device), strlen(device), WORD(directory), strlen(directory), flags}};
    size_t length = strlen(type);
    memcpy(&m.w[5], type, length < 4 ? length : 4);
    return done(request(SERVICE(FS), FS_MOUNT, &m));
}

int umount(const char *directory)
{
    return path_call(FS_UMOUNT, directory, 0, 0);
}

int utime(const char *path, const struct utimbuf *times)
{
    time_t seconds = times ? times->modtime : time(NULL);
    return path_call(FS_UTIME, path, (uint32_t)seconds, 0);
}

int utimes(const char *path, const struct timeval times[2])
{
    time_t seconds = times ? times[1].tv_sec : time(NULL);
    return path_call(FS_UTIME, path, (uint32_t)seconds, 0);
}
