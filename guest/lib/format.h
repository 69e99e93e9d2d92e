/* Formatted text, to wherever `put` takes it. */

#ifndef FORMAT_H
#define FORMAT_H

#include <stdarg.h>
#include <stddef.h>

struct sink {
    void (*put)(struct sink *sink, const char *text, size_t bytes);
    size_t total;            /* bytes so far */
    void *to;
    size_t room;
};

void format(struct sink *sink, const char *text, va_list list);

#endif
