/* Floating-point numbers from text, rounded correctly: the quotient of two large integers, bit by bit. */

#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DIGITS 800           /* more cannot change the rounding, but for their not being 0 */
#define WORDS 240            /* 800 digits x 10^310, or 10^1150 and a few bits more */

struct big {
    uint32_t word[WORDS];    /* the lowest first */
    int used;
};

union bits {
    double number;
    uint64_t bits;
};

static void multiply_add(struct big *n, uint32_t factor, uint32_t addend)
{
    uint64_t carry = addend;
    int i;

    for (i = 0; i < n->used; i++) {
        carry += (uint64_t)n->word[i] * factor;
        n->word[i] = carry;
        carry >>= 32;
    }
    if (carry)
        n->word[n->used++] = carry;
}

static void power_of_ten(struct big *n, int exponent)
{
    for (; exponent >= 9; exponent -= 9)
        multiply_add(n, 1000000000, 0);
    while (exponent-- > 0)
        multiply_add(n, 10, 0);
}

static void shift_left(struct big *n, int bits)
{
    for (; bits >= 31; bits -= 31)
        multiply_add(n, 1u << 31, 0);
    if (bits)
        multiply_add(n, 1u << bits, 0);
}

static int bits_of(const struct big *n)
{
    int bits = n->used * 32;
    uint32_t top = n->word[n->used - 1];

    for (; !(top & 0x80000000u); top <<= 1)
        bits--;
    return bits;
}

static int compare(const struct big *a, const struct big *b)
{
    int i;

    if (a->used != b->used)
        return a->used < b->used ? -1 : 1;
    for (i = a->used - 1; i >= 0; i--)
        if (a->word[i] != b->word[i])
            return a->word[i] < b->word[i] ? -1 : 1;
    return 0;
}

static void subtract(struct big *a, const struct big *b)
{
    uint32_t borrow = 0;
    int i;

    for (i = 0; i < a->used; i++) {
        uint32_t taken = i < b->used ? b->word[i] : 0, before = a->word[i];

        a->word[i] = before - taken - borrow;
        borrow = borrow ? before <= taken : before < taken;
    }
    while (a->used && !a->word[a->used - 1])
        a->used--;
}

/* n x 10^exponent, n not 0. */
static double scaled(struct big *n, int exponent)
{
    static struct big divisor;
    union bits u;
    uint64_t mantissa = 0;
    int top, bits, i, order;

    divisor.word[0] = 1;
    divisor.used = 1;
    power_of_ten(n, exponent);
    power_of_ten(&divisor, -exponent);
    top = bits_of(n) - bits_of(&divisor);
    shift_left(&divisor, top > 0 ? top : 0);
    shift_left(n, top < 0 ? -top : 0);
    if (compare(n, &divisor) < 0) {
        shift_left(n, 1);
        top--;
    }
    /* Now n / divisor is in [1, 2), and the number is that times 2^top. Subnormal numbers have fewer bits. */
    bits = top < -1022 ? 53 + 1022 + top : 53;
    for (i = 0; i < bits; i++) {
        mantissa <<= 1;
        if (compare(n, &divisor) >= 0) {
            subtract(n, &divisor);
            mantissa |= 1;
        }
        shift_left(n, 1);
    }
    order = bits < 0 ? -1 : compare(n, &divisor);
    if (order > 0 || (order == 0 && (mantissa & 1)))
        mantissa++;
    /* The mantissa's upper bit adds 1 to the exponent, and so does a carry out of it. */
    u.bits = mantissa + (top < -1022 ? 0 : (uint64_t)(top + 1022) << 52);
    if (top > 1023 || u.bits >= 0x7ff0000000000000ULL) {
        u.bits = 0x7ff0000000000000ULL;
        errno = ERANGE;
    } else if (u.bits < 0x10000000000000ULL) {
        errno = ERANGE;
    }
    return u.number;
}

/* Reads digits and a point. Returns whether there is any digit. */
static int read_digits(const char **s, struct big *n, int *exponent)
{
    int any = 0, count = 0, point = 0, rest = 0;

    n->used = 0;
    for (;; ++*s) {
        int c = **s;

        if (c == '.' && !point) {
            point = 1;
            continue;
        }
        if (!isdigit(c))
            break;
        any = 1;
        if (count < DIGITS) {
            multiply_add(n, 10, c - '0');
            count += n->used > 0;
            *exponent -= point;
        } else {
            rest |= c != '0';
            *exponent += !point;
        }
    }
    if (rest) {
        multiply_add(n, 10, 1);
        --*exponent;
    }
    return any;
}

static int read_exponent(const char **s)
{
    const char *p = *s;
    int negative, exponent = 0;

    if ((*p | 32) != 'e')
        return 0;
    p++;
    negative = *p == '-';
    if (*p == '-' || *p == '+')
        p++;
    if (!isdigit((unsigned char)*p))
        return 0;
    for (; isdigit((unsigned char)*p); p++)
        if (exponent < 100000)
            exponent = exponent * 10 + *p - '0';
    *s = p;
    return negative ? -exponent : exponent;
}

static double magnitude(const char **s)
{
    static struct big n;
    union bits u;
    int exponent = 0;

    if (!strncasecmp(*s, "inf", 3)) {
        *s += strncasecmp(*s, "infinity", 8) ? 3 : 8;
        u.bits = 0x7ff0000000000000ULL;
        return u.number;
    }
    if (!strncasecmp(*s, "nan", 3)) {
        *s += 3;
        u.bits = 0x7ff8000000000000ULL;
        return u.number;
    }
    if (!read_digits(s, &n, &exponent)) {
        *s = NULL;
        return 0;
    }
    exponent += read_exponent(s);
    if (!n.used)
        return 0;
    /* Beyond these every number of up to 801 digits is infinite or 0. */
    if (exponent > 310 || exponent < -1150) {
        errno = ERANGE;
        u.bits = exponent > 0 ? 0x7ff0000000000000ULL : 0;
        return u.number;
    }
    return scaled(&n, exponent);
}

double strtod(const char *s, char **end)
{
    const char *p = s;
    double value;
    int negative;

    while (isspace((unsigned char)*p))
        p++;
    negative = *p == '-';
    if (*p == '-' || *p == '+')
        p++;
    value = magnitude(&p);
    if (end)
        *end = (char *)(p ? p : s);
    return negative && p ? -value : value;
}

float strtof(const char *s, char **end)
{
    return strtod(s, end);
}

long double strtold(const char *s, char **end)
{
    return strtod(s, end);
}

double atof(const char *s)
{
    return strtod(s, NULL);
}
