/* Conversions from floating point to 64-bit integers, which tcc makes calls of. */

#include <stdint.h>
#include <string.h>

/* IEEE 754, binary64: 52 bits of the fraction, 11 of the exponent, the sign. What does not fit gives the
   number with only the highest bit, as the processor does (Intel SDM volume 1, section 4.8.3.7). */
static uint64_t magnitude(double value, int *negative)
{
    uint64_t bits, fraction;
    memcpy(&bits, &value, sizeof bits);
    *negative = (int)(bits >> 63);
    int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    fraction = (bits & 0xfffffffffffffull) | 1ull << 52;
    if (exponent < 0)
        return 0;
    if (exponent > 63)
        return 1ull << 63;
    return exponent >= 52 ? fraction << (exponent - 52) : fraction >> (52 - exponent);
}

int64_t __fixdfdi(double value)
{
    int negative;
    uint64_t bits = magnitude(value, &negative);
    return (int64_t)(negative ? 0 - bits : bits);
}

uint64_t __fixunsdfdi(double value)
{
    return (uint64_t)__fixdfdi(value);
}
