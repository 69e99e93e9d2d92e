/* printf's language. */

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "decimal.h"
#include "format.h"

#define LEFT 1
#define PLUS 2
#define SPACE 4
#define ALTERNATE 8
#define ZERO 16

struct directive {
    int flags, width, precision;  /* precision -1: not given */
    char length;                  /* 0, or h, l, q (two of l), c (two of h), L */
    char kind;
};

static void put(struct sink *sink, const char *text, size_t bytes)
{
    sink->total += bytes;
    sink->put(sink, text, bytes);
}

static void repeat(struct sink *sink, char c, int count)
{
    char text[32];

    memset(text, c, sizeof text);
    for (; count > (int)sizeof text; count -= sizeof text)
        put(sink, text, sizeof text);
    if (count > 0)
        put(sink, text, count);
}

/* A prefix (sign, 0x), zeros, and a text, filled to the width. */
static void put_field(struct sink *sink, const struct directive *d, const char *prefix, int zeros,
                      const char *text, int length)
{
    int prefix_length = strlen(prefix), fill = d->width - prefix_length - zeros - length;

    if (d->flags & ZERO && fill > 0) {
        zeros += fill;
        fill = 0;
    }
    if (!(d->flags & LEFT))
        repeat(sink, ' ', fill);
    put(sink, prefix, prefix_length);
    repeat(sink, '0', zeros);
    put(sink, text, length);
    if (d->flags & LEFT)
        repeat(sink, ' ', fill);
}

static const char *sign(const struct directive *d, int negative)
{
    return negative ? "-" : d->flags & PLUS ? "+" : d->flags & SPACE ? " " : "";
}

static void put_integer(struct sink *sink, struct directive *d, uint64_t value, int negative)
{
    char text[24], *start = text + sizeof text;
    const char *prefix = "", *alphabet = d->kind == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    int base = 10, length, zeros, zero = !value;

    if (d->kind == 'o')
        base = 8;
    else if (strchr("xXp", d->kind))
        base = 16;
    for (; value; value /= base)
        *--start = alphabet[value % base];
    length = text + sizeof text - start;
    if (d->kind == 'd')
        prefix = sign(d, negative);
    else if (base == 16 && (d->kind == 'p' || (d->flags & ALTERNATE && !zero)))
        prefix = d->kind == 'X' ? "0X" : "0x";
    if (d->precision >= 0)
        d->flags &= ~ZERO;
    zeros = (d->precision < 0 ? 1 : d->precision) - length;
    if (base == 8 && d->flags & ALTERNATE && zeros < 1)
        zeros = 1;
    put_field(sink, d, prefix, zeros > 0 ? zeros : 0, start, length);
}

static void put_text(struct sink *sink, struct directive *d, const char *text)
{
    if (!text)
        text = "(null)";
    d->flags &= ~ZERO;
    put_field(sink, d, "", 0, text, d->precision < 0 ? strlen(text) : strnlen(text, d->precision));
}

/* A number as pieces: digits, zeros and the rest of the digits, of any length without a buffer of that
   length. */
struct number {
    const char *digits;      /* significant ones */
    int count, point;        /* 0.DIGITS x 10^point */
    int decimals;            /* digits behind the point to show */
    char tail[8];            /* the exponent */
};

static void put_digits(struct sink *sink, const struct number *n, int from, int to)
{
    int first = from < 0 ? 0 : from, last = to < n->count ? to : n->count;

    if (from < 0)
        repeat(sink, '0', (to < 0 ? to : 0) - from);
    if (last > first)
        put(sink, n->digits + first, last - first);
    if (to > 0 && to > n->count)
        repeat(sink, '0', to - (first > n->count ? first : n->count));
}

static void put_number(struct sink *sink, const struct directive *d, const struct number *n,
                       const char *prefix)
{
    int whole = n->point > 0 ? n->point : 1, dot = n->decimals > 0 || d->flags & ALTERNATE;
    int length = strlen(prefix) + whole + dot + n->decimals + strlen(n->tail), fill = d->width - length;

    if (!(d->flags & (LEFT | ZERO)))
        repeat(sink, ' ', fill);
    put(sink, prefix, strlen(prefix));
    if (d->flags & ZERO)
        repeat(sink, '0', fill);
    put_digits(sink, n, n->point - whole, n->point);
    if (dot)
        put(sink, ".", 1);
    put_digits(sink, n, n->point, n->point + n->decimals);
    put(sink, n->tail, strlen(n->tail));
    if (d->flags & LEFT)
        repeat(sink, ' ', fill);
}

static void set_tail(struct number *n, char letter, int exponent)
{
    char *p = n->tail;

    *p++ = letter;
    *p++ = exponent < 0 ? '-' : '+';
    if (exponent < 0)
        exponent = -exponent;
    if (exponent >= 100)
        *p++ = '0' + exponent / 100;
    *p++ = '0' + exponent / 10 % 10;
    *p++ = '0' + exponent % 10;
    *p = 0;
}

static void put_double(struct sink *sink, struct directive *d, double value)
{
    char digits[DECIMAL_DIGITS], kind = d->kind | 32, letter = d->kind & 32 ? 'e' : 'E';
    struct number n;
    union {
        double number;
        uint64_t bits;
    } u;
    const char *prefix;
    int exponent;

    u.number = value;
    prefix = sign(d, u.bits >> 63);
    if ((u.bits >> 52 & 0x7ff) == 0x7ff) {
        d->flags &= ~ZERO;
        put_field(sink, d, prefix, 0, u.bits << 12 ? (d->kind & 32 ? "nan" : "NAN")
                                                   : (d->kind & 32 ? "inf" : "INF"), 3);
        return;
    }
    if (d->precision < 0)
        d->precision = 6;
    n.digits = digits;
    n.count = decimal_digits(value, digits, &n.point);
    n.decimals = d->precision;
    n.tail[0] = 0;
    if (kind == 'f') {
        n.count = decimal_round(digits, n.count, n.point + d->precision, &n.point);
    } else {
        int significant = kind == 'e' ? d->precision + 1 : d->precision ? d->precision : 1;

        n.count = decimal_round(digits, n.count, significant, &n.point);
        exponent = n.point - 1;
        if (kind == 'e' || exponent < -4 || exponent >= significant) {
            set_tail(&n, letter, exponent);
            n.point = 1;
        }
        n.decimals = significant - n.point;
        if (kind == 'g' && !(d->flags & ALTERNATE) && n.decimals > n.count - n.point)
            n.decimals = n.count > n.point ? n.count - n.point : 0;
    }
    put_number(sink, d, &n, prefix);
}

static int64_t signed_argument(char length, va_list *list)
{
    int value;

    if (length == 'q')
        return va_arg(*list, int64_t);
    if (length == 'l')
        return va_arg(*list, long);
    value = va_arg(*list, int);
    return length == 'c' ? (signed char)value : length == 'h' ? (short)value : value;
}

static uint64_t unsigned_argument(char length, va_list *list)
{
    unsigned value;

    if (length == 'q')
        return va_arg(*list, uint64_t);
    value = va_arg(*list, unsigned);
    return length == 'c' ? (uint8_t)value : length == 'h' ? (uint16_t)value : value;
}

static int number(const char **text, va_list *list)
{
    int n = 0;

    if (**text == '*') {
        ++*text;
        return va_arg(*list, int);
    }
    for (; isdigit((unsigned char)**text); ++*text)
        if (n < 100000000)
            n = n * 10 + **text - '0';
    return n;
}

static const char *parse(const char *text, struct directive *d, va_list *list)
{
    static const char flags[] = "-+ #0";
    const char *flag;

    memset(d, 0, sizeof *d);
    for (; *text && (flag = strchr(flags, *text)) != NULL; text++)
        d->flags |= 1 << (flag - flags);
    d->width = number(&text, list);
    if (d->width < 0) {
        d->flags |= LEFT;
        d->width = -d->width;
    }
    d->precision = -1;
    if (*text == '.') {
        text++;
        d->precision = number(&text, list);
    }
    if (d->flags & LEFT)
        d->flags &= ~ZERO;
    for (; *text && strchr("hljztLq", *text); text++) {
        if (*text == 'l' && d->length == 'l')
            d->length = 'q';
        else if (*text == 'h' && d->length == 'h')
            d->length = 'c';
        else
            d->length = *text == 'j' ? 'q' : *text == 'z' || *text == 't' ? 'l' : *text;
    }
    d->kind = *text;
    return *text ? text + 1 : text;
}

static void convert(struct sink *sink, struct directive *d, va_list *list)
{
    int64_t value;
    char c;

    switch (d->kind) {
    case 'd':
    case 'i':
        value = signed_argument(d->length, list);
        d->kind = 'd';
        put_integer(sink, d, value < 0 ? -(uint64_t)value : (uint64_t)value, value < 0);
        break;
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        put_integer(sink, d, unsigned_argument(d->length, list), 0);
        break;
    case 'p':
        put_integer(sink, d, va_arg(*list, unsigned), 0);
        break;
    case 'c':
        c = va_arg(*list, int);
        d->flags &= ~ZERO;
        put_field(sink, d, "", 0, &c, 1);
        break;
    case 's':
        put_text(sink, d, va_arg(*list, const char *));
        break;
    case 'm':
        put_text(sink, d, strerror(errno));
        break;
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
        put_double(sink, d, d->length == 'L' ? (double)va_arg(*list, long double) : va_arg(*list, double));
        break;
    case 'n':
        *va_arg(*list, int *) = sink->total;
        break;
    case '%':
        put(sink, "%", 1);
        break;
    }
}

void format(struct sink *sink, const char *text, va_list given)
{
    struct directive d;
    va_list list;

    va_copy(list, given);
    while (*text) {
        size_t plain = strcspn(text, "%");

        if (plain)
            put(sink, text, plain);
        text += plain;
        if (!*text)
            break;
        text = parse(text + 1, &d, &list);
        convert(sink, &d, &list);
    }
    va_end(list);
}
