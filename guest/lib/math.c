/* Functions of floating-point numbers. */

#include <math.h>
#include <stdint.h>

union bits {
    double number;
    uint64_t bits;
};

double fabs(double x)
{
    return x < 0 ? -x : x + 0.0;
}

double floor(double x)
{
    int64_t whole;

    /* From 2^52 on every number is whole. */
    if (!(fabs(x) < 4503599627370496.0))
        return x;
    whole = (int64_t)x;
    return whole > x ? whole - 1 : whole;
}

double ceil(double x)
{
    return -floor(-x);
}

double sqrt(double x)
{
    double root;
    unsigned short control, narrow;

    /* Rounded once, to 53 bits: precision control is bits 8 and 9 of the control word (SDM, volume 1,
       8.1.5.2). */
    __asm__ volatile("fnstcw %0" : "=m"(control));
    narrow = (control & ~0x300) | 0x200;
    __asm__ volatile("fldcw %2; fldl %1; fsqrt; fstpl %0; fldcw %3"
                     : "=m"(root) : "m"(x), "m"(narrow), "m"(control));
    return root;
}

double fmod(double x, double y)
{
    double rest;

    __asm__ volatile("fldl %2; fldl %1; 1: fprem; fnstsw %%ax; sahf; jp 1b; fstp %%st(1); fstpl %0"
                     : "=m"(rest) : "m"(x), "m"(y) : "eax", "cc");
    return rest;
}

long double ldexpl(long double x, int exponent)
{
    for (; exponent > 0 && x != 0 && x - x == 0; exponent--)
        x *= 2;
    for (; exponent < 0 && x != 0; exponent++)
        x /= 2;
    return x;
}

double ldexp(double x, int exponent)
{
    return ldexpl(x, exponent);
}

double frexp(double x, int *exponent)
{
    union bits u;

    *exponent = 0;
    if (x == 0 || x - x != 0)
        return x;
    u.number = x;
    if (!(u.bits >> 52 & 0x7ff)) {
        u.number *= 18014398509481984.0; /* 2^54: a normal number */
        *exponent = -54;
    }
    *exponent += (int)(u.bits >> 52 & 0x7ff) - 1022;
    u.bits = (u.bits & 0x800fffffffffffffULL) | 0x3fe0000000000000ULL;
    return u.number;
}
