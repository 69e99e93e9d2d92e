/* scanf and its relatives. */

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "file.h"

struct source {
    FILE *f;                 /* or NULL: */
    const char *text;
    int count;               /* characters taken */
};

struct directive {
    int width, discard;
    char length, kind;
};

static int take(struct source *s)
{
    int c = s->f ? fgetc(s->f) : *s->text ? (unsigned char)*s->text++ : EOF;

    s->count += c != EOF;
    return c;
}

static void give_back(struct source *s, int c)
{
    if (c == EOF)
        return;
    s->count--;
    if (s->f)
        ungetc(c, s->f);
    else
        s->text--;
}

static int skip_space(struct source *s)
{
    int c;

    do
        c = take(s);
    while (isspace(c));
    give_back(s, c);
    return c;
}

static const char *parse(const char *format, struct directive *d)
{
    memset(d, 0, sizeof *d);
    if (*format == '*') {
        d->discard = 1;
        format++;
    }
    for (; isdigit((unsigned char)*format); format++)
        if (d->width < 1000000)
            d->width = d->width * 10 + *format - '0';
    for (; *format && strchr("hljztL", *format); format++) {
        if (*format == 'l' && d->length == 'l')
            d->length = 'q';
        else if (*format == 'h' && d->length == 'h')
            d->length = 'c';
        else
            d->length = *format == 'j' ? 'q' : *format == 'z' || *format == 't' ? 'l' : *format;
    }
    d->kind = *format;
    return *format ? format + 1 : format;
}

static void store_integer(const struct directive *d, uint64_t value, void *to)
{
    if (d->discard)
        return;
    if (d->length == 'q')
        *(uint64_t *)to = value;
    else if (d->length == 'h')
        *(uint16_t *)to = value;
    else if (d->length == 'c')
        *(uint8_t *)to = value;
    else
        *(uint32_t *)to = value;
}

/* Collects the characters that a number can have, as many as the text can hold. */
static int collect(struct source *s, const struct directive *d, const char *allowed, char *text, int room)
{
    int c, length = 0, most = d->width && d->width < room - 1 ? d->width : room - 1;

    while (length < most) {
        c = take(s);
        if (c == EOF || !strchr(allowed, c)) {
            give_back(s, c);
            break;
        }
        /* A sign begins a number or follows an exponent's letter; an x follows a 0. */
        if (((c == '+' || c == '-') && length && (text[length - 1] | 32) != 'e') ||
            ((c | 32) == 'x' && (!length || text[length - 1] != '0'))) {
            give_back(s, c);
            break;
        }
        text[length++] = c;
    }
    text[length] = 0;
    return length;
}

static int scan_integer(struct source *s, const struct directive *d, void *to)
{
    char text[64], *end;
    int base = d->kind == 'i' ? 0 : d->kind == 'o' ? 8 : strchr("xXp", d->kind) ? 16 : 10;
    const char *allowed = base == 10  ? "+-0123456789"
                          : base == 8 ? "+-01234567"
                                      : "+-0123456789abcdefABCDEFxX";
    uint64_t value;

    if (!collect(s, d, allowed, text, sizeof text))
        return 0;
    value = text[0] == '-' ? (uint64_t)strtoll(text, &end, base) : strtoull(text, &end, base);
    if (end == text)
        return 0;
    store_integer(d, value, to);
    return 1;
}

static int scan_double(struct source *s, const struct directive *d, void *to)
{
    char text[128], *end;
    double value;

    if (!collect(s, d, "+-.0123456789eE", text, sizeof text))
        return 0;
    value = strtod(text, &end);
    if (end == text)
        return 0;
    if (d->discard)
        return 1;
    if (d->length == 'l')
        *(double *)to = value;
    else if (d->length == 'L')
        *(long double *)to = value;
    else
        *(float *)to = value;
    return 1;
}

/* The set of %[...]; returns the format behind it. */
static const char *parse_set(const char *format, unsigned char member[256])
{
    int inverted = *format == '^', first = 1, c;

    memset(member, inverted, 256);
    format += inverted;
    for (; *format && (first || *format != ']'); format++, first = 0) {
        int last = (unsigned char)*format;

        if (format[1] == '-' && format[2] && format[2] != ']')
            last = (unsigned char)format[2];
        for (c = (unsigned char)*format; c <= last; c++)
            member[c] = !inverted;
        if (format[1] == '-' && format[2] && format[2] != ']')
            format += 2;
    }
    return *format ? format + 1 : format;
}

static int scan_characters(struct source *s, const struct directive *d, const unsigned char member[256],
                           char *to)
{
    int c, count = 0, most = d->width ? d->width : d->kind == 'c' ? 1 : INT32_MAX;

    while (count < most) {
        c = take(s);
        if (c == EOF || (d->kind == 's' && isspace(c)) || (d->kind == '[' && !member[c])) {
            give_back(s, c);
            break;
        }
        if (!d->discard)
            to[count] = c;
        count++;
    }
    if (!count || (d->kind == 'c' && count < most))
        return 0;
    if (!d->discard && d->kind != 'c')
        to[count] = 0;
    return 1;
}

static int scan(struct source *s, const char *format, va_list list)
{
    unsigned char member[256];
    struct directive d;
    int done = 0, ok, c;

    while (*format) {
        void *to = NULL;

        if (isspace((unsigned char)*format)) {
            skip_space(s);
            format++;
            continue;
        }
        if (*format != '%' || format[1] == '%') {
            if (*format == '%') {
                skip_space(s);
                format++;
            }
            c = take(s);
            if (c != (unsigned char)*format++) {
                give_back(s, c);
                return c == EOF && !done ? EOF : done;
            }
            continue;
        }
        format = parse(format + 1, &d);
        if (d.kind == '[')
            format = parse_set(format, member);
        if (!d.discard)
            to = va_arg(list, void *);
        if (d.kind == 'n') {
            store_integer(&d, s->count, to);
            continue;
        }
        c = d.kind == 'c' || d.kind == '[' ? take(s) : skip_space(s);
        if (d.kind == 'c' || d.kind == '[')
            give_back(s, c);
        if (c == EOF)
            return done ? done : EOF;
        if (d.kind && strchr("diuoxXp", d.kind))
            ok = scan_integer(s, &d, to);
        else if (d.kind && strchr("aefgEFG", d.kind))
            ok = scan_double(s, &d, to);
        else if (d.kind && strchr("sc[", d.kind))
            ok = scan_characters(s, &d, member, to);
        else
            ok = 0;
        if (!ok)
            break;
        done += !d.discard;
    }
    return done;
}

int vfscanf(FILE *f, const char *format, va_list list)
{
    struct source s = { f, NULL, 0 };

    return scan(&s, format, list);
}

int vsscanf(const char *text, const char *format, va_list list)
{
    struct source s = { NULL, text, 0 };

    return scan(&s, format, list);
}

int fscanf(FILE *f, const char *format, ...)
{
    va_list list;
    int result;

    va_start(list, format);
    result = vfscanf(f, format, list);
    va_end(list);
    return result;
}

int scanf(const char *format, ...)
{
    va_list list;
    int result;

    va_start(list, format);
    result = vfscanf(stdin, format, list);
    va_end(list);
    return result;
}

int sscanf(const char *text, const char *format, ...)
{
    va_list list;
    int result;

    va_start(list, format);
    result = vsscanf(text, format, list);
    va_end(list);
    return result;
}
