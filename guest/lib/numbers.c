/* Integers from text, absolute values, random numbers. */

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

/* Reads digits after white space and a sign. Returns the magnitude, and ULLONG_MAX with *overflow if it is
   larger. */
static unsigned long long digits(const char *s, char **end, int base, int *negative, int *overflow)
{
    const char *start = s;
    unsigned long long value = 0, limit;
    int digit;

    *negative = *overflow = 0;
    while (isspace((unsigned char)*s))
        s++;
    if (*s == '-' || *s == '+')
        *negative = *s++ == '-';
    if ((base == 0 || base == 16) && s[0] == '0' && (s[1] | 32) == 'x' && isxdigit((unsigned char)s[2])) {
        s += 2;
        base = 16;
    }
    if (base == 0)
        base = *s == '0' ? 8 : 10;
    limit = ULLONG_MAX / base;
    for (;; s++) {
        int c = (unsigned char)*s;

        digit = isdigit(c) ? c - '0' : isalpha(c) ? tolower(c) - 'a' + 10 : 36;
        if (digit >= base)
            break;
        start = s + 1;
        if (value > limit || value * base > ULLONG_MAX - digit)
            *overflow = 1;
        value = value * base + digit;
    }
    if (end)
        *end = (char *)start;
    return *overflow ? ULLONG_MAX : value;
}

/* As a signed number between -most - 1 and most. */
static long long bounded(const char *s, char **end, int base, unsigned long long most)
{
    int negative, overflow;
    unsigned long long value = digits(s, end, base, &negative, &overflow);

    if (value > most + negative) {
        errno = ERANGE;
        value = most + negative;
    }
    return negative ? -value : value;
}

long strtol(const char *s, char **end, int base)
{
    return bounded(s, end, base, LONG_MAX);
}

long long strtoll(const char *s, char **end, int base)
{
    return bounded(s, end, base, LLONG_MAX);
}

unsigned long strtoul(const char *s, char **end, int base)
{
    int negative, overflow;
    unsigned long long value = digits(s, end, base, &negative, &overflow);

    if (value > ULONG_MAX) {
        errno = ERANGE;
        return ULONG_MAX;
    }
    return negative ? -value : value;
}

unsigned long long strtoull(const char *s, char **end, int base)
{
    int negative, overflow;
    unsigned long long value = digits(s, end, base, &negative, &overflow);

    if (overflow) {
        errno = ERANGE;
        return ULLONG_MAX;
    }
    return negative ? -value : value;
}

int atoi(const char *s)
{
    return strtol(s, NULL, 10);
}

long atol(const char *s)
{
    return strtol(s, NULL, 10);
}

long long atoll(const char *s)
{
    return strtoll(s, NULL, 10);
}

int abs(int n)
{
    return n < 0 ? -n : n;
}

long labs(long n)
{
    return n < 0 ? -n : n;
}

long long llabs(long long n)
{
    return n < 0 ? -n : n;
}

div_t div(int dividend, int divisor)
{
    div_t result = { dividend / divisor, dividend % divisor };

    return result;
}

ldiv_t ldiv(long dividend, long divisor)
{
    ldiv_t result = { dividend / divisor, dividend % divisor };

    return result;
}

lldiv_t lldiv(long long dividend, long long divisor)
{
    lldiv_t result = { dividend / divisor, dividend % divisor };

    return result;
}

/* The linear congruential generator of Knuth's MMIX; its upper bits are the random ones. */
static unsigned long long state = 1;

int rand(void)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return state >> 33;
}

void srand(unsigned seed)
{
    state = seed;
}

long random(void)
{
    return rand();
}

void srandom(unsigned seed)
{
    srand(seed);
}
