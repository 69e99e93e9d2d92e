/* printf and its relatives. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "file.h"
#include "format.h"

static void put_file(struct sink *sink, const char *text, size_t bytes)
{
    FILE *f = sink->to;

    file_append(f, text, bytes);
    if (f->mode == _IOLBF && memchr(text, '\n', bytes))
        sink->room = 1;
}

int vfprintf(FILE *f, const char *text, va_list list)
{
    struct sink sink = { put_file, 0, f, 0 };

    if (file_start_writing(f))
        return -1;
    format(&sink, text, list);
    if (f->mode == _IONBF || sink.room)
        fflush(f);
    return f->flags & FILE_ERROR ? -1 : (int)sink.total;
}

static void put_string(struct sink *sink, const char *text, size_t bytes)
{
    size_t part = bytes < sink->room ? bytes : sink->room;
    char *to = sink->to;

    memcpy(to, text, part);
    sink->to = to + part;
    sink->room -= part;
}

int vsnprintf(char *to, size_t bytes, const char *text, va_list list)
{
    struct sink sink = { put_string, 0, to, bytes ? bytes - 1 : 0 };

    format(&sink, text, list);
    if (bytes)
        *(char *)sink.to = 0;
    return sink.total;
}

int vsprintf(char *to, const char *text, va_list list)
{
    return vsnprintf(to, 0x7fffffff, text, list);
}

int vasprintf(char **to, const char *text, va_list list)
{
    va_list again;
    int length;

    va_copy(again, list);
    length = vsnprintf(NULL, 0, text, again);
    va_end(again);
    *to = malloc(length + 1);
    return *to ? vsnprintf(*to, length + 1, text, list) : -1;
}

static void put_descriptor(struct sink *sink, const char *text, size_t bytes)
{
    if (sink->room && write(*(int *)sink->to, text, bytes) < 0)
        sink->room = 0;
}

int vdprintf(int descriptor, const char *text, va_list list)
{
    struct sink sink = { put_descriptor, 0, &descriptor, 1 };

    format(&sink, text, list);
    return sink.room ? (int)sink.total : -1;
}

int vprintf(const char *text, va_list list)
{
    return vfprintf(stdout, text, list);
}

int printf(const char *text, ...)
{
    va_list list;
    int result;

    va_start(list, text);
    result = vfprintf(stdout, text, list);
    va_end(list);
    return result;
}

int fprintf(FILE *f, const char *text, ...)
{
    va_list list;
    int result;

    va_start(list, text);
    result = vfprintf(f, text, list);
    va_end(list);
    return result;
}

int dprintf(int descriptor, const char *text, ...)
{
    va_list list;
    int result;

    va_start(list, text);
    result = vdprintf(descriptor, text, list);
    va_end(list);
    return result;
}

int sprintf(char *to, const char *text, ...)
{
    va_list list;
    int result;

    va_start(list, text);
    result = vsprintf(to, text, list);
    va_end(list);
    return result;
}

int snprintf(char *to, size_t bytes, const char *text, ...)
{
    va_list list;
    int result;

    va_start(list, text);
    result = vsnprintf(to, bytes, text, list);
    va_end(list);
    return result;
}

int asprintf(char **to, const char *text, ...)
{
    va_list list;
    int result;

    va_start(list, text);
    result = vasprintf(to, text, list);
    va_end(list);
    return result;
}

void perror(const char *text)
{
    int error = errno;

    if (text && *text)
        fprintf(stderr, "%s: ", text);
    fprintf(stderr, "%s\n", strerror(error));
}
