/* Characters, lines and blocks of buffered files. */

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "file.h"

int fgetc(FILE *f)
{
    if ((f->flags & FILE_WRITING || f->at == f->end) && file_fill(f))
        return EOF;
    return (unsigned char)f->buffer[f->at++];
}

int getc(FILE *f)
{
    return fgetc(f);
}

int getchar(void)
{
    return fgetc(stdin);
}

int ungetc(int c, FILE *f)
{
    if (c == EOF || f->flags & FILE_WRITING || !(f->flags & FILE_READ))
        return EOF;
    if (f->at == 0) {
        if (f->end == f->room)
            return EOF;
        memmove(f->buffer + 1, f->buffer, f->end++);
        f->at = 1;
    }
    f->buffer[--f->at] = c;
    f->flags &= ~FILE_EOF;
    return (unsigned char)c;
}

size_t fread(void *to, size_t bytes, size_t count, FILE *f)
{
    size_t total, left;
    char *next = to;

    if (!bytes || count > SIZE_MAX / bytes)
        return 0;
    total = left = bytes * count;
    while (left) {
        size_t part;

        if ((f->flags & FILE_WRITING || f->at == f->end) && file_fill(f))
            break;
        part = f->end - f->at < left ? f->end - f->at : left;
        memcpy(next, f->buffer + f->at, part);
        f->at += part;
        next += part;
        left -= part;
    }
    return (total - left) / bytes;
}

size_t fwrite(const void *from, size_t bytes, size_t count, FILE *f)
{
    size_t done;

    if (!bytes || count > SIZE_MAX / bytes || file_start_writing(f))
        return 0;
    done = file_append(f, from, bytes * count);
    if (file_settle(f, from, done))
        return 0;
    return done / bytes;
}

int fputc(int c, FILE *f)
{
    char byte = c;

    return fwrite(&byte, 1, 1, f) == 1 ? (unsigned char)c : EOF;
}

int putc(int c, FILE *f)
{
    return fputc(c, f);
}

int putchar(int c)
{
    return fputc(c, stdout);
}

int fputs(const char *s, FILE *f)
{
    size_t length = strlen(s);

    return length == 0 || fwrite(s, 1, length, f) == length ? 0 : EOF;
}

int puts(const char *s)
{
    return fputs(s, stdout) || fputc('\n', stdout) == EOF ? EOF : 0;
}

char *fgets(char *line, int bytes, FILE *f)
{
    char *next = line;
    int c = 0;

    while (bytes-- > 1 && c != '\n') {
        c = fgetc(f);
        if (c == EOF)
            break;
        *next++ = c;
    }
    if (next == line)
        return NULL;
    *next = 0;
    return line;
}

ssize_t getdelim(char **line, size_t *bytes, int delimiter, FILE *f)
{
    size_t used = 0;

    for (;;) {
        size_t there, room;
        char *end, *larger;

        if ((f->flags & FILE_WRITING || f->at == f->end) && file_fill(f))
            break;
        there = f->end - f->at;
        end = memchr(f->buffer + f->at, delimiter, there);
        if (end)
            there = end + 1 - (f->buffer + f->at);
        if (used + there >= INT32_MAX / 2) {
            errno = ENOMEM;
            return -1;
        }
        if (!*line || used + there + 1 > *bytes) {
            room = used + used / 2 + there + 120;
            larger = realloc(*line, room);
            if (!larger)
                return -1;
            *line = larger;
            *bytes = room;
        }
        memcpy(*line + used, f->buffer + f->at, there);
        f->at += there;
        used += there;
        if (end)
            break;
    }
    if (!used)
        return -1;
    (*line)[used] = 0;
    return used;
}

ssize_t getline(char **line, size_t *bytes, FILE *f)
{
    return getdelim(line, bytes, '\n', f);
}
