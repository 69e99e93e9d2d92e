/* Open files. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/directory.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>
#include "request.h"

/* The mask is the process's own: FS gets modes without its bits. It is passed on by a fork, not by an
   exec. */
static mode_t mask = 022;

mode_t umask(mode_t new)
{
    mode_t old = mask;
    mask = new & 0777;
    return old;
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list list;
        va_start(list, flags);
        mode = va_arg(list, mode_t);
        va_end(list);
    }
    return path_value(FS_OPEN, path, flags, mode & ~mask);
}

int creat(const char *path, mode_t mode)
{
    return open(path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}

int close(int fd)
{
    return fs_call(FS_CLOSE, fd, 0, 0);
}

ssize_t read(int fd, void *to, size_t bytes)
{
    return fs_value(FS_READ, fd, WORD(to), bytes);
}

ssize_t write(int fd, const void *from, size_t bytes)
{
    int result = fs_value(FS_WRITE, fd, WORD(from), bytes);
    /* FS sends no signals. */
    if (result < 0 && errno == EPIPE)
        raise(SIGPIPE), errno = EPIPE;
    return result;
}

ssize_t pread(int fd, void *to, size_t bytes, off_t offset)
{
    struct message m = {.w = {fd, WORD(to), bytes, offset}};
    return request(SERVICE(FS), FS_READ_AT, &m) < 0 ? -1 : (ssize_t)m.w[0];
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    struct message m = {.w = {fd, WORD(from), bytes, offset}};
    return request(SERVICE(FS), FS_WRITE_AT, &m) < 0 ? -1 : (ssize_t)m.w[0];
}

off_t lseek(int fd, off_t offset, int whence)
{
    return fs_value(FS_SEEK, fd, offset, whence);
}

int dup(int fd)
{
    return fs_value(FS_DUP, fd, -1, 0);
}

int dup2(int fd, int to)
{
    if (to < 0) {
        errno = EBADF;
        return -1;
    }
    return fs_value(FS_DUP, fd, to, 0);
}

int pipe(int fds[2])
{
    struct message m = {.w = {0}};
    if (request(SERVICE(FS), FS_PIPE, &m) < 0)
        return -1;
    fds[0] = m.w[0];
    fds[1] = m.w[1];
    return 0;
}

int fcntl(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    uint32_t argument = command == F_GETFD || command == F_GETFL ? 0 : va_arg(list, uint32_t);
    va_end(list);
    return fs_value(FS_FCNTL, fd, command, argument);
}

int ftruncate(int fd, off_t bytes)
{
    return fs_call(FS_TRUNCATE, fd, bytes, 0);
}

int fstat(int fd, struct stat *to)
{
    return fs_call(FS_FSTAT, fd, WORD(to), 0);
}

ssize_t read_directory(int fd, void *entries, size_t bytes)
{
    return fs_value(FS_DIRECTORY, fd, WORD(entries), bytes);
}

/* FS writes each file as a whole or not at all: there is one request for all of them. */
int fsync(int fd)
{
    struct stat file;
    if (fstat(fd, &file) < 0)
        return -1;
    return fs_call(FS_SYNC, 0, 0, 0);
}

void sync(void)
{
    fs_call(FS_SYNC, 0, 0, 0);
}

int ioctl(int fd, unsigned long number, ...)
{
    va_list list;
    va_start(list, number);
    uint32_t argument = va_arg(list, uint32_t);
    va_end(list);
    return fs_value(FS_IOCTL, fd, number, argument);
}

int terminal_get(int fd, struct terminal *state)
{
    return ioctl(fd, TERMINAL_GET, state) < 0 ? -1 : 0;
}

int terminal_set(int fd, const struct terminal *state)
{
    return ioctl(fd, TERMINAL_SET, state) < 0 ? -1 : 0;
}

int isatty(int fd)
{
    struct terminal state;
    return terminal_get(fd, &state) == 0;
}

pid_t tcgetpgrp(int fd)
{
    struct terminal state;
    return terminal_get(fd, &state) < 0 ? -1 : (pid_t)state.group;
}

int tcsetpgrp(int fd, pid_t group)
{
    struct terminal state;
    if (terminal_get(fd, &state) < 0)
        return -1;
    state.group = group;
    return terminal_set(fd, &state);
}

static int count_bits(uint32_t bits)
{
    int count = 0;
    for (; bits; bits &= bits - 1)
        count++;
    return count;
}

/* Microseconds of a limit; those that do not fit into a message are as good as none. */
static uint32_t limit_of(const struct timeval *limit)
{
    if (!limit || limit->tv_sec < 0 || limit->tv_sec >= 2000)
        return -1;
    return (uint32_t)limit->tv_sec * 1000000 + (uint32_t)limit->tv_usec;
}

int select(int count, fd_set *to_read, fd_set *to_write, fd_set *exceptions, struct timeval *limit)
{
    uint32_t valid = count >= DESCRIPTORS ? ~0u : (1u << count) - 1;
    struct message m = {.w = {to_read ? to_read->bits & valid : 0, to_write ? to_write->bits & valid : 0,
                              limit_of(limit)}};
    if (request(SERVICE(FS), FS_SELECT, &m) < 0)
        return -1;
    if (to_read)
        to_read->bits = m.w[0];
    if (to_write)
        to_write->bits = m.w[1];
    if (exceptions)
        exceptions->bits = 0;
    return count_bits(m.w[0]) + count_bits(m.w[1]);
}
