/* Exact decimal digits of floating-point numbers. */

#include <stdint.h>
#include <string.h>
#include "decimal.h"

#define LIMB 1000000000u
#define LIMBS 90

union bits {
    double number;
    uint64_t bits;
};

struct big {
    uint32_t limb[LIMBS];    /* base 10^9, the lowest first */
    int used;
};

static void multiply(struct big *n, uint32_t factor)
{
    uint64_t carry = 0;
    int i;

    for (i = 0; i < n->used; i++) {
        carry += (uint64_t)n->limb[i] * factor;
        n->limb[i] = carry % LIMB;
        carry /= LIMB;
    }
    if (carry)
        n->limb[n->used++] = carry;
}

int decimal_digits(double x, char *digits, int *point)
{
    union bits u;
    struct big n;
    uint64_t mantissa;
    int exponent, i, j, count = 0, scale = 0;

    u.number = x;
    mantissa = u.bits & 0xfffffffffffffULL;
    exponent = u.bits >> 52 & 0x7ff;
    if (exponent)
        mantissa |= 0x10000000000000ULL;
    else
        exponent = 1;
    exponent -= 1075;
    *point = 1;
    if (!mantissa)
        return 0;

    n.limb[0] = mantissa % LIMB;
    n.limb[1] = mantissa / LIMB;
    n.used = n.limb[1] ? 2 : 1;
    for (; exponent < 0 && !(mantissa & 1); exponent++) {
        mantissa >>= 1;
        n.limb[0] = mantissa % LIMB;
        n.limb[1] = mantissa / LIMB;
        n.used = n.limb[1] ? 2 : 1;
    }
    for (; exponent >= 29; exponent -= 29)
        multiply(&n, 1u << 29);
    if (exponent > 0)
        multiply(&n, 1u << exponent);
    /* m x 2^-e = m x 5^e / 10^e. */
    for (; exponent <= -12; exponent += 12, scale += 12)
        multiply(&n, 244140625);
    for (; exponent < 0; exponent++, scale++)
        multiply(&n, 5);

    for (i = n.used - 1; i >= 0; i--) {
        uint32_t limb = n.limb[i], unit = LIMB / 10;

        for (j = 0; j < 9; j++, unit /= 10)
            if (count || limb / unit % 10)
                digits[count++] = '0' + limb / unit % 10;
    }
    *point = count - scale;
    while (count && digits[count - 1] == '0')
        count--;
    return count;
}

int decimal_round(char *digits, int count, int keep, int *point)
{
    int up;

    if (keep >= count)
        return count;
    if (keep < 0)
        return 0;
    up = digits[keep] > '5' ||
         (digits[keep] == '5' && (keep + 1 < count || (keep && (digits[keep - 1] - '0') % 2)));
    count = keep;
    while (up && count && digits[count - 1] == '9')
        count--;
    if (up && count) {
        digits[count - 1]++;
    } else if (up) {
        digits[count++] = '1';
        ++*point;
    }
    while (count && digits[count - 1] == '0')
        count--;
    return count;
}
