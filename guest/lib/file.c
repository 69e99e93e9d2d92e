/* Buffered files: opening, filling, writing, closing. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <tern/files.h>
#include <unistd.h>
#include "file.h"

extern int (*flush_files)(void);

static char in_buffer[BUFSIZ], out_buffer[BUFSIZ], error_buffer[256];
static struct file in = { 0, FILE_READ | FILE_STATIC, _IOFBF, in_buffer, BUFSIZ, 0, 0, 0, NULL };
static struct file out = { 1, FILE_WRITE | FILE_STATIC, -1, out_buffer, BUFSIZ, 0, 0, 0, NULL };
static struct file error = { 2, FILE_WRITE | FILE_STATIC, _IONBF, error_buffer, 256, 0, 0, 0, NULL };
static struct file *opened;

FILE *const stdin = &in;
FILE *const stdout = &out;
FILE *const stderr = &error;

static int flush_one(FILE *f)
{
    size_t bytes = f->at, ahead = f->end - f->at;

    if (f->flags & FILE_WRITING) {
        f->at = 0;
        if (write_all(f->descriptor, f->buffer, bytes)) {
            f->flags |= FILE_ERROR;
            return EOF;
        }
    } else if (ahead) {
        f->at = f->end = 0;
        lseek(f->descriptor, -(off_t)ahead, SEEK_CUR);
    }
    return 0;
}

int fflush(FILE *f)
{
    int result = 0;

    if (f)
        return flush_one(f);
    if (out.flags & FILE_WRITING)
        result |= flush_one(&out);
    for (f = opened; f; f = f->next)
        if (f->flags & FILE_WRITING)
            result |= flush_one(f);
    return result;
}

static int flush_all(void)
{
    fflush(NULL);
    if (!ferror(&out))
        return 0;
    fputs("standard output: not all could be written\n", &error);
    return 1;
}

int file_start_writing(FILE *f)
{
    if (!(f->flags & FILE_WRITE)) {
        f->flags |= FILE_ERROR;
        errno = EBADF;
        return EOF;
    }
    if (f->flags & FILE_WRITING)
        return 0;
    flush_one(f);
    f->flags |= FILE_WRITING;
    f->flags &= ~FILE_EOF;
    f->at = f->end = 0;
    if (f->mode < 0)
        f->mode = isatty(f->descriptor) ? _IOLBF : _IOFBF;
    flush_files = flush_all;
    return 0;
}

int file_fill(FILE *f)
{
    ssize_t bytes;

    if (!(f->flags & FILE_READ)) {
        f->flags |= FILE_ERROR;
        errno = EBADF;
        return EOF;
    }
    if (f->flags & FILE_WRITING) {
        flush_one(f);
        f->flags &= ~FILE_WRITING;
    }
    /* Whoever waits for an answer wants to see the question. */
    if (f == stdin && out.flags & FILE_WRITING && out.mode == _IOLBF)
        flush_one(&out);
    bytes = read(f->descriptor, f->buffer, f->mode == _IONBF ? 1 : f->room);
    f->at = 0;
    f->end = bytes > 0 ? bytes : 0;
    if (bytes > 0)
        return 0;
    f->flags |= bytes ? FILE_ERROR : FILE_EOF;
    return EOF;
}

size_t file_append(FILE *f, const char *from, size_t bytes)
{
    size_t left = bytes;

    while (left) {
        size_t part = f->room - f->at < left ? f->room - f->at : left;

        memcpy(f->buffer + f->at, from, part);
        f->at += part;
        from += part;
        left -= part;
        if (f->at == f->room && flush_one(f))
            break;
    }
    return bytes - left;
}

int file_settle(FILE *f, const char *from, size_t bytes)
{
    if (f->mode == _IONBF || (f->mode == _IOLBF && memchr(from, '\n', bytes)))
        return flush_one(f);
    return f->flags & FILE_ERROR ? EOF : 0;
}

int file_flags(const char *mode)
{
    int plus = strchr(mode, '+') != NULL, flags;

    switch (*mode) {
    case 'r':
        flags = plus ? O_RDWR : O_RDONLY;
        break;
    case 'w':
        flags = (plus ? O_RDWR : O_WRONLY) | O_CREAT | O_TRUNC;
        break;
    case 'a':
        flags = (plus ? O_RDWR : O_WRONLY) | O_CREAT | O_APPEND;
        break;
    default:
        errno = EINVAL;
        return -1;
    }
    return flags | (strchr(mode, 'e') ? O_CLOEXEC : 0) | (strchr(mode, 'x') ? O_EXCL : 0);
}

static unsigned access_of(int flags)
{
    unsigned access = (flags & 3) == O_RDWR     ? FILE_READ | FILE_WRITE
                      : (flags & 3) == O_WRONLY ? FILE_WRITE
                                                : FILE_READ;

    return access | (flags & O_APPEND ? FILE_APPEND : 0);
}

FILE *fdopen(int descriptor, const char *mode)
{
    int flags = file_flags(mode);
    FILE *f;

    if (flags < 0)
        return NULL;
    f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->buffer = malloc(BUFSIZ);
    if (!f->buffer) {
        free(f);
        return NULL;
    }
    f->descriptor = descriptor;
    f->flags = access_of(flags) | FILE_OWN_BUFFER;
    f->mode = -1;
    f->room = BUFSIZ;
    f->next = opened;
    opened = f;
    return f;
}

FILE *fopen(const char *path, const char *mode)
{
    int flags = file_flags(mode), descriptor;
    FILE *f;

    if (flags < 0)
        return NULL;
    descriptor = open(path, flags, 0666);
    if (descriptor < 0)
        return NULL;
    f = fdopen(descriptor, mode);
    if (!f)
        close(descriptor);
    return f;
}

FILE *freopen(const char *path, const char *mode, FILE *f)
{
    int flags = file_flags(mode), descriptor;

    flush_one(f);
    descriptor = flags < 0 ? -1 : open(path, flags, 0666);
    if (descriptor < 0)
        return NULL;
    if (descriptor != f->descriptor) {
        dup2(descriptor, f->descriptor);
        close(descriptor);
    }
    f->flags = access_of(flags) | (f->flags & (FILE_OWN_BUFFER | FILE_STATIC));
    f->at = f->end = 0;
    return f;
}

int fclose(FILE *f)
{
    struct file **place;
    int result = flush_one(f);

    if (close(f->descriptor) < 0)
        result = EOF;
    for (place = &opened; *place; place = &(*place)->next)
        if (*place == f) {
            *place = f->next;
            break;
        }
    if (f->flags & FILE_OWN_BUFFER)
        free(f->buffer);
    if (f->flags & FILE_STATIC)
        f->flags = FILE_STATIC;
    else
        free(f);
    return result;
}

int setvbuf(FILE *f, char *buffer, int mode, size_t bytes)
{
    if (buffer && bytes) {
        if (f->flags & FILE_OWN_BUFFER)
            free(f->buffer);
        f->flags &= ~FILE_OWN_BUFFER;
        f->buffer = buffer;
        f->room = bytes;
    }
    f->mode = mode;
    return 0;
}

void setbuf(FILE *f, char *buffer)
{
    setvbuf(f, buffer, buffer ? _IOFBF : _IONBF, BUFSIZ);
}

void setlinebuf(FILE *f)
{
    setvbuf(f, NULL, _IOLBF, 0);
}

int fseeko(FILE *f, off_t offset, int whence)
{
    if (flush_one(f))
        return -1;
    f->at = f->end = 0;
    f->flags &= ~(FILE_EOF | FILE_WRITING);
    return lseek(f->descriptor, offset, whence) < 0 ? -1 : 0;
}

int fseek(FILE *f, long offset, int whence)
{
    return fseeko(f, offset, whence);
}

off_t ftello(FILE *f)
{
    off_t position = lseek(f->descriptor, 0, SEEK_CUR);

    if (position < 0)
        return -1;
    return f->flags & FILE_WRITING ? position + (off_t)f->at : position - (off_t)(f->end - f->at);
}

long ftell(FILE *f)
{
    return ftello(f);
}

void rewind(FILE *f)
{
    fseeko(f, 0, SEEK_SET);
    clearerr(f);
}

int fileno(FILE *f)
{
    return f->descriptor;
}

int feof(FILE *f)
{
    return (f->flags & FILE_EOF) != 0;
}

int ferror(FILE *f)
{
    return (f->flags & FILE_ERROR) != 0;
}

void clearerr(FILE *f)
{
    f->flags &= ~(FILE_EOF | FILE_ERROR);
}
